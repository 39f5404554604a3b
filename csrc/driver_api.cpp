#include "driver_api.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>

namespace hicache {

std::string DriverApi::describe(CuResult result) const {
  const char *name = nullptr;
  const char *text = nullptr;
  if (error_name == nullptr || error_name(result, &name) != cu::kSuccess || name == nullptr) return "CUDA error " + std::to_string(result);
  std::string out = name;
  if (error_string(result, &text) == cu::kSuccess && text != nullptr) out += std::string(": ") + text;
  return out;
}

namespace {

std::string version_text(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

// Fills the table; the name of the first required function that is missing, or null.
const char *fill(DriverApi *api, void *library) {
#define HICACHE_CU_LOAD(member, symbol, parameters)                                                                                        \
  api->member = reinterpret_cast<CuResult(*) parameters>(dlsym(library, symbol));                                                          \
  if (api->member == nullptr) return symbol;
  HICACHE_CU_REQUIRED(HICACHE_CU_LOAD)
#undef HICACHE_CU_LOAD
#define HICACHE_CU_LOAD(member, symbol, parameters) api->member = reinterpret_cast<CuResult(*) parameters>(dlsym(library, symbol));
  HICACHE_CU_OPTIONAL(HICACHE_CU_LOAD)
#undef HICACHE_CU_LOAD
  api->has_copy_batch = api->copy_batch != nullptr || api->copy_batch_12_8 != nullptr;
  return nullptr;
}

} // namespace

DriverLoad load_driver_from(const char *path) {
  DriverLoad out;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char *why = dlerror();
    out.reason = std::string("no CUDA driver: ") + (why != nullptr ? why : path);
    return out;
  }
  auto api = new DriverApi; // Kept for the life of the process on success: streams and threads may call it until exit.
  auto fail = [&](CuResult native, std::string reason) {
    out.native = native;
    out.reason = std::move(reason);
    delete api;
    dlclose(library);
    return out;
  };
  auto get_version = reinterpret_cast<CuResult (*)(int *)>(dlsym(library, "cuDriverGetVersion"));
  if (get_version == nullptr || get_version(&api->version) != cu::kSuccess)
    return fail(0, std::string(path) + " is no CUDA driver: cuDriverGetVersion is missing or fails");
  if (api->version < kDriverVersionMin)
    return fail(0, "CUDA driver too old: it supports CUDA " + version_text(api->version) + ", needed is " +
                       version_text(kDriverVersionMin) + " (R525) or newer");
  if (const char *missing = fill(api, library))
    return fail(0, std::string("CUDA driver ") + version_text(api->version) + " lacks " + missing);
  if (CuResult r = api->init(0); r != cu::kSuccess) {
    std::string why = r == cu::kNoDevice       ? "no CUDA device: the driver is there but sees no GPU"
                      : r == cu::kNotPermitted ? "no permission to use the GPU (check /dev/nvidia*)"
                                               : "cuInit failed";
    return fail(r, why + " (" + api->describe(r) + ")");
  }
  int count = 0;
  if (CuResult r = api->device_count(&count); r != cu::kSuccess || count == 0)
    return fail(r, "no CUDA device: the driver is there but sees no GPU");
  out.api = api;
  return out;
}

DriverLoad load_driver() {
  static std::mutex mutex;
  static DriverLoad *loaded = nullptr;
  std::lock_guard lock(mutex);
  if (loaded != nullptr) return *loaded;
  const char *path = std::getenv("HICACHE_LIBCUDA");
  DriverLoad out = load_driver_from(path != nullptr && *path != '\0' ? path : "libcuda.so.1");
  if (out.api != nullptr) loaded = new DriverLoad(out);
  return out;
}

} // namespace hicache
