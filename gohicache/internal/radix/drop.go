package radix

import "github.com/hicache/hicache/ffi/ids"

// limboPage is a device page that left a node which was pinned at that moment. It may not be given back before that pin is gone, or its id
// could be handed out again while somebody still takes it for the prefix.
type limboPage struct {
	node *node
	gen  uint32
	pool int
	page uint32
}

// give lists a device page that n just lost.
func (t *Tree) give(n *node, pool int, page uint32, f *Freed) {
	if page == ids.None {
		return
	}
	if n.anyPin() {
		t.limbo = append(t.limbo, limboPage{n, n.gen, pool, page})
		t.waiting.Add(1)
		return
	}
	f.device(pool, page)
}

// detach takes the subtree of n out of the tree. Unpinned nodes give their pages to f at once; pinned ones become orphans.
func (t *Tree) detach(n *node, reason Reason, f *Freed) {
	p := n.parent
	t.unlink(n)
	if p.root() {
		t.dropping = *p.space
		n.parent = nil // the root may be reused long before n's last pin is gone
		t.closeSpace(p)
	} else {
		t.reconcile(p)
	}
	t.scatter(n, reason, f)
}

// scatter ends every node of an unlinked subtree, children first.
func (t *Tree) scatter(n *node, reason Reason, f *Freed) {
	for n.kid != nil {
		c := n.kid
		t.cutLink(c)
		n.kids--
		t.scatter(c, reason, f)
	}
	n.devKids, n.hostKids = 0, 0
	t.emitAll(n, reason)
	n.detached = true
	t.dupRange(n, 0, int(n.pools[t.full].dev), -1)
	for p := range n.pools {
		s := &n.pools[p]
		t.addDev(n, p, -s.dev)
		t.addHost(n, p, -s.host)
		t.addPending(n, p, -s.pending)
	}
	t.reconcile(n)
	if n.anyPin() {
		t.orphans = append(t.orphans, n)
		t.waiting.Add(1)
		return
	}
	t.collect(n, f)
}

// collect gives every page that n names to f and puts n back.
func (t *Tree) collect(n *node, f *Freed) {
	for _, v := range t.col(n, colDevice) {
		f.device(t.full, v)
	}
	for _, h := range t.col(n, colHost) {
		f.host(t.full, h)
	}
	for s, w := range t.swa {
		for _, h := range t.col(n, colWindowHost+s) {
			f.host(w.pool, h)
		}
	}
	for _, p := range t.states {
		f.device(p, n.pools[p].devID)
		f.host(p, n.pools[p].hostID)
	}
	t.unuse(n.strip, int(n.pages))
	t.slab.put(n)
}

// remove puts back a node that has lost its last page.
func (t *Tree) remove(n *node) {
	p := n.parent
	t.unlink(n)
	n.detached = true
	t.reconcile(n)
	t.slab.put(n)
	if p.root() {
		t.closeSpace(p)
	} else {
		t.reconcile(p)
	}
}

// DrainOrphans appends to f the pages of nodes that were dropped while pinned (Clear, DropNamespace, a failed load) and whose last pin is
// gone by now. O(1) when there are none; call it after Release and at every poll.
func (t *Tree) DrainOrphans(f *Freed) {
	if t.waiting.Load() == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	f.fit(len(t.cfg.Pools))
	limbo := t.limbo[:0]
	for _, l := range t.limbo {
		if l.node.gen == l.gen && l.node.anyPin() {
			limbo = append(limbo, l)
		} else {
			f.device(l.pool, l.page)
		}
	}
	t.limbo = limbo
	orphans := t.orphans[:0]
	for _, n := range t.orphans {
		if n.anyPin() {
			orphans = append(orphans, n)
		} else {
			t.collect(n, f)
		}
	}
	clear(t.orphans[len(orphans):])
	t.orphans = orphans
	t.waiting.Store(int32(len(t.limbo) + len(t.orphans)))
}

// Dropped reports whether the path that p pins was dropped: its pages stay allocated until the pin is released, but nobody finds them.
func (t *Tree) Dropped(p Pin) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	n, live := t.bottom(p)
	return live && n != nil && n.detached
}

// Clear drops everything; what is pinned stays allocated until its last pin is gone and then comes through DrainOrphans.
func (t *Tree) Clear(f *Freed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.fit(len(t.cfg.Pools))
	t.clearing = true
	for _, r := range t.spaces {
		t.dropSpace(r, f)
	}
	t.clearing = false
	if t.cfg.OnChange != nil {
		t.cfg.OnChange(Change{Kind: Cleared, Reason: ByClear})
	}
}

// DropNamespace is Clear for one namespace.
func (t *Tree) DropNamespace(ns Namespace, f *Freed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.fit(len(t.cfg.Pools))
	if r := t.spaces[ns]; r != nil {
		t.dropSpace(r, f)
	}
}

func (t *Tree) dropSpace(r *node, f *Freed) {
	for r.kids > 0 { // the last child takes the root with it
		t.detach(r.kid, ByClear, f)
	}
}

// truncate drops the pages of n from the k-th on, and everything below.
func (t *Tree) truncate(n *node, k int, reason Reason, f *Freed) {
	if k > 0 {
		t.split(n, k)
	}
	t.detach(n, reason, f)
}

// cutDevice takes the pages of n from the k-th on, and everything below, off the device. Pages in flight are left to their loads, which
// find them gone. What has no host copy is dropped.
func (t *Tree) cutDevice(n *node, k int, f *Freed) {
	dev, host, flags := t.col(n, colDevice), t.col(n, colHost), t.col(n, colFlags)
	lost := int(n.pages) // first page without any copy left
	from, to := k, int(n.pools[t.full].dev)
	for i := from; i < to; i++ {
		t.clearWindows(n, i, flags)
		if flags[i]&flagPending != 0 {
			flags[i] &^= flagPending
			t.addPending(n, t.full, -1)
		} else {
			t.give(n, t.full, dev[i], f)
		}
		dev[i] = ids.None
		if host[i] == ids.None {
			lost = min(lost, i)
		}
	}
	if to > from {
		t.dupRange(n, from, to, -1)
		t.addDev(n, t.full, int32(from-to))
		t.emit(Removed, Device, t.full, ByLoad, n, from, to)
	}
	if k < int(n.pages) {
		for _, p := range t.states {
			t.cutState(n, p, f)
		}
	}
	for c := n.kid; c != nil; {
		next := c.next
		if c.has(t.full) {
			t.cutDevice(c, 0, f)
		}
		c = next
	}
	t.reconcile(n)
	if lost < int(n.pages) {
		t.truncate(n, lost, ByLoad, f)
	}
}

func (t *Tree) cutState(n *node, p int, f *Freed) {
	s := &n.pools[p]
	if s.dev == 0 {
		return
	}
	if s.pending > 0 {
		t.addPending(n, p, -1)
	} else {
		t.give(n, p, s.devID, f)
	}
	s.devID = ids.None
	t.addDev(n, p, -1)
}

// clearWindows takes the window pages of page i off the books; the pages themselves go with their full page.
func (t *Tree) clearWindows(n *node, i int, flags []uint32) {
	f := flags[i]
	if f&windowMask == 0 {
		return
	}
	for s, w := range t.swa {
		if f&windowBit(s) == 0 {
			continue
		}
		t.addDev(n, w.pool, -1)
		if f&pendingBit(s) != 0 {
			t.addPending(n, w.pool, -1)
		}
		t.emit(Removed, Device, w.pool, Dropped, n, i, i+1)
	}
	flags[i] = f & (1<<firstWindowBit - 1)
}

// dupRange moves the count of pages that are on both tiers by sign for each host copy in [from, to).
func (t *Tree) dupRange(n *node, from, to int, sign int64) {
	if n.pools[t.full].host == 0 {
		return
	}
	c := countSet(t.col(n, colHost)[from:to])
	t.ledgers[t.full].dup.Add(sign * int64(c))
}
