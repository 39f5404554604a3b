#include "engine_options.hpp"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstring>

#include "host_memory.hpp"
#include "layer_groups.hpp"

namespace hicache {

namespace {

constexpr uint32_t kTicketMaxLimit = 1u << 20;
constexpr uint32_t kSlowdownMaxPermille = 10000;
constexpr uint32_t kCopyThreadLimit = 64;
constexpr uint64_t kRowUnit = 16;
constexpr uint32_t kStrideLimit = 1u << 16;

Status invalid(ErrorDetail *error, uint32_t pool, const char *sentence) {
  return fail(error, HICACHE_INVALID_ARGUMENT, pool, "%s", sentence);
}

// The pool's options at index, whatever the caller's stride.
Status read_pool(const hicache_options_t &options, uint32_t pool, hicache_pool_options_t *pool_out, ErrorDetail *error) {
  const uint32_t stride = options.pool_stride_bytes == 0 ? sizeof(hicache_pool_options_t) : options.pool_stride_bytes;
  const auto *bytes = reinterpret_cast<const uint8_t *>(options.pools) + uint64_t{pool} * stride;
  std::memcpy(pool_out, bytes, sizeof *pool_out);
  for (uint32_t at = sizeof *pool_out; at < stride; at++) {
    if (bytes[at] != 0) return fail(error, HICACHE_UNSUPPORTED, pool, "pools[%u] sets fields that this library does not know", pool);
  }
  return HICACHE_OK;
}

Status check_layers(const hicache_pool_options_t &of, uint32_t pool, std::vector<uint32_t> *layer_ids_out, ErrorDetail *error) {
  if (of.layer_count == 0 || of.layer_count > kStrideLimit) {
    return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pools[%u].layer_count is %u, must be 1..%u", pool, of.layer_count, kStrideLimit);
  }
  if (of.layer_ids == nullptr) return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pools[%u].layer_ids is NULL", pool);
  layer_ids_out->assign(of.layer_ids, of.layer_ids + of.layer_count);
  for (uint32_t i = 0; i < of.layer_count; i++) {
    if (of.layer_ids[i] >= kLayerIdLimit || (i > 0 && of.layer_ids[i] <= of.layer_ids[i - 1])) {
      return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pools[%u].layer_ids[%u] is %u: ids must ascend and be below %u", pool, i,
                  of.layer_ids[i], kLayerIdLimit);
    }
  }
  return HICACHE_OK;
}

Status check_rows(const hicache_pool_options_t &of, uint32_t pool, uint64_t *page_bytes_out, ErrorDetail *error) {
  if (of.k_row_bytes == 0 || of.k_row_bytes % kRowUnit != 0) {
    return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pools[%u].k_row_bytes is %" PRIu64 ", must be a multiple of 16 above 0", pool,
                of.k_row_bytes);
  }
  if (of.v_row_bytes % kRowUnit != 0) {
    return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pools[%u].v_row_bytes is %" PRIu64 ", must be a multiple of 16", pool,
                of.v_row_bytes);
  }
  if (of.page_tokens == 0) return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pools[%u].page_tokens is 0", pool);
  uint64_t bytes;
  const bool overflows = __builtin_add_overflow(of.k_row_bytes, of.v_row_bytes, &bytes) ||
                         __builtin_mul_overflow(bytes, uint64_t{of.layer_count}, &bytes) ||
                         __builtin_mul_overflow(bytes, uint64_t{of.page_tokens}, &bytes) || bytes > INT64_MAX;
  if (overflows)
    return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pools[%u]: a page of these rows, layers and tokens passes 2^63 bytes", pool);
  if (of.page_bytes != 0 && (of.page_bytes < bytes || of.page_bytes % kRowUnit != 0 || of.page_bytes > INT64_MAX)) {
    return fail(error, HICACHE_INVALID_ARGUMENT, pool,
                "pools[%u].page_bytes is %" PRIu64 ", must be 0 or a multiple of 16 of at least %" PRIu64, pool, of.page_bytes, bytes);
  }
  *page_bytes_out = of.page_bytes == 0 ? bytes : of.page_bytes;
  return HICACHE_OK;
}

Status check_host_layout(const hicache_pool_options_t &of, uint32_t pool, ErrorDetail *error) {
  if (of.host_layout > HICACHE_HOST_PAGE_HEAD) {
    return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pools[%u].host_layout is %u, not one of HICACHE_HOST_*", pool, of.host_layout);
  }
  if (of.host_layout == HICACHE_HOST_ENVELOPE && of.host_page_count != 0) {
    return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pools[%u].host_page_count must be 0 in the arena that envelopes share", pool);
  }
  const uint64_t heads = std::max(of.head_count, 1u);
  if (heads > of.k_row_bytes / kRowUnit || of.k_row_bytes % (heads * kRowUnit) != 0 || of.v_row_bytes % (heads * kRowUnit) != 0) {
    return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pools[%u].head_count is %u: K and V rows must be multiples of 16 bytes a head",
                pool, of.head_count);
  }
  return HICACHE_OK;
}

Status check_pool(const hicache_options_t &options, uint32_t pool, PoolGeometry *geometry, ErrorDetail *error) {
  hicache_pool_options_t &of = geometry->options;
  if (Status status = read_pool(options, pool, &of, error); status != HICACHE_OK) return status;
  if (of.role < HICACHE_ROLE_FULL || of.role > HICACHE_ROLE_STATE) {
    return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pools[%u].role is %u, not one of HICACHE_ROLE_*", pool, of.role);
  }
  if (of.direction > HICACHE_DIRECTION_DOWN) {
    return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pools[%u].direction is %u, not one of HICACHE_DIRECTION_*", pool, of.direction);
  }
  if (of.envelope_layout > HICACHE_LAYOUT_TOKEN_MAJOR) {
    return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pools[%u].envelope_layout is %u, not one of HICACHE_LAYOUT_*", pool,
                of.envelope_layout);
  }
  if (of.zeroing > HICACHE_ZERO_NEVER) {
    return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pools[%u].zeroing is %u, not one of HICACHE_ZERO_*", pool, of.zeroing);
  }
  if ((of.flags & ~HICACHE_POOL_STATIC) != 0) {
    return fail(error, HICACHE_UNSUPPORTED, pool, "pools[%u]: flags set something that this library does not know", pool);
  }
  if ((of.role == HICACHE_ROLE_SWA) != (of.window_tokens != 0)) {
    return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pools[%u].window_tokens is %u: above 0 for an SWA pool, 0 for others", pool,
                of.window_tokens);
  }
  if (of.role == HICACHE_ROLE_STATE && of.page_tokens != 1) {
    return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pools[%u].page_tokens is %u, must be 1 for a STATE pool", pool, of.page_tokens);
  }
  if (of.role == HICACHE_ROLE_SWA && of.virtual_page_count != 0) {
    return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pools[%u].virtual_page_count must be 0 for an SWA pool: the FULL pool decides",
                pool);
  }
  if (Status status = check_layers(of, pool, &geometry->layer_ids, error); status != HICACHE_OK) return status;
  if (Status status = check_rows(of, pool, &of.page_bytes, error); status != HICACHE_OK) return status;
  of.layer_ids = nullptr; // The caller's; ours are in geometry->layer_ids.
  if (of.zeroing == HICACHE_ZERO_DEFAULT) of.zeroing = of.role == HICACHE_ROLE_STATE ? HICACHE_ZERO_NEVER : HICACHE_ZERO_ALWAYS;
  if (Status status = check_host_layout(of, pool, error); status != HICACHE_OK) return status;
  geometry->rows = {{of.k_row_bytes, of.v_row_bytes}, of.layer_count, of.page_tokens, std::max(of.head_count, 1u), of.page_bytes};
  geometry->device_order = geometry->host_order = envelope_order(geometry->rows, of.envelope_layout);
  return HICACHE_OK;
}

// Shares host_bytes out: counts that were given, then as many pages for each pool that gave none, the shared arena's included.
Status share_host(EngineOptions *checked, ErrorDetail *error) {
  const hicache_options_t &options = checked->options;
  checked->host_arena_bytes = options.host_bytes;
  checked->host_arena_bytes_max = options.host_bytes_max;
  if (options.host_bytes == 0) return HICACHE_OK;
  const auto separate = [](const PoolGeometry &pool) { return pool.options.host_layout != HICACHE_HOST_ENVELOPE; };
  if (std::none_of(checked->pools.begin(), checked->pools.end(), separate)) return HICACHE_OK;
  uint64_t left = options.host_bytes, page_of_each = 0;
  bool shares_arena = false;
  for (uint32_t pool = 0; pool < checked->pools.size(); pool++) {
    const PoolGeometry &of = checked->pools[pool];
    shares_arena |= !separate(of);
    const uint64_t page_bytes = of.options.page_bytes, pages = of.options.host_page_count;
    if (pages == 0) {
      if (__builtin_add_overflow(page_of_each, page_bytes, &page_of_each)) page_of_each = UINT64_MAX;
    } else if (pages > left / page_bytes) {
      return fail(error, HICACHE_INFEASIBLE, pool, "pools[%u].host_page_count is %" PRIu64 ": host_bytes has room for %" PRIu64, pool,
                  pages, left / page_bytes);
    } else {
      left -= pages * page_bytes;
    }
  }
  const uint64_t share = page_of_each == 0 ? 0 : std::min<uint64_t>(left / page_of_each, UINT32_MAX);
  for (uint32_t pool = 0; pool < checked->pools.size(); pool++) {
    PoolGeometry &of = checked->pools[pool];
    if (!separate(of)) continue;
    of.region_pages = of.options.host_page_count != 0 ? of.options.host_page_count : share;
    if (of.region_pages == 0) {
      return fail(error, HICACHE_INFEASIBLE, pool, "pools[%u]: host_bytes leaves no page of %" PRIu64 " bytes for its host region", pool,
                  of.options.page_bytes);
    }
    of.host_order = region_order(of.rows, of.options.host_layout, of.region_pages);
    if (of.options.host_page_count == 0) left -= of.region_pages * of.options.page_bytes;
  }
  checked->host_arena_bytes = shares_arena ? left : 0;
  checked->host_arena_bytes_max = shares_arena ? left + (options.host_bytes_max - options.host_bytes) : 0;
  return HICACHE_OK;
}

// A layer of the FULL and SWA pools belongs to one of them.
Status check_group_layers(const std::vector<PoolGeometry> &pools, ErrorDetail *error) {
  for (uint32_t pool = 0; pool < pools.size(); pool++) {
    if (pools[pool].options.role == HICACHE_ROLE_STATE) continue;
    for (uint32_t other = 0; other < pool; other++) {
      if (pools[other].options.role == HICACHE_ROLE_STATE) continue;
      const auto &ids = pools[other].layer_ids;
      for (uint32_t layer : pools[pool].layer_ids) {
        if (!std::binary_search(ids.begin(), ids.end(), layer)) continue;
        return fail(error, HICACHE_INVALID_ARGUMENT, pool, "layer %u is in pools[%u] and pools[%u] of one id group", layer, other, pool);
      }
    }
  }
  return HICACHE_OK;
}

Status check_memory(const hicache_options_t &options, ErrorDetail *error) {
  if (options.device_bytes == 0 || options.device_bytes > INT64_MAX)
    return invalid(error, HICACHE_NO_POOL, "device_bytes must be 1..2^63-1");
  if (options.device_bytes_max != 0 && (options.device_bytes_max < options.device_bytes || options.device_bytes_max > INT64_MAX)) {
    return invalid(error, HICACHE_NO_POOL, "device_bytes_max must be 0 or at least device_bytes, and below 2^63");
  }
  if (options.host_bytes > INT64_MAX) return invalid(error, HICACHE_NO_POOL, "host_bytes must be below 2^63");
  if (options.host_bytes_max != 0 && (options.host_bytes_max < options.host_bytes || options.host_bytes_max > INT64_MAX)) {
    return invalid(error, HICACHE_NO_POOL, "host_bytes_max must be 0 or at least host_bytes, and below 2^63");
  }
  if (options.device_buffer == nullptr) return HICACHE_OK;
  if (options.backend == HICACHE_BACKEND_NULL) {
    return fail(error, HICACHE_UNSUPPORTED, HICACHE_NO_POOL, "device_buffer: the null backend has no bytes to keep in it");
  }
  if (reinterpret_cast<uintptr_t>(options.device_buffer) % 256 != 0) {
    return invalid(error, HICACHE_NO_POOL, "device_buffer must be aligned to 256 bytes");
  }
  if (options.device_bytes_max > options.device_bytes) {
    return invalid(error, HICACHE_NO_POOL, "device_bytes_max must be 0 or device_bytes with a device_buffer, which cannot grow");
  }
  return HICACHE_OK;
}

Status check_fault(const hicache_options_t &options, ErrorDetail *error) {
  const hicache_fault_options_t &fault = options.fault;
  if (fault.reserved0 != 0 || fault.enabled > 1 || fault.hold > 1) {
    return fail(error, HICACHE_UNSUPPORTED, HICACHE_NO_POOL, "fault: enabled and hold are 0 or 1, reserved0 is 0");
  }
  if (fault.fail_ppm > 1000000) return invalid(error, HICACHE_NO_POOL, "fault.fail_ppm must be 0..1000000");
  if (fault.enabled != 0 && options.backend == HICACHE_BACKEND_CUDA) {
    return fail(error, HICACHE_UNSUPPORTED, HICACHE_NO_POOL, "fault wraps the cpu and null backends, not cuda");
  }
  return HICACHE_OK;
}

} // namespace

Status check_options(const hicache_options_t &options, EngineOptions *checked_out, ErrorDetail *error) {
  if (options.backend < HICACHE_BACKEND_CPU || options.backend > HICACHE_BACKEND_CUDA) {
    return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "backend is %u, not one of HICACHE_BACKEND_*", options.backend);
  }
  if (options.device < 0 || (options.device != 0 && options.backend != HICACHE_BACKEND_CUDA)) {
    return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "device is %d: a CUDA ordinal, 0 on the other backends", options.device);
  }
  if (Status status = check_memory(options, error); status != HICACHE_OK) return status;
  if (options.pool_count == 0 || options.pool_count > kPoolCountMax) {
    return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "pool_count is %u, must be 1..%u", options.pool_count, kPoolCountMax);
  }
  if (options.pools == nullptr) return invalid(error, HICACHE_NO_POOL, "pools is NULL");
  if (options.pool_stride_bytes != 0 &&
      (options.pool_stride_bytes < sizeof(hicache_pool_options_t) || options.pool_stride_bytes > kStrideLimit)) {
    return fail(error, HICACHE_ABI_MISMATCH, HICACHE_NO_POOL, "pool_stride_bytes is %u, this library's pools have %zu bytes",
                options.pool_stride_bytes, sizeof(hicache_pool_options_t));
  }
  if (options.compaction > HICACHE_COMPACTION_OFF) return invalid(error, HICACHE_NO_POOL, "compaction is not one of HICACHE_COMPACTION_*");
  if (options.placement > HICACHE_PLACEMENT_REFERENCE)
    return invalid(error, HICACHE_NO_POOL, "placement is not one of HICACHE_PLACEMENT_*");
  if (options.copy_thread_count > kCopyThreadLimit) {
    return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "copy_thread_count is %u, at most %u", options.copy_thread_count,
                kCopyThreadLimit);
  }
  for (auto [name, value] : {std::pair{"ticket_max", options.ticket_max},
                             {"reservation_max", options.reservation_max},
                             {"lease_max", options.lease_max},
                             {"step_max", options.step_max}}) {
    if (value > kTicketMaxLimit)
      return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "%s is %u, at most %u", name, value, kTicketMaxLimit);
  }
  if (options.sabotage != 0) {
#ifdef HICACHE_SABOTAGE
    constexpr uint32_t kKnown = HICACHE_SABOTAGE_VIRTUAL_ON_WIRE | HICACHE_SABOTAGE_IGNORE_PINS | HICACHE_SABOTAGE_DROP_LAST_LAYER;
    if ((options.sabotage & ~kKnown) != 0) return invalid(error, HICACHE_NO_POOL, "sabotage has bits that are no HICACHE_SABOTAGE_*");
#else
    return fail(error, HICACHE_UNSUPPORTED, HICACHE_NO_POOL, "sabotage: this library was built without HICACHE_SABOTAGE");
#endif
  }
  if (options.copy_method > HICACHE_COPY_STAGED) return invalid(error, HICACHE_NO_POOL, "copy_method is not one of HICACHE_COPY_*");
  if (options.copy_method != HICACHE_COPY_AUTO && options.backend != HICACHE_BACKEND_CUDA)
    return fail(error, HICACHE_UNSUPPORTED, HICACHE_NO_POOL, "copy_method: only copies of the cuda backend cross a bus");
  if (options.copy_calibration > HICACHE_CALIBRATION_OFF)
    return invalid(error, HICACHE_NO_POOL, "copy_calibration is not one of HICACHE_CALIBRATION_*");
  for (auto [name, value] : {std::pair{"h2d_slowdown_max_permille", options.h2d_slowdown_max_permille},
                             {"d2h_slowdown_max_permille", options.d2h_slowdown_max_permille}}) {
    if (value > kSlowdownMaxPermille)
      return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "%s is %u, at most %u", name, value, kSlowdownMaxPermille);
  }
  if (options.reserved1 != 0) return invalid(error, HICACHE_NO_POOL, "reserved1 must be 0");
  if (const uint64_t unknown = options.host_numa_nodes & ~numa_nodes(); unknown != 0)
    return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "host_numa_nodes: node %d is not on this machine",
                std::countr_zero(unknown));
  if (Status status = check_fault(options, error); status != HICACHE_OK) return status;

  checked_out->options = options;
  hicache_options_t &resolved = checked_out->options;
  auto or_default = [](auto value, decltype(value) preset) { return value == 0 ? preset : value; };
  resolved.device_bytes_max = or_default(options.device_bytes_max, options.device_bytes);
  resolved.host_bytes_max = or_default(options.host_bytes_max, options.host_bytes);
  resolved.copy_thread_count = or_default(options.copy_thread_count, 1);
  resolved.ticket_max = or_default(options.ticket_max, 1024);
  resolved.reservation_max = or_default(options.reservation_max, 1024);
  resolved.lease_max = or_default(options.lease_max, 4096);
  resolved.step_max = or_default(options.step_max, 256);
  checked_out->pools.resize(options.pool_count);
  for (uint32_t pool = 0; pool < options.pool_count; pool++) {
    if (Status status = check_pool(options, pool, &checked_out->pools[pool], error); status != HICACHE_OK) return status;
  }
  resolved.pools = nullptr;
  if (Status status = check_group_layers(checked_out->pools, error); status != HICACHE_OK) return status;
  return share_host(checked_out, error);
}

} // namespace hicache
