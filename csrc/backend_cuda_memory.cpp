#include "backend_cuda_memory.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

namespace hicache {

namespace {

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// One allocation holds at most this much: shrinking gives whole allocations back.
constexpr uint64_t kAllocationBytes = uint64_t{1} << 30;

} // namespace

// ---- Device ----

Status DeviceArena::reserve(uint64_t bytes, uint64_t bytes_max, ErrorDetail *error) {
  const DriverApi &api = device_.api();
  cu::AllocationProperties properties;
  properties.location = {1, device_.ordinal()};
  size_t granule = 0;
  if (CuResult r = api.allocation_granularity(&granule, &properties, 0); r != cu::kSuccess)
    return device_.report(r, "cuMemGetAllocationGranularity", HICACHE_UNSUPPORTED, error);
  granule_ = granule;
  const uint64_t reserved = round_up(std::max(bytes, bytes_max), granule_);
  if (CuResult r = api.address_reserve(&base_, reserved, 0, 0, 0); r != cu::kSuccess) {
    base_ = 0;
    return device_.report(r, "reserving device_bytes_max of addresses (cuMemAddressReserve)", HICACHE_INFEASIBLE, error);
  }
  reserved_ = reserved;
  access_.assign(1, {properties.location});
  return grow(bytes, error);
}

Status DeviceArena::adopt(void *buffer, uint64_t bytes, ErrorDetail *error) {
  const CuAddress address = reinterpret_cast<CuAddress>(buffer);
  if (address % 256 != 0) return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "device_buffer: must be 256-byte aligned");
  unsigned type = 0;
  int ordinal = -1;
  if (CuResult r = device_.api().pointer_attribute(&type, cu::kPointerMemoryType, address); r != cu::kSuccess || type != 2)
    return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "device_buffer: is no device memory");
  if (CuResult r = device_.api().pointer_attribute(&ordinal, cu::kPointerOrdinal, address);
      r != cu::kSuccess || ordinal != device_.ordinal())
    return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "device_buffer: lies on another device");
  // The last byte too: a buffer shorter than device_bytes would fail much later, in a copy.
  if (CuResult r = device_.api().pointer_attribute(&type, cu::kPointerMemoryType, address + bytes - 1); r != cu::kSuccess || type != 2)
    return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "device_buffer: is shorter than device_bytes");
  base_ = address;
  mapped_ = reserved_ = bytes;
  adopted_ = true;
  return HICACHE_OK;
}

Status DeviceArena::grow(uint64_t bytes, ErrorDetail *error) {
  const DriverApi &api = device_.api();
  cu::AllocationProperties properties;
  properties.location = {1, device_.ordinal()};
  const uint64_t target = round_up(bytes, granule_), before = mapped_;
  while (mapped_ < target) {
    const uint64_t part = std::min(target - mapped_, round_up(kAllocationBytes, granule_));
    CuAllocation allocation = 0;
    const char *what = "cuMemCreate of device_bytes";
    CuResult r = api.allocation_create(&allocation, part, &properties, 0);
    if (r == cu::kSuccess) {
      what = "cuMemMap";
      r = api.memory_map(base_ + mapped_, part, 0, allocation, 0);
      if (r == cu::kSuccess) {
        what = "cuMemSetAccess";
        r = api.memory_set_access(base_ + mapped_, part, access_.data(), access_.size());
        if (r != cu::kSuccess) api.memory_unmap(base_ + mapped_, part);
      }
      if (r != cu::kSuccess) api.allocation_release(allocation);
    }
    if (r != cu::kSuccess) {
      shrink(before);
      return device_.report(r, what, HICACHE_INFEASIBLE, error);
    }
    mappings_.push_back({allocation, part});
    mapped_ += part;
  }
  return HICACHE_OK;
}

CuResult DeviceArena::grant(CuDevice peer) {
  if (adopted_ || base_ == 0) return cu::kSuccess;
  for (const cu::AccessDescription &known : access_)
    if (known.location.id == peer) return cu::kSuccess;
  cu::AccessDescription access;
  access.location = {1, peer};
  CuAddress at = base_;
  for (const Mapping &mapping : mappings_) {
    if (CuResult r = device_.api().memory_set_access(at, mapping.bytes, &access, 1); r != cu::kSuccess) return r;
    at += mapping.bytes;
  }
  access_.push_back(access);
  return cu::kSuccess;
}

void DeviceArena::shrink(uint64_t bytes) {
  while (!mappings_.empty() && mapped_ - mappings_.back().bytes >= bytes) {
    const Mapping last = mappings_.back();
    mappings_.pop_back();
    mapped_ -= last.bytes;
    device_.api().memory_unmap(base_ + mapped_, last.bytes);
    device_.api().allocation_release(last.allocation);
  }
}

Status DeviceArena::resize(uint64_t bytes, ErrorDetail *error) {
  if (adopted_) return fail(error, HICACHE_UNSUPPORTED, HICACHE_NO_POOL, "an adopted device_buffer keeps its size");
  if (bytes > reserved_) return fail(error, HICACHE_INFEASIBLE, HICACHE_NO_POOL, "device_bytes above device_bytes_max");
  if (bytes > mapped_) return grow(bytes, error);
  shrink(bytes);
  return HICACHE_OK;
}

void DeviceArena::close() {
  if (!adopted_ && base_ != 0) {
    shrink(0);
    device_.api().address_free(base_, reserved_);
  }
  base_ = 0;
}

// ---- Host ----

Status HostArena::reserve(uint64_t bytes, uint64_t bytes_max, uint64_t numa_nodes, ErrorDetail *error) {
  if (int why = memory_.reserve(bytes, bytes_max); why != 0) {
    const Status status = fail(error, HICACHE_INFEASIBLE, HICACHE_NO_POOL, "reserving %llu bytes of host memory: %s",
                               static_cast<unsigned long long>(std::max(bytes, bytes_max)), std::strerror(why));
    if (error != nullptr) error->native_code = why;
    return status;
  }
  const uint64_t length = round_up(bytes, 4096);
  if (numa_nodes != 0) {
    if (int why = memory_.bind_nodes(numa_nodes); why != 0)
      return fail(error, HICACHE_INFEASIBLE, HICACHE_NO_POOL, "binding host memory to the nodes of host_numa_nodes: %s",
                  std::strerror(why));
  } else if (int node = device_.numa_node(); node >= 0 && node < 64) {
    // Preferred, not bound: a node that is short of memory lends from its neighbour. Advice: failure costs speed alone.
    unsigned long mask = 1ul << node;
    syscall(SYS_mbind, memory_.base(), length, 1 /* MPOL_PREFERRED */, &mask, 65ul, 0u);
  }
  memory_.touch(std::clamp(std::thread::hardware_concurrency(), 1u, 16u));
  CuResult r = device_.api().host_register(memory_.base(), length, cu::kHostRegisterPortable | cu::kHostRegisterDeviceMap);
  if (r != cu::kSuccess) return device_.report(r, "pinning host_bytes of memory (cuMemHostRegister)", HICACHE_INFEASIBLE, error);
  registered_ = true;
  if (CuResult p = device_.api().host_device_pointer(&device_base_, memory_.base(), 0); p != cu::kSuccess)
    return device_.report(p, "cuMemHostGetDevicePointer", HICACHE_DEVICE, error);
  return HICACHE_OK;
}

void HostArena::close() {
  if (registered_) device_.api().host_unregister(memory_.base());
  registered_ = false;
}

} // namespace hicache
