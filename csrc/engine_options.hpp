// hicache_options_t, checked and resolved: defaults filled in, pools copied, geometry computed.
#pragma once

#include <cstdint>
#include <vector>

#include "hicache.h"
#include "host_layout.hpp"
#include "status.hpp"

namespace hicache {

struct PoolGeometry {
  hicache_pool_options_t options; // As given, with page_bytes and zeroing resolved; its layer_ids is NULL.
  std::vector<uint32_t> layer_ids;
  PageRows rows;
  PageOrder device_order;
  PageOrder host_order;      // That of a region of its own, or the device's.
  uint64_t region_pages = 0; // Of a host region of its own; 0: none.
};

struct EngineOptions {
  hicache_options_t options; // With defaults resolved; `pools` is not to be used.
  std::vector<PoolGeometry> pools;
  uint64_t host_arena_bytes = 0; // What the regions leave of host_bytes for the pools that share an arena.
  uint64_t host_arena_bytes_max = 0;
  uint32_t serial = 0; // Mixed into ids.
};

// Checks everything that needs no arena: INVALID_ARGUMENT, UNSUPPORTED or ABI_MISMATCH naming the field. `options` has been read with the
// caller's struct_size; its pools are read here with their stride.
Status check_options(const hicache_options_t &options, EngineOptions *checked_out, ErrorDetail *error);

} // namespace hicache
