// Ended transfers on their way to the reader: a bounded queue of ticket slots in the order of their publication, with a blocking wait and
// an eventfd. A transfer that was asked to be reported after another is withheld until that one is in the queue.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

namespace hicache {

constexpr uint32_t kNoSlot = UINT32_MAX;

class CompletionRing {
public:
  explicit CompletionRing(uint32_t slot_count);
  ~CompletionRing();
  CompletionRing(const CompletionRing &) = delete;
  CompletionRing &operator=(const CompletionRing &) = delete;

  // A slot starts a transfer. `after`: the slot that must be published first, kNoSlot for none; a slot that has been published counts as
  // done.
  void begin(uint32_t slot, uint32_t after);
  // The transfer in `slot` has ended: it and what was withheld for it become readable. Any thread.
  void publish(uint32_t slot);
  // Takes the oldest published slot; false if there is none. Any thread.
  bool take(uint32_t *slot_out);
  bool empty() const { return count_.load(std::memory_order_acquire) == 0; }

  enum class Wake { kReady, kTimeout, kWoken, kLook, kClosed };
  // Number of the last look_again: to be read before the caller looks for work itself.
  uint64_t look_count() const { return looks_.load(std::memory_order_acquire); }
  // Blocks until the ring is not empty, for timeout_ns (UINT64_MAX: for ever), until wake, until close, or until look_count is not
  // `looks_seen`.
  Wake wait(uint64_t deadline_ns, uint64_t looks_seen);
  // Makes those who wait return; if none does, the next.
  void wake();
  // Makes those who wait look for work that only runs inside calls.
  void look_again();
  // Makes every wait return at once from now on.
  void close();

  // Readable when the ring is not empty; costs nothing until it is asked for. -1 if the system gave none.
  int event_fd();

private:
  struct Entry {
    uint32_t after = kNoSlot;           // Not yet published.
    uint32_t first_dependent = kNoSlot; // Slots whose `after` this is.
    uint32_t next_dependent = kNoSlot;
    bool ended = false;
    bool published = true;
  };
  void push(uint32_t slot);
  void signal_fd(bool readable);

  const uint32_t slot_count_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<Entry[]> entries_;
  std::unique_ptr<uint32_t[]> queue_;
  uint64_t head_ = 0; // Taken and pushed so far; the queue is indexed modulo slot_count_.
  uint64_t tail_ = 0;
  std::atomic<uint64_t> count_{0};
  std::atomic<uint64_t> looks_{0};
  uint64_t wakes_ = 0;
  uint32_t waiters_ = 0;
  bool wake_pending_ = false;
  bool closed_ = false;
  bool fd_wanted_ = false;
  int fd_ = -1;
};

} // namespace hicache
