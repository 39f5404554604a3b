// Virtual to kernel ids: padding, every alignment and length against a plain loop.
#include "id_translate.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace hicache {
namespace {

TEST(IdTranslate, WorkedExampleOfPadding) {
  // [-1, 0, 3, 9999] with page 3 at place 7.
  std::vector<uint32_t> v2p{0, 0xffffffffu, 0xfffffff0u, 7};
  KernelMap map{v2p.data(), 4, 4};
  const uint32_t pages[] = {0xffffffffu, 0, 3, 9999, 1, 2};
  int32_t ids[6];
  EXPECT_EQ(translate_pages(map, pages, 6, ids), 5u);
  EXPECT_EQ(std::vector<int32_t>(ids, ids + 6), (std::vector<int32_t>{0, 0, 7, 0, 0, 0}));
  int32_t tokens[24];
  EXPECT_EQ(translate_tokens(map, pages, 6, tokens), 5u);
  EXPECT_EQ(std::vector<int32_t>(tokens + 8, tokens + 12), (std::vector<int32_t>{28, 29, 30, 31}));
  for (int i : {0, 1, 2, 3, 4, 7, 12, 23}) EXPECT_EQ(tokens[i], 0);
}

TEST(IdTranslate, EveryLengthAgreesWithAPlainLoop) {
  std::minstd_rand seeded(7);
  auto random = [&] { return static_cast<uint32_t>(seeded()); };
  std::vector<uint32_t> v2p(1000);
  for (auto &entry : v2p) entry = random() % 4 == 0 ? 0xfffffff0u + random() % 16 : random() % 5000;
  for (uint32_t count = 0; count < 100; count++) {
    std::vector<uint32_t> pages(count);
    for (auto &page : pages) page = random() % 8 == 0 ? random() * 3 : random() % 1100;
    KernelMap map{v2p.data(), count % 3 == 0 ? 500u : 1000u, 16};
    std::vector<int32_t> ids(count + 1, -7);
    uint64_t sinks = 0;
    const uint64_t counted = translate_pages(map, pages.data(), count, ids.data());
    for (uint32_t i = 0; i < count; i++) {
      const uint32_t place = pages[i] < map.v2p_length ? v2p[pages[i]] : 0xffffffffu;
      const int32_t want = place >= 0xfffffff0u ? 0 : static_cast<int32_t>(place);
      EXPECT_EQ(ids[i], want) << count << " " << i;
      sinks += want == 0;
    }
    EXPECT_EQ(counted, sinks);
    EXPECT_EQ(ids[count], -7) << "wrote past the end";
  }
}

TEST(IdTranslate, EmptyTable) {
  KernelMap map{nullptr, 0, 1};
  std::vector<uint32_t> pages(33, 5);
  std::vector<int32_t> ids(33, -1);
  EXPECT_EQ(translate_pages(map, pages.data(), 33, ids.data()), 33u);
  for (int32_t id : ids) EXPECT_EQ(id, 0);
}

} // namespace
} // namespace hicache
