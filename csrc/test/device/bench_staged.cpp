// Layer slices that are small on the device and lie together on the host: pools whose host region is in another order than their envelopes.
#include "bench.hpp"

namespace hicache::device_bench {

// 32 layers whose slices of a page, K and V each, are `slice_bytes` on the device; a page's K, and its V, lie together on the host.
PoolLayout slices(uint64_t slice_bytes) {
  const uint64_t row = std::min<uint64_t>(slice_bytes, 2 * kKiB);
  const auto tokens = static_cast<uint32_t>(slice_bytes / row);
  // One row a slice: the order by tokens, with many tokens, is what servers have.
  const uint32_t page_tokens = tokens == 1 ? 16 : tokens, layout = tokens == 1 ? HICACHE_HOST_PAGE_FIRST : HICACHE_HOST_PAGE_FIRST_DIRECT;
  PoolLayout of = pool(false, page_tokens, row, row, range(0, 32));
  return region(std::move(of), HICACHE_LAYOUT_LAYER_MAJOR, layout, sized(3 * kGiB / 2) / (2 * row * page_tokens * 32), 1);
}

std::vector<std::vector<TierCopy>> slice_batches(const Rig &rig) {
  const PoolLayout &of = rig.order.pools()[0];
  const auto pages = static_cast<uint32_t>(of.region_pages),
             each = static_cast<uint32_t>(std::max<uint64_t>(1, sized(128 * kMiB) / of.page_bytes));
  return scattered(each, 8, pages, pages, 1);
}

void staged() {
  for (uint64_t bytes : {2 * kKiB, 8 * kKiB, 32 * kKiB, 64 * kKiB}) {
    for (CopyMethod method : {CopyMethod::kAuto, CopyMethod::kStaged}) {
      CopyTuning tuning;
      tuning.method = method;
      tuning.calibrate = method == CopyMethod::kAuto && !smoke; // As an engine that nobody tunes.
      if (smoke) tuning.quantum_bytes = 4 * kMiB;
      Rig rig({slices(bytes)}, sized(2 * kGiB), 0, tuning);
      must_open(rig);
      const auto batches = slice_batches(rig);
      const double h2d = rate_of(rig, HICACHE_H2D, batches, 0.3), d2h = rate_of(rig, HICACHE_D2H, batches, 0.3, 8);
      uint64_t by_method[3] = {};
      rig.backend.copied_bytes(by_method);
      const auto all = static_cast<double>(by_method[0] + by_method[1] + by_method[2]);
      const PoolLayout &of = rig.order.pools()[0];
      std::printf(
          "{\"work\": \"layer slices into large host runs\", \"bytes\": %llu, \"host_run_bytes\": %llu, \"method\": \"%s\", \"h2d_gb_s\": "
          "%.2f, \"d2h_gb_s\": %.2f, \"direct\": %.2f, \"kernel\": %.2f, \"staged\": %.2f}\n",
          static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(of.page_bytes / 2),
          method == CopyMethod::kAuto ? "auto" : "staged", h2d, d2h, static_cast<double>(by_method[0]) / all,
          static_cast<double>(by_method[1]) / all, static_cast<double>(by_method[2]) / all);
    }
  }
}

} // namespace hicache::device_bench
