// One direction of the bus: a thread that turns queued transfers into quanta on two copy streams.
//
// Streams of one direction do not share the copy engine: one runs until it goes idle, and a server's own 4 KiB read would wait for all of
// our gigabyte. So copies go in quanta on two streams, each quantum waiting for the one before it: between two quanta the engine turns to
// other streams. Priorities are decided in software, a quantum at a time, and few quanta are ever queued ahead.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "backend.hpp"
#include "backend_cuda_fences.hpp"
#include "backend_cuda_kernels.hpp"
#include "backend_cuda_words.hpp"

namespace hicache {

// How a fragment crosses the bus.
enum class CopyMethod : uint32_t {
  kAuto,   // By fragment size, as calibrated.
  kDirect, // Batched copies by the copy engine.
  kKernel, // page_copy on few blocks.
  kStaged, // What is contiguous on the host by the copy engine, to or from a ring on the device, and there by page_copy, full width.
};

struct CopyTuning {
  CopyMethod method = CopyMethod::kAuto;
  uint64_t quantum_bytes = uint64_t{16} << 20; // 4 MiB while a server reads small things often.
  uint32_t depth = 3;                          // Quanta queued at once: with 2, the bus idles while the thread looks.
  uint32_t batch_copies = 128;                 // In one call of the driver, which keeps the caller's calls out meanwhile.
  uint32_t first_batch_copies = 16;            // In the first call after a rest: the bus starts that much earlier.
  uint64_t kernel_below_bytes = 48 << 10;      // kAuto: smaller fragments go by kernel.
  uint32_t kernel_blocks = 2;                  // More would stall the compute beside it;
  uint32_t kernel_blocks_alone = 4;            // so this many only while no step is about.
  uint64_t layer_bytes_min = 32 << 10;         // A load whose layer slices are smaller is not cut into layer groups,
  uint64_t layered_bytes_min = 4 << 20;        // nor is one that is over in a moment.
};

struct LaneCounts {
  std::atomic<uint64_t> quanta{0}, batches{0}, copies{0}, kernel_launches{0}, direct_bytes{0}, kernel_bytes{0}, staged_bytes{0};
};

// What both lanes share.
struct LaneContext {
  CudaDevice *device = nullptr;
  FenceBoard *fences = nullptr;
  KernelSet *kernels = nullptr;
  TicketWords *words = nullptr;
  const LayerOrder *layers = nullptr;
  JobSink *sink = nullptr;
  CuAddress device_bases[kPoolCountMax] = {}; // Of page 0 of each pool.
  CuAddress host_bases[kPoolCountMax] = {};   // The same on the host, as the device sees it.
  CopyTuning tuning;
};

class CopyLane {
public:
  CopyLane(const LaneContext &context, uint32_t direction, uint32_t ticket_max);
  ~CopyLane();

  // Makes the streams and starts the thread.
  Status open(ErrorDetail *error);
  // Ends the thread after the jobs submitted.
  void close();

  // Takes over the job: it runs once what job.stream holds so far and job.waits have passed. Cannot fail: what goes wrong is the job's end.
  // Under the engine's lock, with the context current.
  void submit(TransferJob &job);
  // As Backend::cancel.
  void cancel(TransferJob &job);
  void drain();
  const LaneCounts &counts() const { return counts_; }

private:
  // What the lane keeps of a ticket slot while its job is here.
  struct SlotState {
    std::vector<FenceMark> waits;
    CuEvent producer = nullptr; // What the caller's stream held at submit. Made at the slot's first use.
    bool producer_pending = false;
    uint64_t piece_offset = 0; // Of the next piece of the current copy.
    bool started = false;
    bool cut = false; // Cancelled before all of it was handed out.
  };
  struct Quantum {
    CuEvent event = nullptr; // Its end, for the quantum after it.
    uint32_t word = 0;       // The lane word of its stream,
    uint32_t sequence = 0;   // which reaches this at its end.
    std::vector<TransferJob *> ended;
  };
  struct Fifo {
    TransferJob *head = nullptr, *tail = nullptr;
  };

  void run();
  bool retire();             // Ends what has passed; true if something did.
  bool issue();              // Queues one quantum; false if no job can run.
  TransferJob *next_ready(); // Most urgent job whose fences have passed.
  Status record_producer(TransferJob &job, ErrorDetail *error);
  bool ready(TransferJob &job);
  // Adds copies of the job until the quantum is full; true if the job has been handed out whole.
  bool add_copies(TransferJob &job, CuStream stream);
  bool quantum_full() const;
  void add_piece(const TierCopy &copy, const PoolLayout &pool, uint64_t begin, uint64_t end, CuStream stream);
  // As add_piece, of a pool whose host region has another order. Pieces end with whole layers.
  void add_layers(const TierCopy &copy, const PoolLayout &pool, const SliceRange &slice, CuStream stream);
  void add_fragment(CuAddress device, CuAddress host, uint64_t bytes, CuStream stream);
  void flush(CuStream stream);
  void flush_direct(CuStream stream);
  void flush_kernel(CuStream stream);
  bool by_kernel(uint64_t bytes) const;
  bool passed(const Quantum &quantum) const;
  bool layered(const TransferJob &job) const;
  void unlink(TransferJob &job);
  void finish(TransferJob &job, Status status, int32_t native_code);
  void fail_all();
  void rest(); // Nothing to do now: spin, sleep a little, or park.
  void check(CuResult result, const char *what);

  LaneContext context_;
  const DriverApi &api_;
  const uint32_t direction_;
  const uint32_t slot_count_;
  CuStream streams_[2] = {};
  uint32_t parity_ = 0;
  CuEvent previous_ = nullptr; // End of the last quantum queued.

  std::mutex mutex_;
  std::condition_variable work_, idle_;
  std::atomic<bool> parked_{false};
  std::atomic<uint32_t> arrivals_{0}; // Jobs submitted, for the thread's spin.
  Fifo classes_[3];                   // Under mutex_.
  uint32_t unfinished_ = 0;           // Under mutex_.
  bool stopping_ = false;             // Under mutex_.

  // The thread's own.
  std::unique_ptr<SlotState[]> slots_;
  std::vector<Quantum> quanta_; // A ring of tuning.depth + 1.
  uint32_t quantum_head_ = 0, quantum_count_ = 0;
  std::vector<CuAddress> targets_, sources_;
  std::vector<size_t> sizes_;
  std::unique_ptr<kernel::CopyArgs> kernel_args_;
  std::vector<kernel::Fragment> fragments_; // For one launch, all of fragment_bytes_.
  uint64_t fragment_bytes_ = 0;
  ListRing lists_;
  uint64_t batch_bytes_ = 0;
  uint32_t batch_copies_now_ = 0;
  uint64_t quantum_bytes_ = 0;     // Of the quantum being filled, with its copies
  uint32_t quantum_copies_ = 0;    // by the copy engine
  uint32_t quantum_fragments_ = 0; // and by kernel.
  uint32_t sequence_ = 0;          // Of the last quantum queued.
  uint32_t seen_arrivals_ = 0;
  uint64_t idle_since_ns_ = 0; // 0: busy.
  uint64_t last_query_ns_ = 0;
  LaneCounts counts_;
  std::thread thread_;
};

} // namespace hicache
