// What the cases of engine_bench share: an engine by its C ABI, clocks, and the line that a measurement becomes.
#pragma once

#include <hicache.h>

#include <cstdint>
#include <ctime>
#include <random>
#include <string>
#include <vector>

namespace hicache::bench {

struct Settings {
  bool quick = false; // Tiny arenas and few calls: to see that everything runs.
  uint32_t runs = 5;
};

// A measurement of one run. Lines of equal work and config are runs of the same thing.
struct Sample {
  std::string work, config, unit;
  double value = 0;
  std::string peer; // What else was measured in the same run, if anything.
  double peer_value = 0;
};
void emit(const Sample &sample);

[[noreturn]] void fail(const char *what, const char *why);
void check(hicache_status_t status, const hicache_error_t &error, const char *what);

inline double seconds(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}
// CPU time of this thread: other programs on the machine do not count, their use of caches and memory does.
inline double thread_seconds() { return seconds(CLOCK_THREAD_CPUTIME_ID); }
inline double wall_seconds() { return seconds(CLOCK_MONOTONIC); }

struct PoolShape {
  uint32_t role = HICACHE_ROLE_FULL;
  std::vector<uint32_t> layers = {0};
  uint32_t page_tokens = 1;
  uint64_t k_row_bytes = 16;
  uint64_t v_row_bytes = 16;
  uint32_t zeroing = HICACHE_ZERO_DEFAULT;
};

struct Shape {
  uint32_t backend = HICACHE_BACKEND_NULL;
  std::vector<PoolShape> pools;
  uint64_t device_bytes = 0;
  uint64_t host_bytes = 0;
  uint32_t copy_threads = 1;
};

constexpr uint32_t kFull = 0, kSwa = 1, kState = 2;

// FULL and SWA with pages of 32 bytes, in an arena with room for `pages` of them together. Nothing is zeroed: tables alone are timed.
Shape two_pools(uint64_t pages);

using Pages = std::vector<hicache_vpage_t>;

class Engine {
public:
  explicit Engine(const Shape &shape);
  ~Engine();
  Engine(const Engine &) = delete;
  Engine &operator=(const Engine &) = delete;

  hicache_engine_t *get() { return engine_; }
  void take(uint32_t pool, hicache_vpage_t *pages, uint32_t count);
  void take_both(hicache_vpage_t *pages, uint32_t count); // FULL, and a window page for each.
  void free(uint32_t pool, const hicache_vpage_t *pages, uint32_t count);
  Pages take_many(uint32_t pool, uint32_t count) {
    Pages pages(count);
    take(pool, pages.data(), count);
    return pages;
  }
  hicache_compact_result_t compact();
  uint64_t moves();

private:
  hicache_engine_t *engine_ = nullptr;
  hicache_error_t error_{};
};

// The same numbers in every run of the program.
using Random = std::mt19937_64;
void shuffle(Pages &pages, Random &random);

std::string count_text(uint64_t n); // "10^6" where it is a power of ten, else the number.

// Cases. Each makes settings.runs runs.
void take_and_free(const Settings &settings);
void churn(const Settings &settings);
void packing(const Settings &settings);
void bulk_take(const Settings &settings);
void shortfall(const Settings &settings);
void translate(const Settings &settings);
void reclaim(const Settings &settings);
void submit(const Settings &settings);
void copy_rate(const Settings &settings);
void tables(const Settings &settings);
void decode_step(const Settings &settings);

} // namespace hicache::bench
