// What a CUDA backend has for hand-overs to and from other backends of the process: two streams, a ring of lists, and which of them it
// reaches.
#pragma once

#include <cstdint>
#include <vector>

#include "backend_cuda_device.hpp"
#include "backend_cuda_kernels.hpp"

namespace hicache {

// The source's device does the copying: remote writes need no answer, so fewer of its multiprocessors are taken than remote reads would
// take.
struct PeerTuning {
  // Pages of at least this size go by the copy engine, which takes no multiprocessor but pauses between copies; smaller ones by kernel.
  uint64_t engine_from_bytes = 2 << 20;
  uint32_t kernel_blocks = 32; // Of 1,024 threads, 128 KiB in flight in each: ten times what a link holds. 0: the whole device.
  uint32_t batch_copies = 128; // In one call of the driver, which keeps the caller's calls out meanwhile.
  bool by_driver = false;      // As where the devices do not reach each other.
};

// Under the engine's lock. Each call makes the device's context current for itself.
class PeerLinks {
public:
  explicit PeerLinks(CudaDevice &device);
  ~PeerLinks() { close(); }

  // Takes streams, events and the ring (`uploads` as there), at the first hand-over of the engine; nothing later. INFEASIBLE.
  Status open(CuStream uploads, ErrorDetail *error);
  void close();

  CuStream stream(bool out) const { return streams_[out]; }
  ListRing &lists() { return lists_; }
  // Makes one of the streams follow what has been enqueued on a stream of the caller's.
  Status follow(bool out, CuStream caller, ErrorDetail *error);
  // The event that `stream(out)` has got so far, recorded now.
  CuResult mark(bool out, CuEvent *event_out);

  // Backends of the process are told apart by number, which no later one takes: an address would come again.
  uint64_t number() const { return number_; }
  bool knows(uint64_t number) const;
  bool direct(uint64_t number) const; // Of one that is known.
  void add(uint64_t number, bool direct) { links_.push_back({number, direct}); }

  // The ways of the copy engine to a peer that this driver has shown not to have.
  bool batches = true;

private:
  struct Link {
    uint64_t number;
    bool direct;
  };

  CudaDevice &device_;
  const uint64_t number_;
  CuStream streams_[2] = {}; // In, out: hand-overs in both directions at once do not wait for each other.
  CuEvent marks_[2] = {};
  CuEvent callers_[2] = {};
  ListRing lists_;
  std::vector<Link> links_;
};

} // namespace hicache
