// libFuzzer target over the C ABI: cmake -DHICACHE_FUZZ=ON with clang, then build/abi_fuzz CORPUS_DIR.
#include <cstdio>
#include <cstdlib>

#include "../test/call_sequence.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const std::string failure = hicache_test::CallSequence(data, size).run();
  if (failure.empty()) return 0;
  std::fprintf(stderr, "%s\n", failure.c_str());
  std::abort();
}
