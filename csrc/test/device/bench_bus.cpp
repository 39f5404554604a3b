// The bus: contiguous and scattered copies, what somebody else's copy waits for, and small fragments.
#include "bench.hpp"

namespace hicache::device_bench {

void ceilings(Rig &rig) {
  const CuAddress device = rig.device(0, 0), host = reinterpret_cast<CuAddress>(rig.host(0, 0));
  ceiling.h2d = static_cast<double>(sized(kGiB)) /
                gpu_ms(rig.stream, 5, [&] { must(api().copy_async(device, host, sized(kGiB), rig.stream), "copy"); }) / 1e6;
  ceiling.d2h = static_cast<double>(sized(kGiB)) /
                gpu_ms(rig.stream, 5, [&] { must(api().copy_async(host, device, sized(kGiB), rig.stream), "copy"); }) / 1e6;
  ceiling.d2d =
      4.0 * static_cast<double>(sized(kGiB)) /
      gpu_ms(rig.stream, 5, [&] { must(api().copy_async(device + sized(2 * kGiB), device, sized(2 * kGiB), rig.stream), "copy"); }) / 1e6;
  std::printf("{\"work\": \"ceiling, contiguous\", \"h2d_gb_s\": %.2f, \"d2h_gb_s\": %.2f, \"d2d_read_write_gb_s\": %.0f}\n", ceiling.h2d,
              ceiling.d2h, ceiling.d2d);
}

void envelopes(Rig &rig, const char *name) {
  const auto up = scattered(128, 8, 2048, 1024, 1), down = scattered(128, 8, 2048, 1024, 5);
  const double h2d = rate_of(rig, HICACHE_H2D, up, 0.5), d2h = rate_of(rig, HICACHE_D2H, down, 0.5, 8);
  Bulk a(rig, HICACHE_H2D, up, 0), b(rig, HICACHE_D2H, down, 8);
  a.start(), b.start();
  std::this_thread::sleep_for(std::chrono::duration<double>(lasting(0.5)));
  a.stop(), b.stop();
  std::printf("{\"work\": \"envelopes 2 MiB scattered, %s\", \"h2d_gb_s\": %.2f, \"d2h_gb_s\": %.2f, \"h2d_of_ceiling\": %.3f, "
              "\"d2h_of_ceiling\": %.3f, "
              "\"both_h2d\": %.2f, \"both_d2h\": %.2f, \"both_sum\": %.2f}\n",
              name, h2d, d2h, h2d / ceiling.h2d, d2h / ceiling.d2h, a.gb_s(), b.gb_s(), a.gb_s() + b.gb_s());
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
      for (int i = 0; i < times(300); i++) {
        const double begin = now_ms();
        must(direction == HICACHE_H2D ? api().copy_async(scratch, host, bytes, rig.stream)
                                      : api().copy_async(host, scratch, bytes, rig.stream),
             "copy");
        must(api().stream_synchronize(rig.stream), "synchronize");
        us.push_back((now_ms() - begin) * 1e3);
        std::this_thread::sleep_for(std::chrono::microseconds(700));
      }
      std::sort(us.begin(), us.end());
      const size_t count = us.size();
      std::printf("{\"work\": \"another stream's copy during a bulk transfer, %s\", \"direction\": \"%s\", \"bytes\": %llu, \"count\": "
                  "%zu, \"median_us\": "
                  "%.0f, \"p99_us\": %.0f, \"worst_us\": %.0f}\n",
                  name, direction == HICACHE_H2D ? "h2d" : "d2h", static_cast<unsigned long long>(bytes), count, us[count / 2],
                  us[(count * 99 - 1) / 100], us.back());
    }
    bulk.stop();
  }
  api().memory_free(scratch);
}

// What of the bus's rate is left while pages move on the device.
void bus_beside_moves(Rig &rig) {
  for (uint32_t direction : {HICACHE_H2D, HICACHE_D2H}) {
    const auto batches = scattered(128, 8, 2048, 1024, 1 + direction);
    const double alone = rate_of(rig, direction, batches, 0.4, direction == HICACHE_H2D ? 0 : 8);
    for (double limit : {500.0, 1e9}) {
      MovingPages mover(rig, limit);
      mover.start();
      const double beside = rate_of(rig, direction, batches, 0.4, direction == HICACHE_H2D ? 0 : 8);
      mover.stop();
      std::printf(
          "{\"work\": \"envelopes beside page moves\", \"direction\": \"%s\", \"limited\": %s, \"moves_gb_s\": %.0f, \"alone_gb_s\": "
          "%.2f, \"gb_s\": %.2f, \"kept\": %.3f}\n",
          direction == HICACHE_H2D ? "h2d" : "d2h", limit < 1e9 ? "true" : "false", mover.gb_s(), alone, beside, beside / alone);
    }
  }
}

// How the quantum and the number of quanta queued ahead trade bandwidth for the wait of others.
void quanta() {
  for (uint64_t quantum : {8 * kMiB, 16 * kMiB, 20 * kMiB, 24 * kMiB, 32 * kMiB}) {
    for (uint32_t depth : {2u, 3u, 4u}) {
      if (depth != 2 && quantum != 16 * kMiB) continue;
      CopyTuning tuning;
      tuning.quantum_bytes = quantum;
      tuning.depth = depth;
      Rig rig(llama(), sized(6 * kGiB), sized(3 * kGiB), tuning);
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
        for (CopyChoice &choice : tuning.choice) choice.kernel_blocks_alone = blocks;
        Rig rig({pool(false, 1, bytes, 0, {0})}, sized(2 * kGiB), sized(kGiB), tuning);
        must_open(rig);
        const auto pages = static_cast<uint32_t>(sized(kGiB) / bytes), each = static_cast<uint32_t>(sized(64 * kMiB) / bytes);
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

} // namespace hicache::device_bench
