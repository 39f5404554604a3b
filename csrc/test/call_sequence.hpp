// Reads bytes as calls of hicache.h: any sequence, right and wrong arguments mixed. Nothing may crash, and the invariants hold at every
// end. Used by the fuzz target and, with seeded bytes, by a test.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "hicache.h"

namespace hicache_test {

class CallSequence {
public:
  CallSequence(const uint8_t *bytes, size_t count) : at_(bytes), end_(bytes + count) { error_.struct_size = sizeof error_; }
  ~CallSequence() { close(); }

  // Empty if all went well, else the first violated invariant.
  std::string run() {
    if (!open()) return "";
    for (uint32_t calls = 0; at_ < end_ && failure_.empty(); calls++) {
      call();
      if (calls % 16 == 15) verify();
    }
    verify();
    return failure_;
  }

private:
  using Pages = std::vector<uint32_t>;

  uint8_t byte() { return at_ < end_ ? *at_++ : 0; }
  uint32_t below(uint32_t limit) { return byte() % limit; }
  bool one_in(uint32_t n) { return below(n) == 0; }
  uint32_t garbage() {
    static const uint32_t values[] = {0, 1, 2, 3, 63, 64, 1000, 0x7fffffff, 0x80000000, 0xfffffff0, 0xfffffffe, 0xffffffff};
    return values[below(12)];
  }
  uint64_t id(const std::vector<uint64_t> &known) {
    if (known.empty() || one_in(12)) return garbage() * (one_in(2) ? 1 : uint64_t{0x100000001});
    return known[below(static_cast<uint32_t>(known.size()))];
  }
  uint32_t pool() { return one_in(24) ? garbage() : below(pool_count_); }
  uint32_t page(const Pages &known) {
    if (known.empty() || one_in(12)) return garbage();
    return known[below(static_cast<uint32_t>(known.size()))];
  }
  Pages some(const Pages &known) {
    Pages pages(below(6));
    for (auto &one : pages) one = page(known);
    return pages;
  }

  bool open() {
    static const uint32_t full_layers[] = {1, 4}, swa_layers[] = {0, 2, 3}, state_layers[] = {5};
    const uint8_t shape = byte();
    hicache_pool_options_t pools[3] = {};
    pools[0].role = HICACHE_ROLE_FULL;
    pools[0].page_tokens = 2;
    pools[0].layer_count = 2;
    pools[0].layer_ids = full_layers;
    pools[0].k_row_bytes = 16;
    pools[0].v_row_bytes = 16;
    pools[0].envelope_layout = shape >> 3 & 1;
    pools[1] = pools[0];
    pools[1].role = HICACHE_ROLE_SWA;
    pools[1].window_tokens = 4;
    pools[1].layer_count = 3;
    pools[1].layer_ids = swa_layers;
    pools[2].role = HICACHE_ROLE_STATE;
    pools[2].page_tokens = 1;
    pools[2].layer_count = 1;
    pools[2].layer_ids = state_layers;
    pools[2].k_row_bytes = 240;
    pool_count_ = 2 + (shape >> 2 & 1);
    hicache_options_t options{};
    options.struct_size = sizeof options;
    options.abi_version = HICACHE_ABI_MAJOR << 16 | HICACHE_ABI_MINOR;
    options.backend = (shape & 1) != 0 ? HICACHE_BACKEND_NULL : HICACHE_BACKEND_CPU;
    options.device_bytes = 4096 + below(64) * 16;
    options.device_bytes_max = 16384;
    options.host_bytes = one_in(8) ? 0 : 4096;
    options.pools = pools;
    options.pool_count = pool_count_;
    options.compaction = (shape >> 4) % 3;
    options.fault.enabled = 1; // Copies run inside calls: the bytes alone decide what happens.
    options.fault.hold = shape >> 6 & 1;
    options.fault.fail_ppm = (shape >> 7) * 200000;
    options.fault.seed = shape;
    options.fault.delay_max_ns = 1000;
    options.ticket_max = 4 + below(8);
    options.lease_max = 4;
    options.step_max = 4;
    options.reservation_max = 4;
    if (hicache_open(&options, &engine_, &error_) != HICACHE_OK) return false;
    if (one_in(2)) good(hicache_log_start(engine_, 64 << 10, &error_));
    return true;
  }

  void close() {
    if (engine_ == nullptr) return;
    for (uint64_t lease : leases_) hicache_lease_release(engine_, lease, nullptr);
    for (uint64_t step : steps_) hicache_step_close(engine_, step, nullptr);
    for (uint64_t reservation : reservations_) hicache_cancel(engine_, reservation, nullptr);
    const hicache_status_t status = hicache_close(engine_, &error_);
    if (status != HICACHE_OK && failure_.empty()) failure_ = error_.message;
    if (hicache_close(engine_, &error_) != HICACHE_CLOSED) __builtin_trap();
    if (status != HICACHE_OK) __builtin_trap();
    engine_ = nullptr;
  }

  void verify() {
    char report[1024];
    if (hicache_verify(engine_, report, sizeof report, &error_) != HICACHE_OK && failure_.empty()) failure_ = report;
  }

  // A refusal must come with a status that exists and a sentence.
  bool good(hicache_status_t status) {
    if (status < 0) {
      if (std::strcmp(hicache_status_name(status), "UNKNOWN") == 0 || error_.message[0] == 0 || error_.status != status)
        failure_ = "an error without a sentence";
      if (status == HICACHE_INTERNAL) failure_ = std::string("INTERNAL: ") + error_.message;
    }
    return status == HICACHE_OK;
  }

  void keep(Pages *known, const Pages &pages) {
    known->insert(known->end(), pages.begin(), pages.end());
    if (known->size() > 96) known->erase(known->begin(), known->begin() + 32);
  }

  void call() {
    switch (below(24)) {
      case 0:
      case 1:
      case 2: take(false); break;
      case 3: take(true); break;
      case 4: {
        const Pages pages = some(pages_);
        hicache_pages_t line{pool(), static_cast<uint32_t>(pages.size()), pages.data()};
        good(hicache_free(engine_, &line, 1, &error_));
        break;
      }
      case 5: extend(); break;
      case 6: good(hicache_cancel(engine_, id(reservations_), &error_)); break;
      case 7:
      case 8: load(); break;
      case 9:
      case 10: back_up(); break;
      case 11: {
        hicache_completion_t completions[4];
        uint32_t count = 0;
        good(hicache_completion_poll(engine_, completions, below(5), &count, &error_));
        break;
      }
      case 12: {
        uint32_t ran = 0;
        good(hicache_fault_run(engine_, below(4), below(2), &ran, &error_));
        break;
      }
      case 13: good(hicache_fault_hold(engine_, below(2), below(2), &error_)); break;
      case 14: {
        const Pages pages = some(pages_);
        hicache_pages_t line{pool(), static_cast<uint32_t>(pages.size()), pages.data()};
        uint64_t lease = 0;
        if (good(hicache_lease_acquire(engine_, &line, 1, &lease, &error_))) leases_.push_back(lease);
        break;
      }
      case 15: good(hicache_lease_release(engine_, id(leases_), &error_)); break;
      case 16: {
        const Pages pages = some(pages_);
        hicache_pages_t line{pool(), static_cast<uint32_t>(pages.size()), pages.data()};
        uint64_t step = 0;
        if (good(hicache_step_open(engine_, below(3), &line, 1, &step, &error_))) steps_.push_back(step);
        break;
      }
      case 17: good(hicache_step_close(engine_, id(steps_), &error_)); break;
      case 18: {
        hicache_compact_budget_t budget{sizeof budget, 1 + below(2), below(4), one_in(2) ? HICACHE_NO_POOL : pool(), below(3) * 100};
        good(hicache_compact(engine_, &budget, nullptr, &error_));
        break;
      }
      case 19: host_take(); break;
      case 20: {
        const Pages pages = some(host_pages_);
        hicache_host_pages_t line{pool(), static_cast<uint32_t>(pages.size()), pages.data()};
        good(hicache_host_free(engine_, &line, 1, &error_));
        break;
      }
      case 21: view_and_translate(); break;
      case 22: ask(); break;
      default: batch(); break;
    }
  }

  void take(bool reserve) {
    Pages pages(below(8));
    hicache_take_t lines[3] = {{0, static_cast<uint32_t>(pages.size()), pages.data()}, {1, below(6), nullptr}, {pool(), 0, nullptr}};
    Pages more(below(3));
    if (lines[2].pool != 1) {
      lines[2].page_count = static_cast<uint32_t>(more.size());
      lines[2].vpages = more.data();
    } else if (!reserve && one_in(2)) {
      more = some(pages_);
      lines[2].page_count = static_cast<uint32_t>(more.size());
      lines[2].vpages = more.data();
    }
    uint64_t reservation = 0;
    const uint32_t count = below(4);
    if (!good(reserve ? hicache_reserve(engine_, lines, count, &reservation, &error_) : hicache_alloc(engine_, lines, count, &error_)))
      return;
    if (reserve) reservations_.push_back(reservation);
    if (count > 0) keep(&pages_, pages);
    if (count > 2) keep(&pages_, more);
  }

  void extend() {
    Pages row = some(pages_);
    row.resize(8, 0);
    const uint32_t pages = below(4);
    hicache_sequence_t sequence{row.data(), pages,   one_in(8) ? garbage() % 9 : 8, pages * 2 - (pages > 0 ? below(2) : 0), below(6),
                                garbage(),  below(2)};
    if (good(hicache_extend(engine_, pool(), &sequence, 1, &error_))) keep(&pages_, Pages(row.begin(), row.begin() + sequence.vpage_count));
  }

  void load() {
    std::vector<hicache_copy_t> copies(below(4));
    std::vector<hicache_bind_t> binds(below(4));
    for (auto &copy : copies) copy = {pool(), recent(), page(host_pages_), 0};
    for (auto &bind : binds) bind = {pool(), recent()};
    hicache_transfer_t transfer{};
    transfer.struct_size = sizeof transfer;
    transfer.priority = below(4);
    transfer.reservation = id(reservations_);
    transfer.copies = copies.data();
    transfer.copy_count = static_cast<uint32_t>(copies.size());
    transfer.binds = binds.data();
    transfer.bind_count = static_cast<uint32_t>(binds.size());
    transfer.after = one_in(3) ? id(tickets_) : 0;
    uint64_t ticket = 0;
    if (good(hicache_load(engine_, &transfer, &ticket, &error_)) && ticket != 0) tickets_.push_back(ticket);
  }
  // A page taken lately: likely one of a reservation.
  uint32_t recent() {
    return pages_.empty() ? garbage() : pages_[pages_.size() - 1 - below(static_cast<uint32_t>(pages_.size() < 8 ? pages_.size() : 8))];
  }

  void back_up() {
    std::vector<hicache_copy_t> copies(below(5));
    for (auto &copy : copies) copy = {pool(), page(pages_), page(host_pages_), 0};
    hicache_transfer_t transfer{};
    transfer.struct_size = one_in(20) ? garbage() : sizeof transfer;
    transfer.copies = copies.data();
    transfer.copy_count = static_cast<uint32_t>(copies.size());
    transfer.after = one_in(3) ? id(tickets_) : 0;
    uint64_t ticket = 0;
    // A struct_size beyond this struct would have the library read what is not there.
    if (transfer.struct_size > sizeof transfer && transfer.struct_size <= 65536) return;
    if (good(hicache_back_up(engine_, &transfer, &ticket, &error_)) && ticket != 0) tickets_.push_back(ticket);
  }

  void host_take() {
    Pages pages(below(6)), others(below(4));
    hicache_host_take_t lines[2] = {{pool(), static_cast<uint32_t>(pages.size()), pages.data()},
                                    {pool(), static_cast<uint32_t>(others.size()), others.data()}};
    if (!good(hicache_host_alloc(engine_, lines, 2, &error_))) return;
    keep(&host_pages_, pages);
    keep(&host_pages_, others);
  }

  void view_and_translate() {
    const Pages pages = some(host_pages_);
    std::vector<void *> addresses(pages.size() + 1);
    hicache_host_pages_t line{pool(), static_cast<uint32_t>(pages.size()), pages.data()};
    uint64_t lease = 0;
    if (good(hicache_host_view(engine_, &line, addresses.data(), &lease, &error_))) leases_.push_back(lease);
    const Pages names = some(pages_);
    std::vector<int32_t> ids(names.size() * 2 + 1);
    const uint32_t granularity = below(3);
    const uint32_t of = pool();
    if (of >= pool_count_ || granularity < 2) {
      good(hicache_kernel_ids(engine_, one_in(2) ? id(leases_) : id(steps_), of, granularity, names.data(),
                              static_cast<uint32_t>(names.size()), ids.data(), nullptr, &error_));
    }
    Pages places(names.size() + 1);
    good(hicache_inspect(engine_, pool(), names.data(), static_cast<uint32_t>(names.size()), places.data(), &error_));
  }

  void ask() {
    hicache_demand_t demands[2] = {{pool(), below(40)}, {pool(), one_in(9) ? garbage() : below(20)}};
    good(hicache_fits(engine_, demands, 2, &error_));
    hicache_capacity_t capacity;
    good(hicache_capacity(engine_, 1 + below(2), pool(), &capacity, &error_));
    uint64_t evictable[3] = {below(30), below(30), below(30)}, quotas[3];
    good(hicache_reclaim_plan(engine_, demands, 2, evictable, below(3), quotas, &error_));
    uint8_t states[4];
    good(hicache_map(engine_, 1 + below(2), pool(), garbage(), 4, states, &error_));
    uint32_t done = 0;
    hicache_ticket_status(engine_, id(tickets_), &done, nullptr);
    if (one_in(6)) good(hicache_resize(engine_, 2048 + below(64) * 256, &error_));
    if (one_in(6)) good(hicache_set_compaction(engine_, below(4), &error_));
    if (one_in(3)) good(hicache_fault_finish(engine_, id(tickets_), below(3), &error_));
    if (one_in(6)) good(hicache_transfer_cancel(engine_, id(tickets_), &error_));
    drain_log();
  }

  void batch() {
    // One sequence starts anew, the other has pages taken lately; with two tables of one of three forms each.
    Pages row(12, 0), grown = some(pages_);
    const auto have = static_cast<uint32_t>(grown.size() < 6 ? grown.size() : 6);
    grown.resize(12, 0);
    hicache_sequence_t sequences[2] = {{row.data(), 0, 12, 0, below(24), below(9), 0},
                                       {grown.data(), have, 12, have * 2 - (have > 0 ? below(2) : 0), below(4), HICACHE_NO_PAGE, below(2)}};
    int32_t ids[2][48], indptr[3], last[2], first[2];
    hicache_batch_table_t tables[2] = {
        {below(3), HICACHE_TABLE_RAGGED, below(3) * 2, 0, ids[0], indptr, nullptr, last, nullptr, below(49), 0},
        {1, HICACHE_TABLE_PADDED, below(3) * 2, 6 + below(7), ids[1], nullptr, nullptr, nullptr, first, 48, 0}};
    const Pages further = some(pages_);
    hicache_pages_t line{pool(), static_cast<uint32_t>(further.size()), further.data()};
    hicache_batch_t batch{};
    batch.struct_size = sizeof batch;
    batch.owner_pool = one_in(16) ? pool() : 0;
    batch.stream = below(2);
    batch.previous = one_in(4) ? 0 : !steps_.empty() && one_in(2) ? steps_.back() : id(steps_);
    batch.sequences = sequences;
    batch.tables = tables;
    batch.pages = &line;
    batch.sequence_count = 1 + below(2);
    batch.table_count = below(3);
    batch.pages_count = below(2);
    uint64_t step = 0;
    if (!good(hicache_batch_step(engine_, &batch, &step, &error_))) return;
    steps_.push_back(step);
    keep(&pages_, Pages(row.begin(), row.begin() + sequences[0].vpage_count));
    if (batch.sequence_count > 1) keep(&pages_, Pages(grown.begin() + have, grown.begin() + sequences[1].vpage_count));
  }

  // What the log has, whole records; a small buffer may be refused.
  void drain_log() {
    std::vector<char> buffer(one_in(3) ? below(200) : 65536);
    uint64_t bytes = 0;
    good(hicache_log_drain(engine_, buffer.data(), buffer.size(), &bytes, &error_));
    if (bytes > buffer.size()) failure_ = "more log than buffer";
    if (one_in(16)) good(hicache_log_stop(engine_, &error_));
  }

  const uint8_t *at_;
  const uint8_t *end_;
  hicache_engine_t *engine_ = nullptr;
  hicache_error_t error_{};
  uint32_t pool_count_ = 2;
  Pages pages_, host_pages_;
  std::vector<uint64_t> leases_, steps_, reservations_, tickets_;
  std::string failure_;
};

} // namespace hicache_test
