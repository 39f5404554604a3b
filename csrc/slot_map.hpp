// Records behind generation-checked 64-bit ids: a stale id finds nothing, ever. Sized once; free slots are reused oldest first, so that
// a generation takes as long as possible to come round.
//
// Id: engine serial (12 bits) | generation (28) | kind (4) | slot (20). The generation is never 0, hence no id is 0.
#pragma once

#include <cstdint>
#include <vector>

namespace hicache {

enum class IdKind : uint32_t { kLease = 1, kStep, kReservation, kTicket, kHostLease, kHostStep, kHostReservation };

template <typename Record> class SlotMap {
public:
  static constexpr uint32_t kSlotMax = 1u << 20;

  void open(uint32_t capacity, IdKind kind, uint32_t engine_serial) {
    slots_.assign(capacity, Slot{});
    kind_ = static_cast<uint64_t>(kind);
    serial_ = engine_serial & 0xfffu;
    held_ = 0;
    head_ = 0;
    for (uint32_t i = 0; i < capacity; i++) slots_[i].next_free = i + 1;
    tail_ = capacity == 0 ? 0 : capacity - 1;
    free_ = capacity;
  }

  bool full() const { return free_ == 0; }
  uint32_t held() const { return held_; }
  uint32_t capacity() const { return static_cast<uint32_t>(slots_.size()); }
  uint64_t bytes() const { return slots_.size() * sizeof(Slot); }

  // Takes a slot; its record is default-constructed. Precondition: not full.
  uint64_t insert(Record **record_out) {
    const uint32_t index = head_;
    Slot &slot = slots_[index];
    head_ = slot.next_free;
    free_--;
    held_++;
    slot.held = true;
    slot.record = Record{};
    *record_out = &slot.record;
    return id_of(index);
  }

  // The record of a held id; null if it is stale, of another kind or engine, or never was.
  Record *find(uint64_t id) {
    const uint64_t index = id & (kSlotMax - 1);
    if (index >= slots_.size() || !slots_[index].held || id_of(static_cast<uint32_t>(index)) != id) return nullptr;
    return &slots_[index].record;
  }
  const Record *find(uint64_t id) const { return const_cast<SlotMap *>(this)->find(id); }

  // `id` is held.
  void erase(uint64_t id) {
    const auto index = static_cast<uint32_t>(id & (kSlotMax - 1));
    Slot &slot = slots_[index];
    slot.held = false;
    slot.generation = slot.generation + 1 < kGenerations ? slot.generation + 1 : 1;
    if (free_ == 0) head_ = index;
    else slots_[tail_].next_free = index;
    tail_ = index;
    free_++;
    held_--;
  }

  // Calls visit(id, record) for every held record, in slot order. O(capacity).
  template <typename Visit> void each(Visit visit) const {
    for (uint32_t i = 0; i < slots_.size(); i++)
      if (slots_[i].held) visit(id_of(i), slots_[i].record);
  }

private:
  static constexpr uint64_t kGenerations = uint64_t{1} << 28;

  struct Slot {
    Record record{};
    uint64_t generation = 1;
    uint32_t next_free = 0;
    bool held = false;
  };

  uint64_t id_of(uint32_t index) const { return serial_ << 52 | slots_[index].generation << 24 | kind_ << 20 | index; }

  std::vector<Slot> slots_;
  uint64_t kind_ = 0, serial_ = 0;
  uint32_t head_ = 0, tail_ = 0, free_ = 0, held_ = 0;
};

} // namespace hicache
