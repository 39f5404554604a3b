#include "backend_cuda_fences.hpp"

#include <algorithm>
#include <thread>

#include "copy_queue.hpp"

namespace hicache {

void FenceBoard::close() {
  for (Slot &slot : slots_) {
    for (const Pending &pending : slot.pending) device_.api().event_destroy(pending.event);
  }
  for (CuEvent event : free_) device_.api().event_destroy(event);
  if (probe_ != nullptr) device_.api().event_destroy(probe_);
  probe_ = nullptr;
  accepted_.clear();
  next_accepted_ = 0;
  slots_.clear();
  free_.clear();
}

FenceBoard::Slot &FenceBoard::slot(uint32_t index) {
  if (index >= slots_.size()) slots_.resize(index + 1);
  return slots_[index];
}

void FenceBoard::retire(Slot &slot) {
  while (!slot.pending.empty()) {
    const CuResult r = device_.api().event_query(slot.pending.front().event);
    if (r == cu::kNotReady) return;
    if (r != cu::kSuccess) {
      device_.check(r, "work on a stream", nullptr);
      return;
    }
    slot.passed = slot.pending.front().sequence;
    free_.push_back(slot.pending.front().event);
    slot.pending.pop_front();
  }
}

Status FenceBoard::record(FenceMark mark, CuStream stream, ErrorDetail *error) {
  // An event recorded into a capture would be part of the graph and never pass here.
  if (Status s = device_.usable_stream(stream, "steps and transfers belong outside the capture", error); s != HICACHE_OK) return s;
  std::lock_guard lock(mutex_);
  Slot &of = slot(mark.slot());
  retire(of);
  CuEvent event = nullptr;
  if (free_.empty()) {
    if (CuResult r = device_.api().event_create(&event, cu::kEventDisableTiming); r != cu::kSuccess)
      return device_.check(r, "cuEventCreate", error);
  } else {
    event = free_.back();
    free_.pop_back();
  }
  const CuResult r = device_.api().event_record(event, stream);
  if (r != cu::kSuccess) {
    free_.push_back(event);
    return device_.check_stream(r, error);
  }
  of.pending.push_back({mark.sequence(), event});
  return HICACHE_OK;
}

Status FenceBoard::accept(CuStream stream, ErrorDetail *error) {
  if (std::find(accepted_.begin(), accepted_.end(), stream) != accepted_.end()) return HICACHE_OK;
  const DriverApi &api = device_.api();
  if (probe_ == nullptr) {
    if (CuResult r = api.event_create(&probe_, cu::kEventDisableTiming); r != cu::kSuccess) {
      probe_ = nullptr;
      return device_.check(r, "cuEventCreate", error);
    }
  }
  if (Status s = device_.check_stream(api.event_record(probe_, stream), error); s != HICACHE_OK) return s;
  if (accepted_.size() < kAccepted) accepted_.push_back(stream);
  else accepted_[next_accepted_++ % kAccepted] = stream;
  return HICACHE_OK;
}

bool FenceBoard::known_passed(FenceMark mark) {
  if (!mark) return true;
  std::lock_guard lock(mutex_);
  return slot(mark.slot()).passed >= mark.sequence();
}

bool FenceBoard::passed(FenceMark mark) {
  if (!mark) return true;
  std::lock_guard lock(mutex_);
  Slot &of = slot(mark.slot());
  if (of.passed >= mark.sequence()) return true;
  retire(of);
  return of.passed >= mark.sequence();
}

void FenceBoard::note_step() { last_step_ns_.store(steady_now_ns(), std::memory_order_relaxed); }

bool FenceBoard::compute_about() {
  constexpr uint64_t kMomentNs = 50'000'000;
  const uint64_t last = last_step_ns_.load(std::memory_order_relaxed);
  if (last != 0 && steady_now_ns() - last < kMomentNs) return true;
  std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < slots_.size(); i++) {
    if (i == kMoverSlot || slots_[i].pending.empty()) continue;
    retire(slots_[i]);
    if (!slots_[i].pending.empty()) return true;
  }
  return false;
}

Status FenceBoard::wait(CuStream stream, FenceMark mark, ErrorDetail *error) {
  if (!mark) return HICACHE_OK;
  std::lock_guard lock(mutex_);
  Slot &of = slot(mark.slot());
  if (of.passed >= mark.sequence()) return HICACHE_OK;
  retire(of);
  if (of.passed >= mark.sequence()) return HICACHE_OK;
  for (const Pending &pending : of.pending) {
    if (pending.sequence >= mark.sequence())
      return device_.check(device_.api().stream_wait_event(stream, pending.event, 0), "cuStreamWaitEvent", error);
  }
  if (device_.poisoned()) return device_.fault(error);
  return fail(error, HICACHE_INTERNAL, HICACHE_NO_POOL, "waiting for a fence that was never recorded (stream slot %u, sequence %llu)",
              mark.slot(), static_cast<unsigned long long>(mark.sequence()));
}

Status FenceBoard::wait_all(ErrorDetail *error) {
  const auto some_pending = [&] {
    std::lock_guard lock(mutex_);
    return std::any_of(slots_.begin(), slots_.end(), [&](Slot &slot) {
      retire(slot);
      return !slot.pending.empty();
    });
  };
  while (some_pending()) { // Without the lock in between: a stream may wait for a lane, which asks for fences.
    if (device_.poisoned()) return device_.fault(error);
    std::this_thread::yield();
  }
  return HICACHE_OK;
}

} // namespace hicache
