// Which closed steps (and moves, zeroings) used a page: a mark a page, and a small shared table for pages that several streams used.
// A move of a page waits for that page's marks and for no others.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mover.hpp"
#include "work_board.hpp"

namespace hicache {

// What a page remembers: a stream slot (12 bits) and the low 20 bits of a sequence, or a list of several streams. A page that a stream has
// not used for 2^20 steps is taken for used later than it was: a wait on that stream that is longer than need be, never one too few.
struct PageFence {
  uint32_t bits = 0; // 0: no fence.

  static constexpr uint32_t kLowBits = 20, kLowMask = (1u << kLowBits) - 1;
  static constexpr uint32_t kListSlot = 0xfff; // The low bits are the first node of a list.
  static constexpr uint32_t kAllSlot = 0xffe;  // All streams, as far as they have got.
  static constexpr PageFence make(uint32_t slot, uint32_t low) { return {slot << kLowBits | low}; }
  static constexpr PageFence of(FenceMark mark) { return make(mark.slot(), static_cast<uint32_t>(mark.sequence()) & kLowMask); }
  constexpr uint32_t slot() const { return bits >> kLowBits; }
  constexpr uint32_t low() const { return bits & kLowMask; }
  constexpr explicit operator bool() const { return bits != 0; }
};

// Streams known to one arena, and how far each has got.
class Streams {
public:
  static constexpr uint32_t kSlotMax = PageFence::kAllSlot; // Slots 1..kSlotMax - 1; slot 1 is the mover's.

  // With a board (not owned) the mover's marks pass in any order, and the board says which have.
  void open(const WorkBoard *board);
  bool mover_ordered() const { return board_ == nullptr; }
  // Whether a later mark of the slot stands for all earlier ones.
  bool in_order(uint32_t slot) const { return slot != kMoverSlot || board_ == nullptr; }
  const WorkBoard *board() const { return board_; }
  // The slot of a stream, made if need be by taking over one whose work has all ended. 0 if there is none to be had.
  uint32_t slot_of(uint64_t stream);
  uint64_t stream_of(uint32_t slot) const { return slot < used_ ? slots_[slot].stream : 0; }
  // Whether there is none to be had until more work is known to have passed.
  bool lacks_slot(uint64_t stream) { return used_ == kSlotMax && *find(stream) == 0 && idle_slot() == 0; }
  // The mark of the next piece of work of a slot, without and with beginning it.
  FenceMark next(uint32_t slot) const { return FenceMark::make(slot, slots_[slot].issued + 1); }
  FenceMark issue(uint32_t slot) { return FenceMark::make(slot, ++slots_[slot].issued); }
  void passed(FenceMark mark);
  // An open step keeps its slot from being taken over.
  void open_step(uint32_t slot) { slots_[slot].open_steps++; }
  void close_step(uint32_t slot) { slots_[slot].open_steps--; }
  bool pending(FenceMark mark) const {
    if (board_ != nullptr && mark.slot() == kMoverSlot) return board_->in_work(mark.sequence());
    return mark.sequence() > slots_[mark.slot()].passed;
  }
  // The latest mark of the slot that a page can mean by this.
  FenceMark mark_of(PageFence fence) const {
    const uint64_t issued = slots_[fence.slot()].issued;
    const uint64_t sequence = (issued & ~uint64_t{PageFence::kLowMask}) | fence.low();
    return FenceMark::make(fence.slot(), sequence <= issued ? sequence : sequence - (uint64_t{1} << PageFence::kLowBits));
  }
  // Whether any stream may still be at work. O(streams).
  bool any_pending() const {
    for (uint32_t slot = kMoverSlot; slot < used_; slot++)
      if (slots_[slot].issued > slots_[slot].passed) return true;
    return false;
  }
  FenceMark latest(uint32_t slot) const { return FenceMark::make(slot, slots_[slot].issued); }
  uint32_t used() const { return used_; }
  uint64_t bytes() const { return slots_.size() * sizeof(Slot) + index_.size() * sizeof(uint32_t); }

private:
  struct Slot {
    uint64_t stream = 0;
    uint64_t issued = 0; // Never reset, also when another stream takes the slot over: old marks stay passed.
    uint64_t passed = 0;
    uint32_t open_steps = 0;
  };
  uint32_t *find(uint64_t stream);
  uint32_t idle_slot() const; // Whose work has all ended; 0 if none has.
  void rebuild_index();

  std::vector<Slot> slots_;
  std::vector<uint32_t> index_; // Slots, open addressing by stream; 0 is empty.
  uint32_t used_ = 0;
  const WorkBoard *board_ = nullptr;
};

// Collects marks, the latest of each slot, leaving out one slot (whose stream keeps its own order) and what has passed.
class WaitSet {
public:
  void open();
  void clear(uint32_t except_slot);
  void add(FenceMark mark, const Streams &streams);
  bool leaves_out(uint32_t slot) const { return slot == except_slot_; }
  std::span<const FenceMark> marks() const { return marks_; }
  // How many of them are of callers' streams.
  uint64_t stream_marks() const { return marks_.size() - mover_marks_; }
  uint64_t bytes() const { return best_.size() * sizeof(uint32_t) + marks_.capacity() * sizeof(FenceMark); }

private:
  std::vector<FenceMark> marks_; // Capacity reserved: at most one a slot, and all that a board can hold.
  std::vector<uint32_t> best_;   // Per slot, 1 + index into marks_; 0 none.
  uint32_t except_slot_ = 0;
  uint64_t mover_marks_ = 0;
};

// Marks of pages that several streams used: lists of nodes, shared by the pools of an arena.
class FenceOverflow {
public:
  static constexpr uint32_t kNodeMax = PageFence::kLowMask;
  void open(uint32_t node_count);
  uint64_t bytes() const { return nodes_.size() * sizeof(Node); }

  // What a page's fence becomes when `mark` joins it, the latest of its stream. *widened is set if the nodes have run out: the page then
  // waits for all streams.
  PageFence join(PageFence fence, FenceMark mark, const Streams &streams, bool *widened);
  // The page has no use for it any more: frees its nodes.
  void drop(PageFence fence) {
    if (fence.slot() == PageFence::kListSlot) drop_list(fence.low());
  }
  // Adds all its pending marks to `waits`.
  void collect(PageFence fence, const Streams &streams, WaitSet *waits) const;

private:
  static constexpr uint32_t kEnd = UINT32_MAX;
  struct Node {
    FenceMark mark;
    uint32_t next = kEnd;
  };
  uint32_t take_node(FenceMark mark, uint32_t next);
  void drop_list(uint32_t head);

  std::vector<Node> nodes_;
  uint32_t free_head_ = kEnd;
};

} // namespace hicache
