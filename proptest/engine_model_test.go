package proptest

import (
	"cmp"
	"math"
	"slices"
)

// The naive model of one engine: maps, counted from scratch at every question. It knows nothing of holes, frontiers or moves; it knows
// which pages exist, who holds them, what was last written under each name, and the packing formula that decides every take.

// A pageName is a page under its stable name: a virtual page of a device pool, or a host page of a pool.
type pageName struct {
	pool int
	id   uint32
}

// A pageEntry is one physical page in use, whatever its name is now. Its holders keep the pointer, so a page that is freed while a
// copy or a lease touches it lives on here without a name: that is quarantine.
type pageEntry struct {
	pool    int
	pins    int    // Leases, open steps and tickets that touch it, and 1 while reserved.
	place   uint32 // Where it was when the first pin came; it must be there until the last one goes.
	content uint64 // The stamp last written under its name.
	known   bool   // False after a failed or half-done copy: any content is right.
	copies  int    // Transfers in flight that read or write it: nobody else may write now.
}

// An arenaModel is one tier: the device arena, or the host arena with no sink.
type arenaModel struct {
	pageBytes  []uint64 // By pool.
	chain      []int    // Pools from the low end of the bytes to the high one.
	totalBytes uint64
	sinkBytes  uint64
	live       map[pageName]*pageEntry
	nameless   map[*pageEntry]bool // Reserved and quarantined pages: they take room and do not move.
}

func newArenaModel(pageBytes []uint64, chain []int, totalBytes, sinkBytes uint64) *arenaModel {
	return &arenaModel{pageBytes: pageBytes, chain: chain, totalBytes: totalBytes, sinkBytes: sinkBytes,
		live: map[pageName]*pageEntry{}, nameless: map[*pageEntry]bool{}}
}

// fits decides a take exactly: left to right over the chain, every pool is packed behind its neighbour and around the span of the
// pages that cannot move. With ignorePins it asks what would fit if everything could. A demand may be negative: so much is evicted.
func (a *arenaModel) fits(demand []int, ignorePins bool) bool {
	end := a.sinkBytes
	for _, pool := range a.chain {
		pages, low, high := demand[pool], uint64(math.MaxUint64), uint64(0)
		count := func(entry *pageEntry) {
			if entry.pool != pool {
				return
			}
			pages++
			if entry.pins > 0 && !ignorePins {
				low, high = min(low, uint64(entry.place)), max(high, uint64(entry.place)+1)
			}
		}
		for _, entry := range a.live {
			count(entry)
		}
		for entry := range a.nameless {
			count(entry)
		}
		if pages == 0 {
			continue
		}
		start := (end + a.pageBytes[pool] - 1) / a.pageBytes[pool]
		if start > low {
			return false
		}
		end = max(high, start+uint64(pages)) * a.pageBytes[pool]
	}
	return end <= a.totalBytes
}

// most returns the largest n for which n pages of one pool fit.
func (a *arenaModel) most(pool int) int {
	n := 0
	for {
		demand := make([]int, len(a.pageBytes))
		demand[pool] = n + 1
		if !a.fits(demand, false) {
			return n
		}
		n++
	}
}

// bind names a page that was taken now; known says that its content is.
func (a *arenaModel) bind(name pageName, content uint64, known bool) *pageEntry {
	entry := &pageEntry{pool: name.pool, content: content, known: known}
	a.live[name] = entry
	return entry
}

// drop takes a page's name away; it stays as a nameless page while something touches it.
func (a *arenaModel) drop(name pageName) {
	entry := a.live[name]
	if entry == nil {
		return
	}
	delete(a.live, name)
	if entry.pins > 0 {
		a.nameless[entry] = true
	}
}

// pin records a holder; place is where the engine says the page is.
func (a *arenaModel) pin(entry *pageEntry, place uint32) {
	if entry.pins == 0 {
		entry.place = place
	}
	entry.pins++
}

func (a *arenaModel) unpin(entry *pageEntry) {
	entry.pins--
	if entry.pins == 0 {
		delete(a.nameless, entry)
	}
}

// names lists the named pages of a pool that satisfy a condition, in order: a run must not depend on the order of a map.
func (a *arenaModel) names(pool int, wanted func(*pageEntry) bool) []pageName {
	var names []pageName
	for name, entry := range a.live {
		if name.pool == pool && (wanted == nil || wanted(entry)) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b pageName) int { return cmp.Compare(a.id, b.id) })
	return names
}

// pagesOf counts the pages in use of a pool: named, and nameless.
func (a *arenaModel) pagesOf(pool int) (named, nameless int) {
	for _, entry := range a.live {
		if entry.pool == pool {
			named++
		}
	}
	for entry := range a.nameless {
		if entry.pool == pool {
			nameless++
		}
	}
	return named, nameless
}

// An engineModel is both tiers, the virtual ids, and what is held.
type engineModel struct {
	owner        []int // Pool that hands out a pool's ids: itself, or its group's FULL pool.
	device, host *arenaModel
	ids          map[pageName]bool // Allocated virtual ids of owner pools, reserved ones included.
	reservations map[uint64]*reservationModel
	tickets      map[uint64]*ticketModel
	holders      map[uint64][]*pageEntry // Leases and open steps.
}

type reservationModel struct {
	ids   []pageName           // Virtual ids it was promised.
	pages map[int][]*pageEntry // By pool, not named yet.
}

type ticketModel struct {
	toDevice bool
	copies   []copyModel
	pinned   []*pageEntry // Device pages, also those bound without a copy.
}

type copyModel struct{ device, host *pageEntry }

func newEngineModel(owner []int, device, host *arenaModel) *engineModel {
	return &engineModel{owner: owner, device: device, host: host, ids: map[pageName]bool{},
		reservations: map[uint64]*reservationModel{}, tickets: map[uint64]*ticketModel{}, holders: map[uint64][]*pageEntry{}}
}

// group lists the pools that share the ids of an owner.
func (m *engineModel) group(owner int) []int {
	var pools []int
	for pool, o := range m.owner {
		if o == owner {
			pools = append(pools, pool)
		}
	}
	return pools
}

// free ends a virtual page in every pool of its group (owner), or leaves a tombstone (window pool).
func (m *engineModel) free(name pageName) {
	if m.owner[name.pool] != name.pool {
		m.device.drop(name)
		return
	}
	for _, pool := range m.group(name.pool) {
		m.device.drop(pageName{pool, name.id})
	}
	delete(m.ids, name)
}

// reserve records unnamed pages at the places that the engine reports.
func (m *engineModel) reserve(id uint64, ids []pageName, places map[int][]uint32) {
	r := &reservationModel{ids: ids, pages: map[int][]*pageEntry{}}
	for pool, list := range places {
		for _, place := range list {
			entry := &pageEntry{pool: pool, pins: 1, place: place}
			m.device.nameless[entry] = true
			r.pages[pool] = append(r.pages[pool], entry)
		}
	}
	for _, name := range ids {
		m.ids[name] = true
	}
	m.reservations[id] = r
}

// cancel gives everything of a reservation back.
func (m *engineModel) cancel(id uint64) {
	r := m.reservations[id]
	for _, list := range r.pages {
		for _, entry := range list {
			m.device.unpin(entry)
		}
	}
	for _, name := range r.ids {
		delete(m.ids, name)
	}
	delete(m.reservations, id)
}

// finish ends a ticket: its pins go, and a good one leaves the source's bytes at its target.
func (m *engineModel) finish(id uint64, ok bool) {
	t := m.tickets[id]
	for _, c := range t.copies {
		source, target := c.device, c.host
		if t.toDevice {
			source, target = c.host, c.device
		}
		target.content, target.known = source.content, ok && source.known
		c.device.copies--
		c.host.copies--
		m.host.unpin(c.host)
	}
	for _, entry := range t.pinned {
		m.device.unpin(entry)
	}
	delete(m.tickets, id)
}
