#include "../hole_set.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace hicache {
namespace {

// Every operation against a std::set, at capacities around the word and level boundaries.
class HoleSetSizes : public testing::TestWithParam<uint32_t> {};

uint32_t next_in(const std::set<uint32_t> &model, uint32_t i) {
  const auto it = model.lower_bound(i);
  return it == model.end() ? HoleSet::kNone : *it;
}
uint32_t prev_in(const std::set<uint32_t> &model, uint32_t i) {
  auto it = model.upper_bound(i);
  return it == model.begin() ? HoleSet::kNone : *--it;
}

TEST_P(HoleSetSizes, AgreesWithAStdSet) {
  const uint32_t capacity = GetParam();
  HoleSet set;
  set.open(capacity);
  std::set<uint32_t> model;
  std::mt19937 random(capacity);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  for (int step = 0; step < 2000; step++) {
    const uint32_t i = below(capacity);
    switch (below(8)) {
      case 0:
      case 1:
        if (model.insert(i).second) set.insert(i);
        break;
      case 2:
        if (model.erase(i) == 1) set.erase(i);
        break;
      case 3: { // A free range in.
        const uint32_t end = std::min(next_in(model, i), capacity);
        const uint32_t high = i + (end > i ? below(std::min(end - i, 3000u) + 1) : 0);
        set.insert_range(i, high);
        for (uint32_t k = i; k < high; k++) model.insert(k);
        break;
      }
      case 4: { // Any range out, seldom.
        if (below(10) != 0) break;
        const uint32_t high = i + below(std::min(capacity - i, 20000u) + 1);
        set.erase_range(i, high);
        model.erase(model.lower_bound(i), model.lower_bound(high));
        break;
      }
      case 5: {
        const auto first = model.lower_bound(i);
        const uint32_t there = set.count_in(i, capacity, 2000);
        const uint32_t n = below(there + 1);
        std::vector<uint32_t> out(n);
        set.drain_from(i, n, out.data());
        auto it = first;
        for (const uint32_t got : out) {
          ASSERT_EQ(got, *it);
          it = model.erase(it);
        }
        break;
      }
      case 6: {
        const uint32_t n = below(std::min(static_cast<uint32_t>(model.size()), 2000u) + 1) / 2;
        std::vector<uint32_t> out(n);
        set.drain_highest(n, out.data());
        for (const uint32_t got : out) {
          ASSERT_EQ(got, *model.rbegin());
          model.erase(got);
        }
        break;
      }
      default: {
        const uint32_t j = std::min(capacity, i + below(4000));
        const uint32_t count = static_cast<uint32_t>(std::distance(model.lower_bound(std::min(i, j)), model.lower_bound(std::max(i, j))));
        ASSERT_EQ(set.count_in(std::min(i, j), std::max(i, j)), count);
        ASSERT_EQ(set.count_in(std::min(i, j), std::max(i, j), 3), std::min(count, 3u));
        if (!model.empty()) {
          const uint32_t n = 1 + below(std::min(static_cast<uint32_t>(model.size()), 5000u));
          ASSERT_EQ(set.nth_highest(n), *std::prev(model.end(), n));
        }
      }
    }
    ASSERT_EQ(set.size(), model.size());
    ASSERT_EQ(set.contains(i), model.count(i) == 1);
    ASSERT_EQ(set.next(i), next_in(model, i));
    ASSERT_EQ(set.prev(i), prev_in(model, i));
    ASSERT_EQ(set.lowest(), next_in(model, 0));
    ASSERT_EQ(set.highest(), prev_in(model, capacity));
  }
}

INSTANTIATE_TEST_SUITE_P(Capacities, HoleSetSizes, testing::Values(1, 63, 64, 65, 4095, 4096, 4097, 10000, 262144, 262145));

} // namespace
} // namespace hicache
