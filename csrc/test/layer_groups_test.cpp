// The order of a transfer's bytes: group sizes, ranges, padding, interleaved layers.
#include "layer_groups.hpp"

#include <gtest/gtest.h>

namespace hicache {
namespace {

PoolLayout layout(std::vector<uint32_t> layers, uint64_t layer_bytes, uint64_t page_bytes) {
  PoolLayout of;
  of.layer_ids = std::move(layers);
  of.layer_bytes = layer_bytes;
  of.page_bytes = page_bytes;
  of.page_tokens = 1;
  return of;
}

std::vector<uint32_t> sizes(const LayerOrder &order, uint32_t mask) {
  std::vector<uint32_t> all;
  for (LayerGroup group = order.first_group(mask, false); !group.at_end(); group = order.next_group(group, mask)) all.push_back(group.size);
  return all;
}

TEST(LayerGroups, GrowOneOneTwoFourFour) {
  std::vector<uint32_t> ids;
  for (uint32_t i = 0; i < 19; i++) ids.push_back(3 * i + 2);
  LayerOrder order({layout(ids, 64 << 10, 19 * (64 << 10))}, false);
  EXPECT_EQ(sizes(order, 1), (std::vector<uint32_t>{1, 1, 2, 4, 4, 4, 3}));
  LayerOrder small({layout(ids, 8 << 10, 19 * (8 << 10))}, false);
  EXPECT_EQ(sizes(small, 1), (std::vector<uint32_t>{1, 1, 2, 4, 8, 3})) << "until a fragment is 64 KiB";
  EXPECT_EQ(order.layer_limit(), 3u * 18 + 3);
}

TEST(LayerGroups, EveryByteOfEveryPoolOnceAndInOrder) {
  // Two pools with interleaved global layers, one padded.
  LayerOrder order({layout({1, 4, 7}, 64, 192), layout({0, 2, 3, 5, 6, 8}, 32, 208)}, false);
  uint64_t copied[2] = {0, 0};
  uint32_t last = 0;
  for (LayerGroup group = order.first_group(3, false); !group.at_end(); group = order.next_group(group, 3)) {
    EXPECT_GE(group.first_layer, last);
    last = group.first_layer;
    for (int pool = 0; pool < 2; pool++) {
      if (group.slices[pool].end == group.slices[pool].begin) continue;
      EXPECT_EQ(group.slices[pool].begin, copied[pool]);
      copied[pool] = group.slices[pool].end;
    }
  }
  EXPECT_EQ(copied[0], 192u);
  EXPECT_EQ(copied[1], 208u) << "padding travels with the last layer";
}

TEST(LayerGroups, OnlyThePoolsThatTakePart) {
  LayerOrder order({layout({1, 4, 7}, 64, 192), layout({0, 2, 3}, 32, 96)}, false);
  LayerGroup group = order.first_group(1, false);
  EXPECT_EQ(group.first_layer, 1u);
  EXPECT_EQ(group.slices[1].end, 0u);
  EXPECT_TRUE(order.serves(1, 4));
  EXPECT_FALSE(order.serves(1, 2));
  EXPECT_TRUE(order.serves(3, 2));
  EXPECT_FALSE(order.serves(3, 5));
}

TEST(LayerGroups, InterleavedLayersGoWholeWithTheFirst) {
  LayerOrder order({layout({2, 5}, 0, 512)}, false);
  LayerGroup first = order.first_group(1, false);
  EXPECT_EQ(first.slices[0].end, 512u);
  LayerGroup second = order.next_group(first, 1);
  EXPECT_FALSE(second.at_end());
  EXPECT_EQ(second.slices[0].end, 0u);
  EXPECT_TRUE(order.next_group(second, 1).at_end());
}

TEST(LayerGroups, WholeIsOneGroup) {
  LayerOrder order({layout({1, 4, 7}, 64, 192)}, false);
  LayerGroup group = order.first_group(1, true);
  EXPECT_EQ(group.slices[0].begin, 0u);
  EXPECT_EQ(group.slices[0].end, 192u);
  EXPECT_TRUE(order.next_group(group, 1).at_end());
}

TEST(LayerGroups, DroppedLastLayerIsLeftOut) {
  LayerOrder order({layout({1, 4, 7}, 64, 200)}, true);
  EXPECT_EQ(order.first_group(1, true).slices[0].end, 128u);
  LayerOrder single({layout({1}, 64, 64)}, true);
  LayerGroup group = single.first_group(1, true);
  EXPECT_EQ(group.slices[0].end, group.slices[0].begin);
}

} // namespace
} // namespace hicache
