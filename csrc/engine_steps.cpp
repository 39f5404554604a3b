// What holds device pages, in order with the device: steps, leases, kernel ids.
#include <cinttypes>

#include "engine.hpp"
#include "id_translate.hpp"

namespace hicache {

Status Engine::step_open(uint64_t stream, std::span<const hicache_pages_t> pages, hicache_step_t *step_out, ErrorDetail *error) {
  find_slot(stream);
  std::span<const FenceMark> waits;
  if (Status status = device_->step_open(stream, pages, step_out, &waits, error); status != HICACHE_OK) return status;
  return begin_step(*step_out, stream, waits, error);
}

Status Engine::begin_step(hicache_step_t step, uint64_t stream, std::span<const FenceMark> waits, ErrorDetail *error) {
  page_work_.await(Tier::kDevice, waits);
  Status status = device_->publish_tables(error);
  if (status == HICACHE_OK) status = backend_->order_step(stream, waits, error);
  if (status != HICACHE_OK) device_->step_abandon(step); // The caller gets no id of it.
  return status;
}

Status Engine::step_follow(hicache_step_t previous, uint64_t stream, std::span<const StepLine> lines,
                           std::span<const hicache_pages_t> pages, bool by_line, hicache_step_t *step_out, ErrorDetail *error) {
  find_slot(stream);
  if (previous != 0) {
    if (Status status = record_step(previous, error); status != HICACHE_OK) return status;
  }
  std::span<const FenceMark> waits;
  if (Status status = device_->step_follow(previous, stream, lines, pages, by_line, step_out, &waits, error); status != HICACHE_OK)
    return status;
  return begin_step(*step_out, stream, waits, error);
}

Status Engine::step_close(hicache_step_t step, ErrorDetail *error) {
  if (Status status = record_step(step, error); status != HICACHE_OK) return status;
  return device_->step_close(step, nullptr, error);
}

void Engine::find_slot(uint64_t stream) {
  if (!device_->lacks_stream(stream)) return;
  for (uint32_t slot = kMoverSlot + 1; slot < device_->stream_slots(); slot++)
    if (const FenceMark mark = device_->latest_mark(slot); backend_->fence_passed(mark)) device_->fence_passed(mark);
}

Status Engine::record_step(hicache_step_t step, ErrorDetail *error) {
  FenceMark mark;
  if (Status status = device_->step_mark(step, &mark, error); status != HICACHE_OK) return status;
  return backend_->fence_record(mark, device_->stream_of(mark.slot()), error);
}

Status Engine::lease_acquire(std::span<const hicache_pages_t> pages, hicache_lease_t *lease_out, ErrorDetail *error) {
  std::span<const FenceMark> waits;
  if (Status status = device_->lease_acquire_places(pages, nullptr, lease_out, &waits, error); status != HICACHE_OK) return status;
  page_work_.await(Tier::kDevice, waits);
  return HICACHE_OK;
}

Status Engine::lease_release(hicache_lease_t lease, ErrorDetail *error) {
  if (host_ && host_->is_lease(lease)) return host_->lease_release(lease, error);
  return device_->lease_release(lease, error);
}

KernelMap Engine::kernel_map(uint32_t pool) const {
  return {device_->v2p(pool), device_->info(pool).virtual_page_count, page_tokens(pool)};
}

Status Engine::kernel_ids(uint64_t holder, uint32_t pool, uint32_t granularity, const uint32_t *vpages, uint32_t count, int32_t *ids_out,
                          uint32_t *sink_count_out, ErrorDetail *error) {
  if (pool >= pool_count()) return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pool is %u, the engine has %u", pool, pool_count());
  if (holder == 0) return fail(error, HICACHE_INVALID_ARGUMENT, pool, "holder is 0: name the lease or open step that holds the pages");
  if (!device_->is_lease(holder) && !device_->is_step(holder)) {
    return fail(error, HICACHE_STALE_ID, pool, "holder 0x%" PRIx64 " is no lease of device pages and no open step", holder);
  }
  const PoolInfo info = device_->info(pool);
  const KernelMap map = kernel_map(pool);
  uint64_t sinks;
  if (granularity == HICACHE_GRANULARITY_PAGE) {
    sinks = translate_pages(map, vpages, count, ids_out);
  } else if (granularity != HICACHE_GRANULARITY_TOKEN) {
    return fail(error, HICACHE_INVALID_ARGUMENT, pool, "granularity is %u, not one of HICACHE_GRANULARITY_*", granularity);
  } else if (uint64_t{info.page_count} * map.page_tokens > INT32_MAX) {
    return fail(error, HICACHE_UNSUPPORTED, pool, "token ids of a pool of %u pages of %u tokens do not fit 32 bits", info.page_count,
                map.page_tokens);
  } else {
    sinks = translate_tokens(map, vpages, count, ids_out);
  }
  sink_translations_ += sinks;
  if (sink_count_out != nullptr) *sink_count_out = static_cast<uint32_t>(sinks);
  return HICACHE_OK;
}

} // namespace hicache
