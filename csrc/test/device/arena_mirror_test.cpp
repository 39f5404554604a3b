// The tables that kernels read on the device, at the start of each step, are the engine's: after takes, frees, moves and loads in any
// order, and once bytes have moved the table says so.
// Its file comes before backend_cuda_test.cpp, whose last test leaves a broken device: it runs first.
#include "device_fixture.hpp"
#include "engine.hpp"

namespace hicache::device_test {
namespace {

constexpr uint32_t kFull = 0, kSwa = 1;

class MirrorTest : public testing::Test {
protected:
  void SetUp() override {
    api().context_set(caller_context());
    CU_OK(api().stream_create(&stream_, cu::kStreamNonBlocking, 0));
    static const uint32_t layers[2][1] = {{0}, {1}};
    hicache_pool_options_t pools[2]{};
    for (uint32_t pool = 0; pool < 2; pool++) {
      pools[pool].role = pool == kFull ? HICACHE_ROLE_FULL : HICACHE_ROLE_SWA;
      pools[pool].page_tokens = 4;
      pools[pool].window_tokens = pool == kFull ? 0 : 16;
      pools[pool].layer_count = 1;
      pools[pool].layer_ids = layers[pool];
      pools[pool].k_row_bytes = 64;
      pools[pool].v_row_bytes = 64;
    }
    hicache_options_t options{};
    options.struct_size = sizeof options;
    options.abi_version = HICACHE_ABI_MAJOR << 16 | HICACHE_ABI_MINOR;
    options.backend = HICACHE_BACKEND_CUDA;
    options.device_bytes = 256 << 10;
    options.host_bytes = 64 << 10;
    options.pools = pools;
    options.pool_count = 2;
    options.pool_stride_bytes = sizeof pools[0];
    EngineOptions checked;
    OK(check_options(options, &checked, error));
    OK(Engine::open(checked, &engine_, error));
  }
  void TearDown() override {
    if (engine_ == nullptr) return;
    engine_->drain();
    engine_.reset();
    api().stream_destroy(stream_);
  }

  // A step that holds nothing: what a kernel in it would read.
  void check_tables() {
    const auto stream = reinterpret_cast<uint64_t>(stream_);
    hicache_step_t step = 0;
    {
      EngineLock lock(*engine_);
      OK(engine_->step_open(stream, {}, &step, error));
    }
    for (uint32_t pool = 0; pool < 2; pool++) {
      uint64_t address = 0;
      uint32_t count = 0;
      OK(engine_->backend().device_table(pool, &address, &count, error));
      ASSERT_EQ(count, engine_->device().info(pool).virtual_page_count);
      std::vector<uint32_t> table(count);
      CU_OK(api().copy_async(reinterpret_cast<CuAddress>(table.data()), address, count * sizeof(uint32_t), stream_));
      CU_OK(api().stream_synchronize(stream_));
      for (uint32_t v = engine_->device().info(pool).first_page; v < count; v++)
        ASSERT_EQ(table[v], engine_->device().place(pool, v)) << "pool " << pool << ", virtual page " << v;
    }
    EngineLock lock(*engine_);
    OK(engine_->step_close(step, error));
  }

  void take(uint32_t count, uint32_t *pages_out) {
    const Take line{kFull, count, pages_out};
    OK(engine_->device().take({&line, 1}, error));
  }
  hicache_pool_stats_t stats() {
    hicache_pool_stats_t out{};
    EXPECT_EQ(engine_->device().pool_stats(kFull, &out, nullptr), HICACHE_OK);
    return out;
  }

  std::unique_ptr<Engine> engine_;
  CuStream stream_ = nullptr;
};

// A sequence of two full pages, which gets one token more: a third page.
struct DecodeBatch {
  uint32_t pages[3];
  int32_t ids[3], indptr[2];
  hicache_sequence_t sequence{};
  hicache_batch_table_t table{};
  hicache_batch_t batch{};

  explicit DecodeBatch(uint64_t stream) {
    sequence.vpages = pages;
    sequence.vpage_count = 2;
    sequence.vpage_capacity = 3;
    sequence.token_count = 8;
    sequence.new_token_count = 1;
    table.pool = kFull;
    table.ids = ids;
    table.ids_capacity = 3;
    table.indptr = indptr;
    batch.struct_size = sizeof batch;
    batch.owner_pool = kFull;
    batch.stream = stream;
    batch.sequences = &sequence;
    batch.sequence_count = 1;
    batch.tables = &table;
    batch.table_count = 1;
  }
  DecodeBatch(const DecodeBatch &) = delete;
};

TEST_F(MirrorTest, IsTheTablesAfterAnything) {
  std::mt19937 random(11);
  std::vector<uint32_t> live;
  uint64_t moved = 0;
  for (uint32_t round = 0; round < 60; round++) {
    for (uint32_t i = 0; i < 1 + random() % 6; i++) {
      EngineLock lock(*engine_);
      Arena &arena = engine_->device();
      switch (random() % 4) {
        case 0:
        case 1: {
          const uint32_t count = 1 + static_cast<uint32_t>(random() % 40);
          std::vector<uint32_t> pages(count);
          const Take lines[] = {{kFull, count, pages.data()}, {kSwa, static_cast<uint32_t>(random() % (count + 1)), nullptr}};
          if (arena.take(lines, nullptr) == HICACHE_OK) live.insert(live.end(), pages.begin(), pages.end());
          break;
        }
        case 2: {
          for (uint32_t k = 0; k < 30 && !live.empty(); k++) {
            std::swap(live[random() % live.size()], live.back());
            const hicache_pages_t line{random() % 3 == 0 ? kSwa : kFull, 1, &live.back()};
            OK(arena.free({&line, 1}, error));
            if (line.pool == kFull) live.pop_back();
          }
          break;
        }
        default: {
          hicache_compact_budget_t budget{sizeof budget, HICACHE_TIER_DEVICE, static_cast<uint32_t>(random() % 20), HICACHE_NO_POOL, 0};
          hicache_compact_result_t result{};
          OK(arena.compact(budget, &result, error));
          moved += result.moved_pages;
        }
      }
    }
    check_tables();
  }
  EXPECT_GT(moved, 100u);
  EngineLock lock(*engine_);
  EXPECT_EQ(engine_->verify(), "");
}

// The arena has opened a step, and then the device refuses the stream: nobody gets the step's id, so nothing may hold its pages.
TEST_F(MirrorTest, AStepThatIsRefusedHoldsNothing) {
  if (!simulated) GTEST_SKIP() << "NOT RUN: needs the simulated driver";
  const auto capture = simulator_function<void (*)(CuStream, int)>("simulated_cuda_capture");
  const auto stream = reinterpret_cast<uint64_t>(stream_);
  ErrorDetail why;
  EngineLock lock(*engine_);
  DecodeBatch decode(stream);
  take(2, decode.pages);
  const hicache_pages_t held{kFull, 2, decode.pages};
  hicache_step_t step = 0;
  capture(stream_, 1);
  EXPECT_EQ(engine_->step_open(stream, {&held, 1}, &step, &why), HICACHE_INVALID_ARGUMENT);
  EXPECT_EQ(engine_->device().step_count(), 0u);
  EXPECT_EQ(engine_->batch_step().run(decode.batch, &step, &why), HICACHE_INVALID_ARGUMENT) << why.message;
  EXPECT_EQ(engine_->device().step_count(), 0u);
  EXPECT_EQ(decode.sequence.vpage_count, 2u);
  EXPECT_EQ(stats().live_pages, 2u);
  EXPECT_EQ(stats().quarantined_pages + stats().pinned_pages, 0u);

  capture(stream_, 0);
  OK(engine_->batch_step().run(decode.batch, &step, error));
  OK(engine_->step_close(step, error));
  EXPECT_EQ(engine_->verify(), "");
  EXPECT_EQ(engine_->begin_close(&why), HICACHE_OK) << why.message;
}

// Closing a step moves pages at once where compaction is eager, and the moves wait for the very step.
TEST_F(MirrorTest, AStepThatClosesLetsItsPagesMove) {
  ErrorDetail why;
  EngineLock lock(*engine_);
  OK(engine_->device().set_compaction(HICACHE_COMPACTION_EAGER, error));
  uint32_t pages[4];
  take(4, pages);
  const hicache_pages_t all{kFull, 4, pages}, middle{kFull, 2, pages + 1};
  hicache_step_t step = 0;
  OK(engine_->step_open(reinterpret_cast<uint64_t>(stream_), {&all, 1}, &step, error));
  OK(engine_->device().free({&middle, 1}, error));
  EXPECT_EQ(engine_->device().counters().moves, 0u);
  EXPECT_EQ(engine_->step_close(step, &why), HICACHE_OK) << why.message;
  EXPECT_EQ(engine_->device().counters().moves, 1u);
  EXPECT_EQ(engine_->verify(), "");
}

// What runs in a capture leaves no event: the step stays open until the stream can take one.
TEST_F(MirrorTest, AStepWhoseStreamIsCapturedStaysOpen) {
  if (!simulated) GTEST_SKIP() << "NOT RUN: needs the simulated driver";
  const auto capture = simulator_function<void (*)(CuStream, int)>("simulated_cuda_capture");
  const auto stream = reinterpret_cast<uint64_t>(stream_);
  ErrorDetail why;
  EngineLock lock(*engine_);
  DecodeBatch decode(stream);
  uint32_t below[2];
  take(2, below);
  take(2, decode.pages);
  hicache_step_t step = 0, further = 0;
  OK(engine_->batch_step().run(decode.batch, &step, error));
  decode.batch.previous = step;
  capture(stream_, 1);
  EXPECT_EQ(engine_->step_close(step, &why), HICACHE_INVALID_ARGUMENT);
  EXPECT_EQ(engine_->batch_step().run(decode.batch, &further, &why), HICACHE_INVALID_ARGUMENT) << why.message;
  EXPECT_TRUE(engine_->device().is_step(step));
  EXPECT_EQ(engine_->device().step_count(), 1u);
  EXPECT_EQ(decode.sequence.token_count, 9u);
  EXPECT_EQ(stats().pinned_pages, 3u);
  capture(stream_, 0);
  OK(engine_->step_close(step, error));

  // Its pages move behind it.
  const hicache_pages_t line{kFull, 2, below};
  OK(engine_->device().free({&line, 1}, error));
  hicache_compact_budget_t budget{sizeof budget, HICACHE_TIER_DEVICE, 0, HICACHE_NO_POOL, 0};
  hicache_compact_result_t result{};
  EXPECT_EQ(engine_->device().compact(budget, &result, &why), HICACHE_OK) << why.message;
  EXPECT_EQ(result.moved_pages, 2u);
  EXPECT_EQ(engine_->verify(), "");
}

// Only close is left then, and whoever holds something has no call to give it back with.
TEST_F(MirrorTest, AFailedDeviceCanBeClosed) {
  if (!simulated) GTEST_SKIP() << "NOT RUN: needs the simulated driver, whose faults can be mended";
  const auto device_fails = simulator_function<void (*)(int)>("simulated_cuda_fail");
  const auto stream = reinterpret_cast<uint64_t>(stream_);
  ErrorDetail why;
  EngineLock lock(*engine_);
  hicache_step_t closed = 0, open = 0;
  OK(engine_->step_open(stream, {}, &closed, error));
  OK(engine_->step_open(stream, {}, &open, error));
  EXPECT_EQ(engine_->begin_close(&why), HICACHE_BUSY);
  device_fails(700);
  EXPECT_EQ(engine_->step_close(closed, &why), HICACHE_DEVICE);
  EXPECT_TRUE(engine_->backend().poisoned());
  EXPECT_GT(engine_->device().step_count(), 0u);
  EXPECT_EQ(engine_->begin_close(&why), HICACHE_OK) << why.message;
  device_fails(0);
}

} // namespace
} // namespace hicache::device_test
