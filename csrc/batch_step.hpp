// A server's step over a batch in one call: close, extend, open, page tables.
#pragma once

#include <cstdint>
#include <span>

#include "hicache.h"
#include "host_memory.hpp"
#include "step_lines.hpp"
#include "status.hpp"

namespace hicache {

class Engine;

// Scratch of batch steps, one an engine, and their execution. Under the engine's lock.
class BatchStep {
public:
  static constexpr uint32_t kSequenceMax = LineSet::kSequenceMax;
  static constexpr uint32_t kLineMax = 1u << 16; // Lines of a step: sequences × tables.

  explicit BatchStep(Engine &engine) : engine_(engine) {}
  // Reserves the scratch; RAM only for what batches use of it.
  Status open(ErrorDetail *error);

  // hicache_batch_step; array arguments have been checked for NULL and count.
  Status run(const hicache_batch_t &batch, hicache_step_t *step_out, ErrorDetail *error);

private:
  // What a sequence was before it was extended.
  struct Before {
    uint32_t vpage_count;
    uint32_t token_count;
    uint32_t tail_page;
  };
  // Pages of a sequence that a table lists: [first, last).
  struct Range {
    uint32_t first;
    uint32_t last;
  };

  Status check(const hicache_batch_t &batch, ErrorDetail *error) const;
  Status check_table(const hicache_batch_t &batch, uint32_t table, ErrorDetail *error) const;
  // Of the sequence as it will be, or is, after the extension.
  static Range listed(const hicache_batch_table_t &table, const hicache_sequence_t &sequence, uint32_t page_tokens, bool extended);
  Status extend(const hicache_batch_t &batch, ErrorDetail *error);
  void take_back(const hicache_batch_t &batch);
  void write_table(const hicache_batch_t &batch, uint32_t table);
  Status open_step(const hicache_batch_t &batch, hicache_step_t previous, hicache_step_t *step_out, ErrorDetail *error);

  Engine &engine_;
  HostMemory memory_;
  StepLine *lines_ = nullptr; // By sequence, then table.
  Before *before_ = nullptr;
};

} // namespace hicache
