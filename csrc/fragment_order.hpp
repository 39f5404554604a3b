// The order in which a kernel copies small fragments over the bus. A multiprocessor looks up few pages of the host at a time: fragments of
// 512 bytes in random order get 10 GB/s out of each towards the host, those of one huge page together 16, at 2 KiB 23 and 26 (one H200).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernel_args.hpp"

namespace hicache {

// Not thread-safe.
class FragmentOrder {
public:
  static constexpr uint64_t kBelowBytes = 4096; // Of a fragment: larger ones gain nothing.
  static constexpr size_t kFromCount = 512;     // Of a list: in shorter ones few share a page.

  // Copies `fragments` to `out`, those of one 2 MiB page of the host (the targets' side if to_host) together, otherwise in their order.
  // 6 to 12 ns a fragment.
  void place(std::span<const kernel::Fragment> fragments, bool to_host, kernel::Fragment *out);

private:
  std::vector<uint32_t> next_; // By page: where its next fragment goes.
};

} // namespace hicache
