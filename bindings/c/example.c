// A whole life of pages through the C ABI, on the CPU backend: take, write, back up, give back, reserve, load, wait layer by layer,
// compare, close.
//
//   cc -std=c11 -Wall -Wextra -Werror -Iinclude bindings/c/example.c -Lbuild -lhicache -Wl,-rpath,$PWD/build -o c_example
#include <hicache.h>

#include <stdio.h>
#include <stdlib.h>

enum { FULL, SWA, POOLS, PAGES = 4 };

static hicache_error_t error = {.struct_size = sizeof(hicache_error_t)};

// Ends the program unless the call went well. PENDING is positive: not an error.
static void check(hicache_status_t status, const char *call) {
  if (status >= 0) return;
  fprintf(stderr, "%s: %s: %s\n", call, hicache_status_name(status), error.message);
  exit(1);
}
#define CHECK(call) check(call, #call)

// What byte `at` of page `page` of a pool holds.
static uint8_t stamp(uint32_t pool, uint32_t page, uint64_t at) { return (uint8_t)(pool * 131 + page * 31 + at * 7 + at / 256); }

static hicache_engine_t *open_engine(void) {
  static const uint32_t full_layers[] = {0, 2}, swa_layers[] = {1, 3};
  const hicache_pool_options_t pools[POOLS] = {
      {.role = HICACHE_ROLE_FULL, .page_tokens = 16, .layer_count = 2, .layer_ids = full_layers, .k_row_bytes = 64, .v_row_bytes = 64},
      {.role = HICACHE_ROLE_SWA,
       .page_tokens = 16,
       .window_tokens = 32,
       .layer_count = 2,
       .layer_ids = swa_layers,
       .k_row_bytes = 64,
       .v_row_bytes = 64},
  };
  const hicache_options_t options = {
      .struct_size = sizeof options,
      .abi_version = HICACHE_ABI_MAJOR << 16 | HICACHE_ABI_MINOR,
      .backend = HICACHE_BACKEND_CPU,
      .device_bytes = 1 << 20,
      .host_bytes = 1 << 20,
      .pools = pools,
      .pool_count = POOLS,
      .pool_stride_bytes = sizeof pools[0],
  };
  hicache_engine_t *engine = NULL;
  CHECK(hicache_open(&options, &engine, &error));
  return engine;
}

// The bytes of a held page, found through its kernel id as a kernel would.
static uint8_t *page_bytes(hicache_engine_t *engine, hicache_lease_t lease, uint32_t pool, hicache_vpage_t page, uint64_t *bytes_out) {
  hicache_pool_info_t info = {.struct_size = sizeof info};
  CHECK(hicache_pool_info(engine, HICACHE_TIER_DEVICE, pool, &info, &error));
  hicache_kernel_id_t id;
  CHECK(hicache_kernel_ids(engine, lease, pool, HICACHE_GRANULARITY_PAGE, &page, 1, &id, NULL, &error));
  *bytes_out = info.page_bytes;
  return (uint8_t *)(uintptr_t)info.arena_base + ((uint64_t)id - info.kernel_page_offset) / info.kernel_page_scale * info.page_bytes;
}

static hicache_lease_t lease_all(hicache_engine_t *engine, const hicache_vpage_t *pages) {
  const hicache_pages_t lines[POOLS] = {{FULL, PAGES, pages}, {SWA, PAGES, pages}};
  hicache_lease_t lease = 0;
  CHECK(hicache_lease_acquire(engine, lines, POOLS, &lease, &error));
  return lease;
}

// Reads completions until that of the ticket, which ends its pins.
static void drain(hicache_engine_t *engine, hicache_ticket_t ticket) {
  for (;;) {
    hicache_completion_t ring[8];
    uint32_t count = 0;
    CHECK(hicache_completion_wait(engine, UINT64_C(10000000000), ring, 8, &count, &error));
    if (count == 0) {
      fprintf(stderr, "no completion in 10 s\n");
      exit(1);
    }
    for (uint32_t i = 0; i < count; i++) {
      check(ring[i].status, "transfer");
      if (ring[i].ticket == ticket) return;
    }
  }
}

static void name_copies(hicache_copy_t *copies, const hicache_vpage_t *pages, hicache_hpage_t host[POOLS][PAGES]) {
  for (uint32_t pool = 0; pool < POOLS; pool++)
    for (uint32_t i = 0; i < PAGES; i++)
      copies[pool * PAGES + i] = (hicache_copy_t){.pool = pool, .device_page = pages[i], .host_page = host[pool][i]};
}

int main(void) {
  printf("libhicache %s, ABI %u.%u\n", hicache_build_info(), hicache_abi_version() >> 16, hicache_abi_version() & 0xffff);
  hicache_engine_t *engine = open_engine();

  // Take pages in both pools, all or none. The SWA line without ids means: for the pages just taken of its owner.
  hicache_vpage_t pages[PAGES];
  const hicache_take_t takes[POOLS] = {{FULL, PAGES, pages}, {SWA, PAGES, NULL}};
  CHECK(hicache_alloc(engine, takes, POOLS, &error));

  // Write them under a lease: while it lives they stay where they are.
  hicache_lease_t lease = lease_all(engine, pages);
  for (uint32_t pool = 0; pool < POOLS; pool++)
    for (uint32_t i = 0; i < PAGES; i++) {
      uint64_t bytes = 0;
      uint8_t *to = page_bytes(engine, lease, pool, pages[i], &bytes);
      for (uint64_t at = 0; at < bytes; at++) to[at] = stamp(pool, i, at);
    }
  CHECK(hicache_lease_release(engine, lease, &error));

  // Back them up. The call queues the copies; the ring says when they have ended.
  hicache_hpage_t host[POOLS][PAGES];
  const hicache_host_take_t host_takes[POOLS] = {{FULL, PAGES, host[FULL]}, {SWA, PAGES, host[SWA]}};
  CHECK(hicache_host_alloc(engine, host_takes, POOLS, &error));
  hicache_copy_t copies[POOLS * PAGES];
  name_copies(copies, pages, host);
  hicache_transfer_t back_up = {
      .struct_size = sizeof back_up, .priority = HICACHE_CLASS_NORMAL, .copies = copies, .copy_count = POOLS * PAGES};
  hicache_ticket_t ticket = 0;
  CHECK(hicache_back_up(engine, &back_up, &ticket, &error));
  drain(engine, ticket);

  // Give the device pages back (the FULL line frees the window pages too), and let others take and zero their places.
  const hicache_pages_t frees[] = {{FULL, PAGES, pages}};
  CHECK(hicache_free(engine, frees, 1, &error));
  hicache_vpage_t others[2];
  const hicache_take_t other_takes[POOLS] = {{FULL, 2, others}, {SWA, 2, NULL}};
  CHECK(hicache_alloc(engine, other_takes, POOLS, &error));

  // Reserve and load: naming the pages and queueing their copies is one call.
  hicache_vpage_t back[PAGES];
  const hicache_take_t again[POOLS] = {{FULL, PAGES, back}, {SWA, PAGES, NULL}};
  hicache_reservation_t reservation = 0;
  CHECK(hicache_reserve(engine, again, POOLS, &reservation, &error));
  name_copies(copies, back, host);
  hicache_transfer_t load = {.struct_size = sizeof load, .reservation = reservation, .copies = copies, .copy_count = POOLS * PAGES};
  CHECK(hicache_load(engine, &load, &ticket, &error));
  for (uint32_t layer = 0; layer < 4; layer++) CHECK(hicache_layer_wait(engine, ticket, layer, 0, &error));
  drain(engine, ticket);

  uint64_t wrong = 0, compared = 0;
  lease = lease_all(engine, back);
  for (uint32_t pool = 0; pool < POOLS; pool++)
    for (uint32_t i = 0; i < PAGES; i++) {
      uint64_t bytes = 0;
      const uint8_t *from = page_bytes(engine, lease, pool, back[i], &bytes);
      for (uint64_t at = 0; at < bytes; at++) wrong += from[at] != stamp(pool, i, at);
      compared += bytes;
    }
  if (hicache_close(engine, &error) != HICACHE_BUSY) {
    fprintf(stderr, "an engine with a lease closed\n");
    return 1;
  }
  CHECK(hicache_lease_release(engine, lease, &error));
  CHECK(hicache_verify(engine, NULL, 0, &error));
  CHECK(hicache_close(engine, &error));
  printf("%llu bytes came back, %llu wrong\n", (unsigned long long)compared, (unsigned long long)wrong);
  return wrong != 0;
}
