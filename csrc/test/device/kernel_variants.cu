// Which shape of copy kernel is fastest: page moves inside the device, small host fragments over the bus, and the latter beside compute
// that never pauses. Needs the CUDA runtime alone. Prints one JSON object a variant; "wrong" counts 16-byte units that differ after one
// checked run and must be 0.
//   kernel_variants [move] [host] [beside]      no argument: all of them
// What won is in cuda/; this program is how to look again on another GPU.
#include "../../../cuda/page_move.cu"
#include "variant_beside.cuh"

namespace hicache::variants {

double contiguous_tb_s() {
  return 2.0 * kMoveBytes / 1e9 / gpu_ms(7, [] {
           must(cudaMemcpyAsync(reinterpret_cast<void *>(bench.arena + 4 * kGiB), reinterpret_cast<void *>(bench.arena), kMoveBytes,
                                cudaMemcpyDeviceToDevice, bench.stream),
                "copy");
         });
}

void move_line(uint64_t bytes, const char *kernel, const std::string &detail, double ms, double ceiling, unsigned long long wrong) {
  const double tb_s = 2.0 * kMoveBytes / 1e9 / ms;
  std::printf("{\"part\": \"move\", \"bytes\": %llu, \"kernel\": \"%s\", %s, \"tb_s\": %.3f, \"of_contiguous\": %.4f, \"wrong\": %llu}\n",
              static_cast<unsigned long long>(bytes), kernel, detail.c_str(), tb_s, tb_s / ceiling, wrong);
}

void moves() {
  for (const double until = now_ms() + 200; now_ms() < until;) contiguous_tb_s(); // The clocks of an idle GPU are low.
  const double ceiling = contiguous_tb_s();
  std::printf("{\"part\": \"move\", \"kernel\": \"cudaMemcpyAsync, contiguous\", \"tb_s\": %.3f}\n", ceiling);
  char detail[256];
  for (uint64_t bytes : {32 * kKiB, 256 * kKiB, 2 * kMiB}) {
    const auto count = static_cast<uint32_t>(kMoveBytes / bytes), places = static_cast<uint32_t>(kArenaBytes / bytes);
    const auto order = shuffled(places, 1);
    std::vector<Fragment> list;
    for (uint32_t i = 0; i < count; i++) list.push_back({bench.arena + order[i] * bytes, bench.arena + order[places / 2 + i] * bytes});
    put_list(list);
    auto timed = [&](const char *kernel, const std::string &text, const std::function<void()> &work, int in_a_row = 3) {
      const unsigned long long wrong = wrong_units(count, bytes, work);
      const double ms = gpu_ms(4,
                               [&] {
                                 for (int i = 0; i < in_a_row; i++) work();
                               }) /
                        in_a_row;
      move_line(bytes, kernel, text, ms, ceiling, wrong);
      return ms;
    };
    auto go = [&](const Kernel &k, unsigned blocks, unsigned threads, const Fragment *from) {
      k.run<<<blocks, threads, 0, bench.stream>>>(from, count, bytes);
    };
    double best = 1e9;
    const Kernel *best_kernel = &kPages[0];
    unsigned best_blocks = 4224, best_threads = 512;
    for (const Kernel &k : kPages) {
      for (unsigned threads : {256u, 512u}) {
        if (threads == 512 && k.loads == 16) continue;
        const uint64_t block_bytes = threads * 16ull * k.loads;
        if (k.order == kBlockWide && block_bytes > bytes) continue;
        const bool plain = &k == &kPages[0] || k.order == kParts || k.order == kBlockWide;
        for (unsigned blocks : {132u, 264u, 528u, 1056u, 2112u, 4224u, 8448u, 0u}) { // 0: one round each.
          if (!plain && blocks != 1056 && blocks != 4224) continue;
          const unsigned n = blocks != 0 ? blocks : static_cast<unsigned>(kMoveBytes / block_bytes);
          std::snprintf(detail, sizeof detail,
                        "\"loads\": %d, \"registers_for\": %d, \"ld\": \"%s\", \"st\": \"%s\", \"order\": \"%s\", \"threads\": %u, "
                        "\"blocks\": %u, \"list\": \"device\"",
                        k.loads, k.blocks_on_one, kLoadNames[k.load], kStoreNames[k.store], kOrderNames[k.order], threads, n);
          const double ms = timed(k.name, detail, [&] { go(k, n, threads, bench.list_device); });
          if (ms < best) best = ms, best_kernel = &k, best_blocks = n, best_threads = threads;
        }
      }
    }
    // The library's kernel as it is.
    for (unsigned blocks : {528u, 1056u, 2112u, 4224u, 32768u}) {
      std::snprintf(detail, sizeof detail, "\"threads\": 512, \"blocks\": %u, \"list\": \"device\"", blocks);
      timed("hicache_page_move", detail,
            [&] { hicache_page_move<<<blocks, 512, 0, bench.stream>>>(library_args(bench.list_device, count, bytes)); });
    }
    // The list: in the stream's way, beside it, read where it lies in the host's memory; in one launch or in portions.
    const char *const lists[] = {"device", "uploaded in the stream", "uploaded beside", "mapped host memory"};
    for (uint32_t portion : {count, 8192u, 2048u, 512u}) {
      if (portion > count || (portion == count && count < 4096)) portion = count;
      for (int kind = 0; kind < 4; kind++) {
        for (int in_a_row : {1, 3}) {
          std::snprintf(detail, sizeof detail,
                        "\"loads\": %d, \"ld\": \"%s\", \"st\": \"%s\", \"order\": \"%s\", \"threads\": %u, \"blocks\": %u, \"list\": "
                        "\"%s\", \"in_a_row\": "
                        "%d, \"portion\": %u",
                        best_kernel->loads, kLoadNames[best_kernel->load], kStoreNames[best_kernel->store], kOrderNames[best_kernel->order],
                        best_threads, best_blocks, lists[kind], in_a_row, portion);
          timed(
              "best of pages", detail,
              [&] {
                for (uint32_t at = 0, turn = 0; at < count; at += portion, turn++) {
                  const uint32_t here = std::min(portion, count - at);
                  const auto upload = [&](cudaStream_t on) {
                    must(cudaMemcpyAsync(bench.list_device + at, bench.list_host + at, here * sizeof(Fragment), cudaMemcpyHostToDevice, on),
                         "upload");
                  };
                  if (kind == 1) upload(bench.stream);
                  if (kind == 2) {
                    upload(bench.side);
                    must(cudaEventRecord(bench.turns[turn % 2], bench.side), "record");
                    must(cudaStreamWaitEvent(bench.stream, bench.turns[turn % 2], 0), "wait");
                  }
                  const auto fits =
                      static_cast<unsigned>(std::max<uint64_t>(1, here * bytes / (best_threads * 16ull * best_kernel->loads)));
                  best_kernel->run<<<std::min(best_blocks, fits), best_threads, 0, bench.stream>>>(
                      (kind == 3 ? bench.list_host : bench.list_device) + at, here, bytes);
                }
              },
              in_a_row);
        }
      }
      if (portion == count && count < 4096) break;
    }
    const struct {
      uint32_t stage, stages, blocks;
    } rings[] = {{32 << 10, 6, 132}, {32 << 10, 7, 132}, {16 << 10, 12, 132}, {16 << 10, 6, 264},  {32 << 10, 3, 264},  {16 << 10, 4, 396},
                 {8 << 10, 12, 264}, {16 << 10, 3, 528}, {8 << 10, 6, 528},   {32 << 10, 2, 1056}, {16 << 10, 4, 1056}, {16 << 10, 2, 4224},
                 {8 << 10, 4, 4224}, {32 << 10, 2, 396}, {16 << 10, 13, 132}, {8 << 10, 26, 132}};
    for (const auto &ring : rings) {
      for (int evict : {0, 1}) {
        std::snprintf(detail, sizeof detail, "\"stage\": %u, \"stages\": %u, \"blocks\": %u, \"evict_first\": %d, \"list\": \"device\"",
                      ring.stage, ring.stages, ring.blocks, evict);
        timed("bulk", detail, [&] {
          (evict ? bulk<true> : bulk<false>)<<<ring.blocks, 64, ring.stage * ring.stages, bench.stream>>>(bench.list_device, count, bytes,
                                                                                                          ring.stage, ring.stages);
        });
      }
    }
  }
  std::printf("{\"part\": \"move\", \"kernel\": \"cudaMemcpyAsync, contiguous, again\", \"tb_s\": %.3f}\n", contiguous_tb_s());
}

} // namespace hicache::variants

int main(int argc, char **argv) {
  using namespace hicache::variants;
  std::vector<std::string> parts(argv + 1, argv + argc);
  auto wanted = [&](const char *part) { return parts.empty() || std::find(parts.begin(), parts.end(), part) != parts.end(); };
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const double begin = now_ms();
  open_bench();
  std::printf("{\"part\": \"open\", \"seconds\": %.1f}\n", (now_ms() - begin) / 1e3);
  const struct {
    const char *name;
    void (*run)();
  } all[] = {{"host", host_fragments}, {"beside", beside}, {"move", moves}};
  for (const auto &part : all) {
    if (!wanted(part.name)) continue;
    const double start = now_ms();
    part.run();
    std::printf("{\"part\": \"%s\", \"seconds\": %.1f}\n", part.name, (now_ms() - start) / 1e3);
  }
  return 0;
}
