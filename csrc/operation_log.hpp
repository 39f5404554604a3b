// A record of every call that changes an engine's tables, with its arguments and its answer, in the order in which the calls took effect:
// enough to do them again and compare. Off until hicache_log_start; then bounded: what does not fit ends the log with a mark, since a
// log with a gap cannot be replayed. The format is docs/OPLOG.md's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine_options.hpp"
#include "hicache.h"
#include "status.hpp"

namespace hicache {

class OperationLog {
public:
  enum Kind : uint16_t {
    kOptions = 1,
    kAlloc,
    kFree,
    kExtend,
    kReserve,
    kCancel,
    kLoad,
    kBackUp,
    kCompletions,
    kLeaseAcquire,
    kLeaseRelease,
    kStepOpen,
    kStepClose,
    kBatchStep,
    kCompact,
    kSetCompaction,
    kResize,
    kHostAlloc,
    kHostFree,
    kHostView,
    kEnd,
  };
  static constexpr uint32_t kFormat = 1;
  static constexpr uint32_t kHeaderBytes = 32, kRecordHeaderBytes = 20, kEndBytes = kRecordHeaderBytes + 8;
  static constexpr uint64_t kCapacityMin = 64 << 10;
  static constexpr uint32_t kEndStopped = 1, kEndFull = 2;

  bool on() const { return on_; }
  // Under the engine's lock, as all that follows. May throw bad_alloc.
  void start(uint64_t capacity_bytes, const EngineOptions &options);
  void stop();
  bool ever_started() const { return started_; }
  // Takes whole records out, oldest first. INVALID_ARGUMENT, saying how much it needs, if the first does not fit.
  Status drain(std::byte *buffer, uint64_t buffer_bytes, uint64_t *bytes_out, ErrorDetail *error);

  // ---- One record: begin, arguments, the call, results, end ----

  // False, and nothing to do, while the log is off.
  bool begin(Kind kind) {
    if (!on_) [[likely]]
      return false;
    open_record(kind);
    return on_;
  }
  void word(uint32_t value);
  void wide(uint64_t value);
  void id(uint64_t value); // Of a holder: without the engine's serial.
  void words(const uint32_t *values, uint64_t count);
  void takes(const hicache_take_t *takes, uint32_t count, bool owner_is_own[]); // By pool: whether it hands out its own ids.
  void granted(const hicache_take_t *takes, uint32_t count, const bool owner_is_own[], Status status);
  void pages(const hicache_pages_t *lines, uint32_t count);
  void sequences(const hicache_sequence_t *sequences, uint32_t count);
  void grown(const hicache_sequence_t *sequences, uint32_t count, Status status);
  void batch(const hicache_batch_t &batch);
  void transfer(const hicache_transfer_t &transfer);
  void completions(const hicache_completion_t *completions, uint32_t count);
  // Ends the record. A call that was refused for its arguments alone has changed nothing and leaves none, unless `always`.
  Status end(Status status, bool always = false);

private:
  void open_record(Kind kind);
  void put(const void *bytes, uint64_t count);
  void close_record(uint64_t at, int32_t status);
  void mark_end(uint32_t reason);

  std::vector<std::byte> bytes_; // Its capacity is taken in start and never passed.
  uint64_t capacity_ = 0, record_ = 0;
  uint32_t number_ = 0;
  uint32_t serial_ = 0;
  bool on_ = false, started_ = false, too_long_ = false;
  bool in_record_ = false; // Between begin and end; afterwards still, if an exception has ended the call.
};

} // namespace hicache
