// Every kernel alone on small buffers of plain device memory, without an engine or an arena: each byte against a loop of the host's. The
// sanitizers run over these too, whose checks of uninitialised memory take long on large arenas.
#include <sys/mman.h>

#include "device_fixture.hpp"

namespace hicache::device_test {
namespace {

class KernelsAlone : public testing::Test {
protected:
  static constexpr uint64_t kBytes = 512 << 10;

  KernelsAlone() : kernels_(device_) {}
  void SetUp() override {
    api().context_set(caller_context());
    ErrorDetail why;
    ASSERT_EQ(device_.open(0, &why), HICACHE_OK) << why.message;
    CU_OK(api().stream_create(&stream_, cu::kStreamNonBlocking, 0));
    kernels_.open(stream_);
    if (!kernels_.available()) GTEST_SKIP() << "NOT TESTED: no kernels: " << kernels_.reason();
    CU_OK(api().memory_alloc(&memory_, kBytes));
    CU_OK(api().memory_alloc(&lists_, kBytes));
    host_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    ASSERT_NE(host_, MAP_FAILED);
    CU_OK(api().host_register(host_, kBytes, cu::kHostRegisterPortable));
    ideal_.resize(kBytes);
    fill(ideal_.data(), kBytes, 3);
    fill(host_, kBytes, 4);
    upload(memory_, ideal_.data(), kBytes);
    upload(lists_, ideal_.data(), kBytes);
    used_ = 0;
  }
  void TearDown() override {
    if (stream_ == nullptr) return;
    api().stream_synchronize(stream_);
    kernels_.close();
    if (host_ != nullptr) api().host_unregister(host_), munmap(host_, kBytes);
    if (memory_ != 0) api().memory_free(memory_);
    if (lists_ != 0) api().memory_free(lists_);
    api().stream_destroy(stream_);
  }

  void upload(CuAddress to, const void *from, uint64_t bytes) {
    CU_OK(api().copy_async(to, reinterpret_cast<CuAddress>(from), bytes, stream_));
    CU_OK(api().stream_synchronize(stream_));
  }
  template <class Item> CuAddress list(const std::vector<Item> &items) {
    const CuAddress at = lists_ + used_;
    used_ += (items.size() * sizeof(Item) + 255) / 256 * 256;
    EXPECT_LE(used_, kBytes);
    upload(at, items.data(), items.size() * sizeof(Item));
    return at;
  }
  std::vector<uint8_t> read(CuAddress from, uint64_t bytes) {
    std::vector<uint8_t> out(bytes);
    EXPECT_EQ(api().copy_async(reinterpret_cast<CuAddress>(out.data()), from, bytes, stream_), cu::kSuccess);
    EXPECT_EQ(api().stream_synchronize(stream_), cu::kSuccess);
    return out;
  }
  void expect_ideal() { EXPECT_EQ(read(memory_, kBytes), ideal_); }

  // Fragments of `pieces` pieces from the first third of `source` to the last third of `target`, in a shuffled order, the last of each list
  // short of a round of the grid.
  kernel::CopyArgs copies(uint64_t bytes, uint32_t pieces, uint32_t count, CuAddress source, CuAddress target) {
    kernel::CopyArgs args{};
    args.count = count;
    args.pieces = pieces;
    args.piece_bytes = bytes;
    args.source_base = source;
    args.target_base = target + kBytes / 3 * 2 / 16 * 16;
    args.source_stride = bytes + 16;
    args.target_stride = bytes + 32;
    std::vector<kernel::Fragment> fragments;
    for (uint32_t i = 0; i < count; i++)
      fragments.push_back({i * pieces * args.source_stride, (count - 1 - i) * pieces * args.target_stride});
    EXPECT_LE(count * pieces * args.target_stride, kBytes / 3 - 16) << "the test's sizes";
    if (count > kernel::kInlineFragments) args.list = reinterpret_cast<const kernel::Fragment *>(list(fragments));
    else std::copy(fragments.begin(), fragments.end(), args.inline_list);
    fragments_ = fragments;
    return args;
  }
  // The same on the host, between what `source` and `target` hold.
  void copy_on_host(const kernel::CopyArgs &args, const uint8_t *source, uint8_t *target) {
    for (const kernel::Fragment &of : fragments_)
      for (uint32_t j = 0; j < args.pieces; j++)
        std::memcpy(target + kBytes / 3 * 2 / 16 * 16 + of.target + j * args.target_stride, source + of.source + j * args.source_stride,
                    args.piece_bytes);
  }

  CudaDevice device_;
  KernelSet kernels_;
  CuStream stream_ = nullptr;
  CuAddress memory_ = 0, lists_ = 0;
  void *host_ = nullptr;
  uint64_t used_ = 0;
  std::vector<uint8_t> ideal_; // Of memory_.
  std::vector<kernel::Fragment> fragments_;
};

struct CopyCase {
  uint64_t bytes;
  uint32_t pieces, count;
};
constexpr CopyCase kCopies[] = {{16, 1, 300},  {48, 3, 100},  {512, 2, 60}, {2048, 1, 70},
                                {4080, 1, 30}, {4096, 1, 20}, {4112, 2, 9}, {20480, 1, 7}};

TEST_F(KernelsAlone, PagesMove) {
  for (const CopyCase &c : kCopies) {
    const kernel::CopyArgs args = copies(c.bytes, c.pieces, c.count, memory_, memory_);
    CU_OK(kernels_.move(args, stream_));
    copy_on_host(args, ideal_.data(), ideal_.data());
    expect_ideal();
  }
}

TEST_F(KernelsAlone, FragmentsAreCopiedOnTheDevice) {
  for (unsigned blocks : {0u, 1u, 4u}) {
    for (const CopyCase &c : kCopies) {
      const kernel::CopyArgs args = copies(c.bytes, c.pieces, c.count, memory_, memory_);
      CU_OK(kernels_.copy(args, blocks, stream_));
      copy_on_host(args, ideal_.data(), ideal_.data());
      expect_ideal();
      used_ = 0;
    }
  }
}

TEST_F(KernelsAlone, FragmentsCrossTheBus) {
  const CuAddress host = reinterpret_cast<CuAddress>(host_);
  std::vector<uint8_t> host_ideal(static_cast<const uint8_t *>(host_), static_cast<const uint8_t *>(host_) + kBytes);
  for (unsigned blocks : {1u, 4u}) {
    for (const CopyCase &c : kCopies) {
      kernel::CopyArgs args = copies(c.bytes, c.pieces, c.count, host, memory_);
      CU_OK(kernels_.copy(args, blocks, stream_));
      copy_on_host(args, host_ideal.data(), ideal_.data());
      expect_ideal();
      args = copies(c.bytes, c.pieces, c.count, memory_, host);
      CU_OK(kernels_.copy(args, blocks, stream_));
      CU_OK(api().stream_synchronize(stream_));
      copy_on_host(args, ideal_.data(), host_ideal.data());
      ASSERT_EQ(std::memcmp(host_, host_ideal.data(), kBytes), 0);
      used_ = 0;
    }
  }
}

TEST_F(KernelsAlone, PagesBecomeZero) {
  for (const auto &[bytes, count] : {std::pair<uint64_t, uint32_t>{16, 600}, {4096, 40}, {4112, 30}, {65536, 3}}) {
    kernel::ZeroArgs args{};
    args.base = memory_;
    args.bytes = bytes;
    args.count = count;
    std::vector<uint64_t> offsets;
    for (uint32_t i = 0; i < count; i++) offsets.push_back((count - 1 - i) * (bytes + 32) + 16);
    if (count > 2 * kernel::kInlineFragments) args.list = reinterpret_cast<const uint64_t *>(list(offsets));
    else std::copy(offsets.begin(), offsets.end(), args.inline_list);
    CU_OK(kernels_.zero(args, stream_));
    for (uint64_t at : offsets) std::memset(ideal_.data() + at, 0, bytes);
    expect_ideal();
  }
}

TEST_F(KernelsAlone, TablesArePatched) {
  auto *table = reinterpret_cast<uint32_t *>(ideal_.data());
  for (uint32_t count : {1u, 300u, 700u}) {
    kernel::PatchArgs args{};
    args.table = reinterpret_cast<uint32_t *>(memory_);
    args.count = count;
    std::vector<kernel::Patch> patches;
    for (uint32_t i = 0; i < count; i++) patches.push_back({i * 37 % 1021 + count, i + 5});
    if (count > 2 * kernel::kInlineFragments) args.list = reinterpret_cast<const kernel::Patch *>(list(patches));
    else std::copy(patches.begin(), patches.end(), args.inline_list);
    CU_OK(kernels_.patch(args, stream_));
    for (const kernel::Patch &of : patches) table[of.vpage] = of.ppage;
    expect_ideal();
  }
}

TEST_F(KernelsAlone, StampsAreWrittenAndChecked) {
  kernel::StampArgs args{};
  const uint64_t page_bytes = 3 * 16 * 96;
  std::vector<kernel::StampPage> pages;
  for (uint64_t i = 0; i < 20; i++) pages.push_back({(19 - i) * page_bytes, 1000 + i, i % 16 + 1});
  const std::vector<uint64_t> salts = {1, 2, 3, 4, 5, 6};
  args.pages = reinterpret_cast<const kernel::StampPage *>(list(pages));
  args.salts = reinterpret_cast<const uint64_t *>(list(salts));
  args.base = memory_;
  args.layer_stride = 16 * 96;
  args.v_offset = 16 * 64;
  args.token_stride[0] = args.row_bytes[0] = 64;
  args.token_stride[1] = args.row_bytes[1] = 32;
  args.page_count = 20;
  args.layer_count = 3;
  CU_OK(kernels_.stamp(args, stream_));
  for (const kernel::StampPage &page : pages) {
    for (uint32_t layer = 0; layer < 3; layer++) {
      for (uint32_t part = 0; part < 2; part++) {
        auto *words = reinterpret_cast<uint64_t *>(ideal_.data() + page.offset + layer * args.layer_stride + part * args.v_offset);
        const uint64_t seed = kernel::stamp_mix(page.digest ^ salts[2 * layer + part]);
        for (uint64_t i = 0; i < page.tokens * args.row_bytes[part] / 8; i++) words[i] = kernel::stamp_word(seed, i);
      }
    }
  }
  expect_ideal();
  const CuAddress mismatches = list(std::vector<uint32_t>(20));
  args.mismatches = reinterpret_cast<uint32_t *>(mismatches);
  args.check = 1;
  ideal_[pages[7].offset] ^= 1;
  upload(memory_ + pages[7].offset, &ideal_[pages[7].offset], 8);
  CU_OK(kernels_.stamp(args, stream_));
  const auto found = read(mismatches, 80);
  for (uint32_t i = 0; i < 20; i++) EXPECT_EQ(reinterpret_cast<const uint32_t *>(found.data())[i], i == 7 ? 1u : 0u) << i;
}

TEST_F(KernelsAlone, DigestsAreTheHosts) {
  for (uint64_t bytes : {uint64_t{16}, uint64_t{4096}, uint64_t{70000 / 16 * 16}}) {
    std::vector<uint64_t> offsets;
    for (uint64_t i = 0; i < 7; i++) offsets.push_back((6 - i) * bytes);
    kernel::DigestArgs args{};
    args.offsets = reinterpret_cast<const uint64_t *>(list(offsets));
    const CuAddress digests = list(std::vector<uint64_t>(7));
    args.digests = reinterpret_cast<uint64_t *>(digests);
    args.base = memory_;
    args.bytes = bytes;
    args.count = 7;
    CU_OK(kernels_.digest(args, stream_));
    const auto found = read(digests, 56);
    for (uint32_t i = 0; i < 7; i++) {
      const auto *words = reinterpret_cast<const uint64_t *>(ideal_.data() + offsets[i]);
      uint64_t sum = 0;
      for (uint64_t u = 0; u < bytes / 16; u++) sum += kernel::digest_unit(words[2 * u], words[2 * u + 1], u);
      EXPECT_EQ(reinterpret_cast<const uint64_t *>(found.data())[i], kernel::digest_finish(sum, bytes)) << bytes << " bytes, page " << i;
    }
  }
}

TEST_F(KernelsAlone, IdsGoThroughTheTable) {
  std::vector<uint32_t> table(1000), asked(777);
  for (uint32_t i = 0; i < 1000; i++) table[i] = i % 9 == 0 ? HICACHE_NO_PAGE : i * 7 % 1000;
  for (uint32_t i = 0; i < 777; i++) asked[i] = i % 50 == 0 ? 5000 + i : i * 31 % 1000;
  kernel::KernelIdsArgs args{};
  args.table = reinterpret_cast<const uint32_t *>(list(table));
  args.vpages = reinterpret_cast<const uint32_t *>(list(asked));
  args.table_count = 1000;
  args.page_count = 777;
  args.scale = 3;
  args.offset = 1;
  args.sink_page = 0;
  for (uint32_t tokens : {0u, 4u}) {
    for (bool wide : {false, true}) {
      const CuAddress count = list(std::vector<uint64_t>(1));
      args.page_tokens = tokens;
      args.ids32 = wide ? nullptr : reinterpret_cast<int32_t *>(memory_);
      args.ids64 = wide ? reinterpret_cast<int64_t *>(memory_) : nullptr;
      args.sink_count = reinterpret_cast<unsigned long long *>(count);
      CU_OK(kernels_.kernel_ids(args, stream_));
      uint64_t sinks = 0;
      for (uint64_t i = 0; i < 777; i++) {
        const bool mapped = asked[i] < 1000 && table[asked[i]] != HICACHE_NO_PAGE;
        sinks += !mapped;
        for (uint64_t t = 0; t < std::max(tokens, 1u); t++) {
          const uint64_t id = (mapped ? table[asked[i]] : 0) * 3 + 1, out = tokens == 0 ? id : id * tokens + t,
                         at = i * std::max(tokens, 1u) + t;
          if (wide) reinterpret_cast<int64_t *>(ideal_.data())[at] = static_cast<int64_t>(out);
          else reinterpret_cast<int32_t *>(ideal_.data())[at] = static_cast<int32_t>(out);
        }
      }
      expect_ideal();
      const auto counted = read(count, 8);
      EXPECT_EQ(*reinterpret_cast<const uint64_t *>(counted.data()), sinks);
    }
  }
}

} // namespace
} // namespace hicache::device_test
