#include "host_layout.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace hicache {

PageOrder envelope_order(const PageRows &of, uint32_t envelope_layout) {
  PageOrder order;
  const uint64_t both = of.row_bytes[0] + of.row_bytes[1];
  for (uint32_t part = 0; part < 2; part++) {
    const uint64_t row = of.row_bytes[part];
    RowOrder &rows = order.rows[part];
    rows.page = of.page_bytes;
    rows.head = row / of.head_count;
    if (envelope_layout == HICACHE_LAYOUT_LAYER_MAJOR) {
      rows.offset = part == 0 ? 0 : of.row_bytes[0] * of.page_tokens;
      rows.layer = both * of.page_tokens;
      rows.token = row;
    } else {
      rows.offset = part == 0 ? 0 : of.row_bytes[0];
      rows.layer = both;
      rows.token = both * of.layer_count;
    }
  }
  order.padding_offset = of.layer_bytes() * of.layer_count;
  order.padding_stride = of.page_bytes;
  return order;
}

PageOrder region_order(const PageRows &of, uint32_t host_layout, uint64_t page_count) {
  PageOrder order;
  uint64_t offset = 0;
  for (uint32_t part = 0; part < 2; part++) {
    const uint64_t row = of.row_bytes[part], layers = of.layer_count, tokens = of.page_tokens;
    RowOrder &rows = order.rows[part];
    rows.offset = offset;
    rows.page = row * layers * tokens;
    rows.head = row / of.head_count;
    switch (host_layout) {
      case HICACHE_HOST_LAYER_FIRST:
        rows.page = row * tokens;
        rows.layer = row * tokens * page_count;
        rows.token = row;
        break;
      case HICACHE_HOST_PAGE_FIRST:
        rows.token = row * layers;
        rows.layer = row;
        break;
      case HICACHE_HOST_PAGE_FIRST_DIRECT:
        rows.layer = row * tokens;
        rows.token = row;
        break;
      default: // HICACHE_HOST_PAGE_HEAD
        rows.layer = row / of.head_count;
        rows.token = rows.layer * layers;
        rows.head = rows.token * tokens;
        break;
    }
    offset += row * layers * tokens * page_count;
  }
  order.padding_offset = offset;
  order.padding_stride = of.padding_bytes();
  return order;
}

namespace {

// Loops over counts in two orders, merged as far as both sides are contiguous.
FragmentLoops merge(FragmentLoops loops, uint64_t unit_bytes) {
  auto &all = loops.loops;
  for (auto &loop : all)
    if (loop.count <= 1) loop = {1, 0, 0};
  // Outermost first in b; a loop of one round goes outermost.
  std::sort(std::begin(all), std::end(all), [](const auto &x, const auto &y) {
    return std::pair{x.count == 1 ? UINT64_MAX : x.b, x.a} > std::pair{y.count == 1 ? UINT64_MAX : y.b, y.a};
  });
  loops.bytes = unit_bytes;
  while (all[2].count > 1 && all[2].a == loops.bytes && all[2].b == loops.bytes) {
    loops.bytes *= all[2].count;
    all[2] = all[1];
    all[1] = all[0];
    all[0] = {1, 0, 0};
  }
  return loops;
}

FragmentLoops cut_part(const PageRows &of, uint32_t part, const RowOrder &a, const RowOrder &b, uint32_t first_layer, uint32_t last_layer,
                       uint32_t first_token, uint32_t token_count) {
  FragmentLoops loops;
  if (of.row_bytes[part] == 0 || last_layer <= first_layer || token_count == 0) return loops;
  loops.a = a.offset + first_layer * a.layer + first_token * a.token;
  loops.b = b.offset + first_layer * b.layer + first_token * b.token;
  loops.a_page = a.page;
  loops.b_page = b.page;
  loops.loops[0] = {last_layer - first_layer, a.layer, b.layer};
  loops.loops[1] = {token_count, a.token, b.token};
  loops.loops[2] = {of.head_count, a.head, b.head};
  return merge(loops, of.row_bytes[part] / of.head_count);
}

} // namespace

PageFragments cut_page(const PageRows &of, const PageOrder &a, const PageOrder &b, uint32_t first_layer, uint32_t last_layer,
                       bool padding) {
  PageFragments all;
  for (uint32_t part = 0; part < 2; part++)
    all.parts[part] = cut_part(of, part, a.rows[part], b.rows[part], first_layer, last_layer, 0, of.page_tokens);
  if (padding) {
    FragmentLoops &rest = all.parts[2];
    rest.a = a.padding_offset;
    rest.b = b.padding_offset;
    rest.a_page = a.padding_stride;
    rest.b_page = b.padding_stride;
    rest.bytes = of.padding_bytes();
  }
  return all;
}

PageFragments cut_tokens(const PageRows &of, const PageOrder &a, const PageOrder &b, uint32_t first_token, uint32_t token_count) {
  PageFragments all;
  for (uint32_t part = 0; part < 2; part++)
    all.parts[part] = cut_part(of, part, a.rows[part], b.rows[part], 0, of.layer_count, first_token, token_count);
  return all;
}

} // namespace hicache
