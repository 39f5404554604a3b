#include "pool.hpp"

#include <algorithm>

namespace hicache {

void Pool::open_places(uint32_t names, PlaceTable *places) {
  const PlaceIndex place_of(page_bytes, places->unit_bytes);
  table.open(names, std::max(page_count_max, 1u), places, place_of);
  pins.open(places->pins.data(), place_of);
  fences.open(places->fences.data(), place_of);
  holes.open(page_count_max);
  movable.open(page_count_max);
  held.open(page_count_max);
}

void Pool::adopt(uint32_t from, uint32_t to) {
  if (from >= to) return;
  if (low >= high) {
    low = from;
    high = to;
  } else {
    low = from < low ? from : low;
    high = to > high ? to : high;
  }
  holes.insert_range(from, to);
}

// One past a member of a bitmap; 0 for none.
static uint32_t end_of(uint32_t member) { return member + 1; } // HoleSet::kNone + 1 is 0.

void Pool::retreat() {
  if (is_static) return;
  if (direction == HICACHE_DIRECTION_FLOAT && used() == 0) {
    holes.erase_range(low, high);
    low = high = page_count; // Parked.
    return;
  }
  constexpr uint32_t kFew = 8; // So many go one by one, which is quicker than to look for the page behind them.
  if (direction != HICACHE_DIRECTION_DOWN) {
    for (uint32_t i = 0; i < kFew && low < high && holes.contains(high - 1); i++) holes.erase(--high);
    if (low < high && holes.contains(high - 1)) {
      const uint32_t old_high = high;
      high = std::max({end_of(movable.prev(high - 1)), end_of(held.prev(high - 1)), low}); // The rest of the span is holes.
      holes.erase_range(high, old_high);
    }
  }
  if (direction != HICACHE_DIRECTION_UP) {
    for (uint32_t i = 0; i < kFew && low < high && holes.contains(low); i++) holes.erase(low++);
    if (low < high && holes.contains(low)) {
      const uint32_t old_low = low;
      low = std::min({movable.next(low), held.next(low), high}); // kNone is above all.
      holes.erase_range(old_low, low);
    }
  }
}

void Pool::cut(uint32_t new_low, uint32_t new_high) {
  if (low < new_low) {
    holes.erase_range(low, new_low < high ? new_low : high);
    low = new_low < high ? new_low : high;
  }
  if (high > new_high) {
    holes.erase_range(new_high > low ? new_high : low, high);
    high = new_high > low ? new_high : low;
  }
}

void Pool::move_all(const PageMove *moves, uint32_t count) {
  constexpr uint32_t kRun = 128, kAhead = 12; // Names lie anywhere: fetched while earlier ones are written.
  uint32_t sources[kRun], destinations[kRun];
  for (uint32_t done = 0; done < count;) {
    const uint32_t run = std::min(count - done, kRun);
    for (uint32_t i = 0; i < run; i++) {
      sources[i] = raw(moves[done + i].source);
      destinations[i] = raw(moves[done + i].destination);
      if (done + i + kAhead < count) table.prefetch_name(raw(moves[done + i + kAhead].source));
      table.move(PhysicalPage{sources[i]}, PhysicalPage{destinations[i]});
    }
#ifdef HICACHE_SABOTAGE
    for (uint32_t i = 0; i < run; i++) // Held under IGNORE_PINS.
      if (held.contains(sources[i])) held.erase(sources[i]), movable.insert(sources[i]);
#endif
    movable.erase_all(sources, run);
    holes.erase_all(destinations, run);
    movable.insert_all(destinations, run);
    holes.insert_all(sources, run);
    done += run;
  }
}

uint64_t Pool::table_bytes() const {
  return table.bytes() + holes.bytes() + movable.bytes() + held.bytes() + changed.bytes() + ids.bytes() +
         (marks.size() + lagging_bits.size()) * sizeof(uint64_t);
}

} // namespace hicache
