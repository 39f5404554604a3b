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

// Pieces of any size, best of whole slices: a warp takes slice s of piece j of fragment i and steps through (i, j, s) as a mixed-radix
// number, so that the loop has no division.
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
static_assert(kWindowUnits == kSliceUnits);

// Which piece of a warp's window, and which unit of it, unit `u` of the window is. inverse = 65536 / units + 1: exact up to 256 units.
struct WindowPlace {
  uint32_t piece, unit;
};
__device__ __forceinline__ WindowPlace window_place(uint32_t u, uint32_t units, uint32_t inverse) {
  const uint32_t piece = u * inverse >> 16;
  return {piece, u - piece * units};
}

// As load_once where `active`, else v stays. Written so that the load goes to v's own registers: under an `if` the compiler loads into
// others and moves them after, which waits for each load before the next.
__device__ __forceinline__ void load_once_if(bool active, const uint4 *p, uint4 &v) {
  asm volatile("{\n.reg .pred active;\nsetp.ne.u32 active, %5, 0;\n"
               "@active ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\n}"
               : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
               : "l"(p), "r"(static_cast<uint32_t>(active)));
}

// Keeps the compiler from holding in registers, which the loads in flight need, what follows from these and takes three instructions.
__device__ __forceinline__ void compute_again(uint32_t &units, uint32_t &inverse) { asm volatile("" : "+r"(units), "+r"(inverse)); }

// Where piece `at` of a launch comes from and goes to, without the bases.
__device__ __forceinline__ Fragment piece_of(const CopyArgs &a, const Fragment *list, uint32_t at) {
  if (a.pieces == 1) return list[at];
  const uint32_t i = at / a.pieces, j = at - i * a.pieces;
  return {list[i].source + j * a.source_stride, list[i].target + j * a.target_stride};
}

// Pieces smaller than a window: a warp takes as many whole pieces as fit into one, at most one a lane. Lane l knows the place of piece l
// and looks up that of the next round's before it loads, so that the bus does not wait for the list.
__device__ __forceinline__ void copy_small(const CopyArgs &a, const Fragment *list) {
  const uint32_t lane = threadIdx.x % kWarp;
  const uint64_t warps = gridDim.x * static_cast<uint64_t>(blockDim.x) / kWarp;
  uint32_t units = static_cast<uint32_t>(a.piece_bytes / 16), inverse = 65536 / units + 1;
  const uint32_t each = units < kWindowUnits / kWarp ? kWarp : kWindowUnits / units;
  const uint64_t total = static_cast<uint64_t>(a.count) * a.pieces, step = warps * each; // total is below 2^32.
  uint64_t first = (blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x) / kWarp * each;
  Fragment next{};
  if (lane < each && first + lane < total) next = piece_of(a, list, static_cast<uint32_t>(first + lane));
  for (; first < total; first += step) {
    const Fragment mine = next;
    if (lane < each && first + step + lane < total) next = piece_of(a, list, static_cast<uint32_t>(first + step + lane));
    const uint32_t here = static_cast<uint32_t>(total - first < each ? total - first : each);
    uint4 r[kLoads];
    compute_again(units, inverse);
#pragma unroll
    for (uint32_t k = 0; k < kLoads; k++) {
      const WindowPlace at = window_place(lane + k * kWarp, units, inverse);
      const uint64_t source = a.source_base + __shfl_sync(0xffffffffu, mine.source, at.piece % kWarp) + at.unit * 16;
      r[k] = make_uint4(0, 0, 0, 0);
      load_once_if(at.piece < here, reinterpret_cast<const uint4 *>(source), r[k]);
    }
    compute_again(units, inverse);
#pragma unroll
    for (uint32_t k = 0; k < kLoads; k++) {
      const WindowPlace at = window_place(lane + k * kWarp, units, inverse);
      const uint64_t target = a.target_base + __shfl_sync(0xffffffffu, mine.target, at.piece % kWarp) + at.unit * 16;
      if (at.piece < here) store_once(reinterpret_cast<uint4 *>(target), r[k]);
    }
  }
}

} // namespace hicache::kernel
