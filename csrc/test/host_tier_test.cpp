// The host tier: the worked example of the shared envelope arena, views under a lease, compaction around them.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "open_engine.hpp"

namespace hicache_test {
namespace {

// Two pools of 16-byte rows and one layer each: full pages of 128 bytes growing down, swa pages of 64 bytes growing up.
class HostExample : public testing::Test {
protected:
  void open(uint64_t host_bytes, uint64_t full_page_bytes, uint64_t swa_page_bytes) {
    static const uint32_t full_layer[] = {0}, swa_layer[] = {1};
    pools_.assign(2, hicache_pool_options_t{});
    pools_[0].role = HICACHE_ROLE_FULL;
    pools_[0].page_tokens = 4;
    pools_[0].layer_count = 1;
    pools_[0].layer_ids = full_layer;
    pools_[0].k_row_bytes = full_page_bytes / 4;
    pools_[1] = pools_[0];
    pools_[1].role = HICACHE_ROLE_SWA;
    pools_[1].window_tokens = 4;
    pools_[1].layer_ids = swa_layer;
    pools_[1].k_row_bytes = swa_page_bytes / 4;
    hicache_options_t options = OpenEngine::options({}, pools_);
    options.device_bytes = 4096;
    options.host_bytes = host_bytes;
    error_.struct_size = sizeof error_;
    ASSERT_EQ(hicache_open(&options, &engine_, &error_), HICACHE_OK) << error_.message;
  }
  void TearDown() override { EXPECT_EQ(hicache_close(engine_, &error_), HICACHE_OK) << error_.message; }

  hicache_status_t take(uint32_t full, uint32_t swa, Pages *full_out, Pages *swa_out) {
    full_out->assign(full, HICACHE_NO_PAGE);
    swa_out->assign(swa, HICACHE_NO_PAGE);
    hicache_host_take_t takes[2] = {{kFull, full, full_out->data()}, {kSwa, swa, swa_out->data()}};
    return hicache_host_alloc(engine_, takes, 2, &error_);
  }
  hicache_status_t give_back(uint32_t pool, Pages pages) {
    hicache_host_pages_t line{pool, static_cast<uint32_t>(pages.size()), pages.data()};
    return hicache_host_free(engine_, &line, 1, &error_);
  }
  Pages places(uint32_t pool, const Pages &pages) {
    Pages all(pages.size());
    EXPECT_EQ(hicache_host_inspect(engine_, pool, pages.data(), static_cast<uint32_t>(pages.size()), all.data(), &error_), HICACHE_OK);
    return all;
  }
  uint64_t schedulable(uint32_t pool) {
    hicache_capacity_t capacity{};
    EXPECT_EQ(hicache_capacity(engine_, HICACHE_TIER_HOST, pool, &capacity, &error_), HICACHE_OK);
    return capacity.schedulable_pages;
  }
  uint64_t host_moves() {
    hicache_stats_t stats{};
    stats.struct_size = sizeof stats;
    EXPECT_EQ(hicache_stats(engine_, &stats, &error_), HICACHE_OK);
    return stats.host_moves;
  }

  std::vector<hicache_pool_options_t> pools_;
  hicache_engine_t *engine_ = nullptr;
  hicache_error_t error_{};
};

// Scenario G38: reference D.3.1, to the number.
TEST_F(HostExample, TakesAndFreesAsInTheWorkedExample) {
  open(1152, 128, 64);
  EXPECT_EQ(schedulable(kFull), 9u);
  EXPECT_EQ(schedulable(kSwa), 18u);
  Pages full, swa, more_full, more_swa;
  ASSERT_EQ(take(2, 2, &full, &swa), HICACHE_OK);
  EXPECT_EQ(full, (Pages{0, 1}));
  EXPECT_EQ(swa, (Pages{0, 1}));
  EXPECT_EQ(places(kFull, full), (Pages{8, 7}));
  EXPECT_EQ(places(kSwa, swa), (Pages{0, 1}));
  EXPECT_EQ(schedulable(kFull), 6u);
  EXPECT_EQ(schedulable(kSwa), 12u);
  EXPECT_EQ(take(4, 6, &more_full, &more_swa), HICACHE_NO_CAPACITY);
  ASSERT_EQ(take(1, 1, &more_full, &more_swa), HICACHE_OK);
  EXPECT_EQ(more_full, (Pages{2}));
  EXPECT_EQ(places(kFull, more_full), (Pages{6}));
  EXPECT_EQ(places(kSwa, more_swa), (Pages{2}));
  ASSERT_EQ(give_back(kSwa, {0}), HICACHE_OK);
  ASSERT_EQ(give_back(kFull, {1}), HICACHE_OK);
  EXPECT_EQ(schedulable(kFull), 6u);
  ASSERT_EQ(take(1, 0, &more_full, &more_swa), HICACHE_OK);
  EXPECT_EQ(more_full, (Pages{1}));
  EXPECT_EQ(places(kFull, more_full), (Pages{7}));
  ASSERT_EQ(give_back(kFull, {0}), HICACHE_OK);
  ASSERT_EQ(take(0, 3, &more_full, &more_swa), HICACHE_OK);
  EXPECT_EQ(more_swa, (Pages{0, 3, 4}));
  EXPECT_EQ(places(kSwa, more_swa), (Pages{0, 3, 4}));
  EXPECT_EQ(host_moves(), 0u) << "no compaction was needed";
  EXPECT_LT(give_back(kSwa, {17}), 0) << "not allocated";
}

// Scenario G41b without its order of places: reference D.3.2; names and contents are stable over the compaction.
TEST_F(HostExample, CompactsForAShortfallByItself) {
  open(2304, 256, 64);
  Pages full, swa, more, none;
  ASSERT_EQ(take(3, 16, &full, &swa), HICACHE_OK);
  ASSERT_EQ(give_back(kSwa, {0, 2, 4, 6, 8, 10, 12}), HICACHE_OK);
  ASSERT_EQ(take(2, 0, &more, &none), HICACHE_OK);
  EXPECT_EQ(host_moves(), 0u);
  const Pages left{1, 3, 5, 7, 9, 11, 13, 14, 15};
  const auto base = [&] {
    hicache_pool_info_t info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(hicache_pool_info(engine_, HICACHE_TIER_HOST, kSwa, &info, &error_), HICACHE_OK);
    return reinterpret_cast<uint8_t *>(info.arena_base);
  }();
  for (uint32_t page : left) OpenEngine::write_stamp(base + 64 * places(kSwa, {page})[0], page, 64);
  ASSERT_EQ(take(1, 0, &more, &none), HICACHE_OK) << error_.message;
  EXPECT_GT(host_moves(), 0u);
  for (uint32_t page : left) EXPECT_EQ(OpenEngine::first_difference(base + 64 * places(kSwa, {page})[0], page, 0, 64), -1);
  EXPECT_EQ(take(2, 0, &more, &none), HICACHE_NO_CAPACITY);
}

TEST(HostView, AddressesHoldUnderTheLeaseWhileOthersMove) {
  OpenEngine engine;
  const Pages pages = engine.host_alloc(kFull, 40);
  for (uint32_t i = 0; i < 40; i++) engine.stamp_host(kFull, pages[i], 60 + i);
  const Pages viewed{pages[35], pages[3], pages[20]};
  void *addresses[3] = {};
  hicache_lease_t lease = 0;
  hicache_host_pages_t line{kFull, 3, viewed.data()};
  ASSERT_EQ(hicache_host_view(engine.get(), &line, addresses, &lease, engine.error()), HICACHE_OK) << engine.message();
  for (uint32_t i = 0; i < 3; i++) EXPECT_EQ(addresses[i], engine.host_bytes(kFull, viewed[i]));
  Pages freed;
  for (uint32_t i = 0; i < 40; i += 2) freed.push_back(pages[i]);
  engine.host_free(kFull, freed); // Page 20 is viewed: quarantined.
  EXPECT_EQ(engine.pool_stats(HICACHE_TIER_HOST, kFull).quarantined_pages, 1u);
  EXPECT_GT(engine.compact(HICACHE_TIER_HOST).moved_pages, 0u);
  const uint32_t index[3] = {35, 3, 20};
  for (uint32_t i = 0; i < 3; i++) {
    EXPECT_EQ(OpenEngine::first_difference(static_cast<uint8_t *>(addresses[i]), 60 + index[i], 0,
                                           engine.info(HICACHE_TIER_HOST, kFull).page_bytes),
              -1);
  }
  for (uint32_t i = 1; i < 40; i += 2) EXPECT_TRUE(engine.host_holds(kFull, pages[i], 60 + i));
  EXPECT_EQ(engine.close(), HICACHE_BUSY);
  engine.expect_sound();
  EXPECT_EQ(hicache_lease_release(engine.get(), lease, engine.error()), HICACHE_OK);
  EXPECT_EQ(hicache_lease_release(engine.get(), lease, engine.error()), HICACHE_STALE_ID);
  EXPECT_EQ(engine.pool_stats(HICACHE_TIER_HOST, kFull).quarantined_pages, 0u);
  engine.expect_sound();
}

// Scenario G40 as superseded: a compaction inside a lease works too, and blocks nobody.
TEST(HostView, CompactionInAnotherThreadDoesNotWaitForTheReader) {
  OpenEngine engine;
  const Pages pages = engine.host_alloc(kFull, 30);
  void *address = nullptr;
  hicache_lease_t lease = 0;
  hicache_host_pages_t line{kFull, 1, &pages[29]};
  ASSERT_EQ(hicache_host_view(engine.get(), &line, &address, &lease, engine.error()), HICACHE_OK);
  engine.host_free(kFull, Pages(pages.begin(), pages.begin() + 15));
  std::thread other([&] { engine.compact(HICACHE_TIER_HOST); });
  other.join();
  EXPECT_EQ(address, engine.host_bytes(kFull, pages[29]));
  EXPECT_EQ(hicache_lease_release(engine.get(), lease, engine.error()), HICACHE_OK);
}

TEST(HostTier, LoadAfterHostCompactionReadsTheNewPlace) {
  OpenEngine engine;
  const Pages pages = engine.host_alloc(kFull, 30);
  for (uint32_t i = 0; i < 30; i++) engine.stamp_host(kFull, pages[i], 900 + i);
  engine.host_free(kFull, Pages(pages.begin(), pages.begin() + 20));
  EXPECT_GT(engine.compact(HICACHE_TIER_HOST).moved_pages, 0u);
  Pages target;
  const hicache_reservation_t reservation = engine.reserve(10, 0, &target);
  engine.load(reservation, OpenEngine::copies(kFull, target, Pages(pages.begin() + 20, pages.end())));
  engine.await_one();
  for (uint32_t i = 0; i < 10; i++) EXPECT_TRUE(engine.holds(kFull, target[i], 920 + i));
  engine.expect_sound();
}

TEST(HostTier, HostPageOfALoadIsQuarantinedUntilRead) {
  EngineShape shape;
  shape.with_fault = true;
  shape.fault.hold = 1;
  OpenEngine engine(shape);
  const Pages pages = engine.host_alloc(kFull, 2);
  for (uint32_t i = 0; i < 2; i++) engine.stamp_host(kFull, pages[i], 5 + i);
  Pages target;
  const hicache_reservation_t reservation = engine.reserve(2, 0, &target);
  engine.load(reservation, OpenEngine::copies(kFull, target, pages));
  engine.host_free(kFull, pages);
  const Pages others = engine.host_alloc(kFull, 20);
  for (uint32_t page : others) engine.stamp_host(kFull, page, 77);
  engine.run(1);
  engine.poll();
  for (uint32_t i = 0; i < 2; i++) EXPECT_TRUE(engine.holds(kFull, target[i], 5 + i));
  engine.expect_sound();
}

} // namespace
} // namespace hicache_test
