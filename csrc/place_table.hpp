// What is known about places: who is there, how often the page is pinned, which fence it carries. The pools of a chain share one table,
// because their pages never overlap: a place of any pool is filed under the smallest page of the chain in which it begins.
#pragma once

#include <cstdint>
#include <vector>

#include "fence.hpp"

namespace hicache {

// Files a pool's pages under units of `unit_bytes`, the smallest page of the chain: floor(page * page_bytes / unit_bytes). Two pages that
// do not overlap begin in different units, since each is at least a unit long. Exact for arenas below 2^63 bytes.
class PlaceIndex {
public:
  PlaceIndex() = default;
  PlaceIndex(uint64_t page_bytes, uint64_t unit_bytes) : whole_(page_bytes / unit_bytes) {
    const uint64_t rest = page_bytes % unit_bytes;
    // Rounded up: the product is too large by less than page / 2^64, which is less than 1 / unit_bytes, so its floor is right.
    if (rest != 0) part_ = static_cast<uint64_t>((static_cast<unsigned __int128>(rest) << 64) / unit_bytes) + 1;
  }
  uint64_t operator()(uint32_t page) const {
    const uint64_t at = page * whole_;
    return part_ == 0 ? at : at + static_cast<uint64_t>(static_cast<unsigned __int128>(part_) * page >> 64);
  }

private:
  uint64_t whole_ = 1, part_ = 0;
};

struct PlaceTable {
  uint64_t unit_bytes = 1;
  std::vector<uint32_t> names; // PageTable's p2v.
  std::vector<uint16_t> pins;
  std::vector<PageFence> fences; // A gap keeps the fences of those who were there.

  uint64_t bytes() const { return names.size() * sizeof(uint32_t) + pins.size() * sizeof(uint16_t) + fences.size() * sizeof(PageFence); }
};

// One of those arrays, as a pool indexes it.
template <typename T> class ByPlace {
public:
  void open(T *data, PlaceIndex index) {
    data_ = data;
    index_ = index;
  }
  T &operator[](uint32_t page) { return data_[index_(page)]; }
  const T &operator[](uint32_t page) const { return data_[index_(page)]; }

private:
  T *data_ = nullptr;
  PlaceIndex index_;
};

} // namespace hicache
