// Tables and accounting without bytes: an 8-byte tag for each page of each pool stands for its content and moves and copies with it, so
// that a wrong place shows. A device of 141 GB and a host tier of 2 TB fit a laptop.
#pragma once

#include <memory>
#include <vector>

#include "backend_cpu.hpp"

namespace hicache {

class NullBackend final : public HostSideBackend {
public:
  std::byte *pool_base(Tier, uint32_t) const override { return nullptr; }
  Status resize_device(uint64_t, ErrorDetail *) override { return HICACHE_OK; }
  Status move_pages(Tier tier, std::span<const PageMove> moves, std::span<const FenceMark> waits, FenceMark done,
                    ErrorDetail *error) override;
  Status zero_pages(Tier tier, std::span<const PageZero> zeros, std::span<const FenceMark> waits, FenceMark done,
                    ErrorDetail *error) override;
  Status copy_pages(Tier tier, std::span<const PageCopy> copies, std::span<const FenceMark> waits, FenceMark done,
                    ErrorDetail *error) override;
  Status poison_sink(uint64_t, ErrorDetail *) override { return HICACHE_OK; }
  std::atomic<uint64_t> *tags(Tier tier, uint32_t pool) override;
  void copy_slices(const TransferJob &job, const LayerGroup &group, const CopyChunk *chunk, uint32_t first, uint32_t count) override;

private:
  Status open_memory(const BackendOptions &options, ErrorDetail *error) override;

  // Tags are atomic only so that a reader of a page in flight is a wrong answer and no data race.
  std::vector<std::unique_ptr<HostMemory>> device_tags_;
  std::vector<std::unique_ptr<HostMemory>> host_tags_;
};

} // namespace hicache
