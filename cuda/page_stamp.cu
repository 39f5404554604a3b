// The simulated forward pass of a replay, and its check: see kernel_args.hpp for what a stamp is. A page that went astray, or of another
// prefix or layer, shows.
#include "fragments.cuh"

// A block takes one part (K or V) of one layer of one page at a time.
extern "C" __global__ void __launch_bounds__(256) hicache_page_stamp(const __grid_constant__ hicache::kernel::StampArgs args) {
  using namespace hicache::kernel;
  const uint64_t units = static_cast<uint64_t>(args.page_count) * args.layer_count * 2;
  for (uint64_t u = blockIdx.x; u < units; u += gridDim.x) {
    const uint32_t part = u % 2;
    const uint32_t layer = u / 2 % args.layer_count;
    const uint32_t page = static_cast<uint32_t>(u / 2 / args.layer_count);
    const StampPage stamp = args.pages[page];
    const uint64_t seed = stamp_mix(stamp.digest ^ args.salts[2 * layer + part]);
    const uint32_t row_units = static_cast<uint32_t>(args.row_bytes[part] / 16);
    const uint64_t start = args.base + stamp.offset + layer * args.layer_stride + part * args.v_offset;
    const uint64_t count = row_units * stamp.tokens;
    uint32_t wrong = 0;
    for (uint64_t i = threadIdx.x; i < count; i += blockDim.x) {
      const uint64_t token = i / row_units;
      auto *at = reinterpret_cast<ulonglong2 *>(start + token * args.token_stride[part]) + (i - token * row_units);
      const ulonglong2 ideal = make_ulonglong2(stamp_word(seed, 2 * i), stamp_word(seed, 2 * i + 1));
      if (args.check == 0) {
        *at = ideal;
      } else {
        const ulonglong2 there = *at;
        wrong += (there.x != ideal.x) + (there.y != ideal.y);
      }
    }
    if (wrong != 0) atomicAdd(args.mismatches + page, wrong);
  }
}
