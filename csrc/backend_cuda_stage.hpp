// The staged path of a lane. Fragments that are small on the device but lie together on the host cross the bus as few large copies, to or
// from a ring on the device, where page_copy takes them apart or puts them together at the speed of its memory: full width and short, so
// that the compute beside it loses little more than that time. The ring is what the bus can go ahead of the kernels, which wait for the
// compute.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend_cuda_device.hpp"
#include "kernel_args.hpp"

namespace hicache {

// Equal slots of device memory, one a quantum under way.
class StageRing {
public:
  explicit StageRing(CudaDevice &device) : device_(device) {}
  ~StageRing() { close(); }

  Status open(uint64_t slot_bytes, uint32_t slots, ErrorDetail *error);
  void close();
  bool available() const { return memory_ != 0; }
  CuAddress slot(uint32_t index) const { return memory_ + index * slot_bytes_; }
  uint64_t slot_bytes() const { return slot_bytes_; }
  uint32_t slots() const { return slots_; }

private:
  CudaDevice &device_;
  CuAddress memory_ = 0;
  uint64_t slot_bytes_ = 0;
  uint32_t slots_ = 0;
};

struct StagedFragment {
  uint64_t host;
  uint64_t device;
  uint64_t bytes; // A multiple of 16.
};

// Where staged fragments lie in the ring, and what of them is one copy on the bus.
struct StagePlan {
  struct Run {
    uint64_t host;
    uint64_t ring;
    uint64_t bytes;
  };
  struct Group { // Fragments of one size: [first, first + count) of `fragments`.
    uint64_t bytes;
    size_t first, count;
  };
  std::vector<Run> runs;
  std::vector<kernel::Fragment> fragments; // Source and target of the kernel.
  std::vector<Group> groups;

  // `all` is put in another order. `ring` is the address of the first byte; to_device: the kernel reads the ring, else it writes it.
  void make(std::vector<StagedFragment> *all, uint64_t ring, bool sort, bool to_device);
};

} // namespace hicache
