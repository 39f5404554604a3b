// A CUDA driver made of host threads, with the part of the driver's ABI that the backend uses: streams run on threads of their own, as late
// as they like, events and waits order them, memory is checked. It shows on any machine whether the backend orders its work rightly; of
// speed it says what a test makes up. Loaded by path (HICACHE_LIBCUDA), never linked.
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "driver_api.hpp"
#include "kernel_args.hpp"

using hicache::CuAddress;
using hicache::CuAllocation;
using hicache::CuContext;
using hicache::CuDevice;
using hicache::CuEvent;
using hicache::CuFunction;
using hicache::CuModule;
using hicache::CuResult;
using hicache::CuStream;
namespace cu = hicache::cu;
namespace kernel = hicache::kernel;

#define SIMULATED extern "C" __attribute__((visibility("default"))) CuResult

namespace {

constexpr CuResult kIllegalAddress = 700;

int environment(const char *name, int otherwise) {
  const char *text = std::getenv(name);
  return text != nullptr && *text != '\0' ? std::atoi(text) : otherwise;
}

struct Context {
  int device;
};
Context contexts[2] = {{0}, {1}};
thread_local std::vector<CuContext> context_stack;

std::atomic<CuResult> sticky{0}; // A fault that has destroyed the context.

CuContext current() { return context_stack.empty() ? nullptr : context_stack.back(); }

// ---- Memory: ranges that may be touched ----

std::mutex memory_mutex;

int device_of(CuContext context) { return static_cast<Context *>(context)->device; }

struct DeviceRange {
  uint64_t end;
  int owner;
  unsigned access; // A bit a device, as cuMemSetAccess has set it. Of cuMemAlloc's ranges: the owner's.
  bool allocated;  // By cuMemAlloc: open to the contexts that have enabled access to the owner's as well.
};
std::map<uint64_t, DeviceRange> device_ranges; // By start.
std::map<uint64_t, uint64_t> pinned_ranges;    // Start to end.
bool peer_enabled[2][2] = {};                  // [of the context][to the peer].

// Device mappings that touch are one. `device` < 0: whoever it is for.
bool on_device(uint64_t at, uint64_t bytes, int device = -1) {
  std::lock_guard lock(memory_mutex);
  auto range = device_ranges.upper_bound(at);
  if (range == device_ranges.begin()) return false;
  --range;
  for (uint64_t reached = at;;) {
    const DeviceRange &of = range->second;
    if (of.end <= reached) return false;
    const bool open = device < 0 || (of.access >> device & 1) != 0 || (of.allocated && peer_enabled[device][of.owner]);
    if (!open) return false;
    reached = of.end;
    if (at + bytes <= reached) return true;
    if (++range == device_ranges.end() || range->first != reached) return false;
  }
}
// Registrations that touch are not one, as on a real device.
bool pinned(uint64_t at, uint64_t bytes) {
  std::lock_guard lock(memory_mutex);
  auto range = pinned_ranges.upper_bound(at);
  if (range == pinned_ranges.begin()) return false;
  return at + bytes <= (--range)->second;
}
bool touchable(uint64_t at, uint64_t bytes, int device = -1) { return on_device(at, bytes, device) || pinned(at, bytes); }

// ---- Streams and events ----

// What an event was recorded behind; whoever waits keeps it, and a later recording is another.
struct Recording {
  std::mutex mutex;
  std::condition_variable changed;
  bool passed = false;
  double at_ns = 0; // Of the stream's simulated time, when it passed.
};
struct Event {
  CuContext context;
  std::mutex mutex;
  std::shared_ptr<Recording> last; // Null: never recorded, which counts as passed.

  std::shared_ptr<Recording> recording() {
    std::lock_guard lock(mutex);
    return last;
  }
};

// Simulated time, for tests of what measures it: each stream has its own, which copies and kernels lengthen by what the test's function
// says, and events carry from one stream to another. Without a function nothing takes time.
struct Work {
  int kind;      // 0: the copy engine; 1: a kernel that reads or writes host memory; 2: a kernel inside the device.
  int direction; // 0: to the device; 1: from it; 2: neither.
  uint64_t bytes;
  uint64_t count;
  unsigned blocks;
};
std::atomic<double (*)(const Work *)> cost_ns{nullptr};
std::atomic<int> slow_us{0};                           // What each piece of work really takes besides.
std::atomic<int> fail_countdown{-1};                   // After so many copies and launches
std::atomic<CuResult> fail_result{0};                  // the device fails with this.
std::atomic<int> refuse_countdown{-1};                 // After so many batches of copies
std::atomic<CuResult> refuse_result{0};                // the next one is refused with this, and the device lives on.
std::atomic<uint64_t> memory_limit{uint64_t{1} << 32}; // Larger allocations fail.

void jitter() {
  static const int us = environment("SIMULATED_CUDA_JITTER_US", 0);
  if (us == 0) return;
  static std::atomic<uint64_t> seed{12345};
  thread_local std::mt19937_64 random(seed.fetch_add(7919));
  if (const auto wait = random() % static_cast<uint64_t>(us + 1); wait != 0) std::this_thread::sleep_for(std::chrono::microseconds(wait));
}

// Freeing memory and copying pageable memory wait for the device, and keep every other call of the driver out meanwhile: on a real driver
// too, a stream that waits for work which nobody can submit any more then hangs the process.
std::shared_mutex driver;

struct Stream {
  CuContext context;
  std::atomic<bool> capturing{false};
  std::atomic<bool> among_copies{true}; // The hardware queue that its next wait goes to: a new stream's, or that of its last work.
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool stopping = false, busy = false;
  double now_ns = 0; // Its own thread's.
  std::thread thread;

  explicit Stream(CuContext c) : context(c), thread([this] { run(); }) {}
  ~Stream() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    thread.join();
  }
  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return !work.empty() || stopping; });
      if (work.empty()) return;
      auto next = std::move(work.front());
      work.pop_front();
      busy = true;
      lock.unlock();
      jitter();
      if (sticky == 0) next();
      lock.lock();
      busy = false;
      if (work.empty()) changed.notify_all();
    }
  }
  void push(std::function<void()> next) {
    std::shared_lock entered(driver);
    push_inside(std::move(next));
  }
  void push_inside(std::function<void()> next) {
    {
      std::lock_guard lock(mutex);
      work.push_back(std::move(next));
    }
    changed.notify_all();
  }
  void drain() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return work.empty() && !busy; });
  }
};

std::mutex streams_mutex;
std::set<Stream *> streams;

Stream *stream_of(CuStream handle) {
  static Stream *legacy[2] = {new Stream(&contexts[0]), new Stream(&contexts[1])};
  if (handle != nullptr) return static_cast<Stream *>(handle);
  return legacy[current() == &contexts[1]];
}

void drain_all() {
  std::vector<Stream *> all;
  {
    std::lock_guard lock(streams_mutex);
    all.assign(streams.begin(), streams.end());
  }
  if (current() != nullptr) all.push_back(stream_of(nullptr));
  for (Stream *stream : all) stream->drain();
}

// What every call that needs a context begins with.
CuResult entry() {
  if (sticky != 0) return sticky;
  return current() == nullptr ? cu::kInvalidContext : cu::kSuccess;
}
CuResult entry(CuStream stream) {
  if (CuResult r = entry(); r != cu::kSuccess) return r;
  return stream_of(stream)->context == current() ? cu::kSuccess : cu::kInvalidHandle;
}
#define ENTER(...)                                                                                                                         \
  if (CuResult entered = entry(__VA_ARGS__); entered != cu::kSuccess) return entered

// One piece of work of a stream: takes simulated time, and may be what the device fails at.
void spend(Stream *stream, const Work &work) {
  if (const auto cost = cost_ns.load(); cost != nullptr) stream->now_ns += cost(&work);
  if (const int us = slow_us; us != 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
  if (fail_countdown >= 0 && fail_countdown.fetch_sub(1) == 0) sticky = fail_result.load();
}
int direction_of(uint64_t target, uint64_t source) {
  const bool to = on_device(target, 1), from = on_device(source, 1);
  return to && !from ? 0 : from && !to ? 1 : 2;
}

void copy_now(uint64_t target, uint64_t source, size_t bytes) {
  std::memcpy(reinterpret_cast<void *>(target), reinterpret_cast<const void *>(source), bytes);
}

} // namespace

// ---- For tests, by dlsym ----

extern "C" __attribute__((visibility("default"))) void simulated_cuda_fail(int result) { sticky = result; }
extern "C" __attribute__((visibility("default"))) void simulated_cuda_costs(double (*function)(const void *)) {
  cost_ns = reinterpret_cast<double (*)(const Work *)>(function);
}
extern "C" __attribute__((visibility("default"))) void simulated_cuda_slow(int us) { slow_us = us; }
extern "C" __attribute__((visibility("default"))) void simulated_cuda_fail_after(int count, int result) {
  fail_result = result;
  fail_countdown = count;
}
extern "C" __attribute__((visibility("default"))) void simulated_cuda_refuse_after(int count, int result) {
  refuse_result = result;
  refuse_countdown = count;
}
extern "C" __attribute__((visibility("default"))) void simulated_cuda_memory_limit(unsigned long long bytes) { memory_limit = bytes; }
extern "C" __attribute__((visibility("default"))) void simulated_cuda_capture(CuStream stream, int on) {
  stream_of(stream)->capturing = on != 0;
}
extern "C" __attribute__((visibility("default"))) int
simulated_cuda_live(void) { // Streams, device ranges and registrations not given back.
  std::scoped_lock lock(streams_mutex, memory_mutex);
  return static_cast<int>(streams.size() + device_ranges.size() + pinned_ranges.size());
}
// A host function in stream order, for tests that hold a stream up.
std::atomic<int> waits_among_copies{0}; // Such a wait can hold up the copies of other streams on a real device.
extern "C" __attribute__((visibility("default"))) int simulated_cuda_waits_among_copies(void) { return waits_among_copies; }
extern "C" __attribute__((visibility("default"))) void simulated_cuda_run(CuStream stream, void (*function)(void *), void *argument) {
  stream_of(stream)->push([=] { function(argument); });
}

// ---- Devices and contexts ----

SIMULATED cuInit(unsigned) { return environment("SIMULATED_CUDA_INIT", 0); }
SIMULATED cuDriverGetVersion(int *version) { return *version = environment("SIMULATED_CUDA_VERSION", 13000), cu::kSuccess; }
SIMULATED cuGetErrorName(CuResult result, const char **name) {
  *name = result == kIllegalAddress    ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : result == cu::kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY"
                                       : "CUDA_ERROR_SIMULATED";
  return cu::kSuccess;
}
SIMULATED cuGetErrorString(CuResult, const char **text) { return *text = "simulated", cu::kSuccess; }
SIMULATED cuDeviceGetCount(int *count) { return *count = environment("SIMULATED_CUDA_DEVICES", 2), cu::kSuccess; }
SIMULATED cuDeviceGet(CuDevice *device, int ordinal) { return *device = ordinal, cu::kSuccess; }
SIMULATED cuDeviceGetName(char *name, int bytes, CuDevice) {
  return std::strncpy(name, "simulated", static_cast<size_t>(bytes)), cu::kSuccess;
}
SIMULATED cuDeviceGetAttribute(int *value, int, CuDevice) { return *value = 4, cu::kSuccess; }
SIMULATED cuDeviceTotalMem_v2(size_t *bytes, CuDevice) { return *bytes = size_t{1} << 33, cu::kSuccess; }
SIMULATED cuDeviceGetPCIBusId(char *text, int bytes, CuDevice) {
  return std::strncpy(text, "none", static_cast<size_t>(bytes)), cu::kSuccess;
}
SIMULATED cuDevicePrimaryCtxRetain(CuContext *context, CuDevice device) { return *context = &contexts[device], cu::kSuccess; }
SIMULATED cuDevicePrimaryCtxRelease_v2(CuDevice) { return cu::kSuccess; }
SIMULATED cuCtxGetCurrent(CuContext *context) { return *context = current(), cu::kSuccess; }
SIMULATED cuCtxSetCurrent(CuContext context) {
  if (!context_stack.empty()) context_stack.pop_back();
  if (context != nullptr) context_stack.push_back(context);
  return cu::kSuccess;
}
SIMULATED cuCtxPushCurrent_v2(CuContext context) { return context_stack.push_back(context), cu::kSuccess; }
SIMULATED cuCtxPopCurrent_v2(CuContext *context) {
  if (context_stack.empty()) return cu::kInvalidContext;
  *context = context_stack.back();
  context_stack.pop_back();
  return cu::kSuccess;
}
SIMULATED cuCtxGetDevice(CuDevice *device) {
  ENTER();
  return *device = static_cast<Context *>(current())->device, cu::kSuccess;
}
SIMULATED cuCtxSynchronize() {
  ENTER();
  drain_all(); // Keeps nobody out.
  return sticky;
}
SIMULATED cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  ENTER();
  return *least = 0, *greatest = -5, cu::kSuccess;
}
SIMULATED cuThreadExchangeStreamCaptureMode(int *mode) {
  thread_local int mine = 0;
  std::swap(*mode, mine);
  return cu::kSuccess;
}

// ---- Memory ----

SIMULATED cuMemGetInfo_v2(size_t *free, size_t *total) { return *free = *total = size_t{1} << 33, cu::kSuccess; }
SIMULATED cuMemAlloc_v2(CuAddress *address, size_t bytes) {
  ENTER();
  if (bytes > memory_limit) return cu::kOutOfMemory;
  void *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(memory, 0xa5, bytes);
  *address = reinterpret_cast<CuAddress>(memory);
  const int owner = device_of(current());
  std::lock_guard lock(memory_mutex);
  device_ranges[*address] = {*address + bytes, owner, 1u << owner, true};
  return cu::kSuccess;
}
SIMULATED cuMemFree_v2(CuAddress address) {
  if (current() == nullptr) return cu::kInvalidContext;
  std::unique_lock alone(driver);
  drain_all();
  std::lock_guard lock(memory_mutex);
  if (device_ranges.erase(address) == 0) return cu::kInvalidValue;
  std::free(reinterpret_cast<void *>(address));
  return cu::kSuccess;
}
SIMULATED cuMemHostRegister_v2(void *memory, size_t bytes, unsigned) {
  ENTER();
  std::lock_guard lock(memory_mutex);
  const auto at = reinterpret_cast<uint64_t>(memory);
  for (auto [start, end] : pinned_ranges) {
    if (at < end && start < at + bytes) return cu::kAlreadyRegistered;
  }
  pinned_ranges[at] = at + bytes;
  return cu::kSuccess;
}
SIMULATED cuMemHostUnregister(void *memory) {
  if (current() == nullptr) return cu::kInvalidContext;
  std::lock_guard lock(memory_mutex);
  return pinned_ranges.erase(reinterpret_cast<uint64_t>(memory)) != 0 ? cu::kSuccess : cu::kInvalidValue;
}
SIMULATED cuMemHostGetDevicePointer_v2(CuAddress *address, void *memory, unsigned) {
  return *address = reinterpret_cast<CuAddress>(memory), cu::kSuccess;
}
SIMULATED cuPointerGetAttribute(void *value, int attribute, CuAddress address) {
  if (!on_device(address, 1)) return cu::kInvalidValue;
  if (attribute == cu::kPointerMemoryType) *static_cast<unsigned *>(value) = 2;
  if (attribute == cu::kPointerAccess) {
    ENTER();
    *static_cast<unsigned *>(value) = on_device(address, 1, device_of(current())) ? 3 : 0;
  }
  std::lock_guard lock(memory_mutex);
  if (attribute == cu::kPointerOrdinal) *static_cast<int *>(value) = (--device_ranges.upper_bound(address))->second.owner;
  return cu::kSuccess;
}
SIMULATED cuMemAddressReserve(CuAddress *address, size_t bytes, size_t, CuAddress, unsigned long long) {
  ENTER();
  void *memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return cu::kOutOfMemory;
  return *address = reinterpret_cast<CuAddress>(memory), cu::kSuccess;
}
SIMULATED cuMemAddressFree(CuAddress address, size_t bytes) {
  return munmap(reinterpret_cast<void *>(address), bytes) == 0 ? cu::kSuccess : cu::kInvalidValue;
}
SIMULATED cuMemCreate(CuAllocation *allocation, size_t bytes, const cu::AllocationProperties *properties, unsigned long long) {
  ENTER();
  if (bytes > (size_t{1} << 33) || environment("SIMULATED_CUDA_NO_MEMORY", 0) != 0) return cu::kOutOfMemory;
  return *allocation = static_cast<CuAllocation>(properties->location.id), cu::kSuccess; // Its device is all that matters.
}
SIMULATED cuMemRelease(CuAllocation) { return cu::kSuccess; }
SIMULATED cuMemGetAllocationGranularity(size_t *bytes, const cu::AllocationProperties *, int) {
  return *bytes = size_t{2} << 20, cu::kSuccess;
}
SIMULATED cuMemMap(CuAddress address, size_t bytes, size_t, CuAllocation allocation, unsigned long long) {
  if (mprotect(reinterpret_cast<void *>(address), bytes, PROT_READ | PROT_WRITE) != 0) return cu::kInvalidValue;
  std::lock_guard lock(memory_mutex);
  device_ranges[address] = {address + bytes, static_cast<int>(allocation), 0, false};
  return cu::kSuccess;
}
SIMULATED cuMemUnmap(CuAddress address, size_t bytes) {
  std::lock_guard lock(memory_mutex);
  device_ranges.erase(address);
  madvise(reinterpret_cast<void *>(address), bytes, MADV_DONTNEED);
  return mprotect(reinterpret_cast<void *>(address), bytes, PROT_NONE) == 0 ? cu::kSuccess : cu::kInvalidValue;
}
SIMULATED cuMemSetAccess(CuAddress address, size_t bytes, const cu::AccessDescription *access, size_t count) {
  std::lock_guard lock(memory_mutex);
  auto range = device_ranges.find(address);
  if (range == device_ranges.end() || range->second.end != address + bytes) return cu::kInvalidValue;
  for (size_t i = 0; i < count; i++) {
    const int device = access[i].location.id;
    if (device != range->second.owner && environment("SIMULATED_CUDA_PEERS", 1) == 0) return cu::kNotSupported;
    const unsigned bit = 1u << device;
    range->second.access = access[i].flags == 3 ? range->second.access | bit : range->second.access & ~bit;
  }
  return cu::kSuccess;
}

// ---- Peers ----

SIMULATED cuDeviceCanAccessPeer(int *can, CuDevice, CuDevice) { return *can = environment("SIMULATED_CUDA_PEERS", 1), cu::kSuccess; }
SIMULATED cuCtxEnablePeerAccess(CuContext peer, unsigned) {
  ENTER();
  if (peer == current()) return cu::kInvalidDevice;
  if (environment("SIMULATED_CUDA_PEERS", 1) == 0) return cu::kPeerAccessUnsupported;
  std::lock_guard lock(memory_mutex);
  bool &enabled = peer_enabled[device_of(current())][device_of(peer)];
  if (enabled) return cu::kPeerAccessAlreadyEnabled;
  enabled = true;
  return cu::kSuccess;
}

// ---- Streams and events ----

SIMULATED cuStreamCreateWithPriority(CuStream *stream, unsigned, int) {
  ENTER();
  auto *made = new Stream(current());
  std::lock_guard lock(streams_mutex);
  streams.insert(made);
  return *stream = made, cu::kSuccess;
}
// For programs that bring a driver binding of their own, as the test of bindings/gorgonia.
SIMULATED cuStreamCreate(CuStream *stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }
SIMULATED cuStreamDestroy_v2(CuStream stream) {
  {
    std::lock_guard lock(streams_mutex);
    streams.erase(static_cast<Stream *>(stream));
  }
  delete static_cast<Stream *>(stream);
  return cu::kSuccess;
}
SIMULATED cuStreamSynchronize(CuStream stream) {
  ENTER(stream);
  stream_of(stream)->drain();
  return sticky;
}
SIMULATED cuStreamQuery(CuStream stream) {
  ENTER(stream);
  std::lock_guard lock(stream_of(stream)->mutex);
  return stream_of(stream)->work.empty() && !stream_of(stream)->busy ? cu::kSuccess : cu::kNotReady;
}
SIMULATED cuStreamGetCtx(CuStream stream, CuContext *context) { return *context = stream_of(stream)->context, cu::kSuccess; }
SIMULATED cuStreamIsCapturing(CuStream stream, int *status) { return *status = stream_of(stream)->capturing, cu::kSuccess; }
SIMULATED cuEventCreate(CuEvent *event, unsigned) {
  ENTER();
  auto *made = new Event;
  made->context = current();
  return *event = made, cu::kSuccess;
}
SIMULATED cuEventDestroy_v2(CuEvent event) {
  // The real driver keeps an event until the work that uses it has ended. Here they are left alone: tests are short.
  (void)event;
  return cu::kSuccess;
}
SIMULATED cuEventRecord(CuEvent handle, CuStream stream) {
  ENTER(stream);
  auto *event = static_cast<Event *>(handle);
  if (event->context != current()) return cu::kInvalidHandle;
  auto mine = std::make_shared<Recording>();
  {
    std::lock_guard lock(event->mutex);
    event->last = mine;
  }
  stream_of(stream)->push([mine, on = stream_of(stream)] {
    {
      std::lock_guard lock(mine->mutex);
      mine->passed = true;
      mine->at_ns = on->now_ns;
    }
    mine->changed.notify_all();
  });
  return cu::kSuccess;
}
SIMULATED cuEventQuery(CuEvent handle) {
  ENTER();
  const auto recording = static_cast<Event *>(handle)->recording();
  if (recording == nullptr) return cu::kSuccess;
  std::lock_guard lock(recording->mutex);
  return recording->passed ? cu::kSuccess : cu::kNotReady;
}
SIMULATED cuEventSynchronize(CuEvent handle) {
  ENTER();
  const auto recording = static_cast<Event *>(handle)->recording();
  if (recording == nullptr) return cu::kSuccess;
  std::unique_lock lock(recording->mutex);
  recording->changed.wait(lock, [&] { return recording->passed; });
  return cu::kSuccess;
}
SIMULATED cuEventElapsedTime(float *ms, CuEvent from, CuEvent to) {
  ENTER();
  if (cost_ns.load() == nullptr) return *ms = 1, cu::kSuccess;
  double at[2];
  for (int i = 0; i < 2; i++) {
    const auto recording = static_cast<Event *>(i == 0 ? from : to)->recording();
    if (recording == nullptr) return cu::kInvalidHandle;
    std::lock_guard lock(recording->mutex);
    if (!recording->passed) return cu::kNotReady;
    at[i] = recording->at_ns;
  }
  return *ms = static_cast<float>((at[1] - at[0]) / 1e6), cu::kSuccess;
}
SIMULATED cuStreamWaitEvent(CuStream stream, CuEvent handle, unsigned) {
  ENTER(stream);
  const auto recording = static_cast<Event *>(handle)->recording(); // As it is now, and of any device.
  if (recording == nullptr) return cu::kSuccess;
  stream_of(stream)->push([recording, on = stream_of(stream)] {
    std::unique_lock lock(recording->mutex);
    // What failed records no more events.
    while (!recording->changed.wait_for(lock, std::chrono::milliseconds(5), [&] { return recording->passed; }) && sticky == 0) {}
    on->now_ns = std::max(on->now_ns, recording->at_ns);
  });
  return cu::kSuccess;
}
SIMULATED cuStreamWaitValue32_v2(CuStream stream, CuAddress address, uint32_t value, unsigned) {
  ENTER(stream);
  if (stream_of(stream)->among_copies) waits_among_copies++;
  if (!touchable(address, 4)) return cu::kInvalidValue;
  stream_of(stream)->push([=] {
    std::atomic_ref<uint32_t> word(*reinterpret_cast<uint32_t *>(address));
    while (static_cast<int32_t>(word.load(std::memory_order_acquire) - value) < 0 && sticky == 0) std::this_thread::yield();
  });
  return cu::kSuccess;
}
SIMULATED cuStreamWriteValue32_v2(CuStream stream, CuAddress address, uint32_t value, unsigned) {
  ENTER(stream);
  if (!touchable(address, 4)) return cu::kInvalidValue;
  stream_of(stream)->push(
      [=] { std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t *>(address)).store(value, std::memory_order_release); });
  return cu::kSuccess;
}

// ---- Copies ----

SIMULATED cuMemcpyAsync(CuAddress target, CuAddress source, size_t bytes, CuStream stream) {
  ENTER(stream);
  stream_of(stream)->among_copies = true;
  if (!on_device(target, bytes) && !on_device(source, bytes)) return cu::kInvalidValue;
  const int device = device_of(current());
  for (CuAddress side : {target, source})
    if (on_device(side, bytes) && !on_device(side, bytes, device)) return cu::kInvalidValue; // The device was not let in.
  const bool pageable = !touchable(target, bytes) || !touchable(source, bytes);
  if (!pageable) {
    stream_of(stream)->push([=, on = stream_of(stream)] {
      spend(on, {0, direction_of(target, source), bytes, 1, 0});
      copy_now(target, source, bytes);
    });
    return cu::kSuccess;
  }
  std::unique_lock alone(driver);
  stream_of(stream)->push_inside([=] { copy_now(target, source, bytes); });
  stream_of(stream)->drain();
  return cu::kSuccess;
}
SIMULATED cuMemcpyPeerAsync(CuAddress target, CuContext target_context, CuAddress source, CuContext source_context, size_t bytes,
                            CuStream stream) {
  ENTER(stream);
  if (!on_device(target, bytes, device_of(target_context)) || !on_device(source, bytes, device_of(source_context)))
    return cu::kInvalidValue;
  stream_of(stream)->push([=] { copy_now(target, source, bytes); });
  return cu::kSuccess;
}
SIMULATED cuMemcpyDtoH_v2(void *target, CuAddress source, size_t bytes) {
  const CuResult queued = cuMemcpyAsync(reinterpret_cast<CuAddress>(target), source, bytes, nullptr);
  return queued == cu::kSuccess ? cuStreamSynchronize(nullptr) : queued;
}
SIMULATED cuMemcpyBatchAsync_v2(CuAddress *targets, CuAddress *sources, size_t *sizes, size_t count, cu::CopyAttributes *, size_t *, size_t,
                                CuStream stream) {
  ENTER(stream);
  if (stream == nullptr) return cu::kInvalidValue;
  if (refuse_countdown >= 0 && refuse_countdown.fetch_sub(1) == 0) return refuse_result;
  stream_of(stream)->among_copies = true;
  struct One {
    CuAddress target, source;
    size_t bytes;
  };
  std::vector<One> all;
  for (size_t i = 0; i < count; i++) {
    const int device = device_of(current());
    if (!touchable(targets[i], sizes[i], device) || !touchable(sources[i], sizes[i], device)) return cu::kInvalidValue;
    all.push_back({targets[i], sources[i], sizes[i]});
  }
  stream_of(stream)->push([all, on = stream_of(stream)] {
    uint64_t bytes = 0;
    for (const One &one : all) bytes += one.bytes;
    if (!all.empty()) spend(on, {0, direction_of(all[0].target, all[0].source), bytes, all.size(), 0});
    for (auto one = all.rbegin(); one != all.rend(); ++one) copy_now(one->target, one->source, one->bytes); // In no promised order.
  });
  return cu::kSuccess;
}
SIMULATED cuMemsetD8Async(CuAddress address, unsigned char value, size_t count, CuStream stream) {
  ENTER(stream);
  if (!on_device(address, count)) return cu::kInvalidValue;
  stream_of(stream)->push([=] { std::memset(reinterpret_cast<void *>(address), value, count); });
  return cu::kSuccess;
}
SIMULATED cuMemsetD32Async(CuAddress address, unsigned value, size_t count, CuStream stream) {
  ENTER(stream);
  if (!on_device(address, count * 4)) return cu::kInvalidValue;
  stream_of(stream)->among_copies = true;
  stream_of(stream)->push([=] { std::fill_n(reinterpret_cast<uint32_t *>(address), count, value); });
  return cu::kSuccess;
}

// ---- Kernels, by name: what cuda/ says, in plain loops ----

namespace {

using Body = std::function<void()>;

Body copy_kernel(const kernel::CopyArgs &args, unsigned blocks, Stream *on) {
  return [args, blocks, on, device = device_of(current())] {
    const kernel::Fragment *list = args.list != nullptr ? args.list : args.inline_list;
    if (args.count != 0) {
      const int direction = direction_of(args.target_base + list[0].target, args.source_base + list[0].source);
      spend(on, {direction == 2 ? 2 : 1, direction, args.piece_bytes * args.pieces * args.count, args.count, blocks});
    }
    for (uint32_t i = 0; i < args.count; i++) {
      for (uint32_t j = 0; j < args.pieces; j++) {
        const uint64_t to = args.target_base + list[i].target + j * args.target_stride,
                       from = args.source_base + list[i].source + j * args.source_stride;
        if (!touchable(to, args.piece_bytes, device) || !touchable(from, args.piece_bytes, device) || to % 16 != 0 || from % 16 != 0) {
          sticky = kIllegalAddress;
          return;
        }
        copy_now(to, from, args.piece_bytes);
      }
    }
  };
}

Body zero_kernel(const kernel::ZeroArgs &args) {
  return [args] {
    const uint64_t *list = args.list != nullptr ? args.list : args.inline_list;
    for (uint32_t i = 0; i < args.count; i++) {
      if (!on_device(args.base + list[i], args.bytes)) {
        sticky = kIllegalAddress;
        return;
      }
      std::memset(reinterpret_cast<void *>(args.base + list[i]), 0, args.bytes);
    }
  };
}

Body patch_kernel(const kernel::PatchArgs &args) {
  return [args] {
    const kernel::Patch *list = args.list != nullptr ? args.list : args.inline_list;
    for (uint32_t i = 0; i < args.count; i++) args.table[list[i].vpage] = list[i].ppage;
  };
}

Body stamp_kernel(const kernel::StampArgs &args) {
  return [args] {
    for (uint32_t p = 0; p < args.page_count; p++) {
      for (uint32_t layer = 0; layer < args.layer_count; layer++) {
        for (uint32_t part = 0; part < 2; part++) {
          const uint64_t seed = kernel::stamp_mix(args.pages[p].digest ^ args.salts[2 * layer + part]), words = args.row_bytes[part] / 8;
          for (uint64_t i = 0; i < words * args.pages[p].tokens; i++) {
            auto *at = reinterpret_cast<uint64_t *>(args.base + args.pages[p].offset + layer * args.layer_stride + part * args.v_offset +
                                                    i / words * args.token_stride[part] + i % words * 8);
            if (args.check == 0) *at = kernel::stamp_word(seed, i);
            else args.mismatches[p] += *at != kernel::stamp_word(seed, i);
          }
        }
      }
    }
  };
}

Body digest_kernel(const kernel::DigestArgs &args) {
  return [args] {
    for (uint32_t p = 0; p < args.count; p++) {
      const auto *words = reinterpret_cast<const uint64_t *>(args.base + args.offsets[p]);
      for (uint64_t i = 0; i < args.bytes / 16; i++) args.digests[p] += kernel::digest_unit(words[2 * i], words[2 * i + 1], i);
    }
  };
}

Body ids_kernel(const kernel::KernelIdsArgs &args) {
  return [args] {
    const uint64_t tokens = args.page_tokens == 0 ? 1 : args.page_tokens;
    for (uint64_t at = 0; at < args.page_count * tokens; at++) {
      const uint32_t vpage = args.vpages[at / tokens];
      uint32_t ppage = vpage < args.table_count ? args.table[vpage] : 0xffffffffu;
      if (ppage == 0xffffffffu) {
        ppage = args.sink_page;
        if (args.sink_count != nullptr && at % tokens == 0) ++*args.sink_count;
      }
      const uint64_t id = ppage * args.scale + args.offset, out = args.page_tokens == 0 ? id : id * tokens + at % tokens;
      if (args.ids32 != nullptr) args.ids32[at] = static_cast<int32_t>(out);
      else args.ids64[at] = static_cast<int64_t>(out);
    }
  };
}

// Of cuda/test_kernels.cu: a layer's kernel that awaits nothing, and a gather.
Body layer_kernel(void **parameters) {
  const auto cycles = *static_cast<const long long *>(parameters[4]);
  return [cycles] { std::this_thread::sleep_for(std::chrono::nanoseconds(cycles)); };
}
Body gather_kernel(void **parameters) {
  const uint32_t *table = *static_cast<const uint32_t **>(parameters[0]), *index = *static_cast<const uint32_t **>(parameters[1]);
  uint32_t *out = *static_cast<uint32_t **>(parameters[2]);
  return [=, count = *static_cast<const uint32_t *>(parameters[3])] {
    for (uint32_t i = 0; i < count; i++) out[i] = table[index[i]];
  };
}

template <class Args> const Args &as(const void *parameters) { return *static_cast<const Args *>(parameters); }

} // namespace

SIMULATED cuModuleLoadData(CuModule *module, const void *) {
  ENTER();
  return *module = new int(0), cu::kSuccess;
}
SIMULATED cuModuleUnload(CuModule module) { return delete static_cast<int *>(module), cu::kSuccess; }
SIMULATED cuModuleGetFunction(CuFunction *function, CuModule, const char *name) { return *function = new std::string(name), cu::kSuccess; }
SIMULATED cuLaunchKernel(CuFunction function, unsigned blocks, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CuStream stream,
                         void **parameters, void **) {
  ENTER(stream);
  const std::string &name = *static_cast<std::string *>(function);
  const void *args = parameters != nullptr ? parameters[0] : nullptr;
  Body body;
  if (name == "hicache_anchor") body = [] {};
  if (name == "hicache_page_move" || name == "hicache_page_copy" || name == "hicache_page_copy_small")
    body = copy_kernel(as<kernel::CopyArgs>(args), blocks, stream_of(stream));
  if (name == "hicache_page_zero") body = zero_kernel(as<kernel::ZeroArgs>(args));
  if (name == "hicache_table_patch") body = patch_kernel(as<kernel::PatchArgs>(args));
  if (name == "hicache_page_stamp") body = stamp_kernel(as<kernel::StampArgs>(args));
  if (name == "hicache_page_digest") body = digest_kernel(as<kernel::DigestArgs>(args));
  if (name == "hicache_page_digest_finish")
    body = [copy = as<kernel::DigestArgs>(args)] {
      for (uint32_t i = 0; i < copy.count; i++) copy.digests[i] = kernel::digest_finish(copy.digests[i], copy.bytes);
    };
  if (name == "hicache_kernel_ids") body = ids_kernel(as<kernel::KernelIdsArgs>(args));
  if (name == "test_layer") body = layer_kernel(parameters);
  if (name == "test_gather") body = gather_kernel(parameters);
  if (!body) return cu::kNotFound;
  stream_of(stream)->among_copies = false;
  stream_of(stream)->push(std::move(body));
  return cu::kSuccess;
}
