// Status values with the detail that explains them. Nothing is thread-local: the caller brings the struct.
#pragma once

#include <cstdint>

#include "hicache.h"

namespace hicache {

using Status = hicache_status_t;

// What hicache_error_t reports, plus the page that stands in the way, from which the engine finds the ticket to name.
struct ErrorDetail {
  Status status = HICACHE_OK;
  int32_t native_code = 0;
  uint32_t pool = HICACHE_NO_POOL;
  uint64_t need_bytes = 0;
  uint64_t have_bytes = 0;
  uint64_t pending_bytes = 0;
  uint64_t ticket = 0;
  uint32_t blocking_pool = HICACHE_NO_POOL; // Pool and physical page of a pinned page that keeps moves or room away.
  uint32_t blocking_page = HICACHE_NO_PAGE;
  char message[232];

  ErrorDetail() { message[0] = 0; } // The rest is not worth clearing on the way to every call.
};

// Fills `error` (may be null) and returns `status`. The message is printf-formatted and truncated to fit.
[[gnu::format(printf, 4, 5)]] Status fail(ErrorDetail *error, Status status, uint32_t pool, const char *format, ...);

// "NO_CAPACITY" for -20; "UNKNOWN" for a value that does not exist. Static text.
const char *status_name(Status status);

} // namespace hicache
