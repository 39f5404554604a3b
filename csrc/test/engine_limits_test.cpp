// What an engine is given at open: limits that say which option they are, memory from the nodes that were named.
#include <gtest/gtest.h>

#include <cstring>

#include "../host_memory.hpp"
#include "../operation_log.hpp"
#include "open_engine.hpp"

namespace hicache_test {
namespace {

// A call that an exception ends leaves half a record: the log ends before it, whole.
TEST(OperationLog, ACallThatThrowsEndsTheLog) {
  hicache::EngineOptions options;
  hicache::OperationLog log;
  log.start(hicache::OperationLog::kCapacityMin, options);
  ASSERT_TRUE(log.begin(hicache::OperationLog::kCancel));
  log.id(1);
  log.end(HICACHE_OK);
  ASSERT_TRUE(log.begin(hicache::OperationLog::kStepOpen));
  log.wide(7); // And here it is left.

  std::vector<std::byte> bytes(4096);
  uint64_t got = 0;
  const auto next = [&] {
    EXPECT_EQ(log.drain(bytes.data(), bytes.size(), &got, nullptr), HICACHE_OK);
    std::vector<uint32_t> kinds;
    for (uint64_t at = 0; at < got;) {
      uint32_t words[4];
      std::memcpy(words, bytes.data() + at, sizeof words);
      const bool header = std::memcmp(bytes.data() + at, "HICA", 4) == 0;
      if (!header) kinds.push_back(words[3]);
      if (!header && words[0] == 0) { // No length: nobody could go on from here.
        ADD_FAILURE() << "half a record";
        break;
      }
      at += header ? hicache::OperationLog::kHeaderBytes : words[0];
    }
    return kinds;
  };
  EXPECT_EQ(next(), (std::vector<uint32_t>{hicache::OperationLog::kOptions, hicache::OperationLog::kCancel}));
  EXPECT_FALSE(log.begin(hicache::OperationLog::kCancel));
  EXPECT_FALSE(log.on());
  EXPECT_EQ(next(), std::vector<uint32_t>{hicache::OperationLog::kEnd});
  EXPECT_EQ(next(), std::vector<uint32_t>{});
}

// Also where the log is stopped before the next call.
TEST(OperationLog, StoppedAfterACallThatThrew) {
  hicache::EngineOptions options;
  hicache::OperationLog log;
  log.start(hicache::OperationLog::kCapacityMin, options);
  ASSERT_TRUE(log.begin(hicache::OperationLog::kStepOpen));
  log.wide(7); // And here it is left.
  log.stop();
  std::vector<std::byte> bytes(4096);
  uint64_t got = 0;
  EXPECT_EQ(log.drain(bytes.data(), bytes.size(), &got, nullptr), HICACHE_OK); // Without end if half a record is there, without a length.
  std::vector<uint32_t> kinds;
  for (uint64_t at = hicache::OperationLog::kHeaderBytes; at + 16 <= got;) {
    uint32_t words[4];
    std::memcpy(words, bytes.data() + at, sizeof words);
    kinds.push_back(words[3]);
    at += words[0];
  }
  EXPECT_EQ(kinds, (std::vector<uint32_t>{hicache::OperationLog::kOptions, hicache::OperationLog::kEnd}));
}

TEST(EngineLimits, PageCopiesOfAllTickets) {
  EngineShape shape;
  shape.with_fault = true; // Transfers stay in flight until they are run.
  shape.fault.hold = 1;
  shape.transfer_pages_max = 100;
  OpenEngine engine(shape);
  const Pages device = engine.alloc(40), host = engine.host_alloc(kFull, 40), host_swa = engine.host_alloc(kSwa, 40);
  const auto back_up = [&](uint32_t pool, uint32_t count, hicache_ticket_t *ticket) {
    std::vector<hicache_copy_t> copies(count);
    for (uint32_t i = 0; i < count; i++) {
      copies[i].pool = pool;
      copies[i].device_page = device[i % 40];
      copies[i].host_page = (pool == kFull ? host : host_swa)[i % 40];
    }
    hicache_transfer_t transfer{};
    transfer.struct_size = sizeof transfer;
    transfer.copies = copies.data();
    transfer.copy_count = count;
    transfer.priority = HICACHE_CLASS_NORMAL;
    return hicache_back_up(engine.get(), &transfer, ticket, engine.error());
  };
  hicache_ticket_t first = 0, second = 0;
  EXPECT_EQ(back_up(kFull, 101, &first), HICACHE_LIMIT);
  EXPECT_NE(engine.message().find("transfer_pages_max"), std::string::npos) << engine.message();
  ASSERT_EQ(back_up(kFull, 40, &first), HICACHE_OK) << engine.message();
  ASSERT_EQ(back_up(kSwa, 40, &second), HICACHE_OK) << engine.message();
  uint32_t ran = 0;
  ASSERT_EQ(hicache_fault_run(engine.get(), 2, 0, &ran, engine.error()), HICACHE_OK);
  hicache_completion_t done[4];
  uint32_t count = 0;
  ASSERT_EQ(hicache_completion_poll(engine.get(), done, 4, &count, engine.error()), HICACHE_OK);
  EXPECT_EQ(count, 2u);
  engine.expect_sound();
}

// A server may make a stream a request: only those that still work count.
TEST(EngineLimits, StreamsWithoutEnd) {
  OpenEngine engine({.own_backend = true}); // Streams of a device end where its memory does.
  hicache_step_t step = 0, open = 0;
  ASSERT_EQ(hicache_step_open(engine.get(), 1, nullptr, 0, &open, engine.error()), HICACHE_OK) << engine.message();
  for (uint64_t stream = 2; stream < 5000; stream++) {
    ASSERT_EQ(hicache_step_open(engine.get(), stream, nullptr, 0, &step, engine.error()), HICACHE_OK) << stream << engine.message();
    ASSERT_EQ(hicache_step_close(engine.get(), step, engine.error()), HICACHE_OK) << engine.message();
  }
  ASSERT_EQ(hicache_step_close(engine.get(), open, engine.error()), HICACHE_OK) << engine.message();
}

TEST(EngineLimits, HostMemoryOfANode) {
  const uint64_t nodes = hicache::numa_nodes();
  ASSERT_NE(nodes, 0u);
  EngineShape shape;
  shape.host_numa_nodes = nodes & ~(nodes - 1); // The lowest.
  {
    OpenEngine engine(shape);
    const Pages host = engine.host_alloc(kFull, 4);
    engine.host_free(kFull, host);
  }
  if (nodes == UINT64_MAX) return;              // No node is unknown here.
  shape.host_numa_nodes = ~nodes & (nodes + 1); // The lowest that there is not.
  hicache_engine_t *engine = nullptr;
  hicache_error_t error{};
  error.struct_size = sizeof error;
  EXPECT_EQ(OpenEngine::open(shape, &engine, &error), HICACHE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("host_numa_nodes: node"), std::string::npos) << error.message;
}

// Memory that is bound is bound: the kernel says so page by page, where it lets one ask.
TEST(EngineLimits, BoundMemoryIsUsable) {
  hicache::HostMemory memory;
  ASSERT_EQ(memory.reserve(8 << 20, 8 << 20), 0);
  EXPECT_EQ(memory.bind_nodes(hicache::numa_nodes()), 0);
  memory.touch(2);
  memory.base()[(8 << 20) - 1] = std::byte{1};
}

} // namespace
} // namespace hicache_test
