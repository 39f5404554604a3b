#include "backend_cuda_device.hpp"

#include <cctype>
#include <fstream>

namespace hicache {

namespace {

constexpr CuResult kCaptureImplicit = 906; // The legacy stream while another one is captured.

int numa_node_of(const DriverApi &api, CuDevice device) {
  char bus[32] = {};
  if (api.device_pci_bus_id(bus, sizeof bus, device) != cu::kSuccess) return -1;
  std::string path = "/sys/bus/pci/devices/";
  for (const char *c = bus; *c != '\0'; c++) path += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  std::ifstream file(path + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

} // namespace

Status CudaDevice::open(int32_t ordinal, ErrorDetail *error) {
  DriverLoad load = load_driver();
  if (load.api == nullptr) {
    fail(error, HICACHE_UNSUPPORTED, HICACHE_NO_POOL, "%s", load.reason.c_str());
    if (error != nullptr) error->native_code = load.native;
    return HICACHE_UNSUPPORTED;
  }
  const DriverApi &api = *load.api;
  api_ = &api;
  int count = 0;
  if (CuResult r = api.device_count(&count); r != cu::kSuccess) return report(r, "cuDeviceGetCount", HICACHE_UNSUPPORTED, error);
  if (ordinal < 0 || ordinal >= count)
    return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "device: there is no CUDA device %d, there are %d", ordinal, count);
  if (CuResult r = api.device_get(&device_, ordinal); r != cu::kSuccess) return report(r, "cuDeviceGet", HICACHE_UNSUPPORTED, error);
  int value = 0;
  if (api.device_attribute(&value, cu::kAttributeMultiprocessors, device_) == cu::kSuccess) multiprocessors_ = static_cast<unsigned>(value);
  char text[128] = {};
  if (api.device_name(text, sizeof text, device_) == cu::kSuccess) name_ = text;
  if (CuResult r = api.primary_retain(&context_, device_); r != cu::kSuccess) {
    context_ = nullptr;
    return report(r, "cuDevicePrimaryCtxRetain", r == cu::kOutOfMemory ? HICACHE_INFEASIBLE : HICACHE_DEVICE, error);
  }
  numa_node_ = numa_node_of(api, device_);
  return HICACHE_OK;
}

void CudaDevice::close() {
  if (context_ != nullptr) api_->primary_release(device_);
  context_ = nullptr;
}

Status CudaDevice::check(CuResult result, const char *what, ErrorDetail *error) {
  if (result == cu::kSuccess) return HICACHE_OK;
  {
    std::lock_guard lock(mutex_);
    if (fault_.load(std::memory_order_relaxed) == 0) {
      fault_text_ = std::string(what) + ": " + api_->describe(result);
      fault_.store(result, std::memory_order_release);
      if (on_fault) on_fault(result);
    }
  }
  return fault(error);
}

Status CudaDevice::check_stream(CuResult result, ErrorDetail *error) {
  if (result == cu::kInvalidHandle || result == cu::kInvalidContext || result == cu::kInvalidValue || result == kCaptureImplicit)
    return report(result, "stream: is none of this device's primary context, or cannot take work now", HICACHE_INVALID_ARGUMENT, error);
  return check(result, "work on the caller's stream", error);
}

Status CudaDevice::usable_stream(CuStream stream, const char *advice, ErrorDetail *error) {
  int capturing = 0;
  if (CuResult r = api_->stream_capturing(stream, &capturing); r != cu::kSuccess) return check_stream(r, error);
  if (capturing == 0) return HICACHE_OK;
  return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "stream: is being captured; %s", advice);
}

Status CudaDevice::report(CuResult result, const char *what, Status status, ErrorDetail *error) const {
  if (result == cu::kSuccess) return HICACHE_OK;
  fail(error, status, HICACHE_NO_POOL, "%s: %s", what, api_->describe(result).c_str());
  if (error != nullptr) error->native_code = result;
  return status;
}

Status CudaDevice::fault(ErrorDetail *error) const {
  const int32_t native = fault_.load(std::memory_order_acquire);
  if (native == 0) return HICACHE_OK;
  std::lock_guard lock(mutex_);
  fail(error, HICACHE_DEVICE, HICACHE_NO_POOL, "the device failed: %s", fault_text_.c_str());
  if (error != nullptr) error->native_code = native;
  return HICACHE_DEVICE;
}

} // namespace hicache
