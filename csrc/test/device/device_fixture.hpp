// What the tests of the CUDA backend share: an engine-less backend over a few pools, jobs, the caller's side of the driver.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "backend_cpu.hpp"
#include "backend_cuda.hpp"

namespace hicache::device_test {

inline bool simulated = false; // The driver is simulated_cuda.

// What only the simulated driver can do.
inline void *simulator() {
  const char *path = std::getenv("HICACHE_LIBCUDA");
  return simulated && path != nullptr ? dlopen(path, RTLD_NOW) : nullptr;
}
template <class Function> Function simulator_function(const char *name) { return reinterpret_cast<Function>(dlsym(simulator(), name)); }

#define CU_OK(call)                                                                                                                        \
  do {                                                                                                                                     \
    const CuResult cu_ok_ = (call);                                                                                                        \
    ASSERT_EQ(cu_ok_, cu::kSuccess) << api().describe(cu_ok_);                                                                             \
  } while (0)
#define OK(call)                                                                                                                           \
  do {                                                                                                                                     \
    ErrorDetail ok_error_;                                                                                                                 \
    ErrorDetail *const error = &ok_error_;                                                                                                 \
    ASSERT_EQ((call), HICACHE_OK) << ok_error_.message;                                                                                    \
  } while (0)

inline const DriverApi &api() {
  static const DriverLoad load = load_driver();
  if (load.api == nullptr) {
    std::fprintf(stderr, "%s\n", load.reason.c_str());
    std::abort();
  }
  return *load.api;
}

// The caller's context: the primary one, as torch and the runtime use it.
inline CuContext caller_context() {
  static CuContext context = [] {
    CuContext made = nullptr;
    CuDevice device = 0;
    api().device_get(&device, 0);
    api().primary_retain(&made, device);
    return made;
  }();
  return context;
}

class Finished : public JobSink {
public:
  void finished(TransferJob &job) override {
    {
      std::lock_guard lock(mutex_);
      order_.push_back(job.ticket);
      statuses_[job.ticket] = job.status;
    }
    changed_.notify_all();
  }
  void work_waiting() override {}
  Status wait(hicache_ticket_t ticket) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(60), [&] { return statuses_.count(ticket) != 0; })) return HICACHE_PENDING;
    return statuses_[ticket];
  }
  std::vector<hicache_ticket_t> order() {
    std::lock_guard lock(mutex_);
    return order_;
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<hicache_ticket_t, Status> statuses_;
  std::vector<hicache_ticket_t> order_;
};

inline PoolLayout pool(bool token_major, uint32_t page_tokens, uint64_t k_row, uint64_t v_row, std::vector<uint32_t> layers,
                       uint64_t pad = 0) {
  PoolLayout made;
  made.page_tokens = page_tokens;
  made.k_row_bytes = k_row;
  made.row_bytes = k_row + v_row;
  made.token_bytes = made.row_bytes * layers.size();
  made.layer_bytes = token_major ? 0 : made.row_bytes * page_tokens;
  made.page_bytes = made.token_bytes * page_tokens + pad;
  made.layer_ids = std::move(layers);
  return made;
}

// The same pool with a host region of its own, of `pages` pages.
inline PoolLayout region(PoolLayout of, uint32_t envelope, uint32_t host_layout, uint64_t pages, uint32_t heads) {
  of.rows = {
      {of.k_row_bytes, of.row_bytes - of.k_row_bytes}, static_cast<uint32_t>(of.layer_ids.size()), of.page_tokens, heads, of.page_bytes};
  of.device_order = envelope_order(of.rows, envelope);
  of.region_order = region_order(of.rows, host_layout, pages);
  of.region_pages = pages;
  return of;
}

inline std::vector<uint32_t> range(uint32_t first, uint32_t count, uint32_t step = 1) {
  std::vector<uint32_t> ids;
  for (uint32_t i = 0; i < count; i++) ids.push_back(first + i * step);
  return ids;
}

// The pages of a transfer, in the chunks that a job reads.
struct Pages {
  std::vector<std::unique_ptr<CopyChunk>> chunks;
  uint32_t pool_mask = 0, page_count = 0;
  uint64_t bytes = 0;

  Pages(const LayerOrder &layers, const std::vector<TierCopy> &copies) {
    for (const TierCopy &copy : copies) {
      if (chunks.empty() || chunks.back()->count == CopyChunk::kCapacity) {
        chunks.push_back(std::make_unique<CopyChunk>());
        if (chunks.size() > 1) chunks[chunks.size() - 2]->next = chunks.back().get();
      }
      chunks.back()->copies[chunks.back()->count++] = copy;
      pool_mask |= 1u << copy.pool;
      page_count++;
      bytes += layers.pools()[copy.pool].page_bytes;
    }
  }
};

// A job with its pages; lives until it has finished.
struct Transfer {
  TransferJob job;
  std::shared_ptr<const Pages> pages;

  Transfer(hicache_ticket_t ticket, uint32_t slot, uint32_t direction, std::shared_ptr<const Pages> of, uint64_t stream = 0,
           uint32_t priority = HICACHE_CLASS_NORMAL)
      : pages(std::move(of)) {
    job.ticket = ticket;
    job.slot = slot;
    job.direction = direction;
    job.priority = priority;
    job.stream = stream;
    job.pool_mask = pages->pool_mask;
    job.page_count = pages->page_count;
    job.bytes = pages->bytes;
    job.copies = pages->chunks.front().get();
  }
  Transfer(hicache_ticket_t ticket, uint32_t slot, uint32_t direction, const LayerOrder &layers, const std::vector<TierCopy> &copies,
           uint64_t stream = 0, uint32_t priority = HICACHE_CLASS_NORMAL)
      : Transfer(ticket, slot, direction, std::make_shared<Pages>(layers, copies), stream, priority) {}
};

inline void fill(void *at, uint64_t bytes, uint64_t seed) {
  auto *words = static_cast<uint64_t *>(at);
  for (uint64_t i = 0; i < bytes / 8; i++) words[i] = kernel::stamp_word(seed * 0x9e3779b97f4a7c15ull + 1, i);
}

// A backend open over pools, with the caller's context current and a stream of the caller's.
class Rig {
public:
  Rig(std::vector<PoolLayout> pools, uint64_t device_bytes, uint64_t host_bytes, CopyTuning tuning = {}, uint64_t device_bytes_max = 0)
      : order(std::move(pools), false), vpage_counts(order.pools().size(), 4096) {
    api().context_set(caller_context());
    backend.tune(tuning);
    options.device_bytes = device_bytes;
    options.device_bytes_max = device_bytes_max != 0 ? device_bytes_max : device_bytes;
    options.host_bytes = options.host_bytes_max = host_bytes;
    options.ticket_max = 64;
    options.layers = &order;
    options.sink = &done;
    options.virtual_page_counts = vpage_counts.data();
    status = backend.open(options, &error);
    if (status == HICACHE_OK) api().stream_create(&stream, cu::kStreamNonBlocking, 0);
  }
  ~Rig() {
    if (status != HICACHE_OK) return;
    backend.drain();
    backend.close();
    api().stream_destroy(stream);
  }
  uint64_t caller() const { return reinterpret_cast<uint64_t>(stream); }
  CuAddress device(uint32_t pool, uint32_t page) const {
    return reinterpret_cast<CuAddress>(backend.pool_base(Tier::kDevice, pool)) + page * order.pools()[pool].page_bytes;
  }
  std::byte *host(uint32_t pool, uint32_t page) const {
    return backend.pool_base(Tier::kHost, pool) + page * order.pools()[pool].page_bytes;
  }
  std::vector<uint64_t> read(CuAddress address, uint64_t bytes) {
    std::vector<uint64_t> out(bytes / 8);
    CuStream own = nullptr;
    api().stream_create(&own, cu::kStreamNonBlocking, 0);
    api().copy_async(reinterpret_cast<CuAddress>(out.data()), address, bytes, own);
    api().stream_synchronize(own);
    api().stream_destroy(own);
    return out;
  }
  void write(CuAddress address, const void *from, uint64_t bytes) {
    CuStream own = nullptr;
    api().stream_create(&own, cu::kStreamNonBlocking, 0);
    api().copy_async(address, reinterpret_cast<CuAddress>(from), bytes, own);
    api().stream_synchronize(own);
    api().stream_destroy(own);
  }
  bool same(CuAddress address, const void *ideal, uint64_t bytes) { return std::memcmp(read(address, bytes).data(), ideal, bytes) == 0; }
  // As engines do: loads are urgent.
  Status run(uint32_t direction, const std::vector<TierCopy> &copies, hicache_ticket_t ticket, std::span<const FenceMark> waits = {}) {
    return run(direction, copies, ticket, direction == HICACHE_H2D ? HICACHE_CLASS_URGENT : HICACHE_CLASS_NORMAL, waits);
  }
  Status run(uint32_t direction, const std::vector<TierCopy> &copies, hicache_ticket_t ticket, uint32_t priority,
             std::span<const FenceMark> waits = {}) {
    Transfer transfer(ticket, static_cast<uint32_t>(ticket % 64), direction, order, copies, caller(), priority);
    transfer.job.waits = waits;
    backend.submit(transfer.job);
    return done.wait(ticket);
  }

  LayerOrder order;
  std::vector<uint32_t> vpage_counts;
  BackendOptions options;
  Finished done;
  CudaBackend backend;
  ErrorDetail error;
  Status status = HICACHE_OK;
  CuStream stream = nullptr;
};

inline PhysicalPage at(uint32_t page) { return PhysicalPage{page}; }

} // namespace hicache::device_test
