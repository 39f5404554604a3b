// The arena's hands: moves, copies and zeroes pages, on the device and behind fences. The engine implements it over a backend; tests
// implement it by counting.
#pragma once

#include <cstdint>
#include <span>

#include "ids.hpp"
#include "status.hpp"

namespace hicache {

// The end of one piece of device work: the sequence-th closed step (or move, or zeroing) of one stream. Marks of one stream pass in
// order. Issued by the arena; the engine keeps the event behind each.
struct FenceMark {
  uint64_t bits = 0; // Stream slot in the upper 16 bits, sequence in the lower 48; 0 is no fence.

  static constexpr FenceMark make(uint32_t slot, uint64_t sequence) { return {uint64_t{slot} << 48 | sequence}; }
  constexpr uint32_t slot() const { return static_cast<uint32_t>(bits >> 48); }
  constexpr uint64_t sequence() const { return bits & ((uint64_t{1} << 48) - 1); }
  constexpr explicit operator bool() const { return bits != 0; }
  friend constexpr bool operator==(FenceMark, FenceMark) = default;
};

// The slot of the library's own stream, on which moves, copies and zeroings run, in the order in which they were asked for.
inline constexpr uint32_t kMoverSlot = 1;

struct PageMove {
  uint32_t pool;
  PhysicalPage source;
  PhysicalPage destination;
};

struct PageZero {
  uint32_t pool;
  PhysicalPage page;
  uint32_t first_token; // Rows from this token on; 0 is the whole page envelope, padding included.
};

struct PageCopy {
  uint32_t pool;
  PhysicalPage source;
  PhysicalPage destination;
  uint32_t token_count; // Rows [0, token_count) of every layer.
};

// All calls come with the engine's lock held and must not call back into the arena. None may wait on the host for the device: work is
// queued behind `waits` (empty most of the time, at most one mark a stream), and `done` names its end.
// A failure (DEVICE) poisons the engine; the tables then still describe the state before the call.
class Mover {
public:
  virtual ~Mover() = default;

  // No page is both a source and a destination, or either twice. The arena patches its tables after the call has returned OK.
  virtual Status move_pages(std::span<const PageMove> moves, std::span<const FenceMark> waits, FenceMark done, ErrorDetail *error) = 0;
  virtual Status zero_pages(std::span<const PageZero> zeros, std::span<const FenceMark> waits, FenceMark done, ErrorDetail *error) = 0;
  virtual Status copy_pages(std::span<const PageCopy> copies, std::span<const FenceMark> waits, FenceMark done, ErrorDetail *error) = 0;
  // The device's mirror of a pool's virtual table: vpages[i] is at ppages[i] now (HICACHE_NO_PAGE: nowhere). Behind `waits`, the steps that
  // used pages given back since, and behind the moves asked for so far.
  virtual Status table_changed(uint32_t, std::span<const uint32_t>, std::span<const uint32_t>, std::span<const FenceMark>, ErrorDetail *) {
    return HICACHE_OK;
  }
};

} // namespace hicache
