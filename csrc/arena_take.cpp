// Takes: of a demand over pools (alloc) and of sequences that grow (extend). Validate everything, make room, then commit: nothing after
// the room can fail but the device.
#include <algorithm>

#include "arena_state.hpp"
#include "frame_source.hpp"

namespace hicache {

void Arena::State::unmark(Pool *pool, const uint32_t *vpages, uint32_t count) {
  for (uint32_t i = 0; i < count; i++)
    if (pool->names(vpages[i])) pool->clear_mark(vpages[i]);
}

// ---- Validation ----

// The given names can get a page in `pool`: allocated, without one, each once.
Status Arena::State::check_windows(Pool *pool, const Take &take, ErrorDetail *error) {
  constexpr uint32_t kAhead = 16;
  const PageTable &names = pools[pool->owner].table;
  for (uint32_t i = 0; i < std::min(kAhead, take.page_count); i++) {
    names.prefetch_entry(take.vpages[i]);
    pool->table.prefetch_entry(take.vpages[i]);
  }
  Status status = HICACHE_OK;
  for (uint32_t i = 0; i < take.page_count && status == HICACHE_OK; i++) {
    const uint32_t v = take.vpages[i];
    if (i + kAhead < take.page_count) {
      names.prefetch_entry(take.vpages[i + kAhead]);
      pool->table.prefetch_entry(take.vpages[i + kAhead]);
    }
    if (!allocated(*pool, v)) {
      status = fail(error, HICACHE_STALE_ID, pool->index, "pool %u: virtual page %u is not allocated", pool->index, v);
    } else if (pool->table.mapped(v) || pool->marked(v)) {
      status = fail(error, HICACHE_INVALID_ARGUMENT, pool->index, "pool %u: virtual page %u %s", pool->index, v,
                    pool->marked(v) ? "occurs twice" : "has a page already");
    } else if (pool->is_static && !pool->holes.contains(v)) {
      status = fail(error, HICACHE_NO_CAPACITY, pool->index, "static pool %u: page %u is still touched", pool->index, v);
      if (error != nullptr) {
        error->need_bytes = error->pending_bytes = pool->page_bytes;
        error->blocking_pool = pool->index;
        error->blocking_page = v;
      }
    } else {
      pool->set_mark(v);
    }
  }
  unmark(pool, take.vpages, take.page_count);
  return status;
}

Status Arena::State::check_takes(std::span<const Take> takes, bool reserving, Demand *demand_out, ErrorDetail *error) {
  uint32_t follows_owner = 0; // Bits of the pools with a line that takes the owner's new names.
  for (const Take &take : takes) {
    if (const Status status = check_pool(take.pool, error); status != HICACHE_OK) return status;
    Pool &pool = pools[take.pool];
    if (take.page_count == 0) continue;
    const uint64_t sum = uint64_t{demand_out->pages[take.pool]} + take.page_count;
    demand_out->pages[take.pool] = static_cast<uint32_t>(std::min<uint64_t>(sum, kPageCountMax));
    if (pool.owns_ids()) {
      if (take.vpages == nullptr)
        return fail(error, HICACHE_INVALID_ARGUMENT, take.pool, "pool %u: vpages is null, but this pool names its pages", take.pool);
    } else if (reserving) {
      if (take.vpages != nullptr)
        return fail(error, HICACHE_INVALID_ARGUMENT, take.pool, "pool %u: vpages must be null when window pages are reserved", take.pool);
    } else if (take.vpages == nullptr) {
      if (follows_owner >> take.pool & 1)
        return fail(error, HICACHE_INVALID_ARGUMENT, take.pool, "pool %u: two lines without vpages", take.pool);
      follows_owner |= 1u << take.pool;
    }
  }
  for (const Take &take : takes) {
    Pool &pool = pools[take.pool];
    if (take.page_count == 0 || pool.owns_ids() || reserving) continue;
    if (take.vpages == nullptr) {
      if (take.page_count > demand_out->pages[pool.owner])
        return fail(error, HICACHE_INVALID_ARGUMENT, take.pool,
                    "pool %u: %u window pages without vpages, but the call takes %u pages of pool %u", take.pool, take.page_count,
                    demand_out->pages[pool.owner], pool.owner);
    } else if (take.page_count > pool.id_count) { // A name would have to occur twice: no need to read them.
      return fail(error, HICACHE_INVALID_ARGUMENT, take.pool, "pool %u: page_count %u is more than there are virtual pages", take.pool,
                  take.page_count);
    } else if (const Status status = check_windows(&pool, take, error); status != HICACHE_OK) {
      return status;
    }
  }
  // One name in two lines of a pool: marks of one line are gone when the next is read, so compare where there are two.
  for (size_t a = 0; a < takes.size() && !reserving; a++) {
    const Take &first = takes[a];
    if (first.page_count == 0 || pools[first.pool].owns_ids() || first.vpages == nullptr) continue;
    for (size_t b = a + 1; b < takes.size(); b++) {
      const Take &second = takes[b];
      if (second.pool != first.pool || second.page_count == 0 || second.vpages == nullptr) continue;
      Pool &pool = pools[first.pool];
      for (uint32_t i = 0; i < first.page_count; i++) pool.set_mark(first.vpages[i]);
      bool twice = false;
      for (uint32_t i = 0; i < second.page_count; i++) twice |= pool.marked(second.vpages[i]);
      unmark(&pool, first.vpages, first.page_count);
      if (twice) return fail(error, HICACHE_INVALID_ARGUMENT, first.pool, "pool %u: a virtual page occurs in two lines", first.pool);
    }
  }
  return HICACHE_OK;
}

// ---- Zeroes and copies, batched for the mover ----

Status Arena::State::flush_zeros(ErrorDetail *error) {
  if (zeros.empty()) return HICACHE_OK;
  FenceMark done;
  if (fenced()) {
    clear_mover_waits();
    for (const PageZero &zero : zeros) collect_fence(pools[zero.pool], raw(zero.page), &mover_waits);
    counters.fence_waits_zeroes += mover_waits.stream_marks();
    done = streams.issue(kMoverSlot);
    for (const PageZero &zero : zeros) set_fence(&pools[zero.pool], raw(zero.page), done);
  }
  const Status status = mover->zero_pages(zeros, fenced() ? mover_waits.marks() : std::span<const FenceMark>{}, done, error);
  zeros.clear();
  return status;
}

Status Arena::State::queue_zero(Pool *pool, uint32_t frame, uint32_t first_token, ErrorDetail *error) {
  counters.zeroed_bytes += pool->page_bytes - first_token * (pool->page_bytes / pool->page_tokens);
  if (mover == nullptr) return HICACHE_OK;
  zeros.push_back({pool->index, PhysicalPage{frame}, first_token});
  return zeros.size() < kBatch ? HICACHE_OK : flush_zeros(error);
}

Status Arena::State::zero_pages(Pool *pool, const uint32_t *frames, uint32_t count, ErrorDetail *error) {
  if (pool->zeroing == HICACHE_ZERO_NEVER) return HICACHE_OK;
  for (uint32_t i = 0; i < count; i++)
    if (const Status status = queue_zero(pool, frames[i], 0, error); status != HICACHE_OK) return status;
  return HICACHE_OK;
}

Status Arena::State::flush_copies(ErrorDetail *error) {
  if (copies.empty()) return HICACHE_OK;
  if (const Status status = flush_zeros(error); status != HICACHE_OK) return status; // Of the same pages: they come first.
  clear_mover_waits();
  for (const PageCopy &copy : copies) {
    collect_fence(pools[copy.pool], raw(copy.source), &mover_waits);
    collect_fence(pools[copy.pool], raw(copy.destination), &mover_waits);
  }
  const FenceMark done = streams.issue(kMoverSlot);
  for (const PageCopy &copy : copies) {
    if (!fenced()) break;
    join_fence(&pools[copy.pool], raw(copy.source), done); // Whoever overwrites the source follows the copy.
    set_fence(&pools[copy.pool], raw(copy.destination), done);
  }
  const Status status = mover->copy_pages(copies, mover_waits.marks(), done, error);
  copies.clear();
  return status;
}

Status Arena::State::queue_copy(Pool *pool, uint32_t source, uint32_t destination, uint32_t token_count, ErrorDetail *error) {
  if (mover == nullptr) return HICACHE_OK;
  copies.push_back({pool->index, PhysicalPage{source}, PhysicalPage{destination}, token_count});
  return copies.size() < kBatch ? HICACHE_OK : flush_copies(error);
}

// ---- Alloc ----

Status Arena::State::bind_names(Pool *pool, const uint32_t *vpages, uint32_t count, ErrorDetail *error) {
  constexpr uint32_t kRun = 256;
  uint32_t frames[kRun];
  const bool by_name = pool->is_static && !pool->is_separate;
  FrameSource source(pool, by_name ? 0 : count, host);
  for (uint32_t done = 0; done < count;) {
    const uint32_t run = std::min(count - done, kRun);
    const uint32_t *names = vpages + done;
    if (by_name) {
      for (uint32_t i = 0; i < run; i++) pool->holes.erase(frames[i] = names[i]);
      pool->holes_become_live(names, frames, run);
    } else {
      source.next_live(run, names, frames);
    }
    if (const Status status = zero_pages(pool, frames, run, error); status != HICACHE_OK) return status;
    done += run;
  }
  return HICACHE_OK;
}

// Binds the last `count` names that the call's owner lines have taken.
Status Arena::State::bind_last(Pool *pool, uint32_t count, std::span<const Take> takes, ErrorDetail *error) {
  uint64_t total = 0;
  for (const Take &take : takes)
    if (take.pool == pool->owner) total += take.page_count;
  uint64_t skip = total - count;
  for (const Take &take : takes) {
    if (take.pool != pool->owner) continue;
    const auto skipped = static_cast<uint32_t>(std::min<uint64_t>(skip, take.page_count));
    skip -= skipped;
    if (const Status status = bind_names(pool, take.vpages + skipped, take.page_count - skipped, error); status != HICACHE_OK)
      return status;
  }
  return HICACHE_OK;
}

Status Arena::take(std::span<const Take> takes, ErrorDetail *error) {
  State &s = *state_;
  Demand demand;
  if (const Status status = s.check_takes(takes, false, &demand, error); status != HICACHE_OK) return status;
  if (const Status status = s.make_room(demand, error); status != HICACHE_OK) {
    s.counters.takes_refused++;
    if (status == HICACHE_MOVES_BLOCKED) s.counters.moves_blocked++;
    return status;
  }
  s.epoch++;
  s.counters.takes++;
  for (const Take &take : takes) {
    Pool &pool = s.pools[take.pool];
    if (take.page_count == 0) continue;
    s.counters.pages_taken += take.page_count;
    if (!pool.owns_ids()) continue;
    pool.ids.take(take.page_count, take.vpages);
    if (const Status status = s.bind_names(&pool, take.vpages, take.page_count, error); status != HICACHE_OK) return status;
  }
  for (const Take &take : takes) {
    Pool &pool = s.pools[take.pool];
    if (take.page_count == 0 || pool.owns_ids()) continue;
    const Status status = take.vpages != nullptr ? s.bind_names(&pool, take.vpages, take.page_count, error)
                                                 : s.bind_last(&pool, take.page_count, takes, error);
    if (status != HICACHE_OK) return status;
  }
  return s.flush_zeros(error);
}

} // namespace hicache
