// Giving pages back. Never waits: a page that is still touched goes to quarantine and becomes a hole when its last pin ends.
#include <algorithm>

#include "arena_state.hpp"

namespace hicache {

void Arena::State::give_name(Pool *owner, uint32_t v) {
  if (owner->withholds_ids) {
    for (const Pool &pool : pools) {
      if (!pool.is_static || pool.owner != owner->index || pool.table.p2v(v) != PageTable::kQuarantined) continue;
      owner->table.set_name_state(VirtualPage{v}, PageTable::kWithheld);
      return;
    }
  }
  owner->table.set_name_state(VirtualPage{v}, PageTable::kUnmapped);
  owner->ids.give(v);
}

void Arena::State::release_static_name(const Pool &pool, uint32_t p) {
  Pool &owner = pools[pool.owner];
  if (owner.table.v2p(p) == PageTable::kWithheld) give_name(&owner, p);
}

// Gives up the pages that these names have in one pool; those that have none are passed over.
uint32_t Arena::State::free_in_pool(Pool *pool, const uint32_t *vpages, uint32_t count) {
  uint32_t mapped[Pool::kFreeRun], changed = 0;
  for (uint32_t done = 0; done < count;) {
    uint32_t found = 0;
    for (uint32_t i = done + Pool::kFreeRun; i < std::min(count, done + 2 * Pool::kFreeRun); i++) pool->table.prefetch_entry(vpages[i]);
    for (; done < count && found < Pool::kFreeRun; done++) {
      mapped[found] = vpages[done];
      found += pool->table.mapped(vpages[done]);
    }
    for (uint32_t i = 0; mirrored && i < found; i++) collect_fence(*pool, pool->table.v2p(mapped[i]), &mirror_waits);
    const uint32_t freed = pool->live_become_holes(mapped, found, PageTable::kUnmapped);
    counters.pages_freed += found;
    counters.frees_quarantined += found - freed;
    if (freed > 0) changed = 1u << pool->index;
  }
  return changed;
}

// Ends names in every pool of their group.
uint32_t Arena::State::free_names(Pool *owner, const uint32_t *vpages, uint32_t count) {
  uint32_t changed = 0;
  for (uint32_t bits = owner->window_bits; bits != 0; bits &= bits - 1)
    changed |= free_in_pool(&pools[static_cast<uint32_t>(__builtin_ctz(bits))], vpages, count);
  changed |= free_in_pool(owner, vpages, count);
  if (owner->withholds_ids) {
    for (uint32_t i = 0; i < count; i++) give_name(owner, vpages[i]);
  } else {
    for (uint32_t i = 0; i < count; i++) owner->ids.give(vpages[i]); // v2p says unmapped already.
  }
  return changed;
}

// Every name is allocated and occurs once in its pool, in one line or in several. Also fetches what the frees will touch.
Status Arena::State::check_frees(std::span<const hicache_pages_t> frees, ErrorDetail *error) {
  Status status = HICACHE_OK;
  size_t lines_marked = 0;
  for (; lines_marked < frees.size() && status == HICACHE_OK; lines_marked++) {
    const hicache_pages_t &line = frees[lines_marked];
    Pool &pool = pools[line.pool];
    constexpr uint32_t kAhead = 16;
    const PageTable &names = pools[pool.owner].table; // Which says what is allocated.
    for (uint32_t i = 0; line.page_count > kAhead && i < kAhead; i++) names.prefetch_entry(line.vpages[i]);
    for (uint32_t i = 0; i < line.page_count; i++) {
      const uint32_t v = line.vpages[i];
      if (i + kAhead < line.page_count) names.prefetch_entry(line.vpages[i + kAhead]);
      const bool is_allocated = allocated(pool, v);
      if (is_allocated && !pool.marked(v)) {
        pool.set_mark(v);
        if (line.page_count <= Pool::kFreeRun) pool.table.prefetch_place(pool.table.v2p(v)); // More are fetched run by run.
        continue;
      }
      status = fail(error, HICACHE_STALE_ID, line.pool, "pool %u: virtual page %u %s", line.pool, v,
                    is_allocated ? "occurs twice" : "is not allocated");
      break;
    }
  }
  for (size_t k = 0; k < lines_marked; k++) unmark(&pools[frees[k].pool], frees[k].vpages, frees[k].page_count);
  return status;
}

Status Arena::free(std::span<const hicache_pages_t> frees, ErrorDetail *error) {
  State &s = *state_;
  for (const hicache_pages_t &line : frees) {
    if (const Status status = s.check_pool(line.pool, error); status != HICACHE_OK) return status;
    if (line.page_count > s.pools[line.pool].id_count)
      return fail(error, HICACHE_INVALID_ARGUMENT, line.pool, "pool %u: page_count %u is more than there are virtual pages", line.pool,
                  line.page_count);
  }

  // Nothing is freed unless everything can be.
  if (const Status status = s.check_frees(frees, error); status != HICACHE_OK) return status;
  uint32_t changed = 0;
  s.counters.frees++;
  for (const hicache_pages_t &line : frees) {
    Pool &pool = s.pools[line.pool];
    changed |= pool.owns_ids() ? s.free_names(&pool, line.vpages, line.page_count) : s.free_in_pool(&pool, line.vpages, line.page_count);
  }
  return s.settle(changed, error);
}

} // namespace hicache
