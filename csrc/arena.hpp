// One arena: pools of pages over one range of bytes, their tables, pins, reservations and moves. The device tier and the host tier are
// the same class over two memories.
//
// Threads: none of its own and no lock. The engine holds its one mutex around every call. Nothing waits.
// Memory:  all taken in open(); no call allocates afterwards, except verify().
// Errors:  as in hicache.h: a failing call has changed nothing. `error` may be null everywhere.
// Arrays:  pages are uint32_t at this edge, as in hicache.h; vpages means virtual ids (host tier: hicache_hpage_t).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hicache.h"
#include "ids.hpp"
#include "mover.hpp"
#include "status.hpp"
#include "work_board.hpp"

namespace hicache {

// A pool as the arena sees it: geometry of layers and rows is the engine's.
struct PoolSpec {
  uint32_t role = HICACHE_ROLE_FULL;
  uint32_t direction = HICACHE_DIRECTION_AUTO; // AUTO is resolved by open(); see Arena::info.
  uint32_t page_tokens = 1;
  uint32_t window_tokens = 0; // SWA only.
  uint64_t page_bytes = 0;
  uint32_t virtual_page_count = 0;       // As in hicache_pool_options_t.
  uint32_t zeroing = HICACHE_ZERO_NEVER; // Resolved: not DEFAULT.
  bool is_static = false;                // Outside the chain: own pages, physical id == virtual id.
  bool is_separate = false;              // Host only: outside the chain, virtual_page_count pages of its own, which move.
};

struct ArenaOptions {
  std::vector<PoolSpec> pools; // 1..16, in the order of the ABI's pool numbers.
  uint64_t bytes = 0;
  uint64_t bytes_max = 0; // Range that resize may use; 0 = bytes. Tables are sized for it.
  bool host = false;      // Host rules: no sink; every pool names its own pages, lowest free name first; pages are handed out
                          // nearest the pool's own end first (device: ascending); marks of ids and messages say host.
  uint32_t compaction = HICACHE_COMPACTION_LAZY;
  uint32_t placement = HICACHE_PLACEMENT_BEST;
  uint32_t request_tokens_max = 0; // open() refuses (INFEASIBLE) if one request of so many tokens can never fit; 0: one page a pool.
  uint32_t reservation_max = 1024;
  uint32_t lease_max = 4096;
  uint32_t step_max = 256;
  uint64_t held_pages_max = 0; // Page entries of all holders together; 0 = the pages that can be in use at once, at least 64 Ki.
  uint32_t engine_serial = 0;  // Mixed into ids, so that those of another engine are stale here.
  bool ignore_pins = false;    // HICACHE_SABOTAGE_IGNORE_PINS; only in builds with HICACHE_SABOTAGE.
  Mover *mover = nullptr;      // Borrowed; null moves tables only.
  bool mirrored = false;       // The mover keeps a mirror of the virtual tables: see publish_tables.
  // Borrowed. With a board the mover's work ends in any order, after its call: waits then name the mover's own marks too, and a host arena
  // keeps fences. Without, it is done in the order asked for.
  const WorkBoard *board = nullptr;
};

// A list of pinned pages of one holder, in the arena's entry slab. The engine keeps one per ticket and arena. Plain data; must go back
// to unpin() exactly once.
struct PinList {
  uint32_t head = UINT32_MAX; // Chunk index.
  uint32_t tail = UINT32_MAX;
  uint32_t count = 0;
};

// A line of a batch's page tables: the pages of one sequence in one pool.
struct StepLine {
  uint32_t pool;
  uint32_t place; // Of the line among all that a batch can have: equal for the same line of the next step.
  uint32_t count;
  uint32_t sinks;                 // Pages without a page in the pool: 0 in ids.
  const hicache_kernel_id_t *ids; // Their places.
  const hicache_vpage_t *vpages;
};

// One line of a take; layout of hicache_take_t and hicache_host_take_t.
using Take = hicache_take_t;

struct PoolInfo {
  uint32_t role;
  uint32_t direction; // Resolved.
  uint32_t owner;     // Pool that hands out the virtual ids.
  bool is_static;
  uint64_t page_bytes;
  uint32_t first_page;
  uint32_t page_count;         // At the arena's present size.
  uint32_t virtual_page_count; // Length of the v2p table.
};

struct ArenaCounters {
  uint64_t takes = 0, takes_refused = 0, frees = 0, frees_quarantined = 0; // frees_quarantined in pages.
  uint64_t pages_taken = 0, pages_freed = 0;
  uint64_t reservations = 0, cancels = 0, binds = 0;
  uint64_t moves = 0, moved_bytes = 0;
  uint64_t moves_blocked = 0; // Takes refused because pinned pages could not move.
  uint64_t zeroed_bytes = 0;
  uint64_t fence_waits_moves = 0, fence_waits_zeroes = 0; // Marks handed to the mover.
  uint64_t fence_waits_takes = 0;                         // Stays 0: takes and frees wait for nothing.
  uint64_t fence_overflows = 0;                           // Pages whose fences were widened because the overflow table was full.
  uint64_t capacity_recomputes = 0;
  uint64_t leases_total = 0, steps_total = 0;
};

class Arena {
public:
  // INVALID_ARGUMENT naming the pool and field, INFEASIBLE itemised per pool. *arena_out is set on success.
  static Status open(const ArenaOptions &options, std::unique_ptr<Arena> *arena_out, ErrorDetail *error);
  ~Arena();
  Arena(const Arena &) = delete;
  Arena &operator=(const Arena &) = delete;

  // ---- Taking and giving back: hicache_alloc, hicache_host_alloc, hicache_free, hicache_host_free, hicache_extend ----

  Status take(std::span<const Take> takes, ErrorDetail *error);
  Status free(std::span<const hicache_pages_t> frees, ErrorDetail *error);
  Status extend(uint32_t owner_pool, std::span<hicache_sequence_t> sequences, ErrorDetail *error);
  // Whether such an extension is certain to succeed without a move, whatever open steps pin. False says nothing.
  bool extends_in_place(uint32_t owner_pool, std::span<const hicache_sequence_t> sequences) const;

  // ---- Reservations ----

  Status reserve(std::span<const Take> takes, hicache_reservation_t *reservation_out, ErrorDetail *error);
  Status cancel(hicache_reservation_t reservation, ErrorDetail *error);
  Status reservation_pages(hicache_reservation_t reservation, uint32_t pool, uint32_t *ppages_out, uint32_t capacity, uint32_t *count_out,
                           ErrorDetail *error) const;

  // The bind half of hicache_load: names the reserved pages by `copies` (device_page of each) and `binds`, gives the rest back, ends the
  // reservation. The pages of `copies` stay pinned in *pins (which must be empty) and their places go to places_out[copies.size()].
  // Pages of `binds` are zeroed as their pool says and are not pinned.
  // `waits` (may be null) gets the closed steps that the copies must follow; valid until the next call on this arena.
  Status bind(hicache_reservation_t reservation, std::span<const hicache_copy_t> copies, std::span<const hicache_bind_t> binds,
              PinList *pins, uint32_t *places_out, std::span<const FenceMark> *waits, ErrorDetail *error);

  // ---- Pins of tickets ----

  // Pins the pages that `copies` name on this tier (device_page, or host_page in a host arena) for a ticket and writes their places.
  // NOT_MAPPED naming the first bad id and pool; LIMIT. `waits` as in bind().
  Status pin_copies(std::span<const hicache_copy_t> copies, PinList *pins, uint32_t *places_out, std::span<const FenceMark> *waits,
                    ErrorDetail *error);
  // Ends a holder's pins: quarantined pages whose last pin this was become free. Empties *pins. Cannot fail.
  void unpin(PinList *pins);
  // Whether the list holds this page: to name the ticket that blocks a take. O(list).
  bool pins_page(const PinList &pins, uint32_t pool, uint32_t ppage) const;

  // ---- Leases and steps ----

  Status lease_acquire(std::span<const hicache_pages_t> pages, hicache_lease_t *lease_out, ErrorDetail *error);
  // As lease_acquire; writes the places of all pages in order to places_out (hicache_host_view) and, with a board, the fences on them to
  // *waits. Either may be null.
  Status lease_acquire_places(std::span<const hicache_pages_t> pages, uint32_t *places_out, hicache_lease_t *lease_out,
                              std::span<const FenceMark> *waits, ErrorDetail *error);
  Status lease_release(hicache_lease_t lease, ErrorDetail *error);
  // `waits` (may be null) gets the fences of other streams on these pages, for which `stream` must wait on the device.
  Status step_open(uint64_t stream, std::span<const hicache_pages_t> pages, hicache_step_t *step_out, std::span<const FenceMark> *waits,
                   ErrorDetail *error);
  // A batch's step: closes `previous` (0: none; else can_follow) and opens a step on the pages of the lines, which lie in the order of
  // their places, and on `pages`. What `previous` held already stays pinned. On errors `previous` is closed too and nothing is held.
  // by_line = false: in a plain list, which takes less room.
  Status step_follow(hicache_step_t previous, uint64_t stream, std::span<const StepLine> lines, std::span<const hicache_pages_t> pages,
                     bool by_line, hicache_step_t *step_out, std::span<const FenceMark> *waits, ErrorDetail *error);
  bool can_follow(hicache_step_t step, uint64_t stream) const;
  // The mark that closing the step will leave. The engine has it recorded on the step's stream first: closing may move pages, and the moves
  // wait for it.
  Status step_mark(hicache_step_t step, FenceMark *mark_out, ErrorDetail *error) const;
  // *mark_out (may be null) names the closed step.
  Status step_close(hicache_step_t step, FenceMark *mark_out, ErrorDetail *error);
  // Ends an open step in which nothing was enqueued, whose id nobody has: its pages get no fence but those they carried.
  void step_abandon(hicache_step_t step);
  // Tells the mover's mirror what has changed in the virtual tables since the last call: before a step, whose kernels may read it. Nothing
  // without `mirrored`. O(changed names).
  Status publish_tables(ErrorDetail *error);
  bool is_lease(uint64_t id) const; // A lease of this arena that is held now.
  bool is_step(uint64_t id) const;  // An open step of this arena.
  uint32_t lease_count() const;
  uint32_t step_count() const;
  uint32_t reservation_count() const;

  // Everything up to this mark of its stream has ended on the device: no wait is needed for it any more. Optional: without it waits are
  // handed out that end at once.
  void fence_passed(FenceMark mark);
  // Whether a step on this stream is refused until more is known to have passed; then the last marks of all streams, by slot: ask which.
  bool lacks_stream(uint64_t stream) const;
  FenceMark latest_mark(uint32_t slot) const;
  uint32_t stream_slots() const;           // kMoverSlot + 1 and so on up to this.
  uint64_t stream_of(uint32_t slot) const; // The caller's stream behind a mark's slot.

  // ---- Compaction and capacity ----

  Status compact(const hicache_compact_budget_t &budget, hicache_compact_result_t *result_out, ErrorDetail *error);
  Status set_compaction(uint32_t compaction, ErrorDetail *error);
  Status fits(std::span<const hicache_demand_t> demands, ErrorDetail *error);
  Status capacity(uint32_t pool, hicache_capacity_t *capacity_out, ErrorDetail *error);
  Status reclaim_plan(std::span<const hicache_demand_t> demands, const uint64_t *evictable_pages, uint32_t preference, uint64_t *quotas_out,
                      ErrorDetail *error);
  // Geometry only: the engine backs or unbacks the memory. Live pages above the new end have moved when it returns OK.
  Status resize(uint64_t bytes, ErrorDetail *error);

  // ---- Looking inside ----

  uint32_t pool_count() const;
  uint64_t bytes() const;
  PoolInfo info(uint32_t pool) const;
  // Single fields of it, for checks on the way to every call.
  uint32_t owner_of(uint32_t pool) const;
  uint32_t virtual_page_count(uint32_t pool) const;
  // v2p of a pool, info().virtual_page_count entries at an address that never changes. An entry of kUnmappedFirst or more is unmapped.
  const uint32_t *v2p(uint32_t pool) const;
  static constexpr uint32_t kUnmappedFirst = 0xfffffff0u;
  // The page's place, HICACHE_NO_PAGE where unmapped or out of range.
  uint32_t place(uint32_t pool, uint32_t vpage) const;
  // The virtual page at a place, HICACHE_NO_PAGE if none (also reserved, quarantined).
  uint32_t vpage_at(uint32_t pool, uint32_t ppage) const;
  Status inspect(uint32_t pool, const uint32_t *vpages, uint32_t page_count, uint32_t *ppages_out, ErrorDetail *error) const;
  Status pool_stats(uint32_t pool, hicache_pool_stats_t *stats_out, ErrorDetail *error) const; // Leaves struct_size alone.
  Status map(uint32_t pool, uint32_t first, uint32_t page_count, uint8_t *states_out, ErrorDetail *error) const;
  const ArenaCounters &counters() const;
  uint64_t table_bytes() const; // Memory of all tables.
  // Pages that can be in use at once at the arena's largest, and page entries that all holders together can have.
  uint64_t pages_at_once() const;
  uint64_t held_pages_max() const;
  // Recomputes every invariant from scratch; empty if all hold, else one violation a line. O(arena).
  std::string verify() const;

  struct State; // arena_state.hpp: for the files that carry these calls out, and for white-box tests.
  State &state() { return *state_; }

private:
  explicit Arena(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

} // namespace hicache
