// Pins: who may rely on a page staying where it is and allocated. Leases, open steps and tickets count per physical page; a page moves and
// is handed out again only when nobody is left.
#include <algorithm>

#include "arena_state.hpp"

namespace hicache {

// ---- Pins ----

Status Arena::State::pinnable(uint32_t pool_number, uint32_t v, uint32_t *place_out, ErrorDetail *error) const {
  const Pool &pool = pools[pool_number];
  if (!pool.names(v) || !pool.table.mapped(v))
    return fail(error, HICACHE_NOT_MAPPED, pool_number, "%s, pool %u: page %u has no page", tier(), pool_number, v);
  const uint32_t frame = pool.table.v2p(v);
  if (pool.pins[frame] > Pool::kPinMax)
    return fail(error, HICACHE_LIMIT, pool_number, "%s, pool %u: page %u is held %u times", tier(), pool_number, v,
                uint32_t{pool.pins[frame]});
  *place_out = frame;
  return HICACHE_OK;
}

Status Arena::State::pin_pages(std::span<const hicache_pages_t> lines, PinList *pins, uint32_t *places_out, ErrorDetail *error) {
  uint64_t total = 0;
  for (const hicache_pages_t &line : lines) {
    if (const Status status = check_pool(line.pool, error); status != HICACHE_OK) return status;
    total += line.page_count;
  }
  if (!slab.has_room(total))
    return fail(error, HICACHE_LIMIT, HICACHE_NO_POOL, "%s: no room to hold %llu more pages (held_pages_max)", tier(),
                static_cast<unsigned long long>(total));
  for (const hicache_pages_t &line : lines) {
    Pool &pool = pools[line.pool];
    for (uint32_t done = 0; done < line.page_count;) {
      const uint32_t run = std::min(line.page_count - done, Pool::kPinRun);
      uint32_t frames[Pool::kPinRun];
      for (uint32_t i = 0; i < run; i++) {
        const Status status = pinnable(line.pool, line.vpages[done + i], &frames[i], error);
        if (status == HICACHE_OK) continue;
        unpin_list(pins); // Nothing was freed meanwhile: no page changes state by this.
        return status;
      }
      pool.pin_all(frames, run, ignore_pins);
      slab.append_all(pins, line.pool, frames, run);
      if (places_out != nullptr) places_out = std::copy_n(frames, run, places_out);
      done += run;
    }
  }
  epoch++;
  return HICACHE_OK;
}

// Returns the bits of the pools in which quarantined pages have become holes. A mark, if there is one, joins the fences of the pages.
uint32_t Arena::State::unpin_entries(const PinList &pins, FenceMark mark) {
  uint32_t changed = 0, frames[Pool::kPinRun], holes[Pool::kPinRun], run = 0, run_pool = 0;
  const auto unpin_run = [&] {
    Pool &pool = pools[run_pool];
    if (mark)
      for (uint32_t i = 0; i < run; i++) join_fence(&pool, frames[i], mark);
    const uint32_t hole_count = pool.unpin_all(frames, run, holes);
    for (uint32_t i = 0; !host && i < run; i++)
      if (pool.pins[frames[i]] == 0) pool.set_lagging(frames[i], false); // In nobody's list: its fences are whole.
    run = 0;
    if (hole_count == 0) return;
    changed |= 1u << run_pool;
    for (uint32_t i = 0; mirrored && i < hole_count; i++)
      collect_fence(pool, holes[i], &mirror_waits); // Whose steps were open when it was freed.
    for (uint32_t i = 0; i < hole_count && pool.is_static; i++) release_static_name(pool, holes[i]);
  };
  slab.each(pins, [&](uint32_t entry) {
    if (run == Pool::kPinRun || (run > 0 && EntrySlab::pool_of(entry) != run_pool)) unpin_run();
    run_pool = EntrySlab::pool_of(entry);
    frames[run++] = EntrySlab::page_of(entry);
  });
  if (run > 0) unpin_run();
  return changed;
}

uint32_t Arena::State::unpin_list(PinList *pins, FenceMark mark) {
  const uint32_t changed = unpin_entries(*pins, mark);
  slab.release(pins);
  epoch++;
  return changed;
}

Status Arena::pin_copies(std::span<const hicache_copy_t> copies, PinList *pins, uint32_t *places_out, std::span<const FenceMark> *waits,
                         ErrorDetail *error) {
  State &s = *state_;
  for (const hicache_copy_t &copy : copies)
    if (const Status status = s.check_pool(copy.pool, error); status != HICACHE_OK) return status;
  if (!s.slab.has_room(copies.size()))
    return fail(error, HICACHE_LIMIT, HICACHE_NO_POOL, "%s: no room to hold %zu more pages (held_pages_max)", s.tier(), copies.size());
  s.caller_waits.clear(0);
  for (size_t i = 0; i < copies.size(); i++) {
    const uint32_t v = s.host ? copies[i].host_page : copies[i].device_page;
    if (const Status status = s.pinnable(copies[i].pool, v, &places_out[i], error); status != HICACHE_OK) {
      s.unpin_list(pins);
      return status;
    }
    s.pools[copies[i].pool].pin_all(&places_out[i], 1, s.ignore_pins);
    s.slab.append(pins, EntrySlab::entry(copies[i].pool, places_out[i]));
    s.collect_fence(s.pools[copies[i].pool], places_out[i], &s.caller_waits);
  }
  s.epoch++;
  if (waits != nullptr) *waits = s.caller_waits.marks();
  return HICACHE_OK;
}

void Arena::unpin(PinList *pins) {
  // A device error of an eager move here surfaces at the mover, which poisons the engine.
  state_->settle(state_->unpin_list(pins), nullptr);
}

bool Arena::pins_page(const PinList &pins, uint32_t pool, uint32_t ppage) const {
  bool found = false;
  state_->slab.each_while(pins, [&](uint32_t entry) { return !(found = entry == EntrySlab::entry(pool, ppage)); });
  return found;
}

std::span<const FenceMark> Arena::State::fences_of(const PinList &pins, uint32_t except_slot) {
  caller_waits.clear(except_slot);
  slab.each(pins, [&](uint32_t entry) { collect_fence(pools[EntrySlab::pool_of(entry)], EntrySlab::page_of(entry), &caller_waits); });
  return caller_waits.marks();
}

// ---- Leases ----

Status Arena::lease_acquire(std::span<const hicache_pages_t> pages, hicache_lease_t *lease_out, ErrorDetail *error) {
  return lease_acquire_places(pages, nullptr, lease_out, nullptr, error);
}

Status Arena::lease_acquire_places(std::span<const hicache_pages_t> pages, uint32_t *places_out, hicache_lease_t *lease_out,
                                   std::span<const FenceMark> *waits, ErrorDetail *error) {
  State &s = *state_;
  if (s.leases.full()) return fail(error, HICACHE_LIMIT, HICACHE_NO_POOL, "%s: all %u leases are in use", s.tier(), s.leases.capacity());
  PinList pins;
  if (const Status status = s.pin_pages(pages, &pins, places_out, error); status != HICACHE_OK) return status;
  if (waits != nullptr) {
    *waits = {};
    if (s.board != nullptr && !s.board->empty()) *waits = s.fences_of(pins, 0);
  }
  LeaseRecord *record;
  *lease_out = s.leases.insert(&record);
  record->pins = pins;
  s.counters.leases_total++;
  return HICACHE_OK;
}

Status Arena::lease_release(hicache_lease_t lease, ErrorDetail *error) {
  State &s = *state_;
  LeaseRecord *record = s.leases.find(lease);
  if (record == nullptr) return fail(error, HICACHE_STALE_ID, HICACHE_NO_POOL, "the lease is over or never was");
  const uint32_t changed = s.unpin_list(&record->pins);
  s.leases.erase(lease);
  return s.settle(changed, error);
}

// ---- Steps ----

Status Arena::step_open(uint64_t stream, std::span<const hicache_pages_t> pages, hicache_step_t *step_out,
                        std::span<const FenceMark> *waits, ErrorDetail *error) {
  State &s = *state_;
  if (s.host) return fail(error, HICACHE_UNSUPPORTED, HICACHE_NO_POOL, "steps are of the device tier");
  if (s.steps.full()) return fail(error, HICACHE_LIMIT, HICACHE_NO_POOL, "all %u steps are open", s.steps.capacity());
  const uint32_t slot = s.streams.slot_of(stream);
  if (slot == 0) return fail(error, HICACHE_LIMIT, HICACHE_NO_POOL, "more than %u streams with unfinished steps", Streams::kSlotMax - 2);
  PinList pins;
  if (const Status status = s.pin_pages(pages, &pins, nullptr, error); status != HICACHE_OK) return status;
  const std::span<const FenceMark> fences = s.fences_of(pins, slot); // Its own stream keeps its order by itself.
  if (waits != nullptr) *waits = fences;
  StepRecord *record;
  *step_out = s.steps.insert(&record);
  record->pins = pins;
  record->stream_slot = slot;
  s.counters.steps_total++;
  s.streams.open_step(slot);
  return HICACHE_OK;
}

Status Arena::step_mark(hicache_step_t step, FenceMark *mark_out, ErrorDetail *error) const {
  const StepRecord *record = state_->steps.find(step);
  if (record == nullptr) return fail(error, HICACHE_STALE_ID, HICACHE_NO_POOL, "the step is closed or never was");
  *mark_out = state_->streams.next(record->stream_slot);
  return HICACHE_OK;
}

Status Arena::step_close(hicache_step_t step, FenceMark *mark_out, ErrorDetail *error) {
  State &s = *state_;
  StepRecord *record = s.steps.find(step);
  if (record == nullptr) return fail(error, HICACHE_STALE_ID, HICACHE_NO_POOL, "the step is closed or never was");
  const FenceMark mark = s.streams.issue(record->stream_slot);
  s.streams.close_step(record->stream_slot);
  uint32_t changed = s.unpin_list(&record->pins, mark);
  if (record->line_set != LineSet::kNone) changed |= s.give_back_line_set(record->line_set, mark);
  s.steps.erase(step);
  if (mark_out != nullptr) *mark_out = mark;
  return s.settle(changed, error);
}

void Arena::step_abandon(hicache_step_t step) {
  State &s = *state_;
  StepRecord *record = s.steps.find(step);
  s.streams.close_step(record->stream_slot);
  uint32_t changed = s.unpin_list(&record->pins);
  if (record->line_set != LineSet::kNone) changed |= s.give_back_line_set(record->line_set, s.line_sets[record->line_set].carried);
  s.steps.erase(step);
  s.settle(changed, nullptr); // As in unpin.
}

bool Arena::is_lease(uint64_t id) const { return state_->leases.find(id) != nullptr; }
bool Arena::is_step(uint64_t id) const { return state_->steps.find(id) != nullptr; }
uint32_t Arena::lease_count() const { return state_->leases.held(); }
uint32_t Arena::step_count() const { return state_->steps.held(); }
uint32_t Arena::reservation_count() const { return state_->reservations.held(); }
void Arena::fence_passed(FenceMark mark) { state_->streams.passed(mark); }
bool Arena::lacks_stream(uint64_t stream) const { return state_->streams.lacks_slot(stream); }
FenceMark Arena::latest_mark(uint32_t slot) const { return state_->streams.latest(slot); }
uint32_t Arena::stream_slots() const { return state_->streams.used(); }
uint64_t Arena::stream_of(uint32_t slot) const { return state_->streams.stream_of(slot); }

} // namespace hicache
