// A server's step in one call: the same as close, extend, open and kernel ids one by one, and nothing changed when it is refused.
#include <gtest/gtest.h>

#include "open_engine.hpp"

namespace hicache_test {
namespace {

constexpr uint32_t kWindow = 8; // Of the SWA pool; pages hold 4 tokens.

class Batch {
public:
  Batch(OpenEngine &engine, std::vector<uint32_t> new_tokens) : engine_(engine), rows_(new_tokens.size(), Pages(32, HICACHE_NO_PAGE)) {
    for (size_t i = 0; i < new_tokens.size(); i++) { sequences_.push_back({rows_[i].data(), 0, 32, 0, new_tokens[i], kWindow, 0}); }
    ids_[0].assign(256, -1);
    ids_[1].assign(256, -1);
    for (auto *array : {&indptr_, &counts_, &last_, &first_}) array->assign(new_tokens.size() + 1, -1);
  }

  hicache_batch_t request() {
    tables_[0] = {kFull, HICACHE_TABLE_RAGGED, 0, 0, ids_[0].data(), indptr_.data(), nullptr, last_.data(), nullptr, 256, 0};
    tables_[1] = {kSwa, HICACHE_TABLE_PADDED, kWindow, 8, ids_[1].data(), nullptr, counts_.data(), nullptr, first_.data(), 256, 0};
    hicache_batch_t batch{};
    batch.struct_size = sizeof batch;
    batch.owner_pool = kFull;
    batch.previous = step_;
    batch.sequences = sequences_.data();
    batch.sequence_count = static_cast<uint32_t>(sequences_.size());
    batch.tables = tables_;
    batch.table_count = 2;
    return batch;
  }
  hicache_status_t step(const hicache_batch_t &batch) { return hicache_batch_step(engine_.get(), &batch, &step_, engine_.error()); }
  void close() {
    EXPECT_EQ(hicache_step_close(engine_.get(), step_, engine_.error()), HICACHE_OK);
    step_ = 0;
  }
  void expect_tables() {
    int32_t at = 0;
    for (uint32_t i = 0; i < sequences_.size(); i++) {
      const hicache_sequence_t &sequence = sequences_[i];
      EXPECT_EQ(indptr_[i], at);
      for (uint32_t page = 0; page < sequence.vpage_count; page++, at++) {
        EXPECT_EQ(static_cast<uint32_t>(ids_[0][static_cast<size_t>(at)]), engine_.place(kFull, sequence.vpages[page]));
      }
      EXPECT_EQ(last_[i], static_cast<int32_t>((sequence.token_count - 1) % 4 + 1));
      const uint32_t reach = kWindow + sequence.new_token_count;
      const uint32_t first = sequence.token_count <= reach ? 0 : (sequence.token_count - reach) / 4;
      EXPECT_EQ(first_[i], static_cast<int32_t>(first));
      EXPECT_EQ(counts_[i], static_cast<int32_t>(sequence.vpage_count - first));
      for (uint32_t column = 0; column < 8; column++) {
        const int32_t id = ids_[1][i * 8 + column];
        const uint32_t page = first + column;
        const uint32_t place = page < sequence.vpage_count ? engine_.place(kSwa, sequence.vpages[page]) : HICACHE_NO_PAGE;
        EXPECT_EQ(id, place == HICACHE_NO_PAGE ? 0 : static_cast<int32_t>(place));
      }
    }
    EXPECT_EQ(indptr_[sequences_.size()], at);
  }

  OpenEngine &engine_;
  std::vector<Pages> rows_;
  std::vector<hicache_sequence_t> sequences_;
  hicache_batch_table_t tables_[2] = {};
  std::vector<int32_t> ids_[2], indptr_, counts_, last_, first_;
  hicache_step_t step_ = 0;
};

TEST(BatchStep, DecodesManyTokens) {
  OpenEngine engine;
  Batch batch(engine, {7, 12, 1, 5});
  EXPECT_EQ(batch.step(batch.request()), HICACHE_OK) << engine.message();
  batch.expect_tables();
  EXPECT_EQ(engine.place(kSwa, batch.rows_[1][0]), HICACHE_NO_PAGE) << "the window tail of 12 tokens is two pages";
  EXPECT_NE(engine.place(kSwa, batch.rows_[1][1]), HICACHE_NO_PAGE);
  for (auto &sequence : batch.sequences_) sequence.new_token_count = 1;
  for (uint32_t token = 0; token < 20; token++) {
    const hicache_step_t before = batch.step_;
    ASSERT_EQ(batch.step(batch.request()), HICACHE_OK) << engine.message();
    EXPECT_NE(batch.step_, before);
    EXPECT_EQ(hicache_step_close(engine.get(), before, engine.error()), HICACHE_STALE_ID) << "closed by the call";
    EXPECT_EQ(engine.stats().steps, 1u);
    batch.expect_tables();
    engine.compact();
    batch.expect_tables(); // An open step keeps its pages in place.
  }
  batch.close();
  EXPECT_EQ(batch.sequences_[1].token_count, 32u);
  EXPECT_EQ(batch.sequences_[1].vpage_count, 8u);
  engine.expect_sound();
}

// As of steps one by one: only streams that still work count.
TEST(BatchStep, OnStreamsWithoutEnd) {
  OpenEngine engine({.own_backend = true}); // Streams of a device end where its memory does.
  Batch batch(engine, {7});
  for (uint64_t stream = 1; stream < 5000; stream++) {
    hicache_batch_t request = batch.request();
    request.stream = stream;
    ASSERT_EQ(batch.step(request), HICACHE_OK) << stream << engine.message();
    batch.close();
    batch.sequences_[0].new_token_count = 0;
  }
  engine.expect_sound();
}

TEST(BatchStep, CopiesAForkedTail) {
  OpenEngine engine;
  Batch batch(engine, {6, 0});
  ASSERT_EQ(batch.step(batch.request()), HICACHE_OK) << engine.message();
  // The second sequence forks the first in the middle of a page.
  engine.stamp(kFull, batch.rows_[0][1], 42);
  batch.rows_[1][0] = batch.rows_[0][0];
  batch.rows_[1][1] = batch.rows_[0][1];
  batch.sequences_[1] = {batch.rows_[1].data(), 2, 32, 6, 1, kWindow, HICACHE_SEQUENCE_COPY_TAIL};
  batch.sequences_[0].new_token_count = 1;
  ASSERT_EQ(batch.step(batch.request()), HICACHE_OK) << engine.message();
  EXPECT_NE(batch.rows_[1][1], batch.rows_[0][1]);
  EXPECT_EQ(batch.rows_[1][0], batch.rows_[0][0]);
  const auto info = engine.info(HICACHE_TIER_DEVICE, kFull);
  for (uint32_t layer = 0; layer < 3; layer++) { // Rows of tokens 4 and 5, K and V.
    for (uint64_t offset : {uint64_t{0}, info.v_offset_bytes}) {
      const uint64_t begin = layer * info.layer_stride_bytes + offset;
      EXPECT_EQ(OpenEngine::first_difference(engine.bytes(kFull, batch.rows_[1][1]), 42, begin, begin + 2 * info.token_stride_bytes), -1);
    }
  }
  batch.expect_tables();
  batch.close();
  engine.expect_sound();
}

TEST(BatchStep, RefusedLeavesAllSequences) {
  OpenEngine engine;
  Batch batch(engine, {7, 12});
  ASSERT_EQ(batch.step(batch.request()), HICACHE_OK) << engine.message();
  const hicache_step_t open = batch.step_;
  const Pages row = batch.rows_[0];
  auto unchanged = [&] {
    EXPECT_EQ(batch.rows_[0], row);
    EXPECT_EQ(batch.sequences_[0].token_count, 7u);
    EXPECT_EQ(batch.sequences_[0].vpage_count, 2u);
    engine.expect_sound();
  };
  // Arguments: nothing is done, the previous step stays open.
  batch.sequences_[0].new_token_count = 4;
  hicache_batch_t request = batch.request();
  batch.tables_[1].row_pages = 1;
  EXPECT_EQ(batch.step(request), HICACHE_INVALID_ARGUMENT);
  batch.request();
  batch.tables_[0].ids_capacity = 3;
  EXPECT_EQ(batch.step(request), HICACHE_INVALID_ARGUMENT);
  batch.request();
  batch.tables_[0].indptr = nullptr;
  EXPECT_EQ(batch.step(request), HICACHE_INVALID_ARGUMENT);
  batch.request();
  batch.tables_[1].pool = kFull;
  EXPECT_EQ(batch.step(request), HICACHE_INVALID_ARGUMENT);
  batch.request();
  request.previous = 99;
  EXPECT_EQ(batch.step(request), HICACHE_STALE_ID);
  request.previous = open;
  request.owner_pool = kSwa;
  EXPECT_EQ(batch.step(request), HICACHE_INVALID_ARGUMENT);
  request.owner_pool = kFull;
  request.sequence_count = UINT32_MAX;
  EXPECT_EQ(batch.step(request), HICACHE_INVALID_ARGUMENT);
  EXPECT_EQ(batch.step_, open);
  EXPECT_EQ(engine.stats().steps, 1u);
  unchanged();
  // A page that the step cannot hold: the extension is taken back, the previous step is closed.
  request = batch.request();
  const uint32_t nowhere = 150;
  const hicache_pages_t further{kFull, 1, &nowhere};
  request.pages = &further;
  request.pages_count = 1;
  const uint64_t live = engine.pool_stats(HICACHE_TIER_DEVICE, kFull).live_pages;
  EXPECT_EQ(batch.step(request), HICACHE_NOT_MAPPED) << engine.message();
  EXPECT_EQ(engine.pool_stats(HICACHE_TIER_DEVICE, kFull).live_pages, live);
  EXPECT_EQ(engine.stats().steps, 0u);
  batch.rows_[0][2] = row[2];
  unchanged();
  batch.step_ = 0;
  // No room: likewise.
  Pages rest;
  while (engine.try_alloc(1, 0, &rest) == HICACHE_OK) {}
  batch.sequences_[1].new_token_count = 20;
  EXPECT_EQ(batch.step(batch.request()), HICACHE_NO_CAPACITY);
  unchanged();
}

// A step that takes its pages over from the one before writes no fence on them; whoever asks must see it all the same.
TEST(BatchStep, PagesHandedOnKeepTheirFences) {
  OpenEngine engine({.own_backend = true}); // A device's fences pass when they do, and zeroing has some too.
  const Pages other = engine.alloc(1, 0);
  Batch batch(engine, {5, 3});
  hicache_batch_t request = batch.request();
  request.stream = 1;
  ASSERT_EQ(batch.step(request), HICACHE_OK) << engine.message();
  for (auto &sequence : batch.sequences_) sequence.new_token_count = 1;
  const auto waits_of = [&](uint32_t vpage) {
    const uint64_t before = engine.stats().fence_waits_transfers;
    hicache_hpage_t hpage;
    const hicache_host_take_t take{kFull, 1, &hpage};
    EXPECT_EQ(hicache_host_alloc(engine.get(), &take, 1, engine.error()), HICACHE_OK) << engine.message();
    const hicache_copy_t copy{kFull, vpage, hpage, 0};
    hicache_transfer_t transfer{};
    transfer.struct_size = sizeof transfer;
    transfer.copies = &copy;
    transfer.copy_count = 1;
    hicache_ticket_t ticket;
    EXPECT_EQ(hicache_back_up(engine.get(), &transfer, &ticket, engine.error()), HICACHE_OK) << engine.message();
    hicache_completion_t done;
    uint32_t count = 0;
    EXPECT_EQ(hicache_completion_wait(engine.get(), UINT64_MAX, &done, 1, &count, engine.error()), HICACHE_OK);
    return engine.stats().fence_waits_transfers - before;
  };
  EXPECT_EQ(waits_of(batch.rows_[0][0]), 0u) << "no step that used it has closed";
  for (uint32_t token = 0; token < 3; token++) {
    request.previous = batch.step_;
    ASSERT_EQ(batch.step(request), HICACHE_OK) << engine.message();
    EXPECT_EQ(waits_of(batch.rows_[0][0]), 1u) << "token " << token;
    EXPECT_EQ(waits_of(other[0]), 0u) << "no step used it";
  }
  // A sequence that has left the batch: its pages carry the fence of the last step they were in, and may move.
  const uint32_t left = batch.rows_[0][0];
  request.previous = batch.step_;
  request.sequences = batch.sequences_.data() + 1;
  request.sequence_count = 1;
  ASSERT_EQ(batch.step(request), HICACHE_OK) << engine.message();
  EXPECT_EQ(waits_of(left), 1u);
  EXPECT_EQ(engine.pool_stats(HICACHE_TIER_DEVICE, kFull).pinned_pages, 2u) << "those of the second sequence";
  engine.expect_sound();
  batch.close();
  engine.expect_sound();
}

// The same pages in several lines, and in the steps of two streams at once.
TEST(BatchStep, PagesSharedByLinesAndStreams) {
  OpenEngine engine;
  Batch one(engine, {8, 8}), two(engine, {8, 8});
  hicache_batch_t first = one.request(), second = two.request();
  first.stream = suite_backend.stream(1);
  second.stream = suite_backend.stream(2);
  ASSERT_EQ(one.step(first), HICACHE_OK) << engine.message();
  // Everybody continues the pages of the first sequence of the first batch.
  const Pages prefix(one.rows_[0].begin(), one.rows_[0].begin() + 2);
  for (Batch *batch : {&one, &two}) {
    for (uint32_t i = 0; i < 2; i++) {
      std::copy(prefix.begin(), prefix.end(), batch->rows_[i].begin());
      batch->sequences_[i] = {batch->rows_[i].data(), 2, 32, 8, 1, kWindow, 0};
    }
  }
  for (uint32_t round = 0; round < 6; round++) {
    first.previous = one.step_;
    ASSERT_EQ(one.step(first), HICACHE_OK) << engine.message();
    one.expect_tables();
    second.previous = two.step_;
    ASSERT_EQ(two.step(second), HICACHE_OK) << engine.message();
    two.expect_tables();
    engine.compact();
    one.expect_tables();
    two.expect_tables();
    engine.expect_sound();
  }
  one.close();
  engine.compact();
  two.expect_tables(); // Its pins are its own.
  two.close();
  EXPECT_EQ(engine.pool_stats(HICACHE_TIER_DEVICE, kFull).pinned_pages, 0u);
  engine.expect_sound();
}

} // namespace
} // namespace hicache_test
