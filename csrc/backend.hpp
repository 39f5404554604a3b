// The seam between the library and a device: memory of both tiers, page moves and zeroing, transfers between the tiers, and fences.
//
// A backend knows places (physical pages of pools) and bytes. It knows nothing of virtual ids, tokens, leases or policy. Everything that
// touches device memory is asynchronous and ordered by fences on the device; the host waits for none of it, except where a
// function says so. Unless a function says otherwise it is called under the engine's lock and must not block. A failure with status DEVICE
// poisons the engine.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "hicache.h"
#include "ids.hpp"
#include "layer_groups.hpp"
#include "mover.hpp"
#include "status.hpp"

namespace hicache {

enum class Tier : uint8_t { kDevice = HICACHE_TIER_DEVICE, kHost = HICACHE_TIER_HOST };

// The copies of a transfer: physical places, in chunks that the transfer table owns and keeps until the job has finished.
struct TierCopy {
  uint32_t pool;
  PhysicalPage device_page;
  PhysicalPage host_page;
};

struct CopyChunk {
  static constexpr uint32_t kCapacity = 83;
  TierCopy copies[kCapacity];
  uint32_t count = 0;
  CopyChunk *next = nullptr;
};
static_assert(sizeof(CopyChunk) <= 1024);

// One transfer, as the backend sees it. Lives in the transfer table's slot. From submit until JobSink::finished the backend may
// read all of it and owns the second half; after finished it must not touch it.
struct TransferJob {
  uint32_t slot = 0; // Index of the slot; progress word `slot` of the backend is this job's.
  uint32_t direction = HICACHE_H2D;
  uint32_t priority = HICACHE_CLASS_NORMAL;
  uint32_t pool_mask = 0; // Pools that take part.
  uint32_t page_count = 0;
  uint64_t bytes = 0;
  hicache_ticket_t ticket = 0;
  uint64_t stream = 0; // The caller's stream whose work so far the copies follow.
  const CopyChunk *copies = nullptr;
  std::span<const FenceMark> waits; // What the copies wait for on the device besides; borrowed for the call of submit.

  // Owned by the backend.
  uint64_t submit_ns = 0;
  uint64_t start_ns = 0;
  uint64_t end_ns = 0;
  hicache_status_t status = HICACHE_PENDING;
  int32_t native_code = 0;
  TransferJob *next = nullptr;
  bool cancelled = false;           // No more copies are handed out.
  LayerGroup group;                 // Of the next copies to hand out.
  const CopyChunk *chunk = nullptr; // Next copy to hand out: chunk and index in it.
  uint32_t chunk_index = 0;
  uint32_t active_claims = 0;
  uint64_t ready_ns = 0;
};

// Where ended transfers go. Called on any thread, without the engine's lock; takes only the ring's.
class JobSink {
public:
  virtual ~JobSink() = default;
  virtual void finished(TransferJob &job) = 0;
  // There is work that only runs inside calls (fault injection): whoever waits for completions should look again.
  virtual void work_waiting() = 0;
};

struct BackendOptions {
  int32_t device = 0;
  uint64_t device_bytes = 0;
  uint64_t device_bytes_max = 0;
  void *device_buffer = nullptr; // Adopt; else own.
  uint64_t host_bytes = 0;       // 0: no host tier.
  uint64_t host_bytes_max = 0;
  uint64_t host_numa_nodes = 0;   // As in hicache_options_t.
  uint32_t copy_thread_count = 1; // A direction.
  uint32_t ticket_max = 0;        // Progress words.
  uint32_t copy_method = HICACHE_COPY_AUTO;
  uint32_t copy_calibration = HICACHE_CALIBRATION_AUTO;
  uint32_t slowdown_max_permille[2] = {}; // H2D, D2H; 0: the default.
  const LayerOrder *layers = nullptr;     // Outlives the backend.
  JobSink *sink = nullptr;                // Outlives the backend.
  // Entries of each pool's virtual table, for a mirror of it on the device; one a pool.
  const uint32_t *virtual_page_counts = nullptr;
};

// A page of a simulated forward pass: its first token_count rows are a function of `digest` (cuda/page_stamp).
struct PageStamp {
  PhysicalPage page;
  uint32_t token_count;
  uint64_t digest;
};

// A page of a hand-over between two engines: by pool and place of each.
struct PeerCopy {
  uint32_t source_pool, target_pool;
  PhysicalPage source, target;
};

// Kernel ids translated on the device; all addresses are the device's. page_tokens 0: one int32 a page; else page_tokens ids a page, int64
// if `wide`.
struct DeviceIds {
  uint32_t pool = 0;
  uint32_t page_count = 0;
  uint32_t page_tokens = 0;
  uint32_t sink_page = 0;
  uint64_t scale = 1, offset = 0;
  uint64_t vpages_address = 0;
  uint64_t ids_address = 0;
  uint64_t sink_count_address = 0; // 0: none.
  bool wide = false;
};

class Backend {
public:
  virtual ~Backend() = default;

  // Takes all memory and starts the threads. Called once, without a lock; may block. A failure leaves nothing running.
  virtual Status open(const BackendOptions &options, ErrorDetail *error) = 0;
  // Ends the threads. Every submitted job has finished before (see drain). Called once, without a lock; may block.
  virtual void close() = 0;

  // Address of page 0 of a pool in a tier, stable for life; NULL where there are no bytes. Pools of one arena share it, static pools have
  // their own.
  virtual std::byte *pool_base(Tier tier, uint32_t pool) const = 0;
  // Changes the part of the device range in use, up to device_bytes_max. A failure changes nothing and poisons nothing.
  virtual Status resize_device(uint64_t bytes, ErrorDetail *error) = 0;

  // Page work inside one tier, as Mover has it: queued behind `waits`, in order with other such work, ended by `done`. Later transfers
  // that touch these pages name `done` among their waits. Where the host's own threads do it (the host tier; of the CPU backend the device
  // tier too) it is done when the call returns, waits and done are empty, and the calls come without the engine's lock, several at a time
  // (PageWork).
  virtual Status move_pages(Tier tier, std::span<const PageMove> moves, std::span<const FenceMark> waits, FenceMark done,
                            ErrorDetail *error) = 0;
  virtual Status zero_pages(Tier tier, std::span<const PageZero> zeros, std::span<const FenceMark> waits, FenceMark done,
                            ErrorDetail *error) = 0;
  virtual Status copy_pages(Tier tier, std::span<const PageCopy> copies, std::span<const FenceMark> waits, FenceMark done,
                            ErrorDetail *error) = 0;
  // Tells the device's mirror of a pool's virtual table where vpages[i] is now (HICACHE_NO_PAGE: nowhere), behind `waits` and in
  // order with move_pages.
  virtual Status table_changed(uint32_t pool, std::span<const uint32_t> vpages, std::span<const uint32_t> ppages,
                               std::span<const FenceMark> waits, ErrorDetail *error) = 0;
  // Fills bytes [0, bytes) of the device arena, the sink, with NaNs, so that a reader that does not mask it shows.
  virtual Status poison_sink(uint64_t bytes, ErrorDetail *error) = 0;

  // `mark` now stands for what the caller has enqueued on `stream` so far. Marks of one slot are recorded in order.
  virtual Status fence_record(FenceMark mark, uint64_t stream, ErrorDetail *error) = 0;
  virtual bool fence_passed(FenceMark mark) const = 0;
  // Makes `stream` wait for `waits` and for the moves and table changes asked for so far.
  virtual Status order_step(uint64_t stream, std::span<const FenceMark> waits, ErrorDetail *error) = 0;

  // Queues a job and returns; copies run behind, and end with one JobSink::finished. Cannot fail: what goes wrong is the job's status.
  virtual void submit(TransferJob &job) = 0;
  // Hands out no more copies of a job that was submitted. If that leaves some out, it ends with CANCELLED as soon as those that were handed
  // out have ended; a job that has none left, or has finished, is left alone. Under the engine's lock, with the job still in its slot.
  virtual void cancel(TransferJob &job) = 0;
  // The job's progress word: see kProgressDone.
  virtual uint32_t progress(uint32_t slot) const = 0;
  // Makes `stream` wait until layer ids up to and including `layer` have arrived, or the job failed. A backend whose compute is the caller
  // blocks it instead. Called without the engine's lock; the slot is not reused meanwhile.
  virtual Status layer_wait(uint32_t slot, uint32_t layer, uint64_t stream, ErrorDetail *error) = 0;
  // Runs jobs that only run inside calls: up to `count` steps (one job, or one layer group if `layers`), held ones too if `held`. Returns
  // how many ran. Called without the engine's lock. Backends with threads of their own return 0.
  virtual uint32_t run_inside(uint32_t count, bool layers, bool held) = 0;
  // Runs the job of a slot to its end now, held or not; it fails if `fails`. Nothing if it has ended. Backends with threads of their own
  // do nothing. Called without the engine's lock.
  virtual void finish_job(uint32_t slot, bool fails) { (void)slot, (void)fails; }
  // Blocks until every submitted job has finished. Called without the engine's lock.
  virtual void drain() = 0;
  // Fault injection; false where there is none.
  virtual bool set_hold(bool hold, uint32_t fail_next) = 0;
  // Monotonic, or virtual time with fault injection.
  virtual uint64_t now_ns() const = 0;
  virtual bool virtual_clock() const = 0;

  // Null backend only: the tags of a pool's pages in a tier, one a physical page; NULL elsewhere.
  virtual std::atomic<uint64_t> *tags(Tier tier, uint32_t pool) = 0;

  // ---- Hand-overs to another engine, whose backend is of the same kind ----

  // Makes the way to `target` passable. Under both engines' locks; what it does the first time may take milliseconds.
  virtual Status peer_connect(Backend & /*target*/, ErrorDetail *) { return HICACHE_OK; }
  // The stream on which hand-overs out of (into) this engine are ordered: steps of it hold the pages. After peer_connect.
  virtual uint64_t peer_stream(bool out) const { return UINT64_MAX - (out ? 1 : 2); }
  // That stream follows what has been enqueued on the caller's `stream` so far.
  virtual Status peer_follow(bool /*out*/, uint64_t /*stream*/, ErrorDetail *) { return HICACHE_OK; }
  // The caller's `stream` follows what is on the in stream so far.
  virtual Status peer_lead(uint64_t /*stream*/, ErrorDetail *) { return HICACHE_OK; }
  // Queues copies on this backend's out stream, behind it and the target's in stream; the target's in stream follows them. No target twice.
  // Where the device is the host: done when it returns, and called without locks, the pages being held. After a failure no copy is under
  // way.
  virtual Status peer_copy(Backend &target, std::span<const PeerCopy> copies, ErrorDetail *error) = 0;

  // Bytes that crossed the bus, by method: direct, kernel, staged.
  virtual void copied_bytes(uint64_t by_method[3]) const { by_method[0] = by_method[1] = by_method[2] = 0; }

  // How a direction's copies are chosen, for Stats.
  virtual void copy_choice(uint32_t direction, hicache_copy_choice_t *out) const { (void)direction, *out = {}; }

  // ---- Only where the device is not the host: else UNSUPPORTED ----

  // The progress word of a slot, for a kernel that polls it: layer `layer` has arrived once (int32)(word - expected) >= 0.
  virtual Status layer_word(uint32_t, uint32_t, uint64_t *, uint32_t *, ErrorDetail *error) const { return host_only(error); }
  // The mirror of a pool's virtual table: address for the life of the engine, entries.
  virtual Status device_table(uint32_t, uint64_t *, uint32_t *, ErrorDetail *error) const { return host_only(error); }
  virtual Status device_kernel_ids(const DeviceIds &, uint64_t /*stream*/, ErrorDetail *error) { return host_only(error); }
  // Writes stamps, or compares (mismatches_out not NULL: words that differ, one count a page). Salts: two a layer. Called without the
  // engine's lock; blocks until done.
  virtual Status stamp_pages(uint32_t, uint64_t /*stream*/, std::span<const PageStamp>, std::span<const uint64_t>, uint32_t *,
                             ErrorDetail *error) {
    return host_only(error);
  }
  // Digests of whole pages (kernel_args.hpp), likewise.
  virtual Status digest_pages(uint32_t, std::span<const PhysicalPage>, uint64_t *, ErrorDetail *error) { return host_only(error); }

  // A device that failed stays failed: every call but close then returns DEVICE with this code. Any thread.
  bool poisoned() const { return poisoned_.load(std::memory_order_acquire); }
  int32_t poison_code() const { return poison_code_.load(std::memory_order_relaxed); }

protected:
  static Status host_only(ErrorDetail *error) {
    return fail(error, HICACHE_UNSUPPORTED, HICACHE_NO_POOL, "the backend's device is the host");
  }
  void poison(int32_t native_code) {
    poison_code_.store(native_code, std::memory_order_relaxed);
    poisoned_.store(true, std::memory_order_release);
  }

private:
  std::atomic<bool> poisoned_{false};
  std::atomic<int32_t> poison_code_{0};
};

// A backend whose copies the host makes. The queue (threads or seeded) decides when; this decides what.
class PageCopier {
public:
  virtual ~PageCopier() = default;
  // Copies the group's slices of `count` pages from `chunk`, `first` on. Called on any thread; pages in a job are pinned.
  virtual void copy_slices(const TransferJob &job, const LayerGroup &group, const CopyChunk *chunk, uint32_t first, uint32_t count) = 0;
};

} // namespace hicache
