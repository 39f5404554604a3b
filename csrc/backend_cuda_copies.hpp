// The two ways to queue scattered copies: one call of the driver for the copy engine, one launch of page_copy.
#pragma once

#include <algorithm>
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

// Launches over all fragments: long lists through `lists`, short ones, and those for which the device still reads every slot, in pieces
// inside launches. write(fragments, to, in_slot) puts a piece where the launch finds it; launch() queues it on `stream`. args: all but list
// and count.
template <class Write, class Launch>
CuResult launch_over(std::span<const kernel::Fragment> fragments, kernel::CopyArgs *args, ListRing *lists, CuStream stream, Write write,
                     Launch launch) {
  while (!fragments.empty()) {
    void *slot = fragments.size() > kernel::kInlineFragments ? lists->fill() : nullptr;
    const size_t room = slot != nullptr ? lists->slot_bytes() / sizeof(kernel::Fragment) : kernel::kInlineFragments;
    const std::span<const kernel::Fragment> piece = fragments.first(std::min(fragments.size(), room));
    write(piece, slot != nullptr ? static_cast<kernel::Fragment *>(slot) : args->inline_list, slot != nullptr);
    args->count = static_cast<uint32_t>(piece.size());
    args->list = nullptr;
    CuResult r = cu::kSuccess;
    if (slot != nullptr) {
      CuAddress address = 0;
      r = lists->upload(piece.size_bytes(), stream, &address);
      args->list = reinterpret_cast<const kernel::Fragment *>(address);
    }
    if (r == cu::kSuccess) r = launch();
    if (r == cu::kSuccess && slot != nullptr) r = lists->release(stream);
    if (r != cu::kSuccess) return r;
    fragments = fragments.subspan(piece.size());
  }
  return cu::kSuccess;
}

inline void write_in_order(std::span<const kernel::Fragment> fragments, kernel::Fragment *to, bool) {
  std::copy(fragments.begin(), fragments.end(), to);
}

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
