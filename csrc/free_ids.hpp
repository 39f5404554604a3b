// Names not in use in one id group: first in, first out (device), or lowest first (host, so that all ranks choose alike).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "hole_set.hpp"

namespace hicache {

class FreeIds {
public:
  // Names [first, count) are free; room for capacity names in all.
  void open(uint32_t first, uint32_t count, uint32_t capacity, bool lowest_first) {
    lowest_first_ = lowest_first;
    if (lowest_first_) {
      free_.open(capacity);
      free_.insert_range(std::min(first, count), count);
      return;
    }
    ring_.assign(std::max(capacity, 1u), 0);
    size_ = 0;
    head_ = 0;
    for (uint32_t v = first; v < count; v++) give(v);
  }

  uint32_t size() const { return lowest_first_ ? free_.size() : size_; }
  uint64_t bytes() const { return lowest_first_ ? free_.bytes() : ring_.size() * sizeof(uint32_t); }

  // There are at least n.
  void take(uint32_t n, uint32_t *out) {
    if (lowest_first_) {
      free_.drain_from(0, n, out);
      return;
    }
    const auto length = static_cast<uint32_t>(ring_.size());
    const uint32_t first_part = std::min(n, length - head_);
    std::copy_n(ring_.data() + head_, first_part, out);
    std::copy_n(ring_.data(), n - first_part, out + first_part);
    head_ = first_part == length - head_ ? n - first_part : head_ + n;
    size_ -= n;
  }

  void give(uint32_t v) {
    if (lowest_first_) {
      free_.insert(v);
      return;
    }
    const auto length = static_cast<uint32_t>(ring_.size());
    const uint32_t tail = head_ < length - size_ ? head_ + size_ : head_ - (length - size_);
    ring_[tail] = v;
    size_++;
  }

  // Calls visit(v) for every free name, in the order in which they will be handed out.
  template <typename Visit> void each(Visit visit) const {
    if (lowest_first_) {
      for (uint32_t v = free_.lowest(); v != HoleSet::kNone; v = free_.next(v + 1)) visit(v);
      return;
    }
    for (uint32_t i = 0; i < size_; i++) visit(ring_[(uint64_t{head_} + i) % ring_.size()]);
  }

private:
  bool lowest_first_ = false;
  HoleSet free_;
  std::vector<uint32_t> ring_;
  uint32_t head_ = 0, size_ = 0;
};

} // namespace hicache
