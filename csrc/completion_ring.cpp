#include "completion_ring.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>

#include "copy_queue.hpp"

namespace hicache {

CompletionRing::CompletionRing(uint32_t slot_count)
    : slot_count_(slot_count), entries_(new Entry[slot_count]), queue_(new uint32_t[slot_count]()),
      fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

CompletionRing::~CompletionRing() {
  if (fd_ >= 0) ::close(fd_);
}

void CompletionRing::begin(uint32_t slot, uint32_t after) {
  std::lock_guard lock(mutex_);
  Entry &entry = entries_[slot];
  entry = Entry{};
  entry.published = false;
  if (after == kNoSlot || entries_[after].published) return;
  entry.after = after;
  entry.next_dependent = entries_[after].first_dependent;
  entries_[after].first_dependent = slot;
}

void CompletionRing::push(uint32_t slot) {
  entries_[slot].published = true;
  queue_[tail_++ % slot_count_] = slot;
}

void CompletionRing::publish(uint32_t slot) {
  {
    std::lock_guard lock(mutex_);
    entries_[slot].ended = true;
    if (entries_[slot].after != kNoSlot) return;
    const bool was_empty = head_ == tail_;
    uint64_t next = tail_;
    push(slot);
    // What waited for a slot follows it, and what waited for that: the new part of the queue is the list of slots to look at.
    for (; next < tail_; next++) {
      Entry &entry = entries_[queue_[next % slot_count_]];
      for (uint32_t dependent = entry.first_dependent; dependent != kNoSlot; dependent = entries_[dependent].next_dependent) {
        entries_[dependent].after = kNoSlot;
        if (entries_[dependent].ended) push(dependent);
      }
      entry.first_dependent = kNoSlot;
    }
    count_.store(tail_ - head_, std::memory_order_release);
    if (was_empty) signal_fd(true);
  }
  changed_.notify_all();
}

bool CompletionRing::take(uint32_t *slot_out) {
  if (empty()) return false;
  std::lock_guard lock(mutex_);
  if (head_ == tail_) return false;
  *slot_out = queue_[head_++ % slot_count_];
  count_.store(tail_ - head_, std::memory_order_release);
  if (head_ == tail_) signal_fd(false);
  return true;
}

CompletionRing::Wake CompletionRing::wait(uint64_t deadline_ns, uint64_t looks_seen) {
  std::unique_lock lock(mutex_);
  const uint64_t wakes_seen = wakes_;
  waiters_++;
  Wake why = Wake::kTimeout;
  for (;;) {
    if (closed_) {
      why = Wake::kClosed;
    } else if (head_ != tail_) {
      why = Wake::kReady;
    } else if (wakes_ != wakes_seen || wake_pending_) {
      wake_pending_ = false;
      why = Wake::kWoken;
    } else if (looks_.load(std::memory_order_relaxed) != looks_seen) {
      why = Wake::kLook;
    } else if (deadline_ns == UINT64_MAX) {
      changed_.wait(lock);
      continue;
    } else if (const uint64_t now = steady_now_ns(); now < deadline_ns) {
      // At most an hour at a time: the clock's arithmetic must not overflow.
      constexpr uint64_t kHour = 3600u * uint64_t{1000000000};
      const uint64_t left = deadline_ns - now;
      changed_.wait_for(lock, std::chrono::nanoseconds(left < kHour ? left : kHour));
      continue;
    }
    break;
  }
  waiters_--;
  return why;
}

void CompletionRing::wake() {
  {
    std::lock_guard lock(mutex_);
    if (waiters_ == 0) {
      wake_pending_ = true;
    } else {
      wakes_++;
    }
  }
  changed_.notify_all();
}

void CompletionRing::look_again() {
  {
    std::lock_guard lock(mutex_);
    looks_.fetch_add(1, std::memory_order_release);
  }
  changed_.notify_all();
}

void CompletionRing::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

int CompletionRing::event_fd() {
  std::lock_guard lock(mutex_);
  if (!fd_wanted_) {
    fd_wanted_ = true;
    if (head_ != tail_) signal_fd(true);
  }
  return fd_;
}

void CompletionRing::signal_fd(bool readable) {
  if (!fd_wanted_ || fd_ < 0) return;
  uint64_t value = 1;
  // Neither can fail in a way that matters: the counter is 0 or 1.
  [[maybe_unused]] ssize_t n = readable ? write(fd_, &value, sizeof value) : read(fd_, &value, sizeof value);
}

} // namespace hicache
