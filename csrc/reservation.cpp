// Reservations: pages that hold their place before they have a name, until exactly one of bind (from a load) and cancel.
#include <algorithm>

#include "arena_state.hpp"
#include "frame_source.hpp"

namespace hicache {

// ---- Reserve and cancel ----

void Arena::State::reserve_pages(Pool *pool, uint32_t count, std::span<const Take> takes, ReservationRecord *record) {
  record->pages[pool->index] = count;
  if (pool->owns_ids()) {
    for (const Take &take : takes) {
      if (take.pool != pool->index || take.page_count == 0) continue;
      pool->ids.take(take.page_count, take.vpages);
      for (uint32_t i = 0; i < take.page_count; i++) {
        const uint32_t v = take.vpages[i];
        pool->table.set_name_state(VirtualPage{v}, PageTable::kReservedId);
        slab.append(&record->names, EntrySlab::entry(pool->index, v));
        if (!pool->is_static) continue;
        pool->holes.erase(v);
        pool->hole_becomes_reserved(v);
        slab.append(&record->frames, EntrySlab::entry(pool->index, v));
      }
    }
  }
  if (pool->is_static) return; // A static window page is at its name's place: which, the load says.
  constexpr uint32_t kRun = 256;
  uint32_t frames[kRun];
  FrameSource source(pool, count, host);
  for (uint32_t done = 0; done < count;) {
    const uint32_t run = std::min(count - done, kRun);
    source.next(run, frames);
    for (uint32_t i = 0; i < run; i++) {
      pool->hole_becomes_reserved(frames[i]);
      slab.append(&record->frames, EntrySlab::entry(pool->index, frames[i]));
    }
    done += run;
  }
}

Status Arena::reserve(std::span<const Take> takes, hicache_reservation_t *reservation_out, ErrorDetail *error) {
  State &s = *state_;
  Demand demand;
  if (const Status status = s.check_takes(takes, true, &demand, error); status != HICACHE_OK) return status;
  uint64_t frames = 0, names = 0;
  for (const Pool &pool : s.pools) {
    frames += demand.pages[pool.index];
    names += pool.owns_ids() ? demand.pages[pool.index] : 0;
  }
  if (s.reservations.full())
    return fail(error, HICACHE_LIMIT, HICACHE_NO_POOL, "%s: all %u reservations are in use", s.tier(), s.reservations.capacity());
  if (const Status status = s.check_room(demand, error); status != HICACHE_OK) { // Room comes first: it says more than a full slab.
    s.counters.takes_refused++;
    if (status == HICACHE_MOVES_BLOCKED) s.counters.moves_blocked++;
    return status;
  }
  if (!s.slab.has_room(frames, names))
    return fail(error, HICACHE_LIMIT, HICACHE_NO_POOL, "%s: no room to hold %llu more pages (held_pages_max)", s.tier(),
                static_cast<unsigned long long>(frames));
  if (const Status status = s.make_room(demand, error); status != HICACHE_OK) return status;
  s.epoch++;
  s.counters.reservations++;
  ReservationRecord *record;
  *reservation_out = s.reservations.insert(&record);
  for (Pool &pool : s.pools)
    if (demand.pages[pool.index] > 0) s.reserve_pages(&pool, demand.pages[pool.index], takes, record);
  return HICACHE_OK;
}

Status Arena::cancel(hicache_reservation_t reservation, ErrorDetail *error) {
  State &s = *state_;
  ReservationRecord *record = s.reservations.find(reservation);
  if (record == nullptr) return fail(error, HICACHE_STALE_ID, HICACHE_NO_POOL, "the reservation is over or never was");
  uint32_t changed = 0;
  s.slab.each(record->frames, [&](uint32_t entry) {
    s.pools[EntrySlab::pool_of(entry)].reserved_becomes_hole(EntrySlab::page_of(entry));
    changed |= 1u << EntrySlab::pool_of(entry);
  });
  s.slab.each(record->names, [&](uint32_t entry) { s.give_name(&s.pools[EntrySlab::pool_of(entry)], EntrySlab::page_of(entry)); });
  s.slab.release(&record->frames);
  s.slab.release(&record->names);
  s.reservations.erase(reservation);
  s.counters.cancels++;
  return s.settle(changed, error);
}

Status Arena::reservation_pages(hicache_reservation_t reservation, uint32_t pool, uint32_t *ppages_out, uint32_t capacity,
                                uint32_t *count_out, ErrorDetail *error) const {
  const State &s = *state_;
  if (const Status status = s.check_pool(pool, error); status != HICACHE_OK) return status;
  const ReservationRecord *record = s.reservations.find(reservation);
  if (record == nullptr) return fail(error, HICACHE_STALE_ID, pool, "the reservation is over or never was");
  uint32_t count = 0;
  s.slab.each(record->frames, [&](uint32_t entry) {
    if (EntrySlab::pool_of(entry) != pool) return;
    if (count < capacity) ppages_out[count] = EntrySlab::page_of(entry);
    count++;
  });
  *count_out = count;
  return HICACHE_OK;
}

// ---- Bind ----

// Names pages of a reservation one by one; can take it all back.
struct Arena::State::Binder {
  State &s;
  const ReservationRecord &record;
  EntrySlab::Cursor frames[kPoolMax];
  uint32_t left[kPoolMax];

  Binder(State *state, const ReservationRecord &r) : s(*state), record(r) {
    for (const Pool &pool : s.pools) {
      left[pool.index] = record.pages[pool.index];
      if (left[pool.index] > 0) frames[pool.index] = EntrySlab::Cursor(&s.slab, record.frames, pool.index);
    }
    // A mark on each of its names that is not bound yet.
    s.slab.each(record.names, [&](uint32_t entry) { s.pools[EntrySlab::pool_of(entry)].set_mark(EntrySlab::page_of(entry)); });
  }
  ~Binder() {
    s.slab.each(record.names, [&](uint32_t entry) { s.pools[EntrySlab::pool_of(entry)].clear_mark(EntrySlab::page_of(entry)); });
  }

  Status bind(uint32_t pool_number, uint32_t v, ErrorDetail *error) {
    Pool &pool = s.pools[pool_number];
    if (pool.owns_ids()) {
      if (!pool.names(v) || (!pool.marked(v) && !pool.table.mapped(v)))
        return fail(error, HICACHE_STALE_ID, pool_number, "pool %u: virtual page %u is not of this reservation", pool_number, v);
      if (!pool.marked(v))
        return fail(error, HICACHE_INVALID_ARGUMENT, pool_number, "pool %u: virtual page %u occurs twice or is bound already", pool_number,
                    v);
    } else {
      if (!s.allocated(pool, v))
        return fail(error, HICACHE_STALE_ID, pool_number, "pool %u: virtual page %u is not allocated", pool_number, v);
      if (pool.table.mapped(v))
        return fail(error, HICACHE_INVALID_ARGUMENT, pool_number, "pool %u: virtual page %u occurs twice or has a page already",
                    pool_number, v);
      if (pool.is_static && !pool.holes.contains(v))
        return fail(error, HICACHE_NO_CAPACITY, pool_number, "static pool %u: page %u is still touched", pool_number, v);
    }
    if (left[pool_number] == 0)
      return fail(error, HICACHE_INVALID_ARGUMENT, pool_number, "pool %u: more pages than the %u reserved", pool_number,
                  record.pages[pool_number]);
    left[pool_number]--;
    uint32_t frame = v;
    if (!pool.is_static) {
      frame = frames[pool_number].next_page();
    } else if (!pool.owns_ids()) {
      pool.holes.erase(v);
      pool.hole_becomes_reserved(v);
    }
    if (pool.owns_ids()) pool.clear_mark(v);
    pool.reserved_becomes_live(v, frame, true);
    return HICACHE_OK;
  }

  void unbind(uint32_t pool_number, uint32_t v) {
    Pool &pool = s.pools[pool_number];
    const uint32_t frame = pool.table.v2p(v);
    pool.table.unbind(VirtualPage{v}, pool.owns_ids() ? PageTable::kReservedId : PageTable::kUnmapped, PageTable::kReserved);
    pool.live--;
    pool.reserved++;
    if (pool.is_static && !pool.owns_ids()) pool.reserved_becomes_hole(frame);
  }
};

Status Arena::bind(hicache_reservation_t reservation, std::span<const hicache_copy_t> copies, std::span<const hicache_bind_t> binds,
                   PinList *pins, uint32_t *places_out, std::span<const FenceMark> *waits, ErrorDetail *error) {
  State &s = *state_;
  ReservationRecord *record = s.reservations.find(reservation);
  if (record == nullptr) return fail(error, HICACHE_STALE_ID, HICACHE_NO_POOL, "the reservation is over or never was");
  for (const hicache_copy_t &copy : copies)
    if (const Status status = s.check_pool(copy.pool, error); status != HICACHE_OK) return status;
  for (const hicache_bind_t &bind : binds)
    if (const Status status = s.check_pool(bind.pool, error); status != HICACHE_OK) return status;

  if (!s.slab.has_room_after(record->frames, record->names, copies.size()))
    return fail(error, HICACHE_LIMIT, HICACHE_NO_POOL, "%s: no room to hold %zu more pages (held_pages_max)", s.tier(), copies.size());

  uint32_t changed = 0;
  {
    State::Binder binder(&s, *record);
    // Owners first, so that a window page can join a name of this very load.
    size_t copies_bound[2] = {}, binds_bound[2] = {};
    Status status = HICACHE_OK;
    const auto is_pass = [&](uint32_t pool, uint32_t pass) { return s.pools[pool].owns_ids() == (pass == 0); };
    for (uint32_t pass = 0; pass < 2 && status == HICACHE_OK; pass++) {
      for (size_t &i = copies_bound[pass]; i < copies.size() && status == HICACHE_OK; i += status == HICACHE_OK)
        if (is_pass(copies[i].pool, pass)) status = binder.bind(copies[i].pool, copies[i].device_page, error);
      for (size_t &i = binds_bound[pass]; i < binds.size() && status == HICACHE_OK; i += status == HICACHE_OK)
        if (is_pass(binds[i].pool, pass)) status = binder.bind(binds[i].pool, binds[i].vpage, error);
    }
    if (status != HICACHE_OK) {
      for (uint32_t pass = 2; pass-- > 0;) {
        for (size_t i = 0; i < binds_bound[pass]; i++)
          if (is_pass(binds[i].pool, pass)) binder.unbind(binds[i].pool, binds[i].vpage);
        for (size_t i = 0; i < copies_bound[pass]; i++)
          if (is_pass(copies[i].pool, pass)) binder.unbind(copies[i].pool, copies[i].device_page);
      }
      return status;
    }
    // It holds. What was not mentioned goes back.
    s.slab.each(record->frames, [&](uint32_t entry) {
      Pool &pool = s.pools[EntrySlab::pool_of(entry)];
      const uint32_t frame = EntrySlab::page_of(entry);
      if (pool.table.p2v(frame) != PageTable::kReserved) return;
      pool.reserved_becomes_hole(frame);
      changed |= 1u << pool.index;
    });
    s.slab.each(record->names, [&](uint32_t entry) {
      Pool &pool = s.pools[EntrySlab::pool_of(entry)];
      if (pool.marked(EntrySlab::page_of(entry))) s.give_name(&pool, EntrySlab::page_of(entry));
    });
  }
  s.slab.release(&record->frames);
  s.slab.release(&record->names);
  s.reservations.erase(reservation);
  s.counters.binds++;

  s.caller_waits.clear(0);
  for (size_t i = 0; i < copies.size(); i++) {
    const Pool &pool = s.pools[copies[i].pool];
    const uint32_t frame = pool.table.v2p(copies[i].device_page);
    places_out[i] = frame;
    s.slab.append(pins, EntrySlab::entry(pool.index, frame)); // The pin passes from the reservation to the ticket.
    s.collect_fence(pool, frame, &s.caller_waits);
  }
  if (waits != nullptr) *waits = s.caller_waits.marks();
  for (const hicache_bind_t &bind : binds) {
    Pool &pool = s.pools[bind.pool];
    const uint32_t frame = pool.table.v2p(bind.vpage);
    pool.unpin_bound(frame);
    if (const Status status = s.zero_pages(&pool, &frame, 1, error); status != HICACHE_OK) return status;
  }
  if (const Status status = s.flush_zeros(error); status != HICACHE_OK) return status;
  return s.settle(changed, error);
}

} // namespace hicache
