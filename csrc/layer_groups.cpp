#include "layer_groups.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace hicache {

namespace {

constexpr uint32_t kGroupSizeMax = 4;
// Fragments of this size are large: copies of 64 KiB run at full speed on every backend.
constexpr uint64_t kLargeFragmentBytes = 64 << 10;

// A layer's bytes of a page whose layers can be copied one by one; 0: they cannot.
uint64_t slice_layer_bytes(const PoolLayout &of) { return of.separate() ? of.rows.layer_bytes() : of.layer_bytes; }

} // namespace

LayerOrder::LayerOrder(std::vector<PoolLayout> pools, bool drop_last_layer) : pools_(std::move(pools)), drop_last_layer_(drop_last_layer) {
  std::map<uint32_t, uint32_t> masks;
  for (uint32_t pool = 0; pool < pools_.size(); pool++) {
    for (uint32_t layer : pools_[pool].layer_ids) masks[layer] |= 1u << pool;
  }
  for (auto [layer, mask] : masks) order_.push_back({layer, mask});
  layer_limit_ = order_.empty() ? 0 : order_.back().layer + 1;
}

bool LayerOrder::serves(uint32_t pool_mask, uint32_t layer) const {
  auto at = std::lower_bound(order_.begin(), order_.end(), layer, [](const Entry &entry, uint32_t id) { return entry.layer < id; });
  return at != order_.end() && at->layer == layer && (at->pool_mask & pool_mask) != 0;
}

LayerGroup LayerOrder::group_at(uint32_t from, uint32_t layers_wanted, uint32_t pool_mask) const {
  LayerGroup group;
  const auto count = static_cast<uint32_t>(order_.size());
  while (from < count && (order_[from].pool_mask & pool_mask) == 0) from++;
  group.order_begin = group.order_end = from;
  if (from == count) return group;
  group.first_layer = order_[from].layer;
  uint32_t at = from;
  for (; at < count && group.size < layers_wanted; at++) {
    if ((order_[at].pool_mask & pool_mask) != 0) group.size++;
  }
  group.order_end = at;
  const uint32_t layer_end = order_[at - 1].layer + 1;
  for (uint32_t pool = 0; pool < pools_.size(); pool++) {
    if ((pool_mask & (1u << pool)) == 0) continue;
    const PoolLayout &layout = pools_[pool];
    const auto &ids = layout.layer_ids;
    const auto low = static_cast<uint64_t>(std::lower_bound(ids.begin(), ids.end(), group.first_layer) - ids.begin());
    const auto high = static_cast<uint64_t>(std::lower_bound(ids.begin(), ids.end(), layer_end) - ids.begin());
    if (low == high) continue;
    SliceRange &slice = group.slices[pool];
    if (layout.layer_bytes == 0 && !layout.separate()) {
      // Interleaved layers: the envelope goes whole, with the group that holds its first layer.
      if (low == 0) slice = {0, layout.page_bytes, 0, static_cast<uint32_t>(ids.size())};
      continue;
    }
    const uint64_t layer_bytes = slice_layer_bytes(layout);
    // What pads an envelope travels with its last layer, so that both tiers hold the same bytes.
    slice = {low * layer_bytes, high == ids.size() ? layout.page_bytes : high * layer_bytes, static_cast<uint32_t>(low),
             static_cast<uint32_t>(high)};
    if (drop_last_layer_ && high == ids.size()) {
      slice.end = (ids.size() - 1) * layer_bytes;
      slice.last_layer = static_cast<uint32_t>(ids.size() - 1);
    }
    if (slice.end < slice.begin) slice.end = slice.begin;
  }
  return group;
}

uint32_t LayerOrder::group_size_max(uint32_t pool_mask) const {
  uint64_t layer_bytes = kLargeFragmentBytes;
  for (uint32_t pool = 0; pool < pools_.size(); pool++) {
    const uint64_t of_pool = slice_layer_bytes(pools_[pool]);
    if ((pool_mask & (1u << pool)) != 0 && of_pool != 0) layer_bytes = std::min(layer_bytes, of_pool);
  }
  return std::max(kGroupSizeMax, static_cast<uint32_t>(kLargeFragmentBytes / layer_bytes));
}

LayerGroup LayerOrder::first_group(uint32_t pool_mask, bool whole) const { return group_at(0, whole ? UINT32_MAX : 1, pool_mask); }

LayerGroup LayerOrder::next_group(const LayerGroup &group, uint32_t pool_mask) const {
  // 1, 1, 2, 4, 4: the second group is recognised by starting where the first single layer ended.
  uint32_t first = 0;
  while (first < order_.size() && (order_[first].pool_mask & pool_mask) == 0) first++;
  const bool second = group.order_begin == first;
  const uint32_t size = second ? 1 : std::min(group.size * 2, group_size_max(pool_mask));
  return group_at(group.order_end, size, pool_mask);
}

} // namespace hicache
