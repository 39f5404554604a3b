// How a fragment crosses the bus: the methods, the boundaries between them, what measured rates make of those, and what a method costs the
// compute beside it. Plain arithmetic: the device is backend_cuda_calibrate's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hicache.h"
#include "layer_groups.hpp"

namespace hicache {

enum class CopyMethod : uint32_t {
  kAuto,   // By fragment size, as calibrated.
  kDirect, // Batched copies by the copy engine.
  kKernel, // page_copy on few blocks.
  kStaged, // What is contiguous on the host by the copy engine, to or from a ring on the device, and there by page_copy, full width.
};

// Boundaries, in bytes. A fragment smaller than staged_below_bytes that lies in a longer run of at least staged_from_run_bytes on the host
// goes through the ring; else one of at least direct_from_bytes goes by the copy engine as it is; else it goes by kernel.
struct MethodRow {
  uint64_t direct_from_bytes = 48 << 10;
  uint64_t staged_below_bytes = 48 << 10;
  uint64_t staged_from_run_bytes = 64 << 10;

  bool operator==(const MethodRow &) const = default;
};

// Fragments of so many bytes and more are direct whatever was measured: nothing beats the copy engine there, on any device seen.
inline constexpr uint64_t kAlwaysDirectBytes = 256 << 10;

// One direction's choice.
struct CopyChoice {
  MethodRow rows[2];               // [0]: nothing crosses the other way. [1]: the other direction carries copies.
  uint32_t direct_up_to_count = 0; // Transfers of so few pages go by the copy engine at any size: no launch, no list.
  uint32_t kernel_blocks_alone = 4;
  uint32_t kernel_blocks_beside = 2; // Beside compute, from the budget; 0: no kernel over the bus then.
  bool staged_beside = true;         // The budget allows the ring beside compute.
};

// What the choice of one fragment depends on.
struct CopySituation {
  bool ring = false;    // There is a staging ring.
  bool compute = false; // A step is about.
  bool other = false;   // The other direction carries copies.
  bool few = false;     // The transfer has at most direct_up_to_count pages.
};

// host_run: contiguous bytes on the host that the fragment lies in.
CopyMethod choose_method(const CopyChoice &choice, uint64_t bytes, uint64_t host_run, const CopySituation &now);

// ---- What a method costs the compute beside it ----

// Slowdown in per mille, the worst of a GEMM chain of 8192^3 bf16, the prefill and the decode of an 8B model, measured on an H200 beside
// compute that never pauses (docs/PERFORMANCE.md). `blocks`: of a kernel over the bus, 1 and up; those not measured are interpolated
// upwards.
uint32_t interference_permille(uint32_t direction, CopyMethod method, uint32_t blocks);
// What the default methods cost, which is what is accepted unless an option says otherwise.
inline constexpr uint32_t kSlowdownDefaultPermille = 200;
// Keeps a direction's choice under `permille` beside compute: fewer blocks or no kernel, no ring. The copy engine alone is the least there
// is and remains whatever it costs.
void keep_budget(CopyChoice *choice, uint32_t direction, uint32_t permille);

// ---- What to measure, and what it means ----

// Fragments that a pool's transfers come in.
struct CopyShape {
  uint64_t bytes;
  uint64_t host_run;
  bool loads_only; // A layer's slice.
};
// layer_bytes_min: as CopyTuning.
std::vector<CopyShape> copy_shapes(std::span<const PoolLayout> pools, uint64_t layer_bytes_min);
// A fragment might go through the ring, by the table or by what may be measured.
bool ring_possible(std::span<const CopyShape> shapes);

struct Probe {
  CopyMethod method = CopyMethod::kDirect;
  uint32_t direction = HICACHE_H2D;
  uint64_t bytes = 0;    // Of a fragment.
  uint64_t host_run = 0; // Staged.
  uint32_t blocks = 0;   // Kernel.
  uint32_t count = 0;    // Fragments; 0: as many as make a stream of them.
  bool both = false;     // While the other direction carries bulk copies; the rate is then of both together.

  bool operator==(const Probe &) const = default;
};
struct MeasuredRate {
  Probe probe;
  double gb_s; // 10^9 bytes a second, the best of what was measured.
};

// What is worth measuring for these shapes, most telling first; empty where nothing is left to choose.
std::vector<Probe> plan_probes(std::span<const CopyShape> shapes, const bool ring[2]);

// The choice of a direction that the rates speak for. Where one was not measured, or is no plausible rate, or the gain is below 5 %,
// `table` stands; boundaries stay within the sizes that are measured at all (12 KiB to 256 KiB).
CopyChoice choose_from(std::span<const MeasuredRate> rates, uint32_t direction, const CopyChoice &table);

// What Stats show: of a direction's plan and rates, and of its choice.
void show_probes(std::span<const Probe> plan, std::span<const MeasuredRate> rates, uint32_t direction, hicache_copy_choice_t *out);
void show_choice(const CopyChoice &choice, uint32_t slowdown_permille, hicache_copy_choice_t *out);

} // namespace hicache
