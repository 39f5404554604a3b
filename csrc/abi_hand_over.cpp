// hicache_hand_over: the one function of two engines.
#include <algorithm>

#include "abi_guard.hpp"
#include "hand_over.hpp"

using namespace hicache;

namespace {

Status check_lines(Engine &source, Engine &target, const hicache_hand_over_t &request, ErrorDetail *error) {
  if (Status status = check_array(request.lines, request.line_count, kLineMax, "request.lines", error); status != HICACHE_OK) return status;
  if ((request.flags & ~HICACHE_HAND_OVER_HELD) != 0 || request.reserved0 != 0)
    return fail(error, HICACHE_UNSUPPORTED, HICACHE_NO_POOL, "request: unknown flags, or reserved0 is not 0");
  const uint64_t pages_max = std::min(source.held_pages_max(), target.held_pages_max());
  uint64_t pages = 0;
  for (uint32_t i = 0; i < request.line_count; i++) {
    const hicache_hand_over_line_t &line = request.lines[i];
    if (line.reserved0 != 0) return fail(error, HICACHE_UNSUPPORTED, line.source_pool, "request.lines[%u].reserved0 must be 0", i);
    pages += line.page_count;
    if (pages > pages_max) {
      return fail(error, HICACHE_LIMIT, line.source_pool, "request.lines[%u].page_count is %u: %llu pages at most in one call", i,
                  line.page_count, static_cast<unsigned long long>(pages_max));
    }
    if (line.page_count > 0 && (line.source_vpages == nullptr || line.target_vpages == nullptr))
      return fail(error, HICACHE_INVALID_ARGUMENT, line.source_pool, "request.lines[%u]: the pages are NULL", i);
  }
  return HICACHE_OK;
}

Status hand_over(hicache_engine_t *source, hicache_engine_t *target, const hicache_hand_over_t *request, ErrorDetail *error) {
  EngineCall from(source, error);
  if (from.status() != HICACHE_OK) return from.status();
  EngineCall to(target, error);
  if (to.status() != HICACHE_OK) return to.status();
  if (source == target)
    return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL,
                "source and target are one engine: its pages are shared, not handed over");
  hicache_hand_over_t given;
  if (Status status = read_struct(request, "request", &given, error); status != HICACHE_OK) return status;
  if (Status status = check_lines(from.engine(), to.engine(), given, error); status != HICACHE_OK) return status;
  return HandOver(from.engine(), to.engine()).run(given, error);
}

} // namespace

extern "C" hicache_status_t hicache_hand_over(hicache_engine_t *source, hicache_engine_t *target, const hicache_hand_over_t *request,
                                              hicache_error_t *error) {
  ErrorDetail detail;
  Status status;
  try {
    status = hand_over(source, target, request, &detail);
  } catch (...) { status = caught(&detail); }
  return status >= 0 ? status : report("hand_over", status, detail, error);
}
