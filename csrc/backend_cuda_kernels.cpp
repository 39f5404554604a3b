#include "backend_cuda_kernels.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <memory>

#include "kernel_image.hpp"

namespace hicache {

namespace {

constexpr unsigned kThreads = 512;         // Of the kernels that move bytes inside the device; cuda/ is compiled for it.
constexpr unsigned kBusThreads = 1024;     // Of page_copy on few blocks: the bus needs many loads in flight from each.
constexpr uint64_t kBlockBytes = 64 << 10; // One round of a block: 16 warps of 4 KiB.
constexpr unsigned kBlocksMax = 4224;      // 32 a multiprocessor of an H200: best for moves of 2 MiB, as good as fewer for small ones.

} // namespace

void KernelSet::open(CuStream stream) {
  const KernelImage image = kernel_image();
  if (image.data == nullptr) {
    reason_ = "built without nvcc";
    return;
  }
  const DriverApi &api = device_.api();
  if (CuResult r = api.module_load(&module_, image.data); r != cu::kSuccess) {
    module_ = nullptr;
    reason_ = "the driver does not load them (" + api.describe(r) + ")";
    return;
  }
  const struct {
    CuFunction *function;
    const char *name;
  } names[] = {{&copy_, "hicache_page_copy"},        {&copy_small_, "hicache_page_copy_small"},
               {&move_, "hicache_page_move"},        {&zero_, "hicache_page_zero"},
               {&patch_, "hicache_table_patch"},     {&stamp_, "hicache_page_stamp"},
               {&digest_, "hicache_page_digest"},    {&digest_finish_, "hicache_page_digest_finish"},
               {&kernel_ids_, "hicache_kernel_ids"}, {&anchor_, "hicache_anchor"}};
  for (const auto &entry : names) {
    if (CuResult r = api.module_function(entry.function, module_, entry.name); r != cu::kSuccess) {
      reason_ = std::string(entry.name) + ": " + api.describe(r);
      close();
      return;
    }
  }
  CuResult r = launch_all_empty(stream);
  if (r == cu::kSuccess) r = api.stream_synchronize(stream);
  if (r == cu::kSuccess) return;
  reason_ = "they do not run (" + api.describe(r) + ")";
  close();
}

CuResult KernelSet::launch_all_empty(CuStream stream) const {
  auto copy_args = std::make_unique<kernel::CopyArgs>();
  copy_args->pieces = 1;
  copy_args->piece_bytes = kernel::kWindowBytes;
  CuResult r = copy(*copy_args, 1, stream);
  if (r == cu::kSuccess) r = move(*copy_args, stream);
  copy_args->piece_bytes = 16;
  if (r == cu::kSuccess) r = copy(*copy_args, 1, stream);
  auto zero_args = std::make_unique<kernel::ZeroArgs>();
  zero_args->bytes = 16;
  if (r == cu::kSuccess) r = zero(*zero_args, stream);
  if (r == cu::kSuccess) r = patch(*std::make_unique<kernel::PatchArgs>(), stream);
  kernel::StampArgs stamp_args{};
  stamp_args.layer_count = 1;
  if (r == cu::kSuccess) r = stamp(stamp_args, stream);
  kernel::DigestArgs digest_args{};
  digest_args.bytes = 16;
  if (r == cu::kSuccess) r = digest(digest_args, stream);
  if (r == cu::kSuccess) r = kernel_ids(kernel::KernelIdsArgs{}, stream);
  if (r == cu::kSuccess) r = anchor(stream);
  return r;
}

void KernelSet::close() {
  if (module_ != nullptr) device_.api().module_unload(module_);
  module_ = nullptr;
}

CuResult KernelSet::launch(CuFunction function, unsigned blocks, unsigned threads, const void *args, CuStream stream) const {
  void *parameters[] = {const_cast<void *>(args)}; // None where the kernel takes none.
  return device_.api().launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, nullptr);
}

unsigned KernelSet::burst_blocks(uint64_t bytes) const {
  const uint64_t rounds = (bytes + kBlockBytes - 1) / kBlockBytes;
  return static_cast<unsigned>(std::clamp<uint64_t>(rounds, 1, kBlocksMax));
}

CuResult KernelSet::copy(const kernel::CopyArgs &args, unsigned blocks, CuStream stream) const {
  const CuFunction function = args.piece_bytes < kernel::kWindowBytes ? copy_small_ : copy_;
  if (blocks != 0) return launch(function, blocks, kBusThreads, &args, stream);
  return launch(function, burst_blocks(args.piece_bytes * args.pieces * args.count), kThreads, &args, stream);
}

CuResult KernelSet::move(const kernel::CopyArgs &args, CuStream stream) const {
  if (args.piece_bytes < kernel::kWindowBytes) return copy(args, 0, stream);
  return launch(move_, burst_blocks(args.piece_bytes * args.count), kThreads, &args, stream);
}

CuResult KernelSet::zero(const kernel::ZeroArgs &args, CuStream stream) const {
  return launch(zero_, burst_blocks(args.bytes * args.count), kThreads, &args, stream);
}

CuResult KernelSet::patch(const kernel::PatchArgs &args, CuStream stream) const {
  return launch(patch_, std::clamp((args.count + 255) / 256, 1u, kBlocksMax), 256, &args, stream);
}

CuResult KernelSet::stamp(const kernel::StampArgs &args, CuStream stream) const {
  const uint64_t parts = uint64_t{args.page_count} * args.layer_count * 2;
  return launch(stamp_, static_cast<unsigned>(std::clamp<uint64_t>(parts, 1, kBlocksMax)), 256, &args, stream);
}

CuResult KernelSet::digest(const kernel::DigestArgs &args, CuStream stream) const {
  const unsigned blocks = burst_blocks(args.bytes * args.count);
  if (CuResult r = launch(digest_, blocks, kThreads, &args, stream); r != cu::kSuccess) return r;
  return launch(digest_finish_, std::max(1u, (args.count + 255) / 256), 256, &args, stream);
}

CuResult KernelSet::kernel_ids(const kernel::KernelIdsArgs &args, CuStream stream) const {
  const uint64_t total = uint64_t{args.page_count} * std::max(1u, args.page_tokens);
  return launch(kernel_ids_, static_cast<unsigned>(std::clamp<uint64_t>((total + 255) / 256, 1, 2 * kBlocksMax)), 256, &args, stream);
}

// ---- Lists ----

Status ListRing::open(CuStream uploads, ErrorDetail *error) {
  uploads_ = uploads;
  const DriverApi &api = device_.api();
  void *memory = mmap(nullptr, slot_bytes_ * slots_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED)
    return fail(error, HICACHE_INFEASIBLE, HICACHE_NO_POOL, "mapping %llu bytes", static_cast<unsigned long long>(slot_bytes_ * slots_));
  host_ = static_cast<unsigned char *>(memory);
  if (CuResult r = api.host_register(host_, slot_bytes_ * slots_, cu::kHostRegisterPortable | cu::kHostRegisterDeviceMap);
      r != cu::kSuccess)
    return device_.report(r, "cuMemHostRegister", HICACHE_INFEASIBLE, error);
  registered_ = true;
  if (CuResult r = api.memory_alloc(&device_memory_, slot_bytes_ * slots_); r != cu::kSuccess) {
    device_memory_ = 0;
    return device_.report(r, "cuMemAlloc", HICACHE_INFEASIBLE, error);
  }
  for (CuEvent &event : events_) {
    if (CuResult r = api.event_create(&event, cu::kEventDisableTiming); r != cu::kSuccess)
      return device_.report(r, "cuEventCreate", HICACHE_INFEASIBLE, error);
  }
  if (uploads == nullptr) return HICACHE_OK;
  for (CuEvent &event : uploaded_) {
    if (CuResult r = api.event_create(&event, cu::kEventDisableTiming); r != cu::kSuccess)
      return device_.report(r, "cuEventCreate", HICACHE_INFEASIBLE, error);
  }
  return HICACHE_OK;
}

void ListRing::close() {
  if (host_ == nullptr) return;
  const DriverApi &api = device_.api();
  if (uploads_ != nullptr) api.stream_synchronize(uploads_); // It reads and writes what goes now.
  uploads_ = nullptr;
  for (std::vector<CuEvent> *events : {&events_, &uploaded_}) {
    for (CuEvent &event : *events) {
      if (event != nullptr) api.event_destroy(event);
      event = nullptr;
    }
  }
  if (device_memory_ != 0) api.memory_free(device_memory_);
  device_memory_ = 0;
  if (registered_) api.host_unregister(host_);
  registered_ = false;
  munmap(host_, slot_bytes_ * slots_);
  host_ = nullptr;
}

CuAddress ListRing::host_memory() const {
  CuAddress address = 0;
  if (host_ == nullptr || device_.api().host_device_pointer(&address, host_, 0) != cu::kSuccess) return 0;
  return address;
}

void *ListRing::fill() {
  if (used_[next_] && device_.api().event_query(events_[next_]) != cu::kSuccess) return nullptr;
  used_[next_] = false;
  return host_ + next_ * slot_bytes_;
}

CuResult ListRing::upload(uint64_t bytes, CuStream stream, CuAddress *address_out) {
  const DriverApi &api = device_.api();
  *address_out = device_memory_ + next_ * slot_bytes_;
  // The slot is free on the device too: fill() saw the end of its last launch.
  const CuAddress source = reinterpret_cast<CuAddress>(host_ + next_ * slot_bytes_);
  if (uploads_ == nullptr) return api.copy_async(*address_out, source, bytes, stream);
  CuResult r = api.copy_async(*address_out, source, bytes, uploads_);
  if (r == cu::kSuccess) r = api.event_record(uploaded_[next_], uploads_);
  if (r == cu::kSuccess) r = api.stream_wait_event(stream, uploaded_[next_], 0);
  return r;
}

CuResult ListRing::release(CuStream stream) {
  used_[next_] = true;
  const CuResult r = device_.api().event_record(events_[next_], stream);
  next_ = (next_ + 1) % slots_;
  return r;
}

bool ListRing::idle() const {
  // Launches of one stream end in order: the last one speaks for all.
  const uint32_t last = (next_ + slots_ - 1) % slots_;
  return !used_[last] || device_.api().event_query(events_[last]) == cu::kSuccess;
}

} // namespace hicache
