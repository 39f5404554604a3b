// engine_bench measures the engine through its C ABI alone: what a server in C++, Rust or Python pays. It prints one JSON object a
// line, one line a measurement; `hicache bench engine` runs it and judges the figures.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "bench.hpp"

namespace hicache::bench {

void emit(const Sample &s) {
  std::printf("{\"work\": \"%s\", \"config\": \"%s\", \"unit\": \"%s\", \"value\": %.9g", s.work.c_str(), s.config.c_str(), s.unit.c_str(),
              s.value);
  if (!s.peer.empty()) std::printf(", \"peer\": \"%s\", \"peer_value\": %.9g", s.peer.c_str(), s.peer_value);
  std::printf("}\n");
  std::fflush(stdout);
}

void fail(const char *what, const char *why) {
  std::fprintf(stderr, "engine_bench: %s: %s\n", what, why);
  std::exit(3);
}

void check(hicache_status_t status, const hicache_error_t &error, const char *what) {
  if (status < 0) fail(what, error.message[0] ? error.message : hicache_status_name(status));
}

Shape two_pools(uint64_t pages) {
  Shape shape;
  shape.pools.resize(2);
  shape.pools[kSwa].role = HICACHE_ROLE_SWA;
  shape.pools[kSwa].layers = {1};
  for (PoolShape &pool : shape.pools) pool.zeroing = HICACHE_ZERO_NEVER;
  shape.device_bytes = pages * 32;
  return shape;
}

Engine::Engine(const Shape &shape) {
  error_.struct_size = sizeof error_;
  std::vector<hicache_pool_options_t> pools(shape.pools.size());
  for (size_t i = 0; i < pools.size(); i++) {
    const PoolShape &from = shape.pools[i];
    pools[i] = {};
    pools[i].role = from.role;
    pools[i].page_tokens = from.page_tokens;
    pools[i].window_tokens = from.role == HICACHE_ROLE_SWA ? 4096 : 0;
    pools[i].layer_count = uint32_t(from.layers.size());
    pools[i].layer_ids = from.layers.data();
    pools[i].zeroing = from.zeroing;
    pools[i].k_row_bytes = from.k_row_bytes;
    pools[i].v_row_bytes = from.v_row_bytes;
  }
  hicache_options_t options{};
  options.struct_size = sizeof options;
  options.abi_version = HICACHE_ABI_MAJOR << 16 | HICACHE_ABI_MINOR;
  options.backend = shape.backend;
  options.device_bytes = shape.device_bytes;
  options.host_bytes = shape.host_bytes;
  options.pools = pools.data();
  options.pool_count = uint32_t(pools.size());
  options.pool_stride_bytes = sizeof pools[0];
  options.copy_thread_count = shape.copy_threads;
  check(hicache_open(&options, &engine_, &error_), error_, "open");
}

Engine::~Engine() {
  if (engine_ != nullptr) check(hicache_close(engine_, &error_), error_, "close");
}

void Engine::take(uint32_t pool, hicache_vpage_t *pages, uint32_t count) {
  const hicache_take_t line{pool, count, pages};
  check(hicache_alloc(engine_, &line, 1, &error_), error_, "alloc");
}

void Engine::take_both(hicache_vpage_t *pages, uint32_t count) {
  const hicache_take_t lines[] = {{kFull, count, pages}, {kSwa, count, nullptr}};
  check(hicache_alloc(engine_, lines, 2, &error_), error_, "alloc");
}

void Engine::free(uint32_t pool, const hicache_vpage_t *pages, uint32_t count) {
  const hicache_pages_t line{pool, count, pages};
  check(hicache_free(engine_, &line, 1, &error_), error_, "free");
}

hicache_compact_result_t Engine::compact() {
  hicache_compact_budget_t budget{};
  budget.struct_size = sizeof budget;
  budget.tier = HICACHE_TIER_DEVICE;
  budget.pool = HICACHE_NO_POOL;
  hicache_compact_result_t result{};
  check(hicache_compact(engine_, &budget, &result, &error_), error_, "compact");
  return result;
}

uint64_t Engine::moves() {
  hicache_stats_t stats{};
  stats.struct_size = sizeof stats;
  check(hicache_stats(engine_, &stats, &error_), error_, "stats");
  return stats.moves;
}

void shuffle(Pages &pages, Random &random) {
  for (size_t i = pages.size(); i > 1; i--) std::swap(pages[i - 1], pages[random() % i]);
}

std::string count_text(uint64_t n) {
  uint32_t power = 0;
  uint64_t rest = n;
  while (rest >= 10 && rest % 10 == 0) rest /= 10, power++;
  if (rest == 1 && power > 2) return "10^" + std::to_string(power);
  return std::to_string(n);
}

} // namespace hicache::bench

namespace {

using hicache::bench::Settings;

struct Case {
  const char *name;
  void (*run)(const Settings &);
};

constexpr Case kCases[] = {
    {"take-free", hicache::bench::take_and_free}, {"churn", hicache::bench::churn},
    {"packing", hicache::bench::packing},         {"bulk", hicache::bench::bulk_take},
    {"shortfall", hicache::bench::shortfall},     {"translate", hicache::bench::translate},
    {"reclaim", hicache::bench::reclaim},         {"submit", hicache::bench::submit},
    {"copy-rate", hicache::bench::copy_rate},     {"tables", hicache::bench::tables},
    {"decode-step", hicache::bench::decode_step},
};

int usage() {
  std::fprintf(stderr, "usage: engine_bench [--quick] [--runs N] [CASE...]\ncases:");
  for (const Case &c : kCases) std::fprintf(stderr, " %s", c.name);
  std::fprintf(stderr, "\n");
  return 2;
}

} // namespace

int main(int argc, char **argv) {
  Settings settings;
  std::vector<const Case *> chosen;
  for (int i = 1; i < argc; i++) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      settings.quick = true;
    } else if (std::strcmp(argv[i], "--runs") == 0 && i + 1 < argc) {
      const int runs = std::atoi(argv[++i]);
      if (runs < 1 || runs > 1000) return usage();
      settings.runs = uint32_t(runs);
    } else {
      const size_t before = chosen.size();
      for (const Case &c : kCases) {
        if (std::strcmp(argv[i], c.name) == 0) chosen.push_back(&c);
      }
      if (chosen.size() == before) return usage();
    }
  }
  if (chosen.empty()) {
    for (const Case &c : kCases) chosen.push_back(&c);
  }
  for (const Case *c : chosen) c->run(settings);
  return 0;
}
