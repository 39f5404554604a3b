// page_copy and page_move by themselves, byte for byte: sizes, counts and shapes of launch that the backend's own tests do not reach.
#include <algorithm>
#include <numeric>

#include "device_fixture.hpp"

namespace hicache::device_test {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Places of `count` fragments among twice as many, in random order, each with a gap behind it that must stay as it is.
std::vector<uint64_t> places(uint32_t count, uint64_t span, std::mt19937 &random) {
  std::vector<uint64_t> all(2 * count);
  for (uint32_t i = 0; i < all.size(); i++) all[i] = i * span;
  std::shuffle(all.begin(), all.end(), random);
  all.resize(count);
  return all;
}

class Kernels : public testing::Test {
protected:
  static constexpr uint64_t kBytes = 48 * kMiB;

  Kernels() : rig_({pool(false, 1, 4096, 0, {0})}, 2 * kBytes, 2 * kBytes) {}
  void SetUp() override {
    ASSERT_EQ(rig_.status, HICACHE_OK) << rig_.error.message;
    if (!rig_.backend.kernels().available()) GTEST_SKIP() << "NOT TESTED: NO KERNELS: " << rig_.backend.kernels().reason();
    CU_OK(api().stream_create(&uploads_, cu::kStreamNonBlocking, 0));
    OK(lists_.open(uploads_, error));
  }
  void TearDown() override {
    lists_.close();
    if (uploads_ != nullptr) api().stream_destroy(uploads_);
  }
  void copy(uint64_t bytes, uint32_t count, uint32_t pieces, uint32_t blocks, bool host_source, bool host_target, bool move);

  Rig rig_;
  CuStream uploads_ = nullptr;
  ListRing lists_{const_cast<CudaDevice &>(rig_.backend.device())};
  std::mt19937 random_{5};
};

// Sources are in the first half of a tier, targets in the second; all of the second half is compared.
void Kernels::copy(uint64_t bytes, uint32_t count, uint32_t pieces, uint32_t blocks, bool host_source, bool host_target, bool move) {
  SCOPED_TRACE(std::to_string(count) + " x " + std::to_string(pieces) + " x " + std::to_string(bytes) + " bytes, blocks " +
               std::to_string(blocks) + (host_source ? ", from the host" : "") + (host_target ? ", to the host" : "") +
               (move ? ", moved" : ""));
  const uint64_t stride = bytes + 16, span = stride * pieces + 16;
  ASSERT_LE(2 * count * span, kBytes);
  const auto from = places(count, span, random_), to = places(count, span, random_);
  const uint64_t all = std::max<uint64_t>(2 * count * span, 16);
  std::vector<uint64_t> source(all / 8), ideal(all / 8, 0xeeeeeeeeeeeeeeeeull);
  fill(source.data(), all, random_());
  auto *const host = reinterpret_cast<unsigned char *>(rig_.host(0, 0));
  const CuAddress device = rig_.device(0, 0);
  if (host_source) std::memcpy(host, source.data(), all);
  else rig_.write(device, source.data(), all);
  if (host_target) std::memcpy(host + kBytes, ideal.data(), all);
  else rig_.write(device + kBytes, ideal.data(), all);
  kernel::CopyArgs args{};
  args.count = count;
  args.pieces = pieces;
  args.piece_bytes = bytes;
  args.source_stride = args.target_stride = stride;
  args.source_base = host_source ? reinterpret_cast<uint64_t>(host) : device;
  args.target_base = (host_target ? reinterpret_cast<uint64_t>(host) : device) + kBytes;
  std::vector<kernel::Fragment> list(count);
  for (uint32_t i = 0; i < count; i++) {
    list[i] = {from[i], to[i]};
    for (uint32_t j = 0; j < pieces; j++)
      std::memcpy(reinterpret_cast<unsigned char *>(ideal.data()) + to[i] + j * stride,
                  reinterpret_cast<unsigned char *>(source.data()) + from[i] + j * stride, bytes);
  }
  const bool inlined = count <= kernel::kInlineFragments;
  void *memory = inlined ? args.inline_list : lists_.fill();
  ASSERT_NE(memory, nullptr);
  std::memcpy(memory, list.data(), count * sizeof(kernel::Fragment));
  if (!inlined) {
    CuAddress address = 0;
    CU_OK(lists_.upload(count * sizeof(kernel::Fragment), rig_.stream, &address));
    args.list = reinterpret_cast<const kernel::Fragment *>(address);
  }
  CU_OK(move ? rig_.backend.kernels().move(args, rig_.stream) : rig_.backend.kernels().copy(args, blocks, rig_.stream));
  if (!inlined) CU_OK(lists_.release(rig_.stream));
  CU_OK(api().stream_synchronize(rig_.stream));
  if (host_target) ASSERT_EQ(std::memcmp(host + kBytes, ideal.data(), all), 0);
  else ASSERT_TRUE(rig_.same(device + kBytes, ideal.data(), all));
}

// Sizes about those at which a warp, a slice or a block ends, and none of the counts a multiple of anything.
constexpr uint64_t kSizes[] = {16,   32,   48,   112,  128,  144,  272,  496,   512,   528,   1008,  1040,   2032,  2048,
                               2064, 3072, 4080, 4096, 4112, 8176, 8192, 16400, 32768, 65552, 98304, 131056, 262160};

TEST_F(Kernels, CopyEverySizeBetweenHostAndDevice) {
  for (uint64_t bytes : kSizes) {
    for (uint32_t count : {1u, 31u, 1021u}) {
      if (2 * count * (bytes + 32) > kBytes / 16) count = static_cast<uint32_t>(kBytes / 32 / (bytes + 32));
      for (uint32_t blocks : {1u, 3u}) {
        copy(bytes, count, 1, blocks, true, false, false);
        copy(bytes, count, 1, blocks, false, true, false);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(Kernels, CopyAndMoveEverySizeInsideTheDevice) {
  for (uint64_t bytes : kSizes) {
    for (uint32_t count : {2u, 33u, 2039u}) {
      if (2 * count * (bytes + 32) > kBytes / 16) count = static_cast<uint32_t>(kBytes / 32 / (bytes + 32));
      copy(bytes, count, 1, 0, false, false, false);
      copy(bytes, count, 1, 0, false, false, true);
      if (HasFatalFailure()) return;
    }
  }
  copy(2 * kMiB + 16, 3, 1, 0, false, false, true);
  copy(4 * kMiB, 2, 1, 0, false, false, true);
}

TEST_F(Kernels, CopyPiecesApart) {
  for (uint64_t bytes : {uint64_t{16}, uint64_t{272}, uint64_t{512}, uint64_t{2064}, uint64_t{4096}, uint64_t{8208}, uint64_t{40000}}) {
    for (uint32_t count : {1u, 5u, 255u}) {
      for (uint32_t pieces : {2u, 3u, 32u}) {
        if (2 * count * ((bytes + 16) * pieces + 16) > kBytes / 16) continue;
        for (uint32_t blocks : {0u, 2u}) copy(bytes, count, pieces, blocks, false, false, false);
        copy(bytes, count, pieces, 2, true, false, false);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// No fragment, and a list that is exactly what a launch, a warp's round or a slot takes.
TEST_F(Kernels, CopyCountsAtTheEdges) {
  for (uint32_t blocks : {0u, 2u}) {
    copy(512, 0, 1, blocks, false, false, false);
    copy(8192, 0, 1, blocks, false, false, false);
  }
  copy(8192, 0, 1, 0, false, false, true);
  for (uint64_t bytes : {uint64_t{16}, uint64_t{128}, uint64_t{512}, uint64_t{2048}}) {
    for (uint32_t count : {32u, 248u, 256u, 1024u, 4096u}) {
      copy(bytes, count, 1, 2, true, false, false);
      copy(bytes, count, 1, 4, false, true, false);
      copy(bytes, count, 1, 0, false, false, true);
      if (HasFatalFailure()) return;
    }
  }
}

// Lists longer than a slot, in portions, and more of them in a row than there are slots: each launch must see its own list.
TEST(KernelLists, MovesOfManyPages) {
  constexpr uint32_t kPages = 70000, kRounds = 7;
  constexpr uint64_t kPageBytes = 64;
  Rig rig({pool(false, 1, kPageBytes, 0, {0})}, 3 * kPages * kPageBytes, kMiB);
  ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
  std::vector<uint64_t> ideal(kPages * kPageBytes / 8);
  fill(ideal.data(), kPages * kPageBytes, 3);
  rig.write(rig.device(0, 0), ideal.data(), kPages * kPageBytes);
  std::mt19937 random(11);
  std::vector<uint32_t> here(kPages), next(kPages);
  std::iota(here.begin(), here.end(), 0u);
  for (uint32_t round = 0; round < kRounds; round++) {
    // From one third of the arena to the next: no move overwrites what another of its call reads.
    std::iota(next.begin(), next.end(), (round + 1) % 3 * kPages);
    std::shuffle(next.begin(), next.end(), random);
    // Calls of several sizes: whole, in portions, by lists of one slot and inside launches.
    const uint32_t cuts[] = {0, round % 2 != 0 ? 0 : 20000u, round % 2 != 0 ? 0 : 20100u, kPages};
    for (uint32_t c = 0; c + 1 < std::size(cuts); c++) {
      std::vector<PageMove> moves;
      for (uint32_t i = cuts[c]; i < cuts[c + 1]; i++) moves.push_back({0, at(here[i]), at(next[i])});
      if (!moves.empty()) OK(rig.backend.move_pages(Tier::kDevice, moves, {}, FenceMark::make(kMoverSlot, round * 4 + c + 1), error));
    }
    here = next;
  }
  CU_OK(api().stream_synchronize(rig.backend.mover_stream()));
  const auto all = rig.read(rig.device(0, kRounds % 3 * kPages), kPages * kPageBytes);
  for (uint32_t i = 0; i < kPages; i++) {
    const uint64_t place = here[i] - kRounds % 3 * kPages;
    ASSERT_EQ(std::memcmp(all.data() + place * kPageBytes / 8, ideal.data() + i * kPageBytes / 8, kPageBytes), 0) << "page " << i;
  }
}

// Tens of thousands of small pages by kernel: more than a list's first portion and a quantum, two sizes in a job, in the order of the
// host's huge pages. Beside compute a launch takes several quanta.
TEST(KernelLists, SmallPagesOverTheBus) {
  constexpr uint32_t kPages = 20000;
  for (bool compute : {false, true}) {
    SCOPED_TRACE(compute ? "beside compute" : "alone");
    CopyTuning tuning;
    tuning.method = CopyMethod::kKernel;
    tuning.quantum_bytes = kMiB;
    Rig rig({pool(false, 1, 512, 0, {0}), pool(false, 1, 1040, 0, {1})}, 72 * kMiB, 72 * kMiB, tuning);
    ASSERT_EQ(rig.status, HICACHE_OK) << rig.error.message;
    if (!rig.backend.kernels().available()) GTEST_SKIP() << "NOT TESTED: NO KERNELS: " << rig.backend.kernels().reason();
    std::mt19937 random(13);
    std::vector<TierCopy> up, down;
    for (uint32_t p = 0; p < 2; p++) {
      const uint32_t begin = p == 0 ? 0 : static_cast<uint32_t>(24 * kMiB / 1040 + 1); // Pools are bytes of one arena.
      std::vector<uint32_t> device(kPages), host(2 * kPages);
      std::iota(device.begin(), device.end(), begin);
      std::iota(host.begin(), host.end(), begin);
      std::shuffle(device.begin(), device.end(), random);
      std::shuffle(host.begin(), host.end(), random);
      for (uint32_t i = 0; i < kPages; i++) {
        up.push_back({p, at(device[i]), at(host[i])});
        down.push_back({p, at(device[i]), at(host[kPages + i])});
        fill(rig.host(p, host[i]), rig.order.pools()[p].page_bytes, p * kPages + i);
      }
    }
    // A step whose work has not ended, on a stream that waits until the transfers are over.
    CuAddress word = 0;
    CuStream busy = nullptr;
    if (compute) {
      CU_OK(api().memory_alloc(&word, 64));
      CU_OK(api().stream_create(&busy, cu::kStreamNonBlocking, 0));
      const uint32_t zero[2] = {};
      rig.write(word, zero, sizeof zero);
      CU_OK(api().stream_wait_value(busy, word, 1, cu::kWaitValueGreaterOrEqual));
      OK(rig.backend.fence_record(FenceMark::make(9, 1), reinterpret_cast<uint64_t>(busy), error));
    }
    const Status loaded = rig.run(HICACHE_H2D, up, 1), backed_up = rig.run(HICACHE_D2H, down, 2);
    if (compute) {
      const uint32_t one[2] = {1, 0};
      rig.write(word, one, sizeof one);
      CU_OK(api().stream_synchronize(busy));
      CU_OK(api().stream_destroy(busy));
      CU_OK(api().memory_free(word));
    }
    ASSERT_EQ(loaded, HICACHE_OK);
    ASSERT_EQ(backed_up, HICACHE_OK);
    for (size_t i = 0; i < up.size(); i++)
      ASSERT_EQ(std::memcmp(rig.host(up[i].pool, raw(up[i].host_page)), rig.host(down[i].pool, raw(down[i].host_page)),
                            rig.order.pools()[up[i].pool].page_bytes),
                0)
          << "copy " << i;
    // 9.8 MiB of the one size and 19.8 MiB of the other.
    for (uint32_t direction : {HICACHE_H2D, HICACHE_D2H}) {
      const uint64_t launches = rig.backend.counts(direction).kernel_launches.load();
      if (compute) EXPECT_LE(launches, 12u);
      else EXPECT_GE(launches, 29u);
    }
  }
}

} // namespace
} // namespace hicache::device_test
