// Host regions and the staged path of the CUDA backend: every order of a page's bytes, by every method, there and back; what the plan of
// the ring comes to.
#include "device_fixture.hpp"

#include <atomic>
#include <random>

namespace hicache::device_test {
namespace {

constexpr uint32_t kPages = 20;

void round_trip(uint32_t envelope, uint32_t host_layout, uint32_t tokens, CopyMethod method, uint64_t quantum_bytes, uint64_t *staged_out,
                bool *kernels_out) {
  SCOPED_TRACE("envelope " + std::to_string(envelope) + ", host layout " + std::to_string(host_layout) + ", " + std::to_string(tokens) +
               " tokens, method " + std::to_string(static_cast<int>(method)) + ", quantum " + std::to_string(quantum_bytes));
  const bool token_major = envelope == HICACHE_LAYOUT_TOKEN_MAJOR;
  const std::vector<PoolLayout> pools = {
      region(pool(token_major, tokens, 1024, 512, range(0, 6), 48), envelope, host_layout, 2 * kPages, 4),
      region(pool(token_major, tokens, 256, 0, range(6, 3)), envelope, host_layout, 2 * kPages, 1)};
  CopyTuning tuning;
  tuning.method = method;
  tuning.quantum_bytes = quantum_bytes;
  tuning.layer_bytes_min = tuning.layered_bytes_min = 0;
  const uint64_t part = 2 * kPages * std::max(pools[0].page_bytes, pools[1].page_bytes);
  Rig rig(pools, 2 * part, 0, tuning);
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  std::mt19937 random(tokens);
  std::vector<TierCopy> load, back_up;
  std::vector<std::vector<uint64_t>> ideal;
  for (uint32_t p = 0; p < 2; p++) {
    const PoolLayout &of = pools[p];
    std::vector<uint32_t> places(2 * kPages);
    for (uint32_t i = 0; i < 2 * kPages; i++) places[i] = i;
    std::shuffle(places.begin(), places.end(), random);
    const auto first = static_cast<uint32_t>(part * p / of.page_bytes) + 1;
    std::byte *host = rig.backend.pool_base(Tier::kHost, p);
    std::memset(host, 0xee, of.region_bytes());
    for (uint32_t i = 0; i < kPages; i++) {
      ideal.emplace_back(of.page_bytes / 8);
      fill(ideal.back().data(), of.page_bytes, p * 1000 + i);
      const auto *page = reinterpret_cast<const std::byte *>(ideal.back().data());
      cut_page(of.rows, of.device_order, of.region_order, 0, of.rows.layer_count, true)
          .each(0, places[i], [&](uint64_t from, uint64_t to, uint64_t bytes) { std::memcpy(host + to, page + from, bytes); });
      const uint32_t home = first + i * 3 % kPages;
      load.push_back({p, at(home), at(places[i])});
      back_up.push_back({p, at(home), at(places[kPages + i])});
    }
  }
  ASSERT_EQ(rig.run(HICACHE_H2D, load, 1), HICACHE_OK);
  for (size_t i = 0; i < load.size(); i++) {
    const PoolLayout &of = pools[load[i].pool];
    ASSERT_TRUE(rig.same(rig.device(load[i].pool, raw(load[i].device_page)), ideal[i].data(), of.page_bytes)) << "page " << i;
  }
  ASSERT_EQ(rig.run(HICACHE_D2H, back_up, 2), HICACHE_OK);
  for (size_t i = 0; i < back_up.size(); i++) {
    const PoolLayout &of = pools[back_up[i].pool];
    const std::byte *host = rig.backend.pool_base(Tier::kHost, back_up[i].pool);
    std::vector<uint64_t> found(of.page_bytes / 8);
    auto *page = reinterpret_cast<std::byte *>(found.data());
    cut_page(of.rows, of.region_order, of.device_order, 0, of.rows.layer_count, true)
        .each(raw(back_up[i].host_page), 0,
              [&](uint64_t from, uint64_t to, uint64_t bytes) { std::memcpy(page + to, host + from, bytes); });
    ASSERT_EQ(found, ideal[i]) << "page " << i;
  }
  // A page's old place is as it was: nothing beside the targets was written.
  uint64_t by_method[3];
  rig.backend.copied_bytes(by_method);
  uint64_t all = 0;
  for (const auto &copies : {load, back_up})
    for (const TierCopy &copy : copies) all += pools[copy.pool].page_bytes;
  EXPECT_EQ(by_method[0] + by_method[1] + by_method[2], all);
  *staged_out = by_method[2];
  *kernels_out = rig.backend.kernels().available();
  if (method == CopyMethod::kDirect) { EXPECT_EQ(by_method[0], all); }
}

TEST(HostRegions, EveryOrderByEveryMethod) {
  for (uint32_t envelope : {HICACHE_LAYOUT_LAYER_MAJOR, HICACHE_LAYOUT_TOKEN_MAJOR}) {
    for (uint32_t host : {HICACHE_HOST_LAYER_FIRST, HICACHE_HOST_PAGE_FIRST, HICACHE_HOST_PAGE_FIRST_DIRECT, HICACHE_HOST_PAGE_HEAD}) {
      for (uint32_t tokens : {1u, 16u}) {
        for (CopyMethod method : {CopyMethod::kAuto, CopyMethod::kDirect, CopyMethod::kKernel, CopyMethod::kStaged}) {
          for (uint64_t quantum : {uint64_t{1} << 20, uint64_t{256} << 10}) {
            uint64_t staged = 0;
            bool kernels = false;
            round_trip(envelope, host, tokens, method, quantum, &staged, &kernels);
            if (HasFatalFailure()) return;
            if (method == CopyMethod::kStaged) { EXPECT_EQ(staged > 0, kernels) << "forced, where there are kernels"; }
          }
        }
      }
    }
  }
}

// AUTO: small fragments whose host bytes lie together go through the ring, others as they are or by kernel.
TEST(HostRegions, TheTableChooses) {
  uint64_t staged = 0;
  bool kernels = false;
  round_trip(HICACHE_LAYOUT_LAYER_MAJOR, HICACHE_HOST_PAGE_FIRST, 16, CopyMethod::kAuto, 16 << 20, &staged, &kernels);
  if (!kernels) GTEST_SKIP() << "NOT TESTED: built without kernels (make cuda)";
  EXPECT_GT(staged, 0u) << "rows of 1 KiB, 96 KiB together on the host";
  round_trip(HICACHE_LAYOUT_LAYER_MAJOR, HICACHE_HOST_LAYER_FIRST, 16, CopyMethod::kAuto, 16 << 20, &staged, &kernels);
  EXPECT_EQ(staged, 0u) << "16 KiB together on the host";
}

TEST(StagePlan, RunsAndSizes) {
  // Two sizes; host places that touch once sorted.
  std::vector<StagedFragment> all = {
      {4096, 100 * 16, 1024}, {1024, 200 * 16, 1024}, {2048, 300 * 16, 512}, {2560, 400 * 16, 512}, {9000 * 16, 500 * 16, 1024}};
  StagePlan plan;
  plan.make(&all, 1 << 20, true, true);
  ASSERT_EQ(plan.runs.size(), 3u);
  EXPECT_EQ(plan.runs[0].host, 1024u);
  EXPECT_EQ(plan.runs[0].bytes, 2048u);
  EXPECT_EQ(plan.runs[0].ring, uint64_t{1} << 20);
  EXPECT_EQ(plan.runs[1].host, 4096u);
  EXPECT_EQ(plan.runs[1].ring, (uint64_t{1} << 20) + 2048);
  EXPECT_EQ(plan.runs[2].bytes, 1024u);
  ASSERT_EQ(plan.groups.size(), 2u);
  EXPECT_EQ(plan.groups[0].count + plan.groups[1].count, all.size());
  for (const StagePlan::Group &group : plan.groups) EXPECT_EQ(group.count, group.bytes == 1024 ? 3u : 2u);
  EXPECT_EQ(plan.fragments[plan.groups[0].first].source, uint64_t{1} << 20) << "from the ring";
  EXPECT_EQ(plan.fragments[plan.groups[0].first].target, 200u * 16);
  // The other way the kernel writes the ring.
  all = {{1024, 160, 512}};
  plan.make(&all, 4096, false, false);
  EXPECT_EQ(plan.fragments[0].source, 160u);
  EXPECT_EQ(plan.fragments[0].target, 4096u);
}

std::atomic<uint64_t> engine_copies{0}, engine_bytes{0};
struct Work { // As in simulated_cuda.cpp.
  int kind, direction;
  uint64_t bytes, count;
  unsigned blocks;
};
double count_copies(const void *of) {
  const auto &work = *static_cast<const Work *>(of);
  if (work.kind != 0) return 0;
  engine_copies += work.count;
  engine_bytes += work.bytes;
  return 0;
}

// A page_first host keeps a page's rows together, a layer's rows apart: cut into layers, a load of such pages would cross the bus row by
// row.
TEST(HostRegions, LoadsOfSmallRowsCrossInLongRuns) {
  if (!simulated) GTEST_SKIP() << "NOT TESTED: needs the simulated driver";
  const auto costs = simulator_function<void (*)(double (*)(const void *))>("simulated_cuda_costs");
  const PoolLayout of = region(pool(false, 16, 2048, 2048, range(0, 8)), HICACHE_LAYOUT_LAYER_MAJOR, HICACHE_HOST_PAGE_FIRST, kPages, 1);
  Rig rig({of}, 32 << 20, 0);
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  if (!rig.backend.kernels().available()) GTEST_SKIP() << "NOT TESTED: built without kernels (make cuda)";
  std::vector<TierCopy> load;
  for (uint32_t i = 0; i < 16; i++) load.push_back({0, at(2 * i + 1), at(i + 1)});
  engine_copies = engine_bytes = 0;
  costs(count_copies);
  const Status status = rig.run(HICACHE_H2D, load, 1);
  costs(nullptr);
  ASSERT_EQ(status, HICACHE_OK);
  EXPECT_GE(engine_bytes, 16 * of.page_bytes);
  EXPECT_GE(engine_bytes / engine_copies, 64u << 10) << engine_copies << " copies";
}

} // namespace
} // namespace hicache::device_test
