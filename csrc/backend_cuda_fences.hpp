// Fences of a CUDA backend: what each FenceMark stands for is an event, kept until it has passed and then used again.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "backend_cuda_device.hpp"
#include "mover.hpp"

namespace hicache {

// Any thread whose current context is the device's.
class FenceBoard {
public:
  explicit FenceBoard(CudaDevice &device) : device_(device) {}
  ~FenceBoard() { close(); }
  void close();

  // `mark` is what has been enqueued on `stream` so far. Marks of a slot come in ascending order. INVALID_ARGUMENT, poisoning nothing, if
  // the stream is not of this device's context or is being captured. Takes an event from the free ones, or makes one where all are in use.
  Status record(FenceMark mark, CuStream stream, ErrorDetail *error);
  // Whether a fence can be recorded on the stream later. INVALID_ARGUMENT if not: a step that began there could never end. Costs an event
  // record for a stream that is none of the last few. Under the engine's lock, not the board's: the driver may hold up who records.
  Status accept(CuStream stream, ErrorDetail *error);
  bool passed(FenceMark mark);
  // The same without asking the device: false may be old.
  bool known_passed(FenceMark mark);
  // Makes `stream` wait on the device, unless the mark has passed.
  Status wait(CuStream stream, FenceMark mark, ErrorDetail *error);

  // Blocks until all that was recorded has passed. DEVICE if the device fails before.
  Status wait_all(ErrorDetail *error);

  // A step has been opened or closed a moment ago, or a closed one is still running: kernels of ours would take its multiprocessors.
  bool compute_about();
  void note_step();

private:
  struct Pending {
    uint64_t sequence;
    CuEvent event;
  };
  struct Slot {
    std::deque<Pending> pending; // Ascending.
    uint64_t passed = 0;
  };
  Slot &slot(uint32_t index);
  void retire(Slot &slot);

  CudaDevice &device_;
  std::mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<CuEvent> free_;
  CuEvent probe_ = nullptr; // Recorded to see whether a stream takes it; nobody waits for it.
  static constexpr size_t kAccepted = 16;
  std::vector<CuStream> accepted_; // The last streams that did; the next one replaces accepted_[next_accepted_].
  size_t next_accepted_ = 0;
  std::atomic<uint64_t> last_step_ns_{0};
};

} // namespace hicache
