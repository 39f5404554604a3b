// Sizes and offsets of the ABI's structs as this library was compiled, for the tests of every binding.
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
