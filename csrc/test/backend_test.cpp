// What each backend promises: tags that move and copy, a seed that repeats a run, urgent work that overtakes, memory that costs nothing
// until used, kernel ids, static pools, adoption, resizing.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "copy_queue.hpp"
#include "host_memory.hpp"
#include "open_engine.hpp"

namespace hicache_test {
namespace {

uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * 4096;
}

// ---- Null ----

class Tags {
public:
  explicit Tags(OpenEngine &engine) : engine_(engine) {}
  void write(uint32_t tier, uint32_t pool, uint32_t page, uint64_t tag) {
    EXPECT_EQ(hicache_tags(engine_.get(), tier, pool, &page, 1, &tag, 1, engine_.error()), HICACHE_OK) << engine_.message();
  }
  uint64_t read(uint32_t tier, uint32_t pool, uint32_t page) {
    uint64_t tag = 0;
    EXPECT_EQ(hicache_tags(engine_.get(), tier, pool, &page, 1, &tag, 0, engine_.error()), HICACHE_OK) << engine_.message();
    return tag;
  }

private:
  OpenEngine &engine_;
};

TEST(NullBackend, TagsMoveAndCopyWithTheirPages) {
  for (bool fault : {false, true}) {
    EngineShape shape;
    shape.backend = HICACHE_BACKEND_NULL;
    shape.with_fault = fault;
    OpenEngine engine(shape);
    Tags tags(engine);
    EXPECT_EQ(engine.info(HICACHE_TIER_DEVICE, kFull).arena_base, 0u);
    const Pages pages = engine.alloc(40);
    for (uint32_t i = 0; i < 40; i++) {
      EXPECT_EQ(tags.read(HICACHE_TIER_DEVICE, kFull, engine.place(kFull, pages[i])), 0u);
      tags.write(HICACHE_TIER_DEVICE, kFull, engine.place(kFull, pages[i]), 100 + i);
      tags.write(HICACHE_TIER_DEVICE, kSwa, engine.place(kSwa, pages[i]), 200 + i);
    }
    engine.free(Pages(pages.begin() + 4, pages.begin() + 30));
    EXPECT_GT(engine.compact().moved_pages, 0u);
    const Pages left(pages.begin() + 30, pages.end());
    const Pages host = engine.host_alloc(kFull, 10);
    const Pages swa_host = engine.host_alloc(kSwa, 10);
    engine.back_up(OpenEngine::copies(kFull, left, host));
    engine.back_up(OpenEngine::copies(kSwa, left, swa_host));
    engine.await(2);
    for (uint32_t i = 0; i < 10; i++) {
      EXPECT_EQ(tags.read(HICACHE_TIER_DEVICE, kFull, engine.place(kFull, left[i])), 130 + i);
      EXPECT_EQ(tags.read(HICACHE_TIER_HOST, kFull, host[i]), 130 + i);
      EXPECT_EQ(tags.read(HICACHE_TIER_HOST, kSwa, swa_host[i]), 230 + i);
    }
    Pages target;
    const hicache_reservation_t reservation = engine.reserve(10, 0, &target);
    engine.load(reservation, OpenEngine::copies(kFull, target, host));
    engine.await_one();
    for (uint32_t i = 0; i < 10; i++) EXPECT_EQ(tags.read(HICACHE_TIER_DEVICE, kFull, engine.place(kFull, target[i])), 130 + i);
    void *address = &address;
    hicache_lease_t lease;
    hicache_host_pages_t line{kFull, 1, host.data()};
    ASSERT_EQ(hicache_host_view(engine.get(), &line, &address, &lease, engine.error()), HICACHE_OK);
    EXPECT_EQ(address, nullptr);
    EXPECT_EQ(hicache_lease_release(engine.get(), lease, engine.error()), HICACHE_OK);
    uint64_t tag = 1;
    const uint32_t beyond = engine.info(HICACHE_TIER_DEVICE, kFull).page_count;
    EXPECT_EQ(hicache_tags(engine.get(), HICACHE_TIER_DEVICE, kFull, &beyond, 1, &tag, 1, engine.error()), HICACHE_INVALID_ARGUMENT);
    const uint32_t unallocated = 77;
    EXPECT_EQ(hicache_tags(engine.get(), HICACHE_TIER_HOST, kFull, &unallocated, 1, &tag, 1, engine.error()), HICACHE_STALE_ID);
    engine.expect_sound();
  }
}

TEST(NullBackend, AServerFitsALaptop) {
  EngineShape shape;
  shape.backend = HICACHE_BACKEND_NULL;
  shape.device_bytes = uint64_t{141} << 30;
  shape.host_bytes = uint64_t{2} << 40;
  shape.row_bytes = 4096;
  shape.page_tokens = 16;
  const uint64_t before = resident_bytes();
  OpenEngine engine(shape);
  EXPECT_LT(resident_bytes() - before, uint64_t{1} << 30);
  const Pages pages = engine.alloc(1000);
  const Pages host = engine.host_alloc(kFull, 1000);
  engine.back_up(OpenEngine::copies(kFull, pages, host));
  EXPECT_EQ(engine.await_one().bytes, 1000 * engine.info(HICACHE_TIER_DEVICE, kFull).page_bytes);
}

// ---- CPU ----

TEST(CpuBackend, LargeArenasCostNothingUntilUsed) {
  EngineShape shape;
  shape.own_backend = true; // Pinned memory costs what it is.
  shape.device_bytes = uint64_t{64} << 30;
  shape.host_bytes = uint64_t{256} << 30;
  shape.row_bytes = 4096;
  shape.page_tokens = 64;
  const uint64_t before = resident_bytes();
  OpenEngine engine(shape);
  EXPECT_LT(resident_bytes() - before, uint64_t{512} << 20);
  const auto info = engine.info(HICACHE_TIER_DEVICE, kFull);
  EXPECT_EQ(info.arena_base % 4096, 0u);
}

TEST(CpuBackend, FreshPagesAreZero) {
  OpenEngine engine;
  for (int round = 0; round < 3; round++) {
    const Pages pages = engine.alloc(10);
    for (uint32_t page : pages) {
      const uint8_t *bytes = engine.bytes(kFull, page);
      for (uint64_t i = 0; i < engine.info(HICACHE_TIER_DEVICE, kFull).page_bytes; i++) ASSERT_EQ(bytes[i], 0);
      engine.stamp(kFull, page, 1);
      engine.stamp(kSwa, page, 2);
    }
    engine.free(pages);
  }
}

TEST(CpuBackend, AdoptedBufferBehavesAlike) {
  std::vector<uint8_t> room((96 << 10) + 256);
  auto *buffer = reinterpret_cast<uint8_t *>((reinterpret_cast<uintptr_t>(room.data()) + 255) / 256 * 256);
  EngineShape shape;
  shape.device_buffer = buffer;
  {
    OpenEngine engine(shape);
    EXPECT_EQ(engine.info(HICACHE_TIER_DEVICE, kFull).arena_base, reinterpret_cast<uint64_t>(buffer));
    const Pages pages = engine.alloc(8);
    const Pages host = engine.host_alloc(kFull, 8);
    for (uint32_t i = 0; i < 8; i++) engine.stamp(kFull, pages[i], i);
    engine.back_up(OpenEngine::copies(kFull, pages, host));
    engine.await_one();
    for (uint32_t i = 0; i < 8; i++) EXPECT_TRUE(engine.host_holds(kFull, host[i], i));
    EXPECT_GE(engine.bytes(kFull, pages[0]), buffer);
    EXPECT_LT(engine.bytes(kFull, pages[0]), buffer + (96 << 10));
  }
  buffer[0] = 1; // Still the caller's.
}

TEST(CpuBackend, StaticPoolsHaveMemoryOfTheirOwn) {
  EngineShape shape;
  shape.pool_flags = HICACHE_POOL_STATIC;
  shape.full_virtual_pages = 40;
  OpenEngine engine(shape);
  const Pages pages = engine.alloc(20);
  for (uint32_t i = 0; i < 20; i++) {
    EXPECT_EQ(engine.place(kFull, pages[i]), pages[i]) << "identity";
    engine.stamp(kFull, pages[i], 10 + i);
    engine.stamp(kSwa, pages[i], 50 + i);
  }
  const Pages host = engine.host_alloc(kFull, 20);
  const Pages swa_host = engine.host_alloc(kSwa, 20);
  engine.back_up(OpenEngine::copies(kFull, pages, host));
  engine.back_up(OpenEngine::copies(kSwa, pages, swa_host));
  engine.await(2);
  for (uint32_t i = 0; i < 20; i++) {
    EXPECT_TRUE(engine.host_holds(kFull, host[i], 10 + i));
    EXPECT_TRUE(engine.host_holds(kSwa, swa_host[i], 50 + i));
  }
  engine.expect_sound();
}

TEST(CpuBackend, ResizeKeepsAddressesAndContents) {
  EngineShape shape;
  shape.device_bytes = 64 << 10;
  shape.device_bytes_max = 1 << 20;
  OpenEngine engine(shape);
  const Pages pages = engine.alloc(20);
  for (uint32_t i = 0; i < 20; i++) engine.stamp(kFull, pages[i], i);
  const auto before = engine.info(HICACHE_TIER_DEVICE, kFull);
  ASSERT_EQ(hicache_resize(engine.get(), 1 << 20, engine.error()), HICACHE_OK) << engine.message();
  const auto grown = engine.info(HICACHE_TIER_DEVICE, kFull);
  EXPECT_EQ(grown.arena_base, before.arena_base);
  EXPECT_GT(grown.page_count, before.page_count);
  const Pages more = engine.alloc(200);
  for (uint32_t i = 0; i < 200; i++) engine.stamp(kFull, more[i], 1000 + i);
  EXPECT_LT(hicache_resize(engine.get(), 64 << 10, engine.error()), 0) << "what is live does not fit";
  EXPECT_LT(hicache_resize(engine.get(), (1 << 20) + 1, engine.error()), 0);
  for (uint32_t i = 0; i < 200; i++) ASSERT_TRUE(engine.holds(kFull, more[i], 1000 + i));
  engine.free(more);
  ASSERT_EQ(hicache_resize(engine.get(), 64 << 10, engine.error()), HICACHE_OK) << engine.message();
  for (uint32_t i = 0; i < 20; i++) EXPECT_TRUE(engine.holds(kFull, pages[i], i));
  engine.expect_sound();
}

TEST(CpuBackend, KernelIdsUnderAStep) {
  OpenEngine engine;
  const Pages pages = engine.alloc(4, 2);
  hicache_pages_t lines[2] = {{kFull, 4, pages.data()}, {kSwa, 2, pages.data() + 2}};
  hicache_step_t step;
  ASSERT_EQ(hicache_step_open(engine.get(), 0, lines, 2, &step, engine.error()), HICACHE_OK) << engine.message();
  const Pages padded{pages[0], HICACHE_NO_PAGE, pages[3], 1u << 20};
  int32_t ids[16];
  uint32_t sinks = 0;
  ASSERT_EQ(hicache_kernel_ids(engine.get(), step, kFull, HICACHE_GRANULARITY_PAGE, padded.data(), 4, ids, &sinks, engine.error()),
            HICACHE_OK);
  EXPECT_EQ(sinks, 2u);
  EXPECT_EQ(ids[0], static_cast<int32_t>(engine.place(kFull, pages[0])));
  EXPECT_EQ(ids[1], 0);
  EXPECT_EQ(ids[3], 0);
  ASSERT_EQ(hicache_kernel_ids(engine.get(), step, kSwa, HICACHE_GRANULARITY_TOKEN, pages.data(), 4, ids, &sinks, engine.error()),
            HICACHE_OK);
  EXPECT_EQ(sinks, 2u) << "two pages have no window page";
  EXPECT_EQ(ids[15], static_cast<int32_t>(engine.place(kSwa, pages[3]) * 4 + 3));
  EXPECT_EQ(engine.stats().sink_translations, 4u);
  EXPECT_EQ(hicache_kernel_ids(engine.get(), step, kFull, 5, pages.data(), 4, ids, &sinks, engine.error()), HICACHE_INVALID_ARGUMENT);
  EXPECT_EQ(hicache_step_close(engine.get(), step, engine.error()), HICACHE_OK);
  EXPECT_EQ(hicache_kernel_ids(engine.get(), step, kFull, 0, pages.data(), 4, ids, &sinks, engine.error()), HICACHE_STALE_ID);
}

TEST(CpuBackend, ThreadsSleepWhenThereIsNothingToDo) {
  EngineShape shape;
  shape.copy_threads = 4;
  OpenEngine engine(shape);
  const Pages pages = engine.alloc(4);
  const Pages host = engine.host_alloc(kFull, 4);
  engine.back_up(OpenEngine::copies(kFull, pages, host));
  engine.await_one();
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  getrusage(RUSAGE_SELF, &after);
  const auto micros = [](const rusage &of) {
    return (of.ru_utime.tv_sec + of.ru_stime.tv_sec) * 1000000 + of.ru_utime.tv_usec + of.ru_stime.tv_usec;
  };
  EXPECT_LT(micros(after) - micros(before), 20000);
}

// ---- Queues ----

// A copier that stops at the slices of layer 0 until it is let go, and writes down the order of jobs.
class HeldCopier final : public hicache::PageCopier {
public:
  void copy_slices(const hicache::TransferJob &job, const hicache::LayerGroup &group, const hicache::CopyChunk *, uint32_t,
                   uint32_t) override {
    entered++;
    while (held && group.first_layer == 0) std::this_thread::yield();
    std::lock_guard lock(mutex);
    order.push_back(job.slot);
  }
  size_t copied() {
    std::lock_guard lock(mutex);
    return order.size();
  }
  std::atomic<bool> held{true};
  std::atomic<uint32_t> entered{0};
  std::mutex mutex;
  std::vector<uint32_t> order;
};

class CountingSink final : public hicache::JobSink {
public:
  void finished(hicache::TransferJob &) override { count++; }
  void work_waiting() override {}
  std::atomic<uint32_t> count{0};
};

TEST(Queues, UrgentOvertakesBetweenQuantaAndClassesAreFifo) {
  hicache::PoolLayout layout;
  layout.layer_ids = {0};
  layout.page_tokens = 1;
  layout.page_bytes = layout.layer_bytes = 1 << 20; // A page is a quantum.
  hicache::LayerOrder layers({layout}, false);
  HeldCopier copier;
  CountingSink sink;
  hicache::ProgressWords progress(8);
  hicache::CopyQueue queue(copier, layers, progress, sink);
  queue.start(1);
  hicache::CopyChunk chunks[5];
  hicache::TransferJob jobs[5];
  const uint32_t priorities[5] = {HICACHE_CLASS_BACKGROUND, HICACHE_CLASS_BACKGROUND, HICACHE_CLASS_NORMAL, HICACHE_CLASS_NORMAL,
                                  HICACHE_CLASS_URGENT};
  for (uint32_t i = 0; i < 5; i++) {
    chunks[i].count = i == 0 ? 3 : 1;
    for (uint32_t page = 0; page < chunks[i].count; page++)
      chunks[i].copies[page] = {0, hicache::PhysicalPage{page}, hicache::PhysicalPage{page}};
    jobs[i].slot = i;
    jobs[i].direction = HICACHE_H2D;
    jobs[i].priority = priorities[i];
    jobs[i].pool_mask = 1;
    jobs[i].copies = &chunks[i];
    queue.submit(jobs[i]);
    while (i == 0 && copier.entered == 0) std::this_thread::yield(); // The first page of the first job is under way.
  }
  copier.held = false;
  queue.drain();
  EXPECT_EQ(copier.order, (std::vector<uint32_t>{0, 4, 2, 3, 0, 0, 1}));
  EXPECT_EQ(sink.count, 5u);
  queue.stop();
}

// What one worker has brought of later layers does not cover an earlier one that another worker still copies.
TEST(Queues, ALayerInWorkHoldsTheProgress) {
  hicache::PoolLayout layout;
  layout.layer_ids = {0, 1, 2, 3, 4, 5, 6, 7};
  layout.page_tokens = 1;
  layout.layer_bytes = 64 << 10;
  layout.page_bytes = 8 * layout.layer_bytes;
  hicache::LayerOrder layers({layout}, false);
  HeldCopier copier;
  CountingSink sink;
  hicache::ProgressWords progress(8);
  hicache::CopyQueue queue(copier, layers, progress, sink);
  queue.start(2);
  hicache::CopyChunk chunk;
  chunk.count = 1;
  chunk.copies[0] = {0, hicache::PhysicalPage{0}, hicache::PhysicalPage{0}};
  hicache::TransferJob job;
  job.slot = 3;
  job.direction = HICACHE_H2D;
  job.pool_mask = 1;
  job.copies = &chunk;
  queue.submit(job);
  while (copier.copied() < 2) std::this_thread::yield(); // The first of these has been settled: its worker has gone on.
  EXPECT_EQ(progress.load(3), 0u);
  EXPECT_EQ(sink.count, 0u);
  copier.held = false;
  queue.drain();
  EXPECT_EQ(progress.load(3), hicache::kProgressDone);
  EXPECT_EQ(sink.count, 1u);
  queue.stop();
}

// A job that is cancelled while a worker copies ends when that worker lets go of its pages, once.
TEST(Queues, ACancelledJobEndsAfterWhatItCopies) {
  hicache::PoolLayout layout;
  layout.layer_ids = {0};
  layout.page_tokens = 1;
  layout.page_bytes = layout.layer_bytes = 1 << 20; // A page is a quantum.
  hicache::LayerOrder layers({layout}, false);
  HeldCopier copier;
  CountingSink sink;
  hicache::ProgressWords progress(8);
  hicache::CopyQueue queue(copier, layers, progress, sink);
  queue.start(1);
  hicache::CopyChunk chunk;
  chunk.count = 3;
  for (uint32_t page = 0; page < 3; page++) chunk.copies[page] = {0, hicache::PhysicalPage{page}, hicache::PhysicalPage{page}};
  hicache::TransferJob job;
  job.direction = HICACHE_D2H;
  job.pool_mask = 1;
  job.copies = &chunk;
  queue.submit(job);
  while (copier.entered == 0) std::this_thread::yield();
  queue.cancel(job);
  EXPECT_EQ(sink.count, 0u);
  EXPECT_NE(progress.load(0), hicache::kProgressPoison);
  copier.held = false;
  queue.drain();
  EXPECT_EQ(progress.load(0), hicache::kProgressPoison);
  EXPECT_EQ(sink.count, 1u);
  EXPECT_EQ(job.status, HICACHE_CANCELLED);
  EXPECT_EQ(copier.copied(), 1u); // The other two pages are not copied any more.
  queue.stop();
}

// ---- Fault ----

std::vector<uint64_t> run_of_seed(uint64_t seed) {
  EngineShape shape;
  shape.with_fault = true;
  shape.fault.seed = seed;
  shape.fault.fail_ppm = 300000;
  shape.fault.delay_max_ns = 5000000;
  OpenEngine engine(shape);
  const Pages pages = engine.alloc(30);
  const Pages host = engine.host_alloc(kFull, 30);
  for (uint32_t i = 0; i < 30; i++) engine.back_up({{kFull, pages[i], host[i], 0}});
  std::vector<uint64_t> trace;
  for (const auto &completion : engine.await(30)) {
    trace.push_back((completion.ticket >> 24 << 24 | (completion.ticket & 0xfffff)) &
                    ((uint64_t{1} << 52) - 1)); // Without the engine's serial.
    trace.push_back(static_cast<uint64_t>(static_cast<int64_t>(completion.status)));
    trace.push_back(completion.end_ns);
  }
  trace.push_back(engine.stats().clock_ns);
  return trace;
}

TEST(FaultBackend, ASeedRepeatsARun) {
  const auto first = run_of_seed(3);
  EXPECT_EQ(first, run_of_seed(3));
  EXPECT_NE(first, run_of_seed(4));
}

TEST(FaultBackend, HeldTransfersRunWhenReleasedOrAtClose) {
  EngineShape shape;
  shape.with_fault = true;
  shape.fault.hold = 1;
  OpenEngine engine(shape);
  const Pages pages = engine.alloc(3);
  const Pages host = engine.host_alloc(kFull, 3);
  engine.stamp(kFull, pages[0], 4);
  engine.back_up({{kFull, pages[0], host[0], 0}});
  hicache_completion_t completion;
  uint32_t count = 9;
  EXPECT_EQ(hicache_completion_wait(engine.get(), 2000000, &completion, 1, &count, engine.error()), HICACHE_OK);
  EXPECT_EQ(count, 0u);
  std::thread releaser([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(hicache_fault_hold(engine.get(), 0, 0, nullptr), HICACHE_OK);
  });
  EXPECT_EQ(engine.await_one().status, HICACHE_OK);
  releaser.join();
  EXPECT_TRUE(engine.host_holds(kFull, host[0], 4));
  ASSERT_EQ(hicache_fault_hold(engine.get(), 1, 0, engine.error()), HICACHE_OK);
  engine.back_up({{kFull, pages[1], host[1], 0}});
  EXPECT_EQ(engine.close(), HICACHE_OK) << "drains what is held";
}

TEST(FaultBackend, SteppedLayersOfTwoTransfersInterleave) {
  bool interleaved = false;
  for (uint64_t seed = 0; seed < 10; seed++) {
    EngineShape shape;
    shape.with_fault = true;
    shape.fault.hold = 1;
    shape.fault.seed = seed;
    OpenEngine engine(shape);
    const Pages host = engine.host_alloc(kFull, 2);
    hicache_ticket_t tickets[2];
    Pages target;
    for (uint32_t i = 0; i < 2; i++) {
      const hicache_reservation_t reservation = engine.reserve(1, 0, &target);
      tickets[i] = engine.load(reservation, {{kFull, target[0], host[i], 0}});
    }
    for (uint32_t step = 0; step < 6; step++) {
      EXPECT_EQ(engine.run(1, true), 1u);
      uint32_t done[2];
      for (uint32_t i = 0; i < 2; i++) hicache_ticket_status(engine.get(), tickets[i], &done[i], nullptr);
      interleaved |= done[0] > 1 && done[0] < 8 && done[1] > 1 && done[1] < 8;
    }
    EXPECT_EQ(engine.run(1, true), 0u);
    engine.await(2);
  }
  EXPECT_TRUE(interleaved);
}

} // namespace
} // namespace hicache_test
