// Steps of a batch that follow one another: the new step takes over the pins of the old one line by line.
#include "step_lines.hpp"

#include <algorithm>

#include "arena_state.hpp"

namespace hicache {

void Arena::State::open_line_sets(uint32_t line_max) {
  line_sets.resize(LineSet::kSetMax);
  for (LineSet &set : line_sets) set.lists.reserve(line_max); // Address space: memory only for lines that are used.
}

uint32_t Arena::State::take_line_set() {
  for (uint32_t i = 0; i < line_sets.size(); i++) {
    if (line_sets[i].taken) continue;
    line_sets[i].taken = true;
    return i;
  }
  return LineSet::kNone;
}

void Arena::State::collect_carried(WaitSet *waits) const {
  for (const LineSet &set : line_sets)
    if (set.taken && set.carried && !waits->leaves_out(set.carried.slot())) waits->add(set.carried, streams);
}

uint32_t Arena::State::release_lines(uint32_t set_index, uint32_t from, FenceMark mark) {
  LineSet &set = line_sets[set_index];
  uint32_t changed = 0;
  for (uint32_t i = from; i < set.used; i++) changed |= unpin_line(&set.lists[i], mark);
  set.used = std::min(set.used, from);
  return changed;
}

uint32_t Arena::State::give_back_line_set(uint32_t set_index, FenceMark mark) {
  const uint32_t changed = release_lines(set_index, 0, mark);
  line_sets[set_index].taken = false;
  line_sets[set_index].carried = {};
  return changed;
}

// Pins places of live pages that hold no pin of this list yet.
Status Arena::State::hold_places(Pool *pool, const uint32_t *frames, uint32_t count, bool in_line, PinList *list, ErrorDetail *error) {
  if (!slab.has_room(count))
    return fail(error, HICACHE_LIMIT, pool->index, "%s: no room to hold %u more pages (held_pages_max)", tier(), count);
  for (uint32_t i = 0; i < count; i++)
    if (pool->pins[frames[i]] > Pool::kPinMax)
      return fail(error, HICACHE_LIMIT, pool->index, "%s, pool %u: place %u is held %u times", tier(), pool->index, frames[i],
                  uint32_t{pool->pins[frames[i]]});
  for (uint32_t i = 0; i < count; i++) collect_fence(*pool, frames[i], &caller_waits);
  pool->pin_all(frames, count, ignore_pins);
  slab.append_all(list, pool->index, frames, count);
  for (uint32_t i = 0; in_line && i < count; i++) pool->set_lagging(frames[i], true);
  return HICACHE_OK;
}

// Adds the pages of a line from `from` on to a list.
Status Arena::State::hold_line(const StepLine &line, uint32_t from, bool in_line, PinList *list, ErrorDetail *error) {
  Pool &pool = pools[line.pool];
  for (uint32_t i = from; i < line.count;) {
    uint32_t frames[Pool::kPinRun], found = 0;
    for (; i < line.count && found < Pool::kPinRun; i++) {
      if (line.ids[i] != 0) {
        frames[found++] = static_cast<uint32_t>(line.ids[i]);
        continue;
      }
      // Outside the window tail of a prefill there is no window page: tokens are written to the sink, and there is nothing to hold.
      if (pool.owns_ids())
        return fail(error, HICACHE_NOT_MAPPED, line.pool, "%s, pool %u: page %u has no page", tier(), line.pool, line.vpages[i]);
    }
    if (const Status status = hold_places(&pool, frames, found, in_line, list, error); status != HICACHE_OK) return status;
  }
  return HICACHE_OK;
}

// Makes a line's list hold exactly what the line has now. New pages are pinned before old ones are let go, so that what is in both stays
// put.
Status Arena::State::follow_line(const StepLine &line, PinList *list, FenceMark mark, uint32_t *changed, ErrorDetail *error) {
  if (line.sinks == 0 && list->count <= line.count && slab.begins(*list, line.pool, line.ids)) {
    return list->count == line.count ? HICACHE_OK : hold_line(line, list->count, true, list, error);
  }
  PinList fresh;
  const Status status = hold_line(line, 0, true, &fresh, error);
  *changed |= unpin_line(list, mark);
  *list = fresh; // On errors too: the caller lets go of all lists.
  return status;
}

Status Arena::State::hold_lines(std::span<const StepLine> lines, uint32_t set_index, PinList *plain, FenceMark mark, uint32_t *changed,
                                ErrorDetail *error) {
  if (set_index == LineSet::kNone) {
    for (const StepLine &line : lines)
      if (const Status status = hold_line(line, 0, false, plain, error); status != HICACHE_OK) return status;
    return HICACHE_OK;
  }
  LineSet &set = line_sets[set_index];
  uint32_t next = 0; // Lines come in the order of their places; what lies between them is over.
  for (const StepLine &line : lines) {
    if (line.place >= set.lists.size()) set.lists.resize(line.place + 1); // Within what was reserved.
    for (; next < std::min(line.place, set.used); next++) *changed |= unpin_line(&set.lists[next], mark);
    next = line.place + 1;
    set.used = std::max(set.used, next);
    const Status status = follow_line(line, &set.lists[line.place], mark, changed, error);
    if (status != HICACHE_OK) return status;
  }
  *changed |= release_lines(set_index, next, mark);
  return HICACHE_OK;
}

Status Arena::State::hold_pages(std::span<const hicache_pages_t> pages, PinList *pins, ErrorDetail *error) {
  PinList further;
  if (const Status status = pin_pages(pages, &further, nullptr, error); status != HICACHE_OK) return status;
  slab.each(further, [&](uint32_t entry) { collect_fence(pools[EntrySlab::pool_of(entry)], EntrySlab::page_of(entry), &caller_waits); });
  slab.join(pins, &further);
  return HICACHE_OK;
}

Status Arena::step_follow(hicache_step_t previous, uint64_t stream, std::span<const StepLine> lines, std::span<const hicache_pages_t> pages,
                          bool by_line, hicache_step_t *step_out, std::span<const FenceMark> *waits, ErrorDetail *error) {
  State &s = *state_;
  StepRecord *old = s.steps.find(previous);
  if (old == nullptr && s.steps.full()) return fail(error, HICACHE_LIMIT, HICACHE_NO_POOL, "all %u steps are open", s.steps.capacity());
  const uint32_t slot = s.streams.slot_of(stream);
  if (slot == 0) return fail(error, HICACHE_LIMIT, HICACHE_NO_POOL, "more than %u streams with unfinished steps", Streams::kSlotMax - 2);

  StepRecord next;
  next.stream_slot = slot;
  next.line_set = old != nullptr ? old->line_set : by_line ? s.take_line_set() : LineSet::kNone;
  FenceMark mark;
  PinList old_plain;
  if (old != nullptr) {
    mark = s.streams.issue(slot);
    s.streams.close_step(slot);
    old_plain = old->pins;
    s.steps.erase(previous);
  }
  uint32_t changed = 0;
  s.caller_waits.clear(slot); // Its own stream keeps its order by itself.
  Status status = s.hold_lines(lines, next.line_set, &next.pins, mark, &changed, error);
  if (status == HICACHE_OK) status = s.hold_pages(pages, &next.pins, error);
  changed |= s.unpin_list(&old_plain, mark);
  if (status != HICACHE_OK) {
    changed |= s.unpin_list(&next.pins);
    if (next.line_set != LineSet::kNone) changed |= s.give_back_line_set(next.line_set, mark);
    s.settle(changed, nullptr);
    return status;
  }
  if (next.line_set != LineSet::kNone && mark) s.line_sets[next.line_set].carried = mark;
  *waits = s.caller_waits.marks();
  StepRecord *record;
  *step_out = s.steps.insert(&record);
  *record = next;
  s.counters.steps_total++;
  s.streams.open_step(slot);
  return s.settle(changed, error);
}

bool Arena::can_follow(hicache_step_t step, uint64_t stream) const {
  const StepRecord *record = state_->steps.find(step);
  return record != nullptr && record->line_set != LineSet::kNone && state_->streams.stream_of(record->stream_slot) == stream;
}

} // namespace hicache
