// Hand-overs on CUDA devices. The copies run on the source's out stream; the target's in stream is what the target's fences are recorded
// on. Events carry the order across: a stream may wait for an event of another device's.
#include "backend_cuda_peer.hpp"

#include <atomic>
#include <cstring>

#include "backend_cuda.hpp"
#include "backend_cuda_copies.hpp"

namespace hicache {

// ---- Streams ----

PeerLinks::PeerLinks(CudaDevice &device)
    : device_(device), number_([] {
        static std::atomic<uint64_t> numbers{0};
        return ++numbers;
      }()),
      lists_(device) {}

Status PeerLinks::open(CuStream uploads, ErrorDetail *error) {
  if (streams_[1] != nullptr) return HICACHE_OK;
  const DriverApi &api = device_.api();
  ContextScope scope(api, device_.context());
  int least = 0, greatest = 0;
  CuResult r = api.priority_range(&least, &greatest);
  for (int i = 0; i < 2; i++) {
    if (r == cu::kSuccess) r = api.event_create(&marks_[i], cu::kEventDisableTiming);
    if (r == cu::kSuccess) r = api.event_create(&callers_[i], cu::kEventDisableTiming);
  }
  for (int i = 0; i < 2; i++)
    if (r == cu::kSuccess) r = api.stream_create(&streams_[i], cu::kStreamNonBlocking, least);
  Status status = device_.report(r, "creating the streams of hand-overs", HICACHE_INFEASIBLE, error);
  if (status == HICACHE_OK) status = lists_.open(uploads, error);
  if (status != HICACHE_OK) close();
  return status;
}

void PeerLinks::close() {
  if (device_.context() == nullptr) return;
  const DriverApi &api = device_.api();
  ContextScope scope(api, device_.context());
  for (CuStream &stream : streams_) {
    if (stream == nullptr) continue;
    api.stream_synchronize(stream); // After a fault this returns at once.
    api.stream_destroy(stream);
    stream = nullptr;
  }
  for (CuEvent *event : {&marks_[0], &marks_[1], &callers_[0], &callers_[1]}) {
    if (*event != nullptr) api.event_destroy(*event);
    *event = nullptr;
  }
  lists_.close();
  links_.clear();
}

Status PeerLinks::follow(bool out, CuStream caller, ErrorDetail *error) {
  const DriverApi &api = device_.api();
  ContextScope scope(api, device_.context());
  if (Status s = device_.usable_stream(caller, "hand-overs belong outside the capture", error); s != HICACHE_OK) return s;
  if (Status s = device_.check_stream(api.event_record(callers_[out], caller), error); s != HICACHE_OK) return s;
  return device_.check(api.stream_wait_event(streams_[out], callers_[out], 0), "cuStreamWaitEvent", error);
}

CuResult PeerLinks::mark(bool out, CuEvent *event_out) {
  ContextScope scope(device_.api(), device_.context());
  *event_out = marks_[out];
  return device_.api().event_record(marks_[out], streams_[out]);
}

bool PeerLinks::knows(uint64_t number) const {
  for (const Link &link : links_)
    if (link.number == number) return true;
  return false;
}

bool PeerLinks::direct(uint64_t number) const {
  for (const Link &link : links_)
    if (link.number == number) return link.direct;
  return false;
}

// ---- The way to another backend ----

bool CudaBackend::reaches(CudaBackend &target) {
  if (peer_tuning_.by_driver) return false;
  if (device_.ordinal() == target.device_.ordinal()) return true;
  const DriverApi &api = device_.api();
  int can = 0;
  if (api.can_access_peer(&can, device_.ordinal(), target.device_.ordinal()) != cu::kSuccess || can == 0) return false;
  ContextScope scope(api, device_.context());
  // For what cuMemAlloc has made: static pools, and most buffers of the caller's. It stays enabled: others in the process may rely on it.
  const CuResult enabled = api.enable_peer_access(target.device_.context(), 0);
  if (enabled != cu::kSuccess && enabled != cu::kPeerAccessAlreadyEnabled) return false;
  const DeviceArena &arena = target.device_arena_;
  if (target.device_arena_.grant(device_.ordinal()) != cu::kSuccess) return false;
  if (!arena.adopted()) return true;
  for (CuAddress address : {arena.base(), arena.base() + arena.mapped_bytes() - 1}) { // Mapped by hand, it may be closed to us.
    unsigned access = 0;
    if (api.pointer_attribute(&access, cu::kPointerAccess, address) != cu::kSuccess || access != 3) return false;
  }
  return true;
}

Status CudaBackend::peer_connect(Backend &other, ErrorDetail *error) {
  auto &target = static_cast<CudaBackend &>(other);
  if (Status s = peers_.open(uploads_, error); s != HICACHE_OK) return s;
  if (Status s = target.peers_.open(target.uploads_, error); s != HICACHE_OK) return s;
  const uint64_t number = target.peers_.number();
  if (!peers_.knows(number)) peers_.add(number, reaches(target));
  return HICACHE_OK;
}

Status CudaBackend::peer_follow(bool out, uint64_t stream, ErrorDetail *error) {
  if (device_.poisoned()) return device_.fault(error);
  return peers_.follow(out, reinterpret_cast<CuStream>(stream), error);
}

Status CudaBackend::peer_lead(uint64_t stream, ErrorDetail *error) {
  CuEvent arrived = nullptr;
  if (Status s = check(peers_.mark(false, &arrived), "cuEventRecord", error); s != HICACHE_OK) return s;
  ContextScope scope(device_.api(), device_.context());
  return device_.check_stream(device_.api().stream_wait_event(reinterpret_cast<CuStream>(stream), arrived, 0), error);
}

// ---- Copies ----

Status CudaBackend::peer_copy(Backend &other, std::span<const PeerCopy> copies, ErrorDetail *error) {
  auto &target = static_cast<CudaBackend &>(other);
  const DriverApi &api = device_.api();
  CuEvent ready = nullptr, arrived = nullptr;
  if (Status s = target.check(target.peers_.mark(false, &ready), "cuEventRecord", error); s != HICACHE_OK) return s;
  Status status = HICACHE_OK;
  {
    ContextScope scope(api, device_.context());
    status = check(api.stream_wait_event(peers_.stream(true), ready, 0), "cuStreamWaitEvent", error);
    if (status == HICACHE_OK) {
      try {
        status = check(copy_to_peer(target, copies, peers_.direct(target.peers_.number())), "copying pages to another engine", error);
      } catch (...) { // The target's fences would not know of what is on its way.
        api.stream_synchronize(peers_.stream(true));
        throw;
      }
    }
    if (status == HICACHE_OK) status = check(peers_.mark(true, &arrived), "cuEventRecord", error);
  }
  if (status == HICACHE_OK) {
    ContextScope scope(api, target.device_.context());
    status = target.check(api.stream_wait_event(target.peers_.stream(false), arrived, 0), "cuStreamWaitEvent", error);
  }
  if (status == HICACHE_OK) return status;
  // Part of it may be on its way, and the target's fences do not know of it.
  ContextScope scope(api, device_.context());
  api.stream_synchronize(peers_.stream(true));
  return status;
}

// In runs of copies between the same pools. The device's context is current.
CuResult CudaBackend::copy_to_peer(CudaBackend &target, std::span<const PeerCopy> copies, bool direct) {
  fragments_.reserve(copies.size());
  for (size_t at = 0; at < copies.size();) {
    const uint32_t from = copies[at].source_pool, to = copies[at].target_pool;
    const uint64_t bytes = layout(from).page_bytes;
    fragments_.clear();
    for (; at < copies.size() && copies[at].source_pool == from && copies[at].target_pool == to; at++)
      fragments_.push_back({device_page(from, copies[at].source), target.device_page(to, copies[at].target)});
    CuResult r = cu::kSuccess;
    if (!direct) {
      for (const kernel::Fragment &page : fragments_) {
        if (r == cu::kSuccess)
          r = device_.api().copy_peer_async(page.target, target.device_.context(), page.source, device_.context(), bytes,
                                            peers_.stream(true));
      }
    } else if (kernels_.available() && bytes < peer_tuning_.engine_from_bytes) {
      r = copy_to_peer_by_kernel(fragments_, bytes);
    } else {
      r = copy_to_peer_by_engine(fragments_, bytes);
    }
    if (r != cu::kSuccess) return r;
  }
  return cu::kSuccess;
}

CuResult CudaBackend::copy_to_peer_by_kernel(std::span<const kernel::Fragment> fragments, uint64_t bytes) {
  const CuStream stream = peers_.stream(true);
  kernel::CopyArgs args{};
  args.piece_bytes = bytes;
  args.pieces = 1;
  return launch_over(fragments, &args, &peers_.lists(), stream, write_in_order,
                     [&] { return kernels_.copy(args, peer_tuning_.kernel_blocks, stream); });
}

CuResult CudaBackend::copy_to_peer_by_engine(std::span<const kernel::Fragment> fragments, uint64_t bytes) {
  const DriverApi &api = device_.api();
  const CuStream stream = peers_.stream(true);
  std::vector<CuAddress> targets, sources;
  std::vector<size_t> sizes(std::min<size_t>(fragments.size(), peer_tuning_.batch_copies), bytes);
  for (size_t at = 0; at < fragments.size(); at += sizes.size()) {
    const auto part = fragments.subspan(at, std::min(sizes.size(), fragments.size() - at));
    CuResult r = cu::kNotSupported;
    if (peers_.batches && part.size() > 1 && api.has_copy_batch) {
      targets.clear(), sources.clear();
      for (const kernel::Fragment &page : part) targets.push_back(page.target), sources.push_back(page.source);
      cu::CopyAttributes attributes;
      size_t first = 0, failed = 0;
      r = api.copy_batch != nullptr
              ? api.copy_batch(targets.data(), sources.data(), sizes.data(), part.size(), &attributes, &first, 1, stream)
              : api.copy_batch_12_8(targets.data(), sources.data(), sizes.data(), part.size(), &attributes, &first, 1, &failed, stream);
      // A driver whose batches do not go to other devices says so at once; copying a page twice does no harm.
      peers_.batches = r != cu::kInvalidValue && r != cu::kNotSupported;
    }
    if (r == cu::kInvalidValue || r == cu::kNotSupported) {
      r = cu::kSuccess;
      for (const kernel::Fragment &page : part)
        if (r == cu::kSuccess) r = api.copy_async(page.target, page.source, bytes, stream);
    }
    if (r != cu::kSuccess) return r;
  }
  return cu::kSuccess;
}

} // namespace hicache
