package radix

import "github.com/hicache/hicache/gohicache/internal/policy"

// Orders of eviction. Each is a persistent heap of exactly the nodes that may give something up at its tier (see candidate). Whoever
// changes a node under the exclusive lock calls reconcile; whoever changes one under the shared lock marks it dirty, and the next exclusive
// pass that needs the orders reconciles what is marked.
const (
	orderLeaf      = iota // FULL on the device: leaves of the device tree
	orderHostLeaf         // FULL on the host: leaves whose tail is on the host only
	orderDuplicate        // FULL on the host: lowest host copies that mirror device pages
	orderExpiry           // nodes whose priority runs out, by when
	orderAux              // then by pool: device, host; FULL's two stay empty
)

func orderDevice(pool int) int { return orderAux + 2*pool }
func orderHost(pool int) int   { return orderAux + 2*pool + 1 }

// candidate reports whether n belongs into order o. Pinned nodes never do.
func (t *Tree) candidate(o int, n *node) bool {
	if n.parent == nil || n.detached || n.freed || n.skip == t.pass {
		return false
	}
	full := &n.pools[t.full]
	switch o {
	case orderLeaf:
		return full.dev > 0 && n.devKids == 0 && full.pins.Load() == 0
	case orderHostLeaf:
		return n.kids == 0 && n.pages > full.dev && full.hostPins.Load() == 0 && full.pins.Load() == 0
	case orderDuplicate:
		return full.host > 0 && n.hostKids == 0 && n.pages == full.dev && full.hostPins.Load() == 0
	case orderExpiry:
		return n.retain != 0 && n.priority.Load() != 0
	}
	p := (o - orderAux) / 2
	if p == t.full {
		return false
	}
	s := &n.pools[p]
	if (o-orderAux)%2 == 1 {
		return s.host > 0 && s.hostPins.Load() == 0 && !s.storing
	}
	if s.dev == 0 || s.backing {
		return false
	}
	if s.pins.Load() == 0 {
		return true
	}
	// A pin on a window protects the last window's worth of each node it covers; what lies before may go.
	return t.cfg.Pools[p].Role == SWA && int(s.first) < t.coldEnd(n, p)
}

// coldEnd is the first page within n that a window pin on n protects.
func (t *Tree) coldEnd(n *node, pool int) int {
	return max(0, int(n.pages)-t.swa[t.rank[pool]].window)
}

// key is n's place in order o. Equal times fall to the deeper node first, which is what leaf-first means among windows.
func (t *Tree) key(o int, n *node, now uint64) policy.Key {
	deeper := uint64(^uint32(n.start))
	switch {
	case o == orderExpiry:
		return policy.Key{Hi: n.retain}
	case o >= orderAux:
		return policy.Key{Hi: n.pools[(o-orderAux)/2].stamp.Load(), Lo: deeper}
	}
	t.describe(n, &t.entry)
	return t.policy.Key(&t.entry, now)
}

// reconcile puts n where it belongs in every order. mu is held exclusively.
func (t *Tree) reconcile(n *node) {
	now := t.clock.Load()
	for o := range t.orders {
		h, bit := &t.orders[o], uint64(1)<<o
		switch listed := n.listed&bit != 0; {
		case !t.candidate(o, n):
			if listed {
				h.remove(n.id)
				n.listed &^= bit
			}
		case listed:
			h.rekey(n.id, t.key(o, n, now))
		default:
			h.push(n.id, t.key(o, n, now))
			n.listed |= bit
		}
	}
}

// mark puts n on the dirty list. Any goroutine with at least the shared lock.
func (t *Tree) mark(n *node) {
	if n.marked.Load() || !n.marked.CompareAndSwap(false, true) {
		return
	}
	for {
		head := t.dirty.Load()
		n.nextDirty = head
		if t.dirty.CompareAndSwap(head, n) {
			return
		}
	}
}

// markListed marks n if it is in any order, which is where a new access may matter.
func (t *Tree) markListed(n *node) {
	if n.listed != 0 {
		t.mark(n)
	}
}

// settle reconciles everything that is marked, and everything whose priority has run out. mu is held exclusively.
func (t *Tree) settle() {
	for n := t.dirty.Swap(nil); n != nil; {
		next := n.nextDirty
		n.nextDirty = nil
		n.marked.Store(false)
		if n.freed {
			n.next, t.slab.free = t.slab.free, n
		} else {
			t.reconcile(n)
		}
		n = next
	}
	expiry := &t.orders[orderExpiry]
	for len(expiry.items) > 0 && expiry.items[0].key.Hi <= t.clock.Load() {
		n := t.top(orderExpiry)
		n.priority.Store(0)
		n.retain, n.expired = 0, true
		t.reconcile(n)
	}
}

// order is a heap of nodes with four children an item: half the depth of a binary one, and siblings share cache lines. Items name nodes by
// id and places are kept in a dense array beside it, so that moving an item touches neither nodes nor the garbage collector.
type order struct {
	items []orderItem
	place []int32 // by node id: index in items; valid only while the node's bit in listed is set
}

type orderItem struct {
	key policy.Key
	id  uint32
}

// top returns the node that goes first in order o, or nil.
func (t *Tree) top(o int) *node {
	if len(t.orders[o].items) == 0 {
		return nil
	}
	return t.slab.node(t.orders[o].items[0].id)
}

func (h *order) push(id uint32, k policy.Key) {
	for int(id) >= len(h.place) {
		h.place = append(h.place, 0)
	}
	h.items = append(h.items, orderItem{k, id})
	h.up(len(h.items) - 1)
}

// rekey gives a listed node another key.
func (h *order) rekey(id uint32, k policy.Key) {
	if at := h.place[id]; h.items[at].key != k {
		h.items[at].key = k
		h.fix(int(at))
	}
}

func (h *order) remove(id uint32) {
	i, last := int(h.place[id]), len(h.items)-1
	moved := h.items[last]
	h.items = h.items[:last]
	if i != last {
		h.set(i, moved)
		h.fix(i)
	}
}

func (h *order) fix(i int) {
	if !h.down(i) {
		h.up(i)
	}
}

func (h *order) up(i int) {
	it := h.items[i]
	for i > 0 {
		p := (i - 1) / 4
		if !it.key.Less(h.items[p].key) {
			break
		}
		h.set(i, h.items[p])
		i = p
	}
	h.set(i, it)
}

func (h *order) down(i int) bool {
	it, from := h.items[i], i
	for {
		c := 4*i + 1
		if c >= len(h.items) {
			break
		}
		least := c
		for j := c + 1; j < min(c+4, len(h.items)); j++ {
			if h.items[j].key.Less(h.items[least].key) {
				least = j
			}
		}
		if !h.items[least].key.Less(it.key) {
			break
		}
		h.set(i, h.items[least])
		i = least
	}
	h.set(i, it)
	return i != from
}

func (h *order) set(i int, it orderItem) {
	h.items[i] = it
	h.place[it.id] = int32(i)
}
