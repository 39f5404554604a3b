// Page-aligned host memory for arenas: reserved whole at open, backed by huge pages where the kernel has them, and paid for only when
// touched.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hicache {

// A mapping of `reserved` bytes of which the first `bytes` are in use. Owns the mapping unless it adopted a caller's buffer.
class HostMemory {
public:
  HostMemory() = default;
  ~HostMemory();
  HostMemory(const HostMemory &) = delete;
  HostMemory &operator=(const HostMemory &) = delete;

  // Reserves bytes_max (>= bytes) of address space, zero on first touch. Returns 0 or errno. Costs no RAM. Arenas take huge pages; tables
  // of which little is used at first do not, since the first touch of one clears 2 MiB.
  enum class PageSize { kHuge, kSmall };
  int reserve(uint64_t bytes, uint64_t bytes_max, PageSize page_size = PageSize::kHuge);
  // Uses a caller's buffer, which must outlive this object.
  void adopt(void *buffer, uint64_t bytes);
  // Changes the part in use within the reserved range; RAM above a lower end goes back to the system. Returns 0 or errno.
  int resize(uint64_t bytes);
  // Has the kernel take this memory from these NUMA nodes, bit n for node n: from the one, or from each in turn. Before the first touch.
  // Returns 0 or errno. On a machine with that one node there is nothing to do.
  int bind_nodes(uint64_t nodes);
  // Touches [0, bytes) with `threads` threads, so that later first accesses do not pay for page faults.
  void touch(unsigned threads);

  std::byte *base() const { return base_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t reserved() const { return reserved_; }

private:
  std::byte *base_ = nullptr;
  uint64_t bytes_ = 0;
  uint64_t reserved_ = 0;
  void *mapping_ = nullptr; // What munmap gets; NULL when adopted.
  uint64_t mapping_bytes_ = 0;
};

// The machine's NUMA nodes, bit n for node n < 64; 1 where the system does not say.
uint64_t numa_nodes();

} // namespace hicache
