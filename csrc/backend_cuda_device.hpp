// One GPU as an engine uses it: the shared primary context, its facts, and the first fault, which poisons everything after it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "driver_api.hpp"
#include "status.hpp"

namespace hicache {

class CudaDevice {
public:
  CudaDevice() = default;
  ~CudaDevice() { close(); }
  CudaDevice(const CudaDevice &) = delete;
  CudaDevice &operator=(const CudaDevice &) = delete;

  // Loads the driver and retains the primary context of the device, which torch, the CUDA runtime and CuPy use as well. UNSUPPORTED without
  // a driver or device, INVALID_ARGUMENT for an ordinal that does not exist.
  Status open(int32_t ordinal, ErrorDetail *error);
  void close();

  const DriverApi &api() const { return *api_; }
  CuContext context() const { return context_; }
  CuDevice ordinal() const { return device_; }
  unsigned multiprocessors() const { return multiprocessors_; }
  const std::string &name() const { return name_; }
  int numa_node() const { return numa_node_; } // -1: unknown or none.

  // Turns a driver's answer into a status. Any error is the first fault or follows it: it poisons. `what`: static text. Any thread.
  Status check(CuResult result, const char *what, ErrorDetail *error);
  // The same for calls whose failure leaves the device whole (out of memory, a bad argument).
  Status report(CuResult result, const char *what, Status status, ErrorDetail *error) const;

  // For calls on a stream of the caller's: a handle that is none of this context costs INVALID_ARGUMENT, anything else is a fault.
  Status check_stream(CuResult result, ErrorDetail *error);
  // OK if the stream can take work now: INVALID_ARGUMENT while it is being captured, as an event or wait would become part of the graph.
  Status usable_stream(CuStream stream, const char *advice, ErrorDetail *error);

  // Called once, at the first fault, on the thread that saw it.
  std::function<void(int32_t)> on_fault;

  bool poisoned() const { return fault_.load(std::memory_order_acquire) != 0; }
  int32_t fault_code() const { return fault_.load(std::memory_order_acquire); }
  // OK, or the fault that everything but close answers.
  Status fault(ErrorDetail *error) const;

private:
  const DriverApi *api_ = nullptr;
  CuContext context_ = nullptr;
  CuDevice device_ = 0;
  unsigned multiprocessors_ = 0;
  int numa_node_ = -1;
  std::string name_;
  std::atomic<int32_t> fault_{0};
  mutable std::mutex mutex_;
  std::string fault_text_; // Under mutex_.
};

} // namespace hicache
