// Arbitrary sequences of calls from seeded bytes; the fuzz target csrc/fuzz/abi_fuzz.cpp does the same from its corpus.
#include "call_sequence.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

namespace hicache_test {
namespace {

std::string run_seed(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> bytes(200 + random() % 1500);
  for (auto &byte : bytes) byte = static_cast<uint8_t>(random());
  return CallSequence(bytes.data(), bytes.size()).run();
}

TEST(CallSequences, NoSequenceBreaksAnInvariant) {
  // HICACHE_CALLS_SEED=N repeats one; HICACHE_CALLS=N runs that many.
  const char *one = std::getenv("HICACHE_CALLS_SEED");
  const char *count = std::getenv("HICACHE_CALLS");
  const uint64_t first = one == nullptr ? 0 : std::strtoull(one, nullptr, 10);
  const uint64_t last = one != nullptr ? first + 1 : count == nullptr ? 400 : std::strtoull(count, nullptr, 10);
  for (uint64_t seed = first; seed < last; seed++) { ASSERT_EQ(run_seed(seed), "") << "repeat with HICACHE_CALLS_SEED=" << seed; }
}

} // namespace
} // namespace hicache_test
