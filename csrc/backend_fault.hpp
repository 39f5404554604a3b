// Fault injection and simulated time over the CPU or null backend. No threads: copies run only inside calls, in an order and with virtual
// delays drawn from a seed, so that a run repeats exactly. Transfers can be held, failed by number or by chance, and stepped one layer
// group at a time.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "backend.hpp"
#include "backend_cpu.hpp"

namespace hicache {

// SplitMix64: a small generator whose sequence is part of the contract that a seed repeats a run.
class SeededRandom {
public:
  explicit SeededRandom(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Uniform in [0, limit), limit > 0.
  uint64_t below(uint64_t limit) { return next() % limit; }

private:
  uint64_t state_;
};

class FaultBackend final : public Backend {
public:
  FaultBackend(std::unique_ptr<HostSideBackend> inner, const hicache_fault_options_t &options);

  Status open(const BackendOptions &options, ErrorDetail *error) override;
  void close() override { inner_->close(); }
  std::byte *pool_base(Tier tier, uint32_t pool) const override { return inner_->pool_base(tier, pool); }
  Status resize_device(uint64_t bytes, ErrorDetail *error) override { return inner_->resize_device(bytes, error); }
  Status move_pages(Tier tier, std::span<const PageMove> moves, std::span<const FenceMark> waits, FenceMark done,
                    ErrorDetail *error) override {
    return inner_->move_pages(tier, moves, waits, done, error);
  }
  Status zero_pages(Tier tier, std::span<const PageZero> zeros, std::span<const FenceMark> waits, FenceMark done,
                    ErrorDetail *error) override {
    return inner_->zero_pages(tier, zeros, waits, done, error);
  }
  Status copy_pages(Tier tier, std::span<const PageCopy> copies, std::span<const FenceMark> waits, FenceMark done,
                    ErrorDetail *error) override {
    return inner_->copy_pages(tier, copies, waits, done, error);
  }
  Status table_changed(uint32_t pool, std::span<const uint32_t> vpages, std::span<const uint32_t> ppages, std::span<const FenceMark> waits,
                       ErrorDetail *error) override {
    return inner_->table_changed(pool, vpages, ppages, waits, error);
  }
  Status poison_sink(uint64_t bytes, ErrorDetail *error) override { return inner_->poison_sink(bytes, error); }
  Status fence_record(FenceMark mark, uint64_t stream, ErrorDetail *error) override { return inner_->fence_record(mark, stream, error); }
  bool fence_passed(FenceMark mark) const override { return inner_->fence_passed(mark); }
  Status order_step(uint64_t stream, std::span<const FenceMark> waits, ErrorDetail *error) override {
    return inner_->order_step(stream, waits, error);
  }
  Status peer_copy(Backend &target, std::span<const PeerCopy> copies, ErrorDetail *error) override {
    return inner_->peer_copy(target, copies, error);
  }
  uint32_t progress(uint32_t slot) const override { return inner_->progress(slot); }
  std::atomic<uint64_t> *tags(Tier tier, uint32_t pool) override { return inner_->tags(tier, pool); }

  void submit(TransferJob &job) override;
  void cancel(TransferJob &job) override;
  Status layer_wait(uint32_t slot, uint32_t layer, uint64_t stream, ErrorDetail *error) override;
  uint32_t run_inside(uint32_t count, bool layers, bool held) override;
  void finish_job(uint32_t slot, bool fails) override;
  void drain() override;
  bool set_hold(bool hold, uint32_t fail_next) override;
  uint64_t now_ns() const override;
  bool virtual_clock() const override { return true; }

private:
  struct Waiting { // A job and what was drawn for it.
    TransferJob *job;
    bool held;
    bool fails;
    uint64_t copies_before_failure; // Slices that are still copied.
  };

  // Index of the next job to work on, or -1. With equal readiness the seed chooses.
  int choose(bool layers, bool held);
  // Copies one layer group of waiting_[index], or all of them; true if the job ended and left the list.
  bool step(uint32_t index, bool whole);
  void finish(uint32_t index, hicache_status_t status, int32_t native_code);

  const std::unique_ptr<HostSideBackend> inner_;
  const hicache_fault_options_t options_;
  const LayerOrder *layers_ = nullptr;
  JobSink *sink_ = nullptr;

  mutable std::mutex mutex_; // Everything below. Taken after the engine's lock, before the ring's.
  std::condition_variable changed_;
  SeededRandom random_;
  std::unique_ptr<Waiting[]> waiting_; // In order of submission; as many as there are tickets.
  uint32_t waiting_count_ = 0;
  uint64_t transfers_ = 0;
  uint64_t clock_ns_ = 1; // 0 means "not yet" in a job.
  uint32_t fail_next_ = 0;
  bool hold_ = false;
};

} // namespace hicache
