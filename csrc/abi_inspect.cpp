// Leases, steps, kernel ids, capacity, the host tier and the views inside of hicache.h.
#include <algorithm>
#include <cinttypes>

#include "abi_guard.hpp"

using namespace hicache;

extern "C" {

// ---- Geometry ----

hicache_status_t hicache_pool_info(hicache_engine_t *engine, uint32_t tier, uint32_t pool, hicache_pool_info_t *info_out,
                                   hicache_error_t *error) {
  return with_lock("pool_info", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (Status status = check_out_struct(info_out, "info_out", detail); status != HICACHE_OK) return status;
    hicache_pool_info_t info{};
    if (Status status = on.pool_info(tier, pool, &info, detail); status != HICACHE_OK) return status;
    write_struct(info, info_out);
    return HICACHE_OK;
  });
}

// ---- Leases, steps, kernel ids ----

hicache_status_t hicache_lease_acquire(hicache_engine_t *engine, const hicache_pages_t *pages, uint32_t pages_count,
                                       hicache_lease_t *lease_out, hicache_error_t *error) {
  return with_lock("lease_acquire", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (lease_out == nullptr) return null_argument(detail, "lease_out");
    if (Status status = check_page_lines(pages, pages_count, on.held_pages_max(), "pages", detail); status != HICACHE_OK) return status;
    const bool logged = on.log().begin(OperationLog::kLeaseAcquire);
    if (logged) on.log().pages(pages, pages_count);
    const Status status = on.lease_acquire({pages, pages_count}, lease_out, detail);
    return logged ? log_granted(on, status, *lease_out) : status;
  });
}

hicache_status_t hicache_lease_release(hicache_engine_t *engine, hicache_lease_t lease, hicache_error_t *error) {
  return with_lock("lease_release", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    return log_id(on, OperationLog::kLeaseRelease, lease, on.lease_release(lease, detail));
  });
}

hicache_status_t hicache_step_open(hicache_engine_t *engine, uint64_t stream, const hicache_pages_t *pages, uint32_t pages_count,
                                   hicache_step_t *step_out, hicache_error_t *error) {
  return with_lock("step_open", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (step_out == nullptr) return null_argument(detail, "step_out");
    if (Status status = check_page_lines(pages, pages_count, on.held_pages_max(), "pages", detail); status != HICACHE_OK) return status;
    const bool logged = on.log().begin(OperationLog::kStepOpen);
    if (logged) {
      on.log().wide(stream);
      on.log().pages(pages, pages_count);
    }
    const Status status = on.step_open(stream, {pages, pages_count}, step_out, detail);
    return logged ? log_granted(on, status, *step_out) : status;
  });
}

hicache_status_t hicache_step_close(hicache_engine_t *engine, hicache_step_t step, hicache_error_t *error) {
  return with_lock("step_close", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    return log_id(on, OperationLog::kStepClose, step, on.step_close(step, detail));
  });
}

hicache_status_t hicache_kernel_ids(hicache_engine_t *engine, uint64_t holder, uint32_t pool, uint32_t granularity,
                                    const hicache_vpage_t *vpages, uint32_t page_count, hicache_kernel_id_t *ids_out,
                                    uint32_t *sink_count_out, hicache_error_t *error) {
  return with_lock("kernel_ids", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (Status status = check_array(vpages, page_count, kPageMax, "vpages", detail); status != HICACHE_OK) return status;
    if (page_count > 0 && ids_out == nullptr) return null_argument(detail, "ids_out");
    return on.kernel_ids(holder, pool, granularity, vpages, page_count, ids_out, sink_count_out, detail);
  });
}

hicache_status_t hicache_batch_step(hicache_engine_t *engine, const hicache_batch_t *batch, hicache_step_t *step_out,
                                    hicache_error_t *error) {
  return with_lock("batch_step", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    hicache_batch_t given;
    if (step_out == nullptr) return null_argument(detail, "step_out");
    if (Status status = read_struct(batch, "batch", &given, detail); status != HICACHE_OK) return status;
    if (Status status = check_array(given.sequences, given.sequence_count, BatchStep::kSequenceMax, "batch.sequences", detail);
        status != HICACHE_OK) {
      return status;
    }
    if (Status status = check_array(given.tables, given.table_count, on.pool_count(), "batch.tables", detail); status != HICACHE_OK)
      return status;
    if (Status status = check_page_lines(given.pages, given.pages_count, on.held_pages_max(), "batch.pages", detail);
        status != HICACHE_OK) {
      return status;
    }
    const bool logged = on.log().begin(OperationLog::kBatchStep);
    if (logged) on.log().batch(given);
    const Status status = on.batch_step().run(given, step_out, detail);
    if (!logged) return status;
    on.log().grown(given.sequences, given.sequence_count, status);
    return log_granted(on, status, *step_out, true); // Also a refusal may have closed the step before.
  });
}

hicache_status_t hicache_inspect(hicache_engine_t *engine, uint32_t pool, const hicache_vpage_t *vpages, uint32_t page_count,
                                 hicache_ppage_t *ppages_out, hicache_error_t *error) {
  return with_lock("inspect", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (Status status = check_array(vpages, page_count, kPageMax, "vpages", detail); status != HICACHE_OK) return status;
    if (page_count > 0 && ppages_out == nullptr) return null_argument(detail, "ppages_out");
    return on.device().inspect(pool, vpages, page_count, ppages_out, detail);
  });
}

// ---- Compaction and capacity ----

hicache_status_t hicache_compact(hicache_engine_t *engine, const hicache_compact_budget_t *budget, hicache_compact_result_t *result_out,
                                 hicache_error_t *error) {
  return without_lock("compact", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    hicache_compact_budget_t given;
    hicache_compact_result_t result{};
    if (Status status = read_struct(budget, "budget", &given, detail); status != HICACHE_OK) return status;
    if (Status status = on.compact(given, &result, detail); status != HICACHE_OK) return status;
    if (result_out != nullptr) *result_out = result;
    return HICACHE_OK;
  });
}

hicache_status_t hicache_set_compaction(hicache_engine_t *engine, uint32_t compaction, hicache_error_t *error) {
  return with_lock("set_compaction", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    const bool logged = on.log().begin(OperationLog::kSetCompaction);
    if (logged) on.log().word(compaction);
    const Status status = on.device().set_compaction(compaction, detail);
    return logged ? on.log().end(status) : status;
  });
}

hicache_status_t hicache_fits(hicache_engine_t *engine, const hicache_demand_t *demands, uint32_t demand_count, hicache_error_t *error) {
  return with_lock("fits", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (Status status = check_array(demands, demand_count, kLineMax, "demands", detail); status != HICACHE_OK) return status;
    return on.explain(HICACHE_TIER_DEVICE, on.device().fits({demands, demand_count}, detail), detail);
  });
}

hicache_status_t hicache_capacity(hicache_engine_t *engine, uint32_t tier, uint32_t pool, hicache_capacity_t *capacity_out,
                                  hicache_error_t *error) {
  return with_lock("capacity", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (capacity_out == nullptr) return null_argument(detail, "capacity_out");
    Arena *arena;
    if (Status status = on.arena_of(tier, &arena, detail); status != HICACHE_OK) return status;
    return arena->capacity(pool, capacity_out, detail);
  });
}

hicache_status_t hicache_reclaim_plan(hicache_engine_t *engine, const hicache_demand_t *demands, uint32_t demand_count,
                                      const uint64_t *evictable_pages, uint32_t preference, uint64_t *quotas_out, hicache_error_t *error) {
  return with_lock("reclaim_plan", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (Status status = check_array(demands, demand_count, kLineMax, "demands", detail); status != HICACHE_OK) return status;
    if (evictable_pages == nullptr) return null_argument(detail, "evictable_pages");
    if (quotas_out == nullptr) return null_argument(detail, "quotas_out");
    return on.device().reclaim_plan({demands, demand_count}, evictable_pages, preference, quotas_out, detail);
  });
}

hicache_status_t hicache_resize(hicache_engine_t *engine, uint64_t device_bytes, hicache_error_t *error) {
  return with_lock("resize", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    const bool logged = on.log().begin(OperationLog::kResize);
    if (logged) on.log().wide(device_bytes);
    const Status status = on.resize(device_bytes, detail);
    return logged ? on.log().end(status) : status;
  });
}

// ---- Host tier ----

hicache_status_t hicache_host_alloc(hicache_engine_t *engine, const hicache_host_take_t *takes, uint32_t take_count,
                                    hicache_error_t *error) {
  return with_lock("host_alloc", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    Arena *arena;
    if (Status status = on.arena_of(HICACHE_TIER_HOST, &arena, detail); status != HICACHE_OK) return status;
    static_assert(sizeof(hicache_host_take_t) == sizeof(hicache_take_t) &&
                  offsetof(hicache_host_take_t, hpages) == offsetof(hicache_take_t, vpages));
    const auto *lines = reinterpret_cast<const hicache_take_t *>(takes);
    if (Status status = check_takes(on, *arena, lines, take_count, detail); status != HICACHE_OK) return status;
    LoggedTakes log(on, *arena, OperationLog::kHostAlloc, lines, take_count);
    return log.end(on.explain(HICACHE_TIER_HOST, arena->take({lines, take_count}, detail), detail));
  });
}

hicache_status_t hicache_host_free(hicache_engine_t *engine, const hicache_host_pages_t *frees, uint32_t free_count,
                                   hicache_error_t *error) {
  return with_lock("host_free", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    Arena *arena;
    if (Status status = on.arena_of(HICACHE_TIER_HOST, &arena, detail); status != HICACHE_OK) return status;
    static_assert(sizeof(hicache_host_pages_t) == sizeof(hicache_pages_t) &&
                  offsetof(hicache_host_pages_t, hpages) == offsetof(hicache_pages_t, vpages));
    const auto *lines = reinterpret_cast<const hicache_pages_t *>(frees);
    if (Status status = check_page_lines(lines, free_count, kPageMax, "frees", detail); status != HICACHE_OK) return status;
    if (Status status = check_not_more_than_pool(on, *arena, lines, free_count, "frees", detail); status != HICACHE_OK) return status;
    const bool logged = on.log().begin(OperationLog::kHostFree);
    if (logged) on.log().pages(lines, free_count);
    const Status status = arena->free({lines, free_count}, detail);
    return logged ? on.log().end(status) : status;
  });
}

hicache_status_t hicache_host_view(hicache_engine_t *engine, const hicache_host_pages_t *pages, void **addresses_out,
                                   hicache_lease_t *lease_out, hicache_error_t *error) {
  return with_lock("host_view", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (lease_out == nullptr) return null_argument(detail, "lease_out");
    if (pages == nullptr) return null_argument(detail, "pages");
    if (Status status = check_page_lines(pages, 1, on.held_pages_max(), "pages", detail); status != HICACHE_OK) return status;
    if (pages->page_count > 0 && addresses_out == nullptr) return null_argument(detail, "addresses_out");
    const bool logged = on.log().begin(OperationLog::kHostView);
    if (logged) on.log().pages(reinterpret_cast<const hicache_pages_t *>(pages), 1);
    const Status status = on.host_view({pages, 1}, addresses_out, lease_out, detail);
    return logged ? log_granted(on, status, *lease_out) : status;
  });
}

hicache_status_t hicache_host_copy(hicache_engine_t *engine, hicache_lease_t lease, const hicache_host_pages_t *pages, uint32_t layout,
                                   uint32_t to_host, void *bytes, hicache_error_t *error) {
  return without_lock("host_copy", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (pages == nullptr) return null_argument(detail, "pages");
    if (Status status = check_page_lines(pages, 1, on.held_pages_max(), "pages", detail); status != HICACHE_OK) return status;
    if (pages->page_count > 0 && bytes == nullptr) return null_argument(detail, "bytes");
    if (to_host > 1) return fail(detail, HICACHE_INVALID_ARGUMENT, pages->pool, "to_host is %u, must be 0 or 1", to_host);
    return on.host_copy(lease, *pages, layout, to_host != 0, static_cast<std::byte *>(bytes), detail);
  });
}

hicache_status_t hicache_host_inspect(hicache_engine_t *engine, uint32_t pool, const hicache_hpage_t *hpages, uint32_t page_count,
                                      hicache_ppage_t *ppages_out, hicache_error_t *error) {
  return with_lock("host_inspect", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    Arena *arena;
    if (Status status = on.arena_of(HICACHE_TIER_HOST, &arena, detail); status != HICACHE_OK) return status;
    if (Status status = check_array(hpages, page_count, kPageMax, "hpages", detail); status != HICACHE_OK) return status;
    if (page_count > 0 && ppages_out == nullptr) return null_argument(detail, "ppages_out");
    return arena->inspect(pool, hpages, page_count, ppages_out, detail);
  });
}

hicache_status_t hicache_tags(hicache_engine_t *engine, uint32_t tier, uint32_t pool, const uint32_t *pages, uint32_t page_count,
                              uint64_t *tags, uint32_t write, hicache_error_t *error) {
  return with_lock("tags", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (Status status = check_array(pages, page_count, kPageMax, "pages", detail); status != HICACHE_OK) return status;
    if (page_count > 0 && tags == nullptr) return null_argument(detail, "tags");
    if (write > 1) return fail(detail, HICACHE_INVALID_ARGUMENT, pool, "write is %u, must be 0 or 1", write);
    return on.tags(tier, pool, pages, page_count, tags, write != 0, detail);
  });
}

hicache_status_t hicache_stamp_pages(hicache_engine_t *engine, uint32_t pool, uint64_t stream, const hicache_stamp_t *stamps,
                                     uint32_t stamp_count, const uint64_t *salts, uint32_t salt_count, uint32_t *mismatches_out,
                                     hicache_error_t *error) {
  return without_lock("stamp_pages", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (Status status = check_array(stamps, stamp_count, kPageMax, "stamps", detail); status != HICACHE_OK) return status;
    if (Status status = check_array(salts, salt_count, kPageMax, "salts", detail); status != HICACHE_OK) return status;
    return on.stamp_pages(pool, stream, {stamps, stamp_count}, {salts, salt_count}, mismatches_out, detail);
  });
}

hicache_status_t hicache_layer_word(hicache_engine_t *engine, hicache_ticket_t ticket, uint32_t layer, uint64_t *address_out,
                                    uint32_t *expected_out, hicache_error_t *error) {
  return without_lock("layer_word", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (address_out == nullptr) return null_argument(detail, "address_out");
    if (expected_out == nullptr) return null_argument(detail, "expected_out");
    return on.layer_word(ticket, layer, address_out, expected_out, detail);
  });
}

// ---- Looking inside ----

hicache_status_t hicache_stats(hicache_engine_t *engine, hicache_stats_t *stats_out, hicache_error_t *error) {
  return with_lock("stats", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (Status status = check_out_struct(stats_out, "stats_out", detail); status != HICACHE_OK) return status;
    hicache_stats_t stats{};
    on.stats(&stats);
    write_struct(stats, stats_out);
    return HICACHE_OK;
  });
}

hicache_status_t hicache_pool_stats(hicache_engine_t *engine, uint32_t tier, uint32_t pool, hicache_pool_stats_t *stats_out,
                                    hicache_error_t *error) {
  return with_lock("pool_stats", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (Status status = check_out_struct(stats_out, "stats_out", detail); status != HICACHE_OK) return status;
    Arena *arena;
    if (Status status = on.arena_of(tier, &arena, detail); status != HICACHE_OK) return status;
    hicache_pool_stats_t stats{};
    if (Status status = arena->pool_stats(pool, &stats, detail); status != HICACHE_OK) return status;
    write_struct(stats, stats_out);
    return HICACHE_OK;
  });
}

hicache_status_t hicache_map(hicache_engine_t *engine, uint32_t tier, uint32_t pool, uint32_t first, uint32_t page_count,
                             uint8_t *states_out, hicache_error_t *error) {
  return with_lock("map", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (page_count > 0 && states_out == nullptr) return null_argument(detail, "states_out");
    Arena *arena;
    if (Status status = on.arena_of(tier, &arena, detail); status != HICACHE_OK) return status;
    return arena->map(pool, first, page_count, states_out, detail);
  });
}

hicache_status_t hicache_verify(hicache_engine_t *engine, char *report_out, size_t report_bytes, hicache_error_t *error) {
  return with_lock("verify", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (report_bytes > 0 && report_out == nullptr) return null_argument(detail, "report");
    const std::string violations = on.verify();
    if (report_bytes > 0) {
      const size_t length = std::min(violations.size(), report_bytes - 1);
      std::memcpy(report_out, violations.data(), length);
      report_out[length] = 0;
    }
    if (violations.empty()) return HICACHE_OK;
    return fail(detail, HICACHE_INTERNAL, HICACHE_NO_POOL, "%s", violations.substr(0, violations.find('\n')).c_str());
  });
}

hicache_status_t hicache_fault_run(hicache_engine_t *engine, uint32_t count, uint32_t layers, uint32_t *ran_out, hicache_error_t *error) {
  return without_lock("fault_run", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (ran_out == nullptr) return null_argument(detail, "ran_out");
    if (!on.backend().virtual_clock())
      return fail(detail, HICACHE_UNSUPPORTED, HICACHE_NO_POOL, "the engine was opened without fault injection");
    *ran_out = on.backend().run_inside(count, layers != 0, true);
    return HICACHE_OK;
  });
}

hicache_status_t hicache_fault_finish(hicache_engine_t *engine, hicache_ticket_t ticket, uint32_t fails, hicache_error_t *error) {
  return without_lock("fault_finish", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (fails > 1) return fail(detail, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "fails is %u, must be 0 or 1", fails);
    return on.fault_finish(ticket, fails != 0, detail);
  });
}

hicache_status_t hicache_fault_hold(hicache_engine_t *engine, uint32_t hold, uint32_t fail_next, hicache_error_t *error) {
  return without_lock("fault_hold", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (hold > 1) return fail(detail, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "hold is %u, must be 0 or 1", hold);
    if (on.backend().set_hold(hold != 0, fail_next)) return HICACHE_OK;
    return fail(detail, HICACHE_UNSUPPORTED, HICACHE_NO_POOL, "the engine was opened without fault injection");
  });
}

// ---- Operation log ----

hicache_status_t hicache_log_start(hicache_engine_t *engine, uint64_t capacity_bytes, hicache_error_t *error) {
  return with_lock("log_start", engine, error,
                   [&](Engine &on, ErrorDetail *detail) -> Status { return on.log_start(capacity_bytes, detail); });
}

hicache_status_t hicache_log_drain(hicache_engine_t *engine, void *buffer, uint64_t buffer_bytes, uint64_t *bytes_out,
                                   hicache_error_t *error) {
  return with_lock("log_drain", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (bytes_out == nullptr) return null_argument(detail, "bytes_out");
    if (buffer_bytes > 0 && buffer == nullptr) return null_argument(detail, "buffer");
    return on.log().drain(static_cast<std::byte *>(buffer), buffer_bytes, bytes_out, detail);
  });
}

hicache_status_t hicache_log_stop(hicache_engine_t *engine, hicache_error_t *error) {
  return with_lock("log_stop", engine, error, [&](Engine &on, ErrorDetail *) -> Status {
    on.log().stop();
    return HICACHE_OK;
  });
}

} // extern "C"
