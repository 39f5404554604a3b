#include "id_translate.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hicache {

namespace {

using TranslateFn = uint64_t (*)(const KernelMap &, const uint32_t *, uint32_t, int32_t *);

// Unmapped entries have the top bit set, as has what stands for a page out of range: negative means sink.
inline int32_t translate_one(const KernelMap &map, uint32_t vpage) {
  const auto place = static_cast<int32_t>(vpage < map.v2p_length ? map.v2p[vpage] : HICACHE_NO_PAGE);
  return place < 0 ? 0 : place;
}

uint64_t translate_portable(const KernelMap &map, const uint32_t *vpages, uint32_t count, int32_t *ids_out) {
  uint64_t sinks = 0;
  for (uint32_t i = 0; i < count; i++) {
    ids_out[i] = translate_one(map, vpages[i]);
    sinks += ids_out[i] == 0;
  }
  return sinks;
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] uint64_t translate_avx2(const KernelMap &map, const uint32_t *vpages, uint32_t count, int32_t *ids_out) {
  if (map.v2p_length == 0) return translate_portable(map, vpages, count, ids_out);
  const __m256i last = _mm256_set1_epi32(static_cast<int32_t>(map.v2p_length - 1));
  const __m256i zero = _mm256_setzero_si256();
  const __m256i unmapped = _mm256_set1_epi32(-1);
  const auto *table = reinterpret_cast<const int *>(map.v2p);
  uint64_t sinks = 0;
  uint32_t i = 0;
  while (i + 8 <= count) {
    // Sinks are counted in lanes, which must not pass 2^31.
    const uint32_t stop = count - i > (1u << 28) ? i + (1u << 28) : count;
    __m256i sink_lanes = zero;
    for (; i + 8 <= stop; i += 8) {
      const __m256i vpage = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(vpages + i));
      const __m256i in_range = _mm256_cmpeq_epi32(_mm256_min_epu32(vpage, last), vpage);
      const __m256i place = _mm256_mask_i32gather_epi32(unmapped, table, vpage, in_range, 4);
      const __m256i id = _mm256_max_epi32(place, zero);
      sink_lanes = _mm256_sub_epi32(sink_lanes, _mm256_cmpeq_epi32(id, zero));
      _mm256_storeu_si256(reinterpret_cast<__m256i *>(ids_out + i), id);
    }
    alignas(32) uint32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i *>(lanes), sink_lanes);
    for (uint32_t lane : lanes) sinks += lane;
  }
  return sinks + translate_portable(map, vpages + i, count - i, ids_out + i);
}
#endif

TranslateFn choose_translate() {
#if defined(__x86_64__)
  __builtin_cpu_init(); // This runs while the library is loaded.
  if (__builtin_cpu_supports("avx2")) return translate_avx2;
#endif
  return translate_portable;
}

const TranslateFn translate = choose_translate();

} // namespace

uint64_t translate_pages(const KernelMap &map, const uint32_t *vpages, uint32_t count, int32_t *ids_out) {
  return translate(map, vpages, count, ids_out);
}

uint64_t translate_tokens(const KernelMap &map, const uint32_t *vpages, uint32_t count, int32_t *ids_out) {
  uint64_t sinks = 0;
  const auto page_tokens = static_cast<int32_t>(map.page_tokens);
  for (uint32_t i = 0; i < count; i++) {
    const int32_t page = translate_one(map, vpages[i]);
    sinks += page == 0;
    const int32_t step = page == 0 ? 0 : 1;
    const int32_t first = page * page_tokens;
    for (int32_t token = 0; token < page_tokens; token++) *ids_out++ = first + token * step;
  }
  return sinks;
}

const char *translate_method() { return translate == translate_portable ? "portable" : "avx2"; }

} // namespace hicache
