#include "backend_cuda.hpp"

#include <cstdlib>
#include <cstring>
#include <thread>

#include "copy_queue.hpp"

namespace hicache {

std::unique_ptr<Backend> make_cuda_backend() { return std::make_unique<CudaBackend>(); }

CudaBackend::CudaBackend()
    : fences_(device_), kernels_(device_), words_(device_), device_arena_(device_), host_arena_(device_), lists_(device_), peers_(device_) {
  device_.on_fault = [this](int32_t native) { poison(native); };
}

CudaBackend::~CudaBackend() { close(); }

// ---- Open and close ----

void CudaBackend::read_environment() {
  if (const char *way = std::getenv("HICACHE_CUDA_PEER")) {
    if (std::strcmp(way, "kernel") == 0) peer_tuning_.engine_from_bytes = UINT64_MAX;
    if (std::strcmp(way, "engine") == 0) peer_tuning_.engine_from_bytes = 0;
    peer_tuning_.by_driver = std::strcmp(way, "driver") == 0;
  }
  if (const char *blocks = std::getenv("HICACHE_CUDA_PEER_BLOCKS")) {
    const unsigned long count = std::strtoul(blocks, nullptr, 10);
    if (count <= 65536) peer_tuning_.kernel_blocks = static_cast<uint32_t>(count);
  }
  if (tuned_) return;
  const char *calibrate = std::getenv("HICACHE_CUDA_CALIBRATE");
  tuning_.calibrate = calibrate == nullptr || std::strcmp(calibrate, "0") != 0;
  if (const char *method = std::getenv("HICACHE_CUDA_METHOD")) {
    if (std::strcmp(method, "direct") == 0) tuning_.method = CopyMethod::kDirect;
    if (std::strcmp(method, "kernel") == 0) tuning_.method = CopyMethod::kKernel;
    if (std::strcmp(method, "staged") == 0) tuning_.method = CopyMethod::kStaged;
  }
  if (const char *quantum = std::getenv("HICACHE_CUDA_QUANTUM_BYTES")) {
    const unsigned long long bytes = std::strtoull(quantum, nullptr, 10);
    if (bytes >= (1u << 20) && bytes <= (64u << 20)) tuning_.quantum_bytes = tuning_.quantum_d2h_bytes = bytes / 16 * 16;
  }
}

Status CudaBackend::open_memory(const BackendOptions &options, ErrorDetail *error) {
  if (options.device_buffer != nullptr) {
    if (Status s = device_arena_.adopt(options.device_buffer, options.device_bytes, error); s != HICACHE_OK) return s;
  } else if (options.device_bytes != 0) {
    if (Status s = device_arena_.reserve(options.device_bytes, options.device_bytes_max, error); s != HICACHE_OK) return s;
  }
  // Of the host, the regions first: what the other pools share may grow.
  uint64_t offsets[kPoolCountMax] = {}, region_bytes = 0;
  for (uint32_t pool = 0; pool < layers_->pools().size(); pool++) {
    offsets[pool] = region_bytes;
    region_bytes += (layout(pool).region_bytes() + 4095) / 4096 * 4096;
  }
  if (region_bytes + options.host_bytes != 0) {
    if (Status s =
            host_arena_.reserve(region_bytes + options.host_bytes, region_bytes + options.host_bytes_max, options.host_numa_nodes, error);
        s != HICACHE_OK)
      return s;
    for (uint32_t pool = 0; pool < layers_->pools().size(); pool++)
      host_bases_[pool] = host_arena_.base() + (layout(pool).separate() ? offsets[pool] : region_bytes);
  }
  for (uint32_t pool = 0; pool < layers_->pools().size(); pool++) {
    device_bases_[pool] = device_arena_.base();
    const uint64_t own_bytes = layout(pool).static_device_bytes;
    if (own_bytes == 0) continue;
    if (CuResult r = device_.api().memory_alloc(&device_bases_[pool], own_bytes); r != cu::kSuccess) {
      device_bases_[pool] = 0;
      return device_.report(r, "allocating a static pool (cuMemAlloc)", HICACHE_INFEASIBLE, error);
    }
    static_pools_.push_back(device_bases_[pool]);
  }
  return HICACHE_OK;
}

Status CudaBackend::open_mirrors(const BackendOptions &options, ErrorDetail *error) {
  mirrors_.resize(layers_->pools().size());
  if (options.virtual_page_counts == nullptr) return HICACHE_OK;
  for (uint32_t pool = 0; pool < mirrors_.size(); pool++) {
    Mirror &mirror = mirrors_[pool];
    mirror.count = options.virtual_page_counts[pool];
    if (mirror.count == 0) continue;
    if (CuResult r = device_.api().memory_alloc(&mirror.table, uint64_t{mirror.count} * sizeof(uint32_t)); r != cu::kSuccess) {
      mirror.table = 0;
      return device_.report(r, "allocating the mirror of a page table (cuMemAlloc)", HICACHE_INFEASIBLE, error);
    }
    if (CuResult r = device_.api().set32_async(mirror.table, HICACHE_NO_PAGE, mirror.count, mover_); r != cu::kSuccess)
      return device_.report(r, "cuMemsetD32Async", HICACHE_DEVICE, error);
    mirror.place.assign(mirror.count, 0);
    mirror.pending.reserve(1024);
  }
  return HICACHE_OK;
}

Status CudaBackend::open_scratch(ErrorDetail *error) {
  if (!kernels_.available()) return HICACHE_OK;
  void *memory = std::aligned_alloc(4096, kScratchBytes);
  if (memory == nullptr)
    return fail(error, HICACHE_INFEASIBLE, HICACHE_NO_POOL, "allocating %llu bytes", static_cast<unsigned long long>(kScratchBytes));
  if (CuResult r = device_.api().host_register(memory, kScratchBytes, cu::kHostRegisterPortable); r != cu::kSuccess) {
    std::free(memory);
    return device_.report(r, "cuMemHostRegister", HICACHE_INFEASIBLE, error);
  }
  scratch_host_ = static_cast<unsigned char *>(memory);
  if (CuResult r = device_.api().memory_alloc(&scratch_, kScratchBytes); r != cu::kSuccess) {
    scratch_ = 0;
    return device_.report(r, "cuMemAlloc", HICACHE_INFEASIBLE, error);
  }
  return HICACHE_OK;
}

Status CudaBackend::open(const BackendOptions &options, ErrorDetail *error) {
  layers_ = options.layers;
  read_environment();
  switch (options.copy_method) {
    case HICACHE_COPY_DIRECT: tuning_.method = CopyMethod::kDirect; break;
    case HICACHE_COPY_KERNEL: tuning_.method = CopyMethod::kKernel; break;
    case HICACHE_COPY_STAGED: tuning_.method = CopyMethod::kStaged; break;
    default: break; // AUTO: what the environment or tune() says.
  }
  if (options.copy_calibration == HICACHE_CALIBRATION_OFF) tuning_.calibrate = false;
  for (uint32_t direction : {HICACHE_H2D, HICACHE_D2H}) {
    const bool down = direction == HICACHE_D2H;
    if (options.slowdown_max_permille[down] != 0) tuning_.slowdown_permille[down] = options.slowdown_max_permille[down];
    keep_budget(&tuning_.choice[down], direction, tuning_.slowdown_permille[down]);
  }
  if (Status s = device_.open(options.device, error); s != HICACHE_OK) return s;
  const DriverApi &api = device_.api();
  ContextScope scope(api, device_.context());
  auto give_up = [&](Status status) {
    close();
    return status;
  };
  int least = 0, greatest = 0;
  CuResult r = api.priority_range(&least, &greatest);
  if (r == cu::kSuccess) r = api.stream_create(&mover_, cu::kStreamNonBlocking, least);
  if (r == cu::kSuccess) r = api.stream_create(&reader_, cu::kStreamNonBlocking, least);
  if (r == cu::kSuccess) r = api.stream_create(&uploads_, cu::kStreamNonBlocking, least);
  if (r == cu::kSuccess) r = api.event_create(&mover_end_, cu::kEventDisableTiming);
  if (r != cu::kSuccess) return give_up(device_.report(r, "creating streams", HICACHE_INFEASIBLE, error));
  kernels_.open(mover_);
  if (Status s = open_memory(options, error); s != HICACHE_OK) return give_up(s);
  if (Status s = open_mirrors(options, error); s != HICACHE_OK) return give_up(s);
  if (Status s = words_.open(options.ticket_max, layers_->layer_limit(), error); s != HICACHE_OK) return give_up(s);
  if (Status s = lists_.open(uploads_, error); s != HICACHE_OK) return give_up(s);
  if (Status s = open_scratch(error); s != HICACHE_OK) return give_up(s);
  if (r = api.stream_synchronize(mover_); r != cu::kSuccess)
    return give_up(device_.report(r, "cuStreamSynchronize", HICACHE_DEVICE, error));

  if (Status s = open_lanes(options, error); s != HICACHE_OK) return give_up(s);
  return HICACHE_OK;
}

Status CudaBackend::open_lanes(const BackendOptions &options, ErrorDetail *error) {
  LaneContext context;
  context.device = &device_;
  context.fences = &fences_;
  context.kernels = &kernels_;
  context.uploads = uploads_;
  context.words = &words_;
  context.layers = layers_;
  context.sink = options.sink;
  std::copy(std::begin(device_bases_), std::end(device_bases_), std::begin(context.device_bases));
  for (uint32_t pool = 0; pool < layers_->pools().size(); pool++)
    context.host_bases[pool] = host_arena_.device_base() + static_cast<uint64_t>(host_bases_[pool] - host_arena_.base());
  context.tuning = tuning_;
  context.carrying = carrying_;
  for (uint32_t direction : {HICACHE_H2D, HICACHE_D2H}) {
    auto lane = std::make_unique<CopyLane>(context, direction, options.ticket_max);
    if (Status s = lane->open(error); s != HICACHE_OK) return s;
    lanes_[direction == HICACHE_D2H] = std::move(lane);
  }
  if (Status s = calibrate(options, error); s != HICACHE_OK) return s;
  for (uint32_t direction : {HICACHE_H2D, HICACHE_D2H}) lanes_[direction == HICACHE_D2H]->start(tuning_.choice[direction == HICACHE_D2H]);
  return HICACHE_OK;
}

// Before the lanes run: on their streams, and on memory that nobody uses yet.
Status CudaBackend::calibrate(const BackendOptions &options, ErrorDetail *error) {
  const bool forced = tuning_.method != CopyMethod::kAuto;
  for (uint32_t direction : {HICACHE_H2D, HICACHE_D2H}) {
    hicache_copy_choice_t &shown = shown_[direction == HICACHE_D2H];
    shown = {};
    shown.source = forced || !kernels_.available() ? HICACHE_CHOICE_FORCED : HICACHE_CHOICE_TABLE;
    shown.method = static_cast<uint32_t>(kernels_.available() ? tuning_.method : CopyMethod::kDirect);
  }
  if (!forced && tuning_.calibrate && kernels_.available()) {
    const uint64_t begin = steady_now_ns();
    const ProbeLane probes[2] = {lanes_[0]->probe(), lanes_[1]->probe()};
    const bool ring[2] = {probes[0].stage != nullptr, probes[1].stage != nullptr};
    const std::vector<Probe> plan = plan_probes(copy_shapes(layers_->pools(), tuning_.layer_bytes_min), ring);
    Calibrator calibrator(device_, kernels_, probe_memory(options), probes, steady_now_ns);
    if (Status s = calibrator.run(plan, tuning_.calibration_ns, error); s != HICACHE_OK) return s;
    const auto took_us = static_cast<uint32_t>((steady_now_ns() - begin) / 1000);
    for (uint32_t direction : {HICACHE_H2D, HICACHE_D2H}) {
      const bool down = direction == HICACHE_D2H;
      tuning_.choice[down] = choose_from(calibrator.rates(), direction, tuning_.choice[down]);
      keep_budget(&tuning_.choice[down], direction, tuning_.slowdown_permille[down]);
      show_probes(plan, calibrator.rates(), direction, &shown_[down]);
      shown_[down].calibration_us = took_us;
    }
    rates_ = calibrator.rates();
  }
  for (uint32_t direction : {HICACHE_H2D, HICACHE_D2H})
    show_choice(tuning_.choice[direction == HICACHE_D2H], tuning_.slowdown_permille[direction == HICACHE_D2H],
                &shown_[direction == HICACHE_D2H]);
  return HICACHE_OK;
}

// The arenas, where both are the library's own and large enough to say something: nothing was ever in them. Else the lists of the mover,
// which has nothing to do yet.
ProbeMemory CudaBackend::probe_memory(const BackendOptions &options) const {
  constexpr uint64_t kEnough = ProbeMemory::kPlacesMax * ProbeMemory::kPlaceBytes;
  const uint64_t device_bytes = options.device_buffer != nullptr ? 0 : options.device_bytes;
  uint64_t host_bytes = options.host_bytes;
  for (const PoolLayout &pool : layers_->pools()) host_bytes += pool.region_bytes();
  if (device_bytes >= kEnough && host_bytes >= kEnough)
    return ProbeMemory::over(device_arena_.base(), device_bytes, host_arena_.device_base(), host_bytes);
  constexpr uint64_t kLists = ListRing::kSlotBytes * ListRing::kSlots;
  return ProbeMemory::over(lists_.device_memory(), kLists, lists_.host_memory(), kLists);
}

void CudaBackend::copy_choice(uint32_t direction, hicache_copy_choice_t *out) const { *out = shown_[direction == HICACHE_D2H]; }

void CudaBackend::close() {
  if (device_.context() == nullptr) return;
  const DriverApi &api = device_.api();
  ContextScope scope(api, device_.context());
  for (auto &lane : lanes_) {
    if (lane) lane->close();
  }
  peers_.close();
  // Moves and zeroing may still run; after a fault this returns at once.
  for (CuStream stream : {mover_, reader_}) {
    if (stream == nullptr) continue;
    api.stream_synchronize(stream);
    api.stream_destroy(stream);
  }
  mover_ = reader_ = nullptr;
  if (mover_end_ != nullptr) api.event_destroy(mover_end_);
  mover_end_ = nullptr;
  fences_.close();
  lists_.close();
  if (uploads_ != nullptr) api.stream_destroy(uploads_);
  uploads_ = nullptr;
  words_.close();
  if (scratch_ != 0) api.memory_free(scratch_);
  scratch_ = 0;
  if (scratch_host_ != nullptr) {
    api.host_unregister(scratch_host_);
    std::free(scratch_host_);
  }
  scratch_host_ = nullptr;
  for (Mirror &mirror : mirrors_) {
    if (mirror.table != 0) api.memory_free(mirror.table);
  }
  mirrors_.clear();
  for (CuAddress address : static_pools_) api.memory_free(address);
  static_pools_.clear();
  device_arena_.close();
  host_arena_.close();
  kernels_.close();
  for (auto &lane : lanes_) lane.reset();
  device_.close();
}

std::byte *CudaBackend::pool_base(Tier tier, uint32_t pool) const {
  return tier == Tier::kHost ? host_bases_[pool] : reinterpret_cast<std::byte *>(device_bases_[pool]);
}

Status CudaBackend::resize_device(uint64_t bytes, ErrorDetail *error) {
  if (device_.poisoned()) return device_.fault(error);
  ContextScope scope(device_.api(), device_.context());
  // What goes may still be the source of a move that was just asked for, and kernels of closed steps may read pages that were freed behind
  // them: unmapping waits for nobody. Resizing is rare and may take its time.
  if (Status s = check(device_.api().stream_synchronize(mover_), "moving pages", error); s != HICACHE_OK) return s;
  if (device_arena_.gives_back(bytes)) {
    if (Status s = fences_.wait_all(error); s != HICACHE_OK) return s;
  }
  return device_arena_.resize(bytes, error);
}

void CudaBackend::copied_bytes(uint64_t by_method[3]) const {
  by_method[0] = by_method[1] = by_method[2] = 0;
  for (const auto &lane : lanes_) {
    by_method[0] += lane->counts().direct_bytes.load(std::memory_order_relaxed);
    by_method[1] += lane->counts().kernel_bytes.load(std::memory_order_relaxed);
    by_method[2] += lane->counts().staged_bytes.load(std::memory_order_relaxed);
  }
}

// ---- Fences ----

Status CudaBackend::fence_record(FenceMark mark, uint64_t stream, ErrorDetail *error) {
  if (device_.poisoned()) return device_.fault(error);
  ContextScope scope(device_.api(), device_.context());
  fences_.note_step();
  return fences_.record(mark, reinterpret_cast<CuStream>(stream), error);
}

bool CudaBackend::fence_passed(FenceMark mark) const {
  if (fences_.known_passed(mark)) return true;
  if (device_.poisoned()) return false;
  ContextScope scope(device_.api(), device_.context());
  return fences_.passed(mark);
}

Status CudaBackend::order_step(uint64_t stream, std::span<const FenceMark> waits, ErrorDetail *error) {
  if (device_.poisoned()) return device_.fault(error);
  const DriverApi &api = device_.api();
  ContextScope scope(api, device_.context());
  fences_.note_step();
  const auto caller = reinterpret_cast<CuStream>(stream);
  if (Status s = device_.usable_stream(caller, "a step is opened outside the capture, around each replay", error); s != HICACHE_OK)
    return s;
  if (Status s = fences_.accept(caller, error); s != HICACHE_OK) return s;
  for (FenceMark mark : waits) {
    if (Status s = fences_.wait(caller, mark, error); s != HICACHE_OK) return s;
  }
  if (Status s = check(flush_mirrors(), "patching the page table", error); s != HICACHE_OK) return s;
  if (mover_dirty_) {
    if (Status s = check(api.event_record(mover_end_, mover_), "cuEventRecord", error); s != HICACHE_OK) return s;
    mover_dirty_ = false;
    mover_pending_ = true;
  }
  if (!mover_pending_) return HICACHE_OK;
  const CuResult query = api.event_query(mover_end_);
  if (query == cu::kSuccess) {
    mover_pending_ = false;
    return HICACHE_OK;
  }
  if (query != cu::kNotReady) return check(query, "moving pages", error);
  return device_.check_stream(api.stream_wait_event(caller, mover_end_, 0), error);
}

// ---- Transfers ----

void CudaBackend::submit(TransferJob &job) {
  ContextScope scope(device_.api(), device_.context());
  lanes_[job.direction == HICACHE_D2H]->submit(job);
}

uint32_t CudaBackend::progress(uint32_t slot) const { return words_.progress(slot); }

Status CudaBackend::layer_wait(uint32_t slot, uint32_t layer, uint64_t stream, ErrorDetail *error) {
  if (device_.poisoned()) return device_.fault(error);
  const DriverApi &api = device_.api();
  ContextScope scope(api, device_.context());
  const auto caller = reinterpret_cast<CuStream>(stream);
  if (Status s = device_.usable_stream(caller, "a captured layer polls its progress word instead (hicache_device.cuh)", error);
      s != HICACHE_OK)
    return s;
  if (words_.progress(slot) > layer) return HICACHE_OK; // There already, or released: nothing to enqueue.
  // Not on a queue of copies: see cuda/anchor.cu. Between a load's waits on one stream are the kernels of its layers.
  if (kernels_.available() && words_.new_waiter(slot, caller)) {
    if (Status s = device_.check_stream(kernels_.anchor(caller), error); s != HICACHE_OK) return s;
    words_.note_waiter(slot, caller);
  }
  return device_.check_stream(words_.wait(slot, layer, caller), error);
}

void CudaBackend::drain() {
  for (auto &lane : lanes_) lane->drain();
}

uint64_t CudaBackend::now_ns() const { return steady_now_ns(); }

Status CudaBackend::layer_word(uint32_t slot, uint32_t layer, uint64_t *address_out, uint32_t *expected_out, ErrorDetail *) const {
  *address_out = words_.address(slot);
  *expected_out = words_.expected(slot, layer);
  return HICACHE_OK;
}

} // namespace hicache
