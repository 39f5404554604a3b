package radix

import (
	"fmt"

	"github.com/hicache/hicache/ffi/ids"
)

// LoadID names a load-back from BeginLoad to FinishLoad. The zero value is none.
type LoadID struct{ slot, gen uint32 }

// load is a load in flight. Positions and pages are remembered one by one, because an insert may supersede some and a failed load below may
// take away others; what the tree still holds is what the load still has to settle.
type load struct {
	pin     Pin
	bottom  *node
	at      []int32 // positions
	page    []uint32
	windows []loadWindow
	states  []loadState
}

type loadWindow struct {
	swa  int // index in Tree.swa
	at   int32
	page uint32 // full page that the window belongs to
	bind bool   // page was resident before the load
}

type loadState struct {
	pool int
	page uint32
}

// Refresh recomputes what a load for m must bring after other loads, inserts or evictions went by; m stays pinned and Usable stays.
// ErrPending: something that m needs is already being loaded and m was matched without Join; match again with it. ErrGap: a load that m
// joined has failed, or its path was cleared; match again. ErrStale: m was released.
func (t *Tree) Refresh(m *Match) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	n, live := t.bottom(m.Pin)
	switch {
	case !live:
		return ErrStale
	case n == nil:
		return nil
	case n.detached:
		return ErrGap
	}
	m.path = pathTo(n, m.path[:0])
	b := t.bounds(m.path, int(n.pages), m.opt)
	if b.usable < m.Usable || n.end() != m.Usable {
		return ErrGap
	}
	m.Ready = b.ready
	t.fill(m, m.path, b)
	if !m.opt.Join && t.inFlight(m) {
		return ErrPending
	}
	return nil
}

// inFlight reports whether anything that m would load is being loaded already.
func (t *Tree) inFlight(m *Match) bool {
	for _, n := range m.path {
		if full := &n.pools[t.full]; full.pending > 0 && n.end() > len(m.Resident) {
			return true
		}
		for _, w := range t.swa {
			if n.pools[w.pool].pending > 0 && n.end() > m.Usable-w.window {
				return true
			}
		}
		for _, p := range t.states {
			if n.pools[p].pending > 0 && n.end() == m.Usable {
				return true
			}
		}
	}
	return false
}

// BeginLoad publishes the device pages of a load that is queued for m (after Refresh, under a lock of the caller's that keeps other loads
// and rebinds away in between): full[i] becomes the page of position len(m.Resident)+i, the windows of m.LoadWindows are bound at their
// positions, states[pool] is the state of that pool (NoVirtualPage where none is loaded; nil without STATE pools). They are pending:
// matched only with Join, until FinishLoad. The load has pins of its own on device and host, so m may be released. A position that became
// resident meanwhile keeps the page it has; the load's page for it is appended to surplus and must be freed, by free, at the
// acknowledgement. On error nothing has changed.
func (t *Tree) BeginLoad(m *Match, full []ids.VirtualPage, states []ids.VirtualPage, surplus *Freed) (LoadID, error) {
	if len(full) != len(m.LoadFull) || states != nil && len(states) != len(t.cfg.Pools) {
		return LoadID{}, fmt.Errorf("%w: %d full pages and %d states for a load of %d pages and %d pools", ErrArgument,
			len(full), len(states), len(m.LoadFull), len(t.cfg.Pools))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n, live := t.bottom(m.Pin)
	if !live {
		return LoadID{}, ErrStale
	}
	if n == nil {
		return LoadID{}, fmt.Errorf("%w: a load for an empty match", ErrArgument)
	}
	if n.detached || n.end() != m.Usable || !t.residentUpTo(n, len(m.Resident)) {
		return LoadID{}, ErrGap
	}
	surplus.fit(len(t.cfg.Pools))
	slot, gen, l := t.loads.take()
	l.bottom = n
	l.at, l.page, l.windows, l.states = l.at[:0], l.page[:0], l.windows[:0], l.states[:0]
	t.path = pathTo(n, t.path[:0])
	for _, p := range t.path {
		t.loadFull(l, p, len(m.Resident), full, surplus)
		for s, w := range t.swa {
			t.loadWindows(l, p, s, m.LoadWindows[w.pool], len(m.Resident), full)
		}
	}
	for _, p := range t.states {
		if states != nil {
			t.loadState(l, n, p, uint32(states[p]), surplus)
		}
	}
	var spec pinSpec
	t.spec(&spec, m, bounds{usable: m.Usable})
	l.pin = t.pin(n, &spec)
	for _, p := range t.path {
		t.reconcile(p)
	}
	return LoadID{slot, gen}, nil
}

// residentUpTo reports whether positions [0, to) of n's path are on the device, arrived or not.
func (t *Tree) residentUpTo(n *node, to int) bool {
	for !n.root() && int(n.start) >= to {
		n = n.parent
	}
	return n.root() || int(n.start+n.pools[t.full].dev) >= to
}

func (t *Tree) loadFull(l *load, n *node, from int, full []ids.VirtualPage, surplus *Freed) {
	dev, flags := t.col(n, colDevice), t.col(n, colFlags)
	st := &n.pools[t.full]
	for i := max(0, from-int(n.start)); i < int(n.pages); i++ {
		at := int(n.start) + i
		v := uint32(full[at-from])
		if i < int(st.dev) {
			surplus.device(t.full, v)
			continue
		}
		dev[i] = v
		flags[i] |= flagPending
		l.at, l.page = append(l.at, int32(at)), append(l.page, v)
		t.addDev(n, t.full, 1)
		t.addPending(n, t.full, 1)
		t.dupRange(n, i, i+1, 1)
	}
}

func (t *Tree) loadWindows(l *load, n *node, s int, list []HostWindow, from int, full []ids.VirtualPage) {
	dev, flags := t.col(n, colDevice), t.col(n, colFlags)
	pool := t.swa[s].pool
	st := &n.pools[pool]
	for _, w := range list {
		i := w.At - int(n.start)
		if i < 0 || i >= int(n.pages) {
			continue
		}
		page, bind := uint32(w.Bind), w.Bind != ids.NoVirtualPage
		if !bind {
			page = uint32(full[w.At-from])
		}
		if dev[i] != page || flags[i]&windowBit(s) != 0 {
			continue // superseded: the window goes with the load's own page
		}
		flags[i] |= windowBit(s) | pendingBit(s)
		if st.dev == 0 || st.first > int32(i) {
			st.first = int32(i)
		}
		t.addDev(n, pool, 1)
		t.addPending(n, pool, 1)
		l.windows = append(l.windows, loadWindow{s, int32(w.At), page, bind})
	}
}

func (t *Tree) loadState(l *load, n *node, pool int, page uint32, surplus *Freed) {
	if page == ids.None {
		return
	}
	s := &n.pools[pool]
	if s.devID != ids.None {
		surplus.device(pool, page)
		return
	}
	s.devID = page
	t.addDev(n, pool, 1)
	t.addPending(n, pool, 1)
	l.states = append(l.states, loadState{pool, page})
}

// FinishLoad ends a load. ok: its pages are matchable. Not ok: they are off the books, and so is every load that was stacked on them; host
// copies are intact. f lists what has to be freed now (what is still pinned and not the load's own follows through DrainOrphans). It
// returns whether everything the load brought can be matched: ok, unless a load below failed or the path was cleared.
func (t *Tree) FinishLoad(id LoadID, ok bool, f *Freed) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.loads.get(id.slot, id.gen)
	if l == nil {
		return false, ErrStale
	}
	f.fit(len(t.cfg.Pools))
	t.path = pathTo(l.bottom, t.path[:0])
	whole := ok && !l.bottom.detached
	if whole {
		whole = t.arrive(l, f)
	} else {
		t.withdraw(l, f)
	}
	bottom := l.bottom
	l.bottom = nil
	t.release(l.pin)
	t.loads.put(id.slot)
	if !bottom.detached {
		for m := bottom; m != nil && !m.root(); m = m.parent {
			t.reconcile(m)
		}
	}
	t.settle()
	return whole, nil
}

// holder returns the node of path that holds a position.
func holder(path []*node, at int32) *node {
	lo, hi := 0, len(path)
	for lo < hi {
		if m := (lo + hi) / 2; path[m].start+path[m].pages <= at {
			lo = m + 1
		} else {
			hi = m
		}
	}
	if lo == len(path) || path[lo].start > at {
		return nil
	}
	return path[lo]
}

// arrive publishes what the tree still holds of l and reports whether nothing was taken away.
func (t *Tree) arrive(l *load, f *Freed) bool {
	whole := true
	for j, at := range l.at {
		n := holder(t.path, at)
		i := int(at - n.start)
		flags := t.col(n, colFlags)
		switch v := t.col(n, colDevice)[i]; {
		case v == l.page[j] && flags[i]&flagPending != 0:
			flags[i] &^= flagPending
			t.addPending(n, t.full, -1)
			t.emit(Stored, Device, t.full, ByLoad, n, i, i+1)
		default:
			f.device(t.full, l.page[j])
			whole = whole && v != ids.None
		}
	}
	for _, w := range l.windows {
		n := holder(t.path, w.at)
		i := int(w.at - n.start)
		flags := t.col(n, colFlags)
		if t.col(n, colDevice)[i] == w.page && flags[i]&pendingBit(w.swa) != 0 {
			flags[i] &^= pendingBit(w.swa)
			pool := t.swa[w.swa].pool
			t.addPending(n, pool, -1)
			t.emit(Stored, Device, pool, ByLoad, n, i, i+1)
		}
	}
	for _, s := range l.states {
		n := l.bottom
		if n.pools[s.pool].devID == s.page {
			t.addPending(n, s.pool, -1)
			t.emit(Stored, Device, s.pool, ByLoad, n, int(n.pages)-1, int(n.pages))
		} else {
			f.device(s.pool, s.page)
			whole = false
		}
	}
	return whole
}

// withdraw takes back what the tree still holds of l, and everything on the device below its first page.
func (t *Tree) withdraw(l *load, f *Freed) {
	for _, w := range l.windows {
		n := holder(t.path, w.at)
		i := int(w.at - n.start)
		flags := t.col(n, colFlags)
		if t.col(n, colDevice)[i] != w.page || flags[i]&pendingBit(w.swa) == 0 {
			continue
		}
		flags[i] &^= pendingBit(w.swa) | windowBit(w.swa)
		pool := t.swa[w.swa].pool
		if !n.detached {
			t.addPending(n, pool, -1)
			t.addDev(n, pool, -1)
		}
		if w.bind && !n.detached { // else it goes with its full page, at the node's last pin
			f.device(pool, w.page)
		}
	}
	for _, s := range l.states {
		if st := &l.bottom.pools[s.pool]; st.devID == s.page {
			st.devID = ids.None
			if !l.bottom.detached {
				t.addPending(l.bottom, s.pool, -1)
				t.addDev(l.bottom, s.pool, -1)
			}
		}
		f.device(s.pool, s.page)
	}
	var cut *node
	cutAt := 0
	for j, at := range l.at {
		f.device(t.full, l.page[j])
		n := holder(t.path, at)
		i := int(at - n.start)
		dev, flags := t.col(n, colDevice), t.col(n, colFlags)
		if dev[i] != l.page[j] || flags[i]&flagPending == 0 {
			continue
		}
		if n.detached {
			dev[i] = ids.None // handed over here; the rest of the node goes with its last pin
		} else if cut == nil {
			cut, cutAt = n, i
		}
	}
	if cut != nil {
		t.cutDevice(cut, cutAt, f)
	}
}

// fillJoins lists the loads that pages of m's path are waiting for.
func (t *Tree) fillJoins(m *Match, path []*node) {
	for i, it := range t.loads.items {
		if !it.used || !it.rec.touches(path) {
			continue
		}
		m.Joins = append(m.Joins, LoadID{uint32(i + 1), it.gen})
	}
}

// touches reports whether the load brings anything to a node of path.
func (l *load) touches(path []*node) bool {
	low := int32(1<<31 - 1)
	if len(l.at) > 0 {
		low = l.at[0]
	}
	for _, w := range l.windows {
		low = min(low, w.at)
	}
	for n := l.bottom; n != nil && !n.root(); n = n.parent {
		if len(l.states) == 0 && n.start+n.pages <= low {
			return false
		}
		if m := holder(path, n.start); m == n {
			return true
		}
		if len(l.states) > 0 && n.start+n.pages <= low {
			return false // states sit at the bottom only
		}
	}
	return false
}
