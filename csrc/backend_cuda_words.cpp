#include "backend_cuda_words.hpp"

#include <sys/mman.h>

#include <algorithm>

#include "kernel_args.hpp"

namespace hicache {

Status TicketWords::open(uint32_t slot_count, uint32_t layer_limit, ErrorDetail *error) {
  const DriverApi &api = device_.api();
  slot_count_ = std::max(slot_count, 1u);
  all_ = layer_limit + 1;
  slots_ = std::make_unique<Slot[]>(slot_count_);
  host_bytes_ = (uint64_t{lane_at(4)} * sizeof(uint32_t) + 4095) / 4096 * 4096;
  void *memory = mmap(nullptr, host_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED)
    return fail(error, HICACHE_INFEASIBLE, HICACHE_NO_POOL, "mapping %llu bytes", static_cast<unsigned long long>(host_bytes_));
  host_words_ = static_cast<uint32_t *>(memory);
  if (CuResult r = api.host_register(host_words_, host_bytes_, cu::kHostRegisterPortable | cu::kHostRegisterDeviceMap); r != cu::kSuccess)
    return device_.report(r, "cuMemHostRegister", HICACHE_INFEASIBLE, error);
  registered_ = true;
  if (CuResult r = api.host_device_pointer(&host_words_on_device_, host_words_, 0); r != cu::kSuccess)
    return device_.report(r, "cuMemHostGetDevicePointer", HICACHE_DEVICE, error);
  if (CuResult r = api.memory_alloc(&device_words_, host_bytes_); r != cu::kSuccess) {
    device_words_ = 0;
    return device_.report(r, "cuMemAlloc", HICACHE_INFEASIBLE, error);
  }
  // Zero before any stream can look: the legacy stream is synchronised by hand, as ours do not follow it.
  if (CuResult r = api.set32_async(device_words_, 0, host_bytes_ / sizeof(uint32_t), nullptr); r != cu::kSuccess)
    return device_.report(r, "cuMemsetD32Async", HICACHE_DEVICE, error);
  if (CuResult r = api.stream_synchronize(nullptr); r != cu::kSuccess)
    return device_.report(r, "cuStreamSynchronize", HICACHE_DEVICE, error);
  return HICACHE_OK;
}

void TicketWords::close() {
  if (device_words_ != 0) device_.api().memory_free(device_words_);
  device_words_ = 0;
  if (registered_) device_.api().host_unregister(host_words_);
  registered_ = false;
  if (host_words_ != nullptr) munmap(host_words_, host_bytes_);
  host_words_ = nullptr;
}

void TicketWords::begin(uint32_t slot, uint32_t first_layer) {
  Slot &of = slots_[slot];
  of.base.store(of.base.load(std::memory_order_relaxed) + all_ + 1, std::memory_order_release);
  of.first.store(first_layer, std::memory_order_release);
  of.state.store(State::kPending, std::memory_order_release);
}

void TicketWords::end(uint32_t slot, bool failed) {
  slots_[slot].state.store(failed ? State::kFailed : State::kDone, std::memory_order_release);
}

uint32_t TicketWords::value(uint32_t slot, uint32_t layers) const {
  return slots_[slot].base.load(std::memory_order_acquire) + std::min(layers, all_);
}

CuResult TicketWords::write(uint32_t slot, uint32_t layers, CuStream stream) {
  const uint32_t word = value(slot, layers);
  if (CuResult r = device_.api().stream_write_value(stream, address(slot), word, cu::kWriteValueDefault); r != cu::kSuccess) return r;
  // The end comes to the host with the ticket's end: its word is not needed, and each write costs the stream some microseconds.
  if (layers >= all_) return cu::kSuccess;
  return device_.api().stream_write_value(stream, host_words_on_device_ + slot * sizeof(uint32_t), word, cu::kWriteValueDefault);
}

CuResult TicketWords::wait(uint32_t slot, uint32_t layer, CuStream stream) const {
  return device_.api().stream_wait_value(stream, address(slot), value(slot, layer + 1), cu::kWaitValueGreaterOrEqual);
}

uint64_t TicketWords::waiter(uint32_t slot, CuStream stream) const {
  const uint64_t base = slots_[slot].base.load(std::memory_order_acquire);
  return kernel::stamp_mix(kernel::stamp_mix(base) ^ reinterpret_cast<uint64_t>(stream)) | 1; // Never 0: nobody.
}

uint32_t TicketWords::lane_word(uint32_t index) const {
  return std::atomic_ref<uint32_t>(host_words_[lane_at(index)]).load(std::memory_order_acquire);
}

CuResult TicketWords::write_lane_word(uint32_t index, uint32_t value, CuStream stream) {
  return device_.api().stream_write_value(stream, host_words_on_device_ + lane_at(index) * sizeof(uint32_t), value, cu::kWriteValueDefault);
}

uint32_t TicketWords::progress(uint32_t slot) const {
  const Slot &of = slots_[slot];
  switch (of.state.load(std::memory_order_acquire)) {
    case State::kDone: return kProgressDone;
    case State::kFailed: return kProgressPoison;
    case State::kPending: break;
  }
  const uint32_t first = of.first.load(std::memory_order_acquire);
  const uint32_t word = std::atomic_ref<uint32_t>(host_words_[slot]).load(std::memory_order_acquire);
  const int32_t layers = static_cast<int32_t>(word - of.base.load(std::memory_order_acquire));
  if (layers >= static_cast<int32_t>(all_)) return kProgressDone;
  return std::max(first, static_cast<uint32_t>(std::max(layers, 0)));
}

} // namespace hicache
