// Digests of pages at the speed of reading them; see kernel_args.hpp for what a digest is. Two launches: sums, then their finish.
#include "fragments.cuh"

// One block takes a chunk of one page at a time and adds its sum to the page's.
extern "C" __global__ void __launch_bounds__(512) hicache_page_digest(const __grid_constant__ hicache::kernel::DigestArgs args) {
  using namespace hicache::kernel;
  __shared__ uint64_t sums[512 / kWarp];
  const uint32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const uint64_t units = args.bytes / 16;
  const uint64_t chunk = static_cast<uint64_t>(blockDim.x) * kLoads;
  const uint64_t chunks = (units + chunk - 1) / chunk;
  for (uint64_t u = blockIdx.x; u < chunks * args.count; u += gridDim.x) {
    const uint64_t page = u / chunks, first = u % chunks * chunk;
    const uint4 *from = reinterpret_cast<const uint4 *>(args.base + args.offsets[page]);
    uint4 r[kLoads];
#pragma unroll
    for (uint32_t k = 0; k < kLoads; k++) {
      const uint64_t i = first + threadIdx.x + k * blockDim.x;
      if (i < units) r[k] = load_once(from + i);
    }
    uint64_t sum = 0;
#pragma unroll
    for (uint32_t k = 0; k < kLoads; k++) {
      const uint64_t i = first + threadIdx.x + k * blockDim.x;
      if (i < units) sum += digest_unit(static_cast<uint64_t>(r[k].y) << 32 | r[k].x, static_cast<uint64_t>(r[k].w) << 32 | r[k].z, i);
    }
    for (uint32_t d = kWarp / 2; d > 0; d /= 2) sum += __shfl_down_sync(0xffffffffu, sum, d);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    if (warp == 0) {
      sum = lane < blockDim.x / kWarp ? sums[lane] : 0;
      for (uint32_t d = kWarp / 2; d > 0; d /= 2) sum += __shfl_down_sync(0xffffffffu, sum, d);
      if (lane == 0) atomicAdd(reinterpret_cast<unsigned long long *>(args.digests + page), static_cast<unsigned long long>(sum));
    }
    __syncthreads(); // The next chunk writes sums again.
  }
}

extern "C" __global__ void hicache_page_digest_finish(const __grid_constant__ hicache::kernel::DigestArgs args) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < args.count) args.digests[i] = hicache::kernel::digest_finish(args.digests[i], args.bytes);
}
