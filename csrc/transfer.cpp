#include "transfer.hpp"

#include <algorithm>
#include <cinttypes>
#include <new>

#include "backend_cpu.hpp"
#include "id_translate.hpp"
#include "profiler.hpp"
#include "slot_map.hpp"

namespace hicache {

namespace {

// Ids have the form of SlotMap: engine serial 12 | generation 28 | kind 4 | slot 20. Tickets are not in a SlotMap, because a ticket whose
// completion has been read still answers until its slot is reused.
constexpr uint32_t kSlotBits = 20;
constexpr uint32_t kGenerationShift = 24;
constexpr uint32_t kGenerationMask = (1u << 28) - 1;
constexpr uint64_t kKindField = uint64_t{static_cast<uint32_t>(IdKind::kTicket)} << kSlotBits;

uint64_t words_for(uint64_t pages) { return (pages + 63) / 64; }

} // namespace

TransferTable::TransferTable(const TransferOptions &options)
    : options_(options), ring_(options.ticket_max), tickets_(options.ticket_max), free_slots_(options.ticket_max) {
  for (uint32_t slot = 0; slot < options.ticket_max; slot++) free_slots_[free_tail_++] = slot;
}

Status TransferTable::open(const TransferParties &parties, ErrorDetail *error) {
  parties_ = parties;
  // Each ticket may leave its last chunk partly empty.
  chunk_count_ = options_.copies_max / CopyChunk::kCapacity + options_.ticket_max;
  chunks_free_ = chunk_count_;
  if (int code = chunk_memory_.reserve(chunk_count_ * sizeof(CopyChunk), 0, HostMemory::PageSize::kSmall); code != 0) {
    return refuse_memory(error, "the copies of transfers", chunk_count_ * sizeof(CopyChunk), code);
  }
  const uint64_t place_bytes = 2 * options_.copies_max * sizeof(uint32_t);
  if (int code = place_memory_.reserve(place_bytes, 0, HostMemory::PageSize::kSmall); code != 0) {
    return refuse_memory(error, "the places of a transfer", place_bytes, code);
  }
  device_places_ = reinterpret_cast<uint32_t *>(place_memory_.base());
  host_places_ = device_places_ + options_.copies_max;
  for (uint32_t pool = 0; pool < parties_.device->pool_count(); pool++) {
    const uint64_t page_bytes = parties_.device->info(pool).page_bytes;
    const uint64_t own_pages = parties_.device->info(pool).page_count; // Of a static pool.
    device_incoming_.words.emplace_back(words_for(std::max(own_pages, parties_.device_bytes_max / page_bytes) + 1));
    if (parties_.host == nullptr) continue;
    const uint64_t region_pages = parties_.host->info(pool).page_count; // Of a region of its own.
    host_incoming_.words.emplace_back(words_for(std::max(region_pages, parties_.host_bytes_max / page_bytes) + 1));
  }
  return HICACHE_OK;
}

// ---- Ids ----

hicache_ticket_t TransferTable::id_of(uint32_t slot) const {
  return uint64_t{options_.engine_serial & 0xfff} << 52 | uint64_t{tickets_[slot].generation} << kGenerationShift | kKindField | slot;
}

const TransferTable::Ticket *TransferTable::find(hicache_ticket_t ticket) const {
  const auto slot = static_cast<uint32_t>(ticket & ((1u << kSlotBits) - 1));
  if (slot >= tickets_.size() || tickets_[slot].state == State::kFree || id_of(slot) != ticket) return nullptr;
  return &tickets_[slot];
}

Status TransferTable::stale(hicache_ticket_t ticket, ErrorDetail *error) const {
  return fail(error, HICACHE_STALE_ID, HICACHE_NO_POOL, "ticket 0x%" PRIx64 " is over and its slot reused, or never was", ticket);
}

// ---- Submission ----

Status TransferTable::check_request(const hicache_transfer_t &transfer, uint32_t *after_out, ErrorDetail *error) const {
  *after_out = kNoSlot;
  if (transfer.priority > HICACHE_CLASS_BACKGROUND) {
    return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "transfer.priority is %u, not one of HICACHE_CLASS_*", transfer.priority);
  }
  if (transfer.copy_count > 0 && parties_.host == nullptr) {
    return fail(error, HICACHE_UNSUPPORTED, HICACHE_NO_POOL, "transfer.copies: the engine was opened without a host tier");
  }
  if (transfer.copy_count > options_.copies_max) {
    return fail(error, HICACHE_LIMIT, HICACHE_NO_POOL, "transfer.copy_count is %u, transfer_pages_max allows %" PRIu64, transfer.copy_count,
                options_.copies_max);
  }
  for (uint32_t i = 0; i < transfer.copy_count; i++) {
    if (transfer.copies[i].reserved0 != 0) {
      return fail(error, HICACHE_UNSUPPORTED, transfer.copies[i].pool, "transfer.copies[%u].reserved0 must be 0", i);
    }
  }
  if (transfer.after != 0) {
    const auto slot = static_cast<uint32_t>(transfer.after & ((1u << kSlotBits) - 1));
    const auto generation = static_cast<uint32_t>(transfer.after >> kGenerationShift & kGenerationMask);
    // A ticket that is over is a fine predecessor: there is nothing left to come after. One that never was is a mistake.
    constexpr uint64_t kGenerationField = uint64_t{kGenerationMask} << kGenerationShift;
    const bool ours = slot < tickets_.size() && (transfer.after & ~kGenerationField) == (id_of(slot) & ~kGenerationField);
    if (!ours || generation == 0 || generation > tickets_[slot].generation) return stale(transfer.after, error);
    if (generation == tickets_[slot].generation && tickets_[slot].state == State::kUnread) *after_out = slot;
  }
  if (transfer.copy_count == 0) return HICACHE_OK;
  if (free_head_ == free_tail_) {
    return fail(error, HICACHE_LIMIT, HICACHE_NO_POOL, "all %u tickets (ticket_max) are in flight or unread in the ring",
                options_.ticket_max);
  }
  if ((uint64_t{transfer.copy_count} + CopyChunk::kCapacity - 1) / CopyChunk::kCapacity > chunks_free_) {
    return fail(error, HICACHE_LIMIT, HICACHE_NO_POOL, "transfer.copies: no room for %u more page copies (transfer_pages_max %" PRIu64 ")",
                transfer.copy_count, options_.copies_max);
  }
  return HICACHE_OK;
}

Status TransferTable::refuse_incoming(const Incoming &incoming, std::span<const hicache_copy_t> copies, const uint32_t *places, Tier tier,
                                      ErrorDetail *error) {
  for (size_t i = 0; i < copies.size(); i++) {
    if (!incoming.test(copies[i].pool, places[i])) continue;
    const bool device = tier == Tier::kDevice;
    Status status = fail(error, HICACHE_BUSY, copies[i].pool, "transfer.copies[%zu]: %s page %u is being written by a transfer in flight",
                         i, device ? "device" : "host", device ? copies[i].device_page : copies[i].host_page);
    if (error != nullptr) {
      error->blocking_pool = copies[i].pool;
      error->blocking_page = places[i];
      name_blocking_ticket(tier, error);
    }
    return status;
  }
  return HICACHE_OK;
}

Status TransferTable::claim_targets(std::span<const hicache_copy_t> copies, ErrorDetail *error) {
  for (size_t i = 0; i < copies.size(); i++) {
    if (!host_incoming_.test(copies[i].pool, host_places_[i])) {
      host_incoming_.set(copies[i].pool, host_places_[i]);
      continue;
    }
    size_t twin = 0;
    while (twin < i && (copies[twin].pool != copies[i].pool || host_places_[twin] != host_places_[i])) twin++;
    for (size_t undo = 0; undo < i; undo++) host_incoming_.clear(copies[undo].pool, host_places_[undo]);
    return fail(error, HICACHE_INVALID_ARGUMENT, copies[i].pool, "transfer.copies[%zu] and [%zu] write the same host page %u", twin, i,
                copies[i].host_page);
  }
  return HICACHE_OK;
}

Status TransferTable::load(const hicache_transfer_t &transfer, hicache_ticket_t *ticket_out, ErrorDetail *error) {
  uint32_t after;
  if (Status status = check_request(transfer, &after, error); status != HICACHE_OK) return status;
  const std::span<const hicache_copy_t> copies(transfer.copies, transfer.copy_count);
  const std::span<const hicache_bind_t> binds(transfer.binds, transfer.bind_count);
  PinList device_pins, host_pins;
  std::span<const FenceMark> host_waits;
  if (!copies.empty()) {
    if (Status status = parties_.host->pin_copies(copies, &host_pins, host_places_, &host_waits, error); status != HICACHE_OK)
      return status;
    if (Status status = refuse_incoming(host_incoming_, copies, host_places_, Tier::kHost, error); status != HICACHE_OK) {
      parties_.host->unpin(&host_pins);
      return status;
    }
  }
  std::span<const FenceMark> waits;
  Status status = parties_.device->bind(transfer.reservation, copies, binds, &device_pins, device_places_, &waits, error);
  if (status != HICACHE_OK) {
    if (!copies.empty()) parties_.host->unpin(&host_pins);
    return status;
  }
  *ticket_out = 0;
  counters_.loads++;
  if (copies.empty()) return HICACHE_OK;
  submit(transfer, HICACHE_H2D, after, device_pins, host_pins, waits, host_waits, ticket_out);
  return HICACHE_OK;
}

Status TransferTable::back_up(const hicache_transfer_t &transfer, hicache_ticket_t *ticket_out, ErrorDetail *error) {
  uint32_t after;
  if (Status status = check_request(transfer, &after, error); status != HICACHE_OK) return status;
  if (transfer.reservation != 0 || transfer.bind_count != 0) {
    return fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL,
                "transfer.reservation and transfer.binds must be 0: a back-up binds nothing");
  }
  if (transfer.copy_count == 0) {
    *ticket_out = 0;
    return HICACHE_OK;
  }
  const std::span<const hicache_copy_t> copies(transfer.copies, transfer.copy_count);
  PinList device_pins, host_pins;
  std::span<const FenceMark> waits, host_waits;
  if (Status status = parties_.device->pin_copies(copies, &device_pins, device_places_, &waits, error); status != HICACHE_OK) return status;
  Status status = refuse_incoming(device_incoming_, copies, device_places_, Tier::kDevice, error);
  if (status == HICACHE_OK) status = parties_.host->pin_copies(copies, &host_pins, host_places_, &host_waits, error);
  if (status == HICACHE_OK) {
    status = refuse_host_targets(copies, error);
    if (status != HICACHE_OK) parties_.host->unpin(&host_pins);
  }
  if (status != HICACHE_OK) {
    parties_.device->unpin(&device_pins);
    return status;
  }
  counters_.back_ups++;
  submit(transfer, HICACHE_D2H, after, device_pins, host_pins, waits, host_waits, ticket_out);
  return HICACHE_OK;
}

Status TransferTable::refuse_host_targets(std::span<const hicache_copy_t> copies, ErrorDetail *error) {
  if (Status status = refuse_incoming(host_incoming_, copies, host_places_, Tier::kHost, error); status != HICACHE_OK) return status;
  return claim_targets(copies, error);
}

CopyChunk *TransferTable::take_chunk() {
  chunks_free_--;
  CopyChunk *chunk = free_chunks_;
  if (chunk != nullptr) {
    free_chunks_ = chunk->next;
  } else {
    chunk = reinterpret_cast<CopyChunk *>(chunk_memory_.base()) + chunks_made_++;
  }
  return new (chunk) CopyChunk;
}

void TransferTable::submit(const hicache_transfer_t &transfer, uint32_t direction, uint32_t after, const PinList &device_pins,
                           const PinList &host_pins, std::span<const FenceMark> waits, std::span<const FenceMark> host_waits,
                           hicache_ticket_t *ticket_out) {
  const uint32_t slot = free_slots_[free_head_++ % free_slots_.size()];
  Ticket &ticket = tickets_[slot];
  ticket.generation = (ticket.generation + 1) & kGenerationMask;
  if (ticket.generation == 0) ticket.generation = 1;
  ticket.state = State::kUnread;
  ticket.device_pins = device_pins;
  ticket.host_pins = host_pins;
  ticket.user = transfer.user;
  ticket.waiters = 0;
  TransferJob &job = ticket.job;
  job = TransferJob{};
  job.slot = slot;
  job.direction = direction;
  job.priority = transfer.priority;
  job.page_count = transfer.copy_count;
  job.ticket = id_of(slot);
  job.stream = transfer.stream;
  job.waits = waits;
  uint32_t page_counts[kPoolCountMax];
  const uint32_t pool_count = parties_.device->pool_count();
  for (uint32_t pool = 0; pool < pool_count; pool++) page_counts[pool] = parties_.device->info(pool).page_count;
  CopyChunk *chunk = nullptr;
  for (uint32_t i = 0; i < transfer.copy_count; i++) {
    const hicache_copy_t &copy = transfer.copies[i];
    if (chunk == nullptr || chunk->count == CopyChunk::kCapacity) {
      CopyChunk *next = take_chunk();
      (chunk != nullptr ? chunk->next : ticket.chunks) = next;
      chunk = next;
    }
    const uint32_t place = wire_place(copy.device_page, device_places_[i], page_counts[copy.pool], options_.virtual_on_wire);
    chunk->copies[chunk->count++] = {copy.pool, PhysicalPage{place}, PhysicalPage{host_places_[i]}};
    if (direction == HICACHE_H2D) device_incoming_.set(copy.pool, place);
    job.pool_mask |= 1u << copy.pool;
    job.bytes += parties_.layers->pools()[copy.pool].page_bytes;
  }
  job.copies = ticket.chunks;
  counters_.fence_waits += waits.size();
  *ticket_out = job.ticket;
  unread_++;
  in_flight_.fetch_add(1, std::memory_order_acq_rel);
  ring_.begin(slot, after);
  ticket.range = profiler_range_start(direction == HICACHE_H2D ? HICACHE_RANGE_LOAD : HICACHE_RANGE_BACK_UP, job.page_count);
  parties_.page_work->submit_after(job, host_waits);
}

// ---- The end of a transfer ----

void TransferTable::finished(TransferJob &job) {
  const bool up = job.direction == HICACHE_D2H;
  profiler_range_end(tickets_[job.slot].range);
  if (job.status == HICACHE_OK) {
    moved_bytes_[up].fetch_add(job.bytes, std::memory_order_relaxed);
    moved_pages_[up].fetch_add(job.page_count, std::memory_order_relaxed);
  } else {
    (job.status == HICACHE_CANCELLED ? cancelled_ : failed_).fetch_add(1, std::memory_order_relaxed);
  }
  in_flight_.fetch_sub(1, std::memory_order_acq_rel);
  // The last touch of the job: a reader may end the ticket from here on.
  ring_.publish(job.slot);
}

Status TransferTable::cancel(hicache_ticket_t id, ErrorDetail *error) {
  const Ticket *found = find(id);
  if (found == nullptr) return stale(id, error);
  // One that has ended may be in the ring still: its word says so, and the backend knows it no more.
  if (found->state == State::kUnread && outcome(*found, nullptr) == HICACHE_PENDING)
    parties_.backend->cancel(tickets_[found->job.slot].job);
  return HICACHE_OK;
}

uint32_t TransferTable::read(hicache_completion_t *completions_out, uint32_t capacity) {
  uint32_t count = 0;
  uint32_t slot;
  while (count < capacity && ring_.take(&slot)) {
    Ticket &ticket = tickets_[slot];
    const TransferJob &job = ticket.job;
    completions_out[count++] = {job.ticket, job.status,    job.native_code, job.direction, job.page_count,
                                job.bytes,  job.submit_ns, job.start_ns,    job.end_ns,    ticket.user};
    release(ticket);
    ticket.state = State::kRead;
    unread_--;
    if (ticket.waiters == 0) free_slot(slot);
  }
  return count;
}

void TransferTable::release(Ticket &ticket) {
  Incoming &incoming = ticket.job.direction == HICACHE_H2D ? device_incoming_ : host_incoming_;
  for (CopyChunk *chunk = ticket.chunks; chunk != nullptr;) {
    for (uint32_t i = 0; i < chunk->count; i++) {
      const TierCopy &copy = chunk->copies[i];
      incoming.clear(copy.pool, raw(ticket.job.direction == HICACHE_H2D ? copy.device_page : copy.host_page));
    }
    CopyChunk *next = chunk->next;
    chunk->next = free_chunks_;
    free_chunks_ = chunk;
    chunks_free_++;
    chunk = next;
  }
  ticket.chunks = nullptr;
  ticket.job.copies = nullptr;
  parties_.device->unpin(&ticket.device_pins);
  parties_.host->unpin(&ticket.host_pins);
}

void TransferTable::free_slot(uint32_t slot) { free_slots_[free_tail_++ % free_slots_.size()] = slot; }

// ---- Progress ----

Status TransferTable::outcome(const Ticket &ticket, ErrorDetail *error) const {
  const uint32_t progress = parties_.backend->progress(ticket.job.slot);
  if (progress == kProgressDone) return HICACHE_OK;
  if (progress != kProgressPoison) return HICACHE_PENDING;
  Status status = fail(error, ticket.job.status, HICACHE_NO_POOL, "the transfer of ticket 0x%" PRIx64 " %s", ticket.job.ticket,
                       ticket.job.status == HICACHE_CANCELLED ? "was cancelled" : "failed");
  if (error != nullptr) error->native_code = ticket.job.native_code;
  return status;
}

Status TransferTable::ticket_status(hicache_ticket_t id, uint32_t *layers_done_out, ErrorDetail *error) const {
  const Ticket *ticket = find(id);
  if (ticket == nullptr) return stale(id, error);
  if (layers_done_out != nullptr) {
    const uint32_t progress = parties_.backend->progress(ticket->job.slot);
    *layers_done_out = progress == kProgressPoison ? 0 : std::min(progress, parties_.layers->layer_limit());
  }
  return outcome(*ticket, error);
}

Status TransferTable::layer_wait_begin(hicache_ticket_t id, uint32_t layer, uint32_t *slot_out, ErrorDetail *error) {
  *slot_out = kNoSlot;
  const Ticket *found = find(id);
  if (found == nullptr) return stale(id, error);
  Ticket &ticket = tickets_[found->job.slot];
  const Status status = outcome(ticket, error);
  if (status != HICACHE_PENDING) return status;
  if (!parties_.layers->serves(ticket.job.pool_mask, layer)) return HICACHE_OK;
  if (parties_.backend->progress(ticket.job.slot) > layer) return HICACHE_OK;
  ticket.waiters++;
  *slot_out = ticket.job.slot;
  return HICACHE_OK;
}

Status TransferTable::layer_wait_end(uint32_t slot, ErrorDetail *error) {
  Ticket &ticket = tickets_[slot];
  const Status status = outcome(ticket, error);
  if (--ticket.waiters == 0 && ticket.state == State::kRead) free_slot(slot);
  // The layer has arrived though later ones have not.
  return status == HICACHE_PENDING ? HICACHE_OK : status;
}

Status TransferTable::slot_of_ticket(hicache_ticket_t id, uint32_t *slot_out, ErrorDetail *error) const {
  const Ticket *found = find(id);
  if (found == nullptr) return stale(id, error);
  *slot_out = found->job.slot;
  return HICACHE_OK;
}

// ---- Looking inside ----

hicache_ticket_t TransferTable::reader_of(std::span<const uint32_t> entries) const {
  if (unread_ == 0 || entries.empty()) return 0;
  for (const Ticket &ticket : tickets_) {
    if (ticket.state != State::kUnread || ticket.job.direction != HICACHE_D2H) continue;
    for (const CopyChunk *chunk = ticket.chunks; chunk != nullptr; chunk = chunk->next) {
      for (uint32_t i = 0; i < chunk->count; i++) {
        const TierCopy &copy = chunk->copies[i];
        if (std::binary_search(entries.begin(), entries.end(), copy.pool << 28 | raw(copy.device_page))) return ticket.job.ticket;
      }
    }
  }
  return 0;
}

void TransferTable::name_blocking_ticket(Tier tier, ErrorDetail *error) const {
  if (error == nullptr || error->blocking_pool == HICACHE_NO_POOL) return;
  const Arena *arena = tier == Tier::kDevice ? parties_.device : parties_.host;
  for (const Ticket &ticket : tickets_) {
    // One that waits for page work before it is submitted has the progress of its slot's last ticket still: nobody may ask after it.
    if (ticket.state != State::kUnread || ticket.job.submit_ns == 0) continue;
    const PinList &pins = tier == Tier::kDevice ? ticket.device_pins : ticket.host_pins;
    if (!arena->pins_page(pins, error->blocking_pool, error->blocking_page)) continue;
    error->ticket = ticket.job.ticket;
    return;
  }
}

std::string TransferTable::verify() const {
  std::string violations;
  auto check = [&](const Arena &arena, const char *tier, const TierCopy &copy, PhysicalPage page, hicache_ticket_t ticket) {
    uint8_t state = 0;
    const Status status = arena.map(copy.pool, raw(page), 1, &state, nullptr);
    if (status == HICACHE_OK && (state & HICACHE_PAGE_PINNED) != 0) return;
    violations += std::string(tier) + " page " + std::to_string(raw(page)) + " of pool " + std::to_string(copy.pool) + " is in ticket " +
                  std::to_string(ticket) + " but not pinned\n";
  };
  uint32_t unread = 0;
  for (const Ticket &ticket : tickets_) {
    if (ticket.state != State::kUnread) continue;
    unread++;
    if (options_.virtual_on_wire) continue; // Its places are wrong on purpose.
    for (const CopyChunk *chunk = ticket.chunks; chunk != nullptr; chunk = chunk->next) {
      for (uint32_t i = 0; i < chunk->count; i++) {
        check(*parties_.device, "device", chunk->copies[i], chunk->copies[i].device_page, ticket.job.ticket);
        check(*parties_.host, "host", chunk->copies[i], chunk->copies[i].host_page, ticket.job.ticket);
      }
    }
  }
  if (unread != unread_) violations += "tickets unread: counted " + std::to_string(unread) + ", recorded " + std::to_string(unread_) + "\n";
  return violations;
}

TransferCounters TransferTable::counters() const {
  TransferCounters counters = counters_;
  counters.failed = failed_.load(std::memory_order_relaxed);
  counters.cancelled = cancelled_.load(std::memory_order_relaxed);
  counters.h2d_bytes = moved_bytes_[0].load(std::memory_order_relaxed);
  counters.d2h_bytes = moved_bytes_[1].load(std::memory_order_relaxed);
  counters.h2d_pages = moved_pages_[0].load(std::memory_order_relaxed);
  counters.d2h_pages = moved_pages_[1].load(std::memory_order_relaxed);
  return counters;
}

} // namespace hicache
