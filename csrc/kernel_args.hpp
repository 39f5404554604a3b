// What the host hands to the kernels of cuda/: plain structs, passed by value, one layout for g++ and nvcc. Offsets and sizes are 64-bit
// bytes, multiples of 16 and 16-byte aligned, unless said otherwise.
#pragma once

#include <cstdint>

namespace hicache::kernel {

// One fragment to copy. Added to the bases of the launch.
struct Fragment {
  uint64_t source;
  uint64_t target;
};

// A list travels inside the launch when it is short, which saves a copy and its latency, and in device memory when it is long.
inline constexpr uint32_t kInlineFragments = 248; // Keeps every argument struct under the 4 KiB that all targets accept.

// page_copy_small takes pieces below this many bytes: what a warp copies in a round. Larger ones go to page_copy or page_move.
inline constexpr uint32_t kWindowBytes = 4096;

// page_move, page_copy: fragment i consists of `pieces` pieces; piece j is copied
//   from source_base + fragments[i].source + j * source_stride   to target_base + fragments[i].target + j * target_stride.
// Fragments of one launch must not overlap: the order of copies is not defined.
struct CopyArgs {
  const Fragment *list; // Device memory, or null: inline_list.
  uint32_t count;       // Fragments.
  uint32_t pieces;      // Pieces in each, >= 1; count * pieces below 2^32.
  uint64_t piece_bytes;
  uint64_t source_base, target_base; // Addresses the device can use: device memory or mapped pinned host memory.
  uint64_t source_stride, target_stride;
  uint64_t reserved;
  Fragment inline_list[kInlineFragments];
};
static_assert(sizeof(CopyArgs) <= 4096);

// page_zero: `bytes` bytes at base + list[i] become zero.
struct ZeroArgs {
  const uint64_t *list; // Device memory, or null: inline_list.
  uint64_t base;
  uint64_t bytes;
  uint32_t count;
  uint32_t reserved;
  uint64_t inline_list[2 * kInlineFragments];
};
static_assert(sizeof(ZeroArgs) <= 4096);

// page_stamp: the simulated forward pass of a replay. The rows of a page's first `tokens` tokens are filled with words that depend on the
// page's digest, the layer, the part (K or V) and the place: word i of a part's rows is stamp_word(stamp_mix(digest ^ salts[2 * layer +
// part]), i), counted over the part's rows in token order. Row t of part p in layer l is at l * layer_stride + t * token_stride[p] + p *
// v_offset of the page.
struct StampPage {
  uint64_t offset; // Of the page.
  uint64_t digest;
  uint64_t tokens;
};
struct StampArgs {
  const StampPage *pages; // Device memory.
  const uint64_t *salts;  // Device memory, two a layer.
  uint64_t base;
  uint64_t layer_stride, v_offset;
  uint64_t token_stride[2];
  uint64_t row_bytes[2]; // K and V; multiples of 16, V may be 0.
  uint32_t page_count, layer_count;
  uint32_t check; // 0: write. 1: compare, and add the number of words that differ to mismatches[page].
  uint32_t *mismatches;
};

// page_digest: digests[k] = digest of `bytes` bytes at base + offsets[k].
struct DigestArgs {
  const uint64_t *offsets; // Device memory.
  uint64_t *digests;       // Device memory, zero before the launch.
  uint64_t base;
  uint64_t bytes;
  uint32_t count;
  uint32_t reserved;
};

// table_patch: table[patches[i].vpage] = patches[i].ppage. No vpage twice in a launch.
struct Patch {
  uint32_t vpage;
  uint32_t ppage;
};
struct PatchArgs {
  const Patch *list; // Device memory, or null: inline_list.
  uint32_t *table;
  uint32_t count;
  uint32_t reserved;
  Patch inline_list[2 * kInlineFragments];
};
static_assert(sizeof(PatchArgs) <= 4096);

// kernel_ids: ids of virtual pages through a mirror of the v2p table. PAGE granularity (page_tokens == 0): ids32[i] = p * scale + offset.
// TOKEN granularity: ids[i * page_tokens + t] = (p * scale + offset) * page_tokens + t, into ids32 or ids64 (the other is null).
// Unmapped, negative and out-of-range pages become `sink_page`; *sink_count (may be null) is increased by their number.
struct KernelIdsArgs {
  const uint32_t *table;
  const uint32_t *vpages; // Read on the device: a captured graph may change them between replays.
  int32_t *ids32;
  int64_t *ids64;
  unsigned long long *sink_count;
  uint64_t scale, offset;
  uint32_t table_count, page_count;
  uint32_t page_tokens;
  uint32_t sink_page;
};

// The stamp and the digest, for the host and the device alike.
#if defined(__CUDACC__)
#define HICACHE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define HICACHE_HOST_DEVICE inline
#endif

// Words of a stream: both steps are bijections, so two streams agree in a word only if their counters do. Made to run at memory speed.
HICACHE_HOST_DEVICE uint64_t stamp_word(uint64_t seed, uint64_t i) {
  const uint64_t x = seed + i * 0x9e3779b97f4a7c15ull;
  return (x ^ (x >> 32)) * 0xbf58476d1ce4e5b9ull;
}
// The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
HICACHE_HOST_DEVICE uint64_t stamp_mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

HICACHE_HOST_DEVICE uint64_t fold_multiply(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return (a * b) ^ __umul64hi(a, b);
#else
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
#endif
}

// Digest of a page: the sum over its 16-byte units i of the folded 128-bit product of both words, each keyed by i, then an avalanche
// with the length. The product and the avalanche are XXH3's (Collet); the sum lets any number of threads take any part of the page. Not
// cryptographic.
HICACHE_HOST_DEVICE uint64_t digest_unit(uint64_t low, uint64_t high, uint64_t i) {
  const uint64_t key = (i + 1) * 0x9E3779B97F4A7C15ull;
  return fold_multiply(low ^ key, high ^ (key ^ 0xC2B2AE3D27D4EB4Full)) + low + (high << 32 | high >> 32);
}
HICACHE_HOST_DEVICE uint64_t digest_finish(uint64_t sum, uint64_t bytes) {
  uint64_t h = sum ^ (bytes * 0x9FB21C651E98DF25ull);
  h ^= h >> 37;
  h *= 0x165667919E3779F9ull;
  return h ^ (h >> 32);
}

} // namespace hicache::kernel
