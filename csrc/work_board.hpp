// Which pieces of page work (moves, zeroings, copies) of one tier are still to be done, by the sequence of their marks. Where the host does
// that work, outside the engine's lock and on several threads, it does not end in order: a mark of the mover's slot has passed when it is
// not on the board. Written under the engine's lock, cleared by whoever did the work; read by anybody.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace hicache {

class WorkBoard {
public:
  static constexpr uint32_t kSlots = 256;

  bool empty() const { return count_.load(std::memory_order_acquire) == 0; }
  // False once the work has been done; its bytes are then visible to the caller.
  bool in_work(uint64_t sequence) const { return slots_[sequence % kSlots].load(std::memory_order_acquire) == sequence; }
  // False if older work is still under way in the place that this one would take.
  bool post(uint64_t sequence) {
    std::atomic<uint64_t> &slot = slots_[sequence % kSlots];
    // Who finds this in place of older work must see that work's bytes too: they are handed on.
    if (slot.load(std::memory_order_acquire) != 0) return false;
    slot.store(sequence, std::memory_order_release);
    count_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  void clear(uint64_t sequence) {
    slots_[sequence % kSlots].store(0, std::memory_order_release);
    count_.fetch_sub(1, std::memory_order_release);
  }
  template <typename Visit> void each(Visit visit) const {
    for (const std::atomic<uint64_t> &slot : slots_)
      if (const uint64_t sequence = slot.load(std::memory_order_acquire); sequence != 0) visit(sequence);
  }

private:
  std::array<std::atomic<uint64_t>, kSlots> slots_{}; // 0: free. Sequences begin at 1.
  std::atomic<uint32_t> count_{0};
};

} // namespace hicache
