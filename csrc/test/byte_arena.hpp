// An arena over real bytes for tests: a mover that copies them, stamps that say whose page it is, counts of what was asked for.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <initializer_list>
#include <memory>
#include <vector>

#include "../arena.hpp"
#include "../arena_state.hpp"

namespace hicache::test {

class ByteMover : public Mover {
public:
  Status move_pages(std::span<const PageMove> moves, std::span<const FenceMark> waits, FenceMark done, ErrorDetail *) override {
    for (const PageMove &move : moves) {
      std::memcpy(at(move.pool, raw(move.destination)), at(move.pool, raw(move.source)), page_bytes[move.pool]);
      log.push_back(move);
    }
    move_waits.assign(waits.begin(), waits.end());
    last_done = done;
    move_calls++;
    return status;
  }
  Status zero_pages(std::span<const PageZero> zeros, std::span<const FenceMark> waits, FenceMark done, ErrorDetail *) override {
    for (const PageZero &zero : zeros) {
      const uint64_t from = zero.first_token * row_bytes[zero.pool];
      std::memset(at(zero.pool, raw(zero.page)) + from, 0, page_bytes[zero.pool] - from);
      zero_log.push_back(zero);
    }
    zero_waits.assign(waits.begin(), waits.end());
    zero_done = done;
    return status;
  }
  Status copy_pages(std::span<const PageCopy> copies, std::span<const FenceMark>, FenceMark, ErrorDetail *) override {
    for (const PageCopy &copy : copies)
      std::memcpy(at(copy.pool, raw(copy.destination)), at(copy.pool, raw(copy.source)), copy.token_count * row_bytes[copy.pool]);
    copy_count += copies.size();
    return status;
  }
  // The mirror of the tables that a device would have.
  Status table_changed(uint32_t pool, std::span<const uint32_t> vpages, std::span<const uint32_t> ppages, std::span<const FenceMark> waits,
                       ErrorDetail *) override {
    if (mirror.size() <= pool) mirror.resize(pool + 1);
    for (size_t i = 0; i < vpages.size(); i++) {
      if (mirror[pool].size() <= vpages[i]) mirror[pool].resize(vpages[i] + 1, HICACHE_NO_PAGE);
      mirror[pool][vpages[i]] = ppages[i];
    }
    patch_waits.insert(patch_waits.end(), waits.begin(), waits.end());
    patch_calls++;
    return status;
  }
  uint8_t *at(uint32_t pool, uint32_t page) { return memory.data() + static_base[pool] + page * page_bytes[pool]; }

  std::vector<uint8_t> memory;
  std::vector<uint64_t> page_bytes, row_bytes, static_base;
  std::vector<PageMove> log;
  std::vector<PageZero> zero_log;
  std::vector<FenceMark> move_waits, zero_waits;
  FenceMark last_done, zero_done;
  std::vector<std::vector<uint32_t>> mirror; // By pool and virtual page.
  std::vector<FenceMark> patch_waits;
  uint64_t patch_calls = 0;
  uint64_t move_calls = 0, copy_count = 0;
  Status status = HICACHE_OK;
};

inline PoolSpec pool_spec(uint32_t role, uint64_t page_bytes, uint32_t page_tokens = 1, uint32_t direction = HICACHE_DIRECTION_AUTO) {
  PoolSpec spec;
  spec.role = role;
  spec.direction = direction;
  spec.page_bytes = page_bytes;
  spec.page_tokens = page_tokens;
  spec.window_tokens = role == HICACHE_ROLE_SWA ? 1024 : 0;
  return spec;
}

class ByteArena {
public:
  explicit ByteArena(const ArenaOptions &from) {
    ArenaOptions options = from;
    uint64_t end = options.bytes_max == 0 ? options.bytes : options.bytes_max;
    for (const PoolSpec &pool : options.pools) {
      mover.page_bytes.push_back(pool.page_bytes);
      mover.row_bytes.push_back(pool.page_bytes / pool.page_tokens);
      mover.static_base.push_back(pool.is_static ? end : 0);
      if (pool.is_static) end += uint64_t{64} * 1024;
    }
    mover.memory.resize(end);
    options.mover = &mover;
    status = Arena::open(options, &arena, &error);
  }

  // Takes pages of an owner pool; empty on refusal (status says why).
  std::vector<uint32_t> take(uint32_t pool, uint32_t count) {
    std::vector<uint32_t> vpages(count);
    const Take line{pool, count, vpages.data()};
    status = arena->take({&line, 1}, &error);
    if (status != HICACHE_OK) vpages.clear();
    return vpages;
  }
  // Takes `count` pages of `owner` with a window page each in `window`.
  std::vector<uint32_t> take_both(uint32_t owner, uint32_t window, uint32_t count) {
    std::vector<uint32_t> vpages(count);
    const Take lines[] = {{owner, count, vpages.data()}, {window, count, nullptr}};
    status = arena->take(lines, &error);
    if (status != HICACHE_OK) vpages.clear();
    return vpages;
  }
  Status take_windows(uint32_t pool, std::vector<uint32_t> vpages) {
    const Take line{pool, static_cast<uint32_t>(vpages.size()), vpages.data()};
    return status = arena->take({&line, 1}, &error);
  }
  Status free(uint32_t pool, const std::vector<uint32_t> &vpages) {
    const hicache_pages_t line{pool, static_cast<uint32_t>(vpages.size()), vpages.data()};
    return status = arena->free({&line, 1}, &error);
  }
  hicache_reservation_t reserve(uint32_t pool, uint32_t count, std::vector<uint32_t> *names = nullptr) {
    std::vector<uint32_t> vpages(count);
    const bool owns = arena->info(pool).owner == pool;
    const Take line{pool, count, owns ? vpages.data() : nullptr};
    hicache_reservation_t id = 0;
    status = arena->reserve({&line, 1}, &id, &error);
    if (names != nullptr) *names = vpages;
    return status == HICACHE_OK ? id : 0;
  }
  std::vector<uint32_t> reserved_places(hicache_reservation_t id, uint32_t pool) {
    std::vector<uint32_t> places(64);
    uint32_t count = 0;
    EXPECT_EQ(arena->reservation_pages(id, pool, places.data(), 64, &count, &error), HICACHE_OK);
    places.resize(count);
    return places;
  }
  hicache_lease_t lease(uint32_t pool, const std::vector<uint32_t> &vpages) {
    const hicache_pages_t line{pool, static_cast<uint32_t>(vpages.size()), vpages.data()};
    hicache_lease_t id = 0;
    status = arena->lease_acquire({&line, 1}, &id, &error);
    return status == HICACHE_OK ? id : 0;
  }
  hicache_step_t step(uint64_t stream, uint32_t pool, const std::vector<uint32_t> &vpages, std::vector<FenceMark> *waits_out = nullptr) {
    const hicache_pages_t line{pool, static_cast<uint32_t>(vpages.size()), vpages.data()};
    hicache_step_t id = 0;
    std::span<const FenceMark> waits;
    status = arena->step_open(stream, {&line, 1}, &id, &waits, &error);
    if (waits_out != nullptr) waits_out->assign(waits.begin(), waits.end());
    return status == HICACHE_OK ? id : 0;
  }
  FenceMark close_step(hicache_step_t id) {
    FenceMark mark;
    EXPECT_EQ(arena->step_close(id, &mark, &error), HICACHE_OK);
    return mark;
  }
  hicache_compact_result_t compact(uint32_t pool = HICACHE_NO_POOL, uint32_t pages_max = 0) {
    hicache_compact_budget_t budget = {};
    budget.struct_size = sizeof budget;
    budget.pool = pool;
    budget.pages_max = pages_max;
    hicache_compact_result_t result = {};
    status = arena->compact(budget, &result, &error);
    return result;
  }
  hicache_pool_stats_t stats(uint32_t pool) {
    hicache_pool_stats_t out = {};
    EXPECT_EQ(arena->pool_stats(pool, &out, &error), HICACHE_OK);
    return out;
  }
  hicache_capacity_t capacity(uint32_t pool) {
    hicache_capacity_t out = {};
    EXPECT_EQ(arena->capacity(pool, &out, &error), HICACHE_OK);
    return out;
  }
  Status fits(std::initializer_list<hicache_demand_t> demands) {
    return status = arena->fits(std::span<const hicache_demand_t>(demands.begin(), demands.size()), &error);
  }
  // The most pages that can be taken of both at once, by the predicate.
  uint32_t joint(uint32_t a, uint32_t b) {
    uint32_t n = 0;
    while (fits({{a, n + 1}, {b, n + 1}}) == HICACHE_OK) n++;
    return n;
  }
  std::vector<uint32_t> places(uint32_t pool, const std::vector<uint32_t> &vpages) {
    std::vector<uint32_t> out;
    for (const uint32_t v : vpages) out.push_back(arena->place(pool, v));
    return out;
  }
  std::vector<uint32_t> holes(uint32_t pool) {
    std::vector<uint8_t> states(arena->info(pool).page_count);
    EXPECT_EQ(arena->map(pool, 0, static_cast<uint32_t>(states.size()), states.data(), &error), HICACHE_OK);
    std::vector<uint32_t> out;
    for (uint32_t p = 0; p < states.size(); p++)
      if (states[p] == HICACHE_PAGE_HOLE) out.push_back(p);
    return out;
  }
  std::vector<uint32_t> free_names(uint32_t owner) {
    std::vector<uint32_t> out;
    arena->state().pools[owner].ids.each([&](uint32_t v) { out.push_back(v); });
    return out;
  }

  // Writes a stamp into every byte of a page, and compares.
  void stamp(uint32_t pool, uint32_t vpage, uint8_t value) {
    std::memset(mover.at(pool, arena->place(pool, vpage)), value, mover.page_bytes[pool]);
  }
  bool stamped(uint32_t pool, uint32_t vpage, uint8_t value) {
    const uint8_t *page = mover.at(pool, arena->place(pool, vpage));
    for (uint64_t i = 0; i < mover.page_bytes[pool]; i++)
      if (page[i] != value) return false;
    return true;
  }

  // The chain on one line a pool, for a failing random test: a letter a page.
  void print() {
    static const char kLetters[] = {'.', 's', 'L', 'o', 'R', 'Q'};
    for (uint32_t i = 0; i < arena->state().chain_count; i++) {
      const Pool &pool = arena->state().pools[arena->state().chain_pools[i]];
      std::vector<uint8_t> states(pool.page_count);
      arena->map(pool.index, 0, pool.page_count, states.data(), &error);
      std::string line;
      for (const uint8_t state : states) {
        const char letter = kLetters[state & 0x7f];
        line += (state & HICACHE_PAGE_PINNED) != 0 && letter == 'L' ? 'P' : letter;
      }
      std::printf("pool %u dir %u pb %3llu [%3u,%3u) %s\n", pool.index, pool.direction, static_cast<unsigned long long>(pool.page_bytes),
                  pool.low, pool.high, line.c_str());
    }
    std::printf("total %llu sink %llu\n", static_cast<unsigned long long>(arena->bytes()),
                static_cast<unsigned long long>(arena->state().sink_bytes));
  }

  // Every table, for "nothing has changed".
  std::vector<uint32_t> tables() {
    std::vector<uint32_t> out;
    for (const Pool &pool : arena->state().pools) {
      for (uint32_t v = 0; v < pool.table.virtual_count(); v++) out.push_back(pool.table.v2p(v));
      for (uint32_t p = 0; p < pool.table.physical_count(); p++) {
        out.push_back(pool.table.p2v(p));
        out.push_back(pool.holes.contains(p) + 2u * pool.movable.contains(p) + 4u * pool.held.contains(p));
        out.push_back(pool.pins[p]);
      }
      for (const uint32_t x : {pool.low, pool.high, pool.live, pool.reserved, pool.quarantined, pool.holes.size()}) out.push_back(x);
      pool.ids.each([&](uint32_t v) { out.push_back(v); });
      for (const uint64_t word : pool.marks) out.push_back(static_cast<uint32_t>(word | word >> 32));
    }
    out.push_back(static_cast<uint32_t>(arena->state().slab.free_chunks()));
    return out;
  }

  ByteMover mover;
  std::unique_ptr<Arena> arena;
  ErrorDetail error;
  Status status = HICACHE_OK;
};

} // namespace hicache::test
