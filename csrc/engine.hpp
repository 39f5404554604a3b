// An engine: two arenas, a backend and the transfers between them, behind one mutex. What the functions of hicache.h do once their
// arguments have been checked at the edge.
//
// Threads: `mutex` guards the arenas and the transfer table. Functions that say "takes the lock" lock it themselves; all others are called
// with it held. Order of locks: mutex, then a backend's, then the ring's.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "arena.hpp"
#include "backend.hpp"
#include "batch_step.hpp"
#include "operation_log.hpp"
#include "engine_options.hpp"
#include "id_translate.hpp"
#include "page_work.hpp"
#include "status.hpp"
#include "transfer.hpp"

namespace hicache {

class Engine {
public:
  // `options` have been checked. Takes all memory, starts the threads.
  static Status open(const EngineOptions &options, std::unique_ptr<Engine> *engine_out, ErrorDetail *error);
  ~Engine();

  std::mutex mutex;

  // BUSY while leases, reservations or steps are held, unless the device has failed; else nothing new is taken any more.
  Status begin_close(ErrorDetail *error);
  bool closing() const { return closing_; }
  // Wakes those who wait and blocks until all transfers have ended. Without the lock.
  void drain();
  // DEVICE once the device has failed.
  Status check_poison(ErrorDetail *error) const;

  Arena &device() { return *device_; }
  Arena *host() { return host_.get(); } // NULL: no host tier.
  TransferTable &transfers() { return *transfers_; }
  Backend &backend() { return *backend_; }
  PageWork &page_work() { return page_work_; }
  uint32_t pool_count() const { return static_cast<uint32_t>(options_.pools.size()); }
  uint64_t held_pages_max() const { return held_pages_max_; }
  uint64_t transfer_pages_max() const { return transfer_pages_max_; }
  uint32_t backend_kind() const { return options_.options.backend; }
  const PoolGeometry &geometry(uint32_t pool) const { return options_.pools[pool]; }
  void count_handed_over(uint64_t bytes) { handed_over_bytes_ += bytes; }
  void count_received(uint64_t bytes) { received_bytes_ += bytes; }
  uint32_t page_tokens(uint32_t pool) const { return options_.pools[pool].options.page_tokens; }
  KernelMap kernel_map(uint32_t pool) const;
  void count_sinks(uint64_t sinks) { sink_translations_ += sinks; }
  BatchStep &batch_step() { return batch_step_; }
  OperationLog &log() { return log_; }
  Status log_start(uint64_t capacity_bytes, ErrorDetail *error);
  // Reads the ring, as TransferTable::read.
  uint32_t read_completions(hicache_completion_t *completions_out, uint32_t capacity);
  // Without the lock.
  Status fault_finish(hicache_ticket_t ticket, bool fails, ErrorDetail *error);
  // The arena of a HICACHE_TIER_*; INVALID_ARGUMENT or, without a host tier, UNSUPPORTED.
  Status arena_of(uint32_t tier, Arena **arena_out, ErrorDetail *error);
  // error.ticket for a refusal that names a page; returns `status`.
  Status explain(uint32_t tier, Status status, ErrorDetail *error) const;

  Status pool_info(uint32_t tier, uint32_t pool, hicache_pool_info_t *info_out, ErrorDetail *error);
  Status step_open(uint64_t stream, std::span<const hicache_pages_t> pages, hicache_step_t *step_out, ErrorDetail *error);
  // As Arena::step_follow, and tells the backend.
  Status step_follow(hicache_step_t previous, uint64_t stream, std::span<const StepLine> lines, std::span<const hicache_pages_t> pages,
                     bool by_line, hicache_step_t *step_out, ErrorDetail *error);
  Status step_close(hicache_step_t step, ErrorDetail *error);
  Status lease_acquire(std::span<const hicache_pages_t> pages, hicache_lease_t *lease_out, ErrorDetail *error);
  Status lease_release(hicache_lease_t lease, ErrorDetail *error);
  Status kernel_ids(uint64_t holder, uint32_t pool, uint32_t granularity, const uint32_t *vpages, uint32_t count, int32_t *ids_out,
                    uint32_t *sink_count_out, ErrorDetail *error);
  Status host_view(std::span<const hicache_host_pages_t> pages, void **addresses_out, hicache_lease_t *lease_out, ErrorDetail *error);
  // Takes the lock to look pages up, and copies without it.
  Status host_copy(hicache_lease_t lease, const hicache_host_pages_t &pages, uint32_t layout, bool to_host, std::byte *bytes,
                   ErrorDetail *error);
  Status tags(uint32_t tier, uint32_t pool, const uint32_t *pages, uint32_t count, uint64_t *tags, bool write, ErrorDetail *error);
  Status resize(uint64_t device_bytes, ErrorDetail *error);
  void stats(hicache_stats_t *stats_out);
  // All violations, one a line; empty if there are none.
  std::string verify() const;

  // Block; take the lock themselves.
  Status completion_wait(uint64_t timeout_ns, hicache_completion_t *completions_out, uint32_t capacity, uint32_t *count_out,
                         ErrorDetail *error);
  Status layer_wait(hicache_ticket_t ticket, uint32_t layer, uint64_t stream, ErrorDetail *error);
  // Where the device is not the host.
  Status layer_word(hicache_ticket_t ticket, uint32_t layer, uint64_t *address_out, uint32_t *expected_out, ErrorDetail *error);
  Status stamp_pages(uint32_t pool, uint64_t stream, std::span<const hicache_stamp_t> stamps, std::span<const uint64_t> salts,
                     uint32_t *mismatches_out, ErrorDetail *error);
  // Packs in portions: plans one under the lock, lets go and copies it, with the help of workers, and goes on around whatever is pinned by
  // then. Nobody waits for its bytes but those who need the pages of the portion. Takes the lock itself.
  Status compact(const hicache_compact_budget_t &budget, hicache_compact_result_t *result_out, ErrorDetail *error);

private:
  // The arena's hands: one a tier.
  class TierMover final : public Mover {
  public:
    void connect(Engine *engine, Tier tier) {
      engine_ = engine;
      tier_ = tier;
    }
    Status move_pages(std::span<const PageMove> moves, std::span<const FenceMark> waits, FenceMark done, ErrorDetail *error) override;
    Status zero_pages(std::span<const PageZero> zeros, std::span<const FenceMark> waits, FenceMark done, ErrorDetail *error) override;
    Status copy_pages(std::span<const PageCopy> copies, std::span<const FenceMark> waits, FenceMark done, ErrorDetail *error) override;
    Status table_changed(uint32_t pool, std::span<const uint32_t> vpages, std::span<const uint32_t> ppages,
                         std::span<const FenceMark> waits, ErrorDetail *error) override;

  private:
    Engine *engine_ = nullptr;
    Tier tier_ = Tier::kDevice;
  };

  explicit Engine(const EngineOptions &options);
  // Orders `stream` behind what the arena's open step waits for; ends the step if that fails.
  Status begin_step(hicache_step_t step, uint64_t stream, std::span<const FenceMark> waits, ErrorDetail *error);
  // Where the stream is one more than the arena has slots for: those whose work has passed give theirs up.
  void find_slot(uint64_t stream);
  // Records the fence that closing the step will leave. If it cannot be, nothing has changed and the step is open.
  Status record_step(hicache_step_t step, ErrorDetail *error);
  Status open_arenas(ErrorDetail *error);
  Status open_backend(ErrorDetail *error);
  ArenaOptions arena_options(Tier tier);
  // Whether the host's own threads move and zero this tier's pages: then they do it outside the lock (PageWork). Tags are moved under it.
  bool host_does_page_work(Tier tier) const {
    const uint32_t backend = options_.options.backend;
    return backend == HICACHE_BACKEND_CPU || (backend == HICACHE_BACKEND_CUDA && tier == Tier::kHost);
  }

  const EngineOptions options_;
  LayerOrder layers_;
  TierMover movers_[2];
  PageWork page_work_{mutex};
  std::unique_ptr<Arena> device_;
  std::unique_ptr<Arena> host_;
  // The backend's threads report to the table: it is destroyed after them.
  std::unique_ptr<TransferTable> transfers_;
  std::unique_ptr<Backend> backend_;
  BatchStep batch_step_{*this};
  OperationLog log_;
  uint64_t held_pages_max_ = 0;
  uint64_t transfer_pages_max_ = 0;
  uint64_t moves_during_transfer_ = 0;
  uint64_t sink_translations_ = 0;
  uint64_t handed_over_bytes_ = 0, received_bytes_ = 0;
  bool backend_open_ = false;
  bool closing_ = false;
};

// Holds an engine's lock. Page work that was asked for under it is done by this thread after the lock has been released.
class EngineLock {
public:
  explicit EngineLock(Engine &engine) : engine_(engine) { engine.mutex.lock(); }
  ~EngineLock() {
    const uint32_t pending = engine_.page_work().take_pending();
    engine_.mutex.unlock();
    if (pending != PageWork::kNone) engine_.page_work().run(pending);
  }
  EngineLock(const EngineLock &) = delete;
  EngineLock &operator=(const EngineLock &) = delete;

private:
  Engine &engine_;
};

} // namespace hicache
