// Opening, closing, takes, reservations and transfers of hicache.h. Each function checks its arguments and says the rest in one call.
#include <thread>

#include "abi_guard.hpp"

using namespace hicache;

namespace {

Status check_copies(Engine &engine, const hicache_transfer_t &transfer, ErrorDetail *error) {
  if (transfer.copy_count > 0 && transfer.copies == nullptr) return null_argument(error, "transfer.copies");
  if (transfer.bind_count > 0 && transfer.binds == nullptr) return null_argument(error, "transfer.binds");
  if (transfer.copy_count > engine.transfer_pages_max()) {
    return fail(error, HICACHE_LIMIT, HICACHE_NO_POOL, "transfer.copy_count is %u, transfer_pages_max allows %llu", transfer.copy_count,
                static_cast<unsigned long long>(engine.transfer_pages_max()));
  }
  if (transfer.bind_count > engine.held_pages_max()) {
    return fail(error, HICACHE_LIMIT, HICACHE_NO_POOL, "transfer.bind_count is %u, held_pages_max allows %llu", transfer.bind_count,
                static_cast<unsigned long long>(engine.held_pages_max()));
  }
  return HICACHE_OK;
}

Status open_engine(const hicache_options_t *options, hicache_engine_t **engine_out, ErrorDetail *error) {
  if (engine_out == nullptr) return null_argument(error, "engine_out");
  hicache_options_t given{}; // Whole, whatever the caller's header knows of it.
  if (Status status = read_struct(options, "options", &given, error); status != HICACHE_OK) return status;
  if (given.abi_version >> 16 != HICACHE_ABI_MAJOR) {
    return fail(error, HICACHE_ABI_MISMATCH, HICACHE_NO_POOL, "the caller's header is of ABI major %u, this library of %u",
                given.abi_version >> 16, HICACHE_ABI_MAJOR);
  }
  EngineOptions checked;
  if (Status status = check_options(given, &checked, error); status != HICACHE_OK) return status;
  hicache_engine *shell = EngineRegistry::take(&checked.serial);
  if (shell == nullptr) {
    return fail(error, HICACHE_LIMIT, HICACHE_NO_POOL, "%u engines are open in this process", EngineRegistry::kEngineMax);
  }
  Status status;
  try {
    std::unique_ptr<Engine> engine;
    status = Engine::open(checked, &engine, error);
    shell->engine = engine.release();
  } catch (...) { status = caught(error); }
  shell->state.store(status == HICACHE_OK ? hicache_engine::kOpen : hicache_engine::kClosed, std::memory_order_seq_cst);
  if (status != HICACHE_OK) {
    EngineRegistry::give_back(shell);
    return status;
  }
  *engine_out = shell;
  return HICACHE_OK;
}

Status close_engine(hicache_engine_t *shell, ErrorDetail *error) {
  {
    EngineCall call(shell, error);
    if (call.status() != HICACHE_OK) return call.status();
    Engine &engine = call.engine();
    std::lock_guard lock(engine.mutex);
    if (engine.closing()) return fail(error, HICACHE_CLOSED, HICACHE_NO_POOL, "the engine is closing");
    if (Status status = engine.begin_close(error); status != HICACHE_OK) return status;
    shell->state.store(hicache_engine::kClosing, std::memory_order_seq_cst);
  }
  shell->engine->drain();
  // Calls that were under way see the closing engine and leave; none blocks after drain.
  while (shell->calls.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
  delete shell->engine;
  shell->engine = nullptr;
  shell->state.store(hicache_engine::kClosed, std::memory_order_seq_cst);
  EngineRegistry::give_back(shell);
  return HICACHE_OK;
}

} // namespace

extern "C" {

// ---- Version, status ----

uint32_t hicache_abi_version(void) { return HICACHE_ABI_MAJOR << 16 | HICACHE_ABI_MINOR; }

const char *hicache_build_info(void) {
#if defined(__clang__)
#define HICACHE_COMPILER "clang++ " __clang_version__
#else
#define HICACHE_COMPILER "g++ " __VERSION__
#endif
#ifdef HICACHE_WITH_CUDA
#define HICACHE_BACKENDS " backends=cpu,null,fault,cuda"
#else
#define HICACHE_BACKENDS " backends=cpu,null,fault"
#endif
#ifdef HICACHE_SABOTAGE
  return HICACHE_VERSION " " HICACHE_COMPILER HICACHE_BACKENDS " sabotage";
#else
  return HICACHE_VERSION " " HICACHE_COMPILER HICACHE_BACKENDS;
#endif
}

const char *hicache_status_name(hicache_status_t status) { return status_name(status); }

// ---- Open and close ----

hicache_status_t hicache_open(const hicache_options_t *options, hicache_engine_t **engine_out, hicache_error_t *error) {
  ErrorDetail detail;
  Status status;
  try {
    status = open_engine(options, engine_out, &detail);
  } catch (...) { status = caught(&detail); }
  return status >= 0 ? status : report("open", status, detail, error);
}

hicache_status_t hicache_close(hicache_engine_t *engine, hicache_error_t *error) {
  if (engine == nullptr) return HICACHE_OK;
  ErrorDetail detail;
  Status status;
  try {
    status = close_engine(engine, &detail);
  } catch (...) { status = caught(&detail); }
  return status >= 0 ? status : report("close", status, detail, error);
}

// ---- Taking and giving back ----

hicache_status_t hicache_alloc(hicache_engine_t *engine, const hicache_take_t *takes, uint32_t take_count, hicache_error_t *error) {
  return with_lock("alloc", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (Status status = check_takes(on, on.device(), takes, take_count, detail); status != HICACHE_OK) return status;
    LoggedTakes log(on, on.device(), OperationLog::kAlloc, takes, take_count);
    return log.end(on.explain(HICACHE_TIER_DEVICE, on.device().take({takes, take_count}, detail), detail));
  });
}

hicache_status_t hicache_free(hicache_engine_t *engine, const hicache_pages_t *frees, uint32_t free_count, hicache_error_t *error) {
  return with_lock("free", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (Status status = check_page_lines(frees, free_count, kPageMax, "frees", detail); status != HICACHE_OK) return status;
    if (Status status = check_not_more_than_pool(on, on.device(), frees, free_count, "frees", detail); status != HICACHE_OK) return status;
    const bool logged = on.log().begin(OperationLog::kFree);
    if (logged) on.log().pages(frees, free_count);
    const Status status = on.device().free({frees, free_count}, detail);
    return logged ? on.log().end(status) : status;
  });
}

hicache_status_t hicache_extend(hicache_engine_t *engine, uint32_t owner_pool, hicache_sequence_t *sequences, uint32_t sequence_count,
                                hicache_error_t *error) {
  return with_lock("extend", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (Status status = check_array(sequences, sequence_count, kLineMax, "sequences", detail); status != HICACHE_OK) return status;
    for (uint32_t i = 0; i < sequence_count; i++) {
      if (sequences[i].vpage_count > sequences[i].vpage_capacity) {
        return fail(detail, HICACHE_INVALID_ARGUMENT, owner_pool, "sequences[%u].vpage_count is %u, vpage_capacity %u", i,
                    sequences[i].vpage_count, sequences[i].vpage_capacity);
      }
      if (sequences[i].vpage_capacity > 0 && sequences[i].vpages == nullptr) {
        return fail(detail, HICACHE_INVALID_ARGUMENT, owner_pool, "sequences[%u].vpages is NULL", i);
      }
    }
    const bool logged = on.log().begin(OperationLog::kExtend);
    if (logged) {
      on.log().word(owner_pool);
      on.log().sequences(sequences, sequence_count);
    }
    const Status status = on.explain(HICACHE_TIER_DEVICE, on.device().extend(owner_pool, {sequences, sequence_count}, detail), detail);
    if (!logged) return status;
    on.log().grown(sequences, sequence_count, status);
    return on.log().end(status);
  });
}

// ---- Reservations, loads, back-ups ----

hicache_status_t hicache_reserve(hicache_engine_t *engine, const hicache_take_t *takes, uint32_t take_count,
                                 hicache_reservation_t *reservation_out, hicache_error_t *error) {
  return with_lock("reserve", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (reservation_out == nullptr) return null_argument(detail, "reservation_out");
    if (Status status = check_takes(on, on.device(), takes, take_count, detail); status != HICACHE_OK) return status;
    LoggedTakes log(on, on.device(), OperationLog::kReserve, takes, take_count);
    const Status status = on.explain(HICACHE_TIER_DEVICE, on.device().reserve({takes, take_count}, reservation_out, detail), detail);
    return log.end(status, status == HICACHE_OK ? reservation_out : nullptr);
  });
}

hicache_status_t hicache_cancel(hicache_engine_t *engine, hicache_reservation_t reservation, hicache_error_t *error) {
  return with_lock("cancel", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    return log_id(on, OperationLog::kCancel, reservation, on.device().cancel(reservation, detail));
  });
}

hicache_status_t hicache_reservation_pages(hicache_engine_t *engine, hicache_reservation_t reservation, uint32_t pool,
                                           hicache_ppage_t *ppages_out, uint32_t capacity, uint32_t *count_out, hicache_error_t *error) {
  return with_lock("reservation_pages", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (count_out == nullptr) return null_argument(detail, "count_out");
    if (capacity > 0 && ppages_out == nullptr) return null_argument(detail, "ppages_out");
    return on.device().reservation_pages(reservation, pool, ppages_out, capacity, count_out, detail);
  });
}

hicache_status_t hicache_load(hicache_engine_t *engine, const hicache_transfer_t *transfer, hicache_ticket_t *ticket_out,
                              hicache_error_t *error) {
  return with_lock("load", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    hicache_transfer_t given;
    if (ticket_out == nullptr) return null_argument(detail, "ticket_out");
    if (Status status = read_struct(transfer, "transfer", &given, detail); status != HICACHE_OK) return status;
    if (Status status = check_copies(on, given, detail); status != HICACHE_OK) return status;
    const bool logged = on.log().begin(OperationLog::kLoad);
    if (logged) on.log().transfer(given);
    const Status status = on.transfers().load(given, ticket_out, detail);
    return logged ? log_granted(on, status, *ticket_out) : status;
  });
}

hicache_status_t hicache_back_up(hicache_engine_t *engine, const hicache_transfer_t *transfer, hicache_ticket_t *ticket_out,
                                 hicache_error_t *error) {
  return with_lock("back_up", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    hicache_transfer_t given;
    if (ticket_out == nullptr) return null_argument(detail, "ticket_out");
    if (Status status = read_struct(transfer, "transfer", &given, detail); status != HICACHE_OK) return status;
    if (Status status = check_copies(on, given, detail); status != HICACHE_OK) return status;
    const bool logged = on.log().begin(OperationLog::kBackUp);
    if (logged) on.log().transfer(given);
    const Status status = on.transfers().back_up(given, ticket_out, detail);
    return logged ? log_granted(on, status, *ticket_out) : status;
  });
}

hicache_status_t hicache_layer_wait(hicache_engine_t *engine, hicache_ticket_t ticket, uint32_t layer, uint64_t stream,
                                    hicache_error_t *error) {
  return without_lock("layer_wait", engine, error,
                      [&](Engine &on, ErrorDetail *detail) -> Status { return on.layer_wait(ticket, layer, stream, detail); });
}

hicache_status_t hicache_transfer_cancel(hicache_engine_t *engine, hicache_ticket_t ticket, hicache_error_t *error) {
  return with_lock("transfer_cancel", engine, error,
                   [&](Engine &on, ErrorDetail *detail) -> Status { return on.transfers().cancel(ticket, detail); });
}

hicache_status_t hicache_ticket_status(hicache_engine_t *engine, hicache_ticket_t ticket, uint32_t *layers_done_out,
                                       hicache_error_t *error) {
  return with_lock("ticket_status", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    return on.transfers().ticket_status(ticket, layers_done_out, detail);
  });
}

// ---- Completions ----

hicache_status_t hicache_completion_poll(hicache_engine_t *engine, hicache_completion_t *completions_out, uint32_t capacity,
                                         uint32_t *count_out, hicache_error_t *error) {
  return without_lock("completion_poll", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (count_out == nullptr) return null_argument(detail, "count_out");
    if (capacity > 0 && completions_out == nullptr) return null_argument(detail, "completions_out");
    *count_out = 0;
    if (on.transfers().ring().empty()) return HICACHE_OK;
    EngineLock lock(on);
    *count_out = on.read_completions(completions_out, capacity);
    return HICACHE_OK;
  });
}

hicache_status_t hicache_completion_wait(hicache_engine_t *engine, uint64_t timeout_ns, hicache_completion_t *completions_out,
                                         uint32_t capacity, uint32_t *count_out, hicache_error_t *error) {
  return without_lock("completion_wait", engine, error, [&](Engine &on, ErrorDetail *detail) -> Status {
    if (count_out == nullptr) return null_argument(detail, "count_out");
    if (capacity > 0 && completions_out == nullptr) return null_argument(detail, "completions_out");
    return on.completion_wait(timeout_ns, completions_out, capacity, count_out, detail);
  });
}

hicache_status_t hicache_completion_wake(hicache_engine_t *engine, hicache_error_t *error) {
  return without_lock("completion_wake", engine, error, [&](Engine &on, ErrorDetail *) -> Status {
    on.transfers().ring().wake();
    return HICACHE_OK;
  });
}

int32_t hicache_completion_fd(hicache_engine_t *engine) {
  int32_t fd = -1;
  without_lock("completion_fd", engine, nullptr, [&](Engine &on, ErrorDetail *) -> Status {
    fd = on.transfers().ring().event_fd();
    return HICACHE_OK;
  });
  return fd;
}

} // extern "C"
