// Host fragments by kernel beside compute that never pauses: what rate is kept, and what it costs the compute.
#pragma once

#include <tuple>

#include "variant_host.cuh"

namespace hicache::variants {

struct Compute {
  const char *name;
  cudaGraphExec_t graph;
  int launches; // Of the graph, about 90 ms in all.
  double alone_ms;
};

Compute make_compute(const char *name, int kernels, const std::function<void(cudaStream_t)> &work) {
  cudaStream_t stream;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  cudaGraph_t graph;
  Compute made{name, nullptr, 0, 0};
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < kernels; i++) work(stream);
  must(cudaStreamEndCapture(stream, &graph), "capture");
  must(cudaGraphInstantiate(&made.graph, graph, 0), "graph");
  const double ms = gpu_ms(3, [&] { must(cudaGraphLaunch(made.graph, bench.stream), "graph"); });
  made.launches = std::max(1, static_cast<int>(90 / ms));
  auto all = [&] {
    for (int i = 0; i < made.launches; i++) must(cudaGraphLaunch(made.graph, bench.stream), "graph");
  };
  all();
  made.alone_ms = gpu_ms(3, all);
  std::printf("{\"part\": \"beside\", \"compute\": \"%s\", \"alone_kernel_ms\": %.4f}\n", name, made.alone_ms / made.launches / kernels);
  must(cudaStreamDestroy(stream), "stream");
  return made;
}

struct Launches {
  const char *how; // "in a stream", "chained" (the next one may start near the end of this one), "two streams".
  bool high;
  uint64_t bytes;
};

// Runs the compute once, launches of `fragment` bytes each beside it; prints rate and slowdown.
void beside_one(const Compute &compute, bool down, uint64_t fragment, const char *kernel, const std::string &detail, Launches launches,
                const std::function<void(const Fragment *, uint32_t, cudaStream_t, bool)> &launch, uint64_t list_bytes) {
  const bool two = std::strcmp(launches.how, "two streams") == 0, chained = std::strcmp(launches.how, "chained") == 0;
  const uint32_t each = static_cast<uint32_t>(launches.bytes / fragment), parts = static_cast<uint32_t>(list_bytes / launches.bytes);
  const uint32_t depth = launches.bytes >= 32 * kMiB ? 3 : 6;
  std::vector<cudaEvent_t> events(depth);
  for (cudaEvent_t &event : events) must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  must(cudaEventRecord(bench.begin, bench.stream), "record");
  for (int i = 0; i < compute.launches; i++) must(cudaGraphLaunch(compute.graph, bench.stream), "graph");
  must(cudaEventRecord(bench.end, bench.stream), "record");
  uint64_t started = 0, ended = 0;
  while (cudaEventQuery(bench.end) == cudaErrorNotReady) {
    while (ended < started && cudaEventQuery(events[ended % depth]) == cudaSuccess) ended++;
    if (started - ended == depth) continue;
    const cudaStream_t on = two && started % 2 != 0 ? bench.side : launches.high ? bench.high : bench.low;
    // Chained: an event between two launches parts them, so four go before each event.
    for (int i = 0; i < (chained ? 4 : 1); i++) launch(bench.list_device + (started + i) % parts * each, each, on, chained);
    must(cudaEventRecord(events[started % depth], on), "record");
    started++;
  }
  while (ended < started && cudaEventQuery(events[ended % depth]) == cudaSuccess) ended++;
  must(cudaDeviceSynchronize(), "beside");
  float ms = 0;
  must(cudaEventElapsedTime(&ms, bench.begin, bench.end), "elapsed");
  for (cudaEvent_t event : events) cudaEventDestroy(event);
  std::printf("{\"part\": \"beside\", \"compute\": \"%s\", \"direction\": \"%s\", \"bytes\": %llu, \"kernel\": \"%s\", %s, \"how\": "
              "\"%s\", \"priority\": \"%s\", \"launch_mib\": %llu, "
              "\"gb_s\": %.2f, \"slowdown_percent\": %.2f}\n",
              compute.name, down ? "d2h" : "h2d", static_cast<unsigned long long>(fragment), kernel, detail.c_str(), launches.how,
              launches.high ? "high" : "low", static_cast<unsigned long long>(launches.bytes / kMiB),
              static_cast<double>(ended * launches.bytes * (chained ? 4 : 1)) / ms / 1e6, (ms / compute.alone_ms - 1) * 100);
}

template <class... Args>
void launch_kernel(void (*kernel)(Args...), unsigned blocks, unsigned threads, size_t shared, cudaStream_t stream, bool chained,
                   Args... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = chained ? 1 : 0;
  must(cudaLaunchKernelEx(&config, kernel, args...), "launch");
}

void beside() {
  float *out = nullptr;
  must(cudaMalloc(reinterpret_cast<void **>(&out), 1 << 20), "cudaMalloc");
  const uint4 *weights = reinterpret_cast<const uint4 *>(bench.arena + 6 * kGiB);
  const uint32_t cached = 32 * kMiB / 16;
  std::vector<Compute> computes;
  computes.push_back(make_compute("waves of blocks, 1.5 ms", 4,
                                  [&](cudaStream_t s) { arithmetic<<<132 * 15, 256, 200 << 10, s>>>(weights, cached, 240, out); }));
  computes.push_back(make_compute("blocks that stay, 1.5 ms", 4,
                                  [&](cudaStream_t s) { arithmetic<<<132, 256, 200 << 10, s>>>(weights, cached, 3600, out); }));
  computes.push_back(make_compute("short and memory-bound", 100,
                                  [&](cudaStream_t s) { streaming<<<132 * 8, 256, 0, s>>>(weights, 96 * kMiB / 16, out); }));
  const uint64_t list_bytes = 256 * kMiB;
  const Kernel &four = kRows[1], &eight = kRows[3];
  char detail[256];
  for (bool down : {false, true}) {
    struct Case {
      uint64_t fragment;
      const Kernel *kernel; // Null: bulk.
      unsigned threads, blocks;
      Sorting sorting;
      Launches launches;
    };
    std::vector<Case> cases;
    for (bool high : {false, true}) {
      for (uint64_t mib : {2, 4, 8, 16, 32, 64, 128})
        cases.push_back({2 * kKiB, &four, 1024, 2, kRandom, {"in a stream", high, mib * kMiB}});
    }
    for (bool high : {false, true}) {
      for (uint64_t mib : {16, 64}) {
        const Launches in_stream{"in a stream", high, mib * kMiB};
        for (auto [kernel, threads, blocks] :
             {std::tuple(&four, 1024u, 1u), std::tuple(&four, 1024u, 3u), std::tuple(&four, 512u, 4u), std::tuple(&four, 256u, 8u),
              std::tuple(&eight, 1024u, 2u), std::tuple(&eight, 512u, 2u), std::tuple(&eight, 512u, 3u)})
          cases.push_back({2 * kKiB, kernel, threads, blocks, kRandom, in_stream});
        cases.push_back({2 * kKiB, nullptr, 64, 2, kRandom, in_stream});
      }
    }
    for (uint64_t mib : {4, 16, 64}) {
      cases.push_back({2 * kKiB, &four, 1024, 2, kRandom, {"chained", true, mib * kMiB}});
      cases.push_back({2 * kKiB, &four, 512, 4, kRandom, {"chained", true, mib * kMiB}});
      cases.push_back({2 * kKiB, &four, 1024, 1, kRandom, {"two streams", true, mib * kMiB}});
      cases.push_back({2 * kKiB, &four, 1024, 1, kRandom, {"two streams", false, mib * kMiB}});
      cases.push_back({2 * kKiB, &four, 1024, 2, kByHost, {"in a stream", true, mib * kMiB}});
    }
    for (Sorting sorting : {kRandom, kByHost}) cases.push_back({kKiB / 2, &four, 1024, 2, sorting, {"in a stream", true, 64 * kMiB}});
    for (const Kernel *kernel : {&four, static_cast<const Kernel *>(nullptr)})
      cases.push_back({32 * kKiB, kernel, kernel != nullptr ? 1024u : 64u, 2, kRandom, {"in a stream", true, 64 * kMiB}});
    uint64_t last_fragment = 0;
    Sorting last_sorting = kRandom;
    for (const Case &c : cases) {
      if (c.fragment != last_fragment || c.sorting != last_sorting) put_list(host_list(c.fragment, down, c.sorting, list_bytes));
      last_fragment = c.fragment;
      last_sorting = c.sorting;
      for (const Compute &compute : computes) {
        if (c.kernel != nullptr) {
          std::snprintf(detail, sizeof detail, "\"loads\": %d, \"threads\": %u, \"blocks\": %u, \"order\": \"%s\"", c.kernel->loads,
                        c.threads, c.blocks, kSortingNames[c.sorting]);
          beside_one(
              compute, down, c.fragment, "rows", detail, c.launches,
              [&](const Fragment *list, uint32_t count, cudaStream_t on, bool chained) {
                launch_kernel(c.kernel->run, c.blocks, c.threads, 0, on, chained, list, count, c.fragment);
              },
              list_bytes);
        } else {
          std::snprintf(detail, sizeof detail, "\"stage\": 16384, \"stages\": 12, \"blocks\": %u, \"evict_first\": 1, \"order\": \"%s\"",
                        c.blocks, kSortingNames[c.sorting]);
          beside_one(
              compute, down, c.fragment, "bulk", detail, c.launches,
              [&](const Fragment *list, uint32_t count, cudaStream_t on, bool chained) {
                launch_kernel(bulk<true>, c.blocks, 64u, 12 * 16384, on, chained, list, count, c.fragment, 16384u, 12u);
              },
              list_bytes);
        }
      }
    }
    for (const Compute &compute : computes) {
      beside_one(
          compute, down, 2 * kMiB, "cudaMemcpyAsync", "\"blocks\": 0", {"in a stream", false, 16 * kMiB},
          [&](const Fragment *, uint32_t, cudaStream_t on, bool) {
            void *device = reinterpret_cast<void *>(bench.arena), *host = bench.host;
            must(cudaMemcpyAsync(down ? host : device, down ? device : host, 16 * kMiB, cudaMemcpyDefault, on), "copy");
          },
          list_bytes);
    }
  }
}

} // namespace hicache::variants
