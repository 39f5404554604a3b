// Progress words of tickets: one in device memory, which streams and kernels wait on, and one in pinned host memory, which the host reads.
//
// A slot's words only grow, over all tickets that ever use the slot: a ticket's values start at its own base, so that a wait which a
// stream has not come to yet can never be fooled, or held, by the slot's next ticket. All comparisons are by signed difference.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "backend_cuda_device.hpp"
#include "layer_groups.hpp"

namespace hicache {

class TicketWords {
public:
  explicit TicketWords(CudaDevice &device) : device_(device) {}
  ~TicketWords() { close(); }

  Status open(uint32_t slot_count, uint32_t layer_limit, ErrorDetail *error);
  void close();

  // A new ticket uses the slot; global layers below `first_layer` need no copy.
  void begin(uint32_t slot, uint32_t first_layer);
  // Its end, after the last value was written by a stream or by `release`. The host word may lag.
  void end(uint32_t slot, bool failed);
  // Enqueues: every global layer below `layers` has arrived (kProgressDone: all).
  CuResult write(uint32_t slot, uint32_t layers, CuStream stream);
  // Enqueues that `stream` waits until layers up to and including `layer` have arrived.
  CuResult wait(uint32_t slot, uint32_t layer, CuStream stream) const;

  uint32_t progress(uint32_t slot) const; // As Backend::progress.

  // Words of the host alone, a cache line each, in which a lane's streams count their quanta: `index` below 4. A stream writes its own, the
  // host polls them.
  uint32_t lane_word(uint32_t index) const;
  CuResult write_lane_word(uint32_t index, uint32_t value, CuStream stream);

  // For a kernel that polls: the word and the value from which layer `layer` is there.
  CuAddress address(uint32_t slot) const { return device_words_ + slot * sizeof(uint32_t); }
  // Whether the slot's ticket is waited for on another stream than was noted last, or for the first time. Any thread.
  bool new_waiter(uint32_t slot, CuStream stream) const {
    return slots_[slot].last_wait.load(std::memory_order_acquire) != waiter(slot, stream);
  }
  // Once the stream is ready for waits: two threads may both make it so, but neither may find it noted too early.
  void note_waiter(uint32_t slot, CuStream stream) { slots_[slot].last_wait.store(waiter(slot, stream), std::memory_order_release); }
  uint32_t expected(uint32_t slot, uint32_t layer) const { return slots_[slot].base.load(std::memory_order_acquire) + layer + 1; }

private:
  enum class State : uint32_t { kPending, kDone, kFailed };
  struct Slot {
    std::atomic<uint32_t> base{0};
    std::atomic<uint64_t> last_wait{0}; // Of which ticket and on which stream, as one number.
    std::atomic<uint32_t> first{0};
    std::atomic<State> state{State::kDone};
  };
  static constexpr uint32_t kLineWords = 16;
  uint32_t value(uint32_t slot, uint32_t layers) const;
  uint64_t waiter(uint32_t slot, CuStream stream) const;
  uint32_t lane_at(uint32_t index) const { return (slot_count_ / kLineWords + 1 + index) * kLineWords; }

  CudaDevice &device_;
  uint32_t slot_count_ = 0;
  uint32_t all_ = 0; // Offset from a base at which every layer has arrived: one above the highest layer limit.
  std::unique_ptr<Slot[]> slots_;
  CuAddress device_words_ = 0;
  uint32_t *host_words_ = nullptr;
  CuAddress host_words_on_device_ = 0;
  uint64_t host_bytes_ = 0;
  bool registered_ = false;
};

} // namespace hicache
