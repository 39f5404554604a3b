// Which closed steps (and moves, zeroings) used a page: a mark a page, and a small shared table for pages that several streams used.
// A move of a page waits for that page's marks and for no others.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mover.hpp"

namespace hicache {

// Streams known to one arena, and how far each has got.
class Streams {
public:
  static constexpr uint32_t kSlotMax = 4096; // Slots 1..kSlotMax - 1; slot 1 is the mover's.

  void open();
  // The slot of a stream, made if need be by taking over one whose work has all ended. 0 if there is none to be had.
  uint32_t slot_of(uint64_t stream);
  uint64_t stream_of(uint32_t slot) const { return slot < used_ ? slots_[slot].stream : 0; }
  // The mark of the next piece of work of a slot.
  FenceMark issue(uint32_t slot) { return FenceMark::make(slot, ++slots_[slot].issued); }
  void passed(FenceMark mark);
  // An open step keeps its slot from being taken over.
  void open_step(uint32_t slot) { slots_[slot].open_steps++; }
  void close_step(uint32_t slot) { slots_[slot].open_steps--; }
  bool pending(FenceMark mark) const { return mark.sequence() > slots_[mark.slot()].passed; }
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
  void rebuild_index();

  std::vector<Slot> slots_;
  std::vector<uint32_t> index_; // Slots, open addressing by stream; 0 is empty.
  uint32_t used_ = 0;
};

// Collects marks, the latest of each slot, leaving out one slot (whose stream keeps its own order) and what has passed.
class WaitSet {
public:
  void open();
  void clear(uint32_t except_slot);
  void add(FenceMark mark, const Streams &streams);
  std::span<const FenceMark> marks() const { return marks_; }
  uint64_t bytes() const { return best_.size() * sizeof(uint32_t) + marks_.capacity() * sizeof(FenceMark); }

private:
  std::vector<FenceMark> marks_;  // Capacity reserved: at most one a slot.
  std::vector<uint32_t> best_;    // Per slot, 1 + index into marks_; 0 none.
  uint32_t except_slot_ = 0;
};

// Marks of pages that several streams used: lists of nodes, shared by the pools of an arena.
class FenceOverflow {
public:
  void open(uint32_t node_count);
  uint64_t bytes() const { return nodes_.size() * sizeof(Node); }

  // What `page_fence` becomes when `mark` joins it. *widened is set if the nodes have run out: the page then waits for all streams.
  FenceMark join(FenceMark page_fence, FenceMark mark, const Streams &streams, bool *widened);
  // What is left of it: frees its nodes.
  void drop(FenceMark page_fence);
  // Adds all its pending marks to `waits`.
  void collect(FenceMark page_fence, const Streams &streams, WaitSet *waits) const;

private:
  static constexpr uint32_t kListSlot = 0xffff; // The sequence is the first node of a list.
  static constexpr uint32_t kAllSlot = 0xfffe;  // All streams, as far as they had got.
  static constexpr uint32_t kEnd = UINT32_MAX;
  struct Node {
    FenceMark mark;
    uint32_t next = kEnd;
  };
  uint32_t take_node(FenceMark mark, uint32_t next);

  std::vector<Node> nodes_;
  uint32_t free_head_ = kEnd;
};

} // namespace hicache
