// hicache.h: C ABI of libhicache, a tiered KV-cache memory manager.
//
// One byte arena on the device (L1) is shared by pools of pages: full attention (FULL), sliding window (SWA) and recurrent
// state (STATE). A second arena of the same kind in host memory (L2) stands behind it. Pages have stable names (virtual ids)
// and movable places (physical ids); what attention kernels index with is a third space (kernel ids). The words are those of
// docs/GLOSSARY.md.
//
// What holds for every function unless it says otherwise:
//
//   Errors     A function that can fail returns hicache_status_t and, if `error` is not NULL, fills it: which operation, which
//              pool, what was needed, what there was, and a sentence. Nothing is reported through thread-local state. A
//              positive status is not an error. On an error nothing has changed, unless the function says what did.
//   Threads    Any function may be called from any OS thread, and calls on one engine may run concurrently. No function
//              depends on, or leaves changed, the caller's current CUDA device or context.
//   Memory     Arrays are borrowed for the call. Outputs go to caller memory and are written only on success, unless the
//              function says otherwise. All memory of an engine is taken in hicache_open; nothing grows later.
//   Blocking   Only hicache_open, hicache_close, hicache_completion_wait and, on the CPU and null backends, hicache_layer_wait
//              may block. Taking and giving back pages never waits for a transfer, a step or a move.
//   Units      Names end in their unit: _bytes, _pages, _tokens, _ns, _count. Byte quantities are 64-bit.
//   Structs    Begin with struct_size (in: sizeof in the caller) and grow only at the end. Bytes that the library does not know must
//              be zero, else UNSUPPORTED. Arrays of structs are pointer + count + stride_bytes (0 = the library's own sizeof).
//              Reserved fields must be zero.
//   Ids        What is opened is a pointer; what is held (lease, reservation, ticket, step) is a generation-checked id: a stale one
//              is STALE_ID, never undefined behaviour. 0 is never valid. Ids of one engine are not valid in another: STALE_ID.
#ifndef HICACHE_H_
#define HICACHE_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define HICACHE_API __declspec(dllexport)
#else
#define HICACHE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

// ---- Version ------------------------------------------------------------------------------------------------------------

// MAJOR changes on a break, and the SONAME with it; MINOR on an addition.
#define HICACHE_ABI_MAJOR 0u
#define HICACHE_ABI_MINOR 1u

// MAJOR << 16 | MINOR of the loaded library.
HICACHE_API uint32_t hicache_abi_version(void);

// Static text: version, compiler, backends built in, e.g. "0.1.0 g++ 12.2 backends=cpu,null,fault".
HICACHE_API const char *hicache_build_info(void);

// ---- Status -------------------------------------------------------------------------------------------------------------

// Values are frozen once released; families of ten leave room.
typedef int32_t hicache_status_t;
#define HICACHE_OK 0
#define HICACHE_PENDING 1            // Not an error: not finished yet.
#define HICACHE_INVALID_ARGUMENT (-10) // The message names the argument and what it may be.
#define HICACHE_UNSUPPORTED (-11)      // Valid request, not in this build, backend or mode.
#define HICACHE_ABI_MISMATCH (-12)     // Header and library of different MAJOR, or a struct_size that cannot be.
#define HICACHE_NO_CAPACITY (-20)      // Does not fit now. Retry after eviction, or when error.ticket ends.
#define HICACHE_MOVES_BLOCKED (-21)    // Would fit if the pinned pages or the compaction mode let pages move.
#define HICACHE_BUSY (-22)             // Leases, reservations, steps or tickets are outstanding.
#define HICACHE_INFEASIBLE (-23)       // Can never fit; the message itemises.
#define HICACHE_CLOSED (-24)           // The engine is closed or closing.
#define HICACHE_LIMIT (-25)            // A table sized at open is full (leases, reservations, tickets, steps, ring).
#define HICACHE_STALE_ID (-30)         // That page, lease, reservation, ticket or step is over, or never was.
#define HICACHE_NOT_MAPPED (-31)       // That virtual page has no page in that pool.
#define HICACHE_DEVICE (-40)           // The device failed; native_code says how. The engine is poisoned: only close is left.
#define HICACHE_CORRUPT (-41)          // Bytes failed their checksum.
#define HICACHE_CANCELLED (-42)        // The transfer was cancelled before all of it ran.
#define HICACHE_INTERNAL (-50)         // A bug in libhicache.

// Static text, "NO_CAPACITY" for -20; "UNKNOWN" for a value that does not exist.
HICACHE_API const char *hicache_status_name(hicache_status_t status);

typedef struct hicache_error {
  uint32_t struct_size;    // In.
  hicache_status_t status;
  int32_t native_code;     // CUresult or errno; 0 if neither.
  uint32_t pool;           // Pool concerned; HICACHE_NO_POOL if none.
  uint64_t need_bytes;     // Of the demand concerned; 0 if not about room.
  uint64_t have_bytes;     // What could be had of it.
  uint64_t pending_bytes;  // What quarantined pages will give back by themselves.
  uint64_t ticket;         // A ticket whose end gives room or unblocks a move; 0 if none.
  char message[232];       // UTF-8, NUL-terminated, truncated if long.
} hicache_error_t;

// ---- Ids ----------------------------------------------------------------------------------------------------------------

typedef struct hicache_engine hicache_engine_t;
typedef uint64_t hicache_lease_t;
typedef uint64_t hicache_reservation_t;
typedef uint64_t hicache_ticket_t;
typedef uint64_t hicache_step_t;

// Page-granular, one type a space. HICACHE_NO_PAGE is never a page.
typedef uint32_t hicache_vpage_t;    // Virtual: stable name of a device page for its lifetime.
typedef uint32_t hicache_ppage_t;    // Physical: where it is now; valid while something pins the page.
typedef int32_t hicache_kernel_id_t; // Kernel: what attention kernels index with.
typedef uint32_t hicache_hpage_t;    // Stable name of a page of the host tier.
#define HICACHE_NO_PAGE 0xffffffffu
#define HICACHE_NO_POOL 0xffffffffu

// ---- Open and close -----------------------------------------------------------------------------------------------------

#define HICACHE_ROLE_FULL 1u
#define HICACHE_ROLE_SWA 2u
#define HICACHE_ROLE_STATE 3u

// Where in the arena's chain a pool lives. AUTO: a lone pool DOWN; else FULL down, the first SWA or STATE up (STATE before SWA), the
// others floating between in the order given. An arena has at most one UP and one DOWN pool; it may have a single pool.
#define HICACHE_DIRECTION_AUTO 0u
#define HICACHE_DIRECTION_UP 1u
#define HICACHE_DIRECTION_FLOAT 2u
#define HICACHE_DIRECTION_DOWN 3u

#define HICACHE_LAYOUT_LAYER_MAJOR 0u // Envelope is [layer][K|V][token][row]: a layer's slice is contiguous.
#define HICACHE_LAYOUT_TOKEN_MAJOR 1u // Envelope is [token][layer][K|V][row].

// How a pool's pages lie in the host tier. ENVELOPE: as on the device, in the arena that such pools share. The others are for a separate
// region of the pool's own, whose K rows come first, then its V rows, then what pads the envelopes; `tokens` counts through all pages, and
// `heads` cut a row into equal parts. Copies between the tiers convert; what an engine answers does not depend on the layout.
#define HICACHE_HOST_ENVELOPE 0u
#define HICACHE_HOST_LAYER_FIRST 1u       // [K|V][layer][tokens][row]
#define HICACHE_HOST_PAGE_FIRST 2u        // [K|V][tokens][layer][row]
#define HICACHE_HOST_PAGE_FIRST_DIRECT 3u // [K|V][page][layer][token][row]
#define HICACHE_HOST_PAGE_HEAD 4u         // [K|V][page][head][token][layer][row / heads]

// What hand-out zeroes: kernels read whole pages, and a NaN of weight 0 still poisons.
#define HICACHE_ZERO_DEFAULT 0u // ALWAYS for FULL and SWA, NEVER for STATE.
#define HICACHE_ZERO_ALWAYS 1u
#define HICACHE_ZERO_TAIL 2u // Only rows that the load or the caller does not say it will write.
#define HICACHE_ZERO_NEVER 3u

// The pool is not part of the chain: it has virtual_page_count pages of its own, nothing moves, its translators are identities.
#define HICACHE_POOL_STATIC 1u

// A pool: pages of one size with one role. An id group is one FULL pool with the SWA pools: they share virtual pages, which the FULL
// pool hands out. A STATE pool is a group of its own, with one state a page.
typedef struct hicache_pool_options {
  uint32_t role;               // HICACHE_ROLE_*.
  uint32_t direction;          // HICACHE_DIRECTION_*.
  uint32_t page_tokens;        // Tokens in a page; 1 for STATE. Equal in all pools of an id group.
  uint32_t window_tokens;      // SWA only, > 0.
  uint32_t layer_count;        // >= 1.
  uint32_t envelope_layout;    // HICACHE_LAYOUT_*.
  uint32_t zeroing;            // HICACHE_ZERO_*.
  uint32_t flags;              // HICACHE_POOL_*.
  const uint32_t *layer_ids;   // layer_count global layer ids, strictly ascending; no id in two pools of one group.
  uint64_t k_row_bytes;        // One layer's K row (or latent row, or recurrent state) of a token. A multiple of 16, > 0.
  uint64_t v_row_bytes;        // One layer's V row (or convolution state). A multiple of 16; 0 for a latent row.
  uint64_t page_bytes;         // 0: layer_count * (k_row_bytes + v_row_bytes) * page_tokens; else at least that, a multiple of 16.
  uint32_t virtual_page_count; // 0: as many as can ever be in use. SWA: must be 0, the FULL pool decides.
  uint32_t host_layout;        // HICACHE_HOST_*.
  uint32_t host_page_count;    // Pages of a separate region. 0: pools that say nothing share what the others leave of host_bytes, so that each
                               // has as many pages; the shared arena gets the share of its pools. ENVELOPE: must be 0.
  uint32_t head_count;         // Heads of a row, for PAGE_HEAD orders; K and V rows are multiples of 16 bytes times it. 0 = 1.
} hicache_pool_options_t;

#define HICACHE_BACKEND_CPU 1u  // Byte-exact reference: "device" memory is host memory, copies run on worker threads.
#define HICACHE_BACKEND_NULL 2u // Tables and accounting; no bytes, but an 8-byte tag a page that moves and copies with it.
#define HICACHE_BACKEND_CUDA 3u

#define HICACHE_COMPACTION_LAZY 0u  // Moves when a take needs room and when hicache_compact is called.
#define HICACHE_COMPACTION_EAGER 1u // Each free packs what it can.
#define HICACHE_COMPACTION_OFF 2u   // Nothing moves; a take that needs a move fails with MOVES_BLOCKED.

#define HICACHE_PLACEMENT_BEST 0u      // Frontiers retreat at once; a shortfall moves just what it needs.
#define HICACHE_PLACEMENT_REFERENCE 1u // Frontiers retreat and neighbours pack as in the system the idea comes from (ends only).

// How copies cross the bus. AUTO: by the size of a fragment and the direction.
#define HICACHE_COPY_AUTO 0u
#define HICACHE_COPY_DIRECT 1u // The copy engine, fragment by fragment.
#define HICACHE_COPY_KERNEL 2u // A kernel on few blocks, straight to and from host memory.
#define HICACHE_COPY_STAGED 3u // The copy engine for what is contiguous on the host, a kernel to and from a ring on the device for the rest.

// Whether open measures how fast each method is here, for AUTO: under 100 ms, on memory that nobody uses yet. Without it a table decides.
#define HICACHE_CALIBRATION_AUTO 0u // Where there is something to choose; HICACHE_CUDA_CALIBRATE=0 in the environment turns it off.
#define HICACHE_CALIBRATION_OFF 1u

// Where a direction's choice comes from.
#define HICACHE_CHOICE_NONE 0u       // No copies cross a bus: every backend but CUDA.
#define HICACHE_CHOICE_TABLE 1u      // The library's table: calibration off or not possible, or pages leave nothing to choose.
#define HICACHE_CHOICE_FORCED 2u     // copy_method, or HICACHE_CUDA_METHOD in the environment; without kernels: direct.
#define HICACHE_CHOICE_PARTLY 3u     // Measured until the time was over; the table for the rest.
#define HICACHE_CHOICE_CALIBRATED 4u // Measured.

// Deliberate faults, to show that the checks catch them. Accepted only by a build with HICACHE_SABOTAGE, else UNSUPPORTED.
#define HICACHE_SABOTAGE_VIRTUAL_ON_WIRE 1u // Transfers use virtual ids as places.
#define HICACHE_SABOTAGE_IGNORE_PINS 2u     // Compaction moves pinned pages.
#define HICACHE_SABOTAGE_DROP_LAST_LAYER 4u // A copy leaves out a page's last layer.

// Fault injection and simulated time: wraps the backend chosen. All zero: off.
typedef struct hicache_fault_options {
  uint32_t enabled;         // 1: wrap. Copies then run only inside calls (hicache_fault_run, completion_wait, layer_wait), in
                            // an order and with virtual delays drawn from `seed`: a run repeats exactly.
  uint32_t reserved0;
  uint64_t seed;
  uint64_t fail_transfer_n; // The n-th transfer (from 1) fails; 0 none. An injected failure is a completion with status DEVICE and
                            // native_code EIO; it leaves its target partly written, its source intact, and does not poison the engine.
  uint32_t fail_ppm;        // Each transfer fails with this probability in parts per million.
  uint32_t hold;            // 1: transfers run only by hicache_fault_run or once released by hicache_fault_hold.
  uint64_t delay_max_ns;    // Virtual delay of a transfer, uniform in [0, max].
} hicache_fault_options_t;

typedef struct hicache_options {
  uint32_t struct_size;
  uint32_t abi_version;       // HICACHE_ABI_MAJOR << 16 | HICACHE_ABI_MINOR of the caller's header.
  uint32_t backend;           // HICACHE_BACKEND_*.
  int32_t device;             // CUDA ordinal; 0 otherwise.
  uint64_t device_bytes;      // L1 arena.
  uint64_t device_bytes_max;  // Range reserved for hicache_resize; 0 = device_bytes.
  void *device_buffer;        // Adopt this buffer of device_bytes (256-byte aligned); NULL: the library owns one.
  uint64_t host_bytes;        // L2 arena; 0: no host tier.
  uint64_t host_bytes_max;    // 0 = host_bytes.
  const hicache_pool_options_t *pools;
  uint32_t pool_count;        // 1..16.
  uint32_t pool_stride_bytes; // sizeof(hicache_pool_options_t) in the caller.
  uint32_t compaction;        // HICACHE_COMPACTION_*.
  uint32_t placement;         // HICACHE_PLACEMENT_*.
  uint32_t request_tokens_max; // Open refuses (INFEASIBLE, itemised) when one request of this many tokens can never fit; 0: one page.
  uint32_t copy_thread_count; // CPU and null backends: workers a direction; 0 = 1.
  uint32_t ticket_max;        // Transfers in flight or unread in the ring; 0 = 1024.
  uint32_t reservation_max;   // 0 = 1024.
  uint32_t lease_max;         // 0 = 4096.
  uint32_t step_max;          // Open steps; 0 = 256.
  uint32_t held_pages_max;    // Page entries in all leases, reservations, tickets and open steps of a tier together, 4.6 bytes each; 0 = the
                              // pages that can be in use at once, at least 64 Ki. One more is LIMIT.
  uint32_t sabotage;          // HICACHE_SABOTAGE_*; 0.
  hicache_fault_options_t fault;
  uint32_t transfer_pages_max; // Page copies in all tickets together, 20 bytes each; 0 = an eighth of the pages that can be in use at once,
                              // at least 64 Ki. One more is LIMIT.
  uint32_t copy_method;       // CUDA: HICACHE_COPY_*. 0 elsewhere.
  uint64_t host_numa_nodes;   // Bit n: the host arena's memory comes from NUMA node n; several bits: from each in turn; 0: as the kernel
                              // likes. INVALID_ARGUMENT for a node that the machine does not have.
  uint32_t copy_calibration;  // CUDA: HICACHE_CALIBRATION_*. Others ignore it.
  // CUDA: the slowdown of compute that is accepted beside copies of a direction, in per mille, 1 to 10000 (else INVALID_ARGUMENT); 0: 200, what the
  // default methods cost. While a step is about, AUTO takes methods under it by a table of measured costs (docs/PERFORMANCE.md): the copy
  // engine alone costs least and is used whatever it costs. Others ignore it.
  uint32_t h2d_slowdown_max_permille;
  uint32_t d2h_slowdown_max_permille;
  uint32_t reserved1;         // 0.
} hicache_options_t;

// Opens an engine and takes all of its memory. On success *engine_out must go to hicache_close once.
// Errors: INVALID_ARGUMENT naming the field, INFEASIBLE, ABI_MISMATCH, UNSUPPORTED, DEVICE.
HICACHE_API hicache_status_t hicache_open(const hicache_options_t *options, hicache_engine_t **engine_out, hicache_error_t *error);

// BUSY, changing nothing, while leases, reservations or open steps are held and the device works. Else stops taking work,
// blocks until submitted transfers have ended (a DMA cannot be recalled) and frees the engine. NULL is OK and does nothing. A pointer
// that was closed already is CLOSED (the library remembers the addresses of engines it has closed and not reused).
HICACHE_API hicache_status_t hicache_close(hicache_engine_t *engine, hicache_error_t *error);

// ---- Geometry -----------------------------------------------------------------------------------------------------------

#define HICACHE_TIER_DEVICE 1u
#define HICACHE_TIER_HOST 2u

// Where a pool is in a tier's arena. Physical page p is bytes [p * page_bytes, (p + 1) * page_bytes) from arena_base, but in a separate host
// region, where its bytes lie as its layout says.
typedef struct hicache_pool_info {
  uint32_t struct_size;
  uint32_t direction;             // Resolved.
  uint64_t arena_base;            // Address of byte 0; 0 on the null backend. Stable for the life of the engine.
  uint64_t arena_bytes;
  uint64_t page_bytes;
  uint64_t token_row_bytes;       // layer_count * (k_row_bytes + v_row_bytes).
  uint32_t first_page;            // Pages below are the sink (device) and never handed out.
  uint32_t page_count;            // Physical pages [0, page_count).
  uint32_t virtual_page_count;
  uint32_t id_owner;              // Pool that hands out this pool's virtual ids: itself, or the FULL pool.
  uint64_t kernel_page_scale;     // Page-granular kernel id = physical page * scale + offset.
  uint64_t kernel_page_offset;
  // K row of layer index l and token t in page p: arena_base + p * page_bytes + l * layer_stride + t * token_stride.
  // V row: arena_base + p * page_bytes + l * layer_stride + v_offset + t * v_token_stride.
  uint64_t layer_stride_bytes;
  uint64_t token_stride_bytes;
  uint64_t v_offset_bytes;
  uint64_t v_token_stride_bytes;
  // The same for every layout of either tier: byte b of head h of the K row is at arena_base + p * page_stride + l * layer_stride +
  // t * token_stride + h * head_stride + b, of the V row at arena_base + v_offset + p * v_page_stride + l * v_layer_stride + t *
  // v_token_stride + h * v_head_stride + b. What pads page p is at arena_base + padding_offset + p * padding_stride.
  uint64_t page_stride_bytes;
  uint64_t head_stride_bytes;
  uint64_t v_page_stride_bytes;
  uint64_t v_layer_stride_bytes;
  uint64_t v_head_stride_bytes;
  uint64_t padding_offset_bytes;
  uint64_t padding_stride_bytes;
  uint64_t padding_bytes;         // Of a page.
  uint32_t host_layout;           // Of the tier asked for: HICACHE_HOST_ENVELOPE on the device.
  uint32_t head_count;
} hicache_pool_info_t;
HICACHE_API hicache_status_t hicache_pool_info(hicache_engine_t *engine, uint32_t tier, uint32_t pool, hicache_pool_info_t *info_out,
                                               hicache_error_t *error);

// ---- Taking and giving back -----------------------------------------------------------------------------------------------

// One line of a demand. All lines of a call are taken, or none.
typedef struct hicache_take {
  uint32_t pool;
  uint32_t page_count;     // 0 is allowed and takes nothing.
  hicache_vpage_t *vpages; // Id-owning pool (FULL, STATE): out, page_count new virtual pages.
                           // SWA, alloc: in, virtual pages that get a window page (each allocated and without one), or NULL: the last
                           // page_count pages that this call takes of the owner. SWA, reserve: must be NULL.
} hicache_take_t;

// Takes and binds pages; zeroes them as their pool says. May move pages first if the demand fits no other way (lazy, eager).
// Fails leaving every table as it was: NO_CAPACITY (need, have, pending), MOVES_BLOCKED, NOT_MAPPED, STALE_ID, INVALID_ARGUMENT.
// Virtual ids are handed out first in, first out. Cost: O(pages) + O(pages moved).
HICACHE_API hicache_status_t hicache_alloc(hicache_engine_t *engine, const hicache_take_t *takes, uint32_t take_count,
                                           hicache_error_t *error);

typedef struct hicache_pages {
  uint32_t pool;
  uint32_t page_count;
  const hicache_vpage_t *vpages;
} hicache_pages_t;

// Gives pages back. In an id-owning pool a page ends in every pool of its group, with its id; in an SWA pool it leaves a tombstone
// (no-op where there is one already). Never waits: a page that a copy, lease or open step still touches is quarantined and becomes
// free when that ends. STALE_ID, with nothing freed, if an id is not allocated or occurs twice. Cost: O(pages).
HICACHE_API hicache_status_t hicache_free(hicache_engine_t *engine, const hicache_pages_t *frees, uint32_t free_count,
                                          hicache_error_t *error);

// One sequence of a batch extend. The tail page is filled first, then new pages are taken.
typedef struct hicache_sequence {
  hicache_vpage_t *vpages;    // In/out: pages of the sequence in the owner pool, in order; new ones are appended.
  uint32_t vpage_count;       // In/out.
  uint32_t vpage_capacity;    // Room in vpages.
  uint32_t token_count;       // In/out.
  uint32_t new_token_count;   // In.
  uint32_t window_tail_tokens; // In: only new pages that meet the last so many tokens get SWA pages; HICACHE_NO_PAGE: all do.
  uint32_t flags;             // HICACHE_SEQUENCE_*.
} hicache_sequence_t;
#define HICACHE_SEQUENCE_COPY_TAIL 1u // The partial tail page is shared: take a new one for it and copy its rows first (copy on write).

// Extends every sequence or none, in all pools of the owner's group. Errors as hicache_alloc.
HICACHE_API hicache_status_t hicache_extend(hicache_engine_t *engine, uint32_t owner_pool, hicache_sequence_t *sequences,
                                            uint32_t sequence_count, hicache_error_t *error);

// ---- Reservations, loads, back-ups ----------------------------------------------------------------------------------------

// Takes pages without naming them: they hold their place, are in no table and do not move, until exactly one of hicache_load and
// hicache_cancel. For an id-owning pool the virtual ids are chosen now and written to `vpages`; they translate to nothing until the
// load. Errors as hicache_alloc, LIMIT.
HICACHE_API hicache_status_t hicache_reserve(hicache_engine_t *engine, const hicache_take_t *takes, uint32_t take_count,
                                             hicache_reservation_t *reservation_out, hicache_error_t *error);

// Gives a reservation back whole. Its virtual ids become free.
HICACHE_API hicache_status_t hicache_cancel(hicache_engine_t *engine, hicache_reservation_t reservation, hicache_error_t *error);

// Places of a reservation's pages in one pool, for inspection. Writes up to capacity, *count_out = how many there are.
HICACHE_API hicache_status_t hicache_reservation_pages(hicache_engine_t *engine, hicache_reservation_t reservation, uint32_t pool,
                                                       hicache_ppage_t *ppages_out, uint32_t capacity, uint32_t *count_out,
                                                       hicache_error_t *error);

// One copy between tiers. Pages are named, never addressed: the library resolves them once it has pinned them.
typedef struct hicache_copy {
  uint32_t pool;
  hicache_vpage_t device_page;
  hicache_hpage_t host_page;
  uint32_t reserved0;
} hicache_copy_t;

// A virtual page that gets a page of the reservation without a copy (to be computed, not loaded).
typedef struct hicache_bind {
  uint32_t pool;
  hicache_vpage_t vpage;
} hicache_bind_t;

#define HICACHE_CLASS_URGENT 0u     // Load-backs: on a GPU large ones arrive layer by layer.
#define HICACHE_CLASS_NORMAL 1u     // Back-ups. A load of this class or the next arrives whole, and a little sooner: its layer waits end together.
#define HICACHE_CLASS_BACKGROUND 2u // Storage staging.

typedef struct hicache_transfer {
  uint32_t struct_size;
  uint32_t priority;          // HICACHE_CLASS_*.
  hicache_reservation_t reservation; // Load only.
  const hicache_copy_t *copies;
  const hicache_bind_t *binds; // Load only.
  uint32_t copy_count;
  uint32_t bind_count;
  uint64_t stream;            // CUDA: the stream whose work so far the copy must follow (producer of a back-up; last reader of reused
                              // pages). 0 = the legacy default stream. Ignored by the CPU and null backends.
  hicache_ticket_t after;     // Publish order: the ring reports this transfer after that one; 0 none. A ticket that is over is fine.
  uint64_t user;              // Returned in the completion.
} hicache_transfer_t;

// Names the reserved pages and queues their host-to-device copies in one step: there is no moment at which a page is named but may
// still move. Every page in `copies` and `binds` takes a page of the reservation: an owner page must be one of its virtual ids, an SWA
// page any allocated virtual page (of this reservation or before) without a window page. Pages of the reservation that are not
// mentioned are given back. Consumes the reservation on success only. The ticket pins each device and host page it touches until the
// completion has been read. A failed transfer leaves the pages bound with undefined content: the caller frees them.
// *ticket_out is 0 if there was nothing to copy. Cost on the caller: O(copies) table work; the copies run behind.
// Errors: STALE_ID, NOT_MAPPED, INVALID_ARGUMENT (a page twice, an SWA page that has a window page, more pages than reserved), BUSY (a
// host page that a back-up is still writing: its completion has not been read), LIMIT.
HICACHE_API hicache_status_t hicache_load(hicache_engine_t *engine, const hicache_transfer_t *transfer, hicache_ticket_t *ticket_out,
                                          hicache_error_t *error);

// Queues device-to-host copies of bound pages into host pages that the caller has taken. The source stays as it is, also when the copy
// fails. A page freed meanwhile keeps its bytes until the copy has read them. Errors: NOT_MAPPED, STALE_ID, INVALID_ARGUMENT (a host page
// twice), BUSY (a page of either tier that another ticket is still writing), LIMIT.
HICACHE_API hicache_status_t hicache_back_up(hicache_engine_t *engine, const hicache_transfer_t *transfer, hicache_ticket_t *ticket_out,
                                             hicache_error_t *error);

// Asks that a transfer copy no more. What has not been handed to the device never runs, what runs ends, and then the transfer ends like
// any other: its completion says CANCELLED (or OK, if nothing was left to leave out), and its pins end when that has been read. Waits for its layers
// return CANCELLED. A cancelled load leaves its pages bound with undefined content, a cancelled back-up its host pages taken with undefined content:
// the caller frees them. OK also for a transfer that has ended. Never waits. Errors: STALE_ID.
HICACHE_API hicache_status_t hicache_transfer_cancel(hicache_engine_t *engine, hicache_ticket_t ticket, hicache_error_t *error);

// Makes `stream` wait until global layer `layer` of the ticket's pages has arrived. CPU and null backends: blocks the caller instead.
// A layer that no pool of the transfer serves is complete at once, and so is every layer of a ticket that has ended well. A transfer
// that failed releases its waits: CPU and null return its status here; CUDA reports it in the ring and in hicache_ticket_status. CUDA: do not queue copies of more
// than 64 KiB to the device on `stream` between a ticket's first wait and its last: on a shared hardware queue they can stand before the load's own.
HICACHE_API hicache_status_t hicache_layer_wait(hicache_engine_t *engine, hicache_ticket_t ticket, uint32_t layer, uint64_t stream,
                                                hicache_error_t *error);

// For a layer's kernel that waits by itself, also in a captured graph that is replayed (hicache_device.cuh): the device address of the ticket's
// progress word and the value from which `layer` is there, (int32_t)(*word - expected) >= 0. The address stays that of the ticket's slot; put the
// value into device memory before each replay. UNSUPPORTED on the CPU and null backends.
HICACHE_API hicache_status_t hicache_layer_word(hicache_engine_t *engine, hicache_ticket_t ticket, uint32_t layer, uint64_t *address_out,
                                                uint32_t *expected_out, hicache_error_t *error);

// PENDING, OK, or why it failed; STALE_ID once its completion has been read and the slot reused. *layers_done_out (may be NULL): global
// layer ids below it have arrived.
HICACHE_API hicache_status_t hicache_ticket_status(hicache_engine_t *engine, hicache_ticket_t ticket, uint32_t *layers_done_out,
                                                   hicache_error_t *error);

typedef struct hicache_completion {
  hicache_ticket_t ticket;
  hicache_status_t status; // OK, or why it failed.
  int32_t native_code;
  uint32_t direction;      // HICACHE_H2D or HICACHE_D2H.
  uint32_t page_count;
  uint64_t bytes;
  uint64_t submit_ns;      // Monotonic clock (virtual with fault injection).
  uint64_t start_ns;
  uint64_t end_ns;
  uint64_t user;
} hicache_completion_t;
#define HICACHE_H2D 1u
#define HICACHE_D2H 2u

// Reads finished transfers, oldest first, up to capacity. Reading a completion ends its ticket's pins. One reader at a time gains
// nothing from more. Never blocks.
HICACHE_API hicache_status_t hicache_completion_poll(hicache_engine_t *engine, hicache_completion_t *completions_out, uint32_t capacity,
                                                     uint32_t *count_out, hicache_error_t *error);

// As poll, but blocks until there is at least one, until timeout_ns has passed (count 0, OK) or until hicache_completion_wake.
HICACHE_API hicache_status_t hicache_completion_wait(hicache_engine_t *engine, uint64_t timeout_ns,
                                                     hicache_completion_t *completions_out, uint32_t capacity, uint32_t *count_out,
                                                     hicache_error_t *error);
HICACHE_API hicache_status_t hicache_completion_wake(hicache_engine_t *engine, hicache_error_t *error);

// An eventfd that is readable when the ring is not empty. Owned by the engine; -1 where there is none.
HICACHE_API int32_t hicache_completion_fd(hicache_engine_t *engine);

// ---- Leases, steps, kernel ids ------------------------------------------------------------------------------------------

// Keeps pages where they are and allocated. NOT_MAPPED if one has no page in that pool, LIMIT. Cost: O(pages).
HICACHE_API hicache_status_t hicache_lease_acquire(hicache_engine_t *engine, const hicache_pages_t *pages, uint32_t pages_count,
                                                   hicache_lease_t *lease_out, hicache_error_t *error);
HICACHE_API hicache_status_t hicache_lease_release(hicache_engine_t *engine, hicache_lease_t lease, hicache_error_t *error);

// Opens a step: a unit of compute that reads and writes these pages, on `stream`. While open it pins them, since a kernel that was
// submitted but not launched may hold their addresses. Closing it, once its kernels are enqueued, pins nothing and leaves a fence: a
// move, a zeroing, a load or a hand-out to another stream waits for it on the device. Errors: NOT_MAPPED, LIMIT; INVALID_ARGUMENT, changing
// nothing, while the stream is being captured: a step is opened and closed outside the capture, around each replay.
HICACHE_API hicache_status_t hicache_step_open(hicache_engine_t *engine, uint64_t stream, const hicache_pages_t *pages, uint32_t pages_count,
                                               hicache_step_t *step_out, hicache_error_t *error);
HICACHE_API hicache_status_t hicache_step_close(hicache_engine_t *engine, hicache_step_t step, hicache_error_t *error);

#define HICACHE_GRANULARITY_PAGE 0u
#define HICACHE_GRANULARITY_TOKEN 1u

// Translates virtual pages of one pool to kernel ids. PAGE: one int32 a page. TOKEN: page_tokens int32 a page. Unmapped, negative or
// out-of-range pages become the sink's id, which is legal padding; *sink_count_out (may be NULL) counts them. The answer holds while a
// lease or an open step holds the pages: `holder` names one (INVALID_ARGUMENT if 0, STALE_ID if over). Cost: O(page_count).
HICACHE_API hicache_status_t hicache_kernel_ids(hicache_engine_t *engine, uint64_t holder, uint32_t pool, uint32_t granularity,
                                                const hicache_vpage_t *vpages, uint32_t page_count, hicache_kernel_id_t *ids_out,
                                                uint32_t *sink_count_out, hicache_error_t *error);

// How a batch's page tables are laid out.
#define HICACHE_TABLE_RAGGED 0u // All sequences' ids one after the other; indptr says where each begins (FlashInfer, paged KV indices).
#define HICACHE_TABLE_PADDED 1u // A row of row_pages ids a sequence; the rest of a row is the sink (FlashAttention block table).

// The page tables of one pool for a batch, into memory of the caller. Arrays without a capacity of their own have sequence_count entries
// and may be NULL.
typedef struct hicache_batch_table {
  uint32_t pool;                 // The owner pool or an SWA pool of its group.
  uint32_t form;                 // HICACHE_TABLE_*.
  uint32_t window_tokens;        // 0: every page of a sequence; else those that meet its new tokens or the window_tokens before them.
  uint32_t row_pages;            // PADDED: ids in a row. RAGGED: 0.
  hicache_kernel_id_t *ids;      // Out, page-granular.
  int32_t *indptr;               // Out. RAGGED: sequence_count + 1 entries, not NULL. PADDED: NULL.
  int32_t *page_counts;          // Out: pages listed of each sequence.
  int32_t *last_page_tokens;     // Out: tokens in each sequence's last page, 1..page_tokens (0: it has none).
  int32_t *first_pages;          // Out: index within the sequence of the first page listed.
  uint32_t ids_capacity;         // Entries in `ids`.
  uint32_t reserved0;
} hicache_batch_table_t;

typedef struct hicache_batch {
  uint32_t struct_size;
  uint32_t owner_pool;
  uint64_t stream;
  hicache_step_t previous;       // An open step to close first, its kernels being enqueued; 0: none.
  hicache_sequence_t *sequences; // In/out, as in hicache_extend; new_token_count 0 is fine.
  hicache_batch_table_t *tables; // The step holds the pages that these list; those before a prefill's window tail, which have no window
                                 // page, are listed as the sink. At most one a pool.
  const hicache_pages_t *pages;  // Further pages for the step to hold, e.g. recurrent states.
  uint32_t sequence_count;
  uint32_t table_count;
  uint32_t pages_count;
  uint32_t reserved0;
} hicache_batch_t;

// A server's step over a batch in one call: closes the previous step, extends every sequence or none, opens a step on the pages listed and
// writes their page tables. Errors as hicache_extend and hicache_step_open; INVALID_ARGUMENT, before anything is done, for tables too small
// and while the previous step's stream is being captured. After any other error the previous step is closed and nothing else has changed but
// the memory of the tables. Where `previous` is this stream's last batch, pages that both list stay pinned in between. Cost: O(pages
// listed), of which a page listed before costs a compare.
HICACHE_API hicache_status_t hicache_batch_step(hicache_engine_t *engine, const hicache_batch_t *batch, hicache_step_t *step_out,
                                                hicache_error_t *error);

// Places of virtual pages now, HICACHE_NO_PAGE where unmapped. For tests, maps and reports: without a holder the answer may be old
// when it returns.
HICACHE_API hicache_status_t hicache_inspect(hicache_engine_t *engine, uint32_t pool, const hicache_vpage_t *vpages, uint32_t page_count,
                                             hicache_ppage_t *ppages_out, hicache_error_t *error);

// ---- Compaction and capacity --------------------------------------------------------------------------------------------

typedef struct hicache_compact_budget {
  uint32_t struct_size;
  uint32_t tier;           // HICACHE_TIER_*.
  uint32_t pages_max;      // 0: no bound.
  uint32_t pool;           // HICACHE_NO_POOL: all.
  uint64_t bytes_max;      // 0: no bound.
} hicache_compact_budget_t;

typedef struct hicache_compact_result {
  uint64_t moved_pages;
  uint64_t moved_bytes;
  uint64_t blocked_pages; // Pages that would have moved but are pinned.
  uint64_t hole_pages;    // Holes left.
} hicache_compact_result_t;

// Packs pages toward their pool's end, within the budget; pinned pages stay and are planned around. At the server's idle points.
HICACHE_API hicache_status_t hicache_compact(hicache_engine_t *engine, const hicache_compact_budget_t *budget,
                                             hicache_compact_result_t *result_out, hicache_error_t *error);
HICACHE_API hicache_status_t hicache_set_compaction(hicache_engine_t *engine, uint32_t compaction, hicache_error_t *error);

typedef struct hicache_demand {
  uint32_t pool;
  uint32_t page_count;
} hicache_demand_t;

// Whether a take of these pages would succeed now, moves included: OK, NO_CAPACITY or MOVES_BLOCKED, with the error filled. The one
// predicate that takes, reservations, plans and the evictor share.
HICACHE_API hicache_status_t hicache_fits(hicache_engine_t *engine, const hicache_demand_t *demands, uint32_t demand_count,
                                          hicache_error_t *error);

typedef struct hicache_capacity {
  uint64_t available_pages;   // Could be taken now without a move.
  uint64_t schedulable_pages; // Could be taken now, moves included.
  uint64_t pending_pages;     // Quarantined: will come back by themselves.
} hicache_capacity_t;
HICACHE_API hicache_status_t hicache_capacity(hicache_engine_t *engine, uint32_t tier, uint32_t pool, hicache_capacity_t *capacity_out,
                                              hicache_error_t *error);

#define HICACHE_RECLAIM_FULL_FIRST 0u // Spare the SWA pools: take from FULL (and STATE) while that suffices.
#define HICACHE_RECLAIM_SWA_FIRST 1u  // Spare FULL.

// Smallest quotas, in pages of every pool at once, whose eviction makes the demand fit. evictable and quotas_out have one entry a pool.
// NO_CAPACITY if even all of it would not do. Pure: nothing changes.
HICACHE_API hicache_status_t hicache_reclaim_plan(hicache_engine_t *engine, const hicache_demand_t *demands, uint32_t demand_count,
                                                  const uint64_t *evictable_pages, uint32_t preference, uint64_t *quotas_out,
                                                  hicache_error_t *error);

// Changes the device arena's size within [.., device_bytes_max]. Live pages above the new end move; pinned ones refuse it
// (MOVES_BLOCKED). Addresses, tables and ids stay. Shrinking waits until the steps closed so far have run on the device.
HICACHE_API hicache_status_t hicache_resize(hicache_engine_t *engine, uint64_t device_bytes, hicache_error_t *error);

// ---- Host tier ----------------------------------------------------------------------------------------------------------

typedef struct hicache_host_take {
  uint32_t pool;
  uint32_t page_count;
  hicache_hpage_t *hpages; // Out.
} hicache_host_take_t;

// Takes host pages in all lines or none; the lowest free names first. The host arena compacts by itself if the demand fits packed.
HICACHE_API hicache_status_t hicache_host_alloc(hicache_engine_t *engine, const hicache_host_take_t *takes, uint32_t take_count,
                                                hicache_error_t *error);
typedef struct hicache_host_pages {
  uint32_t pool;
  uint32_t page_count;
  const hicache_hpage_t *hpages;
} hicache_host_pages_t;

// Gives host pages back; quarantined while a copy or a view still touches them.
HICACHE_API hicache_status_t hicache_host_free(hicache_engine_t *engine, const hicache_host_pages_t *frees, uint32_t free_count,
                                               hicache_error_t *error);

// Leases host pages and writes their addresses (page_bytes each), for storage I/O and inspection. Release with hicache_lease_release.
// In a separate region the address is that of the page's first K row; hicache_pool_info has the strides, hicache_host_copy puts the bytes of
// a page together. On the null backend the addresses are NULL: use hicache_tags.
HICACHE_API hicache_status_t hicache_host_view(hicache_engine_t *engine, const hicache_host_pages_t *pages, void **addresses_out,
                                               hicache_lease_t *lease_out, hicache_error_t *error);

// Copies whole host pages, held by the view `lease`, into memory of the caller (to_host = 0) or out of it (1): page_bytes a page, one after
// the other, each as `layout` has it in a region of one page (ENVELOPE: the device's order). Blocks for the copy, without the engine's lock;
// two calls must not write one page at once. Errors: STALE_ID (no lease of host pages), NOT_MAPPED, INVALID_ARGUMENT, UNSUPPORTED (null backend).
HICACHE_API hicache_status_t hicache_host_copy(hicache_engine_t *engine, hicache_lease_t lease, const hicache_host_pages_t *pages,
                                               uint32_t layout, uint32_t to_host, void *bytes, hicache_error_t *error);

// Places of host pages now, HICACHE_NO_PAGE where not allocated.
HICACHE_API hicache_status_t hicache_host_inspect(hicache_engine_t *engine, uint32_t pool, const hicache_hpage_t *hpages,
                                                  uint32_t page_count, hicache_ppage_t *ppages_out, hicache_error_t *error);

// Null backend only: reads (write = 0) or writes the tags of pages by their place. Device: kernel page ids; host: hicache_hpage_t.
HICACHE_API hicache_status_t hicache_tags(hicache_engine_t *engine, uint32_t tier, uint32_t pool, const uint32_t *pages,
                                          uint32_t page_count, uint64_t *tags, uint32_t write, hicache_error_t *error);

// A page of a simulated forward pass, by its page-granular kernel id: the rows of its first token_count tokens are a function of `digest`.
typedef struct hicache_stamp {
  uint64_t digest;
  hicache_kernel_id_t page;
  uint32_t token_count;
} hicache_stamp_t;

// CUDA only: writes stamps with the device itself (mismatches_out NULL), or compares and counts the 8-byte words that differ, one count a page. Word i
// of the K (V) rows of the pool's l-th layer, counted in token order, is scramble(mix(digest ^ salts[2 * l (+ 1)]) + i * 0x9e3779b97f4a7c15), as in
// csrc/kernel_args.hpp. The caller holds the pages. Runs on `stream`, behind the layer waits there and all moves; blocks until done.
HICACHE_API hicache_status_t hicache_stamp_pages(hicache_engine_t *engine, uint32_t pool, uint64_t stream, const hicache_stamp_t *stamps,
                                                 uint32_t stamp_count, const uint64_t *salts, uint32_t salt_count, uint32_t *mismatches_out,
                                                 hicache_error_t *error);

// ---- Looking inside -----------------------------------------------------------------------------------------------------

// How fragments of a direction cross the bus: smaller than staged_below and in a run of at least staged_from_run on the host: staged; else at
// least direct_from: direct; else by kernel. [0]: while nothing crosses the other way; [1]: while copies do.
typedef struct hicache_copy_choice {
  uint32_t source;                // HICACHE_CHOICE_*. NONE: all else is 0.
  uint32_t method;                // HICACHE_COPY_*: AUTO, or the forced one.
  uint64_t direct_from_bytes[2];
  uint64_t staged_below_bytes[2];
  uint64_t staged_from_run_bytes[2];
  uint32_t direct_up_to_count;    // Transfers of at most so many pages are direct at any size, but not to or from a pool's own host region.
  uint32_t kernel_blocks_alone;   // Of a kernel over the bus while no step is about,
  uint32_t kernel_blocks_beside;  // and beside compute; 0: none.
  uint32_t staged_beside;         // 1: the staged path is used beside compute.
  uint32_t slowdown_max_permille; // The budget that these two come from.
  uint32_t probes_measured;
  uint32_t probes_planned;
  uint32_t calibration_us;        // What measuring took, both directions together.
  // Measured, alone, in MB (10^6 bytes) a second, at the fragment size nearest to the boundary that was measured; 0: not measured.
  uint32_t measured_bytes;
  uint32_t direct_mb_s;
  uint32_t kernel_mb_s;
  uint32_t staged_mb_s;
} hicache_copy_choice_t;

typedef struct hicache_stats {
  uint32_t struct_size;
  uint32_t pool_count;
  uint64_t takes, takes_refused, frees, frees_quarantined;
  uint64_t pages_taken, pages_freed;
  uint64_t reservations, cancels, loads, back_ups;
  uint64_t transfers_in_flight, transfers_failed;
  uint64_t h2d_bytes, d2h_bytes, h2d_pages, d2h_pages;
  uint64_t moves, moved_bytes, moves_during_transfer; // Device arena; the last: made while a ticket was in flight.
  uint64_t moves_blocked;                             // Takes refused because pinned pages could not move.
  uint64_t host_moves, host_moved_bytes;
  uint64_t zeroed_bytes, sink_translations;
  uint64_t fence_waits_moves, fence_waits_transfers, fence_waits_takes; // The last stays 0.
  uint64_t leases, steps;                             // Held now.
  uint64_t leases_total, steps_total;
  uint64_t clock_ns;                                  // Virtual time with fault injection, else 0.
  uint64_t transfers_cancelled;
  uint64_t direct_bytes, kernel_bytes, staged_bytes;  // CUDA: what crossed the bus by which of HICACHE_COPY_*.
  hicache_copy_choice_t h2d_choice;
  hicache_copy_choice_t d2h_choice;
  uint64_t handed_over_bytes, received_bytes;         // To and from other engines (hicache_hand_over), once queued.
} hicache_stats_t;
HICACHE_API hicache_status_t hicache_stats(hicache_engine_t *engine, hicache_stats_t *stats_out, hicache_error_t *error);

typedef struct hicache_pool_stats {
  uint32_t struct_size;
  uint32_t reserved0;
  uint64_t live_pages, hole_pages, reserved_pages, quarantined_pages, pinned_pages;
  uint64_t span_low, span_high;     // Pages [low, high) are the pool's span.
  uint64_t gap_low_bytes, gap_high_bytes; // Free bytes beside the span.
  uint64_t free_virtual_pages;
} hicache_pool_stats_t;
HICACHE_API hicache_status_t hicache_pool_stats(hicache_engine_t *engine, uint32_t tier, uint32_t pool, hicache_pool_stats_t *stats_out,
                                                hicache_error_t *error);

#define HICACHE_PAGE_GAP 0u
#define HICACHE_PAGE_SINK 1u
#define HICACHE_PAGE_LIVE 2u
#define HICACHE_PAGE_HOLE 3u
#define HICACHE_PAGE_RESERVED 4u
#define HICACHE_PAGE_QUARANTINED 5u
#define HICACHE_PAGE_PINNED 0x80u // Flag on LIVE, RESERVED and QUARANTINED.

// One byte a physical page [first, first + page_count) of the pool: HICACHE_PAGE_*. INVALID_ARGUMENT past the end.
HICACHE_API hicache_status_t hicache_map(hicache_engine_t *engine, uint32_t tier, uint32_t pool, uint32_t first, uint32_t page_count,
                                         uint8_t *states_out, hicache_error_t *error);

// Recomputes every invariant of both arenas from scratch. OK, or INTERNAL with the first violation in the error and as many as fit,
// one a line, in `report` (may be NULL). Takes the lock for O(arena): for tests and diagnosis.
HICACHE_API hicache_status_t hicache_verify(hicache_engine_t *engine, char *report, size_t report_bytes, hicache_error_t *error);

// Fault injection: runs up to `count` held or waiting transfers (one layer group each if `layers`), in seeded order; *ran_out says
// how many steps ran. UNSUPPORTED if the engine was opened without.
HICACHE_API hicache_status_t hicache_fault_run(hicache_engine_t *engine, uint32_t count, uint32_t layers, uint32_t *ran_out,
                                               hicache_error_t *error);
// Holds transfers submitted from now on (1), or holds no more and releases those that are held (0); fail_next makes the next `fail_next`
// transfers fail.
HICACHE_API hicache_status_t hicache_fault_hold(hicache_engine_t *engine, uint32_t hold, uint32_t fail_next, hicache_error_t *error);

// ---- Ranges for a profiler ----

#define HICACHE_RANGE_MATCH 0u
#define HICACHE_RANGE_PLAN 1u
#define HICACHE_RANGE_LOAD 2u       // From the call to the last byte; the library's own.
#define HICACHE_RANGE_BACK_UP 3u    // Likewise.
#define HICACHE_RANGE_COMPACTION 4u // The library's own.
#define HICACHE_RANGE_STORAGE_READ 5u
#define HICACHE_RANGE_STORAGE_WRITE 6u
#define HICACHE_RANGE_COUNT 7u

// 1 when an NVTX tool such as Nsight Systems listens to this process, else 0. Needs no engine; any thread.
HICACHE_API uint32_t hicache_profiler_listens(void);
// Starts a range of the NVTX domain "hicache" that is named after its activity (HICACHE_RANGE_*), has page_count as its payload and may end on
// another thread. 0 when nobody listens (then it costs a load) or the activity is unknown; ending 0 does nothing.
HICACHE_API uint64_t hicache_range_start(uint32_t activity, uint64_t page_count);
HICACHE_API void hicache_range_end(uint64_t range_id);

// Runs the transfer of a ticket to its end now, held or not, whatever the seed says; fails = 1: it fails as an injected failure does. Nothing if
// it has ended. UNSUPPORTED without fault injection.
HICACHE_API hicache_status_t hicache_fault_finish(hicache_engine_t *engine, hicache_ticket_t ticket, uint32_t fails, hicache_error_t *error);

// ---- Operation log --------------------------------------------------------------------------------------------------------

// Records, from here on, every call that changes the engine's tables, with its arguments and its answer, so that it can be done again and
// compared (docs/OPLOG.md has the format). capacity_bytes (64 KiB to 4 GiB) are taken now. What does not fit ends the log with a mark: drain it in
// time. Contents of pages are not recorded. BUSY unless the engine is as it was opened; a log is started once.
HICACHE_API hicache_status_t hicache_log_start(hicache_engine_t *engine, uint64_t capacity_bytes, hicache_error_t *error);

// Moves recorded bytes into `buffer`, whole records, oldest first; *bytes_out 0: there are none now. Those of all calls one after the other are the
// log. INVALID_ARGUMENT with need_bytes if the next record does not fit. Threads: one reader.
HICACHE_API hicache_status_t hicache_log_drain(hicache_engine_t *engine, void *buffer, uint64_t buffer_bytes, uint64_t *bytes_out,
                                               hicache_error_t *error);

// Ends the log with a mark; what is recorded can still be drained. OK also when there is none.
HICACHE_API hicache_status_t hicache_log_stop(hicache_engine_t *engine, hicache_error_t *error);

// ---- Hand-over to another engine --------------------------------------------------------------------------------------------

// Pages of one pool of the source, and as many pages of one pool of the target, which get their bytes in this order.
typedef struct hicache_hand_over_line {
  uint32_t source_pool;
  uint32_t target_pool;
  uint32_t page_count;
  uint32_t reserved0;
  const hicache_vpage_t *source_vpages;
  const hicache_vpage_t *target_vpages;
} hicache_hand_over_line_t;

typedef struct hicache_hand_over {
  uint32_t struct_size;
  uint32_t line_count;
  const hicache_hand_over_line_t *lines;
  uint64_t source_stream; // CUDA: the stream of the source's device whose work so far the copies must follow (producer of the pages). 0 = its
                          // legacy default stream. Ignored by the CPU and null backends.
  uint64_t target_stream; // Likewise of the target's device (last reader of what is overwritten).
  uint32_t flags;         // HICACHE_HAND_OVER_*.
  uint32_t reserved0;
} hicache_hand_over_t;
// What is enqueued on target_stream from here on follows the arrival. Target pages may then be held already: by leases, and by open steps of that
// stream. Without it target_stream is made to wait for nothing, and targets must be held by nobody.
#define HICACHE_HAND_OVER_HELD 1u

// Copies pages of one engine into pages that another engine of this process has taken, on another device or the same: prefill to decode, or
// between replicas. All lines or none. Device work of both engines, ordered as a closed step of each: it follows the moves and closed steps that
// touched the pages, and whatever moves or overwrites them later, or reads the targets in a step opened later on any stream, follows it. So the
// caller may free, move or extend on either side at once. CUDA: never blocks, but the first call of a pair gives the source's device access to the
// target's memory (once, milliseconds; with no lines that is all a call does); over NVLink or PCIe where the devices reach each other, else through
// the host. CUDA also: a source_stream that waits for a load, with thousands of pages behind it that go one by one (no way between the devices, or pages of
// 2 MiB without batched copies), can fill the driver's queue, and the call then waits in it: synchronise that stream first. A device that fails while copies to or from
// it are under way leaves the other engine waiting for them: close both. CPU: blocks for the copy, without the engines' locks. Pools must agree in role, page_tokens, layers, rows, envelope and page_bytes.
// Errors name the side: INVALID_ARGUMENT (pools that differ, with need and have; a target page twice; the same engine twice; a stream that is not of
// that side's device), UNSUPPORTED (different backends), NOT_MAPPED, LIMIT, CLOSED, DEVICE; BUSY (a source page that a load is still writing; a
// target page that a transfer holds, with the ticket, or without the flag anything else).
HICACHE_API hicache_status_t hicache_hand_over(hicache_engine_t *source, hicache_engine_t *target, const hicache_hand_over_t *request,
                                               hicache_error_t *error);

// Sizes and offsets as this library was compiled, for binding tests: entry i is "struct.field" (or "struct" for its size). Returns
// the number of entries; name_out and value_out may be NULL.
HICACHE_API uint32_t hicache_abi_layout(uint32_t index, const char **name_out, uint64_t *value_out);

// A call of one of the library's functions with its arguments in a block, for languages whose foreign calls are cheapest with one pointer.
typedef struct hicache_call {
  void *function;        // One of this library's functions.
  uint64_t arguments[9]; // In order; integers widened, pointers as addresses. Those beyond the function's are ignored.
  uint64_t result;       // Out: what it returned, in the low bits.
} hicache_call_t;
// Calls call->function. INVALID_ARGUMENT if `call` or the function is NULL. Does whatever the function does; cost: a few nanoseconds.
HICACHE_API hicache_status_t hicache_invoke(hicache_call_t *call);

#ifdef __cplusplus
} // extern "C"
#endif
#endif // HICACHE_H_
