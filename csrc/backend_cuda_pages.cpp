// Page work inside the device, on the library's own stream: moves, zeroing, copies of rows, the mirrors of the page tables; and the calls
// that look at pages for verification, which wait for their answer.
#include <algorithm>
#include <cstring>
#include <thread>

#include "backend_cpu.hpp"
#include "backend_cuda.hpp"
#include "backend_cuda_copies.hpp"

namespace hicache {

namespace {

// A block of rows that repeats from layer to layer: `pieces` times `bytes`, `stride` apart, the first at `offset` of the page.
struct RowBlocks {
  uint64_t offset, bytes, stride;
  uint32_t pieces;
};

constexpr size_t kFirstPortion = 4096, kPortionGrowth = 4; // Moves.
constexpr size_t kFirstPortionFrom = 16384;                // Each launch costs 6 us of a device that would be busy: too many to hurt.

// Where rows [first, first + count) of a page are: one block (token-major), or K and V blocks of each layer.
uint32_t row_blocks(const PoolLayout &of, uint64_t first, uint64_t count, RowBlocks out[2]) {
  if (of.layer_bytes == 0) {
    out[0] = {first * of.token_bytes, count * of.token_bytes, 0, 1};
    return 1;
  }
  const auto layers = static_cast<uint32_t>(of.layer_ids.size());
  const uint64_t v_row_bytes = of.row_bytes - of.k_row_bytes;
  out[0] = {first * of.k_row_bytes, count * of.k_row_bytes, of.layer_bytes, layers};
  out[1] = {of.k_row_bytes * of.page_tokens + first * v_row_bytes, count * v_row_bytes, of.layer_bytes, layers};
  return v_row_bytes != 0 ? 2 : 1;
}

} // namespace

// ---- Ordering ----

Status CudaBackend::begin_mover(std::span<const FenceMark> waits, ErrorDetail *error) {
  for (FenceMark mark : waits) {
    if (mark.slot() == kMoverSlot) continue; // The stream keeps its own order.
    if (Status s = fences_.wait(mover_, mark, error); s != HICACHE_OK) return s;
  }
  mover_dirty_ = true;
  return HICACHE_OK;
}

Status CudaBackend::end_mover(FenceMark done, ErrorDetail *error) { return done ? fences_.record(done, mover_, error) : HICACHE_OK; }

// Host pages that a transfer touches are pinned, so this has nothing to wait for unless a fence was left by something else.
Status CudaBackend::host_waits(std::span<const FenceMark> waits, ErrorDetail *error) {
  for (FenceMark mark : waits) {
    while (!fences_.passed(mark)) {
      if (device_.poisoned()) return device_.fault(error);
      std::this_thread::yield();
    }
  }
  return HICACHE_OK;
}

// ---- Launches ----

CuResult CudaBackend::copy_fragments(std::span<const kernel::Fragment> fragments, uint64_t bytes, uint32_t pieces, uint64_t stride,
                                     bool move) {
  if (bytes == 0 || fragments.empty()) return cu::kSuccess;
  const DriverApi &api = device_.api();
  if (!kernels_.available()) {
    for (const kernel::Fragment &fragment : fragments) {
      for (uint32_t piece = 0; piece < pieces; piece++) {
        if (CuResult r = api.copy_async(fragment.target + piece * stride, fragment.source + piece * stride, bytes, mover_);
            r != cu::kSuccess)
          return r;
      }
    }
    return cu::kSuccess;
  }
  kernel::CopyArgs args{};
  args.piece_bytes = bytes;
  args.pieces = pieces;
  args.source_stride = args.target_stride = stride;
  return launch_over(fragments, &args, &lists_, mover_, write_in_order,
                     [&] { return move ? kernels_.move(args, mover_) : kernels_.copy(args, 0, mover_); });
}

CuResult CudaBackend::zero_ranges(std::span<const uint64_t> addresses, uint64_t bytes) {
  if (bytes == 0 || addresses.empty()) return cu::kSuccess;
  if (!kernels_.available()) {
    for (uint64_t address : addresses) {
      if (CuResult r = device_.api().set32_async(address, 0, bytes / sizeof(uint32_t), mover_); r != cu::kSuccess) return r;
    }
    return cu::kSuccess;
  }
  kernel::ZeroArgs args{};
  args.bytes = bytes;
  constexpr size_t kInline = std::size(kernel::ZeroArgs{}.inline_list);
  while (!addresses.empty()) {
    const size_t count = std::min(addresses.size(), kInline);
    std::memcpy(args.inline_list, addresses.data(), count * sizeof(uint64_t));
    args.count = static_cast<uint32_t>(count);
    if (CuResult r = kernels_.zero(args, mover_); r != cu::kSuccess) return r;
    addresses = addresses.subspan(count);
  }
  return cu::kSuccess;
}

// ---- Page work ----

Status CudaBackend::move_pages(Tier tier, std::span<const PageMove> moves, std::span<const FenceMark> waits, FenceMark done,
                               ErrorDetail *error) {
  if (device_.poisoned()) return device_.fault(error);
  ContextScope scope(device_.api(), device_.context());
  if (tier == Tier::kHost) {
    if (Status s = host_waits(waits, error); s != HICACHE_OK) return s;
    for (const PageMove &move : moves) {
      if (layout(move.pool).separate()) move_in_region(layout(move.pool), host_bases_[move.pool], move.source, move.destination);
      else std::memcpy(host_page(move.pool, move.destination), host_page(move.pool, move.source), layout(move.pool).page_bytes);
    }
    return end_mover(done, error);
  }
  if (Status s = begin_mover(waits, error); s != HICACHE_OK) return s;
  // A list takes the host a quarter of what its moves take the device, or less. If the device has nothing to do, the first of many moves
  // are launched alone: it starts while the rest are listed.
  size_t portion = moves.size() >= kFirstPortionFrom && lists_.idle() ? kFirstPortion : moves.size();
  for (size_t at = 0; at < moves.size();) {
    const uint32_t pool = moves[at].pool;
    fragments_.clear();
    for (; at < moves.size() && moves[at].pool == pool && fragments_.size() < portion; at++)
      fragments_.push_back({device_page(pool, moves[at].source), device_page(pool, moves[at].destination)});
    if (Status s = check(copy_fragments(fragments_, layout(pool).page_bytes, 1, 0, true), "moving pages", error); s != HICACHE_OK) return s;
    portion = std::min(portion * kPortionGrowth, moves.size());
  }
  return end_mover(done, error);
}

Status CudaBackend::zero_pages(Tier tier, std::span<const PageZero> zeros, std::span<const FenceMark> waits, FenceMark done,
                               ErrorDetail *error) {
  if (device_.poisoned()) return device_.fault(error);
  ContextScope scope(device_.api(), device_.context());
  const bool host = tier == Tier::kHost;
  if (Status s = host ? host_waits(waits, error) : begin_mover(waits, error); s != HICACHE_OK) return s;
  for (size_t at = 0; at < zeros.size();) {
    const uint32_t pool = zeros[at].pool, first = zeros[at].first_token;
    const PoolLayout &of = layout(pool);
    if (host && of.separate()) {
      zero_in_region(of, host_bases_[pool], zeros[at++].page, first);
      continue;
    }
    RowBlocks blocks[2] = {{0, of.page_bytes, 0, 1}, {}};
    const uint32_t block_count = first == 0 ? 1 : row_blocks(of, first, of.page_tokens - first, blocks);
    size_t end = at;
    while (end < zeros.size() && zeros[end].pool == pool && zeros[end].first_token == first) end++;
    for (uint32_t b = 0; b < block_count; b++) {
      addresses_.clear();
      for (size_t i = at; i < end; i++) {
        const uint64_t page = host ? reinterpret_cast<uint64_t>(host_page(pool, zeros[i].page)) : device_page(pool, zeros[i].page);
        for (uint32_t piece = 0; piece < blocks[b].pieces; piece++)
          addresses_.push_back(page + blocks[b].offset + piece * blocks[b].stride);
      }
      if (host) {
        for (uint64_t address : addresses_) std::memset(reinterpret_cast<void *>(address), 0, blocks[b].bytes);
      } else if (Status s = check(zero_ranges(addresses_, blocks[b].bytes), "zeroing pages", error); s != HICACHE_OK) {
        return s;
      }
    }
    at = end;
  }
  return end_mover(done, error);
}

Status CudaBackend::copy_pages(Tier tier, std::span<const PageCopy> copies, std::span<const FenceMark> waits, FenceMark done,
                               ErrorDetail *error) {
  if (device_.poisoned()) return device_.fault(error);
  ContextScope scope(device_.api(), device_.context());
  const bool host = tier == Tier::kHost;
  if (Status s = host ? host_waits(waits, error) : begin_mover(waits, error); s != HICACHE_OK) return s;
  for (const PageCopy &copy : copies) {
    if (host && layout(copy.pool).separate()) {
      copy_in_region(layout(copy.pool), host_bases_[copy.pool], copy.source, copy.destination, copy.token_count);
      continue;
    }
    RowBlocks blocks[2];
    const uint32_t block_count = row_blocks(layout(copy.pool), 0, copy.token_count, blocks);
    for (uint32_t b = 0; b < block_count; b++) {
      const RowBlocks &block = blocks[b];
      if (host) {
        for (uint32_t piece = 0; piece < block.pieces; piece++) {
          const uint64_t offset = block.offset + piece * block.stride;
          std::memcpy(host_page(copy.pool, copy.destination) + offset, host_page(copy.pool, copy.source) + offset, block.bytes);
        }
        continue;
      }
      const kernel::Fragment fragment{device_page(copy.pool, copy.source) + block.offset,
                                      device_page(copy.pool, copy.destination) + block.offset};
      if (Status s = check(copy_fragments({&fragment, 1}, block.bytes, block.pieces, block.stride, false), "copying rows", error);
          s != HICACHE_OK)
        return s;
    }
  }
  return end_mover(done, error);
}

Status CudaBackend::poison_sink(uint64_t bytes, ErrorDetail *error) {
  if (device_.poisoned()) return device_.fault(error);
  if (bytes == 0) return HICACHE_OK;
  ContextScope scope(device_.api(), device_.context());
  mover_dirty_ = true;
  // 0x7fc1: a bf16 NaN. A reader that does not mask the sink multiplies it into everything.
  return check(device_.api().set32_async(device_arena_.base(), 0x7fc17fc1u, bytes / sizeof(uint32_t), mover_), "poisoning the sink", error);
}

// ---- Mirrors ----

Status CudaBackend::table_changed(uint32_t pool, std::span<const uint32_t> vpages, std::span<const uint32_t> ppages,
                                  std::span<const FenceMark> waits, ErrorDetail *error) {
  if (device_.poisoned()) return device_.fault(error);
  Mirror &mirror = mirrors_[pool];
  if (mirror.count == 0) return HICACHE_OK;
  if (!waits.empty()) {
    ContextScope scope(device_.api(), device_.context());
    for (FenceMark mark : waits) {
      if (mark.slot() == kMoverSlot) continue;
      if (Status s = fences_.wait(mover_, mark, error); s != HICACHE_OK) return s;
    }
  }
  // Launched by the next step: nobody may read the mirror outside one, and most changes of a step then share a launch.
  for (size_t i = 0; i < vpages.size(); i++) {
    if (vpages[i] >= mirror.count) continue;
    uint32_t &place = mirror.place[vpages[i]];
    if (place == 0) {
      mirror.pending.push_back({vpages[i], ppages[i]});
      place = static_cast<uint32_t>(mirror.pending.size());
    } else {
      mirror.pending[place - 1].ppage = ppages[i];
    }
  }
  return HICACHE_OK;
}

CuResult CudaBackend::flush_mirror(Mirror &mirror) {
  const std::span<const kernel::Patch> pending = mirror.pending;
  kernel::PatchArgs args{};
  args.table = reinterpret_cast<uint32_t *>(mirror.table);
  constexpr size_t kInline = std::size(kernel::PatchArgs{}.inline_list);
  constexpr size_t kListMax = ListRing::kSlotBytes / sizeof(kernel::Patch);
  for (size_t at = 0; at < pending.size();) {
    if (!kernels_.available()) {
      if (CuResult r =
              device_.api().set32_async(mirror.table + uint64_t{pending[at].vpage} * sizeof(uint32_t), pending[at].ppage, 1, mover_);
          r != cu::kSuccess)
        return r;
      at++;
      continue;
    }
    void *list = pending.size() - at > kInline ? lists_.fill() : nullptr;
    const size_t count = std::min(pending.size() - at, list != nullptr ? kListMax : kInline);
    std::memcpy(list != nullptr ? list : args.inline_list, pending.data() + at, count * sizeof(kernel::Patch));
    args.count = static_cast<uint32_t>(count);
    args.list = nullptr;
    CuResult r = cu::kSuccess;
    if (list != nullptr) {
      CuAddress address = 0;
      r = lists_.upload(count * sizeof(kernel::Patch), mover_, &address);
      args.list = reinterpret_cast<const kernel::Patch *>(address);
    }
    if (r == cu::kSuccess) r = kernels_.patch(args, mover_);
    if (r == cu::kSuccess && list != nullptr) r = lists_.release(mover_);
    if (r != cu::kSuccess) return r;
    at += count;
  }
  for (const kernel::Patch &patch : pending) mirror.place[patch.vpage] = 0;
  mirror.pending.clear();
  return cu::kSuccess;
}

CuResult CudaBackend::flush_mirrors() {
  for (Mirror &mirror : mirrors_) {
    if (mirror.pending.empty()) continue;
    mover_dirty_ = true;
    if (CuResult r = flush_mirror(mirror); r != cu::kSuccess) return r;
  }
  return cu::kSuccess;
}

Status CudaBackend::device_table(uint32_t pool, uint64_t *address_out, uint32_t *count_out, ErrorDetail *error) const {
  if (pool >= mirrors_.size() || mirrors_[pool].table == 0)
    return fail(error, HICACHE_UNSUPPORTED, pool, "the pool has no page table on the device");
  *address_out = mirrors_[pool].table;
  *count_out = mirrors_[pool].count;
  return HICACHE_OK;
}

Status CudaBackend::device_kernel_ids(const DeviceIds &request, uint64_t stream, ErrorDetail *error) {
  if (device_.poisoned()) return device_.fault(error);
  if (!kernels_.available()) return fail(error, HICACHE_UNSUPPORTED, request.pool, "no kernels: %s", kernels_.reason().c_str());
  if (request.pool >= mirrors_.size() || mirrors_[request.pool].table == 0)
    return fail(error, HICACHE_UNSUPPORTED, request.pool, "the pool has no page table on the device");
  ContextScope scope(device_.api(), device_.context());
  kernel::KernelIdsArgs args{};
  args.table = reinterpret_cast<const uint32_t *>(mirrors_[request.pool].table);
  args.table_count = mirrors_[request.pool].count;
  args.vpages = reinterpret_cast<const uint32_t *>(request.vpages_address);
  if (request.wide) args.ids64 = reinterpret_cast<int64_t *>(request.ids_address);
  else args.ids32 = reinterpret_cast<int32_t *>(request.ids_address);
  args.sink_count = reinterpret_cast<unsigned long long *>(request.sink_count_address);
  args.scale = request.scale;
  args.offset = request.offset;
  args.page_count = request.page_count;
  args.page_tokens = request.page_tokens;
  args.sink_page = request.sink_page;
  return device_.check_stream(kernels_.kernel_ids(args, reinterpret_cast<CuStream>(stream)), error);
}

// ---- Verification ----

Status CudaBackend::stamp_pages(uint32_t pool, uint64_t stream, std::span<const PageStamp> pages, std::span<const uint64_t> salts,
                                uint32_t *mismatches_out, ErrorDetail *error) {
  if (device_.poisoned()) return device_.fault(error);
  if (!kernels_.available()) return fail(error, HICACHE_UNSUPPORTED, pool, "no kernels: %s", kernels_.reason().c_str());
  if (salts.size() != 2 * layout(pool).layer_ids.size())
    return fail(error, HICACHE_INVALID_ARGUMENT, pool, "salts: two a layer are needed");
  if (salts.size_bytes() > kScratchBytes / 2) return fail(error, HICACHE_UNSUPPORTED, pool, "salts: too many layers");
  ContextScope scope(device_.api(), device_.context());
  if (Status s = device_.usable_stream(reinterpret_cast<CuStream>(stream), "stamps are waited for", error); s != HICACHE_OK) return s;
  std::lock_guard lock(scratch_mutex_);
  const size_t portion = (kScratchBytes - salts.size_bytes()) / (sizeof(kernel::StampPage) + sizeof(uint32_t)) - 1;
  for (size_t at = 0; at < pages.size(); at += portion) {
    const auto part = pages.subspan(at, std::min(portion, pages.size() - at));
    uint32_t *const out = mismatches_out != nullptr ? mismatches_out + at : nullptr;
    if (Status s = stamp_portion(pool, reinterpret_cast<CuStream>(stream), part, salts, out, error); s != HICACHE_OK) return s;
  }
  return HICACHE_OK;
}

Status CudaBackend::stamp_portion(uint32_t pool, CuStream on, std::span<const PageStamp> pages, std::span<const uint64_t> salts,
                                  uint32_t *mismatches_out, ErrorDetail *error) {
  const DriverApi &api = device_.api();
  const PoolLayout &of = layout(pool);
  const uint64_t list_bytes = pages.size() * sizeof(kernel::StampPage), counts_at = list_bytes + salts.size_bytes();
  auto *list = reinterpret_cast<kernel::StampPage *>(scratch_host_);
  for (size_t i = 0; i < pages.size(); i++) list[i] = {device_page(pool, pages[i].page), pages[i].digest, pages[i].token_count};
  std::memcpy(scratch_host_ + list_bytes, salts.data(), salts.size_bytes());
  kernel::StampArgs args{};
  args.pages = reinterpret_cast<const kernel::StampPage *>(scratch_);
  args.salts = reinterpret_cast<const uint64_t *>(scratch_ + list_bytes);
  args.mismatches = reinterpret_cast<uint32_t *>(scratch_ + counts_at);
  const bool token_major = of.layer_bytes == 0;
  const uint64_t v_row_bytes = of.row_bytes - of.k_row_bytes;
  args.layer_stride = token_major ? of.row_bytes : of.layer_bytes;
  args.v_offset = token_major ? of.k_row_bytes : of.k_row_bytes * of.page_tokens;
  args.token_stride[0] = token_major ? of.token_bytes : of.k_row_bytes;
  args.token_stride[1] = token_major ? of.token_bytes : v_row_bytes;
  args.row_bytes[0] = of.k_row_bytes;
  args.row_bytes[1] = v_row_bytes;
  args.page_count = static_cast<uint32_t>(pages.size());
  args.layer_count = static_cast<uint32_t>(of.layer_ids.size());
  args.check = mismatches_out != nullptr;
  const uint64_t count_bytes = pages.size() * sizeof(uint32_t);
  if (Status s = check(api.stream_synchronize(mover_), "moving pages", error); s != HICACHE_OK) return s; // Those asked for before.
  CuResult r = api.copy_async(scratch_, reinterpret_cast<CuAddress>(scratch_host_), counts_at, on);
  if (r == cu::kSuccess) r = api.set32_async(scratch_ + counts_at, 0, pages.size(), on);
  if (r == cu::kSuccess) r = kernels_.stamp(args, on);
  if (r == cu::kSuccess && mismatches_out != nullptr)
    r = api.copy_async(reinterpret_cast<CuAddress>(scratch_host_ + counts_at), scratch_ + counts_at, count_bytes, on);
  if (r == cu::kSuccess) r = api.stream_synchronize(on);
  if (r == cu::kSuccess && mismatches_out != nullptr) std::memcpy(mismatches_out, scratch_host_ + counts_at, count_bytes);
  return device_.check_stream(r, error);
}

Status CudaBackend::digest_pages(uint32_t pool, std::span<const PhysicalPage> pages, uint64_t *digests_out, ErrorDetail *error) {
  if (device_.poisoned()) return device_.fault(error);
  if (!kernels_.available()) return fail(error, HICACHE_UNSUPPORTED, pool, "no kernels: %s", kernels_.reason().c_str());
  ContextScope scope(device_.api(), device_.context());
  std::lock_guard lock(scratch_mutex_);
  constexpr size_t kPortion = kScratchBytes / (2 * sizeof(uint64_t));
  for (size_t at = 0; at < pages.size(); at += kPortion) {
    const auto part = pages.subspan(at, std::min(kPortion, pages.size() - at));
    if (Status s = digest_portion(pool, part, digests_out + at, error); s != HICACHE_OK) return s;
  }
  return HICACHE_OK;
}

Status CudaBackend::digest_portion(uint32_t pool, std::span<const PhysicalPage> pages, uint64_t *digests_out, ErrorDetail *error) {
  const DriverApi &api = device_.api();
  auto *addresses = reinterpret_cast<uint64_t *>(scratch_host_);
  for (size_t i = 0; i < pages.size(); i++) addresses[i] = device_page(pool, pages[i]);
  const uint64_t bytes = pages.size() * sizeof(uint64_t);
  kernel::DigestArgs args{};
  args.offsets = reinterpret_cast<const uint64_t *>(scratch_);
  args.digests = reinterpret_cast<uint64_t *>(scratch_ + bytes);
  args.bytes = layout(pool).page_bytes;
  args.count = static_cast<uint32_t>(pages.size());
  CuResult r = api.stream_synchronize(mover_); // Moves asked for before.
  if (r == cu::kSuccess) r = api.copy_async(scratch_, reinterpret_cast<CuAddress>(scratch_host_), bytes, reader_);
  if (r == cu::kSuccess) r = api.set32_async(scratch_ + bytes, 0, bytes / sizeof(uint32_t), reader_);
  if (r == cu::kSuccess) r = kernels_.digest(args, reader_);
  if (r == cu::kSuccess) r = api.copy_async(reinterpret_cast<CuAddress>(scratch_host_ + bytes), scratch_ + bytes, bytes, reader_);
  if (r == cu::kSuccess) r = api.stream_synchronize(reader_);
  if (r == cu::kSuccess) std::memcpy(digests_out, scratch_host_ + bytes, bytes);
  return check(r, "digesting pages", error);
}

} // namespace hicache
