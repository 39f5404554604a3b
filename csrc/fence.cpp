#include "fence.hpp"

#include <algorithm>

namespace hicache {
namespace {

constexpr uint32_t kIndexSize = 8192; // At most half full.
static_assert(kIndexSize >= 2 * Streams::kSlotMax);

uint32_t bucket_of(uint64_t stream) { return static_cast<uint32_t>((stream * 0x9e3779b97f4a7c15ull) >> 40) & (kIndexSize - 1); }

} // namespace

void Streams::open(const WorkBoard *board) {
  board_ = board;
  slots_.assign(kSlotMax, Slot{});
  index_.assign(kIndexSize, 0);
  used_ = kMoverSlot + 1;
}

// The index cell that holds the stream's slot, or the empty one where it belongs.
uint32_t *Streams::find(uint64_t stream) {
  uint32_t bucket = bucket_of(stream);
  while (index_[bucket] != 0 && slots_[index_[bucket]].stream != stream) bucket = (bucket + 1) & (kIndexSize - 1);
  return &index_[bucket];
}

void Streams::rebuild_index() {
  std::fill(index_.begin(), index_.end(), 0u);
  for (uint32_t slot = kMoverSlot + 1; slot < used_; slot++) *find(slots_[slot].stream) = slot;
}

uint32_t Streams::slot_of(uint64_t stream) {
  uint32_t *cell = find(stream);
  if (*cell != 0) return *cell;
  if (used_ < kSlotMax) {
    slots_[used_].stream = stream;
    *cell = used_;
    return used_++;
  }
  const uint32_t slot = idle_slot();
  if (slot == 0) return 0;
  slots_[slot].stream = stream;
  rebuild_index();
  return slot;
}

uint32_t Streams::idle_slot() const {
  for (uint32_t slot = kMoverSlot + 1; slot < used_; slot++)
    if (slots_[slot].issued == slots_[slot].passed && slots_[slot].open_steps == 0) return slot;
  return 0;
}

void Streams::passed(FenceMark mark) {
  if (mark.slot() == 0 || mark.slot() >= used_) return;
  Slot &slot = slots_[mark.slot()];
  slot.passed = std::max(slot.passed, std::min(mark.sequence(), slot.issued));
}

void WaitSet::open() {
  best_.assign(Streams::kSlotMax, 0);
  marks_.reserve(Streams::kSlotMax + WorkBoard::kSlots);
}

void WaitSet::clear(uint32_t except_slot) {
  for (const FenceMark mark : marks_) best_[mark.slot()] = 0;
  marks_.clear();
  mover_marks_ = 0;
  except_slot_ = except_slot;
}

void WaitSet::add(FenceMark mark, const Streams &streams) {
  if (!mark || mark.slot() == except_slot_ || !streams.pending(mark)) return;
  if (mark.slot() == kMoverSlot) {
    if (!streams.mover_ordered()) { // None stands for another: each is kept.
      if (std::find(marks_.begin(), marks_.end(), mark) != marks_.end()) return;
      marks_.push_back(mark);
      mover_marks_++;
      return;
    }
    mover_marks_ = 1;
  }
  uint32_t &best = best_[mark.slot()];
  if (best == 0) {
    marks_.push_back(mark);
    best = static_cast<uint32_t>(marks_.size());
  } else if (marks_[best - 1].sequence() < mark.sequence()) {
    marks_[best - 1] = mark;
  }
}

void FenceOverflow::open(uint32_t node_count) {
  nodes_.assign(node_count, Node{});
  free_head_ = node_count > 0 ? 0 : kEnd;
  for (uint32_t i = 0; i < node_count; i++) nodes_[i].next = i + 1 < node_count ? i + 1 : kEnd;
}

uint32_t FenceOverflow::take_node(FenceMark mark, uint32_t next) {
  const uint32_t node = free_head_;
  free_head_ = nodes_[node].next;
  nodes_[node] = {mark, next};
  return node;
}

PageFence FenceOverflow::join(PageFence fence, FenceMark mark, const Streams &streams, bool *widened) {
  if (fence.slot() == PageFence::kAllSlot) return fence;
  const bool in_order = streams.in_order(mark.slot());
  const auto implied = [&](FenceMark old) { return in_order ? old.slot() == mark.slot() : old == mark; };
  if (fence.slot() != PageFence::kListSlot) {
    const FenceMark old = streams.mark_of(fence);
    if (!fence || implied(old) || !streams.pending(old)) return PageFence::of(mark);
    const uint32_t second = free_head_;
    if (second == kEnd || nodes_[second].next == kEnd) {
      *widened = true;
      return PageFence::make(PageFence::kAllSlot, 0);
    }
    const uint32_t tail = take_node(old, kEnd);
    return PageFence::make(PageFence::kListSlot, take_node(mark, tail));
  }
  // A node of the same stream is used again, or else one that has passed.
  for (uint32_t node = fence.low(); node != kEnd; node = nodes_[node].next) {
    if (!implied(nodes_[node].mark)) continue;
    nodes_[node].mark = mark;
    return fence;
  }
  for (uint32_t node = fence.low(); node != kEnd; node = nodes_[node].next) {
    if (streams.pending(nodes_[node].mark)) continue;
    nodes_[node].mark = mark;
    return fence;
  }
  if (free_head_ == kEnd) {
    drop(fence);
    *widened = true;
    return PageFence::make(PageFence::kAllSlot, 0);
  }
  return PageFence::make(PageFence::kListSlot, take_node(mark, fence.low()));
}

void FenceOverflow::drop_list(uint32_t head) {
  for (uint32_t node = head; node != kEnd;) {
    const uint32_t next = nodes_[node].next;
    nodes_[node] = {FenceMark{}, free_head_};
    free_head_ = node;
    node = next;
  }
}

void FenceOverflow::collect(PageFence fence, const Streams &streams, WaitSet *waits) const {
  if (fence.slot() == PageFence::kAllSlot) {
    if (!streams.mover_ordered())
      streams.board()->each([&](uint64_t sequence) { waits->add(FenceMark::make(kMoverSlot, sequence), streams); });
    for (uint32_t slot = kMoverSlot; slot < streams.used(); slot++) waits->add(streams.latest(slot), streams);
    return;
  }
  if (fence.slot() != PageFence::kListSlot) {
    waits->add(streams.mark_of(fence), streams);
    return;
  }
  for (uint32_t node = fence.low(); node != kEnd; node = nodes_[node].next) waits->add(nodes_[node].mark, streams);
}

} // namespace hicache
