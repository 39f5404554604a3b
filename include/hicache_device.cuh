// hicache_device.cuh: for those who write attention kernels. A layer's kernel waits by itself until the load it reads has brought that
// layer: the cheapest wait there is under a captured graph, and one that may be replayed, since the word and the value to wait for are both
// read from memory at each replay.
//
// The library gives the address of the progress word of a ticket and the value from which a layer is there (hicache_layer_word). Put that value into
// device memory that the graph knows, before each replay; a replay with nothing to wait for gets the word's own present value.
#ifndef HICACHE_DEVICE_CUH_
#define HICACHE_DEVICE_CUH_

#include <stdint.h>

// Whether the layer is there. By signed difference: right across the wrap of the word.
static __device__ __forceinline__ bool hicache_layer_there(const uint32_t *word, uint32_t expected) {
  uint32_t now;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
  return static_cast<int32_t>(now - expected) >= 0;
}

// Call at the start of the layer's kernel, with all threads of the block: one thread polls, the block goes on together. A failed load lets
// go too; the ticket's status says so. Blocks that wait occupy their multiprocessors: launch the layer when its load is under way, not hours before.
static __device__ __forceinline__ void hicache_layer_await(const uint32_t *word, const uint32_t *expected) {
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
    const uint32_t value = *static_cast<const volatile uint32_t *>(expected);
    while (!hicache_layer_there(word, value)) __nanosleep(100);
  }
  __syncthreads();
}

#endif // HICACHE_DEVICE_CUH_
