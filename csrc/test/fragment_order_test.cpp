#include "fragment_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace hicache {
namespace {

// Those of a huge page together, in the order they came; nothing lost, whatever the span and the side.
TEST(FragmentOrder, GroupsByHugePageAndKeepsTheRest) {
  std::mt19937_64 random(1);
  FragmentOrder order;
  for (uint64_t span : {uint64_t{1} << 12, uint64_t{1} << 24, uint64_t{1} << 30, uint64_t{1} << 41}) {
    for (bool to_host : {false, true}) {
      for (size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{777}, size_t{20000}}) {
        const uint64_t base = (random() >> 20) / 16 * 16;
        std::vector<kernel::Fragment> fragments(count), out(count + 1, kernel::Fragment{1, 1});
        for (size_t i = 0; i < count; i++) { // The other side is the number of the fragment.
          const uint64_t host = base + random() % span / 16 * 16;
          fragments[i] = to_host ? kernel::Fragment{i, host} : kernel::Fragment{host, i};
        }
        order.place(fragments, to_host, out.data());
        EXPECT_EQ(out[count].source, 1u) << "written past the end";
        out.resize(count);
        const uint32_t shift = span >> 37 != 0 ? 21 + 4 : 21; // 2^41 bytes are 2^20 pages: groups of 16.
        const auto host = [&](const kernel::Fragment &fragment) { return to_host ? fragment.target : fragment.source; };
        const auto number = [&](const kernel::Fragment &fragment) { return to_host ? fragment.source : fragment.target; };
        uint64_t lowest = ~uint64_t{0};
        for (const kernel::Fragment &fragment : fragments) lowest = std::min(lowest, host(fragment) >> 21 << 21);
        const auto group = [&](const kernel::Fragment &fragment) { return (host(fragment) - lowest) >> shift; };
        std::vector<kernel::Fragment> ideal = fragments;
        std::stable_sort(ideal.begin(), ideal.end(), [&](const auto &a, const auto &b) { return group(a) < group(b); });
        for (size_t i = 0; i < count; i++) {
          ASSERT_EQ(number(out[i]), number(ideal[i])) << "span " << span << ", at " << i;
          ASSERT_EQ(host(out[i]), host(ideal[i]));
        }
      }
    }
  }
}

} // namespace
} // namespace hicache
