// Cancelling transfers: queued, running, in a chain of publication, and from beside the threads that copy.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "open_engine.hpp"

namespace hicache_test {
namespace {

TEST(Cancel, QueuedTransferNeverRuns) {
  EngineShape shape;
  shape.with_fault = true;
  shape.fault.hold = 1;
  OpenEngine engine(shape);
  const Pages pages = engine.alloc(6), host = engine.host_alloc(kFull, 6);
  for (uint32_t i = 0; i < 6; i++) {
    engine.stamp(kFull, pages[i], 10 + i);
    engine.stamp_host(kFull, host[i], 90 + i);
  }
  const hicache_ticket_t first =
      engine.back_up(OpenEngine::copies(kFull, Pages(pages.begin(), pages.begin() + 3), Pages(host.begin(), host.begin() + 3)));
  const hicache_ticket_t second =
      engine.back_up(OpenEngine::copies(kFull, Pages(pages.begin() + 3, pages.end()), Pages(host.begin() + 3, host.end())));
  ASSERT_EQ(hicache_transfer_cancel(engine.get(), second, engine.error()), HICACHE_OK) << engine.message();
  ASSERT_EQ(hicache_transfer_cancel(engine.get(), second, engine.error()), HICACHE_OK) << "a second time is no mistake";
  EXPECT_EQ(hicache_ticket_status(engine.get(), second, nullptr, engine.error()), HICACHE_CANCELLED);
  EXPECT_EQ(hicache_ticket_status(engine.get(), first, nullptr, engine.error()), HICACHE_PENDING);
  EXPECT_EQ(engine.pool_stats(HICACHE_TIER_DEVICE, kFull).pinned_pages, 6u) << "pins last until the completion is read";
  engine.run(100);
  const auto done = engine.poll();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].ticket, second);
  EXPECT_EQ(done[0].status, HICACHE_CANCELLED);
  EXPECT_EQ(done[1].ticket, first);
  EXPECT_EQ(done[1].status, HICACHE_OK);
  EXPECT_EQ(engine.pool_stats(HICACHE_TIER_DEVICE, kFull).pinned_pages, 0u);
  EXPECT_EQ(engine.pool_stats(HICACHE_TIER_HOST, kFull).pinned_pages, 0u);
  for (uint32_t i = 0; i < 6; i++) {
    EXPECT_TRUE(engine.holds(kFull, pages[i], 10 + i)) << "the source is intact";
    EXPECT_TRUE(engine.host_holds(kFull, host[i], i < 3 ? 10 + i : 90 + i)) << "nothing was written";
  }
  EXPECT_EQ(engine.stats().transfers_cancelled, 1u);
  EXPECT_EQ(engine.stats().transfers_failed, 0u);
  EXPECT_EQ(engine.stats().transfers_in_flight, 0u);
  EXPECT_EQ(engine.poll().size(), 0u) << "one completion a ticket";
  // The slot goes to another: the old name is over.
  for (uint32_t i = 0; i < 1100; i++) {
    engine.back_up(OpenEngine::copies(kFull, {pages[0]}, {host[0]}));
    engine.run(1);
    engine.poll();
  }
  EXPECT_EQ(hicache_transfer_cancel(engine.get(), second, engine.error()), HICACHE_STALE_ID);
  engine.expect_sound();
}

// A load that has brought some layers: they stay readable until the cancel, the waits for the others end, its pages stay bound.
TEST(Cancel, RunningLoadEndsTheWaits) {
  EngineShape shape;
  shape.with_fault = true;
  shape.fault.hold = 1;
  OpenEngine engine(shape);
  const Pages host = engine.host_alloc(kFull, 2);
  Pages target;
  const hicache_reservation_t reservation = engine.reserve(2, 0, &target);
  const hicache_ticket_t ticket = engine.load(reservation, OpenEngine::copies(kFull, target, host));
  engine.run(1, true);
  EXPECT_EQ(hicache_layer_wait(engine.get(), ticket, 1, 0, engine.error()), HICACHE_OK);
  std::atomic<int32_t> waited{0};
  std::thread reader([&] {
    hicache_error_t error{};
    error.struct_size = sizeof error;
    waited = hicache_layer_wait(engine.get(), ticket, 7, 0, &error);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_EQ(hicache_transfer_cancel(engine.get(), ticket, engine.error()), HICACHE_OK);
  reader.join();
  EXPECT_EQ(waited, HICACHE_CANCELLED);
  EXPECT_EQ(hicache_layer_wait(engine.get(), ticket, 1, 0, engine.error()), HICACHE_CANCELLED);
  const auto done = engine.poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, HICACHE_CANCELLED);
  EXPECT_EQ(hicache_cancel(engine.get(), reservation, engine.error()), HICACHE_STALE_ID) << "the load consumed it";
  for (uint32_t page : target) EXPECT_NE(engine.place(kFull, page), HICACHE_NO_PAGE);
  engine.free(target);
  EXPECT_EQ(engine.pool_stats(HICACHE_TIER_DEVICE, kFull).live_pages, 0u);
  EXPECT_EQ(engine.pool_stats(HICACHE_TIER_DEVICE, kFull).quarantined_pages, 0u);
  engine.expect_sound();
}

// A cancelled transfer is reported after the one that it was to follow, and what follows it after it.
TEST(Cancel, KeepsTheOrderOfPublication) {
  EngineShape shape;
  shape.with_fault = true;
  shape.fault.hold = 1;
  OpenEngine engine(shape);
  const Pages pages = engine.alloc(3), host = engine.host_alloc(kFull, 3);
  hicache_ticket_t tickets[3] = {};
  for (uint32_t i = 0; i < 3; i++)
    tickets[i] = engine.back_up(OpenEngine::copies(kFull, {pages[i]}, {host[i]}), i == 0 ? 0 : tickets[i - 1]);
  ASSERT_EQ(hicache_transfer_cancel(engine.get(), tickets[1], engine.error()), HICACHE_OK);
  EXPECT_TRUE(engine.poll().empty());
  engine.run(10);
  const auto done = engine.poll();
  ASSERT_EQ(done.size(), 3u);
  for (uint32_t i = 0; i < 3; i++) EXPECT_EQ(done[i].ticket, tickets[i]);
  EXPECT_EQ(done[1].status, HICACHE_CANCELLED);
}

// With threads that copy: whatever is cancelled when, each ticket ends once, its pins with it, and nothing is written after its end.
class CancelThreads : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Workers, CancelThreads, testing::Values(1u, 4u));

TEST_P(CancelThreads, EveryTicketEndsOnce) {
  EngineShape shape;
  shape.copy_threads = GetParam();
  shape.row_bytes = 1024;
  shape.page_tokens = 16;
  shape.device_bytes = shape.host_bytes = 64 << 20;
  OpenEngine engine(shape);
  constexpr uint32_t kTickets = 8, kPages = 12;
  const Pages pages = engine.alloc(kTickets * kPages), host = engine.host_alloc(kFull, kTickets * kPages);
  uint32_t cancelled = 0;
  for (uint32_t round = 0; round < 20; round++) {
    std::vector<hicache_ticket_t> tickets;
    for (uint32_t i = 0; i < kTickets; i++) {
      const auto first = static_cast<int64_t>(i * kPages);
      tickets.push_back(engine.back_up(OpenEngine::copies(kFull, Pages(pages.begin() + first, pages.begin() + first + kPages),
                                                          Pages(host.begin() + first, host.begin() + first + kPages))));
    }
    std::thread waiter([&] {
      hicache_error_t error{};
      error.struct_size = sizeof error;
      for (hicache_ticket_t ticket : tickets) {
        const hicache_status_t status = hicache_layer_wait(engine.get(), ticket, 7, 0, &error);
        EXPECT_TRUE(status == HICACHE_OK || status == HICACHE_CANCELLED || status == HICACHE_STALE_ID) << status;
      }
    });
    for (uint32_t i = kTickets; i-- > 0;)
      if ((i + round) % 3 != 0) { EXPECT_EQ(hicache_transfer_cancel(engine.get(), tickets[i], engine.error()), HICACHE_OK); }
    std::vector<hicache_ticket_t> ended;
    for (const auto &done : engine.await(kTickets)) {
      EXPECT_TRUE(done.status == HICACHE_OK || done.status == HICACHE_CANCELLED);
      cancelled += done.status == HICACHE_CANCELLED;
      ended.push_back(done.ticket);
      const auto at = std::find(tickets.begin(), tickets.end(), done.ticket);
      ASSERT_NE(at, tickets.end());
      if ((at - tickets.begin() + round) % 3 == 0) { EXPECT_EQ(done.status, HICACHE_OK) << "nobody cancelled it"; }
    }
    waiter.join();
    std::sort(ended.begin(), ended.end());
    EXPECT_EQ(std::unique(ended.begin(), ended.end()), ended.end());
    EXPECT_EQ(engine.pool_stats(HICACHE_TIER_HOST, kFull).pinned_pages, 0u);
    EXPECT_EQ(engine.stats().transfers_in_flight, 0u);
  }
  EXPECT_GT(cancelled, 0u);
  EXPECT_EQ(engine.stats().transfers_cancelled, cancelled);
  engine.expect_sound();
}

} // namespace
} // namespace hicache_test
