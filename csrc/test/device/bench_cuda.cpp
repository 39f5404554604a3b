// The bars of the CUDA backend, measured through the backend itself, with the ceilings of the same run beside them. Prints one JSON object
// a line:
// {"work": ..., figures}. hicache_device_bench [part ...]; parts: ceilings envelopes small layers fragments moves ids open graph.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <thread>

#include "device_fixture.hpp"

using namespace hicache;
using namespace hicache::device_test;

namespace {

constexpr uint64_t kKiB = 1024, kMiB = uint64_t{1} << 20, kGiB = uint64_t{1} << 30;

double now_ms() { return static_cast<double>(steady_now_ns()) / 1e6; }

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v[v.size() / 2];
}

void must(CuResult r, const char *what) {
  if (r == cu::kSuccess) return;
  std::printf("{\"error\": \"%s: %s\"}\n", what, api().describe(r).c_str());
  std::exit(1);
}
void must_open(const Rig &rig) {
  if (rig.status == HICACHE_OK) return;
  std::printf("{\"error\": \"open: %s\"}\n", rig.error.message);
  std::exit(1);
}

std::vector<uint32_t> shuffled(uint32_t count, uint32_t seed) {
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
  for (int i = 0; i <= rounds; i++) {
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

std::vector<std::vector<TierCopy>> scattered(uint32_t pages_each, uint32_t batches, uint32_t device_pages, uint32_t host_pages,
                                             uint32_t seed) {
  const auto device = shuffled(device_pages, seed), host = shuffled(host_pages, seed + 1);
  std::vector<std::vector<TierCopy>> all(batches);
  uint32_t k = 0;
  for (auto &batch : all) {
    for (uint32_t i = 0; i < pages_each; i++, k++) batch.push_back({0, at(device[k % device_pages]), at(host[k % host_pages])});
  }
  return all;
}

double rate_of(Rig &rig, uint32_t direction, const std::vector<std::vector<TierCopy>> &batches, double seconds, uint32_t slot = 0) {
  Bulk bulk(rig, direction, batches, slot);
  bulk.start();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  bulk.stop();
  return bulk.gb_s();
}

// Envelopes of 2 MiB: 32 layers of 64 KiB, as llama-3-8b at page 16.
std::vector<PoolLayout> llama() { return {pool(false, 16, 2 * kKiB, 2 * kKiB, range(0, 32))}; }

double ceiling_h2d = 0, ceiling_d2h = 0, ceiling_d2d = 0;

void ceilings(Rig &rig) {
  const CuAddress device = rig.device(0, 0), host = reinterpret_cast<CuAddress>(rig.host(0, 0));
  ceiling_h2d = kGiB / gpu_ms(rig.stream, 5, [&] { must(api().copy_async(device, host, kGiB, rig.stream), "copy"); }) / 1e6;
  ceiling_d2h = kGiB / gpu_ms(rig.stream, 5, [&] { must(api().copy_async(host, device, kGiB, rig.stream), "copy"); }) / 1e6;
  ceiling_d2d =
      4.0 * kGiB / gpu_ms(rig.stream, 5, [&] { must(api().copy_async(device + 2 * kGiB, device, 2 * kGiB, rig.stream), "copy"); }) / 1e6;
  std::printf("{\"work\": \"ceiling, contiguous\", \"h2d_gb_s\": %.2f, \"d2h_gb_s\": %.2f, \"d2d_read_write_gb_s\": %.0f}\n", ceiling_h2d,
              ceiling_d2h, ceiling_d2d);
}

void envelopes(Rig &rig, const char *name) {
  const auto up = scattered(128, 8, 2048, 1024, 1), down = scattered(128, 8, 2048, 1024, 5);
  const double h2d = rate_of(rig, HICACHE_H2D, up, 0.5), d2h = rate_of(rig, HICACHE_D2H, down, 0.5, 8);
  Bulk a(rig, HICACHE_H2D, up, 0), b(rig, HICACHE_D2H, down, 8);
  a.start(), b.start();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  a.stop(), b.stop();
  std::printf("{\"work\": \"envelopes 2 MiB scattered, %s\", \"h2d_gb_s\": %.2f, \"d2h_gb_s\": %.2f, \"h2d_of_ceiling\": %.3f, "
              "\"d2h_of_ceiling\": %.3f, "
              "\"both_h2d\": %.2f, \"both_d2h\": %.2f, \"both_sum\": %.2f}\n",
              name, h2d, d2h, h2d / ceiling_h2d, d2h / ceiling_d2h, a.gb_s(), b.gb_s(), a.gb_s() + b.gb_s());
}

// What somebody else's copy waits for during a bulk transfer of its direction.
void small_copies(Rig &rig, const char *name) {
  const auto batches = scattered(128, 8, 2048, 1024, 1);
  CuAddress scratch = 0;
  must(api().memory_alloc(&scratch, 2 * kMiB), "alloc");
  const CuAddress host = reinterpret_cast<CuAddress>(rig.host(0, 1100));
  for (uint32_t direction : {HICACHE_H2D, HICACHE_D2H}) {
    Bulk bulk(rig, direction, batches, 0);
    bulk.start();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (uint64_t bytes : {4 * kKiB, 2 * kMiB}) {
      std::vector<double> us;
      for (int i = 0; i < 60; i++) {
        const double begin = now_ms();
        must(direction == HICACHE_H2D ? api().copy_async(scratch, host, bytes, rig.stream)
                                      : api().copy_async(host, scratch, bytes, rig.stream),
             "copy");
        must(api().stream_synchronize(rig.stream), "synchronize");
        us.push_back((now_ms() - begin) * 1e3);
        std::this_thread::sleep_for(std::chrono::microseconds(700));
      }
      std::sort(us.begin(), us.end());
      std::printf("{\"work\": \"another stream's copy during a bulk transfer, %s\", \"direction\": \"%s\", \"bytes\": %llu, \"median_us\": "
                  "%.0f, \"worst_us\": %.0f}\n",
                  name, direction == HICACHE_H2D ? "h2d" : "d2h", static_cast<unsigned long long>(bytes), us[us.size() / 2], us.back());
    }
    bulk.stop();
  }
  api().memory_free(scratch);
}

void layered_load(Rig &rig) {
  const auto batches = scattered(512, 4, 2048, 1024, 3);
  std::vector<double> first, quarter, all, submit, wait;
  for (uint32_t i = 0; i < 9; i++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    Transfer transfer(5000 + i, 1, HICACHE_H2D, rig.order, batches[i % 4], rig.caller(), HICACHE_CLASS_URGENT);
    const double begin = now_ms();
    rig.backend.submit(transfer.job);
    const double submitted = now_ms();
    rig.backend.layer_wait(1, 31, rig.caller(), nullptr);
    const double waited = now_ms();
    double at_first = 0, at_quarter = 0;
    uint32_t word = 0;
    while ((word = rig.backend.progress(1)) != kProgressDone) {
      if (at_first == 0 && word >= 1) at_first = now_ms();
      if (at_quarter == 0 && word >= 8) at_quarter = now_ms();
    }
    must(api().stream_synchronize(rig.stream), "synchronize");
    const double end = now_ms();
    if (rig.done.wait(5000 + i) != HICACHE_OK) std::printf("{\"error\": \"the load failed\"}\n");
    if (i == 0) continue;
    first.push_back(at_first - begin), quarter.push_back(at_quarter - begin), all.push_back(end - begin);
    submit.push_back((submitted - begin) * 1e3), wait.push_back((waited - submitted) * 1e3);
  }
  std::printf("{\"work\": \"layer-wise load, 1 GiB, 32 layers, page 16\", \"layer0_ms\": %.2f, \"quarter_ms\": %.2f, \"all_ms\": %.2f, "
              "\"submit_us\": %.1f, \"layer_wait_us\": %.1f}\n",
              median(first), median(quarter), median(all), median(submit), median(wait));
}

// What single calls of the driver cost the caller, in us, while nothing else happens.
void call_costs(Rig &rig) {
  auto cost = [&](auto call) {
    std::vector<double> us;
    for (int i = 0; i < 200; i++) {
      const double begin = now_ms();
      call();
      us.push_back((now_ms() - begin) * 1e3);
    }
    return median(us);
  };
  CuEvent event = nullptr;
  must(api().event_create(&event, cu::kEventDisableTiming), "event");
  uint64_t sequence = 0;
  const double scope = cost([&] { ContextScope inside(api(), caller_context()); });
  int capturing = 0;
  const double capture = cost([&] { api().stream_capturing(rig.stream, &capturing); });
  const double record = cost([&] { api().event_record(event, rig.stream); });
  const double fence = cost([&] { rig.backend.fence_record(FenceMark::make(9, ++sequence), rig.caller(), nullptr); });
  const double order = cost([&] { rig.backend.order_step(rig.caller(), {}, nullptr); });
  const PageMove move{0, at(1), at(2)};
  const double moved = cost([&] {
    rig.backend.move_pages(Tier::kDevice, {&move, 1}, {}, FenceMark::make(kMoverSlot, 1 << 20 | ++sequence), nullptr);
  });
  must(api().stream_synchronize(rig.backend.mover_stream()), "synchronize");
  std::printf("{\"work\": \"calls on the caller's thread\", \"context_us\": %.2f, \"capturing_us\": %.2f, \"event_record_us\": %.2f, "
              "\"fence_record_us\": %.2f, "
              "\"order_step_us\": %.2f, \"move_one_page_us\": %.2f}\n",
              scope, capture, record, fence, order, moved);
  api().event_destroy(event);
}

// How the quantum and the number of quanta queued ahead trade bandwidth for the wait of others.
void quanta() {
  for (uint64_t quantum : {8 * kMiB, 16 * kMiB, 20 * kMiB, 24 * kMiB, 32 * kMiB}) {
    for (uint32_t depth : {2u, 3u, 4u}) {
      if (depth != 2 && quantum != 16 * kMiB) continue;
      CopyTuning tuning;
      tuning.quantum_bytes = quantum;
      tuning.depth = depth;
      Rig rig(llama(), 6 * kGiB, 3 * kGiB, tuning);
      must_open(rig);
      char name[64];
      std::snprintf(name, sizeof name, "quanta of %llu MiB, %u ahead", static_cast<unsigned long long>(quantum / kMiB), depth);
      envelopes(rig, name);
      if (depth == 2) small_copies(rig, name);
      layered_load(rig);
    }
  }
}

void fragments() {
  for (uint64_t bytes : {kKiB / 2, 2 * kKiB, 8 * kKiB, 32 * kKiB, 64 * kKiB, 128 * kKiB, 256 * kKiB}) {
    for (CopyMethod method : {CopyMethod::kDirect, CopyMethod::kKernel}) {
      if (method == CopyMethod::kDirect && bytes < 32 * kKiB) continue;
      for (uint32_t blocks : {2u, 4u}) {
        if (method == CopyMethod::kDirect && blocks != 2) continue;
        CopyTuning tuning;
        tuning.method = method;
        tuning.kernel_blocks = tuning.kernel_blocks_alone = blocks;
        Rig rig({pool(false, 1, bytes, 0, {0})}, 2 * kGiB, kGiB, tuning);
        must_open(rig);
        const auto pages = static_cast<uint32_t>(kGiB / bytes), each = static_cast<uint32_t>(64 * kMiB / bytes);
        const auto batches = scattered(each, 8, pages, pages, 1);
        const double h2d = rate_of(rig, HICACHE_H2D, batches, 0.15), d2h = rate_of(rig, HICACHE_D2H, batches, 0.15, 8);
        std::printf("{\"work\": \"fragments on both sides\", \"bytes\": %llu, \"method\": \"%s\", \"blocks\": %u, \"h2d_gb_s\": %.1f, "
                    "\"d2h_gb_s\": %.1f}\n",
                    static_cast<unsigned long long>(bytes), method == CopyMethod::kDirect ? "direct" : "kernel",
                    method == CopyMethod::kDirect ? 0 : blocks, h2d, d2h);
      }
    }
  }
}

void moves(Rig &holder) {
  (void)holder;
  for (uint64_t bytes : {32 * kKiB, 256 * kKiB, 2 * kMiB}) {
    Rig rig({pool(false, 1, bytes, 0, {0})}, 8 * kGiB, kMiB * 4);
    must_open(rig);
    const auto pages = static_cast<uint32_t>(8 * kGiB / bytes), count = static_cast<uint32_t>(2 * kGiB / bytes);
    const auto places = shuffled(pages, 1);
    std::vector<PageMove> list;
    for (uint32_t i = 0; i < count; i++) list.push_back({0, at(places[i]), at(places[pages / 2 + i])});
    uint64_t sequence = 0;
    // The clocks of an idle GPU are low: some work first.
    for (const double until = now_ms() + 150; now_ms() < until;) {
      rig.backend.move_pages(Tier::kDevice, list, {}, FenceMark::make(kMoverSlot, ++sequence), nullptr);
      api().stream_synchronize(rig.backend.mover_stream());
    }
    // Three lists in a row, so that the host's part of one runs beside the device's part of another.
    const double ms = gpu_ms(rig.backend.mover_stream(), 15,
                             [&] {
                               for (int i = 0; i < 3; i++)
                                 rig.backend.move_pages(Tier::kDevice, list, {}, FenceMark::make(kMoverSlot, ++sequence), nullptr);
                             }) /
                      3;
    std::vector<PageMove> burst(list.begin(), list.begin() + std::min<size_t>(list.size(), 16 * kMiB / bytes));
    const double burst_ms = gpu_ms(rig.backend.mover_stream(), 21, [&] {
      rig.backend.move_pages(Tier::kDevice, burst, {}, FenceMark::make(kMoverSlot, ++sequence), nullptr);
    });
    std::printf("{\"work\": \"page moves\", \"page_bytes\": %llu, \"tb_s\": %.3f, \"of_contiguous\": %.3f, \"burst_16_mib_us\": %.1f}\n",
                static_cast<unsigned long long>(bytes), 2.0 * 2 * kGiB / ms / 1e9, 2.0 * 2 * kGiB / ms / 1e6 / ceiling_d2d, burst_ms * 1e3);
  }
}

CuFunction test_function(const char *name) {
  static CuModule module = [] {
    const char *path = std::getenv("HICACHE_TEST_KERNELS");
    std::FILE *file = std::fopen(path != nullptr ? path : "hicache_test_kernels.fatbin", "rb");
    CuModule loaded = nullptr;
    if (file == nullptr) return loaded;
    static std::vector<char> image(1 << 22);
    const size_t bytes = std::fread(image.data(), 1, image.size(), file);
    std::fclose(file);
    if (bytes == 0 || api().module_load(&loaded, image.data()) != cu::kSuccess) loaded = nullptr;
    return loaded;
  }();
  CuFunction function = nullptr;
  if (module != nullptr) api().module_function(&function, module, name);
  return function;
}

void ids_and_digests() {
  Rig rig({pool(false, 16, 2 * kKiB, 2 * kKiB, range(0, 32))}, 6 * kGiB, 4 * kMiB);
  must_open(rig);
  const uint32_t n = 1 << 20;
  std::vector<uint32_t> asked(n);
  std::mt19937 random(1);
  for (uint32_t &v : asked) v = static_cast<uint32_t>(random() % 4096);
  CuAddress memory = 0;
  must(api().memory_alloc(&memory, n * 8 + n * 8), "alloc");
  rig.write(memory, asked.data(), n * 4);
  DeviceIds request;
  request.page_count = n;
  request.vpages_address = memory;
  request.ids_address = memory + n * 4;
  uint64_t table = 0;
  uint32_t entries = 0;
  rig.backend.device_table(0, &table, &entries, nullptr);
  const int launches = 20;
  const double ms = gpu_ms(rig.stream, 7, [&] {
    for (int i = 0; i < launches; i++) rig.backend.device_kernel_ids(request, rig.caller(), nullptr);
  });
  double gather_ms = 0;
  if (CuFunction gather = test_function("test_gather")) {
    const uint32_t *from = reinterpret_cast<const uint32_t *>(table), *index = reinterpret_cast<const uint32_t *>(memory);
    uint32_t *out = reinterpret_cast<uint32_t *>(memory + n * 4), count = n;
    void *parameters[] = {&from, &index, &out, &count};
    gather_ms = gpu_ms(rig.stream, 7, [&] {
      for (int i = 0; i < launches; i++) must(api().launch(gather, n / 256, 1, 1, 256, 1, 1, 0, rig.stream, parameters, nullptr), "launch");
    });
  }
  std::vector<PhysicalPage> pages;
  for (uint32_t i = 0; i < 2048; i++) pages.push_back(at(i));
  std::vector<uint64_t> digests(pages.size());
  std::vector<double> digest_ms;
  for (int i = 0; i < 6; i++) {
    const double begin = now_ms();
    if (rig.backend.digest_pages(0, pages, digests.data(), nullptr) != HICACHE_OK) std::printf("{\"error\": \"digest\"}\n");
    if (i > 0) digest_ms.push_back(now_ms() - begin);
  }
  std::printf("{\"work\": \"translate 1 Mi ids\", \"us\": %.2f, \"plain_gather_us\": %.2f, \"of_gather\": %.2f}\n", ms / launches * 1e3,
              gather_ms / launches * 1e3, gather_ms / ms);
  std::printf("{\"work\": \"digest of pages, call and answer included\", \"bytes\": %llu, \"ms\": %.2f, \"tb_s_read\": %.2f}\n",
              static_cast<unsigned long long>(2048 * 2 * kMiB), median(digest_ms), 2048.0 * 2 * kMiB / median(digest_ms) / 1e9);
  api().memory_free(memory);
}

void open_time() {
  for (uint64_t gib : {8ull, 32ull}) {
    std::vector<double> s;
    for (int i = 0; i < (gib == 8 ? 3 : 2); i++) {
      const double begin = now_ms();
      Rig rig(llama(), 4 * kGiB, gib * kGiB);
      must_open(rig);
      s.push_back((now_ms() - begin) / 1e3);
    }
    std::printf("{\"work\": \"open\", \"pinned_gib\": %llu, \"first_s\": %.2f, \"again_s\": %.2f}\n", static_cast<unsigned long long>(gib),
                s.front(), *std::min_element(s.begin() + 1, s.end()));
  }
}

// A graph of 32 layers whose kernels poll their own layer's word, replayed with loads and moves in between; and what a satisfied poll
// costs.
void graph(Rig &rig) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  const auto begin_capture = reinterpret_cast<CuResult (*)(CuStream, int)>(dlsym(library, "cuStreamBeginCapture_v2"));
  const auto end_capture = reinterpret_cast<CuResult (*)(CuStream, void **)>(dlsym(library, "cuStreamEndCapture"));
  const auto instantiate =
      reinterpret_cast<CuResult (*)(void **, void *, unsigned long long)>(dlsym(library, "cuGraphInstantiateWithFlags"));
  const auto launch = reinterpret_cast<CuResult (*)(void *, CuStream)>(dlsym(library, "cuGraphLaunch"));
  const CuFunction layer = test_function("test_layer");
  if (layer == nullptr || begin_capture == nullptr) {
    std::printf("{\"error\": \"graph: no test kernels\"}\n");
    return;
  }
  CuAddress memory = 0; // Expected values, slice pointers, what each layer saw.
  must(api().memory_alloc(&memory, 4096), "alloc");
  auto capture = [&](bool polls) {
    must(begin_capture(rig.stream, cu::kCaptureRelaxed), "capture");
    for (uint32_t l = 0; l < 32; l++) {
      uint64_t word_address = 0;
      uint32_t value = 0;
      rig.backend.layer_word(40, l, &word_address, &value, nullptr);
      CuAddress word = polls ? word_address : 0, expected = memory + 4 * l, slice = memory + 1024 + 8 * l, seen = memory + 2048 + 4 * l;
      long long cycles = 36000;
      void *parameters[] = {&word, &expected, &slice, &seen, &cycles};
      must(api().launch(layer, 132, 1, 1, 128, 1, 1, 0, rig.stream, parameters, nullptr), "launch");
    }
    void *made = nullptr, *executable = nullptr;
    must(end_capture(rig.stream, &made), "end of capture");
    must(instantiate(&executable, made, 0), "instantiate");
    return executable;
  };
  void *polling = capture(true), *plain = capture(false);
  uint32_t wrong = 0;
  const auto batches = scattered(64, 3, 2048, 1024, 9);
  for (uint32_t round = 0; round < 3; round++) {
    // Each round loads other pages; the host pages say which round they are of; a page moves in between.
    for (const TierCopy &copy : batches[round]) {
      auto *words = reinterpret_cast<uint32_t *>(rig.host(0, raw(copy.host_page)));
      for (uint64_t w = 0; w < 2 * kMiB / 4; w += 16) words[w] = (round + 1) * 1000 + static_cast<uint32_t>(w / 16384);
    }
    Transfer transfer(9000 + round, 40, HICACHE_H2D, rig.order, batches[round], rig.caller(), HICACHE_CLASS_URGENT);
    rig.backend.submit(transfer.job);
    uint32_t expected[32];
    uint64_t slices[32];
    for (uint32_t l = 0; l < 32; l++) {
      uint64_t address = 0;
      rig.backend.layer_word(40, l, &address, &expected[l], nullptr);
      slices[l] = rig.device(0, raw(batches[round][l].device_page)) + l * 64 * kKiB;
    }
    CuStream own = nullptr;
    must(api().stream_create(&own, cu::kStreamNonBlocking, 0), "stream");
    must(api().copy_async(memory, reinterpret_cast<CuAddress>(expected), sizeof expected, own), "copy");
    must(api().copy_async(memory + 1024, reinterpret_cast<CuAddress>(slices), sizeof slices, own), "copy");
    must(api().stream_synchronize(own), "synchronize");
    must(api().stream_destroy(own), "stream");
    must(launch(polling, rig.stream), "graph launch");
    must(api().stream_synchronize(rig.stream), "graph");
    const auto seen = rig.read(memory + 2048, 128);
    for (uint32_t l = 0; l < 32; l++) wrong += reinterpret_cast<const uint32_t *>(seen.data())[l] != (round + 1) * 1000 + l;
    if (rig.done.wait(9000 + round) != HICACHE_OK) wrong++;
    const PageMove move{0, batches[round][0].device_page, batches[(round + 1) % 3][0].device_page};
    rig.backend.move_pages(Tier::kDevice, {&move, 1}, {}, FenceMark::make(kMoverSlot, 100000 + round), nullptr);
    rig.backend.order_step(rig.caller(), {}, nullptr);
  }
  const double with = gpu_ms(rig.stream, 21, [&] { must(launch(polling, rig.stream), "graph launch"); });
  const double without = gpu_ms(rig.stream, 21, [&] { must(launch(plain, rig.stream), "graph launch"); });
  std::printf("{\"work\": \"layer wait in a captured graph\", \"replays\": 3, \"wrong_layers\": %u, \"satisfied_wait_us\": %.2f}\n", wrong,
              (with - without) / 32 * 1e3);
  api().memory_free(memory);
}

} // namespace

// ---- For tools/h200_interference.py, which runs compute beside the transfers ----

namespace {
Rig *beside = nullptr, *beside_small = nullptr;
std::vector<std::vector<TierCopy>> beside_up, beside_down, beside_loads, beside_rows;
std::unique_ptr<Bulk> beside_bulk[2];
std::thread beside_moves;
std::atomic<bool> beside_stopping{false};
uint64_t beside_moved = 0;
double beside_moves_ms = 0;
} // namespace

extern "C" __attribute__((visibility("default"))) int bench_open() {
  api().context_set(caller_context());
  beside = new Rig(llama(), 6 * kGiB, 3 * kGiB);
  must_open(*beside);
  beside_up = scattered(128, 8, 2048, 1024, 1);
  beside_down = scattered(128, 8, 2048, 1024, 5);
  beside_loads = scattered(512, 4, 2048, 1024, 3);
  CopyTuning tuning;
  tuning.method = CopyMethod::kKernel;
  tuning.kernel_blocks_alone = tuning.kernel_blocks; // The compute beside it is not opened as steps.
  beside_small = new Rig({pool(false, 1, 2 * kKiB, 0, {0})}, 2 * kGiB, kGiB, tuning);
  must_open(*beside_small);
  beside_rows = scattered(32768, 8, 1 << 19, 1 << 19, 1);
  ceilings(*beside);
  return 0;
}

// 0, 1: envelopes H2D, D2H; 2: both; 3: layer-wise loads; 4: moves at 0.1 TB/s; 5, 6: rows of 2 KiB by kernel, H2D, D2H.
extern "C" __attribute__((visibility("default"))) void bench_start(int kind) {
  api().context_set(caller_context());
  if (kind == 0 || kind == 2) beside_bulk[0] = std::make_unique<Bulk>(*beside, HICACHE_H2D, beside_up, 0);
  if (kind == 1 || kind == 2) beside_bulk[1] = std::make_unique<Bulk>(*beside, HICACHE_D2H, beside_down, 8);
  if (kind == 3) beside_bulk[0] = std::make_unique<Bulk>(*beside, HICACHE_H2D, beside_loads, 0, 2, HICACHE_CLASS_URGENT);
  if (kind == 5) beside_bulk[0] = std::make_unique<Bulk>(*beside_small, HICACHE_H2D, beside_rows, 0);
  if (kind == 6) beside_bulk[1] = std::make_unique<Bulk>(*beside_small, HICACHE_D2H, beside_rows, 8);
  for (auto &bulk : beside_bulk) {
    if (bulk) bulk->start();
  }
  if (kind != 4) return;
  beside_stopping = false;
  beside_moves = std::thread([] {
    api().context_set(caller_context());
    static uint64_t sequence = 1000000;
    const auto places = shuffled(3000, 4);
    const double begin = now_ms();
    beside_moved = 0;
    for (uint32_t k = 0; !beside_stopping; k++) {
      PageMove burst[8];
      for (uint32_t i = 0; i < 8; i++) burst[i] = {0, at(places[(k * 8 + i) % 1500]), at(places[1500 + (k * 8 + i) % 1500])};
      beside->backend.move_pages(Tier::kDevice, burst, {}, FenceMark::make(kMoverSlot, ++sequence), nullptr);
      beside_moved += 2 * 8 * 2 * kMiB; // Read and written.
      while (static_cast<double>(beside_moved) / (now_ms() - begin) / 1e6 > 100 && !beside_stopping) std::this_thread::yield();
    }
    beside_moves_ms = now_ms() - begin;
  });
}

extern "C" __attribute__((visibility("default"))) double bench_stop(int direction) {
  double rate = 0;
  for (int d = 0; d < 2; d++) {
    if (!beside_bulk[d]) continue;
    beside_bulk[d]->stop();
  }
  if (beside_bulk[direction]) rate = beside_bulk[direction]->gb_s();
  if (beside_bulk[0] && beside_bulk[1] && direction == 0) return rate; // Asked for the other one next.
  for (auto &bulk : beside_bulk) bulk.reset();
  if (beside_moves.joinable()) {
    beside_stopping = true;
    beside_moves.join();
    rate = static_cast<double>(beside_moved) / beside_moves_ms / 1e6;
  }
  return rate;
}

int main(int argc, char **argv) {
  if (std::getenv("HICACHE_SIMULATED") != nullptr) return 2;
  std::vector<std::string> parts(argv + 1, argv + argc);
  auto wanted = [&](const char *part) { return parts.empty() || std::find(parts.begin(), parts.end(), part) != parts.end(); };
  setvbuf(stdout, nullptr, _IOLBF, 0);
  api().context_set(caller_context());
  {
    Rig rig(llama(), 6 * kGiB, 3 * kGiB);
    must_open(rig);
    std::printf("{\"work\": \"machine\", \"gpu\": \"%s\", \"driver_cuda\": %d, \"numa_node\": %d, \"kernels\": \"%s\"}\n",
                rig.backend.device().name().c_str(), api().version, rig.backend.device().numa_node(),
                rig.backend.kernels().available() ? "yes" : rig.backend.kernels().reason().c_str());
    ceilings(rig);
    if (wanted("envelopes")) envelopes(rig, "quanta of 16 MiB");
    if (wanted("small")) small_copies(rig, "quanta of 16 MiB");
    if (wanted("layers")) layered_load(rig);
    if (wanted("graph")) graph(rig);
    if (wanted("costs")) call_costs(rig);
    if (wanted("moves")) moves(rig);
  }
  if (wanted("small")) {
    CopyTuning tuning;
    tuning.quantum_bytes = 4 * kMiB;
    Rig rig(llama(), 6 * kGiB, 3 * kGiB, tuning);
    must_open(rig);
    envelopes(rig, "quanta of 4 MiB");
    small_copies(rig, "quanta of 4 MiB");
  }
  if (!parts.empty() && wanted("quanta")) quanta();
  if (wanted("fragments")) fragments();
  if (wanted("ids")) ids_and_digests();
  if (wanted("open")) open_time();
  return 0;
}
