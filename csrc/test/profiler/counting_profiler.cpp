// A tool in the sense of NVTX: counts the ranges of each activity by their category, and the pages that they name.
#include <nvtx3/nvToolsExt.h>

#include <atomic>
#include <cstdint>

namespace {

constexpr uint32_t kActivityMax = 16;
std::atomic<uint64_t> started[kActivityMax];
std::atomic<uint64_t> pages[kActivityMax];
std::atomic<uint64_t> ended;
std::atomic<uint64_t> next_range{1};
int the_domain;

nvtxDomainHandle_t NVTX_API domain_create(const char *) { return reinterpret_cast<nvtxDomainHandle_t>(&the_domain); }

nvtxRangeId_t NVTX_API range_start(nvtxDomainHandle_t, const nvtxEventAttributes_t *event) {
  if (event->category < kActivityMax) {
    started[event->category]++;
    pages[event->category] += event->payload.ullValue;
  }
  return next_range++;
}

void NVTX_API range_end(nvtxDomainHandle_t, nvtxRangeId_t) { ended++; }

} // namespace

extern "C" {

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  const auto *callbacks = static_cast<const NvtxExportTableCallbacks *>(get_export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
  if (size <= NVTX_CBID_CORE2_DomainRangeEnd || size <= NVTX_CBID_CORE2_DomainCreateA) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(domain_create);
  *table[NVTX_CBID_CORE2_DomainRangeStartEx] = reinterpret_cast<NvtxFunctionPointer>(range_start);
  *table[NVTX_CBID_CORE2_DomainRangeEnd] = reinterpret_cast<NvtxFunctionPointer>(range_end);
  return 1;
}

__attribute__((visibility("default"))) uint64_t profiler_started(uint32_t category) { return started[category]; }
__attribute__((visibility("default"))) uint64_t profiler_pages(uint32_t category) { return pages[category]; }
__attribute__((visibility("default"))) uint64_t profiler_ended(void) { return ended; }

} // extern "C"
