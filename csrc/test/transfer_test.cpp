// Transfers through the C ABI: bytes there and back, what is on the wire, who is pinned until when, layers in order, failures.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "open_engine.hpp"

namespace hicache_test {
namespace {

struct Case {
  uint32_t layout;
  bool fault;
  uint32_t threads;
};

class Transfers : public testing::TestWithParam<Case> {
protected:
  EngineShape shape() const {
    EngineShape shape;
    shape.layout = GetParam().layout;
    shape.with_fault = GetParam().fault;
    shape.copy_threads = GetParam().threads;
    return shape;
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, Transfers,
                         testing::Values(Case{HICACHE_LAYOUT_LAYER_MAJOR, false, 1}, Case{HICACHE_LAYOUT_LAYER_MAJOR, false, 4},
                                         Case{HICACHE_LAYOUT_TOKEN_MAJOR, false, 1}, Case{HICACHE_LAYOUT_TOKEN_MAJOR, false, 3},
                                         Case{HICACHE_LAYOUT_LAYER_MAJOR, true, 1}, Case{HICACHE_LAYOUT_TOKEN_MAJOR, true, 1}));

TEST_P(Transfers, RoundTripOfBothPools) {
  OpenEngine engine(shape());
  const Pages pages = engine.alloc(20);
  const Pages full_host = engine.host_alloc(kFull, 20);
  const Pages swa_host = engine.host_alloc(kSwa, 20);
  for (uint32_t i = 0; i < 20; i++) {
    engine.stamp(kFull, pages[i], 1000 + i);
    engine.stamp(kSwa, pages[i], 2000 + i);
  }
  auto copies = OpenEngine::copies(kFull, pages, full_host);
  const auto swa = OpenEngine::copies(kSwa, pages, swa_host);
  copies.insert(copies.end(), swa.begin(), swa.end());
  const hicache_ticket_t up = engine.back_up(copies);
  const hicache_completion_t done = engine.await_one();
  EXPECT_EQ(done.ticket, up);
  EXPECT_EQ(done.status, HICACHE_OK);
  EXPECT_EQ(done.direction, HICACHE_D2H);
  EXPECT_EQ(done.page_count, 40u);
  EXPECT_LE(done.submit_ns, done.start_ns);
  EXPECT_LE(done.start_ns, done.end_ns);
  for (uint32_t i = 0; i < 20; i++) {
    EXPECT_TRUE(engine.host_holds(kFull, full_host[i], 1000 + i));
    EXPECT_TRUE(engine.host_holds(kSwa, swa_host[i], 2000 + i));
  }
  engine.free(pages);

  // Back into other pages: FULL of 12, the window of the last 3.
  Pages again;
  const hicache_reservation_t reservation = engine.reserve(12, 3, &again);
  std::vector<hicache_copy_t> back;
  for (uint32_t i = 0; i < 12; i++) back.push_back({kFull, again[i], full_host[i + 4], 0});
  for (uint32_t i = 9; i < 12; i++) back.push_back({kSwa, again[i], swa_host[i + 4], 0});
  const hicache_ticket_t down = engine.load(reservation, back);
  ASSERT_NE(down, 0u);
  for (uint32_t layer = 0; layer < 10; layer++) {
    EXPECT_EQ(hicache_layer_wait(engine.get(), down, layer, 0, engine.error()), HICACHE_OK) << engine.message();
  }
  for (uint32_t i = 0; i < 12; i++) EXPECT_TRUE(engine.holds(kFull, again[i], 1000 + i + 4));
  for (uint32_t i = 9; i < 12; i++) EXPECT_TRUE(engine.holds(kSwa, again[i], 2000 + i + 4));
  EXPECT_EQ(engine.place(kSwa, again[0]), HICACHE_NO_PAGE);
  engine.await_one();
  const auto stats = engine.stats();
  const uint64_t full_bytes = engine.info(HICACHE_TIER_DEVICE, kFull).page_bytes;
  const uint64_t swa_bytes = engine.info(HICACHE_TIER_DEVICE, kSwa).page_bytes;
  EXPECT_EQ(stats.d2h_bytes, 20 * (full_bytes + swa_bytes));
  EXPECT_EQ(stats.h2d_bytes, 12 * full_bytes + 3 * swa_bytes);
  EXPECT_EQ(stats.loads, 1u);
  EXPECT_EQ(stats.back_ups, 1u);
  EXPECT_EQ(stats.transfers_in_flight, 0u);
  engine.expect_sound();
}

// Case C1 and scenario G29: what is on the wire is places, after a compaction has made them differ from names.
TEST_P(Transfers, PlacesOnTheWireAfterMoves) {
  OpenEngine engine(shape());
  const Pages pages = engine.alloc(64);
  for (uint32_t i = 0; i < 64; i++) {
    engine.stamp(kFull, pages[i], 5000 + i);
    engine.stamp(kSwa, pages[i], 6000 + i);
  }
  Pages odd, even;
  for (uint32_t i = 0; i < 64; i++) (i % 2 == 1 ? odd : even).push_back(pages[i]);
  engine.free(odd);
  EXPECT_GE(engine.compact().moved_pages, 1u);
  uint32_t differ = 0;
  for (uint32_t page : even) differ += engine.place(kFull, page) != page;
  ASSERT_GE(differ, 1u) << "the test is void";
  const Pages full_host = engine.host_alloc(kFull, 32);
  const Pages swa_host = engine.host_alloc(kSwa, 32);
  engine.back_up(OpenEngine::copies(kFull, even, full_host));
  engine.back_up(OpenEngine::copies(kSwa, even, swa_host));
  engine.await(2);
  for (uint32_t i = 0; i < 32; i++) {
    EXPECT_TRUE(engine.host_holds(kFull, full_host[i], 5000 + 2 * i));
    EXPECT_TRUE(engine.host_holds(kSwa, swa_host[i], 6000 + 2 * i));
  }
  engine.expect_sound();
}

// Scenario G37: a transfer of the window alone.
TEST_P(Transfers, WindowOnly) {
  OpenEngine engine(shape());
  const Pages pages = engine.alloc(3);
  const Pages host = engine.host_alloc(kSwa, 3);
  for (uint32_t i = 0; i < 3; i++) engine.stamp(kSwa, pages[i], 70 + i);
  engine.back_up(OpenEngine::copies(kSwa, pages, host));
  EXPECT_EQ(engine.await_one().status, HICACHE_OK);
  for (uint32_t i = 0; i < 3; i++) EXPECT_TRUE(engine.host_holds(kSwa, host[i], 70 + i));
}

TEST_P(Transfers, LoadBindsPagesThatAreComputed) {
  OpenEngine engine(shape());
  Pages pages;
  const hicache_reservation_t reservation = engine.reserve(4, 4, &pages);
  const Pages host = engine.host_alloc(kFull, 1);
  engine.stamp_host(kFull, host[0], 9);
  std::vector<hicache_bind_t> binds;
  for (uint32_t i = 1; i < 4; i++) binds.push_back({kFull, pages[i]});
  for (uint32_t i = 2; i < 4; i++) binds.push_back({kSwa, pages[i]});
  engine.load(reservation, {{kFull, pages[0], host[0], 0}}, binds);
  engine.await_one();
  EXPECT_TRUE(engine.holds(kFull, pages[0], 9));
  EXPECT_NE(engine.place(kFull, pages[3]), HICACHE_NO_PAGE);
  EXPECT_NE(engine.place(kSwa, pages[3]), HICACHE_NO_PAGE);
  EXPECT_EQ(engine.place(kSwa, pages[0]), HICACHE_NO_PAGE) << "two window pages of the reservation were not mentioned and went back";
  EXPECT_EQ(engine.pool_stats(HICACHE_TIER_DEVICE, kSwa).live_pages, 2u);
  engine.expect_sound();
}

TEST_P(Transfers, NothingToCopyHasNoTicket) {
  OpenEngine engine(shape());
  Pages pages;
  const hicache_reservation_t reservation = engine.reserve(1, 0, &pages);
  EXPECT_EQ(engine.load(reservation, {}, {{kFull, pages[0]}}), 0u);
  EXPECT_EQ(engine.back_up({}), 0u);
  EXPECT_TRUE(engine.poll().empty());
}

// Case C56: pages freed and taken again while their back-up is queued.
TEST(Hazards, FreedSourceKeepsItsBytesUntilRead) {
  EngineShape shape;
  shape.with_fault = true;
  shape.fault.hold = 1;
  OpenEngine engine(shape);
  const Pages pages = engine.alloc(8);
  const Pages host = engine.host_alloc(kFull, 8);
  for (uint32_t i = 0; i < 8; i++) engine.stamp(kFull, pages[i], 300 + i);
  engine.back_up(OpenEngine::copies(kFull, pages, host));
  engine.free(pages);
  EXPECT_EQ(engine.pool_stats(HICACHE_TIER_DEVICE, kFull).quarantined_pages, 8u);
  EXPECT_EQ(engine.stats().frees_quarantined, 8u);
  // Everything else that fits is taken and overwritten.
  Pages others;
  while (true) {
    Pages one;
    if (engine.try_alloc(1, 0, &one) != HICACHE_OK) break;
    engine.stamp(kFull, one[0], 999);
    others.push_back(one[0]);
  }
  ASSERT_GT(others.size(), 10u);
  engine.expect_sound();
  EXPECT_EQ(engine.run(1), 1u);
  for (uint32_t i = 0; i < 8; i++) EXPECT_TRUE(engine.host_holds(kFull, host[i], 300 + i));
  EXPECT_EQ(engine.pool_stats(HICACHE_TIER_DEVICE, kFull).quarantined_pages, 8u) << "pins end when the completion is read";
  EXPECT_EQ(engine.poll().size(), 1u);
  EXPECT_EQ(engine.pool_stats(HICACHE_TIER_DEVICE, kFull).quarantined_pages, 0u);
  EXPECT_EQ(engine.try_alloc(8, 0, &others), HICACHE_OK) << "what the quarantine gave back: " << engine.message();
  engine.expect_sound();
}

// Scenario G33: the source of a write-through is neither freed nor reused before its completion.
TEST(Hazards, RefusalNamesTheTicketThatGivesRoom) {
  EngineShape shape;
  shape.with_fault = true;
  shape.fault.hold = 1;
  OpenEngine engine(shape);
  Pages all;
  while (true) {
    Pages one;
    if (engine.try_alloc(1, 0, &one) != HICACHE_OK) break;
    all.push_back(one[0]);
  }
  const Pages some(all.begin(), all.begin() + 4);
  const Pages host = engine.host_alloc(kFull, 4);
  const hicache_ticket_t ticket = engine.back_up(OpenEngine::copies(kFull, some, host));
  engine.free(some);
  Pages more;
  EXPECT_EQ(engine.try_alloc(4, 0, &more), HICACHE_NO_CAPACITY);
  EXPECT_EQ(engine.error()->pending_bytes, 4 * engine.info(HICACHE_TIER_DEVICE, kFull).page_bytes);
  EXPECT_EQ(engine.error()->ticket, ticket);
  engine.run(1);
  engine.poll();
  EXPECT_EQ(engine.try_alloc(4, 0, &more), HICACHE_OK) << engine.message();
}

// Scenario G35 and hazard 3: nothing moves a page between its naming and the end of its copy; other pages do move.
TEST(Hazards, PagesInFlightStayAndOthersMove) {
  EngineShape shape;
  shape.with_fault = true;
  shape.fault.hold = 1;
  OpenEngine engine(shape);
  const Pages pages = engine.alloc(40);
  for (uint32_t i = 0; i < 40; i++) engine.stamp(kFull, pages[i], 100 + i);
  const Pages host = engine.host_alloc(kFull, 2);
  engine.stamp_host(kFull, host[0], 501);
  engine.stamp_host(kFull, host[1], 502);
  Pages target;
  const hicache_reservation_t reservation = engine.reserve(2, 0, &target);
  uint32_t before[2], reserved[2], count = 0;
  ASSERT_EQ(hicache_reservation_pages(engine.get(), reservation, kFull, reserved, 2, &count, engine.error()), HICACHE_OK);
  ASSERT_EQ(count, 2u);
  EXPECT_EQ(engine.place(kFull, target[0]), HICACHE_NO_PAGE) << "a reserved page is in no table";
  engine.load(reservation, OpenEngine::copies(kFull, target, host));
  for (uint32_t i = 0; i < 2; i++) before[i] = engine.place(kFull, target[i]);
  EXPECT_TRUE(std::is_permutation(before, before + 2, reserved));
  Pages odd;
  for (uint32_t i = 1; i < 40; i += 2) odd.push_back(pages[i]);
  engine.free(odd);
  EXPECT_GT(engine.compact().moved_pages, 0u);
  EXPECT_GT(engine.stats().moves_during_transfer, 0u);
  for (uint32_t i = 0; i < 2; i++) EXPECT_EQ(engine.place(kFull, target[i]), before[i]);
  engine.expect_sound();
  engine.run(1);
  for (uint32_t i = 0; i < 2; i++) EXPECT_TRUE(engine.holds(kFull, target[i], 501 + i));
  for (uint32_t i = 0; i < 40; i += 2) EXPECT_TRUE(engine.holds(kFull, pages[i], 100 + i));
  engine.poll();
  engine.free({pages[0], pages[2], pages[4]});
  engine.compact();
  for (uint32_t i = 0; i < 2; i++) EXPECT_TRUE(engine.holds(kFull, target[i], 501 + i)) << "contents follow when they may move";
  engine.expect_sound();
}

// Scenario G20 with per-page pins: a pending reservation does not stop other pages, and its own place is kept.
TEST(Hazards, PendingReservationKeepsItsPlace) {
  OpenEngine engine;
  const Pages pages = engine.alloc(30);
  Pages target;
  const hicache_reservation_t reservation = engine.reserve(3, 3, &target);
  uint32_t before[3], after[3], count = 0;
  hicache_reservation_pages(engine.get(), reservation, kSwa, before, 3, &count, engine.error());
  Pages freed(pages.begin() + 5, pages.begin() + 25);
  engine.free(freed);
  EXPECT_GT(engine.compact().moved_pages, 0u);
  hicache_reservation_pages(engine.get(), reservation, kSwa, after, 3, &count, engine.error());
  EXPECT_TRUE(std::equal(before, before + 3, after));
  engine.expect_sound();
  EXPECT_EQ(hicache_cancel(engine.get(), reservation, engine.error()), HICACHE_OK);
  EXPECT_EQ(hicache_cancel(engine.get(), reservation, engine.error()), HICACHE_STALE_ID);
  engine.expect_sound();
}

// Case C60: the host copy is intact when a load fails, and the target may be partly written.
TEST(Failures, FailedLoadLeavesTheHostCopy) {
  uint32_t partly = 0, untouched = 0;
  for (uint64_t seed = 0; seed < 40; seed++) {
    EngineShape shape;
    shape.with_fault = true;
    shape.fault.seed = seed;
    shape.fault.fail_transfer_n = 1;
    OpenEngine engine(shape);
    const Pages host = engine.host_alloc(kFull, 4);
    for (uint32_t i = 0; i < 4; i++) engine.stamp_host(kFull, host[i], 40 + i);
    Pages target;
    const hicache_reservation_t reservation = engine.reserve(4, 0, &target);
    const hicache_ticket_t ticket = engine.load(reservation, OpenEngine::copies(kFull, target, host));
    EXPECT_EQ(hicache_layer_wait(engine.get(), ticket, 7, 0, engine.error()), HICACHE_DEVICE);
    EXPECT_NE(engine.message().find("failed"), std::string::npos);
    const hicache_completion_t done = engine.await_one();
    EXPECT_EQ(done.status, HICACHE_DEVICE);
    EXPECT_NE(done.native_code, 0);
    EXPECT_EQ(hicache_ticket_status(engine.get(), ticket, nullptr, engine.error()), HICACHE_DEVICE);
    bool any = false, all = true;
    for (uint32_t i = 0; i < 4; i++) {
      EXPECT_TRUE(engine.host_holds(kFull, host[i], 40 + i));
      for (uint32_t layer = 0; layer < 3; layer++) {
        const bool there = engine.layer_difference(kFull, target[i], 40 + i, layer) == -1;
        any |= there;
        all &= there;
      }
    }
    partly += any && !all;
    untouched += !any;
    EXPECT_EQ(engine.stats().transfers_failed, 1u);
    engine.free(target);
    engine.expect_sound();
    // The engine goes on, and the same load now works.
    const hicache_reservation_t again = engine.reserve(4, 0, &target);
    engine.load(again, OpenEngine::copies(kFull, target, host));
    EXPECT_EQ(engine.await_one().status, HICACHE_OK);
    for (uint32_t i = 0; i < 4; i++) EXPECT_TRUE(engine.holds(kFull, target[i], 40 + i));
  }
  EXPECT_GT(partly, 0u) << "no seed failed half-way";
  EXPECT_GT(untouched, 0u) << "no seed failed at the start";
}

// Scenario G34: a failed or held back-up leaves its source.
TEST(Failures, FailedBackUpLeavesTheSource) {
  EngineShape shape;
  shape.with_fault = true;
  OpenEngine engine(shape);
  const Pages pages = engine.alloc(4);
  const Pages host = engine.host_alloc(kFull, 4);
  for (uint32_t i = 0; i < 4; i++) engine.stamp(kFull, pages[i], 80 + i);
  ASSERT_EQ(hicache_fault_hold(engine.get(), 0, 1, engine.error()), HICACHE_OK);
  engine.back_up(OpenEngine::copies(kFull, pages, host));
  EXPECT_EQ(engine.await_one().status, HICACHE_DEVICE);
  for (uint32_t i = 0; i < 4; i++) EXPECT_TRUE(engine.holds(kFull, pages[i], 80 + i));
  engine.back_up(OpenEngine::copies(kFull, pages, host));
  EXPECT_EQ(engine.await_one().status, HICACHE_OK);
  for (uint32_t i = 0; i < 4; i++) EXPECT_TRUE(engine.host_holds(kFull, host[i], 80 + i));
}

// Scenario G31: layers become readable one group after the other, in order.
TEST(Layers, ReadableInOrderWhileLaterOnesAreNot) {
  EngineShape shape;
  shape.with_fault = true;
  shape.fault.hold = 1;
  OpenEngine engine(shape);
  const Pages host = engine.host_alloc(kFull, 2);
  const Pages swa_host = engine.host_alloc(kSwa, 2);
  for (uint32_t i = 0; i < 2; i++) {
    engine.stamp_host(kFull, host[i], 10 + i);
    engine.stamp_host(kSwa, swa_host[i], 20 + i);
  }
  Pages target;
  const hicache_reservation_t reservation = engine.reserve(2, 2, &target);
  auto copies = OpenEngine::copies(kFull, target, host);
  const auto swa = OpenEngine::copies(kSwa, target, swa_host);
  copies.insert(copies.end(), swa.begin(), swa.end());
  const hicache_ticket_t ticket = engine.load(reservation, copies);
  // Global layers 0..7: FULL has 1, 4, 7; groups of 1, 1, 2, 4 layers.
  const uint32_t full_local[8] = {9, 0, 9, 9, 1, 9, 9, 2};
  const uint32_t swa_local[8] = {0, 9, 1, 2, 9, 3, 4, 9};
  const uint32_t done_after[] = {0, 1, 2, 4, 10};
  for (uint32_t step = 0; step < 5; step++) {
    uint32_t done = 99;
    const hicache_status_t status = hicache_ticket_status(engine.get(), ticket, &done, engine.error());
    EXPECT_EQ(status, step < 4 ? HICACHE_PENDING : HICACHE_OK);
    EXPECT_EQ(done, step < 4 ? done_after[step] : 8u) << step;
    for (uint32_t layer = 0; layer < 8; layer++) {
      const bool arrived = layer < done;
      for (uint32_t i = 0; i < 2; i++) {
        const bool is_full = full_local[layer] != 9;
        const int64_t difference = is_full ? engine.layer_difference(kFull, target[i], 10 + i, full_local[layer])
                                           : engine.layer_difference(kSwa, target[i], 20 + i, swa_local[layer]);
        EXPECT_EQ(difference == -1, arrived) << "step " << step << " layer " << layer;
      }
      if (arrived) { EXPECT_EQ(hicache_layer_wait(engine.get(), ticket, layer, 0, engine.error()), HICACHE_OK); }
    }
    // A layer that no pool serves is complete at once.
    EXPECT_EQ(hicache_layer_wait(engine.get(), ticket, 55, 0, engine.error()), HICACHE_OK);
    engine.run(1, true);
  }
}

TEST(Layers, WaitBlocksUntilTheLayerIsThere) {
  EngineShape shape;
  shape.with_fault = true;
  shape.fault.hold = 1;
  OpenEngine engine(shape);
  const Pages host = engine.host_alloc(kFull, 2);
  for (uint32_t i = 0; i < 2; i++) engine.stamp_host(kFull, host[i], 10 + i);
  Pages target;
  const hicache_reservation_t reservation = engine.reserve(2, 0, &target);
  const hicache_ticket_t ticket = engine.load(reservation, OpenEngine::copies(kFull, target, host));
  std::atomic<uint32_t> reached{0};
  std::thread reader([&] {
    for (uint32_t layer : {1, 4, 7}) {
      EXPECT_EQ(hicache_layer_wait(engine.get(), ticket, layer, 0, nullptr), HICACHE_OK);
      reached = layer;
    }
  });
  for (uint32_t layer : {1, 4, 7}) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    EXPECT_LT(reached, layer);
    engine.run(1, true);
    while (reached < layer) std::this_thread::yield();
  }
  reader.join();
  engine.poll();
}

// A ticket answers after its completion was read, until its slot is reused.
TEST(Tickets, AnswerUntilTheSlotIsReused) {
  EngineShape shape;
  shape.ticket_max = 2;
  OpenEngine engine(shape);
  const Pages pages = engine.alloc(1);
  const Pages host = engine.host_alloc(kFull, 1);
  const hicache_ticket_t first = engine.back_up(OpenEngine::copies(kFull, pages, host));
  engine.await_one();
  EXPECT_EQ(hicache_ticket_status(engine.get(), first, nullptr, engine.error()), HICACHE_OK);
  EXPECT_EQ(hicache_layer_wait(engine.get(), first, 1, 0, engine.error()), HICACHE_OK);
  engine.back_up(OpenEngine::copies(kFull, pages, host));
  engine.await_one();
  EXPECT_EQ(hicache_ticket_status(engine.get(), first, nullptr, engine.error()), HICACHE_OK);
  engine.back_up(OpenEngine::copies(kFull, pages, host), first); // One that is over is a fine predecessor.
  engine.await_one();
  EXPECT_EQ(hicache_ticket_status(engine.get(), first, nullptr, engine.error()), HICACHE_STALE_ID);
  EXPECT_EQ(hicache_layer_wait(engine.get(), first, 1, 0, engine.error()), HICACHE_STALE_ID);
  EXPECT_EQ(hicache_ticket_status(engine.get(), 0, nullptr, engine.error()), HICACHE_STALE_ID);
  EXPECT_EQ(hicache_ticket_status(engine.get(), ~0ull, nullptr, engine.error()), HICACHE_STALE_ID);
}

TEST(Tickets, LimitLeavesNothingBehind) {
  EngineShape shape;
  shape.ticket_max = 2;
  shape.with_fault = true;
  shape.fault.hold = 1;
  OpenEngine engine(shape);
  const Pages pages = engine.alloc(3);
  const Pages host = engine.host_alloc(kFull, 3);
  for (uint32_t i = 0; i < 2; i++) engine.back_up({{kFull, pages[i], host[i], 0}});
  EXPECT_EQ(engine.try_back_up({{kFull, pages[2], host[2], 0}}), HICACHE_LIMIT);
  Pages target;
  const hicache_reservation_t reservation = engine.reserve(1, 0, &target);
  const auto copies = OpenEngine::copies(kFull, target, {host[2]});
  hicache_transfer_t request = OpenEngine::transfer(copies);
  request.reservation = reservation;
  hicache_ticket_t ticket;
  EXPECT_EQ(hicache_load(engine.get(), &request, &ticket, engine.error()), HICACHE_LIMIT);
  engine.run(2);
  EXPECT_EQ(hicache_load(engine.get(), &request, &ticket, engine.error()), HICACHE_LIMIT) << "ended, but unread in the ring";
  EXPECT_EQ(engine.poll(1).size(), 1u);
  EXPECT_EQ(hicache_load(engine.get(), &request, &ticket, engine.error()), HICACHE_OK)
      << "the reservation is still whole: " << engine.message();
  engine.run(1);
  EXPECT_EQ(engine.poll().size(), 2u);
  engine.expect_sound();
}

TEST(Requests, RefusedWithTheFirstBadNameAndNothingChanged) {
  EngineShape shape;
  shape.with_fault = true;
  shape.fault.hold = 1;
  OpenEngine engine(shape);
  const Pages pages = engine.alloc(4, 2);
  const Pages host = engine.host_alloc(kFull, 4);
  const Pages swa_host = engine.host_alloc(kSwa, 4);
  EXPECT_EQ(engine.try_back_up({{kFull, pages[0], host[0], 0}, {kSwa, pages[0], swa_host[0], 0}}), HICACHE_NOT_MAPPED);
  EXPECT_NE(engine.message().find(std::to_string(pages[0])), std::string::npos) << engine.message();
  EXPECT_EQ(engine.error()->pool, kSwa);
  EXPECT_LT(engine.try_back_up({{kFull, 999999, host[0], 0}}), 0);
  EXPECT_LT(engine.try_back_up({{kFull, pages[0], 999999, 0}}), 0);
  EXPECT_LT(engine.try_back_up({{kFull, pages[0], HICACHE_NO_PAGE, 0}}), 0);
  EXPECT_LT(engine.try_back_up({{7, pages[0], host[0], 0}}), 0);
  EXPECT_EQ(engine.try_back_up({{kFull, pages[0], host[0], 0}, {kFull, pages[1], host[0], 0}}), HICACHE_INVALID_ARGUMENT)
      << "overlapping copies";
  EXPECT_EQ(engine.try_back_up({{kFull, pages[0], host[0], 1}}), HICACHE_UNSUPPORTED) << "a reserved field";
  engine.expect_sound();
  EXPECT_EQ(engine.stats().back_ups, 0u);
  // None of the refusals kept a page: all of this still works and nothing is quarantined.
  EXPECT_EQ(engine.try_back_up({{kFull, pages[0], host[0], 0}, {kFull, pages[0], host[1], 0}}), HICACHE_OK) << engine.message();
  EXPECT_EQ(engine.try_back_up({{kFull, pages[1], host[0], 0}}), HICACHE_BUSY) << "another back-up writes that page";
  EXPECT_NE(engine.error()->ticket, 0u);
  Pages target;
  const hicache_reservation_t reservation = engine.reserve(1, 0, &target);
  const auto copies = OpenEngine::copies(kFull, target, {host[1]});
  hicache_transfer_t request = OpenEngine::transfer(copies);
  request.reservation = reservation;
  hicache_ticket_t ticket;
  EXPECT_EQ(hicache_load(engine.get(), &request, &ticket, engine.error()), HICACHE_BUSY) << "its bytes have not arrived";
  engine.run(1);
  engine.poll();
  EXPECT_EQ(hicache_load(engine.get(), &request, &ticket, engine.error()), HICACHE_OK) << engine.message();
  EXPECT_EQ(engine.try_back_up({{kFull, target[0], host[2], 0}}), HICACHE_BUSY) << "a page still being loaded is no source";
  EXPECT_EQ(hicache_load(engine.get(), &request, &ticket, engine.error()), HICACHE_STALE_ID) << "the reservation is consumed";
  engine.run(1);
  engine.poll();
  request.priority = 3;
  EXPECT_EQ(hicache_back_up(engine.get(), &request, &ticket, engine.error()), HICACHE_INVALID_ARGUMENT);
  request.priority = 0;
  EXPECT_EQ(hicache_back_up(engine.get(), &request, &ticket, engine.error()), HICACHE_INVALID_ARGUMENT) << "a back-up has no reservation";
  request.reservation = 0;
  request.after = 0x123456789;
  EXPECT_EQ(hicache_back_up(engine.get(), &request, &ticket, engine.error()), HICACHE_STALE_ID) << "a predecessor that never was";
  engine.expect_sound();
  // Where the last line of a lease is bad, the pages of the first ones are not held.
  const uint32_t bad = 999999;
  const hicache_pages_t lines[] = {{kFull, 2, pages.data()}, {kFull, 1, &bad}};
  hicache_lease_t lease;
  EXPECT_LT(hicache_lease_acquire(engine.get(), lines, 2, &lease, engine.error()), 0);
  for (const uint32_t tier : {HICACHE_TIER_DEVICE, HICACHE_TIER_HOST})
    for (const uint32_t pool : {kFull, kSwa}) EXPECT_EQ(engine.pool_stats(tier, pool).pinned_pages, 0u) << tier << " " << pool;
}

// A child's back-up is reported after its parent's, whatever ends first.
TEST(Order, ChildAfterParent) {
  for (uint64_t seed = 0; seed < 20; seed++) {
    EngineShape shape;
    shape.with_fault = true;
    shape.fault.seed = seed;
    shape.fault.delay_max_ns = 1000000;
    OpenEngine engine(shape);
    const Pages pages = engine.alloc(12);
    const Pages host = engine.host_alloc(kFull, 12);
    std::vector<hicache_ticket_t> chain;
    for (uint32_t i = 0; i < 12; i++) { chain.push_back(engine.back_up({{kFull, pages[i], host[i], 0}}, i % 4 == 0 ? 0 : chain.back())); }
    const auto completions = engine.await(12);
    std::vector<size_t> at(12);
    for (size_t i = 0; i < 12; i++) {
      at[static_cast<size_t>(std::find(chain.begin(), chain.end(), completions[i].ticket) - chain.begin())] = i;
    }
    for (size_t i = 0; i < 12; i++) {
      if (i % 4 == 0) continue;
      EXPECT_LT(at[i - 1], at[i]) << "seed " << seed;
    }
  }
}

// Case C6: takes and frees wait for nothing; a move of pages that a closed step used records its wait.
TEST(Fences, OnlyMovesWait) {
  EngineShape shape;
  shape.with_fault = true;
  shape.fault.hold = 1;
  OpenEngine engine(shape);
  const Pages pages = engine.alloc(20);
  const Pages host = engine.host_alloc(kFull, 2);
  hicache_pages_t line{kFull, 20, pages.data()};
  hicache_step_t step = 0;
  ASSERT_EQ(hicache_step_open(engine.get(), suite_backend.stream(77), &line, 1, &step, engine.error()), HICACHE_OK);
  ASSERT_EQ(hicache_step_close(engine.get(), step, engine.error()), HICACHE_OK);
  EXPECT_EQ(hicache_step_close(engine.get(), step, engine.error()), HICACHE_STALE_ID);
  engine.back_up(OpenEngine::copies(kFull, {pages[18], pages[19]}, host));
  engine.free({pages[3]});
  engine.alloc(1);
  EXPECT_EQ(engine.stats().fence_waits_takes, 0u);
  EXPECT_EQ(engine.stats().fence_waits_moves, 0u);
  engine.free(Pages(pages.begin() + 5, pages.begin() + 12));
  EXPECT_GT(engine.compact().moved_pages, 0u);
  EXPECT_GT(engine.stats().fence_waits_moves, 0u);
  EXPECT_EQ(engine.stats().fence_waits_takes, 0u);
  engine.run(1);
  engine.poll();
}

} // namespace
} // namespace hicache_test
