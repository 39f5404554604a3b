// Carries out moves: of a plan (a shortfall) and of packing (idle points, eager). The tables change after the mover has taken the copies.
#include <algorithm>

#include "arena_state.hpp"

namespace hicache {

// ---- One batch ----

static void fetch_lines(const Pool &pool, uint32_t source, uint32_t destination) {
  pool.table.prefetch_name(source);
  pool.table.prefetch_place(destination);
  pool.holes.prefetch(destination);
  pool.movable.prefetch(destination);
}

Status Arena::State::run_moves(Pool *pool, uint32_t count, ErrorDetail *error) {
  if (count == 0) return HICACHE_OK;
  const std::span<const PageMove> batch(moves.data(), count);
  if (count <= 64) { // Holes lie anywhere in the arena: all lines are on their way before the first is touched.
    for (const PageMove &move : batch) fetch_lines(*pool, raw(move.source), raw(move.destination));
  }
  FenceMark done;
  if (fenced()) {
    clear_mover_waits();
    for (const PageMove &move : batch) {
      collect_fence(*pool, raw(move.source), &mover_waits);
      collect_fence(*pool, raw(move.destination), &mover_waits);
    }
    counters.fence_waits_moves += mover_waits.stream_marks();
    done = streams.issue(kMoverSlot);
  }
  if (mover != nullptr) {
    const Status status = mover->move_pages(batch, fenced() ? mover_waits.marks() : std::span<const FenceMark>{}, done, error);
    if (status != HICACHE_OK) return status;
  }
  pool->move_all(batch.data(), count);
  if (fenced()) {
    for (const PageMove &move : batch) {
      set_fence(pool, raw(move.source), done); // Vacated: free at once, and whoever gets it follows the move.
      set_fence(pool, raw(move.destination), done);
    }
  }
  counters.moves += count;
  counters.moved_bytes += count * pool->page_bytes;
  epoch++;
  return HICACHE_OK;
}

void Arena::State::set_fence(Pool *pool, uint32_t p, FenceMark mark) {
  overflow.drop(pool->fences[p]);
  pool->fences[p] = PageFence::of(mark);
}

void Arena::State::join_fence(Pool *pool, uint32_t p, FenceMark mark) {
  PageFence &fence = pool->fences[p];
  if (!fence || (fence.slot() == mark.slot() && streams.in_order(mark.slot()))) { // The common case: one stream.
    fence = PageFence::of(mark);
    return;
  }
  bool widened = false;
  fence = overflow.join(fence, mark, streams, &widened);
  if (widened) counters.fence_overflows++;
}

void Arena::State::inherit_fences(Pool *pool, uint32_t from, uint32_t to) {
  if (!fenced() || fence_reach == 0 || pool->is_static || from >= to || !streams.any_pending()) return;
  const std::vector<PageFence> &fences = places[0].fences;
  const PlaceIndex index(pool->page_bytes, places[0].unit_bytes);
  for (uint32_t p = from; p < to; p++) {
    const uint64_t own = index(p), first = own > fence_reach ? own - fence_reach : 0;
    const uint64_t end = std::min<uint64_t>(index(p + 1) + 1, fences.size());
    mover_waits.clear(0); // Of each stream the latest mark, whichever unit has it.
    bool found = false;
    for (uint64_t unit = first; unit < end; unit++) {
      if (!fences[unit]) continue;
      overflow.collect(fences[unit], streams, &mover_waits);
      found |= unit != own;
    }
    if (!found) continue;
    overflow.drop(pool->fences[p]);
    pool->fences[p] = {};
    for (const FenceMark mark : mover_waits.marks()) join_fence(pool, p, mark);
  }
}

// ---- A plan ----

namespace {

// Where the next pages to move lie and where they go: sources outside the new span, destinations holes inside it.
struct MoveCursor {
  const Pool &pool;
  PageSpan span;
  uint32_t above = HoleSet::kNone, below = HoleSet::kNone; // Next source at or above span.high, topmost first; below span.low.
  uint32_t low_hole = HoleSet::kNone, high_hole = HoleSet::kNone;

  MoveCursor(const Pool &p, const PageSpan &s) : pool(p), span(s) {
    above = at_least(pool.movable.highest(), span.high);
    below = less_than(pool.movable.lowest(), span.low);
    low_hole = less_than(pool.holes.next(span.low), span.high);
    high_hole = span.high == 0 ? HoleSet::kNone : at_least(pool.holes.prev(span.high - 1), span.low);
  }
  static uint32_t at_least(uint32_t p, uint32_t bound) { return p != HoleSet::kNone && p >= bound ? p : HoleSet::kNone; }
  static uint32_t less_than(uint32_t p, uint32_t bound) { return p < bound ? p : HoleSet::kNone; }

  uint32_t take_low_hole() {
    const uint32_t hole = low_hole;
    low_hole = less_than(pool.holes.next(hole + 1), span.high);
    return hole;
  }
  uint32_t take_high_hole() {
    const uint32_t hole = high_hole;
    high_hole = hole == 0 ? HoleSet::kNone : at_least(pool.holes.prev(hole - 1), span.low);
    return hole;
  }

  // An end fills the holes nearest its own end. A float fills its interior first: holes on the side that the pages come from.
  bool next(PageMove *move) {
    if (above != HoleSet::kNone) {
      const uint32_t hole = pool.direction == HICACHE_DIRECTION_UP ? take_low_hole() : take_high_hole();
      *move = {pool.index, PhysicalPage{above}, PhysicalPage{hole}};
      above = above == 0 ? HoleSet::kNone : at_least(pool.movable.prev(above - 1), span.high);
      return true;
    }
    if (below != HoleSet::kNone) {
      const uint32_t hole = pool.direction == HICACHE_DIRECTION_DOWN ? take_high_hole() : take_low_hole();
      *move = {pool.index, PhysicalPage{below}, PhysicalPage{hole}};
      below = less_than(pool.movable.next(below + 1), span.low);
      return true;
    }
    return false;
  }
};

} // namespace

Status Arena::State::move_into_span(Pool *pool, const PageSpan &span, ErrorDetail *error) {
  // The free pages of the new span become holes; pages then move from outside it into holes inside; the rest is cut off.
  if (span.high <= pool->low || span.low >= pool->high) {
    // A leap to a place of its own: the span between stays out of it, so the new part is filled first and joined afterwards.
    pool->holes.insert_range(span.low, span.high);
    inherit_fences(pool, span.low, span.high);
  } else {
    pool->holes.insert_range(span.low, std::max(span.low, pool->low));
    pool->holes.insert_range(std::min(span.high, pool->high), span.high);
    inherit_fences(pool, span.low, std::max(span.low, pool->low));
    inherit_fences(pool, std::min(span.high, pool->high), span.high);
  }
  MoveCursor cursor(*pool, span);
  uint32_t count = 0;
  while (cursor.next(&moves[count])) {
    if (++count < kBatch) continue;
    if (const Status status = run_moves(pool, count, error); status != HICACHE_OK) return status;
    count = 0;
  }
  if (const Status status = run_moves(pool, count, error); status != HICACHE_OK) return status;
  // All that is left outside is holes.
  pool->holes.erase_range(pool->low, std::min(pool->high, span.low));
  pool->holes.erase_range(std::max(pool->low, span.high), pool->high);
  pool->low = span.low;
  pool->high = span.high;
  pool->retreat();
  return HICACHE_OK;
}

Status Arena::State::execute(const Chain &chain, const Layout &layout, ErrorDetail *error) {
  for (uint32_t i = 0; i < chain.count; i++) { // Spans without pages are given up first: they block nobody.
    Pool &pool = pools[chain.pools[i].pool];
    if (pool.used() == 0) pool.retreat();
  }
  uint32_t order[kPoolMax];
  const uint32_t order_count = execution_order(chain, layout, order);
  for (uint32_t k = 0; k < order_count; k++) {
    Pool &pool = pools[chain.pools[order[k]].pool];
    if (const Status status = move_into_span(&pool, layout.spans[order[k]], error); status != HICACHE_OK) return status;
  }
  epoch++;
  return HICACHE_OK;
}

// ---- Packing ----

Status Arena::State::pack(Pool *pool, uint64_t pages_max, uint64_t *moved_out, ErrorDetail *error) {
  *moved_out = 0;
  if ((pool->is_static && !pool->is_separate) || pool->holes.empty()) return HICACHE_OK;
  bool toward_low = pool->direction == HICACHE_DIRECTION_UP;
  if (pool->direction == HICACHE_DIRECTION_FLOAT) {
    uint64_t gap_low_bytes, gap_high_bytes;
    gaps(*pool, &gap_low_bytes, &gap_high_bytes);
    toward_low = gap_low_bytes <= gap_high_bytes;
  }
  pool->retreat();
  uint32_t count = 0;
  uint32_t source = toward_low ? pool->movable.highest() : pool->movable.lowest();
  uint32_t hole = toward_low ? pool->holes.lowest() : pool->holes.highest();
  while (source != HoleSet::kNone && hole != HoleSet::kNone && *moved_out < pages_max && (toward_low ? hole < source : hole > source)) {
    moves[count++] = {pool->index, PhysicalPage{source}, PhysicalPage{hole}};
    (*moved_out)++;
    if (toward_low) {
      source = source == 0 ? HoleSet::kNone : pool->movable.prev(source - 1);
      hole = pool->holes.next(hole + 1);
    } else {
      source = pool->movable.next(source + 1);
      hole = hole == 0 ? HoleSet::kNone : pool->holes.prev(hole - 1);
    }
    if (count < kBatch) continue;
    if (const Status status = run_moves(pool, count, error); status != HICACHE_OK) return status;
    count = 0;
  }
  if (const Status status = run_moves(pool, count, error); status != HICACHE_OK) return status;
  pool->retreat();
  return HICACHE_OK;
}

uint64_t Arena::State::blocked_pages(const Pool &pool) const {
  if ((pool.is_static && !pool.is_separate) || pool.holes.empty() || pool.held.empty()) return 0;
  const bool from_high = pool.direction != HICACHE_DIRECTION_DOWN;
  return from_high ? pool.held.count_in(pool.holes.lowest(), pool.high) : pool.held.count_in(pool.low, pool.holes.highest());
}

Status Arena::State::settle(uint32_t pool_bits, ErrorDetail *error) {
  epoch++;
  for (uint32_t bits = pool_bits; bits != 0; bits &= bits - 1) {
    Pool &pool = pools[static_cast<uint32_t>(__builtin_ctz(bits))];
    if (pool.is_static) continue;
    const bool late = placement == HICACHE_PLACEMENT_REFERENCE && pool.direction != HICACHE_DIRECTION_FLOAT;
    if (!late) pool.retreat();
    if (compaction != HICACHE_COMPACTION_EAGER) continue;
    uint64_t moved;
    if (const Status status = pack(&pool, UINT64_MAX, &moved, error); status != HICACHE_OK) return status;
  }
  return HICACHE_OK;
}

// ---- Calls ----

Status Arena::compact(const hicache_compact_budget_t &budget, hicache_compact_result_t *result_out, ErrorDetail *error) {
  State &s = *state_;
  if (budget.pool != HICACHE_NO_POOL)
    if (const Status status = s.check_pool(budget.pool, error); status != HICACHE_OK) return status;
  hicache_compact_result_t result = {};
  uint64_t pages_left = budget.pages_max == 0 ? UINT64_MAX : budget.pages_max;
  uint64_t bytes_left = budget.bytes_max == 0 ? UINT64_MAX : budget.bytes_max;
  for (Pool &pool : s.pools) {
    if (budget.pool != HICACHE_NO_POOL && budget.pool != pool.index) continue;
    if (s.compaction != HICACHE_COMPACTION_OFF) {
      uint64_t moved = 0;
      const Status status = s.pack(&pool, std::min(pages_left, bytes_left / pool.page_bytes), &moved, error);
      if (status != HICACHE_OK) return status;
      pages_left -= moved;
      bytes_left -= moved * pool.page_bytes;
      result.moved_pages += moved;
      result.moved_bytes += moved * pool.page_bytes;
    }
    result.blocked_pages += s.blocked_pages(pool);
    result.hole_pages += pool.is_static ? 0 : pool.holes.size();
  }
  s.epoch++;
  *result_out = result;
  return HICACHE_OK;
}

Status Arena::set_compaction(uint32_t compaction, ErrorDetail *error) {
  if (compaction > HICACHE_COMPACTION_OFF)
    return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "compaction is %u; it may be 0 (lazy), 1 (eager) or 2 (off)", compaction);
  state_->compaction = compaction;
  state_->epoch++;
  return HICACHE_OK;
}

} // namespace hicache
