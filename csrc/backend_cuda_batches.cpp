// What turns the copies of jobs into a quantum: pieces, the method of each, batches and launches. A part of CopyLane (its thread alone).
#include <algorithm>

#include "backend_cuda_lane.hpp"

namespace hicache {

namespace {

constexpr uint64_t kBatchBytes = uint64_t{16} << 20; // In one call of the driver.
constexpr uint32_t kQuantumCopies = 512;             // Direct copies that the thread can queue while the quantum before runs.
constexpr uint64_t kWholeBytes = uint64_t{4} << 20;  // Pieces are not cut smaller.

// A state may be larger than a quantum and goes in pieces; what is small enough goes whole, so that no sliver is left.
uint64_t piece_end(uint64_t begin, uint64_t end, uint64_t room) {
  return end - begin <= std::max(room, kWholeBytes) ? end : begin + std::max(room, kWholeBytes);
}

} // namespace

uint64_t CopyLane::quantum_limit() {
  if (quantum_fragments_ == 0 || quantum_copies_ != 0 || quantum_staged_) return context_.tuning.quantum_bytes;
  const uint32_t quanta = situation().compute ? context_.tuning.kernel_quanta_beside : context_.tuning.kernel_quanta_alone;
  return kernel_quantum_bytes_ * std::max(quanta, 1u);
}

bool CopyLane::quantum_full() {
  return quantum_bytes_ >= quantum_limit() || quantum_copies_ >= kQuantumCopies || quantum_fragments_ >= fragments_limit();
}

bool CopyLane::add_by_kernel(TransferJob &job) {
  const TierCopy *const copies = job.chunk->copies;
  const uint32_t p = copies[job.chunk_index].pool;
  const PoolLayout &pool = context_.layers->pools()[p];
  const SliceRange &slice = job.group.slices[p];
  const uint64_t bytes = slice.end - slice.begin;
  if (bytes == 0 || slots_[job.slot].piece_offset != 0 || pool.separate() || context_.layers->drops_last_layer()) return false;
  if (!fragments_.empty() && fragment_bytes_ != bytes) return false;
  if (method_for(bytes, bytes) != CopyMethod::kKernel) return false;
  const CuAddress device = context_.device_bases[p] + slice.begin, host = context_.host_bases[p] + slice.begin;
  fragment_bytes_ = bytes;
  const uint64_t limit = quantum_limit(), room_bytes = quantum_bytes_ < limit ? limit - quantum_bytes_ : 0;
  const uint64_t room = std::min<uint64_t>((room_bytes + bytes - 1) / bytes, fragments_limit() - quantum_fragments_);
  const uint32_t first = job.chunk_index,
                 end = static_cast<uint32_t>(std::min<uint64_t>(job.chunk->count, first + std::max<uint64_t>(room, 1)));
  uint32_t i = first;
  for (; i < end && copies[i].pool == p; i++) {
    const CuAddress on_device = device + page_offset_bytes(copies[i].device_page, pool.page_bytes);
    const CuAddress on_host = host + page_offset_bytes(copies[i].host_page, pool.page_bytes);
    fragments_.push_back(down() ? kernel::Fragment{on_device, on_host} : kernel::Fragment{on_host, on_device});
  }
  counts_.copies.fetch_add(i - first, std::memory_order_relaxed);
  quantum_fragments_ += i - first;
  quantum_bytes_ += (i - first) * bytes;
  job.chunk_index = i;
  return true;
}

bool CopyLane::add_copies(TransferJob &job, CuStream stream) {
  SlotState &slot = slots_[job.slot];
  few_ = job.page_count <= choice_.direct_up_to_count;
  while (!job.group.at_end()) {
    while (job.chunk != nullptr) {
      if (copy_cancelled(job)) {
        slot.cut = true;
        flush(stream);
        check(context_.words->write(job.slot, kProgressDone, word_stream(stream)),
              "cuStreamWriteValue32"); // Releases the streams that wait.
        return true;
      }
      if (quantum_full()) return false;
      if (add_by_kernel(job)) {
        if (job.chunk_index == job.chunk->count) {
          job.chunk = job.chunk->next;
          job.chunk_index = 0;
        }
        continue;
      }
      const TierCopy &copy = job.chunk->copies[job.chunk_index];
      const SliceRange &slice = job.group.slices[copy.pool];
      const PoolLayout &pool = context_.layers->pools()[copy.pool];
      const uint64_t begin = slice.begin + slot.piece_offset;
      // What goes by kernel may have filled more than a quantum.
      const uint64_t room = quantum_bytes_ < context_.tuning.quantum_bytes ? context_.tuning.quantum_bytes - quantum_bytes_ : 0;
      uint64_t end = piece_end(begin, slice.end, room);
      if (end > begin && pool.separate()) {
        const uint64_t layer_bytes = pool.rows.layer_bytes();
        SliceRange piece = slice;
        piece.first_layer = static_cast<uint32_t>(begin / layer_bytes);
        const uint32_t last = std::max(static_cast<uint32_t>(end / layer_bytes), piece.first_layer + 1);
        if (end < slice.end && last < slice.last_layer) {
          piece.last_layer = last;
          piece.end = last * layer_bytes;
        }
        end = piece.end;
        add_layers(copy, pool, piece, stream);
        quantum_bytes_ += end - begin;
      } else if (end > begin) {
        add_piece(copy, pool, begin, end, stream);
        quantum_bytes_ += end - begin;
      }
      if (end < slice.end) {
        slot.piece_offset = end - slice.begin;
        continue;
      }
      slot.piece_offset = 0;
      if (++job.chunk_index == job.chunk->count) {
        job.chunk = job.chunk->next;
        job.chunk_index = 0;
      }
    }
    job.group = context_.layers->next_group(job.group, job.pool_mask);
    job.chunk = job.copies;
    job.chunk_index = 0;
    flush(stream);
    check(context_.words->write(job.slot, job.group.first_layer, word_stream(stream)), "cuStreamWriteValue32");
  }
  return true;
}

void CopyLane::add_piece(const TierCopy &copy, const PoolLayout &pool, uint64_t begin, uint64_t end, CuStream stream) {
  const CuAddress device = context_.device_bases[copy.pool] + page_offset_bytes(copy.device_page, pool.page_bytes);
  const CuAddress host = context_.host_bases[copy.pool] + page_offset_bytes(copy.host_page, pool.page_bytes);
  if (!context_.layers->drops_last_layer() || pool.layer_bytes != 0) {
    add_fragment(device + begin, host + begin, end - begin, end - begin, stream);
    return;
  }
  // The deliberate fault on interleaved layers: each token's row of the last layer stays behind.
  for (uint64_t at = begin; at < end;) {
    const uint64_t row = at / pool.token_bytes * pool.token_bytes;
    const uint64_t stop = std::min(row + pool.token_bytes - pool.row_bytes, end);
    if (stop > at) add_fragment(device + at, host + at, stop - at, end - begin, stream);
    at = row + pool.token_bytes;
  }
}

// Of a few layers, the bytes beside a fragment on the host are those layers' alone: the rest of the page's run is not copied.
uint64_t CopyLane::slice_run(uint32_t index, const PoolLayout &pool, const SliceRange &slice) {
  if (slice.first_layer == 0 && slice.last_layer == pool.rows.layer_count) return host_runs_[index];
  SliceRun &last = slice_run_; // Pages of one group follow one another.
  if (last.pool != index || last.first_layer != slice.first_layer || last.last_layer != slice.last_layer)
    last = {index, slice.first_layer, slice.last_layer, host_run_bytes(pool, slice.first_layer, slice.last_layer)};
  return last.bytes;
}

void CopyLane::add_layers(const TierCopy &copy, const PoolLayout &pool, const SliceRange &slice, CuStream stream) {
  const uint64_t run = slice_run(copy.pool, pool, slice);
  const CuAddress device = context_.device_bases[copy.pool], host = context_.host_bases[copy.pool];
  cut_slice(pool, slice).each(raw(copy.device_page), raw(copy.host_page), [&](uint64_t d, uint64_t h, uint64_t bytes) {
    add_fragment(device + d, host + h, bytes, run, stream);
  });
}

const CopySituation &CopyLane::situation() {
  if (!situation_known_) { // Asking about steps takes the fences' lock: once a quantum, and only where something depends on it.
    situation_.ring = stage_.available();
    situation_.compute = context_.fences->compute_about();
    situation_.other = context_.carrying[!down()].load(std::memory_order_relaxed);
    situation_known_ = true;
  }
  return situation_;
}

CopyMethod CopyLane::method_for(uint64_t bytes, uint64_t host_run) {
  if (!context_.kernels->available()) return CopyMethod::kDirect;
  switch (context_.tuning.method) {
    case CopyMethod::kDirect: return CopyMethod::kDirect;
    case CopyMethod::kKernel: return CopyMethod::kKernel;
    case CopyMethod::kStaged: return stage_.available() ? CopyMethod::kStaged : CopyMethod::kKernel;
    case CopyMethod::kAuto: break;
  }
  if (bytes >= kAlwaysDirectBytes) return CopyMethod::kDirect;
  CopySituation now = situation();
  now.few = few_ && host_run == bytes;
  return choose_method(choice_, bytes, host_run, now);
}

void CopyLane::add_fragment(CuAddress device, CuAddress host, uint64_t bytes, uint64_t host_run, CuStream stream) {
  const CuAddress target = down() ? host : device, source = down() ? device : host;
  counts_.copies.fetch_add(1, std::memory_order_relaxed);
  CopyMethod method = method_for(bytes, host_run);
  const bool sort = host_run < choice_.rows[0].staged_from_run_bytes;
  if (method == CopyMethod::kStaged) {
    if (stage_fragment(device, host, bytes, sort, stream)) return;
    // The slot is full. By kernel, unless the budget allows none.
    if (context_.tuning.method == CopyMethod::kAuto && situation().compute && choice_.kernel_blocks_beside == 0)
      method = CopyMethod::kDirect;
  }
  if (method != CopyMethod::kDirect) {
    if (fragments_.size() == kQuantumFragments || (!fragments_.empty() && fragment_bytes_ != bytes)) flush_kernel(stream);
    fragment_bytes_ = bytes;
    fragments_.push_back({source, target});
    quantum_fragments_++;
    return;
  }
  quantum_copies_++;
  if (!batch_.join(target, source, bytes)) { // Neighbours on both sides become one copy.
    if (batch_.size() >= batch_copies_now_) {
      flush_direct(stream);
      batch_copies_now_ = context_.tuning.batch_copies;
    }
    batch_.add(target, source, bytes);
  }
  batch_bytes_ += bytes;
  if (batch_bytes_ >= kBatchBytes) flush_direct(stream);
}

void CopyLane::flush(CuStream stream) {
  flush_direct(stream);
  flush_kernel(stream);
  flush_stage(stream);
}

void CopyLane::flush_direct(CuStream stream) {
  counts_.direct_bytes.fetch_add(batch_bytes_, std::memory_order_relaxed);
  batch_bytes_ = 0;
  send_batch(stream);
}

void CopyLane::send_batch(CuStream stream) {
  if (batch_.empty()) return;
  check(batch_.send(api_, stream), down() ? "queueing copies from the device" : "queueing copies to the device");
  counts_.batches.fetch_add(1, std::memory_order_relaxed);
}

void CopyLane::flush_kernel(CuStream stream) {
  if (fragments_.empty()) return;
  const unsigned blocks = situation().compute ? std::max(choice_.kernel_blocks_beside, 1u) : choice_.kernel_blocks_alone;
  launch_fragments(fragments_, fragment_bytes_, blocks, &lists_, stream);
  counts_.kernel_bytes.fetch_add(fragment_bytes_ * fragments_.size(), std::memory_order_relaxed);
  fragments_.clear();
}

void CopyLane::launch_fragments(std::span<const kernel::Fragment> fragments, uint64_t bytes, unsigned blocks, ListRing *lists,
                                CuStream stream) {
  uint32_t launches = 0;
  check(launcher_.copy(*context_.kernels, fragments, bytes, blocks, down(), lists, stream, &launches), "launching page_copy");
  counts_.kernel_launches.fetch_add(launches, std::memory_order_relaxed);
}

} // namespace hicache
