#include "profiler.hpp"

#if __has_include(<nvtx3/nvToolsExt.h>)
#define HICACHE_WITH_NVTX 1
#include <nvtx3/nvToolsExt.h>
#endif

namespace hicache {

namespace {

#ifdef HICACHE_WITH_NVTX
constexpr const char *kNames[HICACHE_RANGE_COUNT] = {"match", "plan", "load", "back-up", "compaction", "storage read", "storage write"};

// The domain and its names, made once by whoever comes first. The domain is NULL when no tool listens.
struct Domain {
  nvtxDomainHandle_t handle = nvtxDomainCreateA("hicache");
  nvtxStringHandle_t names[HICACHE_RANGE_COUNT] = {};
  Domain() {
    for (uint32_t i = 0; handle != nullptr && i < HICACHE_RANGE_COUNT; i++) {
      names[i] = nvtxDomainRegisterStringA(handle, kNames[i]);
      nvtxDomainNameCategoryA(handle, i + 1, kNames[i]); // 0 is NVTX's "no category".
    }
  }
};

const Domain &domain() {
  static const Domain only;
  return only;
}
#endif

} // namespace

bool profiler_listens() {
#ifdef HICACHE_WITH_NVTX
  return domain().handle != nullptr;
#else
  return false;
#endif
}

uint64_t profiler_range_start([[maybe_unused]] uint32_t activity, [[maybe_unused]] uint64_t pages) {
#ifdef HICACHE_WITH_NVTX
  const Domain &to = domain();
  if (to.handle == nullptr || activity >= HICACHE_RANGE_COUNT) return 0;
  nvtxEventAttributes_t event{};
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.category = activity + 1;
  event.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
  event.payload.ullValue = pages;
  event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  event.message.registered = to.names[activity];
  return nvtxDomainRangeStartEx(to.handle, &event);
#else
  return 0;
#endif
}

void profiler_range_end([[maybe_unused]] uint64_t range) {
#ifdef HICACHE_WITH_NVTX
  if (range != 0) nvtxDomainRangeEnd(domain().handle, range);
#endif
}

} // namespace hicache

using namespace hicache;

extern "C" {

uint32_t hicache_profiler_listens(void) { return profiler_listens() ? 1 : 0; }

uint64_t hicache_range_start(uint32_t activity, uint64_t page_count) { return profiler_range_start(activity, page_count); }

void hicache_range_end(uint64_t range_id) { profiler_range_end(range_id); }

} // extern "C"
