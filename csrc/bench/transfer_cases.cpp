// Cases about copies between the tiers, and the memory that an engine's tables take.
#include <pthread.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <thread>

#include "bench.hpp"

namespace hicache::bench {
namespace {

void await(Engine &engine, hicache_error_t &error) {
  hicache_completion_t done{};
  for (uint32_t count = 0; count == 0;) {
    check(hicache_completion_wait(engine.get(), 1'000'000'000, &done, 1, &count, &error), error, "completion");
  }
  if (done.status != HICACHE_OK) fail("transfer", hicache_status_name(done.status));
}

struct Load {
  double caller_seconds = 0; // CPU time of the thread that submits.
  double wall_seconds = 0;   // Until the completion was read.
};

// One load of `each` pages of every pool: reserved, submitted, awaited, given back.
Load load_once(Engine &engine, uint32_t pools, uint32_t each) {
  hicache_error_t error{};
  error.struct_size = sizeof error;
  std::vector<Pages> pages(pools, Pages(each));
  std::vector<std::vector<hicache_hpage_t>> host(pools, std::vector<hicache_hpage_t>(each));
  std::vector<hicache_take_t> takes;
  std::vector<hicache_host_take_t> host_takes;
  for (uint32_t p = 0; p < pools; p++) {
    takes.push_back({p, each, p == kSwa ? nullptr : pages[p].data()});
    host_takes.push_back({p, each, host[p].data()});
  }
  check(hicache_host_alloc(engine.get(), host_takes.data(), pools, &error), error, "host alloc");
  hicache_transfer_t transfer{};
  transfer.struct_size = sizeof transfer;
  check(hicache_reserve(engine.get(), takes.data(), pools, &transfer.reservation, &error), error, "reserve");
  std::vector<hicache_copy_t> copies;
  for (uint32_t p = 0; p < pools; p++) {
    for (uint32_t i = 0; i < each; i++) copies.push_back({p, pages[kFull][i], host[p][i], 0});
  }
  transfer.copies = copies.data();
  transfer.copy_count = uint32_t(copies.size());
  hicache_ticket_t ticket = 0;
  const double wall = wall_seconds(), start = thread_seconds();
  check(hicache_load(engine.get(), &transfer, &ticket, &error), error, "load");
  Load result;
  result.caller_seconds = thread_seconds() - start;
  await(engine, error);
  result.wall_seconds = wall_seconds() - wall;
  engine.free(kFull, pages[kFull].data(), each);
  std::vector<hicache_host_pages_t> frees;
  for (uint32_t p = 0; p < pools; p++) frees.push_back({p, each, host[p].data()});
  check(hicache_host_free(engine.get(), frees.data(), pools, &error), error, "host free");
  return result;
}

// Memory with huge pages, touched, for the memcpy that copies are compared with.
class Buffer {
public:
  explicit Buffer(size_t bytes) : bytes_(bytes) {
    void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) fail("memcpy", "no memory");
    madvise(p, bytes, MADV_HUGEPAGE);
    std::memset(p, 1, bytes);
    data_ = static_cast<char *>(p);
  }
  ~Buffer() { munmap(data_, bytes_); }
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;
  char *data() { return data_; }

private:
  char *data_ = nullptr;
  size_t bytes_;
};

double memcpy_seconds(Buffer &to, Buffer &from, size_t bytes, uint32_t threads) {
  const double start = wall_seconds();
  std::vector<std::thread> workers;
  for (uint32_t t = 0; t < threads; t++) {
    workers.emplace_back([&, t] { std::memcpy(to.data() + bytes / threads * t, from.data() + bytes / threads * t, bytes / threads); });
  }
  for (std::thread &w : workers) w.join();
  return wall_seconds() - start;
}

// Bytes of private writable memory of this process. Arenas that malloc reserves for a thread are not writable until used.
uint64_t writable_bytes() {
  std::FILE *maps = std::fopen("/proc/self/maps", "r");
  if (maps == nullptr) fail("tables", "no /proc/self/maps");
  uint64_t sum = 0;
  char line[512], mode[8];
  unsigned long long from = 0, to = 0;
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    if (std::sscanf(line, "%llx-%llx %7s", &from, &to, mode) == 3 && std::strncmp(mode, "rw-p", 4) == 0) sum += to - from;
  }
  std::fclose(maps);
  return sum;
}

} // namespace

void submit(const Settings &settings) {
  Shape shape;
  shape.pools.resize(2);
  shape.pools[kSwa].role = HICACHE_ROLE_SWA;
  for (PoolShape &pool : shape.pools) {
    pool.layers.clear();
    pool.page_tokens = 16;
  }
  for (uint32_t layer = 0; layer < 156; layer++) shape.pools[layer & 1].layers.push_back(layer);
  const uint64_t page_bytes = 78 * 32 * 16;
  const uint32_t base = settings.quick ? 256 : 8192;
  shape.device_bytes = page_bytes * (2 * base + 16);
  shape.host_bytes = shape.device_bytes;
  Engine engine(shape);
  (void)load_once(engine, 2, base);
  for (uint32_t run = 0; run < settings.runs; run++) {
    const double one = load_once(engine, 2, base / 2).caller_seconds, two = load_once(engine, 2, base).caller_seconds;
    const std::string config = std::to_string(base) + " pages, 2 pools of 78 layers";
    emit({"submit of one load, on the caller", config, "us", one * 1e6, "", 0});
    emit({"submit of one load, each page beyond", config, "ns", (two - one) / base * 1e9, "", 0});
  }
}

void copy_rate(const Settings &settings) {
  const uint32_t threads = 2, pages = settings.quick ? 8 : 256;
  Shape shape;
  shape.backend = HICACHE_BACKEND_CPU;
  shape.pools.resize(1);
  shape.pools[kFull].layers.clear();
  for (uint32_t layer = 0; layer < 32; layer++) shape.pools[kFull].layers.push_back(layer);
  shape.pools[kFull].page_tokens = 16;
  shape.pools[kFull].k_row_bytes = shape.pools[kFull].v_row_bytes = 1024;
  const uint64_t page_bytes = 1 << 20;
  shape.device_bytes = page_bytes * (pages + 4);
  shape.host_bytes = page_bytes * (pages + 4);
  shape.copy_threads = threads;
  Engine engine(shape);
  const size_t bytes = pages * page_bytes;
  Buffer from(bytes), to(bytes);
  (void)load_once(engine, 1, pages);
  (void)memcpy_seconds(to, from, bytes, threads);
  for (uint32_t run = 0; run < settings.runs; run++) {
    const double theirs = memcpy_seconds(to, from, bytes, threads), ours = load_once(engine, 1, pages).wall_seconds;
    emit({"CPU backend, load, 2 workers", std::to_string(pages) + " pages of 1 MiB, 32 layers, wall", "GB/s", double(bytes) / ours / 1e9,
          "memcpy, 2 threads", double(bytes) / theirs / 1e9});
  }
}

void tables(const Settings &settings) {
  const uint64_t pages = settings.quick ? 100'000 : 10'000'000;
  pthread_attr_t attributes; // Small stacks: the engine's threads shall not be taken for its tables.
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 << 10);
  pthread_setattr_default_np(&attributes);
  for (const bool windows : {false, true}) {
    Shape shape = two_pools(pages);
    if (!windows) shape.pools.resize(1);
    const uint64_t before = writable_bytes();
    Engine engine(shape);
    // The null backend stands in for bytes with a tag of 8 bytes for each place that a page of a pool can have; that is no table.
    const uint64_t tags = 8 * pages * shape.pools.size();
    const double all = double(writable_bytes() - before - tags);
    emit({"memory for tables, a page", count_text(pages) + (windows ? " pages shared by FULL and SWA" : " pages of FULL"), "bytes",
          all / double(pages), "", 0});
  }
}

} // namespace hicache::bench
