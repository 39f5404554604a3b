// Each kernel alone, with sizes that a server gives it: timed, or launched once for a profiler that replays it.
#include <sys/mman.h>

#include <functional>

#include "bench.hpp"

namespace hicache::device_bench {

namespace {

struct Launch {
  const char *kernel;
  std::string what;
  uint64_t bytes; // Read and written, on the device; over the bus, what crosses it.
  std::function<CuResult()> run;
};

class Kernels {
public:
  Kernels() : set_(device_) {
    must_be(device_.open(0, &error_));
    api().context_set(caller_context());
    must(api().stream_create(&stream_, cu::kStreamNonBlocking, 0), "stream");
    set_.open(stream_);
    if (!set_.available()) return;
    // Both halves are several times the L2.
    half_ = sized(256 * kMiB);
    must(api().memory_alloc(&memory_, 2 * half_), "alloc");
    must(api().memory_alloc(&lists_, kListBytes), "alloc");
    must(api().set8_async(memory_, 1, 2 * half_, stream_), "memset");
    must(api().set8_async(lists_, 0, kListBytes, stream_), "memset");
    host_bytes_ = sized(64 * kMiB);
    host_ = mmap(nullptr, host_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (host_ == MAP_FAILED) std::exit(1);
    must(api().host_register(host_, host_bytes_, cu::kHostRegisterPortable), "register");
  }
  ~Kernels() {
    if (!set_.available()) return;
    api().stream_synchronize(stream_);
    set_.close();
    api().host_unregister(host_);
    munmap(host_, host_bytes_);
    api().memory_free(memory_);
    api().memory_free(lists_);
    api().stream_destroy(stream_);
  }
  const KernelSet &set() const { return set_; }
  CuStream stream() const { return stream_; }

  std::vector<Launch> launches() {
    std::vector<Launch> all;
    for (uint64_t bytes : {32 * kKiB, 256 * kKiB, 2 * kMiB}) {
      auto args = scatter(bytes, memory_, half_, memory_ + half_, half_);
      all.push_back({"hicache_page_move", name("pages of", bytes), 2 * half_, [this, args] { return set_.move(*args, stream_); }});
    }
    add_copies(&all, "hicache_page_copy", 32 * kKiB);
    add_copies(&all, "hicache_page_copy_small", 2 * kKiB);
    add_page_work(&all);
    add_ids(&all);
    return all;
  }

private:
  static constexpr uint64_t kListBytes = 32 * kMiB;

  void must_be(Status status) {
    if (status == HICACHE_OK) return;
    std::printf("{\"error\": \"kernels: %s\"}\n", error_.message);
    std::exit(1);
  }
  static std::string name(const char *before, uint64_t bytes) {
    const bool mib = bytes >= kMiB;
    return std::string(before) + " " + std::to_string(bytes / (mib ? kMiB : kKiB)) + (mib ? " MiB" : " KiB");
  }
  // A list on the device, for the life of this.
  template <class Item> CuAddress list(const std::vector<Item> &items) {
    const CuAddress at = lists_ + used_;
    used_ += (items.size() * sizeof(Item) + 255) / 256 * 256;
    if (used_ > kListBytes) {
      std::printf("{\"error\": \"kernels: too many lists\"}\n");
      std::exit(1);
    }
    must(api().copy_async(at, reinterpret_cast<CuAddress>(items.data()), items.size() * sizeof(Item), stream_), "copy");
    must(api().stream_synchronize(stream_), "synchronize");
    return at;
  }
  // All of the shorter side, in pieces, from and to shuffled places.
  std::shared_ptr<kernel::CopyArgs> scatter(uint64_t bytes, CuAddress source, uint64_t source_bytes, CuAddress target,
                                            uint64_t target_bytes) {
    const auto from = shuffled(static_cast<uint32_t>(source_bytes / bytes), 1),
               to = shuffled(static_cast<uint32_t>(target_bytes / bytes), 2);
    std::vector<kernel::Fragment> fragments;
    for (size_t i = 0; i < std::min(from.size(), to.size()); i++) fragments.push_back({from[i] * bytes, to[i] * bytes});
    auto args = std::make_shared<kernel::CopyArgs>();
    args->list = reinterpret_cast<const kernel::Fragment *>(list(fragments));
    args->count = static_cast<uint32_t>(fragments.size());
    args->pieces = 1;
    args->piece_bytes = bytes;
    args->source_base = source;
    args->target_base = target;
    return args;
  }
  void add_copies(std::vector<Launch> *all, const char *kernel, uint64_t bytes) {
    const CuAddress host = reinterpret_cast<CuAddress>(host_);
    auto inside = scatter(bytes, memory_, half_, memory_ + half_, half_);
    auto up = scatter(bytes, host, host_bytes_, memory_, half_), down = scatter(bytes, memory_, half_, host, host_bytes_);
    all->push_back({kernel, name("on the device, pieces of", bytes), 2 * half_, [this, inside] { return set_.copy(*inside, 0, stream_); }});
    all->push_back(
        {kernel, name("from the host on 4 blocks, pieces of", bytes), host_bytes_, [this, up] { return set_.copy(*up, 4, stream_); }});
    all->push_back(
        {kernel, name("to the host on 4 blocks, pieces of", bytes), host_bytes_, [this, down] { return set_.copy(*down, 4, stream_); }});
  }
  void add_page_work(std::vector<Launch> *all) {
    const uint64_t page = sized(2 * kMiB);
    const auto count = static_cast<uint32_t>(half_ / page);
    std::vector<uint64_t> offsets;
    for (uint32_t p : shuffled(count, 3)) offsets.push_back(p * page);
    auto zero = std::make_shared<kernel::ZeroArgs>();
    zero->list = reinterpret_cast<const uint64_t *>(list(offsets));
    zero->base = memory_ + half_;
    zero->bytes = page;
    zero->count = count;
    all->push_back({"hicache_page_zero", "pages of 2 MiB", half_, [this, zero] { return set_.zero(*zero, stream_); }});

    kernel::StampArgs stamp{};
    std::vector<kernel::StampPage> pages;
    for (uint32_t i = 0; i < count; i++) pages.push_back({offsets[i], i, 16});
    stamp.pages = reinterpret_cast<const kernel::StampPage *>(list(pages));
    stamp.salts = reinterpret_cast<const uint64_t *>(list(std::vector<uint64_t>(64, 7)));
    stamp.base = memory_ + half_;
    stamp.row_bytes[0] = stamp.row_bytes[1] = stamp.token_stride[0] = stamp.token_stride[1] = page / 32 / 16 / 2;
    stamp.layer_stride = page / 32;
    stamp.v_offset = page / 32 / 2;
    stamp.page_count = count;
    stamp.layer_count = 32;
    stamp.mismatches = reinterpret_cast<uint32_t *>(list(std::vector<uint32_t>(count)));
    all->push_back({"hicache_page_stamp", "writes pages of 2 MiB", half_, [this, stamp] { return set_.stamp(stamp, stream_); }});
    stamp.check = 1;
    all->push_back({"hicache_page_stamp", "checks pages of 2 MiB", half_, [this, stamp] { return set_.stamp(stamp, stream_); }});

    kernel::DigestArgs digest{};
    digest.offsets = reinterpret_cast<const uint64_t *>(list(offsets));
    digest.digests = reinterpret_cast<uint64_t *>(list(std::vector<uint64_t>(count)));
    digest.base = memory_ + half_;
    digest.bytes = page;
    digest.count = count;
    all->push_back({"hicache_page_digest", "pages of 2 MiB", half_, [this, digest] { return set_.digest(digest, stream_); }});
  }
  void add_ids(std::vector<Launch> *all) {
    const uint32_t entries = 1 << 16, asked = smoke ? 1 << 12 : 1 << 20;
    std::vector<kernel::Patch> patches;
    for (uint32_t vpage : shuffled(entries, 4)) patches.push_back({vpage, vpage});
    auto patch = std::make_shared<kernel::PatchArgs>();
    patch->list = reinterpret_cast<const kernel::Patch *>(list(patches));
    patch->table = reinterpret_cast<uint32_t *>(list(std::vector<uint32_t>(entries)));
    patch->count = entries;
    all->push_back({"hicache_table_patch", "64 Ki entries", entries * (sizeof(kernel::Patch) + 4),
                    [this, patch] { return set_.patch(*patch, stream_); }});
    std::vector<uint32_t> vpages(asked);
    std::mt19937 random(5);
    for (uint32_t &vpage : vpages) vpage = static_cast<uint32_t>(random() % entries);
    kernel::KernelIdsArgs ids{};
    ids.table = patch->table;
    ids.vpages = reinterpret_cast<const uint32_t *>(list(vpages));
    ids.ids32 = reinterpret_cast<int32_t *>(memory_);
    ids.scale = 1;
    ids.table_count = entries;
    ids.page_count = asked;
    all->push_back({"hicache_kernel_ids", "of 1 Mi pages", asked * 12ull, [this, ids] { return set_.kernel_ids(ids, stream_); }});
    ids.page_count = asked / 16;
    ids.page_tokens = 16;
    all->push_back(
        {"hicache_kernel_ids", "of 1 Mi tokens in pages of 16", asked * 4ull, [this, ids] { return set_.kernel_ids(ids, stream_); }});
  }

  CudaDevice device_;
  KernelSet set_;
  ErrorDetail error_;
  CuStream stream_ = nullptr;
  CuAddress memory_ = 0, lists_ = 0;
  uint64_t half_ = 0, used_ = 0, host_bytes_ = 0;
  void *host_ = nullptr;
};

} // namespace

void kernels_alone(bool timed) {
  Kernels kernels;
  if (!kernels.set().available()) {
    std::fprintf(stderr, "kernels: NOT RUN: %s\n", kernels.set().reason().c_str());
    return;
  }
  for (const Launch &launch : kernels.launches()) {
    if (!timed) {
      must(launch.run(), launch.kernel);
      must(api().stream_synchronize(kernels.stream()), launch.kernel);
      std::printf("{\"work\": \"kernel launched\", \"kernel\": \"%s\", \"what\": \"%s\", \"bytes\": %llu}\n", launch.kernel,
                  launch.what.c_str(), static_cast<unsigned long long>(launch.bytes));
      continue;
    }
    const double ms = gpu_ms(kernels.stream(), 9, [&] { must(launch.run(), launch.kernel); });
    std::printf("{\"work\": \"kernel alone\", \"kernel\": \"%s\", \"what\": \"%s\", \"bytes\": %llu, \"us\": %.1f, \"gb_s\": %.1f}\n",
                launch.kernel, launch.what.c_str(), static_cast<unsigned long long>(launch.bytes), ms * 1e3,
                static_cast<double>(launch.bytes) / ms / 1e6);
  }
}

} // namespace hicache::device_bench
