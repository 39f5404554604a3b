#pragma once

#include <cstddef>

namespace hicache {

struct KernelImage {
  const void *data = nullptr; // Null: built without nvcc.
  std::size_t bytes = 0;
};

// The embedded fatbin, for cuModuleLoadData. Lives as long as the library.
KernelImage kernel_image();

} // namespace hicache
