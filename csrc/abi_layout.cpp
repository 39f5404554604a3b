// For bindings: sizes and offsets of the ABI's structs as this library was compiled, and calls by argument block.
#include <cstddef>
#include <cstdint>

#include "hicache.h"

namespace {

struct LayoutEntry {
  const char *name;
  uint64_t value;
};

constexpr LayoutEntry kLayout[] = {
#include "abi_layout_gen.inc"
};

} // namespace

extern "C" uint32_t hicache_abi_layout(uint32_t index, const char **name_out, uint64_t *value_out) {
  constexpr uint32_t kCount = sizeof kLayout / sizeof kLayout[0];
  if (index < kCount) {
    if (name_out != nullptr) *name_out = kLayout[index].name;
    if (value_out != nullptr) *value_out = kLayout[index].value;
  }
  return kCount;
}

extern "C" hicache_status_t hicache_invoke(hicache_call_t *call) {
  if (call == nullptr || call->function == nullptr) return HICACHE_INVALID_ARGUMENT;
  // On the platforms that the library is built for, a function finds its integer arguments in the same places whatever comes after them,
  // and narrower ones in the low bits.
  using Function = uint64_t (*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
  const uint64_t *a = call->arguments;
  call->result = reinterpret_cast<Function>(call->function)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]);
  return HICACHE_OK;
}
