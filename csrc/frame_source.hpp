// Which holes of a pool a take gets, in which order.
#pragma once

#include "pool.hpp"

namespace hicache {

// Hands out `count` holes of a pool that has as many. An up end and a float give their lowest, a down end its highest: those nearest its
// own end. The device hands them out ascending, so that pages of one take make ascending runs; the host nearest the end first.
class FrameSource {
public:
  FrameSource() = default;
  FrameSource(Pool *pool, uint32_t count, bool host) : pool_(pool) {
    const bool down = pool->direction == HICACHE_DIRECTION_DOWN;
    descending_ = down && host;
    if (down && !host && count > 0 && count < pool->holes.size()) from_ = pool->holes.nth_highest(count);
  }
  void next(uint32_t count, uint32_t *frames_out) {
    if (descending_) pool_->holes.drain_highest(count, frames_out);
    else pool_->holes.drain_from(from_, count, frames_out);
  }

private:
  Pool *pool_ = nullptr;
  uint32_t from_ = 0;
  bool descending_ = false;
};

} // namespace hicache
