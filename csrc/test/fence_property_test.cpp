// Whoever touches bytes follows everything that touches them still: steps of callers' streams, moves, zeroings and copies, which on the
// host end in any order. A model keeps each piece of work with the bytes that it is about and what it waits for, and checks every wait that
// the arena hands out: from it all unfinished work on those bytes must be reached. Nothing here has bytes, threads or a clock.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "byte_arena.hpp"

namespace hicache::test {
namespace {

struct ByteRange {
  uint64_t begin, end;
  bool meets(const ByteRange &other) const { return begin < other.end && other.begin < end; }
};

struct Piece {
  std::vector<ByteRange> bytes;
  std::vector<FenceMark> waits;
  const char *what;
};

// All work that has not ended, by its mark.
class Unfinished {
public:
  WorkBoard board;
  uint32_t checked = 0; // Pairs of a new user and unfinished work on its bytes.

  // The arena has handed these waits to a user of these bytes.
  void check(const std::vector<ByteRange> &bytes, std::span<const FenceMark> waits, const char *user) {
    for (const auto &[bits, piece] : pieces_) {
      const bool meets = std::any_of(piece.bytes.begin(), piece.bytes.end(), [&](const ByteRange &of) {
        return std::any_of(bytes.begin(), bytes.end(), [&](const ByteRange &r) { return r.meets(of); });
      });
      if (!meets) continue;
      checked++;
      std::set<uint64_t> seen;
      if (!reached(waits, FenceMark{bits}, &seen))
        ADD_FAILURE() << user << " does not follow " << piece.what << " " << FenceMark{bits}.slot() << ":" << FenceMark{bits}.sequence();
    }
  }
  void begin(FenceMark mark, Piece piece) {
    if (mark.slot() == kMoverSlot && !board.post(mark.sequence())) { // As the engine does then: after all that came before, at once.
      while (!pieces_.empty()) finish(0, nullptr);
      return;
    }
    pieces_[mark.bits] = std::move(piece);
  }
  // Ends a piece that waits for nothing any more: the k-th such one.
  void finish(uint32_t k, Arena *arena) {
    std::vector<uint64_t> ready;
    for (const auto &[bits, piece] : pieces_)
      if (std::none_of(piece.waits.begin(), piece.waits.end(), [&](FenceMark m) { return pending(m); }) && first_of_stream(FenceMark{bits}))
        ready.push_back(bits);
    if (ready.empty()) {
      EXPECT_TRUE(pieces_.empty()) << "work waits in a circle";
      pieces_.clear();
      return;
    }
    const FenceMark mark{ready[k % ready.size()]};
    pieces_.erase(mark.bits);
    if (mark.slot() == kMoverSlot) board.clear(mark.sequence());
    else if (arena != nullptr) arena->fence_passed(mark);
  }
  size_t size() const { return pieces_.size(); }

private:
  // A caller's stream runs in order: a later mark of it stands for an earlier one.
  static bool stands_for(FenceMark later, FenceMark earlier) {
    return later.slot() == earlier.slot() && (later.slot() == kMoverSlot ? later == earlier : later.sequence() >= earlier.sequence());
  }
  bool pending(FenceMark mark) const {
    return std::any_of(pieces_.begin(), pieces_.end(), [&](const auto &entry) { return stands_for(mark, FenceMark{entry.first}); });
  }
  bool first_of_stream(FenceMark mark) const {
    return mark.slot() == kMoverSlot || std::none_of(pieces_.begin(), pieces_.end(), [&](const auto &entry) {
             const FenceMark other{entry.first};
             return other.slot() == mark.slot() && other.sequence() < mark.sequence();
           });
  }
  bool reached(std::span<const FenceMark> from, FenceMark target, std::set<uint64_t> *seen) const {
    for (const FenceMark mark : from) {
      if (stands_for(mark, target)) return true;
      if (!seen->insert(mark.bits).second) continue;
      for (const auto &[bits, piece] : pieces_)
        if (stands_for(mark, FenceMark{bits}) && reached(piece.waits, target, seen)) return true;
    }
    return false;
  }
  std::map<uint64_t, Piece> pieces_;
};

class ModelMover : public Mover {
public:
  explicit ModelMover(Unfinished *work) : work_(work) {}
  Status move_pages(std::span<const PageMove> moves, std::span<const FenceMark> waits, FenceMark done, ErrorDetail *) override {
    moves_asked += moves.size();
    std::vector<ByteRange> bytes;
    for (const PageMove &m : moves) bytes.push_back(range(m.pool, raw(m.source))), bytes.push_back(range(m.pool, raw(m.destination)));
    return ask(std::move(bytes), waits, done, "a move");
  }
  Status zero_pages(std::span<const PageZero> zeros, std::span<const FenceMark> waits, FenceMark done, ErrorDetail *) override {
    std::vector<ByteRange> bytes;
    for (const PageZero &z : zeros) bytes.push_back(range(z.pool, raw(z.page)));
    return ask(std::move(bytes), waits, done, "a zeroing");
  }
  Status copy_pages(std::span<const PageCopy> copies, std::span<const FenceMark> waits, FenceMark done, ErrorDetail *) override {
    std::vector<ByteRange> bytes;
    for (const PageCopy &c : copies) bytes.push_back(range(c.pool, raw(c.source))), bytes.push_back(range(c.pool, raw(c.destination)));
    return ask(std::move(bytes), waits, done, "a copy");
  }
  ByteRange range(uint32_t pool, uint64_t page) const { return {page * page_bytes[pool], (page + 1) * page_bytes[pool]}; }

  std::vector<uint64_t> page_bytes;
  uint64_t moves_asked = 0;

private:
  Status ask(std::vector<ByteRange> bytes, std::span<const FenceMark> waits, FenceMark done, const char *what) {
    work_->check(bytes, waits, what);
    work_->begin(done, {std::move(bytes), {waits.begin(), waits.end()}, what});
    return HICACHE_OK;
  }
  Unfinished *work_;
};

struct OpenStep {
  hicache_step_t id;
  uint64_t stream;
  std::vector<ByteRange> bytes;
  std::vector<FenceMark> waits;
};

class FenceWalk {
public:
  FenceWalk(uint32_t seed, std::vector<uint64_t> page_bytes, uint32_t compaction) : random_(seed), mover_(&work_) {
    ArenaOptions options;
    for (size_t i = 0; i < page_bytes.size(); i++) {
      options.pools.push_back(pool_spec(i == 0 ? HICACHE_ROLE_FULL : HICACHE_ROLE_SWA, page_bytes[i], 2));
      options.pools.back().zeroing = i == 1 ? HICACHE_ZERO_NEVER : HICACHE_ZERO_ALWAYS;
    }
    mover_.page_bytes = page_bytes;
    options.bytes = 24 * 256;
    options.compaction = compaction;
    options.mover = &mover_;
    options.board = &work_.board;
    EXPECT_EQ(Arena::open(options, &arena_, &error_), HICACHE_OK) << error_.message;
  }
  ~FenceWalk() {
    for (OpenStep &step : steps_) arena_->step_close(step.id, nullptr, nullptr);
    for (const hicache_lease_t lease : leases_) arena_->lease_release(lease, nullptr);
  }

  void run(uint32_t operations) {
    for (uint32_t i = 0; i < operations && !testing::Test::HasFailure(); i++) {
      switch (draw(12)) {
        case 0:
        case 1:
        case 2: take(); break;
        case 3:
        case 4: free(); break;
        case 5: tombstone(); break;
        case 6:
        case 7: open_step(); break;
        case 8: close_step(); break;
        case 9: lease(); break;
        case 10: extend(); break;
        default: compact(); break;
      }
      while (work_.size() > 40 || (work_.size() > 0 && draw(3) == 0)) work_.finish(draw(64), arena_.get());
    }
  }
  uint32_t checked() const { return work_.checked; }
  uint64_t moves() const { return mover_.moves_asked; }

private:
  uint32_t draw(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  uint32_t pools() const { return static_cast<uint32_t>(mover_.page_bytes.size()); }

  void take() {
    uint32_t names[4];
    const uint32_t count = 1 + draw(4);
    std::vector<Take> lines{{0, count, names}};
    for (uint32_t pool = 1; pool < pools(); pool++) lines.push_back({pool, draw(count + 1), nullptr});
    if (arena_->take(lines, &error_) == HICACHE_OK) live_.insert(live_.end(), names, names + count);
  }
  // A sequence whose tail others share: its next page is a copy.
  void extend() {
    if (live_.empty()) return;
    uint32_t pages[3] = {live_[draw(static_cast<uint32_t>(live_.size()))]};
    hicache_sequence_t sequence{};
    sequence.vpages = pages;
    sequence.vpage_count = 1;
    sequence.vpage_capacity = 3;
    sequence.token_count = 1;
    sequence.new_token_count = 1 + draw(3);
    sequence.flags = HICACHE_SEQUENCE_COPY_TAIL;
    if (arena_->extend(0, {&sequence, 1}, &error_) == HICACHE_OK) live_.insert(live_.end(), pages, pages + sequence.vpage_count);
  }
  void free() {
    if (live_.empty()) return;
    const size_t at = draw(static_cast<uint32_t>(live_.size()));
    const hicache_pages_t line{0, 1, &live_[at]};
    EXPECT_EQ(arena_->free({&line, 1}, &error_), HICACHE_OK) << error_.message;
    live_.erase(live_.begin() + static_cast<long>(at));
  }
  void tombstone() {
    const uint32_t pool = 1 + draw(pools() - 1);
    const std::vector<uint32_t> some = mapped(pool, 3);
    const hicache_pages_t line{pool, static_cast<uint32_t>(some.size()), some.data()};
    EXPECT_EQ(arena_->free({&line, 1}, &error_), HICACHE_OK) << error_.message;
  }
  void open_step() {
    if (steps_.size() == 6) return close_step();
    OpenStep step{0, 1 + draw(3), {}, {}};
    std::vector<std::vector<uint32_t>> pages;
    std::vector<hicache_pages_t> lines;
    for (uint32_t pool = 0; pool < pools(); pool++) {
      pages.push_back(mapped(pool, 4));
      lines.push_back({pool, static_cast<uint32_t>(pages[pool].size()), pages[pool].data()});
      for (const uint32_t v : pages[pool]) step.bytes.push_back(mover_.range(pool, arena_->place(pool, v)));
    }
    std::span<const FenceMark> waits;
    ASSERT_EQ(arena_->step_open(step.stream, lines, &step.id, &waits, &error_), HICACHE_OK) << error_.message;
    step.waits.assign(waits.begin(), waits.end());
    // What its own stream did before comes first by itself.
    if (const FenceMark before = last_[step.stream]; before) step.waits.push_back(before);
    work_.check(step.bytes, step.waits, "a step");
    steps_.push_back(std::move(step));
  }
  void close_step() {
    if (steps_.empty()) return;
    const size_t at = draw(static_cast<uint32_t>(steps_.size()));
    OpenStep step = std::move(steps_[at]);
    steps_.erase(steps_.begin() + static_cast<long>(at));
    FenceMark mark;
    ASSERT_EQ(arena_->step_mark(step.id, &mark, &error_), HICACHE_OK); // Closing may ask for moves, which follow it.
    last_[step.stream] = mark;
    work_.begin(mark, {std::move(step.bytes), std::move(step.waits), "a step"});
    ASSERT_EQ(arena_->step_close(step.id, nullptr, &error_), HICACHE_OK) << error_.message;
  }
  // On the host it looks at the bytes itself, and so waits for page work; what streams do is the caller's affair.
  void lease() {
    if (leases_.size() > 2 || (!leases_.empty() && draw(2) == 0)) {
      EXPECT_EQ(arena_->lease_release(leases_.back(), &error_), HICACHE_OK);
      leases_.pop_back();
      return;
    }
    const uint32_t pool = draw(pools());
    const std::vector<uint32_t> some = mapped(pool, 4);
    const hicache_pages_t line{pool, static_cast<uint32_t>(some.size()), some.data()};
    std::vector<uint32_t> places(some.size());
    hicache_lease_t id = 0;
    std::span<const FenceMark> waits;
    ASSERT_EQ(arena_->lease_acquire_places({&line, 1}, places.data(), &id, &waits, &error_), HICACHE_OK) << error_.message;
    leases_.push_back(id);
    std::vector<ByteRange> bytes;
    for (const uint32_t place : places) bytes.push_back(mover_.range(pool, place));
    if (!work_.board.empty()) work_.check(bytes, waits, "a lease");
  }
  void compact() {
    hicache_compact_budget_t budget = {};
    budget.struct_size = sizeof budget;
    budget.pool = draw(2) == 0 ? HICACHE_NO_POOL : draw(pools());
    budget.pages_max = draw(6);
    hicache_compact_result_t result = {};
    EXPECT_EQ(arena_->compact(budget, &result, &error_), HICACHE_OK) << error_.message;
  }
  // Up to `most` names that have a page in the pool.
  std::vector<uint32_t> mapped(uint32_t pool, uint32_t most) {
    std::vector<uint32_t> some;
    for (const uint32_t v : live_)
      if (some.size() < most && draw(2) == 0 && arena_->place(pool, v) != HICACHE_NO_PAGE &&
          std::find(some.begin(), some.end(), v) == some.end())
        some.push_back(v);
    return some;
  }

  std::mt19937 random_;
  Unfinished work_;
  ModelMover mover_;
  std::unique_ptr<Arena> arena_;
  ErrorDetail error_;
  std::vector<uint32_t> live_;
  std::vector<OpenStep> steps_;
  std::vector<hicache_lease_t> leases_;
  std::map<uint64_t, FenceMark> last_; // By stream.
};

TEST(Fences, WhoeverTouchesBytesFollowsAllThatTouchThemStill) {
  const std::vector<uint64_t> shapes[] = {{256, 128, 64}, {64, 256}, {192, 64, 320}, {128, 128}, {112, 160, 48}};
  for (const auto &page_bytes : shapes) {
    for (const uint32_t compaction : {HICACHE_COMPACTION_EAGER, HICACHE_COMPACTION_LAZY}) {
      uint32_t checked = 0;
      uint64_t moves = 0;
      for (uint32_t seed = 1; seed <= 40 && !HasFailure(); seed++) {
        SCOPED_TRACE(testing::Message() << page_bytes.size() << " pools from " << page_bytes[0] << " bytes, compaction " << compaction
                                        << ", seed " << seed);
        FenceWalk walk(seed, page_bytes, compaction);
        walk.run(400);
        checked += walk.checked();
        moves += walk.moves();
      }
      EXPECT_GT(checked, 1000u);
      EXPECT_GT(moves, 100u);
    }
  }
}

} // namespace
} // namespace hicache::test
