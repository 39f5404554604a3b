#include "abi_guard.hpp"

#include <algorithm>
#include <string_view>

namespace hicache {

namespace {

// In zero-initialised memory, so that shells never used cost nothing.
constinit hicache_engine shells[EngineRegistry::kEngineMax] = {};

std::mutex registry_mutex;
uint32_t shells_used = 0;                          // Shells from here on are fresh.
uint32_t closed_queue[EngineRegistry::kEngineMax]; // Closed shells, oldest first.
uint64_t closed_head = 0;
uint64_t closed_tail = 0;
uint32_t next_serial = 0;

} // namespace

hicache_engine *EngineRegistry::take(uint32_t *serial_out) {
  std::lock_guard lock(registry_mutex);
  *serial_out = ++next_serial;
  if (shells_used < kEngineMax) return &shells[shells_used++];
  if (closed_head == closed_tail) return nullptr;
  return &shells[closed_queue[closed_head++ % kEngineMax]];
}

void EngineRegistry::give_back(hicache_engine *shell) {
  std::lock_guard lock(registry_mutex);
  closed_queue[closed_tail++ % kEngineMax] = static_cast<uint32_t>(shell - shells);
}

bool EngineRegistry::knows(const hicache_engine *engine) {
  const auto offset = reinterpret_cast<uintptr_t>(engine) - reinterpret_cast<uintptr_t>(shells);
  return offset < sizeof shells && offset % sizeof(hicache_engine) == 0;
}

EngineCall::EngineCall(hicache_engine *shell, ErrorDetail *error) : shell_(shell), status_(HICACHE_OK) {
  if (shell == nullptr) {
    status_ = null_argument(error, "engine");
    return;
  }
  if (!EngineRegistry::knows(shell)) {
    status_ = fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "engine is not a pointer that hicache_open returned");
    return;
  }
  // Announced before the state is read; hicache_close sets the state before it reads the calls: one of the two sees the other.
  shell->calls.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t state = shell->state.load(std::memory_order_seq_cst);
  if (state == hicache_engine::kOpen) return;
  shell->calls.fetch_sub(1, std::memory_order_seq_cst);
  status_ =
      state == hicache_engine::kFresh
          ? fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "engine is not a pointer that hicache_open returned")
          : fail(error, HICACHE_CLOSED, HICACHE_NO_POOL, "the engine is %s", state == hicache_engine::kClosing ? "closing" : "closed");
}

Status null_argument(ErrorDetail *error, const char *name) {
  return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "%s is NULL", name);
}

Status caught(ErrorDetail *error) {
  try {
    throw;
  } catch (const std::bad_alloc &) {
    return fail(error, HICACHE_LIMIT, HICACHE_NO_POOL, "the system has no memory left for the library's tables");
  } catch (const std::system_error &failure) {
    const Status status = fail(error, HICACHE_LIMIT, HICACHE_NO_POOL, "%s", failure.what());
    if (error != nullptr) error->native_code = failure.code().value();
    return status;
  } catch (const std::exception &failure) { return fail(error, HICACHE_INTERNAL, HICACHE_NO_POOL, "%s", failure.what()); } catch (...) {
    return fail(error, HICACHE_INTERNAL, HICACHE_NO_POOL, "an exception of unknown type");
  }
}

Status report(const char *operation, Status status, const ErrorDetail &detail, hicache_error_t *error) {
  if (error == nullptr) return status;
  uint32_t size;
  std::memcpy(&size, error, sizeof size);
  // A caller that forgot struct_size gets the status alone: nothing tells how much memory there is.
  if (size <= sizeof size) return status;
  hicache_error_t full{};
  full.struct_size = size;
  full.status = status;
  full.native_code = detail.native_code;
  full.pool = detail.pool;
  full.need_bytes = detail.need_bytes;
  full.have_bytes = detail.have_bytes;
  full.pending_bytes = detail.pending_bytes;
  full.ticket = detail.ticket;
  const std::string_view sentence = detail.message[0] != 0 ? detail.message : status_name(status);
  size_t end = 0;
  for (const std::string_view part : {std::string_view(operation), std::string_view(": "), sentence}) {
    const size_t room = sizeof full.message - 1 - end;
    std::memcpy(full.message + end, part.data(), std::min(part.size(), room));
    end += std::min(part.size(), room);
  }
  std::memcpy(error, &full, std::min<size_t>(size, sizeof full));
  if (size < sizeof full && size > offsetof(hicache_error_t, message)) reinterpret_cast<char *>(error)[size - 1] = 0;
  return status;
}

// Whether a take line needs an array: only an SWA line of an alloc may leave it out.
Status check_takes(Engine &engine, Arena &arena, const hicache_take_t *takes, uint32_t count, ErrorDetail *error) {
  if (Status status = check_array(takes, count, kLineMax, "takes", error); status != HICACHE_OK) return status;
  for (uint32_t i = 0; i < count; i++) {
    if (takes[i].pool >= engine.pool_count()) {
      return fail(error, HICACHE_INVALID_ARGUMENT, takes[i].pool, "takes[%u].pool is %u, the engine has %u pools", i, takes[i].pool,
                  engine.pool_count());
    }
    const uint32_t owner = arena.owner_of(takes[i].pool);
    if (takes[i].page_count > 0 && takes[i].vpages == nullptr && owner == takes[i].pool) {
      return fail(error, HICACHE_INVALID_ARGUMENT, takes[i].pool, "takes[%u]: the pages are NULL", i);
    }
    // Names of more pages than there are hold one twice: refused before the array is read.
    if (takes[i].vpages != nullptr && owner != takes[i].pool && takes[i].page_count > arena.virtual_page_count(takes[i].pool)) {
      return fail(error, HICACHE_INVALID_ARGUMENT, takes[i].pool, "takes[%u].page_count is %u, the pool has %u pages", i,
                  takes[i].page_count, arena.virtual_page_count(takes[i].pool));
    }
  }
  return HICACHE_OK;
}

Status check_not_more_than_pool(Engine &engine, Arena &arena, const hicache_pages_t *lines, uint32_t count, const char *name,
                                ErrorDetail *error) {
  for (uint32_t i = 0; i < count; i++) {
    if (lines[i].pool >= engine.pool_count()) {
      return fail(error, HICACHE_INVALID_ARGUMENT, lines[i].pool, "%s[%u].pool is %u, the engine has %u pools", name, i, lines[i].pool,
                  engine.pool_count());
    }
    if (lines[i].page_count > arena.virtual_page_count(lines[i].pool)) {
      return fail(error, HICACHE_INVALID_ARGUMENT, lines[i].pool, "%s[%u].page_count is %u, the pool has %u pages", name, i,
                  lines[i].page_count, arena.virtual_page_count(lines[i].pool));
    }
  }
  return HICACHE_OK;
}

} // namespace hicache
