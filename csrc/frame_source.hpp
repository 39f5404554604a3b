// Which holes of a pool a take gets, in which order.
#pragma once

#include "pool.hpp"

namespace hicache {

// Hands out `count` holes of a pool that has as many. An up end and a float give their lowest, a down end its highest: those nearest its
// own end. The device hands them out ascending, so that pages of one take make ascending runs; the host nearest the end first.
class FrameSource {
public:
  FrameSource() = default;
  FrameSource(Pool *pool, uint32_t count, bool host) : pool_(pool), from_(pool->low) { // No hole lies below: a shorter way to the first.
    const bool down = pool->direction == HICACHE_DIRECTION_DOWN;
    descending_ = down && host;
    if (down && !host && count > 0 && count < pool->holes.size()) from_ = pool->holes.nth_highest(count);
  }
  void next(uint32_t count, uint32_t *frames_out) { drain(count, frames_out, nullptr); }
  // For names, which they get: the frames are live afterwards.
  void next_live(uint32_t count, const uint32_t *names, uint32_t *frames_out) {
#ifdef HICACHE_SABOTAGE
    drain(count, frames_out, nullptr); // A hole may have pins, left by IGNORE_PINS.
    pool_->holes_become_live(names, frames_out, count);
#else
    drain(count, frames_out, &pool_->movable);
    pool_->bind_live(names, frames_out, count);
#endif
  }

private:
  void drain(uint32_t count, uint32_t *frames_out, HoleSet *into) {
    if (descending_) pool_->holes.drain_highest(count, frames_out, into);
    else pool_->holes.drain_from(from_, count, frames_out, into);
  }
  Pool *pool_ = nullptr;
  uint32_t from_ = 0;
  bool descending_ = false;
};

} // namespace hicache
