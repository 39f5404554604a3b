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

// Pieces of any size, best of whole slices: a warp takes slice s of piece j of fragment i and steps through (i, j, s) as a mixed-radix number, so
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

constexpr uint32_t kWindowUnits = kWindowBytes / 16;
constexpr uint32_t kWindowLoads = kWindowUnits / kWarp; // More would not fit into the registers of 1,024 threads.

// Which piece of a warp's window, and which unit of it, unit `u` of the window is. inverse = 65536 / units + 1: exact below 256 units.
struct WindowPlace {
  uint32_t piece, unit;
};
__device__ __forceinline__ WindowPlace window_place(uint32_t u, uint32_t units, uint32_t inverse) {
  const uint32_t piece = u * inverse >> 16;
  return {piece, u - piece * units};
}

// Pieces of at most a window: a warp takes as many whole pieces as fit into one. The list is read a round ahead, an entry a lane: else the bus
// would wait for it in every round.
__device__ __forceinline__ void copy_small(const CopyArgs &a, const Fragment *list) {
  const uint32_t lane = threadIdx.x % kWarp;
  const uint64_t warp = (blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x) / kWarp;
  const uint64_t warps = gridDim.x * static_cast<uint64_t>(blockDim.x) / kWarp;
  const uint32_t units = static_cast<uint32_t>(a.piece_bytes / 16), inverse = 65536 / units + 1;
  const uint32_t each = kWindowUnits / units;
  const uint64_t total = static_cast<uint64_t>(a.count) * a.pieces, step = warps * each;
  uint64_t first = warp * each;
  if (a.pieces == 1 && each <= kWarp) {
    Fragment next{};
    if (lane < each && first + lane < total) next = list[first + lane];
    for (; first < total; first += step) {
      const Fragment mine = next;
      if (lane < each && first + step + lane < total) next = list[first + step + lane];
      const uint32_t here = static_cast<uint32_t>(total - first < each ? total - first : each);
      uint4 r[kWindowLoads];
#pragma unroll
      for (uint32_t k = 0; k < kWindowLoads; k++) {
        const WindowPlace at = window_place(lane + k * kWarp, units, inverse);
        const uint64_t source = __shfl_sync(0xffffffffu, mine.source, at.piece % kWarp);
        if (at.piece < here) r[k] = load_once(reinterpret_cast<const uint4 *>(a.source_base + source) + at.unit);
      }
#pragma unroll
      for (uint32_t k = 0; k < kWindowLoads; k++) {
        const WindowPlace at = window_place(lane + k * kWarp, units, inverse);
        const uint64_t target = __shfl_sync(0xffffffffu, mine.target, at.piece % kWarp);
        if (at.piece < here) store_once(reinterpret_cast<uint4 *>(a.target_base + target) + at.unit, r[k]);
      }
    }
    return;
  }
  for (; first < total; first += step) {
    const uint32_t here = static_cast<uint32_t>(total - first < each ? total - first : each);
    uint4 r[kWindowLoads];
#pragma unroll
    for (uint32_t k = 0; k < kWindowLoads; k++) {
      const WindowPlace at = window_place(lane + k * kWarp, units, inverse);
      const uint64_t i = (first + at.piece) / a.pieces, j = (first + at.piece) % a.pieces;
      if (at.piece < here) r[k] = load_once(source_of(a, list, static_cast<uint32_t>(i), static_cast<uint32_t>(j)) + at.unit);
    }
#pragma unroll
    for (uint32_t k = 0; k < kWindowLoads; k++) {
      const WindowPlace at = window_place(lane + k * kWarp, units, inverse);
      const uint64_t i = (first + at.piece) / a.pieces, j = (first + at.piece) % a.pieces;
      if (at.piece < here) store_once(target_of(a, list, static_cast<uint32_t>(i), static_cast<uint32_t>(j)) + at.unit, r[k]);
    }
  }
}

} // namespace hicache::kernel
