// Kernels of the device tests and bars; not part of the library.
#include "../include/hicache_device.cuh"

// A layer's kernel of about `cycles`: awaits its layer (word not null), then copies the first word of a page's slice to `seen`.
extern "C" __global__ void test_layer(const uint32_t *word, const uint32_t *expected, const uint32_t *const *slice, uint32_t *seen,
                                      long long cycles) {
  if (word != nullptr) hicache_layer_await(word, expected);
  if (seen != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *seen = *static_cast<const volatile uint32_t *>(*slice);
  const long long start = clock64();
  while (clock64() - start < cycles) {}
}

// What a translation of ids is measured against: the same loads and stores without the arithmetic.
extern "C" __global__ void test_gather(const uint32_t *table, const uint32_t *index, uint32_t *out, uint32_t count) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) out[i] = table[index[i]];
}

// An out-of-bounds store, to see how the engine takes a fault.
extern "C" __global__ void test_fault(uint32_t *nowhere) { *nowhere = 1; }
