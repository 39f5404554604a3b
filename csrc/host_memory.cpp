#include "host_memory.hpp"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdio>
#include <thread>
#include <vector>

namespace hicache {

namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;
constexpr uint64_t kSmallPage = 4096;

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

} // namespace

HostMemory::~HostMemory() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

int HostMemory::reserve(uint64_t bytes, uint64_t bytes_max, PageSize page_size) {
  if (bytes_max < bytes) bytes_max = bytes;
  // Aligned to a huge page, so that the kernel can back the arena's first bytes with one; small arenas do not need it.
  const uint64_t alignment = page_size == PageSize::kHuge && bytes_max >= kHugePage ? kHugePage : kSmallPage;
  if (bytes_max > UINT64_MAX / 2) return ENOMEM;
  const uint64_t length = round_up(bytes_max, kSmallPage) + (alignment > kSmallPage ? alignment : 0);
  void *mapping = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return errno;
  mapping_ = mapping;
  mapping_bytes_ = length;
  base_ = reinterpret_cast<std::byte *>(round_up(reinterpret_cast<uint64_t>(mapping), alignment));
  bytes_ = bytes;
  reserved_ = bytes_max;
  // Advice only: a kernel without huge pages, or set to `never`, works as well, slower.
  if (alignment == kHugePage) madvise(base_, round_up(bytes_max, kSmallPage), MADV_HUGEPAGE);
  // A core file of a server must not hold its whole cache.
  madvise(base_, round_up(bytes_max, kSmallPage), MADV_DONTDUMP);
  return 0;
}

void HostMemory::adopt(void *buffer, uint64_t bytes) {
  base_ = static_cast<std::byte *>(buffer);
  bytes_ = bytes;
  reserved_ = bytes;
}

int HostMemory::resize(uint64_t bytes) {
  if (bytes > reserved_) return ENOMEM;
  const uint64_t keep = round_up(bytes, kSmallPage);
  const uint64_t end = round_up(bytes_, kSmallPage);
  if (mapping_ != nullptr && keep < end && madvise(base_ + keep, end - keep, MADV_DONTNEED) != 0) return errno;
  bytes_ = bytes;
  return 0;
}

uint64_t numa_nodes() {
  uint64_t nodes = 0;
  if (DIR *folder = opendir("/sys/devices/system/node"); folder != nullptr) {
    while (const dirent *entry = readdir(folder)) {
      unsigned node = 0;
      if (std::sscanf(entry->d_name, "node%u", &node) == 1 && node < 64) nodes |= uint64_t{1} << node;
    }
    closedir(folder);
  }
  return nodes == 0 ? 1 : nodes;
}

int HostMemory::bind_nodes(uint64_t nodes) {
  if (mapping_ == nullptr || (std::has_single_bit(nodes) && nodes == numa_nodes())) return 0;
  constexpr int kBind = 2, kInterleave = 3; // MPOL_*, without libnuma.
  const unsigned long mask = nodes;
  const int mode = std::has_single_bit(nodes) ? kBind : kInterleave;
  return syscall(SYS_mbind, base_, round_up(reserved_, kSmallPage), mode, &mask, 65ul, 0u) == 0 ? 0 : errno;
}

void HostMemory::touch(unsigned threads) {
  if (threads == 0) threads = 1;
  const uint64_t share = round_up((bytes_ + threads - 1) / threads, kHugePage);
  std::vector<std::thread> workers;
  for (uint64_t low = 0; low < bytes_; low += share) {
    const uint64_t high = low + share < bytes_ ? low + share : bytes_;
    workers.emplace_back([this, low, high] {
      for (uint64_t at = low; at < high; at += kSmallPage) {
        auto *byte = reinterpret_cast<volatile std::byte *>(base_ + at);
        *byte = *byte;
      }
    });
  }
  for (auto &worker : workers) worker.join();
}

} // namespace hicache
