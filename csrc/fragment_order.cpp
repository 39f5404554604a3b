#include "fragment_order.hpp"

#include <algorithm>

namespace hicache {

void FragmentOrder::place(std::span<const kernel::Fragment> fragments, bool to_host, kernel::Fragment *out) {
  if (fragments.empty()) return;
  const auto host = [to_host](const kernel::Fragment &fragment) { return to_host ? fragment.target : fragment.source; };
  uint64_t lowest = ~uint64_t{0}, highest = 0;
  for (const kernel::Fragment &fragment : fragments) {
    lowest = std::min(lowest, host(fragment));
    highest = std::max(highest, host(fragment));
  }
  uint32_t shift = 21;
  lowest = lowest >> shift << shift;
  // A host tier above 128 GiB: groups of pages, so that counting stays cheap.
  while ((highest - lowest) >> shift >= (uint64_t{1} << 16)) shift++;
  next_.assign(((highest - lowest) >> shift) + 2, 0);
  for (const kernel::Fragment &fragment : fragments) next_[((host(fragment) - lowest) >> shift) + 1]++;
  for (size_t page = 1; page < next_.size(); page++) next_[page] += next_[page - 1];
  for (const kernel::Fragment &fragment : fragments) out[next_[(host(fragment) - lowest) >> shift]++] = fragment;
}

} // namespace hicache
