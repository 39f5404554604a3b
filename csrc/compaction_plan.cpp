#include "compaction_plan.hpp"

#include <algorithm>

#include "hicache.h"

namespace hicache {
namespace {

uint64_t divide_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// Room for one pool: it must lie in [hard.low, hard.high); beyond [soft.low, soft.high) it would push a neighbour.
struct Room {
  PageSpan hard;
  PageSpan soft;
};

PageSpan found_empty_float(uint32_t pages, const Room &room, Sweep sweep) {
  const PageSpan &soft = room.soft;
  if (!soft.empty() && soft.high - soft.low >= pages) { // Midway, so that both neighbours can grow.
    const uint32_t low = soft.low + (soft.high - soft.low - pages) / 2;
    return {low, low + pages};
  }
  if (sweep == Sweep::kFromLow) return {room.hard.low, room.hard.low + pages};
  return {room.hard.high - pages, room.hard.high};
}

PageSpan fit_float(const ChainPool &pool, uint32_t pages, const Room &room, Sweep sweep) {
  if (pool.span.empty()) return found_empty_float(pages, room, sweep);
  PageSpan kept{std::clamp(pool.span.low, room.hard.low, room.hard.high), std::clamp(pool.span.high, room.hard.low, room.hard.high)};
  uint32_t wanting = pages > kept.high - kept.low ? pages - (kept.high - kept.low) : 0;
  const auto grow_low = [&](uint32_t limit) {
    const uint32_t by = std::min(wanting, kept.low > limit ? kept.low - limit : 0);
    kept.low -= by;
    wanting -= by;
  };
  const auto grow_high = [&](uint32_t limit) {
    const uint32_t by = std::min(wanting, limit > kept.high ? limit - kept.high : 0);
    kept.high += by;
    wanting -= by;
  };
  // Free bytes first, on the roomier side; then what pushes a neighbour.
  const uint32_t free_low = kept.low > room.soft.low ? kept.low - room.soft.low : 0;
  const uint32_t free_high = room.soft.high > kept.high ? room.soft.high - kept.high : 0;
  if (free_low > free_high) {
    grow_low(room.soft.low);
    grow_high(room.soft.high);
  } else {
    grow_high(room.soft.high);
    grow_low(room.soft.low);
  }
  grow_high(room.hard.high);
  grow_low(room.hard.low);
  return kept;
}

PageSpan fit(const ChainPool &pool, uint32_t pages, const Room &room, Sweep sweep) {
  switch (pool.direction) {
    case HICACHE_DIRECTION_UP: {
      const uint32_t kept_high = pool.span.empty() ? pool.first_page : std::min(pool.span.high, room.hard.high);
      return {pool.first_page, std::max(kept_high, pool.first_page + pages)};
    }
    case HICACHE_DIRECTION_DOWN: {
      const uint32_t kept_low = pool.span.empty() ? pool.page_count : std::clamp(pool.span.low, room.hard.low, pool.page_count);
      return {std::min(kept_low, pool.page_count - pages), pool.page_count};
    }
    default: return fit_float(pool, pages, room, sweep);
  }
}

} // namespace

Layout lay_out(const Chain &chain, const ChainDemand &demand, Hull hull, Sweep sweep) {
  const bool from_low = sweep == Sweep::kFromLow;
  uint32_t bound[kPoolMax]; // From low: where each pool must end; from high: where each can begin; given the pools not yet placed.
  if (from_low) pack_right(chain, demand, hull, bound);
  else pack_left(chain, demand, hull, bound, nullptr);

  Layout layout;
  uint64_t placed_byte = from_low ? chain.sink_bytes : chain.total_bytes; // How far the placed pools reach.
  for (uint32_t step = 0; step < chain.count; step++) {
    const uint32_t i = from_low ? step : chain.count - 1 - step;
    const ChainPool &pool = chain.pools[i];
    const uint32_t pages = pool.used + demand.pages[i];
    layout.spans[i] = kNowhere;
    if (pages == 0 && pool.span.empty()) continue;

    // Where the nearest pool not yet placed lies now: up to there bytes are free.
    uint64_t neighbour_byte = from_low ? chain.total_bytes : chain.sink_bytes;
    for (uint32_t j = i; from_low ? ++j < chain.count : j-- > 0;) {
      const ChainPool &other = chain.pools[j];
      if (other.span.empty()) continue;
      neighbour_byte = (from_low ? other.span.low : other.span.high) * other.page_bytes;
      break;
    }
    Room room;
    if (from_low) {
      room.hard.low = static_cast<uint32_t>(std::max<uint64_t>(divide_up(placed_byte, pool.page_bytes), pool.first_page));
      room.hard.high = bound[i];
      room.soft = {room.hard.low, static_cast<uint32_t>(std::min<uint64_t>(neighbour_byte / pool.page_bytes, room.hard.high))};
    } else {
      room.hard.low = bound[i];
      room.hard.high = static_cast<uint32_t>(std::min<uint64_t>(placed_byte / pool.page_bytes, pool.page_count));
      room.soft = {static_cast<uint32_t>(std::max<uint64_t>(divide_up(neighbour_byte, pool.page_bytes), room.hard.low)), room.hard.high};
    }
    if (pages > 0) layout.spans[i] = fit(pool, pages, room, sweep);
    else if (hull == Hull::kSpan) layout.spans[i] = pool.span; // Holes that nothing may move: they stay its own.
    else continue;                                             // Only holes: the span is given up.
    placed_byte = (from_low ? layout.spans[i].high : layout.spans[i].low) * pool.page_bytes;
  }
  return layout;
}

uint64_t moved_bytes(const Chain &chain, const Layout &layout, const HoleSet *const *movable, uint64_t limit_bytes) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < chain.count && bytes < limit_bytes; i++) {
    const ChainPool &pool = chain.pools[i];
    if (pool.span.empty() || pool.used == 0) continue;
    const auto limit = static_cast<uint32_t>(std::min<uint64_t>(divide_up(limit_bytes - bytes, pool.page_bytes), UINT32_MAX));
    uint32_t pages = movable[i]->count_in(pool.span.low, std::min(layout.spans[i].low, pool.span.high), limit);
    if (pages < limit) pages += movable[i]->count_in(std::max(layout.spans[i].high, pool.span.low), pool.span.high, limit - pages);
    bytes += pages * pool.page_bytes;
  }
  return bytes;
}

Layout plan_compaction(const Chain &chain, const ChainDemand &demand, const HoleSet *const *movable) {
  const Layout from_low = lay_out(chain, demand, Hull::kPinned, Sweep::kFromLow);
  const Layout from_high = lay_out(chain, demand, Hull::kPinned, Sweep::kFromHigh);
  // Count both no further than the cheaper one needs: the work must not grow with a bad candidate.
  for (uint64_t limit = uint64_t{1} << 20;; limit *= 4) {
    const uint64_t low_bytes = moved_bytes(chain, from_low, movable, limit);
    const uint64_t high_bytes = moved_bytes(chain, from_high, movable, limit);
    if (low_bytes < limit || high_bytes < limit || limit > chain.total_bytes) return low_bytes <= high_bytes ? from_low : from_high;
  }
}

uint32_t execution_order(const Chain &chain, const Layout &layout, uint32_t *order_out) {
  uint32_t holders[kPoolMax], holder_count = 0;
  for (uint32_t i = 0; i < chain.count; i++)
    if (chain.pools[i].used > 0) holders[holder_count++] = i;

  // waits[k]: how many neighbours must go before holders[k].
  uint32_t waits[kPoolMax] = {}, done = 0;
  bool right_first[kPoolMax] = {}, left_first[kPoolMax] = {};
  for (uint32_t k = 0; k + 1 < holder_count; k++) {
    const ChainPool &left = chain.pools[holders[k]], &right = chain.pools[holders[k + 1]];
    right_first[k] = layout.spans[holders[k]].high * left.page_bytes > right.span.low * right.page_bytes;
    left_first[k] = layout.spans[holders[k + 1]].low * right.page_bytes < left.span.high * left.page_bytes;
    if (right_first[k]) waits[k]++;
    if (left_first[k]) waits[k + 1]++;
  }
  bool out[kPoolMax] = {};
  while (done < holder_count) {
    uint32_t k = 0;
    while (k < holder_count && (out[k] || waits[k] > 0)) k++;
    if (k == holder_count) return 0; // A cycle: cannot be (both boundaries' order would contradict the chain's).
    out[k] = true;
    order_out[done++] = holders[k];
    if (k > 0 && right_first[k - 1]) waits[k - 1]--;
    if (k + 1 < holder_count && left_first[k]) waits[k + 1]--;
  }
  return done;
}

} // namespace hicache
