// The kernels that kernel_variants compares, and the compute that some of them run beside.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace hicache::variants {

constexpr unsigned kWarp = 32;

struct Fragment {
  uint64_t source, target; // Addresses.
};

// ---- Loads and stores ----

enum Load { kLoadPlain, kLoadOnce, kLoadOnce256, kLoadEvictFirst, kLoadVolatile };
enum Store { kStorePlain, kStoreStream, kStoreThrough, kStoreEvictFirst };
const char *const kLoadNames[] = {"plain", "nc.no_allocate", "nc.no_allocate.L2::256B", "L2::evict_first", "volatile"};
const char *const kStoreNames[] = {"plain", "cs", "wt", "L2::evict_first"};

template <int kind> __device__ __forceinline__ uint4 load(const uint4 *p) {
  uint4 v;
  if constexpr (kind == kLoadPlain) v = *p;
  else if constexpr (kind == kLoadOnce)
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  else if constexpr (kind == kLoadOnce256)
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  else if constexpr (kind == kLoadEvictFirst) {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p), "l"(policy));
  } else asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
template <int kind> __device__ __forceinline__ void store(uint4 *p, uint4 v) {
  if constexpr (kind == kStorePlain) *p = v;
  else if constexpr (kind == kStoreStream) __stcs(p, v);
  else if constexpr (kind == kStoreThrough) __stwt(p, v);
  else {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1,%2,%3,%4}, %5;" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "l"(policy)
                 : "memory");
  }
}

// ---- Register copies ----

// How slices (kLoads * 512 bytes) of pages go to warps: in turn; a run of `run` slices a warp; a part of the whole a block.
enum Order { kInTurn, kRuns, kParts, kBlockWide };
const char *const kOrderNames[] = {"in turn", "runs of a page's slices", "a part a block", "block-wide rows"};

template <int kLoads, int kLd, int kSt, int kOrder, int kBlocksOnOne = 2> // The last: what registers are left for.
__global__ void __launch_bounds__(kLoads == 16 ? 256 : 512, kBlocksOnOne) pages(const Fragment *list, uint32_t count, uint64_t bytes) {
  constexpr uint32_t kSlice = kLoads * kWarp; // Units of 16 bytes.
  const uint32_t slices = static_cast<uint32_t>(bytes / 16 / kSlice), shift = 31 - __clz(slices);
  const uint64_t total = static_cast<uint64_t>(slices) * count;
  const uint32_t lane = threadIdx.x % kWarp, warps_block = blockDim.x / kWarp;
  const uint64_t warp = static_cast<uint64_t>(blockIdx.x) * warps_block + threadIdx.x / kWarp;
  uint64_t at, end = total, step = static_cast<uint64_t>(gridDim.x) * warps_block;
  const uint32_t run = slices < 8 ? slices : 8;
  if constexpr (kOrder == kParts) {
    at = total * blockIdx.x / gridDim.x + threadIdx.x / kWarp;
    end = total * (blockIdx.x + 1) / gridDim.x;
    step = warps_block;
  } else if constexpr (kOrder == kRuns) {
    at = warp * run;
    step *= run;
  } else at = warp;
  for (; at < end; at += step) {
    for (uint64_t u = at; u < (kOrder == kRuns ? at + run : at + 1); u++) {
      // Block-wide: the warps of a block share a chunk of warps_block slices, so that one load of all of them is contiguous.
      const uint64_t chunk = u - u % warps_block;
      const uint64_t v = kOrder == kBlockWide ? chunk : u;
      const Fragment f = list[v >> shift];
      const uint64_t first = (v & (slices - 1)) * kSlice + (kOrder == kBlockWide ? threadIdx.x : lane);
      const uint32_t stride = kOrder == kBlockWide ? blockDim.x : kWarp;
      const uint4 *from = reinterpret_cast<const uint4 *>(f.source) + first;
      uint4 *to = reinterpret_cast<uint4 *>(f.target) + first;
      uint4 r[kLoads];
#pragma unroll
      for (int k = 0; k < kLoads; k++) r[k] = load<kLd>(from + k * stride);
#pragma unroll
      for (int k = 0; k < kLoads; k++) store<kSt>(to + k * stride, r[k]);
    }
  }
}

// Fragments of at least 512 bytes: a warp takes kLoads rows of 512 bytes at a time, whichever fragments they are of. kAhead: lane k reads
// the list entry of row k of the next round before this round's data is there.
template <int kLoads, int kLd, int kSt, bool kAhead>
__global__ void __launch_bounds__(1024) rows(const Fragment *list, uint32_t count, uint64_t bytes) {
  const uint32_t rows_each = static_cast<uint32_t>(bytes / 512), shift = 31 - __clz(rows_each);
  const uint64_t total = static_cast<uint64_t>(rows_each) * count;
  const uint32_t lane = threadIdx.x % kWarp;
  const uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x / kWarp * kLoads;
  uint64_t at = (static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp * kLoads;
  Fragment mine{}, next{};
  if (kAhead && lane < kLoads && at + lane < total) next = list[(at + lane) >> shift];
  for (; at < total; at += step) {
    // A launch that may follow before this one has ended (`beside`, chained) takes its place while this one still works.
    if (at + total / 16 >= total) asm volatile("griddepcontrol.launch_dependents;");
    mine = next;
    if (kAhead && lane < kLoads && at + step + lane < total) next = list[(at + step + lane) >> shift];
    uint4 r[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; k++) {
      uint64_t from = 0;
      if constexpr (kAhead) from = __shfl_sync(0xffffffffu, mine.source, k);
      else if (at + k < total) from = list[(at + k) >> shift].source;
      if (at + k < total) r[k] = load<kLd>(reinterpret_cast<const uint4 *>(from + ((at + k) & (rows_each - 1)) * 512) + lane);
    }
#pragma unroll
    for (int k = 0; k < kLoads; k++) {
      uint64_t to = 0;
      if constexpr (kAhead) to = __shfl_sync(0xffffffffu, mine.target, k);
      else if (at + k < total) to = list[(at + k) >> shift].target;
      if (at + k < total) store<kSt>(reinterpret_cast<uint4 *>(to + ((at + k) & (rows_each - 1)) * 512) + lane, r[k]);
    }
  }
}

// ---- Bulk copies: warp 0 fills a ring of stages in shared memory, warp 1 empties it ----

__device__ __forceinline__ uint32_t shared_address(const void *p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void barrier_wait(uint64_t *barrier, uint32_t parity) {
  asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(
                   shared_address(barrier)),
               "r"(parity)
               : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t *barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
template <bool kEvictFirst>
__device__ __forceinline__ void bulk_in(void *to, uint64_t from, uint32_t bytes, uint64_t *barrier, uint64_t p) {
  if constexpr (kEvictFirst)
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(p)
                 : "memory");
  else
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}
template <bool kEvictFirst> __device__ __forceinline__ void bulk_out(uint64_t to, const void *from, uint32_t bytes, uint64_t p) {
  if constexpr (kEvictFirst)
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(to), "r"(shared_address(from)),
                 "r"(bytes), "l"(p)
                 : "memory");
  else
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
}

template <bool kEvictFirst>
__global__ void __launch_bounds__(64) bulk(const Fragment *list, uint32_t count, uint64_t bytes, uint32_t stage_bytes, uint32_t stages) {
  extern __shared__ __align__(128) unsigned char ring[];
  __shared__ uint64_t full[64], empty[64];
  const uint32_t warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < stages; i++) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&full[i])));
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&empty[i])));
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  uint64_t policy = 0;
  if constexpr (kEvictFirst) asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  // A stage holds some whole fragments, or a slice of one: `each` fragments in `parts` bulk copies of `part` bytes.
  const uint32_t each = bytes < stage_bytes ? static_cast<uint32_t>(stage_bytes / bytes) : 1;
  const uint32_t slices = bytes < stage_bytes ? 1 : static_cast<uint32_t>(bytes / stage_bytes);
  const uint32_t part = bytes < stage_bytes ? static_cast<uint32_t>(bytes) : stage_bytes;
  const uint64_t units = bytes < stage_bytes ? (count + each - 1) / each : static_cast<uint64_t>(count) * slices;
  uint32_t round = 0;
  for (uint64_t u = blockIdx.x; u < units; u += gridDim.x, round++) {
    const uint32_t s = round % stages, parity = round / stages & 1;
    unsigned char *stage = ring + static_cast<uint64_t>(s) * stage_bytes;
    const uint64_t first = u / slices * each, offset = u % slices * part;
    const uint32_t here = static_cast<uint32_t>(count - first < each ? count - first : each);
    if (warp == 0) {
      barrier_wait(&empty[s], parity ^ 1);
      if (lane == 0) barrier_expect(&full[s], here * part);
      __syncwarp();
      for (uint32_t j = lane; j < here; j += kWarp)
        bulk_in<kEvictFirst>(stage + j * part, list[first + j].source + offset, part, &full[s], policy);
    } else {
      barrier_wait(&full[s], parity);
      for (uint32_t j = lane; j < here; j += kWarp) bulk_out<kEvictFirst>(list[first + j].target + offset, stage + j * part, part, policy);
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory"); // The stage before this one has been read.
      __syncwarp();
      if (lane == 0 && round > 0)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&empty[(round - 1) % stages])) : "memory");
    }
  }
  if (warp == 1) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// ---- Content ----

__global__ void fill(uint4 *at, uint64_t units, uint32_t seed) {
  for (uint64_t i = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x; i < units;
       i += gridDim.x * static_cast<uint64_t>(blockDim.x)) {
    const uint32_t x = static_cast<uint32_t>(i) * 2654435761u ^ seed;
    at[i] = make_uint4(x, x ^ static_cast<uint32_t>(i >> 16), ~x, seed);
  }
}
// mode 0: targets become `value`; 1: compares.
__global__ void look(const Fragment *list, uint32_t count, uint64_t bytes, uint32_t mode, uint32_t value, unsigned long long *wrong) {
  const uint32_t units = static_cast<uint32_t>(bytes / 16);
  unsigned long long bad = 0;
  for (uint64_t i = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x; i < static_cast<uint64_t>(units) * count;
       i += gridDim.x * static_cast<uint64_t>(blockDim.x)) {
    uint4 *to = reinterpret_cast<uint4 *>(list[i / units].target) + i % units;
    if (mode == 0) *to = make_uint4(value, value, value, value);
    else {
      const uint4 a = reinterpret_cast<const uint4 *>(list[i / units].source)[i % units], b = *to;
      bad += a.x != b.x || a.y != b.y || a.z != b.z || a.w != b.w;
    }
  }
  if (bad != 0) atomicAdd(wrong, bad);
}

// ---- Compute to run beside: as long as a large matrix product, in waves of blocks or with blocks that stay; or short and bound by memory
// ----

constexpr int kSums = 200;
__global__ void __launch_bounds__(256, 1) arithmetic(const uint4 *from, uint32_t units, uint32_t rounds, float *out) {
  extern __shared__ float tile[]; // So much of it that a multiprocessor holds one block.
  float a[kSums];                 // With them the registers of a multiprocessor are taken, as by the kernels of the vendor's libraries.
#pragma unroll
  for (int k = 0; k < kSums; k++) a[k] = static_cast<float>(threadIdx.x + k);
  uint32_t at = (blockIdx.x * 977u + threadIdx.x) % units;
  uint4 next = from[at];
  for (uint32_t r = 0; r < rounds; r++) {
    const uint4 now = next;
    at += 132 * 256;
    if (at >= units) at -= units;
    next = from[at];
    const float x = __uint_as_float(now.x & 0x3fffffffu), y = __uint_as_float(now.y & 0x3fffffffu);
#pragma unroll
    for (int k = 0; k < kSums; k++) a[k] = a[k] * x + y;
  }
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kSums; k++) sum += a[k];
  tile[threadIdx.x] = sum;
  if (sum == 12345.678f) out[blockIdx.x] = tile[threadIdx.x ^ 1];
}
__global__ void __launch_bounds__(256) streaming(const uint4 *from, uint64_t units, float *out) {
  uint32_t sum = 0;
  for (uint64_t i = blockIdx.x * 256ull + threadIdx.x; i < units; i += gridDim.x * 256ull) {
    const uint4 v = from[i];
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x12345678u) out[blockIdx.x] = 1;
}

// The library's kernels take more than a list.
hicache::kernel::CopyArgs library_args(const Fragment *list, uint32_t count, uint64_t bytes) {
  hicache::kernel::CopyArgs args{};
  args.list = reinterpret_cast<const hicache::kernel::Fragment *>(list);
  args.count = count;
  args.pieces = 1;
  args.piece_bytes = bytes;
  return args;
}

} // namespace hicache::variants
