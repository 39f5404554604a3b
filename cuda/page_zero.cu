// Zeroes byte ranges of equal length.
#include "fragments.cuh"

extern "C" __global__ void __launch_bounds__(512) hicache_page_zero(const __grid_constant__ hicache::kernel::ZeroArgs args) {
  using namespace hicache::kernel;
  const uint64_t *list = args.list != nullptr ? args.list : args.inline_list;
  const uint64_t units = args.bytes / 16;
  const uint64_t slices = (units + kSliceUnits - 1) / kSliceUnits;
  const uint32_t lane = threadIdx.x % kWarp;
  const uint64_t warp = (blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x) / kWarp;
  const uint64_t warps = gridDim.x * static_cast<uint64_t>(blockDim.x) / kWarp;
  const uint4 zero = make_uint4(0, 0, 0, 0);
  for (uint64_t u = warp; u < slices * args.count; u += warps) {
    const uint64_t first = u % slices * kSliceUnits;
    uint4 *to = reinterpret_cast<uint4 *>(args.base + list[u / slices]) + first;
    const uint64_t here = units - first;
#pragma unroll
    for (uint32_t k = 0; k < kLoads; k++)
      if (lane + k * kWarp < here) to[lane + k * kWarp] = zero;
  }
}
