package radix

import "github.com/hicache/hicache/gohicache/internal/policy"

// Pin is a receipt for pinned nodes. The zero value pins nothing. It is a value: copies are the same receipt, and a second Release of any
// of them is a no-op.
type Pin struct{ slot, gen uint32 }

// A receipt pins the path of a match, an insert or a transfer. It stores how far up each pool is pinned as a position, not as a node: a
// split never moves positions and copies the counts to both halves, so climbing from the bottom while a node starts at or after the
// position meets exactly the nodes that were pinned, or their fragments.
type receipt struct {
	gen  uint32
	next uint32 // free list
	node *node  // bottom: where the path ends; nil: nothing is pinned
	// By pool: the start of the topmost pinned node, or noPin. FULL on the device is pinned to the root, except by stores, which pin the
	// host alone. A STATE pool pins the bottom only.
	dev, host []int32
	ticket    policy.Ticket // of the request that it belongs to
}

const noPin = int32(-1)

// pinTable hands out receipts. Chunks, so that a receipt stays where it is.
type pinTable struct {
	pools  int
	chunks [][]receipt
	free   uint32 // slot+1; 0: none
}

const pinChunk = 256

func (p *pinTable) at(slot uint32) *receipt {
	if int(slot/pinChunk) >= len(p.chunks) {
		return nil
	}
	return &p.chunks[slot/pinChunk][slot%pinChunk]
}

func (p *pinTable) take() (uint32, *receipt) {
	if p.free == 0 {
		c := make([]receipt, pinChunk)
		tops := make([]int32, 2*pinChunk*p.pools)
		base := uint32(len(p.chunks) * pinChunk)
		for i := range c {
			c[i].dev, tops = tops[:p.pools:p.pools], tops[p.pools:]
			c[i].host, tops = tops[:p.pools:p.pools], tops[p.pools:]
			c[i].next = p.free
			c[i].gen = 1
			p.free = base + uint32(i) + 1
		}
		p.chunks = append(p.chunks, c)
	}
	slot := p.free - 1
	r := p.at(slot)
	p.free, r.next = r.next, 0
	return slot, r
}

func (p *pinTable) put(slot uint32, r *receipt) {
	r.node = nil
	r.next, p.free = p.free, slot+1
}

// pinSpec says what of a path to pin: the whole path for FULL on the device, and from these positions down for the rest (noPin: not at
// all). Positions are rounded up the tree to the start of the node that holds them.
type pinSpec struct {
	dev, host [MaxPools]int32
	ticket    policy.Ticket
}

func (s *pinSpec) reset(pools int) {
	s.ticket = policy.Ticket{}
	for p := range pools {
		s.dev[p], s.host[p] = noPin, noPin
	}
}

// pin takes a receipt for the path that ends at n's end. mu is held, shared is enough. A nil n or a root gives a receipt that pins nothing
// but is still released once.
func (t *Tree) pin(n *node, spec *pinSpec) Pin {
	t.pinMu.Lock()
	slot, r := t.pins.take()
	t.pinMu.Unlock()
	if n != nil && n.root() {
		n = nil
	}
	r.node, r.ticket = n, spec.ticket
	for p := range t.cfg.Pools {
		r.dev[p], r.host[p] = noPin, noPin
		if n == nil {
			continue
		}
		if spec.dev[p] != noPin {
			r.dev[p] = t.pinUp(n, p, spec.dev[p], false)
		}
		if spec.host[p] != noPin {
			r.host[p] = t.pinUp(n, p, spec.host[p], true)
		}
	}
	return Pin{slot + 1, r.gen}
}

// pinUp adds a pin from n up to the node that holds position top, and returns that node's start.
func (t *Tree) pinUp(n *node, pool int, top int32, host bool) int32 {
	single := t.cfg.Pools[pool].Role == State
	for {
		s, l := &n.pools[pool], &t.ledgers[pool]
		if host {
			if s.hostPins.Add(1) == 1 {
				l.hostFree.Add(-int64(s.host))
				t.markListed(n)
			}
		} else if s.pins.Add(1) == 1 {
			l.devFree.Add(-int64(s.dev))
			t.markListed(n)
		}
		if single || n.start <= top {
			return n.start
		}
		n = n.parent
	}
}

// unpinUp replays pinUp. It never looks above the topmost pinned node, which may have ended by now.
func (t *Tree) unpinUp(n *node, pool int, top int32, host bool) {
	single := t.cfg.Pools[pool].Role == State
	for {
		s, l := &n.pools[pool], &t.ledgers[pool]
		if host {
			if s.hostPins.Add(-1) == 0 {
				l.hostFree.Add(int64(s.host))
				t.mark(n) // host pins hold back device evictions too
			}
		} else if s.pins.Add(-1) == 0 {
			l.devFree.Add(int64(s.dev))
			if pool != t.full && s.dev != 0 || pool == t.full && (n.devKids == 0 || n.kids == 0) {
				t.mark(n)
			}
		}
		if single || n.start <= top {
			return
		}
		n = n.parent
	}
}

// lookup returns the receipt of p, or nil for a stale one. pinMu is held.
func (t *Tree) lookup(p Pin) *receipt {
	if p.slot == 0 {
		return nil
	}
	r := t.pins.at(p.slot - 1)
	if r == nil || r.gen != p.gen {
		return nil
	}
	return r
}

// bottom returns the node that p's path ends at; nil for a stale pin or one that pins nothing. mu is held.
func (t *Tree) bottom(p Pin) (n *node, live bool) {
	t.pinMu.Lock()
	defer t.pinMu.Unlock()
	r := t.lookup(p)
	if r == nil {
		return nil, false
	}
	return r.node, true
}

// release is Release with mu held, shared or exclusively.
func (t *Tree) release(p Pin) bool {
	t.pinMu.Lock()
	r := t.lookup(p)
	if r == nil {
		t.pinMu.Unlock()
		return false
	}
	r.gen++ // from here the receipt is ours alone
	t.pinMu.Unlock()
	if r.node != nil {
		for pool := range t.cfg.Pools {
			if r.dev[pool] != noPin {
				t.unpinUp(r.node, pool, r.dev[pool], false)
			}
			if r.host[pool] != noPin {
				t.unpinUp(r.node, pool, r.host[pool], true)
			}
		}
	}
	t.pinMu.Lock()
	t.pins.put(p.slot-1, r)
	t.pinMu.Unlock()
	return true
}

// Release ends a pin; it cannot fail, and ending it twice is a no-op that returns false. Pages of nodes that were dropped while pinned
// become available through DrainOrphans. O(path).
func (t *Tree) Release(p Pin) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.release(p)
}

// ReleaseWindows ends the SWA and STATE part of a pin early: a decode that moved on past the window needs only the full pages.
func (t *Tree) ReleaseWindows(p Pin) {
	t.releasePart(p, func(pool int) (dev, host bool) { aux := pool != t.full; return aux, aux })
}

// ReleaseHost ends the host part of a pin early: once its load has begun, which has pins of its own, a match needs only the device.
func (t *Tree) ReleaseHost(p Pin) {
	t.releasePart(p, func(int) (dev, host bool) { return false, true })
}

// releasePart ends the pins that part names, and leaves the rest of the receipt.
func (t *Tree) releasePart(p Pin, part func(pool int) (dev, host bool)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pinMu.Lock()
	r := t.lookup(p)
	t.pinMu.Unlock()
	if r == nil || r.node == nil {
		return
	}
	for pool := range t.cfg.Pools {
		dev, host := part(pool)
		if dev && r.dev[pool] != noPin {
			t.unpinUp(r.node, pool, r.dev[pool], false)
			r.dev[pool] = noPin
		}
		if host && r.host[pool] != noPin {
			t.unpinUp(r.node, pool, r.host[pool], true)
			r.host[pool] = noPin
		}
	}
}
