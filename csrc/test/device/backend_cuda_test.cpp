// The CUDA backend, byte for byte: on a device, or on the simulated driver (--simulated PATH).
#include <dlfcn.h>

#include <cstdio>
#include <thread>

#include "device_fixture.hpp"

namespace hicache::device_test {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Holds a stream of the caller's until it is opened.
class Gate {
public:
  Gate() {
    api().memory_alloc(&word_, 64);
    api().stream_create(&opener_, cu::kStreamNonBlocking, 0);
    api().set32_async(word_, 0, 1, opener_);
    api().stream_synchronize(opener_);
  }
  ~Gate() {
    open();
    api().context_synchronize();
    api().stream_destroy(opener_);
    api().memory_free(word_);
  }
  void hold(CuStream stream) { api().stream_wait_value(stream, word_, 1, cu::kWaitValueGreaterOrEqual); }
  void open() {
    api().stream_write_value(opener_, word_, 1, cu::kWriteValueDefault);
    api().stream_synchronize(opener_);
  }

private:
  CuAddress word_ = 0;
  CuStream opener_ = nullptr;
};

struct Shape {
  const char *name;
  std::vector<PoolLayout> pools;
};

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (uint32_t tokens : {1u, 4u, 16u, 64u}) {
    for (bool token_major : {false, true}) {
      all.push_back({token_major ? "FULL+SWA, token-major" : "FULL+SWA, layer-major",
                     {pool(token_major, tokens, 2048, 2048, {5, 11, 17, 23}),
                      pool(token_major, tokens, 1024, 512, {0, 1, 2, 3, 4, 6, 7, 8, 9, 10})}});
      all.push_back({token_major ? "FULL+SWA+STATE, token-major" : "FULL+SWA+STATE, layer-major",
                     {pool(token_major, tokens, 1024, 1024, range(0, 8, 4)), pool(token_major, tokens, 512, 512, range(1, 6, 4)),
                      pool(false, 1, 64 << 10, 3072, range(2, 4, 4), 512)}});
    }
  }
  return all;
}

// Host pages, filled, go to scattered device pages, move there, come back to other host pages.
void round_trip(const Shape &shape, CopyMethod method, uint64_t quantum_bytes) {
  SCOPED_TRACE(std::string(shape.name) + ", page_tokens " + std::to_string(shape.pools[0].page_tokens) + ", method " +
               std::to_string(static_cast<int>(method)) + ", quantum " + std::to_string(quantum_bytes));
  CopyTuning tuning;
  tuning.method = method;
  tuning.quantum_bytes = quantum_bytes;
  tuning.layered_bytes_min = 0;
  tuning.layer_bytes_min = 0;
  const uint32_t n = 24;
  uint64_t largest = 0;
  for (const PoolLayout &layout : shape.pools) largest = std::max(largest, layout.page_bytes);
  // Each pool its own third of both arenas: the backend does not know about spans, only places.
  const auto pools = static_cast<uint32_t>(shape.pools.size());
  const uint64_t part = (n * 3 + 2) * largest;
  Rig rig(shape.pools, part * pools, part * pools, tuning);
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  std::mt19937 random(7);
  std::vector<TierCopy> load, back_up;
  std::vector<PageMove> moves;
  std::vector<std::vector<uint32_t>> host_pages(pools), back_pages(pools);
  for (uint32_t p = 0; p < pools; p++) {
    const auto first = static_cast<uint32_t>(part * p / shape.pools[p].page_bytes) + 1;
    std::vector<uint32_t> device(3 * n), host(3 * n);
    for (uint32_t i = 0; i < 3 * n; i++) device[i] = host[i] = first + i;
    std::shuffle(device.begin(), device.end(), random);
    std::shuffle(host.begin(), host.end(), random);
    for (uint32_t i = 0; i < n; i++) {
      fill(rig.host(p, host[i]), shape.pools[p].page_bytes, p * 1000 + i);
      std::memset(rig.host(p, host[n + i]), 0xee, shape.pools[p].page_bytes);
      load.push_back({p, at(device[i]), at(host[i])});
      const uint32_t home = i % 2 != 0 ? device[i] : device[n + i];
      if (i % 2 == 0) moves.push_back({p, at(device[i]), at(home)});
      back_up.push_back({p, at(home), at(host[n + i])});
      host_pages[p].push_back(host[i]);
      back_pages[p].push_back(host[n + i]);
    }
  }
  ASSERT_EQ(rig.run(HICACHE_H2D, load, 1), HICACHE_OK);
  const FenceMark moved = FenceMark::make(kMoverSlot, 1);
  OK(rig.backend.move_pages(Tier::kDevice, moves, {}, moved, error));
  ASSERT_EQ(rig.run(HICACHE_D2H, back_up, 2, {&moved, 1}), HICACHE_OK);
  for (uint32_t p = 0; p < pools; p++) {
    for (uint32_t i = 0; i < n; i++)
      ASSERT_EQ(std::memcmp(rig.host(p, host_pages[p][i]), rig.host(p, back_pages[p][i]), shape.pools[p].page_bytes), 0)
          << "pool " << p << ", page " << i;
  }
}

TEST(CudaBackend, RoundTripMatrix) {
  for (const Shape &shape : shapes()) {
    for (CopyMethod method : {CopyMethod::kAuto, CopyMethod::kDirect, CopyMethod::kKernel, CopyMethod::kStaged}) {
      for (uint64_t quantum : {uint64_t{16} << 20, uint64_t{1} << 20}) {
        round_trip(shape, method, method == CopyMethod::kStaged ? quantum / 8 : quantum); // A ring of large slots takes long to make here.
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(CudaBackend, StateLargerThanAQuantum) {
  CopyTuning tuning;
  tuning.quantum_bytes = 4 * kMiB;
  round_trip({"STATE", {pool(false, 1, 2 * kMiB, 48 << 10, range(0, 7, 1))}}, CopyMethod::kAuto, 4 * kMiB);
}

// Who is not in a hurry gets whole envelopes, which cross the bus faster.
TEST(CudaBackend, OnlyUrgentLoadsGoLayerByLayer) {
  CopyTuning tuning;
  tuning.method = CopyMethod::kDirect;
  tuning.layer_bytes_min = tuning.layered_bytes_min = 0;
  Rig rig({pool(false, 16, 512, 512, range(0, 8))}, 8 * kMiB, 8 * kMiB, tuning);
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  const std::vector<TierCopy> pages = {{0, at(3), at(1)}, {0, at(1), at(5)}, {0, at(7), at(3)}};
  const LaneCounts &counts = rig.backend.counts(HICACHE_H2D);
  EXPECT_EQ(rig.run(HICACHE_H2D, pages, 1, HICACHE_CLASS_URGENT), HICACHE_OK);
  EXPECT_EQ(counts.copies, 3 * 4u); // Of 1, 1, 2 and 4 layers.
  for (uint32_t priority : {HICACHE_CLASS_NORMAL, HICACHE_CLASS_BACKGROUND}) {
    const uint64_t before = counts.copies;
    EXPECT_EQ(rig.run(HICACHE_H2D, pages, 1 + priority, priority), HICACHE_OK);
    EXPECT_EQ(counts.copies - before, 3u);
  }
}

// A wait on a queue of copies can stand before the copies that it waits for. It did, on a device.
TEST(CudaBackend, ALayerWaitStandsBehindAKernel) {
  if (!simulated) GTEST_SKIP() << "NOT RUN: needs the simulated driver, which knows the queue of a wait";
  const auto misplaced = simulator_function<int (*)()>("simulated_cuda_waits_among_copies");
  Rig rig({pool(false, 16, 512, 512, range(0, 8))}, 8 * kMiB, 8 * kMiB);
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  if (!rig.backend.kernels().available()) GTEST_SKIP() << "NO KERNELS: " << rig.backend.kernels().reason();
  CuStream other = nullptr;
  CU_OK(api().stream_create(&other, cu::kStreamNonBlocking, 0));
  for (uint32_t round = 0; round < 3; round++) { // The same slot: a new ticket has a new first wait.
    CU_OK(api().set32_async(rig.device(0, 5), round, 16, rig.stream));
    CU_OK(api().copy_async(reinterpret_cast<CuAddress>(rig.host(0, 9)), rig.device(0, 5), 64, other));
    CuStream producer = nullptr;
    CU_OK(api().stream_create(&producer, cu::kStreamNonBlocking, 0));
    Gate gate;
    gate.hold(producer);
    Transfer load(round + 1, 2, HICACHE_H2D, rig.order, {{0, at(1), at(2)}}, reinterpret_cast<uint64_t>(producer), HICACHE_CLASS_URGENT);
    rig.backend.submit(load.job);
    const int before = misplaced(); // The gate itself is a wait.
    for (uint32_t layer = 0; layer < 8; layer++) {
      OK(rig.backend.layer_wait(2, layer, rig.caller(), error));
      OK(rig.backend.layer_wait(2, layer, reinterpret_cast<uint64_t>(other), error));
    }
    EXPECT_EQ(misplaced(), before);
    gate.open();
    EXPECT_EQ(rig.done.wait(round + 1), HICACHE_OK);
    for (CuStream stream : {rig.stream, other}) CU_OK(api().stream_synchronize(stream));
    CU_OK(api().stream_destroy(producer));
  }
  CU_OK(api().stream_destroy(other));
}

TEST(CudaBackend, LayersArriveOneByOne) {
  CopyTuning cut_everything;
  cut_everything.layer_bytes_min = cut_everything.layered_bytes_min = 0;
  Rig rig({pool(false, 16, 2048, 2048, range(0, 12, 2)), pool(false, 16, 1024, 1024, range(1, 12, 2))}, 96 * kMiB, 96 * kMiB,
          cut_everything);
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  // Twice through the same slot: the second ticket's waits must not be fooled by the first's values.
  for (uint32_t round = 0; round < 3; round++) {
    std::vector<TierCopy> copies;
    for (uint32_t p = 0; p < 2; p++) {
      for (uint32_t i = 0; i < 32; i++) {
        // Pages of both pools are bytes of one arena: pool 1's first page here is past pool 0's last.
        const uint32_t device = p * 128 + 1 + (i * 7 + round) % 32, host = p * 128 + 1 + (i * 5) % 32;
        fill(rig.host(p, host), rig.order.pools()[p].page_bytes, round * 10000 + p * 100 + i);
        copies.push_back({p, at(device), at(host)});
      }
    }
    const uint64_t slice = 65536;
    CuAddress seen = 0;
    CU_OK(api().memory_alloc(&seen, 24 * slice));
    CU_OK(api().set32_async(seen, 0xffffffffu, 24 * slice / 4, rig.stream));
    CU_OK(api().stream_synchronize(rig.stream));
    Gate gate;
    CuStream producer = nullptr;
    CU_OK(api().stream_create(&producer, cu::kStreamNonBlocking, 0));
    gate.hold(producer); // The load starts after the waits have been enqueued.
    Transfer transfer(round + 1, 3, HICACHE_H2D, rig.order, copies, reinterpret_cast<uint64_t>(producer), HICACHE_CLASS_URGENT);
    rig.backend.submit(transfer.job);
    EXPECT_EQ(rig.backend.progress(3), 0u);
    std::vector<std::vector<uint64_t>> ideal;
    for (uint32_t layer = 0; layer < 24; layer++) {
      OK(rig.backend.layer_wait(3, layer, rig.caller(), error));
      const uint32_t p = layer % 2, index = layer / 2;
      const uint64_t bytes = rig.order.pools()[p].layer_bytes;
      const TierCopy &page = copies[p * 32 + (layer * 3) % 32];
      CU_OK(api().copy_async(seen + layer * slice, rig.device(p, raw(page.device_page)) + index * bytes, bytes, rig.stream));
      ideal.emplace_back(bytes / 8);
      std::memcpy(ideal.back().data(), rig.host(p, raw(page.host_page)) + index * bytes, bytes);
    }
    gate.open();
    ASSERT_EQ(rig.done.wait(round + 1), HICACHE_OK);
    CU_OK(api().stream_synchronize(rig.stream));
    for (uint32_t layer = 0; layer < 24; layer++)
      ASSERT_TRUE(rig.same(seen + layer * slice, ideal[layer].data(), ideal[layer].size() * 8)) << "round " << round << ", layer " << layer;
    EXPECT_EQ(rig.backend.progress(3), kProgressDone);
    OK(rig.backend.layer_wait(3, 23, rig.caller(), error)); // Satisfied: enqueues nothing.
    CU_OK(api().memory_free(seen));
    CU_OK(api().stream_destroy(producer));
  }
}

TEST(CudaBackend, BackUpFollowsItsProducer) {
  Rig rig({pool(false, 16, 2048, 2048, range(0, 4))}, 8 * kMiB, 8 * kMiB);
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  const uint64_t bytes = rig.order.pools()[0].page_bytes;
  Gate gate;
  gate.hold(rig.stream);
  CU_OK(api().set32_async(rig.device(0, 3), 0x12345678u, bytes / 4, rig.stream)); // The step that produces the page.
  Transfer transfer(1, 0, HICACHE_D2H, rig.order, {{0, at(3), at(5)}}, rig.caller());
  rig.backend.submit(transfer.job);
  // Another transfer of the direction, whose producer has nothing to do, is not held up.
  CuStream other = nullptr;
  CU_OK(api().stream_create(&other, cu::kStreamNonBlocking, 0));
  Transfer free_one(2, 1, HICACHE_D2H, rig.order, {{0, at(4), at(6)}}, reinterpret_cast<uint64_t>(other));
  rig.backend.submit(free_one.job);
  EXPECT_EQ(rig.done.wait(2), HICACHE_OK);
  EXPECT_EQ(rig.done.order().size(), 1u);
  gate.open();
  ASSERT_EQ(rig.done.wait(1), HICACHE_OK);
  const auto *words = reinterpret_cast<const uint32_t *>(rig.host(0, 5));
  for (uint64_t i = 0; i < bytes / 4; i++) ASSERT_EQ(words[i], 0x12345678u);
  CU_OK(api().stream_destroy(other));
}

// A job that is cancelled ends CANCELLED, also behind a producer that does not come; the lane goes on.
TEST(CudaBackend, CancelledJobsEndAndTheLaneGoesOn) {
  Rig rig({pool(false, 16, 2048, 2048, range(0, 4))}, 16 * kMiB, 16 * kMiB);
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  const uint64_t bytes = rig.order.pools()[0].page_bytes;
  std::vector<TierCopy> copies;
  for (uint32_t i = 0; i < 8; i++) {
    copies.push_back({0, at(1 + i), at(i)});
    fill(rig.host(0, i), bytes, 50 + i);
  }
  const std::vector<uint64_t> before = rig.read(rig.device(0, 1), bytes);
  Gate gate;
  gate.hold(rig.stream);
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (hicache_ticket_t ticket = 1; ticket <= 3; ticket++) {
    transfers.push_back(std::make_unique<Transfer>(ticket, static_cast<uint32_t>(ticket), HICACHE_H2D, rig.order, copies, rig.caller()));
    rig.backend.submit(transfers.back()->job);
  }
  for (auto &transfer : transfers) rig.backend.cancel(transfer->job);
  for (hicache_ticket_t ticket = 1; ticket <= 3; ticket++) {
    EXPECT_EQ(rig.done.wait(ticket), HICACHE_CANCELLED);
    EXPECT_EQ(rig.backend.progress(static_cast<uint32_t>(ticket)), kProgressPoison);
  }
  for (auto &transfer : transfers) rig.backend.cancel(transfer->job); // Over: no effect.
  EXPECT_TRUE(rig.same(rig.device(0, 1), before.data(), bytes)) << "nothing was copied";
  gate.open();
  ASSERT_EQ(rig.run(HICACHE_H2D, copies, 9), HICACHE_OK);
  for (uint32_t i = 0; i < 8; i++) EXPECT_TRUE(rig.same(rig.device(0, 1 + i), rig.host(0, i), bytes));
  // One that runs: it ends, well or cancelled, once.
  Transfer running(10, 1, HICACHE_D2H, rig.order, copies, rig.caller());
  rig.backend.submit(running.job);
  rig.backend.cancel(running.job);
  const Status status = rig.done.wait(10);
  EXPECT_TRUE(status == HICACHE_OK || status == HICACHE_CANCELLED) << status;
  rig.backend.drain();
  EXPECT_EQ(rig.done.order().size(), 5u);
}

TEST(CudaBackend, AMoveWaitsForTheClosedStepAndTheNextStepForTheMove) {
  Rig rig({pool(false, 16, 2048, 2048, range(0, 4))}, 16 * kMiB, kMiB);
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  const uint64_t bytes = rig.order.pools()[0].page_bytes;
  CuStream other = nullptr;
  CU_OK(api().stream_create(&other, cu::kStreamNonBlocking, 0));
  for (uint32_t round = 0; round < 50; round++) {
    const uint32_t from = 1 + round % 7, to = 20 + round % 7, value = 0x1000 + round;
    Gate gate;
    gate.hold(rig.stream);
    CU_OK(api().set32_async(rig.device(0, from), value, bytes / 4, rig.stream)); // The step on the first stream writes the page.
    const FenceMark closed = FenceMark::make(2, round + 1);
    OK(rig.backend.fence_record(closed, rig.caller(), error));
    EXPECT_FALSE(rig.backend.fence_passed(closed));
    const PageMove move{0, at(from), at(to)};
    const FenceMark moved = FenceMark::make(kMoverSlot, round + 1);
    OK(rig.backend.move_pages(Tier::kDevice, {&move, 1}, {&closed, 1}, moved, error));
    const uint32_t vpage = from, ppage = to;
    OK(rig.backend.table_changed(0, {&vpage, 1}, {&ppage, 1}, {&closed, 1}, error));
    // The next step, on a second stream, translates on the device and reads through what it finds.
    OK(rig.backend.order_step(reinterpret_cast<uint64_t>(other), {}, error));
    CuAddress memory = 0;
    CU_OK(api().memory_alloc(&memory, 256 + bytes));
    CU_OK(api().set32_async(memory, from, 1, other));
    DeviceIds request;
    request.page_count = 1;
    request.vpages_address = memory;
    request.ids_address = memory + 64;
    if (rig.backend.kernels().available()) OK(rig.backend.device_kernel_ids(request, reinterpret_cast<uint64_t>(other), error));
    CU_OK(api().copy_async(memory + 256, rig.device(0, to), bytes, other));
    gate.open();
    CU_OK(api().stream_synchronize(other));
    const auto seen = rig.read(memory, 256 + bytes);
    if (rig.backend.kernels().available()) { ASSERT_EQ(static_cast<uint32_t>(seen[8]), to) << "round " << round; }
    for (uint64_t i = 32; i < seen.size(); i++) ASSERT_EQ(seen[i], value * 0x100000001ull) << "round " << round;
    EXPECT_TRUE(rig.backend.fence_passed(closed));
    CU_OK(api().memory_free(memory));
  }
  CU_OK(api().stream_destroy(other));
}

TEST(CudaBackend, MirrorAndTranslation) {
  Rig rig({pool(false, 16, 256, 256, {0}), pool(false, 16, 256, 256, {1})}, kMiB, kMiB);
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  if (!rig.backend.kernels().available()) GTEST_SKIP() << "NO KERNELS: " << rig.backend.kernels().reason();
  std::mt19937 random(3);
  std::vector<uint32_t> table(4096, HICACHE_NO_PAGE);
  uint64_t address = 0;
  uint32_t entries = 0;
  OK(rig.backend.device_table(1, &address, &entries, error));
  ASSERT_EQ(entries, 4096u);
  for (uint32_t round = 0; round < 8; round++) {
    std::vector<uint32_t> vpages, ppages;
    for (uint32_t i = 0; i < (round % 2 != 0 ? 3000u : 40u); i++) { // Long lists go through device memory, short ones in the launch.
      vpages.push_back(static_cast<uint32_t>(random() % 4096));
      ppages.push_back(random() % 5 == 0 ? HICACHE_NO_PAGE : static_cast<uint32_t>(random() % 100000));
      table[vpages.back()] = ppages.back(); // The last one of a name wins.
    }
    OK(rig.backend.table_changed(1, vpages, ppages, {}, error));
    OK(rig.backend.order_step(rig.caller(), {}, error));
    std::vector<uint32_t> asked(10007);
    for (uint32_t &v : asked) v = static_cast<uint32_t>(random() % 8 == 0 ? random() : random() % 4096);
    asked[0] = HICACHE_NO_PAGE;
    CuAddress memory = 0;
    const uint64_t n = asked.size(), ids_at = 65536, count_at = ids_at + n * 8 * 16 + 64;
    CU_OK(api().memory_alloc(&memory, count_at + 8));
    rig.write(memory, asked.data(), n * 4);
    for (uint32_t page_tokens : {0u, 16u}) {
      for (bool wide : {false, true}) {
        if (wide && page_tokens == 0) continue;
        CU_OK(api().set32_async(memory + count_at, 0, 2, rig.stream));
        DeviceIds request;
        request.pool = 1;
        request.page_count = static_cast<uint32_t>(n);
        request.page_tokens = page_tokens;
        request.sink_page = 0;
        request.scale = 3;
        request.offset = 7;
        request.vpages_address = memory;
        request.ids_address = memory + ids_at;
        request.sink_count_address = memory + count_at;
        request.wide = wide;
        OK(rig.backend.device_kernel_ids(request, rig.caller(), error));
        CU_OK(api().stream_synchronize(rig.stream));
        const uint64_t tokens = std::max(page_tokens, 1u);
        const auto raw_ids = rig.read(memory + ids_at, (n * tokens * (wide ? 8 : 4) + 7) / 8 * 8);
        uint64_t sinks = 0;
        for (uint64_t i = 0; i < n; i++) {
          const uint32_t place = asked[i] < 4096 ? table[asked[i]] : HICACHE_NO_PAGE;
          sinks += place == HICACHE_NO_PAGE;
          for (uint64_t t = 0; t < tokens; t++) {
            const int64_t id = (place == HICACHE_NO_PAGE ? 0 : int64_t{place}) * 3 + 7,
                          ideal = page_tokens == 0 ? id : id * 16 + static_cast<int64_t>(t);
            const uint64_t k = i * tokens + t;
            const int64_t got = wide ? static_cast<int64_t>(raw_ids[k]) : reinterpret_cast<const int32_t *>(raw_ids.data())[k];
            ASSERT_EQ(got, wide ? ideal : static_cast<int32_t>(ideal)) << "page " << i << ", token " << t;
          }
        }
        ASSERT_EQ(rig.read(memory + count_at, 8)[0], sinks);
      }
    }
    CU_OK(api().memory_free(memory));
  }
}

// The same page work on the CPU backend and here: every byte of the arena agrees.
TEST(CudaBackend, PageWorkAgreesWithTheCpuBackend) {
  for (bool token_major : {false, true}) {
    const std::vector<PoolLayout> pools = {pool(token_major, 16, 512, 256, range(0, 5), 48), pool(token_major, 16, 1024, 0, range(5, 3)),
                                           pool(false, 1, 8192, 96, range(8, 2))};
    const uint64_t bytes = 2 * kMiB;
    Rig rig(pools, bytes, bytes);
    ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
    CpuBackend cpu;
    BackendOptions options = rig.options;
    Finished done;
    options.sink = &done;
    OK(cpu.open(options, error));
    std::byte *reference[2] = {cpu.pool_base(Tier::kDevice, 0), cpu.pool_base(Tier::kHost, 0)};
    for (std::byte *memory : reference) fill(memory, bytes, 99);
    rig.write(rig.device(0, 0), reference[0], bytes);
    std::memcpy(rig.host(0, 0), reference[1], bytes);
    std::mt19937 random(token_major ? 11 : 12);
    uint64_t sequence = 0;
    for (uint32_t round = 0; round < 200; round++) {
      const Tier tier = random() % 4 == 0 ? Tier::kHost : Tier::kDevice;
      const auto p = static_cast<uint32_t>(random() % 3);
      const auto pages = static_cast<uint32_t>(bytes / pools[p].page_bytes);
      std::vector<uint32_t> places(pages);
      for (uint32_t i = 0; i < pages; i++) places[i] = i;
      std::shuffle(places.begin(), places.end(), random);
      const FenceMark mark = FenceMark::make(kMoverSlot, ++sequence);
      const auto some = static_cast<uint32_t>(1 + random() % (random() % 8 == 0 ? 600 : 6));
      std::vector<PageMove> moves;
      std::vector<PageZero> zeros;
      std::vector<PageCopy> copies;
      for (uint32_t i = 0; i < std::min(some, pages / 2); i++) {
        moves.push_back({p, at(places[2 * i]), at(places[2 * i + 1])});
        zeros.push_back({p, at(places[i]), random() % 2 == 0 ? 0 : static_cast<uint32_t>(random() % pools[p].page_tokens)});
        copies.push_back({p, at(places[2 * i]), at(places[2 * i + 1]), static_cast<uint32_t>(1 + random() % pools[p].page_tokens)});
      }
      for (Backend *backend : {static_cast<Backend *>(&rig.backend), static_cast<Backend *>(&cpu)}) {
        if (round % 3 == 0) OK(backend->move_pages(tier, moves, {}, mark, error));
        if (round % 3 == 1) OK(backend->zero_pages(tier, zeros, {}, mark, error));
        if (round % 3 == 2) OK(backend->copy_pages(tier, copies, {}, mark, error));
      }
    }
    OK(rig.backend.poison_sink(4096, error));
    OK(cpu.poison_sink(4096, error));
    OK(rig.backend.order_step(rig.caller(), {}, error));
    CU_OK(api().stream_synchronize(rig.stream));
    EXPECT_TRUE(rig.same(rig.device(0, 0), reference[0], bytes));
    EXPECT_EQ(std::memcmp(rig.host(0, 0), reference[1], bytes), 0);
    cpu.close();
  }
}

TEST(CudaBackend, StampsAndDigests) {
  for (bool token_major : {false, true}) {
    Rig rig({pool(token_major, 16, 512, 256, range(0, 5), 48)}, 8 * kMiB, kMiB);
    ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
    if (!rig.backend.kernels().available()) GTEST_SKIP() << "NO KERNELS: " << rig.backend.kernels().reason();
    const PoolLayout &of = rig.order.pools()[0];
    std::vector<uint64_t> salts(10);
    for (size_t i = 0; i < salts.size(); i++) salts[i] = kernel::stamp_mix(i + 77);
    std::vector<PageStamp> pages;
    std::vector<PhysicalPage> places;
    for (uint32_t i = 0; i < 64; i++) {
      pages.push_back({at((i * 37) % 97 + 1), i % 16 + 1, i * 0x1234567ull});
      places.push_back(pages.back().page);
    }
    OK(rig.backend.stamp_pages(0, rig.caller(), pages, salts, nullptr, error));
    std::vector<uint32_t> mismatches(pages.size(), 1);
    OK(rig.backend.stamp_pages(0, rig.caller(), pages, salts, mismatches.data(), error));
    for (uint32_t count : mismatches) EXPECT_EQ(count, 0u);
    // What the host makes of it, row by row.
    const auto bytes = rig.read(rig.device(0, raw(pages[5].page)), of.page_bytes);
    for (uint32_t layer = 0; layer < 5; layer++) {
      for (uint32_t part = 0; part < 2; part++) {
        const uint64_t row = part == 0 ? 512 : 256;
        for (uint32_t t = 0; t < pages[5].token_count; t++) {
          const uint64_t start =
              token_major ? t * of.token_bytes + layer * of.row_bytes + part * 512 : layer * of.layer_bytes + part * 512 * 16 + t * row;
          for (uint64_t w = 0; w < row / 8; w++) {
            ASSERT_EQ(bytes[start / 8 + w],
                      kernel::stamp_word(kernel::stamp_mix(pages[5].digest ^ salts[2 * layer + part]), t * row / 8 + w));
          }
        }
      }
    }
    // One flipped word is one mismatch, in its page.
    const uint64_t wrong = bytes[0] ^ 1;
    rig.write(rig.device(0, raw(pages[5].page)), &wrong, 8);
    OK(rig.backend.stamp_pages(0, rig.caller(), pages, salts, mismatches.data(), error));
    for (size_t i = 0; i < mismatches.size(); i++) EXPECT_EQ(mismatches[i], i == 5 ? 1u : 0u);
    std::vector<uint64_t> digests(pages.size());
    OK(rig.backend.digest_pages(0, places, digests.data(), error));
    for (size_t i = 0; i < pages.size(); i++) {
      const auto page = rig.read(rig.device(0, raw(pages[i].page)), of.page_bytes);
      uint64_t sum = 0;
      for (uint64_t u = 0; u < of.page_bytes / 16; u++) sum += kernel::digest_unit(page[2 * u], page[2 * u + 1], u);
      ASSERT_EQ(digests[i], kernel::digest_finish(sum, of.page_bytes));
    }
  }
}

TEST(CudaBackend, UrgentWorkOvertakesAndClassesAreInOrder) {
  Rig rig({pool(false, 16, 8192, 8192, range(0, 8))}, 256 * kMiB, 256 * kMiB);
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  std::vector<std::unique_ptr<Transfer>> bulk;
  Gate gate;
  gate.hold(rig.stream);
  const FenceMark held = FenceMark::make(2, 1); // One fence for all: they become ready together.
  OK(rig.backend.fence_record(held, rig.caller(), error));
  CuStream idle = nullptr;
  CU_OK(api().stream_create(&idle, cu::kStreamNonBlocking, 0));
  for (uint32_t i = 0; i < 8; i++) {
    std::vector<TierCopy> copies;
    for (uint32_t k = 0; k < 12; k++) copies.push_back({0, at(i * 12 + k), at(i * 12 + k)});
    const bool urgent = i == 7;
    bulk.push_back(std::make_unique<Transfer>(i + 1, i, HICACHE_H2D, rig.order, copies, reinterpret_cast<uint64_t>(idle),
                                              urgent ? HICACHE_CLASS_URGENT : HICACHE_CLASS_NORMAL));
    bulk.back()->job.waits = {&held, 1};
    rig.backend.submit(bulk.back()->job);
  }
  CU_OK(api().stream_synchronize(idle));
  gate.open();
  for (uint32_t i = 0; i < 8; i++) ASSERT_EQ(rig.done.wait(i + 1), HICACHE_OK);
  const auto order = rig.done.order();
  EXPECT_EQ(order.front(), 8u);
  for (uint32_t i = 1; i < 8; i++) EXPECT_EQ(order[i], i);
  CU_OK(api().stream_destroy(idle));
}

TEST(CudaBackend, ResizeKeepsAddressesAndBytes) {
  Rig rig({pool(false, 16, 2048, 2048, range(0, 4))}, 4 * kMiB, kMiB, {}, 64 * kMiB);
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  std::vector<uint64_t> bytes(4 * kMiB / 8);
  fill(bytes.data(), 4 * kMiB, 5);
  const CuAddress base = rig.device(0, 0);
  rig.write(base, bytes.data(), 4 * kMiB);
  OK(rig.backend.resize_device(64 * kMiB, error));
  EXPECT_EQ(rig.device(0, 0), base);
  EXPECT_TRUE(rig.same(base, bytes.data(), 4 * kMiB));
  rig.write(base + 60 * kMiB, bytes.data(), 4 * kMiB);
  OK(rig.backend.resize_device(4 * kMiB, error));
  EXPECT_TRUE(rig.same(base, bytes.data(), 4 * kMiB));
  ErrorDetail error;
  EXPECT_EQ(rig.backend.resize_device(128 * kMiB, &error), HICACHE_INFEASIBLE);
  EXPECT_FALSE(rig.backend.poisoned());
}

// A page that was freed behind a closed step may still be read by the step's kernels.
TEST(CudaBackend, MemoryGoesAfterTheStepsThatMayReadIt) {
  if (!simulated) GTEST_SKIP() << "NOT RUN: needs the simulated driver, whose streams run functions of the host";
  const auto run = simulator_function<void (*)(CuStream, void (*)(void *), void *)>("simulated_cuda_run");
  Rig rig({pool(false, 16, 2048, 2048, range(0, 4))}, 4 * kMiB, kMiB, {}, 64 * kMiB);
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  OK(rig.backend.resize_device(64 * kMiB, error));
  static std::atomic<bool> read;
  read = false;
  const auto kernel = [](void *) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    read = true;
  };
  run(rig.stream, kernel, nullptr);
  OK(rig.backend.fence_record(FenceMark::make(2, 1), rig.caller(), error));
  OK(rig.backend.resize_device(4 * kMiB, error));
  EXPECT_TRUE(read);
}

// ---- Bad input ----

TEST(CudaBackend, RefusesWhatItCannotOpen) {
  const DriverLoad none = load_driver_from("/nonexistent/libcuda.so.1");
  EXPECT_EQ(none.api, nullptr);
  EXPECT_NE(none.reason.find("no CUDA driver"), std::string::npos) << none.reason;
  const DriverLoad other = load_driver_from("libc.so.6");
  EXPECT_EQ(other.api, nullptr);
  EXPECT_NE(other.reason.find("no CUDA driver"), std::string::npos) << other.reason;

  const std::vector<PoolLayout> pools = {pool(false, 16, 2048, 2048, range(0, 4))};
  {
    Rig rig(pools, uint64_t{1} << 50, kMiB);
    EXPECT_EQ(rig.status, HICACHE_INFEASIBLE) << rig.error.message;
    EXPECT_NE(rig.error.native_code, 0);
  }
  {
    CudaBackend backend;
    LayerOrder order(pools, false);
    Finished done;
    BackendOptions options;
    options.layers = &order;
    options.sink = &done;
    options.device_bytes = options.device_bytes_max = kMiB;
    options.device = 99;
    ErrorDetail error;
    EXPECT_EQ(backend.open(options, &error), HICACHE_INVALID_ARGUMENT);
    EXPECT_NE(std::strstr(error.message, "99"), nullptr) << error.message;
    options.device = 0;
    alignas(256) static std::byte host[512];
    options.device_buffer = host;
    CudaBackend adopting;
    EXPECT_EQ(adopting.open(options, &error), HICACHE_INVALID_ARGUMENT);
    options.device_buffer = host + 16;
    CudaBackend unaligned;
    EXPECT_EQ(unaligned.open(options, &error), HICACHE_INVALID_ARGUMENT);
    EXPECT_NE(std::strstr(error.message, "256-byte"), nullptr) << error.message;
  }
}

TEST(CudaBackend, AdoptsABufferOfTheCaller) {
  api().context_set(caller_context());
  CuAddress buffer = 0;
  CU_OK(api().memory_alloc(&buffer, 8 * kMiB));
  {
    LayerOrder order({pool(false, 16, 2048, 2048, range(0, 4))}, false);
    Finished done;
    BackendOptions options;
    options.layers = &order;
    options.sink = &done;
    options.ticket_max = 4;
    options.device_bytes = options.device_bytes_max = 8 * kMiB;
    options.host_bytes = options.host_bytes_max = kMiB;
    options.device_buffer = reinterpret_cast<void *>(buffer);
    CudaBackend backend;
    OK(backend.open(options, error));
    EXPECT_EQ(reinterpret_cast<CuAddress>(backend.pool_base(Tier::kDevice, 0)), buffer);
    fill(backend.pool_base(Tier::kHost, 0), kMiB, 4);
    Transfer transfer(1, 0, HICACHE_H2D, order, {{0, at(9), at(1)}});
    backend.submit(transfer.job);
    EXPECT_EQ(done.wait(1), HICACHE_OK);
    Transfer back(2, 1, HICACHE_D2H, order, {{0, at(9), at(2)}});
    backend.submit(back.job);
    EXPECT_EQ(done.wait(2), HICACHE_OK);
    const uint64_t bytes = order.pools()[0].page_bytes;
    EXPECT_EQ(std::memcmp(backend.pool_base(Tier::kHost, 0) + bytes, backend.pool_base(Tier::kHost, 0) + 2 * bytes, bytes), 0);
    backend.drain();
    backend.close();
  }
  CU_OK(api().memory_free(buffer)); // Still the caller's.
}

TEST(CudaBackend, LeavesTheCallersContextAlone) {
  api().context_set(nullptr);
  {
    LayerOrder order({pool(false, 16, 2048, 2048, range(0, 4))}, false);
    Finished done;
    BackendOptions options;
    options.layers = &order;
    options.sink = &done;
    options.ticket_max = 4;
    options.device_bytes = options.device_bytes_max = 4 * kMiB;
    options.host_bytes = options.host_bytes_max = kMiB;
    CudaBackend backend;
    auto none = [] {
      CuContext now = nullptr;
      api().context_get(&now);
      return now == nullptr;
    };
    OK(backend.open(options, error));
    EXPECT_TRUE(none());
    Transfer transfer(1, 0, HICACHE_H2D, order, {{0, at(9), at(1)}});
    backend.submit(transfer.job);
    EXPECT_TRUE(none());
    EXPECT_EQ(done.wait(1), HICACHE_OK);
    const PageMove move{0, at(9), at(10)};
    OK(backend.move_pages(Tier::kDevice, {&move, 1}, {}, FenceMark::make(kMoverSlot, 1), error));
    EXPECT_TRUE(none());
    backend.drain();
    backend.close();
    EXPECT_TRUE(none());
  }
  api().context_set(caller_context());
}

// Somebody else's synchronise of the whole device, before the load it waits for was even submitted to it, must come back.
TEST(CudaBackend, ADeviceWideSynchroniseDoesNotDeadlock) {
  Rig rig({pool(false, 16, 8192, 8192, range(0, 8))}, 256 * kMiB, 256 * kMiB);
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  for (uint32_t round = 0; round < 10; round++) {
    std::vector<TierCopy> copies;
    for (uint32_t k = 0; k < 60; k++) copies.push_back({0, at(k), at(k)});
    Transfer transfer(round + 1, round, HICACHE_H2D, rig.order, copies, rig.caller(), HICACHE_CLASS_URGENT);
    rig.backend.submit(transfer.job);
    OK(rig.backend.layer_wait(round, 7, rig.caller(), error));
    CU_OK(api().context_synchronize());
    ASSERT_EQ(rig.done.wait(round + 1), HICACHE_OK);
  }
}

// ---- What only the simulated driver can do ----

TEST(CudaBackend, GivesEverythingBack) {
  if (!simulated) GTEST_SKIP() << "NOT RUN: needs the simulated driver, which counts what is held";
  const auto live = simulator_function<int (*)()>("simulated_cuda_live");
  api();
  const int before = live();
  {
    Rig rig({pool(false, 16, 2048, 2048, range(0, 4))}, 8 * kMiB, 8 * kMiB, {}, 64 * kMiB);
    ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
    EXPECT_GT(live(), before + 8);
  }
  EXPECT_EQ(live(), before);
  setenv("SIMULATED_CUDA_NO_MEMORY", "1", 1);
  {
    Rig rig({pool(false, 16, 2048, 2048, range(0, 4))}, 8 * kMiB, 8 * kMiB);
    EXPECT_EQ(rig.status, HICACHE_INFEASIBLE);
    EXPECT_EQ(rig.error.native_code, cu::kOutOfMemory);
  }
  unsetenv("SIMULATED_CUDA_NO_MEMORY");
  EXPECT_EQ(live(), before);
}

TEST(CudaBackend, SaysWhyADriverWillNotDo) {
  if (!simulated) GTEST_SKIP() << "NOT RUN: needs the simulated driver, which can be old or empty";
  const char *path = std::getenv("HICACHE_LIBCUDA");
  struct Case {
    const char *variable, *value, *words;
  };
  for (const Case &c : {Case{"SIMULATED_CUDA_VERSION", "11080", "too old"}, Case{"SIMULATED_CUDA_DEVICES", "0", "no CUDA device"},
                        Case{"SIMULATED_CUDA_INIT", "100", "no CUDA device"}, Case{"SIMULATED_CUDA_INIT", "800", "no permission"}}) {
    setenv(c.variable, c.value, 1);
    const DriverLoad load = load_driver_from(path);
    unsetenv(c.variable);
    EXPECT_EQ(load.api, nullptr);
    EXPECT_NE(load.reason.find(c.words), std::string::npos) << load.reason;
  }
}

void make_stream_of_device(int ordinal, uint64_t *handle_out) {
  CuContext other = nullptr;
  CuStream stream = nullptr;
  CU_OK(api().primary_retain(&other, ordinal));
  CU_OK(api().context_push(other));
  CU_OK(api().stream_create(&stream, cu::kStreamNonBlocking, 0));
  CU_OK(api().context_pop(&other));
  *handle_out = reinterpret_cast<uint64_t>(stream);
}

TEST(CudaBackend, AStreamOfAnotherDeviceCostsTheTransferNotTheEngine) {
  if (!simulated) GTEST_SKIP() << "NOT RUN: needs a second device or the simulated driver";
  Rig rig({pool(false, 16, 2048, 2048, range(0, 4))}, 8 * kMiB, 8 * kMiB);
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  uint64_t handle = 0;
  make_stream_of_device(1, &handle);
  ASSERT_NE(handle, 0u);
  Transfer transfer(1, 0, HICACHE_H2D, rig.order, {{0, at(1), at(1)}}, handle);
  rig.backend.submit(transfer.job);
  EXPECT_EQ(rig.done.wait(1), HICACHE_INVALID_ARGUMENT);
  ErrorDetail why;
  EXPECT_EQ(rig.backend.fence_record(FenceMark::make(2, 1), handle, &why), HICACHE_INVALID_ARGUMENT) << why.message;
  EXPECT_FALSE(rig.backend.poisoned());
  // The refused one has released its waits, and the next transfer runs.
  OK(rig.backend.layer_wait(0, 3, rig.caller(), error));
  CU_OK(api().stream_synchronize(rig.stream));
  EXPECT_EQ(rig.run(HICACHE_H2D, {{0, at(1), at(1)}}, 64), HICACHE_OK);
}

// Also where there is nothing to wait for: its fence could not be recorded at its end, so it would hold its pages for good.
TEST(CudaBackend, AStepOnAStreamOfAnotherDeviceIsRefused) {
  if (!simulated) GTEST_SKIP() << "NOT RUN: needs a second device or the simulated driver";
  Rig rig({pool(false, 16, 2048, 2048, range(0, 4))}, 8 * kMiB, 8 * kMiB);
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  uint64_t handle = 0;
  make_stream_of_device(1, &handle);
  ASSERT_NE(handle, 0u);
  for (int round = 0; round < 2; round++) {
    ErrorDetail why;
    EXPECT_EQ(rig.backend.order_step(handle, {}, &why), HICACHE_INVALID_ARGUMENT) << why.message;
    EXPECT_NE(std::strstr(why.message, "stream: "), nullptr) << why.message;
    OK(rig.backend.order_step(rig.caller(), {}, error));
  }
  std::vector<CuStream> many(40); // More than are remembered.
  for (CuStream &stream : many) {
    CU_OK(api().stream_create(&stream, cu::kStreamNonBlocking, 0));
    OK(rig.backend.order_step(reinterpret_cast<uint64_t>(stream), {}, error));
  }
  ErrorDetail why;
  EXPECT_EQ(rig.backend.order_step(handle, {}, &why), HICACHE_INVALID_ARGUMENT) << why.message;
  for (CuStream stream : many) {
    OK(rig.backend.order_step(reinterpret_cast<uint64_t>(stream), {}, error));
    CU_OK(api().stream_destroy(stream));
  }
  EXPECT_FALSE(rig.backend.poisoned());
}

TEST(CudaBackend, AStampOnAStreamThatWillNotDoCostsTheCall) {
  if (!simulated) GTEST_SKIP() << "NOT RUN: needs a second device or the simulated driver";
  Rig rig({pool(false, 16, 512, 256, range(0, 2))}, 8 * kMiB, kMiB);
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  if (!rig.backend.kernels().available()) GTEST_SKIP() << "NO KERNELS: " << rig.backend.kernels().reason();
  uint64_t handle = 0;
  make_stream_of_device(1, &handle);
  ASSERT_NE(handle, 0u);
  const std::vector<uint64_t> salts(4, 1);
  const PageStamp page{at(1), 16, 7};
  ErrorDetail why;
  EXPECT_EQ(rig.backend.stamp_pages(0, handle, {&page, 1}, salts, nullptr, &why), HICACHE_INVALID_ARGUMENT) << why.message;
  DeviceIds request;
  request.page_count = 1;
  EXPECT_EQ(rig.backend.device_kernel_ids(request, handle, &why), HICACHE_INVALID_ARGUMENT) << why.message;
  const auto capture = simulator_function<void (*)(CuStream, int)>("simulated_cuda_capture");
  capture(rig.stream, 1);
  EXPECT_EQ(rig.backend.stamp_pages(0, rig.caller(), {&page, 1}, salts, nullptr, &why), HICACHE_INVALID_ARGUMENT) << why.message;
  capture(rig.stream, 0);
  EXPECT_FALSE(rig.backend.poisoned());
  OK(rig.backend.stamp_pages(0, rig.caller(), {&page, 1}, salts, nullptr, error));
}

TEST(CudaBackend, RefusesAStreamThatIsBeingCaptured) {
  if (!simulated) GTEST_SKIP() << "NOT RUN: needs the simulated driver";
  Rig rig({pool(false, 16, 2048, 2048, range(0, 4))}, 8 * kMiB, 8 * kMiB);
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  const auto capture = simulator_function<void (*)(CuStream, int)>("simulated_cuda_capture");
  capture(rig.stream, 1);
  ErrorDetail error;
  EXPECT_EQ(rig.backend.fence_record(FenceMark::make(2, 1), rig.caller(), &error), HICACHE_INVALID_ARGUMENT);
  EXPECT_EQ(rig.backend.order_step(rig.caller(), {}, &error), HICACHE_INVALID_ARGUMENT);
  EXPECT_EQ(rig.backend.layer_wait(0, 0, rig.caller(), &error), HICACHE_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(error.message, "captured"), nullptr) << error.message;
  capture(rig.stream, 0);
  EXPECT_FALSE(rig.backend.poisoned());
}

// ---- The last test: it leaves the device's context broken ----

void break_device(Rig &rig) {
  if (simulated) {
    simulator_function<void (*)(int)>("simulated_cuda_fail")(700);
    return;
  }
  const char *path = std::getenv("HICACHE_TEST_KERNELS");
  std::FILE *file = path != nullptr ? std::fopen(path, "rb") : nullptr;
  if (file == nullptr) GTEST_SKIP() << "NOT RUN: HICACHE_TEST_KERNELS names no fatbin of cuda/test_kernels.cu";
  std::vector<char> image(1 << 22);
  image.resize(std::fread(image.data(), 1, image.size(), file));
  std::fclose(file);
  CuModule module = nullptr;
  CuFunction fault = nullptr;
  CU_OK(api().module_load(&module, image.data()));
  CU_OK(api().module_function(&fault, module, "test_fault"));
  uint64_t nowhere = 16;
  void *parameters[] = {&nowhere};
  CU_OK(api().launch(fault, 1, 1, 1, 1, 1, 1, 0, rig.stream, parameters, nullptr));
}

TEST(CudaBackendLast, ADeviceFaultPoisonsTheEngineAndTheProcessSurvives) {
  Rig rig({pool(false, 16, 2048, 2048, range(0, 4))}, 8 * kMiB, 8 * kMiB);
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  ASSERT_EQ(rig.run(HICACHE_H2D, {{0, at(1), at(1)}}, 1), HICACHE_OK);
  break_device(rig);
  if (IsSkipped() || HasFatalFailure()) return;
  Transfer transfer(2, 2, HICACHE_D2H, rig.order, {{0, at(1), at(2)}}, rig.caller());
  rig.backend.submit(transfer.job);
  EXPECT_EQ(rig.done.wait(2), HICACHE_DEVICE);
  EXPECT_EQ(rig.backend.progress(2), kProgressPoison);
  EXPECT_TRUE(rig.backend.poisoned());
  EXPECT_EQ(rig.backend.poison_code(), 700);
  ErrorDetail error;
  const PageMove move{0, at(1), at(2)};
  EXPECT_EQ(rig.backend.move_pages(Tier::kDevice, {&move, 1}, {}, FenceMark::make(kMoverSlot, 1), &error), HICACHE_DEVICE);
  EXPECT_EQ(error.native_code, 700);
  EXPECT_NE(std::strstr(error.message, "ILLEGAL_ADDRESS"), nullptr) << error.message;
  EXPECT_EQ(rig.backend.layer_wait(2, 0, rig.caller(), &error), HICACHE_DEVICE);
  Transfer later(3, 3, HICACHE_H2D, rig.order, {{0, at(1), at(2)}}, rig.caller());
  rig.backend.submit(later.job);
  EXPECT_EQ(rig.done.wait(3), HICACHE_DEVICE);
}

} // namespace
} // namespace hicache::device_test

int main(int argc, char **argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; i++) {
    if (std::string_view(argv[i]) == "--simulated" && i + 1 < argc) {
      setenv("HICACHE_LIBCUDA", argv[i + 1], 1);
      hicache::device_test::simulated = true;
    }
  }
  return RUN_ALL_TESTS();
}
