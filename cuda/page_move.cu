// Compaction: pages from one place of the arena to another, at the speed of a contiguous copy. Launched as a short burst on the whole
// GPU; a long-lived kernel on few multiprocessors would cost the compute beside it far more. The host sends small pages to page_copy_small.
#include "fragments.cuh"

extern "C" __global__ void __launch_bounds__(512, 2) hicache_page_move(const __grid_constant__ hicache::kernel::CopyArgs args) {
  hicache::kernel::copy_large(args, args.list != nullptr ? args.list : args.inline_list);
}
