#include "backend_cpu.hpp"

#include <cstring>

namespace hicache {

// ---- What the CPU and null backends share ----

Status HostSideBackend::open(const BackendOptions &options, ErrorDetail *error) {
  layers_ = options.layers;
  progress_ = std::make_unique<ProgressWords>(options.ticket_max);
  if (Status status = open_memory(options, error); status != HICACHE_OK) return status;
  if (threads_wanted_) {
    queue_ = std::make_unique<CopyQueue>(*this, *layers_, *progress_, *options.sink);
    queue_->start(options.copy_thread_count);
  }
  return HICACHE_OK;
}

void HostSideBackend::close() {
  if (queue_) queue_->stop();
}

void HostSideBackend::submit(TransferJob &job) { queue_->submit(job); }

void HostSideBackend::cancel(TransferJob &job) { queue_->cancel(job); }

Status HostSideBackend::layer_wait(uint32_t slot, uint32_t layer, uint64_t, ErrorDetail *) {
  progress_->wait_above(slot, layer);
  return HICACHE_OK;
}

Status HostSideBackend::peer_copy(Backend &target, std::span<const PeerCopy> copies, ErrorDetail *) {
  for (const PeerCopy &copy : copies) {
    std::atomic<uint64_t> *from = tags(Tier::kDevice, copy.source_pool), *to = target.tags(Tier::kDevice, copy.target_pool);
    if (from != nullptr) {
      to[raw(copy.target)].store(from[raw(copy.source)].load(std::memory_order_relaxed), std::memory_order_relaxed);
      continue;
    }
    const uint64_t page_bytes = layout(copy.source_pool).page_bytes;
    std::memcpy(target.pool_base(Tier::kDevice, copy.target_pool) + page_offset_bytes(copy.target, page_bytes),
                pool_base(Tier::kDevice, copy.source_pool) + page_offset_bytes(copy.source, page_bytes), page_bytes);
  }
  return HICACHE_OK;
}

void HostSideBackend::drain() {
  if (queue_) queue_->drain();
}

Status refuse_memory(ErrorDetail *error, const char *what, uint64_t bytes, int native_code) {
  const Status status = fail(error, HICACHE_INFEASIBLE, HICACHE_NO_POOL, "cannot reserve %llu bytes for %s: %s",
                             static_cast<unsigned long long>(bytes), what, std::strerror(native_code));
  if (error != nullptr) error->native_code = native_code;
  return status;
}

// ---- Regions ----

void move_in_region(const PoolLayout &of, std::byte *base, PhysicalPage source, PhysicalPage destination) {
  cut_page(of.rows, of.region_order, of.region_order, 0, of.rows.layer_count, true)
      .each(raw(source), raw(destination), [&](uint64_t from, uint64_t to, uint64_t bytes) { std::memcpy(base + to, base + from, bytes); });
}

void zero_in_region(const PoolLayout &of, std::byte *base, PhysicalPage page, uint32_t first_token) {
  const PageFragments fragments = first_token == 0
                                      ? cut_page(of.rows, of.region_order, of.region_order, 0, of.rows.layer_count, true)
                                      : cut_tokens(of.rows, of.region_order, of.region_order, first_token, of.page_tokens - first_token);
  fragments.each(raw(page), raw(page), [&](uint64_t at, uint64_t, uint64_t bytes) { std::memset(base + at, 0, bytes); });
}

void copy_in_region(const PoolLayout &of, std::byte *base, PhysicalPage source, PhysicalPage destination, uint32_t token_count) {
  cut_tokens(of.rows, of.region_order, of.region_order, 0, token_count)
      .each(raw(source), raw(destination), [&](uint64_t from, uint64_t to, uint64_t bytes) { std::memcpy(base + to, base + from, bytes); });
}

// ---- CPU ----

Status CpuBackend::open_memory(const BackendOptions &options, ErrorDetail *error) {
  if (options.device_buffer != nullptr) {
    device_.adopt(options.device_buffer, options.device_bytes);
  } else if (int code = device_.reserve(options.device_bytes, options.device_bytes_max, HostMemory::PageSize::kHuge); code != 0) {
    return refuse_memory(error, "the device arena", options.device_bytes_max, code);
  }
  if (options.host_bytes != 0) {
    if (int code = host_.reserve(options.host_bytes, options.host_bytes_max, HostMemory::PageSize::kHuge); code != 0) {
      return refuse_memory(error, "the host arena", options.host_bytes_max, code);
    }
    if (options.host_numa_nodes != 0) {
      if (int code = host_.bind_nodes(options.host_numa_nodes); code != 0)
        return refuse_memory(error, "the host arena on the nodes of host_numa_nodes", options.host_bytes_max, code);
    }
  }
  const auto &pools = layers().pools();
  for (uint32_t pool = 0; pool < pools.size(); pool++) {
    bases_[0][pool] = device_.base();
    bases_[1][pool] = host_.base();
    for (const bool host : {false, true}) {
      const uint64_t own_bytes = host ? pools[pool].region_bytes() : pools[pool].static_device_bytes;
      if (own_bytes == 0) continue;
      auto memory = std::make_unique<HostMemory>();
      if (int code = memory->reserve(own_bytes, own_bytes, HostMemory::PageSize::kHuge); code != 0)
        return refuse_memory(error, host ? "a pool's host region" : "a static pool", own_bytes, code);
      if (host && options.host_numa_nodes != 0) {
        if (int code = memory->bind_nodes(options.host_numa_nodes); code != 0)
          return refuse_memory(error, "a pool's host region on the nodes of host_numa_nodes", own_bytes, code);
      }
      bases_[host][pool] = memory->base();
      own_memory_.push_back(std::move(memory));
    }
  }
  return HICACHE_OK;
}

Status CpuBackend::resize_device(uint64_t bytes, ErrorDetail *error) {
  const int code = device_.resize(bytes);
  return code == 0 ? HICACHE_OK : refuse_memory(error, "the device arena", bytes, code);
}

Status CpuBackend::move_pages(Tier tier, std::span<const PageMove> moves, std::span<const FenceMark>, FenceMark, ErrorDetail *) {
  for (const PageMove &move : moves) {
    const PoolLayout &of = layout(move.pool);
    if (tier == Tier::kHost && of.separate()) {
      move_in_region(of, pool_base(tier, move.pool), move.source, move.destination);
      continue;
    }
    std::memcpy(page(tier, move.pool, move.destination), page(tier, move.pool, move.source), layout(move.pool).page_bytes);
  }
  return HICACHE_OK;
}

Status CpuBackend::zero_pages(Tier tier, std::span<const PageZero> zeros, std::span<const FenceMark>, FenceMark, ErrorDetail *) {
  for (const PageZero &zero : zeros) {
    const PoolLayout &of = layout(zero.pool);
    if (tier == Tier::kHost && of.separate()) {
      zero_in_region(of, pool_base(tier, zero.pool), zero.page, zero.first_token);
      continue;
    }
    std::byte *start = page(tier, zero.pool, zero.page);
    if (zero.first_token == 0) {
      std::memset(start, 0, of.page_bytes);
      continue;
    }
    for_each_row_block(of, zero.first_token, of.page_tokens - zero.first_token,
                       [&](uint64_t offset, uint64_t bytes) { std::memset(start + offset, 0, bytes); });
  }
  return HICACHE_OK;
}

Status CpuBackend::copy_pages(Tier tier, std::span<const PageCopy> copies, std::span<const FenceMark>, FenceMark, ErrorDetail *) {
  for (const PageCopy &copy : copies) {
    if (tier == Tier::kHost && layout(copy.pool).separate()) {
      copy_in_region(layout(copy.pool), pool_base(tier, copy.pool), copy.source, copy.destination, copy.token_count);
      continue;
    }
    const std::byte *from = page(tier, copy.pool, copy.source);
    std::byte *to = page(tier, copy.pool, copy.destination);
    for_each_row_block(layout(copy.pool), 0, copy.token_count,
                       [&](uint64_t offset, uint64_t bytes) { std::memcpy(to + offset, from + offset, bytes); });
  }
  return HICACHE_OK;
}

Status CpuBackend::poison_sink(uint64_t bytes, ErrorDetail *) {
  // 0x7fc1: a bf16 NaN. A reader that does not mask the sink multiplies it into everything.
  auto *words = reinterpret_cast<uint16_t *>(device_.base());
  for (uint64_t i = 0; i < bytes / sizeof(uint16_t); i++) words[i] = 0x7fc1;
  return HICACHE_OK;
}

void CpuBackend::copy_slices(const TransferJob &job, const LayerGroup &group, const CopyChunk *chunk, uint32_t first, uint32_t count) {
  const bool to_device = job.direction == HICACHE_H2D;
  PageFragments fragments; // Of the slice of the pool that was met last.
  uint32_t fragments_of = kPoolCountMax;
  for (; count > 0; count--) {
    const TierCopy &copy = chunk->copies[first];
    const SliceRange &slice = group.slices[copy.pool];
    const PoolLayout &of = layout(copy.pool);
    if (++first == chunk->count) {
      chunk = chunk->next;
      first = 0;
    }
    if (of.separate()) {
      if (fragments_of != copy.pool) fragments = cut_slice(of, slice);
      fragments_of = copy.pool;
      std::byte *device = pool_base(Tier::kDevice, copy.pool), *host = pool_base(Tier::kHost, copy.pool);
      fragments.each(raw(copy.device_page), raw(copy.host_page), [&](uint64_t d, uint64_t h, uint64_t bytes) {
        to_device ? std::memcpy(device + d, host + h, bytes) : std::memcpy(host + h, device + d, bytes);
      });
      continue;
    }
    std::byte *device = page(Tier::kDevice, copy.pool, copy.device_page) + slice.begin;
    std::byte *host = page(Tier::kHost, copy.pool, copy.host_page) + slice.begin;
    std::byte *target = to_device ? device : host;
    const std::byte *source = to_device ? host : device;
    if (layers().drops_last_layer() && of.layer_bytes == 0) {
      for (uint64_t token = 0; token < of.page_tokens && slice.end > slice.begin; token++) {
        std::memcpy(target + token * of.token_bytes, source + token * of.token_bytes, of.token_bytes - of.row_bytes);
      }
    } else if (slice.end > slice.begin) {
      std::memcpy(target, source, slice.end - slice.begin);
    }
  }
}

} // namespace hicache
