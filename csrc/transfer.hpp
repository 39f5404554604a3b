// Transfers between the tiers: validates a request, pins its pages in both arenas, resolves them to places, queues the job and, when its
// completion is read, ends the pins. A page is named, pinned and queued in one call under the engine's lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "arena.hpp"
#include "backend.hpp"
#include "completion_ring.hpp"
#include "host_memory.hpp"
#include "page_work.hpp"
#include "status.hpp"

namespace hicache {

// What both arenas and the backend are to a transfer. All outlive the table.
struct TransferParties {
  Arena *device = nullptr;
  Arena *host = nullptr; // NULL: no host tier.
  Backend *backend = nullptr;
  const LayerOrder *layers = nullptr;
  PageWork *page_work = nullptr;
  uint64_t device_bytes_max = 0;
  uint64_t host_bytes_max = 0;
};

struct TransferOptions {
  uint32_t ticket_max = 1024;
  uint64_t copies_max = 65536; // Page copies of all tickets together.
  uint32_t engine_serial = 0;
  bool virtual_on_wire = false; // Deliberate fault.
};

struct TransferCounters {
  uint64_t loads = 0, back_ups = 0, failed = 0, cancelled = 0;
  uint64_t h2d_bytes = 0, d2h_bytes = 0, h2d_pages = 0, d2h_pages = 0;
  uint64_t fence_waits = 0; // Marks that copies were told to follow.
};

class TransferTable final : public JobSink {
public:
  explicit TransferTable(const TransferOptions &options);

  // Takes the tables' memory. Before the first submission.
  Status open(const TransferParties &parties, ErrorDetail *error);

  // hicache_load and hicache_back_up. Under the engine's lock.
  Status load(const hicache_transfer_t &transfer, hicache_ticket_t *ticket_out, ErrorDetail *error);
  Status back_up(const hicache_transfer_t &transfer, hicache_ticket_t *ticket_out, ErrorDetail *error);

  // hicache_transfer_cancel. Under the engine's lock.
  Status cancel(hicache_ticket_t ticket, ErrorDetail *error);

  // Reads up to `capacity` completions, oldest first, and ends their tickets' pins. Under the engine's lock.
  uint32_t read(hicache_completion_t *completions_out, uint32_t capacity);

  // hicache_ticket_status. Under the engine's lock.
  Status ticket_status(hicache_ticket_t ticket, uint32_t *layers_done_out, ErrorDetail *error) const;
  // First half of a wait, under the engine's lock: OK with *slot_out = kNoSlot if there is nothing to wait for, the transfer's failure, or
  // OK with a slot that stays this ticket's until layer_wait_end.
  Status layer_wait_begin(hicache_ticket_t ticket, uint32_t layer, uint32_t *slot_out, ErrorDetail *error);
  // Second half, under the lock again, after Backend::layer_wait without it.
  Status layer_wait_end(uint32_t slot, ErrorDetail *error);
  // The slot that a ticket has, or had last. STALE_ID.
  Status slot_of_ticket(hicache_ticket_t ticket, uint32_t *slot_out, ErrorDetail *error) const;

  // Whether something is writing this device page: a load whose completion has not been read, or a hand-over that the host makes. The
  // second kind is marked by whoever makes it. Under the engine's lock.
  bool arriving(uint32_t pool, uint32_t place) const { return device_incoming_.test(pool, place); }
  void begin_arrival(uint32_t pool, uint32_t place) { device_incoming_.set(pool, place); }
  void end_arrival(uint32_t pool, uint32_t place) { device_incoming_.clear(pool, place); }

  // A ticket of a back-up that reads one of these device pages, whose completion has not been read; 0: none does. `entries`: pool << 28 |
  // place, ascending. O(pages in flight * log entries). Under the engine's lock.
  hicache_ticket_t reader_of(std::span<const uint32_t> entries) const;

  // Puts into error.ticket which submitted ticket holds the page that stands in the way. O(pages in flight). Under the engine's lock.
  void name_blocking_ticket(Tier tier, ErrorDetail *error) const;
  // Violations, one a line: every page in flight is pinned where its job says. Under the engine's lock.
  std::string verify() const;

  CompletionRing &ring() { return ring_; }
  uint32_t in_flight() const { return in_flight_.load(std::memory_order_acquire); }
  // Tickets whose completion has not been read. Under the engine's lock.
  uint32_t unread() const { return unread_; }
  TransferCounters counters() const;

  // JobSink: on the backend's threads.
  void finished(TransferJob &job) override;
  void work_waiting() override { ring_.look_again(); }

private:
  enum class State : uint8_t { kFree, kUnread, kRead };
  struct Ticket {
    TransferJob job;
    PinList device_pins;
    PinList host_pins;
    CopyChunk *chunks = nullptr;
    uint64_t user = 0;
    uint64_t range = 0; // A profiler's, from submission to the end of the copies.
    uint32_t generation = 0;
    uint32_t waiters = 0; // Blocked in layer_wait.
    State state = State::kFree;
  };
  // Pages that a transfer is writing, by physical page: one bit each, a bitmap a pool.
  struct Incoming {
    std::vector<std::vector<uint64_t>> words;
    bool test(uint32_t pool, uint32_t page) const { return (words[pool][page / 64] >> (page % 64) & 1) != 0; }
    void set(uint32_t pool, uint32_t page) { words[pool][page / 64] |= uint64_t{1} << (page % 64); }
    void clear(uint32_t pool, uint32_t page) { words[pool][page / 64] &= ~(uint64_t{1} << (page % 64)); }
  };

  // What a request must be, whatever it copies.
  Status check_request(const hicache_transfer_t &transfer, uint32_t *after_out, ErrorDetail *error) const;
  // INVALID_ARGUMENT if a back-up writes a host page twice; marks the pages as being written otherwise.
  Status claim_targets(std::span<const hicache_copy_t> copies, ErrorDetail *error);
  Status refuse_host_targets(std::span<const hicache_copy_t> copies, ErrorDetail *error);
  Status refuse_incoming(const Incoming &incoming, std::span<const hicache_copy_t> copies, const uint32_t *places, Tier tier,
                         ErrorDetail *error);
  void submit(const hicache_transfer_t &transfer, uint32_t direction, uint32_t after, const PinList &device_pins, const PinList &host_pins,
              std::span<const FenceMark> waits, std::span<const FenceMark> host_waits, hicache_ticket_t *ticket_out);
  CopyChunk *take_chunk();
  void release(Ticket &ticket);
  void free_slot(uint32_t slot);
  hicache_ticket_t id_of(uint32_t slot) const;
  const Ticket *find(hicache_ticket_t ticket) const;
  Status stale(hicache_ticket_t ticket, ErrorDetail *error) const;
  Status outcome(const Ticket &ticket, ErrorDetail *error) const;

  const TransferOptions options_;
  TransferParties parties_;
  CompletionRing ring_;
  std::vector<Ticket> tickets_;
  std::vector<uint32_t> free_slots_; // A ring: slots are reused as late as possible.
  uint64_t free_head_ = 0;
  uint64_t free_tail_ = 0;
  uint32_t unread_ = 0;
  HostMemory chunk_memory_;
  CopyChunk *free_chunks_ = nullptr;
  uint64_t chunk_count_ = 0;
  uint64_t chunks_made_ = 0; // The rest of chunk_memory_ has not been touched.
  uint64_t chunks_free_ = 0; // Made or not.
  HostMemory place_memory_;  // Scratch of one request: places on the device, then on the host.
  uint32_t *device_places_ = nullptr;
  uint32_t *host_places_ = nullptr;
  Incoming device_incoming_;
  Incoming host_incoming_;
  std::atomic<uint32_t> in_flight_{0};
  TransferCounters counters_; // loads, back_ups, fence_waits: under the lock.
  std::atomic<uint64_t> failed_{0};
  std::atomic<uint64_t> cancelled_{0};
  std::atomic<uint64_t> moved_bytes_[2] = {};
  std::atomic<uint64_t> moved_pages_[2] = {};
};

} // namespace hicache
