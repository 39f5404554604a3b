package proptest

import (
	"errors"
	"slices"

	"pgregory.net/rapid"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
)

func (m *machine) reserve() {
	demand := m.drawDemand()
	takes := m.takes(demand)
	before := m.engine.FitsStatus(demandsOf(demand))
	id, err := m.engine.Reserve(takes)
	if !m.expect("reserve", demand, before, err) {
		return
	}
	var promised []pageName
	places := map[int][]uint32{}
	for pool, n := range demand {
		if m.model.owner[pool] == pool {
			for _, page := range takes[pool].Pages {
				name := pageName{pool, uint32(page)}
				if m.model.ids[name] {
					m.t.Fatalf("reserve handed out virtual page %d of pool %d twice", page, pool)
				}
				promised = append(promised, name)
			}
		}
		out := make([]ids.PhysicalPage, n+1)
		got, err := m.engine.ReservationPages(id, uint32(pool), out)
		m.must(err)
		if got != n {
			m.t.Fatalf("a reservation of %d pages of pool %d has %d", n, pool, got)
		}
		for _, place := range out[:n] {
			places[pool] = append(places[pool], uint32(place))
		}
	}
	m.model.reserve(uint64(id), promised, places)
}

func (m *machine) drawReservation() (uint64, *reservationModel) {
	held := sortedIDs(m.model.reservations)
	if len(held) == 0 {
		return 0, nil
	}
	id := rapid.SampledFrom(held).Draw(m.t, "reservation")
	return id, m.model.reservations[id]
}

func (m *machine) cancel() {
	id, r := m.drawReservation()
	if r == nil {
		return
	}
	m.must(m.engine.Cancel(ffi.Reservation(id)))
	m.model.cancel(id)
}

// readable are host pages whose content is known and that no copy writes.
func readable(entry *pageEntry) bool { return entry.known }

// load uses a reservation: some of its pages are copied from the host, some bound without, some given back.
func (m *machine) load() {
	id, r := m.drawReservation()
	if r == nil {
		return
	}
	transfer := &ffi.Transfer{Reservation: ffi.Reservation(id), Priority: ffi.ClassUrgent}
	var named []pageName // Device pages that get a page, and with copies the source.
	sources := map[pageName]*pageEntry{}
	use := func(name pageName) {
		host := m.model.host.names(name.pool, readable)
		if len(host) > 0 && rapid.Bool().Draw(m.t, "copy") {
			from := rapid.SampledFrom(host).Draw(m.t, "from")
			transfer.Copies = append(transfer.Copies, ffi.Copy{Pool: uint32(name.pool), DevicePage: ids.VirtualPage(name.id), HostPage: ids.HostPage(from.id)})
			sources[name] = m.model.host.live[from]
		} else {
			transfer.Binds = append(transfer.Binds, ffi.Bind{Pool: uint32(name.pool), VPage: ids.VirtualPage(name.id)})
		}
		named = append(named, name)
	}
	for _, name := range r.ids {
		if rapid.IntRange(0, 4).Draw(m.t, "use") > 0 {
			use(name)
		}
	}
	for pool, owner := range m.model.owner {
		if owner == pool {
			continue
		}
		targets := m.model.device.names(owner, nil)
		targets = slices.DeleteFunc(targets, func(name pageName) bool { return m.model.device.live[pageName{pool, name.id}] != nil })
		for _, name := range named {
			if name.pool == owner {
				targets = append(targets, name)
			}
		}
		for _, name := range m.subset(targets, len(r.pages[pool])) {
			use(pageName{pool, name.id})
		}
	}
	ticket, err := m.engine.Load(transfer)
	m.must(err)
	m.loaded(id, r, ticket, named, sources)
}

// loaded moves the used pages of a reservation to their names; the rest goes back.
func (m *machine) loaded(id uint64, r *reservationModel, ticket ffi.Ticket, named []pageName, sources map[pageName]*pageEntry) {
	if (ticket == 0) != (len(sources) == 0) {
		m.t.Fatalf("load with %d copies gave ticket %d", len(sources), ticket)
	}
	reserved := map[int]map[uint32]bool{}
	for pool, list := range r.pages {
		reserved[pool] = map[uint32]bool{}
		for _, entry := range list {
			reserved[pool][entry.place] = true
		}
	}
	m.model.cancel(id)
	t := &ticketModel{toDevice: true}
	for _, name := range named {
		if m.model.owner[name.pool] == name.pool {
			m.model.ids[name] = true
		}
		entry := m.model.device.bind(name, 0, false)
		source := sources[name]
		if source == nil {
			continue // Bound without a copy: nothing pins it, an eager compaction may have moved it already.
		}
		place := m.placeOfName(name)
		if !reserved[name.pool][place] {
			m.t.Fatalf("page %d of pool %d was loaded to %d, which the reservation did not hold", name.id, name.pool, place)
		}
		delete(reserved[name.pool], place)
		m.model.device.pin(entry, place)
		m.pinHost(source)
		entry.copies++
		source.copies++
		t.copies = append(t.copies, copyModel{entry, source})
		t.pinned = append(t.pinned, entry)
	}
	if ticket != 0 {
		m.model.tickets[uint64(ticket)] = t
	}
}

func (m *machine) placeOfName(name pageName) uint32 {
	out := make([]ids.PhysicalPage, 1)
	m.must(m.engine.Inspect(uint32(name.pool), []ids.VirtualPage{ids.VirtualPage(name.id)}, out))
	if out[0] == ids.NoPhysicalPage {
		m.t.Fatalf("page %d of pool %d has no place", name.id, name.pool)
	}
	return uint32(out[0])
}

// pinHost pins a host page at the place where the engine says it is.
func (m *machine) pinHost(entry *pageEntry) {
	for name, e := range m.model.host.live {
		if e == entry {
			m.model.host.pin(entry, m.hostPlace(name))
			return
		}
	}
	m.t.Fatalf("a source without a name")
}

func (m *machine) hostPlace(name pageName) uint32 {
	out := make([]ids.PhysicalPage, 1)
	m.must(m.engine.HostInspect(uint32(name.pool), []ids.HostPage{ids.HostPage(name.id)}, out))
	if out[0] == ids.NoPhysicalPage {
		m.t.Fatalf("host page %d of pool %d has no place", name.id, name.pool)
	}
	return uint32(out[0])
}

// backUp copies device pages of known content to host pages that nothing touches.
func (m *machine) backUp() {
	transfer := &ffi.Transfer{Priority: ffi.ClassNormal}
	t := &ticketModel{}
	var chosen, targets []pageName
	for pool := range m.info {
		idle := m.model.host.names(pool, func(e *pageEntry) bool { return e.copies == 0 })
		from := m.subset(m.model.device.names(pool, readable), min(3, len(idle)))
		to := rapid.Permutation(idle).Draw(m.t, "to")[:len(from)]
		chosen, targets = append(chosen, from...), append(targets, to...)
	}
	for i, name := range chosen {
		transfer.Copies = append(transfer.Copies, ffi.Copy{Pool: uint32(name.pool), DevicePage: ids.VirtualPage(name.id), HostPage: ids.HostPage(targets[i].id)})
	}
	ticket, err := m.engine.BackUp(transfer)
	m.must(err)
	for i, name := range chosen {
		device, host := m.model.device.live[name], m.model.host.live[targets[i]]
		m.model.device.pin(device, m.placeOfName(name))
		m.model.host.pin(host, m.hostPlace(targets[i]))
		device.copies++
		host.copies++
		host.known = false
		t.copies, t.pinned = append(t.copies, copyModel{device, host}), append(t.pinned, device)
	}
	if len(chosen) > 0 {
		m.model.tickets[uint64(ticket)] = t
	}
}

func (m *machine) runCopies() {
	_, err := m.engine.FaultRun(rapid.Uint32Range(1, 3).Draw(m.t, "transfers"), false)
	m.must(err)
}

func (m *machine) runLayers() {
	_, err := m.engine.FaultRun(rapid.Uint32Range(1, 3).Draw(m.t, "groups"), true)
	m.must(err)
}

func (m *machine) failNext() { m.must(m.engine.FaultHold(true, 1)) }

// cancelTransfer cancels a transfer, ended or not: what is left of it is its completion.
func (m *machine) cancelTransfer() {
	held := sortedIDs(m.model.tickets)
	if len(held) == 0 {
		return
	}
	ticket := ffi.Ticket(rapid.SampledFrom(held).Draw(m.t, "ticket"))
	before, _, _ := m.engine.TicketStatus(ticket)
	m.must(m.engine.TransferCancel(ticket))
	done, _, err := m.engine.TicketStatus(ticket)
	if !done || !before && !errors.Is(err, ffi.ErrCancelled) {
		m.t.Fatalf("a transfer that had ended (%v) before it was cancelled: done %v, %v", before, done, err)
	}
}

func (m *machine) poll() {
	done := make([]ffi.Completion, rapid.IntRange(1, 4).Draw(m.t, "completions"))
	n, err := m.engine.CompletionPoll(done)
	m.must(err)
	for _, c := range done[:n] {
		t := m.model.tickets[uint64(c.Ticket)]
		if t == nil {
			m.t.Fatalf("a completion of ticket %d, which is not in flight", c.Ticket)
		}
		if int(c.PageCount) != len(t.copies) || (c.Direction == ffi.TransferH2D) != t.toDevice {
			m.t.Fatalf("completion %+v of a transfer of %d pages, to the device: %v", c, len(t.copies), t.toDevice)
		}
		m.model.finish(uint64(c.Ticket), c.Status == ffi.StatusOK)
		if c.Status != ffi.StatusOK && c.Status != ffi.StatusDevice && c.Status != ffi.StatusCancelled {
			m.t.Fatalf("completion with %s", c.Status)
		}
	}
}

// drawHeld draws up to three mapped pages of each pool.
func (m *machine) drawHeld() ([]ffi.Pages, []pageName) {
	var pages []ffi.Pages
	var all []pageName
	for pool := range m.info {
		chosen := m.subset(m.model.device.names(pool, nil), 3)
		pages = append(pages, ffi.Pages{Pool: uint32(pool), Pages: virtual(chosen)})
		all = append(all, chosen...)
	}
	return pages, all
}

func (m *machine) lease() {
	pages, names := m.drawHeld()
	id, err := m.engine.LeaseAcquire(pages)
	m.must(err)
	m.hold(uint64(id), names)
}

func (m *machine) step() {
	pages, names := m.drawHeld()
	id, err := m.engine.StepOpen(rapid.Uint64Range(0, 2).Draw(m.t, "stream"), pages)
	m.must(err)
	m.hold(uint64(id), names)
	m.isStep(uint64(id))
}

func (m *machine) hold(id uint64, names []pageName) {
	entries := []*pageEntry{}
	for _, name := range names {
		entry := m.model.device.live[name]
		m.model.device.pin(entry, m.placeOfName(name))
		entries = append(entries, entry)
	}
	m.model.holders[id] = entries
}

func (m *machine) isStep(id uint64) {
	if m.steps == nil {
		m.steps = map[uint64]bool{}
	}
	m.steps[id] = true
}

func (m *machine) releaseHolder() {
	held := sortedIDs(m.model.holders)
	if len(held) > 0 {
		m.endHolder(rapid.SampledFrom(held).Draw(m.t, "holder"))
	}
}

func (m *machine) endHolder(id uint64) {
	if m.steps[id] {
		m.must(m.engine.StepClose(ffi.Step(id)))
	} else {
		m.must(m.engine.LeaseRelease(ffi.Lease(id)))
	}
	for _, entry := range m.model.holders[id] {
		m.model.device.unpin(entry)
	}
	delete(m.model.holders, id)
	delete(m.steps, id)
}

func (m *machine) hostTake() {
	demand := make([]int, len(m.info))
	var takes []ffi.HostPages
	for pool := range demand {
		demand[pool] = rapid.IntRange(0, 3).Draw(m.t, "host pages")
		takes = append(takes, ffi.HostPages{Pool: uint32(pool), Pages: make([]ids.HostPage, demand[pool])})
	}
	err := m.engine.HostAlloc(takes)
	if fits := m.model.host.fits(demand, false); (err == nil) != fits {
		m.t.Fatalf("host alloc of %v: %v, but fits is %v", demand, err, fits)
	}
	if err != nil {
		if !errors.Is(err, ffi.ErrNoCapacity) && !errors.Is(err, ffi.ErrMovesBlocked) {
			m.t.Fatal(err)
		}
		return
	}
	for _, take := range takes {
		for _, page := range take.Pages {
			name := pageName{int(take.Pool), uint32(page)}
			if m.model.host.live[name] != nil {
				m.t.Fatalf("host page %d of pool %d was handed out twice", page, take.Pool)
			}
			m.model.host.bind(name, 0, false)
		}
	}
}

func (m *machine) hostFree() {
	pool := m.drawPool("pool", nil)
	chosen := m.subset(m.model.host.names(pool, nil), 3)
	pages := make([]ids.HostPage, len(chosen))
	for i, name := range chosen {
		pages[i] = ids.HostPage(name.id)
	}
	m.must(m.engine.HostFree([]ffi.HostPages{{Pool: uint32(pool), Pages: pages}}))
	for _, name := range chosen {
		m.model.host.drop(name)
	}
}
