// Calibration when a backend opens: what it measures decides, what it uses is as before, and nothing that goes wrong in it does harm.
#include <algorithm>

#include "device_fixture.hpp"

namespace hicache::device_test {
namespace {

constexpr uint64_t kKiB = 1024, kMiB = uint64_t{1} << 20;

// As in simulated_cuda.cpp.
struct Work {
  int kind, direction;
  uint64_t bytes, count;
  unsigned blocks;
};

// What a test made of the simulated driver ends with it.
class Simulation {
public:
  ~Simulation() {
    costs(nullptr);
    simulator_function<void (*)(int)>("simulated_cuda_slow")(0);
    simulator_function<void (*)(int, int)>("simulated_cuda_fail_after")(-1, 0);
    simulator_function<void (*)(int)>("simulated_cuda_fail")(0);
    simulator_function<void (*)(unsigned long long)>("simulated_cuda_memory_limit")(1ull << 32);
  }
  void costs(double (*function)(const void *)) { simulator_function<void (*)(double (*)(const void *))>("simulated_cuda_costs")(function); }
};

#define NEEDS_SIMULATOR()                                                                                                                  \
  if (!simulated) GTEST_SKIP() << "NOT TESTED: needs the simulated driver"

// One pool of single-token pages a size: envelopes that are one fragment each.
std::vector<PoolLayout> sizes(std::initializer_list<uint64_t> all) {
  std::vector<PoolLayout> pools;
  uint32_t layer = 0;
  for (uint64_t bytes : all) pools.push_back(pool(false, 1, bytes, 0, {layer++}));
  return pools;
}
std::vector<PoolLayout> all_sizes() { return sizes({2 * kKiB, 16 * kKiB, 32 * kKiB, 64 * kKiB, 128 * kKiB}); }

CopyTuning calibrated() {
  CopyTuning tuning;
  tuning.calibrate = true;
  tuning.calibration_ns = 60'000'000'000; // The machine may be slow: here it is to be whole.
  return tuning;
}

hicache_copy_choice_t choice_of(const Rig &rig, uint32_t direction) {
  hicache_copy_choice_t out;
  rig.backend.copy_choice(direction, &out);
  return out;
}

// Up, kernels are twice as fast as the copy engine; down, half.
double kernels_up(const void *of) {
  const auto &work = *static_cast<const Work *>(of);
  const auto bytes = static_cast<double>(work.bytes);
  if (work.kind == 0) return bytes / 25;
  return work.direction == 0 ? bytes / 50 : bytes / 12.5;
}

TEST(Calibration, DecidesHowCopiesGo) {
  NEEDS_SIMULATOR();
  Simulation simulation;
  simulation.costs(kernels_up);
  Rig rig(all_sizes(), 64 * kMiB, 64 * kMiB, calibrated());
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  if (!rig.backend.kernels().available()) GTEST_SKIP() << "NOT TESTED: built without kernels";
  const auto up = choice_of(rig, HICACHE_H2D), down = choice_of(rig, HICACHE_D2H);
  for (const auto &shown : {up, down}) {
    EXPECT_EQ(shown.source, HICACHE_CHOICE_CALIBRATED);
    EXPECT_EQ(shown.probes_measured, shown.probes_planned);
    EXPECT_GT(shown.probes_planned, 10u);
    EXPECT_EQ(shown.measured_bytes, 64 * kKiB);
    EXPECT_NEAR(shown.direct_mb_s, 25000, 250);
  }
  EXPECT_NEAR(up.kernel_mb_s, 50000, 500);
  EXPECT_NEAR(down.kernel_mb_s, 12500, 125);
  EXPECT_EQ(up.direct_from_bytes[0], 192 * kKiB);
  EXPECT_EQ(down.direct_from_bytes[0], 12 * kKiB);
  // Pages of 64 KiB go up by kernel and down by the copy engine now.
  const std::vector<TierCopy> copies = {{3, at(3), at(5)}, {3, at(4), at(6)}};
  for (uint32_t direction : {HICACHE_H2D, HICACHE_D2H}) {
    uint64_t before[3], after[3];
    rig.backend.copied_bytes(before);
    ASSERT_EQ(rig.run(direction, copies, 1 + direction), HICACHE_OK);
    rig.backend.copied_bytes(after);
    EXPECT_EQ(after[direction == HICACHE_H2D ? 1 : 0] - before[direction == HICACHE_H2D ? 1 : 0], 128 * kKiB) << direction;
  }
}

// Rates that only hold while the other direction is busy: the sum counts.
TEST(Calibration, MeasuresEachSituation) {
  NEEDS_SIMULATOR();
  Simulation simulation;
  simulation.costs(kernels_up);
  Rig rig(all_sizes(), 64 * kMiB, 64 * kMiB, calibrated());
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  if (!rig.backend.kernels().available()) GTEST_SKIP() << "NOT TESTED: built without kernels";
  double alone = 0, both = 0;
  for (const MeasuredRate &rate : rig.backend.measured_rates()) {
    if (rate.probe.method != CopyMethod::kDirect || rate.probe.bytes != 64 * kKiB || rate.probe.direction != HICACHE_H2D) continue;
    (rate.probe.both ? both : alone) = rate.gb_s;
  }
  EXPECT_NEAR(alone, 25, 0.3);
  EXPECT_NEAR(both, 50, 0.6) << "the streams do not slow each other here, so both together carry twice as much";
}

TEST(Calibration, LeavesBothArenasAsTheyWere) {
  Rig rig(all_sizes(), 64 * kMiB, 64 * kMiB, calibrated());
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  const auto *host = reinterpret_cast<const uint64_t *>(rig.host(0, 0));
  for (uint64_t i = 0; i < 64 * kMiB / 8; i++) ASSERT_EQ(host[i], 0u) << "at byte " << 8 * i << " of the host arena";
  if (!simulated) return; // A real device's fresh memory is anything.
  for (uint64_t word : rig.read(rig.device(0, 0), 64 * kMiB)) ASSERT_EQ(word, 0u);
}

TEST(Calibration, NeverTouchesAnAdoptedBuffer) {
  ASSERT_EQ(api().context_set(caller_context()), cu::kSuccess);
  CuAddress buffer = 0;
  CU_OK(api().memory_alloc(&buffer, 32 * kMiB));
  std::vector<uint64_t> pattern(32 * kMiB / 8), found(32 * kMiB / 8);
  fill(pattern.data(), 32 * kMiB, 7);
  CuStream stream = nullptr;
  CU_OK(api().stream_create(&stream, cu::kStreamNonBlocking, 0));
  const auto copy = [&](CuAddress to, CuAddress from) {
    return api().copy_async(to, from, 32 * kMiB, stream) == cu::kSuccess && api().stream_synchronize(stream) == cu::kSuccess;
  };
  ASSERT_TRUE(copy(buffer, reinterpret_cast<CuAddress>(pattern.data())));
  {
    const LayerOrder order(all_sizes(), false);
    Finished done;
    BackendOptions options;
    options.device_bytes = options.device_bytes_max = 32 * kMiB;
    options.device_buffer = reinterpret_cast<void *>(buffer);
    options.host_bytes = options.host_bytes_max = 32 * kMiB;
    options.ticket_max = 4;
    options.layers = &order;
    options.sink = &done;
    CudaBackend backend;
    backend.tune(calibrated());
    OK(backend.open(options, error));
    hicache_copy_choice_t shown;
    backend.copy_choice(HICACHE_H2D, &shown);
    if (backend.kernels().available()) { EXPECT_GT(shown.probes_measured, 0u) << "it still measures, on memory of its own"; }
    ASSERT_TRUE(copy(reinterpret_cast<CuAddress>(found.data()), buffer));
    EXPECT_EQ(found, pattern);
    backend.close();
  }
  api().stream_destroy(stream);
  api().memory_free(buffer);
}

TEST(Calibration, StopsWhenItsTimeIsOver) {
  NEEDS_SIMULATOR();
  Simulation simulation;
  simulation.costs(kernels_up);
  simulator_function<void (*)(int)>("simulated_cuda_slow")(5000);
  CopyTuning tuning = calibrated();
  tuning.calibration_ns = 100'000'000; // A probe takes at least two pieces of work, so 10 ms; there are dozens.
  Rig rig(all_sizes(), 64 * kMiB, 64 * kMiB, tuning);
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  if (!rig.backend.kernels().available()) GTEST_SKIP() << "NOT TESTED: built without kernels";
  const auto up = choice_of(rig, HICACHE_H2D), down = choice_of(rig, HICACHE_D2H);
  EXPECT_LT(up.probes_measured, up.probes_planned);
  EXPECT_EQ(up.source, up.probes_measured != 0 ? HICACHE_CHOICE_PARTLY : HICACHE_CHOICE_TABLE);
  // Down and both ways come last, and were not reached.
  EXPECT_EQ(down.probes_measured, 0u);
  EXPECT_EQ(down.source, HICACHE_CHOICE_TABLE);
  EXPECT_EQ(down.direct_from_bytes[0], MethodRow{}.direct_from_bytes);
  EXPECT_EQ(up.direct_from_bytes[1], MethodRow{}.direct_from_bytes);
}

TEST(Calibration, LeftOutWhereItDecidesNothing) {
  struct Case {
    const char *name;
    std::vector<PoolLayout> pools;
    CopyTuning tuning;
    uint32_t source;
  };
  CopyTuning forced = calibrated(), off;
  forced.method = CopyMethod::kKernel;
  std::vector<Case> cases;
  cases.push_back({"forced", all_sizes(), forced, HICACHE_CHOICE_FORCED});
  cases.push_back({"off", all_sizes(), off, HICACHE_CHOICE_TABLE});
  cases.push_back({"large envelopes", sizes({256 * kKiB, 2 * kMiB}), calibrated(), HICACHE_CHOICE_TABLE});
  for (const Case &of : cases) {
    SCOPED_TRACE(of.name);
    Rig rig(of.pools, 32 * kMiB, 32 * kMiB, of.tuning);
    ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
    const bool kernels = rig.backend.kernels().available(); // Without them the copy engine is all there is.
    for (uint32_t direction : {HICACHE_H2D, HICACHE_D2H}) {
      const auto shown = choice_of(rig, direction);
      EXPECT_EQ(shown.source, kernels ? of.source : HICACHE_CHOICE_FORCED);
      EXPECT_EQ(shown.method, static_cast<uint32_t>(kernels ? of.tuning.method : CopyMethod::kDirect));
      EXPECT_EQ(shown.probes_planned, 0u);
      EXPECT_EQ(shown.direct_from_bytes[0], MethodRow{}.direct_from_bytes);
      EXPECT_EQ(shown.slowdown_max_permille, kSlowdownDefaultPermille);
    }
    EXPECT_TRUE(rig.backend.measured_rates().empty());
  }
}

TEST(Calibration, AFaultInItsMidstRefusesToOpen) {
  NEEDS_SIMULATOR();
  Simulation simulation;
  ASSERT_EQ(api().context_set(caller_context()), cu::kSuccess);
  const auto live = simulator_function<int (*)()>("simulated_cuda_live");
  const int before = live();
  for (int after : {1, 4, 20}) { // Of copies and launches; the kernels' empty launches at open are none.
    SCOPED_TRACE(after);
    simulator_function<void (*)(int, int)>("simulated_cuda_fail_after")(after, 700);
    Rig rig(all_sizes(), 32 * kMiB, 32 * kMiB, calibrated());
    const bool kernels = simulator_function<void (*)(int)>("simulated_cuda_fail") != nullptr && rig.status != HICACHE_OK;
    simulator_function<void (*)(int, int)>("simulated_cuda_fail_after")(-1, 0);
    simulator_function<void (*)(int)>("simulated_cuda_fail")(0);
    if (!kernels) GTEST_SKIP() << "NOT TESTED: built without kernels";
    EXPECT_EQ(rig.status, HICACHE_DEVICE);
    EXPECT_NE(std::string(rig.error.message).find("calibrating the copy methods"), std::string::npos) << rig.error.message;
    EXPECT_EQ(rig.error.native_code, 700);
  }
  EXPECT_LE(live(), before) << "what had been opened was not given back";
}

// Memory that runs out is no reason not to open, but what was begun by then must not write over what its owner writes next.
TEST(Calibration, MemoryThatRunsOutLeavesNothingUnderWay) {
  NEEDS_SIMULATOR();
  Simulation simulation;
  for (int after : {0, 1, 5, 40, 42}) { // Of batches of copies.
    SCOPED_TRACE(after);
    simulator_function<void (*)(int)>("simulated_cuda_slow")(3000);
    simulator_function<void (*)(int, int)>("simulated_cuda_refuse_after")(after, cu::kOutOfMemory);
    Rig rig(all_sizes(), 32 * kMiB, 32 * kMiB, calibrated());
    simulator_function<void (*)(int, int)>("simulated_cuda_refuse_after")(-1, 0);
    ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
    if (!rig.backend.kernels().available()) GTEST_SKIP() << "NOT TESTED: built without kernels";
    EXPECT_LT(choice_of(rig, HICACHE_D2H).probes_measured, choice_of(rig, HICACHE_D2H).probes_planned);
    std::byte *const host = rig.host(0, 0);
    std::memset(host, 0x5a, 32 * kMiB);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    uint64_t overwritten = 0;
    for (uint64_t i = 0; i < 32 * kMiB; i++) overwritten += host[i] != std::byte{0x5a};
    EXPECT_EQ(overwritten, 0u);
  }
}

// A ring that would be used only if it proved faster is no reason not to open.
TEST(Calibration, GoesWithoutARingThatDoesNotFit) {
  NEEDS_SIMULATOR();
  Simulation simulation;
  // Layers' K of 64 KiB, which lie together on the host: direct by the table.
  const PoolLayout of = region(pool(false, 16, 4096, 4096, range(0, 8)), HICACHE_LAYOUT_LAYER_MAJOR, HICACHE_HOST_PAGE_FIRST_DIRECT, 64, 1);
  for (uint64_t limit : {256 * kMiB, 64 * kMiB}) { // The ring takes 128.
    simulator_function<void (*)(unsigned long long)>("simulated_cuda_memory_limit")(limit);
    Rig rig({of}, 64 * kMiB, 0, calibrated());
    ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
    if (!rig.backend.kernels().available()) GTEST_SKIP() << "NOT TESTED: built without kernels";
    const auto rates = rig.backend.measured_rates();
    EXPECT_FALSE(rates.empty());
    const bool some =
        std::any_of(rates.begin(), rates.end(), [](const MeasuredRate &rate) { return rate.probe.method == CopyMethod::kStaged; });
    EXPECT_EQ(some, limit > 128 * kMiB);
    ASSERT_EQ(rig.run(HICACHE_H2D, {{0, at(3), at(5)}}, 1), HICACHE_OK);
  }
}

TEST(Calibration, BudgetKeepsKernelsOffTheBusBesideCompute) {
  CopyTuning tuning;
  tuning.slowdown_permille[0] = tuning.slowdown_permille[1] = 1;
  Rig rig(sizes({2 * kKiB}), 8 * kMiB, 8 * kMiB, tuning);
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  if (!rig.backend.kernels().available()) GTEST_SKIP() << "NOT TESTED: built without kernels";
  EXPECT_EQ(choice_of(rig, HICACHE_D2H).kernel_blocks_beside, 0u);
  EXPECT_EQ(choice_of(rig, HICACHE_D2H).slowdown_max_permille, 1u);
  std::vector<TierCopy> copies;
  for (uint32_t i = 1; i < 40; i++) copies.push_back({0, at(2 * i), at(3 * i)});
  uint64_t by_method[3];
  ASSERT_EQ(rig.run(HICACHE_D2H, copies, 1), HICACHE_OK);
  rig.backend.copied_bytes(by_method);
  EXPECT_EQ(by_method[1], 39 * 2 * kKiB) << "no step is about: full speed";
  OK(rig.backend.order_step(rig.caller(), {}, error)); // A step opens.
  OK(rig.backend.fence_record(FenceMark::make(9, 1), rig.caller(), error));
  for (int i = 0; i < 20 && by_method[0] == 0; i++) { // It counts as about for 50 ms: a machine that stops for longer tries again.
    OK(rig.backend.fence_record(FenceMark::make(9, 2 + static_cast<uint64_t>(i)), rig.caller(), error));
    ASSERT_EQ(rig.run(HICACHE_D2H, copies, 2 + static_cast<hicache_ticket_t>(i)), HICACHE_OK);
    rig.backend.copied_bytes(by_method);
  }
  EXPECT_GT(by_method[0], 0u);
}

} // namespace
} // namespace hicache::device_test
