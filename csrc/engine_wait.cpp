// Waiting for transfers: completions, layers.
#include "copy_queue.hpp"
#include "engine.hpp"

namespace hicache {

Status Engine::completion_wait(uint64_t timeout_ns, hicache_completion_t *completions_out, uint32_t capacity, uint32_t *count_out,
                               ErrorDetail *error) {
  CompletionRing &ring = transfers_->ring();
  const uint64_t now = steady_now_ns();
  const uint64_t deadline = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
  for (;;) {
    const uint64_t looks = ring.look_count();
    // With fault injection transfers run here, one at a time, so that the caller sees each end before the next begins.
    while (ring.empty() && backend_->run_inside(1, false, false) > 0) {}
    if (!ring.empty()) {
      EngineLock lock(*this);
      *count_out = read_completions(completions_out, capacity);
      if (*count_out > 0 || capacity == 0) return HICACHE_OK;
    }
    if (Status status = check_poison(error); status != HICACHE_OK) return status;
    switch (ring.wait(deadline, looks)) {
      case CompletionRing::Wake::kReady:
      case CompletionRing::Wake::kLook: continue;
      case CompletionRing::Wake::kTimeout:
      case CompletionRing::Wake::kWoken: *count_out = 0; return HICACHE_OK;
      case CompletionRing::Wake::kClosed: return fail(error, HICACHE_CLOSED, HICACHE_NO_POOL, "the engine is closing");
    }
  }
}

uint32_t Engine::read_completions(hicache_completion_t *completions_out, uint32_t capacity) {
  const uint32_t count = transfers_->read(completions_out, capacity);
  if (count > 0 && log_.begin(OperationLog::kCompletions)) {
    log_.completions(completions_out, count);
    log_.end(HICACHE_OK);
  }
  return count;
}

Status Engine::fault_finish(hicache_ticket_t ticket, bool fails, ErrorDetail *error) {
  if (!backend_->virtual_clock()) return fail(error, HICACHE_UNSUPPORTED, HICACHE_NO_POOL, "the engine was opened without fault injection");
  uint32_t slot;
  {
    EngineLock lock(*this);
    if (Status status = transfers_->slot_of_ticket(ticket, &slot, error); status != HICACHE_OK) return status;
  }
  backend_->finish_job(slot, fails);
  return HICACHE_OK;
}

Status Engine::layer_wait(hicache_ticket_t ticket, uint32_t layer, uint64_t stream, ErrorDetail *error) {
  uint32_t slot;
  {
    std::lock_guard lock(mutex);
    const Status status = transfers_->layer_wait_begin(ticket, layer, &slot, error);
    if (status != HICACHE_OK || slot == kNoSlot) return status;
  }
  const Status waited = backend_->layer_wait(slot, layer, stream, error);
  std::lock_guard lock(mutex);
  const Status ended = transfers_->layer_wait_end(slot, waited == HICACHE_OK ? error : nullptr);
  return waited != HICACHE_OK ? waited : ended;
}

Status Engine::layer_word(hicache_ticket_t ticket, uint32_t layer, uint64_t *address_out, uint32_t *expected_out, ErrorDetail *error) {
  std::lock_guard lock(mutex);
  uint32_t slot;
  if (Status status = transfers_->slot_of_ticket(ticket, &slot, error); status != HICACHE_OK) return status;
  if (layer >= layers_.layer_limit())
    return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "layer is %u, the highest is %u", layer, layers_.layer_limit() - 1);
  return backend_->layer_word(slot, layer, address_out, expected_out, error);
}

} // namespace hicache
