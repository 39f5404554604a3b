// Random arenas of 1..6 pools in random states, each compared with a brute-force model that knows nothing of hulls, sweeps or bitmaps:
// what fits, what a refusal is called, that contents follow, that pinned pages stay, that every invariant holds.
#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "byte_arena.hpp"

namespace hicache::test {
namespace {

constexpr uint64_t kInfeasible = UINT64_MAX;

// Tries every span of every pool, in chain order, for a demand on top of what there is: the fewest bytes that have to move, or kInfeasible.
// `unpinned` pretends that nothing is pinned.
uint64_t brute_force(const Arena &arena, const Arena::State &s, const uint32_t *demand, bool unpinned) {
  const uint64_t total = arena.bytes();
  std::vector<uint64_t> best_at(total + 1, kInfeasible); // Fewest bytes moved so that the pools so far end at or below the byte.
  std::fill(best_at.begin() + static_cast<long>(s.sink_bytes), best_at.end(), 0);
  for (uint32_t i = 0; i < s.chain_count; i++) {
    const Pool &pool = s.pools[s.chain_pools[i]];
    const uint64_t n = uint64_t{pool.live} + pool.reserved + pool.quarantined + demand[pool.index];
    if (n == 0) continue;
    std::vector<uint32_t> stays, moves;
    for (uint32_t p = pool.first_page; p < pool.page_count; p++) {
      const uint32_t owner = pool.who_at(p);
      if (owner == PageTable::kNobody) continue;
      (pool.pins[p] > 0 && !unpinned ? stays : moves).push_back(p);
    }
    std::vector<uint64_t> next(total + 1, kInfeasible);
    const uint64_t pages = total / pool.page_bytes;
    for (uint64_t low = 0; low < pages; low++) {
      const uint64_t before = best_at[low * pool.page_bytes];
      if (before == kInfeasible || (!stays.empty() && stays.front() < low)) continue;
      for (uint64_t high = low + n; high <= pages; high++) {
        if (!stays.empty() && stays.back() >= high) continue;
        const auto outside = static_cast<uint64_t>(std::lower_bound(moves.begin(), moves.end(), low) - moves.begin()) +
                             static_cast<uint64_t>(moves.end() - std::lower_bound(moves.begin(), moves.end(), high));
        uint64_t &cost = next[high * pool.page_bytes];
        cost = std::min(cost, before + outside * pool.page_bytes);
      }
    }
    for (uint64_t byte = 1; byte <= total; byte++) next[byte] = std::min(next[byte], next[byte - 1]);
    best_at = next;
  }
  return best_at[total];
}

struct Holder {
  enum Kind { kLease, kStep, kTicket, kReservation } kind;
  uint64_t id = 0;
  PinList pins;
  std::vector<std::pair<uint32_t, uint32_t>> places;   // pool, physical page.
  std::vector<std::pair<uint32_t, uint32_t>> reserved; // pool, count.
  std::vector<uint32_t> names[kPoolMax];
};

class Walk {
public:
  explicit Walk(uint32_t seed) : random_(seed) {
    ArenaOptions options;
    const uint32_t pools = 1 + below(6);
    const bool has_full = below(4) != 0;
    for (uint32_t i = 0; i < pools; i++) {
      const uint64_t page_bytes = 16 * (1 + below(6));
      uint32_t role = HICACHE_ROLE_STATE;
      if (has_full) role = i == 0 ? HICACHE_ROLE_FULL : below(2) == 0 ? HICACHE_ROLE_SWA : HICACHE_ROLE_STATE;
      options.pools.push_back(pool_spec(role, page_bytes, 1));
      if (below(2) == 0) options.pools.back().zeroing = HICACHE_ZERO_ALWAYS;
    }
    // Sometimes the ends are elsewhere, or there are none.
    if (below(3) == 0)
      for (auto &pool : options.pools) pool.direction = HICACHE_DIRECTION_FLOAT;
    if (below(3) == 0) options.pools[below(pools)].direction = HICACHE_DIRECTION_UP;
    options.bytes = 100 * pools + 300 + below(1000);
    options.placement = below(4) == 0 ? HICACHE_PLACEMENT_REFERENCE : HICACHE_PLACEMENT_BEST;
    options.compaction = below(5) == 0 ? HICACHE_COMPACTION_EAGER : HICACHE_COMPACTION_LAZY;
    options.mirrored = true;
    a_ = std::make_unique<ByteArena>(options);
    if (a_->status != HICACHE_OK) return; // Infeasible: nothing to walk through.
    for (uint32_t i = 0; i < pools; i++) (a_->arena->info(i).owner == i ? owners_ : windows_).push_back(i);
  }

  bool open() const { return a_->arena != nullptr; }
  void step() {
    switch (below(12)) {
      case 0:
      case 1:
      case 2: take(); break;
      case 3:
      case 4:
      case 5: release_names(); break;
      case 6: free_windows(); break;
      case 7: hold(); break;
      case 8:
      case 9: let_go(); break;
      case 10: reserve(); break;
      default: a_->compact(HICACHE_NO_POOL, below(4));
    }
    check();
  }
  ~Walk() {
    if (!open()) return;
    while (!holders_.empty()) let_go();
    check();
  }

  uint64_t states = 0, moved = 0, optimal = 0;

private:
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }

  // A take or a reservation must come out as the model says; a refused one changes nothing.
  template <typename Act> bool act_as_model_says(const uint32_t *demand, Act act) {
    states++;
    const uint64_t cost = brute_force(*a_->arena, a_->arena->state(), demand, false);
    Status expected = HICACHE_OK;
    if (cost == kInfeasible)
      expected = brute_force(*a_->arena, a_->arena->state(), demand, true) == kInfeasible ? HICACHE_NO_CAPACITY : HICACHE_MOVES_BLOCKED;
    std::vector<hicache_demand_t> lines;
    for (uint32_t i = 0; i < a_->arena->pool_count(); i++) lines.push_back({i, demand[i]});
    EXPECT_EQ(a_->arena->fits(lines, &a_->error), expected) << a_->error.message;
    const std::vector<uint32_t> before = a_->tables();
    const uint64_t moved_before = a_->arena->counters().moved_bytes;
    const Status status = act();
    EXPECT_EQ(status, expected) << a_->error.message;
    if (status != HICACHE_OK) {
      EXPECT_EQ(a_->tables(), before);
      EXPECT_GT(a_->error.need_bytes, 0u);
      return false;
    }
    const uint64_t moved_now = a_->arena->counters().moved_bytes - moved_before;
    if (a_->arena->state().placement == HICACHE_PLACEMENT_BEST) {
      EXPECT_GE(moved_now, cost);
      moved += moved_now;
      optimal += cost;
      EXPECT_TRUE(cost > 0 || moved_now == 0);
    }
    return true;
  }

  void stamp_new(uint32_t pool, uint32_t v) {
    const bool zeroed = a_->arena->state().pools[pool].zeroing == HICACHE_ZERO_ALWAYS;
    EXPECT_TRUE(!zeroed || a_->stamped(pool, v, 0)) << "pool " << pool << " page " << v;
    const auto value = static_cast<uint8_t>(1 + below(255));
    a_->stamp(pool, v, value);
    contents_[{pool, v}] = value;
  }

  void take() {
    uint32_t demand[kPoolMax] = {};
    std::vector<std::vector<uint32_t>> names(owners_.size());
    std::vector<Take> lines;
    for (size_t k = 0; k < owners_.size(); k++) {
      if (below(2) == 0) continue;
      names[k].resize(1 + below(below(8) == 0 ? 30 : 6));
      demand[owners_[k]] = static_cast<uint32_t>(names[k].size());
      lines.push_back({owners_[k], demand[owners_[k]], names[k].data()});
    }
    std::vector<std::pair<uint32_t, std::vector<uint32_t>>> windows;
    for (const uint32_t pool : windows_) {
      if (below(3) == 0) continue;
      std::vector<uint32_t> tombs;
      if (below(2) == 0)
        for (const auto &[key, value] : contents_)
          if (key.first == a_->arena->info(pool).owner && a_->arena->place(pool, key.second) == HICACHE_NO_PAGE && below(2) == 0)
            tombs.push_back(key.second);
      const uint32_t fresh = demand[a_->arena->info(pool).owner] > 0 ? below(demand[a_->arena->info(pool).owner] + 1) : 0;
      windows.push_back({pool, tombs});
      demand[pool] = static_cast<uint32_t>(tombs.size()) + fresh;
      if (fresh > 0) lines.push_back({pool, fresh, nullptr});
    }
    for (auto &[pool, tombs] : windows)
      if (!tombs.empty()) lines.push_back({pool, static_cast<uint32_t>(tombs.size()), tombs.data()});
    std::shuffle(lines.begin(), lines.end(), random_);
    if (std::all_of(demand, demand + kPoolMax, [](uint32_t d) { return d == 0; })) return;
    if (!act_as_model_says(demand, [&] { return a_->arena->take(lines, &a_->error); })) return;
    for (const Take &line : lines) {
      if (line.vpages != nullptr)
        for (uint32_t i = 0; i < line.page_count; i++) stamp_new(line.pool, line.vpages[i]);
    }
    for (const Take &line : lines) { // The last of what the owner took.
      if (line.vpages != nullptr) continue;
      const uint32_t owner = a_->arena->info(line.pool).owner;
      std::vector<uint32_t> all;
      for (size_t k = 0; k < owners_.size(); k++)
        if (owners_[k] == owner) all = names[k];
      for (uint32_t i = 0; i < line.page_count; i++) stamp_new(line.pool, all[all.size() - 1 - i]);
    }
  }

  void release_names() {
    if (owners_.empty()) return;
    const uint32_t owner = owners_[below(static_cast<uint32_t>(owners_.size()))];
    std::vector<uint32_t> names;
    const uint32_t chance = 2 + below(4);
    for (const auto &[key, value] : contents_)
      if (key.first == owner && below(chance) == 0) names.push_back(key.second);
    std::shuffle(names.begin(), names.end(), random_);
    if (!names.empty() && below(4) == 0) { // Double free, in one call.
      std::vector<uint32_t> twice = names;
      twice.push_back(names[0]);
      const std::vector<uint32_t> before = a_->tables();
      EXPECT_EQ(a_->free(owner, twice), HICACHE_STALE_ID);
      EXPECT_EQ(a_->tables(), before);
    }
    EXPECT_EQ(a_->free(owner, names), HICACHE_OK) << a_->error.message;
    for (const uint32_t v : names)
      for (uint32_t pool = 0; pool < a_->arena->pool_count(); pool++)
        if (a_->arena->info(pool).owner == owner) contents_.erase({pool, v});
    if (names.empty()) return;
    EXPECT_EQ(a_->free(owner, {names[0]}), HICACHE_STALE_ID);
  }

  void free_windows() {
    if (windows_.empty()) return;
    const uint32_t pool = windows_[below(static_cast<uint32_t>(windows_.size()))];
    std::vector<uint32_t> names;
    for (const auto &[key, value] : contents_)
      if (key.first == a_->arena->info(pool).owner && below(3) == 0) names.push_back(key.second);
    EXPECT_EQ(a_->free(pool, names), HICACHE_OK) << a_->error.message;
    for (const uint32_t v : names) contents_.erase({pool, v});
  }

  void hold() {
    if (contents_.empty() || holders_.size() > 4) return;
    std::vector<hicache_pages_t> lines;
    std::vector<hicache_copy_t> copies;
    Holder holder;
    std::vector<std::vector<uint32_t>> names(a_->arena->pool_count());
    const uint32_t chance = 3 + below(12);
    for (const auto &[key, value] : contents_) {
      if (below(chance) != 0) continue;
      names[key.first].push_back(key.second);
      copies.push_back({key.first, key.second, 0, 0});
      holder.places.push_back({key.first, a_->arena->place(key.first, key.second)});
    }
    for (uint32_t i = 0; i < names.size(); i++) lines.push_back({i, static_cast<uint32_t>(names[i].size()), names[i].data()});
    holder.kind = static_cast<Holder::Kind>(below(3));
    std::vector<uint32_t> places(copies.size());
    Status status = HICACHE_OK;
    if (holder.kind == Holder::kLease) status = a_->arena->lease_acquire(lines, &holder.id, &a_->error);
    else if (holder.kind == Holder::kStep) status = a_->arena->step_open(below(3), lines, &holder.id, nullptr, &a_->error);
    else status = a_->arena->pin_copies(copies, &holder.pins, places.data(), nullptr, &a_->error);
    EXPECT_EQ(status, HICACHE_OK) << a_->error.message;
    holders_.push_back(holder);
  }

  void reserve() {
    if (holders_.size() > 6) return;
    Holder holder;
    holder.kind = Holder::kReservation;
    uint32_t demand[kPoolMax] = {};
    std::vector<Take> lines;
    for (uint32_t pool = 0; pool < a_->arena->pool_count(); pool++) {
      const uint32_t count = below(2) == 0 ? 0 : 1 + below(4);
      const bool owns = a_->arena->info(pool).owner == pool;
      demand[pool] = count;
      if (count == 0) continue;
      if (owns) holder.names[pool].resize(count);
      lines.push_back({pool, count, owns ? holder.names[pool].data() : nullptr});
      holder.reserved.push_back({pool, count});
    }
    if (lines.empty()) return;
    if (!act_as_model_says(demand, [&] { return a_->arena->reserve(lines, &holder.id, &a_->error); })) return;
    for (const auto &[pool, count] : holder.reserved)
      for (const uint32_t p : a_->reserved_places(holder.id, pool)) holder.places.push_back({pool, p});
    EXPECT_EQ(holder.places.size(), std::accumulate(demand, demand + kPoolMax, 0u, [](uint32_t x, uint32_t y) { return x + y; }));
    holders_.push_back(holder);
  }

  void let_go() {
    if (holders_.empty()) return;
    const uint32_t k = below(static_cast<uint32_t>(holders_.size()));
    Holder holder = holders_[k];
    holders_.erase(holders_.begin() + k);
    switch (holder.kind) {
      case Holder::kLease: EXPECT_EQ(a_->arena->lease_release(holder.id, &a_->error), HICACHE_OK); break;
      case Holder::kStep: a_->close_step(holder.id); break;
      case Holder::kTicket: a_->arena->unpin(&holder.pins); break;
      case Holder::kReservation:
        if (below(2) == 0) {
          EXPECT_EQ(a_->arena->cancel(holder.id, &a_->error), HICACHE_OK);
        } else {
          bind(&holder);
        }
    }
  }

  // Loads part of a reservation: some of its names, some windows of theirs or of older pages; sometimes with a fault in the list.
  void bind(Holder *holder) {
    std::vector<hicache_copy_t> copies;
    std::vector<hicache_bind_t> binds;
    std::vector<std::pair<uint32_t, uint32_t>> named;
    const auto mention = [&](uint32_t pool, uint32_t v) {
      if (below(3) == 0) binds.push_back({pool, v});
      else copies.push_back({pool, v, 0, 0});
      named.push_back({pool, v});
    };
    for (const auto &[pool, count] : holder->reserved)
      for (const uint32_t v : holder->names[pool])
        if (below(4) != 0) mention(pool, v);
    for (const auto &[pool, count] : holder->reserved) {
      const uint32_t owner = a_->arena->info(pool).owner;
      if (owner == pool) continue;
      std::vector<uint32_t> candidates;
      for (const auto &[p, v] : named)
        if (p == owner) candidates.push_back(v);
      for (const auto &[key, value] : contents_)
        if (key.first == owner && a_->arena->place(pool, key.second) == HICACHE_NO_PAGE) candidates.push_back(key.second);
      std::shuffle(candidates.begin(), candidates.end(), random_);
      for (uint32_t i = 0; i < std::min<size_t>(count, candidates.size()); i++) mention(pool, candidates[i]);
    }
    std::shuffle(copies.begin(), copies.end(), random_);
    std::shuffle(binds.begin(), binds.end(), random_);
    if (!named.empty() && below(2) == 0) { // One page twice: nothing may have changed.
      std::vector<hicache_bind_t> faulty = binds;
      faulty.push_back({named[0].first, named[0].second});
      std::vector<uint32_t> places(copies.size());
      PinList pins;
      const std::vector<uint32_t> before = a_->tables();
      EXPECT_EQ(a_->arena->bind(holder->id, copies, faulty, &pins, places.data(), nullptr, &a_->error), HICACHE_INVALID_ARGUMENT);
      EXPECT_EQ(a_->tables(), before);
    }
    Holder ticket;
    ticket.kind = Holder::kTicket;
    std::vector<uint32_t> places(copies.size());
    ASSERT_EQ(a_->arena->bind(holder->id, copies, binds, &ticket.pins, places.data(), nullptr, &a_->error), HICACHE_OK)
        << a_->error.message;
    for (size_t i = 0; i < copies.size(); i++) {
      ticket.places.push_back({copies[i].pool, places[i]});
      EXPECT_EQ(a_->arena->place(copies[i].pool, copies[i].device_page), places[i]);
      const auto value = static_cast<uint8_t>(1 + below(255));
      std::memset(a_->mover.at(copies[i].pool, places[i]), value, a_->mover.page_bytes[copies[i].pool]);
      contents_[{copies[i].pool, copies[i].device_page}] = value;
    }
    for (const hicache_bind_t &bound : binds) stamp_new(bound.pool, bound.vpage);
    holders_.push_back(ticket);
  }

  void check() {
    if (std::getenv("HICACHE_PROPERTY_TRACE") != nullptr) a_->print();
    const std::string report = a_->arena->verify();
    ASSERT_EQ(report, "");
    for (const auto &[key, value] : contents_) {
      ASSERT_NE(a_->arena->place(key.first, key.second), HICACHE_NO_PAGE);
      ASSERT_TRUE(a_->stamped(key.first, key.second, value)) << "pool " << key.first << " page " << key.second;
    }
    // What is held is where it was: its state says so, or it is quarantined there.
    for (const Holder &holder : holders_)
      for (const auto &[pool, p] : holder.places) ASSERT_GT(a_->arena->state().pools[pool].pins[p], 0u);
    for (const Pool &pool : a_->arena->state().pools) { // Nothing is pinned that nobody holds.
      uint32_t pins = 0, held = 0;
      for (uint32_t p = pool.low; p < pool.high; p++) pins += pool.pins[p];
      for (const Holder &holder : holders_)
        for (const auto &[at, p] : holder.places) held += at == pool.index;
      ASSERT_EQ(pins, held);
      if (pool.direction == HICACHE_DIRECTION_FLOAT || a_->arena->state().placement == HICACHE_PLACEMENT_BEST) {
        const bool spans = pool.low < pool.high;
        ASSERT_FALSE(spans && pool.direction != HICACHE_DIRECTION_UP && pool.holes.contains(pool.low));
        ASSERT_FALSE(spans && pool.direction != HICACHE_DIRECTION_DOWN && pool.holes.contains(pool.high - 1));
      }
    }
    if (below(4) == 0) check_mirror();
    for (uint32_t pool = 0; pool < a_->arena->pool_count(); pool++) a_->capacity(pool); // Memoised now; verified at the next check.
  }

  // Once published, the mirror is the tables: also after many calls between two steps.
  void check_mirror() {
    ASSERT_EQ(a_->arena->publish_tables(&a_->error), HICACHE_OK);
    a_->mover.mirror.resize(a_->arena->pool_count());
    for (uint32_t pool = 0; pool < a_->arena->pool_count(); pool++) {
      std::vector<uint32_t> &mirror = a_->mover.mirror[pool];
      const Pool &of = a_->arena->state().pools[pool];
      mirror.resize(of.table.virtual_count(), HICACHE_NO_PAGE);
      for (uint32_t v = of.first_id; v < of.id_count; v++)
        ASSERT_EQ(mirror[v], a_->arena->place(pool, v)) << "pool " << pool << " name " << v;
    }
    const uint64_t calls = a_->mover.patch_calls;
    ASSERT_EQ(a_->arena->publish_tables(&a_->error), HICACHE_OK);
    ASSERT_EQ(a_->mover.patch_calls, calls); // Nothing is said twice.
  }

  std::mt19937 random_;
  std::unique_ptr<ByteArena> a_;
  std::vector<uint32_t> owners_, windows_;
  std::map<std::pair<uint32_t, uint32_t>, uint8_t> contents_; // (pool, virtual page) -> stamp.
  std::vector<Holder> holders_;
};

TEST(ArenaProperty, AgreesWithBruteForce) {
  const char *from_environment = std::getenv("HICACHE_PROPERTY_STATES");
  const uint64_t wanted = from_environment != nullptr ? std::strtoull(from_environment, nullptr, 10) : 100000;
  const char *one_seed = std::getenv("HICACHE_PROPERTY_SEED");
  uint64_t states = 0, moved = 0, optimal = 0;
  uint32_t seed = one_seed != nullptr ? static_cast<uint32_t>(std::strtoul(one_seed, nullptr, 10)) : 1;
  for (; states < wanted; seed++) {
    SCOPED_TRACE(testing::Message() << "repeat with HICACHE_PROPERTY_SEED=" << seed);
    {
      Walk walk(seed);
      for (int i = 0; walk.open() && i < 150 && !testing::Test::HasFailure(); i++) walk.step();
      states += walk.states;
      moved += walk.moved;
      optimal += walk.optimal;
    }
    if (testing::Test::HasFailure() || one_seed != nullptr) break;
  }
  std::printf("%llu states, seeds up to %u: moved %llu bytes, the optimum is %llu\n", static_cast<unsigned long long>(states), seed,
              static_cast<unsigned long long>(moved), static_cast<unsigned long long>(optimal));
  EXPECT_LE(moved, optimal + optimal / 50) << "the planner moves more than it has to";
}

} // namespace
} // namespace hicache::test
