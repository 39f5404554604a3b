// Worker threads that carry out transfers for a backend whose copies the host makes: a queue for each direction and class, first in
// first out inside a class, worked off in quanta so that urgent transfers overtake. Threads sleep when there is nothing to do.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "backend.hpp"

namespace hicache {

// Progress words with blocking waits. A word only grows between two resets.
class ProgressWords {
public:
  explicit ProgressWords(uint32_t count) : words_(new std::atomic<uint32_t>[count]()) {}

  void reset(uint32_t slot) { words_[slot].store(0, std::memory_order_relaxed); }
  uint32_t load(uint32_t slot) const { return words_[slot].load(std::memory_order_acquire); }
  // Publishes what was copied before the call.
  void store(uint32_t slot, uint32_t value);
  // Blocks until the word is above `layer`.
  void wait_above(uint32_t slot, uint32_t layer);

private:
  std::unique_ptr<std::atomic<uint32_t>[]> words_;
  std::atomic<uint32_t> waiters_{0};
  std::mutex mutex_;
  std::condition_variable arrived_;
};

// Steady time in nanoseconds.
uint64_t steady_now_ns();

class CopyQueue {
public:
  // copier, layers, progress and sink outlive the queue.
  CopyQueue(PageCopier &copier, const LayerOrder &layers, ProgressWords &progress, JobSink &sink);
  ~CopyQueue();

  // Starts `threads` workers a direction. Throws std::system_error if the system gives none.
  void start(uint32_t threads);
  void submit(TransferJob &job);
  // As Backend::cancel.
  void cancel(TransferJob &job);
  // Blocks until all submitted jobs have finished.
  void drain();
  // Ends the workers, after the jobs submitted.
  void stop();

private:
  // A piece of a job that one worker copies at a time: `count` copies of one layer group.
  struct Claim {
    TransferJob *job = nullptr;
    LayerGroup group;
    const CopyChunk *chunk = nullptr;
    uint32_t first = 0;
    uint32_t count = 0;
  };
  struct Fifo {
    TransferJob *head = nullptr;
    TransferJob *tail = nullptr;
  };
  struct Lane { // One direction.
    std::mutex mutex;
    std::condition_variable work;
    std::condition_variable idle;
    Fifo classes[3];
    std::vector<Claim> claims; // One a worker.
    std::vector<std::thread> threads;
    uint32_t unfinished = 0;
    bool stopping = false;
  };

  void run(Lane &lane, uint32_t worker);
  static bool work_left(const Lane &lane);
  bool claim_next(Lane &lane, Claim &claim);
  // Publishes the job's progress after a claim ended; true if that was its last.
  bool settle(Lane &lane, TransferJob &job);
  // The job's last claim has ended, or its only end was to be cancelled. Without the lane's lock.
  void finish(Lane &lane, TransferJob &job);
  void stop_lane(Lane &lane);

  PageCopier &copier_;
  const LayerOrder &layers_;
  ProgressWords &progress_;
  JobSink &sink_;
  Lane lanes_[2];
};

// Puts a job at its first copy.
void rewind_job(TransferJob &job, const LayerOrder &layers);

} // namespace hicache
