// Page work of the host: done without the lock, behind the work on the same pages and behind no other, large pieces by several threads.
#include "../page_work.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>

#include "../abi_guard.hpp"
#include "../backend_cpu.hpp"
#include "open_engine.hpp"

namespace hicache {
namespace {

// Notes what it is asked to do, and stops at a gate where it is told to.
class GatedBackend final : public HostSideBackend {
public:
  std::byte *pool_base(Tier, uint32_t) const override { return nullptr; }
  Status resize_device(uint64_t, ErrorDetail *) override { return HICACHE_OK; }
  Status move_pages(Tier, std::span<const PageMove> moves, std::span<const FenceMark>, FenceMark, ErrorDetail *) override {
    std::unique_lock lock(mutex_);
    for (const PageMove &move : moves) arrived_ += raw(move.source) == gated_page;
    opened_.notify_all();
    for (const PageMove &move : moves) opened_.wait(lock, [&] { return open_ || raw(move.source) != gated_page; });
    for (const PageMove &move : moves) log_.push_back(raw(move.source));
    threads_.insert(std::this_thread::get_id());
    if (meet_ > 0) { // Ends once so many threads are in here.
      opened_.notify_all();
      opened_.wait(lock, [&] { return threads_.size() >= meet_; });
    }
    return HICACHE_OK;
  }
  Status zero_pages(Tier, std::span<const PageZero> zeros, std::span<const FenceMark>, FenceMark, ErrorDetail *) override {
    std::lock_guard lock(mutex_);
    for (const PageZero &zero : zeros) log_.push_back(1000 + raw(zero.page));
    return HICACHE_OK;
  }
  Status copy_pages(Tier, std::span<const PageCopy>, std::span<const FenceMark>, FenceMark, ErrorDetail *) override { return HICACHE_OK; }
  Status poison_sink(uint64_t, ErrorDetail *) override { return HICACHE_OK; }
  std::atomic<uint64_t> *tags(Tier, uint32_t) override { return nullptr; }
  void copy_slices(const TransferJob &, const LayerGroup &, const CopyChunk *, uint32_t, uint32_t) override {}

  void open_gate() {
    std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }
  void await_gated() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [&] { return arrived_ > 0; });
  }
  void meet(size_t threads) { meet_ = threads; }
  std::vector<uint32_t> log() {
    std::lock_guard lock(mutex_);
    return log_;
  }
  static constexpr uint32_t gated_page = 7;

private:
  Status open_memory(const BackendOptions &, ErrorDetail *) override { return HICACHE_OK; }
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
  uint32_t arrived_ = 0;
  size_t meet_ = 0;
  std::vector<uint32_t> log_;
  std::set<std::thread::id> threads_;
};

class PageWorkTest : public testing::Test {
protected:
  void open(uint32_t workers, uint64_t page_bytes) { ASSERT_EQ(work.open(&backend, {page_bytes}, workers, nullptr), HICACHE_OK); }
  static FenceMark mark(uint64_t sequence) { return FenceMark::make(kMoverSlot, sequence); }
  static PageMove move_of(uint32_t page) { return {0, PhysicalPage{page}, PhysicalPage{page + 100}}; }
  static PageZero zero_of(uint32_t page) { return {0, PhysicalPage{page}, 0}; }
  // What a call does: asks under the lock, works after it.
  template <typename Ask> void call(Ask ask) {
    uint32_t pending;
    {
      std::lock_guard lock(mutex);
      ask();
      pending = work.take_pending();
    }
    EXPECT_EQ(work.run(pending), HICACHE_OK);
  }

  std::mutex mutex;
  GatedBackend backend;
  PageWork work{mutex};
};

TEST_F(PageWorkTest, WaitsForTheSamePagesAlone) {
  open(0, 4096);
  const PageMove slow = move_of(GatedBackend::gated_page);
  std::thread mover([&] { call([&] { work.move(Tier::kDevice, {&slow, 1}, {}, mark(1), nullptr); }); });
  backend.await_gated();
  ASSERT_TRUE(mutex.try_lock()); // Nobody holds the lock while bytes are moved.
  mutex.unlock();
  EXPECT_TRUE(work.board(Tier::kDevice).in_work(1));
  EXPECT_FALSE(work.board(Tier::kHost).in_work(1));

  // Other pages, and the same number in the other tier: done while the first is still at it.
  const PageZero zero = zero_of(3);
  const FenceMark first = mark(1), stream = FenceMark::make(5, 1);
  call([&] { work.zero(Tier::kDevice, {&zero, 1}, {&stream, 1}, mark(2), nullptr); });
  call([&] { work.await(Tier::kHost, {&first, 1}); });
  EXPECT_EQ(backend.log(), std::vector<uint32_t>{1003});
  EXPECT_FALSE(work.board(Tier::kDevice).in_work(2));

  // The same pages: behind it, in two threads, one that works and one that only wants to see the bytes.
  const PageZero vacated = zero_of(GatedBackend::gated_page);
  std::atomic<bool> zeroed{false}, seen{false};
  std::thread zeroer([&] {
    call([&] { work.zero(Tier::kDevice, {&vacated, 1}, {&first, 1}, mark(3), nullptr); });
    zeroed = true;
  });
  std::thread reader([&] {
    call([&] { work.await(Tier::kDevice, {&first, 1}); });
    seen = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(zeroed);
  EXPECT_FALSE(seen);
  backend.open_gate();
  mover.join();
  zeroer.join();
  reader.join();
  EXPECT_EQ(backend.log(), (std::vector<uint32_t>{1003, GatedBackend::gated_page, 1000 + GatedBackend::gated_page}));
  EXPECT_TRUE(work.board(Tier::kDevice).empty());
}

TEST_F(PageWorkTest, LargeWorkIsShared) {
  open(2, 1 << 20);
  backend.meet(3); // The asking thread and both workers, or it never ends.
  std::vector<PageMove> moves;
  for (uint32_t page = 10; page < 40; page++) moves.push_back(move_of(page));
  call([&] { work.move(Tier::kHost, moves, {}, mark(1), nullptr); });
  std::vector<uint32_t> log = backend.log();
  std::sort(log.begin(), log.end());
  ASSERT_EQ(log.size(), 30u); // Each once.
  for (uint32_t i = 0; i < 30; i++) EXPECT_EQ(log[i], 10 + i);
}

// More than there are places for: done at once, behind all that came before, and in order.
TEST_F(PageWorkTest, TooMuchAtOnceIsDoneAtOnce) {
  open(0, 4096);
  call([&] {
    for (uint32_t i = 0; i < 200; i++) {
      const PageZero zero = zero_of(i);
      ASSERT_EQ(work.zero(Tier::kDevice, {&zero, 1}, {}, mark(i + 1), nullptr), HICACHE_OK);
    }
  });
  const std::vector<uint32_t> log = backend.log();
  ASSERT_EQ(log.size(), 200u);
  for (uint32_t i = 0; i < 200; i++) EXPECT_EQ(log[i], 1000 + i);
  EXPECT_TRUE(work.board(Tier::kDevice).empty());
}

// Memory that is given up is given up after the pages in it have gone.
TEST(PageWorkOfAnEngine, AShrinkingArenaKeepsItsBytes) {
  hicache_test::EngineShape shape;
  shape.device_bytes = 1 << 20;
  shape.device_bytes_max = 1 << 20;
  hicache_test::OpenEngine engine(shape);
  const auto pages = engine.alloc(60);
  for (const uint32_t page : pages) engine.stamp(hicache_test::kFull, page, page);
  ASSERT_EQ(hicache_resize(engine.get(), 512 << 10, engine.error()), HICACHE_OK) << engine.message();
  for (const uint32_t page : pages) EXPECT_TRUE(engine.holds(hicache_test::kFull, page, page));
  engine.expect_sound();
}

// A transfer that waits for page work is submitted after the lock. Until then its slot has the progress of the ticket before, and a refusal
// must not name it.
TEST(PageWorkOfAnEngine, ATicketIsNamedOnceItIsSubmitted) {
  constexpr uint32_t kFull = hicache_test::kFull;
  hicache_test::EngineShape shape;
  shape.with_fault = true; // Transfers stay in flight until they are run.
  hicache_test::OpenEngine engine(shape);
  const auto host = engine.host_alloc(kFull, 1);
  Engine &on = *engine.get()->engine;
  uint32_t page = HICACHE_NO_PAGE;
  hicache_copy_t copy{};
  hicache_transfer_t transfer{};
  transfer.struct_size = sizeof transfer;
  transfer.copies = &copy;
  transfer.copy_count = 1;
  hicache_ticket_t ticket = 0, further = 0;
  {
    EngineLock lock(on);
    const Take take{kFull, 1, &page}; // To be zeroed when the lock is released.
    ASSERT_EQ(on.device().take({&take, 1}, nullptr), HICACHE_OK);
    copy.pool = kFull;
    copy.device_page = page;
    copy.host_page = host[0];
    ASSERT_EQ(on.transfers().back_up(transfer, &ticket, nullptr), HICACHE_OK);
    ErrorDetail why;
    EXPECT_EQ(on.transfers().back_up(transfer, &further, &why), HICACHE_BUSY);
    EXPECT_EQ(why.ticket, 0u);
  }
  {
    EngineLock lock(on);
    ErrorDetail why;
    EXPECT_EQ(on.transfers().back_up(transfer, &further, &why), HICACHE_BUSY);
    EXPECT_EQ(why.ticket, ticket);
    EXPECT_EQ(on.transfers().ticket_status(ticket, nullptr, nullptr), HICACHE_PENDING);
  }
  uint32_t ran = 0, count = 0;
  ASSERT_EQ(hicache_fault_run(engine.get(), 1, 0, &ran, engine.error()), HICACHE_OK);
  hicache_completion_t done;
  ASSERT_EQ(hicache_completion_poll(engine.get(), &done, 1, &count, engine.error()), HICACHE_OK);
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(done.ticket, ticket);
  engine.expect_sound();
}

} // namespace
} // namespace hicache
