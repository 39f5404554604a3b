// The body of page_move and page_copy: many independent 16-byte loads in flight a thread, whole warps on contiguous bytes.
#pragma once

#include "kernel_args.hpp"

namespace hicache::kernel {

constexpr uint32_t kWarp = 32;
constexpr uint32_t kLoads = 8;                   // 16-byte loads in flight a thread.
constexpr uint32_t kSliceUnits = kLoads * kWarp; // A warp's slice: 256 units of 16 bytes = 4 KiB.

// Data passes through once: keep it out of L1 and do not let it displace what the compute beside it keeps in L2. Sources of a launch are
// not its targets, so the loads may take the read-only path.
__device__ __forceinline__ uint4 load_once(const uint4 *p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
__device__ __forceinline__ void store_once(uint4 *p, uint4 v) { __stcs(p, v); }

__device__ __forceinline__ const uint4 *source_of(const CopyArgs &a, const Fragment *list, uint32_t i, uint32_t j) {
  return reinterpret_cast<const uint4 *>(a.source_base + list[i].source + j * a.source_stride);
}
__device__ __forceinline__ uint4 *target_of(const CopyArgs &a, const Fragment *list, uint32_t i, uint32_t j) {
  return reinterpret_cast<uint4 *>(a.target_base + list[i].target + j * a.target_stride);
}

// Pieces of at least a slice: a warp takes slice s of piece j of fragment i and steps through (i, j, s) as a mixed-radix number, so
// that the loop has no division.
__device__ __forceinline__ void copy_large(const CopyArgs &a, const Fragment *list) {
  const uint32_t lane = threadIdx.x % kWarp;
  const uint64_t warp = (blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x) / kWarp;
  const uint64_t warps = gridDim.x * static_cast<uint64_t>(blockDim.x) / kWarp;
  const uint64_t units = a.piece_bytes / 16;
  const uint32_t slices = static_cast<uint32_t>((units + kSliceUnits - 1) / kSliceUnits); // A piece is below 2^44 bytes.
  const uint32_t step_s = static_cast<uint32_t>(warps % slices);
  const uint32_t step_j = static_cast<uint32_t>(warps / slices % a.pieces);
  const uint32_t step_i = static_cast<uint32_t>(warps / slices / a.pieces);
  uint32_t s = static_cast<uint32_t>(warp % slices);
  uint32_t j = static_cast<uint32_t>(warp / slices % a.pieces);
  uint32_t i = static_cast<uint32_t>(warp / slices / a.pieces);
  while (i < a.count) {
    const uint64_t first = static_cast<uint64_t>(s) * kSliceUnits;
    const uint4 *from = source_of(a, list, i, j) + first + lane;
    uint4 *to = target_of(a, list, i, j) + first + lane;
    const uint32_t here = static_cast<uint32_t>(units - first < kSliceUnits ? units - first : kSliceUnits);
    uint4 r[kLoads];
    if (here == kSliceUnits) {
#pragma unroll
      for (uint32_t k = 0; k < kLoads; k++) r[k] = load_once(from + k * kWarp);
#pragma unroll
      for (uint32_t k = 0; k < kLoads; k++) store_once(to + k * kWarp, r[k]);
    } else {
#pragma unroll
      for (uint32_t k = 0; k < kLoads; k++)
        if (lane + k * kWarp < here) r[k] = load_once(from + k * kWarp);
#pragma unroll
      for (uint32_t k = 0; k < kLoads; k++)
        if (lane + k * kWarp < here) store_once(to + k * kWarp, r[k]);
    }
    s += step_s;
    j += step_j;
    i += step_i;
    if (s >= slices) s -= slices, j++;
    if (j >= a.pieces) j -= a.pieces, i++;
  }
}

// Pieces smaller than a slice: a warp takes as many whole pieces as fit into one.
__device__ __forceinline__ void copy_small(const CopyArgs &a, const Fragment *list) {
  const uint32_t lane = threadIdx.x % kWarp;
  const uint64_t warp = (blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x) / kWarp;
  const uint64_t warps = gridDim.x * static_cast<uint64_t>(blockDim.x) / kWarp;
  const uint32_t units = static_cast<uint32_t>(a.piece_bytes / 16);
  const uint32_t pieces_a_slice = kSliceUnits / units;
  const uint64_t total = static_cast<uint64_t>(a.count) * a.pieces;
  for (uint64_t first = warp * pieces_a_slice; first < total; first += warps * pieces_a_slice) {
    uint4 r[kLoads];
#pragma unroll
    for (uint32_t k = 0; k < kLoads; k++) {
      const uint32_t unit = lane + k * kWarp, piece = unit / units;
      const uint64_t at = first + piece;
      if (piece < pieces_a_slice && at < total)
        r[k] = load_once(source_of(a, list, static_cast<uint32_t>(at / a.pieces), static_cast<uint32_t>(at % a.pieces)) + unit % units);
    }
#pragma unroll
    for (uint32_t k = 0; k < kLoads; k++) {
      const uint32_t unit = lane + k * kWarp, piece = unit / units;
      const uint64_t at = first + piece;
      if (piece < pieces_a_slice && at < total)
        store_once(target_of(a, list, static_cast<uint32_t>(at / a.pieces), static_cast<uint32_t>(at % a.pieces)) + unit % units, r[k]);
    }
  }
}

} // namespace hicache::kernel
