// The worked examples of the system that the idea comes from, to the number. Pools there: full grows down, swa up; token ids / 4 are pages.
#include "byte_arena.hpp"

namespace hicache::test {
namespace {

using V = std::vector<uint32_t>;
constexpr uint32_t kFull = 0, kSwa = 1, kState = 2;

ArenaOptions two_ended(uint64_t bytes, uint64_t full_page, uint64_t swa_page, uint32_t placement) {
  ArenaOptions options;
  options.pools = {pool_spec(HICACHE_ROLE_FULL, full_page, 4), pool_spec(HICACHE_ROLE_SWA, swa_page, 4)};
  options.bytes = bytes;
  options.placement = placement;
  return options;
}

class Golden : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Placements, Golden, testing::Values(HICACHE_PLACEMENT_BEST, HICACHE_PLACEMENT_REFERENCE));

// B.15.1, G1-G6, G17, G20.
TEST_P(Golden, TwoEndedEqualPages) {
  ByteArena a(two_ended(4096, 128, 128, GetParam()));
  ASSERT_EQ(a.status, HICACHE_OK) << a.error.message;
  EXPECT_EQ(a.arena->info(kFull).page_count, 32u);
  EXPECT_EQ(a.arena->info(kSwa).page_count, 32u);
  EXPECT_EQ(a.arena->info(kFull).first_page, 1u);
  EXPECT_EQ(a.stats(kFull).gap_low_bytes, 3968u);
  EXPECT_EQ(a.free_names(kFull).front(), 1u);
  EXPECT_EQ(a.free_names(kFull).back(), 31u);
  EXPECT_EQ(a.joint(kFull, kSwa), 60u / 4);
  EXPECT_EQ(a.capacity(kFull).available_pages, 124u / 4);
  EXPECT_EQ(a.capacity(kSwa).available_pages, 124u / 4);

  const V x = a.take_both(kFull, kSwa, 2);
  EXPECT_EQ(x, (V{1, 2}));
  EXPECT_EQ(a.places(kFull, x), (V{30, 31}));
  EXPECT_EQ(a.places(kSwa, x), (V{1, 2}));
  EXPECT_EQ(a.joint(kFull, kSwa), 52u / 4);
  EXPECT_EQ(a.capacity(kFull).available_pages, 108u / 4);
  EXPECT_EQ(a.capacity(kSwa).available_pages, 108u / 4);
  EXPECT_EQ(a.stats(kFull).span_low, 30u); // Watermark 29.
  EXPECT_EQ(a.stats(kSwa).span_high, 3u);

  const V y = a.take_both(kFull, kSwa, 2), z = a.take_both(kFull, kSwa, 2);
  EXPECT_EQ(y, (V{3, 4}));
  EXPECT_EQ(a.places(kFull, {3, 4, 5, 6}), (V{28, 29, 26, 27}));
  EXPECT_EQ(a.places(kSwa, {3, 4, 5, 6}), (V{3, 4, 5, 6}));
  EXPECT_EQ(a.joint(kFull, kSwa), 36u / 4);
  EXPECT_EQ(a.capacity(kFull).available_pages, 76u / 4);

  ASSERT_EQ(a.free(kFull, y), HICACHE_OK);
  EXPECT_EQ(a.holes(kFull), (V{28, 29}));
  EXPECT_EQ(a.holes(kSwa), (V{3, 4}));
  EXPECT_EQ(a.joint(kFull, kSwa), 44u / 4);
  EXPECT_EQ(a.capacity(kFull).available_pages, 84u / 4);
  EXPECT_EQ(a.capacity(kFull).schedulable_pages, 92u / 4);
  EXPECT_EQ(a.stats(kFull).span_low, 26u);
  V names = a.free_names(kFull);
  EXPECT_EQ(names.front(), 7u);
  EXPECT_EQ((V{names[names.size() - 3], names[names.size() - 2], names.back()}), (V{31, 3, 4}));

  const V w = a.take_both(kFull, kSwa, 1);
  EXPECT_EQ(w, (V{7}));
  EXPECT_EQ(a.places(kFull, w), (V{29}));
  EXPECT_EQ(a.places(kSwa, w), (V{3}));
  EXPECT_EQ(a.joint(kFull, kSwa), 40u / 4);

  for (uint32_t v : {1u, 2u, 5u, 6u, 7u}) a.stamp(kFull, v, static_cast<uint8_t>(v)), a.stamp(kSwa, v, static_cast<uint8_t>(v + 100));
  const hicache_compact_result_t flushed = a.compact();
  EXPECT_EQ(flushed.moved_pages, 2u);
  EXPECT_EQ(flushed.hole_pages, 0u);
  EXPECT_EQ(a.stats(kFull).span_low, 27u); // Watermark 26.
  EXPECT_EQ(a.stats(kSwa).span_high, 6u);
  EXPECT_EQ(a.joint(kFull, kSwa), 40u / 4);
  EXPECT_EQ(a.places(kFull, {5, 6, 7}), (V{28, 27, 29}));
  EXPECT_EQ(a.places(kSwa, {5, 6, 7}), (V{5, 4, 3}));
  for (uint32_t v : {1u, 2u, 5u, 6u, 7u})
    EXPECT_TRUE(a.stamped(kFull, v, static_cast<uint8_t>(v)) && a.stamped(kSwa, v, static_cast<uint8_t>(v + 100))) << v;

  ASSERT_EQ(a.free(kSwa, x), HICACHE_OK);
  EXPECT_EQ(a.places(kSwa, x), (V{HICACHE_NO_PAGE, HICACHE_NO_PAGE}));
  EXPECT_EQ(a.holes(kSwa), (V{1, 2}));
  EXPECT_EQ(a.stats(kSwa).live_pages, 12u / 4);
  EXPECT_EQ(a.stats(kFull).live_pages, 20u / 4);
  EXPECT_EQ(a.joint(kFull, kSwa), 44u / 4);
  const V before = a.tables();
  ASSERT_EQ(a.free(kSwa, x), HICACHE_OK); // A tombstone again: nothing.
  EXPECT_EQ(a.tables(), before);

  const uint64_t waits = a.arena->counters().fence_waits_moves;
  const hicache_reservation_t r = a.reserve(kSwa, 2);
  EXPECT_EQ(a.reserved_places(r, kSwa), (V{1, 2}));
  EXPECT_EQ(a.stats(kSwa).reserved_pages, 2u);
  EXPECT_EQ(a.joint(kFull, kSwa), 40u / 4);
  PinList pins;
  uint32_t places[2];
  const hicache_copy_t copies[] = {{kSwa, x[0], 0, 0}, {kSwa, x[1], 1, 0}};
  ASSERT_EQ(a.arena->bind(r, copies, {}, &pins, places, nullptr, &a.error), HICACHE_OK) << a.error.message;
  EXPECT_EQ(a.places(kSwa, x), (V{1, 2}));
  EXPECT_EQ(a.compact(kSwa).moved_pages, 0u);
  a.arena->unpin(&pins);
  EXPECT_EQ(a.compact(kSwa).moved_pages, 0u);
  EXPECT_EQ(a.arena->counters().fence_waits_moves, waits);
  EXPECT_EQ(a.arena->verify(), "");
}

// B.15.2 and G18, G19: what is reserved and not bound comes back; a refused reservation leaves nothing.
TEST_P(Golden, CancelAfterPartialBind) {
  ByteArena a(two_ended(4096, 128, 128, GetParam()));
  const V t = a.take_both(kFull, kSwa, 2);
  ASSERT_EQ(a.free(kSwa, t), HICACHE_OK);
  EXPECT_EQ(a.capacity(kSwa).available_pages, 116u / 4);
  EXPECT_EQ(a.capacity(kFull).schedulable_pages, 116u / 4);
  EXPECT_EQ(a.holes(kSwa), (GetParam() == HICACHE_PLACEMENT_REFERENCE ? V{1, 2} : V{})); // Best has retreated.
  const V before = a.tables();

  const hicache_reservation_t r = a.reserve(kSwa, 2);
  EXPECT_EQ(a.reserved_places(r, kSwa), (V{1, 2}));
  EXPECT_EQ(a.capacity(kSwa).available_pages, 108u / 4);
  // Binding v1 and then something that cannot be: the first bind is undone with the rest.
  PinList pins;
  uint32_t places[2];
  const hicache_copy_t copies[] = {{kSwa, t[0], 0, 0}, {kSwa, 31, 1, 0}};
  const V reserved = a.tables();
  EXPECT_EQ(a.arena->bind(r, copies, {}, &pins, places, nullptr, &a.error), HICACHE_STALE_ID);
  EXPECT_EQ(a.tables(), reserved);
  ASSERT_EQ(a.arena->cancel(r, &a.error), HICACHE_OK);
  EXPECT_EQ(a.tables(), before);
  EXPECT_EQ(a.arena->cancel(r, &a.error), HICACHE_STALE_ID);

  EXPECT_EQ(a.reserve(kSwa, 116 / 4 + 1), 0u);
  EXPECT_EQ(a.status, HICACHE_NO_CAPACITY);
  EXPECT_EQ(a.tables(), before);
  EXPECT_EQ(a.arena->verify(), "");
}

// B.15.3, G7.
TEST_P(Golden, TwoEndedUnequalPages) {
  ByteArena a(two_ended(9600, 256, 128, GetParam()));
  EXPECT_EQ(a.arena->info(kFull).first_page, 1u);
  EXPECT_EQ(a.arena->info(kSwa).first_page, 2u);
  EXPECT_EQ(a.arena->info(kFull).page_count, 37u);
  EXPECT_EQ(a.arena->info(kSwa).page_count, 75u);
  EXPECT_EQ(a.stats(kFull).gap_low_bytes, 9216u);
  EXPECT_EQ(a.joint(kFull, kSwa), 96u / 4);
  EXPECT_EQ(a.capacity(kFull).available_pages, 144u / 4);
  EXPECT_EQ(a.capacity(kSwa).available_pages, 288u / 4);
  const V x = a.take_both(kFull, kSwa, 10);
  EXPECT_EQ(a.joint(kFull, kSwa), 56u / 4);
  EXPECT_EQ(a.capacity(kFull).available_pages, 84u / 4);
  EXPECT_EQ(a.capacity(kSwa).available_pages, 168u / 4);
  EXPECT_EQ(a.stats(kFull).span_low, 27u);
  EXPECT_EQ(a.stats(kSwa).span_high, 12u);
  ASSERT_EQ(a.free(kSwa, V(x.begin(), x.begin() + 5)), HICACHE_OK);
  EXPECT_EQ(a.joint(kFull, kSwa), 60u / 4);
  EXPECT_EQ(a.capacity(kFull).available_pages, 84u / 4);
  EXPECT_EQ(a.capacity(kFull).schedulable_pages, 92u / 4);
  EXPECT_EQ(a.capacity(kSwa).available_pages, 188u / 4);
  EXPECT_EQ(a.holes(kSwa), (V{2, 3, 4, 5, 6}));

  struct Row {
    uint32_t full, swa;
    bool possible;
    uint64_t spare_swa[2], spare_full[2];
  };
  const uint64_t evictable[] = {40 / 4, 20 / 4};
  for (const Row &row : {Row{44, 44, true, {0, 0}, {0, 0}}, Row{48, 48, true, {0, 0}, {0, 0}}, Row{60, 60, true, {0, 0}, {0, 0}},
                         Row{100, 0, true, {8, 0}, {0, 12}}, Row{116, 0, true, {24, 0}, {12, 20}}, Row{120, 0, true, {28, 0}, {16, 20}},
                         Row{1000, 0, false, {0, 0}, {0, 0}}}) {
    const hicache_demand_t demand[] = {{kFull, row.full / 4}, {kSwa, row.swa / 4}};
    uint64_t quota[2] = {99, 99};
    const Status status = a.arena->reclaim_plan(demand, evictable, HICACHE_RECLAIM_FULL_FIRST, quota, &a.error);
    ASSERT_EQ(status, row.possible ? HICACHE_OK : HICACHE_NO_CAPACITY) << row.full;
    ASSERT_EQ(a.arena->fits(demand, nullptr) == HICACHE_OK, row.full <= 60) << row.full;
    if (!row.possible) continue;
    EXPECT_EQ(quota[0] * 4, row.spare_swa[0]) << row.full;
    EXPECT_EQ(quota[1] * 4, row.spare_swa[1]) << row.full;
    ASSERT_EQ(a.arena->reclaim_plan(demand, evictable, HICACHE_RECLAIM_SWA_FIRST, quota, &a.error), HICACHE_OK);
    EXPECT_EQ(quota[0] * 4, row.spare_full[0]) << row.full;
    EXPECT_EQ(quota[1] * 4, row.spare_full[1]) << row.full;
  }
}

// B.15.5, G26, G27: compaction off stands for the closed gate.
TEST(GoldenReference, AllocBehindAClosedGate) {
  ByteArena a(two_ended(2048, 128, 128, HICACHE_PLACEMENT_REFERENCE));
  std::vector<V> chunks;
  for (;;) {
    const V chunk = a.take_both(kFull, kSwa, 1);
    if (chunk.empty()) break;
    chunks.push_back(chunk);
  }
  ASSERT_EQ(chunks.size(), 7u);
  EXPECT_EQ(a.capacity(kFull).available_pages, 1u);
  for (const size_t k : {0u, 2u, 4u, 6u}) ASSERT_EQ(a.free(kSwa, chunks[k]), HICACHE_OK);
  EXPECT_EQ(a.holes(kSwa), (V{1, 3, 5, 7}));
  ASSERT_EQ(a.arena->set_compaction(HICACHE_COMPACTION_OFF, nullptr), HICACHE_OK);
  EXPECT_TRUE(a.take(kFull, 2).empty());
  EXPECT_EQ(a.status, HICACHE_MOVES_BLOCKED);
  EXPECT_TRUE(a.mover.log.empty());
  EXPECT_EQ(a.capacity(kFull).schedulable_pages, 1u);
  EXPECT_EQ(a.capacity(kFull).available_pages, 1u);
  EXPECT_FALSE(a.take_windows(kSwa, {chunks[0][0]}) != HICACHE_OK); // Holes are handed out behind the gate.
  ASSERT_EQ(a.free(kSwa, chunks[0]), HICACHE_OK);

  ASSERT_EQ(a.arena->set_compaction(HICACHE_COMPACTION_LAZY, nullptr), HICACHE_OK);
  EXPECT_EQ(a.capacity(kFull).schedulable_pages, 20u / 4);
  for (const size_t k : {1u, 3u, 5u}) a.stamp(kSwa, chunks[k][0], static_cast<uint8_t>(k));
  EXPECT_EQ(a.take(kFull, 2), (V{8, 9}));
  ASSERT_EQ(a.mover.log.size(), 2u);
  EXPECT_EQ(raw(a.mover.log[0].source), 6u);
  EXPECT_EQ(raw(a.mover.log[0].destination), 1u);
  EXPECT_EQ(raw(a.mover.log[1].source), 4u);
  EXPECT_EQ(raw(a.mover.log[1].destination), 3u);
  EXPECT_EQ(a.stats(kSwa).span_high, 4u);
  for (const size_t k : {1u, 3u, 5u}) EXPECT_TRUE(a.stamped(kSwa, chunks[k][0], static_cast<uint8_t>(k)));
  EXPECT_EQ(a.arena->verify(), "");
}

// The same demand in our own placement: the frontier hole is gone at once, so nothing needs to move.
TEST(GoldenBest, TheSameDemandMovesNothing) {
  ByteArena a(two_ended(2048, 128, 128, HICACHE_PLACEMENT_BEST));
  std::vector<V> chunks;
  for (int i = 0; i < 7; i++) chunks.push_back(a.take_both(kFull, kSwa, 1));
  for (const size_t k : {0u, 2u, 4u, 6u}) ASSERT_EQ(a.free(kSwa, chunks[k]), HICACHE_OK);
  EXPECT_EQ(a.take(kFull, 2), (V{8, 9}));
  EXPECT_TRUE(a.mover.log.empty());
  EXPECT_EQ(a.take(kFull, 1), (V{10})); // One page short: exactly one move.
  EXPECT_EQ(a.mover.log.size(), 1u);
  EXPECT_EQ(a.arena->verify(), "");
}

// B.15.7 by contents and availability: a float between a state pool and FULL.
TEST(GoldenTri, FloatBetweenTwoEnds) {
  ArenaOptions options;
  options.pools = {pool_spec(HICACHE_ROLE_FULL, 128, 4), pool_spec(HICACHE_ROLE_SWA, 128, 4), pool_spec(HICACHE_ROLE_STATE, 256)};
  options.bytes = 8192;
  ByteArena a(options);
  EXPECT_EQ(a.arena->info(kFull).page_count, 64u);
  EXPECT_EQ(a.arena->info(kFull).first_page, 2u);
  EXPECT_EQ(a.arena->info(kState).page_count, 32u);
  EXPECT_EQ(a.arena->info(kState).first_page, 1u);
  EXPECT_EQ(a.arena->info(kSwa).direction, HICACHE_DIRECTION_FLOAT);
  EXPECT_EQ(a.arena->info(kState).direction, HICACHE_DIRECTION_UP);
  EXPECT_EQ(a.joint(kFull, kSwa), 124u / 4);
  EXPECT_EQ(a.capacity(kState).available_pages, 31u);
  const V x = a.take_both(kFull, kSwa, 4);
  EXPECT_EQ(x, (V{2, 3, 4, 5}));
  EXPECT_EQ(a.places(kFull, x), (V{60, 61, 62, 63}));
  EXPECT_EQ(a.places(kSwa, x), (V{29, 30, 31, 32})); // Midway between [2, 60).
  EXPECT_EQ(a.capacity(kState).available_pages, 13u);
  // The reference stops at what both sides offer singly; exact counting finds at least its joint 108 tokens.
  EXPECT_GE(a.joint(kFull, kSwa), 108u / 4);
  EXPECT_EQ(a.take(kState, 13).size(), 13u);
  ASSERT_EQ(a.free(kSwa, {x[0]}), HICACHE_OK);
  for (uint32_t i = 1; i < 4; i++) a.stamp(kSwa, x[i], static_cast<uint8_t>(i));

  // C5: what is reserved in the float stays where it is while a state allocation looks for room.
  const hicache_reservation_t r = a.reserve(kSwa, 1);
  const V reserved = a.reserved_places(r, kSwa);
  const uint32_t rest = static_cast<uint32_t>(a.capacity(kState).schedulable_pages);
  EXPECT_TRUE(a.take(kState, rest + 1).empty());
  EXPECT_EQ(a.reserved_places(r, kSwa), reserved);
  EXPECT_EQ(a.arena->verify(), ""); // A pending reservation is no violation.
  ASSERT_EQ(a.arena->cancel(r, &a.error), HICACHE_OK);
  EXPECT_EQ(a.take(kState, 1).size(), 1u);
  for (uint32_t i = 1; i < 4; i++) EXPECT_TRUE(a.stamped(kSwa, x[i], static_cast<uint8_t>(i)));
  EXPECT_EQ(a.arena->verify(), "");
}

// D.3.1, G38, G39: the host arena.
TEST(GoldenHost, TwoPoolsByName) {
  ArenaOptions options;
  options.host = true;
  options.pools = {pool_spec(HICACHE_ROLE_FULL, 128, 4), pool_spec(HICACHE_ROLE_SWA, 64, 4)};
  options.bytes = 1152;
  ByteArena a(options);
  ASSERT_EQ(a.status, HICACHE_OK) << a.error.message;
  EXPECT_EQ(a.capacity(kFull).schedulable_pages, 36u / 4);
  EXPECT_EQ(a.capacity(kSwa).schedulable_pages, 72u / 4);
  const auto take_many = [&](uint32_t full, uint32_t swa) {
    std::pair<V, V> names{V(full), V(swa)};
    const Take lines[] = {{kFull, full, names.first.data()}, {kSwa, swa, names.second.data()}};
    a.status = a.arena->take(lines, &a.error);
    return names;
  };
  auto [full, swa] = take_many(2, 2);
  EXPECT_EQ(full, (V{0, 1}));
  EXPECT_EQ(a.places(kFull, full), (V{8, 7}));
  EXPECT_EQ(swa, (V{0, 1}));
  EXPECT_EQ(a.places(kSwa, swa), (V{0, 1}));
  EXPECT_EQ(a.capacity(kFull).schedulable_pages, 24u / 4);
  EXPECT_EQ(a.capacity(kSwa).schedulable_pages, 48u / 4);
  const V before = a.tables();
  take_many(4, 6);
  EXPECT_EQ(a.status, HICACHE_NO_CAPACITY);
  EXPECT_EQ(a.tables(), before);
  auto [full2, swa2] = take_many(1, 1);
  EXPECT_EQ(full2, (V{2}));
  EXPECT_EQ(a.places(kFull, full2), (V{6}));
  EXPECT_EQ(swa2, (V{2}));
  EXPECT_EQ(a.places(kSwa, swa2), (V{2}));
  EXPECT_EQ(a.stats(kFull).gap_low_bytes, 576u);
  ASSERT_EQ(a.free(kSwa, {0}), HICACHE_OK);
  EXPECT_EQ(a.holes(kSwa), (V{0}));
  ASSERT_EQ(a.free(kFull, {1}), HICACHE_OK);
  EXPECT_EQ(a.holes(kFull), (V{7}));
  EXPECT_EQ(a.capacity(kFull).schedulable_pages, 24u / 4);
  EXPECT_EQ(a.take(kFull, 1), (V{1}));
  EXPECT_EQ(a.places(kFull, {1}), (V{7}));
  ASSERT_EQ(a.free(kFull, {0}), HICACHE_OK);
  EXPECT_EQ(a.holes(kFull), (V{8}));
  EXPECT_EQ(a.take(kSwa, 3), (V{0, 3, 4}));
  EXPECT_EQ(a.places(kSwa, {0, 3, 4}), (V{0, 3, 4}));
  EXPECT_TRUE(a.mover.log.empty());
  EXPECT_EQ(a.free(kSwa, {100}), HICACHE_STALE_ID);
  EXPECT_EQ(a.arena->verify(), "");
}

// D.3.2, by contents: a take that fits only packed compacts and then succeeds.
TEST(GoldenHost, TakeThatNeedsCompaction) {
  ArenaOptions options;
  options.host = true;
  options.pools = {pool_spec(HICACHE_ROLE_FULL, 256, 4), pool_spec(HICACHE_ROLE_SWA, 64, 4)};
  options.bytes = 2304;
  ByteArena a(options);
  const V full = a.take(kFull, 3);
  EXPECT_EQ(a.places(kFull, full), (V{8, 7, 6}));
  const V swa = a.take(kSwa, 16);
  ASSERT_EQ(a.free(kSwa, {0, 2, 4, 6, 8, 10, 12}), HICACHE_OK);
  EXPECT_EQ(a.places(kFull, a.take(kFull, 2)), (V{5, 4}));
  EXPECT_EQ(a.capacity(kFull).schedulable_pages, 1u);
  for (const uint32_t v : {1u, 3u, 5u, 7u, 9u, 11u, 13u, 14u, 15u}) a.stamp(kSwa, v, static_cast<uint8_t>(v));
  EXPECT_EQ(a.places(kFull, a.take(kFull, 1)), (V{3}));
  EXPECT_LE(a.mover.log.size(), 9u); // The reference repacks all nine.
  for (const uint32_t v : {1u, 3u, 5u, 7u, 9u, 11u, 13u, 14u, 15u}) EXPECT_TRUE(a.stamped(kSwa, v, static_cast<uint8_t>(v)));
  EXPECT_EQ(a.arena->verify(), "");
}

} // namespace
} // namespace hicache::test
