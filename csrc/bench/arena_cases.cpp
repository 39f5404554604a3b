// Cases about taking, giving back and moving pages. All of them run on the null backend, so what is timed is tables.
#include <algorithm>

#include "bench.hpp"

namespace hicache::bench {
namespace {

std::vector<uint64_t> sizes(const Settings &settings, std::vector<uint64_t> full) {
  return settings.quick ? std::vector<uint64_t>{1'000, 10'000} : full;
}

uint32_t calls(const Settings &settings, uint32_t full) { return settings.quick ? std::min(full, 100u) : full; }

// One number per measured loop: seconds of this thread.
template <typename F> double timed(F &&loop) {
  const double start = thread_seconds();
  loop();
  return thread_seconds() - start;
}

} // namespace

void take_and_free(const Settings &settings) {
  for (const uint64_t pages : sizes(settings, {10'000, 1'000'000, 10'000'000})) {
    for (const bool holed : {false, true}) {
      Engine engine(two_pools(pages));
      Random random(pages);
      if (holed) { // 90 % full, then half of it freed in random order.
        Pages live(pages * 45 / 100);
        engine.take_both(live.data(), uint32_t(live.size()));
        shuffle(live, random);
        engine.free(kFull, live.data(), uint32_t(live.size() / 2));
      }
      const uint32_t n = calls(settings, 200'000);
      hicache_vpage_t four[4];
      const auto loop = [&] {
        for (uint32_t i = 0; i < n; i++) {
          engine.take_both(four, 4);
          engine.free(kFull, four, 4);
        }
      };
      loop(); // Warm.
      for (uint32_t run = 0; run < settings.runs; run++) {
        emit({"take + free of 4 pages, FULL+SWA, through C", count_text(pages) + " pages, " + (holed ? "50 % holes" : "fresh"), "ns",
              timed(loop) / n * 1e9, "", 0});
      }
    }
  }
}

// FULL alone lives in an arena with room for as many SWA pages, as in the peer's benchmark: N live pages, a quarter freed at
// random, then a random free and a take in turn.
void churn(const Settings &settings) {
  constexpr uint32_t kBatch = 16;
  for (const uint64_t pages : sizes(settings, {10'000, 100'000, 1'000'000})) {
    for (uint32_t run = 0; run < settings.runs; run++) {
      Engine engine(two_pools(2 * pages + 2));
      Random random(7 + run);
      Pages live = engine.take_many(kFull, uint32_t(pages));
      shuffle(live, random);
      const size_t holes = pages / 4;
      engine.free(kFull, live.data() + live.size() - holes, uint32_t(holes));
      live.resize(live.size() - holes);
      const uint32_t n = std::min<uint32_t>(calls(settings, 20'000), uint32_t(live.size() / kBatch));
      const double s = timed([&] {
        for (uint32_t i = 0; i < n; i++) {
          engine.free(kFull, live.data() + size_t(i) * kBatch, kBatch);
          engine.take(kFull, live.data() + size_t(i) * kBatch, kBatch);
        }
      });
      emit({"churn: free 16 + take 16 pages at 25 % holes", count_text(pages) + " pages", "pages/s", double(n) * kBatch / s, "", 0});
    }
  }
}

void packing(const Settings &settings) {
  const uint64_t pages = settings.quick ? 10'000 : 1'000'000;
  for (uint32_t run = 0; run < settings.runs; run++) {
    Engine engine(two_pools(2 * pages + 2));
    Random random(7 + run);
    Pages live = engine.take_many(kFull, uint32_t(pages));
    shuffle(live, random);
    engine.free(kFull, live.data(), uint32_t(pages / 2));
    hicache_compact_result_t result{};
    const double s = timed([&] { result = engine.compact(); });
    if (result.hole_pages != 0) fail("packing", "holes are left");
    const std::string config = count_text(pages) + " pages, 50 % random holes, tables only";
    emit({"packing, whole pass", config, "ms", s * 1e3, "", 0});
    emit({"packing, a moved page", config, "ns", s / double(result.moved_pages) * 1e9, "", 0});
  }
}

void bulk_take(const Settings &settings) {
  constexpr uint32_t kBatch = 256;
  const uint64_t pages = settings.quick ? 10'000 : 1'000'000;
  for (uint32_t run = 0; run < settings.runs; run++) {
    Engine engine(two_pools(2 * pages + 2));
    Random random(7 + run);
    Pages live = engine.take_many(kFull, uint32_t(pages));
    shuffle(live, random);
    engine.free(kFull, live.data(), uint32_t(pages / 2));
    const uint32_t n = std::min<uint32_t>(1500, uint32_t(pages / 2 / kBatch));
    Pages taken(size_t(n) * kBatch);
    const double s = timed([&] {
      for (uint32_t i = 0; i < n; i++) engine.take(kFull, taken.data() + size_t(i) * kBatch, kBatch);
    });
    emit({"bulk take of 256 pages out of holes, a page", count_text(pages) + " pages, 50 % random holes", "ns",
          s / double(taken.size()) * 1e9, "", 0});
  }
}

// An arena that is full but for 64 random holes in FULL; 16 SWA pages are wanted, so FULL has to give way at its frontier. The
// state before is made again, untimed, after each take.
void shortfall(const Settings &settings) {
  constexpr uint32_t kWant = 16, kHoles = 64;
  for (const uint64_t pages : sizes(settings, {10'000, 1'000'000, 10'000'000})) {
    Engine engine(two_pools(pages));
    Random random(11);
    hicache_error_t error{};
    error.struct_size = sizeof error;
    hicache_pool_info_t info{};
    info.struct_size = sizeof info;
    check(hicache_pool_info(engine.get(), HICACHE_TIER_DEVICE, kFull, &info, &error), error, "pool info");
    // FULL gets more pages than SWA, so that some have no window page: those may be freed without touching SWA.
    const uint32_t room = info.page_count - info.first_page;
    const uint32_t swa = room * 45 / 100, full = room - swa;
    Pages all = engine.take_many(kFull, full);
    shuffle(all, random);
    const hicache_take_t windows{kSwa, swa, all.data()};
    check(hicache_alloc(engine.get(), &windows, 1, &error), error, "alloc windows");
    Pages bare(all.begin() + swa, all.end());
    const uint32_t n = calls(settings, 2'000);
    for (uint32_t run = 0; run < settings.runs; run++) {
      double s = 0;
      const uint64_t before = engine.moves();
      uint64_t moved = 0;
      for (uint32_t i = 0; i < n; i++) {
        for (uint32_t h = 0; h < kHoles; h++) std::swap(bare[bare.size() - 1 - h], bare[random() % (bare.size() - h)]);
        engine.free(kFull, bare.data() + bare.size() - kHoles, kHoles);
        const hicache_take_t want{kSwa, kWant, bare.data()};
        s += timed([&] { check(hicache_alloc(engine.get(), &want, 1, &error), error, "alloc short"); });
        if (i + 1 == n) moved = engine.moves() - before;
        engine.free(kSwa, bare.data(), kWant);
        engine.take(kFull, bare.data() + bare.size() - kHoles, kHoles);
      }
      const std::string config = count_text(pages) + " pages, 64 random holes";
      emit({"take of 16 pages that needs moves", config, "us", s / n * 1e6, "", 0});
      emit({"take of 16 pages that needs moves: pages moved", config, "pages", double(moved) / n, "", 0});
    }
  }
}

void translate(const Settings &settings) {
  const uint32_t ids = settings.quick ? 10'000 : 1'000'000;
  for (const uint32_t table : {uint32_t{16} << 10, uint32_t{1} << 20}) {
    if (settings.quick && table > 16 << 10) continue;
    Engine engine(two_pools(table + 16));
    Random random(13);
    const Pages live = engine.take_many(kFull, table);
    Pages wanted(ids);
    for (hicache_vpage_t &v : wanted) v = live[random() % live.size()];
    std::vector<hicache_kernel_id_t> out(ids);
    hicache_error_t error{};
    error.struct_size = sizeof error;
    const hicache_pages_t held{kFull, 1, live.data()};
    hicache_lease_t lease = 0;
    check(hicache_lease_acquire(engine.get(), &held, 1, &lease, &error), error, "lease");
    const uint32_t n = calls(settings, 50);
    const auto loop = [&] {
      for (uint32_t i = 0; i < n; i++) {
        check(hicache_kernel_ids(engine.get(), lease, kFull, HICACHE_GRANULARITY_PAGE, wanted.data(), ids, out.data(), nullptr, &error),
              error, "kernel ids");
      }
    };
    loop();
    for (uint32_t run = 0; run < settings.runs; run++) {
      emit({"translate virtual to kernel ids", std::to_string(ids) + " random ids a call, table of " + std::to_string(table >> 8) + " KiB",
            "M ids/s", double(n) * ids / timed(loop) / 1e6, "", 0});
    }
    check(hicache_lease_release(engine.get(), lease, &error), error, "release");
  }
}

void reclaim(const Settings &settings) {
  const uint64_t pages = settings.quick ? 1'000 : 100'000;
  Shape shape = two_pools(pages);
  PoolShape state;
  state.role = HICACHE_ROLE_STATE;
  state.k_row_bytes = 512;
  shape.pools.push_back(state);
  Engine engine(shape);
  hicache_error_t error{};
  error.struct_size = sizeof error;
  Pages both(pages * 40 / 100);
  engine.take_both(both.data(), uint32_t(both.size()));
  (void)engine.take_many(kState, uint32_t(pages / 200));
  const uint64_t evictable[3] = {both.size(), both.size(), pages / 200};
  // Most of the arena is live, so each of these demands wants quotas of two or three pools.
  const hicache_demand_t demands[][3] = {{{kFull, uint32_t(pages / 5)}, {kSwa, uint32_t(pages / 10)}, {kState, 8}},
                                         {{kFull, uint32_t(pages / 4)}, {kSwa, 64}, {kState, 1}}};
  const uint32_t n = calls(settings, 100'000);
  for (uint32_t run = 0; run < settings.runs; run++) {
    uint64_t quotas[3] = {}, sum = 0;
    const double s = timed([&] {
      for (uint32_t i = 0; i < n; i++) {
        check(hicache_reclaim_plan(engine.get(), demands[i & 1], 3, evictable,
                                   i & 2 ? HICACHE_RECLAIM_SWA_FIRST : HICACHE_RECLAIM_FULL_FIRST, quotas, &error),
              error, "reclaim plan");
        sum += quotas[0] + quotas[1] + quotas[2];
      }
    });
    if (sum == 0) fail("reclaim plan", "nothing had to be reclaimed");
    emit({"reclaim plan", "FULL, SWA, STATE; " + count_text(pages) + " pages", "ns", s / n * 1e9, "", 0});
  }
}

} // namespace hicache::bench
