// Opening an arena: which pool owns which ids, who lies where in the chain, what one request needs; then all memory at once.
#include <algorithm>
#include <cstdio>

#include "arena_state.hpp"

namespace hicache {
namespace {

const char *role_name(uint32_t role) {
  switch (role) {
    case HICACHE_ROLE_FULL: return "FULL";
    case HICACHE_ROLE_SWA: return "SWA";
    default: return "STATE";
  }
}

uint32_t pages_for(uint64_t tokens, uint32_t page_tokens) { return static_cast<uint32_t>((tokens + page_tokens - 1) / page_tokens); }

} // namespace

Status Arena::State::set_up_pool(const PoolSpec &spec, uint32_t index, ErrorDetail *error) {
  const auto refuse_field = [&](const char *what) { return fail(error, HICACHE_INVALID_ARGUMENT, index, "pool %u: %s", index, what); };
  if (spec.role < HICACHE_ROLE_FULL || spec.role > HICACHE_ROLE_STATE) return refuse_field("role must be FULL, SWA or STATE");
  if (spec.direction > HICACHE_DIRECTION_DOWN) return refuse_field("direction must be 0 (auto), 1 (up), 2 (float) or 3 (down)");
  if (spec.page_bytes == 0) return refuse_field("page_bytes is 0");
  if (spec.page_tokens == 0) return refuse_field("page_tokens is 0");
  if (spec.role == HICACHE_ROLE_STATE && spec.page_tokens != 1) return refuse_field("page_tokens of a STATE pool must be 1");
  if (spec.role == HICACHE_ROLE_SWA && spec.window_tokens == 0) return refuse_field("window_tokens of an SWA pool must not be 0");
  if (spec.role == HICACHE_ROLE_SWA && !host && spec.virtual_page_count != 0)
    return refuse_field("virtual_page_count of an SWA pool must be 0: the FULL pool names its pages");
  if (spec.zeroing < HICACHE_ZERO_ALWAYS || spec.zeroing > HICACHE_ZERO_NEVER) return refuse_field("zeroing must be ALWAYS, TAIL or NEVER");
  Pool &pool = pools[index];
  pool.index = index;
  pool.owner = index;
  pool.role = spec.role;
  pool.direction = spec.is_separate ? HICACHE_DIRECTION_UP : spec.direction; // Its low pages are handed out first.
  pool.page_tokens = spec.page_tokens;
  pool.window_tokens = spec.window_tokens;
  pool.zeroing = spec.zeroing;
  pool.is_static = spec.is_static || spec.is_separate;
  pool.is_separate = spec.is_separate;
  pool.page_bytes = spec.page_bytes;
  pool.id_count = spec.virtual_page_count; // Refined in set_up_places.
  return HICACHE_OK;
}

Status Arena::State::set_up_groups(ErrorDetail *error) {
  if (host) return HICACHE_OK; // Every pool names its own pages.
  uint32_t full = HICACHE_NO_POOL;
  for (const Pool &pool : pools) {
    if (pool.role != HICACHE_ROLE_FULL) continue;
    if (full != HICACHE_NO_POOL)
      return fail(error, HICACHE_INVALID_ARGUMENT, pool.index, "pools %u and %u are both FULL", full, pool.index);
    full = pool.index;
  }
  for (Pool &pool : pools) {
    if (pool.role != HICACHE_ROLE_SWA) continue;
    if (full == HICACHE_NO_POOL)
      return fail(error, HICACHE_INVALID_ARGUMENT, pool.index, "pool %u is SWA, but there is no FULL pool to name its pages", pool.index);
    if (pool.page_tokens != pools[full].page_tokens)
      return fail(error, HICACHE_INVALID_ARGUMENT, pool.index, "pool %u: page_tokens is %u, in its group's FULL pool %u it is %u",
                  pool.index, pool.page_tokens, full, pools[full].page_tokens);
    pool.owner = full;
    pools[full].window_bits |= 1u << pool.index;
  }
  for (const Pool &pool : pools)
    if (pool.is_static) pools[pool.owner].withholds_ids = true;
  return HICACHE_OK;
}

Status Arena::State::set_up_chain(ErrorDetail *error) {
  uint32_t up = HICACHE_NO_POOL, down = HICACHE_NO_POOL, members = 0;
  for (const Pool &pool : pools) {
    if (pool.is_static) continue;
    members++;
    uint32_t *end = pool.direction == HICACHE_DIRECTION_UP ? &up : pool.direction == HICACHE_DIRECTION_DOWN ? &down : nullptr;
    if (end == nullptr) continue;
    if (*end != HICACHE_NO_POOL)
      return fail(error, HICACHE_INVALID_ARGUMENT, pool.index, "pools %u and %u have the same direction, %s; an arena has one such end",
                  *end, pool.index, end == &up ? "up" : "down");
    *end = pool.index;
  }
  // AUTO: a lone pool and FULL go down, the first STATE, or else SWA, goes up, the others float.
  const auto is_auto = [&](const Pool &pool) { return !pool.is_static && pool.direction == HICACHE_DIRECTION_AUTO; };
  for (Pool &pool : pools) {
    if (!is_auto(pool) || down != HICACHE_NO_POOL || (members > 1 && pool.role != HICACHE_ROLE_FULL)) continue;
    pool.direction = HICACHE_DIRECTION_DOWN;
    down = pool.index;
  }
  for (const uint32_t role : {HICACHE_ROLE_STATE, HICACHE_ROLE_SWA}) {
    for (Pool &pool : pools) {
      if (!is_auto(pool) || up != HICACHE_NO_POOL || pool.role != role) continue;
      pool.direction = HICACHE_DIRECTION_UP;
      up = pool.index;
    }
  }
  if (up != HICACHE_NO_POOL) chain_pools[chain_count++] = up;
  for (Pool &pool : pools) {
    if (pool.is_static || pool.index == up || pool.index == down) continue;
    pool.direction = HICACHE_DIRECTION_FLOAT;
    chain_pools[chain_count++] = pool.index;
  }
  if (down != HICACHE_NO_POOL) chain_pools[chain_count++] = down;
  return HICACHE_OK;
}

Status Arena::State::set_up_places(const ArenaOptions &options, ErrorDetail *error) {
  for (const Pool &pool : pools)
    if (!host && !pool.is_static) sink_bytes = std::max(sink_bytes, pool.page_bytes);
  for (Pool &pool : pools) {
    if (pool.is_static) continue;
    if (bytes_max / pool.page_bytes >= kPageCountMax)
      return fail(error, HICACHE_INVALID_ARGUMENT, pool.index, "pool %u: more than %u pages of %llu bytes", pool.index, kPageCountMax - 1,
                  static_cast<unsigned long long>(pool.page_bytes));
    pool.first_page = static_cast<uint32_t>((sink_bytes + pool.page_bytes - 1) / pool.page_bytes);
    pool.page_count = static_cast<uint32_t>(bytes / pool.page_bytes);
    pool.page_count_max = static_cast<uint32_t>(bytes_max / pool.page_bytes);
  }
  for (Pool &pool : pools) { // Owners before the pools that follow them.
    if (!pool.owns_ids()) continue;
    const uint32_t wanted = options.pools[pool.index].virtual_page_count;
    if (pool.is_static) {
      if (wanted == 0 || wanted >= kPageCountMax)
        return fail(error, HICACHE_INVALID_ARGUMENT, pool.index, "static pool %u: virtual_page_count must be in [1, %u)", pool.index,
                    kPageCountMax);
      pool.first_page = host ? 0 : 1;
      pool.page_count = pool.page_count_max = wanted;
    }
    if (wanted >= kPageCountMax)
      return fail(error, HICACHE_INVALID_ARGUMENT, pool.index, "pool %u: virtual_page_count is %u; at most %u", pool.index, wanted,
                  kPageCountMax - 1);
    pool.first_id = pool.first_page;
    pool.names_grow = wanted == 0;
    pool.id_count = wanted == 0 ? pool.page_count : wanted;
    if (wanted != 0 && wanted <= pool.first_id)
      return fail(error, HICACHE_INVALID_ARGUMENT, pool.index, "pool %u: virtual_page_count is %u; ids start at %u", pool.index, wanted,
                  pool.first_id);
  }
  for (Pool &pool : pools) {
    if (pool.owns_ids()) continue;
    const Pool &owner = pools[pool.owner];
    pool.first_id = owner.first_id;
    pool.id_count = owner.id_count;
    if (!pool.is_static) continue;
    pool.first_page = owner.first_id;
    pool.page_count = owner.id_count;
    pool.page_count_max = owner.names_grow ? owner.page_count_max : owner.id_count;
  }
  return HICACHE_OK;
}

// One request of so many tokens must fit into the empty arena: all its FULL pages, each window and the page that slides in, one state.
Status Arena::State::check_floor(uint32_t request_tokens, ErrorDetail *error) const {
  Demand demand;
  char items[160] = {};
  size_t length = 0;
  uint64_t need = sink_bytes;
  bool fits = true;
  for (const Pool &pool : pools) {
    const uint64_t tokens = std::max(request_tokens, 1u);
    uint32_t pages = pages_for(tokens, pool.page_tokens);
    if (pool.role == HICACHE_ROLE_SWA) pages = std::min(pages, pages_for(pool.window_tokens, pool.page_tokens) + 1);
    if (pool.role == HICACHE_ROLE_STATE) pages = 1;
    demand.pages[pool.index] = pages;
    if (pool.owns_ids()) fits &= pages <= pool.id_count - pool.first_id;
    if (pool.is_static) {
      fits &= pages <= pool.page_count - pool.first_page;
      continue;
    }
    need += pages * pool.page_bytes;
    if (length < sizeof items)
      length += static_cast<size_t>(std::snprintf(items + length, sizeof items - length, ", %s %u x %llu", role_name(pool.role), pages,
                                                  static_cast<unsigned long long>(pool.page_bytes)));
  }
  if (fits && chain_fits(snapshot(false), in_chain(demand), Hull::kNone)) return HICACHE_OK;
  fail(error, HICACHE_INFEASIBLE, HICACHE_NO_POOL, "%s: a request of %u tokens needs %llu of %llu bytes: sink %llu%s", tier(),
       request_tokens, static_cast<unsigned long long>(need), static_cast<unsigned long long>(bytes),
       static_cast<unsigned long long>(sink_bytes), items);
  if (error != nullptr) {
    error->need_bytes = need;
    error->have_bytes = bytes;
  }
  return HICACHE_INFEASIBLE;
}

// One table for the chain, in units of its smallest page, and one for each static pool.
void Arena::State::set_up_place_tables() {
  PlaceTable chain;
  uint64_t largest_page = 0;
  chain.unit_bytes = bytes_max;
  for (const Pool &pool : pools) {
    if (pool.is_static) continue;
    chain.unit_bytes = std::min(chain.unit_bytes, pool.page_bytes);
    largest_page = std::max(largest_page, pool.page_bytes);
  }
  places.push_back(std::move(chain));
  for (const Pool &pool : pools) {
    if (!pool.is_static) continue;
    places.emplace_back();
    places.back().unit_bytes = pool.page_bytes;
    places.back().names.assign(std::max(pool.page_count_max, 1u), PageTable::kNobody);
  }
  if (chain_count > 0) {
    places[0].names.assign(bytes_max / places[0].unit_bytes + 1, PageTable::kNobody);
    if (largest_page > places[0].unit_bytes) fence_reach = largest_page / places[0].unit_bytes + 1;
  }
  for (PlaceTable &table : places) {
    table.pins.assign(table.names.size(), 0);
    if (fenced()) table.fences.assign(table.names.size(), PageFence{});
  }
}

void Arena::State::set_up_tables(const ArenaOptions &options) {
  set_up_place_tables();
  uint64_t smallest_page = UINT64_MAX;
  uint32_t static_places = 1;
  for (Pool &pool : pools) {
    const Pool &owner = pools[pool.owner];
    const uint32_t names = std::max(owner.names_grow ? owner.page_count_max : owner.id_count, 1u);
    pool.open_places(names, &places[pool.is_static ? static_places++ : 0]);
    if (mirrored) pool.watch_names(names);
    if (!host) pool.table.bind_sink();
    if (!host) pool.lagging_bits.assign((uint64_t{pool.page_count_max} + 63) / 64, 0);
    pool.marks.assign((names + 63) / 64, 0);
    if (pool.owns_ids()) pool.ids.open(pool.first_id, pool.id_count, names, host);
    if (pool.is_static) {
      pool.low = pool.first_page;
      pool.high = pool.page_count;
      pool.holes.insert_range(pool.low, pool.high);
      pages_at_once += pool.page_count;
    } else {
      pool.low = pool.high = pool.direction == HICACHE_DIRECTION_UP ? pool.first_page : pool.page_count;
      smallest_page = std::min(smallest_page, pool.page_bytes);
    }
  }
  if (chain_count > 0) pages_at_once += bytes_max / smallest_page;
  held_pages_max = options.held_pages_max != 0 ? options.held_pages_max : std::max<uint64_t>(pages_at_once, 64 * 1024);
  // A list fills all its chunks but the last: so many entries fit however they are spread over holders.
  constexpr uint32_t kTicketLists = 1024;
  const uint64_t lists = uint64_t{options.reservation_max} * 2 + options.lease_max + options.step_max + kTicketLists;
  slab.open(held_pages_max, lists);
  const auto kind = [&](IdKind device_kind, IdKind host_kind) { return host ? host_kind : device_kind; };
  reservations.open(options.reservation_max, kind(IdKind::kReservation, IdKind::kHostReservation), options.engine_serial);
  leases.open(options.lease_max, kind(IdKind::kLease, IdKind::kHostLease), options.engine_serial);
  steps.open(host ? 0 : options.step_max, kind(IdKind::kStep, IdKind::kHostStep), options.engine_serial);
  moves.resize(kBatch);
  zeros.reserve(kBatch);
  copies.reserve(kBatch);
  if (!fenced()) return;
  streams.open(board);
  if (!host) open_line_sets(static_cast<uint32_t>(pools.size()) * LineSet::kSequenceMax);
  caller_waits.open();
  mover_waits.open();
  if (mirrored) mirror_waits.open();
  overflow.open(static_cast<uint32_t>(std::clamp<uint64_t>(pages_at_once / 64, 1024, FenceOverflow::kNodeMax)));
}

Status Arena::State::set_up(const ArenaOptions &options, ErrorDetail *error) {
  host = options.host;
  ignore_pins = options.ignore_pins;
  compaction = options.compaction;
  placement = options.placement;
  mover = options.mover;
  board = options.board;
  mirrored = options.mirrored && mover != nullptr && !host;
  bytes = options.bytes;
  bytes_max = options.bytes_max == 0 ? options.bytes : options.bytes_max;
  const auto refuse_field = [&](const char *what) {
    return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "%s: %s", tier(), what);
  };
  if (options.pools.empty() || options.pools.size() > kPoolMax) return refuse_field("pool_count must be in [1, 16]");
  if (bytes_max < bytes) return refuse_field("the largest size is below the size");
  if (bytes_max >> 63 != 0) return refuse_field("the size passes 2^63 - 1");
  if (compaction > HICACHE_COMPACTION_OFF) return refuse_field("compaction must be 0 (lazy), 1 (eager) or 2 (off)");
  if (placement > HICACHE_PLACEMENT_REFERENCE) return refuse_field("placement must be 0 (best) or 1 (reference)");
  const uint32_t slots_max = SlotMap<LeaseRecord>::kSlotMax;
  if (options.reservation_max > slots_max || options.lease_max > slots_max || options.step_max > slots_max)
    return refuse_field("reservation_max, lease_max and step_max must not pass 1048576");
#ifndef HICACHE_SABOTAGE
  if (ignore_pins) return fail(error, HICACHE_UNSUPPORTED, HICACHE_NO_POOL, "sabotage is not in this build");
#endif
  pools.resize(options.pools.size());
  for (uint32_t i = 0; i < pools.size(); i++)
    if (const Status status = set_up_pool(options.pools[i], i, error); status != HICACHE_OK) return status;
  if (const Status status = set_up_groups(error); status != HICACHE_OK) return status;
  if (const Status status = set_up_chain(error); status != HICACHE_OK) return status;
  if (const Status status = set_up_places(options, error); status != HICACHE_OK) return status;
  for (Pool &pool : pools) pool.low = pool.high = pool.direction == HICACHE_DIRECTION_UP ? pool.first_page : pool.page_count;
  if (const Status status = check_floor(options.request_tokens_max, error); status != HICACHE_OK) return status;
  set_up_tables(options);
  return HICACHE_OK;
}

Status Arena::open(const ArenaOptions &options, std::unique_ptr<Arena> *arena_out, ErrorDetail *error) {
  auto state = std::make_unique<State>();
  if (const Status status = state->set_up(options, error); status != HICACHE_OK) return status;
  arena_out->reset(new Arena(std::move(state)));
  return HICACHE_OK;
}

} // namespace hicache
