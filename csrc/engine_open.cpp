// Opening an engine: what its options come to for the arenas, the backend and the transfers.
#include <algorithm>

#include "backend_cpu.hpp"
#include "backend_fault.hpp"
#include "backend_null.hpp"
#include "engine.hpp"
#ifdef HICACHE_WITH_CUDA
#include "backend_cuda.hpp"
#endif

namespace hicache {

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
  backend_options.copy_calibration = from.copy_calibration;
  backend_options.slowdown_max_permille[0] = from.h2d_slowdown_max_permille;
  backend_options.slowdown_max_permille[1] = from.d2h_slowdown_max_permille;
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

} // namespace hicache
