// Recomputes every invariant of an arena from its tables alone and says what does not hold.
#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "arena_state.hpp"

namespace hicache {
namespace {

class Report {
public:
  [[gnu::format(printf, 2, 3)]] void add(const char *format, ...) {
    if (lines_ == kLinesMax) return;
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    text_ += line;
    text_ += '\n';
    if (++lines_ == kLinesMax) text_ += "...\n";
  }
  std::string take() { return std::move(text_); }

private:
  static constexpr uint32_t kLinesMax = 64;
  std::string text_;
  uint32_t lines_ = 0;
};

// Places: each page is in exactly one state, the bitmaps and counts say the same, and everything lies inside the span (1, 3).
void verify_places(const Pool &pool, Report *report) {
  uint32_t live = 0, reserved = 0, quarantined = 0, holes = 0;
  for (uint32_t p = pool.first_page; p < pool.page_count_max; p++) {
    const uint32_t owner = pool.who_at(p);
    const bool hole = pool.holes.contains(p), movable = pool.movable.contains(p), held = pool.held.contains(p);
    if (hole + movable + held > 1) report->add("pool %u: page %u is in two of holes, movable, held", pool.index, p);
    const bool inside = p >= pool.low && p < pool.high;
    if ((hole || movable || held) != inside)
      report->add("pool %u: page %u is %s the span but %s", pool.index, p, inside ? "inside" : "outside",
                  inside ? "in no state" : "in use");
    if (hole) {
      holes++;
      if (owner != PageTable::kNobody) report->add("pool %u: hole %u has an owner (%#x)", pool.index, p, owner);
      if (pool.pins[p] != 0) report->add("pool %u: hole %u has %u pins", pool.index, p, pool.pins[p]);
    } else if (owner == PageTable::kReserved || owner == PageTable::kQuarantined) {
      owner == PageTable::kReserved ? reserved++ : quarantined++;
      if (!held || pool.pins[p] == 0) report->add("pool %u: reserved or quarantined page %u is not pinned", pool.index, p);
    } else if (owner < PageTable::kStateFirst) {
      live++;
      if (held != (pool.pins[p] > 0))
        report->add("pool %u: live page %u has %u pins but is %s", pool.index, p, pool.pins[p], held ? "held" : "movable");
      if (!pool.names(owner)) report->add("pool %u: page %u belongs to %u, which is no virtual page", pool.index, p, owner);
      else if (pool.table.v2p(owner) != p)
        report->add("pool %u: p2v[%u] = %u but v2p[%u] = %#x", pool.index, p, owner, owner, pool.table.v2p(owner));
    } else if (movable || held) {
      report->add("pool %u: page %u is in use but has no owner", pool.index, p);
    }
  }
  if (live != pool.live || reserved != pool.reserved || quarantined != pool.quarantined || holes != pool.holes.size())
    report->add("pool %u: counts live %u reserved %u quarantined %u holes %u, tables say %u %u %u %u", pool.index, pool.live, pool.reserved,
                pool.quarantined, pool.holes.size(), live, reserved, quarantined, holes);
  if (live + reserved + quarantined + holes != pool.high - pool.low)
    report->add("pool %u: live %u + reserved %u + quarantined %u + holes %u is not its span [%u, %u)", pool.index, live, reserved,
                quarantined, holes, pool.low, pool.high);
  if (pool.first_page > 0 && (pool.table.p2v(0) != 0 || pool.table.v2p(0) != 0))
    report->add("pool %u: the sink is not bound to itself", pool.index);
}

// Names: free or in use, never both; the tables are each other's inverse (2, 3).
void verify_names(const std::vector<Pool> &pools, const Pool &pool, Report *report) {
  for (uint32_t v = pool.first_id; v < pool.id_count; v++) {
    if (pool.table.mapped(v) && (pool.table.v2p(v) >= pool.page_count || pool.table.p2v(pool.table.v2p(v)) != v))
      report->add("pool %u: v2p[%u] = %u, which says otherwise", pool.index, v, pool.table.v2p(v));
    if (!pool.owns_ids() && pool.table.mapped(v) && !pools[pool.owner].table.mapped(v))
      report->add("pool %u: virtual page %u has a window page but is not allocated", pool.index, v);
    if (pool.marked(v)) report->add("pool %u: virtual page %u is marked", pool.index, v);
  }
  if (!pool.owns_ids()) return;
  std::vector<bool> is_free(pool.id_count, false);
  pool.ids.each([&](uint32_t v) {
    if (!pool.names(v) || is_free[v]) report->add("pool %u: free id %u is out of range or listed twice", pool.index, v);
    else is_free[v] = true;
  });
  for (uint32_t v = pool.first_id; v < pool.id_count; v++)
    if (is_free[v] != (pool.table.v2p(v) == PageTable::kUnmapped))
      report->add("pool %u: virtual page %u is %s and v2p is %#x", pool.index, v, is_free[v] ? "free" : "not free", pool.table.v2p(v));
}

} // namespace

// Spans lie in chain order, do not overlap, and leave what they leave; nothing lies in the sink or past the end (1).
static void verify_chain(const Arena::State &s, Report *report) {
  uint64_t end = s.sink_bytes, used = 0, free_bytes = 0;
  for (uint32_t i = 0; i < s.chain_count; i++) {
    const Pool &pool = s.pools[s.chain_pools[i]];
    if (pool.low >= pool.high) continue;
    const uint64_t low = pool.low * pool.page_bytes, high = pool.high * pool.page_bytes;
    if (low < end)
      report->add("pool %u: its span begins at byte %llu, below %llu", pool.index, static_cast<unsigned long long>(low),
                  static_cast<unsigned long long>(end));
    else free_bytes += low - end;
    used += high - low;
    end = high;
    if (pool.direction == HICACHE_DIRECTION_UP && pool.low != pool.first_page)
      report->add("pool %u: an up end that begins at page %u", pool.index, pool.low);
    if (pool.direction == HICACHE_DIRECTION_DOWN && pool.high != pool.page_count)
      report->add("pool %u: a down end that ends at page %u", pool.index, pool.high);
  }
  if (end > s.bytes)
    report->add("the chain ends at byte %llu of %llu", static_cast<unsigned long long>(end), static_cast<unsigned long long>(s.bytes));
  else if (s.sink_bytes + used + free_bytes + (s.bytes - end) != s.bytes) report->add("used and free bytes do not add up");
}

// What the spans leave is nobody's: no owner and no pins in any unit of the chain in which no page of a span begins (1, 3).
static void verify_gaps(const Arena::State &s, Report *report) {
  const PlaceTable &table = s.places[0];
  std::vector<bool> begins(table.names.size(), false);
  if (!begins.empty() && !s.host) begins[0] = true; // The sink.
  for (uint32_t i = 0; i < s.chain_count; i++) {
    const Pool &pool = s.pools[s.chain_pools[i]];
    const PlaceIndex index(pool.page_bytes, table.unit_bytes);
    for (uint32_t p = pool.low; p < pool.high; p++) {
      if (begins[index(p)]) report->add("pool %u: page %u begins where another does", pool.index, p);
      begins[index(p)] = true;
    }
  }
  for (size_t unit = 0; unit < begins.size(); unit++)
    if (!begins[unit] && (table.names[unit] != PageTable::kNobody || table.pins[unit] != 0))
      report->add("unit %zu of the chain is outside every span but has an owner (%#x) or %u pins", unit, table.names[unit],
                  table.pins[unit]);
}

// Pins are what the holders hold (6). Tickets' lists are the engine's: what is left after the others is theirs and can only be more.
static void verify_pins(const Arena::State &s, Report *report) {
  std::vector<std::vector<uint32_t>> counted(s.pools.size());
  for (const Pool &pool : s.pools) counted[pool.index].assign(pool.page_count_max, 0);
  const auto count = [&](const PinList &list) {
    uint32_t entries = 0;
    s.slab.each(list, [&](uint32_t entry) {
      counted[EntrySlab::pool_of(entry)][EntrySlab::page_of(entry)]++;
      entries++;
    });
    if (entries != list.count) report->add("a holder's list has %u entries and counts %u", entries, list.count);
  };
  s.leases.each([&](uint64_t, const LeaseRecord &record) { count(record.pins); });
  s.steps.each([&](uint64_t, const StepRecord &record) {
    count(record.pins);
    if (record.line_set == LineSet::kNone) return;
    for (const PinList &list : s.line_sets[record.line_set].lists) count(list);
  });
  uint64_t names = 0, frames[kPoolMax] = {};
  s.reservations.each([&](uint64_t, const ReservationRecord &record) {
    count(record.frames);
    names += record.names.count;
    s.slab.each(record.frames, [&](uint32_t entry) {
      const Pool &pool = s.pools[EntrySlab::pool_of(entry)];
      frames[pool.index]++;
      if (pool.table.p2v(EntrySlab::page_of(entry)) != PageTable::kReserved)
        report->add("pool %u: page %u is in a reservation but is not reserved", pool.index, EntrySlab::page_of(entry));
    });
    s.slab.each(record.names, [&](uint32_t entry) {
      const Pool &pool = s.pools[EntrySlab::pool_of(entry)];
      if (pool.table.v2p(EntrySlab::page_of(entry)) != PageTable::kReservedId)
        report->add("pool %u: virtual page %u is in a reservation but is not reserved", pool.index, EntrySlab::page_of(entry));
    });
  });
  for (const Pool &pool : s.pools) {
    if (frames[pool.index] != pool.reserved)
      report->add("pool %u: %u pages are reserved, reservations hold %llu", pool.index, pool.reserved,
                  static_cast<unsigned long long>(frames[pool.index]));
    for (uint32_t p = pool.low; p < pool.high; p++)
      if (pool.pins[p] < counted[pool.index][p])
        report->add("pool %u: page %u has %u pins, holders hold %u", pool.index, p, pool.pins[p], counted[pool.index][p]);
  }
}

std::string Arena::verify() const {
  const State &s = *state_;
  Report report;
  for (const Pool &pool : s.pools) {
    verify_places(pool, &report);
    verify_names(s.pools, pool, &report);
  }
  verify_chain(s, &report);
  verify_gaps(s, &report);
  verify_pins(s, &report);
  for (const Pool &pool : s.pools) { // Availability is what a fresh computation says (8).
    const State::CapacityMemo &memo = s.capacity_memo[pool.index];
    if (memo.epoch != s.epoch) continue;
    const hicache_capacity_t fresh = s.compute_capacity(pool.index);
    if (fresh.available_pages != memo.capacity.available_pages || fresh.schedulable_pages != memo.capacity.schedulable_pages ||
        fresh.pending_pages != memo.capacity.pending_pages)
      report.add("pool %u: the memoised capacity is not the recomputed one", pool.index);
  }
  if (s.counters.fence_waits_takes != 0) report.add("a take or a free has waited for a fence"); // (7)
  return report.take();
}

} // namespace hicache
