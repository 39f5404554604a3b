// What an arena is made of, shared by the files that carry out its calls. Not included outside csrc/{arena*, reservation, lease,
// compactor, verify}.
#pragma once

#include "arena.hpp"
#include "capacity.hpp"
#include "compaction_plan.hpp"
#include "entry_slab.hpp"
#include "fence.hpp"
#include "pool.hpp"
#include "slot_map.hpp"
#include "step_lines.hpp"

namespace hicache {

class FrameSource;

struct ReservationRecord {
  PinList frames; // Physical pages, those of a pool one after another.
  PinList names;  // Virtual ids of the owner pools, likewise.
  uint32_t pages[kPoolMax] = {};
};

struct LeaseRecord {
  PinList pins;
};

struct StepRecord {
  PinList pins;
  uint32_t stream_slot = 0;
  uint32_t line_set = LineSet::kNone;
};

// Pages wanted, by pool number.
struct Demand {
  uint32_t pages[kPoolMax] = {};
};

struct Arena::State {
  bool host = false;
  bool ignore_pins = false;
  uint32_t compaction = HICACHE_COMPACTION_LAZY;
  uint32_t placement = HICACHE_PLACEMENT_BEST;
  Mover *mover = nullptr;
  const WorkBoard *board = nullptr;
  uint64_t bytes = 0, bytes_max = 0, sink_bytes = 0;
  uint64_t pages_at_once = 0;  // At bytes_max, with the smallest pages, static ones included.
  uint64_t held_pages_max = 0; // Entries in the slab.

  std::vector<Pool> pools;
  std::vector<PlaceTable> places;      // The chain's, then one of each static pool.
  uint32_t chain_pools[kPoolMax] = {}; // Pool numbers, low to high.
  uint32_t chain_count = 0;

  EntrySlab slab;
  SlotMap<ReservationRecord> reservations;
  SlotMap<LeaseRecord> leases;
  SlotMap<StepRecord> steps;
  std::vector<LineSet> line_sets; // None in a host arena.
  Streams streams;
  FenceOverflow overflow;
  WaitSet caller_waits; // Handed to the caller.
  WaitSet mover_waits;  // Handed to the mover.
  bool mirrored = false;
  WaitSet mirror_waits; // Fences of pages given back since the tables were published.
  ArenaCounters counters;

  uint64_t epoch = 1; // Rises with every change; what is memoised carries the epoch it holds for.
  struct CapacityMemo {
    uint64_t epoch = 0;
    hicache_capacity_t capacity = {};
  } capacity_memo[kPoolMax];

  static constexpr uint32_t kBatch = 1024;
  std::vector<PageMove> moves;  // Scratch, kBatch entries.
  std::vector<PageZero> zeros;  // Scratch, capacity kBatch.
  std::vector<PageCopy> copies; // Likewise.

  // ---- arena.cpp ----
  Chain snapshot(bool with_pins) const; // O(pools · log64 pages).
  ChainDemand in_chain(const Demand &demand) const;
  const char *tier() const { return host ? "host arena" : "device arena"; }
  // Free bytes between the pool's span and its neighbours' (or the arena's ends). A float without a span has the whole region on both
  // sides.
  void gaps(const Pool &pool, uint64_t *low_bytes_out, uint64_t *high_bytes_out) const;
  // INVALID_ARGUMENT if there is no such pool.
  Status check_pool(uint32_t pool, ErrorDetail *error) const;
  // Whether v names an allocated page of the group that `pool` belongs to.
  bool allocated(const Pool &pool, uint32_t v) const { return pool.names(v) && pools[pool.owner].table.mapped(v); }
  Status resize_to(uint64_t new_bytes, ErrorDetail *error);
  bool ends_below(uint64_t byte) const;

  // ---- arena_open.cpp ----
  Status set_up(const ArenaOptions &options, ErrorDetail *error);
  Status set_up_pool(const PoolSpec &spec, uint32_t index, ErrorDetail *error);
  Status set_up_groups(ErrorDetail *error);
  Status set_up_chain(ErrorDetail *error);
  Status set_up_places(const ArenaOptions &options, ErrorDetail *error);
  void set_up_place_tables();
  void set_up_tables(const ArenaOptions &options);
  Status check_floor(uint32_t request_tokens, ErrorDetail *error) const;

  // ---- arena_room.cpp: room for a demand, and why there is none ----
  // Whether the demand can be taken, moves included if compaction allows them. Fills the error as a refused take does.
  Status check_room(const Demand &demand, ErrorDetail *error) const;
  // As check_room, and makes it so: moves what must move; afterwards every pool has as many holes as are wanted of it.
  Status make_room(const Demand &demand, ErrorDetail *error);
  Status refuse(const Demand &demand, ErrorDetail *error) const;
  Status refuse_reclaim(const Demand &demand, ErrorDetail *error) const;
  bool ends_can_grow(const Demand &demand) const;
  void adopt_shortfall(const Demand &demand);
  hicache_capacity_t compute_capacity(uint32_t pool_number) const;
  // Room beside static pools and names: what no move can mend.
  Status check_fixed(const Demand &demand, ErrorDetail *error) const;

  // ---- compactor.cpp ----
  // Takes up a layout: moves the pages outside their pools' new spans into them, in an order that finds every destination vacated.
  Status execute(const Chain &chain, const Layout &layout, ErrorDetail *error);
  // Packs one pool toward its end (a float toward the narrower side) within a budget of pages; survivors nearest the frontier go into
  // holes nearest the end. *moved_out counts pages.
  Status pack(Pool *pool, uint64_t pages_max, uint64_t *moved_out, ErrorDetail *error);
  Status move_into_span(Pool *pool, const PageSpan &span, ErrorDetail *error);
  Status run_moves(Pool *pool, uint32_t count, ErrorDetail *error); // The first `count` of `moves`, all of this pool.
  // Pinned pages that lie on the wrong side of a hole: packing would have moved them. Cost grows with their number.
  uint64_t blocked_pages(const Pool &pool) const;
  // After pages became holes: frontiers retreat where placement says so, eager compaction packs.
  Status settle(uint32_t pool_bits, ErrorDetail *error);

  // ---- reservation.cpp ----
  struct Binder;
  void reserve_pages(Pool *pool, uint32_t count, std::span<const Take> takes, ReservationRecord *record);

  // ---- lease.cpp ----
  // Empties the list. Returns the bits of the pools that got holes: the caller settles them. A mark joins the pages' fences.
  uint32_t unpin_list(PinList *pins, FenceMark mark = {});
  uint32_t unpin_entries(const PinList &pins, FenceMark mark);
  Status pin_pages(std::span<const hicache_pages_t> lines, PinList *pins, uint32_t *places_out, ErrorDetail *error);
  Status pinnable(uint32_t pool, uint32_t v, uint32_t *place_out, ErrorDetail *error) const; // Has a page, with room for more pins.

  // ---- step_lines.cpp ----
  void open_line_sets(uint32_t line_max);
  uint32_t take_line_set(); // LineSet::kNone if all are taken.
  uint32_t give_back_line_set(uint32_t set_index, FenceMark mark);
  uint32_t unpin_line(PinList *list, FenceMark mark) { return list->count == 0 ? 0 : unpin_list(list, mark); }
  uint32_t release_lines(uint32_t set_index, uint32_t from, FenceMark mark);
  Status hold_places(Pool *pool, const uint32_t *frames, uint32_t count, bool in_line, PinList *list, ErrorDetail *error);
  Status hold_line(const StepLine &line, uint32_t from, bool in_line, PinList *list, ErrorDetail *error);
  Status follow_line(const StepLine &line, PinList *list, FenceMark mark, uint32_t *changed, ErrorDetail *error);
  Status hold_lines(std::span<const StepLine> lines, uint32_t set_index, PinList *plain, FenceMark mark, uint32_t *changed,
                    ErrorDetail *error);
  Status hold_pages(std::span<const hicache_pages_t> pages, PinList *pins, ErrorDetail *error);
  void collect_carried(WaitSet *waits) const;

  // ---- fences ----
  // Pages [from, to) of a pool join its span where others may have been: each takes over the fences left in its bytes. Their users need not
  // have been of its size, so it looks back as far as the largest page.
  void inherit_fences(Pool *pool, uint32_t from, uint32_t to);
  uint64_t fence_reach = 0; // Units of the largest page of the chain; 0: all pages are alike, and a place's fence is its own.
  bool fenced() const { return !host || board != nullptr; }
  // Begins the waits of a piece of the mover's work. Its own earlier work comes first by itself, or else is waited for too.
  void clear_mover_waits() { mover_waits.clear(board == nullptr ? kMoverSlot : 0); }
  void join_fence(Pool *pool, uint32_t p, FenceMark mark);
  void set_fence(Pool *pool, uint32_t p, FenceMark mark); // In place of what there was: the mark's work has waited for it.
  void collect_fence(const Pool &pool, uint32_t p, WaitSet *waits) const {
    if (!fenced()) return;
    if (pool.lagging(p)) collect_carried(waits);
    const PageFence fence = pool.fences[p];
    if (fence && !waits->leaves_out(fence.slot())) overflow.collect(fence, streams, waits);
  }

  std::span<const FenceMark> fences_of(const PinList &pins, uint32_t except_slot); // In caller_waits.

  // ---- arena_extend.cpp ----
  Status check_sequence(const Pool &owner, const hicache_sequence_t &sequence, uint32_t number, ErrorDetail *error) const;
  Demand growth_demand(const Pool &owner, uint64_t names, uint64_t windows, const uint64_t *tail_windows) const;
  Status grow(Pool *owner, hicache_sequence_t *sequence, FrameSource *owner_source, FrameSource *window_sources, ErrorDetail *error);
  void name_growth(Pool *owner, hicache_sequence_t *sequence, FrameSource *source, uint32_t first, uint32_t count);
  Status zero_growth(Pool *pool, const hicache_sequence_t &sequence, uint32_t first, uint64_t token_total, ErrorDetail *error);

  // ---- arena_take.cpp, arena_free.cpp ----
  // Names that a call mentions, against duplicates. unmark() clears all of a list, marked or not.
  void unmark(Pool *pool, const uint32_t *vpages, uint32_t count);
  Status check_takes(std::span<const Take> takes, bool reserving, Demand *demand_out, ErrorDetail *error);
  Status check_windows(Pool *pool, const Take &take, ErrorDetail *error);
  // Gives names that have none a page each in `pool`, out of its holes, zeroed as the pool says.
  Status bind_names(Pool *pool, const uint32_t *vpages, uint32_t count, ErrorDetail *error);
  Status bind_last(Pool *pool, uint32_t count, std::span<const Take> takes, ErrorDetail *error);
  // Zeroes whole pages that are handed out, as the pool says.
  Status zero_pages(Pool *pool, const uint32_t *frames, uint32_t count, ErrorDetail *error);
  Status queue_zero(Pool *pool, uint32_t frame, uint32_t first_token, ErrorDetail *error); // Into `zeros`; flushed when full.
  Status flush_zeros(ErrorDetail *error);
  Status queue_copy(Pool *pool, uint32_t source, uint32_t destination, uint32_t token_count, ErrorDetail *error);
  Status flush_copies(ErrorDetail *error);
  Status check_frees(std::span<const hicache_pages_t> frees, ErrorDetail *error);
  // Free names of a group in all its pools; their pages in one pool (a tombstone is left as it is). Return the bits of the pools that got
  // holes.
  uint32_t free_names(Pool *owner, const uint32_t *vpages, uint32_t count);
  uint32_t free_in_pool(Pool *pool, const uint32_t *vpages, uint32_t count);
  void give_name(Pool *owner, uint32_t v);                // Or withholds it, as long as a static page of it is touched.
  void release_static_name(const Pool &pool, uint32_t p); // A static page has left quarantine.
};

} // namespace hicache
