// What the parts of hicache_device_bench share: transfers that go on and on, the ceilings of the run, and sizes. Each part measures through
// the backend itself and prints JSON objects, one a line: {"work": ..., figures}.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <numeric>
#include <string>
#include <thread>

#include "device_fixture.hpp"

namespace hicache::device_bench {

using namespace device_test;

constexpr uint64_t kKiB = 1024, kMiB = uint64_t{1} << 20, kGiB = uint64_t{1} << 30;

// Everything once and small, over the simulated driver: shows that it runs. The figures mean nothing then.
inline bool smoke = false;
inline uint64_t sized(uint64_t bytes) { return smoke ? bytes / 64 : bytes; }
inline double lasting(double seconds) { return smoke ? seconds / 50 : seconds; }
inline int times(int count) { return smoke ? 2 : count; }

inline double now_ms() { return static_cast<double>(steady_now_ns()) / 1e6; }

inline double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v[v.size() / 2];
}

inline void must(CuResult r, const char *what) {
  if (r == cu::kSuccess) return;
  std::printf("{\"error\": \"%s: %s\"}\n", what, api().describe(r).c_str());
  std::exit(1);
}
inline void must_open(const Rig &rig) {
  if (rig.status == HICACHE_OK) return;
  std::printf("{\"error\": \"open: %s\"}\n", rig.error.message);
  std::exit(1);
}

inline std::vector<uint32_t> shuffled(uint32_t count, uint32_t seed) {
  std::vector<uint32_t> all(count);
  std::iota(all.begin(), all.end(), 0u);
  std::mt19937 random(seed);
  std::shuffle(all.begin(), all.end(), random);
  return all;
}

// GPU time of work on a stream, in ms, median of `rounds`.
template <class Work> double gpu_ms(CuStream stream, int rounds, Work work) {
  CuEvent begin = nullptr, end = nullptr;
  must(api().event_create(&begin, 0), "event");
  must(api().event_create(&end, 0), "event");
  std::vector<double> all;
  for (int i = 0; i <= times(rounds); i++) {
    must(api().event_record(begin, stream), "record");
    work();
    must(api().event_record(end, stream), "record");
    must(api().event_synchronize(end), "synchronize");
    float ms = 0;
    must(api().event_elapsed(&ms, begin, end), "elapsed");
    if (i > 0) all.push_back(ms);
  }
  api().event_destroy(begin);
  api().event_destroy(end);
  return median(all);
}

// A bulk transfer that goes on and on: jobs of `copies` pages, `depth` in flight.
class Bulk {
public:
  Bulk(Rig &rig, uint32_t direction, const std::vector<std::vector<TierCopy>> &batches, uint32_t first_slot, uint32_t depth = 3,
       uint32_t priority = HICACHE_CLASS_NORMAL)
      : rig_(rig), direction_(direction), first_slot_(first_slot), depth_(depth), priority_(priority) {
    for (const auto &batch : batches) batches_.push_back(std::make_shared<Pages>(rig.order, batch));
    must(api().stream_create(&stream_, cu::kStreamNonBlocking, 0), "stream"); // Nothing else on it: no producer to wait for.
  }
  ~Bulk() {
    stop();
    api().stream_destroy(stream_);
  }
  void start() {
    stopping_ = false;
    thread_ = std::thread([this] {
      api().context_set(caller_context());
      uint64_t k = 0;
      std::deque<std::unique_ptr<Transfer>> flight;
      started_ms_ = now_ms();
      bytes_ = 0;
      while (!stopping_ || !flight.empty()) {
        while (!stopping_ && flight.size() < depth_) {
          static std::atomic<uint64_t> tickets{1 << 20}; // Never the same twice, over all of them.
          const hicache_ticket_t ticket = tickets++;
          serial_++;
          flight.push_back(std::make_unique<Transfer>(ticket, first_slot_ + static_cast<uint32_t>(serial_ % (depth_ + 1)), direction_,
                                                      batches_[k++ % batches_.size()], reinterpret_cast<uint64_t>(stream_), priority_));
          rig_.backend.submit(flight.back()->job);
        }
        if (flight.empty()) break;
        if (rig_.done.wait(flight.front()->job.ticket) != HICACHE_OK) std::printf("{\"error\": \"a transfer failed\"}\n");
        bytes_ += flight.front()->job.bytes;
        ended_ms_ = now_ms();
        flight.pop_front();
      }
    });
  }
  void stop() {
    if (!thread_.joinable()) return;
    stopping_ = true;
    thread_.join();
  }
  double gb_s() const { return static_cast<double>(bytes_) / (ended_ms_ - started_ms_) / 1e6; }

private:
  Rig &rig_;
  uint32_t direction_;
  std::vector<std::shared_ptr<const Pages>> batches_;
  uint32_t first_slot_, depth_, priority_;
  CuStream stream_ = nullptr;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
  uint64_t serial_ = 0, bytes_ = 0;
  double started_ms_ = 0, ended_ms_ = 0;
};

inline std::vector<std::vector<TierCopy>> scattered(uint32_t pages_each, uint32_t batches, uint32_t device_pages, uint32_t host_pages,
                                                    uint32_t seed) {
  const auto device = shuffled(device_pages, seed), host = shuffled(host_pages, seed + 1);
  std::vector<std::vector<TierCopy>> all(batches);
  uint32_t k = 0;
  for (auto &batch : all) {
    for (uint32_t i = 0; i < pages_each; i++, k++) batch.push_back({0, at(device[k % device_pages]), at(host[k % host_pages])});
  }
  return all;
}

inline double rate_of(Rig &rig, uint32_t direction, const std::vector<std::vector<TierCopy>> &batches, double seconds, uint32_t slot = 0) {
  Bulk bulk(rig, direction, batches, slot);
  bulk.start();
  std::this_thread::sleep_for(std::chrono::duration<double>(lasting(seconds)));
  bulk.stop();
  return bulk.gb_s();
}

// Envelopes of 2 MiB: 32 layers of 64 KiB, as llama-3-8b at page 16.
inline std::vector<PoolLayout> llama() { return {pool(false, 16, sized(2 * kKiB), sized(2 * kKiB), range(0, 32))}; }

// Moves of 2 MiB pages that go on and on, in bursts of 16 MiB, at most `limit_gb_s` of bytes read and written. Pages of `rig` from
// `first_page` on, 3,000 of them.
class MovingPages {
public:
  MovingPages(Rig &rig, double limit_gb_s, uint32_t first_page = 0) : rig_(rig), limit_gb_s_(limit_gb_s), first_page_(first_page) {}
  ~MovingPages() { stop(); }
  void start() {
    stopping_ = false;
    thread_ = std::thread([this] { run(); });
  }
  void stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
  }
  double gb_s() const { return static_cast<double>(moved_) / ms_ / 1e6; }

private:
  void run() {
    api().context_set(caller_context());
    static std::atomic<uint64_t> sequences{1000000};
    const auto places = shuffled(kPages, 4);
    const uint64_t burst_bytes = 2 * kBurst * rig_.order.pools()[0].page_bytes; // Read and written.
    const double begin = now_ms();
    moved_ = 0;
    for (uint32_t k = 0; !stopping_; k++) {
      PageMove burst[kBurst];
      for (uint32_t i = 0; i < kBurst; i++) {
        const uint32_t n = (k * kBurst + i) % (kPages / 2);
        burst[i] = {0, at(first_page_ + places[n]), at(first_page_ + places[kPages / 2 + n])};
      }
      rig_.backend.move_pages(Tier::kDevice, burst, {}, FenceMark::make(kMoverSlot, ++sequences), nullptr);
      moved_ += burst_bytes;
      // Bursts queued without end would fill the driver's queue, and who calls it then waits.
      if (k % kAhead == kAhead - 1) api().stream_synchronize(rig_.backend.mover_stream());
      while (static_cast<double>(moved_) / (now_ms() - begin) / 1e6 > limit_gb_s_ && !stopping_) std::this_thread::yield();
    }
    ms_ = now_ms() - begin;
  }
  static constexpr uint32_t kBurst = 8, kAhead = 16, kPages = 3000;
  Rig &rig_;
  double limit_gb_s_;
  uint32_t first_page_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
  uint64_t moved_ = 0;
  double ms_ = 1;
};

// Bytes a second of contiguous copies in this run, in GB/s.
struct Ceilings {
  double h2d = 0, d2h = 0, d2d = 0;
};
inline Ceilings ceiling;

// A kernel of cuda/test_kernels.cu; null without its fatbin (HICACHE_TEST_KERNELS).
CuFunction test_function(const char *name);

// bench_bus.cpp
void ceilings(Rig &rig);
void envelopes(Rig &rig, const char *name);
void small_copies(Rig &rig, const char *name);
void bus_beside_moves(Rig &rig);
void quanta();
void fragments();
// bench_staged.cpp
PoolLayout slices(uint64_t slice_bytes);
std::vector<std::vector<TierCopy>> slice_batches(const Rig &rig);
void staged();
// bench_layers.cpp
void layered_load(Rig &rig);
void call_costs(Rig &rig);
void submit_costs(Rig &rig);
void calibration();
void graph(Rig &rig);
void overlap(Rig &rig);
// bench_device.cpp
void moves();
void ids_and_digests();
void open_time();
// bench_kernels.cpp
void kernels_alone(bool timed);

} // namespace hicache::device_bench
