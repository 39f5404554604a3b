// What fits into a chain of pools: pure functions over a snapshot, shared by takes, reservations, plans and the evictor.
//
// The chain lies in one range of bytes, low to high: an up end, floats, a down end, any of them absent. All pools count pages from byte 0,
// each on its own grid. Every function is O(pools) unless it says otherwise and touches nothing else.
#pragma once

#include <cstdint>

namespace hicache {

inline constexpr uint32_t kPoolMax = 16;

// Pages [low, high); empty if low >= high.
struct PageSpan {
  uint32_t low;
  uint32_t high;
  bool empty() const { return low >= high; }
  bool nowhere() const { return low == UINT32_MAX; }
};
inline constexpr PageSpan kNowhere{UINT32_MAX, 0};

// Only the first `count` pools of a chain are ever set: a snapshot is taken on the way to every take, so none of this initialises itself.
struct ChainPool {
  uint32_t pool; // Its number outside the chain.
  uint32_t direction;
  uint64_t page_bytes;
  uint32_t first_page; // The first page that lies wholly above the sink.
  uint32_t page_count; // Pages [0, page_count) lie in the arena.
  uint32_t used;       // live + reserved + quarantined.
  PageSpan span;       // What it occupies now; an end's reaches to the arena's end.
  PageSpan pinned;     // Hull of the pages that may not move.
};

struct Chain {
  uint32_t count;
  uint64_t total_bytes;
  uint64_t sink_bytes;
  ChainPool pools[kPoolMax];
};

// Which pages stay where they are: all (a take without moves), those that are pinned (with moves), none (if nothing were pinned).
// kFrontier is kSpan as pools see it singly: an empty down end, too, begins at its last whole page, and what lies above is nobody's. It is
// what "available now" counts; takes go by the others.
enum class Hull { kFrontier, kSpan, kPinned, kNone };

// Pages wanted on top of those used, by position in the chain.
struct ChainDemand {
  uint32_t pages[kPoolMax] = {};
};

// Where the chain stops fitting.
struct ChainFault {
  uint32_t position = UINT32_MAX; // In the chain; UINT32_MAX if it fits.
  bool above_hull = false;        // The pool would have to begin above pages that stay; else the chain is longer than the arena.
};

// Packed to the left, hulls in place: where each pool can begin at the earliest. A pool with neither pages nor hull is transparent: its
// start is where a page of it could begin. False, with *fault (may be null), if the demand does not fit.
// This is the exact test: it holds if and only if some arrangement fits.
bool pack_left(const Chain &chain, const ChainDemand &demand, Hull hull, uint32_t *start_out, ChainFault *fault);

// Packed to the right: where each pool must end at the latest (exclusive page). Precondition: the demand fits.
void pack_right(const Chain &chain, const ChainDemand &demand, Hull hull, uint32_t *end_out);

inline bool chain_fits(const Chain &chain, const ChainDemand &demand, Hull hull) {
  uint32_t start[kPoolMax];
  return pack_left(chain, demand, hull, start, nullptr);
}

// The most pages that the pool at `position` can take on top of what it has.
uint32_t chain_room(const Chain &chain, uint32_t position, Hull hull);

// Fewest pages to give back in every pool so that the demand fits: the pools are spared in the order of `spare_first` (chain positions, the
// first is spared most), each quota the least possible given those before it. evictable and quota_out are by chain position.
// False if even all that is evictable is not enough. O(pools² · log(quota)), in practice a few evaluations a pool.
bool plan_reclaim(const Chain &chain, const ChainDemand &demand, Hull hull, const uint64_t *evictable, const uint32_t *spare_first,
                  uint64_t *quota_out);

} // namespace hicache
