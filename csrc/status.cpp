#include "status.hpp"

#include <cstdarg>
#include <cstdio>

namespace hicache {

Status fail(ErrorDetail *error, Status status, uint32_t pool, const char *format, ...) {
  if (error == nullptr) return status;
  *error = ErrorDetail{};
  error->status = status;
  error->pool = pool;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(error->message, sizeof error->message, format, arguments);
  va_end(arguments);
  return status;
}

const char *status_name(Status status) {
  switch (status) {
    case HICACHE_OK: return "OK";
    case HICACHE_PENDING: return "PENDING";
    case HICACHE_INVALID_ARGUMENT: return "INVALID_ARGUMENT";
    case HICACHE_UNSUPPORTED: return "UNSUPPORTED";
    case HICACHE_ABI_MISMATCH: return "ABI_MISMATCH";
    case HICACHE_NO_CAPACITY: return "NO_CAPACITY";
    case HICACHE_MOVES_BLOCKED: return "MOVES_BLOCKED";
    case HICACHE_BUSY: return "BUSY";
    case HICACHE_INFEASIBLE: return "INFEASIBLE";
    case HICACHE_CLOSED: return "CLOSED";
    case HICACHE_LIMIT: return "LIMIT";
    case HICACHE_STALE_ID: return "STALE_ID";
    case HICACHE_NOT_MAPPED: return "NOT_MAPPED";
    case HICACHE_DEVICE: return "DEVICE";
    case HICACHE_CORRUPT: return "CORRUPT";
    case HICACHE_CANCELLED: return "CANCELLED";
    case HICACHE_INTERNAL: return "INTERNAL";
    default: return "UNKNOWN";
  }
}

} // namespace hicache
