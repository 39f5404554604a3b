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
#include <span>
#include <thread>
#include <vector>

#include "backend.hpp"
#include "backend_cuda_calibrate.hpp"
#include "backend_cuda_copies.hpp"
#include "backend_cuda_fences.hpp"
#include "backend_cuda_kernels.hpp"
#include "backend_cuda_stage.hpp"
#include "backend_cuda_words.hpp"
#include "copy_choice.hpp"

namespace hicache {

struct CopyTuning {
  CopyMethod method = CopyMethod::kAuto;
  uint64_t quantum_bytes = uint64_t{16} << 20; // 4 MiB while a server reads small things often.
  uint64_t quantum_d2h_bytes =
      uint64_t{8} << 20;                // At most, from the device: what a server reads in each step waits behind a quantum or two.
  uint32_t kernel_quanta_alone = 1;     // Quanta that a launch over the bus takes at once. It does not hold the copy engine, and beside
  uint32_t kernel_quanta_beside = 4;    // compute each launch waits for room, so that fewer and longer ones keep more of the rate.
  uint32_t depth = 3;                   // Quanta queued at once: with 2, the bus idles while the thread looks.
  uint32_t batch_copies = 128;          // In one call of the driver, which keeps the caller's calls out meanwhile.
  uint32_t first_batch_copies = 16;     // In the first call after a rest: the bus starts that much earlier.
  CopyChoice choice[2];                 // kAuto: H2D, D2H, before calibration and the budget.
  bool calibrate = false;               // Measure at open what the choice depends on,
  uint64_t calibration_ns = 80'000'000; // for so long at most.
  uint32_t slowdown_permille[2] = {kSlowdownDefaultPermille, kSlowdownDefaultPermille}; // Of compute beside a direction's copies.
  uint64_t stage_bytes = uint64_t{128} << 20; // The ring, in 8 to 16 slots of a quantum: what the bus may go ahead of the kernels.
  uint64_t layer_bytes_min = 32 << 10;        // A load whose layer slices are smaller is not cut into layer groups,
  uint64_t layered_bytes_min = 4 << 20;       // nor is one that is over in a moment.
};

struct LaneCounts {
  std::atomic<uint64_t> quanta{0}, batches{0}, copies{0}, kernel_launches{0}, direct_bytes{0}, kernel_bytes{0}, staged_bytes{0};
};

// What both lanes share.
struct LaneContext {
  CudaDevice *device = nullptr;
  FenceBoard *fences = nullptr;
  KernelSet *kernels = nullptr;
  CuStream uploads = nullptr; // Of lists.
  TicketWords *words = nullptr;
  const LayerOrder *layers = nullptr;
  JobSink *sink = nullptr;
  CuAddress device_bases[kPoolCountMax] = {}; // Of page 0 of each pool.
  CuAddress host_bases[kPoolCountMax] = {};   // The same on the host, as the device sees it.
  CopyTuning tuning;
  std::atomic<bool> *carrying = nullptr; // Of both directions: quanta are under way. The backend's.
};

inline bool copy_cancelled(TransferJob &job) { return std::atomic_ref(job.cancelled).load(std::memory_order_relaxed); }

class CopyLane {
public:
  CopyLane(const LaneContext &context, uint32_t direction, uint32_t ticket_max);
  ~CopyLane();

  // Makes the streams and rings.
  Status open(ErrorDetail *error);
  // What calibration may use between open and start.
  ProbeLane probe();
  // Starts the thread.
  void start(const CopyChoice &choice);
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
  static constexpr uint32_t kQuantumFragments = 32768; // By kernel, in a quantum: one list, one launch.
  static constexpr uint32_t kFirstFragments = 8192;    // The same after a rest: the bus starts that much earlier.
  static constexpr uint32_t kStageSlotsMax = 16;
  static_assert(kQuantumFragments * sizeof(kernel::Fragment) <= ListRing::kSlotBytes);

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
  bool quantum_full();
  uint64_t quantum_limit(); // Bytes, for what the quantum holds.
  uint32_t fragments_limit() const { return quantum_count_ == 0 ? kFirstFragments : kQuantumFragments; }
  // Lists the chunk's next pages of one pool that go whole and by kernel, until the quantum is full; false if there is none such.
  bool add_by_kernel(TransferJob &job);
  void add_piece(const TierCopy &copy, const PoolLayout &pool, uint64_t begin, uint64_t end, CuStream stream);
  // As add_piece, of a pool whose host region has another order. Pieces end with whole layers.
  void add_layers(const TierCopy &copy, const PoolLayout &pool, const SliceRange &slice, CuStream stream);
  // host_run: of the host bytes that the fragment lies in.
  void add_fragment(CuAddress device, CuAddress host, uint64_t bytes, uint64_t host_run, CuStream stream);
  void flush(CuStream stream);
  void flush_direct(CuStream stream);
  void flush_kernel(CuStream stream);
  void send_batch(CuStream stream); // Queues the batch being filled, whatever it is for.
  void launch_fragments(std::span<const kernel::Fragment> fragments, uint64_t bytes, unsigned blocks, ListRing *lists, CuStream stream);
  // How a fragment goes that lies in a run of host_run bytes on the host.
  CopyMethod method_for(uint64_t bytes, uint64_t host_run);
  bool kernels_likely() const;      // Some pool's pages are so small that they cross by kernel.
  const CopySituation &situation(); // Of the quantum being filled.
  bool down() const { return direction_ == HICACHE_D2H; }
  uint32_t depth_now() const { return quantum_staged_ ? static_cast<uint32_t>(quanta_.size()) - 1 : context_.tuning.depth; }

  // The staged path: backend_cuda_stage.cpp.
  Status open_stage(ErrorDetail *error);
  void close_stage();
  enum class RingNeed { kNone, kMaybe, kSure };
  RingNeed ring_need() const;
  // Contiguous bytes that these layers of a page have on the host.
  static uint64_t host_run_bytes(const PoolLayout &pool, uint32_t first_layer, uint32_t last_layer);
  uint64_t slice_run(uint32_t index, const PoolLayout &pool, const SliceRange &slice);
  bool stage_fragment(CuAddress device, CuAddress host, uint64_t bytes, bool sort, CuStream stream); // False: no room in the slot.
  void flush_stage(CuStream stream);
  CuStream word_stream(CuStream stream);
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
  CopyChoice choice_;
  CuStream streams_[2] = {};
  uint32_t parity_ = 0;
  CuEvent previous_ = nullptr; // End of the last quantum queued.

  std::mutex mutex_;
  std::condition_variable work_, idle_;
  std::atomic<bool> parked_{false};
  std::atomic<uint32_t> arrivals_{0}; // Jobs submitted, for the thread's spin.
  Fifo classes_[3];                   // Under mutex_.
  // Changed under mutex_, read without it: the thread looks all the time, and who submits shall not wait for that.
  std::atomic<uint32_t> queued_{0};     // Jobs in classes_,
  std::atomic<uint32_t> unfinished_{0}; // and with those in quanta.
  std::atomic<bool> stopping_{false};

  // The thread's own.
  std::unique_ptr<SlotState[]> slots_;
  std::vector<Quantum> quanta_; // A ring of tuning.depth + 1.
  uint32_t quantum_head_ = 0, quantum_count_ = 0;
  CopyBatch batch_;
  FragmentLauncher launcher_;
  std::vector<kernel::Fragment> fragments_; // For one launch, all of fragment_bytes_.
  uint64_t fragment_bytes_ = 0;
  ListRing lists_;
  StageRing stage_;
  ListRing stage_lists_;
  CuStream kernel_stream_ = nullptr; // Of the ring's kernels.
  CuEvent stage_event_ = nullptr;    // Recorded and waited for at once: between kernel_stream_ and the streams of the copies.
  std::vector<StagedFragment> staged_;
  StagePlan stage_plan_;
  uint32_t stage_slot_ = 0;                     // Of the quantum being filled,
  uint64_t stage_used_ = 0, stage_flushed_ = 0; // and how much of it is used and sent.
  bool stage_sort_ = false;                     // Some of staged_ may be neighbours of others on the host that do not stand beside them.
  CopySituation situation_;                     // Of the quantum being filled,
  bool situation_known_ = false;                // once it was asked for.
  bool few_ = false;                            // The job being cut has few pages.
  bool quantum_staged_ = false;                 // Something of the quantum filled last went through the ring.
  uint64_t host_runs_[kPoolCountMax] = {};      // Contiguous bytes of a page on the host; 0: all of it.
  uint64_t layer_runs_[kPoolCountMax] = {};     // The same of one layer.
  struct SliceRun {
    uint32_t pool = HICACHE_NO_POOL, first_layer = 0, last_layer = 0;
    uint64_t bytes = 0;
  };
  SliceRun slice_run_; // Of the slice cut last.
  uint64_t batch_bytes_ = 0;
  uint32_t batch_copies_now_ = 0;
  uint64_t kernel_quantum_bytes_ = 0; // Alike in both directions: a launch does not hold the copy engine.
  uint64_t quantum_bytes_ = 0;        // Of the quantum being filled, with its copies
  uint32_t quantum_copies_ = 0;       // by the copy engine
  uint32_t quantum_fragments_ = 0;    // and by kernel.
  uint32_t sequence_ = 0;             // Of the last quantum queued.
  uint32_t seen_arrivals_ = 0;
  uint64_t arrived_ns_ = 0;    // When the thread saw the last job arrive, while it had nothing under way.
  uint64_t idle_since_ns_ = 0; // 0: busy.
  uint64_t last_query_ns_ = 0;
  LaneCounts counts_;
  std::thread thread_;
};

} // namespace hicache
