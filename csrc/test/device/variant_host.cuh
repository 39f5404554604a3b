// Small fragments between the device and pinned host memory by kernel.
#pragma once

#include "../../../cuda/page_copy.cu"
#include "variant_bench.cuh"

namespace hicache::variants {

enum Sorting { kRandom, kByHost, kByHostPage, kByDevice };
const char *const kSortingNames[] = {"random", "by host address in 16 MiB", "by huge page of the host in 16 MiB",
                                     "by device address in 16 MiB"};

std::vector<Fragment> host_list(uint64_t bytes, bool down, Sorting sorting, uint64_t total = kHostLaunch) {
  const auto places = static_cast<uint32_t>(kHostBytes / bytes), count = static_cast<uint32_t>(total / bytes);
  const auto host = shuffled(places, 3), device = shuffled(places, 4);
  std::vector<Fragment> list;
  for (uint32_t i = 0; i < count; i++) {
    const uint64_t h = reinterpret_cast<uint64_t>(bench.host) + host[i] * bytes, d = bench.arena + device[i] * bytes;
    list.push_back(down ? Fragment{d, h} : Fragment{h, d});
  }
  const auto part = static_cast<uint32_t>(16 * kMiB / bytes);
  for (uint32_t at = 0; at < count && sorting != kRandom; at += part) {
    const bool by_target = down == (sorting != kByDevice);
    const int shift = sorting == kByHostPage ? 21 : 0;
    std::stable_sort(list.begin() + at, list.begin() + at + part, [&](const Fragment &a, const Fragment &b) {
      return by_target ? a.target >> shift < b.target >> shift : a.source >> shift < b.source >> shift;
    });
  }
  return list;
}

void host_fragments() {
  char detail[320];
  for (bool down : {false, true}) {
    const auto copy = [&] {
      void *device = reinterpret_cast<void *>(bench.arena), *host = bench.host;
      must(cudaMemcpyAsync(down ? host : device, down ? device : host, kHostBytes, cudaMemcpyDefault, bench.stream), "copy");
    };
    std::printf("{\"part\": \"host\", \"direction\": \"%s\", \"kernel\": \"cudaMemcpyAsync, contiguous\", \"gb_s\": %.2f}\n",
                down ? "d2h" : "h2d", kHostBytes / 1e6 / gpu_ms(3, copy));
    for (uint64_t bytes : {kKiB / 2, 2 * kKiB, 8 * kKiB, 32 * kKiB}) {
      const auto count = static_cast<uint32_t>(kHostLaunch / bytes);
      auto timed = [&](const char *kernel, const std::string &text, const std::function<void()> &work, int rounds = 3) {
        const unsigned long long wrong = wrong_units(count, bytes, work);
        std::printf(
            "{\"part\": \"host\", \"direction\": \"%s\", \"bytes\": %llu, \"kernel\": \"%s\", %s, \"gb_s\": %.2f, \"wrong\": %llu}\n",
            down ? "d2h" : "h2d", static_cast<unsigned long long>(bytes), kernel, text.c_str(), kHostLaunch / 1e6 / gpu_ms(rounds, work),
            wrong);
      };
      for (Sorting sorting : {kRandom, kByHost, kByHostPage, kByDevice}) {
        put_list(host_list(bytes, down, sorting));
        for (unsigned blocks : {2u, 4u, 8u}) {
          std::snprintf(detail, sizeof detail, "\"threads\": 1024, \"blocks\": %u, \"order\": \"%s\"", blocks, kSortingNames[sorting]);
          timed("hicache_page_copy", detail, [&] {
            (bytes < 4096 ? hicache_page_copy_small
                          : hicache_page_copy)<<<blocks, 1024, 0, bench.stream>>>(library_args(bench.list_device, count, bytes));
          });
        }
        for (const Kernel &k : kRows) {
          const bool hint = k.load != kLoadOnce || k.store != kStoreStream;
          if (hint && sorting != kRandom) continue;
          for (unsigned threads : {256u, 512u, 1024u}) {
            for (unsigned blocks : {1u, 2u, 3u, 4u, 6u, 8u, 16u}) {
              if ((hint || sorting != kRandom) && (threads != 1024 || (blocks != 2 && blocks != 4))) continue;
              if (threads * blocks < 1024 || (blocks == 16 && threads != 256)) continue;
              if (k.loads == 2 && threads != 1024) continue;
              std::snprintf(
                  detail, sizeof detail,
                  "\"loads\": %d, \"ld\": \"%s\", \"st\": \"%s\", \"list_ahead\": %d, \"threads\": %u, \"blocks\": %u, \"order\": \"%s\"",
                  k.loads, kLoadNames[k.load], kStoreNames[k.store], k.order, threads, blocks, kSortingNames[sorting]);
              timed(k.name, detail, [&] { k.run<<<blocks, threads, 0, bench.stream>>>(bench.list_device, count, bytes); });
            }
          }
        }
        const struct { uint32_t stage, stages; } rings[] = {{4 << 10, 48}, {8 << 10, 24}, {16 << 10, 12}, {32 << 10, 6}};
        for (const auto &ring : rings) {
          for (uint32_t blocks : {1u, 2u, 4u, 8u}) {
            for (int evict : {0, 1}) {
              if (sorting != kRandom && (ring.stage != 16 << 10 || blocks != 2 || evict == 0)) continue;
              std::snprintf(detail, sizeof detail, "\"stage\": %u, \"stages\": %u, \"blocks\": %u, \"evict_first\": %d, \"order\": \"%s\"",
                            ring.stage, ring.stages, blocks, evict, kSortingNames[sorting]);
              timed(
                  "bulk", detail,
                  [&] {
                    (evict ? bulk<true> : bulk<false>)<<<blocks, 64, ring.stage * ring.stages, bench.stream>>>(
                        bench.list_device, count, bytes, ring.stage, ring.stages);
                  },
                  2);
            }
          }
        }
      }
      // In launches of 16 MiB, and where the list comes from; turns: two streams that wait for each other, as a lane's quanta.
      const uint32_t part = static_cast<uint32_t>(16 * kMiB / bytes);
      const char *const lists[] = {"device",          "uploaded in the stream",    "mapped host memory",
                                   "uploaded, turns", "mapped host memory, turns", "device, turns"};
      for (unsigned blocks : {2u, 4u, 8u}) {
        for (int kind = 0; kind < 6; kind++) {
          const Kernel &k = kRows[1];
          std::snprintf(detail, sizeof detail,
                        "\"loads\": 4, \"list_ahead\": 1, \"threads\": 1024, \"blocks\": %u, \"launch_mib\": 16, \"list\": \"%s\"", blocks,
                        lists[kind]);
          timed("rows", detail, [&] {
            for (uint32_t at = 0, turn = 0; at < count; at += part, turn++) {
              const cudaStream_t on = kind >= 3 && turn % 2 != 0 ? bench.side : bench.stream;
              if (kind >= 3 && turn > 0) must(cudaStreamWaitEvent(on, bench.turns[(turn - 1) % 2], 0), "wait");
              if (kind == 1 || kind == 3)
                must(cudaMemcpyAsync(bench.list_device + at, bench.list_host + at, part * sizeof(Fragment), cudaMemcpyHostToDevice, on),
                     "upload");
              k.run<<<blocks, 1024, 0, on>>>((kind == 2 || kind == 4 ? bench.list_host : bench.list_device) + at, part, bytes);
              if (kind >= 3) must(cudaEventRecord(bench.turns[turn % 2], on), "record");
            }
            if (kind >= 3) must(cudaStreamWaitEvent(bench.stream, bench.turns[(count / part - 1) % 2], 0), "wait");
          });
        }
      }
    }
  }
}

} // namespace hicache::variants
