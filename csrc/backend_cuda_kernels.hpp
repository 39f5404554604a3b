// Launches of the kernels of cuda/. Where the library was built without them, or the driver cannot load them, `available` is false and the
// callers use the copy engine and memsets.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend_cuda_device.hpp"
#include "kernel_args.hpp"

namespace hicache {

class KernelSet {
public:
  explicit KernelSet(CudaDevice &device) : device_(device) {}
  ~KernelSet() { close(); }

  // Never an error: why there are no kernels is `reason()`. Launches each kernel once on `stream`, with nothing to do: the driver may load
  // a kernel at its first launch and wait for the whole device then, which must not happen while a stream waits for a load that is not
  // submitted yet.
  void open(CuStream stream);
  void close();
  bool available() const { return module_ != nullptr; }
  const std::string &reason() const { return reason_; }

  // Copies with args as they are; args.list or args.inline_list is filled. `blocks` 0: the whole GPU, in a short burst.
  CuResult copy(const kernel::CopyArgs &args, unsigned blocks, CuStream stream) const;
  CuResult move(const kernel::CopyArgs &args, CuStream stream) const;
  CuResult zero(const kernel::ZeroArgs &args, CuStream stream) const;
  CuResult patch(const kernel::PatchArgs &args, CuStream stream) const;
  CuResult stamp(const kernel::StampArgs &args, CuStream stream) const;
  // args.digests must be zero.
  CuResult digest(const kernel::DigestArgs &args, CuStream stream) const;
  CuResult kernel_ids(const kernel::KernelIdsArgs &args, CuStream stream) const;
  // Does nothing, but makes what is put on the stream next wait where kernels wait, not where copies do.
  CuResult anchor(CuStream stream) const { return launch(anchor_, 1, 1, nullptr, stream); }

private:
  CuResult launch_all_empty(CuStream stream) const;
  CuResult launch(CuFunction function, unsigned blocks, unsigned threads, const void *args, CuStream stream) const;
  // Blocks of a full-width burst over `bytes`: enough to keep the memory busy, few enough to end together.
  unsigned burst_blocks(uint64_t bytes) const;

  CudaDevice &device_;
  CuModule module_ = nullptr;
  std::string reason_;
  CuFunction copy_ = nullptr, copy_small_ = nullptr, move_ = nullptr, zero_ = nullptr, patch_ = nullptr, stamp_ = nullptr,
             digest_ = nullptr, digest_finish_ = nullptr, kernel_ids_ = nullptr, anchor_ = nullptr;
};

// Lists too long to travel inside a launch go through a ring of pinned slots, each with its place in device memory. One thread's.
class ListRing {
public:
  static constexpr uint64_t kSlotBytes = 1 << 20;
  static constexpr uint32_t kSlots = 4;

  // A list holds its slot until its launch has ended, and a slot is for the longest list. With as many slots as launches that are queued,
  // none has to travel inside launches.
  explicit ListRing(CudaDevice &device, uint32_t slots = kSlots, uint64_t slot_bytes = kSlotBytes)
      : device_(device), slots_(slots), slot_bytes_(slot_bytes), uploaded_(slots), events_(slots), used_(slots) {}
  ~ListRing() { close(); }
  // `uploads`: a stream for lists alone, which rings may share and which outlives them, so that a list crosses the bus while the launch
  // before it still runs. Null: lists stand in the way on the user's stream, a few microseconds and their time each.
  Status open(CuStream uploads, ErrorDetail *error);
  void close();

  uint64_t slot_bytes() const { return slot_bytes_; }
  // A slot's host memory to fill, or null if the device still reads all of them: then launch with inline lists.
  void *fill();
  // Copies the first `bytes` of the slot just filled to the device; where they will be once `stream` comes to what is queued on it next.
  CuResult upload(uint64_t bytes, CuStream stream, CuAddress *address_out);
  // After the launch that reads the list.
  CuResult release(CuStream stream);
  // The device has done with every list.
  bool idle() const;

  // All slots on either side, as the device sees them, for whoever knows that no list is under way; 0 before open.
  CuAddress device_memory() const { return device_memory_; }
  CuAddress host_memory() const;

private:
  CudaDevice &device_;
  unsigned char *host_ = nullptr;
  CuAddress device_memory_ = 0;
  CuStream uploads_ = nullptr;
  const uint32_t slots_;
  const uint64_t slot_bytes_;
  std::vector<CuEvent> uploaded_;
  std::vector<CuEvent> events_; // The device has read the slot.
  std::vector<bool> used_;
  uint32_t next_ = 0;
  bool registered_ = false;
};

} // namespace hicache
