// An open engine for tests, used through hicache.h alone: two or three small pools, stamped pages, short forms of the calls.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "hicache.h"

namespace hicache_test {

constexpr uint32_t kFull = 0;
constexpr uint32_t kSwa = 1;
constexpr uint32_t kState = 2;

struct EngineShape {
  uint32_t backend = HICACHE_BACKEND_CPU;
  bool own_backend = false; // As named, whatever the suite runs on.
  uint32_t layout = HICACHE_LAYOUT_LAYER_MAJOR;
  bool with_state = false;
  bool with_fault = false;
  uint64_t device_bytes = 96 << 10;
  uint64_t host_bytes = 96 << 10;
  uint32_t compaction = HICACHE_COMPACTION_LAZY;
  uint32_t copy_threads = 1;
  uint32_t ticket_max = 0;
  uint64_t held_pages_max = 0;
  uint32_t transfer_pages_max = 0;
  uint64_t host_numa_nodes = 0;
  uint64_t row_bytes = 16;
  uint32_t page_tokens = 4;
  void *device_buffer = nullptr;
  uint64_t device_bytes_max = 0;
  uint32_t sabotage = 0;
  uint32_t pool_flags = 0;
  uint32_t full_virtual_pages = 0;
  uint32_t host_layout = HICACHE_HOST_ENVELOPE;
  uint32_t head_count = 0;
  uint64_t padding_bytes = 0; // Of the FULL pool's envelopes.
  hicache_fault_options_t fault{};
};

using Pages = std::vector<uint32_t>;

// Where engines of this run are that ask for the CPU backend and for nothing that it alone has. main() sets it from --backend.
struct SuiteBackend {
  uint32_t backend = HICACHE_BACKEND_CPU;
  uint64_t opened = 0;                         // Engines on it; not counted on the CPU.
  uint64_t direct = 0, kernel = 0, staged = 0; // Bytes of theirs that crossed the bus, by method.
  // How the bytes of device pages are read and written, behind all work under way. Not used on the CPU.
  void (*read)(uint64_t address, void *to, uint64_t bytes) = nullptr;
  void (*write)(uint64_t address, const void *from, uint64_t bytes) = nullptr;
  // The caller's stream of a small number; the CPU takes any number for one.
  uint64_t (*stream)(uint64_t number) = [](uint64_t number) { return number; };
};
inline SuiteBackend suite_backend;

class OpenEngine {
public:
  explicit OpenEngine(const EngineShape &shape = {}) : shape_(shape) {
    error_.struct_size = sizeof error_;
    status_ = open(shape, &engine_, &error_);
    on_device_ = backend_of(shape) == HICACHE_BACKEND_CUDA;
    if (on_device_) suite_backend.opened++;
    EXPECT_EQ(status_, HICACHE_OK) << error_.message;
  }
  ~OpenEngine() {
    if (engine_ == nullptr) return;
    if (on_device_) {
      const hicache_stats_t last = stats();
      suite_backend.direct += last.direct_bytes;
      suite_backend.kernel += last.kernel_bytes;
      suite_backend.staged += last.staged_bytes;
    }
    EXPECT_EQ(hicache_close(engine_, &error_), HICACHE_OK) << error_.message;
  }
  OpenEngine(const OpenEngine &) = delete;
  OpenEngine &operator=(const OpenEngine &) = delete;

  static std::vector<hicache_pool_options_t> pools(const EngineShape &shape) {
    static const uint32_t full_layers[] = {1, 4, 7};
    static const uint32_t swa_layers[] = {0, 2, 3, 5, 6};
    static const uint32_t state_layers[] = {8, 9};
    hicache_pool_options_t full{};
    full.role = HICACHE_ROLE_FULL;
    full.page_tokens = shape.page_tokens;
    full.layer_count = 3;
    full.layer_ids = full_layers;
    full.k_row_bytes = shape.row_bytes;
    full.v_row_bytes = shape.row_bytes;
    full.envelope_layout = shape.layout;
    full.flags = shape.pool_flags;
    full.host_layout = shape.host_layout;
    full.head_count = shape.head_count;
    full.virtual_page_count = shape.full_virtual_pages;
    hicache_pool_options_t swa = full;
    swa.role = HICACHE_ROLE_SWA;
    swa.window_tokens = 8;
    swa.layer_count = 5;
    if (shape.padding_bytes != 0) full.page_bytes = 3 * 2 * shape.row_bytes * shape.page_tokens + shape.padding_bytes;
    swa.layer_ids = swa_layers;
    swa.virtual_page_count = 0;
    hicache_pool_options_t state{};
    state.role = HICACHE_ROLE_STATE;
    state.page_tokens = 1;
    state.layer_count = 2;
    state.layer_ids = state_layers;
    state.k_row_bytes = 512;
    state.v_row_bytes = 64;
    state.envelope_layout = shape.layout;
    state.host_layout = shape.host_layout;
    state.head_count = shape.head_count;
    std::vector<hicache_pool_options_t> all{full, swa};
    if (shape.with_state) all.push_back(state);
    return all;
  }

  // Faults wrap the CPU backend, and a buffer of this process is no device memory.
  static uint32_t backend_of(const EngineShape &shape) {
    const bool any = shape.backend == HICACHE_BACKEND_CPU && !shape.own_backend && !shape.with_fault && shape.fault.enabled == 0 &&
                     shape.device_buffer == nullptr;
    return any ? suite_backend.backend : shape.backend;
  }

  static hicache_options_t options(const EngineShape &shape, const std::vector<hicache_pool_options_t> &pools) {
    hicache_options_t options{};
    options.struct_size = sizeof options;
    options.abi_version = HICACHE_ABI_MAJOR << 16 | HICACHE_ABI_MINOR;
    options.backend = backend_of(shape);
    options.device_bytes = shape.device_bytes;
    options.device_bytes_max = shape.device_bytes_max;
    options.device_buffer = shape.device_buffer;
    options.host_bytes = shape.host_bytes;
    options.pools = pools.data();
    options.pool_count = static_cast<uint32_t>(pools.size());
    options.pool_stride_bytes = sizeof(hicache_pool_options_t);
    options.compaction = shape.compaction;
    options.copy_thread_count = shape.copy_threads;
    options.ticket_max = shape.ticket_max;
    options.held_pages_max = static_cast<uint32_t>(shape.held_pages_max);
    options.transfer_pages_max = shape.transfer_pages_max;
    options.host_numa_nodes = shape.host_numa_nodes;
    options.sabotage = shape.sabotage;
    options.fault = shape.fault;
    if (shape.with_fault) options.fault.enabled = 1;
    return options;
  }

  static hicache_status_t open(const EngineShape &shape, hicache_engine_t **engine_out, hicache_error_t *error) {
    const auto of = pools(shape);
    const hicache_options_t given = options(shape, of);
    return hicache_open(&given, engine_out, error);
  }

  hicache_engine_t *get() const { return engine_; }
  hicache_error_t *error() { return &error_; }
  std::string message() const { return error_.message; }

  // For tests that close themselves.
  hicache_status_t close() {
    hicache_engine_t *engine = engine_;
    const hicache_status_t status = hicache_close(engine, &error_);
    if (status == HICACHE_OK) engine_ = nullptr;
    return status;
  }

  hicache_pool_info_t info(uint32_t tier, uint32_t pool) {
    hicache_pool_info_t info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(hicache_pool_info(engine_, tier, pool, &info, &error_), HICACHE_OK) << message();
    return info;
  }
  hicache_stats_t stats() {
    hicache_stats_t stats{};
    stats.struct_size = sizeof stats;
    EXPECT_EQ(hicache_stats(engine_, &stats, &error_), HICACHE_OK) << message();
    return stats;
  }
  hicache_pool_stats_t pool_stats(uint32_t tier, uint32_t pool) {
    hicache_pool_stats_t stats{};
    stats.struct_size = sizeof stats;
    EXPECT_EQ(hicache_pool_stats(engine_, tier, pool, &stats, &error_), HICACHE_OK) << message();
    return stats;
  }
  void expect_sound() {
    char report[4096];
    EXPECT_EQ(hicache_verify(engine_, report, sizeof report, &error_), HICACHE_OK) << report;
  }

  // Virtual pages with a page in FULL and SWA (and `swa_tail` of them, if given, in SWA only at the end).
  hicache_status_t try_alloc(uint32_t count, uint32_t swa_count, Pages *pages) {
    pages->assign(count, HICACHE_NO_PAGE);
    hicache_take_t takes[2] = {{kFull, count, pages->data()}, {kSwa, swa_count, nullptr}};
    return hicache_alloc(engine_, takes, 2, &error_);
  }
  Pages alloc(uint32_t count) { return alloc(count, count); }
  Pages alloc(uint32_t count, uint32_t swa_count) {
    Pages pages;
    EXPECT_EQ(try_alloc(count, swa_count, &pages), HICACHE_OK) << message();
    return pages;
  }
  Pages alloc_state(uint32_t count) {
    Pages pages(count, HICACHE_NO_PAGE);
    hicache_take_t take{kState, count, pages.data()};
    EXPECT_EQ(hicache_alloc(engine_, &take, 1, &error_), HICACHE_OK) << message();
    return pages;
  }
  hicache_reservation_t reserve_state(uint32_t count, Pages *pages) {
    pages->assign(count, HICACHE_NO_PAGE);
    hicache_take_t take{kState, count, pages->data()};
    hicache_reservation_t reservation = 0;
    EXPECT_EQ(hicache_reserve(engine_, &take, 1, &reservation, &error_), HICACHE_OK) << message();
    return reservation;
  }
  hicache_status_t try_free(uint32_t pool, const Pages &pages) {
    hicache_pages_t line{pool, static_cast<uint32_t>(pages.size()), pages.data()};
    return hicache_free(engine_, &line, 1, &error_);
  }
  void free(const Pages &pages, uint32_t pool) { EXPECT_EQ(try_free(pool, pages), HICACHE_OK) << message(); }
  void free(const Pages &pages) { EXPECT_EQ(try_free(kFull, pages), HICACHE_OK) << message(); }

  Pages host_alloc(uint32_t pool, uint32_t count) {
    Pages pages(count, HICACHE_NO_PAGE);
    hicache_host_take_t take{pool, count, pages.data()};
    EXPECT_EQ(hicache_host_alloc(engine_, &take, 1, &error_), HICACHE_OK) << message();
    return pages;
  }
  void host_free(uint32_t pool, const Pages &pages) {
    hicache_host_pages_t line{pool, static_cast<uint32_t>(pages.size()), pages.data()};
    EXPECT_EQ(hicache_host_free(engine_, &line, 1, &error_), HICACHE_OK) << message();
  }

  uint32_t place(uint32_t pool, uint32_t vpage) {
    uint32_t place = 0;
    EXPECT_EQ(hicache_inspect(engine_, pool, &vpage, 1, &place, &error_), HICACHE_OK) << message();
    return place;
  }
  uint32_t host_place(uint32_t pool, uint32_t hpage) {
    uint32_t place = 0;
    EXPECT_EQ(hicache_host_inspect(engine_, pool, &hpage, 1, &place, &error_), HICACHE_OK) << message();
    return place;
  }

  // The bytes of a page: its memory on the CPU backend, else a copy that holds until the next call.
  uint8_t *bytes(uint32_t pool, uint32_t vpage) {
    const auto of = info(HICACHE_TIER_DEVICE, pool);
    const uint64_t at = of.arena_base + place(pool, vpage) * of.page_bytes;
    if (!on_device_) return reinterpret_cast<uint8_t *>(at);
    copy_.resize(of.page_bytes);
    suite_backend.read(at, copy_.data(), of.page_bytes);
    return copy_.data();
  }
  uint8_t *host_bytes(uint32_t pool, uint32_t hpage) {
    const auto of = info(HICACHE_TIER_HOST, pool);
    return reinterpret_cast<uint8_t *>(of.arena_base) + host_place(pool, hpage) * of.page_bytes;
  }
  static uint8_t stamp_byte(uint64_t stamp, uint64_t at) {
    uint64_t x = stamp * 0x9e3779b97f4a7c15u + at / 8;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return static_cast<uint8_t>(x >> (at % 8 * 8));
  }
  static void write_stamp(uint8_t *at, uint64_t stamp, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) at[i] = stamp_byte(stamp, i);
  }
  // Index of the first byte of [begin, end) that is not the stamp's; -1 if all are.
  static int64_t first_difference(const uint8_t *at, uint64_t stamp, uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; i++) {
      if (at[i] != stamp_byte(stamp, i)) return static_cast<int64_t>(i);
    }
    return -1;
  }
  void stamp(uint32_t pool, uint32_t vpage, uint64_t stamp) {
    const auto of = info(HICACHE_TIER_DEVICE, pool);
    write_stamp(bytes(pool, vpage), stamp, of.page_bytes);
    if (on_device_) suite_backend.write(of.arena_base + place(pool, vpage) * of.page_bytes, copy_.data(), of.page_bytes);
  }
  void stamp_host(uint32_t pool, uint32_t hpage, uint64_t stamp) {
    write_stamp(host_bytes(pool, hpage), stamp, info(HICACHE_TIER_HOST, pool).page_bytes);
  }
  bool holds(uint32_t pool, uint32_t vpage, uint64_t stamp) {
    return first_difference(bytes(pool, vpage), stamp, 0, info(HICACHE_TIER_DEVICE, pool).page_bytes) == -1;
  }
  bool host_holds(uint32_t pool, uint32_t hpage, uint64_t stamp) {
    return first_difference(host_bytes(pool, hpage), stamp, 0, info(HICACHE_TIER_HOST, pool).page_bytes) == -1;
  }
  // Bytes [begin, end) of a pool-local layer in an envelope (layer-major).
  int64_t layer_difference(uint32_t pool, uint32_t vpage, uint64_t stamp, uint32_t local_layer) {
    const auto of = info(HICACHE_TIER_DEVICE, pool);
    return first_difference(bytes(pool, vpage), stamp, local_layer * of.layer_stride_bytes, (local_layer + 1) * of.layer_stride_bytes);
  }

  // Copies between device pages and host pages of one pool, in order.
  static std::vector<hicache_copy_t> copies(uint32_t pool, const Pages &device, const Pages &host) {
    std::vector<hicache_copy_t> all;
    for (size_t i = 0; i < device.size(); i++) all.push_back({pool, device[i], host[i], 0});
    return all;
  }
  static hicache_transfer_t transfer(const std::vector<hicache_copy_t> &copies, const std::vector<hicache_bind_t> &binds = {}) {
    hicache_transfer_t transfer{};
    transfer.struct_size = sizeof transfer;
    transfer.priority = HICACHE_CLASS_NORMAL;
    transfer.copies = copies.data();
    transfer.copy_count = static_cast<uint32_t>(copies.size());
    transfer.binds = binds.data();
    transfer.bind_count = static_cast<uint32_t>(binds.size());
    return transfer;
  }
  hicache_ticket_t back_up(const std::vector<hicache_copy_t> &of, hicache_ticket_t after = 0) {
    hicache_transfer_t request = transfer(of);
    request.after = after;
    hicache_ticket_t ticket = 0;
    EXPECT_EQ(hicache_back_up(engine_, &request, &ticket, &error_), HICACHE_OK) << message();
    return ticket;
  }
  hicache_status_t try_back_up(const std::vector<hicache_copy_t> &of) {
    hicache_transfer_t request = transfer(of);
    hicache_ticket_t ticket = 0;
    return hicache_back_up(engine_, &request, &ticket, &error_);
  }
  hicache_reservation_t reserve(uint32_t full, uint32_t swa, Pages *vpages) {
    vpages->assign(full, HICACHE_NO_PAGE);
    hicache_take_t takes[2] = {{kFull, full, vpages->data()}, {kSwa, swa, nullptr}};
    hicache_reservation_t reservation = 0;
    EXPECT_EQ(hicache_reserve(engine_, takes, 2, &reservation, &error_), HICACHE_OK) << message();
    return reservation;
  }
  hicache_ticket_t load(hicache_reservation_t reservation, const std::vector<hicache_copy_t> &of,
                        const std::vector<hicache_bind_t> &binds = {}) {
    hicache_transfer_t request = transfer(of, binds);
    request.reservation = reservation;
    request.priority = HICACHE_CLASS_URGENT;
    hicache_ticket_t ticket = 0;
    EXPECT_EQ(hicache_load(engine_, &request, &ticket, &error_), HICACHE_OK) << message();
    return ticket;
  }

  std::vector<hicache_completion_t> poll(uint32_t capacity = 64) {
    std::vector<hicache_completion_t> completions(capacity);
    uint32_t count = 0;
    EXPECT_EQ(hicache_completion_poll(engine_, completions.data(), capacity, &count, &error_), HICACHE_OK) << message();
    completions.resize(count);
    return completions;
  }
  // Reads completions until `count` have come; fewer if none comes for ten seconds.
  std::vector<hicache_completion_t> await(size_t count) {
    std::vector<hicache_completion_t> all;
    while (all.size() < count) {
      hicache_completion_t one[16];
      uint32_t got = 0;
      const auto want = static_cast<uint32_t>(count - all.size() < 16 ? count - all.size() : 16);
      EXPECT_EQ(hicache_completion_wait(engine_, 10'000'000'000u, one, want, &got, &error_), HICACHE_OK) << message();
      if (got == 0) break;
      all.insert(all.end(), one, one + got);
    }
    EXPECT_EQ(all.size(), count);
    return all;
  }
  hicache_completion_t await_one() {
    auto all = await(1);
    return all.empty() ? hicache_completion_t{} : all[0];
  }
  uint32_t run(uint32_t count, bool layers = false) {
    uint32_t ran = 0;
    EXPECT_EQ(hicache_fault_run(engine_, count, layers ? 1 : 0, &ran, &error_), HICACHE_OK) << message();
    return ran;
  }
  hicache_compact_result_t compact(uint32_t tier = HICACHE_TIER_DEVICE) {
    hicache_compact_budget_t budget{};
    budget.struct_size = sizeof budget;
    budget.tier = tier;
    budget.pool = HICACHE_NO_POOL;
    hicache_compact_result_t result{};
    EXPECT_EQ(hicache_compact(engine_, &budget, &result, &error_), HICACHE_OK) << message();
    return result;
  }

private:
  EngineShape shape_;
  bool on_device_ = false;
  std::vector<uint8_t> copy_; // Of a page on a device.
  hicache_engine_t *engine_ = nullptr;
  hicache_error_t error_{};
  hicache_status_t status_ = HICACHE_OK;
};

} // namespace hicache_test
