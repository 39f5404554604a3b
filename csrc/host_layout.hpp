// How the bytes of a page lie on either tier, and how a copy between two orders is cut into fragments. An order is linear in page, layer,
// token and head, so that a page is a few nested loops of equal fragments, and what is contiguous on both sides is one.
#pragma once

#include <cstdint>

#include "hicache.h"

namespace hicache {

// Where the rows of one part (K or V) are, in bytes from a pool's base.
struct RowOrder {
  uint64_t offset = 0; // Of head 0 of token 0 of layer 0 of page 0.
  uint64_t page = 0;   // Strides.
  uint64_t layer = 0;
  uint64_t token = 0;
  uint64_t head = 0;
};

// Where a pool's pages are on one tier.
struct PageOrder {
  RowOrder rows[2]; // K, V.
  uint64_t padding_offset = 0;
  uint64_t padding_stride = 0;
};

// What a page consists of, whatever its order.
struct PageRows {
  uint64_t row_bytes[2] = {0, 0}; // K and V row of one layer and token.
  uint32_t layer_count = 0;
  uint32_t page_tokens = 0;
  uint32_t head_count = 1;
  uint64_t page_bytes = 0; // Padding included.

  uint64_t layer_bytes() const { return (row_bytes[0] + row_bytes[1]) * page_tokens; }
  uint64_t padding_bytes() const { return page_bytes - layer_bytes() * layer_count; }
};

// The order of a page envelope: HICACHE_LAYOUT_*.
PageOrder envelope_order(const PageRows &of, uint32_t envelope_layout);
// The order of a separate region of `page_count` pages: HICACHE_HOST_*, not ENVELOPE. It is page_count * page_bytes long.
PageOrder region_order(const PageRows &of, uint32_t host_layout, uint64_t page_count);

// Layers [first, last) of one part of a page, cut for a copy from order `a` to order `b`: `bytes` each, in up to three nested loops, the
// outermost first. Addresses ascend in `b`.
struct FragmentLoops {
  uint64_t a = 0, b = 0; // Of the first fragment, for page 0.
  uint64_t a_page = 0, b_page = 0;
  uint64_t bytes = 0; // 0: nothing to copy.
  struct Loop {
    uint32_t count = 1;
    uint64_t a = 0, b = 0;
  } loops[3];

  uint64_t count() const { return uint64_t{loops[0].count} * loops[1].count * loops[2].count; }

  // fn(offset in a, offset in b, bytes) for each fragment of a copy from page_a to page_b.
  template <typename Fn> void each(uint64_t page_a, uint64_t page_b, Fn fn) const {
    if (bytes == 0) return;
    uint64_t a0 = a + page_a * a_page, b0 = b + page_b * b_page;
    for (uint32_t i = 0; i < loops[0].count; i++, a0 += loops[0].a, b0 += loops[0].b) {
      uint64_t a1 = a0, b1 = b0;
      for (uint32_t j = 0; j < loops[1].count; j++, a1 += loops[1].a, b1 += loops[1].b) {
        uint64_t a2 = a1, b2 = b1;
        for (uint32_t k = 0; k < loops[2].count; k++, a2 += loops[2].a, b2 += loops[2].b) fn(a2, b2, bytes);
      }
    }
  }
};

// The fragments of layers [first, last) of a page: K, V and, with `padding`, what pads it.
struct PageFragments {
  FragmentLoops parts[3];

  template <typename Fn> void each(uint64_t page_a, uint64_t page_b, Fn fn) const {
    for (const FragmentLoops &part : parts) part.each(page_a, page_b, fn);
  }
  uint64_t count() const {
    uint64_t sum = 0;
    for (const FragmentLoops &part : parts) sum += part.bytes == 0 ? 0 : part.count();
    return sum;
  }
};
PageFragments cut_page(const PageRows &of, const PageOrder &a, const PageOrder &b, uint32_t first_layer, uint32_t last_layer, bool padding);
// Of tokens [first, first + count) only, all layers, without padding.
PageFragments cut_tokens(const PageRows &of, const PageOrder &a, const PageOrder &b, uint32_t first_token, uint32_t token_count);

} // namespace hicache
