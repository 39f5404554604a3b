package proptest

import (
	"errors"
	"slices"

	"pgregory.net/rapid"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
)

// write puts new contents into device pages, through their kernel ids, as a server's kernels would.
func (m *machine) write() {
	for pool := range m.info {
		names := m.subset(m.model.device.names(pool, func(e *pageEntry) bool { return e.copies == 0 }), 4)
		m.underLease(pool, names, func(kernelIDs []ids.KernelID) {
			contents := make([]uint64, len(names))
			for i, name := range names {
				m.content++
				contents[i] = m.content*0xd1342543de82ef95 + uint64(name.pool)
				entry := m.model.device.live[name]
				entry.content, entry.known = contents[i], true
			}
			m.writePages(pool, kernelIDs, contents)
		})
	}
}

// underLease translates pages and hands their kernel ids to f while a lease holds them.
func (m *machine) underLease(pool int, names []pageName, f func([]ids.KernelID)) {
	lease, err := m.engine.LeaseAcquire([]ffi.Pages{{Pool: uint32(pool), Pages: virtual(names)}})
	m.must(err)
	kernelIDs := make([]ids.KernelID, len(names))
	sinks, err := m.engine.KernelIDs(ffi.Holder(lease), uint32(pool), ffi.GranularityPage, virtual(names), kernelIDs)
	m.must(err)
	if sinks != 0 {
		m.t.Fatalf("%d of %d mapped pages of pool %d translate to the sink", sinks, len(names), pool)
	}
	f(kernelIDs)
	m.must(m.engine.LeaseRelease(lease))
}

func (m *machine) writePages(pool int, kernelIDs []ids.KernelID, contents []uint64) {
	if m.options.Backend == ffi.BackendNull {
		m.must(m.engine.DeviceTags(uint32(pool), kernelIDs, contents, true))
		return
	}
	for i, id := range kernelIDs {
		page, err := m.engine.DevicePage(uint32(pool), ids.PhysicalPage(placeOf(&m.info[pool], id)))
		m.must(err)
		writeContent(page, contents[i])
	}
}

// checkAll is the invariant after every action.
func (m *machine) checkAll() {
	if report, err := m.engine.Verify(); err != nil {
		m.t.Fatalf("verify: %v\n%s", err, report)
	}
	for pool := range m.info {
		m.checkDevicePages(pool)
		m.checkHostPages(pool)
		m.checkGauges(ffi.TierDevice, m.model.device, pool)
		m.checkGauges(ffi.TierHost, m.model.host, pool)
		m.checkCapacity(pool)
	}
	m.checkReservations()
	stats, err := m.engine.Stats()
	m.must(err)
	if stats.FenceWaitsTakes != 0 {
		m.t.Fatalf("a take waited: %d", stats.FenceWaitsTakes)
	}
	if held := len(m.model.holders); stats.Leases+stats.Steps != uint64(held) {
		m.t.Fatalf("%d leases and %d steps are held, want %d together", stats.Leases, stats.Steps, held)
	}
}

// checkDevicePages compares the content of every page whose content is known, and the place of every pinned page.
func (m *machine) checkDevicePages(pool int) {
	names := m.model.device.names(pool, nil)
	m.underLease(pool, names, func(kernelIDs []ids.KernelID) {
		tags := make([]uint64, len(names))
		if m.options.Backend == ffi.BackendNull {
			m.must(m.engine.DeviceTags(uint32(pool), kernelIDs, tags, false))
		}
		for i, name := range names {
			entry, place, whole := m.model.device.live[name], placeOf(&m.info[pool], kernelIDs[i]), true
			if m.options.Backend != ffi.BackendNull {
				page, err := m.engine.DevicePage(uint32(pool), ids.PhysicalPage(place))
				m.must(err)
				tags[i], whole = readContent(page)
			}
			if entry.known && (!whole || tags[i] != entry.content) {
				m.t.Fatalf("page %d of pool %d at %d holds %#x (whole: %v), want %#x", name.id, pool, place, tags[i], whole, entry.content)
			}
			if entry.pins > 0 && place != entry.place {
				m.t.Fatalf("page %d of pool %d is pinned at %d and now at %d", name.id, pool, entry.place, place)
			}
		}
	})
}

func (m *machine) checkHostPages(pool int) {
	names := m.model.host.names(pool, nil)
	pages := make([]ids.HostPage, len(names))
	for i, name := range names {
		pages[i] = ids.HostPage(name.id)
	}
	views := make([][]byte, len(names))
	lease, err := m.engine.HostView(ffi.HostPages{Pool: uint32(pool), Pages: pages}, views)
	m.must(err)
	tags := make([]uint64, len(names))
	if m.options.Backend == ffi.BackendNull {
		m.must(m.engine.HostTags(uint32(pool), pages, tags, false))
	}
	for i, name := range names {
		entry, whole := m.model.host.live[name], true
		if views[i] != nil {
			tags[i], whole = readContent(views[i])
		}
		if entry.known && (!whole || tags[i] != entry.content) {
			m.t.Fatalf("host page %d of pool %d holds %#x (whole: %v), want %#x", name.id, pool, tags[i], whole, entry.content)
		}
		if place := m.hostPlace(name); entry.pins > 0 && place != entry.place {
			m.t.Fatalf("host page %d of pool %d is pinned at %d and now at %d", name.id, pool, entry.place, place)
		}
	}
	m.must(m.engine.LeaseRelease(lease))
}

// checkGauges compares counts: what is live, and what is reserved or quarantined.
func (m *machine) checkGauges(tier ffi.Tier, arena *arenaModel, pool int) {
	stats, err := m.engine.PoolStats(tier, uint32(pool))
	m.must(err)
	named, nameless := arena.pagesOf(pool)
	if stats.LivePages != uint64(named) || stats.ReservedPages+stats.QuarantinedPages != uint64(nameless) {
		m.t.Fatalf("tier %d pool %d: %d live, %d reserved, %d quarantined; want %d and %d of the others", tier, pool, stats.LivePages, stats.ReservedPages,
			stats.QuarantinedPages, named, nameless)
	}
	if held := stats.LivePages + stats.HolePages + stats.ReservedPages + stats.QuarantinedPages; held != stats.SpanHigh-stats.SpanLow {
		m.t.Fatalf("tier %d pool %d: span [%d, %d) holds %d pages", tier, pool, stats.SpanLow, stats.SpanHigh, held)
	}
}

// checkCapacity: what is schedulable alone is what the formula says, and what is available now is no more.
func (m *machine) checkCapacity(pool int) {
	capacity, err := m.engine.Capacity(ffi.TierDevice, uint32(pool))
	m.must(err)
	most := uint64(m.model.device.most(pool))
	if m.options.Compaction != ffi.CompactionOff && capacity.SchedulablePages != most || capacity.SchedulablePages > most {
		m.t.Fatalf("pool %d: %d pages are schedulable, want %d", pool, capacity.SchedulablePages, most)
	}
	if capacity.AvailablePages > capacity.SchedulablePages {
		m.t.Fatalf("pool %d: %d pages available and only %d schedulable", pool, capacity.AvailablePages, capacity.SchedulablePages)
	}
	quarantined, err := m.engine.PoolStats(ffi.TierDevice, uint32(pool))
	m.must(err)
	if capacity.PendingPages != quarantined.QuarantinedPages {
		m.t.Fatalf("pool %d: %d pages pending, %d in quarantine", pool, capacity.PendingPages, quarantined.QuarantinedPages)
	}
}

// checkReservations: their pages stay where they were taken.
func (m *machine) checkReservations() {
	for id, r := range m.model.reservations {
		for pool, entries := range r.pages {
			out := make([]ids.PhysicalPage, len(entries))
			n, err := m.engine.ReservationPages(ffi.Reservation(id), uint32(pool), out)
			m.must(err)
			for i, entry := range entries {
				if n != len(entries) || uint32(out[i]) != entry.place {
					m.t.Fatalf("reservation %d, pool %d: pages at %v, was %d at %d", id, pool, out, entry.place, i)
				}
			}
		}
	}
}

func (m *machine) compact() {
	budget := ffi.CompactBudget{Tier: ffi.TierDevice, Pool: ffi.NoPool, PagesMax: rapid.Uint32Range(0, 3).Draw(m.t, "pages")}
	arena := m.model.device
	if rapid.Bool().Draw(m.t, "host") {
		budget.Tier, arena = ffi.TierHost, m.model.host
	}
	result, err := m.engine.Compact(&budget)
	if errors.Is(err, ffi.ErrUnsupported) || errors.Is(err, ffi.ErrMovesBlocked) {
		if m.options.Compaction != ffi.CompactionOff {
			m.t.Fatalf("compact: %v", err)
		}
		return
	}
	m.must(err)
	if budget.PagesMax > 0 && result.MovedPages > uint64(budget.PagesMax) {
		m.t.Fatalf("compact moved %d pages of a budget of %d", result.MovedPages, budget.PagesMax)
	}
	pinned := 0
	for _, entry := range arena.live {
		pinned += min(entry.pins, 1)
	}
	if budget.PagesMax == 0 && pinned+len(arena.nameless) == 0 && result.HolePages != 0 && m.options.Compaction != ffi.CompactionOff {
		m.t.Fatalf("compact without a budget and without pins left %d holes", result.HolePages)
	}
}

func (m *machine) setCompaction() {
	mode := rapid.SampledFrom([]ffi.Compaction{ffi.CompactionLazy, ffi.CompactionEager, ffi.CompactionOff}).Draw(m.t, "mode")
	m.must(m.engine.SetCompaction(mode))
	m.options.Compaction = mode
}

// resize succeeds exactly when what is there fits the new size.
func (m *machine) resize() {
	size := 16 * rapid.Uint64Range(m.options.DeviceBytesMax/32, m.options.DeviceBytesMax/16).Draw(m.t, "size")
	old := m.model.device.totalBytes
	err := m.engine.Resize(size)
	m.model.device.totalBytes = size
	fits := m.model.device.fits(make([]int, len(m.info)), false)
	switch {
	case err == nil && fits:
		return
	case err == nil:
		m.t.Fatalf("resize from %d to %d was granted and cannot hold what is there", old, size)
	case fits && m.options.Compaction != ffi.CompactionOff && !errors.Is(err, ffi.ErrInfeasible):
		m.t.Fatalf("resize from %d to %d was refused and fits: %v", old, size, err)
	}
	m.model.device.totalBytes = old
}

// plan: the quotas make the demand fit, none can be smaller alone, and a refusal means that all evictable pages would not do.
func (m *machine) plan() {
	demand := m.drawDemand()
	evictable := make([]uint64, len(demand))
	everything := slices.Clone(demand)
	for pool := range demand {
		free := m.model.device.names(pool, func(e *pageEntry) bool { return e.pins == 0 })
		evictable[pool] = uint64(rapid.IntRange(0, len(free)).Draw(m.t, "evictable"))
		everything[pool] -= int(evictable[pool])
	}
	quotas := make([]uint64, len(demand))
	preference := rapid.SampledFrom([]ffi.Preference{ffi.PreferenceFullFirst, ffi.PreferenceSWAFirst}).Draw(m.t, "preference")
	err := m.engine.ReclaimPlan(demandsOf(demand), evictable, preference, quotas)
	if m.options.Compaction == ffi.CompactionOff {
		return // What fits without moves depends on places.
	}
	if fits := m.model.device.fits(everything, false); (err == nil) != fits {
		m.t.Fatalf("plan for %v with %v evictable: %v, but all of it fits: %v", demand, evictable, err, fits)
	}
	if err != nil {
		return
	}
	with := slices.Clone(demand)
	for pool := range quotas {
		if quotas[pool] > evictable[pool] {
			m.t.Fatalf("plan for %v asks for %v of %v evictable", demand, quotas, evictable)
		}
		with[pool] -= int(quotas[pool])
	}
	if !m.model.device.fits(with, false) {
		m.t.Fatalf("plan %v for %v does not make it fit", quotas, demand)
	}
	for pool := range quotas {
		if with[pool]++; quotas[pool] > 0 && m.model.device.fits(with, false) {
			m.t.Fatalf("plan %v for %v: one page less of pool %d would do", quotas, demand, pool)
		}
		with[pool]--
	}
}

// misuse: wrong ids change nothing and are named.
func (m *machine) misuse() {
	pool := m.drawPool("owner", func(pool int) bool { return m.model.owner[pool] == pool })
	live := m.model.device.names(pool, nil)
	bad := []ids.VirtualPage{}
	for id := uint32(0); len(bad) < 1; id++ {
		if !m.model.ids[pageName{pool, id}] {
			bad = append(bad, ids.VirtualPage(id))
		}
	}
	if len(live) > 0 {
		bad = append(bad, ids.VirtualPage(live[0].id))
	}
	m.wants(ffi.ErrStale, m.engine.Free([]ffi.Pages{{Pool: uint32(pool), Pages: bad}}), "free of a page that is not allocated")
	if len(live) > 0 {
		twice := []ids.VirtualPage{ids.VirtualPage(live[0].id), ids.VirtualPage(live[0].id)}
		m.wants(ffi.ErrStale, m.engine.Free([]ffi.Pages{{Pool: uint32(pool), Pages: twice}}), "free of a page twice")
	}
	_, err := m.engine.LeaseAcquire([]ffi.Pages{{Pool: uint32(pool), Pages: bad[:1]}})
	m.wants(ffi.ErrNotMapped, err, "lease of a page that is not allocated")
	m.wants(ffi.ErrStale, m.engine.Cancel(ffi.Reservation(0)), "cancel of 0")
	m.wants(ffi.ErrStale, m.engine.LeaseRelease(ffi.Lease(1<<40)), "release of a lease that never was")
	m.wants(ffi.ErrStale, m.engine.StepClose(ffi.Step(0)), "close of step 0")
	host := []ids.HostPage{1 << 20}
	m.wants(ffi.ErrStale, m.engine.HostFree([]ffi.HostPages{{Pool: uint32(pool), Pages: host}}), "free of a host page that never was")
}

func (m *machine) wants(want, got error, what string) {
	m.t.Helper()
	if !errors.Is(got, want) {
		m.t.Fatalf("%s: %v, want %v", what, got, want)
	}
}
