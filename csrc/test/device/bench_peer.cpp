// Hand-over between engines on two GPUs, through hicache.h, beside a plain contiguous peer copy of the same run. Prints JSON objects, one a
// line. hicache_peer_bench [one]: "one" hands over between two engines of one GPU instead, which says nothing about the bar.
//
//   gb_s       what the devices do: calls were queued ahead of the copies where they fit the driver's queues; share is of the plain copy.
//   The bar is 0.85 of it by the library's choice. wall_gb_s  with the calls: from the first call to the last arrival. call_us    on the
//   caller's thread, for the pages of one call (512 MiB).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "driver_api.hpp"
#include "hicache.h"

using namespace hicache;

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr int kCalls = 4, kRounds = 5;

uint64_t call_bytes = 512 * kMiB; // Of one hand-over.

const DriverApi &api() {
  static const DriverLoad load = load_driver();
  if (load.api == nullptr) {
    std::fprintf(stderr, "NOT MEASURED: %s\n", load.reason.c_str());
    std::exit(3);
  }
  return *load.api;
}
void must(CuResult r, const char *what) {
  if (r == cu::kSuccess) return;
  std::printf("{\"error\": \"%s: %s\"}\n", what, api().describe(r).c_str());
  std::exit(1);
}
void must(hicache_status_t status, const hicache_error_t &error) {
  if (status == HICACHE_OK) return;
  std::printf("{\"error\": \"%s\"}\n", error.message);
  std::exit(1);
}
double now_us() { return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

// A device as the caller uses it: its primary context, a stream for either role, two events, and a word in host memory on which both
// streams can be held. The host opens it by a store: a call that waits for room in a held stream's queue may keep every other call of the
// driver waiting.
struct Device {
  CuContext context = nullptr;
  CuStream stream = nullptr, producer = nullptr;
  CuEvent begin = nullptr, end = nullptr;
  CuAddress word_address = 0, plain = 0;
  uint32_t *word = nullptr;
  uint32_t held = 0;

  explicit Device(int ordinal) {
    must(api().primary_retain(&context, ordinal), "context");
    enter();
    must(api().stream_create(&stream, cu::kStreamNonBlocking, 0), "stream");
    must(api().stream_create(&producer, cu::kStreamNonBlocking, 0), "stream");
    must(api().event_create(&begin, 0), "event");
    must(api().event_create(&end, 0), "event");
    word = static_cast<uint32_t *>(std::aligned_alloc(4096, 4096));
    *word = 0;
    must(api().host_register(word, 4096, cu::kHostRegisterPortable | cu::kHostRegisterDeviceMap), "registering memory");
    must(api().host_device_pointer(&word_address, word, 0), "mapped memory");
    must(api().memory_alloc(&plain, call_bytes), "memory");
  }
  void enter() const { must(api().context_set(context), "context"); }
  void hold() {
    enter();
    held++;
    for (CuStream of : {stream, producer}) must(api().stream_wait_value(of, word_address, held, cu::kWaitValueGreaterOrEqual), "wait");
  }
  void open() const { std::atomic_ref<uint32_t>(*word).store(held, std::memory_order_release); }
  void mark(CuEvent event) const {
    enter();
    must(api().event_record(event, stream), "record");
  }
  double elapsed_us() const {
    enter();
    must(api().event_synchronize(end), "synchronize");
    float ms = 0;
    must(api().event_elapsed(&ms, begin, end), "elapsed");
    return ms * 1e3;
  }
};

double gb_s(uint64_t bytes, double us) { return static_cast<double>(bytes) / us / 1e3; }

double plain_copy(Device &from, const Device &to) {
  std::vector<double> all;
  for (int round = 0; round <= kRounds; round++) {
    from.mark(from.begin);
    for (int i = 0; i < kCalls; i++)
      must(api().copy_peer_async(to.plain, to.context, from.plain, from.context, call_bytes, from.stream), "cuMemcpyPeerAsync");
    from.mark(from.end);
    if (const double us = from.elapsed_us(); round > 0) all.push_back(gb_s(kCalls * call_bytes, us));
  }
  return median(all);
}
double plain_both(Device &a, Device &b) { // Each way, at once.
  std::vector<double> all;
  for (int round = 0; round <= kRounds; round++) {
    for (Device *of : {&a, &b}) {
      Device &to = of == &a ? b : a;
      of->mark(of->begin);
      for (int i = 0; i < 2 * kCalls; i++)
        must(api().copy_peer_async(to.plain, to.context, of->plain + call_bytes / 2, of->context, call_bytes / 2, of->stream),
             "cuMemcpyPeerAsync");
      of->mark(of->end);
    }
    const double us = std::max(a.elapsed_us(), b.elapsed_us());
    if (round > 0) all.push_back(gb_s(2 * kCalls * call_bytes, us));
  }
  return median(all);
}

struct Party {
  hicache_engine_t *engine = nullptr;
  hicache_error_t error{};
  std::vector<uint32_t> pages;

  Party(int ordinal, uint64_t page_bytes, uint32_t seed) {
    static const uint32_t layers[] = {0, 1, 2, 3};
    hicache_pool_options_t pool{};
    pool.role = HICACHE_ROLE_FULL;
    pool.page_tokens = 16;
    pool.layer_count = 4;
    pool.layer_ids = layers;
    pool.k_row_bytes = pool.v_row_bytes = page_bytes / 128;
    hicache_options_t options{};
    options.struct_size = sizeof options;
    options.abi_version = HICACHE_ABI_MAJOR << 16 | HICACHE_ABI_MINOR;
    options.backend = HICACHE_BACKEND_CUDA;
    options.device = ordinal;
    options.device_bytes = 3 * call_bytes;
    options.pools = &pool;
    options.pool_count = 1;
    options.pool_stride_bytes = sizeof pool;
    error.struct_size = sizeof error;
    must(hicache_open(&options, &engine, &error), error);
    pages.resize(2 * call_bytes / page_bytes);
    const hicache_take_t take{0, static_cast<uint32_t>(pages.size()), pages.data()};
    must(hicache_alloc(engine, &take, 1, &error), error);
    std::mt19937 random(seed);
    std::shuffle(pages.begin(), pages.end(), random);
  }
  ~Party() { hicache_close(engine, &error); }
  CuAddress address(uint32_t page) {
    hicache_pool_info_t info{};
    info.struct_size = sizeof info;
    must(hicache_pool_info(engine, HICACHE_TIER_DEVICE, 0, &info, &error), error);
    uint32_t place = 0;
    must(hicache_inspect(engine, 0, &page, 1, &place, &error), error);
    return info.arena_base + place * info.page_bytes;
  }
};

// The first half of the source's pages to the second of the target's.
void hand_over(Party &from, Party &to, const Device &source, const Device &target) {
  const auto half = static_cast<uint32_t>(from.pages.size() / 2);
  const hicache_hand_over_line_t line{0, 0, half, 0, from.pages.data(), to.pages.data() + half};
  hicache_hand_over_t request{};
  request.struct_size = sizeof request;
  request.lines = &line;
  request.line_count = 1;
  request.source_stream = reinterpret_cast<uint64_t>(source.producer);
  request.target_stream = reinterpret_cast<uint64_t>(target.stream);
  request.flags = HICACHE_HAND_OVER_HELD; // The target's stream follows: its event says when all has arrived.
  must(hicache_hand_over(from.engine, to.engine, &request, &from.error), from.error);
}

void check_bytes(Party &from, Party &to, Device &source, Device &target, uint64_t page_bytes) {
  const size_t half = from.pages.size() / 2;
  const hicache_pages_t all{0, static_cast<uint32_t>(half), from.pages.data()};
  hicache_step_t step = 0; // Behind the zeroing of new pages.
  must(hicache_step_open(from.engine, reinterpret_cast<uint64_t>(source.producer), &all, 1, &step, &from.error), from.error);
  source.enter();
  for (size_t i = 0; i < half; i += half - 1)
    must(api().set32_async(from.address(from.pages[i]), static_cast<unsigned>(77 + i), page_bytes / 4, source.producer), "memset");
  must(hicache_step_close(from.engine, step, &from.error), from.error);
  hand_over(from, to, source, target);
  target.enter();
  for (size_t i = 0; i < half; i += half - 1) {
    uint32_t ends[2] = {};
    const CuAddress at = to.address(to.pages[half + i]);
    must(api().copy_async(reinterpret_cast<CuAddress>(&ends[0]), at, 4, target.stream), "copy");
    must(api().copy_async(reinterpret_cast<CuAddress>(&ends[1]), at + page_bytes - 4, 4, target.stream), "copy");
    must(api().stream_synchronize(target.stream), "synchronize");
    if (ends[0] == 77 + i && ends[1] == 77 + i) continue;
    std::printf("{\"error\": \"page %zu of %llu bytes arrived wrong\"}\n", i, static_cast<unsigned long long>(page_bytes));
    std::exit(1);
  }
}

struct Way {
  const char *name, *blocks;
};

// Holds both devices until the calls have been made, but not for ever: a queue that is full would have them wait for the opening.
class Held {
public:
  Held(Device &a, Device &b) : a_(a), b_(b) {
    a.hold();
    b.hold();
    late_ = std::thread([this] {
      for (int i = 0; i < 100 && !open_; i++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      a_.open();
      b_.open();
    });
  }
  ~Held() { late_.join(); }
  void open() {
    open_ = true;
    a_.open();
    b_.open();
  }

private:
  Device &a_, &b_;
  std::atomic<bool> open_{false};
  std::thread late_;
};

void measure(Device &a, Device &b, int second, uint64_t page_bytes, Way way, double ceiling, double both_ceiling) {
  way.name != nullptr ? setenv("HICACHE_CUDA_PEER", way.name, 1) : unsetenv("HICACHE_CUDA_PEER");
  way.blocks != nullptr ? setenv("HICACHE_CUDA_PEER_BLOCKS", way.blocks, 1) : unsetenv("HICACHE_CUDA_PEER_BLOCKS");
  Party from(0, page_bytes, 1), to(second, page_bytes, 2);
  check_bytes(from, to, a, b, page_bytes);
  std::vector<double> device, wall, call;
  for (int round = 0; round <= kRounds; round++) {
    Held held(a, b);
    b.mark(b.begin);
    const double asked = now_us();
    for (int i = 0; i < kCalls; i++) hand_over(from, to, a, b);
    const double called = now_us() - asked;
    b.mark(b.end);
    held.open();
    if (const double us = b.elapsed_us(); round > 0) device.push_back(gb_s(kCalls * call_bytes, us)), call.push_back(called / kCalls);
    const double begun = now_us();
    for (int i = 0; i < kCalls; i++) hand_over(from, to, a, b);
    b.enter();
    must(api().stream_synchronize(b.stream), "synchronize");
    if (round > 0) wall.push_back(gb_s(kCalls * call_bytes, now_us() - begun));
  }
  std::vector<double> both;
  for (int round = 0; round <= kRounds; round++) {
    Held held(a, b);
    for (Device *of : {&a, &b}) of->mark(of->begin);
    for (int i = 0; i < kCalls; i++) {
      hand_over(from, to, a, b);
      hand_over(to, from, b, a);
    }
    for (Device *of : {&a, &b}) of->mark(of->end);
    held.open();
    const double us = std::max(a.elapsed_us(), b.elapsed_us());
    if (round > 0) both.push_back(gb_s(2 * kCalls * call_bytes, us));
  }
  const double rate = median(device);
  std::printf("{\"work\": \"hand-over\", \"page_kib\": %llu, \"pages\": %llu, \"way\": \"%s\", \"blocks\": \"%s\", \"gb_s\": %.1f, "
              "\"share\": %.3f, "
              "\"wall_gb_s\": %.1f, \"call_us\": %.0f, \"both_ways_gb_s\": %.1f, \"both_ways_share\": %.3f}\n",
              static_cast<unsigned long long>(page_bytes / 1024), static_cast<unsigned long long>(call_bytes / page_bytes),
              way.name != nullptr ? way.name : "chosen", way.blocks != nullptr ? way.blocks : "", rate, rate / ceiling, median(wall),
              median(call), median(both), median(both) / both_ceiling);
}

} // namespace

int main(int argc, char **argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const bool one = argc > 1 && std::string(argv[1]) == "one";
  if (argc > (one ? 2 : 1)) call_bytes = std::max<uint64_t>(8, std::strtoull(argv[one ? 2 : 1], nullptr, 10)) * kMiB;
  int count = 0, reach[2] = {1, 1};
  must(api().device_count(&count), "devices");
  if (count < 2 && !one) {
    std::fprintf(stderr, "NOT MEASURED: hand-over needs two GPUs, there is %d (\"one\" hands over inside one)\n", count);
    std::printf("{\"work\": \"hand-over\", \"not_measured\": \"needs two GPUs, there is %d\"}\n", count);
    return 3;
  }
  const int second = one ? 0 : 1;
  Device a(0), b(second);
  if (!one) {
    must(api().can_access_peer(&reach[0], 0, 1), "cuDeviceCanAccessPeer");
    must(api().can_access_peer(&reach[1], 1, 0), "cuDeviceCanAccessPeer");
    for (Device *of : {&a, &b}) { // As whoever copies between them by hand would.
      of->enter();
      const CuResult r = api().enable_peer_access(of == &a ? b.context : a.context, 0);
      if (r != cu::kPeerAccessAlreadyEnabled && reach[0] != 0 && reach[1] != 0) must(r, "cuCtxEnablePeerAccess");
    }
  }
  const double ceiling = plain_copy(a, b), back = plain_copy(b, a), both = plain_both(a, b);
  char name[128] = {};
  must(api().device_name(name, sizeof name, 0), "name");
  std::printf("{\"work\": \"plain peer copy\", \"gpus\": \"%d x %s\", \"one_gpu\": %s, \"reach_each_other\": %s, \"driver_cuda\": %d, "
              "\"gb_s\": %.1f, "
              "\"back_gb_s\": %.1f, \"both_ways_gb_s\": %.1f}\n",
              one ? 1 : 2, name, one ? "true" : "false", reach[0] != 0 && reach[1] != 0 ? "true" : "false", api().version, ceiling, back,
              both);
  const Way ways[] = {{nullptr, nullptr}, {"kernel", "8"},     {"kernel", "16"},   {"kernel", "64"},
                      {"kernel", "0"},    {"engine", nullptr}, {"driver", nullptr}};
  for (uint64_t page_bytes : {32 * kMiB / 1024, kMiB / 4, 2 * kMiB})
    for (const Way &way : ways) measure(a, b, second, page_bytes, way, ceiling, both);
  return 0;
}
