package radix

import "github.com/hicache/hicache/ffi/ids"

// emit tells OnChange about pages [from, to) of n.
func (t *Tree) emit(kind ChangeKind, tier Tier, pool int, reason Reason, n *node, from, to int) {
	if t.cfg.OnChange == nil || from >= to {
		return
	}
	c := Change{Kind: kind, Tier: tier, Pool: pool, Reason: reason, From: int(n.start) + from, Pages: to - from}
	lo := (int(n.off) + from) * t.pt
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
	t.cfg.OnChange(c)
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

func (t *Tree) emitCleared(root *node) {
	if t.cfg.OnChange != nil {
		t.cfg.OnChange(Change{Kind: Cleared, Reason: ByClear, Namespace: *root.space})
	}
}

// emitAll tells that every page of n leaves every tier. For a cleared namespace one Cleared says it all.
func (t *Tree) emitAll(n *node, reason Reason) {
	if t.cfg.OnChange == nil || reason == ByClear {
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
