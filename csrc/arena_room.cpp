// Room for a demand: whether there is, what must move for it, and why there is none. One predicate (capacity.hpp) for all who ask.
#include <algorithm>

#include "arena_state.hpp"

namespace hicache {

// Static pages and names do not come by moving: their room is what is free.
Status Arena::State::check_fixed(const Demand &demand, ErrorDetail *error) const {
  for (const Pool &pool : pools) {
    const uint32_t wanted = demand.pages[pool.index];
    if (wanted == 0) continue;
    const uint32_t names = pool.owns_ids() ? pool.ids.size() : UINT32_MAX;
    const uint32_t room = pool.is_static ? std::min(names, pool.holes.size()) : names;
    if (wanted <= room) continue;
    fail(error, HICACHE_NO_CAPACITY, pool.index, "pool %u: %u pages wanted, %u %s free", pool.index, wanted, room,
         pool.is_separate ? "pages of its region"
         : pool.is_static ? "static pages"
                          : "virtual ids");
    if (error != nullptr) {
      error->need_bytes = wanted * pool.page_bytes;
      error->have_bytes = room * pool.page_bytes;
      error->pending_bytes = pool.quarantined * pool.page_bytes;
    }
    return HICACHE_NO_CAPACITY;
  }
  return HICACHE_OK;
}

Status Arena::State::check_room(const Demand &demand, ErrorDetail *error) const {
  if (const Status status = check_fixed(demand, error); status != HICACHE_OK) return status;
  bool out_of_holes = true; // No pool needs a page that it does not hold already.
  for (const Pool &pool : pools) out_of_holes &= demand.pages[pool.index] <= pool.holes.size();
  if (out_of_holes) return HICACHE_OK;
  const Chain chain = snapshot(true);
  const ChainDemand wanted = in_chain(demand);
  if (chain_fits(chain, wanted, Hull::kSpan)) return HICACHE_OK;
  if (compaction != HICACHE_COMPACTION_OFF && chain_fits(chain, wanted, Hull::kPinned)) return HICACHE_OK;
  return refuse(demand, error);
}

// The demand does not fit as things are: says which of the reasons it is.
Status Arena::State::refuse(const Demand &demand, ErrorDetail *error) const {
  const Chain chain = snapshot(true);
  const ChainDemand wanted = in_chain(demand);
  uint32_t start[kPoolMax];
  ChainFault fault;
  const bool fits_unpinned = pack_left(chain, wanted, Hull::kNone, start, nullptr);
  const bool fits_pinned = pack_left(chain, wanted, Hull::kPinned, start, &fault);
  const Status status = fits_unpinned ? HICACHE_MOVES_BLOCKED : HICACHE_NO_CAPACITY;
  if (error == nullptr) return status;

  uint64_t need = 0, used = 0, pending = 0;
  uint32_t wanting = 0, wanting_pool = HICACHE_NO_POOL;
  for (const Pool &pool : pools) {
    if (pool.is_static) continue;
    need += demand.pages[pool.index] * pool.page_bytes;
    used += pool.used() * pool.page_bytes;
    pending += pool.quarantined * pool.page_bytes;
    if (demand.pages[pool.index] > 0) {
      wanting++;
      wanting_pool = pool.index;
    }
  }
  const Hull hull = compaction == HICACHE_COMPACTION_OFF ? Hull::kSpan : Hull::kPinned;
  const uint64_t free_bytes = bytes > sink_bytes + used ? bytes - sink_bytes - used : 0;
  uint64_t have = std::min(free_bytes, need);
  if (wanting == 1) {
    for (uint32_t i = 0; i < chain.count; i++)
      if (chain.pools[i].pool == wanting_pool) have = chain_room(chain, i, hull) * chain.pools[i].page_bytes;
  } else {
    wanting_pool = HICACHE_NO_POOL;
  }
  // A pinned page that stands in the way; for lack of room, one in quarantine would be as good: both end with their holder.
  uint32_t blocking_pool = HICACHE_NO_POOL, blocking_page = HICACHE_NO_PAGE;
  const auto look_at = [&](const Pool &pool) {
    if (blocking_pool != HICACHE_NO_POOL || pool.held.empty()) return;
    blocking_pool = pool.index;
    blocking_page = pool.direction == HICACHE_DIRECTION_UP ? pool.held.highest() : pool.held.lowest();
  };
  if (fits_unpinned && !fits_pinned) {
    look_at(pools[chain.pools[fault.position].pool]); // Its own hull, or else one that pushed it there.
    for (uint32_t i = fault.position; i-- > 0;) look_at(pools[chain.pools[i].pool]);
  } else if (!fits_unpinned) {
    for (const Pool &pool : pools)
      if (pool.quarantined > 0) look_at(pool);
  }
  const char *reason = "the arena is full";
  if (fits_unpinned) reason = fits_pinned ? "compaction is off" : "pinned pages cannot move";
  fail(error, status, wanting_pool, "%s: %s; %llu bytes wanted, %llu to be had, %llu pending", tier(), reason,
       static_cast<unsigned long long>(need), static_cast<unsigned long long>(have), static_cast<unsigned long long>(pending));
  error->need_bytes = need;
  error->have_bytes = have;
  error->pending_bytes = pending;
  error->blocking_pool = blocking_pool;
  error->blocking_page = blocking_page;
  return status;
}

// Takes free pages beside the spans in as holes, until each pool has as many holes as are wanted of it. Precondition: that needs no move.
void Arena::State::adopt_shortfall(const Demand &demand) {
  bool float_short = false;
  for (uint32_t i = 0; i < chain_count; i++) {
    Pool &pool = pools[chain_pools[i]];
    const uint32_t wanted = demand.pages[pool.index];
    float_short |= pool.direction == HICACHE_DIRECTION_FLOAT && wanted > pool.holes.size();
  }
  Layout layout;
  if (float_short) layout = lay_out(snapshot(false), in_chain(demand), Hull::kSpan, Sweep::kFromLow);
  for (uint32_t i = 0; i < chain_count; i++) {
    Pool &pool = pools[chain_pools[i]];
    const uint32_t wanted = demand.pages[pool.index];
    if (wanted <= pool.holes.size()) continue;
    const uint32_t short_by = wanted - pool.holes.size();
    const auto adopt = [&](uint32_t from, uint32_t to) {
      pool.adopt(from, to);
      inherit_fences(&pool, from, to);
    };
    if (pool.direction == HICACHE_DIRECTION_UP) {
      adopt(pool.high, pool.high + short_by);
    } else if (pool.direction == HICACHE_DIRECTION_DOWN) {
      adopt(pool.low - short_by, pool.low);
    } else {
      const PageSpan &span = layout.spans[i];
      if (pool.low >= pool.high) {
        adopt(span.low, span.high);
      } else {
        adopt(span.low, pool.low);
        adopt(pool.high, span.high);
      }
    }
  }
}

// The common case without a division: only ends are short of holes, and what they want lies free before their frontiers. False says
// nothing.
bool Arena::State::ends_can_grow(const Demand &demand) const {
  uint64_t end_byte = 0;
  for (uint32_t i = 0; i < chain_count; i++) {
    const Pool &pool = pools[chain_pools[i]];
    const uint32_t wanted = demand.pages[pool.index];
    const uint32_t short_by = wanted > pool.holes.size() ? wanted - pool.holes.size() : 0;
    uint64_t low = pool.low, high = pool.high;
    if (short_by > 0) {
      if (pool.direction == HICACHE_DIRECTION_FLOAT || short_by > pool.page_count) return false;
      if (pool.direction == HICACHE_DIRECTION_UP) high += short_by;
      else if (low < short_by + uint64_t{pool.first_page}) return false;
      else low -= short_by;
    }
    if (low >= high) continue;
    if (low * pool.page_bytes < end_byte || high > pool.page_count) return false;
    end_byte = high * pool.page_bytes;
  }
  return true;
}

Status Arena::State::make_room(const Demand &demand, ErrorDetail *error) {
  if (const Status status = check_fixed(demand, error); status != HICACHE_OK) return status;
  bool out_of_holes = true;
  for (const Pool &pool : pools) out_of_holes &= demand.pages[pool.index] <= pool.holes.size();
  if (out_of_holes) return HICACHE_OK;
  if (ends_can_grow(demand)) {
    adopt_shortfall(demand);
    return HICACHE_OK;
  }

  const ChainDemand wanted = in_chain(demand);
  if (!chain_fits(snapshot(false), wanted, Hull::kSpan)) {
    if (compaction == HICACHE_COMPACTION_OFF || !chain_fits(snapshot(true), wanted, Hull::kPinned)) return refuse(demand, error);
    if (placement == HICACHE_PLACEMENT_REFERENCE) { // There the neighbours pack whole before anything is measured again.
      for (uint32_t i = 0; i < chain_count; i++) {
        Pool &pool = pools[chain_pools[i]];
        uint64_t moved;
        if (pool.direction == HICACHE_DIRECTION_FLOAT) continue;
        if (const Status status = pack(&pool, UINT64_MAX, &moved, error); status != HICACHE_OK) return status;
      }
    }
    const Chain chain = snapshot(true);
    if (!chain_fits(chain, wanted, Hull::kSpan)) {
      const HoleSet *movable[kPoolMax] = {};
      for (uint32_t i = 0; i < chain.count; i++) movable[i] = &pools[chain.pools[i].pool].movable;
      if (const Status status = execute(chain, plan_compaction(chain, wanted, movable), error); status != HICACHE_OK) return status;
    }
  }
  adopt_shortfall(demand);
  return HICACHE_OK;
}

// ---- Calls ----

Status Arena::fits(std::span<const hicache_demand_t> demands, ErrorDetail *error) {
  Demand demand;
  for (const hicache_demand_t &line : demands) {
    if (const Status status = state_->check_pool(line.pool, error); status != HICACHE_OK) return status;
    const uint64_t sum = uint64_t{demand.pages[line.pool]} + line.page_count;
    demand.pages[line.pool] = static_cast<uint32_t>(std::min<uint64_t>(sum, kPageCountMax)); // More than any pool has: fits nowhere.
  }
  return state_->check_room(demand, error);
}

Status Arena::capacity(uint32_t pool_number, hicache_capacity_t *capacity_out, ErrorDetail *error) {
  State &s = *state_;
  if (const Status status = s.check_pool(pool_number, error); status != HICACHE_OK) return status;
  State::CapacityMemo &memo = s.capacity_memo[pool_number];
  if (memo.epoch != s.epoch) {
    s.counters.capacity_recomputes++;
    memo.capacity = s.compute_capacity(pool_number);
    memo.epoch = s.epoch;
  }
  *capacity_out = memo.capacity;
  return HICACHE_OK;
}

hicache_capacity_t Arena::State::compute_capacity(uint32_t pool_number) const {
  const Pool &pool = pools[pool_number];
  hicache_capacity_t capacity = {};
  capacity.pending_pages = pool.quarantined;
  if (pool.is_static) {
    capacity.available_pages = capacity.schedulable_pages = pool.holes.size();
  } else {
    const Chain chain = snapshot(true);
    uint32_t position = 0;
    while (chain.pools[position].pool != pool_number) position++;
    capacity.available_pages = chain_room(chain, position, Hull::kFrontier);
    capacity.schedulable_pages =
        compaction == HICACHE_COMPACTION_OFF ? capacity.available_pages : chain_room(chain, position, Hull::kPinned);
  }
  if (pool.owns_ids()) {
    capacity.available_pages = std::min<uint64_t>(capacity.available_pages, pool.ids.size());
    capacity.schedulable_pages = std::min<uint64_t>(capacity.schedulable_pages, pool.ids.size());
  }
  return capacity;
}

Status Arena::reclaim_plan(std::span<const hicache_demand_t> demands, const uint64_t *evictable_pages, uint32_t preference,
                           uint64_t *quotas_out, ErrorDetail *error) {
  const State &s = *state_;
  if (preference > HICACHE_RECLAIM_SWA_FIRST)
    return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "preference is %u; it may be 0 (full first) or 1 (swa first)",
                preference);
  Demand demand;
  for (const hicache_demand_t &line : demands) {
    if (const Status status = s.check_pool(line.pool, error); status != HICACHE_OK) return status;
    const uint64_t sum = uint64_t{demand.pages[line.pool]} + line.page_count;
    demand.pages[line.pool] = static_cast<uint32_t>(std::min<uint64_t>(sum, kPageCountMax));
  }
  uint64_t quotas[kPoolMax] = {};
  // Names and static pages: a page given back brings one of each.
  for (const Pool &pool : s.pools) {
    if (!pool.is_static && !pool.owns_ids()) continue;
    const uint64_t room =
        pool.is_static ? std::min<uint64_t>(pool.holes.size(), pool.owns_ids() ? pool.ids.size() : UINT32_MAX) : pool.ids.size();
    const uint64_t wanted = demand.pages[pool.index];
    if (wanted <= room) continue;
    quotas[pool.index] = wanted - room;
    if (quotas[pool.index] > std::min<uint64_t>(evictable_pages[pool.index], pool.used())) return s.refuse_reclaim(demand, error);
  }
  const Chain chain = s.snapshot(true);
  ChainDemand wanted = s.in_chain(demand);
  uint64_t evictable[kPoolMax], quota[kPoolMax];
  uint32_t spare_first[kPoolMax], spared = 0;
  const uint32_t first_spared = preference == HICACHE_RECLAIM_FULL_FIRST ? HICACHE_ROLE_SWA : HICACHE_ROLE_FULL;
  const uint32_t last_spared = preference == HICACHE_RECLAIM_FULL_FIRST ? HICACHE_ROLE_FULL : HICACHE_ROLE_SWA;
  for (const uint32_t role : {first_spared, uint32_t{HICACHE_ROLE_STATE}, last_spared})
    for (uint32_t i = 0; i < chain.count; i++)
      if (s.pools[chain.pools[i].pool].role == role) spare_first[spared++] = i;
  for (uint32_t i = 0; i < chain.count; i++) evictable[i] = evictable_pages[chain.pools[i].pool];
  const Hull hull = s.compaction == HICACHE_COMPACTION_OFF ? Hull::kSpan : Hull::kPinned;
  if (!plan_reclaim(chain, wanted, hull, evictable, spare_first, quota)) return s.refuse_reclaim(demand, error);
  for (uint32_t i = 0; i < chain.count; i++) quotas[chain.pools[i].pool] = std::max(quotas[chain.pools[i].pool], quota[i]);
  std::copy_n(quotas, s.pools.size(), quotas_out);
  return HICACHE_OK;
}

// As a refused take, but never as if moves could help: the caller has asked what eviction can do.
Status Arena::State::refuse_reclaim(const Demand &demand, ErrorDetail *error) const {
  refuse(demand, error);
  if (error != nullptr) error->status = HICACHE_NO_CAPACITY;
  return HICACHE_NO_CAPACITY;
}

} // namespace hicache
