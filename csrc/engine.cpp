#include "engine.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "backend_cpu.hpp"
#include "backend_fault.hpp"
#include "backend_null.hpp"
#include "id_translate.hpp"
#include "profiler.hpp"
#ifdef HICACHE_WITH_CUDA
#include "backend_cuda.hpp"
#endif

namespace hicache {

// ---- The arena's hands ----

Status Engine::TierMover::move_pages(std::span<const PageMove> moves, std::span<const FenceMark> waits, FenceMark done,
                                     ErrorDetail *error) {
  const ProfilerRange range(HICACHE_RANGE_COMPACTION, moves.size());
  if (tier_ == Tier::kDevice && engine_->transfers_->in_flight() > 0) engine_->moves_during_transfer_ += moves.size();
  if (engine_->host_does_page_work(tier_)) return engine_->page_work_.move(tier_, moves, waits, done, error);
  return engine_->backend_->move_pages(tier_, moves, waits, done, error);
}

Status Engine::TierMover::zero_pages(std::span<const PageZero> zeros, std::span<const FenceMark> waits, FenceMark done,
                                     ErrorDetail *error) {
  if (engine_->host_does_page_work(tier_)) return engine_->page_work_.zero(tier_, zeros, waits, done, error);
  return engine_->backend_->zero_pages(tier_, zeros, waits, done, error);
}

Status Engine::TierMover::copy_pages(std::span<const PageCopy> copies, std::span<const FenceMark> waits, FenceMark done,
                                     ErrorDetail *error) {
  if (engine_->host_does_page_work(tier_)) return engine_->page_work_.copy(tier_, copies, waits, done, error);
  return engine_->backend_->copy_pages(tier_, copies, waits, done, error);
}

Status Engine::TierMover::table_changed(uint32_t pool, std::span<const uint32_t> vpages, std::span<const uint32_t> ppages,
                                        std::span<const FenceMark> waits, ErrorDetail *error) {
  return engine_->backend_->table_changed(pool, vpages, ppages, waits, error);
}

// ---- Open and close ----

Engine::Engine(const EngineOptions &options) : options_(options) {
  movers_[0].connect(this, Tier::kDevice);
  movers_[1].connect(this, Tier::kHost);
}

Engine::~Engine() {
  page_work_.stop();
  if (backend_open_) backend_->close();
}

Status Engine::open(const EngineOptions &options, std::unique_ptr<Engine> *engine_out, ErrorDetail *error) {
  std::unique_ptr<Engine> engine(new Engine(options));
  if (Status status = engine->open_arenas(error); status != HICACHE_OK) return status;
  if (Status status = engine->open_backend(error); status != HICACHE_OK) return status;
  if (Status status = engine->batch_step_.open(error); status != HICACHE_OK) return status;
  *engine_out = std::move(engine);
  return HICACHE_OK;
}

ArenaOptions Engine::arena_options(Tier tier) {
  const hicache_options_t &from = options_.options;
  const bool host = tier == Tier::kHost;
  ArenaOptions arena;
  for (const PoolGeometry &pool : options_.pools) {
    PoolSpec spec;
    spec.role = pool.options.role;
    spec.page_tokens = pool.options.page_tokens;
    spec.window_tokens = pool.options.window_tokens;
    spec.page_bytes = pool.options.page_bytes;
    // On the host a pool that is static on the device lives in the chain like any other.
    spec.is_static = !host && (pool.options.flags & HICACHE_POOL_STATIC) != 0;
    spec.is_separate = host && pool.region_pages != 0;
    spec.direction = host && (pool.options.flags & HICACHE_POOL_STATIC) != 0 ? HICACHE_DIRECTION_AUTO : pool.options.direction;
    spec.virtual_page_count =
        host ? static_cast<uint32_t>(std::min<uint64_t>(pool.region_pages, UINT32_MAX)) : pool.options.virtual_page_count;
    spec.zeroing = host ? HICACHE_ZERO_NEVER : pool.options.zeroing;
    arena.pools.push_back(spec);
  }
  arena.bytes = host ? options_.host_arena_bytes : from.device_bytes;
  arena.bytes_max = host ? options_.host_arena_bytes_max : from.device_bytes_max;
  arena.host = host;
  arena.compaction = host ? HICACHE_COMPACTION_LAZY : from.compaction;
  arena.placement = from.placement;
  arena.request_tokens_max = host ? 0 : from.request_tokens_max;
  arena.reservation_max = from.reservation_max;
  arena.lease_max = from.lease_max;
  arena.step_max = from.step_max;
  arena.held_pages_max = from.held_pages_max;
  arena.engine_serial = options_.serial;
#ifdef HICACHE_SABOTAGE
  arena.ignore_pins = (from.sabotage & HICACHE_SABOTAGE_IGNORE_PINS) != 0;
#endif
  arena.mover = &movers_[host];
  arena.mirrored = !host && from.backend == HICACHE_BACKEND_CUDA;
  if (host_does_page_work(tier)) arena.board = &page_work_.board(tier);
  return arena;
}

Status Engine::open_arenas(ErrorDetail *error) {
  if (Status status = Arena::open(arena_options(Tier::kDevice), &device_, error); status != HICACHE_OK) return status;
  if (options_.options.host_bytes != 0) {
    if (Status status = Arena::open(arena_options(Tier::kHost), &host_, error); status != HICACHE_OK) return status;
  }
  // The arenas' own default: page entries of all holders of a tier.
  held_pages_max_ = options_.options.held_pages_max;
  if (held_pages_max_ == 0) { held_pages_max_ = std::max(device_->held_pages_max(), host_ ? host_->held_pages_max() : 0); }
  transfer_pages_max_ = options_.options.transfer_pages_max;
  if (transfer_pages_max_ == 0) {
    const uint64_t pages = std::max(device_->pages_at_once(), host_ ? host_->pages_at_once() : 0);
    transfer_pages_max_ = std::max<uint64_t>(pages / 8, 65536);
  }
  return HICACHE_OK;
}

Status Engine::open_backend(ErrorDetail *error) {
  const hicache_options_t &from = options_.options;
  std::vector<PoolLayout> layouts;
  std::vector<uint32_t> virtual_page_counts;
  for (uint32_t pool = 0; pool < pool_count(); pool++) {
    const PoolGeometry &geometry = options_.pools[pool];
    const PoolInfo info = device_->info(pool);
    PoolLayout layout;
    layout.page_bytes = info.page_bytes;
    layout.page_tokens = geometry.options.page_tokens;
    layout.row_bytes = geometry.options.k_row_bytes + geometry.options.v_row_bytes;
    layout.k_row_bytes = geometry.options.k_row_bytes;
    layout.token_bytes = layout.row_bytes * geometry.options.layer_count;
    // Of a one-token page a layer's slice is contiguous in either layout.
    const bool sliced = geometry.options.envelope_layout == HICACHE_LAYOUT_LAYER_MAJOR || layout.page_tokens == 1;
    layout.layer_bytes = sliced ? layout.row_bytes * layout.page_tokens : 0;
    layout.static_device_bytes = info.is_static ? info.page_count * info.page_bytes : 0;
    layout.layer_ids = geometry.layer_ids;
    layout.region_pages = geometry.region_pages;
    layout.rows = geometry.rows;
    layout.device_order = geometry.device_order;
    layout.region_order = geometry.host_order;
    layouts.push_back(std::move(layout));
    virtual_page_counts.push_back(info.virtual_page_count);
  }
  layers_ = LayerOrder(std::move(layouts), (from.sabotage & HICACHE_SABOTAGE_DROP_LAST_LAYER) != 0);

  std::unique_ptr<HostSideBackend> host_side;
  if (from.backend == HICACHE_BACKEND_CPU) host_side = std::make_unique<CpuBackend>();
  if (from.backend == HICACHE_BACKEND_NULL) host_side = std::make_unique<NullBackend>();
  if (host_side != nullptr && from.fault.enabled != 0) {
    backend_ = std::make_unique<FaultBackend>(std::move(host_side), from.fault);
  } else if (host_side != nullptr) {
    backend_ = std::move(host_side);
  } else {
#ifdef HICACHE_WITH_CUDA
    backend_ = make_cuda_backend();
#else
    return fail(error, HICACHE_UNSUPPORTED, HICACHE_NO_POOL, "backend: this library was built without CUDA");
#endif
  }

  TransferOptions transfer_options;
  transfer_options.ticket_max = from.ticket_max;
  transfer_options.copies_max = transfer_pages_max_;
  transfer_options.engine_serial = options_.serial;
  transfer_options.virtual_on_wire = (from.sabotage & HICACHE_SABOTAGE_VIRTUAL_ON_WIRE) != 0;
  transfers_ = std::make_unique<TransferTable>(transfer_options);

  BackendOptions backend_options;
  backend_options.device = from.device;
  backend_options.device_bytes = from.device_bytes;
  backend_options.device_bytes_max = from.device_bytes_max;
  backend_options.device_buffer = from.device_buffer;
  backend_options.host_bytes = options_.host_arena_bytes;
  backend_options.host_bytes_max = options_.host_arena_bytes_max;
  backend_options.host_numa_nodes = from.host_numa_nodes;
  backend_options.copy_thread_count = from.copy_thread_count;
  backend_options.ticket_max = from.ticket_max;
  backend_options.copy_method = from.copy_method;
  backend_options.layers = &layers_;
  backend_options.sink = transfers_.get();
  backend_options.virtual_page_counts = virtual_page_counts.data();
  if (Status status = backend_->open(backend_options, error); status != HICACHE_OK) return status;
  backend_open_ = true;

  std::vector<uint64_t> page_bytes;
  for (uint32_t pool = 0; pool < pool_count() && host_does_page_work(Tier::kHost); pool++)
    page_bytes.push_back(device_->info(pool).page_bytes);
  const uint32_t workers = from.fault.enabled != 0 ? 0 : from.copy_thread_count;
  if (Status status = page_work_.open(backend_.get(), std::move(page_bytes), workers, error); status != HICACHE_OK) return status;

  TransferParties parties;
  parties.page_work = &page_work_;
  parties.device = device_.get();
  parties.host = host_.get();
  parties.backend = backend_.get();
  parties.layers = &layers_;
  parties.device_bytes_max = from.device_bytes_max;
  parties.host_bytes_max = options_.host_arena_bytes_max;
  if (Status status = transfers_->open(parties, error); status != HICACHE_OK) return status;
#ifndef NDEBUG
  uint64_t sink_bytes = 0;
  for (uint32_t pool = 0; pool < pool_count(); pool++) {
    const PoolInfo info = device_->info(pool);
    if (!info.is_static) sink_bytes = std::max(sink_bytes, info.page_bytes);
  }
  return backend_->poison_sink(std::min(sink_bytes, from.device_bytes), error);
#else
  return HICACHE_OK;
#endif
}

Status Engine::begin_close(ErrorDetail *error) {
  const uint32_t host_leases = host_ ? host_->lease_count() : 0;
  const uint32_t leases = device_->lease_count() + host_leases;
  const uint32_t reservations = device_->reservation_count();
  const uint32_t steps = device_->step_count();
  if (leases + reservations + steps > 0 && !backend_->poisoned()) { // After a failure nobody can give them back.
    return fail(error, HICACHE_BUSY, HICACHE_NO_POOL, "%u leases (%u of host pages), %u reservations and %u open steps are held", leases,
                host_leases, reservations, steps);
  }
  closing_ = true;
  return HICACHE_OK;
}

void Engine::drain() {
  transfers_->ring().close();
  backend_->drain();
}

Status Engine::check_poison(ErrorDetail *error) const {
  if (!backend_->poisoned()) return HICACHE_OK;
  const int32_t code = backend_->poison_code();
  fail(error, HICACHE_DEVICE, HICACHE_NO_POOL, "the device failed with code %d; only hicache_close is left", code);
  if (error != nullptr) error->native_code = code;
  return HICACHE_DEVICE;
}

// ---- Tiers and geometry ----

Status Engine::arena_of(uint32_t tier, Arena **arena_out, ErrorDetail *error) {
  if (tier != HICACHE_TIER_DEVICE && tier != HICACHE_TIER_HOST) {
    return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "tier is %u, not one of HICACHE_TIER_*", tier);
  }
  *arena_out = tier == HICACHE_TIER_DEVICE ? device_.get() : host_.get();
  if (*arena_out != nullptr) return HICACHE_OK;
  return fail(error, HICACHE_UNSUPPORTED, HICACHE_NO_POOL, "the engine was opened without a host tier");
}

Status Engine::explain(uint32_t tier, Status status, ErrorDetail *error) const {
  if (status == HICACHE_OK || error == nullptr || error->blocking_pool == HICACHE_NO_POOL) return status;
  transfers_->name_blocking_ticket(tier == HICACHE_TIER_DEVICE ? Tier::kDevice : Tier::kHost, error);
  return status;
}

Status Engine::pool_info(uint32_t tier, uint32_t pool, hicache_pool_info_t *info_out, ErrorDetail *error) {
  Arena *arena;
  if (Status status = arena_of(tier, &arena, error); status != HICACHE_OK) return status;
  if (pool >= pool_count()) { return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pool is %u, the engine has %u", pool, pool_count()); }
  const PoolInfo info = arena->info(pool);
  const PoolGeometry &geometry = options_.pools[pool];
  const Tier of = tier == HICACHE_TIER_DEVICE ? Tier::kDevice : Tier::kHost;
  hicache_pool_info_t &out = *info_out;
  out.direction = info.direction;
  out.arena_base = reinterpret_cast<uint64_t>(backend_->pool_base(of, pool));
  out.arena_bytes = info.is_static ? info.page_count * info.page_bytes : arena->bytes();
  out.page_bytes = info.page_bytes;
  out.token_row_bytes = geometry.options.layer_count * (geometry.options.k_row_bytes + geometry.options.v_row_bytes);
  out.first_page = info.first_page;
  out.page_count = info.page_count;
  out.virtual_page_count = info.virtual_page_count;
  out.id_owner = info.owner;
  out.kernel_page_scale = 1;
  out.kernel_page_offset = 0;
  const PageOrder &order = of == Tier::kHost ? geometry.host_order : geometry.device_order;
  const RowOrder &k = order.rows[0], &v = order.rows[1];
  out.layer_stride_bytes = k.layer;
  out.token_stride_bytes = k.token;
  out.v_offset_bytes = v.offset;
  out.v_token_stride_bytes = v.token;
  out.page_stride_bytes = k.page;
  out.head_stride_bytes = k.head;
  out.v_page_stride_bytes = v.page;
  out.v_layer_stride_bytes = v.layer;
  out.v_head_stride_bytes = v.head;
  out.padding_offset_bytes = order.padding_offset;
  out.padding_stride_bytes = order.padding_stride;
  out.padding_bytes = geometry.rows.padding_bytes();
  out.host_layout = of == Tier::kHost && geometry.region_pages != 0 ? geometry.options.host_layout : HICACHE_HOST_ENVELOPE;
  out.head_count = geometry.rows.head_count;
  return HICACHE_OK;
}

// ---- Steps, leases, kernel ids ----

Status Engine::step_open(uint64_t stream, std::span<const hicache_pages_t> pages, hicache_step_t *step_out, ErrorDetail *error) {
  find_slot(stream);
  std::span<const FenceMark> waits;
  if (Status status = device_->step_open(stream, pages, step_out, &waits, error); status != HICACHE_OK) return status;
  return begin_step(*step_out, stream, waits, error);
}

Status Engine::begin_step(hicache_step_t step, uint64_t stream, std::span<const FenceMark> waits, ErrorDetail *error) {
  page_work_.await(Tier::kDevice, waits);
  Status status = device_->publish_tables(error);
  if (status == HICACHE_OK) status = backend_->order_step(stream, waits, error);
  if (status != HICACHE_OK) device_->step_abandon(step); // The caller gets no id of it.
  return status;
}

Status Engine::step_follow(hicache_step_t previous, uint64_t stream, std::span<const StepLine> lines,
                           std::span<const hicache_pages_t> pages, bool by_line, hicache_step_t *step_out, ErrorDetail *error) {
  find_slot(stream);
  if (previous != 0) {
    if (Status status = record_step(previous, error); status != HICACHE_OK) return status;
  }
  std::span<const FenceMark> waits;
  if (Status status = device_->step_follow(previous, stream, lines, pages, by_line, step_out, &waits, error); status != HICACHE_OK)
    return status;
  return begin_step(*step_out, stream, waits, error);
}

Status Engine::step_close(hicache_step_t step, ErrorDetail *error) {
  if (Status status = record_step(step, error); status != HICACHE_OK) return status;
  return device_->step_close(step, nullptr, error);
}

void Engine::find_slot(uint64_t stream) {
  if (!device_->lacks_stream(stream)) return;
  for (uint32_t slot = kMoverSlot + 1; slot < device_->stream_slots(); slot++)
    if (const FenceMark mark = device_->latest_mark(slot); backend_->fence_passed(mark)) device_->fence_passed(mark);
}

Status Engine::record_step(hicache_step_t step, ErrorDetail *error) {
  FenceMark mark;
  if (Status status = device_->step_mark(step, &mark, error); status != HICACHE_OK) return status;
  return backend_->fence_record(mark, device_->stream_of(mark.slot()), error);
}

Status Engine::lease_acquire(std::span<const hicache_pages_t> pages, hicache_lease_t *lease_out, ErrorDetail *error) {
  std::span<const FenceMark> waits;
  if (Status status = device_->lease_acquire_places(pages, nullptr, lease_out, &waits, error); status != HICACHE_OK) return status;
  page_work_.await(Tier::kDevice, waits);
  return HICACHE_OK;
}

Status Engine::lease_release(hicache_lease_t lease, ErrorDetail *error) {
  if (host_ && host_->is_lease(lease)) return host_->lease_release(lease, error);
  return device_->lease_release(lease, error);
}

KernelMap Engine::kernel_map(uint32_t pool) const {
  return {device_->v2p(pool), device_->info(pool).virtual_page_count, page_tokens(pool)};
}

Status Engine::kernel_ids(uint64_t holder, uint32_t pool, uint32_t granularity, const uint32_t *vpages, uint32_t count, int32_t *ids_out,
                          uint32_t *sink_count_out, ErrorDetail *error) {
  if (pool >= pool_count()) return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pool is %u, the engine has %u", pool, pool_count());
  if (holder == 0) return fail(error, HICACHE_INVALID_ARGUMENT, pool, "holder is 0: name the lease or open step that holds the pages");
  if (!device_->is_lease(holder) && !device_->is_step(holder)) {
    return fail(error, HICACHE_STALE_ID, pool, "holder 0x%" PRIx64 " is no lease of device pages and no open step", holder);
  }
  const PoolInfo info = device_->info(pool);
  const KernelMap map = kernel_map(pool);
  uint64_t sinks;
  if (granularity == HICACHE_GRANULARITY_PAGE) {
    sinks = translate_pages(map, vpages, count, ids_out);
  } else if (granularity != HICACHE_GRANULARITY_TOKEN) {
    return fail(error, HICACHE_INVALID_ARGUMENT, pool, "granularity is %u, not one of HICACHE_GRANULARITY_*", granularity);
  } else if (uint64_t{info.page_count} * map.page_tokens > INT32_MAX) {
    return fail(error, HICACHE_UNSUPPORTED, pool, "token ids of a pool of %u pages of %u tokens do not fit 32 bits", info.page_count,
                map.page_tokens);
  } else {
    sinks = translate_tokens(map, vpages, count, ids_out);
  }
  sink_translations_ += sinks;
  if (sink_count_out != nullptr) *sink_count_out = static_cast<uint32_t>(sinks);
  return HICACHE_OK;
}

// ---- Host tier ----

Status Engine::host_view(std::span<const hicache_host_pages_t> pages, void **addresses_out, hicache_lease_t *lease_out,
                         ErrorDetail *error) {
  Arena *arena;
  if (Status status = arena_of(HICACHE_TIER_HOST, &arena, error); status != HICACHE_OK) return status;
  // An address is as wide as two places: the places go to the upper half of the caller's array and are widened from the front.
  static_assert(sizeof(void *) == 2 * sizeof(uint32_t));
  uint64_t total = 0;
  for (const auto &line : pages) total += line.page_count;
  uint32_t *places = reinterpret_cast<uint32_t *>(addresses_out) + total;
  const std::span<const hicache_pages_t> lines(reinterpret_cast<const hicache_pages_t *>(pages.data()), pages.size());
  std::span<const FenceMark> waits;
  if (Status status = arena->lease_acquire_places(lines, places, lease_out, &waits, error); status != HICACHE_OK) return status;
  page_work_.await(Tier::kHost, waits);
  uint64_t at = 0;
  for (const auto &line : pages) {
    std::byte *base = backend_->pool_base(Tier::kHost, line.pool);
    const uint64_t page_stride = options_.pools[line.pool].host_order.rows[0].page;
    for (uint32_t i = 0; i < line.page_count; i++, at++) {
      uint32_t place;
      std::memcpy(&place, places + at, sizeof place);
      void *address = base == nullptr ? nullptr : base + place * page_stride;
      std::memcpy(addresses_out + at, &address, sizeof address);
    }
  }
  return HICACHE_OK;
}

Status Engine::host_copy(hicache_lease_t lease, const hicache_host_pages_t &pages, uint32_t layout, bool to_host, std::byte *bytes,
                         ErrorDetail *error) {
  std::vector<uint32_t> places(pages.page_count);
  {
    std::lock_guard lock(mutex);
    Arena *arena;
    if (Status status = arena_of(HICACHE_TIER_HOST, &arena, error); status != HICACHE_OK) return status;
    if (pages.pool >= pool_count())
      return fail(error, HICACHE_INVALID_ARGUMENT, pages.pool, "pool is %u, the engine has %u", pages.pool, pool_count());
    if (layout > HICACHE_HOST_PAGE_HEAD)
      return fail(error, HICACHE_INVALID_ARGUMENT, pages.pool, "layout is %u, not one of HICACHE_HOST_*", layout);
    if (!arena->is_lease(lease))
      return fail(error, HICACHE_STALE_ID, pages.pool, "lease 0x%" PRIx64 " is over or holds no host pages", lease);
    if (backend_->pool_base(Tier::kHost, pages.pool) == nullptr)
      return fail(error, HICACHE_UNSUPPORTED, pages.pool, "the null backend has no bytes");
    for (uint32_t i = 0; i < pages.page_count; i++) {
      places[i] = arena->place(pages.pool, pages.hpages[i]);
      uint8_t state = 0;
      if (places[i] == HICACHE_NO_PAGE || arena->map(pages.pool, places[i], 1, &state, error) != HICACHE_OK)
        return fail(error, HICACHE_NOT_MAPPED, pages.pool, "pages.hpages[%u] is %u: no allocated host page", i, pages.hpages[i]);
      if ((state & HICACHE_PAGE_PINNED) == 0)
        return fail(error, HICACHE_INVALID_ARGUMENT, pages.pool, "pages.hpages[%u] is %u, which no view holds", i, pages.hpages[i]);
    }
  }
  const PoolGeometry &of = options_.pools[pages.pool];
  const PageOrder outside =
      layout == HICACHE_HOST_ENVELOPE ? envelope_order(of.rows, of.options.envelope_layout) : region_order(of.rows, layout, 1);
  const PageFragments fragments = cut_page(of.rows, of.host_order, outside, 0, of.rows.layer_count, true);
  std::byte *base = backend_->pool_base(Tier::kHost, pages.pool);
  for (uint32_t place : places) {
    fragments.each(place, 0, [&](uint64_t host, uint64_t at, uint64_t count) {
      to_host ? std::memcpy(base + host, bytes + at, count) : std::memcpy(bytes + at, base + host, count);
    });
    bytes += of.rows.page_bytes;
  }
  return HICACHE_OK;
}

Status Engine::tags(uint32_t tier, uint32_t pool, const uint32_t *pages, uint32_t count, uint64_t *tags, bool write, ErrorDetail *error) {
  Arena *arena;
  if (Status status = arena_of(tier, &arena, error); status != HICACHE_OK) return status;
  if (pool >= pool_count()) return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pool is %u, the engine has %u", pool, pool_count());
  const bool host = tier == HICACHE_TIER_HOST;
  std::atomic<uint64_t> *all = backend_->tags(host ? Tier::kHost : Tier::kDevice, pool);
  if (all == nullptr) return fail(error, HICACHE_UNSUPPORTED, pool, "tags: only pages of the null backend have them");
  const PoolInfo info = arena->info(pool);
  // Checked whole before the first write: a refused call has changed nothing.
  for (int pass = 0; pass < 2; pass++) {
    for (uint32_t i = 0; i < count; i++) {
      const uint32_t place = host ? arena->place(pool, pages[i]) : pages[i];
      if (pass == 0) {
        if (place < info.page_count) continue;
        return fail(error, host ? HICACHE_STALE_ID : HICACHE_INVALID_ARGUMENT, pool, "pages[%u] is %u: %s", i, pages[i],
                    host ? "no allocated host page" : "no page of the pool");
      }
      if (write) {
        all[place].store(tags[i], std::memory_order_relaxed);
      } else {
        tags[i] = all[place].load(std::memory_order_relaxed);
      }
    }
  }
  return HICACHE_OK;
}

Status Engine::resize(uint64_t device_bytes, ErrorDetail *error) {
  if (device_bytes == 0 || device_bytes > options_.options.device_bytes_max) {
    return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "device_bytes must be 1..%" PRIu64 " (device_bytes_max)",
                options_.options.device_bytes_max);
  }
  const uint64_t before = device_->bytes();
  // Memory before the pages that use it, and after the pages that used it.
  if (device_bytes > before) {
    if (Status status = backend_->resize_device(device_bytes, error); status != HICACHE_OK) return status;
  }
  const Status status = device_->resize(device_bytes, error);
  if (status != HICACHE_OK) {
    if (device_bytes > before) backend_->resize_device(before, nullptr);
    return explain(HICACHE_TIER_DEVICE, status, error);
  }
  if (device_bytes >= before) return HICACHE_OK;
  if (Status moved = page_work_.finish(); moved != HICACHE_OK) return check_poison(error); // Before the memory that they leave goes.
  return backend_->resize_device(device_bytes, error);
}

Status Engine::compact(const hicache_compact_budget_t &budget, hicache_compact_result_t *result_out, ErrorDetail *error) {
  constexpr uint64_t kPortionBytes = 16 << 20;
  hicache_compact_budget_t left = budget;
  *result_out = {};
  for (;;) {
    EngineLock lock(*this);
    if (closing_) return fail(error, HICACHE_CLOSED, HICACHE_NO_POOL, "the engine is closing");
    Arena *arena;
    if (Status status = arena_of(budget.tier, &arena, error); status != HICACHE_OK) return status;
    hicache_compact_budget_t portion = left;
    // Tables alone are packed in one go: that takes nanoseconds a page.
    const bool in_portions = backend_->pool_base(budget.tier == HICACHE_TIER_DEVICE ? Tier::kDevice : Tier::kHost, 0) != nullptr;
    if (in_portions) {
      uint64_t bytes = kPortionBytes;
      for (uint32_t pool = 0; pool < pool_count(); pool++) bytes = std::max(bytes, arena->info(pool).page_bytes);
      portion.bytes_max = left.bytes_max == 0 ? bytes : std::min(bytes, left.bytes_max);
    }
    hicache_compact_result_t result{};
    const bool logged = log_.begin(OperationLog::kCompact);
    if (logged) {
      for (uint32_t value : {portion.tier, portion.pages_max, portion.pool}) log_.word(value);
      log_.wide(portion.bytes_max);
    }
    const Status status = arena->compact(portion, &result, error);
    if (logged) {
      for (uint64_t value : {result.moved_pages, result.blocked_pages, result.hole_pages}) log_.wide(value);
      log_.end(status);
    }
    if (status != HICACHE_OK) return explain(budget.tier, status, error);
    result_out->moved_pages += result.moved_pages;
    result_out->moved_bytes += result.moved_bytes;
    result_out->blocked_pages = result.blocked_pages;
    result_out->hole_pages = result.hole_pages;
    if (!in_portions || result.moved_pages == 0 || portion.bytes_max == left.bytes_max) return HICACHE_OK;
    // 0 means no bound, so a budget that is used up ends here.
    if (left.bytes_max != 0) left.bytes_max -= std::min(left.bytes_max - 1, result.moved_bytes);
    if (left.pages_max != 0) {
      if (left.pages_max <= result.moved_pages) return HICACHE_OK;
      left.pages_max -= static_cast<uint32_t>(result.moved_pages);
    }
  }
}

// ---- Waiting ----

Status Engine::completion_wait(uint64_t timeout_ns, hicache_completion_t *completions_out, uint32_t capacity, uint32_t *count_out,
                               ErrorDetail *error) {
  CompletionRing &ring = transfers_->ring();
  const uint64_t now = steady_now_ns();
  const uint64_t deadline = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
  for (;;) {
    const uint64_t looks = ring.look_count();
    // With fault injection transfers run here, one at a time, so that the caller sees each end before the next begins.
    while (ring.empty() && backend_->run_inside(1, false, false) > 0) {}
    if (!ring.empty()) {
      EngineLock lock(*this);
      *count_out = read_completions(completions_out, capacity);
      if (*count_out > 0 || capacity == 0) return HICACHE_OK;
    }
    if (Status status = check_poison(error); status != HICACHE_OK) return status;
    switch (ring.wait(deadline, looks)) {
      case CompletionRing::Wake::kReady:
      case CompletionRing::Wake::kLook: continue;
      case CompletionRing::Wake::kTimeout:
      case CompletionRing::Wake::kWoken: *count_out = 0; return HICACHE_OK;
      case CompletionRing::Wake::kClosed: return fail(error, HICACHE_CLOSED, HICACHE_NO_POOL, "the engine is closing");
    }
  }
}

uint32_t Engine::read_completions(hicache_completion_t *completions_out, uint32_t capacity) {
  const uint32_t count = transfers_->read(completions_out, capacity);
  if (count > 0 && log_.begin(OperationLog::kCompletions)) {
    log_.completions(completions_out, count);
    log_.end(HICACHE_OK);
  }
  return count;
}

Status Engine::log_start(uint64_t capacity_bytes, ErrorDetail *error) {
  if (capacity_bytes < OperationLog::kCapacityMin || capacity_bytes > UINT32_MAX) {
    return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "capacity_bytes is %" PRIu64 ", must be %" PRIu64 " to %u",
                capacity_bytes, OperationLog::kCapacityMin, UINT32_MAX);
  }
  hicache_stats_t used{};
  stats(&used);
  const uint64_t host_takes = host_ ? host_->counters().takes + host_->counters().takes_refused : 0;
  if (log_.ever_started() ||
      used.takes + used.takes_refused + used.frees + used.moves + used.reservations + used.leases_total + used.steps_total + host_takes >
          0) {
    return fail(error, HICACHE_BUSY, HICACHE_NO_POOL, "a log begins before the first call that takes, holds or moves pages, and once");
  }
  log_.start(capacity_bytes, options_);
  return HICACHE_OK;
}

Status Engine::fault_finish(hicache_ticket_t ticket, bool fails, ErrorDetail *error) {
  if (!backend_->virtual_clock()) return fail(error, HICACHE_UNSUPPORTED, HICACHE_NO_POOL, "the engine was opened without fault injection");
  uint32_t slot;
  {
    EngineLock lock(*this);
    if (Status status = transfers_->slot_of_ticket(ticket, &slot, error); status != HICACHE_OK) return status;
  }
  backend_->finish_job(slot, fails);
  return HICACHE_OK;
}

Status Engine::layer_wait(hicache_ticket_t ticket, uint32_t layer, uint64_t stream, ErrorDetail *error) {
  uint32_t slot;
  {
    std::lock_guard lock(mutex);
    const Status status = transfers_->layer_wait_begin(ticket, layer, &slot, error);
    if (status != HICACHE_OK || slot == kNoSlot) return status;
  }
  const Status waited = backend_->layer_wait(slot, layer, stream, error);
  std::lock_guard lock(mutex);
  const Status ended = transfers_->layer_wait_end(slot, waited == HICACHE_OK ? error : nullptr);
  return waited != HICACHE_OK ? waited : ended;
}

Status Engine::layer_word(hicache_ticket_t ticket, uint32_t layer, uint64_t *address_out, uint32_t *expected_out, ErrorDetail *error) {
  std::lock_guard lock(mutex);
  uint32_t slot;
  if (Status status = transfers_->slot_of_ticket(ticket, &slot, error); status != HICACHE_OK) return status;
  if (layer >= layers_.layer_limit())
    return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "layer is %u, the highest is %u", layer, layers_.layer_limit() - 1);
  return backend_->layer_word(slot, layer, address_out, expected_out, error);
}

Status Engine::stamp_pages(uint32_t pool, uint64_t stream, std::span<const hicache_stamp_t> stamps, std::span<const uint64_t> salts,
                           uint32_t *mismatches_out, ErrorDetail *error) {
  std::vector<PageStamp> pages;
  {
    std::lock_guard lock(mutex);
    if (pool >= pool_count()) return fail(error, HICACHE_INVALID_ARGUMENT, pool, "pool is %u, the engine has %u", pool, pool_count());
    const uint32_t page_count = device_->info(pool).page_count, page_tokens = layers_.pools()[pool].page_tokens;
    for (size_t i = 0; i < stamps.size(); i++) {
      const auto page = static_cast<uint32_t>(stamps[i].page);
      if (page >= page_count || stamps[i].token_count > page_tokens)
        return fail(error, HICACHE_INVALID_ARGUMENT, pool, "stamps[%zu]: page %d with %u tokens is none of the pool's", i, stamps[i].page,
                    stamps[i].token_count);
      pages.push_back({PhysicalPage{page}, stamps[i].token_count, stamps[i].digest});
    }
  }
  return backend_->stamp_pages(pool, stream, pages, salts, mismatches_out, error);
}

// ---- Looking inside ----

void Engine::stats(hicache_stats_t *stats_out) {
  hicache_stats_t &out = *stats_out;
  const ArenaCounters &device = device_->counters();
  const TransferCounters transfers = transfers_->counters();
  out.pool_count = pool_count();
  out.takes = device.takes;
  out.takes_refused = device.takes_refused;
  out.frees = device.frees;
  out.frees_quarantined = device.frees_quarantined;
  out.pages_taken = device.pages_taken;
  out.pages_freed = device.pages_freed;
  out.reservations = device.reservations;
  out.cancels = device.cancels;
  out.loads = transfers.loads;
  out.back_ups = transfers.back_ups;
  out.transfers_in_flight = transfers_->in_flight();
  out.transfers_failed = transfers.failed;
  out.h2d_bytes = transfers.h2d_bytes;
  out.d2h_bytes = transfers.d2h_bytes;
  out.h2d_pages = transfers.h2d_pages;
  out.d2h_pages = transfers.d2h_pages;
  out.moves = device.moves;
  out.moved_bytes = device.moved_bytes;
  out.moves_during_transfer = moves_during_transfer_;
  out.moves_blocked = device.moves_blocked;
  out.zeroed_bytes = device.zeroed_bytes;
  out.sink_translations = sink_translations_;
  out.fence_waits_moves = device.fence_waits_moves;
  out.fence_waits_transfers = transfers.fence_waits;
  out.fence_waits_takes = device.fence_waits_takes;
  out.leases = device_->lease_count();
  out.steps = device_->step_count();
  out.leases_total = device.leases_total;
  out.steps_total = device.steps_total;
  if (host_) {
    const ArenaCounters &host = host_->counters();
    out.host_moves = host.moves;
    out.host_moved_bytes = host.moved_bytes;
    out.leases += host_->lease_count();
    out.leases_total += host.leases_total;
  }
  out.transfers_cancelled = transfers.cancelled;
  uint64_t by_method[3];
  backend_->copied_bytes(by_method);
  out.direct_bytes = by_method[0];
  out.kernel_bytes = by_method[1];
  out.staged_bytes = by_method[2];
  out.clock_ns = backend_->virtual_clock() ? backend_->now_ns() : 0;
}

std::string Engine::verify() const {
  std::string violations = device_->verify();
  if (host_) {
    const std::string host = host_->verify();
    for (size_t at = 0; at < host.size();) {
      const size_t end = std::min(host.find('\n', at), host.size());
      violations += "host: " + host.substr(at, end - at) + "\n";
      at = end + 1;
    }
  }
  return violations + transfers_->verify();
}

} // namespace hicache
