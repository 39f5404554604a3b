// Page ids, one type a space, so that an id of the wrong space does not compile.
//
// Arrays at the C ABI are plain uint32_t; they become one of these types where a single id is looked at.
#pragma once

#include <cstdint>

namespace hicache {

// Stable name of a page for its lifetime (device: virtual page; host: hicache_hpage_t).
enum class VirtualPage : uint32_t {};

// Where a page is now: bytes [p * page_bytes, (p + 1) * page_bytes) of the arena. Valid while something pins the page.
enum class PhysicalPage : uint32_t {};

// What attention kernels index with. Made by id_translate alone.
enum class KernelId : int32_t {};

constexpr uint32_t raw(VirtualPage v) { return static_cast<uint32_t>(v); }
constexpr uint32_t raw(PhysicalPage p) { return static_cast<uint32_t>(p); }
constexpr int32_t raw(KernelId k) { return static_cast<int32_t>(k); }

// Byte offset of a page in its arena. 64-bit throughout: 4 million pages of 36 KiB pass 2^37.
constexpr uint64_t page_offset_bytes(PhysicalPage p, uint64_t page_bytes) { return uint64_t{raw(p)} * page_bytes; }

} // namespace hicache
