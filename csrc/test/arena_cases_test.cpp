// What has gone wrong in the field, as cases: takes and frees, reservations, pins, fences, capacity. The letter and number name the case.
#include <algorithm>

#include "byte_arena.hpp"

namespace hicache::test {
namespace {

using V = std::vector<uint32_t>;
constexpr uint32_t kFull = 0, kSwa = 1, kState = 2;

ArenaOptions full_and_swa(uint32_t pages, uint64_t full_page = 128, uint64_t swa_page = 128) {
  ArenaOptions options;
  options.pools = {pool_spec(HICACHE_ROLE_FULL, full_page, 4), pool_spec(HICACHE_ROLE_SWA, swa_page, 4)};
  options.bytes = (uint64_t{pages} + 1) * std::max(full_page, swa_page);
  return options;
}

ArenaOptions tri(uint64_t bytes, uint64_t full_page, uint64_t swa_page, uint64_t state_page) {
  ArenaOptions options;
  options.pools = {pool_spec(HICACHE_ROLE_FULL, full_page), pool_spec(HICACHE_ROLE_SWA, swa_page),
                   pool_spec(HICACHE_ROLE_STATE, state_page)};
  options.bytes = bytes;
  return options;
}

// G10: nothing taken, everything taken, one too many.
TEST(Takes, RefusedTakeChangesNothing) {
  ByteArena a(full_and_swa(10));
  EXPECT_EQ(a.take(kFull, 0).size(), 0u);
  EXPECT_EQ(a.status, HICACHE_OK);
  const V x = a.take_both(kFull, kSwa, 4);
  const V before = a.tables();
  EXPECT_TRUE(a.take(kFull, 3).empty());
  EXPECT_EQ(a.status, HICACHE_NO_CAPACITY);
  EXPECT_EQ(a.error.need_bytes, 3u * 128);
  EXPECT_EQ(a.error.have_bytes, 2u * 128);
  EXPECT_EQ(a.tables(), before);
  EXPECT_EQ(a.arena->counters().takes_refused, 1u);
}

// C30: a fault at each line of a take, a free and a lease leaves every table as it was.
TEST(Takes, FaultAtAnyPlaceIsUndone) {
  ByteArena a(full_and_swa(32));
  const V x = a.take_both(kFull, kSwa, 8);
  ASSERT_EQ(a.free(kSwa, x), HICACHE_OK);
  const V before = a.tables();
  for (uint32_t bad = 0; bad < x.size(); bad++) {
    for (const uint32_t wrong : {0u, 31u, HICACHE_NO_PAGE, x[(bad + 1) % x.size()]}) {
      V names = x;
      names[bad] = wrong;
      V fresh(2);
      const Take lines[] = {{kFull, 2, fresh.data()}, {kSwa, 8, names.data()}};
      EXPECT_NE(a.arena->take(lines, &a.error), HICACHE_OK);
      EXPECT_EQ(a.tables(), before);
      EXPECT_EQ(a.free(kFull, names), HICACHE_STALE_ID);
      EXPECT_EQ(a.tables(), before);
      if (wrong == x[(bad + 1) % x.size()]) continue; // A lease may name a page twice.
      EXPECT_EQ(a.lease(kFull, names), 0u);
      EXPECT_EQ(a.status, HICACHE_NOT_MAPPED);
      EXPECT_EQ(a.tables(), before);
    }
  }
}

// Counts that no array can have.
TEST(Takes, AbsurdCountsReadNothing) {
  ByteArena a(full_and_swa(8));
  uint32_t one = 1;
  for (const uint32_t pool : {kFull, kSwa}) {
    const Take take{pool, UINT32_MAX, &one};
    EXPECT_LT(a.arena->take({&take, 1}, &a.error), 0);
    const hicache_pages_t line{pool, UINT32_MAX, &one};
    EXPECT_LT(a.arena->free({&line, 1}, &a.error), 0);
    hicache_lease_t lease;
    EXPECT_LT(a.arena->lease_acquire({&line, 1}, &lease, &a.error), 0);
  }
  const Take nowhere{7, 1, &one};
  EXPECT_EQ(a.arena->take({&nowhere, 1}, &a.error), HICACHE_INVALID_ARGUMENT);
  EXPECT_EQ(a.arena->verify(), "");
}

TEST(Takes, WindowsOfTheLastPagesTaken) {
  ByteArena a(full_and_swa(32));
  V x(5);
  const Take lines[] = {{kSwa, 2, nullptr}, {kFull, 5, x.data()}}; // The order of the lines does not matter.
  ASSERT_EQ(a.arena->take(lines, &a.error), HICACHE_OK);
  EXPECT_EQ(a.places(kSwa, x), (V{HICACHE_NO_PAGE, HICACHE_NO_PAGE, HICACHE_NO_PAGE, 1, 2}));
  const Take too_many[] = {{kFull, 1, x.data()}, {kSwa, 2, nullptr}};
  EXPECT_EQ(a.arena->take(too_many, &a.error), HICACHE_INVALID_ARGUMENT);
}

// G11, G12: the tail page first, then new pages; decode takes a page only where the last one was full.
TEST(Extend, FillsTheTailFirst) {
  ByteArena a(full_and_swa(32));
  V pages(8, HICACHE_NO_PAGE);
  hicache_sequence_t one = {pages.data(), 0, 8, 0, 6, HICACHE_NO_PAGE, 0};
  ASSERT_EQ(a.arena->extend(kFull, {&one, 1}, &a.error), HICACHE_OK) << a.error.message;
  EXPECT_EQ(one.vpage_count, 2u);
  one.new_token_count = 7; // 6 -> 13 tokens: pages 2 and 3 are new.
  ASSERT_EQ(a.arena->extend(kFull, {&one, 1}, &a.error), HICACHE_OK);
  EXPECT_EQ(one.vpage_count, 4u);
  EXPECT_EQ(one.token_count, 13u);

  V page_lists[3] = {V(8), V(8), V(8)};
  hicache_sequence_t batch[3];
  const uint32_t lengths[] = {8, 9, 12};
  for (int k = 0; k < 3; k++) {
    batch[k] = {page_lists[k].data(), 0, 8, 0, lengths[k], HICACHE_NO_PAGE, 0};
    ASSERT_EQ(a.arena->extend(kFull, {&batch[k], 1}, &a.error), HICACHE_OK);
    batch[k].new_token_count = 1;
  }
  const uint64_t live = a.stats(kFull).live_pages;
  ASSERT_EQ(a.arena->extend(kFull, batch, &a.error), HICACHE_OK);
  EXPECT_EQ(a.stats(kFull).live_pages, live + 2); // 9 and 13 begin a page, 10 does not.
  EXPECT_EQ(a.stats(kSwa).live_pages, live + 2);
}

TEST(Extend, WindowTailAndRefusal) {
  ByteArena a(full_and_swa(20));
  V pages(16);
  hicache_sequence_t sequence = {pages.data(), 0, 16, 0, 22, 5, 0}; // Tokens 17..21: pages 4 and 5.
  ASSERT_EQ(a.arena->extend(kFull, {&sequence, 1}, &a.error), HICACHE_OK);
  EXPECT_EQ(a.stats(kFull).live_pages, 6u);
  EXPECT_EQ(a.places(kSwa, V(pages.begin(), pages.begin() + 6)),
            (V{HICACHE_NO_PAGE, HICACHE_NO_PAGE, HICACHE_NO_PAGE, HICACHE_NO_PAGE, 1, 2}));
  const V before = a.tables();
  const hicache_sequence_t saved = sequence;
  sequence.new_token_count = 40; // 10 more pages, each with a window page: 12 are left.
  sequence.window_tail_tokens = HICACHE_NO_PAGE;
  EXPECT_EQ(a.arena->extend(kFull, {&sequence, 1}, &a.error), HICACHE_NO_CAPACITY);
  EXPECT_EQ(a.tables(), before);
  EXPECT_EQ(sequence.vpage_count, saved.vpage_count);
  EXPECT_EQ(sequence.token_count, saved.token_count);
  sequence.window_tail_tokens = 0;
  ASSERT_EQ(a.arena->extend(kFull, {&sequence, 1}, &a.error), HICACHE_OK);
  EXPECT_EQ(a.stats(kSwa).live_pages, 2u);
}

// A fork shares its pages; the partial tail is copied on the first write.
TEST(Extend, CopiesASharedTail) {
  ArenaOptions options = full_and_swa(20);
  for (PoolSpec &pool : options.pools) pool.zeroing = HICACHE_ZERO_ALWAYS;
  ByteArena a(options);
  V parent(8);
  hicache_sequence_t sequence = {parent.data(), 0, 8, 0, 6, HICACHE_NO_PAGE, 0};
  ASSERT_EQ(a.arena->extend(kFull, {&sequence, 1}, &a.error), HICACHE_OK);
  a.stamp(kFull, parent[1], 7);
  a.stamp(kSwa, parent[1], 8);
  V child = parent;
  hicache_sequence_t fork = {child.data(), 2, 8, 6, 1, HICACHE_NO_PAGE, HICACHE_SEQUENCE_COPY_TAIL};
  ASSERT_EQ(a.arena->extend(kFull, {&fork, 1}, &a.error), HICACHE_OK) << a.error.message;
  EXPECT_EQ(fork.vpage_count, 2u);
  EXPECT_EQ(child[0], parent[0]);
  EXPECT_NE(child[1], parent[1]);
  for (const uint32_t pool : {kFull, kSwa}) {
    const uint8_t *page = a.mover.at(pool, a.arena->place(pool, child[1]));
    const uint8_t stamp = pool == kFull ? 7 : 8;
    EXPECT_EQ(page[0], stamp);
    EXPECT_EQ(page[2 * 32 - 1], stamp); // Two rows of 32 bytes came along, the rest is zero.
    EXPECT_EQ(page[2 * 32], 0);
    EXPECT_EQ(page[127], 0);
    EXPECT_TRUE(a.stamped(pool, parent[1], stamp));
  }
  EXPECT_EQ(a.arena->verify(), "");
}

// G18: a reservation that is given up leaves no name behind.
TEST(Reservations, CancelGivesNamesBack) {
  ByteArena a(full_and_swa(32));
  a.take(kFull, 3);
  const V before = a.free_names(kFull);
  const hicache_reservation_t reservation = a.reserve(kFull, 4);
  EXPECT_EQ(a.free_names(kFull).size(), before.size() - 4);
  ASSERT_EQ(a.arena->cancel(reservation, &a.error), HICACHE_OK);
  V after = a.free_names(kFull);
  std::sort(after.begin(), after.end());
  EXPECT_EQ(after, before);
}

// C5, G21: reserved float pages do not move for a state allocation; once they are given back, the same allocation succeeds.
TEST(Reservations, FloatPagesStayForAStateAllocation) {
  ByteArena a(tri(4096 + 64, 64, 64, 64));
  const V full = a.take_both(kFull, kSwa, 8);
  const hicache_reservation_t r = a.reserve(kSwa, 4);
  const V places = a.reserved_places(r, kSwa);
  ASSERT_EQ(places.size(), 4u);
  // All that lies between the state pool and the reserved pages, and one more.
  const uint32_t below = static_cast<uint32_t>(a.capacity(kState).schedulable_pages);
  EXPECT_TRUE(a.take(kState, below + 1).empty());
  EXPECT_EQ(a.status, HICACHE_MOVES_BLOCKED);
  EXPECT_EQ(a.error.blocking_pool, kSwa);
  EXPECT_TRUE(std::count(places.begin(), places.end(), a.error.blocking_page) == 1);
  EXPECT_EQ(a.take(kState, below).size(), below);
  EXPECT_EQ(a.reserved_places(r, kSwa), places);
  ASSERT_EQ(a.arena->cancel(r, &a.error), HICACHE_OK);
  EXPECT_EQ(a.take(kState, 1).size(), 1u);
  EXPECT_EQ(a.arena->verify(), "");
}

// G22: FULL, window and state come together or not at all.
TEST(Reservations, AllPoolsOrNone) {
  ByteArena a(tri(2048, 64, 64, 256));
  const V states = a.take(kState, static_cast<uint32_t>(a.capacity(kState).schedulable_pages) - 1);
  V full(4), state(2);
  const V before = a.tables();
  const Take lines[] = {{kFull, 4, full.data()}, {kSwa, 4, nullptr}, {kState, 2, state.data()}};
  hicache_reservation_t r = 0;
  EXPECT_EQ(a.arena->reserve(lines, &r, &a.error), HICACHE_NO_CAPACITY);
  EXPECT_EQ(a.tables(), before);
  ASSERT_EQ(a.free(kState, {states[0], states[1], states[2]}), HICACHE_OK);
  ASSERT_EQ(a.arena->reserve(lines, &r, &a.error), HICACHE_OK) << a.error.message;
  EXPECT_EQ(a.arena->verify(), "");
}

TEST(Reservations, IdsThatAreOver) {
  ByteArena a(full_and_swa(16)), b(full_and_swa(16));
  V names;
  const hicache_reservation_t r = a.reserve(kFull, 2, &names);
  EXPECT_EQ(a.places(kFull, names), (V{HICACHE_NO_PAGE, HICACHE_NO_PAGE}));
  EXPECT_EQ(a.free(kFull, names), HICACHE_STALE_ID); // Chosen, but nothing is there yet.
  EXPECT_EQ(a.lease(kFull, names), 0u);
  EXPECT_EQ(b.arena->cancel(r, &b.error), HICACHE_STALE_ID);
  EXPECT_EQ(a.arena->lease_release(r, &a.error), HICACHE_STALE_ID);
  ASSERT_EQ(a.arena->cancel(r, &a.error), HICACHE_OK);
  PinList pins;
  EXPECT_EQ(a.arena->bind(r, {}, {}, &pins, nullptr, nullptr, &a.error), HICACHE_STALE_ID);
  EXPECT_EQ(a.arena->cancel(0, &a.error), HICACHE_STALE_ID);
}

// C6, G23: takes and frees record no wait, holes or not; a move waits for the steps of its own pages and for no others.
TEST(Fences, AMoveWaitsForItsOwnPagesAlone) {
  ByteArena a(full_and_swa(32));
  const V x = a.take_both(kFull, kSwa, 8);
  const hicache_step_t near_end = a.step(11, kSwa, {x[0], x[1]}), far = a.step(22, kSwa, {x[7]}), both = a.step(33, kSwa, {x[7]});
  a.close_step(near_end);
  const FenceMark far_mark = a.close_step(far), both_mark = a.close_step(both);
  ASSERT_EQ(a.free(kSwa, {x[3]}), HICACHE_OK);
  ASSERT_EQ(a.take_windows(kSwa, {x[3]}), HICACHE_OK); // Out of a hole.
  ASSERT_EQ(a.free(kSwa, {x[3]}), HICACHE_OK);
  EXPECT_EQ(a.arena->counters().fence_waits_moves + a.arena->counters().fence_waits_zeroes, 0u);
  EXPECT_EQ(a.compact(kSwa).moved_pages, 1u); // x[7], the topmost, into the hole.
  EXPECT_EQ(a.arena->counters().fence_waits_moves, 2u);
  ASSERT_EQ(a.mover.move_waits.size(), 2u);
  for (const FenceMark mark : {far_mark, both_mark}) EXPECT_EQ(std::count(a.mover.move_waits.begin(), a.mover.move_waits.end(), mark), 1);
  EXPECT_EQ(a.arena->stream_of(far_mark.slot()), 22u);
  EXPECT_EQ(a.arena->counters().fence_waits_takes, 0u);

  // Where it was is free at once; whoever gets it on any stream follows the move, and so does whoever reads the page.
  std::vector<FenceMark> waits;
  const hicache_step_t reader = a.step(22, kSwa, {x[7]}, &waits);
  EXPECT_EQ(waits, std::vector<FenceMark>{a.mover.last_done});
  a.close_step(reader);
  ASSERT_EQ(a.take_windows(kSwa, {x[3]}), HICACHE_OK);
  EXPECT_EQ(a.arena->place(kSwa, x[3]), 8u);
  a.step(44, kSwa, {x[3]}, &waits);
  EXPECT_EQ(waits, std::vector<FenceMark>{a.mover.last_done});
  a.arena->fence_passed(a.mover.last_done);
  a.step(44, kSwa, {x[3]}, &waits);
  EXPECT_TRUE(waits.empty());
}

TEST(Fences, AStreamDoesNotWaitForItself) {
  ByteArena a(full_and_swa(32));
  const V x = a.take_both(kFull, kSwa, 2);
  a.close_step(a.step(5, kFull, x));
  std::vector<FenceMark> waits;
  a.close_step(a.step(5, kFull, x, &waits));
  EXPECT_TRUE(waits.empty());
  const FenceMark last = a.close_step(a.step(5, kFull, {x[0]}, &waits));
  a.step(6, kFull, x, &waits);
  EXPECT_EQ(waits, std::vector<FenceMark>{last}); // One mark a stream: the latest covers the earlier one.
}

// Zeroing on hand-out follows the steps that used the frame before, and no others; whoever uses the page next follows the zeroing.
TEST(Fences, ZeroingFollowsTheLastUse) {
  ArenaOptions options = full_and_swa(32);
  options.pools[0].zeroing = HICACHE_ZERO_ALWAYS;
  ByteArena a(options);
  const V x = a.take(kFull, 3);
  a.stamp(kFull, x[1], 9);
  const FenceMark mark = a.close_step(a.step(5, kFull, {x[1]}));
  a.close_step(a.step(6, kFull, {x[0]}));
  ASSERT_EQ(a.free(kFull, {x[1]}), HICACHE_OK);
  a.mover.zero_waits.clear();
  const V y = a.take(kFull, 1);
  EXPECT_EQ(a.mover.zero_waits, std::vector<FenceMark>{mark});
  EXPECT_TRUE(a.stamped(kFull, y[0], 0));
  EXPECT_EQ(a.arena->counters().fence_waits_takes, 0u);
  std::vector<FenceMark> waits;
  a.close_step(a.step(7, kFull, y, &waits));
  EXPECT_EQ(waits, std::vector<FenceMark>{a.mover.zero_done});
}

// A load into a page follows the steps that used it before.
TEST(Fences, ALoadFollowsTheLastUse) {
  ByteArena a(full_and_swa(32));
  const V x = a.take(kFull, 2);
  const uint32_t place = a.arena->place(kFull, x[1]);
  const FenceMark mark = a.close_step(a.step(5, kFull, {x[1]}));
  a.close_step(a.step(6, kFull, {x[0]}));
  ASSERT_EQ(a.free(kFull, {x[1]}), HICACHE_OK);
  V names;
  const hicache_reservation_t reservation = a.reserve(kFull, 1, &names);
  ASSERT_EQ(a.reserved_places(reservation, kFull), V{place});
  hicache_copy_t copy = {};
  copy.pool = kFull;
  copy.device_page = names[0];
  PinList pins;
  uint32_t bound;
  std::span<const FenceMark> waits;
  ASSERT_EQ(a.arena->bind(reservation, {&copy, 1}, {}, &pins, &bound, &waits, &a.error), HICACHE_OK);
  EXPECT_EQ(std::vector<FenceMark>(waits.begin(), waits.end()), std::vector<FenceMark>{mark});
  a.arena->unpin(&pins);
}

// Bytes that pass from one pool to another keep their fences, whatever the pages' sizes: the new user follows the old one's step.
TEST(Fences, StayWithTheBytes) {
  for (const auto &[full_bytes, swa_bytes] : {std::pair{128, 128}, {320, 128}, {128, 416}}) {
    ByteArena a(full_and_swa(12, static_cast<uint64_t>(full_bytes), static_cast<uint64_t>(swa_bytes)));
    const V x = a.take(kFull, 2);
    const V windows = a.take(kFull, 1);
    uint32_t swa_most = static_cast<uint32_t>(a.capacity(kSwa).available_pages);
    ASSERT_GT(swa_most, 1u);
    V all = x;
    all.push_back(windows[0]);
    swa_most = std::min<uint32_t>(swa_most, static_cast<uint32_t>(all.size()));
    all.resize(swa_most);
    ASSERT_EQ(a.take_windows(kSwa, all), HICACHE_OK);
    const V windows_at = a.places(kSwa, all);
    const FenceMark used = a.close_step(a.step(7, kSwa, all));
    ASSERT_EQ(a.free(kSwa, all), HICACHE_OK); // The span retreats: its bytes are nobody's.
    const V rest = a.take(kFull, static_cast<uint32_t>(a.capacity(kFull).available_pages));
    ASSERT_FALSE(rest.empty());
    uint32_t shared = 0;
    for (const uint32_t v : rest) {
      const uint32_t begin = a.arena->place(kFull, v) * static_cast<uint32_t>(full_bytes), end = begin + static_cast<uint32_t>(full_bytes);
      const bool lies_there = std::any_of(windows_at.begin(), windows_at.end(), [&](uint32_t p) {
        return p * static_cast<uint32_t>(swa_bytes) < end && (p + 1) * static_cast<uint32_t>(swa_bytes) > begin;
      });
      if (!lies_there) continue;
      shared++;
      std::vector<FenceMark> waits;
      a.close_step(a.step(8, kFull, {v}, &waits));
      EXPECT_EQ(waits, std::vector<FenceMark>{used}) << full_bytes << " " << swa_bytes << " page " << v;
    }
    EXPECT_GT(shared, 1u);
    EXPECT_EQ(a.arena->verify(), "");
  }
}

// A step that is abandoned leaves nothing: its stream gives its slot up, its pages get no fence.
TEST(Fences, AnAbandonedStepLeavesNothing) {
  ArenaOptions options;
  options.pools = {pool_spec(HICACHE_ROLE_FULL, 1024)};
  options.bytes = 4 * 1024;
  ByteArena a(options);
  ASSERT_EQ(a.status, HICACHE_OK) << a.error.message;
  const V page = a.take(kFull, 1);
  for (uint64_t stream = 1; stream < 5000; stream++) {
    const hicache_step_t step = a.step(stream, kFull, page);
    ASSERT_EQ(a.status, HICACHE_OK) << stream << a.error.message;
    a.arena->step_abandon(step);
  }
  std::vector<FenceMark> waits;
  a.arena->step_abandon(a.step(5000, kFull, page, &waits));
  EXPECT_EQ(waits, std::vector<FenceMark>{});
  EXPECT_EQ(a.arena->step_count(), 0u);
  EXPECT_EQ(a.arena->verify(), "");
}

// A large page where several small ones were follows all of them: of one stream the latest, wherever its page lay; of the mover's work,
// which on the host ends in any order, each piece.
TEST(Fences, ALargePageFollowsAllWhoWereThere) {
  constexpr uint32_t kSmall = 1;
  for (const bool on_the_host : {false, true}) {
    WorkBoard board;
    ArenaOptions options;
    options.pools = {pool_spec(HICACHE_ROLE_FULL, 1024), pool_spec(HICACHE_ROLE_STATE, 256)};
    options.bytes = 3 * 1024; // The sink, a page where the states are, a page above.
    if (on_the_host) {
      options.board = &board;
      options.pools[kSmall].zeroing = HICACHE_ZERO_ALWAYS;
    }
    ByteArena a(options);
    ASSERT_EQ(a.status, HICACHE_OK) << a.error.message;
    V states;
    for (uint32_t i = 0; i < 4; i++) states.push_back(a.take(kSmall, 1).at(0)); // With a board: zeroed one by one.
    std::vector<FenceMark> used;
    if (on_the_host) {
      for (uint64_t sequence = 1; sequence <= 4; sequence++) {
        used.push_back(FenceMark::make(kMoverSlot, sequence));
        ASSERT_TRUE(board.post(sequence));
      }
    } else {
      for (uint32_t i = 4; i-- > 0;) { // The lowest page last.
        const FenceMark mark = a.close_step(a.step(7, kSmall, {states[i]}));
        if (i == 0) used.push_back(mark);
      }
    }
    ASSERT_EQ(a.free(kSmall, states), HICACHE_OK);
    const V page = a.take(kFull, 2);
    ASSERT_EQ(a.status, HICACHE_OK) << a.error.message;
    std::vector<FenceMark> waits;
    a.close_step(a.step(8, kFull, page, &waits));
    std::sort(waits.begin(), waits.end(), [](FenceMark x, FenceMark y) { return x.bits < y.bits; });
    EXPECT_EQ(waits, used) << on_the_host;
    EXPECT_EQ(a.arena->verify(), "");
  }
}

// The mirror of the tables is patched behind the steps that used what has been given back, once a step, with all changes in one call a
// pool.
TEST(Fences, TheMirrorFollowsStepsOnPagesGivenBack) {
  ArenaOptions options = full_and_swa(32);
  options.mirrored = true;
  ByteArena a(options);
  const V x = a.take_both(kFull, kSwa, 6);
  EXPECT_EQ(a.mover.patch_calls, 0u);
  ASSERT_EQ(a.arena->publish_tables(&a.error), HICACHE_OK);
  EXPECT_EQ(a.mover.patch_calls, 2u);
  EXPECT_TRUE(a.mover.patch_waits.empty());
  const FenceMark used = a.close_step(a.step(5, kSwa, {x[1]}));
  a.close_step(a.step(6, kSwa, {x[5]}));
  ASSERT_EQ(a.free(kSwa, {x[1]}), HICACHE_OK);
  ASSERT_EQ(a.free(kFull, {x[2]}), HICACHE_OK);
  EXPECT_EQ(a.compact(kSwa).moved_pages, 2u);
  ASSERT_EQ(a.arena->publish_tables(&a.error), HICACHE_OK);
  EXPECT_EQ(a.mover.patch_calls, 4u);
  ASSERT_FALSE(a.mover.patch_waits.empty());
  for (const FenceMark mark : a.mover.patch_waits) EXPECT_EQ(mark, used); // The move of x[5] has waited for stream 6 itself.
  for (const uint32_t v : x) {
    EXPECT_EQ(a.mover.mirror[kFull][v], a.arena->place(kFull, v));
    EXPECT_EQ(a.mover.mirror[kSwa][v], a.arena->place(kSwa, v));
  }
}

// A page may be given back while its step is open: the patch follows the step then too.
TEST(Fences, TheMirrorFollowsStepsThatCloseAfterAFree) {
  ArenaOptions options = full_and_swa(32);
  options.mirrored = true;
  ByteArena a(options);
  const V x = a.take(kFull, 2);
  ASSERT_EQ(a.arena->publish_tables(&a.error), HICACHE_OK);
  const hicache_step_t first = a.step(5, kFull, x), second = a.step(6, kFull, {x[0]});
  ASSERT_EQ(a.free(kFull, {x[0]}), HICACHE_OK);
  std::vector<FenceMark> used{a.close_step(first), a.close_step(second)};
  ASSERT_EQ(a.arena->publish_tables(&a.error), HICACHE_OK);
  std::vector<FenceMark> waits(a.mover.patch_waits.begin(), a.mover.patch_waits.end());
  const auto by_bits = [](FenceMark one, FenceMark other) { return one.bits < other.bits; };
  std::sort(waits.begin(), waits.end(), by_bits);
  std::sort(used.begin(), used.end(), by_bits);
  EXPECT_EQ(waits, used);
  EXPECT_EQ(a.mover.mirror[kFull][x[0]], HICACHE_NO_PAGE);
}

// Pages that many streams share wait for all of them; when the shared table is full, for more than they must, never for less.
TEST(Fences, ManyStreamsOnOnePage) {
  {
    ByteArena few(full_and_swa(32));
    const V x = few.take(kFull, 3);
    std::vector<FenceMark> marks, waits;
    for (uint64_t stream = 1; stream <= 4; stream++) marks.push_back(few.close_step(few.step(stream, kFull, x)));
    few.close_step(few.step(5, kFull, {x[0]}));
    EXPECT_EQ(few.arena->counters().fence_overflows, 0u);
    few.step(99, kFull, {x[1]}, &waits); // Which the fifth has not used.
    EXPECT_EQ(waits.size(), marks.size());
    for (const FenceMark mark : marks) EXPECT_EQ(std::count(waits.begin(), waits.end(), mark), 1);
  }
  ByteArena a(full_and_swa(2000));
  const V x = a.take(kFull, 600);
  std::vector<FenceMark> marks;
  for (uint64_t stream = 1; stream <= 4; stream++) marks.push_back(a.close_step(a.step(stream, kFull, x)));
  EXPECT_GT(a.arena->counters().fence_overflows, 0u); // 600 pages of 4 streams do not fit into 1,024 nodes.
  for (const uint32_t v : {x.front(), x.back()}) {
    std::vector<FenceMark> waits;
    const hicache_step_t step = a.step(99, kFull, {v}, &waits);
    for (const FenceMark mark : marks) EXPECT_EQ(std::count(waits.begin(), waits.end(), mark), 1);
    a.arena->step_close(step, nullptr, &a.error);
  }
}

// C11: a page freed under an open step is not handed out before the step is closed. Free does not wait.
TEST(Pins, FreedUnderAnOpenStep) {
  ByteArena a(full_and_swa(4));
  const V x = a.take(kFull, 4);
  const hicache_step_t step = a.step(1, kFull, {x[2]});
  const uint32_t place = a.arena->place(kFull, x[2]);
  ASSERT_EQ(a.free(kFull, {x[2]}), HICACHE_OK);
  EXPECT_EQ(a.stats(kFull).quarantined_pages, 1u);
  EXPECT_EQ(a.capacity(kFull).pending_pages, 1u);
  EXPECT_TRUE(a.take(kFull, 1).empty());
  EXPECT_EQ(a.status, HICACHE_NO_CAPACITY);
  EXPECT_EQ(a.error.pending_bytes, 128u);
  EXPECT_EQ(a.error.blocking_page, place);
  EXPECT_EQ(a.free(kFull, {x[2]}), HICACHE_STALE_ID);
  a.close_step(step);
  const V y = a.take(kFull, 1);
  EXPECT_EQ(a.places(kFull, y), (V{place}));
  std::vector<FenceMark> waits;
  a.step(2, kFull, y, &waits);
  EXPECT_EQ(waits.size(), 1u); // Another stream follows the closed step.
}

// C22, C23: a reader holds one of 32 victims: the other 31 are free at once, that one when the last holder lets go.
TEST(Pins, AReaderAmongVictims) {
  ByteArena a(full_and_swa(64));
  const V x = a.take_both(kFull, kSwa, 32);
  const hicache_lease_t lease = a.lease(kFull, {x[7]});
  const hicache_step_t step = a.step(1, kFull, {x[7]});
  a.stamp(kFull, x[7], 77);
  const uint32_t place = a.arena->place(kFull, x[7]);
  const uint64_t room = a.capacity(kFull).schedulable_pages;
  ASSERT_EQ(a.free(kFull, x), HICACHE_OK);
  EXPECT_EQ(a.capacity(kFull).schedulable_pages, room + 31 + 32);
  ASSERT_EQ(a.arena->lease_release(lease, &a.error), HICACHE_OK); // The lease has expired; its reader has not.
  EXPECT_EQ(a.stats(kFull).quarantined_pages, 1u);
  EXPECT_EQ(a.mover.at(kFull, place)[5], 77);
  a.close_step(step);
  EXPECT_EQ(a.stats(kFull).quarantined_pages, 0u);
  EXPECT_EQ(a.stats(kFull).span_low, a.stats(kFull).span_high);
  EXPECT_EQ(a.arena->lease_release(lease, &a.error), HICACHE_STALE_ID);
  EXPECT_EQ(a.arena->verify(), "");
}

// Steady decode leaves fences, not pins: compaction between the steps of 64 sequences finishes.
TEST(Pins, SteadyDecodeLetsCompactionFinish) {
  ByteArena a(full_and_swa(400));
  V x = a.take_both(kFull, kSwa, 128);
  for (uint32_t i = 0; i < 64; i++) ASSERT_EQ(a.free(kFull, {x[i * 2]}), HICACHE_OK);
  V live;
  for (uint32_t i = 0; i < 64; i++) live.push_back(x[i * 2 + 1]), a.stamp(kSwa, live.back(), static_cast<uint8_t>(i + 1));
  uint64_t moved = 0;
  for (int step = 0; step < 40; step++) {
    const hicache_step_t open = a.step(1, kSwa, live);
    EXPECT_EQ(a.compact(kSwa, 3).moved_pages, 0u); // Open: its pages stay.
    a.close_step(open);
    moved += a.compact(kSwa, 3).moved_pages;
  }
  EXPECT_EQ(a.holes(kSwa).size(), 0u);
  EXPECT_GT(moved, 0u);
  for (uint32_t i = 0; i < 64; i++) EXPECT_TRUE(a.stamped(kSwa, live[i], static_cast<uint8_t>(i + 1)));
}

// A float packs toward its narrower side: the wider gap becomes wider.
TEST(Pins, AFloatPacksTowardItsNarrowerSide) {
  for (const uint32_t neighbour : {kState, kFull}) { // Which lies close.
    ByteArena a(tri(8192, 64, 64, 64));
    const V x = a.take_both(kFull, kSwa, 8);
    const hicache_pool_stats_t wide = a.stats(kSwa);
    const uint64_t near_bytes = neighbour == kState ? wide.gap_low_bytes : wide.gap_high_bytes;
    ASSERT_FALSE(a.take(neighbour, static_cast<uint32_t>(near_bytes / 64) - 2).empty());
    ASSERT_EQ(a.free(kSwa, {x[3], x[4]}), HICACHE_OK);
    const hicache_pool_stats_t before = a.stats(kSwa);
    EXPECT_EQ(a.compact(kSwa).hole_pages, 0u);
    const hicache_pool_stats_t after = a.stats(kSwa);
    const bool low = neighbour == kState;
    EXPECT_EQ(after.gap_low_bytes, before.gap_low_bytes + (low ? 0 : 2 * 64)) << neighbour;
    EXPECT_EQ(after.gap_high_bytes, before.gap_high_bytes + (low ? 2 * 64 : 0)) << neighbour;
  }
}

// One budget is for all pools of the call.
TEST(Pins, ABudgetIsForAllPools) {
  for (const bool by_bytes : {false, true}) {
    ByteArena a(full_and_swa(32));
    const V x = a.take_both(kFull, kSwa, 8);
    ASSERT_EQ(a.free(kSwa, {x[0], x[1]}), HICACHE_OK);
    ASSERT_EQ(a.free(kFull, {x[6], x[7]}), HICACHE_OK);
    hicache_compact_budget_t budget = {};
    budget.struct_size = sizeof budget;
    budget.pool = HICACHE_NO_POOL;
    budget.pages_max = by_bytes ? 0 : 3;
    budget.bytes_max = by_bytes ? 3 * a.arena->info(kFull).page_bytes : 0;
    hicache_compact_result_t result = {};
    ASSERT_EQ(a.arena->compact(budget, &result, &a.error), HICACHE_OK);
    EXPECT_EQ(result.moved_pages, 3u) << by_bytes;
    ASSERT_EQ(a.arena->compact(budget, &result, &a.error), HICACHE_OK);
    EXPECT_EQ(result.moved_pages, 1u) << by_bytes;
  }
}

// Compaction plans around what is pinned and moves the rest.
TEST(Pins, CompactionGoesAround) {
  ByteArena a(full_and_swa(32));
  const V x = a.take_both(kFull, kSwa, 10);
  const hicache_lease_t lease = a.lease(kSwa, {x[9], x[5]});
  ASSERT_EQ(a.free(kSwa, {x[0], x[1], x[2]}), HICACHE_OK);
  const uint32_t top = a.arena->place(kSwa, x[9]), middle = a.arena->place(kSwa, x[5]);
  const hicache_compact_result_t result = a.compact(kSwa);
  EXPECT_EQ(result.moved_pages, 3u); // x[8], x[7], x[6] into the three holes.
  EXPECT_EQ(result.hole_pages, 3u);
  EXPECT_EQ(result.blocked_pages, 1u);
  EXPECT_EQ(a.arena->place(kSwa, x[9]), top);
  EXPECT_EQ(a.arena->place(kSwa, x[5]), middle);
  ASSERT_EQ(a.arena->lease_release(lease, &a.error), HICACHE_OK);
  EXPECT_EQ(a.compact(kSwa).moved_pages, 1u);
  EXPECT_EQ(a.holes(kSwa).size(), 0u);
}

// C4: the memo is the recomputation, however often pins come and go; a stable arena is computed once.
TEST(Capacity, MemoIsTheRecomputation) {
  ByteArena a(tri(8192, 64, 64, 128));
  const V full = a.take_both(kFull, kSwa, 20), state = a.take(kState, 5);
  for (int flip = 0; flip < 100; flip++) {
    const hicache_lease_t lease = a.lease(kSwa, {full[static_cast<size_t>(flip % 20)]});
    for (uint32_t pool = 0; pool < 3; pool++)
      EXPECT_EQ(a.capacity(pool).schedulable_pages, a.arena->state().compute_capacity(pool).schedulable_pages);
    ASSERT_EQ(a.arena->lease_release(lease, &a.error), HICACHE_OK);
    for (uint32_t pool = 0; pool < 3; pool++)
      EXPECT_EQ(a.capacity(pool).schedulable_pages, a.arena->state().compute_capacity(pool).schedulable_pages);
  }
  a.take(kFull, 1);
  const uint64_t before = a.arena->counters().capacity_recomputes;
  for (int query = 0; query < 2000; query++) a.capacity(kFull);
  EXPECT_EQ(a.arena->counters().capacity_recomputes, before + 1);
}

// C7: a tombstone keeps no place: its window page is somebody else's, and freeing the tombstone again or its name does not touch that.
TEST(Frees, TombstoneForgetsItsPlace) {
  ByteArena a(full_and_swa(64));
  const V x = a.take_both(kFull, kSwa, 4);
  const uint32_t place = a.arena->place(kSwa, x[1]);
  ASSERT_EQ(a.free(kSwa, {x[1]}), HICACHE_OK);
  const V y = a.take_both(kFull, kSwa, 1);
  EXPECT_EQ(a.places(kSwa, y), (V{place})); // Reused.
  a.stamp(kSwa, y[0], 5);
  ASSERT_EQ(a.free(kSwa, {x[1]}), HICACHE_OK);
  ASSERT_EQ(a.free(kFull, {x[1]}), HICACHE_OK);
  EXPECT_EQ(a.places(kSwa, y), (V{place}));
  EXPECT_TRUE(a.stamped(kSwa, y[0], 5));
  EXPECT_EQ(a.stats(kSwa).live_pages, 4u);
  EXPECT_EQ(a.arena->verify(), "");
}

// G13: one call is one free group: several lines, all pages back at once.
TEST(Frees, LinesOfOneCallGoTogether) {
  ByteArena a(full_and_swa(16));
  const V x = a.take_both(kFull, kSwa, 4);
  const hicache_pages_t lines[] = {{kSwa, 2, x.data()}, {kFull, 3, x.data()}, {kFull, 1, x.data()}};
  const V before = a.tables();
  EXPECT_EQ(a.arena->free(lines, &a.error), HICACHE_STALE_ID); // x[0] twice in FULL.
  EXPECT_EQ(a.tables(), before);
  ASSERT_EQ(a.arena->free({lines, 2}, &a.error), HICACHE_OK); // A tombstone first, then the name: both are meant.
  EXPECT_EQ(a.stats(kFull).live_pages, 1u);
  EXPECT_EQ(a.stats(kSwa).live_pages, 1u);
}

// C9: ids may be more than pages: the last one works, the one behind it does not exist.
TEST(Frees, MoreNamesThanWindowPages) {
  ArenaOptions options = full_and_swa(1200, 16, 128); // 1,024 names, room for far fewer window pages.
  options.pools[0].virtual_page_count = 1024;
  options.bytes = 128 + 1023 * 16 + 128 * 128;
  ByteArena a(options);
  const V x = a.take(kFull, 1024 - a.arena->info(kFull).first_page);
  ASSERT_FALSE(x.empty()) << a.error.message;
  ASSERT_EQ(x.back(), 1023u);
  EXPECT_EQ(a.take_windows(kSwa, {1023}), HICACHE_OK);
  EXPECT_EQ(a.free(kSwa, {1023}), HICACHE_OK);
  EXPECT_EQ(a.free(kFull, {1023}), HICACHE_OK);
  EXPECT_EQ(a.free(kFull, {1024}), HICACHE_STALE_ID);
  EXPECT_EQ(a.take_windows(kSwa, {1024}), HICACHE_STALE_ID);
}

// C10: byte offsets are 64-bit from the first multiplication on.
TEST(Places, OffsetsPassFourGibibytes) {
  EXPECT_EQ(page_offset_bytes(PhysicalPage{4000000}, 576 * 64), 147456000000u);
  EXPECT_EQ(page_offset_bytes(PhysicalPage{UINT32_MAX}, uint64_t{1} << 31), (uint64_t{1} << 63) - (uint64_t{1} << 31));
  ArenaOptions options; // Tables only: a device of 141 GB on any machine.
  options.pools = {pool_spec(HICACHE_ROLE_FULL, 2 << 20, 16)};
  options.bytes = uint64_t{141} * 1000 * 1000 * 1000;
  std::unique_ptr<Arena> arena;
  ASSERT_EQ(Arena::open(options, &arena, nullptr), HICACHE_OK);
  hicache_pool_stats_t stats = {};
  arena->pool_stats(0, &stats, nullptr);
  EXPECT_EQ(stats.gap_low_bytes, (options.bytes / (2 << 20) - 1) * (2 << 20));

  // A want of more than 2^32 bytes is said whole.
  options.pools = {pool_spec(HICACHE_ROLE_FULL, 1 << 20), pool_spec(HICACHE_ROLE_SWA, 2 << 20)};
  options.bytes = uint64_t{12} << 30;
  ASSERT_EQ(Arena::open(options, &arena, nullptr), HICACHE_OK);
  std::vector<uint32_t> half(6000);
  const Take take{0, static_cast<uint32_t>(half.size()), half.data()};
  ErrorDetail error;
  ASSERT_EQ(arena->take({&take, 1}, &error), HICACHE_OK);
  const hicache_demand_t demand{1, 4000};
  EXPECT_EQ(arena->fits({&demand, 1}, &error), HICACHE_NO_CAPACITY);
  EXPECT_EQ(error.need_bytes, uint64_t{4000} * (2 << 20));
}

// C14: FULL has filled all but 21 units, a state needs 53: nothing is available before FULL gives some back; then it fits.
TEST(Capacity, StarvedPoolIsFundedByItsNeighbour) {
  ArenaOptions options;
  options.pools = {pool_spec(HICACHE_ROLE_FULL, 16), pool_spec(HICACHE_ROLE_STATE, 53 * 16)};
  options.bytes = 53 * 16 + 500 * 16;
  ByteArena a(options);
  const V x = a.take(0, 500 - 21);
  EXPECT_EQ(a.capacity(1).available_pages, 0u);
  EXPECT_EQ(a.capacity(1).schedulable_pages, 0u);
  const hicache_demand_t demand{1, 1};
  const uint64_t evictable[] = {x.size(), 0};
  uint64_t quota[2];
  ASSERT_EQ(a.arena->reclaim_plan({&demand, 1}, evictable, HICACHE_RECLAIM_FULL_FIRST, quota, &a.error), HICACHE_OK);
  EXPECT_EQ(quota[0], 32u);
  EXPECT_EQ(quota[1], 0u);
  ASSERT_EQ(a.free(0, V(x.begin() + 100, x.begin() + 132)), HICACHE_OK); // Anywhere: what is left packs.
  EXPECT_EQ(a.take(1, 1).size(), 1u);
}

// Names can be what is short: a plan counts the pages that bring them back, in a chain and where pages are static.
TEST(Capacity, NamesAreReclaimedToo) {
  ArenaOptions options = full_and_swa(64);
  options.pools[kFull].virtual_page_count = 12; // Of which ids start after the sink's page.
  ByteArena a(options);
  const uint32_t names = a.arena->virtual_page_count(kFull) - a.arena->info(kFull).first_page;
  ASSERT_GT(a.capacity(kFull).schedulable_pages, 0u);
  const V x = a.take(kFull, names - 2);
  const hicache_demand_t demand{kFull, 5};
  const uint64_t evictable[] = {x.size(), 0};
  uint64_t quota[2];
  ASSERT_EQ(a.arena->reclaim_plan({&demand, 1}, evictable, HICACHE_RECLAIM_FULL_FIRST, quota, &a.error), HICACHE_OK);
  EXPECT_EQ(quota[kFull], 3u);
  EXPECT_EQ(quota[kSwa], 0u);
  const uint64_t too_few[] = {2, 0};
  EXPECT_EQ(a.arena->reclaim_plan({&demand, 1}, too_few, HICACHE_RECLAIM_FULL_FIRST, quota, &a.error), HICACHE_NO_CAPACITY);
  ASSERT_EQ(a.free(kFull, V(x.begin(), x.begin() + 3)), HICACHE_OK);
  EXPECT_EQ(a.take(kFull, 5).size(), 5u);
}

// Of several pinned pages a refusal names the one at the frontier: nothing is gained before that goes.
TEST(Capacity, TheBlockerIsAtTheFrontier) {
  for (const uint32_t pool : {kFull, kSwa}) {
    ByteArena a(full_and_swa(16));
    const V x = a.take_both(kFull, kSwa, 5);
    const V at = a.places(pool, {x[1], x[4]});
    ASSERT_NE(a.lease(pool, {x[1], x[4]}), 0u);
    ASSERT_EQ(a.free(kSwa, pool == kSwa ? V{x[0], x[2], x[3]} : V{}), HICACHE_OK);
    ASSERT_EQ(a.free(kFull, pool == kFull ? V{x[0], x[2], x[3]} : V{}), HICACHE_OK);
    const uint32_t other = pool == kFull ? kSwa : kFull, most = static_cast<uint32_t>(a.capacity(other).schedulable_pages);
    EXPECT_EQ(a.fits({{other, most + 1}}), HICACHE_MOVES_BLOCKED);
    EXPECT_EQ(a.error.blocking_pool, pool);
    EXPECT_EQ(a.error.blocking_page, pool == kFull ? std::min(at[0], at[1]) : std::max(at[0], at[1]));
  }
}

// C15: FULL offers 4 and SWA offers 4, together they offer 3. The joint predicate says so, and one page given back is enough.
TEST(Capacity, JointlyLessThanSingly) {
  ArenaOptions options = full_and_swa(17, 256, 128);
  options.compaction = HICACHE_COMPACTION_OFF; // So that holes and the gap count one by one: 3 and 2 holes, a gap of 256 bytes.
  ByteArena a(options);
  const V x = a.take_both(kFull, kSwa, 5), lone = a.take(kFull, 1), y = a.take_both(kFull, kSwa, 5);
  ASSERT_EQ(a.stats(kFull).gap_low_bytes, 256u);
  ASSERT_EQ(a.free(kFull, {x[2], lone[0], y[1]}), HICACHE_OK);
  EXPECT_EQ(a.capacity(kFull).available_pages, 4u);
  EXPECT_EQ(a.capacity(kSwa).available_pages, 4u);
  EXPECT_EQ(a.joint(kFull, kSwa), 3u);
  const hicache_demand_t demand[] = {{kFull, 4}, {kSwa, 4}};
  EXPECT_EQ(a.arena->fits(demand, &a.error), HICACHE_NO_CAPACITY);
  const uint64_t evictable[] = {8, 8};
  uint64_t quota[2];
  ASSERT_EQ(a.arena->reclaim_plan(demand, evictable, HICACHE_RECLAIM_FULL_FIRST, quota, &a.error), HICACHE_OK);
  EXPECT_EQ(quota[0], 1u);
  EXPECT_EQ(quota[1], 0u);
  ASSERT_EQ(a.free(kFull, {x[3]}), HICACHE_OK);
  EXPECT_EQ(a.take_both(kFull, kSwa, 4).size(), 4u);
  EXPECT_TRUE(a.mover.log.empty());
}

// C16, G58: a shortfall of one FULL page takes one page, not the windows.
TEST(Capacity, OneShortfallIsNotAnAllWindowEviction) {
  for (const uint32_t compaction : {HICACHE_COMPACTION_LAZY, HICACHE_COMPACTION_OFF}) {
    ArenaOptions options = full_and_swa(240);
    options.compaction = compaction;
    ByteArena a(options);
    const V x = a.take_both(kFull, kSwa, 120);
    const hicache_demand_t demand{kFull, 1};
    const uint64_t evictable[] = {100, 100};
    uint64_t quota[2];
    for (const uint32_t preference : {HICACHE_RECLAIM_FULL_FIRST, HICACHE_RECLAIM_SWA_FIRST}) {
      const Status status = a.arena->reclaim_plan({&demand, 1}, evictable, preference, quota, &a.error);
      ASSERT_EQ(status, HICACHE_OK);
      EXPECT_LE(quota[0] + quota[1], 1u) << "compaction " << compaction;
    }
  }
}

// C17, G16: bytes are the budget's but for a remainder; a request that can never fit is refused when the arena opens, by the byte.
TEST(Open, WhatOneRequestNeeds) {
  ArenaOptions options = tri(0, 160, 96, 400);
  options.pools[1].window_tokens = 6;
  options.request_tokens_max = 10;
  // Sink 400; state 400 up to 800; window min(10, 6 + 1) = 7 pages of 96 from 864; FULL 10 of 160 from 1,536 (rounded up to 1,600).
  options.bytes = 1600 + 10 * 160;
  ByteArena enough(options);
  EXPECT_EQ(enough.status, HICACHE_OK) << enough.error.message;
  options.bytes -= 1;
  ByteArena short_by_one(options);
  EXPECT_EQ(short_by_one.status, HICACHE_INFEASIBLE);
  for (const char *term : {"sink 400", "FULL 10 x 160", "SWA 7 x 96", "STATE 1 x 400"})
    EXPECT_NE(std::string(short_by_one.error.message).find(term), std::string::npos) << short_by_one.error.message;
  for (uint64_t bytes = 4000; bytes < 4800; bytes += 7) {
    options.bytes = bytes;
    ByteArena a(options);
    const uint64_t full = a.capacity(kFull).schedulable_pages * 160;
    EXPECT_LT(bytes - 400 - full, 400u + 160);
  }
}

TEST(Open, RefusesByName) {
  const auto refused = [](auto change) {
    ArenaOptions options = tri(8192, 64, 64, 128);
    change(&options);
    std::unique_ptr<Arena> arena;
    ErrorDetail error;
    return Arena::open(options, &arena, &error) == HICACHE_INVALID_ARGUMENT && error.message[0] != 0 && arena == nullptr;
  };
  EXPECT_TRUE(refused([](ArenaOptions *o) { o->pools.clear(); }));
  EXPECT_TRUE(refused([](ArenaOptions *o) { o->pools.resize(17, o->pools[0]); }));
  EXPECT_TRUE(refused([](ArenaOptions *o) { o->pools[0].role = 0; }));
  EXPECT_TRUE(refused([](ArenaOptions *o) { o->pools[0].page_bytes = 0; }));
  EXPECT_TRUE(refused([](ArenaOptions *o) { o->pools[2].page_tokens = 2; }));
  EXPECT_TRUE(refused([](ArenaOptions *o) { o->pools[1].window_tokens = 0; }));
  EXPECT_TRUE(refused([](ArenaOptions *o) { o->pools[1].page_tokens = 2; }));
  EXPECT_TRUE(refused([](ArenaOptions *o) { o->pools.erase(o->pools.begin()); })); // SWA without FULL.
  EXPECT_TRUE(refused([](ArenaOptions *o) { o->pools.push_back(o->pools[0]); }));  // Two FULL pools.
  EXPECT_TRUE(refused([](ArenaOptions *o) { o->pools[0].direction = o->pools[1].direction = HICACHE_DIRECTION_DOWN; }));
  EXPECT_TRUE(refused([](ArenaOptions *o) { o->bytes_max = 1; }));
  EXPECT_TRUE(refused([](ArenaOptions *o) { o->bytes = uint64_t{1} << 63; }));
  EXPECT_TRUE(refused([](ArenaOptions *o) { o->pools[0].virtual_page_count = 1; }));
#ifndef HICACHE_SABOTAGE
  ArenaOptions options = tri(8192, 64, 64, 128);
  options.ignore_pins = true;
  std::unique_ptr<Arena> arena;
  EXPECT_EQ(Arena::open(options, &arena, nullptr), HICACHE_UNSUPPORTED);
#endif
}

// G15: the arena grows and shrinks under live pages; tables, names and contents stay, pinned pages above the new end refuse it.
TEST(Resize, LivePagesMoveBelowTheEnd) {
  ArenaOptions options = full_and_swa(32);
  options.bytes_max = 64 * 128;
  ByteArena a(options);
  const uint32_t *table = a.arena->v2p(kFull);
  const V x = a.take_both(kFull, kSwa, 8);
  for (const uint32_t v : x) a.stamp(kFull, v, static_cast<uint8_t>(v)), a.stamp(kSwa, v, static_cast<uint8_t>(100 + v));
  const auto intact = [&] {
    for (const uint32_t v : x)
      if (!a.stamped(kFull, v, static_cast<uint8_t>(v)) || !a.stamped(kSwa, v, static_cast<uint8_t>(100 + v))) return false;
    return a.arena->verify().empty();
  };
  const uint64_t small = a.arena->bytes();
  ASSERT_EQ(a.arena->resize(64 * 128, &a.error), HICACHE_OK);
  EXPECT_TRUE(intact());
  EXPECT_EQ(a.capacity(kFull).schedulable_pages, 63u - 16);
  EXPECT_EQ(a.arena->v2p(kFull), table);
  const V y = a.take(kFull, 40); // Names, too, have grown.
  EXPECT_EQ(y.size(), 40u);
  EXPECT_EQ(a.arena->resize(small, &a.error), HICACHE_NO_CAPACITY);
  ASSERT_EQ(a.free(kFull, V(y.begin(), y.begin() + 35)), HICACHE_OK);
  const hicache_lease_t lease = a.lease(kFull, {y[37]});
  ASSERT_GE((a.arena->place(kFull, y[37]) + 1) * 128, small);
  EXPECT_EQ(a.arena->resize(small, &a.error), HICACHE_MOVES_BLOCKED);
  ASSERT_EQ(a.arena->lease_release(lease, &a.error), HICACHE_OK);
  ASSERT_EQ(a.arena->resize(small, &a.error), HICACHE_OK) << a.error.message;
  EXPECT_TRUE(intact());
  for (const uint32_t v : x) EXPECT_LT(a.arena->place(kFull, v), small / 128);
  EXPECT_EQ(a.arena->resize(65 * 128, &a.error), HICACHE_INVALID_ARGUMENT);
  for (const uint64_t pages : {60, 25, 40, 24, 64, 33}) {
    ASSERT_EQ(a.arena->resize(pages * 128, &a.error), HICACHE_OK) << a.error.message;
    EXPECT_TRUE(intact()) << a.arena->verify();
  }
}

// A static pool: physical is virtual, nothing moves; a name is not handed out again while its page is still touched.
TEST(StaticPools, PlacesAreNames) {
  ArenaOptions options = full_and_swa(16);
  for (PoolSpec &pool : options.pools) pool.is_static = true;
  options.pools[0].virtual_page_count = 9;
  ByteArena a(options);
  ASSERT_EQ(a.status, HICACHE_OK) << a.error.message;
  const V x = a.take_both(kFull, kSwa, 8);
  EXPECT_EQ(a.places(kFull, x), x);
  EXPECT_EQ(a.places(kSwa, x), x);
  EXPECT_TRUE(a.take(kFull, 1).empty());
  EXPECT_EQ(a.status, HICACHE_NO_CAPACITY);
  const hicache_step_t step = a.step(1, kSwa, {x[3]});
  ASSERT_EQ(a.free(kFull, {x[3], x[5]}), HICACHE_OK);
  EXPECT_EQ(a.take_both(kFull, kSwa, 1), (V{x[5]}));
  EXPECT_TRUE(a.take(kFull, 1).empty()); // x[3] is withheld: its window page is under a step.
  EXPECT_EQ(a.arena->verify(), "");
  a.close_step(step);
  V names;
  const hicache_reservation_t r = a.reserve(kFull, 1, &names);
  EXPECT_EQ(names, (V{x[3]}));
  EXPECT_EQ(a.reserved_places(r, kFull), (V{x[3]}));
  ASSERT_EQ(a.arena->cancel(r, &a.error), HICACHE_OK);
  EXPECT_EQ(a.compact().moved_pages, 0u);
  EXPECT_EQ(a.arena->verify(), "");
}

// The slab holds what it promises, however it is spread; past that, LIMIT and nothing pinned.
TEST(Limits, HeldPages) {
  ArenaOptions options = full_and_swa(64);
  options.held_pages_max = 100;
  options.lease_max = 50;
  options.reservation_max = options.step_max = 0;
  ByteArena a(options);
  const V x = a.take(kFull, 32);
  std::vector<hicache_lease_t> leases;
  for (int i = 0; i < 50; i++) {
    const hicache_lease_t lease = a.lease(kFull, {x[0], x[static_cast<size_t>(i % 32)]});
    ASSERT_NE(lease, 0u) << a.error.message;
    leases.push_back(lease);
  }
  EXPECT_EQ(a.lease(kFull, {x[0]}), 0u);
  EXPECT_EQ(a.status, HICACHE_LIMIT);
  EXPECT_EQ(a.reserve(kFull, 1), 0u);
  EXPECT_EQ(a.status, HICACHE_LIMIT);
  for (const hicache_lease_t lease : leases) ASSERT_EQ(a.arena->lease_release(lease, &a.error), HICACHE_OK);
  EXPECT_EQ(a.stats(kFull).pinned_pages, 0u);
  EXPECT_EQ(a.arena->verify(), "");
  options.pools.resize(1);
  options.bytes = uint64_t{1000001} * 128;
  options.held_pages_max = 0;
  options.lease_max = 4096;
  options.reservation_max = 1024;
  options.step_max = 256;
  std::unique_ptr<Arena> arena;
  ASSERT_EQ(Arena::open(options, &arena, nullptr), HICACHE_OK);
  EXPECT_LE(arena->table_bytes(), uint64_t{32} * 1000000);
  options.pools = full_and_swa(1).pools; // Two pools that share the bytes.
  ASSERT_EQ(Arena::open(options, &arena, nullptr), HICACHE_OK);
  EXPECT_LE(arena->table_bytes(), uint64_t{32} * 1000000);
}

} // namespace
} // namespace hicache::test
