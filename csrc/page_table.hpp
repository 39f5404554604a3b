// The tables of one pool: v2p (where a virtual page is) and p2v (who is at a place), and nobody else writes them.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <vector>

#include "hole_set.hpp"
#include "ids.hpp"
#include "place_table.hpp"

namespace hicache {

class PageTable {
public:
  // Entries from here on are states, not pages.
  static constexpr uint32_t kStateFirst = 0xfffffff0u;
  // v2p: no page (a free id, or a tombstone); chosen by a reservation; freed, but withheld until a static page of that id is unpinned.
  static constexpr uint32_t kUnmapped = 0xffffffffu;
  static constexpr uint32_t kReservedId = 0xfffffffeu;
  static constexpr uint32_t kWithheld = 0xfffffffdu;
  // p2v: nobody (hole or gap); held by a reservation; freed but still touched.
  static constexpr uint32_t kNobody = 0xffffffffu;
  static constexpr uint32_t kReserved = 0xfffffffeu;
  static constexpr uint32_t kQuarantined = 0xfffffffcu;

  // `places` (not owned) has a unit for each of the pool's pages, all kNobody.
  void open(uint32_t virtual_count, uint32_t physical_count, PlaceTable *places, PlaceIndex index) {
    v2p_.assign(virtual_count, kUnmapped);
    physical_count_ = physical_count;
    p2v_.open(places->names.data(), index);
  }
  // Binds the sink to itself: page 0 <-> virtual page 0.
  void bind_sink() { v2p_[0] = p2v_[0] = 0; }

  uint32_t v2p(uint32_t v) const { return v2p_[v]; }
  // Of a page inside the pool's span: elsewhere the unit may be another pool's.
  uint32_t p2v(uint32_t p) const { return p2v_[p]; }
  bool mapped(uint32_t v) const { return v2p_[v] < kStateFirst; }
  bool bound(uint32_t p) const { return p2v_[p] < kStateFirst; }
  const uint32_t *v2p_data() const { return v2p_.data(); }
  uint32_t virtual_count() const { return static_cast<uint32_t>(v2p_.size()); }
  uint32_t physical_count() const { return physical_count_; }
  uint64_t bytes() const { return v2p_.size() * sizeof(uint32_t); } // The places' are the chain's.
  void prefetch_place(uint32_t p) const {                           // Of a page that may be unmapped.
    if (p < kStateFirst) __builtin_prefetch(&p2v_[p], 1);
  }

  void prefetch_entry(uint32_t v) const { // Of any number.
    if (v < v2p_.size()) __builtin_prefetch(&v2p_[v], 1);
  }
  void prefetch_name(uint32_t p) const { __builtin_prefetch(&v2p_[p2v_[p]], 1); } // Of a page that is bound.

  // Notes in `changed` (not owned) the names whose place changes from now on.
  void watch(HoleSet *changed) { changed_ = changed; }

  void bind(VirtualPage v, PhysicalPage p) {
    note(raw(v));
    v2p_[raw(v)] = raw(p);
    p2v_[raw(p)] = raw(v);
  }
  void bind_all(const uint32_t *vpages, const uint32_t *ppages, uint32_t count) {
    uint32_t *const v2p = v2p_.data();
    for (uint32_t i = 0; changed_ != nullptr && i < count; i++) note(vpages[i]);
    // Many names that lie anywhere are fetched ahead; a run of neighbours comes by itself.
    constexpr uint32_t kAhead = 12;
    const bool scattered = count > kAhead && std::max(vpages[0], vpages[count - 1]) - std::min(vpages[0], vpages[count - 1]) > 4 * count;
    for (uint32_t i = 0; i < count; i++) {
      if (scattered && i + kAhead < count) __builtin_prefetch(&v2p[vpages[i + kAhead]], 1);
      v2p[vpages[i]] = ppages[i];
      p2v_[ppages[i]] = vpages[i];
    }
  }
  // Takes the page at v2p[v] away; the place gets `place_state`, the name `name_state`.
  void unbind(VirtualPage v, uint32_t name_state, uint32_t place_state) {
    note(raw(v));
    p2v_[v2p_[raw(v)]] = place_state;
    v2p_[raw(v)] = name_state;
  }
  // The page at `source` is at `destination` from now on. Nobody was there.
  void move(PhysicalPage source, PhysicalPage destination) {
    const uint32_t v = p2v_[raw(source)];
    assert(v < kStateFirst && p2v_[raw(destination)] == kNobody);
    note(v);
    v2p_[v] = raw(destination);
    p2v_[raw(destination)] = v;
    p2v_[raw(source)] = kNobody;
  }
  void set_name_state(VirtualPage v, uint32_t state) { v2p_[raw(v)] = state; }
  void set_place_state(PhysicalPage p, uint32_t state) { p2v_[raw(p)] = state; }

private:
  void note(uint32_t v) {
    if (changed_ != nullptr && !changed_->contains(v)) changed_->insert(v);
  }

  HoleSet *changed_ = nullptr;
  std::vector<uint32_t> v2p_;
  ByPlace<uint32_t> p2v_;
  uint32_t physical_count_ = 0;
};

} // namespace hicache
