// A set of page numbers as a hierarchy of bit words: level 0 has a bit a page, each level above a bit for every non-zero word below.
// Lowest, highest, next and previous member cost O(log64 capacity), whatever the set holds; ranges cost a word per 64 pages.
// All memory is taken in open(). Not thread-safe.
#pragma once

#include <bit>
#include <cassert>
#include <cstdint>
#include <vector>

namespace hicache {

class HoleSet {
public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Room for members [0, capacity); empty.
  void open(uint32_t capacity);

  uint32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  uint32_t capacity() const { return capacity_; }
  uint64_t bytes() const { return words_.size() * sizeof(uint64_t); }

  bool contains(uint32_t i) const { return (words_[i >> 6] >> (i & 63)) & 1; }

  void prefetch(uint32_t i) const { __builtin_prefetch(&words_[i >> 6], 1); }

  // `i` is not a member yet.
  void insert(uint32_t i) {
    assert(i < capacity_ && !contains(i));
    size_++;
    for (uint32_t level = 0; level < level_count_; level++, i >>= 6) {
      uint64_t &word = at(level, i >> 6);
      const bool was_empty = word == 0;
      word |= uint64_t{1} << (i & 63);
      if (!was_empty) return;
    }
  }

  // `i` is a member.
  void erase(uint32_t i) {
    assert(i < capacity_ && contains(i));
    size_--;
    for (uint32_t level = 0; level < level_count_; level++, i >>= 6) {
      uint64_t &word = at(level, i >> 6);
      word &= ~(uint64_t{1} << (i & 63));
      if (word != 0) return;
    }
  }

  // Many at once, in any order; neighbours in one word cost one access. None, respectively all, are members.
  void insert_all(const uint32_t *members, uint32_t count);
  void erase_all(const uint32_t *members, uint32_t count);

  uint32_t lowest() const { return next(0); }
  uint32_t highest() const { return capacity_ == 0 ? kNone : prev(capacity_ - 1); }
  uint32_t next(uint32_t i) const; // Lowest member >= i, or kNone.
  uint32_t prev(uint32_t i) const; // Highest member <= i, or kNone.

  // [low, high): none of it is a member, respectively: some of it may be.
  void insert_range(uint32_t low, uint32_t high);
  void erase_range(uint32_t low, uint32_t high);

  // Members in [low, high), counting no further than limit.
  uint32_t count_in(uint32_t low, uint32_t high, uint32_t limit = UINT32_MAX) const;
  // The n-th member from the top, n >= 1; the set has that many.
  uint32_t nth_highest(uint32_t n) const;

  // Removes the n lowest members >= from, ascending into out; there are that many. They become members of `into` (may be NULL), a set of
  // equal capacity that has none of them.
  void drain_from(uint32_t from, uint32_t n, uint32_t *out, HoleSet *into = nullptr);
  // Removes the n highest members, descending into out, likewise.
  void drain_highest(uint32_t n, uint32_t *out, HoleSet *into = nullptr);

private:
  static constexpr uint32_t kLevels = 6; // 64^6 > 2^32.

  uint64_t &at(uint32_t level, uint32_t word) { return words_[offset_[level] + word]; }
  uint64_t at(uint32_t level, uint32_t word) const { return words_[offset_[level] + word]; }
  // Removes `bits` from a level-0 word that has them, into another set.
  void hand_over(uint32_t word, uint64_t bits, HoleSet *into);
  void set_upward(uint32_t word);   // Level-0 word `word` was zero and is not any more.
  void clear_upward(uint32_t word); // Level-0 word `word` has just become zero.

  std::vector<uint64_t> words_;
  uint32_t offset_[kLevels] = {}; // Of each level in words_.
  uint32_t word_count_[kLevels] = {};
  uint32_t level_count_ = 0;
  uint32_t capacity_ = 0;
  uint32_t size_ = 0;
};

} // namespace hicache
