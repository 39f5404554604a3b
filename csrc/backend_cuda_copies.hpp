// The two ways to queue scattered copies: one call of the driver for the copy engine, one launch of page_copy.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend_cuda_kernels.hpp"
#include "fragment_order.hpp"

namespace hicache {

// Copies that go to the copy engine in one call, where the driver has that. Of one direction. Not thread-safe.
class CopyBatch {
public:
  void reserve(size_t count) {
    targets_.reserve(count);
    sources_.reserve(count);
    sizes_.reserve(count);
  }
  bool empty() const { return sizes_.empty(); }
  size_t size() const { return sizes_.size(); }
  void add(CuAddress target, CuAddress source, size_t bytes) {
    targets_.push_back(target);
    sources_.push_back(source);
    sizes_.push_back(bytes);
  }
  // Lengthens the last copy, if this one follows it on both sides.
  bool join(CuAddress target, CuAddress source, size_t bytes) {
    if (empty() || targets_.back() + sizes_.back() != target || sources_.back() + sizes_.back() != source) return false;
    sizes_.back() += bytes;
    return true;
  }
  // Queues what was added; then there is nothing.
  CuResult send(const DriverApi &api, CuStream stream);

private:
  std::vector<CuAddress> targets_, sources_;
  std::vector<size_t> sizes_;
};

// Launches of page_copy over equal fragments. Not thread-safe.
class FragmentLauncher {
public:
  // `blocks` as KernelSet::copy; other than 0, one side is on the host: the targets' if to_host. Long lists go through `lists`, of which
  // the slots still read by the device are not waited for: then the list goes in pieces, inside launches. Adds to *launches.
  CuResult copy(const KernelSet &kernels, std::span<const kernel::Fragment> fragments, uint64_t bytes, unsigned blocks, bool to_host,
                ListRing *lists, CuStream stream, uint32_t *launches);

private:
  FragmentOrder order_;
  std::unique_ptr<kernel::CopyArgs> args_ = std::make_unique<kernel::CopyArgs>();
};

} // namespace hicache
