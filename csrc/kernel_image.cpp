// The kernels of cuda/ as one fatbin inside the library. Built without nvcc there is none, and the copy engine serves alone.
#include "kernel_image.hpp"

#if defined(HICACHE_FATBIN)
asm(".section .rodata.hicache_fatbin, \"a\"\n"
    ".balign 64\n"
    ".globl hicache_fatbin_begin\n"
    ".hidden hicache_fatbin_begin\n"
    ".type hicache_fatbin_begin, @object\n"
    "hicache_fatbin_begin:\n"
    ".incbin \"" HICACHE_FATBIN "\"\n"
    ".globl hicache_fatbin_end\n"
    ".hidden hicache_fatbin_end\n"
    "hicache_fatbin_end:\n"
    ".byte 0\n"
    ".previous\n");
extern "C" const unsigned char hicache_fatbin_begin[], hicache_fatbin_end[];
#endif

namespace hicache {

KernelImage kernel_image() {
#if defined(HICACHE_FATBIN)
  return {hicache_fatbin_begin, static_cast<std::size_t>(hicache_fatbin_end - hicache_fatbin_begin)};
#else
  return {};
#endif
}

} // namespace hicache
