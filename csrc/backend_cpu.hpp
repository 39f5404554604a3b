// The byte-exact reference backend: "device" memory is host memory, compute is whatever the caller does between calls, and copies run
// on worker threads after submit has returned. Moves and zeroing are done when their call returns, so no fence ever has to be waited for.
#pragma once

#include <memory>

#include "backend.hpp"
#include "copy_queue.hpp"
#include "host_memory.hpp"

namespace hicache {

// What the CPU and null backends share: the copy queues, the progress words and fences that are done once recorded.
class HostSideBackend : public Backend, public PageCopier {
public:
  Status open(const BackendOptions &options, ErrorDetail *error) override;
  void close() override;
  Status table_changed(uint32_t, std::span<const uint32_t>, std::span<const uint32_t>, std::span<const FenceMark>, ErrorDetail *) override {
    return HICACHE_OK;
  }
  // Compute is the caller, and it has returned from it: every mark has passed once it is recorded.
  Status fence_record(FenceMark, uint64_t, ErrorDetail *) override { return HICACHE_OK; }
  bool fence_passed(FenceMark) const override { return true; }
  Status order_step(uint64_t, std::span<const FenceMark>, ErrorDetail *) override { return HICACHE_OK; }
  void submit(TransferJob &job) override;
  void cancel(TransferJob &job) override;
  uint32_t progress(uint32_t slot) const override { return progress_->load(slot); }
  Status layer_wait(uint32_t slot, uint32_t layer, uint64_t stream, ErrorDetail *error) override;
  Status peer_copy(Backend &target, std::span<const PeerCopy> copies, ErrorDetail *error) override;
  uint32_t run_inside(uint32_t, bool, bool) override { return 0; }
  void drain() override;
  bool set_hold(bool, uint32_t) override { return false; }
  uint64_t now_ns() const override { return steady_now_ns(); }
  bool virtual_clock() const override { return false; }

  // For fault injection, which runs the copies itself: with this called before open, open starts no threads.
  void leave_copies_to_wrapper() { threads_wanted_ = false; }
  ProgressWords &progress_words() { return *progress_; }

protected:
  // Takes the memory of both tiers.
  virtual Status open_memory(const BackendOptions &options, ErrorDetail *error) = 0;
  const LayerOrder &layers() const { return *layers_; }
  const PoolLayout &layout(uint32_t pool) const { return layers_->pools()[pool]; }

private:
  const LayerOrder *layers_ = nullptr;
  std::unique_ptr<ProgressWords> progress_;
  std::unique_ptr<CopyQueue> queue_;
  bool threads_wanted_ = true;
};

class CpuBackend final : public HostSideBackend {
public:
  std::byte *pool_base(Tier tier, uint32_t pool) const override { return bases_[tier == Tier::kHost][pool]; }
  Status resize_device(uint64_t bytes, ErrorDetail *error) override;
  Status move_pages(Tier tier, std::span<const PageMove> moves, std::span<const FenceMark> waits, FenceMark done,
                    ErrorDetail *error) override;
  Status zero_pages(Tier tier, std::span<const PageZero> zeros, std::span<const FenceMark> waits, FenceMark done,
                    ErrorDetail *error) override;
  Status copy_pages(Tier tier, std::span<const PageCopy> copies, std::span<const FenceMark> waits, FenceMark done,
                    ErrorDetail *error) override;
  Status poison_sink(uint64_t bytes, ErrorDetail *error) override;
  std::atomic<uint64_t> *tags(Tier, uint32_t) override { return nullptr; }
  void copy_slices(const TransferJob &job, const LayerGroup &group, const CopyChunk *chunk, uint32_t first, uint32_t count) override;

private:
  Status open_memory(const BackendOptions &options, ErrorDetail *error) override;

  std::byte *page(Tier tier, uint32_t pool, PhysicalPage at) const {
    return pool_base(tier, pool) + page_offset_bytes(at, layout(pool).page_bytes);
  }

  HostMemory device_;
  HostMemory host_;
  std::vector<std::unique_ptr<HostMemory>> own_memory_; // Of static pools, and of host regions.
  std::byte *bases_[2][kPoolCountMax] = {};             // Page 0 of each pool, by tier.
};

// INFEASIBLE with what could not be reserved and why.
Status refuse_memory(ErrorDetail *error, const char *what, uint64_t bytes, int native_code);

// Page work inside a host region, `base` being that of its page 0.
void move_in_region(const PoolLayout &of, std::byte *base, PhysicalPage source, PhysicalPage destination);
void zero_in_region(const PoolLayout &of, std::byte *base, PhysicalPage page, uint32_t first_token);
void copy_in_region(const PoolLayout &of, std::byte *base, PhysicalPage source, PhysicalPage destination, uint32_t token_count);

// Calls fn(offset, bytes) for each contiguous block of token rows [first, first + count) in an envelope.
template <typename Fn> void for_each_row_block(const PoolLayout &of, uint64_t first, uint64_t count, Fn fn) {
  if (of.layer_bytes == 0) {
    fn(first * of.token_bytes, count * of.token_bytes);
    return;
  }
  // Layer-major: in each layer the K rows of all tokens, then the V rows.
  for (uint64_t layer = 0; layer < of.layer_ids.size(); layer++) {
    const uint64_t k = layer * of.layer_bytes;
    const uint64_t v = k + of.k_row_bytes * of.page_tokens;
    const uint64_t v_row_bytes = of.row_bytes - of.k_row_bytes;
    fn(k + first * of.k_row_bytes, count * of.k_row_bytes);
    if (v_row_bytes != 0) fn(v + first * v_row_bytes, count * v_row_bytes);
  }
}

} // namespace hicache
