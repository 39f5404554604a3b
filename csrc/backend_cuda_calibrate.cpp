#include "backend_cuda_calibrate.hpp"

#include <algorithm>
#include <thread>

namespace hicache {

ProbeMemory ProbeMemory::over(CuAddress device, uint64_t device_bytes, CuAddress host, uint64_t host_bytes) {
  ProbeMemory made;
  const uint64_t fit = std::min(device_bytes, host_bytes) / kPlaceBytes;
  if (device == 0 || host == 0 || fit == 0) return made;
  made.device = device;
  made.host = host;
  for (made.places = 1; made.places * 2 <= std::min<uint64_t>(fit, kPlacesMax);) made.places *= 2;
  made.device_stride = device_bytes / made.places / 256 * 256;
  made.host_stride = host_bytes / made.places / 256 * 256;
  return made;
}

Calibrator::Calibrator(CudaDevice &device, const KernelSet &kernels, const ProbeMemory &memory, const ProbeLane lanes[2],
                       std::function<uint64_t()> now)
    : device_(device), api_(device.api()), kernels_(kernels), memory_(memory), lanes_{lanes[0], lanes[1]}, now_(std::move(now)) {}

Calibrator::~Calibrator() {
  for (CuEvent event : {begin_, end_, other_end_}) {
    if (event != nullptr) api_.event_destroy(event);
  }
}

bool Calibrator::ok(CuResult result) {
  if (result != cu::kSuccess && failure_ == cu::kSuccess) failure_ = result;
  return result == cu::kSuccess;
}

bool Calibrator::open_events() {
  for (CuEvent *event : {&begin_, &end_, &other_end_}) {
    if (!ok(api_.event_create(event, 0))) return *event = nullptr, false;
  }
  return true;
}

Status Calibrator::run(std::span<const Probe> plan, uint64_t budget_ns, ErrorDetail *error) {
  const uint64_t begin = now_();
  const auto spent = [&] { return now_() - begin >= budget_ns; };
  if (plan.empty() || memory_.places == 0 || spent()) return HICACHE_OK;
  bool good = open_events() && prime();
  // The second round betters what something else on the machine disturbed.
  for (int round = 0; round < 2 && good; round++) {
    for (size_t i = 0; i < plan.size() && good && !spent(); i++) {
      double gb_s = 0;
      good = measure(plan[i], &gb_s);
      if (!good) break;
      if (round == 0) rates_.push_back({plan[i], gb_s});
      else rates_[i].gb_s = std::max(rates_[i].gb_s, gb_s);
    }
    if (rates_.size() < plan.size()) break;
  }
  if (good) return HICACHE_OK;
  // What was begun reads and writes memory that others use as soon as the engine is open.
  for (const ProbeLane &lane : lanes_) {
    for (CuStream stream : {lane.bus, lane.kernels}) {
      if (stream != nullptr) api_.stream_synchronize(stream);
    }
  }
  if (failure_ == cu::kOutOfMemory) return HICACHE_OK;
  return device_.check(failure_, "calibrating the copy methods", error);
}

// Makes every place zero on the device too. On the first direction's stream, which the other one follows.
bool Calibrator::prime() {
  const ProbeLane &up = lanes_[0];
  for (uint32_t i = 0; i < memory_.places; i++) {
    copies_.add(device_at(ProbeMemory::kPlaceBytes, i), host_at(ProbeMemory::kPlaceBytes, i), ProbeMemory::kPlaceBytes);
  }
  return batch(up.bus) && ok(api_.event_record(begin_, up.bus)) && ok(api_.stream_wait_event(lanes_[1].bus, begin_, 0)) && wait(begin_);
}

bool Calibrator::wait(CuEvent event) {
  for (uint32_t turn = 0;; turn++) {
    const CuResult r = api_.event_query(event);
    if (r != cu::kNotReady) return ok(r);
    if (turn > 1000) std::this_thread::yield();
  }
}

bool Calibrator::measure(const Probe &probe, double *gb_s_out) {
  const bool down = probe.direction == HICACHE_D2H;
  const ProbeLane &lane = lanes_[down], &other = lanes_[!down];
  const auto whole = [&](uint64_t bytes) { return static_cast<uint32_t>(std::max<uint64_t>(bytes / probe.bytes, 1)); };
  const uint32_t warm = probe.count != 0 ? 0 : whole(kWarmBytes), count = probe.count != 0 ? probe.count : whole(kBytes);
  // Both directions set out from one point.
  if (probe.both && (!ok(api_.event_record(other_end_, other.bus)) || !ok(api_.stream_wait_event(lane.bus, other_end_, 0)))) return false;
  if (warm != 0 && !copy(probe, 0, warm)) return false;
  if (!ok(api_.event_record(begin_, lane.bus))) return false;
  uint64_t bytes = count * probe.bytes;
  const Probe bulk{.method = CopyMethod::kDirect, .direction = down ? HICACHE_H2D : HICACHE_D2H, .bytes = ProbeMemory::kPlaceBytes};
  if (probe.both) {
    const auto places = static_cast<uint32_t>(kBytes / ProbeMemory::kPlaceBytes);
    bytes += places * ProbeMemory::kPlaceBytes;
    if (!ok(api_.stream_wait_event(other.bus, begin_, 0)) || !copy_direct(bulk, 0, places, other.bus) ||
        !ok(api_.event_record(other_end_, other.bus)))
      return false;
  }
  if (!copy(probe, warm, count)) return false;
  // What goes up through the ring has arrived when the ring's kernels have run.
  const bool through_ring = probe.method == CopyMethod::kStaged && !down;
  if (!ok(api_.event_record(end_, through_ring ? lane.kernels : lane.bus)) || !wait(end_)) return false;
  if (through_ring && !ok(api_.stream_wait_event(lane.bus, end_, 0))) return false;
  float ms = 0, other_ms = 0;
  if (!ok(api_.event_elapsed(&ms, begin_, end_))) return false;
  if (probe.both && (!wait(other_end_) || !ok(api_.event_elapsed(&other_ms, begin_, other_end_)))) return false;
  ms = std::max(ms, other_ms);
  *gb_s_out = ms > 0 ? static_cast<double>(bytes) / static_cast<double>(ms) / 1e6 : 0;
  return true;
}

CuAddress Calibrator::place(CuAddress base, uint64_t stride, uint32_t permute, uint64_t bytes, uint32_t index) const {
  const uint32_t at = index % memory_.places * permute % memory_.places; // An odd factor: every place once.
  const uint64_t inside = index / memory_.places % (ProbeMemory::kPlaceBytes / bytes);
  return base + at * stride + inside * bytes;
}

bool Calibrator::copy(const Probe &probe, uint32_t first, uint32_t count) {
  switch (probe.method) {
    case CopyMethod::kKernel: return copy_kernel(probe, first, count);
    case CopyMethod::kStaged: return copy_staged(probe, first, count);
    default: return copy_direct(probe, first, count, lanes_[probe.direction == HICACHE_D2H].bus);
  }
}

bool Calibrator::copy_direct(const Probe &probe, uint32_t first, uint32_t count, CuStream stream) {
  const bool down = probe.direction == HICACHE_D2H;
  for (uint32_t i = first; i < first + count; i++) {
    const CuAddress on_device = device_at(probe.bytes, i), on_host = host_at(probe.bytes, i);
    copies_.add(down ? on_host : on_device, down ? on_device : on_host, probe.bytes);
    if (copies_.size() == kBatch && !batch(stream)) return false;
  }
  return batch(stream);
}

bool Calibrator::copy_kernel(const Probe &probe, uint32_t first, uint32_t count) {
  const bool down = probe.direction == HICACHE_D2H;
  const ProbeLane &lane = lanes_[down];
  std::vector<kernel::Fragment> fragments;
  fragments.reserve(count);
  for (uint32_t i = first; i < first + count; i++) {
    const CuAddress on_device = device_at(probe.bytes, i), on_host = host_at(probe.bytes, i);
    fragments.push_back(down ? kernel::Fragment{on_device, on_host} : kernel::Fragment{on_host, on_device});
  }
  return launch(fragments, probe.bytes, probe.blocks, lane.lists, lane.bus);
}

// In portions, each with a slot of the ring, so that packing one and carrying another overlap as the quanta of a lane do.
bool Calibrator::copy_staged(const Probe &probe, uint32_t first, uint32_t count) {
  const bool down = probe.direction == HICACHE_D2H;
  const ProbeLane &lane = lanes_[down];
  const uint64_t portion_bytes = std::min(kPortionBytes, lane.stage->slot_bytes()) / probe.host_run * probe.host_run;
  const auto portion = static_cast<uint32_t>(portion_bytes / probe.bytes);
  if (portion == 0) return true; // A slot smaller than a run: no rate that means anything comes of it, and the table stands.
  for (uint32_t done = 0; done < count;) {
    const uint32_t some = std::min(count - done, portion);
    const CuAddress ring = lane.stage->slot(stage_slot_++ % lane.stage->slots());
    std::vector<kernel::Fragment> fragments;
    fragments.reserve(some);
    for (uint32_t i = 0; i < some; i++) {
      const CuAddress on_device = device_at(probe.bytes, first + done + i), staged = ring + i * probe.bytes;
      fragments.push_back(down ? kernel::Fragment{on_device, staged} : kernel::Fragment{staged, on_device});
    }
    if (down && (!launch(fragments, probe.bytes, 0, lane.stage_lists, lane.kernels) || !ok(api_.event_record(lane.joint, lane.kernels)) ||
                 !ok(api_.stream_wait_event(lane.bus, lane.joint, 0))))
      return false;
    const uint64_t bytes = some * probe.bytes, before = (first + done) * probe.bytes / probe.host_run;
    for (uint64_t at = 0; at < bytes; at += probe.host_run) {
      const CuAddress on_host = host_at(probe.host_run, static_cast<uint32_t>(before + at / probe.host_run));
      copies_.add(down ? on_host : ring + at, down ? ring + at : on_host, std::min(probe.host_run, bytes - at));
      if (copies_.size() == kBatch && !batch(lane.bus)) return false;
    }
    if (!batch(lane.bus)) return false;
    if (!down && (!ok(api_.event_record(lane.joint, lane.bus)) || !ok(api_.stream_wait_event(lane.kernels, lane.joint, 0)) ||
                  !launch(fragments, probe.bytes, 0, lane.stage_lists, lane.kernels)))
      return false;
    done += some;
  }
  return true;
}

bool Calibrator::batch(CuStream stream) {
  if (copies_.empty()) return true;
  return ok(copies_.send(api_, stream));
}

bool Calibrator::launch(std::span<const kernel::Fragment> fragments, uint64_t bytes, unsigned blocks, ListRing *lists, CuStream stream) {
  uint32_t launches = 0;
  return ok(launcher_.copy(kernels_, fragments, bytes, blocks, lists == lanes_[1].lists, lists, stream, &launches));
}

} // namespace hicache
