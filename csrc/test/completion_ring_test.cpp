// The ring: order, publication after another, waiting, waking, the eventfd.
#include "completion_ring.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <thread>
#include <vector>

#include "copy_queue.hpp"

namespace hicache {
namespace {

std::vector<uint32_t> drain(CompletionRing &ring) {
  std::vector<uint32_t> all;
  uint32_t slot;
  while (ring.take(&slot)) all.push_back(slot);
  return all;
}

TEST(CompletionRing, OldestFirst) {
  CompletionRing ring(4);
  for (uint32_t round = 0; round < 5; round++) {
    for (uint32_t slot : {2, 0, 3, 1}) ring.begin(slot, kNoSlot);
    for (uint32_t slot : {3, 1, 0, 2}) ring.publish(slot);
    EXPECT_EQ(drain(ring), (std::vector<uint32_t>{3, 1, 0, 2}));
  }
}

TEST(CompletionRing, PublishesAfterThePredecessor) {
  CompletionRing ring(8);
  ring.begin(0, kNoSlot);
  ring.begin(1, 0);
  ring.begin(2, 1);
  ring.begin(3, 0);
  ring.begin(4, kNoSlot);
  ring.publish(2);
  ring.publish(1);
  EXPECT_TRUE(drain(ring).empty()) << "their predecessors have not ended";
  ring.publish(4);
  EXPECT_EQ(drain(ring), (std::vector<uint32_t>{4}));
  ring.publish(0);
  EXPECT_EQ(drain(ring), (std::vector<uint32_t>{0, 1, 2}));
  ring.publish(3);
  EXPECT_EQ(drain(ring), (std::vector<uint32_t>{3}));
}

TEST(CompletionRing, PredecessorPublishedButUnread) {
  CompletionRing ring(4);
  ring.begin(0, kNoSlot);
  ring.publish(0);
  ring.begin(1, 0);
  ring.publish(1);
  EXPECT_EQ(drain(ring), (std::vector<uint32_t>{0, 1}));
}

TEST(CompletionRing, WaitsUntilReadyTimeoutOrWake) {
  CompletionRing ring(4);
  EXPECT_EQ(ring.wait(steady_now_ns() + 1000000, ring.look_count()), CompletionRing::Wake::kTimeout);
  ring.wake(); // Nobody waits: the next one returns.
  EXPECT_EQ(ring.wait(UINT64_MAX, ring.look_count()), CompletionRing::Wake::kWoken);
  EXPECT_EQ(ring.wait(steady_now_ns() + 1000000, ring.look_count()), CompletionRing::Wake::kTimeout);
  ring.begin(0, kNoSlot);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ring.publish(0);
  });
  EXPECT_EQ(ring.wait(UINT64_MAX, ring.look_count()), CompletionRing::Wake::kReady);
  later.join();
  drain(ring);
  const uint64_t looks = ring.look_count();
  ring.look_again();
  EXPECT_EQ(ring.wait(UINT64_MAX, looks), CompletionRing::Wake::kLook);
  ring.close();
  EXPECT_EQ(ring.wait(UINT64_MAX, ring.look_count()), CompletionRing::Wake::kClosed);
}

TEST(CompletionRing, WakeReachesAllWhoWait) {
  CompletionRing ring(4);
  std::vector<std::thread> threads;
  std::atomic<int> woken{0};
  for (int i = 0; i < 4; i++) {
    threads.emplace_back([&] {
      // A waiter that comes late takes the wake that nobody else took.
      if (ring.wait(steady_now_ns() + 10'000'000'000u, ring.look_count()) == CompletionRing::Wake::kWoken) woken++;
    });
  }
  while (woken < 4) {
    ring.wake();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (auto &thread : threads) thread.join();
  EXPECT_EQ(woken, 4);
}

TEST(CompletionRing, EventFdIsReadableWhileNotEmpty) {
  CompletionRing ring(4);
  auto readable = [&](int fd) {
    pollfd one{fd, POLLIN, 0};
    return ::poll(&one, 1, 0) == 1;
  };
  ring.begin(0, kNoSlot);
  ring.begin(1, kNoSlot);
  ring.publish(0);
  const int fd = ring.event_fd(); // Asked for late: still right.
  ASSERT_GE(fd, 0);
  EXPECT_TRUE(readable(fd));
  ring.publish(1);
  uint32_t slot;
  ring.take(&slot);
  EXPECT_TRUE(readable(fd));
  ring.take(&slot);
  EXPECT_FALSE(readable(fd));
  ring.begin(2, kNoSlot);
  ring.publish(2);
  EXPECT_TRUE(readable(fd));
}

} // namespace
} // namespace hicache
