// Layer-wise loads, what calls cost their caller, and layer waits in a captured graph.
#include <dlfcn.h>

#include "bench.hpp"

namespace hicache::device_bench {

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

// What submit and a layer wait cost their caller, by what the lane's thread does meanwhile, and the calls they are made of after the same
// pause: a core that has slept is slow at first, whatever it is asked.
void submit_costs(Rig &rig) {
  const auto one = scattered(1, 8, 2048, 1024, 21), bulk_pages = scattered(128, 8, 2048, 1024, 23),
             load = scattered(512, 4, 2048, 1024, 25);
  const auto us_since = [](double begin) { return (now_ms() - begin) * 1e3; };
  hicache_ticket_t ticket = 700000;
  CuEvent event = nullptr;
  must(api().event_create(&event, cu::kEventDisableTiming), "event");
  const struct {
    const char *name;
    double pause_ms;
    int rounds;
    bool busy;
  } states[] = {{"spinning", 0, times(200), false},
                {"dozing", 2, times(100), false},
                {"parked", 40, times(20), false},
                {"busy", 0.3, times(200), true}};
  for (const auto &state : states) {
    std::vector<double> clock, scope, capturing, record, fence, submit, wait;
    Bulk bulk(rig, HICACHE_H2D, bulk_pages, 8);
    if (state.busy) bulk.start();
    const auto pause = [&] {
      if (state.pause_ms > 0) std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(state.pause_ms));
    };
    for (int i = 0; i < state.rounds; i++) {
      Transfer transfer(++ticket, 40, HICACHE_H2D, rig.order, one[static_cast<size_t>(i) % one.size()], rig.caller(), HICACHE_CLASS_URGENT);
      pause();
      double begin = now_ms();
      rig.backend.submit(transfer.job);
      submit.push_back(us_since(begin));
      begin = now_ms();
      rig.backend.layer_wait(40, 31, rig.caller(), nullptr);
      wait.push_back(us_since(begin));
      if (rig.done.wait(ticket) != HICACHE_OK) std::printf("{\"error\": \"a transfer failed\"}\n");
      if (i % 4 != 0) continue; // The pieces, each first after the pause.
      int is_capturing = 0;
      pause(), begin = now_ms(), clock.push_back(us_since(begin));
      pause(), begin = now_ms();
      { ContextScope inside(api(), caller_context()); }
      scope.push_back(us_since(begin));
      pause(), begin = now_ms(), api().stream_capturing(rig.stream, &is_capturing), capturing.push_back(us_since(begin));
      pause(), begin = now_ms(), api().event_record(event, rig.stream), record.push_back(us_since(begin));
      pause(), begin = now_ms();
      rig.backend.fence_record(FenceMark::make(10, ticket), rig.caller(), nullptr);
      fence.push_back(us_since(begin));
    }
    bulk.stop();
    must(api().stream_synchronize(rig.stream), "synchronize");
    std::printf(
        "{\"work\": \"submit and its pieces, lane %s\", \"submit_us\": %.2f, \"layer_wait_us\": %.2f, \"clock_us\": %.2f, \"context_us\": "
        "%.2f, \"capturing_us\": %.2f, \"event_record_us\": %.2f, \"fence_record_us\": %.2f}\n",
        state.name, median(submit), median(wait), median(clock), median(scope), median(capturing), median(record), median(fence));
  }
  // A layer wait while the lane hands the first quanta of a large load to the driver, and once it waits for the bus.
  for (double pause_us : {0.0, 5.0, 20.0, 50.0, 200.0, 2000.0}) {
    std::vector<double> wait;
    for (int i = 0; i < times(15); i++) {
      Transfer transfer(++ticket, 40, HICACHE_H2D, rig.order, load[static_cast<size_t>(i) % load.size()], rig.caller(),
                        HICACHE_CLASS_URGENT);
      rig.backend.submit(transfer.job);
      for (const double until = now_ms() + pause_us / 1e3; now_ms() < until;) {}
      const double begin = now_ms();
      rig.backend.layer_wait(40, 31, rig.caller(), nullptr);
      wait.push_back(us_since(begin));
      if (rig.done.wait(ticket) != HICACHE_OK) std::printf("{\"error\": \"a transfer failed\"}\n");
      must(api().stream_synchronize(rig.stream), "synchronize");
    }
    std::sort(wait.begin(), wait.end());
    std::printf("{\"work\": \"layer wait, %.0f us after the submit of 1 GiB\", \"median_us\": %.2f, \"worst_us\": %.2f}\n", pause_us,
                median(wait), wait.back());
  }
  api().event_destroy(event);
}

namespace {

const char *name_of(uint32_t source) {
  const char *const names[] = {"none", "table", "forced", "partly", "calibrated"};
  return source < std::size(names) ? names[source] : "?";
}

void calibrated(const char *name, std::vector<PoolLayout> pools, uint64_t host_bytes) {
  for (int again = 0; again < 2; again++) { // Twice: the choice should be the same.
    CopyTuning tuning;
    tuning.calibrate = true;
    if (smoke) tuning.quantum_bytes = 4 * kMiB;
    Rig rig(pools, sized(2 * kGiB), sized(host_bytes), tuning);
    must_open(rig);
    for (uint32_t direction : {HICACHE_H2D, HICACHE_D2H}) {
      hicache_copy_choice_t c;
      rig.backend.copy_choice(direction, &c);
      std::printf(
          "{\"work\": \"calibration at open, %s\", \"direction\": \"%s\", \"source\": \"%s\", \"us\": %u, \"probes\": %u, \"planned\": %u, "
          "\"direct_from\": [%llu, %llu], \"staged_below\": [%llu, %llu], \"staged_from_run\": [%llu, %llu], \"direct_up_to_count\": %u, "
          "\"blocks_alone\": %u, \"blocks_beside\": %u}\n",
          name, direction == HICACHE_H2D ? "h2d" : "d2h", name_of(c.source), c.calibration_us, c.probes_measured, c.probes_planned,
          static_cast<unsigned long long>(c.direct_from_bytes[0]), static_cast<unsigned long long>(c.direct_from_bytes[1]),
          static_cast<unsigned long long>(c.staged_below_bytes[0]), static_cast<unsigned long long>(c.staged_below_bytes[1]),
          static_cast<unsigned long long>(c.staged_from_run_bytes[0]), static_cast<unsigned long long>(c.staged_from_run_bytes[1]),
          c.direct_up_to_count, c.kernel_blocks_alone, c.kernel_blocks_beside);
    }
    for (const MeasuredRate &rate : rig.backend.measured_rates()) {
      const Probe &p = rate.probe;
      const char *const methods[] = {"auto", "direct", "kernel", "staged"};
      std::printf("{\"work\": \"probe, %s\", \"round\": %d, \"direction\": \"%s\", \"method\": \"%s\", \"bytes\": %llu, \"run\": %llu, "
                  "\"blocks\": %u, "
                  "\"count\": %u, \"both\": %d, \"gb_s\": %.2f}\n",
                  name, again, p.direction == HICACHE_H2D ? "h2d" : "d2h", methods[static_cast<int>(p.method)],
                  static_cast<unsigned long long>(p.bytes), static_cast<unsigned long long>(p.host_run), p.blocks, p.count, p.both ? 1 : 0,
                  rate.gb_s);
    }
  }
}

} // namespace

// What open measures, and what it makes of it: envelopes of every size that leaves a choice, and slices in host regions.
void calibration() {
  std::vector<PoolLayout> envelopes_of_all_sizes;
  uint32_t layer = 0;
  for (uint64_t bytes : {2 * kKiB, 16 * kKiB, 32 * kKiB, 64 * kKiB, 128 * kKiB})
    envelopes_of_all_sizes.push_back(pool(false, 1, bytes, 0, {layer++}));
  calibrated("envelopes", envelopes_of_all_sizes, kGiB);
  calibrated("llama-3-8b", llama(), kGiB);
  for (uint64_t bytes : {2 * kKiB, 8 * kKiB, 32 * kKiB, 128 * kKiB})
    calibrated(("slices of " + std::to_string(bytes / kKiB) + " KiB").c_str(), {slices(bytes)}, 0);
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
  if (smoke) return; // The simulated driver records no graphs.
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

// A load of 32 layers beside compute of equal length, whose kernels wait for their layers: what both take together, of the longer one.
void overlap(Rig &rig) {
  const CuFunction layer = test_function("test_layer");
  if (layer == nullptr) {
    std::printf("{\"error\": \"overlap: no test kernels\"}\n");
    return;
  }
  constexpr uint32_t kLayers = 32;
  const auto batches = scattered(512, 4, 2048, 1024, 3);
  uint32_t load = 0;
  long long cycles = smoke ? 1000 : 1000000; // Of a layer's kernel.
  const auto compute = [&](std::unique_ptr<Transfer> *transfer) {
    for (uint32_t l = 0; l < kLayers; l++) {
      if (transfer != nullptr && rig.backend.layer_wait((*transfer)->job.slot, l, rig.caller(), nullptr) != HICACHE_OK)
        std::printf("{\"error\": \"overlap: a layer wait\"}\n");
      CuAddress none = 0;
      void *parameters[] = {&none, &none, &none, &none, &cycles};
      must(api().launch(layer, 132, 1, 1, 128, 1, 1, 0, rig.stream, parameters, nullptr), "launch");
    }
  };
  // Wall time in ms of a load, of the compute, of both.
  const auto timed = [&](bool loads, bool computes) {
    std::vector<double> all;
    for (int i = 0; i <= times(7); i++) {
      std::unique_ptr<Transfer> transfer;
      if (loads) {
        load++;
        transfer =
            std::make_unique<Transfer>(600000 + load, 2, HICACHE_H2D, rig.order, batches[load % 4], rig.caller(), HICACHE_CLASS_URGENT);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      const double begin = now_ms();
      if (loads) rig.backend.submit(transfer->job);
      if (computes) compute(loads ? &transfer : nullptr);
      else rig.backend.layer_wait(2, kLayers - 1, rig.caller(), nullptr);
      must(api().stream_synchronize(rig.stream), "synchronize");
      const double end = now_ms();
      if (loads && rig.done.wait(transfer->job.ticket) != HICACHE_OK) std::printf("{\"error\": \"overlap: the load failed\"}\n");
      if (i > 0) all.push_back(end - begin);
    }
    return median(all);
  };
  const double load_ms = timed(true, false);
  for (int round = 0; round < 3; round++) // Clocks rise with the work, and the launches have a part that does not scale.
    cycles = static_cast<long long>(static_cast<double>(cycles) * std::clamp(load_ms / timed(false, true), 0.1, 10.0));
  const double compute_ms = timed(false, true), both_ms = timed(true, true);
  std::printf(
      "{\"work\": \"load of 32 layers beside compute of equal length\", \"load_ms\": %.2f, \"compute_ms\": %.2f, \"together_ms\": %.2f, "
      "\"of_the_longer\": %.3f}\n",
      load_ms, compute_ms, both_ms, both_ms / std::max(load_ms, compute_ms));
}

} // namespace hicache::device_bench
