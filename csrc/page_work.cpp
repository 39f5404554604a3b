#include "page_work.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstring>

#include "backend_cpu.hpp"

namespace hicache {

namespace {

// Smaller work is done sooner than it is shared.
constexpr uint64_t kShareBytes = uint64_t{1} << 20;
// What a thread copies between two looks at what is left.
constexpr uint64_t kChunkBytes = uint64_t{256} << 10;

} // namespace

Status PageWork::open(Backend *backend, std::vector<uint64_t> page_bytes, uint32_t workers, ErrorDetail *error) {
  backend_ = backend;
  if (page_bytes.empty()) return HICACHE_OK; // Nothing but submissions, which need no help.
  page_bytes_ = std::move(page_bytes);
  constexpr uint64_t bytes = uint64_t{kItems} * kEntryBytes;
  if (int code = memory_.reserve(bytes, 0, HostMemory::PageSize::kSmall); code != 0) return refuse_memory(error, "page work", bytes, code);
  items_.resize(kItems);
  for (uint32_t i = 0; i < kItems; i++) items_[i].next = i + 1 < kItems ? i + 1 : kNone;
  free_head_ = 0;
  for (uint32_t i = 0; i < workers; i++) {
    workers_.emplace_back([this] { help(); });
    pthread_setname_np(workers_.back().native_handle(), "hicache-move");
  }
  return HICACHE_OK;
}

void PageWork::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  for (std::thread &worker : workers_) worker.join();
  workers_.clear();
}

// ---- Asking ----

uint32_t PageWork::take_item() {
  std::lock_guard lock(mutex_);
  const uint32_t item = free_head_;
  if (item != kNone) free_head_ = items_[item].next;
  return item;
}

void PageWork::give_back(uint32_t item) {
  std::lock_guard lock(mutex_);
  items_[item].next = free_head_;
  free_head_ = item;
}

void PageWork::append(uint32_t item) {
  items_[item].next = kNone;
  (pending_tail_ == kNone ? pending_head_ : items_[pending_tail_].next) = item;
  pending_tail_ = item;
}

void PageWork::add_marks(Item *item, Tier tier, std::span<const FenceMark> marks) const {
  const WorkBoard &on = board(tier);
  FenceMark *to = item->marks + item->mark_count[0] + item->mark_count[1];
  for (const FenceMark mark : marks) {
    if (mark.slot() != kMoverSlot || !on.in_work(mark.sequence())) continue;
    *to++ = mark;
    item->mark_count[tier == Tier::kHost]++;
  }
}

template <typename Entry>
Status PageWork::add(Kind kind, Tier tier, std::span<const Entry> given, std::span<const FenceMark> waits, FenceMark done,
                     ErrorDetail *error) {
  static_assert(sizeof(Entry) <= 16);
  uint32_t index = take_item();
  if (index == kNone || !board(tier).post(done.sequence())) { // Too much under way: in place, after all that came before.
    if (index != kNone) give_back(index);
    if (Status status = finish(); status != HICACHE_OK) return status;
    return do_entries(kind, tier, reinterpret_cast<const std::byte *>(given.data()), 0, static_cast<uint32_t>(given.size())) == HICACHE_OK
               ? HICACHE_OK
               : fail(error, HICACHE_DEVICE, HICACHE_NO_POOL, "page work failed");
  }
  Item &item = items_[index];
  item.kind = kind;
  item.tier = tier;
  item.count = static_cast<uint32_t>(given.size());
  item.done = done;
  item.mark_count[0] = item.mark_count[1] = 0;
  item.claimed = item.ended = 0;
  item.status = HICACHE_OK;
  add_marks(&item, tier, waits);
  std::memcpy(entries(index), given.data(), given.size_bytes());
  append(index);
  return HICACHE_OK;
}

Status PageWork::move(Tier tier, std::span<const PageMove> moves, std::span<const FenceMark> waits, FenceMark done, ErrorDetail *error) {
  return add(Kind::kMove, tier, moves, waits, done, error);
}
Status PageWork::zero(Tier tier, std::span<const PageZero> zeros, std::span<const FenceMark> waits, FenceMark done, ErrorDetail *error) {
  return add(Kind::kZero, tier, zeros, waits, done, error);
}
Status PageWork::copy(Tier tier, std::span<const PageCopy> copies, std::span<const FenceMark> waits, FenceMark done, ErrorDetail *error) {
  return add(Kind::kCopy, tier, copies, waits, done, error);
}

bool PageWork::in_work(Tier tier, std::span<const FenceMark> marks) const {
  const WorkBoard &on = board(tier);
  if (on.empty()) return false;
  return std::any_of(marks.begin(), marks.end(), [&](FenceMark mark) { return mark.slot() == kMoverSlot && on.in_work(mark.sequence()); });
}

void PageWork::await(Tier tier, std::span<const FenceMark> marks) {
  if (!in_work(tier, marks)) return;
  const uint32_t index = take_item();
  if (index == kNone) {
    finish();
    return;
  }
  Item &item = items_[index];
  item.kind = Kind::kAwait;
  item.mark_count[0] = item.mark_count[1] = 0;
  add_marks(&item, tier, marks);
  append(index);
}

void PageWork::submit_after(TransferJob &job, std::span<const FenceMark> host_waits) {
  const uint32_t index = in_work(Tier::kDevice, job.waits) || in_work(Tier::kHost, host_waits) ? take_item() : kNone;
  if (index == kNone || job.waits.size_bytes() > kEntryBytes) {
    if (index != kNone) give_back(index);
    if (in_work(Tier::kDevice, job.waits) || in_work(Tier::kHost, host_waits)) finish();
    backend_->submit(job);
    return;
  }
  Item &item = items_[index];
  item.kind = Kind::kSubmit;
  item.job = &job;
  item.count = static_cast<uint32_t>(job.waits.size());
  item.mark_count[0] = item.mark_count[1] = 0;
  add_marks(&item, Tier::kDevice, job.waits);
  add_marks(&item, Tier::kHost, host_waits);
  std::memcpy(entries(index), job.waits.data(), job.waits.size_bytes());
  append(index);
}

Status PageWork::finish() {
  Status status = HICACHE_OK;
  for (uint32_t index = take_pending(); index != kNone;) {
    const uint32_t next = items_[index].next;
    if (items_[index].kind == Kind::kSubmit) { // The lock is held already.
      wait_for(items_[index]);
      items_[index].job->waits = {reinterpret_cast<const FenceMark *>(entries(index)), items_[index].count};
      backend_->submit(*items_[index].job);
      give_back(index);
    } else if (const Status ended = run_item(index); ended != HICACHE_OK) {
      status = ended;
    }
    index = next;
  }
  std::unique_lock lock(mutex_);
  passed_.wait(lock, [&] { return boards_[0].empty() && boards_[1].empty(); });
  return status;
}

// ---- Doing ----

void PageWork::wait_for(const Item &item) {
  const auto all_passed = [&] {
    for (uint32_t i = 0; i < item.mark_count[0] + item.mark_count[1]; i++)
      if (boards_[i >= item.mark_count[0]].in_work(item.marks[i].sequence())) return false;
    return true;
  };
  if (all_passed()) return;
  std::unique_lock lock(mutex_);
  passed_.wait(lock, all_passed);
}

Status PageWork::do_entries(Kind kind, Tier tier, const std::byte *entries, uint32_t first, uint32_t count) {
  switch (kind) {
    case Kind::kMove: return backend_->move_pages(tier, {reinterpret_cast<const PageMove *>(entries) + first, count}, {}, {}, nullptr);
    case Kind::kZero: return backend_->zero_pages(tier, {reinterpret_cast<const PageZero *>(entries) + first, count}, {}, {}, nullptr);
    case Kind::kCopy: return backend_->copy_pages(tier, {reinterpret_cast<const PageCopy *>(entries) + first, count}, {}, {}, nullptr);
    default: return HICACHE_OK;
  }
}

// Carries one item out. A large one is offered to the workers: this thread takes chunks of it as they do, and waits for the last.
Status PageWork::run_item(uint32_t index) {
  Item &item = items_[index];
  wait_for(item);
  if (item.kind == Kind::kAwait) {
    give_back(index);
    return HICACHE_OK;
  }
  const std::byte *const all = entries(index);
  // PageMove, PageZero and PageCopy begin with their pool, and the pages of an item are of one size or nearly.
  uint32_t pool;
  std::memcpy(&pool, all, sizeof pool);
  const uint64_t page_bytes = page_bytes_[pool];
  if (workers_.empty() || item.count < 2 || item.count * page_bytes < kShareBytes) {
    item.status = do_entries(item.kind, item.tier, all, 0, item.count);
  } else {
    std::unique_lock lock(mutex_);
    item.chunk = static_cast<uint32_t>(std::max<uint64_t>(kChunkBytes / page_bytes, 1));
    const bool mine = shared_ == kNone; // Else this thread does it alone.
    if (mine) {
      shared_ = index;
      work_.notify_all();
    }
    while (item.claimed < item.count) {
      const uint32_t first = item.claimed, count = std::min(item.chunk, item.count - first);
      item.claimed += count;
      lock.unlock();
      const Status status = do_entries(item.kind, item.tier, all, first, count);
      lock.lock();
      item.ended += count;
      if (status != HICACHE_OK) item.status = status;
    }
    if (mine) shared_ = kNone;
    helped_.wait(lock, [&] { return item.ended == item.count; });
  }
  const Status status = item.status;
  const Tier tier = item.tier;
  const uint64_t sequence = item.done.sequence();
  {
    std::lock_guard lock(mutex_);
    board(tier).clear(sequence);
    item.next = free_head_;
    free_head_ = index;
  }
  passed_.notify_all();
  return status;
}

Status PageWork::run(uint32_t pending) {
  Status status = HICACHE_OK;
  uint32_t submits = kNone;
  while (pending != kNone) {
    const uint32_t index = pending;
    pending = items_[index].next;
    if (items_[index].kind == Kind::kSubmit) { // Last: others may need this thread's work before they release the lock.
      items_[index].next = submits;
      submits = index;
    } else if (const Status ended = run_item(index); ended != HICACHE_OK) {
      status = ended;
    }
  }
  while (submits != kNone) {
    const uint32_t index = submits;
    Item &item = items_[index];
    submits = item.next;
    wait_for(item);
    std::lock_guard lock(engine_mutex_);
    item.job->waits = {reinterpret_cast<const FenceMark *>(entries(index)), item.count};
    backend_->submit(*item.job);
    give_back(index);
  }
  return status;
}

void PageWork::help() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stopping_ || (shared_ != kNone && items_[shared_].claimed < items_[shared_].count); });
    if (stopping_) return;
    const uint32_t index = shared_;
    Item &item = items_[index];
    const uint32_t first = item.claimed, count = std::min(item.chunk, item.count - first);
    item.claimed += count;
    lock.unlock();
    const Status status = do_entries(item.kind, item.tier, entries(index), first, count);
    lock.lock();
    item.ended += count;
    if (status != HICACHE_OK) item.status = status;
    if (item.ended == item.count) helped_.notify_all();
  }
}

} // namespace hicache
