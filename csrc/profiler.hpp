// Ranges for NVTX tools (Nsight Systems): what the library does, on the timeline beside the server's kernels. NVTX finds the tool by itself
// when the first range is asked for; without one a range costs a load and a branch. Built without NVTX's headers nothing ever listens.
#pragma once

#include <cstdint>

#include "hicache.h"

namespace hicache {

// True when a tool took the domain "hicache". Any thread.
bool profiler_listens();

// A range that may end on another thread: a transfer's starts in its call and ends on the thread that copied last. `activity` is
// HICACHE_RANGE_*, `pages` its payload. 0 when nobody listens; ending 0 does nothing.
uint64_t profiler_range_start(uint32_t activity, uint64_t pages);
void profiler_range_end(uint64_t range);

// A range of one scope.
class ProfilerRange {
public:
  ProfilerRange(uint32_t activity, uint64_t pages) : range_(profiler_range_start(activity, pages)) {}
  ~ProfilerRange() { profiler_range_end(range_); }
  ProfilerRange(const ProfilerRange &) = delete;
  ProfilerRange &operator=(const ProfilerRange &) = delete;

private:
  const uint64_t range_;
};

} // namespace hicache
