#include "copy_choice.hpp"

#include <algorithm>
#include <array>
#include <optional>

namespace hicache {

namespace {

// Sizes at which methods are compared; boundaries lie in the middle between two of them.
constexpr std::array<uint64_t, 4> kSizes = {16 << 10, 32 << 10, 64 << 10, 128 << 10};
// Runs on the host at which the ring is compared with the kernel; a boundary is one of them.
constexpr std::array<uint64_t, 4> kRuns = {32 << 10, 64 << 10, 128 << 10, 256 << 10};
constexpr uint64_t kLongRun = 256 << 10;
constexpr std::array<uint32_t, 3> kCounts = {1, 4, 16};
constexpr uint32_t kMoreBlocks = 8;
constexpr uint64_t kSmallestBytes = 512; // What smaller fragments are measured as.

constexpr double kGain = 1.05;                     // Less does not overturn the table.
constexpr double kSlowest = 0.01, kFastest = 2000; // GB/s that a bus can have; anything else is a fault of the clock.

using Verdicts = std::array<std::optional<bool>, 4>; // By size: belongs above the boundary; none: not measured.

// Index of the first size above the boundary: the one that contradicts fewest verdicts, of several the nearest to the table's.
size_t boundary_index(const Verdicts &above, size_t table) {
  size_t best = table, best_wrong = above.size() + 1;
  const auto distance = [&](size_t at) { return at > table ? at - table : table - at; };
  for (size_t at = 0; at <= above.size(); at++) {
    size_t wrong = 0;
    for (size_t i = 0; i < above.size(); i++) wrong += above[i].has_value() && *above[i] != (i >= at);
    if (wrong < best_wrong || (wrong == best_wrong && distance(at) < distance(best))) {
      best = at;
      best_wrong = wrong;
    }
  }
  return best;
}

template <class Sizes> size_t index_of(const Sizes &sizes, uint64_t boundary) {
  return static_cast<size_t>(std::count_if(sizes.begin(), sizes.end(), [&](uint64_t size) { return size < boundary; }));
}

uint64_t middle_below(size_t index) { return index == 0 ? kSizes[0] * 3 / 4 : kSizes[index - 1] * 3 / 2; }
uint64_t run_from(size_t index) { return index == kRuns.size() ? 2 * kRuns.back() : kRuns[index]; }

class Rates {
public:
  Rates(std::span<const MeasuredRate> all, uint32_t direction) : all_(all), direction_(direction) {}
  std::optional<double> find(Probe wanted) const {
    wanted.direction = direction_;
    for (const MeasuredRate &rate : all_) {
      if (rate.probe == wanted && rate.gb_s > kSlowest && rate.gb_s < kFastest) return rate.gb_s;
    }
    return std::nullopt;
  }
  std::optional<double> direct(uint64_t bytes, bool both) const {
    return find({.method = CopyMethod::kDirect, .bytes = bytes, .both = both});
  }
  std::optional<double> kernel(uint64_t bytes, uint32_t blocks, bool both) const {
    return find({.method = CopyMethod::kKernel, .bytes = bytes, .blocks = blocks, .both = both});
  }
  std::optional<double> staged(uint64_t bytes, uint64_t run, bool both) const {
    return find({.method = CopyMethod::kStaged, .bytes = bytes, .host_run = run, .both = both});
  }
  // The smallest fragment that a kernel was measured with.
  uint64_t smallest() const {
    uint64_t least = 0;
    for (const MeasuredRate &rate : all_) {
      if (rate.probe.direction == direction_ && rate.probe.method == CopyMethod::kKernel && rate.probe.count == 0 &&
          (least == 0 || rate.probe.bytes < least))
        least = rate.probe.bytes;
    }
    return least;
  }

private:
  std::span<const MeasuredRate> all_;
  uint32_t direction_;
};

// Whether `other` takes over from what the table has.
bool overturns(double other, double table) { return other > kGain * table; }

MethodRow choose_row(const Rates &rates, const MethodRow &table, uint32_t blocks, bool both) {
  MethodRow row = table;
  Verdicts direct, unstaged, long_enough;
  for (size_t i = 0; i < kSizes.size(); i++) {
    const auto engine = rates.direct(kSizes[i], both), kernel = rates.kernel(kSizes[i], blocks, both);
    if (!engine || !kernel) continue;
    const bool by_table = kSizes[i] >= table.direct_from_bytes;
    direct[i] = by_table ? !overturns(*kernel, *engine) : overturns(*engine, *kernel);
  }
  const size_t direct_table = index_of(kSizes, table.direct_from_bytes), direct_now = boundary_index(direct, direct_table);
  if (direct_now != direct_table) row.direct_from_bytes = middle_below(direct_now);

  for (size_t i = 0; i < kSizes.size(); i++) {
    const auto plain = kSizes[i] >= row.direct_from_bytes ? rates.direct(kSizes[i], both) : rates.kernel(kSizes[i], blocks, both);
    const auto staged = rates.staged(kSizes[i], kLongRun, both);
    if (!plain || !staged) continue;
    const bool by_table = kSizes[i] >= table.staged_below_bytes;
    unstaged[i] = by_table ? !overturns(*staged, *plain) : overturns(*plain, *staged);
  }
  const size_t staged_table = index_of(kSizes, table.staged_below_bytes), staged_now = boundary_index(unstaged, staged_table);
  if (staged_now != staged_table) row.staged_below_bytes = middle_below(staged_now);

  const uint64_t small = rates.smallest();
  const auto kernel = rates.kernel(small, blocks, both);
  for (size_t i = 0; i < kRuns.size() && kernel; i++) {
    const auto staged = rates.staged(small, kRuns[i], both);
    if (!staged) continue;
    const bool by_table = kRuns[i] >= table.staged_from_run_bytes;
    long_enough[i] = by_table ? !overturns(*kernel, *staged) : overturns(*staged, *kernel);
  }
  const size_t run_table = index_of(kRuns, table.staged_from_run_bytes), run_now = boundary_index(long_enough, run_table);
  if (run_now != run_table) row.staged_from_run_bytes = run_from(run_now);
  return row;
}

} // namespace

// ---- The choice ----

CopyMethod choose_method(const CopyChoice &choice, uint64_t bytes, uint64_t host_run, const CopySituation &now) {
  if (bytes >= kAlwaysDirectBytes || now.few) return CopyMethod::kDirect;
  const MethodRow &row = choice.rows[now.other];
  const bool ring = now.ring && host_run > bytes && (choice.staged_beside || !now.compute);
  if (ring && bytes < row.staged_below_bytes && host_run >= row.staged_from_run_bytes) return CopyMethod::kStaged;
  if (bytes >= row.direct_from_bytes) return CopyMethod::kDirect;
  if (!now.compute || choice.kernel_blocks_beside != 0) return CopyMethod::kKernel;
  return ring ? CopyMethod::kStaged : CopyMethod::kDirect;
}

// ---- Interference ----

uint32_t interference_permille(uint32_t direction, CopyMethod method, uint32_t blocks) {
  const bool down = direction == HICACHE_D2H;
  // By blocks, from 1. Down, three stall the whole GPU; up, the loss grows slowly.
  static constexpr std::array<uint32_t, 8> kUp = {140, 190, 230, 270, 300, 330, 360, 390},
                                           kDown = {120, 170, 1070, 1620, 1900, 2200, 2500, 2810};
  switch (method) {
    case CopyMethod::kKernel: {
      const auto &costs = down ? kDown : kUp;
      return costs[std::clamp<size_t>(blocks, 1, costs.size()) - 1];
    }
    case CopyMethod::kStaged: return down ? 35 : 61;
    default: return down ? 15 : 33;
  }
}

void keep_budget(CopyChoice *choice, uint32_t direction, uint32_t permille) {
  choice->kernel_blocks_beside = 0;
  for (uint32_t blocks = 1; blocks <= choice->kernel_blocks_alone; blocks++) {
    if (interference_permille(direction, CopyMethod::kKernel, blocks) <= permille) choice->kernel_blocks_beside = blocks;
  }
  choice->staged_beside = interference_permille(direction, CopyMethod::kStaged, 0) <= permille;
}

// ---- Measuring ----

std::vector<CopyShape> copy_shapes(std::span<const PoolLayout> pools, uint64_t layer_bytes_min) {
  std::vector<CopyShape> shapes;
  for (const PoolLayout &pool : pools) {
    if (pool.separate()) {
      const auto cut = [&](const PageOrder &from, uint32_t layers) {
        return cut_page(pool.rows, from, pool.region_order, 0, layers, false).parts[0].bytes;
      };
      shapes.push_back({cut(pool.device_order, pool.rows.layer_count), cut(pool.region_order, pool.rows.layer_count), false});
      for (uint32_t layers : {1u, 4u}) {
        const uint32_t some = std::min(layers, pool.rows.layer_count);
        if (cut(pool.region_order, 1) >= layer_bytes_min)
          shapes.push_back({cut(pool.device_order, some), cut(pool.region_order, some), true});
      }
      continue;
    }
    shapes.push_back({pool.page_bytes, pool.page_bytes, false});
    if (pool.layer_bytes == 0 || pool.layer_bytes < layer_bytes_min) continue;
    for (uint64_t layers : {1, 2, 4}) shapes.push_back({pool.layer_bytes * layers, pool.layer_bytes * layers, true});
  }
  return shapes;
}

bool ring_possible(std::span<const CopyShape> shapes) {
  return std::any_of(shapes.begin(), shapes.end(), [](const CopyShape &shape) {
    return shape.bytes < kAlwaysDirectBytes && shape.host_run > shape.bytes && shape.host_run >= kRuns[0];
  });
}

std::vector<Probe> plan_probes(std::span<const CopyShape> shapes, const bool ring[2]) {
  std::vector<Probe> plan;
  const uint32_t blocks = CopyChoice{}.kernel_blocks_alone;
  const auto add = [&](const Probe &probe) {
    if (std::find(plan.begin(), plan.end(), probe) == plan.end()) plan.push_back(probe);
  };
  const auto add_direction = [&](uint32_t direction, bool both) {
    const auto ours = [&](const CopyShape &shape) { return direction == HICACHE_H2D || !shape.loads_only; };
    const bool staged = ring[direction == HICACHE_D2H];
    uint64_t small = 0;
    bool gathered = false; // Some small fragment lies in a longer run.
    for (const CopyShape &shape : shapes) {
      if (!ours(shape) || shape.bytes >= kSizes[0]) continue;
      gathered |= shape.host_run > shape.bytes;
      if (small == 0 || shape.bytes < small) small = shape.bytes;
    }
    for (uint64_t size : kSizes) {
      bool near = false, in_run = false;
      for (const CopyShape &shape : shapes) {
        const bool here = ours(shape) && shape.bytes > size / 2 && shape.bytes < 2 * size;
        near |= here;
        in_run |= here && shape.host_run > shape.bytes;
      }
      if (!near) continue;
      add({.method = CopyMethod::kDirect, .direction = direction, .bytes = size, .both = both});
      add({.method = CopyMethod::kKernel, .direction = direction, .bytes = size, .blocks = blocks, .both = both});
      if (in_run && staged) add({.method = CopyMethod::kStaged, .direction = direction, .bytes = size, .host_run = kLongRun, .both = both});
    }
    if (small == 0) return;
    small = std::max(small, kSmallestBytes);
    add({.method = CopyMethod::kKernel, .direction = direction, .bytes = small, .blocks = blocks, .both = both});
    if (gathered && staged) {
      for (uint64_t run : kRuns)
        add({.method = CopyMethod::kStaged, .direction = direction, .bytes = small, .host_run = run, .both = both});
    }
    if (both) return;
    add({.method = CopyMethod::kKernel, .direction = direction, .bytes = small, .blocks = kMoreBlocks});
    for (uint32_t count : kCounts) {
      add({.method = CopyMethod::kDirect, .direction = direction, .bytes = small, .count = count});
      add({.method = CopyMethod::kKernel, .direction = direction, .bytes = small, .blocks = blocks, .count = count});
    }
  };
  for (bool both : {false, true}) {
    for (uint32_t direction : {HICACHE_H2D, HICACHE_D2H}) add_direction(direction, both);
  }
  return plan;
}

CopyChoice choose_from(std::span<const MeasuredRate> all, uint32_t direction, const CopyChoice &table) {
  const Rates rates(all, direction);
  CopyChoice choice = table;
  const uint32_t blocks = CopyChoice{}.kernel_blocks_alone;
  for (bool both : {false, true}) choice.rows[both] = choose_row(rates, table.rows[both], blocks, both);
  const uint64_t small = rates.smallest();
  const auto few = rates.kernel(small, blocks, false), many = rates.kernel(small, kMoreBlocks, false);
  if (few && many && overturns(*many, *few)) choice.kernel_blocks_alone = kMoreBlocks;
  for (uint32_t count : kCounts) {
    const auto engine = rates.find({.method = CopyMethod::kDirect, .bytes = small, .count = count});
    const auto kernel = rates.find({.method = CopyMethod::kKernel, .bytes = small, .blocks = blocks, .count = count});
    if (!engine || !kernel || !overturns(*engine, *kernel)) break;
    choice.direct_up_to_count = count;
  }
  return choice;
}

// ---- Stats ----

void show_probes(std::span<const Probe> plan, std::span<const MeasuredRate> rates, uint32_t direction, hicache_copy_choice_t *out) {
  const auto ours = [&](const Probe &probe) { return probe.direction == direction; };
  out->probes_planned = static_cast<uint32_t>(std::count_if(plan.begin(), plan.end(), ours));
  out->probes_measured =
      static_cast<uint32_t>(std::count_if(rates.begin(), rates.end(), [&](const MeasuredRate &rate) { return ours(rate.probe); }));
  if (out->probes_measured != 0)
    out->source = out->probes_measured == out->probes_planned ? HICACHE_CHOICE_CALIBRATED : HICACHE_CHOICE_PARTLY;
  // Of the sizes measured, the one where the table draws its line; where that was none, the nearest.
  constexpr std::array<uint64_t, 4> kTelling = {64 << 10, 32 << 10, 128 << 10, 16 << 10};
  for (uint64_t size : kTelling) {
    for (const MeasuredRate &rate : rates) {
      const Probe &probe = rate.probe;
      if (!ours(probe) || probe.bytes != size || probe.both || probe.count != 0 ||
          (out->measured_bytes != 0 && out->measured_bytes != size))
        continue;
      out->measured_bytes = static_cast<uint32_t>(size);
      const auto mb_s = static_cast<uint32_t>(std::clamp(rate.gb_s, 0.0, kFastest) * 1000);
      if (probe.method == CopyMethod::kDirect) out->direct_mb_s = mb_s;
      if (probe.method == CopyMethod::kKernel) out->kernel_mb_s = mb_s;
      if (probe.method == CopyMethod::kStaged) out->staged_mb_s = mb_s;
    }
  }
}

void show_choice(const CopyChoice &choice, uint32_t slowdown_permille, hicache_copy_choice_t *out) {
  for (int both = 0; both < 2; both++) {
    out->direct_from_bytes[both] = choice.rows[both].direct_from_bytes;
    out->staged_below_bytes[both] = choice.rows[both].staged_below_bytes;
    out->staged_from_run_bytes[both] = choice.rows[both].staged_from_run_bytes;
  }
  out->direct_up_to_count = choice.direct_up_to_count;
  out->kernel_blocks_alone = choice.kernel_blocks_alone;
  out->kernel_blocks_beside = choice.kernel_blocks_beside;
  out->staged_beside = choice.staged_beside ? 1 : 0;
  out->slowdown_max_permille = slowdown_permille;
}

} // namespace hicache
