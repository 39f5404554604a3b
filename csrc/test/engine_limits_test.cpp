// What an engine is given at open: limits that say which option they are, memory from the nodes that were named.
#include <gtest/gtest.h>

#include "../host_memory.hpp"
#include "open_engine.hpp"

namespace hicache_test {
namespace {

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
