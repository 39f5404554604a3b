#include "batch_step.hpp"

#include <algorithm>
#include <cinttypes>

#include "backend_cpu.hpp"
#include "engine.hpp"
#include "id_translate.hpp"

namespace hicache {

Status BatchStep::open(ErrorDetail *error) {
  const uint64_t bytes = kLineMax * sizeof(StepLine) + kSequenceMax * sizeof(Before);
  if (int code = memory_.reserve(bytes, 0, HostMemory::PageSize::kSmall); code != 0)
    return refuse_memory(error, "batch steps", bytes, code);
  lines_ = reinterpret_cast<StepLine *>(memory_.base());
  before_ = reinterpret_cast<Before *>(lines_ + kLineMax);
  return HICACHE_OK;
}

BatchStep::Range BatchStep::listed(const hicache_batch_table_t &table, const hicache_sequence_t &sequence, uint32_t page_tokens,
                                   bool extended) {
  const uint64_t tokens = uint64_t{sequence.token_count} + (extended ? 0 : sequence.new_token_count);
  const auto last = static_cast<uint32_t>((tokens + page_tokens - 1) / page_tokens);
  // The oldest token that the first of the new ones sees.
  const uint64_t reach = uint64_t{table.window_tokens} + sequence.new_token_count;
  const uint32_t first = table.window_tokens == 0 || tokens <= reach ? 0 : static_cast<uint32_t>((tokens - reach) / page_tokens);
  return {std::min(first, last), last};
}

Status BatchStep::check_table(const hicache_batch_t &batch, uint32_t index, ErrorDetail *error) const {
  const hicache_batch_table_t &table = batch.tables[index];
  auto refuse = [&](const char *what) { return fail(error, HICACHE_INVALID_ARGUMENT, table.pool, "batch.tables[%u]%s", index, what); };
  if (table.reserved0 != 0) return fail(error, HICACHE_UNSUPPORTED, table.pool, "batch.tables[%u].reserved0 must be 0", index);
  if (table.pool >= engine_.pool_count() || engine_.device().info(table.pool).owner != batch.owner_pool) {
    return refuse(".pool is not in the owner pool's group");
  }
  for (uint32_t other = 0; other < index; other++) {
    if (batch.tables[other].pool == table.pool) return refuse(".pool has a table already");
  }
  if (table.form > HICACHE_TABLE_PADDED) return refuse(".form is not one of HICACHE_TABLE_*");
  const bool padded = table.form == HICACHE_TABLE_PADDED;
  if (padded == (table.indptr != nullptr)) return refuse(".indptr must be given for RAGGED and NULL for PADDED");
  if (!padded && table.row_pages != 0) return refuse(".row_pages must be 0 for RAGGED");
  if (table.ids == nullptr && table.ids_capacity > 0) return refuse(".ids is NULL");
  const uint32_t page_tokens = engine_.page_tokens(table.pool);
  uint64_t needed = padded ? uint64_t{batch.sequence_count} * table.row_pages : 0;
  for (uint32_t i = 0; i < batch.sequence_count; i++) {
    const Range range = listed(table, batch.sequences[i], page_tokens, false);
    if (padded && range.last - range.first > table.row_pages) {
      return fail(error, HICACHE_INVALID_ARGUMENT, table.pool, "batch.tables[%u].row_pages is %u, sequence %u lists %u pages", index,
                  table.row_pages, i, range.last - range.first);
    }
    if (!padded) needed += range.last - range.first;
  }
  if (needed > table.ids_capacity || needed > INT32_MAX) {
    return fail(error, HICACHE_INVALID_ARGUMENT, table.pool, "batch.tables[%u].ids_capacity is %u, %" PRIu64 " ids are to be written",
                index, table.ids_capacity, needed);
  }
  return HICACHE_OK;
}

Status BatchStep::check(const hicache_batch_t &batch, ErrorDetail *error) const {
  if (batch.reserved0 != 0) return fail(error, HICACHE_UNSUPPORTED, HICACHE_NO_POOL, "batch.reserved0 must be 0");
  if (batch.owner_pool >= engine_.pool_count() || engine_.device().info(batch.owner_pool).owner != batch.owner_pool) {
    return fail(error, HICACHE_INVALID_ARGUMENT, batch.owner_pool, "batch.owner_pool does not hand out ids");
  }
  if (batch.previous != 0 && !engine_.device().is_step(batch.previous)) {
    return fail(error, HICACHE_STALE_ID, HICACHE_NO_POOL, "batch.previous 0x%" PRIx64 " is no open step", batch.previous);
  }
  static_assert(uint64_t{kSequenceMax} * kPoolCountMax <= kLineMax); // Of no more tables than pools.
  for (uint32_t i = 0; i < batch.sequence_count; i++) {
    const hicache_sequence_t &sequence = batch.sequences[i];
    // What the ranges below are computed from; the rest is checked by the extension itself.
    if (sequence.vpage_count > sequence.vpage_capacity || (sequence.vpage_capacity > 0 && sequence.vpages == nullptr)) {
      return fail(error, HICACHE_INVALID_ARGUMENT, batch.owner_pool,
                  "batch.sequences[%u]: vpages is NULL or vpage_count above vpage_capacity", i);
    }
  }
  for (uint32_t table = 0; table < batch.table_count; table++) {
    if (Status status = check_table(batch, table, error); status != HICACHE_OK) return status;
  }
  return HICACHE_OK;
}

Status BatchStep::extend(const hicache_batch_t &batch, ErrorDetail *error) {
  for (uint32_t i = 0; i < batch.sequence_count; i++) {
    const hicache_sequence_t &sequence = batch.sequences[i];
    const uint32_t tail = sequence.vpage_count == 0 ? HICACHE_NO_PAGE : sequence.vpages[sequence.vpage_count - 1];
    before_[i] = {sequence.vpage_count, sequence.token_count, tail};
  }
  return engine_.device().extend(batch.owner_pool, {batch.sequences, batch.sequence_count}, error);
}

void BatchStep::take_back(const hicache_batch_t &batch) {
  for (uint32_t i = 0; i < batch.sequence_count; i++) {
    hicache_sequence_t &sequence = batch.sequences[i];
    const Before &before = before_[i];
    const bool copied = before.vpage_count > 0 && sequence.vpages[before.vpage_count - 1] != before.tail_page;
    const uint32_t first = before.vpage_count - (copied ? 1 : 0);
    const hicache_pages_t line{batch.owner_pool, sequence.vpage_count - first, sequence.vpages + first};
    if (line.page_count > 0) engine_.device().free({&line, 1}, nullptr);
    if (copied) sequence.vpages[before.vpage_count - 1] = before.tail_page;
    sequence.vpage_count = before.vpage_count;
    sequence.token_count = before.token_count;
  }
}

// Writes a table, and its lines for the step to hold.
void BatchStep::write_table(const hicache_batch_t &batch, uint32_t index) {
  const hicache_batch_table_t &table = batch.tables[index];
  const KernelMap map = engine_.kernel_map(table.pool);
  const uint32_t batch_tables = batch.table_count;
  hicache_kernel_id_t *ids = table.ids;
  uint64_t sink_total = 0;
  for (uint32_t i = 0; i < batch.sequence_count; i++) {
    const hicache_sequence_t &sequence = batch.sequences[i];
    const Range range = listed(table, sequence, map.page_tokens, true);
    const uint32_t count = range.last - range.first, place = i * batch_tables + index;
    const uint32_t *vpages = sequence.vpages + range.first;
    const uint64_t sinks = translate_pages(map, vpages, count, ids);
    sink_total += sinks;
    lines_[place] = {table.pool, place, count, static_cast<uint32_t>(sinks), ids, vpages};
    if (table.form == HICACHE_TABLE_PADDED) {
      std::fill(ids + count, ids + table.row_pages, 0);
      ids += table.row_pages;
    } else {
      table.indptr[i] = static_cast<int32_t>(ids - table.ids);
      ids += count;
    }
    if (table.page_counts != nullptr) table.page_counts[i] = static_cast<int32_t>(count);
    if (table.first_pages != nullptr) table.first_pages[i] = static_cast<int32_t>(range.first);
    if (table.last_page_tokens != nullptr) {
      const uint32_t tokens = sequence.token_count;
      table.last_page_tokens[i] = tokens == 0 ? 0 : static_cast<int32_t>((tokens - 1) % map.page_tokens + 1);
    }
  }
  if (table.form == HICACHE_TABLE_RAGGED) table.indptr[batch.sequence_count] = static_cast<int32_t>(ids - table.ids);
  engine_.count_sinks(sink_total);
}

// Closes `previous`, if there is one to follow, and opens the step.
Status BatchStep::open_step(const hicache_batch_t &batch, hicache_step_t previous, hicache_step_t *step_out, ErrorDetail *error) {
  const std::span<const StepLine> lines(lines_, batch.sequence_count * batch.table_count);
  const std::span<const hicache_pages_t> pages(batch.pages, batch.pages_count);
  const Status status = engine_.step_follow(previous, batch.stream, lines, pages, true, step_out, error);
  if (status != HICACHE_LIMIT) return status;
  return engine_.step_follow(0, batch.stream, lines, pages, false, step_out, error); // Lists by line have room to spare in each.
}

Status BatchStep::run(const hicache_batch_t &batch, hicache_step_t *step_out, ErrorDetail *error) {
  if (Status status = check(batch, error); status != HICACHE_OK) return status;
  // The step before is closed first, so that its pins are not in the way of the moves that the extension may need; where there are none,
  // the new step takes its pins over.
  hicache_step_t previous = batch.previous;
  const bool follows = previous != 0 && engine_.device().can_follow(previous, batch.stream) &&
                       engine_.device().extends_in_place(batch.owner_pool, {batch.sequences, batch.sequence_count});
  if (previous != 0 && !follows) {
    if (Status status = engine_.step_close(previous, error); status != HICACHE_OK) return status;
    previous = 0;
  }
  if (Status status = extend(batch, error); status != HICACHE_OK) {
    if (previous != 0) {
      if (Status closed = engine_.step_close(previous, error); closed != HICACHE_OK) return closed;
    }
    return engine_.explain(HICACHE_TIER_DEVICE, status, error);
  }
  for (uint32_t table = 0; table < batch.table_count; table++) write_table(batch, table);
  hicache_step_t step = 0;
  if (Status status = open_step(batch, previous, &step, error); status != HICACHE_OK) {
    take_back(batch);
    return status;
  }
  *step_out = step;
  return HICACHE_OK;
}

} // namespace hicache
