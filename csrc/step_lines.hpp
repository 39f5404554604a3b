// What a batch's step holds, by line of its page tables, so that the next step of the batch touches only what differs. A decode step adds
// a page to one sequence in page_tokens: the cost of pins must not be that of the whole context.
#pragma once

#include <cstdint>
#include <vector>

#include "arena.hpp"

namespace hicache {

// Lists of held pages, one a line, of one open step. A page in a list that has been handed from step to step carries the fences of its
// first step only: `carried` stands for the closed ones since, and Pool::lagging marks the pages.
struct LineSet {
  static constexpr uint32_t kSetMax = 8; // Batches that are under way at once; further ones hold their pages in a plain list.
  static constexpr uint32_t kSequenceMax = 4096;
  static constexpr uint32_t kNone = UINT32_MAX;

  bool taken = false;
  uint32_t used = 0;          // Lists from here on are empty.
  FenceMark carried;          // The latest step closed while its pages were handed on; null: none.
  std::vector<PinList> lists; // By StepLine::place.
};

} // namespace hicache
