// Page work that the host does itself: moves, zeroings and copies of pages are planned under the engine's lock and done after it has been
// released, so that nobody else waits for bytes. The thread that asked for work does it, large pieces with the help of workers, before
// its call returns. Whoever else needs one of the pages in between waits for that page's mark (WorkBoard), also without the lock.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "backend.hpp"
#include "host_memory.hpp"
#include "work_board.hpp"

namespace hicache {

class PageWork {
public:
  explicit PageWork(std::mutex &engine_mutex) : engine_mutex_(engine_mutex) {} // Which outlives this object.
  ~PageWork() { stop(); }

  // Takes the memory and starts `workers` helpers (0: the asking threads do all). The backend outlives the last call. page_bytes: of each
  // pool; empty where the host does no page work.
  Status open(Backend *backend, std::vector<uint64_t> page_bytes, uint32_t workers, ErrorDetail *error);
  void stop();
  const WorkBoard &board(Tier tier) const { return boards_[tier == Tier::kHost]; }
  WorkBoard &board(Tier tier) { return boards_[tier == Tier::kHost]; }

  // ---- Under the engine's lock: for the thread that holds it ----

  Status move(Tier tier, std::span<const PageMove> moves, std::span<const FenceMark> waits, FenceMark done, ErrorDetail *error);
  Status zero(Tier tier, std::span<const PageZero> zeros, std::span<const FenceMark> waits, FenceMark done, ErrorDetail *error);
  Status copy(Tier tier, std::span<const PageCopy> copies, std::span<const FenceMark> waits, FenceMark done, ErrorDetail *error);
  // Before its call returns, the thread waits for those of these marks that are of page work.
  void await(Tier tier, std::span<const FenceMark> marks);
  // Whether any of these marks is of page work that is still to be done.
  bool in_work(Tier tier, std::span<const FenceMark> marks) const;
  // Submits the job to the backend once those marks have passed; job.waits are kept meanwhile.
  void submit_after(TransferJob &job, std::span<const FenceMark> host_waits);
  // Does at once, under the lock, all that was asked for, and waits for what others still do.
  Status finish();

  // What this hold of the lock has asked for: taken under the lock, run without it.
  uint32_t take_pending() {
    const uint32_t head = pending_head_;
    pending_head_ = pending_tail_ = kNone;
    return head;
  }
  // DEVICE if the work failed, which has poisoned the backend.
  Status run(uint32_t pending);

  static constexpr uint32_t kNone = UINT32_MAX;

private:
  enum class Kind : uint8_t { kMove, kZero, kCopy, kAwait, kSubmit };
  static constexpr uint32_t kItems = 64;
  static constexpr uint32_t kEntryBytes = 16 << 10; // 1,024 entries of the largest kind.
  static constexpr uint32_t kMarks = WorkBoard::kSlots + 64;

  struct Item {
    Kind kind = Kind::kAwait;
    Tier tier = Tier::kDevice;
    uint32_t next = kNone;
    uint32_t count = 0; // Entries.
    FenceMark done;
    TransferJob *job = nullptr;
    uint32_t mark_count[2] = {}; // In marks, by the tier whose page work they are of: device's first.
    FenceMark marks[kMarks];
    uint32_t chunk = 0;              // Entries that are claimed at a time.
    uint32_t claimed = 0, ended = 0; // Entries, under mutex_.
    Status status = HICACHE_OK;
  };

  template <typename Entry>
  Status add(Kind kind, Tier tier, std::span<const Entry> entries, std::span<const FenceMark> waits, FenceMark done, ErrorDetail *error);
  uint32_t take_item();
  void append(uint32_t item);
  void add_marks(Item *item, Tier tier, std::span<const FenceMark> marks) const;
  std::byte *entries(uint32_t item) const { return memory_.base() + uint64_t{item} * kEntryBytes; }

  void wait_for(const Item &item);
  Status do_entries(Kind kind, Tier tier, const std::byte *entries, uint32_t first, uint32_t count);
  Status run_item(uint32_t index);
  void help();
  void give_back(uint32_t item);

  std::mutex &engine_mutex_;
  Backend *backend_ = nullptr;
  WorkBoard boards_[2];
  std::vector<uint64_t> page_bytes_;
  HostMemory memory_;
  std::vector<Item> items_;
  uint32_t pending_head_ = kNone, pending_tail_ = kNone; // Under the engine's lock.

  std::mutex mutex_;               // Taken after the engine's lock or alone; what follows.
  std::condition_variable passed_; // A mark left a board.
  std::condition_variable work_;   // There is something to help with.
  std::condition_variable helped_; // A helper has ended its chunk.
  uint32_t free_head_ = kNone;
  uint32_t shared_ = kNone; // The item that workers help with.
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

} // namespace hicache
