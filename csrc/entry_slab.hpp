// Held pages of all holders (leases, steps, reservations, tickets) in one slab of chunks, sized at open. An entry is a pool (4 bits) and
// a page (28 bits).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "arena.hpp"

namespace hicache {

class EntrySlab {
public:
  static constexpr uint32_t kChunkEntries = 14; // A chunk is 64 bytes.

  static uint32_t entry(uint32_t pool, uint32_t page) { return pool << 28 | page; }
  static uint32_t pool_of(uint32_t entry) { return entry >> 28; }
  static uint32_t page_of(uint32_t entry) { return entry & ((1u << 28) - 1); }

  // Room for so many entries in up to so many lists.
  void open(uint64_t entry_count, uint64_t list_count) {
    const auto chunks = static_cast<uint32_t>((entry_count + kChunkEntries - 1) / kChunkEntries + list_count);
    chunks_.resize(chunks);
    free_head_ = kEnd;
    free_count_ = 0;
    fresh_ = 0; // Chunks from here on were never used: their memory is not touched before it is needed.
  }

  // Whether one new list of so many entries (and a second one) finds room.
  bool has_room(uint64_t entries, uint64_t second = 0) const {
    const uint64_t chunks = (entries + kChunkEntries - 1) / kChunkEntries + (second + kChunkEntries - 1) / kChunkEntries;
    return chunks <= free_chunks();
  }

  // Likewise, once these two lists have been released.
  bool has_room_after(const PinList &first, const PinList &second, uint64_t entries) const {
    const uint64_t released =
        (uint64_t{first.count} + kChunkEntries - 1) / kChunkEntries + (uint64_t{second.count} + kChunkEntries - 1) / kChunkEntries;
    return (entries + kChunkEntries - 1) / kChunkEntries <= free_chunks() + released;
  }

  // There is room.
  void append(PinList *list, uint32_t entry) {
    if (list->tail == kEnd || chunks_[list->tail].count == kChunkEntries) {
      const uint32_t chunk = take();
      if (list->tail == kEnd) list->head = chunk;
      else chunks_[list->tail].next = chunk;
      list->tail = chunk;
    }
    Chunk &chunk = chunks_[list->tail];
    chunk.entries[chunk.count++] = entry;
    list->count++;
  }

  // Likewise, pages of one pool.
  void append_all(PinList *list, uint32_t pool, const uint32_t *pages, uint32_t count) {
    list->count += count;
    while (count > 0) {
      if (list->tail == kEnd || chunks_[list->tail].count == kChunkEntries) {
        const uint32_t fresh = take();
        if (list->tail == kEnd) list->head = fresh;
        else chunks_[list->tail].next = fresh;
        list->tail = fresh;
      }
      Chunk &chunk = chunks_[list->tail];
      const uint32_t n = std::min(count, kChunkEntries - chunk.count);
      for (uint32_t i = 0; i < n; i++) chunk.entries[chunk.count + i] = entry(pool, pages[i]);
      chunk.count += n;
      pages += n;
      count -= n;
    }
  }

  // Adds one list to the end of another and empties it. Where they meet a chunk may stay part empty.
  void join(PinList *list, PinList *end) {
    if (end->count == 0) return;
    if (list->count == 0) {
      *list = *end;
    } else {
      chunks_[list->tail].next = end->head;
      list->tail = end->tail;
      list->count += end->count;
    }
    *end = PinList{};
  }

  // Whether the list's entries are the first of these pages, in order.
  bool begins(const PinList &list, uint32_t pool, const int32_t *pages) const {
    for (uint32_t chunk = list.head; chunk != kEnd; chunk = chunks_[chunk].next) {
      const Chunk &c = chunks_[chunk];
      uint32_t differs = 0;
      for (uint32_t i = 0; i < c.count; i++) differs |= c.entries[i] ^ entry(pool, static_cast<uint32_t>(pages[i]));
      if (differs != 0) return false;
      pages += c.count;
    }
    return true;
  }

  // Gives the list's chunks back and empties it. O(chunks).
  void release(PinList *list) {
    for (uint32_t chunk = list->head; chunk != kEnd;) {
      const uint32_t next = chunks_[chunk].next;
      chunks_[chunk].next = free_head_;
      free_head_ = chunk;
      free_count_++;
      chunk = next;
    }
    *list = PinList{};
  }

  // Calls visit(entry) in the order of appending, until it returns false.
  template <typename Visit> void each_while(const PinList &list, Visit visit) const {
    for (uint32_t chunk = list.head; chunk != kEnd; chunk = chunks_[chunk].next)
      for (uint32_t i = 0; i < chunks_[chunk].count; i++)
        if (!visit(chunks_[chunk].entries[i])) return;
  }
  template <typename Visit> void each(const PinList &list, Visit visit) const {
    each_while(list, [&](uint32_t entry) {
      visit(entry);
      return true;
    });
  }

  // Reads a list from its first entry of one pool on. Entries of a pool follow one another.
  class Cursor {
  public:
    Cursor() = default;
    Cursor(const EntrySlab *slab, const PinList &list, uint32_t pool) : slab_(slab), chunk_(list.head) {
      while (chunk_ != kEnd && pool_of(slab_->chunks_[chunk_].entries[i_]) != pool) advance();
    }
    uint32_t next_page() { // There is one.
      const uint32_t page = page_of(slab_->chunks_[chunk_].entries[i_]);
      advance();
      return page;
    }

  private:
    void advance() {
      if (++i_ < slab_->chunks_[chunk_].count) return;
      i_ = 0;
      chunk_ = slab_->chunks_[chunk_].next;
    }
    const EntrySlab *slab_ = nullptr;
    uint32_t chunk_ = UINT32_MAX, i_ = 0;
  };

  uint64_t bytes() const { return chunks_.size() * sizeof(Chunk); }
  uint64_t free_chunks() const { return free_count_ + (chunks_.size() - fresh_); }

private:
  static constexpr uint32_t kEnd = UINT32_MAX;
  struct Chunk {
    uint32_t next, count;
    uint32_t entries[kChunkEntries];
  };

  uint32_t take() {
    uint32_t chunk;
    if (free_head_ != kEnd) {
      chunk = free_head_;
      free_head_ = chunks_[chunk].next;
      free_count_--;
    } else {
      chunk = fresh_++;
    }
    chunks_[chunk].next = kEnd;
    chunks_[chunk].count = 0;
    return chunk;
  }

  std::vector<Chunk> chunks_;
  uint32_t free_head_ = kEnd, free_count_ = 0, fresh_ = 0;
};

} // namespace hicache
