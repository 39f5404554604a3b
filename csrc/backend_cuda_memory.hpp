// The memory of both tiers on a CUDA device: a range of device addresses that keeps its place while the part in use changes, and pinned
// host memory under one registration.
#pragma once

#include <cstdint>
#include <vector>

#include "backend_cuda_device.hpp"
#include "host_memory.hpp"

namespace hicache {

// Device memory, reserved whole as addresses and mapped as far as it is used. Growing maps whole granules (2 MiB on current devices) and
// costs about 40 us each; nothing is copied.
class DeviceArena {
public:
  explicit DeviceArena(CudaDevice &device) : device_(device) {}
  ~DeviceArena() { close(); }

  // INFEASIBLE if the device has not that much.
  Status reserve(uint64_t bytes, uint64_t bytes_max, ErrorDetail *error);
  // Uses memory of the caller, which must outlive the arena. INVALID_ARGUMENT unless it is device memory of this device, 256-byte aligned.
  Status adopt(void *buffer, uint64_t bytes, ErrorDetail *error);
  // The caller has made sure that nothing uses what goes.
  Status resize(uint64_t bytes, ErrorDetail *error);
  void close();

  // Gives another device access to what is mapped and what will be. Nothing for memory of the caller, whose access is the caller's affair.
  CuResult grant(CuDevice peer);

  CuAddress base() const { return base_; }
  bool adopted() const { return adopted_; }
  uint64_t mapped_bytes() const { return mapped_; }
  // Whether resizing to so many bytes unmaps any.
  bool gives_back(uint64_t bytes) const { return !mappings_.empty() && mapped_ - mappings_.back().bytes >= bytes; }

private:
  struct Mapping {
    CuAllocation allocation;
    uint64_t bytes;
  };
  Status grow(uint64_t bytes, ErrorDetail *error);
  void shrink(uint64_t bytes);

  CudaDevice &device_;
  CuAddress base_ = 0;
  uint64_t reserved_ = 0, mapped_ = 0, granule_ = 0;
  std::vector<Mapping> mappings_;             // In address order.
  std::vector<cu::AccessDescription> access_; // Of this device, then of those that were granted it.
  bool adopted_ = false;
};

// Pinned host memory: huge pages touched by many threads, then registered once. A second registration beside it would not do: a copy
// across the seam of two fails.
class HostArena {
public:
  explicit HostArena(CudaDevice &device) : device_(device) {}
  ~HostArena() { close(); }

  Status reserve(uint64_t bytes, uint64_t bytes_max, uint64_t numa_nodes, ErrorDetail *error);
  void close();

  std::byte *base() const { return memory_.base(); }
  CuAddress device_base() const { return device_base_; } // What kernels use for base().

private:
  CudaDevice &device_;
  HostMemory memory_;
  CuAddress device_base_ = 0;
  bool registered_ = false;
};

} // namespace hicache
