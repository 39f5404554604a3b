package radix

import "github.com/hicache/hicache/ffi/ids"

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
	// Want is, by pool, how many pages to give up at most. Pools are served in index order; pages that go along (a window with its full page) count.
	Want []int
	// Stop, if set, is asked after every page with the pages given up so far, by pool, pages pending in back-ups included; true ends the pass. It
	// runs under the tree's lock: short, and calling nothing of the tree.
	Stop     func(gone []int) bool
	Unbacked Unbacked
	// Duplicates lets a host pass also take host copies of pages that are on the device (write_back, or a host full of mirrors), after the pages that are
	// on the host only.
	Duplicates bool
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

// Evict gives up pages in policy order until Want is met, Stop says so, or nothing more can go (Blocker says why). O(log nodes) a node, O(1) a page.
func (t *Tree) Evict(req *EvictRequest, r *EvictResult) {
	r.reset(len(t.cfg.Pools))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tick(req.Now)
	t.settle()
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
		case role == Full || role == SWA && e.tailHasWindow(n):
			e.trimLeaf(n)
		case role == SWA:
			e.tombstone(n)
		default:
			e.state(n)
		}
	}
}

// tailHasWindow reports whether n is a leaf of the device tree whose last page carries a window of the wanted pool. Such a leaf goes from its tail, full pages
// included: without its window the tail serves nobody.
func (e *evictor) tailHasWindow(n *node) bool {
	t := e.t
	if !t.candidate(orderLeaf, n) {
		return false
	}
	last := n.pools[t.full].dev - 1
	return t.col(n, colFlags)[last]&windowBit(t.rank[e.pool]) != 0
}

// trimLeaf gives up pages from the tail of a leaf of the device tree, at least one unless the leaf is skipped.
func (e *evictor) trimLeaf(n *node) {
	t := e.t
	lost := 0
	whole := t.cfg.WholeLeaf
	window := t.cfg.Pools[e.pool].Role == SWA
	for n.pools[t.full].dev > 0 && (whole || e.short()) {
		i := int(n.pools[t.full].dev) - 1
		if t.col(n, colHost)[i] != ids.None {
			e.demotePage(n, i)
		} else if e.req.Unbacked == Drop && mayDrop(n, i) {
			e.dropFrom(n, i)
		} else {
			if e.req.Unbacked != Back || !e.backUpTail(n) {
				e.skip(n)
			}
			break
		}
		lost++
		if whole {
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
	t.forget(n, lost)
	e.close(n)
}

// demotePage takes the last device page of a leaf off the device; the host keeps it.
func (e *evictor) demotePage(n *node, i int) {
	t := e.t
	e.takePage(n, i, Demoted)
	t.ledgers[t.full].dup.Add(-1)
	if i == int(n.pages)-1 {
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
}

// takePage frees the device page i of n and the windows that go with it.
func (e *evictor) takePage(n *node, i int, kind Reason) {
	t := e.t
	dev, flags := t.col(n, colDevice), t.col(n, colFlags)
	e.f.device(t.full, dev[i])
	dev[i] = ids.None
	for s, w := range t.swa {
		if flags[i]&windowBit(s) != 0 {
			e.gone(w.pool, kind, int(n.start)+i, 1)
		}
	}
	t.clearWindows(n, i, flags)
	t.addDev(n, t.full, -1)
	e.gone(t.full, kind, int(n.start)+i, 1)
	t.emit(Removed, Device, t.full, kind, n, i, i+1)
}

// mayDrop reports whether nobody relies on what dropFrom takes along: stores pin host copies, and a node with a pin must not end.
func mayDrop(n *node, i int) bool {
	if n.anyPin() && (i == 0 || i < int(n.hostEnd)) {
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

// dropFrom gives up page i of a leaf for good, with whatever lies beyond it on the host.
func (e *evictor) dropFrom(n *node, i int) {
	t := e.t
	for n.kid != nil {
		t.detach(n.kid, Dropped, e.f)
	}
	for int(n.pages) > i+1 {
		e.dropHostTail(n, Dropped)
	}
	for _, p := range t.states {
		if n.pools[p].dev > 0 {
			e.gone(p, Dropped, n.end()-1, 1)
			t.dropState(n, p, e.f)
		}
		t.dropStateHost(n, p, e.f, Dropped)
	}
	for s := range t.swa {
		t.dropWindowHost(n, s, i, e.f, Dropped)
	}
	e.takePage(n, i, Dropped)
	t.shrink(n, i)
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
