// Speed of the arena's tables alone: no bytes move. Prints a line a measurement; `make bench` shows them beside those through the ABI.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <random>
#include <vector>

#include "arena.hpp"

using namespace hicache;

namespace {

// Time of this thread on a processor: other processes on the machine do not count.
double now_ns() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

// Best of several runs of `repeat` calls: nanoseconds a call.
double best_ns(uint32_t runs, uint32_t repeat, const std::function<void()> &work) {
  double best = 1e18;
  for (uint32_t run = 0; run < runs; run++) {
    const double start = now_ns();
    for (uint32_t i = 0; i < repeat; i++) work();
    best = std::min(best, (now_ns() - start) / repeat);
  }
  return best;
}

void require(Status status, const ErrorDetail &error) {
  if (status == HICACHE_OK) return;
  std::fprintf(stderr, "%s: %s\n", status_name(status), error.message);
  std::exit(1);
}

struct Bench {
  std::unique_ptr<Arena> arena;
  ErrorDetail error;

  // FULL and SWA of equal pages, room for `pages` in all; or one FULL pool.
  Bench(uint32_t pages, bool both) {
    ArenaOptions options;
    PoolSpec full, swa;
    full.page_bytes = swa.page_bytes = 4096;
    full.page_tokens = swa.page_tokens = 16;
    swa.role = HICACHE_ROLE_SWA;
    swa.window_tokens = 1024;
    options.pools = both ? std::vector<PoolSpec>{full, swa} : std::vector<PoolSpec>{full};
    options.bytes = (uint64_t{pages} + 1) * 4096;
    require(Arena::open(options, &arena, &error), error);
  }
  std::vector<uint32_t> take(uint32_t count) {
    std::vector<uint32_t> vpages(count);
    const Take line{0, count, vpages.data()};
    require(arena->take({&line, 1}, &error), error);
    return vpages;
  }
  void free(const uint32_t *vpages, uint32_t count) {
    const hicache_pages_t line{0, count, vpages};
    require(arena->free({&line, 1}, &error), error);
  }
  // Fills the arena and frees a random share of it.
  std::vector<uint32_t> fill_with_holes(uint32_t pages, double share) {
    std::vector<uint32_t> all = take(pages), kept;
    std::mt19937 random(1);
    std::shuffle(all.begin(), all.end(), random);
    const auto freed = static_cast<uint32_t>(pages * share);
    free(all.data(), freed);
    return {all.begin() + freed, all.end()};
  }
};

void take_and_free() {
  for (const uint32_t pages : {10000u, 1000000u, 10000000u}) {
    for (const bool holes : {false, true}) {
      Bench b(pages, true);
      if (holes) b.fill_with_holes(pages / 2, 0.5);
      uint32_t vpages[4];
      const double ns = best_ns(40, 2000, [&] {
        const Take lines[] = {{0, 4, vpages}, {1, 4, nullptr}};
        require(b.arena->take(lines, &b.error), b.error);
        b.free(vpages, 4);
      });
      std::printf("take + free 4 pages FULL+SWA, %8u pages, %s: %7.1f ns\n", pages, holes ? "50%% holes" : "fresh    ", ns);
    }
  }
}

void bulk_take() {
  Bench b(1000000, false);
  b.fill_with_holes(900000, 0.5);
  std::vector<uint32_t> vpages(256);
  double take_ns = 0;
  const double both_ns = best_ns(50, 50, [&] {
    const Take line{0, 256, vpages.data()};
    const double start = now_ns();
    require(b.arena->take({&line, 1}, &b.error), b.error);
    take_ns = now_ns() - start;
    b.free(vpages.data(), 256);
  });
  // Without the frees, out of scattered holes.
  Bench c(1000000, false);
  c.fill_with_holes(900000, 0.5);
  const double cold_ns = best_ns(1, 1500, [&] {
    const Take line{0, 256, vpages.data()};
    require(c.arena->take({&line, 1}, &c.error), c.error);
  });
  std::printf("bulk take of 256 pages out of holes: %.2f ns a page (warm %.2f; take + free %.2f)\n", cold_ns / 256, take_ns / 256,
              both_ns / 256);
}

void churn() {
  for (const uint32_t pages : {10000u, 100000u, 1000000u}) {
    Bench b(pages, false);
    std::vector<uint32_t> live = b.fill_with_holes(pages, 0.25);
    std::mt19937 random(2);
    std::shuffle(live.begin(), live.end(), random);
    size_t at = 0;
    const double ns = best_ns(40, 1000, [&] { // The 16 that were taken longest ago in a shuffled order go, 16 come.
      if (at + 16 > live.size()) at = 0;
      b.free(&live[at], 16);
      const Take line{0, 16, &live[at]};
      require(b.arena->take({&line, 1}, &b.error), b.error);
      at += 16;
    });
    std::printf("churn, 16 pages a call, 25%% holes, %8u pages: %7.1f ns a call, %.2f M pages/s\n", pages, ns, 16e3 / ns);
  }
}

void packing() {
  const uint32_t pages = 1000000;
  double best = 1e18;
  uint64_t moved = 0;
  for (int run = 0; run < 3; run++) {
    Bench b(pages, false);
    b.fill_with_holes(pages, 0.5);
    hicache_compact_budget_t budget = {};
    budget.struct_size = sizeof budget;
    budget.pool = HICACHE_NO_POOL;
    hicache_compact_result_t result;
    const double start = now_ns();
    require(b.arena->compact(budget, &result, &b.error), b.error);
    moved = result.moved_pages;
    best = std::min(best, (now_ns() - start) / static_cast<double>(moved));
  }
  std::printf("packing 10^6 pages with 50%% random holes: %llu moved, %.1f ns a moved page\n", static_cast<unsigned long long>(moved),
              best);
}

// SWA is full of holes to its frontier; FULL wants one page more than the gap: one page moves.
void small_shortfall() {
  for (const uint32_t pages : {10000u, 10000000u}) {
    Bench b(pages, true);
    std::vector<uint32_t> vpages(pages / 2);
    const Take lines[] = {{0, pages / 2, vpages.data()}, {1, pages / 2, nullptr}};
    require(b.arena->take(lines, &b.error), b.error);
    std::vector<uint32_t> windows;
    for (uint32_t i = 0; i < vpages.size(); i += 2) windows.push_back(vpages[i]);
    const hicache_pages_t line{1, static_cast<uint32_t>(windows.size()), windows.data()};
    require(b.arena->free({&line, 1}, &b.error), b.error);
    const uint64_t before = b.arena->counters().moves;
    const double ns = best_ns(1, 1000, [&] { b.take(1); });
    std::printf("take with a shortfall of a page, %8u pages: %7.1f ns, %.2f moves\n", pages, ns,
                static_cast<double>(b.arena->counters().moves - before) / 1000);
  }
}

void reclaim() {
  ArenaOptions options;
  for (const uint32_t role : {HICACHE_ROLE_FULL, HICACHE_ROLE_SWA, HICACHE_ROLE_STATE}) {
    PoolSpec pool;
    pool.role = role;
    pool.page_bytes = role == HICACHE_ROLE_STATE ? 98304 : 4096;
    pool.window_tokens = 1024;
    options.pools.push_back(pool);
  }
  options.bytes = uint64_t{1} << 32;
  std::unique_ptr<Arena> arena;
  ErrorDetail error;
  require(Arena::open(options, &arena, &error), error);
  std::vector<uint32_t> full(600000), state(5000);
  const Take lines[] = {{0, 500000, full.data()}, {1, 400000, nullptr}, {2, 5000, state.data()}};
  require(arena->take(lines, &error), error);
  const hicache_demand_t demand[] = {{0, 100000}, {1, 50000}, {2, 300}};
  const uint64_t evictable[] = {300000, 300000, 4000};
  uint64_t quota[3];
  for (const uint32_t preference : {HICACHE_RECLAIM_FULL_FIRST, HICACHE_RECLAIM_SWA_FIRST}) {
    const double ns = best_ns(5, 20000, [&] { require(arena->reclaim_plan(demand, evictable, preference, quota, &error), error); });
    std::printf("reclaim plan, 3 pools, preference %u: %7.1f ns (%llu %llu %llu)\n", preference, ns,
                static_cast<unsigned long long>(quota[0]), static_cast<unsigned long long>(quota[1]),
                static_cast<unsigned long long>(quota[2]));
  }
}

void memory() {
  for (const bool both : {false, true}) {
    const uint32_t pages = 1000000;
    Bench b(pages, both);
    std::printf("tables, %s: %.1f bytes a page\n", both ? "FULL+SWA" : "FULL    ",
                static_cast<double>(b.arena->table_bytes()) / pages / (both ? 2 : 1));
  }
}

} // namespace

int main() {
  take_and_free();
  bulk_take();
  churn();
  packing();
  small_shortfall();
  reclaim();
  memory();
}
