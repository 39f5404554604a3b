#include "backend_cuda_lane.hpp"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "copy_queue.hpp"

namespace hicache {

namespace {

constexpr uint32_t kLookAhead = 16;      // Jobs behind a blocked one that may overtake it.
constexpr uint64_t kSpinNs = 50'000;     // Without work, before the thread dozes: then it looks every kDozeNs,
constexpr long kDozeNs = 20'000;         // so that who submits need not wake it, which costs him 5 to 15 us,
constexpr uint64_t kParkNs = 20'000'000; // until there has been nothing for this long.
constexpr uint64_t kQueryNs = 1'000'000; // How often a silent quantum is asked whether the device has failed.

void sleep_ns(long ns) {
  timespec time{0, ns};
  nanosleep(&time, nullptr);
}

// About a microsecond, without a call.
void pause_briefly() {
#if defined(__x86_64__)
  for (int i = 0; i < 40; i++) __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

} // namespace

CopyLane::CopyLane(const LaneContext &context, uint32_t direction, uint32_t ticket_max)
    : context_(context), api_(context.device->api()), direction_(direction), slot_count_(std::max(ticket_max, 1u)),
      choice_(context.tuning.choice[direction == HICACHE_D2H]), slots_(std::make_unique<SlotState[]>(slot_count_)), lists_(*context.device),
      stage_(*context.device), stage_lists_(*context.device, 2 * kStageSlotsMax, kQuantumFragments * sizeof(kernel::Fragment)) {
  context_.tuning.depth = std::max(context_.tuning.depth, 1u);
  context_.tuning.batch_copies = std::clamp(context_.tuning.batch_copies, 1u, 4096u);
  context_.tuning.first_batch_copies = std::clamp(context_.tuning.first_batch_copies, 1u, context_.tuning.batch_copies);
  batch_.reserve(context_.tuning.batch_copies);
  fragments_.reserve(kQuantumFragments);
  kernel_quantum_bytes_ = context_.tuning.quantum_bytes;
  if (direction_ == HICACHE_D2H) context_.tuning.quantum_bytes = std::min(context_.tuning.quantum_bytes, context_.tuning.quantum_d2h_bytes);
  const uint64_t stage_slots = context_.tuning.stage_bytes / context_.tuning.quantum_bytes;
  quanta_.resize(std::max(context_.tuning.depth + 1, static_cast<uint32_t>(std::clamp<uint64_t>(stage_slots, 8, kStageSlotsMax))));
  staged_.reserve(kQuantumFragments);
  for (uint32_t i = 0; i < context_.layers->pools().size(); i++) {
    const PoolLayout &of = context_.layers->pools()[i];
    if (!of.separate()) continue;
    host_runs_[i] = host_run_bytes(of, 0, of.rows.layer_count);
    layer_runs_[i] = host_run_bytes(of, 0, 1);
  }
}

CopyLane::~CopyLane() { close(); }

Status CopyLane::open(ErrorDetail *error) {
  int least = 0, greatest = 0;
  if (CuResult r = api_.priority_range(&least, &greatest); r != cu::kSuccess)
    return context_.device->report(r, "cuCtxGetStreamPriorityRange", HICACHE_DEVICE, error);
  // Kernels over the bus are few blocks: beside compute they need their places as soon as some end, not when a whole kernel has. Where the
  // copy engine serves alone, others go first: at high priority a quantum could overtake a copy of somebody else's.
  const int priority = kernels_likely() ? greatest : least;
  for (CuStream &stream : streams_) {
    if (CuResult r = api_.stream_create(&stream, cu::kStreamNonBlocking, priority); r != cu::kSuccess)
      return context_.device->report(r, "cuStreamCreateWithPriority", HICACHE_INFEASIBLE, error);
  }
  for (Quantum &quantum : quanta_) {
    if (CuResult r = api_.event_create(&quantum.event, cu::kEventDisableTiming); r != cu::kSuccess)
      return context_.device->report(r, "cuEventCreate", HICACHE_INFEASIBLE, error);
  }
  if (Status s = lists_.open(context_.uploads, error); s != HICACHE_OK) return s;
  return open_stage(error);
}

bool CopyLane::kernels_likely() const {
  if (!context_.kernels->available() || context_.tuning.method == CopyMethod::kDirect) return false;
  if (context_.tuning.method == CopyMethod::kKernel) return true;
  const CopySituation with_ring{.ring = true};
  const std::span<const PoolLayout> pools = context_.layers->pools();
  return std::any_of(pools.begin(), pools.end(), [&](const PoolLayout &pool) {
    const uint64_t run = pool.separate() ? host_run_bytes(pool, 0, pool.rows.layer_count) : pool.page_bytes;
    return choose_method(context_.tuning.choice[down()], run, run, with_ring) == CopyMethod::kKernel;
  });
}

ProbeLane CopyLane::probe() {
  ProbeLane lane{.bus = streams_[0], .lists = &lists_};
  if (!stage_.available()) return lane;
  lane.kernels = kernel_stream_;
  lane.joint = stage_event_;
  lane.stage_lists = &stage_lists_;
  lane.stage = &stage_;
  return lane;
}

void CopyLane::start(const CopyChoice &choice) {
  choice_ = choice;
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), direction_ == HICACHE_H2D ? "hicache-h2d" : "hicache-d2h");
}

void CopyLane::close() {
  if (thread_.joinable()) {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_one();
    thread_.join();
  }
  for (Quantum &quantum : quanta_) {
    if (quantum.event != nullptr) api_.event_destroy(quantum.event);
    quantum.event = nullptr;
  }
  for (CuStream &stream : streams_) {
    if (stream != nullptr) api_.stream_destroy(stream);
    stream = nullptr;
  }
  lists_.close();
  close_stage();
  for (uint32_t i = 0; i < slot_count_; i++) {
    if (slots_[i].producer != nullptr) api_.event_destroy(slots_[i].producer);
    slots_[i].producer = nullptr;
  }
}

void CopyLane::check(CuResult result, const char *what) {
  if (result != cu::kSuccess) context_.device->check(result, what, nullptr);
}

bool CopyLane::layered(const TransferJob &job) const {
  // Nobody runs beside a load that is not urgent, layer by layer: whole envelopes cross the bus faster, above all beside compute.
  if (job.direction != HICACHE_H2D || job.priority != HICACHE_CLASS_URGENT || job.bytes < context_.tuning.layered_bytes_min) return false;
  for (uint32_t pool = 0; pool < context_.layers->pools().size(); pool++) {
    // Of a slice that lies in small pieces on the host, each piece would be a copy of its own; whole pages have long runs there.
    uint64_t layer_bytes = context_.layers->pools()[pool].layer_bytes;
    if (layer_runs_[pool] != 0) layer_bytes = std::min(layer_bytes, layer_runs_[pool]);
    if ((job.pool_mask >> pool & 1) != 0 && layer_bytes != 0 && layer_bytes < context_.tuning.layer_bytes_min) return false;
  }
  return true;
}

Status CopyLane::record_producer(TransferJob &job, ErrorDetail *error) {
  if (context_.device->poisoned()) return context_.device->fault(error);
  SlotState &slot = slots_[job.slot];
  const auto stream = reinterpret_cast<CuStream>(job.stream);
  if (Status s = context_.device->usable_stream(stream, "transfers belong outside the capture", error); s != HICACHE_OK) return s;
  if (slot.producer == nullptr) {
    if (CuResult r = api_.event_create(&slot.producer, cu::kEventDisableTiming); r != cu::kSuccess)
      return context_.device->check(r, "cuEventCreate", error);
  }
  // A stream of another device or context is the caller's mistake: it costs the caller this transfer, not the engine.
  if (Status s = context_.device->check_stream(api_.event_record(slot.producer, stream), error); s != HICACHE_OK) return s;
  slot.producer_pending = true;
  return HICACHE_OK;
}

void CopyLane::submit(TransferJob &job) {
  SlotState &slot = slots_[job.slot];
  slot.waits.clear();
  slot.producer_pending = false;
  ErrorDetail why;
  const Status refused = record_producer(job, &why);
  for (FenceMark mark : job.waits) {
    if (!context_.fences->passed(mark)) slot.waits.push_back(mark);
  }
  slot.piece_offset = 0;
  slot.started = slot.cut = false;
  job.cancelled = false;
  job.waits = {};
  job.group = context_.layers->first_group(job.pool_mask, !layered(job));
  job.chunk = job.copies;
  job.chunk_index = 0;
  job.next = nullptr;
  job.status = refused == HICACHE_OK ? HICACHE_PENDING : refused;
  job.native_code = why.native_code;
  job.start_ns = job.end_ns = 0;
  job.submit_ns = steady_now_ns();
  context_.words->begin(job.slot, std::min(job.group.first_layer, context_.layers->layer_limit()));
  {
    std::lock_guard lock(mutex_);
    Fifo &fifo = classes_[std::min(job.priority, 2u)];
    (fifo.tail != nullptr ? fifo.tail->next : fifo.head) = &job;
    fifo.tail = &job;
    queued_++;
    unfinished_++;
    arrivals_.fetch_add(1, std::memory_order_release);
  }
  if (parked_.load(std::memory_order_seq_cst)) work_.notify_one();
}

void CopyLane::cancel(TransferJob &job) {
  std::lock_guard lock(mutex_);
  // A job that has copies left is in its queue; the thread, which may be handing some out, sees the mark before the next.
  for (TransferJob *at = classes_[std::min(job.priority, 2u)].head; at != nullptr; at = at->next) {
    if (at == &job) std::atomic_ref(job.cancelled).store(true, std::memory_order_relaxed);
  }
}

void CopyLane::drain() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return unfinished_ == 0; });
}

// ---- The thread ----

void CopyLane::run() {
  check(api_.context_set(context_.device->context()), "cuCtxSetCurrent");
  int mode = cu::kCaptureRelaxed; // Somebody may capture a graph while we copy.
  check(api_.exchange_capture_mode(&mode), "cuThreadExchangeStreamCaptureMode");
  prctl(PR_SET_TIMERSLACK, 1000ul);
  for (;;) {
    if (context_.device->poisoned()) fail_all();
    bool progress = retire();
    while (quantum_count_ < depth_now() && !context_.device->poisoned() && issue()) progress = true;
    if (progress) {
      idle_since_ns_ = 0;
      continue;
    }
    if (stopping_ && unfinished_ == 0) return;
    rest();
  }
}

void CopyLane::rest() {
  if (quantum_count_ != 0) { // The end of a quantum comes as a word in memory: looking costs nothing.
    for (int i = 0; i < 200; i++) {
      if (passed(quanta_[quantum_head_])) return;
      if (quantum_count_ < depth_now() && arrivals_.load(std::memory_order_acquire) != seen_arrivals_) break;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    seen_arrivals_ = arrivals_.load(std::memory_order_acquire);
    std::this_thread::yield();
    return;
  }
  if (unfinished_ != 0) { // Jobs whose fences have not passed.
    const uint64_t now = steady_now_ns();
    if (const uint32_t arrivals = arrivals_.load(std::memory_order_acquire); arrivals != seen_arrivals_) {
      seen_arrivals_ = arrivals;
      arrived_ns_ = now;
    } else if (now - arrived_ns_ < kSpinNs) {
      pause_briefly(); // Most often for the submit's own event: a few microseconds, in which the caller is not kept from the driver.
    } else {
      sleep_ns(10'000);
    }
    return;
  }
  const uint64_t now = steady_now_ns();
  if (idle_since_ns_ == 0) idle_since_ns_ = now;
  if (now - idle_since_ns_ < kSpinNs) {
    std::this_thread::yield();
    return;
  }
  if (now - idle_since_ns_ < kParkNs && !stopping_) {
    sleep_ns(kDozeNs);
    return;
  }
  std::unique_lock lock(mutex_);
  parked_.store(true, std::memory_order_seq_cst);
  work_.wait(lock, [&] { return unfinished_ != 0 || stopping_; });
  parked_.store(false, std::memory_order_seq_cst);
}

bool CopyLane::passed(const Quantum &quantum) const {
  return static_cast<int32_t>(context_.words->lane_word(quantum.word) - quantum.sequence) >= 0;
}

bool CopyLane::retire() {
  bool some = false;
  while (quantum_count_ != 0) {
    Quantum &quantum = quanta_[quantum_head_];
    if (!passed(quantum)) {
      // A word never comes from a device that has failed: ask now and then.
      const uint64_t now = steady_now_ns();
      if (now - last_query_ns_ < kQueryNs) return some;
      last_query_ns_ = now;
      const CuResult r = api_.event_query(quantum.event);
      if (r != cu::kSuccess && r != cu::kNotReady)
        check(r, direction_ == HICACHE_H2D ? "copying to the device" : "copying from the device");
      return some;
    }
    last_query_ns_ = steady_now_ns();
    for (TransferJob *job : quantum.ended) finish(*job, slots_[job->slot].cut ? HICACHE_CANCELLED : HICACHE_OK, 0);
    quantum.ended.clear();
    quantum_head_ = (quantum_head_ + 1) % static_cast<uint32_t>(quanta_.size());
    quantum_count_--;
    some = true;
  }
  if (some && quantum_count_ == 0) context_.carrying[down()].store(false, std::memory_order_relaxed);
  return some;
}

bool CopyLane::ready(TransferJob &job) {
  SlotState &slot = slots_[job.slot];
  while (!slot.waits.empty() && context_.fences->passed(slot.waits.back())) slot.waits.pop_back();
  if (!slot.waits.empty()) return false;
  if (!slot.producer_pending) return true;
  const CuResult r = api_.event_query(slot.producer);
  if (r == cu::kNotReady) return false;
  check(r, "work on the caller's stream");
  slot.producer_pending = false;
  return true;
}

TransferJob *CopyLane::next_ready() {
  if (queued_ == 0) return nullptr;
  // Jobs leave the queues by this thread alone. So the device is asked about them without the lock, which who submits would wait for.
  TransferJob *seen[std::size(classes_) * kLookAhead];
  uint32_t count = 0;
  {
    std::lock_guard lock(mutex_);
    for (const Fifo &fifo : classes_) {
      uint32_t looked = 0;
      for (TransferJob *job = fifo.head; job != nullptr && looked < kLookAhead; job = job->next, looked++) seen[count++] = job;
    }
  }
  for (uint32_t i = 0; i < count; i++) {
    if (seen[i]->status != HICACHE_PENDING || copy_cancelled(*seen[i]) || ready(*seen[i])) return seen[i];
  }
  return nullptr;
}

void CopyLane::unlink(TransferJob &job) {
  std::lock_guard lock(mutex_);
  Fifo &fifo = classes_[std::min(job.priority, 2u)];
  TransferJob *before = nullptr;
  for (TransferJob *at = fifo.head; at != &job; at = at->next) before = at;
  (before != nullptr ? before->next : fifo.head) = job.next;
  if (fifo.tail == &job) fifo.tail = before;
  job.next = nullptr;
  queued_--;
}

void CopyLane::finish(TransferJob &job, Status status, int32_t native_code) {
  job.end_ns = steady_now_ns();
  if (job.start_ns == 0) job.start_ns = job.end_ns;
  job.status = status;
  job.native_code = native_code;
  // The word before the ring: once the ring has the job, its slot may belong to another.
  context_.words->end(job.slot, status != HICACHE_OK);
  context_.sink->finished(job);
  std::lock_guard lock(mutex_);
  if (--unfinished_ == 0) idle_.notify_all();
}

void CopyLane::fail_all() {
  const int32_t native = context_.device->fault_code();
  auto end = [&](TransferJob &job) {
    // Releases streams that wait for a layer, where the device still can.
    (void)context_.words->write(job.slot, kProgressDone, streams_[parity_]);
    finish(job, HICACHE_DEVICE, native);
  };
  for (; quantum_count_ != 0; quantum_count_--) {
    for (TransferJob *job : quanta_[quantum_head_].ended) end(*job);
    quanta_[quantum_head_].ended.clear();
    quantum_head_ = (quantum_head_ + 1) % static_cast<uint32_t>(quanta_.size());
  }
  for (Fifo &fifo : classes_) {
    for (;;) {
      TransferJob *job = nullptr;
      {
        std::lock_guard lock(mutex_);
        job = fifo.head;
      }
      if (job == nullptr) break;
      unlink(*job);
      end(*job);
    }
  }
}

bool CopyLane::issue() {
  TransferJob *job = next_ready();
  if (job == nullptr) return false;
  if (job->status != HICACHE_PENDING) { // Refused when it was submitted.
    unlink(*job);
    check(context_.words->write(job->slot, kProgressDone, streams_[parity_]), "cuStreamWriteValue32");
    finish(*job, job->status, job->native_code);
    return true;
  }
  const uint32_t at = (quantum_head_ + quantum_count_) % static_cast<uint32_t>(quanta_.size());
  Quantum &quantum = quanta_[at];
  const CuStream stream = streams_[parity_];
  if (quantum_count_ != 0) check(api_.stream_wait_event(stream, previous_, 0), "cuStreamWaitEvent");
  batch_copies_now_ = quantum_count_ == 0 ? context_.tuning.first_batch_copies : context_.tuning.batch_copies;
  quantum_bytes_ = 0;
  quantum_copies_ = quantum_fragments_ = 0;
  stage_slot_ = at;
  stage_used_ = stage_flushed_ = 0;
  quantum_staged_ = false;
  situation_known_ = false;
  while (job != nullptr && job->status == HICACHE_PENDING && !context_.device->poisoned()) {
    if (!slots_[job->slot].started) {
      slots_[job->slot].started = true;
      job->start_ns = steady_now_ns();
    }
    if (add_copies(*job, stream)) {
      unlink(*job);
      quantum.ended.push_back(job);
    }
    if (quantum_full()) break;
    job = next_ready();
  }
  flush(stream);
  quantum.sequence = ++sequence_;
  quantum.word = 2 * (direction_ == HICACHE_D2H) + parity_;
  // The event first: the next quantum need not wait until the host has been told.
  check(api_.event_record(quantum.event, stream), "cuEventRecord");
  check(context_.words->write_lane_word(quantum.word, quantum.sequence, word_stream(stream)), "cuStreamWriteValue32");
  previous_ = quantum.event;
  parity_ ^= 1;
  quantum_count_++;
  context_.carrying[down()].store(true, std::memory_order_relaxed);
  counts_.quanta.fetch_add(1, std::memory_order_relaxed);
  return true;
}

} // namespace hicache
