// Keeps the device's mirror of a v2p table in step with the moves: launched right behind them on the same stream, so that whoever waits
// for the patch sees the bytes at the new place.
#include "kernel_args.hpp"

extern "C" __global__ void hicache_table_patch(const __grid_constant__ hicache::kernel::PatchArgs args) {
  const hicache::kernel::Patch *list = args.list != nullptr ? args.list : args.inline_list;
  const uint32_t stride = gridDim.x * blockDim.x;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < args.count; i += stride) args.table[list[i].vpage] = list[i].ppage;
}
