// Hand-over between engines on CUDA devices, by hicache.h alone, beside work on streams of the caller's: two engines on one device, and on
// two where there are two (the simulated driver has them, and refuses what was not granted). Its file comes before backend_cuda_test.cpp,
// whose last test leaves a broken device.
#include <thread>
#include <type_traits>

#include "device_fixture.hpp"
#include "hicache.h"

namespace hicache::device_test {
namespace {

int device_count() {
  int count = 0;
  api().device_count(&count);
  return count;
}
CuContext context_of(int device) {
  static CuContext made[2] = {};
  if (made[device] == nullptr) api().primary_retain(&made[device], device);
  return made[device];
}
CuContext current() {
  CuContext now = nullptr;
  api().context_get(&now);
  return now;
}

struct Shape {
  int device = 0;
  uint64_t row_bytes = 512; // K and V of 4 layers of 16 tokens: pages of 64 KiB.
  uint64_t device_bytes = 16 << 20, device_bytes_max = 16 << 20;
  void *buffer = nullptr;
  bool of_its_own = false; // A static pool.
};

// An engine of one pool on a device, and a stream of the caller's there.
class Party {
public:
  explicit Party(const Shape &shape) : device(shape.device) {
    static const uint32_t layers[] = {0, 1, 2, 3};
    hicache_pool_options_t pools[2]{};
    pools[0].role = HICACHE_ROLE_FULL;
    pools[0].page_tokens = 16;
    pools[0].layer_count = 4;
    pools[0].layer_ids = layers;
    pools[0].k_row_bytes = pools[0].v_row_bytes = shape.row_bytes;
    pools[1].role = HICACHE_ROLE_STATE; // The chain of an arena is never empty.
    pools[1].page_tokens = pools[1].layer_count = 1;
    static const uint32_t state_layer[] = {4};
    pools[1].layer_ids = state_layer;
    pools[1].k_row_bytes = 4096;
    if (shape.of_its_own) pools[0].flags = HICACHE_POOL_STATIC, pools[0].virtual_page_count = 64;
    hicache_options_t options{};
    options.struct_size = sizeof options;
    options.abi_version = HICACHE_ABI_MAJOR << 16 | HICACHE_ABI_MINOR;
    options.backend = HICACHE_BACKEND_CUDA;
    options.device = shape.device;
    options.device_bytes = shape.device_bytes;
    options.device_bytes_max = shape.device_bytes_max;
    options.device_buffer = shape.buffer;
    options.pools = pools;
    options.pool_count = 2;
    options.pool_stride_bytes = sizeof pools[0];
    error.struct_size = sizeof error;
    EXPECT_EQ(hicache_open(&options, &engine, &error), HICACHE_OK) << error.message;
    page_bytes = 128 * shape.row_bytes;
    Here here(*this);
    stream = make();
  }
  ~Party() {
    close();
    Here here(*this);
    api().stream_synchronize(stream);
    api().stream_destroy(stream);
  }
  void close() {
    if (engine == nullptr) return;
    EXPECT_EQ(hicache_close(engine, &error), HICACHE_OK) << error.message;
    engine = nullptr;
  }

  // This party's context, for calls of the caller's own.
  class Here {
  public:
    explicit Here(const Party &of) { api().context_push(context_of(of.device)); }
    ~Here() {
      CuContext mine = nullptr;
      api().context_pop(&mine);
    }
  };
  CuStream make() {
    CuStream made = nullptr;
    api().stream_create(&made, cu::kStreamNonBlocking, 0);
    return made;
  }

  std::vector<uint32_t> take(uint32_t count) {
    std::vector<uint32_t> pages(count);
    const hicache_take_t line{0, count, pages.data()};
    EXPECT_EQ(hicache_alloc(engine, &line, 1, &error), HICACHE_OK) << error.message;
    return pages;
  }
  void free(const std::vector<uint32_t> &pages) {
    const hicache_pages_t line{0, static_cast<uint32_t>(pages.size()), pages.data()};
    EXPECT_EQ(hicache_free(engine, &line, 1, &error), HICACHE_OK) << error.message;
  }
  CuAddress address(uint32_t vpage) {
    hicache_pool_info_t info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(hicache_pool_info(engine, HICACHE_TIER_DEVICE, 0, &info, &error), HICACHE_OK);
    uint32_t place = 0;
    EXPECT_EQ(hicache_inspect(engine, 0, &vpage, 1, &place, &error), HICACHE_OK);
    return info.arena_base + place * info.page_bytes;
  }
  // A step on a stream, within which work(address) is enqueued for each page.
  template <class Work> void step(CuStream on, const std::vector<uint32_t> &pages, Work work) {
    const hicache_pages_t line{0, static_cast<uint32_t>(pages.size()), pages.data()};
    hicache_step_t step = 0;
    ASSERT_EQ(hicache_step_open(engine, reinterpret_cast<uint64_t>(on), &line, 1, &step, &error), HICACHE_OK) << error.message;
    {
      Here here(*this);
      for (size_t i = 0; i < pages.size(); i++) work(i, address(pages[i]));
    }
    ASSERT_EQ(hicache_step_close(engine, step, &error), HICACHE_OK) << error.message;
  }
  // Pages filled with a word of their own each.
  void write(CuStream on, const std::vector<uint32_t> &pages, uint32_t word) {
    step(on, pages, [&](size_t i, CuAddress at) {
      CU_OK(api().set32_async(at, word + static_cast<uint32_t>(i), page_bytes / 4 - 1, on));
      CU_OK(api().set32_async(at + page_bytes - 4, word + static_cast<uint32_t>(i), 1, on));
    });
  }
  // What they hold, once everything before has run.
  void expect(const std::vector<uint32_t> &pages, uint32_t word, const char *what) {
    std::vector<uint32_t> bytes(page_bytes / 4);
    for (size_t i = 0; i < pages.size(); i++) {
      step(stream, {pages[i]}, [&](size_t, CuAddress at) {
        CU_OK(api().copy_async(reinterpret_cast<CuAddress>(bytes.data()), at, page_bytes, stream)); // Pageable: waits.
        CU_OK(api().stream_synchronize(stream));
      });
      for (size_t k = 0; k < bytes.size(); k++) ASSERT_EQ(bytes[k], word + i) << what << ", page " << i << ", word " << k;
    }
  }
  void compact() {
    hicache_compact_budget_t budget{};
    budget.struct_size = sizeof budget;
    budget.tier = HICACHE_TIER_DEVICE;
    budget.pool = HICACHE_NO_POOL;
    EXPECT_EQ(hicache_compact(engine, &budget, nullptr, &error), HICACHE_OK) << error.message;
  }
  uint64_t moves() {
    hicache_stats_t stats{};
    stats.struct_size = sizeof stats;
    EXPECT_EQ(hicache_stats(engine, &stats, &error), HICACHE_OK);
    return stats.moves;
  }

  const int device;
  hicache_engine_t *engine = nullptr;
  hicache_error_t error{};
  CuStream stream = nullptr;
  uint64_t page_bytes = 0;
};

hicache_status_t hand_over(Party &source, const std::vector<uint32_t> &from, Party &target, const std::vector<uint32_t> &to,
                           CuStream source_stream, CuStream target_stream, uint32_t flags = 0) {
  const hicache_hand_over_line_t line{0, 0, static_cast<uint32_t>(from.size()), 0, from.data(), to.data()};
  hicache_hand_over_t request{};
  request.struct_size = sizeof request;
  request.lines = &line;
  request.line_count = 1;
  request.source_stream = reinterpret_cast<uint64_t>(source_stream);
  request.target_stream = reinterpret_cast<uint64_t>(target_stream);
  request.flags = flags;
  return hicache_hand_over(source.engine, target.engine, &request, &source.error);
}
hicache_status_t hand_over(Party &source, const std::vector<uint32_t> &from, Party &target, const std::vector<uint32_t> &to) {
  return hand_over(source, from, target, to, source.stream, target.stream);
}
#define HANDED_OVER(source, from, target, to) ASSERT_EQ(hand_over(source, from, target, to), HICACHE_OK) << (source).error.message

// Work of the caller's that waits on a device until the test opens it.
class Gate {
public:
  explicit Gate(Party &of) : of_(of) {
    Party::Here here(of);
    api().memory_alloc(&word_, 64);
    opener_ = of.make();
    api().set32_async(word_, 0, 1, opener_);
    api().stream_synchronize(opener_);
  }
  ~Gate() {
    open();
    Party::Here here(of_);
    api().context_synchronize();
    api().stream_destroy(opener_);
    api().memory_free(word_);
  }
  void hold(CuStream stream) {
    Party::Here here(of_);
    api().stream_wait_value(stream, word_, 1, cu::kWaitValueGreaterOrEqual);
  }
  void open() {
    Party::Here here(of_);
    api().stream_write_value(opener_, word_, 1, cu::kWriteValueDefault);
    api().stream_synchronize(opener_);
  }

private:
  Party &of_;
  CuAddress word_ = 0;
  CuStream opener_ = nullptr;
};

// By way of the copies: the library's choice, and each that there is.
class Way {
public:
  explicit Way(const char *way) {
    if (way != nullptr) setenv("HICACHE_CUDA_PEER", way, 1);
  }
  ~Way() { unsetenv("HICACHE_CUDA_PEER"); }
};

// The source's device is 0, the target's the type's. Types and not values: those would run after every other test, also the one that breaks
// the device.
template <class Target> class HandOverOn : public testing::Test {
protected:
  void SetUp() override {
    if (Target::value >= device_count()) GTEST_SKIP() << "NOT TESTED: needs " << Target::value + 1 << " GPUs, there is " << device_count();
    api().context_set(nullptr);
  }
  void TearDown() override { api().context_set(caller_context()); }
  Shape here(uint64_t row_bytes = 512) const { return {0, row_bytes}; }
  Shape there(uint64_t row_bytes = 512) const { return {Target::value, row_bytes}; }
};
struct OneOrTwo {
  template <class Target> static std::string GetName(int) { return Target::value == 0 ? "OneDevice" : "TwoDevices"; }
};
using Targets = testing::Types<std::integral_constant<int, 0>, std::integral_constant<int, 1>>;
TYPED_TEST_SUITE(HandOverOn, Targets, OneOrTwo);

TYPED_TEST(HandOverOn, BothWaysWithMovesInBetween) {
  for (const char *way : {static_cast<const char *>(nullptr), "kernel", "engine", "driver"}) {
    for (uint64_t row_bytes : {uint64_t{16}, uint64_t{256}, uint64_t{4096}}) { // Pages of 2, 32 and 512 KiB.
      SCOPED_TRACE(std::string(way != nullptr ? way : "the library's choice") + ", rows of " + std::to_string(row_bytes));
      const Way forced(way);
      Party a(this->here(row_bytes)), b(this->there(row_bytes));
      const auto filler_a = a.take(3), from = a.take(5), filler_b = b.take(6), to = b.take(5);
      a.write(a.stream, from, 1000);
      HANDED_OVER(a, from, b, to);
      a.write(a.stream, from, 2000); // At once: the copies read what was there.
      b.free(filler_b);
      b.compact(); // At once: the pages move with what arrives.
      EXPECT_GT(b.moves(), 0u);
      b.expect(to, 1000, "there");
      a.free(filler_a);
      a.compact();
      EXPECT_GT(a.moves(), 0u);
      a.expect(from, 2000, "what stayed");
      const auto back = a.take(5);
      HANDED_OVER(b, to, a, back);
      b.free(to); // At once: whoever gets the bytes next follows the copies.
      const auto next = b.take(5);
      b.write(b.stream, next, 3000);
      a.expect(back, 1000, "and back");
      b.expect(next, 3000, "in its place");
      if (this->HasFatalFailure()) return;
    }
  }
}

// More pages than a list that travels with a launch, or a batch of the driver's, holds.
TYPED_TEST(HandOverOn, ManyPages) {
  for (const char *way : {"kernel", "engine", "driver"}) {
    SCOPED_TRACE(way);
    const Way forced(way);
    Party a(this->here(16)), b(this->there(16));
    const auto from = a.take(700), to = b.take(700);
    a.write(a.stream, from, 5);
    std::vector<uint32_t> reversed(from.rbegin(), from.rend());
    HANDED_OVER(a, reversed, b, to);
    const std::vector<uint32_t> ends{to[699], to[698], to[697]};
    b.expect(ends, 5, "reversed");
    if (this->HasFatalFailure()) return;
  }
}

// The whole chain on the device: producer, copy, reader and the writer after it, none of which has begun when the calls are made.
TYPED_TEST(HandOverOn, FollowsTheProducerAndIsFollowed) {
  Party a(this->here()), b(this->there());
  const auto from = a.take(3), to = b.take(3);
  a.write(a.stream, from, 10);
  a.expect(from, 10, "before");
  b.write(b.stream, to, 20);
  b.expect(to, 20, "before");
  CuStream producer = nullptr, writer = nullptr, reader = nullptr;
  {
    Party::Here at(a);
    producer = a.make();
    writer = a.make();
  }
  {
    Party::Here at(b);
    reader = b.make();
  }
  std::vector<std::vector<uint64_t>> seen;
  unsigned char *pinned = nullptr;
  {
    Party::Here at(b);
    pinned = static_cast<unsigned char *>(std::aligned_alloc(4096, 3 * b.page_bytes));
    CU_OK(api().host_register(pinned, 3 * b.page_bytes, cu::kHostRegisterPortable));
  }
  {
    Gate gate(a);
    gate.hold(producer);
    a.write(producer, from, 100);
    HANDED_OVER(a, from, b, to);
    a.write(writer, from, 200);
    b.step(reader, to, [&](size_t i, CuAddress at) {
      CU_OK(api().copy_async(reinterpret_cast<CuAddress>(pinned + i * b.page_bytes), at, b.page_bytes, reader));
    });
    b.write(b.stream, to, 300);
    gate.open();
    Party::Here at(b);
    CU_OK(api().stream_synchronize(reader));
  }
  for (uint32_t i = 0; i < 3; i++) {
    for (uint64_t k = 0; k < b.page_bytes; k += 4) {
      uint32_t word = 0;
      std::memcpy(&word, pinned + i * b.page_bytes + k, 4);
      ASSERT_EQ(word, 100 + i) << "page " << i << ", byte " << k;
    }
  }
  a.expect(from, 200, "overwritten after");
  b.expect(to, 300, "overwritten after");
  {
    Party::Here at(a);
    api().stream_destroy(producer);
    api().stream_destroy(writer);
  }
  Party::Here at(b);
  api().stream_synchronize(reader);
  api().stream_destroy(reader);
  api().host_unregister(pinned);
  std::free(pinned);
}

// With the flag an open step of the target's stream may hold the pages: what it enqueues later sees them.
TYPED_TEST(HandOverOn, AStepThatIsOpenAlready) {
  Party a(this->here()), b(this->there());
  const auto from = a.take(2), to = b.take(2);
  a.write(a.stream, from, 40);
  const hicache_pages_t line{0, 2, to.data()};
  hicache_step_t step = 0;
  const auto on = reinterpret_cast<uint64_t>(b.stream);
  ASSERT_EQ(hicache_step_open(b.engine, on, &line, 1, &step, &b.error), HICACHE_OK);
  EXPECT_EQ(hand_over(a, from, b, to), HICACHE_BUSY);
  uint32_t words[2] = {};
  {
    Gate gate(a);
    gate.hold(a.stream);
    a.write(a.stream, from, 50);
    ASSERT_EQ(hand_over(a, from, b, to, a.stream, b.stream, HICACHE_HAND_OVER_HELD), HICACHE_OK) << a.error.message;
    gate.open();
    Party::Here at(b);
    for (int i = 0; i < 2; i++) CU_OK(api().copy_async(reinterpret_cast<CuAddress>(&words[i]), b.address(to[i]), 4, b.stream));
    CU_OK(api().stream_synchronize(b.stream));
  }
  ASSERT_EQ(hicache_step_close(b.engine, step, &b.error), HICACHE_OK);
  EXPECT_EQ(words[0], 50u);
  EXPECT_EQ(words[1], 51u);
}

TYPED_TEST(HandOverOn, GrowingArenasStaySeen) {
  Shape small = this->there();
  small.device_bytes = 4 << 20;
  Party a(this->here()), b(small);
  const auto from = a.take(60);
  a.write(a.stream, from, 7);
  HANDED_OVER(a, {from[0]}, b, b.take(1));
  ASSERT_EQ(hicache_resize(b.engine, 16 << 20, &b.error), HICACHE_OK) << b.error.message;
  const auto to = b.take(120);
  const std::vector<uint32_t> last(to.end() - 60, to.end());
  HANDED_OVER(a, from, b, last);
  b.expect({last[0]}, 7, "in what it grew by");
  b.free(to);
  ASSERT_EQ(hicache_resize(b.engine, 4 << 20, &b.error), HICACHE_OK) << b.error.message; // Behind the copies that wrote there.
}

TYPED_TEST(HandOverOn, MemoryThatWasNotMappedByHand) {
  Party a(this->here());
  const auto from = a.take(4);
  a.write(a.stream, from, 70);
  Shape fixed = this->there();
  fixed.of_its_own = true;
  Party own(fixed);
  const auto to = own.take(4);
  HANDED_OVER(a, from, own, to);
  own.expect(to, 70, "a static pool");
  CuAddress buffer = 0;
  {
    Party::Here at(own);
    CU_OK(api().memory_alloc(&buffer, 16 << 20));
  }
  {
    Shape adopted = this->there();
    adopted.buffer = reinterpret_cast<void *>(buffer);
    Party lent(adopted);
    const auto pages = lent.take(4);
    HANDED_OVER(a, from, lent, pages);
    lent.expect(pages, 70, "a buffer of the caller's");
  }
  Party::Here at(own);
  CU_OK(api().memory_free(buffer));
}

TYPED_TEST(HandOverOn, LeavesContextsAlone) {
  const CuContext both[] = {nullptr, context_of(0), context_of(TypeParam::value)};
  for (CuContext mine : both) {
    api().context_set(mine);
    Party a(this->here()), b(this->there());
    EXPECT_EQ(current(), mine);
    const auto from = a.take(2), to = b.take(2);
    for (const char *way : {"kernel", "driver"}) {
      const Way forced(way);
      ASSERT_EQ(hand_over(a, from, b, to, nullptr, nullptr), HICACHE_OK) << a.error.message;
      EXPECT_EQ(current(), mine);
      ASSERT_EQ(hand_over(b, to, a, from, nullptr, nullptr), HICACHE_OK) << b.error.message;
      EXPECT_EQ(current(), mine);
    }
    EXPECT_EQ(hand_over(a, {999999}, b, to), HICACHE_NOT_MAPPED);
    EXPECT_EQ(current(), mine);
    b.close();
    a.close();
    EXPECT_EQ(current(), mine);
    api().context_set(nullptr);
  }
}

// Both devices from two threads at once, which have no context or the other's.
TYPED_TEST(HandOverOn, TwoThreadsAtOnce) {
  Party a(this->here()), b(this->there());
  Party *const all[2] = {&a, &b};
  std::vector<uint32_t> own[2], received[2];
  for (int who = 0; who < 2; who++) {
    own[who] = all[who]->take(4);
    received[who] = all[who]->take(4);
    all[who]->write(all[who]->stream, own[who], 100 * (who + 1));
  }
  std::vector<std::thread> threads;
  for (int who = 0; who < 2; who++) {
    threads.emplace_back([&, who] {
      const CuContext mine = who == 0 ? nullptr : context_of(0);
      api().context_set(mine);
      Party &source = *all[who], &target = *all[1 - who];
      for (int i = 0; i < 30; i++) {
        ASSERT_EQ(hand_over(source, own[who], target, received[1 - who]), HICACHE_OK) << source.error.message;
        uint32_t pages[6];
        const hicache_take_t take{0, 6, pages};
        hicache_error_t error{};
        error.struct_size = sizeof error;
        ASSERT_EQ(hicache_alloc(source.engine, &take, 1, &error), HICACHE_OK) << error.message;
        const hicache_pages_t first{0, 3, pages}, second{0, 3, pages + 3};
        ASSERT_EQ(hicache_free(source.engine, &first, 1, &error), HICACHE_OK);
        hicache_compact_budget_t budget{};
        budget.struct_size = sizeof budget;
        budget.tier = HICACHE_TIER_DEVICE;
        budget.pool = HICACHE_NO_POOL;
        ASSERT_EQ(hicache_compact(source.engine, &budget, nullptr, &error), HICACHE_OK);
        ASSERT_EQ(hicache_free(source.engine, &second, 1, &error), HICACHE_OK);
        ASSERT_EQ(current(), mine);
      }
    });
  }
  for (std::thread &thread : threads) thread.join();
  for (int who = 0; who < 2; who++) {
    all[who]->expect(own[who], 100 * (who + 1), "its own");
    all[who]->expect(received[who], 100 * (2 - who), "the other's");
  }
}

TYPED_TEST(HandOverOn, EitherSideMayCloseFirst) {
  for (bool source_first : {true, false}) {
    Party a(this->here()), b(this->there());
    const auto from = a.take(8), to = b.take(8);
    a.write(a.stream, from, 60);
    HANDED_OVER(a, from, b, to);
    if (!source_first) {
      b.close();
      a.expect(from, 60, "what stayed");
      continue;
    }
    a.close();
    b.expect(to, 60, "what came");
    // A new engine on the source's device is another source.
    Party next(this->here());
    const auto more = next.take(8);
    next.write(next.stream, more, 80);
    HANDED_OVER(next, more, b, to);
    b.expect(to, 80, "what came next");
  }
}

TYPED_TEST(HandOverOn, AStreamOfTheOtherDeviceCostsTheCall) {
  if (TypeParam::value == 0) GTEST_SKIP() << "NOT RUN: one device has no stream of another; TwoDevices has";
  Party a(this->here()), b(this->there());
  const auto from = a.take(2), to = b.take(2);
  a.write(a.stream, from, 90);
  EXPECT_EQ(hand_over(a, from, b, to, b.stream, b.stream), HICACHE_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(a.error.message, "source: stream"), nullptr) << a.error.message;
  EXPECT_EQ(hand_over(a, from, b, to, a.stream, a.stream), HICACHE_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(a.error.message, "target: stream"), nullptr) << a.error.message;
  HANDED_OVER(a, from, b, to);
  b.expect(to, 90, "after refusals");
}

// Devices that do not reach each other: the driver takes the pages through the host.
TYPED_TEST(HandOverOn, WithoutAWay) {
  if (!simulated) GTEST_SKIP() << "NOT RUN: needs the simulated driver; HICACHE_CUDA_PEER=driver goes the same way elsewhere";
  setenv("SIMULATED_CUDA_PEERS", "0", 1);
  {
    Party a(this->here()), b(this->there());
    const auto from = a.take(4), to = b.take(4);
    a.write(a.stream, from, 30);
    HANDED_OVER(a, from, b, to);
    b.expect(to, 30, "through the host");
  }
  unsetenv("SIMULATED_CUDA_PEERS");
}

TYPED_TEST(HandOverOn, ADeviceThatFailsSaysSo) {
  if (!simulated) GTEST_SKIP() << "NOT RUN: needs the simulated driver, whose faults can be mended";
  Party a(this->here()), b(this->there());
  const auto from = a.take(2), to = b.take(2);
  HANDED_OVER(a, from, b, to);
  for (const Party *of : {&a, &b}) { // What a failure catches under way never ends, also once it is mended.
    Party::Here at(*of);
    CU_OK(api().context_synchronize());
  }
  const auto fail_with = simulator_function<void (*)(int)>("simulated_cuda_fail");
  fail_with(700);
  EXPECT_EQ(hand_over(a, from, b, to), HICACHE_DEVICE);
  EXPECT_NE(std::strstr(a.error.message, "source: "), nullptr) << a.error.message;
  EXPECT_EQ(a.error.native_code, 700);
  fail_with(0);
  EXPECT_EQ(hand_over(a, from, b, to), HICACHE_DEVICE); // What failed stays failed, also as a target;
  EXPECT_EQ(hand_over(b, to, a, from), HICACHE_DEVICE);
  EXPECT_NE(std::strstr(b.error.message, "target: "), nullptr) << b.error.message;
  const auto more = b.take(1); // the other engine has not failed.
  EXPECT_EQ(more.size(), 1u);
}

TYPED_TEST(HandOverOn, GivesEverythingBack) {
  if (!simulated) GTEST_SKIP() << "NOT RUN: needs the simulated driver, which counts what is held";
  const auto live = simulator_function<int (*)()>("simulated_cuda_live");
  const int before = live();
  {
    Party a(this->here()), b(this->there());
    HANDED_OVER(a, a.take(4), b, b.take(4));
  }
  EXPECT_EQ(live(), before);
}

} // namespace
} // namespace hicache::device_test
