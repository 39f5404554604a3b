// The one place that converts between id spaces: virtual to kernel (padding is legal and becomes the sink), and names to places on the wire
// of a transfer (where a wrong name is an error that the arena has already reported).
#pragma once

#include <cstdint>
#include <span>

#include "hicache.h"

namespace hicache {

// A pool's published map from a physical page to what kernels index with.
struct KernelMap {
  const uint32_t *v2p = nullptr; // Entries with the top bit set are unmapped.
  uint32_t v2p_length = 0;
  uint32_t page_tokens = 1;
};

// One kernel id a page. Unmapped, negative and out-of-range pages become 0, the sink. Returns how many did.
// At least 400 million ids a second on one core while the table is cached.
uint64_t translate_pages(const KernelMap &map, const uint32_t *vpages, uint32_t count, int32_t *ids_out);

// page_tokens kernel ids a page: page * page_tokens + token; all 0 for a page that becomes the sink.
uint64_t translate_tokens(const KernelMap &map, const uint32_t *vpages, uint32_t count, int32_t *ids_out);

// What each copy of a transfer uses as its place on the device. `places` are the arena's answers; the deliberate fault puts the virtual id
// where the place belongs, as far as that is a page at all.
inline uint32_t wire_place(uint32_t vpage, uint32_t place, [[maybe_unused]] uint32_t page_count, [[maybe_unused]] bool virtual_on_wire) {
#ifdef HICACHE_SABOTAGE
  if (virtual_on_wire && vpage < page_count) return vpage;
#else
  (void)vpage;
#endif
  return place;
}

// Which of the implementations this machine uses, for reports: "avx2" or "portable".
const char *translate_method();

} // namespace hicache
