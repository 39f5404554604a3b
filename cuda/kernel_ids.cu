// Virtual pages to kernel ids on the device, by the mirror of the v2p table. May be captured into a graph: table, inputs and outputs are
// read and written where they are at each replay.
#include "kernel_args.hpp"

namespace {

__device__ __forceinline__ uint32_t place_of(const hicache::kernel::KernelIdsArgs &a, uint32_t vpage, bool *mapped) {
  uint32_t ppage = vpage < a.table_count ? a.table[vpage] : 0xffffffffu;
  *mapped = ppage != 0xffffffffu;
  return *mapped ? ppage : a.sink_page;
}

} // namespace

extern "C" __global__ void hicache_kernel_ids(const __grid_constant__ hicache::kernel::KernelIdsArgs args) {
  const uint32_t tokens = args.page_tokens == 0 ? 1 : args.page_tokens;
  const uint64_t total = static_cast<uint64_t>(args.page_count) * tokens;
  const uint64_t stride = gridDim.x * static_cast<uint64_t>(blockDim.x);
  // All lanes of a warp run the same number of rounds, for the vote that counts sink pages.
  const uint64_t rounds = (total + stride - 1) / stride;
  uint64_t at = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x;
  for (uint64_t round = 0; round < rounds; round++, at += stride) {
    bool sink = false;
    if (at < total) {
      const uint32_t i = tokens == 1 ? static_cast<uint32_t>(at) : static_cast<uint32_t>(at / tokens);
      const uint32_t t = static_cast<uint32_t>(at - static_cast<uint64_t>(i) * tokens);
      bool mapped;
      const uint64_t id = place_of(args, args.vpages[i], &mapped) * args.scale + args.offset;
      const uint64_t out = args.page_tokens == 0 ? id : id * tokens + t;
      if (args.ids32 != nullptr) args.ids32[at] = static_cast<int32_t>(out);
      else args.ids64[at] = static_cast<int64_t>(out);
      sink = !mapped && t == 0;
    }
    if (args.sink_count != nullptr) {
      const unsigned votes = __ballot_sync(0xffffffffu, sink);
      if (votes != 0 && threadIdx.x % 32 == 0) atomicAdd(args.sink_count, static_cast<unsigned long long>(__popc(votes)));
    }
  }
}
