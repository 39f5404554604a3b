// The bytes of pages, for callers: views and copies of host pages, tags, stamps.
#include <cinttypes>
#include <cstring>

#include "engine.hpp"

namespace hicache {

Status Engine::host_view(std::span<const hicache_host_pages_t> pages, void **addresses_out, hicache_lease_t *lease_out,
                         ErrorDetail *error) {
  Arena *arena;
  if (Status status = arena_of(HICACHE_TIER_HOST, &arena, error); status != HICACHE_OK) return status;
  // An address is as wide as two places: the places go to the upper half of the caller's array and are widened from the front.
  static_assert(sizeof(void *) == 2 * sizeof(uint32_t));
  uint64_t total = 0;
  for (const auto &line : pages) total += line.page_count;
  uint32_t *places = reinterpret_cast<uint32_t *>(addresses_out) + total;
  const std::span<const hicache_pages_t> lines(reinterpret_cast<const hicache_pages_t *>(pages.data()), pages.size());
  std::span<const FenceMark> waits;
  if (Status status = arena->lease_acquire_places(lines, places, lease_out, &waits, error); status != HICACHE_OK) return status;
  page_work_.await(Tier::kHost, waits);
  uint64_t at = 0;
  for (const auto &line : pages) {
    std::byte *base = backend_->pool_base(Tier::kHost, line.pool);
    const uint64_t page_stride = options_.pools[line.pool].host_order.rows[0].page;
    for (uint32_t i = 0; i < line.page_count; i++, at++) {
      uint32_t place;
      std::memcpy(&place, places + at, sizeof place);
      void *address = base == nullptr ? nullptr : base + place * page_stride;
      std::memcpy(addresses_out + at, &address, sizeof address);
    }
  }
  return HICACHE_OK;
}

Status Engine::host_copy(hicache_lease_t lease, const hicache_host_pages_t &pages, uint32_t layout, bool to_host, std::byte *bytes,
                         ErrorDetail *error) {
  std::vector<uint32_t> places(pages.page_count);
  {
    std::lock_guard lock(mutex);
    Arena *arena;
    if (Status status = arena_of(HICACHE_TIER_HOST, &arena, error); status != HICACHE_OK) return status;
    if (pages.pool >= pool_count())
      return fail(error, HICACHE_INVALID_ARGUMENT, pages.pool, "pool is %u, the engine has %u", pages.pool, pool_count());
    if (layout > HICACHE_HOST_PAGE_HEAD)
      return fail(error, HICACHE_INVALID_ARGUMENT, pages.pool, "layout is %u, not one of HICACHE_HOST_*", layout);
    if (!arena->is_lease(lease))
      return fail(error, HICACHE_STALE_ID, pages.pool, "lease 0x%" PRIx64 " is over or holds no host pages", lease);
    if (backend_->pool_base(Tier::kHost, pages.pool) == nullptr)
      return fail(error, HICACHE_UNSUPPORTED, pages.pool, "the null backend has no bytes");
    for (uint32_t i = 0; i < pages.page_count; i++) {
      places[i] = arena->place(pages.pool, pages.hpages[i]);
      uint8_t state = 0;
      if (places[i] == HICACHE_NO_PAGE || arena->map(pages.pool, places[i], 1, &state, error) != HICACHE_OK)
        return fail(error, HICACHE_NOT_MAPPED, pages.pool, "pages.hpages[%u] is %u: no allocated host page", i, pages.hpages[i]);
      if ((state & HICACHE_PAGE_PINNED) == 0)
        return fail(error, HICACHE_INVALID_ARGUMENT, pages.pool, "pages.hpages[%u] is %u, which no view holds", i, pages.hpages[i]);
    }
  }
  const PoolGeometry &of = options_.pools[pages.pool];
  const PageOrder outside =
      layout == HICACHE_HOST_ENVELOPE ? envelope_order(of.rows, of.options.envelope_layout) : region_order(of.rows, layout, 1);
  const PageFragments fragments = cut_page(of.rows, of.host_order, outside, 0, of.rows.layer_count, true);
  std::byte *base = backend_->pool_base(Tier::kHost, pages.pool);
  for (uint32_t place : places) {
    fragments.each(place, 0, [&](uint64_t host, uint64_t at, uint64_t count) {
      to_host ? std::memcpy(base + host, bytes + at, count) : std::memcpy(bytes + at, base + host, count);
    });
    bytes += of.rows.page_bytes;
  }
  return HICACHE_OK;
}

Status Engine::tags(uint32_t tier, uint32_t pool, const uint32_t *pages, uint32_t count, uint64_t *tags, bool write, ErrorDetail *error) {
  Arena *arena;
  if (Status status = arena_of(tier, &arena, error); status != HICACHE_OK) return status;
  if (pool >= pool_count()) return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pool is %u, the engine has %u", pool, pool_count());
  const bool host = tier == HICACHE_TIER_HOST;
  std::atomic<uint64_t> *all = backend_->tags(host ? Tier::kHost : Tier::kDevice, pool);
  if (all == nullptr) return fail(error, HICACHE_UNSUPPORTED, pool, "tags: only pages of the null backend have them");
  const PoolInfo info = arena->info(pool);
  // Checked whole before the first write: a refused call has changed nothing.
  for (int pass = 0; pass < 2; pass++) {
    for (uint32_t i = 0; i < count; i++) {
      const uint32_t place = host ? arena->place(pool, pages[i]) : pages[i];
      if (pass == 0) {
        if (place < info.page_count) continue;
        return fail(error, host ? HICACHE_STALE_ID : HICACHE_INVALID_ARGUMENT, pool, "pages[%u] is %u: %s", i, pages[i],
                    host ? "no allocated host page" : "no page of the pool");
      }
      if (write) {
        all[place].store(tags[i], std::memory_order_relaxed);
      } else {
        tags[i] = all[place].load(std::memory_order_relaxed);
      }
    }
  }
  return HICACHE_OK;
}

Status Engine::stamp_pages(uint32_t pool, uint64_t stream, std::span<const hicache_stamp_t> stamps, std::span<const uint64_t> salts,
                           uint32_t *mismatches_out, ErrorDetail *error) {
  std::vector<PageStamp> pages;
  {
    std::lock_guard lock(mutex);
    if (pool >= pool_count()) return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pool is %u, the engine has %u", pool, pool_count());
    const uint32_t page_count = device_->info(pool).page_count, page_tokens = layers_.pools()[pool].page_tokens;
    for (size_t i = 0; i < stamps.size(); i++) {
      const auto page = static_cast<uint32_t>(stamps[i].page);
      if (page >= page_count || stamps[i].token_count > page_tokens)
        return fail(error, HICACHE_INVALID_ARGUMENT, pool, "stamps[%zu]: page %d with %u tokens is none of the pool's", i, stamps[i].page,
                    stamps[i].token_count);
      pages.push_back({PhysicalPage{page}, stamps[i].token_count, stamps[i].digest});
    }
  }
  return backend_->stamp_pages(pool, stream, pages, salts, mismatches_out, error);
}

} // namespace hicache
