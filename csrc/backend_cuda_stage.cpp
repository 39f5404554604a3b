#include "backend_cuda_stage.hpp"

#include <algorithm>
#include <cstring>

#include "backend_cuda_lane.hpp"

namespace hicache {

Status StageRing::open(uint64_t slot_bytes, uint32_t slots, ErrorDetail *error) {
  slot_bytes_ = slot_bytes / 256 * 256;
  slots_ = slots;
  if (CuResult r = device_.api().memory_alloc(&memory_, slot_bytes_ * slots); r != cu::kSuccess) {
    memory_ = 0;
    return device_.report(r, "allocating the staging ring (cuMemAlloc)", HICACHE_INFEASIBLE, error);
  }
  return HICACHE_OK;
}

void StageRing::close() {
  if (memory_ != 0) device_.api().memory_free(memory_);
  memory_ = 0;
}

void StagePlan::make(std::vector<StagedFragment> *all, uint64_t ring, bool sort, bool to_device) {
  runs.clear();
  fragments.clear();
  groups.clear();
  if (sort) std::sort(all->begin(), all->end(), [](const auto &a, const auto &b) { return a.host < b.host; });
  // Sizes are few: K, V, what pads a page. Counted first, so that each size's fragments come to lie together.
  uint64_t at = ring;
  for (StagedFragment &fragment : *all) {
    if (!runs.empty() && runs.back().host + runs.back().bytes == fragment.host) runs.back().bytes += fragment.bytes;
    else runs.push_back({fragment.host, at, fragment.bytes});
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group &of) { return of.bytes == fragment.bytes; });
    if (group == groups.end()) groups.push_back({fragment.bytes, 0, 1});
    else group->count++;
    fragment.host = at; // From here on its place in the ring.
    at += fragment.bytes;
  }
  size_t first = 0;
  for (Group &group : groups) {
    group.first = first;
    first += group.count;
    group.count = 0;
  }
  fragments.resize(first);
  for (const StagedFragment &fragment : *all) {
    Group &group = *std::find_if(groups.begin(), groups.end(), [&](const Group &of) { return of.bytes == fragment.bytes; });
    const kernel::Fragment one =
        to_device ? kernel::Fragment{fragment.host, fragment.device} : kernel::Fragment{fragment.device, fragment.host};
    fragments[group.first + group.count++] = one;
  }
}

// ---- The lane's part ----

Status CopyLane::open_stage(ErrorDetail *error) {
  const RingNeed need = context_.kernels->available() ? ring_need() : RingNeed::kNone;
  if (need == RingNeed::kNone) return HICACHE_OK;
  int least = 0, greatest = 0;
  if (CuResult r = api_.priority_range(&least, &greatest); r != cu::kSuccess)
    return context_.device->report(r, "cuCtxGetStreamPriorityRange", HICACHE_DEVICE, error);
  if (CuResult r = api_.stream_create(&kernel_stream_, cu::kStreamNonBlocking, least); r != cu::kSuccess)
    return context_.device->report(r, "cuStreamCreateWithPriority", HICACHE_INFEASIBLE, error);
  if (CuResult r = api_.event_create(&stage_event_, cu::kEventDisableTiming); r != cu::kSuccess)
    return context_.device->report(r, "cuEventCreate", HICACHE_INFEASIBLE, error);
  ErrorDetail spared; // Where direct serves as well, a ring that does not fit is nobody's error.
  ErrorDetail *const why = need == RingNeed::kMaybe ? &spared : error;
  Status made = stage_.open(context_.tuning.quantum_bytes, static_cast<uint32_t>(quanta_.size()), why);
  if (made == HICACHE_OK) made = stage_lists_.open(context_.uploads, why);
  if (made == HICACHE_OK) return HICACHE_OK;
  stage_lists_.close();
  stage_.close();
  if (need == RingNeed::kMaybe && made == HICACHE_INFEASIBLE) return HICACHE_OK;
  if (need == RingNeed::kMaybe && error != nullptr) *error = spared;
  return made;
}

void CopyLane::close_stage() {
  stage_lists_.close();
  stage_.close();
  if (stage_event_ != nullptr) api_.event_destroy(stage_event_);
  stage_event_ = nullptr;
  if (kernel_stream_ != nullptr) api_.stream_destroy(kernel_stream_);
  kernel_stream_ = nullptr;
}

// A ring costs device memory: only where something goes through it by the table, or may once methods have been measured or a step is about.
CopyLane::RingNeed CopyLane::ring_need() const {
  if (context_.tuning.method == CopyMethod::kStaged) return RingNeed::kSure;
  if (context_.tuning.method != CopyMethod::kAuto) return RingNeed::kNone;
  const std::vector<CopyShape> shapes = copy_shapes(context_.layers->pools(), context_.tuning.layer_bytes_min);
  for (const CopyShape &shape : shapes) {
    if (choose_method(choice_, shape.bytes, shape.host_run, {.ring = true}) == CopyMethod::kStaged) return RingNeed::kSure;
  }
  const bool choosing = context_.tuning.calibrate || choice_.kernel_blocks_beside == 0;
  return choosing && ring_possible(shapes) ? RingNeed::kMaybe : RingNeed::kNone;
}

uint64_t CopyLane::host_run_bytes(const PoolLayout &pool, uint32_t first_layer, uint32_t last_layer) {
  return cut_page(pool.rows, pool.region_order, pool.region_order, first_layer, last_layer, false).parts[0].bytes;
}

bool CopyLane::stage_fragment(CuAddress device, CuAddress host, uint64_t bytes, bool sort, CuStream stream) {
  if (stage_used_ + bytes > stage_.slot_bytes()) return false;
  if (staged_.size() == staged_.capacity()) flush_stage(stream);
  staged_.push_back({host, device, bytes});
  stage_used_ += bytes;
  stage_sort_ |= sort;
  quantum_staged_ = true;
  quantum_fragments_++;
  return true;
}

void CopyLane::flush_stage(CuStream stream) {
  if (staged_.empty()) return;
  const bool to_device = direction_ == HICACHE_H2D;
  const uint64_t total = stage_used_ - stage_flushed_;
  stage_plan_.make(&staged_, stage_.slot(stage_slot_) + stage_flushed_, stage_sort_, to_device);
  stage_flushed_ = stage_used_;
  staged_.clear();
  stage_sort_ = false;
  const auto kernels = [&] {
    for (const StagePlan::Group &group : stage_plan_.groups)
      launch_fragments(std::span(stage_plan_.fragments).subspan(group.first, group.count), group.bytes, 0, &stage_lists_, kernel_stream_);
  };
  if (!to_device) { // Packed first; the bus follows.
    kernels();
    check(api_.event_record(stage_event_, kernel_stream_), "cuEventRecord");
    check(api_.stream_wait_event(stream, stage_event_, 0), "cuStreamWaitEvent");
  }
  flush_direct(stream);
  for (const StagePlan::Run &run : stage_plan_.runs) {
    if (batch_.size() >= context_.tuning.batch_copies) send_batch(stream);
    batch_.add(to_device ? run.ring : run.host, to_device ? run.host : run.ring, run.bytes);
  }
  send_batch(stream);
  counts_.staged_bytes.fetch_add(total, std::memory_order_relaxed);
  if (!to_device) return;
  check(api_.event_record(stage_event_, stream), "cuEventRecord");
  check(api_.stream_wait_event(kernel_stream_, stage_event_, 0), "cuStreamWaitEvent");
  kernels();
}

// Words follow all kernels of the ring before them, so they are all written behind those, also for what did not go through it.
CuStream CopyLane::word_stream(CuStream stream) {
  if (!stage_.available() || direction_ != HICACHE_H2D) return stream;
  check(api_.event_record(stage_event_, stream), "cuEventRecord");
  check(api_.stream_wait_event(kernel_stream_, stage_event_, 0), "cuStreamWaitEvent");
  return kernel_stream_;
}

} // namespace hicache
