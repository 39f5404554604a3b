// Where the pools of a chain go when they must take up new places: pure, over a snapshot and the bitmaps of movable pages.
#pragma once

#include <cstdint>

#include "capacity.hpp"
#include "hole_set.hpp"

namespace hicache {

// The new span of every pool of a chain, by position; empty for a pool with neither pages nor demand. Spans are in chain order, do not
// overlap, contain the hulls, and each holds the pool's pages and its demand.
struct Layout {
  PageSpan spans[kPoolMax]; // Set for the chain's pools only.
};

// Which end of the chain is served first: its pools stay as they are as far as possible, and what is short is pushed to the other end.
enum class Sweep { kFromLow, kFromHigh };

// Precondition: the demand fits under `hull`. Every pool keeps as much of its present span as the others let it keep, and grows into free
// bytes before it grows into a neighbour. With Hull::kSpan nothing needs to move. O(pools).
Layout lay_out(const Chain &chain, const ChainDemand &demand, Hull hull, Sweep sweep);

// Bytes of movable pages outside their pool's new span, counting no further than limit_bytes. `movable` is by position.
// Cost grows with the pages counted.
uint64_t moved_bytes(const Chain &chain, const Layout &layout, const HoleSet *const *movable, uint64_t limit_bytes);

// The layout that moves the fewest bytes among those of both sweeps. Precondition: the demand fits under Hull::kPinned.
Layout plan_compaction(const Chain &chain, const ChainDemand &demand, const HoleSet *const *movable);

// The order, by position, in which pools can take up their new spans so that each finds its destinations vacated. Pools with nothing in
// them are left out. Returns how many there are. The dependencies lie along a path and point one way at every boundary: never a cycle.
uint32_t execution_order(const Chain &chain, const Layout &layout, uint32_t *order_out);

} // namespace hicache
