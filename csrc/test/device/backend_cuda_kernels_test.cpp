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
    OK(lists_.open(true, error));
  }
  void TearDown() override { lists_.close(); }
  void copy(uint64_t bytes, uint32_t count, uint32_t pieces, uint32_t blocks, bool host_source, bool host_target, bool move);

  Rig rig_;
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

} // namespace
} // namespace hicache::device_test
