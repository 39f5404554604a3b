// Bad input at the edge: an error that names the argument, nothing changed, no crash.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>

#include "open_engine.hpp"

namespace hicache_test {
namespace {

class Edge : public testing::Test {
protected:
  void SetUp() override {
    shape_.own_backend = true; // Which options a backend refuses differs.
    pools_ = OpenEngine::pools(shape_);
    options_ = OpenEngine::options(shape_, pools_);
    error_.struct_size = sizeof error_;
  }
  hicache_status_t open() {
    hicache_engine_t *engine = nullptr;
    const hicache_status_t status = hicache_open(&options_, &engine, &error_);
    if (status == HICACHE_OK) {
      EXPECT_EQ(hicache_close(engine, nullptr), HICACHE_OK);
    } else {
      EXPECT_EQ(engine, nullptr);
      EXPECT_EQ(error_.status, status);
    }
    return status;
  }
  // The open fails with this status and the message names the field.
  void expect_refused(hicache_status_t status, const std::string &field) {
    EXPECT_EQ(open(), status) << field << ": " << error_.message;
    EXPECT_NE(std::string(error_.message).find(field), std::string::npos) << error_.message;
    SetUp();
  }

  EngineShape shape_;
  std::vector<hicache_pool_options_t> pools_;
  hicache_options_t options_{};
  hicache_error_t error_{};
};

TEST_F(Edge, OptionsAreCheckedFieldByField) {
  EXPECT_EQ(open(), HICACHE_OK) << error_.message;
  options_.backend = 9;
  expect_refused(HICACHE_INVALID_ARGUMENT, "backend");
  options_.device = 1;
  expect_refused(HICACHE_INVALID_ARGUMENT, "device");
  options_.device_bytes = 0;
  expect_refused(HICACHE_INVALID_ARGUMENT, "device_bytes");
  options_.device_bytes = UINT64_MAX;
  expect_refused(HICACHE_INVALID_ARGUMENT, "device_bytes");
  options_.device_bytes_max = 100;
  expect_refused(HICACHE_INVALID_ARGUMENT, "device_bytes_max");
  options_.host_bytes_max = 100;
  expect_refused(HICACHE_INVALID_ARGUMENT, "host_bytes_max");
  options_.pool_count = 0;
  expect_refused(HICACHE_INVALID_ARGUMENT, "pool_count");
  options_.pool_count = UINT32_MAX;
  expect_refused(HICACHE_INVALID_ARGUMENT, "pool_count");
  options_.pools = nullptr;
  expect_refused(HICACHE_INVALID_ARGUMENT, "pools");
  options_.pool_stride_bytes = 8;
  expect_refused(HICACHE_ABI_MISMATCH, "pool_stride_bytes");
  options_.compaction = 3;
  expect_refused(HICACHE_INVALID_ARGUMENT, "compaction");
  options_.placement = 2;
  expect_refused(HICACHE_INVALID_ARGUMENT, "placement");
  options_.copy_thread_count = 1000;
  expect_refused(HICACHE_INVALID_ARGUMENT, "copy_thread_count");
  options_.ticket_max = UINT32_MAX;
  expect_refused(HICACHE_INVALID_ARGUMENT, "ticket_max");
  options_.fault.fail_ppm = 1000001;
  expect_refused(HICACHE_INVALID_ARGUMENT, "fail_ppm");
  options_.fault.reserved0 = 1;
  expect_refused(HICACHE_UNSUPPORTED, "fault");
#ifndef HICACHE_SABOTAGE
  options_.sabotage = HICACHE_SABOTAGE_IGNORE_PINS;
  expect_refused(HICACHE_UNSUPPORTED, "sabotage");
#endif
  alignas(256) static uint8_t buffer[1024];
  options_.device_buffer = buffer + 16;
  expect_refused(HICACHE_INVALID_ARGUMENT, "device_buffer");
}

// Where nothing crosses a bus there is nothing to choose: the options are taken, and Stats say so.
TEST_F(Edge, CopyChoiceIsNoneWithoutABus) {
  options_.copy_calibration = HICACHE_CALIBRATION_OFF;
  options_.h2d_slowdown_max_permille = 10000;
  options_.d2h_slowdown_max_permille = 1;
  for (uint32_t backend : {HICACHE_BACKEND_CPU, HICACHE_BACKEND_NULL}) {
    options_.backend = backend;
    hicache_engine_t *engine = nullptr;
    ASSERT_EQ(hicache_open(&options_, &engine, &error_), HICACHE_OK) << error_.message;
    hicache_stats_t stats{};
    stats.struct_size = sizeof stats;
    std::memset(&stats.h2d_choice, 0xff, 2 * sizeof stats.h2d_choice);
    ASSERT_EQ(hicache_stats(engine, &stats, &error_), HICACHE_OK) << error_.message;
    const hicache_copy_choice_t none{};
    EXPECT_EQ(stats.h2d_choice.source, HICACHE_CHOICE_NONE);
    EXPECT_EQ(std::memcmp(&stats.h2d_choice, &none, sizeof none), 0);
    EXPECT_EQ(std::memcmp(&stats.d2h_choice, &none, sizeof none), 0);
    EXPECT_EQ(hicache_close(engine, &error_), HICACHE_OK);
  }
}

TEST_F(Edge, PoolsAreCheckedFieldByField) {
  pools_[0].role = 7;
  expect_refused(HICACHE_INVALID_ARGUMENT, "pools[0].role");
  pools_[1].direction = 9;
  expect_refused(HICACHE_INVALID_ARGUMENT, "pools[1].direction");
  pools_[1].k_row_bytes = 24;
  expect_refused(HICACHE_INVALID_ARGUMENT, "pools[1].k_row_bytes");
  pools_[0].v_row_bytes = 8;
  expect_refused(HICACHE_INVALID_ARGUMENT, "pools[0].v_row_bytes");
  pools_[0].k_row_bytes = UINT64_MAX - 15;
  expect_refused(HICACHE_INVALID_ARGUMENT, "pools[0]");
  pools_[0].layer_count = 0;
  expect_refused(HICACHE_INVALID_ARGUMENT, "pools[0].layer_count");
  pools_[0].layer_count = UINT32_MAX;
  expect_refused(HICACHE_INVALID_ARGUMENT, "pools[0].layer_count");
  pools_[0].layer_ids = nullptr;
  expect_refused(HICACHE_INVALID_ARGUMENT, "pools[0].layer_ids");
  const uint32_t descending[] = {4, 3, 9};
  pools_[0].layer_ids = descending;
  expect_refused(HICACHE_INVALID_ARGUMENT, "pools[0].layer_ids[1]");
  const uint32_t shared[] = {1, 2, 9};
  pools_[0].layer_ids = shared;
  expect_refused(HICACHE_INVALID_ARGUMENT, "layer 2");
  pools_[0].page_bytes = 16;
  expect_refused(HICACHE_INVALID_ARGUMENT, "pools[0].page_bytes");
  pools_[0].page_tokens = 0;
  expect_refused(HICACHE_INVALID_ARGUMENT, "page_tokens");
  pools_[0].window_tokens = 5;
  expect_refused(HICACHE_INVALID_ARGUMENT, "pools[0].window_tokens");
  pools_[1].window_tokens = 0;
  expect_refused(HICACHE_INVALID_ARGUMENT, "pools[1].window_tokens");
  pools_[1].virtual_page_count = 5;
  expect_refused(HICACHE_INVALID_ARGUMENT, "virtual_page_count");
  pools_[0].flags = 64;
  expect_refused(HICACHE_UNSUPPORTED, "flags");
  pools_[0].host_layout = 5;
  expect_refused(HICACHE_INVALID_ARGUMENT, "host_layout");
  pools_[0].zeroing = 11;
  expect_refused(HICACHE_INVALID_ARGUMENT, "zeroing");
  options_.device_bytes = 16;
  expect_refused(HICACHE_INFEASIBLE, "");
  options_.copy_method = 4;
  expect_refused(HICACHE_INVALID_ARGUMENT, "copy_method");
  options_.copy_method = HICACHE_COPY_STAGED;
  expect_refused(HICACHE_UNSUPPORTED, "copy_method");
  options_.copy_calibration = 2;
  expect_refused(HICACHE_INVALID_ARGUMENT, "copy_calibration");
  options_.h2d_slowdown_max_permille = 10001;
  expect_refused(HICACHE_INVALID_ARGUMENT, "h2d_slowdown_max_permille is 10001, at most 10000");
  options_.d2h_slowdown_max_permille = 10001;
  expect_refused(HICACHE_INVALID_ARGUMENT, "d2h_slowdown_max_permille is 10001, at most 10000");
  options_.reserved1 = 1;
  expect_refused(HICACHE_INVALID_ARGUMENT, "reserved1");
  options_.request_tokens_max = 1u << 30;
  expect_refused(HICACHE_INFEASIBLE, "");
}

TEST_F(Edge, StructSizesAndTails) {
  options_.struct_size = 4;
  expect_refused(HICACHE_ABI_MISMATCH, "struct_size");
  options_.struct_size = UINT32_MAX;
  expect_refused(HICACHE_ABI_MISMATCH, "struct_size");
  options_.abi_version = 7u << 16;
  expect_refused(HICACHE_ABI_MISMATCH, "major");
  // A caller of a later minor: larger structs, whose new fields are zero or not.
  struct Later {
    hicache_options_t options;
    uint64_t news;
  } later{options_, 0};
  later.options.struct_size = sizeof later;
  hicache_engine_t *engine = nullptr;
  ASSERT_EQ(hicache_open(&later.options, &engine, &error_), HICACHE_OK) << error_.message;
  EXPECT_EQ(hicache_close(engine, &error_), HICACHE_OK);
  later.news = 1;
  EXPECT_EQ(hicache_open(&later.options, &engine, &error_), HICACHE_UNSUPPORTED);
  struct LaterPool {
    hicache_pool_options_t pool;
    uint64_t news;
  } later_pools[2] = {{pools_[0], 0}, {pools_[1], 0}};
  options_.pools = &later_pools[0].pool;
  options_.pool_stride_bytes = sizeof(LaterPool);
  EXPECT_EQ(open(), HICACHE_OK) << error_.message;
  later_pools[1].news = 1;
  EXPECT_EQ(open(), HICACHE_UNSUPPORTED);
}

TEST_F(Edge, ErrorsOfAnySize) {
  options_.backend = 9;
  hicache_engine_t *engine = nullptr;
  EXPECT_EQ(hicache_open(&options_, &engine, nullptr), HICACHE_INVALID_ARGUMENT);
  for (uint32_t size : {0u, 4u, 8u, 12u, 60u, 100u, static_cast<uint32_t>(sizeof(hicache_error_t))}) {
    uint8_t room[sizeof(hicache_error_t) + 16];
    std::memset(room, 0xab, sizeof room);
    std::memcpy(room, &size, sizeof size);
    EXPECT_EQ(hicache_open(&options_, &engine, reinterpret_cast<hicache_error_t *>(room)), HICACHE_INVALID_ARGUMENT);
    for (size_t at = std::max<size_t>(size, 4); at < sizeof room; at++) ASSERT_EQ(room[at], 0xab) << "size " << size << " byte " << at;
    if (size > offsetof(hicache_error_t, message)) {
      EXPECT_LT(strnlen(reinterpret_cast<char *>(room) + offsetof(hicache_error_t, message), size), size);
    }
  }
}

TEST_F(Edge, NullEverywhere) {
  EXPECT_EQ(hicache_open(nullptr, nullptr, &error_), HICACHE_INVALID_ARGUMENT);
  EXPECT_EQ(hicache_open(&options_, nullptr, &error_), HICACHE_INVALID_ARGUMENT);
  EXPECT_EQ(hicache_close(nullptr, &error_), HICACHE_OK);
  OpenEngine open;
  hicache_engine_t *engine = open.get();
  hicache_error_t *e = &error_;
  const auto before = open.stats();
  uint64_t id = 0;
  uint32_t number = 0;
  hicache_take_t null_take{kFull, 2, nullptr};
  hicache_pages_t null_pages{kFull, 2, nullptr};
  hicache_host_take_t null_host_take{kFull, 2, nullptr};
  hicache_host_pages_t null_host_pages{kFull, 2, nullptr};
  hicache_transfer_t null_copies{};
  null_copies.struct_size = sizeof null_copies;
  null_copies.copy_count = 3;
  hicache_transfer_t null_binds{};
  null_binds.struct_size = sizeof null_binds;
  null_binds.bind_count = 3;
  hicache_sequence_t null_sequence{nullptr, 0, 4, 0, 4, HICACHE_NO_PAGE, 0};
  for (hicache_engine_t *of : {engine, static_cast<hicache_engine_t *>(nullptr)}) {
    EXPECT_EQ(hicache_alloc(of, nullptr, 1, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_alloc(of, &null_take, 1, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_free(of, nullptr, 1, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_free(of, &null_pages, 1, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_extend(of, kFull, nullptr, 1, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_extend(of, kFull, &null_sequence, 1, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_reserve(of, &null_take, 1, &id, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_reserve(of, nullptr, 0, nullptr, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_reservation_pages(of, 1, kFull, nullptr, 4, &number, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_reservation_pages(of, 1, kFull, nullptr, 0, nullptr, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_load(of, nullptr, &id, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_load(of, &null_copies, &id, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_load(of, &null_binds, &id, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_back_up(of, &null_copies, &id, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_back_up(of, &null_copies, nullptr, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_completion_poll(of, nullptr, 1, &number, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_completion_poll(of, nullptr, 0, nullptr, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_completion_wait(of, 0, nullptr, 1, &number, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_lease_acquire(of, &null_pages, 1, &id, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_lease_acquire(of, nullptr, 0, nullptr, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_step_open(of, 0, &null_pages, 1, &id, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_kernel_ids(of, 1, kFull, 0, nullptr, 1, nullptr, nullptr, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_inspect(of, kFull, nullptr, 1, nullptr, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_compact(of, nullptr, nullptr, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_fits(of, nullptr, 1, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_capacity(of, HICACHE_TIER_DEVICE, kFull, nullptr, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_reclaim_plan(of, nullptr, 0, nullptr, 0, nullptr, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_host_alloc(of, nullptr, 1, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_host_alloc(of, &null_host_take, 1, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_host_free(of, &null_host_pages, 1, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_host_view(of, &null_host_pages, nullptr, &id, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_host_view(of, nullptr, nullptr, &id, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_host_inspect(of, kFull, nullptr, 1, nullptr, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_tags(of, HICACHE_TIER_DEVICE, kFull, nullptr, 1, nullptr, 0, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_stats(of, nullptr, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_pool_stats(of, HICACHE_TIER_DEVICE, kFull, nullptr, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_pool_info(of, HICACHE_TIER_DEVICE, kFull, nullptr, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_map(of, HICACHE_TIER_DEVICE, kFull, 0, 1, nullptr, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_verify(of, nullptr, 10, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_EQ(hicache_fault_run(of, 1, 0, nullptr, e), HICACHE_INVALID_ARGUMENT);
  }
  EXPECT_EQ(hicache_completion_fd(nullptr), -1);
  const auto after = open.stats();
  EXPECT_EQ(std::memcmp(&before, &after, offsetof(hicache_stats_t, takes_refused)), 0);
  open.expect_sound();
}

TEST_F(Edge, CountsOfZeroAndOfAllBits) {
  OpenEngine open;
  hicache_engine_t *engine = open.get();
  hicache_error_t *e = &error_;
  constexpr uint32_t kAll = UINT32_MAX;
  uint32_t page = 1, number = 0;
  int32_t kernel_id = 0;
  uint64_t id = 0, tag = 0;
  void *address = nullptr;
  hicache_take_t take{kFull, 0, nullptr};
  EXPECT_EQ(hicache_alloc(engine, nullptr, 0, e), HICACHE_OK);
  EXPECT_EQ(hicache_alloc(engine, &take, 1, e), HICACHE_OK);
  EXPECT_EQ(hicache_free(engine, nullptr, 0, e), HICACHE_OK);
  EXPECT_EQ(hicache_host_alloc(engine, nullptr, 0, e), HICACHE_OK);
  take = {kFull, kAll, &page};
  EXPECT_EQ(hicache_alloc(engine, &take, kAll, e), HICACHE_INVALID_ARGUMENT);
  EXPECT_EQ(hicache_alloc(engine, &take, 1, e), HICACHE_NO_CAPACITY);
  EXPECT_EQ(hicache_reserve(engine, &take, 1, &id, e), HICACHE_NO_CAPACITY);
  take = {kSwa, kAll, &page};
  EXPECT_EQ(hicache_alloc(engine, &take, 1, e), HICACHE_INVALID_ARGUMENT);
  EXPECT_EQ(hicache_reserve(engine, &take, 1, &id, e), HICACHE_INVALID_ARGUMENT);
  hicache_pages_t pages{kFull, kAll, &page};
  EXPECT_LT(hicache_free(engine, &pages, 1, e), 0);
  EXPECT_LT(hicache_free(engine, &pages, kAll, e), 0);
  EXPECT_LT(hicache_lease_acquire(engine, &pages, 1, &id, e), 0);
  EXPECT_LT(hicache_step_open(engine, 0, &pages, 1, &id, e), 0);
  EXPECT_LT(hicache_inspect(engine, kFull, &page, kAll, &page, e), 0);
  EXPECT_LT(hicache_kernel_ids(engine, 1, kFull, 0, &page, kAll, &kernel_id, nullptr, e), 0);
  EXPECT_LT(hicache_map(engine, HICACHE_TIER_DEVICE, kFull, 0, kAll, reinterpret_cast<uint8_t *>(&page), e), 0);
  EXPECT_LT(hicache_map(engine, HICACHE_TIER_DEVICE, kFull, kAll, 1, reinterpret_cast<uint8_t *>(&page), e), 0);
  hicache_sequence_t sequence{&page, 0, 1, 0, kAll, HICACHE_NO_PAGE, 0};
  EXPECT_LT(hicache_extend(engine, kFull, &sequence, 1, e), 0);
  EXPECT_LT(hicache_extend(engine, kFull, &sequence, kAll, e), 0);
  sequence = {&page, 2, 1, 0, 1, HICACHE_NO_PAGE, 0};
  EXPECT_EQ(hicache_extend(engine, kFull, &sequence, 1, e), HICACHE_INVALID_ARGUMENT);
  hicache_copy_t copy{kFull, 1, 1, 0};
  hicache_transfer_t transfer{};
  transfer.struct_size = sizeof transfer;
  transfer.copies = &copy;
  transfer.copy_count = kAll;
  EXPECT_EQ(hicache_back_up(engine, &transfer, &id, e), HICACHE_LIMIT);
  hicache_demand_t demand{kFull, kAll};
  EXPECT_EQ(hicache_fits(engine, &demand, 1, e), HICACHE_NO_CAPACITY);
  EXPECT_EQ(hicache_fits(engine, &demand, kAll, e), HICACHE_INVALID_ARGUMENT);
  hicache_host_take_t host_take{kFull, kAll, &page};
  EXPECT_EQ(hicache_host_alloc(engine, &host_take, 1, e), HICACHE_NO_CAPACITY);
  hicache_host_pages_t host_pages{kFull, kAll, &page};
  EXPECT_LT(hicache_host_free(engine, &host_pages, 1, e), 0);
  EXPECT_LT(hicache_host_view(engine, &host_pages, &address, &id, e), 0);
  EXPECT_LT(hicache_tags(engine, HICACHE_TIER_DEVICE, kFull, &page, kAll, &tag, 0, e), 0);
  EXPECT_EQ(hicache_completion_poll(engine, nullptr, 0, &number, e), HICACHE_OK);
  EXPECT_EQ(number, 0u);
  open.expect_sound();
}

TEST_F(Edge, PoolsAndTiersThatDoNotExist) {
  EngineShape no_host;
  no_host.host_bytes = 0;
  OpenEngine open(no_host);
  hicache_error_t *e = &error_;
  uint32_t page = 1;
  uint64_t id = 0;
  for (uint32_t pool : {2u, 16u, UINT32_MAX}) {
    hicache_take_t take{pool, 1, &page};
    EXPECT_EQ(hicache_alloc(open.get(), &take, 1, e), HICACHE_INVALID_ARGUMENT);
    hicache_pages_t pages{pool, 1, &page};
    EXPECT_EQ(hicache_free(open.get(), &pages, 1, e), HICACHE_INVALID_ARGUMENT);
    EXPECT_LT(hicache_lease_acquire(open.get(), &pages, 1, &id, e), 0);
    EXPECT_EQ(hicache_extend(open.get(), pool, nullptr, 0, e), HICACHE_INVALID_ARGUMENT);
    hicache_demand_t demand{pool, 1};
    EXPECT_LT(hicache_fits(open.get(), &demand, 1, e), 0);
    hicache_capacity_t capacity;
    EXPECT_LT(hicache_capacity(open.get(), HICACHE_TIER_DEVICE, pool, &capacity, e), 0);
    EXPECT_LT(hicache_inspect(open.get(), pool, &page, 1, &page, e), 0);
  }
  hicache_host_take_t take{kFull, 1, &page};
  EXPECT_EQ(hicache_host_alloc(open.get(), &take, 1, e), HICACHE_UNSUPPORTED);
  hicache_capacity_t capacity;
  EXPECT_EQ(hicache_capacity(open.get(), HICACHE_TIER_HOST, kFull, &capacity, e), HICACHE_UNSUPPORTED);
  EXPECT_EQ(hicache_capacity(open.get(), 3, kFull, &capacity, e), HICACHE_INVALID_ARGUMENT);
  const Pages pages = open.alloc(1);
  EXPECT_EQ(open.try_back_up({{kFull, pages[0], 0, 0}}), HICACHE_UNSUPPORTED);
  uint32_t ran;
  EXPECT_EQ(hicache_fault_run(open.get(), 1, 0, &ran, e), HICACHE_UNSUPPORTED);
  EXPECT_EQ(hicache_fault_hold(open.get(), 1, 0, e), HICACHE_UNSUPPORTED);
  uint64_t tag;
  EXPECT_EQ(hicache_tags(open.get(), HICACHE_TIER_DEVICE, kFull, &page, 1, &tag, 0, e), HICACHE_UNSUPPORTED);
}

TEST_F(Edge, IdsOfAnotherEngineAndOfAnotherKind) {
  OpenEngine one, two;
  const Pages pages = one.alloc(2);
  two.alloc(2);
  hicache_pages_t line{kFull, 2, pages.data()};
  hicache_lease_t lease = 0;
  hicache_step_t step = 0;
  Pages reserved;
  ASSERT_EQ(hicache_lease_acquire(one.get(), &line, 1, &lease, &error_), HICACHE_OK);
  ASSERT_EQ(hicache_step_open(one.get(), 0, &line, 1, &step, &error_), HICACHE_OK);
  const hicache_reservation_t reservation = one.reserve(1, 0, &reserved);
  const Pages host = one.host_alloc(kFull, 1);
  const hicache_ticket_t ticket = one.back_up({{kFull, pages[0], host[0], 0}});
  one.await_one();
  std::set<uint64_t> ids{lease, step, reservation, ticket};
  EXPECT_EQ(ids.size(), 4u);
  EXPECT_EQ(ids.count(0), 0u);
  int32_t kernel_ids[2];
  for (uint64_t id : {uint64_t{lease}, uint64_t{step}, uint64_t{reservation}, uint64_t{ticket}, uint64_t{12345}, ~uint64_t{0}}) {
    EXPECT_EQ(hicache_lease_release(two.get(), id, &error_), HICACHE_STALE_ID);
    EXPECT_EQ(hicache_step_close(two.get(), id, &error_), HICACHE_STALE_ID);
    EXPECT_EQ(hicache_cancel(two.get(), id, &error_), HICACHE_STALE_ID);
    EXPECT_EQ(hicache_ticket_status(two.get(), id, nullptr, &error_), HICACHE_STALE_ID);
    EXPECT_EQ(hicache_kernel_ids(two.get(), id, kFull, 0, pages.data(), 2, kernel_ids, nullptr, &error_), HICACHE_STALE_ID);
    if (id != lease) { EXPECT_EQ(hicache_lease_release(one.get(), id, &error_), HICACHE_STALE_ID); }
    if (id != step) { EXPECT_EQ(hicache_step_close(one.get(), id, &error_), HICACHE_STALE_ID); }
    if (id != reservation) { EXPECT_EQ(hicache_cancel(one.get(), id, &error_), HICACHE_STALE_ID); }
    if (id != lease && id != step) {
      EXPECT_EQ(hicache_kernel_ids(one.get(), id, kFull, 0, pages.data(), 2, kernel_ids, nullptr, &error_), HICACHE_STALE_ID);
    }
  }
  EXPECT_EQ(hicache_kernel_ids(one.get(), 0, kFull, 0, pages.data(), 2, kernel_ids, nullptr, &error_), HICACHE_INVALID_ARGUMENT);
  for (uint64_t holder : {lease, step}) {
    EXPECT_EQ(hicache_kernel_ids(one.get(), holder, kFull, 0, pages.data(), 2, kernel_ids, nullptr, &error_), HICACHE_OK);
    EXPECT_EQ(static_cast<uint32_t>(kernel_ids[1]), one.place(kFull, pages[1]));
  }
  // While they are held the engine does not close, and says what is held.
  EXPECT_EQ(one.close(), HICACHE_BUSY);
  EXPECT_NE(one.message().find("1 leases"), std::string::npos) << one.message();
  EXPECT_EQ(hicache_lease_release(one.get(), lease, &error_), HICACHE_OK);
  EXPECT_EQ(hicache_lease_release(one.get(), lease, &error_), HICACHE_STALE_ID);
  EXPECT_EQ(one.close(), HICACHE_BUSY);
  EXPECT_EQ(hicache_step_close(one.get(), step, &error_), HICACHE_OK);
  EXPECT_EQ(one.close(), HICACHE_BUSY);
  EXPECT_EQ(hicache_cancel(one.get(), reservation, &error_), HICACHE_OK);
  EXPECT_EQ(one.close(), HICACHE_OK);
}

TEST_F(Edge, ClosedAndForeignPointers) {
  hicache_engine_t *engine = nullptr;
  ASSERT_EQ(hicache_open(&options_, &engine, &error_), HICACHE_OK);
  ASSERT_EQ(hicache_close(engine, &error_), HICACHE_OK);
  uint32_t page, number;
  hicache_take_t take{kFull, 1, &page};
  hicache_stats_t stats{};
  stats.struct_size = sizeof stats;
  for (int i = 0; i < 3; i++) {
    EXPECT_EQ(hicache_alloc(engine, &take, 1, &error_), HICACHE_CLOSED);
    EXPECT_EQ(hicache_stats(engine, &stats, &error_), HICACHE_CLOSED);
    EXPECT_EQ(hicache_completion_wait(engine, 0, nullptr, 0, &number, &error_), HICACHE_CLOSED);
    EXPECT_EQ(hicache_close(engine, &error_), HICACHE_CLOSED);
    hicache_engine_t *other = nullptr;
    ASSERT_EQ(hicache_open(&options_, &other, &error_), HICACHE_OK);
    EXPECT_NE(other, engine) << "an address is not reused soon";
    EXPECT_EQ(hicache_close(other, &error_), HICACHE_OK);
  }
  EXPECT_EQ(hicache_completion_fd(engine), -1);
  uint64_t something[8] = {};
  auto *foreign = reinterpret_cast<hicache_engine_t *>(something);
  EXPECT_EQ(hicache_alloc(foreign, &take, 1, &error_), HICACHE_INVALID_ARGUMENT);
  EXPECT_EQ(hicache_close(foreign, &error_), HICACHE_INVALID_ARGUMENT);
  EXPECT_EQ(hicache_close(reinterpret_cast<hicache_engine_t *>(reinterpret_cast<char *>(engine) + 8), &error_), HICACHE_INVALID_ARGUMENT);
}

TEST_F(Edge, LogsFaultsAndBlocksOfArguments) {
  OpenEngine engine;
  const auto expect = [&](hicache_status_t status, hicache_status_t want, const char *named) {
    EXPECT_EQ(status, want) << named;
    EXPECT_NE(std::strstr(error_.message, named), nullptr) << error_.message;
  };
  uint64_t bytes = 77;
  char buffer[64];
  expect(hicache_log_start(engine.get(), 0, &error_), HICACHE_INVALID_ARGUMENT, "capacity_bytes");
  expect(hicache_log_start(engine.get(), UINT64_MAX, &error_), HICACHE_INVALID_ARGUMENT, "capacity_bytes");
  expect(hicache_log_drain(engine.get(), nullptr, 8, &bytes, &error_), HICACHE_INVALID_ARGUMENT, "buffer");
  expect(hicache_log_drain(engine.get(), buffer, sizeof buffer, nullptr, &error_), HICACHE_INVALID_ARGUMENT, "bytes_out");
  EXPECT_EQ(hicache_log_drain(engine.get(), nullptr, 0, &bytes, &error_), HICACHE_OK);
  EXPECT_EQ(bytes, 0u);
  ASSERT_EQ(hicache_log_start(engine.get(), 64 << 10, &error_), HICACHE_OK);
  expect(hicache_log_drain(engine.get(), buffer, 8, &bytes, &error_), HICACHE_INVALID_ARGUMENT, "buffer_bytes");
  EXPECT_EQ(error_.need_bytes, 32u) << "the header's";
  expect(hicache_fault_finish(engine.get(), 1, 0, &error_), HICACHE_UNSUPPORTED, "fault injection");
  expect(hicache_fault_finish(engine.get(), 1, 2, &error_), HICACHE_INVALID_ARGUMENT, "fails");
  hicache_call_t call{};
  EXPECT_EQ(hicache_invoke(nullptr), HICACHE_INVALID_ARGUMENT);
  EXPECT_EQ(hicache_invoke(&call), HICACHE_INVALID_ARGUMENT);
  call.function = reinterpret_cast<void *>(&hicache_abi_version);
  EXPECT_EQ(hicache_invoke(&call), HICACHE_OK);
  EXPECT_EQ(static_cast<uint32_t>(call.result), hicache_abi_version());
}

// Threads at exit: nothing is destroyed under them, and an inherited engine does not keep a forked child from its exec or exit.
TEST(ProcessEnd, ExitWithAnOpenEngine) {
  auto leave_open = [] {
    auto *engine = new OpenEngine; // Not closed.
    const Pages pages = engine->alloc(8);
    const Pages host = engine->host_alloc(kFull, 8);
    engine->back_up(OpenEngine::copies(kFull, pages, host));
    const pid_t child = fork();
    if (child == 0) _exit(3);
    int status = 0;
    if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 3) std::exit(1);
    std::exit(0);
  };
  EXPECT_EXIT(leave_open(), testing::ExitedWithCode(0), "");
}

TEST(Layout, EveryStructOnceAndAsCompiledHere) {
  const uint32_t count = hicache_abi_layout(UINT32_MAX, nullptr, nullptr);
  EXPECT_GT(count, 150u);
  std::set<std::string> names;
  for (uint32_t i = 0; i < count; i++) {
    const char *name = nullptr;
    uint64_t value = UINT64_MAX;
    EXPECT_EQ(hicache_abi_layout(i, &name, &value), count);
    ASSERT_NE(name, nullptr);
    EXPECT_TRUE(names.insert(name).second) << name;
    if (std::string(name) == "hicache_copy") { EXPECT_EQ(value, sizeof(hicache_copy_t)); }
    if (std::string(name) == "hicache_error.message") { EXPECT_EQ(value, offsetof(hicache_error_t, message)); }
    if (std::string(name) == "hicache_options.fault") { EXPECT_EQ(value, offsetof(hicache_options_t, fault)); }
  }
  EXPECT_EQ(names.count("hicache_pool_info.v_token_stride_bytes"), 1u);
  EXPECT_EQ(hicache_abi_version(), HICACHE_ABI_MAJOR << 16 | HICACHE_ABI_MINOR);
  EXPECT_NE(std::string(hicache_build_info()).find("backends=cpu,null,fault"), std::string::npos);
  EXPECT_STREQ(hicache_status_name(HICACHE_NO_CAPACITY), "NO_CAPACITY");
  EXPECT_STREQ(hicache_status_name(77), "UNKNOWN");
}

} // namespace
} // namespace hicache_test
