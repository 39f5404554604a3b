#include "hand_over.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <functional>

namespace hicache {

namespace {

// Both engines' locks, in the order of their addresses: hand-overs that cross cannot wait for each other. What page work was asked for
// under them is waited for once both are free.
class BothLocks {
public:
  BothLocks(Engine &a, Engine &b) : first_(std::less<Engine *>()(&a, &b) ? a : b), second_(&first_ == &a ? b : a) {
    first_.mutex.lock();
    second_.mutex.lock();
  }
  ~BothLocks() {
    const uint32_t of_first = first_.page_work().take_pending(), of_second = second_.page_work().take_pending();
    second_.mutex.unlock();
    first_.mutex.unlock();
    if (of_first != PageWork::kNone) first_.page_work().run(of_first);
    if (of_second != PageWork::kNone) second_.page_work().run(of_second);
  }
  BothLocks(const BothLocks &) = delete;
  BothLocks &operator=(const BothLocks &) = delete;

private:
  Engine &first_, &second_;
};

const char *backend_name(uint32_t kind) { return kind == HICACHE_BACKEND_CUDA ? "CUDA" : kind == HICACHE_BACKEND_NULL ? "null" : "CPU"; }

} // namespace

Status HandOver::of_side(const Side &side, Status status, ErrorDetail *error) const {
  if (status == HICACHE_OK || error == nullptr) return status;
  char text[sizeof error->message];
  std::memcpy(text, error->message, sizeof text);
  std::snprintf(error->message, sizeof error->message, "%s: %.200s", side.name, text);
  return status;
}

// ---- Checks ----

Status HandOver::check_engines(ErrorDetail *error) {
  for (const Side *side : {&source_, &target_}) {
    if (side->engine.closing()) return fail(error, HICACHE_CLOSED, HICACHE_NO_POOL, "the %s is closing", side->name);
    if (Status status = side->engine.check_poison(error); status != HICACHE_OK) return of_side(*side, status, error);
  }
  const uint32_t of_source = source_.engine.backend_kind(), of_target = target_.engine.backend_kind();
  if (of_source == of_target) return HICACHE_OK;
  return fail(error, HICACHE_UNSUPPORTED, HICACHE_NO_POOL, "the source's backend is %s, the target's %s: pages go between equal ones",
              backend_name(of_source), backend_name(of_target));
}

Status HandOver::check_layouts(const hicache_hand_over_line_t &line, ErrorDetail *error) const {
  if (line.source_pool >= source_.engine.pool_count() || line.target_pool >= target_.engine.pool_count()) {
    const Side &side = line.source_pool >= source_.engine.pool_count() ? source_ : target_;
    const uint32_t pool = &side == &source_ ? line.source_pool : line.target_pool;
    return fail(error, HICACHE_INVALID_ARGUMENT, pool, "%s: pool is %u, the engine has %u", side.name, pool, side.engine.pool_count());
  }
  const PoolGeometry &of = source_.engine.geometry(line.source_pool), &as = target_.engine.geometry(line.target_pool);
  const struct {
    const char *name;
    uint64_t need, have;
    bool bytes;
  } fields[] = {{"role", of.options.role, as.options.role, false},
                {"page_tokens", of.options.page_tokens, as.options.page_tokens, false},
                {"layer_count", of.options.layer_count, as.options.layer_count, false},
                {"envelope_layout", of.options.envelope_layout, as.options.envelope_layout, false},
                {"k_row_bytes", of.options.k_row_bytes, as.options.k_row_bytes, true},
                {"v_row_bytes", of.options.v_row_bytes, as.options.v_row_bytes, true},
                {"page_bytes", of.options.page_bytes, as.options.page_bytes, true}};
  for (const auto &field : fields) {
    if (field.need == field.have) continue;
    fail(error, HICACHE_INVALID_ARGUMENT, line.target_pool,
         "target: pool %u has %s %" PRIu64 ", pool %u of the source needs %" PRIu64 ": pages go between pools of one layout",
         line.target_pool, field.name, field.have, line.source_pool, field.need);
    if (error != nullptr && field.bytes) error->need_bytes = field.need, error->have_bytes = field.have;
    return HICACHE_INVALID_ARGUMENT;
  }
  if (of.layer_ids == as.layer_ids) return HICACHE_OK;
  size_t at = 0;
  while (of.layer_ids[at] == as.layer_ids[at]) at++;
  return fail(error, HICACHE_INVALID_ARGUMENT, line.target_pool,
              "target: layer_ids[%zu] of pool %u is %u, pool %u of the source needs %u: pages go between pools of one layout", at,
              line.target_pool, as.layer_ids[at], line.source_pool, of.layer_ids[at]);
}

// A target that somebody holds may be read or written at any moment, unless the caller has said that it is in order behind the target's
// stream. Copies between the tiers are in order with nothing of the caller's.
Status HandOver::check_targets(bool may_be_held, ErrorDetail *error) const {
  Arena &arena = target_.engine.device();
  TransferTable &transfers = target_.engine.transfers();
  std::vector<uint32_t> held;
  for (const hicache_pages_t &line : target_.lines) {
    for (uint32_t i = 0; i < line.page_count; i++) {
      const uint32_t place = arena.place(line.pool, line.vpages[i]);
      if (place == HICACHE_NO_PAGE)
        return fail(error, HICACHE_NOT_MAPPED, line.pool, "target: pool %u: page %u has no page", line.pool, line.vpages[i]);
      uint8_t state = 0;
      if (Status status = arena.map(line.pool, place, 1, &state, error); status != HICACHE_OK) return of_side(target_, status, error);
      const bool arriving = transfers.arriving(line.pool, place), pinned = (state & HICACHE_PAGE_PINNED) != 0;
      if (may_be_held && pinned && !arriving) held.push_back(line.pool << 28 | place);
      if (!arriving && (may_be_held || !pinned)) continue;
      fail(error, HICACHE_BUSY, line.pool, "target: pool %u: page %u is held by a lease, an open step or a transfer", line.pool,
           line.vpages[i]);
      if (error == nullptr) return HICACHE_BUSY;
      error->blocking_pool = line.pool;
      error->blocking_page = place;
      transfers.name_blocking_ticket(Tier::kDevice, error);
      return HICACHE_BUSY;
    }
  }
  std::sort(held.begin(), held.end());
  const hicache_ticket_t reader = transfers.reader_of(held);
  if (reader == 0) return HICACHE_OK;
  fail(error, HICACHE_BUSY, HICACHE_NO_POOL, "target: a page is being read by the back-up of ticket 0x%" PRIx64, reader);
  if (error != nullptr) error->ticket = reader;
  return HICACHE_BUSY;
}

Status HandOver::check_sources(ErrorDetail *error) const {
  Arena &arena = source_.engine.device();
  for (const hicache_pages_t &line : source_.lines) {
    for (uint32_t i = 0; i < line.page_count; i++) {
      const uint32_t place = arena.place(line.pool, line.vpages[i]);
      if (place == HICACHE_NO_PAGE)
        return fail(error, HICACHE_NOT_MAPPED, line.pool, "source: pool %u: page %u has no page", line.pool, line.vpages[i]);
      if (!source_.engine.transfers().arriving(line.pool, place)) continue;
      fail(error, HICACHE_BUSY, line.pool, "source: pool %u: page %u is being written by a load or a hand-over", line.pool, line.vpages[i]);
      if (error == nullptr) return HICACHE_BUSY;
      error->blocking_pool = line.pool;
      error->blocking_page = place;
      source_.engine.transfers().name_blocking_ticket(Tier::kDevice, error);
      return HICACHE_BUSY;
    }
  }
  return HICACHE_OK;
}

// ---- Holding ----

void HandOver::read_lines(const hicache_hand_over_t &request) {
  size_t pages = 0;
  for (uint32_t i = 0; i < request.line_count; i++) {
    const hicache_hand_over_line_t &line = request.lines[i];
    source_.lines.push_back({line.source_pool, line.page_count, line.source_vpages});
    target_.lines.push_back({line.target_pool, line.page_count, line.target_vpages});
    pages += line.page_count;
  }
  copies_.reserve(pages); // Nothing may fail for want of memory while pages are held.
}

Status HandOver::hold(Side *side, bool out, uint64_t stream, ErrorDetail *error) {
  const uint64_t own = side->engine.backend().peer_stream(out);
  Status status = side->engine.backend().peer_follow(out, stream, error);
  if (status == HICACHE_OK) status = side->engine.step_open(own, side->lines, &side->step, error);
  if (status != HICACHE_OK) {
    side->step = 0;
    return of_side(*side, status, error);
  }
  OperationLog &log = side->engine.log();
  if (!log.begin(OperationLog::kStepOpen)) return HICACHE_OK;
  log.wide(own);
  log.pages(side->lines.data(), static_cast<uint32_t>(side->lines.size()));
  log.id(side->step);
  return log.end(HICACHE_OK);
}

Status HandOver::let_go(Side *side, ErrorDetail *error) {
  if (side->step == 0) return HICACHE_OK;
  const Status status = side->engine.step_close(side->step, error);
  if (status == HICACHE_OK && side->engine.log().begin(OperationLog::kStepClose)) {
    side->engine.log().id(side->step);
    side->engine.log().end(HICACHE_OK);
  }
  side->step = 0;
  return of_side(*side, status, error);
}

// The places of held pages, and that no target is among them twice.
Status HandOver::find_places(ErrorDetail *error) {
  for (size_t at = 0; at < source_.lines.size(); at++) {
    const hicache_pages_t &from = source_.lines[at], &to = target_.lines[at];
    for (uint32_t i = 0; i < from.page_count; i++) {
      const uint32_t place = source_.engine.device().place(from.pool, from.vpages[i]);
      const uint32_t target = target_.engine.device().place(to.pool, to.vpages[i]);
      if (!target_.engine.transfers().arriving(to.pool, target)) {
        target_.engine.transfers().begin_arrival(to.pool, target);
        copies_.push_back({from.pool, to.pool, PhysicalPage{place}, PhysicalPage{target}});
        continue;
      }
      mark_arrivals(false);
      return fail(error, HICACHE_INVALID_ARGUMENT, to.pool, "target: page %u of pool %u is named twice", to.vpages[i], to.pool);
    }
  }
  return HICACHE_OK;
}

void HandOver::mark_arrivals(bool begin) {
  TransferTable &transfers = target_.engine.transfers();
  for (const PeerCopy &copy : copies_)
    begin ? transfers.begin_arrival(copy.target_pool, raw(copy.target)) : transfers.end_arrival(copy.target_pool, raw(copy.target));
}

Status HandOver::begin(const hicache_hand_over_t &request, ErrorDetail *error) {
  if (Status status = check_engines(error); status != HICACHE_OK) return status;
  for (uint32_t i = 0; i < request.line_count; i++)
    if (Status status = check_layouts(request.lines[i], error); status != HICACHE_OK) return status;
  const bool may_be_held = (request.flags & HICACHE_HAND_OVER_HELD) != 0;
  if (Status status = check_targets(may_be_held, error); status != HICACHE_OK) return status;
  if (Status status = check_sources(error); status != HICACHE_OK) return status;
  if (Status status = source_.engine.backend().peer_connect(target_.engine.backend(), error); status != HICACHE_OK) return status;
  const bool nothing = std::all_of(source_.lines.begin(), source_.lines.end(), [](const auto &line) { return line.page_count == 0; });
  if (nothing) return HICACHE_OK;
  Status status = hold(&source_, true, request.source_stream, error);
  if (status == HICACHE_OK) status = hold(&target_, false, request.target_stream, error);
  if (status == HICACHE_OK) status = find_places(error);
  if (status == HICACHE_OK) return HICACHE_OK;
  let_go(&source_, nullptr);
  let_go(&target_, nullptr);
  return status;
}

void HandOver::count() {
  uint64_t bytes = 0;
  for (const PeerCopy &copy : copies_) bytes += source_.engine.geometry(copy.source_pool).options.page_bytes;
  source_.engine.count_handed_over(bytes);
  target_.engine.count_received(bytes);
}

Status HandOver::run(const hicache_hand_over_t &request, ErrorDetail *error) {
  read_lines(request);
  Status status;
  const bool host_copies = source_.engine.backend_kind() == HICACHE_BACKEND_CPU;
  {
    BothLocks locks(source_.engine, target_.engine);
    try {
      status = begin(request, error);
      if (status != HICACHE_OK || copies_.empty()) return status;
      count();
      if (!host_copies) {
        status = source_.engine.backend().peer_copy(target_.engine.backend(), copies_, error);
        status = of_side(target_.engine.backend().poisoned() ? target_ : source_, status, error);
      }
    } catch (...) { // No memory: nobody will come back for these steps. The backend has waited for what it had begun.
      mark_arrivals(false);
      let_go(&source_, nullptr);
      let_go(&target_, nullptr);
      throw;
    }
    if (!host_copies) {
      mark_arrivals(false);
      if (status == HICACHE_OK && (request.flags & HICACHE_HAND_OVER_HELD) != 0)
        status = of_side(target_, target_.engine.backend().peer_lead(request.target_stream, error), error);
      const Status left = let_go(&source_, status == HICACHE_OK ? error : nullptr);
      if (status == HICACHE_OK) status = left;
      const Status arrived = let_go(&target_, status == HICACHE_OK ? error : nullptr);
      return status == HICACHE_OK ? arrived : status;
    }
  }
  // The locks have been let go, and with them page work on these pages has ended.
  status = source_.engine.backend().peer_copy(target_.engine.backend(), copies_, error);
  {
    EngineLock lock(target_.engine);
    mark_arrivals(false);
    if (const Status arrived = let_go(&target_, error); status == HICACHE_OK) status = arrived;
  }
  EngineLock lock(source_.engine);
  const Status left = let_go(&source_, error);
  return status == HICACHE_OK ? left : status;
}

} // namespace hicache
