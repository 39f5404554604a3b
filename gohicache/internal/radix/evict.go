package radix

import (
	"slices"

	"github.com/hicache/hicache/ffi/ids"
)

// Unbacked says what an eviction does with device pages that have no host copy.
type Unbacked uint8

const (
	Drop Unbacked = iota // give them up
	Back                 // list them in EvictResult.BackUps and go on; they leave the device at FinishBackUp (write_back)
	Keep                 // leave them
)

// EvictRequest asks for pages of one tier.
type EvictRequest struct {
	Tier Tier
	// Want is, by pool, how many pages to give up at most. Pools are served in index order; pages that go along (a window with its full
	// page) count.
	Want []int
	// Stop, if set, is asked after every page with the pages given up so far, by pool, pages pending in back-ups included; true ends the
	// pass. It runs under the tree's lock: short, and calling nothing of the tree.
	Stop     func(gone []int) bool
	Unbacked Unbacked
	// Duplicates lets a host pass also take host copies of pages that are on the device (write_back, or a host full of mirrors), after the
	// pages that are on the host only.
	Duplicates bool
	Cause      Cause // what Change.Cause of the pages says
	Now        uint64
}

// Blocker says why an eviction pass ended without what was wanted.
type Blocker uint8

const (
	NotBlocked     Blocker = iota
	NothingLeft            // the tree holds no more pages of the pool on the tier
	Pinned                 // what is left is pinned, by matches, sequences or transfers
	InTransfer             // as Pinned, and transfers are in flight that will end
	OnlyUnbacked           // what is left has no host copy and the request said Keep
	OnlyDuplicates         // what is left on the host mirrors the device and the request did not allow it
)

// Victim is a run of pages of one path that left a tier in one pass, tail first.
type Victim struct {
	Pool  int
	Kind  Reason // Demoted, Dropped, Tombstoned or HostEvicted
	From  int    // position of the first page
	Pages int
}

// EvictResult is reused like Match.
type EvictResult struct {
	Gone    []int // by pool, without the pending ones
	Pending []int // by pool: in BackUps, free once those are finished
	Victims []Victim
	Freed   Freed
	BackUps []BackUp  // begun; the caller runs them and calls FinishBackUp, with ok=false if it cannot
	Blocker []Blocker // by pool
}

func (r *EvictResult) reset(pools int) {
	for len(r.Gone) < pools {
		r.Gone, r.Pending, r.Blocker = append(r.Gone, 0), append(r.Pending, 0), append(r.Blocker, NotBlocked)
	}
	clear(r.Gone)
	clear(r.Pending)
	clear(r.Blocker)
	r.Victims, r.BackUps = r.Victims[:0], r.BackUps[:0]
	r.Freed.fit(pools)
	r.Freed.Reset()
}

// Evict gives up pages in policy order until Want is met, Stop says so, or nothing more can go (Blocker says why). O(log nodes) a node,
// O(1) a page.
func (t *Tree) Evict(req *EvictRequest, r *EvictResult) {
	r.reset(len(t.cfg.Pools))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tick(req.Now)
	t.settle()
	if req.Tier == Device {
		t.pressure()
	}
	t.cause = req.Cause
	e := &t.evictor
	*e = evictor{t: t, req: req, r: r, f: &r.Freed}
	for p := range t.cfg.Pools {
		if p >= len(req.Want) || req.Want[p] <= 0 {
			continue
		}
		e.pool = p
		if req.Tier == Device {
			e.device()
		} else {
			e.host()
		}
		if e.short() {
			r.Blocker[p] = e.blocker()
		}
	}
	t.cause = ForRoom
	t.pass++
	for _, n := range t.skipped {
		if !n.freed {
			t.reconcile(n)
		}
	}
	t.skipped = t.skipped[:0]
}

// evictor is one pass. It gives up pages one by one; close settles a node's place once the pass is done with it.
type evictor struct {
	t       *Tree
	req     *EvictRequest // nil outside a pass
	r       *EvictResult
	f       *Freed
	pool    int // whose Want is being served
	stopped bool
	tally   [MaxPools]int
}

// short reports whether the pass must go on for the present pool.
func (e *evictor) short() bool {
	return !e.stopped && e.r.Gone[e.pool]+e.r.Pending[e.pool] < e.req.Want[e.pool]
}

// gone counts pages of a pool that left, as a victim.
func (e *evictor) gone(pool int, kind Reason, at, pages int) {
	if e.r == nil {
		return
	}
	e.r.Gone[pool] += pages
	if v := e.r.Victims; len(v) > 0 {
		last := &v[len(v)-1]
		if last.Pool == pool && last.Kind == kind && at+pages == last.From {
			last.From, last.Pages = at, last.Pages+pages
			return
		}
		if last.Pool == pool && last.Kind == kind && last.From+last.Pages == at && kind == Tombstoned {
			last.Pages += pages
			return
		}
	}
	e.r.Victims = append(e.r.Victims, Victim{pool, kind, at, pages})
}

// ask puts the caller's question after a victim.
func (e *evictor) ask() {
	if e.req == nil || e.req.Stop == nil || e.stopped {
		return
	}
	for p := range e.r.Gone {
		e.tally[p] = e.r.Gone[p] + e.r.Pending[p]
	}
	e.stopped = e.req.Stop(e.tally[:len(e.r.Gone)])
}

// skip leaves n alone for the rest of the pass.
func (e *evictor) skip(n *node) {
	n.skip = e.t.pass
	e.t.skipped = append(e.t.skipped, n)
	e.t.reconcile(n)
}

func (e *evictor) blocker() Blocker {
	t, l := e.t, &e.t.ledgers[e.pool]
	held := l.dev.Load()
	if e.req.Tier == Host {
		held = l.host.Load()
	}
	switch {
	case held == 0:
		return NothingLeft
	case len(t.skipped) > 0 && e.req.Tier == Device && e.req.Unbacked == Keep:
		return OnlyUnbacked
	case e.req.Tier == Host && e.pool == t.full && !e.req.Duplicates && t.top(orderDuplicate) != nil:
		return OnlyDuplicates
	case t.loads.live+t.backs.live+t.stores.live > 0:
		return InTransfer
	}
	return Pinned
}

// device serves the present pool's Want on the device.
func (e *evictor) device() {
	t := e.t
	role := t.cfg.Pools[e.pool].Role
	o := orderLeaf
	if role != Full {
		o = orderDevice(e.pool)
	}
	for e.short() {
		n := t.top(o)
		if n == nil {
			return
		}
		switch {
		case role == Full || role == SWA && e.tailHasWindow(n) && (t.cfg.WholeLeaf || !e.hasColdWindow(n)):
			e.trimLeaf(n)
		case role == SWA:
			e.tombstone(n)
		default:
			e.state(n)
		}
	}
}

// tailHasWindow reports whether n is a leaf of the device tree whose last page carries a window of the wanted pool. Such a leaf goes from
// its tail, full pages included: without its window the tail serves nobody.
func (e *evictor) tailHasWindow(n *node) bool {
	t := e.t
	if !t.candidate(orderLeaf, n) {
		return false
	}
	last := n.pools[t.full].dev - 1
	return t.col(n, colFlags)[last]&windowBit(t.rank[e.pool]) != 0
}

// hasColdWindow reports whether n may have windows before its last one, which serve only matches that end inside n: they go first.
func (e *evictor) hasColdWindow(n *node) bool {
	return int(n.pools[e.pool].first) < e.t.coldEnd(n, e.pool)
}

// trimLeaf gives up pages from the tail of a leaf of the device tree, run by run, at least one page unless the leaf is skipped.
func (e *evictor) trimLeaf(n *node) {
	t := e.t
	whole := t.cfg.WholeLeaf
	window := t.cfg.Pools[e.pool].Role == SWA
	for n.has(t.full) && (whole || e.short()) {
		from, hosted := e.tailRun(n, window)
		k := int(n.pools[t.full].dev) - from
		switch {
		case hosted:
			e.demoteRun(n, from)
		case e.req.Unbacked == Drop && mayDrop(n, from):
			e.dropRun(n, from)
		default:
			if e.req.Unbacked != Back || !e.backUpTail(n) {
				e.skip(n)
			}
			k = 0
		}
		if k == 0 || whole {
			if k == 0 {
				break
			}
			continue
		}
		e.ask()
		if window && !e.tailHasWindow(n) {
			break // the rest of the leaf has nothing that is wanted
		}
	}
	if whole {
		e.ask()
	}
	e.close(n)
}

// tailRun is how far down the next victims at the tail of a leaf reach, all of which have a host copy or none has: one page where somebody
// asks after every page, else as many as are wanted.
func (e *evictor) tailRun(n *node, window bool) (from int, hosted bool) {
	t := e.t
	to := int(n.pools[t.full].dev)
	most := 1
	if t.cfg.WholeLeaf {
		most = to
	} else if e.req.Stop == nil && !window {
		most = e.req.Want[e.pool] - e.r.Gone[e.pool] - e.r.Pending[e.pool]
	}
	least := max(0, to-most)
	if n.pools[t.full].host == 0 {
		return least, false
	}
	host := t.col(n, colHost)
	hosted = host[to-1] != ids.None
	for from = to - 1; from > least && (host[from-1] != ids.None) == hosted; from-- {
	}
	return from, hosted
}

// demoteRun takes the device pages from page from on off the device; the host keeps them.
func (e *evictor) demoteRun(n *node, from int) {
	t := e.t
	to := int(n.pools[t.full].dev)
	e.takeRun(n, from, Demoted)
	dev, flags := t.col(n, colDevice), t.col(n, colFlags)
	for i := from; i < to; i++ {
		dev[i] = ids.None
		flags[i] &^= windowMask
	}
	t.ledgers[t.full].dup.Add(int64(from - to))
	if to < int(n.pages) {
		return
	}
	for _, p := range t.states {
		if n.pools[p].dev > 0 {
			kind := Dropped
			if n.pools[p].host > 0 {
				kind = Demoted
			}
			e.gone(p, kind, n.end()-1, 1)
			t.dropState(n, p, e.f)
		}
	}
}

// takeRun takes the device pages from page from on, and the windows that go with them, off the books; none of them is in flight.
func (e *evictor) takeRun(n *node, from int, kind Reason) {
	t := e.t
	to := int(n.pools[t.full].dev)
	dev, flags := t.col(n, colDevice)[from:to], t.col(n, colFlags)[from:to]
	freed := slices.Grow(e.f.Device[t.full], len(dev))
	for i := len(dev) - 1; i >= 0; i-- { // all of them are on the device
		freed = append(freed, ids.VirtualPage(dev[i]))
	}
	e.f.Device[t.full] = freed
	for s, w := range t.swa {
		if n.pools[w.pool].dev == 0 {
			continue
		}
		if c := countBits(flags, windowBit(s)); c > 0 {
			t.addDev(n, w.pool, -c)
			e.goneWindows(n, s, from, to, kind)
		}
	}
	t.addDev(n, t.full, int32(from-to))
	e.gone(t.full, kind, int(n.start)+from, to-from)
	t.emit(Removed, Device, t.full, kind, n, from, to)
}

// goneWindows counts and tells of the windows among pages [from, to) of n, runs from the tail down.
func (e *evictor) goneWindows(n *node, s, from, to int, kind Reason) {
	t := e.t
	flags, bit, pool := t.col(n, colFlags), windowBit(s), t.swa[s].pool
	for hi := to; hi > from; {
		if flags[hi-1]&bit == 0 {
			hi--
			continue
		}
		lo := hi
		for lo > from && flags[lo-1]&bit != 0 {
			lo--
		}
		e.gone(pool, kind, int(n.start)+lo, hi-lo)
		t.emit(Removed, Device, pool, kind, n, lo, hi)
		hi = lo
	}
}

// mayDrop reports whether nobody relies on what dropRun takes along: stores pin host copies, and a node with a pin must not end.
func mayDrop(n *node, from int) bool {
	if n.anyPin() && (from == 0 || from < int(n.hostEnd)) {
		return false
	}
	return !pinnedBelow(n)
}

func pinnedBelow(n *node) bool {
	for c := n.kid; c != nil; c = c.next {
		if c.anyPin() || pinnedBelow(c) {
			return true
		}
	}
	return false
}

// dropRun gives up the pages of a leaf from page from on for good, with whatever lies beyond them on the host.
func (e *evictor) dropRun(n *node, from int) {
	t := e.t
	for n.kid != nil {
		t.detach(n.kid, Dropped, e.f)
	}
	for n.pages > n.pools[t.full].dev {
		e.dropHostTail(n, Dropped)
	}
	for _, p := range t.states {
		if n.pools[p].dev > 0 {
			e.gone(p, Dropped, n.end()-1, 1)
			t.dropState(n, p, e.f)
		}
		t.dropStateHost(n, p, e.f, Dropped)
	}
	for s, w := range t.swa {
		for i := from; n.pools[w.pool].host > 0 && i < int(n.pages); i++ {
			t.dropWindowHost(n, s, i, e.f, Dropped)
		}
	}
	e.takeRun(n, from, Dropped)
	t.shrink(n, from)
}

// close settles the place of a node that the pass has changed, and ends it if it has no page left.
func (e *evictor) close(n *node) {
	if n.freed {
		return
	}
	if n.pages == 0 {
		e.t.remove(n)
		return
	}
	e.t.thin(n)
	e.t.reconcile(n)
}

// backUpTail begins the back-up of the unbacked pages at the tail of a leaf, as many as are wanted.
func (e *evictor) backUpTail(n *node) bool {
	t := e.t
	b := e.newBackUp()
	to := int(n.pools[t.full].dev)
	from := to
	room := e.req.Want[e.pool] - e.r.Gone[e.pool] - e.r.Pending[e.pool]
	host, flags := t.col(n, colHost), t.col(n, colFlags)
	for from > 0 && host[from-1] == ids.None && flags[from-1]&flagBacking == 0 && (room > 0 || t.cfg.WholeLeaf) {
		from--
		room--
	}
	if from < to {
		end := to
		if to == int(n.pages) {
			end = int(n.pages)
		}
		t.listUnbacked(n, from, end, b)
	}
	if b.empty() {
		e.r.BackUps = e.r.BackUps[:len(e.r.BackUps)-1]
		return false
	}
	t.beginBackUp(n, b, demoteTail, t.full)
	t.reconcile(n)
	e.pending(b)
	e.r.Pending[t.full] += len(b.Full)
	for s, w := range t.swa { // windows go with their full pages, hosted or not
		for i := from; i < to; i++ {
			if flags[i]&windowBit(s) != 0 {
				e.r.Pending[w.pool]++
			}
		}
	}
	e.ask()
	return true
}

func (e *evictor) pending(b *BackUp) {
	for p := range b.States {
		e.r.Pending[p] += len(b.States[p])
	}
}

// newBackUp appends a back-up to the result, reusing an old one's memory.
func (e *evictor) newBackUp() *BackUp {
	r := e.r
	if len(r.BackUps) < cap(r.BackUps) {
		r.BackUps = r.BackUps[:len(r.BackUps)+1]
	} else {
		r.BackUps = append(r.BackUps, BackUp{})
	}
	b := &r.BackUps[len(r.BackUps)-1]
	b.reset(len(e.t.cfg.Pools))
	return b
}
