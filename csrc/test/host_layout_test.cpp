// Host regions: every order of a page's bytes, both ways, with pages of both tiers moved in between; where each byte is, as pool_info says;
// and how host_bytes is shared out.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "open_engine.hpp"

namespace hicache_test {
namespace {

constexpr uint32_t kHostLayouts[] = {HICACHE_HOST_ENVELOPE, HICACHE_HOST_LAYER_FIRST, HICACHE_HOST_PAGE_FIRST,
                                     HICACHE_HOST_PAGE_FIRST_DIRECT, HICACHE_HOST_PAGE_HEAD};

// Calls fn(where on tier a, where on tier b) for each byte of a page, by the formula in hicache.h.
template <typename Fn>
void each_byte(const hicache_pool_info_t &a, const hicache_pool_info_t &b, uint32_t layers, uint32_t tokens, uint64_t k_row, uint64_t v_row,
               uint32_t heads, uint64_t page_a, uint64_t page_b, Fn fn) {
  for (uint32_t part = 0; part < 2; part++) {
    const uint64_t row = part == 0 ? k_row : v_row;
    const auto at = [&](const hicache_pool_info_t &of, uint64_t page, uint64_t l, uint64_t t, uint64_t h, uint64_t i) {
      return part == 0 ? page * of.page_stride_bytes + l * of.layer_stride_bytes + t * of.token_stride_bytes + h * of.head_stride_bytes + i
                       : of.v_offset_bytes + page * of.v_page_stride_bytes + l * of.v_layer_stride_bytes + t * of.v_token_stride_bytes +
                             h * of.v_head_stride_bytes + i;
    };
    // Heads are counted as the host cuts them; the device keeps a row whole.
    for (uint64_t l = 0; l < layers; l++)
      for (uint64_t t = 0; t < tokens; t++)
        for (uint64_t h = 0; h < heads; h++)
          for (uint64_t i = 0; i < row / heads; i++) fn(at(a, page_a, l, t, h, i), at(b, page_b, l, t, h, i));
  }
  for (uint64_t i = 0; i < a.padding_bytes; i++)
    fn(a.padding_offset_bytes + page_a * a.padding_stride_bytes + i, b.padding_offset_bytes + page_b * b.padding_stride_bytes + i);
}

struct PoolShape {
  uint32_t layers;
  uint64_t k_row, v_row;
};

class HostLayouts : public testing::TestWithParam<std::tuple<uint32_t, uint32_t, uint32_t, bool, bool>> {
protected:
  uint32_t page_tokens() const { return std::get<0>(GetParam()); }
  EngineShape shape() const {
    const auto [tokens, envelope, host, with_state, with_fault] = GetParam();
    EngineShape shape;
    shape.page_tokens = tokens;
    shape.layout = envelope;
    shape.host_layout = host;
    shape.with_state = with_state;
    shape.with_fault = with_fault;
    shape.fault.seed = tokens * 31 + host;
    shape.row_bytes = 64;
    shape.head_count = host == HICACHE_HOST_PAGE_HEAD ? 4 : 0;
    shape.padding_bytes = 48;
    shape.device_bytes = uint64_t{40} * 16 * 64 * tokens + (64 << 10);
    shape.host_bytes = 2 * shape.device_bytes;
    shape.copy_threads = 2;
    return shape;
  }
  static PoolShape of(uint32_t pool) {
    if (pool == kState) return {2, 512, 64};
    return {pool == kFull ? 3u : 5u, 64, 64};
  }
  // The host bytes of a page where pool_info says they are, against the stamp of its device page.
  void expect_in_place(OpenEngine &engine, uint32_t pool, uint32_t hpage, uint64_t stamp) {
    const auto device = engine.info(HICACHE_TIER_DEVICE, pool), host = engine.info(HICACHE_TIER_HOST, pool);
    const auto *base = reinterpret_cast<const uint8_t *>(host.arena_base);
    const uint32_t tokens = pool == kState ? 1 : page_tokens();
    const PoolShape shape = of(pool);
    uint64_t wrong = 0, seen = 0;
    each_byte(device, host, shape.layers, tokens, shape.k_row, shape.v_row, std::max(host.head_count, 1u), 0,
              engine.host_place(pool, hpage), [&](uint64_t d, uint64_t h) {
                ASSERT_LT(h, host.arena_bytes);
                wrong += base[h] != OpenEngine::stamp_byte(stamp, d);
                seen++;
              });
    EXPECT_EQ(wrong, 0u) << "of " << seen << " bytes of pool " << pool << ", host page " << hpage;
    EXPECT_EQ(seen, device.page_bytes);
  }
};

std::string name_of(const testing::TestParamInfo<HostLayouts::ParamType> &info) {
  static const char *const hosts[] = {"envelope", "layer_first", "page_first", "page_first_direct", "page_head"};
  const auto [tokens, envelope, host, with_state, with_fault] = info.param;
  return std::to_string(tokens) + (envelope == HICACHE_LAYOUT_LAYER_MAJOR ? "_layer_major_" : "_token_major_") + hosts[host] +
         (with_state ? "_state" : "") + (with_fault ? "_reordered" : "");
}

INSTANTIATE_TEST_SUITE_P(Matrix, HostLayouts,
                         testing::Combine(testing::Values(1u, 4u, 16u, 64u),
                                          testing::Values(HICACHE_LAYOUT_LAYER_MAJOR, HICACHE_LAYOUT_TOKEN_MAJOR),
                                          testing::ValuesIn(kHostLayouts), testing::Bool(), testing::Bool()),
                         name_of);

// The same shapes, where copies run when told, and where none take part.
class HostLayoutSteps : public HostLayouts {};
class HostLayoutCopies : public HostLayouts {};
INSTANTIATE_TEST_SUITE_P(Orders, HostLayoutSteps,
                         testing::Combine(testing::Values(1u, 4u, 16u),
                                          testing::Values(HICACHE_LAYOUT_LAYER_MAJOR, HICACHE_LAYOUT_TOKEN_MAJOR),
                                          testing::ValuesIn(kHostLayouts), testing::Values(false), testing::Values(true)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Orders, HostLayoutCopies,
                         testing::Combine(testing::Values(1u, 4u, 16u),
                                          testing::Values(HICACHE_LAYOUT_LAYER_MAJOR, HICACHE_LAYOUT_TOKEN_MAJOR),
                                          testing::ValuesIn(kHostLayouts), testing::Values(false), testing::Values(false)),
                         name_of);

TEST_P(HostLayouts, ThereAndBackWithMovesOnBothTiers) {
  OpenEngine engine(shape());
  const bool with_state = std::get<3>(GetParam());
  constexpr uint32_t kPages = 12;
  const Pages fillers = engine.alloc(4), pages = engine.alloc(kPages);
  Pages states;
  if (with_state) states = engine.alloc_state(3);
  std::vector<hicache_copy_t> first, second;
  std::vector<Pages> host(3);
  for (uint32_t pool : {kFull, kSwa}) {
    const Pages unused = engine.host_alloc(pool, 5); // Freed below, so that those behind have somewhere to move.
    host[pool] = engine.host_alloc(pool, kPages);
    for (uint32_t i = 0; i < kPages; i++) {
      engine.stamp(pool, pages[i], 1000 * (pool + 1) + i);
      (i % 2 == 0 ? first : second).push_back({pool, pages[i], host[pool][i], 0});
    }
    engine.host_free(pool, unused);
  }
  if (with_state) {
    const Pages unused = engine.host_alloc(kState, 2);
    host[kState] = engine.host_alloc(kState, 3);
    for (uint32_t i = 0; i < 3; i++) {
      engine.stamp(kState, states[i], 3000 + i);
      first.push_back({kState, states[i], host[kState][i], 0});
    }
    engine.host_free(kState, unused);
  }
  engine.free(fillers);
  EXPECT_GT(engine.compact().moved_pages, 0u);
  engine.back_up(first);
  engine.back_up(second);
  engine.await(2);
  EXPECT_GT(engine.compact(HICACHE_TIER_HOST).moved_pages, 0u);
  for (uint32_t pool : {kFull, kSwa})
    for (uint32_t i = 0; i < kPages; i++) expect_in_place(engine, pool, host[pool][i], 1000 * (pool + 1) + i);
  for (uint32_t i = 0; i < states.size(); i++) expect_in_place(engine, kState, host[kState][i], 3000 + i);
  engine.free(pages);
  if (with_state) engine.free(states, kState);

  // Back into other pages, FULL whole and the window's half, in two loads that interleave; then the device packs once more.
  const Pages low = engine.alloc(3);
  std::vector<hicache_ticket_t> tickets;
  Pages back[2];
  for (uint32_t k = 0; k < 2; k++) {
    const hicache_reservation_t reservation = engine.reserve(kPages / 2, kPages / 2, &back[k]);
    std::vector<hicache_copy_t> copies;
    for (uint32_t i = 0; i < kPages / 2; i++) {
      copies.push_back({kFull, back[k][i], host[kFull][k + 2 * i], 0});
      copies.push_back({kSwa, back[k][i], host[kSwa][k + 2 * i], 0});
    }
    tickets.push_back(engine.load(reservation, copies));
  }
  Pages states_back;
  if (with_state) {
    const hicache_reservation_t reservation = engine.reserve_state(3, &states_back);
    tickets.push_back(engine.load(reservation, OpenEngine::copies(kState, states_back, host[kState])));
  }
  for (uint32_t layer = 0; layer < 10; layer++)
    for (hicache_ticket_t ticket : tickets) EXPECT_EQ(hicache_layer_wait(engine.get(), ticket, layer, 0, engine.error()), HICACHE_OK);
  engine.await(tickets.size());
  engine.free(low);
  engine.compact();
  for (uint32_t k = 0; k < 2; k++) {
    for (uint32_t i = 0; i < kPages / 2; i++) {
      EXPECT_TRUE(engine.holds(kFull, back[k][i], 1000 + k + 2 * i));
      EXPECT_TRUE(engine.holds(kSwa, back[k][i], 2000 + k + 2 * i));
    }
  }
  for (uint32_t i = 0; i < states_back.size(); i++) EXPECT_TRUE(engine.holds(kState, states_back[i], 3000 + i));
  engine.expect_sound();
}

// A layer that a wait names is whole while the later ones are not there yet.
TEST_P(HostLayoutSteps, LayersArriveOneByOne) {
  EngineShape of_engine = shape();
  of_engine.fault.hold = 1;
  OpenEngine engine(of_engine);
  const Pages host = engine.host_alloc(kSwa, 2);
  const auto info = engine.info(HICACHE_TIER_HOST, kSwa), device = engine.info(HICACHE_TIER_DEVICE, kSwa);
  auto *base = reinterpret_cast<uint8_t *>(info.arena_base);
  for (uint32_t i = 0; i < 2; i++)
    each_byte(device, info, 5, page_tokens(), 64, 64, std::max(info.head_count, 1u), 0, engine.host_place(kSwa, host[i]),
              [&](uint64_t d, uint64_t h) { base[h] = OpenEngine::stamp_byte(70 + i, d); });
  Pages target;
  const hicache_reservation_t reservation = engine.reserve(2, 2, &target);
  const hicache_ticket_t ticket =
      engine.load(reservation, OpenEngine::copies(kSwa, target, host), {{kFull, target[0]}, {kFull, target[1]}});
  const bool whole = of_engine.host_layout == HICACHE_HOST_ENVELOPE && of_engine.layout == HICACHE_LAYOUT_TOKEN_MAJOR && page_tokens() > 1;
  static const uint32_t layers[] = {0, 2, 3, 5, 6};
  uint32_t steps = 0;
  uint32_t done = 0;
  while (engine.run(1, true) > 0) {
    steps++;
    const hicache_status_t status = hicache_ticket_status(engine.get(), ticket, &done, engine.error());
    if (status == HICACHE_OK) break;
    ASSERT_EQ(status, HICACHE_PENDING);
    for (uint32_t local = 0; local < 5; local++) {
      const auto readable = [&](uint32_t i) {
        const uint8_t *page = engine.bytes(kSwa, target[i]);
        uint64_t wrong = 0;
        for (uint32_t t = 0; t < page_tokens(); t++)
          for (uint32_t part = 0; part < 2; part++) {
            const uint64_t at = local * device.layer_stride_bytes +
                                (part == 0 ? t * device.token_stride_bytes : device.v_offset_bytes + t * device.v_token_stride_bytes);
            for (uint64_t b = 0; b < 64; b++) wrong += page[at + b] != OpenEngine::stamp_byte(70 + i, at + b);
          }
        return wrong == 0;
      };
      if (layers[local] < done) {
        EXPECT_TRUE(readable(0) && readable(1)) << "layer " << layers[local] << " of " << done << " that are there";
      } else if (!whole) {
        EXPECT_FALSE(readable(0)) << "layer " << layers[local] << " is there before its turn";
      }
    }
  }
  EXPECT_GT(steps, whole ? 0u : 2u);
  engine.poll();
  for (uint32_t i = 0; i < 2; i++) EXPECT_TRUE(engine.holds(kSwa, target[i], 70 + i));
}

// hicache_host_copy puts a page together whatever order it lies in, and takes it apart again.
TEST_P(HostLayoutCopies, PagesAreCopiedOutAndIn) {
  OpenEngine engine(shape());
  const auto device = engine.info(HICACHE_TIER_DEVICE, kFull), info = engine.info(HICACHE_TIER_HOST, kFull);
  const uint64_t page_bytes = info.page_bytes;
  const Pages host = engine.host_alloc(kFull, 3);
  void *addresses[3];
  hicache_lease_t lease = 0;
  const hicache_host_pages_t line{kFull, 3, host.data()};
  ASSERT_EQ(hicache_host_view(engine.get(), &line, addresses, &lease, engine.error()), HICACHE_OK) << engine.message();
  for (uint32_t i = 0; i < 3; i++) {
    EXPECT_EQ(reinterpret_cast<uint64_t>(addresses[i]), info.arena_base + engine.host_place(kFull, host[i]) * info.page_stride_bytes);
  }
  std::vector<uint8_t> out(3 * page_bytes), again(3 * page_bytes);
  for (uint32_t i = 0; i < 3; i++) OpenEngine::write_stamp(out.data() + i * page_bytes, 500 + i, page_bytes);
  ASSERT_EQ(hicache_host_copy(engine.get(), lease, &line, HICACHE_HOST_ENVELOPE, 1, out.data(), engine.error()), HICACHE_OK);
  for (uint32_t i = 0; i < 3; i++) expect_in_place(engine, kFull, host[i], 500 + i);
  ASSERT_EQ(hicache_host_copy(engine.get(), lease, &line, HICACHE_HOST_ENVELOPE, 0, again.data(), engine.error()), HICACHE_OK);
  EXPECT_EQ(out, again);
  // In the order of each region of one page: what a K or V object of storage holds.
  for (uint32_t layout : kHostLayouts) {
    if (layout == HICACHE_HOST_ENVELOPE) continue;
    ASSERT_EQ(hicache_host_copy(engine.get(), lease, &line, layout, 0, again.data(), engine.error()), HICACHE_OK);
    std::fill(out.begin(), out.end(), uint8_t{0});
    ASSERT_EQ(hicache_host_copy(engine.get(), lease, &line, HICACHE_HOST_ENVELOPE, 1, out.data(), engine.error()), HICACHE_OK);
    ASSERT_EQ(hicache_host_copy(engine.get(), lease, &line, layout, 1, again.data(), engine.error()), HICACHE_OK);
    for (uint32_t i = 0; i < 3; i++) expect_in_place(engine, kFull, host[i], 500 + i);
    // K rows come first, whatever the order of either tier.
    if (layout != HICACHE_HOST_LAYER_FIRST) continue;
    for (uint32_t l = 0; l < 3; l++)
      for (uint32_t t = 0; t < page_tokens(); t++)
        EXPECT_EQ(again[(l * page_tokens() + t) * 64],
                  OpenEngine::stamp_byte(500, l * device.layer_stride_bytes + t * device.token_stride_bytes));
  }
  EXPECT_EQ(hicache_host_copy(engine.get(), lease, &line, 9, 0, again.data(), engine.error()), HICACHE_INVALID_ARGUMENT);
  ASSERT_EQ(hicache_lease_release(engine.get(), lease, engine.error()), HICACHE_OK);
  EXPECT_EQ(hicache_host_copy(engine.get(), lease, &line, 0, 0, again.data(), engine.error()), HICACHE_STALE_ID);
}

// What hicache_host_copy refuses.
TEST(HostCopy, OnlyPagesThatAViewHolds) {
  OpenEngine engine;
  const Pages held = engine.host_alloc(kFull, 1), other = engine.host_alloc(kFull, 1);
  void *address;
  hicache_lease_t lease = 0;
  const hicache_host_pages_t line{kFull, 1, held.data()}, wrong{kFull, 1, other.data()};
  ASSERT_EQ(hicache_host_view(engine.get(), &line, &address, &lease, engine.error()), HICACHE_OK);
  std::vector<uint8_t> bytes(engine.info(HICACHE_TIER_HOST, kFull).page_bytes);
  EXPECT_EQ(hicache_host_copy(engine.get(), lease, &wrong, 0, 0, bytes.data(), engine.error()), HICACHE_INVALID_ARGUMENT);
  const uint32_t none = 77;
  const hicache_host_pages_t nowhere{kFull, 1, &none};
  EXPECT_EQ(hicache_host_copy(engine.get(), lease, &nowhere, 0, 0, bytes.data(), engine.error()), HICACHE_NOT_MAPPED);
  EXPECT_EQ(hicache_host_copy(engine.get(), lease, &line, 0, 2, bytes.data(), engine.error()), HICACHE_INVALID_ARGUMENT);
  EXPECT_EQ(hicache_host_copy(engine.get(), lease, &line, 0, 0, nullptr, engine.error()), HICACHE_INVALID_ARGUMENT);
  ASSERT_EQ(hicache_lease_release(engine.get(), lease, engine.error()), HICACHE_OK);
}

TEST(HostRegions, ShareWhatIsLeftOfTheHost) {
  EngineShape shape;
  shape.with_state = true;
  auto pools = OpenEngine::pools(shape);
  pools[kFull].host_layout = HICACHE_HOST_PAGE_FIRST;
  pools[kSwa].host_layout = HICACHE_HOST_LAYER_FIRST;
  pools[kSwa].host_page_count = 10;
  const uint64_t full = 3 * 32 * 4, swa = 5 * 32 * 4, state = 2 * (512 + 64);
  hicache_options_t options = OpenEngine::options(shape, pools);
  options.host_bytes = 10 * swa + 7 * (full + state) + 100;
  hicache_error_t error{};
  error.struct_size = sizeof error;
  hicache_engine_t *engine = nullptr;
  ASSERT_EQ(hicache_open(&options, &engine, &error), HICACHE_OK) << error.message;
  const auto info = [&](uint32_t pool) {
    hicache_pool_info_t out{};
    out.struct_size = sizeof out;
    EXPECT_EQ(hicache_pool_info(engine, HICACHE_TIER_HOST, pool, &out, &error), HICACHE_OK);
    return out;
  };
  EXPECT_EQ(info(kFull).page_count, 7u);
  EXPECT_EQ(info(kFull).arena_bytes, 7 * full);
  EXPECT_EQ(info(kFull).host_layout, HICACHE_HOST_PAGE_FIRST);
  EXPECT_EQ(info(kSwa).page_count, 10u);
  EXPECT_EQ(info(kSwa).host_layout, HICACHE_HOST_LAYER_FIRST);
  EXPECT_EQ(info(kState).page_count, 7u);
  EXPECT_EQ(info(kState).arena_bytes, 7 * state + 100);
  EXPECT_EQ(info(kState).host_layout, HICACHE_HOST_ENVELOPE);
  // A region that is full refuses; its neighbours' room is not its own.
  Pages taken(8);
  hicache_host_take_t take{kFull, 8, taken.data()};
  EXPECT_EQ(hicache_host_alloc(engine, &take, 1, &error), HICACHE_NO_CAPACITY);
  EXPECT_EQ(error.pool, kFull);
  EXPECT_EQ(error.need_bytes, 8 * full);
  EXPECT_EQ(error.have_bytes, 7 * full);
  take.page_count = 7;
  EXPECT_EQ(hicache_host_alloc(engine, &take, 1, &error), HICACHE_OK);
  ASSERT_EQ(hicache_close(engine, &error), HICACHE_OK);

  const auto refuse = [&](auto change, hicache_status_t status, const char *word) {
    auto wrong = pools;
    change(wrong);
    hicache_options_t with = options;
    with.pools = wrong.data();
    EXPECT_EQ(hicache_open(&with, &engine, &error), status) << error.message;
    EXPECT_NE(std::string(error.message).find(word), std::string::npos) << error.message;
  };
  refuse([](auto &p) { p[kFull].host_layout = 5; }, HICACHE_INVALID_ARGUMENT, "host_layout");
  refuse([](auto &p) { p[kState].host_page_count = 3; }, HICACHE_INVALID_ARGUMENT, "host_page_count");
  refuse([](auto &p) { p[kFull].host_layout = HICACHE_HOST_PAGE_HEAD, p[kFull].head_count = 2; }, HICACHE_INVALID_ARGUMENT, "head_count");
  refuse([](auto &p) { p[kSwa].host_page_count = 1000; }, HICACHE_INFEASIBLE, "host_page_count");
  refuse([&](auto &p) { p[kSwa].host_page_count = static_cast<uint32_t>((options.host_bytes - full) / swa); }, HICACHE_INFEASIBLE, "");
}

// The null backend's tags travel and move as bytes do.
TEST(HostRegions, TagsOnTheNullBackend) {
  EngineShape shape;
  shape.backend = HICACHE_BACKEND_NULL;
  shape.host_layout = HICACHE_HOST_PAGE_FIRST;
  OpenEngine engine(shape);
  const Pages unused = engine.host_alloc(kFull, 4), host = engine.host_alloc(kFull, 6);
  std::vector<uint64_t> tags{11, 12, 13, 14, 15, 16}, found(6);
  ASSERT_EQ(hicache_tags(engine.get(), HICACHE_TIER_HOST, kFull, host.data(), 6, tags.data(), 1, engine.error()), HICACHE_OK);
  engine.host_free(kFull, unused);
  EXPECT_EQ(engine.compact(HICACHE_TIER_HOST).moved_pages, 4u);
  ASSERT_EQ(hicache_tags(engine.get(), HICACHE_TIER_HOST, kFull, host.data(), 6, found.data(), 0, engine.error()), HICACHE_OK);
  EXPECT_EQ(found, tags);
  Pages target;
  const hicache_reservation_t reservation = engine.reserve(6, 0, &target);
  engine.load(reservation, OpenEngine::copies(kFull, target, host));
  engine.await_one();
  Pages places;
  for (uint32_t page : target) places.push_back(engine.place(kFull, page));
  ASSERT_EQ(hicache_tags(engine.get(), HICACHE_TIER_DEVICE, kFull, places.data(), 6, found.data(), 0, engine.error()), HICACHE_OK);
  EXPECT_EQ(found, tags);
  engine.expect_sound();
}

} // namespace
} // namespace hicache_test
