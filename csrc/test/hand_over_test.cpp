// Hand-over between two engines of the backends whose device is the host: bytes, tags, errors, and two engines that hand pages to each
// other at random beside everything else that moves them.
#include <map>
#include <random>
#include <thread>

#include "open_engine.hpp"

using namespace hicache_test;

namespace {

hicache_status_t hand_over(OpenEngine &source, OpenEngine &target, const std::vector<hicache_hand_over_line_t> &lines, uint32_t flags = 0) {
  hicache_hand_over_t request{};
  request.flags = flags;
  request.struct_size = sizeof request;
  request.lines = lines.data();
  request.line_count = static_cast<uint32_t>(lines.size());
  return hicache_hand_over(source.get(), target.get(), &request, source.error());
}
hicache_hand_over_line_t line(uint32_t pool, const Pages &from, const Pages &to) {
  return {pool, pool, static_cast<uint32_t>(from.size()), 0, from.data(), to.data()};
}
EngineShape of_backend(uint32_t backend) {
  EngineShape shape;
  shape.backend = backend;
  return shape;
}

TEST(HandOver, BytesOfEveryPool) {
  for (bool with_fault : {false, true}) {
    EngineShape shape;
    shape.with_state = true;
    shape.with_fault = with_fault;
    OpenEngine a(shape), b(shape);
    b.alloc(3); // So that names and places differ.
    const Pages from = a.alloc(4), to = b.alloc(4), state_from = a.alloc_state(1), state_to = b.alloc_state(1);
    for (uint32_t i = 0; i < 4; i++) {
      a.stamp(kFull, from[i], 100 + i);
      a.stamp(kSwa, from[i], 200 + i);
    }
    a.stamp(kState, state_from[0], 300);
    ASSERT_EQ(hand_over(a, b, {line(kFull, from, to), line(kSwa, from, to), line(kState, state_from, state_to)}), HICACHE_OK)
        << a.message();
    for (uint32_t i = 0; i < 4; i++) {
      EXPECT_TRUE(b.holds(kFull, to[i], 100 + i));
      EXPECT_TRUE(b.holds(kSwa, to[i], 200 + i));
      EXPECT_TRUE(a.holds(kFull, from[i], 100 + i));
    }
    EXPECT_TRUE(b.holds(kState, state_to[0], 300));
    const uint64_t bytes = 4 * (a.info(HICACHE_TIER_DEVICE, kFull).page_bytes + a.info(HICACHE_TIER_DEVICE, kSwa).page_bytes) +
                           a.info(HICACHE_TIER_DEVICE, kState).page_bytes;
    EXPECT_EQ(a.stats().handed_over_bytes, bytes);
    EXPECT_EQ(b.stats().received_bytes, bytes);
    EXPECT_EQ(a.stats().received_bytes + b.stats().handed_over_bytes, 0u);
    EXPECT_EQ(a.stats().steps + b.stats().steps, 0u);
    // One page to several.
    ASSERT_EQ(hand_over(a, b, {line(kFull, {from[2], from[2]}, {to[0], to[1]})}), HICACHE_OK) << a.message();
    EXPECT_TRUE(b.holds(kFull, to[0], 102) && b.holds(kFull, to[1], 102));
    a.expect_sound();
    b.expect_sound();
  }
}

TEST(HandOver, TagsOfTheNullBackend) {
  OpenEngine a(of_backend(HICACHE_BACKEND_NULL)), b(of_backend(HICACHE_BACKEND_NULL));
  b.alloc(2);
  const Pages from = a.alloc(2), to = b.alloc(2);
  uint32_t places[2] = {a.place(kFull, from[0]), a.place(kFull, from[1])};
  uint64_t tags[2] = {77, 78};
  ASSERT_EQ(hicache_tags(a.get(), HICACHE_TIER_DEVICE, kFull, places, 2, tags, 1, a.error()), HICACHE_OK) << a.message();
  ASSERT_EQ(hand_over(a, b, {line(kFull, from, to)}), HICACHE_OK) << a.message();
  for (int i = 0; i < 2; i++) places[i] = b.place(kFull, to[i]), tags[i] = 0;
  ASSERT_EQ(hicache_tags(b.get(), HICACHE_TIER_DEVICE, kFull, places, 2, tags, 0, b.error()), HICACHE_OK);
  EXPECT_EQ(tags[0], 77u);
  EXPECT_EQ(tags[1], 78u);
}

TEST(HandOver, NothingIsFine) {
  OpenEngine a, b;
  EXPECT_EQ(hand_over(a, b, {}), HICACHE_OK) << a.message();
  EXPECT_EQ(hand_over(a, b, {line(kFull, {}, {})}), HICACHE_OK) << a.message();
  EXPECT_EQ(a.stats().steps_total, 0u);
}

TEST(HandOver, PoolsMustAgreeAndTheErrorSaysInWhat) {
  EngineShape wide;
  wide.row_bytes = 32;
  EngineShape tokens;
  tokens.page_tokens = 8;
  EngineShape major;
  major.layout = HICACHE_LAYOUT_TOKEN_MAJOR;
  EngineShape padded;
  padded.padding_bytes = 64;
  const struct {
    EngineShape shape;
    const char *field;
    uint64_t need, have;
  } cases[] = {{wide, "k_row_bytes 32", 16, 32},
               {tokens, "page_tokens 8", 0, 0},
               {major, "envelope_layout 1", 0, 0},
               {padded, "page_bytes", 384, 448}};
  for (const auto &one : cases) {
    SCOPED_TRACE(one.field);
    OpenEngine a, b(one.shape);
    const Pages from = a.alloc(1), to = b.alloc(1);
    EXPECT_EQ(hand_over(a, b, {line(kFull, from, to)}), HICACHE_INVALID_ARGUMENT);
    EXPECT_NE(a.message().find(one.field), std::string::npos) << a.message();
    EXPECT_EQ(a.error()->pool, kFull);
    EXPECT_EQ(a.error()->need_bytes, one.need);
    EXPECT_EQ(a.error()->have_bytes, one.have);
    EXPECT_EQ(a.stats().steps_total + b.stats().steps_total, 0u);
  }
  // Between two pools of one engine's shape: other layers.
  OpenEngine a, b;
  const Pages from = a.alloc(1), to = b.alloc(1);
  const hicache_hand_over_line_t crossed{kFull, kSwa, 1, 0, from.data(), to.data()};
  EXPECT_EQ(hand_over(a, b, {crossed}), HICACHE_INVALID_ARGUMENT);
  EXPECT_NE(a.message().find("role"), std::string::npos) << a.message();
  const hicache_hand_over_line_t none{kFull, 9, 1, 0, from.data(), to.data()};
  EXPECT_EQ(hand_over(a, b, {none}), HICACHE_INVALID_ARGUMENT);
  EXPECT_NE(a.message().find("target: pool is 9"), std::string::npos) << a.message();
}

TEST(HandOver, RefusesWhatCannotBeHandedOver) {
  OpenEngine a, b, null(of_backend(HICACHE_BACKEND_NULL));
  const Pages from = a.alloc(3), to = b.alloc(3);
  const auto refused = [&](hicache_status_t want, const char *text, OpenEngine &target, const hicache_hand_over_line_t &one) {
    EXPECT_EQ(hand_over(a, target, {one}), want) << text;
    EXPECT_NE(a.message().find(text), std::string::npos) << a.message();
  };
  refused(HICACHE_INVALID_ARGUMENT, "one engine", a, line(kFull, {from[0]}, {from[1]}));
  const Pages of_null = null.alloc(1);
  refused(HICACHE_UNSUPPORTED, "the target's null: pages go between equal ones", null, line(kFull, {from[0]}, of_null));
  refused(HICACHE_NOT_MAPPED, "source: pool 0: page 99", b, line(kFull, {99}, {to[0]}));
  refused(HICACHE_NOT_MAPPED, "source", b, line(kFull, {0}, {to[0]})); // The sink.
  refused(HICACHE_NOT_MAPPED, "target: pool 0: page 99", b, line(kFull, {from[0]}, {99}));
  refused(HICACHE_INVALID_ARGUMENT, "named twice", b, line(kFull, {from[0], from[1]}, {to[0], to[0]}));
  hicache_hand_over_line_t reserved = line(kFull, {from[0]}, {to[0]});
  reserved.reserved0 = 1;
  refused(HICACHE_UNSUPPORTED, "reserved0", b, reserved);
  refused(HICACHE_INVALID_ARGUMENT, "are NULL", b, {kFull, kFull, 1, 0, nullptr, to.data()});
  b.free({to[2]});
  refused(HICACHE_NOT_MAPPED, "target", b, line(kFull, {from[0]}, {to[2]}));
  EXPECT_EQ(hicache_hand_over(a.get(), nullptr, nullptr, a.error()), HICACHE_INVALID_ARGUMENT);
  EXPECT_EQ(hicache_hand_over(a.get(), b.get(), nullptr, a.error()), HICACHE_INVALID_ARGUMENT);
  EXPECT_EQ(a.stats().steps + b.stats().steps, 0u);
  // Nothing of that has left a mark.
  EXPECT_EQ(hand_over(a, b, {line(kFull, {from[0], from[1]}, {to[0], to[1]})}), HICACHE_OK) << a.message();
  a.expect_sound();
  b.expect_sound();
}

TEST(HandOver, WhatIsHeldOrOnItsWayIsBusy) {
  EngineShape shape;
  shape.with_fault = true;
  shape.fault.hold = 1;
  OpenEngine a(shape), b(shape);
  const Pages from = a.alloc(2), to = b.alloc(2);
  const hicache_pages_t held{kFull, 1, to.data()};
  hicache_lease_t lease = 0;
  ASSERT_EQ(hicache_lease_acquire(b.get(), &held, 1, &lease, b.error()), HICACHE_OK);
  EXPECT_EQ(hand_over(a, b, {line(kFull, from, to)}), HICACHE_BUSY);
  EXPECT_NE(a.message().find("target: pool 0: page " + std::to_string(to[0])), std::string::npos) << a.message();
  a.stamp(kFull, from[0], 9);
  EXPECT_EQ(hand_over(a, b, {line(kFull, from, to)}, HICACHE_HAND_OVER_HELD), HICACHE_OK) << a.message();
  EXPECT_TRUE(b.holds(kFull, to[0], 9));
  EXPECT_EQ(hand_over(a, b, {line(kFull, from, to)}, 2), HICACHE_UNSUPPORTED);
  ASSERT_EQ(hicache_lease_release(b.get(), lease, b.error()), HICACHE_OK);
  hicache_step_t step = 0;
  ASSERT_EQ(hicache_step_open(b.get(), 5, &held, 1, &step, b.error()), HICACHE_OK);
  EXPECT_EQ(hand_over(a, b, {line(kFull, from, to)}), HICACHE_BUSY);
  ASSERT_EQ(hicache_step_close(b.get(), step, b.error()), HICACHE_OK);
  // A back-up still reads the target.
  const Pages host = b.host_alloc(kFull, 1);
  const hicache_ticket_t reading = b.back_up(OpenEngine::copies(kFull, {to[0]}, host));
  EXPECT_EQ(hand_over(a, b, {line(kFull, from, to)}), HICACHE_BUSY);
  EXPECT_EQ(a.error()->ticket, reading);
  EXPECT_EQ(hand_over(a, b, {line(kFull, from, to)}, HICACHE_HAND_OVER_HELD), HICACHE_BUSY);
  EXPECT_EQ(a.error()->ticket, reading);
  b.run(1);
  b.await_one();
  // A load still writes the source.
  const Pages of_a = a.host_alloc(kFull, 1);
  Pages loaded;
  const hicache_reservation_t reservation = a.reserve(1, 0, &loaded);
  const hicache_ticket_t writing = a.load(reservation, OpenEngine::copies(kFull, loaded, of_a));
  EXPECT_EQ(hand_over(a, b, {line(kFull, loaded, {to[0]})}), HICACHE_BUSY);
  EXPECT_EQ(a.error()->ticket, writing);
  a.run(1);
  a.await_one();
  // A source that is held is as good as any.
  const hicache_pages_t read{kFull, 2, from.data()};
  ASSERT_EQ(hicache_step_open(a.get(), 5, &read, 1, &step, a.error()), HICACHE_OK);
  EXPECT_EQ(hand_over(a, b, {line(kFull, from, to)}), HICACHE_OK) << a.message();
  ASSERT_EQ(hicache_step_close(a.get(), step, a.error()), HICACHE_OK);
}

TEST(HandOver, MorePagesThanMayBeHeldIsALimit) {
  EngineShape small;
  small.held_pages_max = 16;
  small.device_bytes = 256 << 10;
  OpenEngine a(small), b(small);
  const Pages from = a.alloc(17, 0), to = b.alloc(17, 0);
  EXPECT_EQ(hand_over(a, b, {line(kFull, from, to)}), HICACHE_LIMIT);
  EXPECT_EQ(a.stats().steps + b.stats().steps, 0u);
}

TEST(HandOver, AClosedEngineIsClosed) {
  OpenEngine a, b;
  const Pages from = a.alloc(1), to = b.alloc(1);
  hicache_engine_t *gone = b.get();
  ASSERT_EQ(b.close(), HICACHE_OK);
  const hicache_hand_over_line_t one = line(kFull, from, to);
  hicache_hand_over_t request{};
  request.struct_size = sizeof request;
  request.lines = &one;
  request.line_count = 1;
  EXPECT_EQ(hicache_hand_over(a.get(), gone, &request, a.error()), HICACHE_CLOSED);
  EXPECT_EQ(hicache_hand_over(gone, a.get(), &request, a.error()), HICACHE_CLOSED);
}

// ---- Two engines, at random ----

// One engine and what each of its pages must hold.
struct Party {
  OpenEngine engine;
  std::map<uint32_t, uint64_t> pages; // Of FULL; 0: never written.

  explicit Party(const EngineShape &shape) : engine(shape) {}
  Pages some(std::mt19937_64 &random, size_t most) const {
    Pages all;
    for (const auto &page : pages) all.push_back(page.first);
    std::shuffle(all.begin(), all.end(), random);
    all.resize(std::min(all.size(), static_cast<size_t>(random() % (most + 1))));
    return all;
  }
  bool holds(uint32_t page, uint64_t stamp) {
    if (engine.bytes(kFull, page) != nullptr && stamp != 0) return engine.holds(kFull, page, stamp);
    return true;
  }
};

void play(uint64_t seed, uint32_t compaction) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  EngineShape shape;
  shape.compaction = compaction;
  shape.device_bytes = 48 << 10;
  shape.device_bytes_max = 96 << 10;
  Party parties[2] = {Party(shape), Party(shape)};
  uint64_t stamps = seed << 32;
  std::vector<hicache_step_t> steps[2];
  for (int turn = 0; turn < 300; turn++) {
    const size_t who = random() % 2;
    Party &mine = parties[who], &other = parties[1 - who];
    switch (random() % 8) {
      case 0: { // Take, with window pages for some, whose pool then crosses the other's way.
        Pages pages;
        const auto count = static_cast<uint32_t>(1 + random() % 6);
        if (mine.engine.try_alloc(count, static_cast<uint32_t>(random() % (count + 1)), &pages) != HICACHE_OK) break;
        for (uint32_t page : pages) mine.pages[page] = 0;
        break;
      }
      case 1: {
        const Pages pages = mine.some(random, 4);
        if (pages.empty()) break;
        mine.engine.free(pages);
        for (uint32_t page : pages) mine.pages.erase(page);
        break;
      }
      case 2:
        for (uint32_t page : mine.some(random, 3)) mine.engine.stamp(kFull, page, mine.pages[page] = ++stamps);
        break;
      case 3:
      case 4: { // Each target once, sources as they come.
        const Pages to = other.some(random, 5);
        if (to.empty() || mine.pages.empty()) break;
        Pages from;
        while (from.size() < to.size())
          from.push_back(std::next(mine.pages.begin(), static_cast<long>(random() % mine.pages.size()))->first);
        const hicache_status_t status = hand_over(mine.engine, other.engine, {line(kFull, from, to)});
        if (status == HICACHE_BUSY && !steps[1 - who].empty()) break;
        ASSERT_EQ(status, HICACHE_OK) << mine.engine.message();
        for (size_t i = 0; i < to.size(); i++) other.pages[to[i]] = mine.pages[from[i]];
        break;
      }
      case 5: mine.engine.compact(); break;
      case 6: hicache_resize(mine.engine.get(), random() % 2 != 0 ? 48 << 10 : 96 << 10, mine.engine.error()); break;
      case 7: {
        if (steps[who].size() > 1) {
          ASSERT_EQ(hicache_step_close(mine.engine.get(), steps[who].back(), mine.engine.error()), HICACHE_OK);
          steps[who].pop_back();
          break;
        }
        const Pages pages = mine.some(random, 3);
        const hicache_pages_t held{kFull, static_cast<uint32_t>(pages.size()), pages.data()};
        hicache_step_t step = 0;
        ASSERT_EQ(hicache_step_open(mine.engine.get(), suite_backend.stream(random() % 3), &held, 1, &step, mine.engine.error()),
                  HICACHE_OK);
        steps[who].push_back(step);
        break;
      }
    }
    for (Party &party : parties)
      for (const auto &[page, stamp] : party.pages) ASSERT_TRUE(party.holds(page, stamp)) << "turn " << turn << ", page " << page;
    if (turn % 20 == 0)
      for (Party &party : parties) party.engine.expect_sound();
  }
  for (int who = 0; who < 2; who++)
    for (hicache_step_t step : steps[who]) ASSERT_EQ(hicache_step_close(parties[who].engine.get(), step, nullptr), HICACHE_OK);
  EXPECT_GT(parties[0].engine.stats().handed_over_bytes, 0u);
  EXPECT_GT(parties[1].engine.stats().handed_over_bytes, 0u);
}

TEST(HandOver, TwoEnginesAtRandom) {
  for (uint64_t seed = 1; seed <= 20; seed++) {
    play(seed, seed % 2 != 0 ? HICACHE_COMPACTION_LAZY : HICACHE_COMPACTION_EAGER);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Both ways at once, with moves on both sides: nobody waits for the other for ever, and the bytes are whole.
TEST(HandOver, CrossingThreads) {
  EngineShape shape;
  shape.compaction = HICACHE_COMPACTION_EAGER;
  shape.device_bytes = 128 << 10;
  shape.row_bytes = 64;
  OpenEngine engines[2] = {OpenEngine(shape), OpenEngine(shape)};
  Pages own[2], received[2];
  for (int who = 0; who < 2; who++) {
    own[who] = engines[who].alloc(4, 0);
    received[who] = engines[who].alloc(4, 0);
    for (uint32_t i = 0; i < 4; i++) engines[who].stamp(kFull, own[who][i], who * 10 + i + 1);
  }
  std::vector<std::thread> threads;
  for (int who = 0; who < 2; who++) {
    threads.emplace_back([&, who] {
      hicache_error_t error{};
      error.struct_size = sizeof error;
      const hicache_hand_over_line_t one = line(kFull, own[who], received[1 - who]);
      hicache_hand_over_t request{};
      request.struct_size = sizeof request;
      request.lines = &one;
      request.line_count = 1;
      for (int i = 0; i < 300; i++)
        ASSERT_EQ(hicache_hand_over(engines[who].get(), engines[1 - who].get(), &request, &error), HICACHE_OK) << error.message;
    });
    threads.emplace_back([&, who] { // Takes and frees: each free packs what no hand-over holds.
      for (int i = 0; i < 300; i++) {
        uint32_t pages[8];
        hicache_take_t take{kFull, 8, pages};
        if (hicache_alloc(engines[who].get(), &take, 1, nullptr) != HICACHE_OK) continue;
        const hicache_pages_t all{kFull, 8, pages};
        EXPECT_EQ(hicache_free(engines[who].get(), &all, 1, nullptr), HICACHE_OK);
      }
    });
  }
  for (std::thread &thread : threads) thread.join();
  for (int who = 0; who < 2; who++) {
    engines[who].expect_sound();
    for (uint32_t i = 0; i < 4; i++) {
      EXPECT_TRUE(engines[who].holds(kFull, own[who][i], who * 10 + i + 1));
      EXPECT_TRUE(engines[who].holds(kFull, received[who][i], (1 - who) * 10 + i + 1));
    }
  }
}

} // namespace
