package radix

import "github.com/hicache/hicache/ffi/ids"

// emit tells OnChange about pages [from, to) of n.
func (t *Tree) emit(kind ChangeKind, tier Tier, pool int, reason Reason, n *node, from, to int) {
	if t.cfg.OnChange == nil || from >= to {
		return
	}
	cause := t.cause
	if cause == ForRoom && n.expired {
		cause = Expired
	}
	t.tell(Change{Kind: kind, Tier: tier, Pool: pool, Reason: reason, Cause: cause}, n, from, to, t.cfg.OnChange)
}

// tell completes a change of pages [from, to) of n and passes it on.
func (t *Tree) tell(c Change, n *node, from, to int, told func(Change)) {
	c.From, c.Pages = int(n.start)+from, to-from
	lo := t.tokensAt(n, from)
	c.Tokens = n.strip[lo : lo+(to-from)*t.pt]
	if n.hashes != nil {
		c.Hashes = n.hashes[from:to]
		c.Parent = parentHash(n, from)
	}
	m := n
	for m.parent != nil {
		m = m.parent
	}
	c.Namespace = t.dropping // of a subtree just cut off from its root
	if m.root() {
		c.Namespace = *m.space
	}
	told(c)
}

// parentHash is the hash of the page before page i of n, or nil.
func parentHash(n *node, i int) *Hash {
	if i > 0 {
		return &n.hashes[i-1]
	}
	if p := n.parent; p != nil && !p.root() && len(p.hashes) > 0 {
		return &p.hashes[len(p.hashes)-1]
	}
	return nil
}

// emitAll tells that every page of n leaves every tier.
func (t *Tree) emitAll(n *node, reason Reason) {
	if t.cfg.OnChange == nil || t.clearing {
		return
	}
	full := &n.pools[t.full]
	t.emit(Removed, Device, t.full, reason, n, 0, int(full.dev))
	t.emitSet(t.full, reason, n, colHost)
	for s, w := range t.swa {
		flags := t.col(n, colFlags)
		for i := range flags {
			if flags[i]&windowBit(s) != 0 {
				t.emit(Removed, Device, w.pool, reason, n, i, i+1)
			}
		}
		t.emitSet(w.pool, reason, n, colWindowHost+s)
	}
	for _, p := range t.states {
		if n.pools[p].dev > 0 {
			t.emit(Removed, Device, p, reason, n, int(n.pages)-1, int(n.pages))
		}
		if n.pools[p].host > 0 {
			t.emit(Removed, Host, p, reason, n, int(n.pages)-1, int(n.pages))
		}
	}
}

// emitSet tells that the pages with a value in a host column leave the host.
func (t *Tree) emitSet(pool int, reason Reason, n *node, column int) {
	col := t.col(n, column)
	for i := 0; i < len(col); i++ {
		j := i
		for j < len(col) && col[j] != ids.None {
			j++
		}
		t.emit(Removed, Host, pool, reason, n, i, j)
		i = j
	}
}

// Snapshot tells, as Stored changes with parents before children, of every page that a match could find, after begin. The tree stays as it is
// from begin to the end: matches go on meanwhile, everything else waits. O(pages). As OnChange, tell and begin must call nothing of the tree.
func (t *Tree) Snapshot(begin func(), tell func(Change)) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	begin()
	for _, r := range t.spaces {
		t.snapshot(r, tell)
	}
}

func (t *Tree) snapshot(n *node, tell func(Change)) {
	for c := n.kid; c != nil; c = c.next {
		t.snapshotNode(c, tell)
		t.snapshot(c, tell)
	}
}

func (t *Tree) snapshotNode(n *node, told func(Change)) {
	dev, host, flags := t.col(n, colDevice), t.col(n, colHost), t.col(n, colFlags)
	runs := func(tier Tier, pool, end int, has func(i int) bool) {
		for i := 0; i < end; i++ {
			j := i
			for j < end && has(j) {
				j++
			}
			if j > i {
				t.tell(Change{Kind: Stored, Tier: tier, Pool: pool}, n, i, j, told)
			}
			i = j
		}
	}
	runs(Device, t.full, int(n.pools[t.full].dev), func(i int) bool { return dev[i] != ids.None && flags[i]&flagPending == 0 })
	runs(Host, t.full, int(n.pages), func(i int) bool { return host[i] != ids.None })
	for s, w := range t.swa {
		hosted := t.col(n, colWindowHost+s)
		runs(Device, w.pool, len(flags), func(i int) bool { return readyWindows(flags[i])&windowBit(s) != 0 })
		runs(Host, w.pool, len(hosted), func(i int) bool { return hosted[i] != ids.None })
	}
	last := int(n.pages) - 1
	for _, p := range t.states {
		st := &n.pools[p]
		if st.dev > 0 && st.pending == 0 {
			t.tell(Change{Kind: Stored, Tier: Device, Pool: p}, n, last, last+1, told)
		}
		if st.host > 0 {
			t.tell(Change{Kind: Stored, Tier: Host, Pool: p}, n, last, last+1, told)
		}
	}
}
