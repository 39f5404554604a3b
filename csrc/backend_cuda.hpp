// The CUDA backend: the driver API opened at run time, the device's primary context shared with whoever else uses it, the caller's current
// context left as it was. Two copy lanes carry the bus, one stream of the library's own the work inside the device (moves, zeroing, table
// patches), and fences order them against the caller's streams on the device.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend.hpp"
#include "backend_cuda_device.hpp"
#include "backend_cuda_fences.hpp"
#include "backend_cuda_kernels.hpp"
#include "backend_cuda_lane.hpp"
#include "backend_cuda_memory.hpp"
#include "backend_cuda_peer.hpp"
#include "backend_cuda_words.hpp"

namespace hicache {

class CudaBackend final : public Backend {
public:
  CudaBackend();
  ~CudaBackend() override;

  // Before open. Else open reads HICACHE_CUDA_METHOD (auto, direct, kernel, staged), HICACHE_CUDA_QUANTUM_BYTES and HICACHE_CUDA_CALIBRATE
  // (0: off) from the environment. Of hand-overs it reads HICACHE_CUDA_PEER (kernel, engine, driver) and HICACHE_CUDA_PEER_BLOCKS, to
  // measure and test each way.
  void tune(const CopyTuning &tuning) { tuning_ = tuning, tuned_ = true; }

  Status open(const BackendOptions &options, ErrorDetail *error) override;
  void close() override;
  std::byte *pool_base(Tier tier, uint32_t pool) const override;
  Status resize_device(uint64_t bytes, ErrorDetail *error) override;
  Status move_pages(Tier tier, std::span<const PageMove> moves, std::span<const FenceMark> waits, FenceMark done,
                    ErrorDetail *error) override;
  Status zero_pages(Tier tier, std::span<const PageZero> zeros, std::span<const FenceMark> waits, FenceMark done,
                    ErrorDetail *error) override;
  Status copy_pages(Tier tier, std::span<const PageCopy> copies, std::span<const FenceMark> waits, FenceMark done,
                    ErrorDetail *error) override;
  Status table_changed(uint32_t pool, std::span<const uint32_t> vpages, std::span<const uint32_t> ppages, std::span<const FenceMark> waits,
                       ErrorDetail *error) override;
  Status poison_sink(uint64_t bytes, ErrorDetail *error) override;
  Status fence_record(FenceMark mark, uint64_t stream, ErrorDetail *error) override;
  bool fence_passed(FenceMark mark) const override;
  Status order_step(uint64_t stream, std::span<const FenceMark> waits, ErrorDetail *error) override;
  void submit(TransferJob &job) override;
  void cancel(TransferJob &job) override { lanes_[job.direction == HICACHE_D2H]->cancel(job); }
  uint32_t progress(uint32_t slot) const override;
  Status layer_wait(uint32_t slot, uint32_t layer, uint64_t stream, ErrorDetail *error) override;
  uint32_t run_inside(uint32_t, bool, bool) override { return 0; }
  void drain() override;
  bool set_hold(bool, uint32_t) override { return false; }
  uint64_t now_ns() const override;
  bool virtual_clock() const override { return false; }
  std::atomic<uint64_t> *tags(Tier, uint32_t) override { return nullptr; }

  void copied_bytes(uint64_t by_method[3]) const override;
  void copy_choice(uint32_t direction, hicache_copy_choice_t *out) const override;

  Status peer_connect(Backend &target, ErrorDetail *error) override;
  uint64_t peer_stream(bool out) const override { return reinterpret_cast<uint64_t>(peers_.stream(out)); }
  Status peer_follow(bool out, uint64_t stream, ErrorDetail *error) override;
  Status peer_lead(uint64_t stream, ErrorDetail *error) override;
  Status peer_copy(Backend &target, std::span<const PeerCopy> copies, ErrorDetail *error) override;

  Status layer_word(uint32_t slot, uint32_t layer, uint64_t *address_out, uint32_t *expected_out, ErrorDetail *error) const override;
  Status device_table(uint32_t pool, uint64_t *address_out, uint32_t *count_out, ErrorDetail *error) const override;
  Status device_kernel_ids(const DeviceIds &request, uint64_t stream, ErrorDetail *error) override;
  Status stamp_pages(uint32_t pool, uint64_t stream, std::span<const PageStamp> pages, std::span<const uint64_t> salts,
                     uint32_t *mismatches_out, ErrorDetail *error) override;
  Status digest_pages(uint32_t pool, std::span<const PhysicalPage> pages, uint64_t *digests_out, ErrorDetail *error) override;

  const CudaDevice &device() const { return device_; }
  const KernelSet &kernels() const { return kernels_; }
  const LaneCounts &counts(uint32_t direction) const { return lanes_[direction == HICACHE_D2H]->counts(); }
  CuStream mover_stream() const { return mover_; }
  std::span<const MeasuredRate> measured_rates() const { return rates_; } // By calibration, at open.

private:
  struct Mirror { // A pool's v2p table on the device.
    CuAddress table = 0;
    uint32_t count = 0;
    std::vector<kernel::Patch> pending; // Changes not launched yet; no vpage twice.
    std::vector<uint32_t> place;        // By vpage: 1 + its index in pending, 0 none.
  };

  const PoolLayout &layout(uint32_t pool) const { return layers_->pools()[pool]; }
  CuAddress device_page(uint32_t pool, PhysicalPage page) const {
    return device_bases_[pool] + page_offset_bytes(page, layout(pool).page_bytes);
  }
  std::byte *host_page(uint32_t pool, PhysicalPage page) const {
    return host_bases_[pool] + page_offset_bytes(page, layout(pool).page_bytes);
  }

  Status open_memory(const BackendOptions &options, ErrorDetail *error);
  Status open_scratch(ErrorDetail *error);
  Status open_lanes(const BackendOptions &options, ErrorDetail *error);
  Status calibrate(const BackendOptions &options, ErrorDetail *error);
  ProbeMemory probe_memory(const BackendOptions &options) const;
  Status stamp_portion(uint32_t pool, CuStream on, std::span<const PageStamp> pages, std::span<const uint64_t> salts,
                       uint32_t *mismatches_out, ErrorDetail *error);
  Status digest_portion(uint32_t pool, std::span<const PhysicalPage> pages, uint64_t *digests_out, ErrorDetail *error);
  Status open_mirrors(const BackendOptions &options, ErrorDetail *error);
  void read_environment();
  // Whether kernels and copies of this device may use the target's memory by address, once it has been told so.
  bool reaches(CudaBackend &target);
  CuResult copy_to_peer(CudaBackend &target, std::span<const PeerCopy> copies, bool direct);
  CuResult copy_to_peer_by_kernel(std::span<const kernel::Fragment> fragments, uint64_t bytes);
  CuResult copy_to_peer_by_engine(std::span<const kernel::Fragment> fragments, uint64_t bytes);
  // Makes the mover's stream follow `waits`; then `done` is recorded behind what was launched.
  Status begin_mover(std::span<const FenceMark> waits, ErrorDetail *error);
  Status end_mover(FenceMark done, ErrorDetail *error);
  Status host_waits(std::span<const FenceMark> waits, ErrorDetail *error);
  // Copies or zeroes equal fragments on the mover's stream, by kernel or, without one, by the copy engine.
  CuResult copy_fragments(std::span<const kernel::Fragment> fragments, uint64_t bytes, uint32_t pieces, uint64_t stride, bool move);
  CuResult zero_ranges(std::span<const uint64_t> addresses, uint64_t bytes);
  CuResult flush_mirrors();
  CuResult flush_mirror(Mirror &mirror);
  Status check(CuResult result, const char *what, ErrorDetail *error) { return device_.check(result, what, error); }

  CudaDevice device_;
  mutable FenceBoard fences_;
  KernelSet kernels_;
  TicketWords words_;
  DeviceArena device_arena_;
  HostArena host_arena_; // The pools' own regions, then the arena that the others share: one registration.
  ListRing lists_;
  const LayerOrder *layers_ = nullptr;
  CuAddress device_bases_[kPoolCountMax] = {};
  std::byte *host_bases_[kPoolCountMax] = {}; // Of page 0 of each pool.
  std::vector<CuAddress> static_pools_;
  CuStream mover_ = nullptr;
  CuStream reader_ = nullptr;  // Digests that the host waits for.
  CuStream uploads_ = nullptr; // Lists of all rings: waits for nothing, so that it never holds one up.
  // Stamps and digests: lists go out and answers come back through pinned memory, in portions. No call that waits for the whole device, or
  // copies pageable memory, may be made while a stream waits for a load: the driver would keep the lane from submitting it.
  static constexpr uint64_t kScratchBytes = 1 << 20;
  std::mutex scratch_mutex_;
  unsigned char *scratch_host_ = nullptr;
  CuAddress scratch_ = 0;
  CuEvent mover_end_ = nullptr; // Behind everything launched on mover_ by the time of the last order_step.
  bool mover_dirty_ = false;    // Something was launched on mover_ after mover_end_.
  bool mover_pending_ = false;  // mover_end_ may not have passed.
  std::vector<Mirror> mirrors_;
  std::vector<kernel::Fragment> fragments_; // Scratch of the page work; under the engine's lock.
  std::vector<uint64_t> addresses_;
  CopyTuning tuning_;
  bool tuned_ = false;
  hicache_copy_choice_t shown_[2] = {}; // H2D, D2H; set by open.
  std::vector<MeasuredRate> rates_;
  std::atomic<bool> carrying_[2] = {};
  std::unique_ptr<CopyLane> lanes_[2]; // H2D, D2H.
  PeerLinks peers_;
  PeerTuning peer_tuning_;
};

std::unique_ptr<Backend> make_cuda_backend();

} // namespace hicache
