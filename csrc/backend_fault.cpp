#include "backend_fault.hpp"

#include <cerrno>
#include <utility>

namespace hicache {

namespace {

// Nominal rate of a copy in virtual time.
constexpr uint64_t kBytesPerNs = 32;

} // namespace

FaultBackend::FaultBackend(std::unique_ptr<HostSideBackend> inner, const hicache_fault_options_t &options)
    : inner_(std::move(inner)), options_(options), random_(options.seed), hold_(options.hold != 0) {}

Status FaultBackend::open(const BackendOptions &options, ErrorDetail *error) {
  layers_ = options.layers;
  sink_ = options.sink;
  waiting_ = std::make_unique<Waiting[]>(options.ticket_max);
  inner_->leave_copies_to_wrapper();
  return inner_->open(options, error);
}

void FaultBackend::submit(TransferJob &job) {
  {
    std::lock_guard lock(mutex_);
    rewind_job(job, *layers_);
    inner_->progress_words().store(job.slot, job.group.first_layer);
    job.submit_ns = clock_ns_;
    // Draw the same numbers for each transfer whatever the options, so that changing one option leaves the other draws alone.
    const uint64_t delay = random_.next();
    const uint64_t chance = random_.below(1000000);
    const uint64_t where = random_.next();
    job.ready_ns = clock_ns_ + (options_.delay_max_ns == 0 ? 0 : delay % (options_.delay_max_ns + 1));
    transfers_++;
    Waiting &entry = waiting_[waiting_count_++];
    entry = {&job, hold_, transfers_ == options_.fail_transfer_n || chance < options_.fail_ppm, 0};
    if (fail_next_ > 0) {
      fail_next_--;
      entry.fails = true;
    }
    // A copy fails anywhere: before its first byte, or after any number of pages' slices.
    entry.copies_before_failure = where % (uint64_t{job.page_count} * 4 + 1);
  }
  changed_.notify_all();
  sink_->work_waiting();
}

void FaultBackend::cancel(TransferJob &job) {
  std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < waiting_count_; i++) {
    if (waiting_[i].job != &job) continue;
    if (job.start_ns == 0) job.start_ns = clock_ns_;
    finish(i, HICACHE_CANCELLED, 0);
    return;
  }
}

int FaultBackend::choose(bool layers, bool held) {
  uint64_t earliest = UINT64_MAX;
  uint32_t candidates = 0;
  for (uint32_t i = 0; i < waiting_count_; i++) {
    if (waiting_[i].held && !held) continue;
    // Steps of one layer group interleave freely; whole transfers run in order of their virtual time.
    const uint64_t ready = layers ? 0 : waiting_[i].job->ready_ns;
    if (ready < earliest) {
      earliest = ready;
      candidates = 0;
    }
    if (ready == earliest) candidates++;
  }
  if (candidates == 0) return -1;
  uint64_t pick = random_.below(candidates);
  for (uint32_t i = 0; i < waiting_count_; i++) {
    if (waiting_[i].held && !held) continue;
    const uint64_t ready = layers ? 0 : waiting_[i].job->ready_ns;
    if (ready == earliest && pick-- == 0) return static_cast<int>(i);
  }
  return -1;
}

bool FaultBackend::step(uint32_t index, bool whole) {
  Waiting &entry = waiting_[index];
  TransferJob &job = *entry.job;
  if (job.ready_ns > clock_ns_) clock_ns_ = job.ready_ns;
  if (job.start_ns == 0) job.start_ns = clock_ns_;
  do {
    uint64_t bytes = 0;
    for (const CopyChunk *chunk = job.copies; chunk != nullptr; chunk = chunk->next) {
      for (uint32_t i = 0; i < chunk->count; i++) {
        if (entry.fails && entry.copies_before_failure-- == 0) {
          finish(index, HICACHE_DEVICE, EIO);
          return true;
        }
        inner_->copy_slices(job, job.group, chunk, i, 1);
        const SliceRange &slice = job.group.slices[chunk->copies[i].pool];
        bytes += slice.end - slice.begin;
      }
    }
    clock_ns_ += bytes / kBytesPerNs + 1;
    job.group = layers_->next_group(job.group, job.pool_mask);
    if (job.group.at_end()) {
      const bool fails = entry.fails; // Drawn to fail later than its last slice: the end itself fails.
      finish(index, fails ? HICACHE_DEVICE : HICACHE_OK, fails ? EIO : 0);
      return true;
    }
    inner_->progress_words().store(job.slot, job.group.first_layer);
    changed_.notify_all();
  } while (whole);
  return false;
}

void FaultBackend::finish(uint32_t index, hicache_status_t status, int32_t native_code) {
  TransferJob &job = *waiting_[index].job;
  for (uint32_t i = index + 1; i < waiting_count_; i++) waiting_[i - 1] = waiting_[i];
  waiting_count_--;
  job.end_ns = clock_ns_;
  job.status = status;
  job.native_code = native_code;
  inner_->progress_words().store(job.slot, status == HICACHE_OK ? kProgressDone : kProgressPoison);
  sink_->finished(job);
  changed_.notify_all();
}

uint32_t FaultBackend::run_inside(uint32_t count, bool layers, bool held) {
  std::lock_guard lock(mutex_);
  uint32_t ran = 0;
  while (ran < count) {
    const int index = choose(layers, held);
    if (index < 0) break;
    step(static_cast<uint32_t>(index), !layers);
    ran++;
  }
  return ran;
}

Status FaultBackend::layer_wait(uint32_t slot, uint32_t layer, uint64_t, ErrorDetail *) {
  std::unique_lock lock(mutex_);
  while (inner_->progress(slot) <= layer) {
    const int index = choose(true, false);
    if (index >= 0) {
      step(static_cast<uint32_t>(index), false);
    } else {
      changed_.wait(lock); // All is held: another thread has to run or release it.
    }
  }
  return HICACHE_OK;
}

void FaultBackend::finish_job(uint32_t slot, bool fails) {
  std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < waiting_count_; i++) {
    if (waiting_[i].job->slot != slot) continue;
    waiting_[i].fails = fails;
    step(i, true);
    return;
  }
}

void FaultBackend::drain() { run_inside(UINT32_MAX, false, true); }

bool FaultBackend::set_hold(bool hold, uint32_t fail_next) {
  {
    std::lock_guard lock(mutex_);
    hold_ = hold;
    fail_next_ = fail_next;
    if (!hold) {
      for (uint32_t i = 0; i < waiting_count_; i++) waiting_[i].held = false;
    }
  }
  changed_.notify_all();
  if (!hold) sink_->work_waiting();
  return true;
}

uint64_t FaultBackend::now_ns() const {
  std::lock_guard lock(mutex_);
  return clock_ns_;
}

} // namespace hicache
