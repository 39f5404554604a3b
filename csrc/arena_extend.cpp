// Growing sequences: fill the tail page, then take new pages, for a whole batch or not at all.
#include <algorithm>

#include "arena_state.hpp"
#include "frame_source.hpp"

namespace hicache {
namespace {

// What one sequence needs.
struct Growth {
  uint32_t tail_tokens = 0;  // Tokens in the partial tail page; 0 if there is none.
  uint32_t page_total = 0;   // Pages after the call.
  uint32_t new_pages = 0;    // Appended.
  uint32_t first_window = 0; // Appended pages from this index of the sequence on get a window page.
  bool copies_tail = false;
  uint64_t token_total = 0;

  uint32_t window_pages() const { return page_total - std::max(first_window, page_total - new_pages); }
};

Growth growth_of(const hicache_sequence_t &sequence, uint32_t page_tokens) {
  Growth growth;
  growth.token_total = uint64_t{sequence.token_count} + sequence.new_token_count;
  growth.tail_tokens = sequence.token_count % page_tokens;
  growth.page_total = static_cast<uint32_t>((growth.token_total + page_tokens - 1) / page_tokens);
  growth.new_pages = growth.page_total - sequence.vpage_count;
  growth.copies_tail = (sequence.flags & HICACHE_SEQUENCE_COPY_TAIL) != 0 && growth.tail_tokens != 0 && sequence.new_token_count != 0;
  if (sequence.window_tail_tokens == 0) {
    growth.first_window = growth.page_total;
  } else if (sequence.window_tail_tokens != HICACHE_NO_PAGE && sequence.window_tail_tokens < growth.token_total) {
    growth.first_window = static_cast<uint32_t>((growth.token_total - sequence.window_tail_tokens) / page_tokens);
  }
  return growth;
}

} // namespace

Status Arena::State::check_sequence(const Pool &owner, const hicache_sequence_t &sequence, uint32_t number, ErrorDetail *error) const {
  const auto refuse_field = [&](const char *what) {
    return fail(error, HICACHE_INVALID_ARGUMENT, owner.index, "sequence %u: %s", number, what);
  };
  if ((sequence.flags & ~HICACHE_SEQUENCE_COPY_TAIL) != 0) return refuse_field("unknown flags");
  if (uint64_t{sequence.token_count} + sequence.new_token_count > UINT32_MAX)
    return refuse_field("token_count + new_token_count passes 2^32 - 1");
  const uint64_t pages_now = (uint64_t{sequence.token_count} + owner.page_tokens - 1) / owner.page_tokens;
  if (sequence.vpage_count != pages_now) return refuse_field("vpage_count does not fit token_count");
  const Growth growth = growth_of(sequence, owner.page_tokens);
  if (growth.page_total > sequence.vpage_capacity) return refuse_field("vpage_capacity is too small");
  if (growth.page_total > 0 && sequence.vpages == nullptr) return refuse_field("vpages is null");
  if (growth.tail_tokens != 0 && sequence.new_token_count != 0) {
    const uint32_t tail = sequence.vpages[sequence.vpage_count - 1];
    if (!allocated(owner, tail))
      return fail(error, HICACHE_STALE_ID, owner.index, "sequence %u: its tail, virtual page %u, is not allocated", number, tail);
  }
  return HICACHE_OK;
}

// Names, with a page each in the owner pool, for the sequence's pages [first, first + count).
void Arena::State::name_growth(Pool *owner, hicache_sequence_t *sequence, FrameSource *source, uint32_t first, uint32_t count) {
  constexpr uint32_t kRun = 64;
  uint32_t frames[kRun];
  owner->ids.take(count, sequence->vpages + first);
  for (uint32_t done = 0; done < count;) {
    const uint32_t run = std::min(count - done, kRun);
    const uint32_t *names = sequence->vpages + first + done;
    if (owner->is_static) {
      for (uint32_t i = 0; i < run; i++) owner->holes.erase(frames[i] = names[i]);
      owner->holes_become_live(names, frames, run);
    } else {
      source->next_live(run, names, frames);
    }
    done += run;
  }
}

// Zeroes what the sequence's pages [first, ...) in `pool` hold beyond the tokens that the caller writes (TAIL), or all of it (ALWAYS).
Status Arena::State::zero_growth(Pool *pool, const hicache_sequence_t &sequence, uint32_t first, uint64_t token_total, ErrorDetail *error) {
  if (pool->zeroing == HICACHE_ZERO_NEVER) return HICACHE_OK;
  const auto page_total = static_cast<uint32_t>((token_total + pool->page_tokens - 1) / pool->page_tokens);
  const auto rows_written = static_cast<uint32_t>(token_total % pool->page_tokens);
  for (uint32_t i = first; i < page_total; i++) {
    const uint32_t v = sequence.vpages[i];
    if (!pool->table.mapped(v)) continue;
    const bool whole = pool->zeroing == HICACHE_ZERO_ALWAYS;
    if (!whole && (i + 1 < page_total || rows_written == 0)) continue;
    const Status status = queue_zero(pool, pool->table.v2p(v), whole ? 0 : rows_written, error);
    if (status != HICACHE_OK) return status;
  }
  return HICACHE_OK;
}

// What an extension by so many names, window pages in each pool and copies of tails' window pages takes.
Demand Arena::State::growth_demand(const Pool &owner, uint64_t names, uint64_t windows, const uint64_t *tail_windows) const {
  Demand demand;
  for (const Pool &pool : pools) {
    uint64_t wanted = 0;
    if (pool.index == owner.index) wanted = names;
    else if (owner.window_bits >> pool.index & 1) wanted = windows + tail_windows[pool.index];
    demand.pages[pool.index] = static_cast<uint32_t>(std::min<uint64_t>(wanted, kPageCountMax));
  }
  return demand;
}

bool Arena::extends_in_place(uint32_t owner_pool, std::span<const hicache_sequence_t> sequences) const {
  const State &s = *state_;
  if (s.compaction == HICACHE_COMPACTION_EAGER) return false; // There closing a step packs.
  const Pool &owner = s.pools[owner_pool];
  uint64_t names = 0, windows = 0;
  for (const hicache_sequence_t &sequence : sequences) {
    const Growth growth = growth_of(sequence, owner.page_tokens);
    if (growth.copies_tail) return false;
    names += growth.new_pages;
    windows += growth.window_pages();
  }
  constexpr uint64_t kNoTails[kPoolMax] = {};
  const Demand demand = s.growth_demand(owner, names, windows, kNoTails);
  bool out_of_holes = true;
  for (const Pool &pool : s.pools) {
    if (pool.owns_ids() && demand.pages[pool.index] > pool.ids.size()) return false;
    out_of_holes &= demand.pages[pool.index] <= pool.holes.size();
  }
  return out_of_holes || s.ends_can_grow(demand);
}

Status Arena::extend(uint32_t owner_pool, std::span<hicache_sequence_t> sequences, ErrorDetail *error) {
  State &s = *state_;
  if (const Status status = s.check_pool(owner_pool, error); status != HICACHE_OK) return status;
  Pool &owner = s.pools[owner_pool];
  if (!owner.owns_ids())
    return fail(error, HICACHE_INVALID_ARGUMENT, owner_pool, "owner_pool %u names no pages; its owner is pool %u", owner_pool, owner.owner);

  uint64_t names = 0, windows = 0, tail_windows[kPoolMax] = {};
  for (uint32_t k = 0; k < sequences.size(); k++) {
    const hicache_sequence_t &sequence = sequences[k];
    if (const Status status = s.check_sequence(owner, sequence, k, error); status != HICACHE_OK) return status;
    const Growth growth = growth_of(sequence, owner.page_tokens);
    names += growth.new_pages + (growth.copies_tail ? 1 : 0);
    windows += growth.window_pages();
    if (!growth.copies_tail) continue;
    for (const Pool &pool : s.pools)
      if (owner.window_bits >> pool.index & 1) tail_windows[pool.index] += pool.table.mapped(sequence.vpages[sequence.vpage_count - 1]);
  }
  const Demand demand = s.growth_demand(owner, names, windows, tail_windows);
  if (const Status status = s.make_room(demand, error); status != HICACHE_OK) {
    s.counters.takes_refused++;
    if (status == HICACHE_MOVES_BLOCKED) s.counters.moves_blocked++;
    return status;
  }
  s.epoch++;
  s.counters.takes++;
  for (const Pool &pool : s.pools) s.counters.pages_taken += demand.pages[pool.index];

  // Names first, in the order of the sequences; then the window pages of those names, pool by pool.
  FrameSource owner_source(&owner, owner.is_static ? 0 : demand.pages[owner_pool], s.host);
  FrameSource window_sources[kPoolMax];
  for (uint32_t bits = owner.window_bits; bits != 0; bits &= bits - 1) {
    const auto number = static_cast<uint32_t>(__builtin_ctz(bits));
    window_sources[number] = FrameSource(&s.pools[number], s.pools[number].is_static ? 0 : demand.pages[number], s.host);
  }
  for (hicache_sequence_t &sequence : sequences)
    if (const Status status = s.grow(&owner, &sequence, &owner_source, window_sources, error); status != HICACHE_OK) return status;
  if (const Status status = s.flush_zeros(error); status != HICACHE_OK) return status;
  return s.flush_copies(error);
}

// Room has been made: takes the names and pages of one sequence.
Status Arena::State::grow(Pool *owner, hicache_sequence_t *sequence, FrameSource *owner_source, FrameSource *window_sources,
                          ErrorDetail *error) {
  const Growth growth = growth_of(*sequence, owner->page_tokens);
  const uint32_t old_tail = growth.copies_tail ? sequence->vpages[sequence->vpage_count - 1] : HICACHE_NO_PAGE;
  const uint32_t first = sequence->vpage_count - (growth.copies_tail ? 1 : 0);
  name_growth(owner, sequence, owner_source, first, growth.page_total - first);
  if (const Status status = zero_growth(owner, *sequence, first, growth.token_total, error); status != HICACHE_OK) return status;

  for (uint32_t bits = owner->window_bits; bits != 0; bits &= bits - 1) {
    Pool &pool = pools[static_cast<uint32_t>(__builtin_ctz(bits))];
    for (uint32_t i = first; i < growth.page_total; i++) {
      const bool is_tail = growth.copies_tail && i == first;
      if (is_tail ? !pool.table.mapped(old_tail) : i < growth.first_window) continue;
      uint32_t frame = sequence->vpages[i];
      if (pool.is_static) {
        pool.holes.erase(frame);
        pool.holes_become_live(&sequence->vpages[i], &frame, 1);
      } else {
        window_sources[pool.index].next_live(1, &sequence->vpages[i], &frame);
      }
    }
    if (const Status status = zero_growth(&pool, *sequence, first, growth.token_total, error); status != HICACHE_OK) return status;
  }
  if (growth.copies_tail) {
    for (Pool &pool : pools) {
      if (pool.owner != owner->index || !pool.table.mapped(old_tail)) continue;
      const uint32_t source = pool.table.v2p(old_tail), destination = pool.table.v2p(sequence->vpages[first]);
      const Status status = queue_copy(&pool, source, destination, growth.tail_tokens, error);
      if (status != HICACHE_OK) return status;
    }
  }
  sequence->vpage_count = growth.page_total;
  sequence->token_count = static_cast<uint32_t>(growth.token_total);
  return HICACHE_OK;
}

} // namespace hicache
