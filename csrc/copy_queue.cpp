#include "copy_queue.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>

namespace hicache {

namespace {

// What a worker copies before it looks for more urgent work: about 0.1 ms at 10 GB/s.
constexpr uint64_t kQuantumBytes = uint64_t{1} << 20;
// Bounds the bookkeeping between two looks where pages are tiny.
constexpr uint32_t kQuantumCopies = 4096;

} // namespace

uint64_t steady_now_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

void ProgressWords::store(uint32_t slot, uint32_t value) {
  // Sequentially consistent against `waiters_`: either this sees the waiter, or the waiter sees the new value.
  words_[slot].store(value, std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst) == 0) return;
  { std::lock_guard lock(mutex_); }
  arrived_.notify_all();
}

void ProgressWords::wait_above(uint32_t slot, uint32_t layer) {
  if (load(slot) > layer) return;
  std::unique_lock lock(mutex_);
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  arrived_.wait(lock, [&] { return words_[slot].load(std::memory_order_seq_cst) > layer; });
  waiters_.fetch_sub(1, std::memory_order_seq_cst);
}

void rewind_job(TransferJob &job, const LayerOrder &layers) {
  job.group = layers.first_group(job.pool_mask, job.direction == HICACHE_D2H);
  job.chunk = job.copies;
  job.chunk_index = 0;
  job.active_claims = 0;
  job.next = nullptr;
  job.cancelled = false;
  job.start_ns = 0;
  job.end_ns = 0;
  job.status = HICACHE_PENDING;
  job.native_code = 0;
}

CopyQueue::CopyQueue(PageCopier &copier, const LayerOrder &layers, ProgressWords &progress, JobSink &sink)
    : copier_(copier), layers_(layers), progress_(progress), sink_(sink) {}

CopyQueue::~CopyQueue() { stop(); }

void CopyQueue::start(uint32_t threads) {
  static const char *const names[2] = {"hicache-h2d", "hicache-d2h"};
  for (uint32_t direction = 0; direction < 2; direction++) {
    Lane &lane = lanes_[direction];
    lane.claims.resize(threads);
    lane.threads.reserve(threads);
    for (uint32_t worker = 0; worker < threads; worker++) {
      lane.threads.emplace_back([this, &lane, worker] { run(lane, worker); });
      pthread_setname_np(lane.threads.back().native_handle(), names[direction]);
    }
  }
}

void CopyQueue::submit(TransferJob &job) {
  rewind_job(job, layers_);
  // Layers below the first one served need no copy. Before the job is queued: a worker may publish at once.
  progress_.store(job.slot, job.group.first_layer);
  job.submit_ns = steady_now_ns();
  Lane &lane = lanes_[job.direction == HICACHE_D2H];
  {
    std::lock_guard lock(lane.mutex);
    Fifo &fifo = lane.classes[job.priority];
    (fifo.tail != nullptr ? fifo.tail->next : fifo.head) = &job;
    fifo.tail = &job;
    lane.unfinished++;
  }
  lane.work.notify_one();
}

bool CopyQueue::claim_next(Lane &lane, Claim &claim) {
  for (Fifo &fifo : lane.classes) {
    TransferJob *job = fifo.head;
    if (job == nullptr) continue;
    if (job->start_ns == 0) job->start_ns = steady_now_ns();
    claim.job = job;
    claim.group = job->group;
    claim.chunk = job->chunk;
    claim.first = job->chunk_index;
    claim.count = 0;
    uint64_t bytes = 0;
    while (job->chunk != nullptr && bytes < kQuantumBytes && claim.count < kQuantumCopies) {
      const SliceRange &slice = job->group.slices[job->chunk->copies[job->chunk_index].pool];
      bytes += slice.end - slice.begin;
      claim.count++;
      if (++job->chunk_index == job->chunk->count) {
        job->chunk = job->chunk->next;
        job->chunk_index = 0;
      }
    }
    job->active_claims++;
    if (job->chunk == nullptr) {
      job->group = layers_.next_group(job->group, job->pool_mask);
      job->chunk = job->copies;
      if (job->group.at_end()) { // All handed out: the next worker takes the next job.
        fifo.head = job->next;
        if (fifo.head == nullptr) fifo.tail = nullptr;
      }
    }
    return true;
  }
  return false;
}

bool CopyQueue::work_left(const Lane &lane) {
  return lane.classes[0].head != nullptr || lane.classes[1].head != nullptr || lane.classes[2].head != nullptr;
}

bool CopyQueue::settle(Lane &lane, TransferJob &job) {
  job.active_claims--;
  // Groups are handed out in order, so everything below the lowest group still in work has been copied.
  uint32_t layers_done = job.group.first_layer;
  for (const Claim &claim : lane.claims) {
    if (claim.job == &job) layers_done = std::min(layers_done, claim.group.first_layer);
  }
  if (layers_done > progress_.load(job.slot) && layers_done != kProgressDone) progress_.store(job.slot, layers_done);
  return job.active_claims == 0 && job.group.at_end();
}

void CopyQueue::run(Lane &lane, uint32_t worker) {
  std::unique_lock lock(lane.mutex);
  Claim &claim = lane.claims[worker];
  for (;;) {
    if (!claim_next(lane, claim)) {
      if (lane.stopping) return;
      lane.work.wait(lock);
      continue;
    }
    // A submit wakes one worker; whoever finds more than it takes wakes the next.
    if (lane.claims.size() > 1 && work_left(lane)) lane.work.notify_one();
    lock.unlock();
    copier_.copy_slices(*claim.job, claim.group, claim.chunk, claim.first, claim.count);
    lock.lock();
    TransferJob &job = *claim.job;
    claim.job = nullptr;
    if (!settle(lane, job)) continue;
    lock.unlock();
    finish(lane, job);
    lock.lock();
  }
}

void CopyQueue::finish(Lane &lane, TransferJob &job) {
  job.end_ns = steady_now_ns();
  if (job.start_ns == 0) job.start_ns = job.end_ns;
  job.status = job.cancelled ? HICACHE_CANCELLED : HICACHE_OK;
  // The word before the ring: once the ring has the job, its slot may belong to another.
  progress_.store(job.slot, job.cancelled ? kProgressPoison : kProgressDone);
  sink_.finished(job);
  std::lock_guard lock(lane.mutex);
  if (--lane.unfinished == 0) lane.idle.notify_all();
}

void CopyQueue::cancel(TransferJob &job) {
  Lane &lane = lanes_[job.direction == HICACHE_D2H];
  {
    std::lock_guard lock(lane.mutex);
    Fifo &fifo = lane.classes[job.priority];
    TransferJob *before = nullptr, *at = fifo.head; // A job that has copies left is in its queue, whether it runs or not.
    for (; at != nullptr && at != &job; at = at->next) before = at;
    if (at == nullptr) return;
    (before != nullptr ? before->next : fifo.head) = job.next;
    if (fifo.tail == &job) fifo.tail = before;
    job.cancelled = true;
    job.group = LayerGroup{};
    if (job.active_claims != 0) return; // The worker whose claim ends last finishes it.
  }
  finish(lane, job);
}

void CopyQueue::drain() {
  for (Lane &lane : lanes_) {
    std::unique_lock lock(lane.mutex);
    lane.idle.wait(lock, [&] { return lane.unfinished == 0; });
  }
}

void CopyQueue::stop_lane(Lane &lane) {
  {
    std::lock_guard lock(lane.mutex);
    lane.stopping = true;
  }
  lane.work.notify_all();
  for (auto &thread : lane.threads) thread.join();
  lane.threads.clear();
}

void CopyQueue::stop() {
  for (Lane &lane : lanes_) stop_lane(lane);
}

} // namespace hicache
