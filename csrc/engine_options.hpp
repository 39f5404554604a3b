// hicache_options_t, checked and resolved: defaults filled in, pools copied, geometry computed.
#pragma once

#include <cstdint>
#include <vector>

#include "hicache.h"
#include "status.hpp"

namespace hicache {

struct PoolGeometry {
  hicache_pool_options_t options; // As given, with page_bytes and zeroing resolved; its layer_ids is NULL.
  std::vector<uint32_t> layer_ids;
  uint64_t layer_stride_bytes;
  uint64_t token_stride_bytes;
  uint64_t v_offset_bytes;
  uint64_t v_token_stride_bytes;
};

struct EngineOptions {
  hicache_options_t options; // With defaults resolved; `pools` is not to be used.
  std::vector<PoolGeometry> pools;
  uint32_t serial = 0; // Mixed into ids.
};

// Checks everything that needs no arena: INVALID_ARGUMENT, UNSUPPORTED or ABI_MISMATCH naming the field. `options` has been read with the
// caller's struct_size; its pools are read here with their stride.
Status check_options(const hicache_options_t &options, EngineOptions *checked_out, ErrorDetail *error);

} // namespace hicache
