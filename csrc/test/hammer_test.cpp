// Many threads against one engine, for the sanitizers: every call that a server makes, at once, with bytes checked.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "open_engine.hpp"

namespace hicache_test {
namespace {

// One sequence's life: take pages, write, back up, free, load back, check, free. Refusals for want of room are fine.
class Life {
public:
  Life(OpenEngine &engine, uint32_t seed) : engine_(engine), random_(seed) {}

  void round() {
    const uint32_t count = 1 + static_cast<uint32_t>(random_() % 4);
    Pages pages(count), host(count);
    hicache_take_t take{kFull, count, pages.data()};
    if (hicache_alloc(engine_.get(), &take, 1, nullptr) != HICACHE_OK) return;
    hicache_host_take_t host_take{kFull, count, host.data()};
    const bool hosted = hicache_host_alloc(engine_.get(), &host_take, 1, nullptr) == HICACHE_OK;
    const uint64_t stamp = random_();
    with_lease(pages, [&](uint32_t i, uint8_t *bytes, uint64_t size) { OpenEngine::write_stamp(bytes, stamp + i, size); });
    if (hosted) {
      const auto copies = OpenEngine::copies(kFull, pages, host);
      hicache_transfer_t request = OpenEngine::transfer(copies);
      hicache_ticket_t ticket = 0;
      const hicache_status_t queued = hicache_back_up(engine_.get(), &request, &ticket, nullptr);
      give_back(pages);
      if (queued == HICACHE_OK) {
        await(ticket);
        load_back(host, stamp);
      }
      hicache_host_pages_t line{kFull, count, host.data()};
      EXPECT_EQ(hicache_host_free(engine_.get(), &line, 1, nullptr), HICACHE_OK);
    } else {
      with_lease(pages, [&](uint32_t i, uint8_t *bytes, uint64_t size) { check(bytes, stamp + i, size); });
      give_back(pages);
    }
  }

private:
  template <typename Fn> void with_lease(const Pages &pages, Fn fn) {
    hicache_pages_t line{kFull, static_cast<uint32_t>(pages.size()), pages.data()};
    hicache_lease_t lease = 0;
    ASSERT_EQ(hicache_lease_acquire(engine_.get(), &line, 1, &lease, nullptr), HICACHE_OK);
    std::vector<int32_t> ids(pages.size());
    ASSERT_EQ(hicache_kernel_ids(engine_.get(), lease, kFull, 0, pages.data(), line.page_count, ids.data(), nullptr, nullptr), HICACHE_OK);
    hicache_pool_info_t info{};
    info.struct_size = sizeof info;
    ASSERT_EQ(hicache_pool_info(engine_.get(), HICACHE_TIER_DEVICE, kFull, &info, nullptr), HICACHE_OK);
    for (uint32_t i = 0; i < pages.size(); i++) {
      fn(i, reinterpret_cast<uint8_t *>(info.arena_base) + static_cast<uint64_t>(ids[i]) * info.page_bytes, info.page_bytes);
    }
    ASSERT_EQ(hicache_lease_release(engine_.get(), lease, nullptr), HICACHE_OK);
  }
  static void check(const uint8_t *bytes, uint64_t stamp, uint64_t size) {
    EXPECT_EQ(OpenEngine::first_difference(bytes, stamp, 0, size), -1);
  }
  void load_back(const Pages &host, uint64_t stamp) {
    Pages target(host.size());
    hicache_take_t take{kFull, static_cast<uint32_t>(host.size()), target.data()};
    hicache_reservation_t reservation = 0;
    if (hicache_reserve(engine_.get(), &take, 1, &reservation, nullptr) != HICACHE_OK) return;
    const auto copies = OpenEngine::copies(kFull, target, host);
    hicache_transfer_t request = OpenEngine::transfer(copies);
    request.reservation = reservation;
    hicache_ticket_t ticket = 0;
    if (hicache_load(engine_.get(), &request, &ticket, nullptr) != HICACHE_OK) {
      EXPECT_EQ(hicache_cancel(engine_.get(), reservation, nullptr), HICACHE_OK);
      return;
    }
    // The ring's reader may read the completion and another transfer take the slot while this thread waits for its layers.
    for (uint32_t layer : {1, 4, 7}) {
      const hicache_status_t waited = hicache_layer_wait(engine_.get(), ticket, layer, 0, nullptr);
      EXPECT_TRUE(waited == HICACHE_OK || waited == HICACHE_STALE_ID) << waited;
    }
    with_lease(target, [&](uint32_t i, uint8_t *bytes, uint64_t size) { check(bytes, stamp + i, size); });
    give_back(target);
  }
  void await(hicache_ticket_t ticket) {
    hicache_status_t status;
    while ((status = hicache_ticket_status(engine_.get(), ticket, nullptr, nullptr)) == HICACHE_PENDING) std::this_thread::yield();
    EXPECT_TRUE(status == HICACHE_OK || status == HICACHE_STALE_ID) << status;
  }
  void give_back(const Pages &pages) {
    hicache_pages_t line{kFull, static_cast<uint32_t>(pages.size()), pages.data()};
    EXPECT_EQ(hicache_free(engine_.get(), &line, 1, nullptr), HICACHE_OK);
  }

  OpenEngine &engine_;
  std::mt19937_64 random_;
};

void hammer(uint32_t backend_threads, uint32_t threads, uint32_t rounds, uint64_t row_bytes = 16) {
  EngineShape shape;
  shape.own_backend = true; // Pages are written where they are.
  shape.row_bytes = row_bytes;
  shape.copy_threads = backend_threads;
  shape.ticket_max = 64;
  shape.device_bytes = row_bytes << 12;
  shape.host_bytes = 3 * row_bytes << 10;
  OpenEngine engine(shape);
  std::atomic<bool> over{false};
  std::thread reader([&] { // The one reader of the ring.
    hicache_completion_t completions[8];
    uint32_t count = 0;
    while (!over || hicache_completion_poll(engine.get(), completions, 8, &count, nullptr) != HICACHE_OK || count > 0) {
      EXPECT_EQ(hicache_completion_wait(engine.get(), 1000000, completions, 8, &count, nullptr), HICACHE_OK);
      for (uint32_t i = 0; i < count; i++) EXPECT_EQ(completions[i].status, HICACHE_OK);
    }
  });
  std::thread idle([&] { // What a server does at its idle points.
    while (!over) {
      engine.compact(HICACHE_TIER_DEVICE);
      engine.compact(HICACHE_TIER_HOST);
      engine.stats();
      engine.expect_sound();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  std::vector<std::thread> lives;
  for (uint32_t i = 0; i < threads; i++) {
    lives.emplace_back([&engine, i, rounds] {
      Life life(engine, i);
      for (uint32_t round = 0; round < rounds; round++) life.round();
    });
  }
  for (auto &life : lives) life.join();
  over = true;
  hicache_completion_wake(engine.get(), nullptr);
  reader.join();
  idle.join();
  engine.poll();
  engine.expect_sound();
  EXPECT_EQ(engine.pool_stats(HICACHE_TIER_DEVICE, kFull).live_pages, 0u);
  EXPECT_EQ(engine.pool_stats(HICACHE_TIER_DEVICE, kFull).quarantined_pages, 0u);
  EXPECT_EQ(engine.pool_stats(HICACHE_TIER_HOST, kFull).live_pages, 0u);
}

TEST(Hammer, SixteenThreads) { hammer(1, 16, 60); }
// Pages so large that moving some of them is work for several threads, outside the lock.
TEST(Hammer, SixteenThreadsLargePages) { hammer(2, 16, 20, 4096); }
TEST(Hammer, SixtyFourThreadsFourWorkers) { hammer(4, 64, 10); }

// Calls race with the close of their engine: each is done or CLOSED.
TEST(Hammer, CloseUnderCalls) {
  for (int round = 0; round < 20; round++) {
    hicache_engine_t *engine = nullptr;
    ASSERT_EQ(OpenEngine::open({}, &engine, nullptr), HICACHE_OK);
    std::atomic<int> closed{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; i++) {
      threads.emplace_back([&, i] {
        for (;;) {
          uint32_t page = 0, count = 0;
          hicache_completion_t completion;
          hicache_status_t status = HICACHE_OK;
          if (i % 2 == 0) {
            hicache_take_t take{kFull, 1, &page};
            status = hicache_alloc(engine, &take, 1, nullptr);
            hicache_pages_t line{kFull, 1, &page};
            if (status == HICACHE_OK) status = hicache_free(engine, &line, 1, nullptr);
          } else {
            status = hicache_completion_wait(engine, UINT64_MAX, &completion, 1, &count, nullptr);
          }
          if (status == HICACHE_CLOSED) break;
          EXPECT_TRUE(status == HICACHE_OK || status == HICACHE_NO_CAPACITY) << status;
        }
        closed++;
      });
    }
    std::this_thread::sleep_for(std::chrono::microseconds(300));
    EXPECT_EQ(hicache_close(engine, nullptr), HICACHE_OK);
    for (auto &thread : threads) thread.join();
    EXPECT_EQ(closed, 8);
  }
}

} // namespace
} // namespace hicache_test
