#include "engine.hpp"

#include <algorithm>
#include <cinttypes>

#include "profiler.hpp"

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

// ---- Close ----

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

// ---- Size ----

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

// ---- The log ----

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
  backend_->copy_choice(HICACHE_H2D, &out.h2d_choice);
  backend_->copy_choice(HICACHE_D2H, &out.d2h_choice);
  out.handed_over_bytes = handed_over_bytes_;
  out.received_bytes = received_bytes_;
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
