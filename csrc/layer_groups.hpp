// In which order the bytes of a transfer are copied: layer group by layer group over all its pools, in groups of 1, 1, 2, 4, 4, … layers,
// so that the first layers can be read early and the later copies are large. Where a layer's slice of a page is small, groups go on
// doubling: otherwise a page would be visited once more for each few kilobytes.
#pragma once

#include <cstdint>
#include <vector>

#include "host_layout.hpp"

namespace hicache {

constexpr uint32_t kPoolCountMax = 16;

// Values of a progress word. It holds the global layer id below which every layer of the transfer has arrived and only grows. The largest
// values stay below 2^31, so that a signed or cyclic comparison on a device orders them too.
constexpr uint32_t kProgressDone = 0x40000000u;   // Every layer has arrived.
constexpr uint32_t kProgressPoison = 0x7fffffffu; // The transfer failed: waits are released, the status says why.

// Layer ids must be below this.
constexpr uint32_t kLayerIdLimit = kProgressDone;

// What a backend knows of a pool: where a layer's bytes are inside an envelope.
struct PoolLayout {
  uint64_t page_bytes = 0;
  uint64_t layer_bytes = 0; // A layer's contiguous slice; 0 if layers are interleaved (token-major) and an envelope goes whole.
  uint64_t token_bytes = 0; // All layers' rows of a token.
  uint64_t row_bytes = 0;   // One layer's K and V rows of a token.
  uint64_t k_row_bytes = 0; // The K row alone.
  uint32_t page_tokens = 0;
  uint64_t static_device_bytes = 0; // Memory of its own on the device; 0: in the arena.
  std::vector<uint32_t> layer_ids;  // Global, strictly ascending.
  // Of a pool with a host region of its own: its pages, and how they lie there and on the device. 0 pages: the host keeps whole envelopes
  // in the shared arena, and the rest is not set.
  uint64_t region_pages = 0;
  PageRows rows;
  PageOrder device_order;
  PageOrder region_order;

  bool separate() const { return region_pages != 0; }
  uint64_t region_bytes() const { return region_pages * page_bytes; }
};

// Bytes [begin, end) of each page of one pool: of its envelope or, where the tiers differ, of one that is layer-major. They are the layers
// [first_layer, last_layer), by index, and with the last of them what pads the page.
struct SliceRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint32_t first_layer = 0;
  uint32_t last_layer = 0;
};

// The fragments of a slice of a pool with a host region of its own, from the device's order to the region's.
inline PageFragments cut_slice(const PoolLayout &of, const SliceRange &slice) {
  return cut_page(of.rows, of.device_order, of.region_order, slice.first_layer, slice.last_layer, slice.end == of.page_bytes);
}

// One layer group of a transfer: the range each pool's pages contribute (empty: none).
struct LayerGroup {
  uint32_t order_begin = 0; // Index range in the global layer order.
  uint32_t order_end = 0;
  uint32_t first_layer = kProgressDone; // Lowest global layer id of the group; kProgressDone: past the last group.
  uint32_t size = 0;                    // Layers served.
  SliceRange slices[kPoolCountMax];

  bool at_end() const { return first_layer == kProgressDone; }
};

// The global layers of an engine with the pools that serve each. Immutable after construction; shared by all threads.
class LayerOrder {
public:
  LayerOrder() = default;
  // drop_last_layer is the deliberate fault: a copy leaves out a page's last layer.
  LayerOrder(std::vector<PoolLayout> pools, bool drop_last_layer);

  // The first group of a transfer over the pools in `pool_mask`. `whole`: one group that holds everything.
  LayerGroup first_group(uint32_t pool_mask, bool whole) const;
  LayerGroup next_group(const LayerGroup &group, uint32_t pool_mask) const;

  bool serves(uint32_t pool_mask, uint32_t layer) const;
  // One above the highest layer id of any pool.
  uint32_t layer_limit() const { return layer_limit_; }
  const std::vector<PoolLayout> &pools() const { return pools_; }
  bool drops_last_layer() const { return drop_last_layer_; }

private:
  struct Entry {
    uint32_t layer;
    uint32_t pool_mask;
  };
  uint32_t group_size_max(uint32_t pool_mask) const;
  LayerGroup group_at(uint32_t from, uint32_t layers_wanted, uint32_t pool_mask) const;

  std::vector<PoolLayout> pools_;
  std::vector<Entry> order_;
  uint32_t layer_limit_ = 0;
  bool drop_last_layer_ = false;
};

} // namespace hicache
