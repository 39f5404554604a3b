#include "operation_log.hpp"

#include <algorithm>
#include <cstring>

namespace hicache {
namespace {

constexpr uint32_t kIdBits = 52; // Below them: generation, kind and slot; above: the engine's serial.
constexpr uint64_t kIdMask = (uint64_t{1} << kIdBits) - 1;

// FNV-1a over 32-bit words.
uint32_t checksum(const std::byte *bytes, uint64_t count) {
  uint32_t sum = 0x811c9dc5u;
  for (uint64_t at = 0; at < count; at += 4) {
    uint32_t word;
    std::memcpy(&word, bytes + at, 4);
    sum = (sum ^ word) * 0x01000193u;
  }
  return sum;
}

} // namespace

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the log is written as memory has it");

void OperationLog::start(uint64_t capacity_bytes, const EngineOptions &options) {
  bytes_.reserve(capacity_bytes);
  capacity_ = capacity_bytes;
  serial_ = options.serial & 0xfff;
  on_ = started_ = true;
  const char magic[8] = {'H', 'I', 'C', 'A', 'L', 'O', 'G', 0};
  put(magic, sizeof magic);
  for (uint32_t value : {kFormat, kHeaderBytes, HICACHE_ABI_MAJOR << 16 | HICACHE_ABI_MINOR, 0u, 0u, 0u}) word(value);

  open_record(kOptions);
  const hicache_options_t &o = options.options;
  for (uint64_t value : {o.device_bytes, o.device_bytes_max, o.host_bytes, o.host_bytes_max}) wide(value);
  for (uint32_t value : {o.backend, o.compaction, o.placement, o.request_tokens_max, o.ticket_max, o.reservation_max, o.lease_max,
                         o.step_max, o.held_pages_max, o.transfer_pages_max})
    word(value);
  word(static_cast<uint32_t>(options.pools.size()));
  for (const PoolGeometry &pool : options.pools) {
    const hicache_pool_options_t &p = pool.options;
    for (uint32_t value : {p.role, p.direction, p.page_tokens, p.window_tokens, p.envelope_layout, p.zeroing, p.flags, p.virtual_page_count,
                           p.host_layout, p.host_page_count, p.head_count})
      word(value);
    for (uint64_t value : {p.k_row_bytes, p.v_row_bytes, p.page_bytes}) wide(value);
    word(static_cast<uint32_t>(pool.layer_ids.size()));
    words(pool.layer_ids.data(), pool.layer_ids.size());
  }
  end(HICACHE_OK);
}

void OperationLog::stop() {
  if (!on_) return;
  if (in_record_) bytes_.resize(record_);
  mark_end(kEndStopped);
}

Status OperationLog::drain(std::byte *buffer, uint64_t buffer_bytes, uint64_t *bytes_out, ErrorDetail *error) {
  uint64_t whole = 0;
  const uint64_t end = in_record_ ? record_ : bytes_.size();
  while (whole < end) {
    uint32_t length = kHeaderBytes; // The header comes out like a record.
    if (std::memcmp(bytes_.data() + whole, "HICA", 4) != 0) std::memcpy(&length, bytes_.data() + whole, 4);
    if (whole + length > buffer_bytes) {
      if (whole > 0) break;
      fail(error, HICACHE_INVALID_ARGUMENT, HICACHE_NO_POOL, "buffer_bytes is %llu, the next record has %u",
           static_cast<unsigned long long>(buffer_bytes), length);
      if (error != nullptr) error->need_bytes = length;
      return HICACHE_INVALID_ARGUMENT;
    }
    whole += length;
  }
  *bytes_out = whole;
  if (in_record_) record_ -= whole;
  if (whole == 0) return HICACHE_OK; // The buffer may be null then.
  std::memcpy(buffer, bytes_.data(), whole);
  bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(whole));
  return HICACHE_OK;
}

void OperationLog::put(const void *bytes, uint64_t count) {
  if (too_long_ || bytes_.size() + count + kEndBytes > capacity_) { // The mark that it ends here always fits.
    too_long_ = true;
    return;
  }
  const auto *from = static_cast<const std::byte *>(bytes);
  bytes_.insert(bytes_.end(), from, from + count);
}

void OperationLog::open_record(Kind kind) {
  if (in_record_) { // What that call has done is not known: the log ends before it.
    bytes_.resize(record_);
    mark_end(kEndStopped);
    return;
  }
  in_record_ = true;
  record_ = bytes_.size();
  const uint32_t header[5] = {0, 0, number_, kind, 0}; // Bytes, checksum, number, kind, status.
  put(header, sizeof header);
}

void OperationLog::close_record(uint64_t at, int32_t status) {
  const auto length = static_cast<uint32_t>(bytes_.size() - at);
  std::memcpy(bytes_.data() + at, &length, 4);
  std::memcpy(bytes_.data() + at + 16, &status, 4);
  const uint32_t sum = checksum(bytes_.data() + at + 8, length - 8);
  std::memcpy(bytes_.data() + at + 4, &sum, 4);
  number_++;
}

Status OperationLog::end(Status status, bool always) {
  in_record_ = false;
  const bool no_change = status == HICACHE_INVALID_ARGUMENT || status == HICACHE_UNSUPPORTED;
  if (too_long_) {
    bytes_.resize(record_);
    mark_end(kEndFull);
  } else if (no_change && !always) {
    bytes_.resize(record_);
  } else {
    close_record(record_, status);
  }
  return status;
}

void OperationLog::mark_end(uint32_t reason) {
  const uint32_t header[7] = {0, 0, number_, kEnd, 0, reason, 0};
  const auto *from = reinterpret_cast<const std::byte *>(header);
  record_ = bytes_.size();
  bytes_.insert(bytes_.end(), from, from + sizeof header);
  close_record(record_, HICACHE_OK);
  on_ = in_record_ = false;
}

void OperationLog::word(uint32_t value) { put(&value, sizeof value); }
void OperationLog::wide(uint64_t value) { put(&value, sizeof value); }
void OperationLog::id(uint64_t value) {
  // An id of another engine is one that never was in this one.
  if (value != 0 && value >> kIdBits != serial_) value = kIdMask;
  wide(value & kIdMask);
}
void OperationLog::words(const uint32_t *values, uint64_t count) { put(values, count * sizeof(uint32_t)); }

void OperationLog::takes(const hicache_take_t *takes, uint32_t count, bool owner_is_own[]) {
  word(count);
  for (uint32_t i = 0; i < count; i++) {
    const hicache_take_t &take = takes[i];
    const bool given = take.pool < 16 && !owner_is_own[take.pool] && take.vpages != nullptr;
    for (uint32_t value : {take.pool, take.page_count, given ? 1u : 0u}) word(value);
    if (given) words(take.vpages, take.page_count);
  }
}

void OperationLog::granted(const hicache_take_t *takes, uint32_t count, const bool owner_is_own[], Status status) {
  for (uint32_t i = 0; status == HICACHE_OK && i < count; i++)
    if (owner_is_own[takes[i].pool]) words(takes[i].vpages, takes[i].page_count);
}

void OperationLog::pages(const hicache_pages_t *lines, uint32_t count) {
  word(count);
  for (uint32_t i = 0; i < count; i++) {
    word(lines[i].pool);
    word(lines[i].page_count);
    words(lines[i].vpages, lines[i].page_count);
  }
}

void OperationLog::sequences(const hicache_sequence_t *sequences, uint32_t count) {
  word(count);
  for (uint32_t i = 0; i < count; i++) {
    const hicache_sequence_t &s = sequences[i];
    const bool readable = s.vpages != nullptr && s.vpage_count <= s.vpage_capacity;
    for (uint32_t value : {readable ? s.vpage_count : 0, s.vpage_capacity, s.token_count, s.new_token_count, s.window_tail_tokens, s.flags})
      word(value);
    if (readable) words(s.vpages, s.vpage_count);
  }
}

void OperationLog::grown(const hicache_sequence_t *sequences, uint32_t count, Status status) {
  for (uint32_t i = 0; status == HICACHE_OK && i < count; i++) {
    word(sequences[i].vpage_count);
    word(sequences[i].token_count);
    words(sequences[i].vpages, sequences[i].vpage_count);
  }
}

void OperationLog::batch(const hicache_batch_t &batch) {
  word(batch.owner_pool);
  wide(batch.stream);
  id(batch.previous);
  sequences(batch.sequences, batch.sequence_count);
  word(batch.table_count);
  for (uint32_t i = 0; i < batch.table_count; i++) {
    const hicache_batch_table_t &t = batch.tables[i];
    for (uint32_t value :
         {t.pool, t.form, t.window_tokens, t.row_pages, t.ids == nullptr ? 0 : t.ids_capacity, t.indptr != nullptr ? 1u : 0u})
      word(value);
  }
  pages(batch.pages, batch.pages_count);
}

void OperationLog::transfer(const hicache_transfer_t &transfer) {
  word(transfer.priority);
  id(transfer.reservation);
  id(transfer.after);
  word(transfer.copy_count);
  for (uint32_t i = 0; i < transfer.copy_count; i++)
    for (uint32_t value : {transfer.copies[i].pool, transfer.copies[i].device_page, transfer.copies[i].host_page}) word(value);
  word(transfer.bind_count);
  for (uint32_t i = 0; i < transfer.bind_count; i++)
    for (uint32_t value : {transfer.binds[i].pool, transfer.binds[i].vpage}) word(value);
}

void OperationLog::completions(const hicache_completion_t *completions, uint32_t count) {
  word(count);
  for (uint32_t i = 0; i < count; i++) {
    id(completions[i].ticket);
    word(static_cast<uint32_t>(completions[i].status));
    word(completions[i].page_count);
  }
}

} // namespace hicache
