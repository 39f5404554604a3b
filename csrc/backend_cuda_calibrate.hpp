// Measures, when a CUDA backend opens, how fast each method of copying is here, and settles the choice of both directions
// (copy_choice.hpp).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "backend_cuda_copies.hpp"
#include "backend_cuda_device.hpp"
#include "backend_cuda_kernels.hpp"
#include "backend_cuda_stage.hpp"
#include "copy_choice.hpp"

namespace hicache {

// What a direction's probes run on: the streams and rings of a lane that does not run yet.
struct ProbeLane {
  CuStream bus = nullptr;
  CuStream kernels = nullptr; // Of the ring; null without one.
  CuEvent joint = nullptr;    // Between the two.
  ListRing *lists = nullptr;
  ListRing *stage_lists = nullptr;
  StageRing *stage = nullptr;
};

// Where probes copy: equal places spread over a range on each side. Nobody uses them yet, and on the host they are zero: what is copied
// down is what was copied up before, so that both sides hold zeros at the end.
struct ProbeMemory {
  static constexpr uint64_t kPlaceBytes = 256 << 10;
  static constexpr uint32_t kPlacesMax = 64;

  CuAddress device = 0, host = 0;
  uint32_t places = 0; // A power of two.
  uint64_t device_stride = 0, host_stride = 0;

  // Over the two ranges; no places if one is too small.
  static ProbeMemory over(CuAddress device, uint64_t device_bytes, CuAddress host, uint64_t host_bytes);
};

class Calibrator {
public:
  // `now`: the clock of the budget.
  Calibrator(CudaDevice &device, const KernelSet &kernels, const ProbeMemory &memory, const ProbeLane lanes[2],
             std::function<uint64_t()> now);
  ~Calibrator();

  // Measures what is planned, best of two, until `budget_ns` are over: then the rest stays unmeasured. What was begun is waited for, as the
  // memory is somebody's afterwards; it waits for no other stream. DEVICE, poisoning, if the device fails; out of memory only ends it.
  Status run(std::span<const Probe> plan, uint64_t budget_ns, ErrorDetail *error);
  const std::vector<MeasuredRate> &rates() const { return rates_; } // One a probe at most.

private:
  static constexpr uint64_t kWarmBytes = 2 << 20, kBytes = 8 << 20; // Of a probe: to fill the pipe, and what is timed.
  static constexpr uint64_t kPortionBytes = 4 << 20;                // Of a slot of the ring that a probe uses at once.
  static constexpr uint32_t kBatch = 64;                            // Copies in one call of the driver.

  bool open_events();
  bool prime();
  bool measure(const Probe &probe, double *gb_s_out);
  // Copies fragments [first, first + count) of the probe behind what `lane` has; false after a failure.
  bool copy(const Probe &probe, uint32_t first, uint32_t count);
  bool copy_direct(const Probe &probe, uint32_t first, uint32_t count, CuStream stream);
  bool copy_kernel(const Probe &probe, uint32_t first, uint32_t count);
  bool copy_staged(const Probe &probe, uint32_t first, uint32_t count);
  bool launch(std::span<const kernel::Fragment> fragments, uint64_t bytes, unsigned blocks, ListRing *lists, CuStream stream);
  bool batch(CuStream stream); // Queues copies_.
  bool wait(CuEvent event);
  bool ok(CuResult result); // Keeps the first failure.
  CuAddress place(CuAddress base, uint64_t stride, uint32_t permute, uint64_t bytes, uint32_t index) const;
  CuAddress device_at(uint64_t bytes, uint32_t index) const { return place(memory_.device, memory_.device_stride, 29, bytes, index); }
  CuAddress host_at(uint64_t bytes, uint32_t index) const { return place(memory_.host, memory_.host_stride, 11, bytes, index); }

  CudaDevice &device_;
  const DriverApi &api_;
  const KernelSet &kernels_;
  const ProbeMemory memory_;
  const ProbeLane lanes_[2];
  const std::function<uint64_t()> now_;
  CuResult failure_ = cu::kSuccess;
  CuEvent begin_ = nullptr, end_ = nullptr, other_end_ = nullptr;
  uint32_t stage_slot_ = 0;
  std::vector<MeasuredRate> rates_;
  CopyBatch copies_;
  FragmentLauncher launcher_;
};

} // namespace hicache
