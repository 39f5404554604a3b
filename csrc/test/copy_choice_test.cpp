// What measured rates make of the boundaries between the methods of copying, and what an interference budget leaves of them.
#include "copy_choice.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace hicache {
namespace {

constexpr uint64_t kKiB = 1024;

// Rates of a whole plan, by a function of the probe.
std::vector<MeasuredRate> rates_of(std::span<const Probe> plan, const std::function<double(const Probe &)> &gb_s) {
  std::vector<MeasuredRate> rates;
  for (const Probe &probe : plan) rates.push_back({probe, gb_s(probe)});
  return rates;
}

// Fragments of every size, in long runs and alone.
std::vector<CopyShape> all_shapes() {
  std::vector<CopyShape> shapes;
  for (uint64_t bytes : {2 * kKiB, 16 * kKiB, 32 * kKiB, 64 * kKiB, 128 * kKiB}) {
    shapes.push_back({bytes, bytes, false});
    shapes.push_back({bytes, 1024 * kKiB, false});
  }
  return shapes;
}
std::vector<Probe> whole_plan() {
  const bool ring[2] = {true, true};
  return plan_probes(all_shapes(), ring);
}

// As an H200 measured: the copy engine pays for each copy, the kernel is a little slower than its best, the ring nearly as fast.
double h200(const Probe &probe) {
  const auto bytes = static_cast<double>(probe.bytes);
  switch (probe.method) {
    case CopyMethod::kDirect: return bytes / std::max(bytes / 55.0, probe.direction == HICACHE_H2D ? 900.0 : 800.0);
    case CopyMethod::kKernel: return 49;
    default: {
      const auto run = static_cast<double>(probe.host_run);
      return run / std::max(run / 54.0, 1000.0);
    }
  }
}

TEST(CopyChoice, TheTableStandsWhereItIsRight) {
  const auto plan = whole_plan();
  for (uint32_t direction : {HICACHE_H2D, HICACHE_D2H}) {
    const CopyChoice choice = choose_from(rates_of(plan, h200), direction, {});
    for (bool both : {false, true}) {
      EXPECT_EQ(choice.rows[both].direct_from_bytes, 48 * kKiB);
      EXPECT_EQ(choice.rows[both].staged_from_run_bytes, 64 * kKiB);
    }
    EXPECT_EQ(choice.kernel_blocks_alone, 4u);
  }
}

TEST(CopyChoice, BoundariesFollowTheRates) {
  const auto plan = whole_plan();
  struct Case {
    const char *name;
    std::function<double(const Probe &)> gb_s;
    uint64_t direct_from, staged_below, staged_from_run;
  };
  using M = CopyMethod;
  const auto by = [](double direct, double kernel, double staged) {
    return [=](const Probe &probe) { return probe.method == M::kDirect ? direct : probe.method == M::kKernel ? kernel : staged; };
  };
  const Case cases[] = {
      {"the copy engine wins everywhere", by(50, 20, 10), 12 * kKiB, 12 * kKiB, 512 * kKiB},
      {"the kernel wins everywhere", by(20, 50, 10), 192 * kKiB, 12 * kKiB, 512 * kKiB},
      {"the ring wins everywhere", by(20, 10, 50), 12 * kKiB, 192 * kKiB, 32 * kKiB},
      {"all the same", by(50, 50, 50), 48 * kKiB, 48 * kKiB, 64 * kKiB},
      {"4 % are no reason", by(50, 52, 50), 48 * kKiB, 48 * kKiB, 64 * kKiB},
      {"6 % are one", by(50, 53, 50), 192 * kKiB, 12 * kKiB, 512 * kKiB},
      {"the copy engine from 128 KiB",
       [](const Probe &p) { return p.method == M::kDirect   ? (p.bytes >= 128 * kKiB ? 55.0 : 30.0)
                                   : p.method == M::kKernel ? 45.0
                                                            : 40.0; },
       96 * kKiB, 12 * kKiB, 512 * kKiB},
      {"one size out of order is noise",
       [](const Probe &p) { return p.method == M::kKernel ? (p.bytes == 128 * kKiB || p.bytes <= 16 * kKiB ? 60.0 : 40.0) : 50.0; },
       24 * kKiB, 48 * kKiB, 512 * kKiB},
  };
  for (const Case &of : cases) {
    SCOPED_TRACE(of.name);
    for (uint32_t direction : {HICACHE_H2D, HICACHE_D2H}) {
      const CopyChoice choice = choose_from(rates_of(plan, of.gb_s), direction, {});
      for (bool both : {false, true}) {
        EXPECT_EQ(choice.rows[both].direct_from_bytes, of.direct_from) << both;
        EXPECT_EQ(choice.rows[both].staged_below_bytes, of.staged_below) << both;
        EXPECT_EQ(choice.rows[both].staged_from_run_bytes, of.staged_from_run) << both;
      }
    }
  }
}

// A direction's rates say nothing of the other's, and the busy row's nothing of the quiet one's.
TEST(CopyChoice, RowsAreEachTheirOwn) {
  const auto plan = whole_plan();
  const auto rates = rates_of(plan, [](const Probe &probe) {
    const bool kernel_wins = probe.direction == HICACHE_D2H && probe.both;
    return (probe.method == CopyMethod::kKernel) == kernel_wins ? 50.0 : 25.0;
  });
  const CopyChoice up = choose_from(rates, HICACHE_H2D, {}), down = choose_from(rates, HICACHE_D2H, {});
  EXPECT_EQ(up.rows[0].direct_from_bytes, 12 * kKiB);
  EXPECT_EQ(up.rows[1].direct_from_bytes, 12 * kKiB);
  EXPECT_EQ(down.rows[0].direct_from_bytes, 12 * kKiB);
  EXPECT_EQ(down.rows[1].direct_from_bytes, 192 * kKiB);
}

TEST(CopyChoice, WhatIsNotMeasuredOrImpossibleKeepsTheTable) {
  const auto plan = whole_plan();
  EXPECT_EQ(choose_from({}, HICACHE_H2D, {}).rows[0], MethodRow{});
  for (double nonsense : {0.0, -1.0, 1e9, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const auto rates = rates_of(plan, [&](const Probe &probe) { return probe.method == CopyMethod::kDirect ? nonsense : 50.0; });
    const CopyChoice choice = choose_from(rates, HICACHE_H2D, {});
    EXPECT_EQ(choice.rows[0].direct_from_bytes, 48 * kKiB) << nonsense;
    EXPECT_EQ(choice.direct_up_to_count, 0u) << nonsense;
  }
  // One size alone moves the boundary past itself and no further.
  std::vector<MeasuredRate> one;
  for (const Probe &probe : plan) {
    if (probe.bytes == 64 * kKiB) one.push_back({probe, probe.method == CopyMethod::kKernel ? 60.0 : 50.0});
  }
  EXPECT_EQ(choose_from(one, HICACHE_H2D, {}).rows[0].direct_from_bytes, 96 * kKiB);
}

TEST(CopyChoice, BlocksAndCounts) {
  const auto plan = whole_plan();
  const auto rates = rates_of(plan, [](const Probe &probe) {
    if (probe.method == CopyMethod::kKernel) return probe.blocks == 8 ? 50.0 : 45.0;
    return probe.count == 1 || probe.count == 4 ? 60.0 : 30.0;
  });
  const CopyChoice choice = choose_from(rates, HICACHE_H2D, {});
  EXPECT_EQ(choice.kernel_blocks_alone, 8u);
  EXPECT_EQ(choice.direct_up_to_count, 4u);
}

TEST(CopyChoice, Plan) {
  const bool no_ring[2] = {};
  const CopyShape large{2048 * kKiB, 2048 * kKiB, false}, quarter{256 * kKiB, 256 * kKiB, false};
  EXPECT_TRUE(plan_probes(std::vector{large, quarter}, no_ring).empty()) << "from 256 KiB on there is nothing to choose";
  const auto slices = plan_probes(std::vector{large, CopyShape{64 * kKiB, 64 * kKiB, true}}, no_ring);
  ASSERT_FALSE(slices.empty());
  for (const Probe &probe : slices) {
    EXPECT_EQ(probe.direction, HICACHE_H2D) << "layer slices are loads";
    EXPECT_EQ(probe.bytes, 64 * kKiB);
    EXPECT_NE(probe.method, CopyMethod::kStaged) << "there is no ring";
  }
  for (const Probe &probe : whole_plan()) {
    EXPECT_GE(probe.bytes, 512u);
    EXPECT_LE(probe.bytes, 128 * kKiB);
  }
}

TEST(CopyChoice, ChoosesByRowAndSituation) {
  CopyChoice choice;
  choice.rows[1].direct_from_bytes = 12 * kKiB;
  using M = CopyMethod;
  EXPECT_EQ(choose_method(choice, 64 * kKiB, 64 * kKiB, {}), M::kDirect);
  EXPECT_EQ(choose_method(choice, 16 * kKiB, 16 * kKiB, {}), M::kKernel);
  EXPECT_EQ(choose_method(choice, 16 * kKiB, 16 * kKiB, {.other = true}), M::kDirect);
  EXPECT_EQ(choose_method(choice, 16 * kKiB, 64 * kKiB, {.ring = true}), M::kStaged);
  EXPECT_EQ(choose_method(choice, 16 * kKiB, 32 * kKiB, {.ring = true}), M::kKernel) << "too short a run";
  EXPECT_EQ(choose_method(choice, 16 * kKiB, 64 * kKiB, {}), M::kKernel) << "no ring";
  EXPECT_EQ(choose_method(choice, 2 * kKiB, 2 * kKiB, {.few = true}), M::kDirect);
  choice.rows[0] = {.direct_from_bytes = 1 << 30, .staged_below_bytes = 1 << 30, .staged_from_run_bytes = 0};
  EXPECT_EQ(choose_method(choice, 256 * kKiB, 1024 * kKiB, {.ring = true}), M::kDirect) << "always, at this size";
}

TEST(CopyChoice, Budget) {
  using M = CopyMethod;
  struct Case {
    uint32_t direction, permille, blocks;
    bool staged;
  };
  const Case cases[] = {
      {HICACHE_H2D, kSlowdownDefaultPermille, 2, true},
      {HICACHE_D2H, kSlowdownDefaultPermille, 2, true},
      {HICACHE_H2D, 1, 0, false},
      {HICACHE_D2H, 1, 0, false},
      {HICACHE_H2D, 61, 0, true},
      {HICACHE_H2D, 60, 0, false},
      {HICACHE_D2H, 120, 1, true},
      {HICACHE_D2H, 119, 0, true},
      {HICACHE_H2D, 10000, 4, true},
      {HICACHE_D2H, 10000, 4, true},
  };
  for (const Case &of : cases) {
    SCOPED_TRACE(std::to_string(of.direction) + " " + std::to_string(of.permille));
    CopyChoice choice;
    keep_budget(&choice, of.direction, of.permille);
    EXPECT_EQ(choice.kernel_blocks_beside, of.blocks);
    EXPECT_EQ(choice.staged_beside, of.staged);
    EXPECT_EQ(choice.kernel_blocks_alone, 4u) << "the budget says nothing of a quiet GPU";
    // Beside compute the choice costs no more than the budget, but where the copy engine alone does.
    for (uint64_t bytes : {2 * kKiB, 16 * kKiB, 64 * kKiB}) {
      for (uint64_t run : {bytes, 1024 * kKiB}) {
        for (bool ring : {false, true}) {
          const M method = choose_method(choice, bytes, run, {.ring = ring, .compute = true});
          if (method == M::kDirect) continue;
          EXPECT_LE(interference_permille(of.direction, method, choice.kernel_blocks_beside), of.permille) << bytes << " " << run;
        }
      }
    }
    EXPECT_EQ(choose_method(choice, 2 * kKiB, 2 * kKiB, {}), M::kKernel) << "with no step about, full speed";
  }
}

} // namespace
} // namespace hicache
