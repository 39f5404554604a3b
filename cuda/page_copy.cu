// Gather and scatter of fragments, whole envelopes or strided pieces (layer slices, token rows): between the device and mapped host
// memory (few blocks: the bus needs no more, and more would stall the compute beside it), or between the arena and a staging buffer
// (full width, short). Two kernels, so that the one for large pieces keeps its registers: the host picks, below kWindowBytes the small one.
#include "fragments.cuh"

extern "C" __global__ void __launch_bounds__(1024) hicache_page_copy(const __grid_constant__ hicache::kernel::CopyArgs args) {
  hicache::kernel::copy_large(args, args.list != nullptr ? args.list : args.inline_list);
}

extern "C" __global__ void __launch_bounds__(1024) hicache_page_copy_small(const __grid_constant__ hicache::kernel::CopyArgs args) {
  hicache::kernel::copy_small(args, args.list != nullptr ? args.list : args.inline_list);
}
