#include "hole_set.hpp"

#include <algorithm>

namespace hicache {
namespace {

constexpr uint64_t kAll = ~uint64_t{0};

constexpr uint64_t from_bit(uint32_t i) { return kAll << (i & 63); }         // Bits >= i of its word.
constexpr uint64_t up_to_bit(uint32_t i) { return kAll >> (63 - (i & 63)); } // Bits <= i of its word.
uint32_t low_bit(uint64_t word) { return static_cast<uint32_t>(std::countr_zero(word)); }
uint32_t high_bit(uint64_t word) { return 63 - static_cast<uint32_t>(std::countl_zero(word)); }
uint32_t bits_in(uint64_t word) { return static_cast<uint32_t>(std::popcount(word)); }

} // namespace

void HoleSet::open(uint32_t capacity) {
  capacity_ = capacity;
  size_ = 0;
  level_count_ = 0;
  uint32_t total = 0;
  uint64_t members = std::max<uint64_t>(capacity, 1);
  do {
    const auto words = static_cast<uint32_t>((members + 63) / 64);
    offset_[level_count_] = total;
    word_count_[level_count_] = words;
    total += words;
    level_count_++;
    members = words;
  } while (members > 1);
  words_.assign(total, 0);
}

uint32_t HoleSet::next(uint32_t i) const {
  for (uint32_t level = 0; level < level_count_; level++) {
    const uint32_t word = i >> 6;
    if (word >= word_count_[level]) return kNone;
    const uint64_t bits = at(level, word) & from_bit(i);
    if (bits != 0) {
      uint32_t found = word * 64 + low_bit(bits);
      while (level-- > 0) found = found * 64 + low_bit(at(level, found));
      return found;
    }
    i = word + 1;
  }
  return kNone;
}

uint32_t HoleSet::prev(uint32_t i) const {
  if (capacity_ == 0) return kNone;
  i = std::min(i, capacity_ - 1);
  for (uint32_t level = 0; level < level_count_; level++) {
    const uint32_t word = i >> 6;
    const uint64_t bits = at(level, word) & up_to_bit(i);
    if (bits != 0) {
      uint32_t found = word * 64 + high_bit(bits);
      while (level-- > 0) found = found * 64 + high_bit(at(level, found));
      return found;
    }
    if (word == 0) return kNone;
    i = word - 1;
  }
  return kNone;
}

void HoleSet::set_upward(uint32_t word) {
  for (uint32_t level = 1; level < level_count_; level++) {
    uint64_t &above = at(level, word >> 6);
    const bool was_empty = above == 0;
    above |= uint64_t{1} << (word & 63);
    if (!was_empty) return;
    word >>= 6;
  }
}

void HoleSet::insert_all(const uint32_t *members, uint32_t count) {
  uint64_t *const words = words_.data();
  for (uint32_t i = 0; i < count;) {
    const uint32_t word = members[i] >> 6;
    uint64_t bits = 0;
    do bits |= uint64_t{1} << (members[i++] & 63);
    while (i < count && members[i] >> 6 == word);
    const uint64_t before = words[word];
    assert((before & bits) == 0);
    words[word] = before | bits;
    if (before == 0) set_upward(word);
  }
  size_ += count;
}

void HoleSet::erase_all(const uint32_t *members, uint32_t count) {
  uint64_t *const words = words_.data();
  for (uint32_t i = 0; i < count;) {
    const uint32_t word = members[i] >> 6;
    uint64_t bits = 0;
    do bits |= uint64_t{1} << (members[i++] & 63);
    while (i < count && members[i] >> 6 == word);
    const uint64_t after = words[word] & ~bits;
    assert((words[word] & bits) == bits);
    words[word] = after;
    if (after == 0) clear_upward(word);
  }
  size_ -= count;
}

void HoleSet::insert_range(uint32_t low, uint32_t high) {
  if (low >= high) return;
  assert(high <= capacity_);
  size_ += high - low;
  for (uint32_t level = 0; level < level_count_; level++) {
    const uint32_t first = low >> 6, last = (high - 1) >> 6;
    bool above_knows = true; // No word was empty: the levels above have their bits already.
    for (uint32_t word = first; word <= last; word++) {
      uint64_t mask = kAll;
      if (word == first) mask &= from_bit(low);
      if (word == last) mask &= up_to_bit(high - 1);
      uint64_t &bits = at(level, word);
      assert(level > 0 || (bits & mask) == 0);
      above_knows &= bits != 0;
      bits |= mask;
    }
    if (above_knows) return;
    low = first;
    high = last + 1;
  }
}

void HoleSet::erase_range(uint32_t low, uint32_t high) {
  if (low >= high) return;
  assert(high <= capacity_);
  size_ -= count_in(low, high);
  for (uint32_t level = 0; level < level_count_ && low < high; level++) {
    const uint32_t first = low >> 6, last = (high - 1) >> 6;
    for (uint32_t word = first; word <= last; word++) {
      uint64_t mask = kAll;
      if (word == first) mask &= from_bit(low);
      if (word == last) mask &= up_to_bit(high - 1);
      at(level, word) &= ~mask;
    }
    // Above, only bits of words that are empty now go: every word between the ends is, the ends may not be.
    low = first + (at(level, first) != 0 ? 1 : 0);
    high = last + 1 - (last >= low && at(level, last) != 0 ? 1 : 0);
  }
}

uint32_t HoleSet::count_in(uint32_t low, uint32_t high, uint32_t limit) const {
  uint32_t count = 0;
  high = std::min(high, capacity_);
  for (uint32_t i = low < high ? next(low) : kNone; i < high && count < limit;) {
    const uint32_t word = i >> 6;
    uint64_t bits = at(0, word) & from_bit(i);
    if (word == (high - 1) >> 6) bits &= up_to_bit(high - 1);
    count += bits_in(bits);
    if (word == (high - 1) >> 6) break;
    // Neighbouring words are the common case; the hierarchy skips empty stretches.
    i = at(0, word + 1) != 0 ? (word + 1) * 64 + low_bit(at(0, word + 1)) : next((word + 1) * 64);
  }
  return std::min(count, limit);
}

uint32_t HoleSet::nth_highest(uint32_t n) const {
  assert(n >= 1 && n <= size_);
  uint32_t i = highest();
  for (;;) {
    const uint32_t word = i >> 6;
    uint64_t bits = at(0, word);
    const uint32_t here = bits_in(bits);
    if (here >= n) {
      for (uint32_t skip = here - n; skip > 0; skip--) bits &= bits - 1;
      return word * 64 + low_bit(bits);
    }
    n -= here;
    i = prev(word * 64 - 1);
  }
}

void HoleSet::clear_upward(uint32_t word) {
  for (uint32_t level = 1; level < level_count_; level++) {
    uint64_t &above = at(level, word >> 6);
    above &= ~(uint64_t{1} << (word & 63));
    if (above != 0) return;
    word >>= 6;
  }
}

void HoleSet::hand_over(uint32_t word, uint64_t bits, HoleSet *into) {
  uint64_t &from = at(0, word);
  from &= ~bits;
  if (from == 0) clear_upward(word);
  if (into == nullptr) return;
  uint64_t &to = into->at(0, word);
  assert((to & bits) == 0);
  const bool was_empty = to == 0;
  to |= bits;
  if (was_empty) into->set_upward(word);
}

void HoleSet::drain_from(uint32_t from, uint32_t n, uint32_t *out, HoleSet *into) {
  size_ -= n;
  if (into != nullptr) into->size_ += n;
  uint32_t i = n > 0 ? next(from) : kNone;
  while (n > 0) {
    const uint32_t word = i >> 6;
    const uint64_t before = at(0, word) & from_bit(i);
    uint64_t bits = before;
    for (; bits != 0 && n > 0; bits &= bits - 1, n--) *out++ = word * 64 + low_bit(bits);
    hand_over(word, before & ~bits, into);
    if (n == 0) return;
    // Neighbouring words are the common case; the hierarchy skips empty stretches.
    i = word + 1 < word_count_[0] && at(0, word + 1) != 0 ? (word + 1) * 64 : next((word + 1) * 64);
  }
}

void HoleSet::drain_highest(uint32_t n, uint32_t *out, HoleSet *into) {
  size_ -= n;
  if (into != nullptr) into->size_ += n;
  while (n > 0) {
    const uint32_t word = highest() >> 6;
    const uint64_t before = at(0, word);
    uint64_t bits = before;
    for (; bits != 0 && n > 0; n--) {
      const uint32_t bit = high_bit(bits);
      *out++ = word * 64 + bit;
      bits &= ~(uint64_t{1} << bit);
    }
    hand_over(word, before & ~bits, into);
  }
}

} // namespace hicache
