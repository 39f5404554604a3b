#include "backend_cuda_copies.hpp"

#include <algorithm>
#include <cstring>

namespace hicache {

CuResult CopyBatch::send(const DriverApi &api, CuStream stream) {
  CuResult r = cu::kSuccess;
  size_t first = 0;
  cu::CopyAttributes attributes;
  if (size() > 1 && api.copy_batch != nullptr) {
    r = api.copy_batch(targets_.data(), sources_.data(), sizes_.data(), size(), &attributes, &first, 1, stream);
  } else if (size() > 1 && api.copy_batch_12_8 != nullptr) {
    size_t failed = 0;
    r = api.copy_batch_12_8(targets_.data(), sources_.data(), sizes_.data(), size(), &attributes, &first, 1, &failed, stream);
  } else {
    for (size_t i = 0; i < size() && r == cu::kSuccess; i++) r = api.copy_async(targets_[i], sources_[i], sizes_[i], stream);
  }
  targets_.clear();
  sources_.clear();
  sizes_.clear();
  return r;
}

CuResult FragmentLauncher::copy(const KernelSet &kernels, std::span<const kernel::Fragment> fragments, uint64_t bytes, unsigned blocks,
                                bool to_host, ListRing *lists, CuStream stream, uint32_t *launches) {
  kernel::CopyArgs &args = *args_;
  args.pieces = 1;
  args.piece_bytes = bytes;
  args.source_base = args.target_base = 0;
  args.source_stride = args.target_stride = 0;
  // Four blocks look up enough of the host's pages for reading, in any order: not worth the thread's time.
  const bool grouped = blocks != 0 && (to_host || blocks < 4) && bytes < FragmentOrder::kBelowBytes;
  const auto write = [&](std::span<const kernel::Fragment> piece, kernel::Fragment *to, bool in_slot) {
    if (in_slot && grouped && piece.size() >= FragmentOrder::kFromCount) order_.place(piece, to_host, to);
    else write_in_order(piece, to, in_slot);
  };
  return launch_over(fragments, &args, lists, stream, write, [&] {
    const CuResult r = kernels.copy(args, blocks, stream);
    if (r == cu::kSuccess) ++*launches;
    return r;
  });
}

} // namespace hicache
