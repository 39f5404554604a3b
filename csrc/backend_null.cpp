#include "backend_null.hpp"

#include <algorithm>

namespace hicache {

namespace {

Status reserve_tags(Tier tier, uint64_t arena_bytes, const std::vector<PoolLayout> &pools, std::vector<std::unique_ptr<HostMemory>> &tags,
                    ErrorDetail *error) {
  for (const PoolLayout &pool : pools) {
    auto memory = std::make_unique<HostMemory>();
    const uint64_t own_bytes = tier == Tier::kDevice ? pool.static_device_bytes : pool.region_bytes();
    const uint64_t bytes = (std::max(arena_bytes, own_bytes) / pool.page_bytes + 1) * sizeof(uint64_t);
    if (int code = memory->reserve(bytes, bytes, HostMemory::PageSize::kSmall); code != 0)
      return refuse_memory(error, "page tags", bytes, code);
    tags.push_back(std::move(memory));
  }
  return HICACHE_OK;
}

} // namespace

Status NullBackend::open_memory(const BackendOptions &options, ErrorDetail *error) {
  const auto &pools = options.layers->pools();
  const uint64_t device_bytes = std::max(options.device_bytes, options.device_bytes_max);
  if (Status status = reserve_tags(Tier::kDevice, device_bytes, pools, device_tags_, error); status != HICACHE_OK) return status;
  const bool regions = std::any_of(pools.begin(), pools.end(), [](const PoolLayout &of) { return of.separate(); });
  if (options.host_bytes == 0 && !regions) return HICACHE_OK;
  return reserve_tags(Tier::kHost, std::max(options.host_bytes, options.host_bytes_max), pools, host_tags_, error);
}

std::atomic<uint64_t> *NullBackend::tags(Tier tier, uint32_t pool) {
  auto &all = tier == Tier::kDevice ? device_tags_ : host_tags_;
  return pool < all.size() ? reinterpret_cast<std::atomic<uint64_t> *>(all[pool]->base()) : nullptr;
}

Status NullBackend::move_pages(Tier tier, std::span<const PageMove> moves, std::span<const FenceMark>, FenceMark, ErrorDetail *) {
  for (const PageMove &move : moves) {
    std::atomic<uint64_t> *tag = tags(tier, move.pool);
    const uint64_t moved = tag[raw(move.source)].load(std::memory_order_relaxed);
    // Memory of tags that nobody has written stays untouched.
    if (tag[raw(move.destination)].load(std::memory_order_relaxed) != moved)
      tag[raw(move.destination)].store(moved, std::memory_order_relaxed);
  }
  return HICACHE_OK;
}

Status NullBackend::zero_pages(Tier tier, std::span<const PageZero> zeros, std::span<const FenceMark>, FenceMark, ErrorDetail *) {
  for (const PageZero &zero : zeros) {
    // A page zeroed only from some row on keeps the rest, and so its tag.
    if (zero.first_token == 0) tags(tier, zero.pool)[raw(zero.page)].store(0, std::memory_order_relaxed);
  }
  return HICACHE_OK;
}

Status NullBackend::copy_pages(Tier tier, std::span<const PageCopy> copies, std::span<const FenceMark>, FenceMark, ErrorDetail *) {
  for (const PageCopy &copy : copies) {
    std::atomic<uint64_t> *tag = tags(tier, copy.pool);
    tag[raw(copy.destination)].store(tag[raw(copy.source)].load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
  return HICACHE_OK;
}

void NullBackend::copy_slices(const TransferJob &job, const LayerGroup &group, const CopyChunk *chunk, uint32_t first, uint32_t count) {
  const bool to_device = job.direction == HICACHE_H2D;
  for (; count > 0; count--) {
    const TierCopy &copy = chunk->copies[first];
    const SliceRange &slice = group.slices[copy.pool];
    // The tag arrives with a page's last byte: one whose layers have not all come does not look complete.
    if (slice.end == layout(copy.pool).page_bytes) {
      std::atomic<uint64_t> &device = tags(Tier::kDevice, copy.pool)[raw(copy.device_page)];
      std::atomic<uint64_t> &host = tags(Tier::kHost, copy.pool)[raw(copy.host_page)];
      (to_device ? device : host).store((to_device ? host : device).load(std::memory_order_relaxed), std::memory_order_relaxed);
    }
    if (++first == chunk->count) {
      chunk = chunk->next;
      first = 0;
    }
  }
}

} // namespace hicache
