#include "capacity.hpp"

#include <algorithm>

#include "hicache.h"

namespace hicache {
namespace {

uint64_t divide_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

PageSpan hull_of(const ChainPool &pool, Hull hull) {
  switch (hull) {
    case Hull::kFrontier:
      if (pool.span.empty() && pool.direction == HICACHE_DIRECTION_DOWN) return {pool.page_count, pool.page_count};
      return pool.span;
    case Hull::kSpan: return pool.span;
    case Hull::kPinned: return pool.pinned;
    default: return kNowhere;
  }
}

// First page of the pool that begins at or above the byte.
uint64_t first_page_from(const ChainPool &pool, uint64_t byte) {
  return std::max<uint64_t>(divide_up(byte, pool.page_bytes), pool.first_page);
}

} // namespace

bool pack_left(const Chain &chain, const ChainDemand &demand, Hull hull, uint32_t *start_out, ChainFault *fault) {
  uint64_t end_byte = chain.sink_bytes; // b_{i-1}.
  for (uint32_t i = 0; i < chain.count; i++) {
    const ChainPool &pool = chain.pools[i];
    const PageSpan stays = hull_of(pool, hull);
    const uint64_t pages = uint64_t{pool.used} + demand.pages[i];
    const uint64_t start = end_byte == chain.sink_bytes ? pool.first_page : first_page_from(pool, end_byte);
    start_out[i] = static_cast<uint32_t>(std::min<uint64_t>(start, pool.page_count));
    if (pages == 0 && stays.nowhere()) continue;
    uint64_t end = start + pages;
    if (!stays.nowhere()) {
      if (start > stays.low) {
        if (fault != nullptr) *fault = {i, true};
        return false;
      }
      end = std::max<uint64_t>(end, stays.high);
    }
    if (end > pool.page_count) {
      if (fault != nullptr) *fault = {i, false};
      return false;
    }
    end_byte = end * pool.page_bytes;
  }
  if (fault != nullptr) *fault = {};
  return true;
}

void pack_right(const Chain &chain, const ChainDemand &demand, Hull hull, uint32_t *end_out) {
  uint64_t start_byte = chain.total_bytes;
  for (uint32_t i = chain.count; i-- > 0;) {
    const ChainPool &pool = chain.pools[i];
    const PageSpan stays = hull_of(pool, hull);
    const uint64_t pages = uint64_t{pool.used} + demand.pages[i];
    const uint64_t end = start_byte == chain.total_bytes ? pool.page_count : start_byte / pool.page_bytes;
    end_out[i] = static_cast<uint32_t>(end);
    if (pages == 0 && stays.nowhere()) continue;
    uint64_t start = end > pages ? end - pages : 0;
    if (!stays.nowhere()) start = std::min<uint64_t>(start, stays.low);
    start_byte = start * pool.page_bytes;
  }
}

uint32_t chain_room(const Chain &chain, uint32_t position, Hull hull) {
  // The pools before it, packed left, say where it may begin; those behind it, packed right, where it must end. With no demand both exist.
  const ChainDemand nothing;
  uint32_t start[kPoolMax], end[kPoolMax];
  if (!pack_left(chain, nothing, hull, start, nullptr)) return 0;
  pack_right(chain, nothing, hull, end);
  const uint64_t held = uint64_t{start[position]} + chain.pools[position].used;
  return end[position] > held ? static_cast<uint32_t>(end[position] - held) : 0;
}

namespace {

// A copy of the chain from which pages can be given back.
struct Reclaim {
  Chain chain;
  const Chain &before;
  const ChainDemand &demand;
  Hull hull;

  void set(uint32_t position, uint64_t quota) { chain.pools[position].used = before.pools[position].used - static_cast<uint32_t>(quota); }
  bool fits() const { return chain_fits(chain, demand, hull); }

  // How many bytes too long the chain is, hulls in place: what a quota has to bring, give or take the rounding to page grids.
  uint64_t excess_bytes() const {
    uint64_t end_byte = chain.sink_bytes, excess = 0;
    for (uint32_t i = 0; i < chain.count; i++) {
      const ChainPool &pool = chain.pools[i];
      const PageSpan stays = hull_of(pool, hull);
      const uint64_t pages = uint64_t{pool.used} + demand.pages[i];
      if (pages == 0 && stays.nowhere()) continue;
      uint64_t start = first_page_from(pool, end_byte);
      uint64_t end = start + pages;
      if (!stays.nowhere()) {
        if (start > stays.low) {
          const uint64_t over = (start - stays.low) * pool.page_bytes;
          excess = std::max(excess, over);
          end = stays.low + pages;
        }
        end = std::max<uint64_t>(end, stays.high);
      }
      end_byte = end * pool.page_bytes;
      if (end > pool.page_count) excess = std::max(excess, end_byte - uint64_t{pool.page_count} * pool.page_bytes);
    }
    return excess;
  }
};

// The least quota of one pool in [0, limit] that fits, the others fixed; limit itself fits.
uint64_t least_quota(Reclaim *plan, uint32_t position, uint64_t limit, uint64_t slack_bytes) {
  plan->set(position, 0);
  if (plan->fits()) return 0;
  const uint64_t page_bytes = plan->before.pools[position].page_bytes;
  // A quota lessens the excess by its own bytes and at most a page of rounding in every pool: below `failing` nothing can fit.
  const uint64_t excess = plan->excess_bytes();
  uint64_t failing = excess > slack_bytes ? std::min((excess - slack_bytes) / page_bytes, limit) : 0;
  plan->set(position, failing);
  if (failing > 0 && plan->fits()) failing = 0; // Rounding was kinder than thought: search from the bottom.
  uint64_t fitting = limit;
  for (uint64_t step = 1; failing + step < fitting; step *= 2) { // Gallop, then halve.
    plan->set(position, failing + step);
    if (plan->fits()) {
      fitting = failing + step;
      break;
    }
    failing += step;
  }
  while (fitting - failing > 1) {
    const uint64_t middle = failing + (fitting - failing) / 2;
    plan->set(position, middle);
    (plan->fits() ? fitting : failing) = middle;
  }
  return fitting;
}

} // namespace

bool plan_reclaim(const Chain &chain, const ChainDemand &demand, Hull hull, const uint64_t *evictable, const uint32_t *spare_first,
                  uint64_t *quota_out) {
  Reclaim plan{chain, chain, demand, hull};
  for (uint32_t i = 0; i < chain.count; i++) quota_out[i] = 0;
  if (plan.fits()) return true;
  uint64_t slack_bytes = 0;
  for (uint32_t i = 0; i < chain.count; i++) {
    plan.set(i, std::min<uint64_t>(evictable[i], chain.pools[i].used));
    slack_bytes += 2 * chain.pools[i].page_bytes;
  }
  if (!plan.fits()) return false;
  for (uint32_t k = 0; k < chain.count; k++) {
    const uint32_t position = spare_first[k];
    const uint64_t limit = std::min<uint64_t>(evictable[position], chain.pools[position].used);
    quota_out[position] = limit == 0 ? 0 : least_quota(&plan, position, limit, slack_bytes);
    plan.set(position, quota_out[position]);
  }
  return true;
}

} // namespace hicache
