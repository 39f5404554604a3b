package radix

import (
	"math/bits"

	"github.com/hicache/hicache/ffi/ids"
)

// split cuts n after its first k pages, 0 < k < n.pages, and returns the new upper node. The lower part stays n: its children, its state
// checkpoint and the receipts that end at it keep pointing at it. Receipts that cover n cover both parts, so the counts are copied.
func (t *Tree) split(n *node, k int) *node {
	up := t.slab.take()
	p := n.parent
	had := n.hasHost(t.full)
	t.cutLink(n) // the parent's counts stay: up inherits them

	up.start = n.start
	up.strip, up.off, up.room, up.pages = n.strip, n.off, n.room, int32(k)
	n.start += int32(k)
	n.off += int32(k)
	n.pages -= int32(k)
	if n.hashes != nil {
		up.hashes = n.hashes[:k:k]
		n.hashes = n.hashes[k:]
	}
	up.stamp.Store(n.stamp.Load())
	up.hits.Store(n.hits.Load())
	up.priority.Store(n.priority.Load())
	up.history.Store(n.history.Load())
	up.policyMark.Store(n.policyMark.Load())
	up.created, up.retain, up.expired = n.created, n.retain, n.expired
	t.splitFull(up, n, k)
	for i, w := range t.swa {
		t.splitWindow(up, n, i, w.pool, k)
	}

	// up takes n's place among the children of p, n becomes its only child.
	t.hang(p, up)
	t.hang(up, n)
	up.kids = 1
	if n.has(t.full) {
		up.devKids = 1
	}
	if n.hasHost(t.full) {
		up.hostKids = 1
	}
	if had != up.hasHost(t.full) {
		panic("radix: a split changed what is on the host")
	}
	t.version++
	t.reconcile(up)
	t.reconcile(n)
	return up
}

func (t *Tree) splitFull(up, n *node, k int) {
	u, l := &up.pools[t.full], &n.pools[t.full]
	u.pins.Store(l.pins.Load())
	u.hostPins.Store(l.hostPins.Load())
	u.dev = min(l.dev, int32(k))
	l.dev -= u.dev
	switch int(l.host) {
	case 0:
	case int(n.pages) + k:
		u.host = int32(k)
	default:
		u.host = countSet(t.col(up, colHost))
	}
	l.host -= u.host
	up.hostEnd = min(n.hostEnd, int32(k))
	n.hostEnd = max(0, n.hostEnd-int32(k))
	if l.pending > 0 {
		u.pending = countBits(t.col(up, colFlags), flagPending)
		l.pending -= u.pending
	}
}

func (t *Tree) splitWindow(up, n *node, i, pool, k int) {
	u, l := &up.pools[pool], &n.pools[pool]
	u.pins.Store(l.pins.Load())
	u.hostPins.Store(l.hostPins.Load())
	u.stamp.Store(l.stamp.Load())
	switch int(l.dev) {
	case 0:
	case int(n.pages) + k:
		u.dev = int32(k)
	default:
		u.dev = countBits(t.col(up, colFlags), windowBit(i))
	}
	l.dev -= u.dev
	if l.pending > 0 {
		u.pending = countBits(t.col(up, colFlags), pendingBit(i))
		l.pending -= u.pending
	}
	switch int(l.host) {
	case 0:
	case int(n.pages) + k:
		u.host = int32(k)
	default:
		u.host = countSet(t.col(up, colWindowHost+i))
	}
	l.host -= u.host
	u.first, u.hostFirst = min(l.first, int32(k)), min(l.hostFirst, int32(k))
	l.first, l.hostFirst = max(0, l.first-int32(k)), max(0, l.hostFirst-int32(k))
}

func countSet(col []uint32) (c int32) {
	for _, v := range col {
		if v != ids.None {
			c++
		}
	}
	return c
}

func countBits(flags []uint32, bit uint32) (c int32) {
	for _, f := range flags {
		c += int32(bits.OnesCount32(f & bit))
	}
	return c
}
