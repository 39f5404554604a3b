// Opening an arena, its geometry, and looking at it.
#include "arena.hpp"

#include <algorithm>
#include <cstdio>

#include "arena_state.hpp"

namespace hicache {

static_assert(Arena::kUnmappedFirst == PageTable::kStateFirst);

Arena::Arena(std::unique_ptr<State> state) : state_(std::move(state)) {}
Arena::~Arena() = default;

// ---- Geometry ----

Chain Arena::State::snapshot(bool with_pins) const {
  Chain chain;
  chain.count = chain_count;
  chain.total_bytes = bytes;
  chain.sink_bytes = sink_bytes;
  for (uint32_t i = 0; i < chain_count; i++) {
    const Pool &pool = pools[chain_pools[i]];
    ChainPool &link = chain.pools[i];
    link.pool = pool.index;
    link.direction = pool.direction;
    link.page_bytes = pool.page_bytes;
    link.first_page = pool.first_page;
    link.page_count = pool.page_count;
    link.used = pool.used();
    link.span = pool.span();
    link.pinned = with_pins ? pool.pinned_hull() : kNowhere;
  }
  return chain;
}

ChainDemand Arena::State::in_chain(const Demand &demand) const {
  ChainDemand by_position;
  for (uint32_t i = 0; i < chain_count; i++) by_position.pages[i] = demand.pages[chain_pools[i]];
  return by_position;
}

void Arena::State::gaps(const Pool &pool, uint64_t *low_bytes_out, uint64_t *high_bytes_out) const {
  *low_bytes_out = *high_bytes_out = 0;
  if (pool.is_static) return;
  uint64_t below = sink_bytes, above = bytes; // Where the neighbours end and begin.
  bool passed = false;
  for (uint32_t i = 0; i < chain_count; i++) {
    const Pool &other = pools[chain_pools[i]];
    if (other.index == pool.index) {
      passed = true;
    } else if (other.low < other.high || other.direction == HICACHE_DIRECTION_DOWN) {
      if (!passed) below = other.high * other.page_bytes;
      else above = std::min(above, other.low * other.page_bytes);
    }
  }
  if (pool.low >= pool.high && pool.direction == HICACHE_DIRECTION_FLOAT) {
    *low_bytes_out = *high_bytes_out = above > below ? above - below : 0;
    return;
  }
  if (pool.direction != HICACHE_DIRECTION_UP) *low_bytes_out = pool.low * pool.page_bytes - below;
  if (pool.direction != HICACHE_DIRECTION_DOWN) *high_bytes_out = above - pool.high * pool.page_bytes;
}

Status Arena::State::check_pool(uint32_t pool, ErrorDetail *error) const {
  if (pool < pools.size()) return HICACHE_OK;
  return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pool is %u; there are %zu", pool, pools.size());
}

uint32_t Arena::pool_count() const { return static_cast<uint32_t>(state_->pools.size()); }
uint64_t Arena::bytes() const { return state_->bytes; }
const uint32_t *Arena::v2p(uint32_t pool) const { return state_->pools[pool].table.v2p_data(); }
const ArenaCounters &Arena::counters() const { return state_->counters; }

PoolInfo Arena::info(uint32_t pool_number) const {
  const Pool &pool = state_->pools[pool_number];
  return {pool.role,       pool.direction,  pool.owner,      pool.is_static,
          pool.page_bytes, pool.first_page, pool.page_count, pool.table.virtual_count()};
}

uint32_t Arena::owner_of(uint32_t pool) const { return state_->pools[pool].owner; }
uint32_t Arena::virtual_page_count(uint32_t pool) const { return state_->pools[pool].table.virtual_count(); }
uint64_t Arena::pages_at_once() const { return state_->pages_at_once; }
uint64_t Arena::held_pages_max() const { return state_->held_pages_max; }

uint64_t Arena::table_bytes() const {
  const State &s = *state_;
  uint64_t total = s.slab.bytes() + s.reservations.bytes() + s.leases.bytes() + s.steps.bytes() + s.streams.bytes() + s.overflow.bytes() +
                   s.caller_waits.bytes() + s.mover_waits.bytes() + s.moves.capacity() * sizeof(PageMove) +
                   s.zeros.capacity() * sizeof(PageZero) + s.copies.capacity() * sizeof(PageCopy);
  for (const Pool &pool : s.pools) total += pool.table_bytes();
  for (const PlaceTable &table : s.places) total += table.bytes();
  return total;
}

// ---- The mirror ----

Status Arena::publish_tables(ErrorDetail *error) {
  State &s = *state_;
  if (!s.mirrored) return HICACHE_OK;
  constexpr uint32_t kRun = 1024;
  uint32_t vpages[kRun], ppages[kRun];
  for (Pool &pool : s.pools) {
    while (!pool.changed.empty()) {
      const uint32_t run = std::min(pool.changed.size(), kRun);
      pool.changed.drain_from(0, run, vpages);
      for (uint32_t i = 0; i < run; i++) ppages[i] = pool.table.mapped(vpages[i]) ? pool.table.v2p(vpages[i]) : HICACHE_NO_PAGE;
      const Status status = s.mover->table_changed(pool.index, {vpages, run}, {ppages, run}, s.mirror_waits.marks(), error);
      if (status != HICACHE_OK) return status;
    }
  }
  s.mirror_waits.clear(0);
  return HICACHE_OK;
}

// ---- Looking inside ----

uint32_t Arena::place(uint32_t pool_number, uint32_t vpage) const {
  const Pool &pool = state_->pools[pool_number];
  return vpage < pool.table.virtual_count() && pool.table.mapped(vpage) ? pool.table.v2p(vpage) : HICACHE_NO_PAGE;
}

uint32_t Arena::vpage_at(uint32_t pool_number, uint32_t ppage) const {
  const Pool &pool = state_->pools[pool_number];
  const uint32_t name = pool.who_at(ppage);
  return name < PageTable::kStateFirst ? name : HICACHE_NO_PAGE;
}

Status Arena::inspect(uint32_t pool, const uint32_t *vpages, uint32_t page_count, uint32_t *ppages_out, ErrorDetail *error) const {
  if (const Status status = state_->check_pool(pool, error); status != HICACHE_OK) return status;
  for (uint32_t i = 0; i < page_count; i++) ppages_out[i] = place(pool, vpages[i]);
  return HICACHE_OK;
}

Status Arena::pool_stats(uint32_t pool_number, hicache_pool_stats_t *stats_out, ErrorDetail *error) const {
  const State &s = *state_;
  if (const Status status = s.check_pool(pool_number, error); status != HICACHE_OK) return status;
  const Pool &pool = s.pools[pool_number];
  stats_out->live_pages = pool.live;
  stats_out->hole_pages = pool.holes.size();
  stats_out->reserved_pages = pool.reserved;
  stats_out->quarantined_pages = pool.quarantined;
  stats_out->pinned_pages = pool.held.size();
  stats_out->span_low = pool.low;
  stats_out->span_high = pool.high;
  s.gaps(pool, &stats_out->gap_low_bytes, &stats_out->gap_high_bytes);
  stats_out->free_virtual_pages = s.pools[pool.owner].ids.size();
  return HICACHE_OK;
}

Status Arena::map(uint32_t pool_number, uint32_t first, uint32_t page_count, uint8_t *states_out, ErrorDetail *error) const {
  const State &s = *state_;
  if (const Status status = s.check_pool(pool_number, error); status != HICACHE_OK) return status;
  const Pool &pool = s.pools[pool_number];
  const unsigned long long end = uint64_t{first} + page_count;
  if (end > pool.page_count)
    return fail(error, HICACHE_INVALID_ARGUMENT, pool_number, "pool %u: pages [%u, %llu) pass its %u pages", pool_number, first, end,
                pool.page_count);
  for (uint32_t i = 0; i < page_count; i++) {
    const uint32_t p = first + i;
    uint32_t state = HICACHE_PAGE_GAP;
    const uint32_t name = pool.who_at(p);
    if (p < pool.first_page) state = HICACHE_PAGE_SINK;
    else if (name == PageTable::kReserved) state = HICACHE_PAGE_RESERVED;
    else if (name == PageTable::kQuarantined) state = HICACHE_PAGE_QUARANTINED;
    else if (name < PageTable::kStateFirst) state = HICACHE_PAGE_LIVE;
    else if (pool.holes.contains(p)) state = HICACHE_PAGE_HOLE;
    if (state >= HICACHE_PAGE_LIVE && state != HICACHE_PAGE_HOLE && pool.pins[p] > 0) state |= HICACHE_PAGE_PINNED;
    states_out[i] = static_cast<uint8_t>(state);
  }
  return HICACHE_OK;
}

// ---- Resize ----

// Pages of a pool that lie wholly in so many bytes.
static uint32_t pages_in(const Pool &pool, uint64_t bytes) { return static_cast<uint32_t>(bytes / pool.page_bytes); }

Status Arena::State::resize_to(uint64_t new_bytes, ErrorDetail *error) {
  const uint64_t old_bytes = bytes;
  const auto apply = [&](uint64_t size) {
    bytes = size;
    for (uint32_t i = 0; i < chain_count; i++) pools[chain_pools[i]].page_count = pages_in(pools[chain_pools[i]], size);
  };
  if (new_bytes < old_bytes) {
    // As a plan in an arena that ends earlier: what lies above the end is outside every new span.
    Chain chain = snapshot(true);
    chain.total_bytes = new_bytes;
    for (uint32_t i = 0; i < chain.count; i++) chain.pools[i].page_count = pages_in(pools[chain.pools[i].pool], new_bytes);
    const ChainDemand nothing;
    const bool may_move = compaction != HICACHE_COMPACTION_OFF;
    const bool fits_packed = chain_fits(chain, nothing, Hull::kNone);
    if (!fits_packed || !chain_fits(chain, nothing, Hull::kPinned) || (!may_move && !ends_below(new_bytes))) {
      const Status status = fits_packed ? HICACHE_MOVES_BLOCKED : HICACHE_NO_CAPACITY;
      uint64_t used = sink_bytes;
      for (uint32_t i = 0; i < chain_count; i++) used += pools[chain_pools[i]].used() * pools[chain_pools[i]].page_bytes;
      fail(error, status, HICACHE_NO_POOL, "%s: %s in %llu bytes", tier(),
           fits_packed ? "pages that may not move keep it from ending" : "its pages do not fit",
           static_cast<unsigned long long>(new_bytes));
      if (error != nullptr) {
        error->need_bytes = used;
        error->have_bytes = new_bytes;
      }
      return status;
    }
    const HoleSet *movable[kPoolMax] = {};
    for (uint32_t i = 0; i < chain.count; i++) movable[i] = &pools[chain.pools[i].pool].movable;
    const Layout layout = plan_compaction(chain, nothing, movable);
    for (uint32_t i = 0; i < chain.count; i++) { // A down end without pages has no span to take up: it is cut here.
      Pool &pool = pools[chain.pools[i].pool];
      if (pool.used() == 0) pool.retreat();
    }
    if (const Status status = execute(chain, layout, error); status != HICACHE_OK) return status;
    apply(new_bytes);
    for (uint32_t i = 0; i < chain_count; i++) {
      Pool &pool = pools[chain_pools[i]];
      if (pool.low >= pool.high && pool.direction != HICACHE_DIRECTION_UP) pool.low = pool.high = pool.page_count;
    }
    epoch++;
    return HICACHE_OK;
  }
  apply(new_bytes);
  for (uint32_t i = 0; i < chain_count; i++) {
    Pool &pool = pools[chain_pools[i]];
    if (pool.direction == HICACHE_DIRECTION_UP) continue;
    if (pool.low >= pool.high) pool.low = pool.high = pool.page_count;
    else if (pool.direction == HICACHE_DIRECTION_DOWN) pool.adopt(pool.high, pool.page_count); // Its end moves up: the new pages are holes.
  }
  for (Pool &pool : pools) { // Names for the new pages, once.
    if (!pool.owns_ids() || pool.is_static || !pool.names_grow) continue;
    for (; pool.id_count < pool.page_count; pool.id_count++) pool.ids.give(pool.id_count);
    for (Pool &other : pools)
      if (other.owner == pool.index) other.id_count = pool.id_count;
  }
  epoch++;
  return HICACHE_OK;
}

// Whether every span ends below the byte as it is.
bool Arena::State::ends_below(uint64_t byte) const {
  for (uint32_t i = 0; i < chain_count; i++) {
    const Pool &pool = pools[chain_pools[i]];
    const uint32_t top = std::max(pool.movable.empty() ? 0 : pool.movable.highest() + 1, pool.held.empty() ? 0 : pool.held.highest() + 1);
    if (top * pool.page_bytes > byte) return false;
  }
  return true;
}

Status Arena::resize(uint64_t bytes, ErrorDetail *error) {
  State &s = *state_;
  if (bytes > s.bytes_max)
    return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "%s: %llu bytes pass the %llu reserved at open", s.tier(),
                static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(s.bytes_max));
  return s.resize_to(bytes, error);
}

} // namespace hicache
