// One pool of pages: its span, what each physical page is (live, hole, reserved, quarantined, or gap outside the span), its pins and
// fences. Pure bookkeeping: decides nothing about placement and moves no bytes.
//
// Bitmaps over physical pages, disjoint, together exactly the span: holes; movable (live, no pin); held (pinned, reserved, quarantined).
#pragma once

#include <cstdint>
#include <vector>

#include "capacity.hpp"
#include "fence.hpp"
#include "free_ids.hpp"
#include "hicache.h"
#include "hole_set.hpp"
#include "mover.hpp"
#include "page_table.hpp"

namespace hicache {

inline constexpr uint32_t kPageCountMax = 1u << 28; // A held-page entry is pool (4 bits) and page (28 bits).

struct Pool {
  uint32_t index = 0;
  uint32_t role = 0;
  uint32_t direction = 0; // Resolved.
  uint32_t owner = 0;
  uint32_t page_tokens = 1;
  uint32_t window_tokens = 0;
  uint32_t zeroing = 0;
  bool is_static = false;     // Outside the chain.
  bool is_separate = false;   // Of a static pool on the host: a page's place is not its name's, and it moves.
  uint32_t window_bits = 0;   // Of an owner: the other pools of its group, a bit a pool number.
  bool withholds_ids = false; // Of an owner: a static pool is in the group: a name is reused only once its static pages are.
  bool names_grow = false;    // Of an owner: as many ids as there are pages, also after a resize.
  uint64_t page_bytes = 0;

  uint32_t first_page = 0;     // Pages below are the sink.
  uint32_t first_id = 0;       // Virtual ids below name nothing.
  uint32_t page_count = 0;     // At the present size of the arena.
  uint32_t page_count_max = 0; // At its largest.
  uint32_t id_count = 0;       // Virtual ids [first_id, id_count) exist so far.

  uint32_t low = 0, high = 0; // The span [low, high). An end's reaches from its frontier to the arena's end.
  uint32_t live = 0, reserved = 0, quarantined = 0;

  PageTable table;
  HoleSet holes, movable, held;
  HoleSet changed;                    // Names whose entry a mirror does not know yet; closed without one.
  ByPlace<uint16_t> pins;             // Of pages in the span: see PlaceTable.
  ByPlace<PageFence> fences;          // Likewise; none in a host arena.
  FreeIds ids;                        // Of an owner.
  std::vector<uint64_t> lagging_bits; // A bit a physical page: LineSet::carried stands for fences that it lacks. None in a host arena.
  std::vector<uint64_t> marks;        // A bit a virtual id, zero between calls: finds what occurs twice in one.

  // Opens the tables of places, which the caller has sized.
  void open_places(uint32_t names, PlaceTable *places);
  void watch_names(uint32_t names) {
    changed.open(names);
    table.watch(&changed);
  }
  bool in_span(uint32_t p) const { return p >= low && p < high; }
  // Who is at any place: PageTable's p2v, kNobody outside the span.
  uint32_t who_at(uint32_t p) const { return in_span(p) ? table.p2v(p) : PageTable::kNobody; }
  uint32_t used() const { return live + reserved + quarantined; }
  bool owns_ids() const { return owner == index; }
  bool names(uint32_t v) const { return v >= first_id && v < id_count; } // Whether it can be a virtual id at all.

  bool marked(uint32_t v) const { return (marks[v >> 6] >> (v & 63)) & 1; }
  void set_mark(uint32_t v) { marks[v >> 6] |= uint64_t{1} << (v & 63); }
  void clear_mark(uint32_t v) { marks[v >> 6] &= ~(uint64_t{1} << (v & 63)); }

  bool lagging(uint32_t p) const { return !lagging_bits.empty() && ((lagging_bits[p >> 6] >> (p & 63)) & 1) != 0; }
  void set_lagging(uint32_t p, bool lags) {
    const uint64_t bit = uint64_t{1} << (p & 63);
    uint64_t &word = lagging_bits[p >> 6];
    word = lags ? word | bit : word & ~bit;
  }

  // ---- The span ----

  // Makes the free pages [from, to), next to the span or founding it, holes of it.
  void adopt(uint32_t from, uint32_t to);
  // Cuts holes off the span's open ends: no copy. An end with no page left, or a float, gives up its span.
  void retreat();
  // Removes the pages outside [low, high), all holes, from the span.
  void cut(uint32_t new_low, uint32_t new_high);
  // What the pool occupies, for Hull::kSpan.
  PageSpan span() const { return low < high ? PageSpan{low, high} : kNowhere; }
  PageSpan pinned_hull() const {
    if (held.empty()) return kNowhere;
    return PageSpan{held.lowest(), held.highest() + 1};
  }

  // ---- States of a page. Holes handed out have left the hole set already (drain). ----

  // Movable already.
  void bind_live(const uint32_t *vpages, const uint32_t *frames, uint32_t count) {
    table.bind_all(vpages, frames, count);
    live += count;
  }
  void holes_become_live(const uint32_t *vpages, const uint32_t *frames, uint32_t count) {
    bind_live(vpages, frames, count);
#ifdef HICACHE_SABOTAGE
    for (uint32_t i = 0; i < count; i++)
      pins[frames[i]] > 0 ? held.insert(frames[i]) : movable.insert(frames[i]); // Pins left by IGNORE_PINS.
#else
    movable.insert_all(frames, count);
#endif
  }
  void hole_becomes_reserved(uint32_t p) {
    table.set_place_state(PhysicalPage{p}, PageTable::kReserved);
    held.insert(p);
    pins[p] = 1; // The reservation's.
    reserved++;
  }
  void reserved_becomes_live(uint32_t v, uint32_t p, bool stays_pinned) {
    table.bind(VirtualPage{v}, PhysicalPage{p});
    reserved--;
    live++;
    if (stays_pinned) return;
    pins[p] = 0;
    held.erase(p);
    movable.insert(p);
  }
  void reserved_becomes_hole(uint32_t p) {
    table.set_place_state(PhysicalPage{p}, PageTable::kNobody);
    pins[p] = 0;
    held.erase(p);
    reserved--;
    holes.insert(p);
  }
  // Takes the pages of mapped names away, at most kFreeRun of them; name_state is what v2p says from now on. Pinned ones go to quarantine:
  // returns how many did not.
  static constexpr uint32_t kFreeRun = 64;
  uint32_t live_become_holes(const uint32_t *vpages, uint32_t count, uint32_t name_state) {
    uint32_t frames[kFreeRun], freed = 0;
    // The places of a long run lie anywhere: all are on their way before the first is touched. A few overlap by themselves.
    for (uint32_t i = 0; count > 8 && i < count; i++) {
      table.prefetch_place(table.v2p(vpages[i]));
      movable.prefetch(table.v2p(vpages[i]));
    }
    for (uint32_t i = 0; i < count; i++) {
      const uint32_t v = vpages[i], p = table.v2p(v);
#ifdef HICACHE_SABOTAGE
      if (pins[p] > 0 && movable.contains(p)) movable.erase(p), held.insert(p); // Under IGNORE_PINS.
#endif
      const bool is_free = movable.contains(p); // Bits are nearer in memory than pins.
      table.unbind(VirtualPage{v}, name_state, is_free ? PageTable::kNobody : PageTable::kQuarantined);
      frames[freed] = p;
      freed += is_free;
    }
    live -= count;
    quarantined += count - freed;
    movable.erase_all(frames, freed);
    holes.insert_all(frames, freed);
    return freed;
  }

  // ---- Pins ----

  static constexpr uint32_t kPinRun = 64;
  static constexpr uint32_t kPinMax = UINT16_MAX - kPinRun; // A run may name one page many times.

  // A run of live pages with at most kPinMax pins each. With ignore_pins the compactor is not told.
  void pin_all(const uint32_t *frames, uint32_t count, bool ignore_pins) {
    uint32_t first_pins[kPinRun], found = 0;
    for (uint32_t i = 0; i < count; i++) {
      first_pins[found] = frames[i];
      found += pins[frames[i]]++ == 0;
    }
    if (ignore_pins) return;
    movable.erase_all(first_pins, found);
    held.insert_all(first_pins, found);
  }
  // The only pin of a page that has just been bound goes: it may move.
  void unpin_bound(uint32_t p) {
    pins[p] = 0;
    held.erase(p);
    movable.insert(p);
  }
  // Takes a pin off each of a run of pages. Quarantined ones without a pin become holes: their number, and which in holes_out.
  uint32_t unpin_all(const uint32_t *frames, uint32_t count, uint32_t *holes_out) {
    uint32_t freed[kPinRun] = {}, free_count = 0, hole_count = 0;
    for (uint32_t i = 0; i < count; i++) {
      const uint32_t p = frames[i];
      if (--pins[p] > 0) continue;
      if (table.p2v(p) == PageTable::kQuarantined) {
        table.set_place_state(PhysicalPage{p}, PageTable::kNobody);
        holes_out[hole_count++] = p;
        continue;
      }
#ifdef HICACHE_SABOTAGE
      if (!table.bound(p) || !held.contains(p)) continue; // Under IGNORE_PINS.
#endif
      freed[free_count++] = p;
    }
    held.erase_all(freed, free_count);
    movable.insert_all(freed, free_count);
    held.erase_all(holes_out, hole_count);
    holes.insert_all(holes_out, hole_count);
    quarantined -= hole_count;
    return hole_count;
  }

  // Live pages change place. The destinations are holes of the span, so are the sources afterwards.
  void move_all(const PageMove *moves, uint32_t count);

  uint64_t table_bytes() const;
};

} // namespace hicache
