// Giving pages back. Never waits: a page that is still touched goes to quarantine and becomes a hole when its last pin ends.
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

uint32_t Arena::State::free_window(Pool *pool, uint32_t v) {
  if (!pool->table.mapped(v)) return 0;
  counters.pages_freed++;
  if (pool->live_becomes_hole(v, PageTable::kUnmapped)) return 1u << pool->index;
  counters.frees_quarantined++;
  return 0;
}

uint32_t Arena::State::free_name(Pool *owner, uint32_t v) {
  uint32_t changed = 0;
  for (uint32_t bits = owner->window_bits; bits != 0; bits &= bits - 1)
    changed |= free_window(&pools[static_cast<uint32_t>(__builtin_ctz(bits))], v);
  changed |= free_window(owner, v);
  give_name(owner, v);
  return changed;
}

Status Arena::free(std::span<const hicache_pages_t> frees, ErrorDetail *error) {
  State &s = *state_;
  for (const hicache_pages_t &line : frees) {
    if (const Status status = s.check_pool(line.pool, error); status != HICACHE_OK) return status;
    if (line.page_count > s.pools[line.pool].id_count)
      return fail(error, HICACHE_INVALID_ARGUMENT, line.pool, "pool %u: page_count %u is more than there are virtual pages", line.pool,
                  line.page_count);
  }

  // First pass: nothing is freed unless everything can be. Marks find what occurs twice, in one line or in two.
  Status status = HICACHE_OK;
  size_t lines_marked = 0;
  for (; lines_marked < frees.size() && status == HICACHE_OK; lines_marked++) {
    const hicache_pages_t &line = frees[lines_marked];
    Pool &pool = s.pools[line.pool];
    for (uint32_t i = 0; i < line.page_count; i++) {
      const uint32_t v = line.vpages[i];
      const bool is_allocated = s.allocated(pool, v);
      if (is_allocated && !pool.marked(v)) {
        pool.set_mark(v);
        continue;
      }
      status = fail(error, HICACHE_STALE_ID, line.pool, "pool %u: virtual page %u %s", line.pool, v,
                    is_allocated ? "occurs twice" : "is not allocated");
      break;
    }
  }
  for (size_t k = 0; k < lines_marked; k++) s.unmark(&s.pools[frees[k].pool], frees[k].vpages, frees[k].page_count);
  if (status != HICACHE_OK) return status;

  uint32_t changed = 0;
  s.counters.frees++;
  for (const hicache_pages_t &line : frees) {
    Pool &pool = s.pools[line.pool];
    if (pool.owns_ids()) {
      for (uint32_t i = 0; i < line.page_count; i++) changed |= s.free_name(&pool, line.vpages[i]);
    } else {
      for (uint32_t i = 0; i < line.page_count; i++) changed |= s.free_window(&pool, line.vpages[i]);
    }
  }
  return s.settle(changed, error);
}

} // namespace hicache
