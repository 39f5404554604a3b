// Work on the device alone: page moves, translation and digests; and how long an open takes.
#include "bench.hpp"

namespace hicache::device_bench {

CuFunction test_function(const char *name) {
  static CuModule module = [] {
    CuModule simulated_one = nullptr;
    if (smoke && api().module_load(&simulated_one, "") == cu::kSuccess) return simulated_one;
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

void moves() {
  for (uint64_t bytes : {32 * kKiB, 256 * kKiB, 2 * kMiB}) {
    Rig rig({pool(false, 1, bytes, 0, {0})}, sized(8 * kGiB), kMiB * 4);
    must_open(rig);
    const auto pages = static_cast<uint32_t>(sized(8 * kGiB) / bytes), count = static_cast<uint32_t>(sized(2 * kGiB) / bytes);
    const auto places = shuffled(pages, 1);
    std::vector<PageMove> list;
    for (uint32_t i = 0; i < count; i++) list.push_back({0, at(places[i]), at(places[pages / 2 + i])});
    uint64_t sequence = 0;
    // The clocks of an idle GPU are low: some work first.
    for (const double until = now_ms() + lasting(0.15) * 1e3; now_ms() < until;) {
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
                static_cast<unsigned long long>(bytes), 2.0 * static_cast<double>(sized(2 * kGiB)) / ms / 1e9,
                2.0 * static_cast<double>(sized(2 * kGiB)) / ms / 1e6 / ceiling.d2d, burst_ms * 1e3);
  }
}

void ids_and_digests() {
  Rig rig(llama(), sized(6 * kGiB), 4 * kMiB);
  must_open(rig);
  if (!rig.backend.kernels().available()) {
    std::fprintf(stderr, "ids and digests: NOT RUN: %s\n", rig.backend.kernels().reason().c_str());
    return;
  }
  const uint32_t n = smoke ? 1 << 12 : 1 << 20;
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
  const int launches = times(20);
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
  for (int i = 0; i <= times(5); i++) {
    const double begin = now_ms();
    if (rig.backend.digest_pages(0, pages, digests.data(), nullptr) != HICACHE_OK) std::printf("{\"error\": \"digest\"}\n");
    if (i > 0) digest_ms.push_back(now_ms() - begin);
  }
  std::printf("{\"work\": \"translate 1 Mi ids\", \"us\": %.2f, \"plain_gather_us\": %.2f, \"of_gather\": %.2f}\n", ms / launches * 1e3,
              gather_ms / launches * 1e3, gather_ms / ms);
  std::printf("{\"work\": \"digest of pages, call and answer included\", \"bytes\": %llu, \"ms\": %.2f, \"tb_s_read\": %.2f}\n",
              static_cast<unsigned long long>(2048 * sized(2 * kMiB)), median(digest_ms),
              2048.0 * static_cast<double>(sized(2 * kMiB)) / median(digest_ms) / 1e9);
  api().memory_free(memory);
}

void open_time() {
  for (uint64_t gib : {8ull, 32ull}) {
    std::vector<double> s;
    for (int i = 0; i < (gib == 8 ? 3 : 2); i++) {
      const double begin = now_ms();
      Rig rig(llama(), sized(4 * kGiB), sized(gib * kGiB));
      must_open(rig);
      s.push_back((now_ms() - begin) / 1e3);
    }
    std::printf("{\"work\": \"open\", \"pinned_gib\": %llu, \"first_s\": %.2f, \"again_s\": %.2f}\n", static_cast<unsigned long long>(gib),
                s.front(), *std::min_element(s.begin() + 1, s.end()));
  }
}

} // namespace hicache::device_bench
