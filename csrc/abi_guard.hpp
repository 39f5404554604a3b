// The edge of the library: what every extern "C" function does before and after its own work. Turns pointers into engines (a closed one is
// CLOSED, a wrong one INVALID_ARGUMENT, neither is touched), takes the lock, catches everything and copies errors into the caller's struct.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <system_error>

#include "engine.hpp"
#include "hicache.h"
#include "status.hpp"

// What a caller's pointer points to. Never freed: all lie in one table, and one that was closed is used again only after all others.
struct alignas(64) hicache_engine {
  enum State : uint32_t { kFresh, kOpen, kClosing, kClosed };
  std::atomic<uint32_t> state{kFresh};
  std::atomic<uint32_t> calls{0};   // Calls that may touch `engine`.
  hicache::Engine *engine{nullptr}; // Owned. A raw pointer, so that nothing is destroyed when the process exits under running threads.
};

namespace hicache {

// The table of all engines of the process.
class EngineRegistry {
public:
  static constexpr uint32_t kEngineMax = 1u << 14;

  // A shell and the serial of its next engine; NULL if kEngineMax are open.
  static hicache_engine *take(uint32_t *serial_out);
  static void give_back(hicache_engine *shell);
  // Whether the pointer is one that hicache_open may have returned.
  static bool knows(const hicache_engine *engine);
};

// Holds an engine open for one call.
class EngineCall {
public:
  EngineCall(hicache_engine *shell, ErrorDetail *error);
  ~EngineCall() {
    if (status_ == HICACHE_OK) shell_->calls.fetch_sub(1, std::memory_order_seq_cst);
  }
  EngineCall(const EngineCall &) = delete;
  EngineCall &operator=(const EngineCall &) = delete;

  Status status() const { return status_; }
  Engine &engine() const { return *shell_->engine; }

private:
  hicache_engine *shell_;
  Status status_;
};

// Copies the detail into the caller's struct as far as that reaches, "operation: sentence"; returns status.
Status report(const char *operation, Status status, const ErrorDetail &detail, hicache_error_t *error);
// What an exception comes to: LIMIT for memory or threads that the system does not give, else INTERNAL. Call in a catch block.
Status caught(ErrorDetail *error);

// Runs fn(Engine &, ErrorDetail *) with the engine's lock held.
template <typename Fn> Status with_lock(const char *operation, hicache_engine *shell, hicache_error_t *error, Fn fn) noexcept {
  ErrorDetail detail;
  EngineCall call(shell, &detail);
  Status status = call.status();
  if (status == HICACHE_OK) {
    try {
      Engine &engine = call.engine();
      EngineLock lock(engine);
      if (engine.closing()) {
        status = fail(&detail, HICACHE_CLOSED, HICACHE_NO_POOL, "the engine is closing");
      } else {
        status = engine.check_poison(&detail);
        if (status == HICACHE_OK) status = fn(engine, &detail);
      }
    } catch (...) { status = caught(&detail); }
  }
  return status >= 0 ? status : report(operation, status, detail, error);
}

// Runs fn without the lock, for calls that block or that touch nothing it guards.
template <typename Fn> Status without_lock(const char *operation, hicache_engine *shell, hicache_error_t *error, Fn fn) noexcept {
  ErrorDetail detail;
  EngineCall call(shell, &detail);
  Status status = call.status();
  if (status == HICACHE_OK) {
    try {
      status = call.engine().check_poison(&detail);
      if (status == HICACHE_OK) status = fn(call.engine(), &detail);
    } catch (...) { status = caught(&detail); }
  }
  return status >= 0 ? status : report(operation, status, detail, error);
}

// INVALID_ARGUMENT naming the argument.
Status null_argument(ErrorDetail *error, const char *name);

// Lines in one call: more is a mistake, not a demand, and is refused before the array is read.
constexpr uint32_t kLineMax = 1u << 16;
constexpr uint32_t kPageMax = 1u << 30;

// An array argument of the ABI: NULL only if empty.
template <typename T> Status check_array(const T *array, uint32_t count, uint32_t count_max, const char *name, ErrorDetail *error) {
  if (count > 0 && array == nullptr) return null_argument(error, name);
  if (count > count_max) {
    return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "%s has %u entries, at most %u in one call", name, count, count_max);
  }
  return HICACHE_OK;
}

// Lines of pages (frees, leases, steps, views): their arrays, and that all entries together are at most `entries_max`.
template <typename Line>
Status check_page_lines(const Line *lines, uint32_t count, uint64_t entries_max, const char *name, ErrorDetail *error) {
  if (Status status = check_array(lines, count, kLineMax, name, error); status != HICACHE_OK) return status;
  uint64_t entries = 0;
  for (uint32_t i = 0; i < count; i++) {
    entries += lines[i].page_count;
    if (entries > entries_max) {
      return fail(error, HICACHE_LIMIT, lines[i].pool, "%s[%u].page_count is %u: %llu pages at most in one call", name, i,
                  lines[i].page_count, static_cast<unsigned long long>(entries_max));
    }
    const void *pages;
    if constexpr (requires { lines[i].hpages; }) {
      pages = lines[i].hpages;
    } else {
      pages = lines[i].vpages;
    }
    if (lines[i].page_count > 0 && pages == nullptr) {
      return fail(error, HICACHE_INVALID_ARGUMENT, lines[i].pool, "%s[%u]: the pages are NULL", name, i);
    }
  }
  return HICACHE_OK;
}

// Lines of a take: their arrays, of which only an SWA line may leave one out.
Status check_takes(Engine &engine, Arena &arena, const hicache_take_t *takes, uint32_t count, ErrorDetail *error);
// A line with more pages than the pool has names one twice: refused before the array is read.
Status check_not_more_than_pool(Engine &engine, Arena &arena, const hicache_pages_t *lines, uint32_t count, const char *name,
                                ErrorDetail *error);

// Reads a struct that begins with struct_size: what the caller has is copied, what the library knows besides is 0, and what only the caller
// knows must be 0. Structs of 0.1 are the smallest there are, so a smaller one is ABI_MISMATCH.
template <typename Struct> Status read_struct(const Struct *from, const char *name, Struct *to, ErrorDetail *error) {
  if (from == nullptr) return null_argument(error, name);
  uint32_t size;
  std::memcpy(&size, from, sizeof size);
  constexpr uint32_t kSizeLimit = 1u << 16;
  if (size < sizeof(Struct) || size > kSizeLimit) {
    return fail(error, HICACHE_ABI_MISMATCH, HICACHE_NO_POOL, "%s.struct_size is %u, this library's struct has %zu bytes", name, size,
                sizeof(Struct));
  }
  const auto *bytes = reinterpret_cast<const std::byte *>(from);
  for (uint32_t at = sizeof(Struct); at < size; at++) {
    if (bytes[at] != std::byte{0}) {
      return fail(error, HICACHE_UNSUPPORTED, HICACHE_NO_POOL, "%s sets fields that this library does not know (byte %u)", name, at);
    }
  }
  std::memcpy(to, from, sizeof(Struct));
  return HICACHE_OK;
}

// Checks an output struct before the work, and writes it after: struct_size stays the caller's.
template <typename Struct> Status check_out_struct(const Struct *out, const char *name, ErrorDetail *error) {
  if (out == nullptr) return null_argument(error, name);
  uint32_t size;
  std::memcpy(&size, out, sizeof size);
  if (size >= sizeof(Struct)) return HICACHE_OK;
  return fail(error, HICACHE_ABI_MISMATCH, HICACHE_NO_POOL, "%s.struct_size is %u, this library's struct has %zu bytes", name, size,
              sizeof(Struct));
}

template <typename Struct> void write_struct(Struct from, Struct *out) {
  std::memcpy(&from, out, sizeof(uint32_t));
  std::memcpy(out, &from, sizeof(Struct));
}

// ---- The operation log, for calls that are recorded ----

// Ends the record of a call that grants an id.
inline Status log_granted(Engine &on, Status status, uint64_t granted, bool always = false) {
  if (status == HICACHE_OK) on.log().id(granted);
  return on.log().end(status, always);
}

// The whole record of a call that ends an id.
inline Status log_id(Engine &on, OperationLog::Kind kind, uint64_t ended, Status status) {
  if (!on.log().begin(kind)) return status;
  on.log().id(ended);
  return on.log().end(status);
}

// The record of a take: its lines before the call, what was granted after it.
class LoggedTakes {
public:
  LoggedTakes(Engine &on, Arena &arena, OperationLog::Kind kind, const hicache_take_t *takes, uint32_t count)
      : log_(on.log()), takes_(takes), count_(count), logged_(on.log().begin(kind)) {
    if (!logged_) return;
    for (uint32_t pool = 0; pool < on.pool_count(); pool++) owns_[pool] = arena.info(pool).owner == pool;
    log_.takes(takes, count, owns_);
  }
  Status end(Status status, const uint64_t *granted = nullptr) {
    if (!logged_) return status;
    log_.granted(takes_, count_, owns_, status);
    if (granted != nullptr) log_.id(*granted);
    return log_.end(status);
  }

private:
  OperationLog &log_;
  const hicache_take_t *takes_;
  uint32_t count_;
  bool logged_;
  bool owns_[16] = {};
};

} // namespace hicache
