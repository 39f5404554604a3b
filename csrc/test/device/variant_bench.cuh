// What the parts of kernel_variants share: memory as the library's, streams, timing, the check of bytes, the table of kernels.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernel_args.hpp"
#include "variant_kernels.cuh"

namespace hicache::variants {

constexpr uint64_t kKiB = 1024, kMiB = uint64_t{1} << 20, kGiB = uint64_t{1} << 30;
constexpr uint64_t kArenaBytes = 8 * kGiB, kMoveBytes = 2 * kGiB, kHostBytes = kGiB, kHostLaunch = 64 * kMiB;

inline void must(cudaError_t r, const char *what) {
  if (r == cudaSuccess) return;
  std::printf("{\"error\": \"%s: %s\"}\n", what, cudaGetErrorString(r));
  std::exit(1);
}
inline void must(CUresult r, const char *what) {
  if (r == CUDA_SUCCESS) return;
  std::printf("{\"error\": \"%s: CUresult %d\"}\n", what, static_cast<int>(r));
  std::exit(1);
}
inline double now_ms() { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
// ---- Kernels by name ----

using CopyKernel = void (*)(const Fragment *, uint32_t, uint64_t);
struct Kernel {
  const char *name;
  CopyKernel run;
  int loads, load, store, order; // `order`: of pages; 1 of rows: the list is read ahead.
  int blocks_on_one = 0;
};
#define PAGES(loads, ld, st, order, on_one)                                                                                                \
  { "pages", pages<loads, ld, st, order, on_one>, loads, ld, st, order, on_one }
#define ROWS(loads, ld, st, ahead)                                                                                                         \
  { "rows", rows<loads, ld, st, ahead>, loads, ld, st, ahead }
const Kernel kPages[] = {
    PAGES(8, kLoadOnce, kStoreStream, kInTurn, 2),       PAGES(4, kLoadOnce, kStoreStream, kInTurn, 4),
    PAGES(4, kLoadOnce, kStoreStream, kInTurn, 3),       PAGES(4, kLoadOnce, kStoreStream, kInTurn, 2),
    PAGES(16, kLoadOnce, kStoreStream, kInTurn, 2),      PAGES(8, kLoadOnce, kStoreStream, kRuns, 2),
    PAGES(8, kLoadOnce, kStoreStream, kParts, 2),        PAGES(4, kLoadOnce, kStoreStream, kBlockWide, 3),
    PAGES(8, kLoadOnce, kStoreStream, kBlockWide, 2),    PAGES(8, kLoadPlain, kStorePlain, kInTurn, 2),
    PAGES(8, kLoadOnce256, kStoreStream, kInTurn, 2),    PAGES(8, kLoadOnce, kStorePlain, kInTurn, 2),
    PAGES(8, kLoadEvictFirst, kStoreStream, kInTurn, 2), PAGES(8, kLoadEvictFirst, kStoreEvictFirst, kInTurn, 2),
    PAGES(8, kLoadOnce, kStoreEvictFirst, kInTurn, 2),   PAGES(4, kLoadEvictFirst, kStoreEvictFirst, kBlockWide, 3),
};
const Kernel kRows[] = {
    ROWS(4, kLoadOnce, kStoreStream, false),      ROWS(4, kLoadOnce, kStoreStream, true),     ROWS(8, kLoadOnce, kStoreStream, false),
    ROWS(8, kLoadOnce, kStoreStream, true),       ROWS(4, kLoadPlain, kStorePlain, true),     ROWS(4, kLoadOnce, kStoreThrough, true),
    ROWS(4, kLoadOnce256, kStoreStream, true),    ROWS(4, kLoadVolatile, kStoreStream, true), ROWS(4, kLoadOnce, kStoreEvictFirst, true),
    ROWS(4, kLoadEvictFirst, kStoreStream, true), ROWS(2, kLoadOnce, kStoreStream, true),
};

struct Bench {
  CUdeviceptr arena = 0;
  unsigned char *host = nullptr;
  Fragment *list_host = nullptr, *list_device = nullptr; // 8 MiB each; the host's is mapped.
  unsigned long long *wrong = nullptr;
  cudaStream_t stream = nullptr, high = nullptr, low = nullptr, side = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr, turns[2] = {};
  uint32_t serial = 0;
} bench;
constexpr uint64_t kListBytes = 8 * kMiB;

template <class Work> double gpu_ms(int rounds, Work work) {
  std::vector<float> all;
  for (int i = 0; i <= rounds; i++) {
    must(cudaEventRecord(bench.begin, bench.stream), "record");
    work();
    must(cudaEventRecord(bench.end, bench.stream), "record");
    must(cudaEventSynchronize(bench.end), "synchronize");
    float ms = 0;
    must(cudaEventElapsedTime(&ms, bench.begin, bench.end), "elapsed");
    if (i > 0) all.push_back(ms);
  }
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

std::vector<uint32_t> shuffled(uint32_t count, uint32_t seed) {
  std::vector<uint32_t> all(count);
  std::iota(all.begin(), all.end(), 0u);
  std::mt19937 random(seed);
  std::shuffle(all.begin(), all.end(), random);
  return all;
}

void put_list(const std::vector<Fragment> &list) {
  std::memcpy(bench.list_host, list.data(), list.size() * sizeof(Fragment));
  must(cudaMemcpy(bench.list_device, bench.list_host, list.size() * sizeof(Fragment), cudaMemcpyHostToDevice), "list");
}

// Units that one run of `work` leaves wrong.
unsigned long long wrong_units(uint32_t count, uint64_t bytes, const std::function<void()> &work) {
  unsigned long long wrong = 0;
  bench.serial++;
  must(cudaMemsetAsync(bench.wrong, 0, 8, bench.stream), "memset");
  look<<<1056, 512, 0, bench.stream>>>(bench.list_device, count, bytes, 0, 0xdead0000u + bench.serial, bench.wrong);
  work();
  look<<<1056, 512, 0, bench.stream>>>(bench.list_device, count, bytes, 1, 0, bench.wrong);
  must(cudaMemcpyAsync(&wrong, bench.wrong, 8, cudaMemcpyDeviceToHost, bench.stream), "copy");
  must(cudaStreamSynchronize(bench.stream), "a kernel");
  return wrong;
}

void open_bench() {
  must(cudaFree(nullptr), "context");
  auto entry = [](const char *name) {
    void *function = nullptr;
    cudaDriverEntryPointQueryResult found;
    must(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found), name);
    return function;
  };
  CUmemAllocationProp property{};
  property.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  property.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  property.location.id = 0;
  CUmemAccessDesc access{property.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const auto reserve = reinterpret_cast<decltype(&cuMemAddressReserve)>(entry("cuMemAddressReserve"));
  const auto create = reinterpret_cast<decltype(&cuMemCreate)>(entry("cuMemCreate"));
  const auto map = reinterpret_cast<decltype(&cuMemMap)>(entry("cuMemMap"));
  const auto set_access = reinterpret_cast<decltype(&cuMemSetAccess)>(entry("cuMemSetAccess"));
  must(reserve(&bench.arena, kArenaBytes, 0, 0, 0), "cuMemAddressReserve");
  for (uint64_t at = 0; at < kArenaBytes; at += kGiB) { // As the library's arena: allocations of 1 GiB.
    CUmemGenericAllocationHandle part;
    must(create(&part, kGiB, &property, 0), "cuMemCreate");
    must(map(bench.arena + at, kGiB, 0, part, 0), "cuMemMap");
    must(set_access(bench.arena + at, kGiB, &access, 1), "cuMemSetAccess");
  }
  // Host memory as the library's: huge pages, touched by many threads, registered whole.
  void *raw = mmap(nullptr, kHostBytes + 2 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) must(cudaErrorMemoryAllocation, "mmap");
  bench.host = reinterpret_cast<unsigned char *>((reinterpret_cast<uint64_t>(raw) + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB));
  madvise(bench.host, kHostBytes, MADV_HUGEPAGE);
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; t++) threads.emplace_back([t] { std::memset(bench.host + t * (kHostBytes / 16), t, kHostBytes / 16); });
  for (std::thread &thread : threads) thread.join();
  must(cudaHostRegister(bench.host, kHostBytes, cudaHostRegisterMapped), "cudaHostRegister");
  must(cudaHostAlloc(reinterpret_cast<void **>(&bench.list_host), kListBytes, cudaHostAllocMapped), "cudaHostAlloc");
  must(cudaMalloc(reinterpret_cast<void **>(&bench.list_device), kListBytes), "cudaMalloc");
  must(cudaMalloc(reinterpret_cast<void **>(&bench.wrong), 8), "cudaMalloc");
  int least = 0, greatest = 0;
  must(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities");
  must(cudaStreamCreateWithPriority(&bench.stream, cudaStreamNonBlocking, least), "stream");
  must(cudaStreamCreateWithPriority(&bench.low, cudaStreamNonBlocking, least), "stream");
  must(cudaStreamCreateWithPriority(&bench.high, cudaStreamNonBlocking, greatest), "stream");
  must(cudaStreamCreateWithPriority(&bench.side, cudaStreamNonBlocking, least), "stream");
  must(cudaEventCreate(&bench.begin), "event");
  must(cudaEventCreate(&bench.end), "event");
  for (cudaEvent_t &turn : bench.turns) must(cudaEventCreateWithFlags(&turn, cudaEventDisableTiming), "event");
  must(cudaFuncSetAttribute(bulk<false>, cudaFuncAttributeMaxDynamicSharedMemorySize, 224 << 10), "shared memory");
  must(cudaFuncSetAttribute(bulk<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, 224 << 10), "shared memory");
  must(cudaFuncSetAttribute(arithmetic, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 << 10), "shared memory");
  fill<<<1056, 512, 0, bench.stream>>>(reinterpret_cast<uint4 *>(bench.arena), kArenaBytes / 16, 7);
  fill<<<1056, 512, 0, bench.stream>>>(reinterpret_cast<uint4 *>(bench.host), kHostBytes / 16, 99);
  must(cudaStreamSynchronize(bench.stream), "fill");
}

} // namespace hicache::variants
