// The CUDA driver API, opened at run time. libhicache never links to libcuda: the same library runs on machines without a GPU, and a
// machine without one gets a sentence instead of a loader error. No CUDA header is needed to build: the few types and constants that
// cross the border are declared here, as the driver's ABI fixes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace hicache {

using CuResult = int;                 // CUresult.
using CuDevice = int;                 // CUdevice.
using CuAddress = unsigned long long; // CUdeviceptr. Host memory is passed as one too (unified addressing).
using CuContext = void *;
using CuStream = void *;
using CuEvent = void *;
using CuModule = void *;
using CuFunction = void *;
using CuAllocation = unsigned long long; // CUmemGenericAllocationHandle.

namespace cu {

inline constexpr CuResult kSuccess = 0;
inline constexpr CuResult kInvalidValue = 1;
inline constexpr CuResult kOutOfMemory = 2;
inline constexpr CuResult kDeinitialized = 4;
inline constexpr CuResult kNoDevice = 100;
inline constexpr CuResult kInvalidDevice = 101;
inline constexpr CuResult kNoBinaryForGpu = 209;
inline constexpr CuResult kInvalidContext = 201;
inline constexpr CuResult kPeerAccessUnsupported = 217;
inline constexpr CuResult kInvalidHandle = 400;
inline constexpr CuResult kNotFound = 500;
inline constexpr CuResult kNotReady = 600;
inline constexpr CuResult kPeerAccessAlreadyEnabled = 704;
inline constexpr CuResult kAlreadyRegistered = 712;
inline constexpr CuResult kNotPermitted = 800;
inline constexpr CuResult kNotSupported = 801;

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kWaitValueGreaterOrEqual = 0; // Signed difference: right across the wrap of the word.
inline constexpr unsigned kWriteValueDefault = 0;       // With a barrier: earlier writes of the stream are visible first.
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostRegisterDeviceMap = 2;
inline constexpr int kCaptureRelaxed = 2;

inline constexpr int kAttributeMultiprocessors = 16;
inline constexpr int kAttributePciBus = 33;
inline constexpr int kAttributeAsyncEngines = 40;
inline constexpr int kAttributeMajor = 75;
inline constexpr int kAttributeMinor = 76;
inline constexpr int kAttributeVirtualMemory = 102;

inline constexpr int kPointerContext = 1;
inline constexpr int kPointerMemoryType = 2; // unsigned: 1 host, 2 device, 3 array.
inline constexpr int kPointerOrdinal = 9;
inline constexpr int kPointerAccess = 16; // unsigned: what the current context's device may do there; 3 is read and write.

struct Location { // CUmemLocation.
  int type = 0;   // 1: device.
  int id = 0;
};
struct AllocationProperties { // CUmemAllocationProp.
  int type = 1;               // Pinned on the device.
  int handle_types = 0;
  Location location;
  void *win32_meta = nullptr;
  unsigned char compression = 0;
  unsigned char rdma_capable = 0;
  unsigned short usage = 0;
  unsigned char reserved[4] = {};
};
struct AccessDescription { // CUmemAccessDesc.
  Location location;
  int flags = 3; // Read and write.
};
struct CopyAttributes { // CUmemcpyAttributes.
  int source_order = 1; // In stream order.
  Location source_hint;
  Location destination_hint;
  unsigned flags = 1; // Prefer overlap with compute.
};
static_assert(sizeof(AllocationProperties) == 32 && offsetof(AllocationProperties, win32_meta) == 16);
static_assert(sizeof(AccessDescription) == 12 && sizeof(CopyAttributes) == 24);

} // namespace cu

// HICACHE_CU(member, symbol, parameter types): every function that must be there. All return CuResult.
#define HICACHE_CU_REQUIRED(X)                                                                                                             \
  X(init, "cuInit", (unsigned))                                                                                                            \
  X(driver_version, "cuDriverGetVersion", (int *))                                                                                         \
  X(error_name, "cuGetErrorName", (CuResult, const char **))                                                                               \
  X(error_string, "cuGetErrorString", (CuResult, const char **))                                                                           \
  X(device_count, "cuDeviceGetCount", (int *))                                                                                             \
  X(device_get, "cuDeviceGet", (CuDevice *, int))                                                                                          \
  X(device_name, "cuDeviceGetName", (char *, int, CuDevice))                                                                               \
  X(device_attribute, "cuDeviceGetAttribute", (int *, int, CuDevice))                                                                      \
  X(device_total_memory, "cuDeviceTotalMem_v2", (size_t *, CuDevice))                                                                      \
  X(device_pci_bus_id, "cuDeviceGetPCIBusId", (char *, int, CuDevice))                                                                     \
  X(primary_retain, "cuDevicePrimaryCtxRetain", (CuContext *, CuDevice))                                                                   \
  X(primary_release, "cuDevicePrimaryCtxRelease_v2", (CuDevice))                                                                           \
  X(context_get, "cuCtxGetCurrent", (CuContext *))                                                                                         \
  X(context_set, "cuCtxSetCurrent", (CuContext))                                                                                           \
  X(context_push, "cuCtxPushCurrent_v2", (CuContext))                                                                                      \
  X(context_pop, "cuCtxPopCurrent_v2", (CuContext *))                                                                                      \
  X(context_device, "cuCtxGetDevice", (CuDevice *))                                                                                        \
  X(context_synchronize, "cuCtxSynchronize", ())                                                                                           \
  X(priority_range, "cuCtxGetStreamPriorityRange", (int *, int *))                                                                         \
  X(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", (int *))                                                                   \
  X(memory_info, "cuMemGetInfo_v2", (size_t *, size_t *))                                                                                  \
  X(memory_alloc, "cuMemAlloc_v2", (CuAddress *, size_t))                                                                                  \
  X(memory_free, "cuMemFree_v2", (CuAddress))                                                                                              \
  X(host_register, "cuMemHostRegister_v2", (void *, size_t, unsigned))                                                                     \
  X(host_unregister, "cuMemHostUnregister", (void *))                                                                                      \
  X(host_device_pointer, "cuMemHostGetDevicePointer_v2", (CuAddress *, void *, unsigned))                                                  \
  X(pointer_attribute, "cuPointerGetAttribute", (void *, int, CuAddress))                                                                  \
  X(address_reserve, "cuMemAddressReserve", (CuAddress *, size_t, size_t, CuAddress, unsigned long long))                                  \
  X(address_free, "cuMemAddressFree", (CuAddress, size_t))                                                                                 \
  X(allocation_create, "cuMemCreate", (CuAllocation *, size_t, const cu::AllocationProperties *, unsigned long long))                      \
  X(allocation_release, "cuMemRelease", (CuAllocation))                                                                                    \
  X(allocation_granularity, "cuMemGetAllocationGranularity", (size_t *, const cu::AllocationProperties *, int))                            \
  X(memory_map, "cuMemMap", (CuAddress, size_t, size_t, CuAllocation, unsigned long long))                                                 \
  X(memory_unmap, "cuMemUnmap", (CuAddress, size_t))                                                                                       \
  X(memory_set_access, "cuMemSetAccess", (CuAddress, size_t, const cu::AccessDescription *, size_t))                                       \
  X(stream_create, "cuStreamCreateWithPriority", (CuStream *, unsigned, int))                                                              \
  X(stream_destroy, "cuStreamDestroy_v2", (CuStream))                                                                                      \
  X(stream_synchronize, "cuStreamSynchronize", (CuStream))                                                                                 \
  X(stream_query, "cuStreamQuery", (CuStream))                                                                                             \
  X(stream_context, "cuStreamGetCtx", (CuStream, CuContext *))                                                                             \
  X(stream_capturing, "cuStreamIsCapturing", (CuStream, int *))                                                                            \
  X(stream_wait_event, "cuStreamWaitEvent", (CuStream, CuEvent, unsigned))                                                                 \
  X(stream_wait_value, "cuStreamWaitValue32_v2", (CuStream, CuAddress, uint32_t, unsigned))                                                \
  X(stream_write_value, "cuStreamWriteValue32_v2", (CuStream, CuAddress, uint32_t, unsigned))                                              \
  X(event_create, "cuEventCreate", (CuEvent *, unsigned))                                                                                  \
  X(event_destroy, "cuEventDestroy_v2", (CuEvent))                                                                                         \
  X(event_record, "cuEventRecord", (CuEvent, CuStream))                                                                                    \
  X(event_query, "cuEventQuery", (CuEvent))                                                                                                \
  X(event_elapsed, "cuEventElapsedTime", (float *, CuEvent, CuEvent))                                                                      \
  X(event_synchronize, "cuEventSynchronize", (CuEvent))                                                                                    \
  X(can_access_peer, "cuDeviceCanAccessPeer", (int *, CuDevice, CuDevice))                                                                 \
  X(enable_peer_access, "cuCtxEnablePeerAccess", (CuContext, unsigned))                                                                    \
  X(copy_peer_async, "cuMemcpyPeerAsync", (CuAddress, CuContext, CuAddress, CuContext, size_t, CuStream))                                  \
  X(copy_async, "cuMemcpyAsync", (CuAddress, CuAddress, size_t, CuStream))                                                                 \
  X(set8_async, "cuMemsetD8Async", (CuAddress, unsigned char, size_t, CuStream))                                                           \
  X(set32_async, "cuMemsetD32Async", (CuAddress, unsigned, size_t, CuStream))                                                              \
  X(module_load, "cuModuleLoadData", (CuModule *, const void *))                                                                           \
  X(module_unload, "cuModuleUnload", (CuModule))                                                                                           \
  X(module_function, "cuModuleGetFunction", (CuFunction *, CuModule, const char *))                                                        \
  X(launch, "cuLaunchKernel",                                                                                                              \
    (CuFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CuStream, void **, void **))

// Newer than the oldest driver that is accepted: null when absent.
#define HICACHE_CU_OPTIONAL(X)                                                                                                             \
  X(copy_batch, "cuMemcpyBatchAsync_v2", (CuAddress *, CuAddress *, size_t *, size_t, cu::CopyAttributes *, size_t *, size_t, CuStream))   \
  X(copy_batch_12_8, "cuMemcpyBatchAsync",                                                                                                 \
    (CuAddress *, CuAddress *, size_t *, size_t, cu::CopyAttributes *, size_t *, size_t, size_t *, CuStream))

// The table. One a process and library path, shared by all engines, never closed: the driver registers process-wide state.
struct DriverApi {
#define HICACHE_CU_MEMBER(member, symbol, parameters) CuResult(*member) parameters = nullptr;
  HICACHE_CU_REQUIRED(HICACHE_CU_MEMBER)
  HICACHE_CU_OPTIONAL(HICACHE_CU_MEMBER)
#undef HICACHE_CU_MEMBER

  int version = 0; // 13000 = CUDA 13.0.
  bool has_copy_batch = false;

  // "CUDA_ERROR_OUT_OF_MEMORY: out of memory", or the number where the driver does not know it.
  std::string describe(CuResult result) const;
};

// The oldest driver that has every required function: CUDA 12.0 (R525).
inline constexpr int kDriverVersionMin = 12000;

struct DriverLoad {
  const DriverApi *api = nullptr; // Null: `reason` says why, in words for the user.
  CuResult native = 0;
  std::string reason;
};

// Opens libcuda.so.1, or the file that HICACHE_LIBCUDA names, and calls cuInit. The first answer is kept for the life of the process,
// except that a failure is tried again. Any thread.
DriverLoad load_driver();
// As above from one given file; nothing is kept or shared. For tests.
DriverLoad load_driver_from(const char *path);

// Makes `context` current for a scope and puts back what the caller had. Also puts the thread into relaxed capture mode, so that a
// caller who captures a graph on some stream may call the library meanwhile.
class ContextScope {
public:
  ContextScope(const DriverApi &api, CuContext context) : api_(api) {
    CuContext now = nullptr;
    current_ = api_.context_get(&now) == cu::kSuccess && now == context; // As with torch or the runtime: nothing to switch.
    pushed_ = !current_ && api_.context_push(context) == cu::kSuccess;
    mode_ = cu::kCaptureRelaxed;
    exchanged_ = ok() && api_.exchange_capture_mode(&mode_) == cu::kSuccess;
  }
  ~ContextScope() {
    if (exchanged_) api_.exchange_capture_mode(&mode_);
    CuContext mine = nullptr;
    if (pushed_) api_.context_pop(&mine);
  }
  ContextScope(const ContextScope &) = delete;
  ContextScope &operator=(const ContextScope &) = delete;
  bool ok() const { return current_ || pushed_; }

private:
  const DriverApi &api_;
  int mode_ = 0;
  bool current_ = false, pushed_ = false, exchanged_ = false;
};

} // namespace hicache
