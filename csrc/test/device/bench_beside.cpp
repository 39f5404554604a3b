// Transfers and moves that tools/h200_interference.py switches on and off beside compute.
#include <string_view>

#include "bench.hpp"

namespace {

using namespace hicache;
using namespace hicache::device_bench;

Rig *beside = nullptr, *beside_small = nullptr, *beside_staged = nullptr;
std::vector<std::vector<TierCopy>> beside_up, beside_down, beside_loads, beside_rows, beside_slices;
std::unique_ptr<Bulk> beside_bulk[2];
std::unique_ptr<MovingPages> beside_moves;

} // namespace

extern "C" __attribute__((visibility("default"))) int bench_open() {
  api().context_set(caller_context());
  char name[64] = {};
  smoke = api().device_name(name, sizeof name, 0) == cu::kSuccess && std::string_view(name) == "simulated";
  beside = new Rig(llama(), sized(6 * kGiB), sized(3 * kGiB));
  must_open(*beside);
  beside_up = scattered(128, 8, 2048, 1024, 1);
  beside_down = scattered(128, 8, 2048, 1024, 5);
  beside_loads = scattered(512, 4, 2048, 1024, 3);
  CopyTuning tuning;
  tuning.method = CopyMethod::kKernel;
  for (CopyChoice &choice : tuning.choice) choice.kernel_blocks_alone = 2; // The compute beside it is not opened as steps.
  tuning.kernel_quanta_alone = tuning.kernel_quanta_beside;
  beside_small = new Rig({pool(false, 1, 2 * kKiB, 0, {0})}, sized(2 * kGiB), sized(kGiB), tuning);
  must_open(*beside_small);
  const auto rows = static_cast<uint32_t>(sized(kGiB) / (2 * kKiB));
  beside_rows = scattered(static_cast<uint32_t>(sized(32768)), 8, rows, rows, 1);
  CopyTuning staged;
  staged.calibrate = !smoke; // As an engine that nobody tunes.
  if (smoke) staged.quantum_bytes = 4 * kMiB;
  beside_staged = new Rig({slices(32 * kKiB)}, sized(2 * kGiB), 0, staged);
  must_open(*beside_staged);
  beside_slices = slice_batches(*beside_staged);
  ceilings(*beside);
  std::fflush(stdout);
  return 0;
}

// 0, 1: envelopes H2D, D2H; 2: both; 3: layer-wise loads; 4: moves at 0.1 TB/s; 5, 6: rows of 2 KiB by kernel, H2D, D2H; 7, 8: layer
// slices of 32 KiB into large host runs, H2D, D2H.
extern "C" __attribute__((visibility("default"))) void bench_start(int kind) {
  api().context_set(caller_context());
  if (kind == 0 || kind == 2) beside_bulk[0] = std::make_unique<Bulk>(*beside, HICACHE_H2D, beside_up, 0);
  if (kind == 1 || kind == 2) beside_bulk[1] = std::make_unique<Bulk>(*beside, HICACHE_D2H, beside_down, 8);
  if (kind == 3) beside_bulk[0] = std::make_unique<Bulk>(*beside, HICACHE_H2D, beside_loads, 0, 2, HICACHE_CLASS_URGENT);
  if (kind == 5) beside_bulk[0] = std::make_unique<Bulk>(*beside_small, HICACHE_H2D, beside_rows, 0);
  if (kind == 6) beside_bulk[1] = std::make_unique<Bulk>(*beside_small, HICACHE_D2H, beside_rows, 8);
  if (kind == 7) beside_bulk[0] = std::make_unique<Bulk>(*beside_staged, HICACHE_H2D, beside_slices, 0);
  if (kind == 8) beside_bulk[1] = std::make_unique<Bulk>(*beside_staged, HICACHE_D2H, beside_slices, 8);
  for (auto &bulk : beside_bulk) {
    if (bulk) bulk->start();
  }
  if (kind != 4) return;
  beside_moves = std::make_unique<MovingPages>(*beside, 100);
  beside_moves->start();
}

extern "C" __attribute__((visibility("default"))) double bench_stop(int direction) {
  double rate = 0;
  for (int d = 0; d < 2; d++) {
    if (!beside_bulk[d]) continue;
    beside_bulk[d]->stop();
  }
  if (beside_bulk[direction]) rate = beside_bulk[direction]->gb_s();
  if (beside_bulk[0] && beside_bulk[1] && direction == 0) return rate; // Asked for the other one next.
  for (auto &bulk : beside_bulk) bulk.reset();
  if (beside_moves) {
    beside_moves->stop();
    rate = beside_moves->gb_s();
    beside_moves.reset();
  }
  return rate;
}
