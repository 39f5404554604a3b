package radix

import (
	"sync/atomic"

	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/policy"
)

// node is a run of pages with one parent. Pages [0, pools[full].dev) are on the device; every page is on the device or on the host. A root
// has no pages and stands for a namespace.
//
// Fields that change under the shared lock are atomics; the rest changes under the exclusive lock only.
type node struct {
	parent           *node
	chain            *node // next in the same slot of the child table
	kid, next, prev  *node // first child; siblings
	strip            strip
	hashes           []Hash     // of all pages, or nil
	space            *Namespace // of a root; nil for all others
	nextDirty        *node
	gen              uint32 // of this use of the node
	id               uint32 // stable name among live nodes, for the child table
	start            int32  // position of the first page
	off, pages, room int32  // where the pages lie in the strip, how many, and the strip's size in pages
	kids             int32
	devKids          int32 // children with FULL pages on the device
	hostKids         int32 // children with FULL host pages at or below
	hostEnd          int32 // no page from here on has a FULL host copy
	skip             uint32
	detached         bool // no longer reachable from its root; waits for its last pin
	freed            bool

	stamp      atomic.Uint64
	hits       atomic.Uint32
	priority   atomic.Uint32
	history    atomic.Int32  // pages of the longest path through this node
	policyMark atomic.Uint64 // a Learner's
	marked     atomic.Bool   // on the dirty list
	created    uint64
	retain     uint64
	expired    bool // its priority has run out, and nobody renewed it

	pools  []poolState
	listed uint64 // orders that the node is in, a bit each
	key    uint64 // in the child table
}

// poolState is what a node holds of one pool. Counts are pages; a STATE pool holds at most one state, at the node's end.
type poolState struct {
	pins, hostPins   atomic.Int32
	stamp            atomic.Uint64 // SWA, STATE: last use of the window or state
	dev, host        int32
	pending          int32 // of dev, being loaded
	first, hostFirst int32 // SWA: no page below holds a window page on the tier
	devID, hostID    uint32
	backing, storing bool // STATE: a copy in flight reads it on the device, on the host
}

// root reports whether n stands for a namespace; roots have no pages and are never pinned.
func (n *node) root() bool            { return n.space != nil }
func (n *node) end() int              { return int(n.start + n.pages) }
func (n *node) hasHost(full int) bool { return n.pools[full].host > 0 || n.hostKids > 0 }
func (n *node) has(pool int) bool     { return n.pools[pool].dev > 0 }
func (n *node) pinned(pool int) bool  { return n.pools[pool].pins.Load() > 0 }
func (n *node) hostPinned(p int) bool { return n.pools[p].hostPins.Load() > 0 }
func raise(a *atomic.Uint64, v uint64) {
	if a.Load() < v {
		a.Store(v)
	}
}

// anyPin reports whether any receipt covers n.
func (n *node) anyPin() bool {
	for p := range n.pools {
		if n.pinned(p) || n.hostPinned(p) {
			return true
		}
	}
	return false
}

// describe fills e for the policy.
func (t *Tree) describe(n *node, e *policy.Entry) {
	*e = policy.Entry{
		LastAccess: n.stamp.Load(), Created: n.created, Hits: n.hits.Load(), Priority: uint8(n.priority.Load()), Retain: n.retain,
		Before: int(n.start) * t.cfg.PageTokens, Tokens: int(n.pages) * t.cfg.PageTokens, History: int(n.history.Load()) * t.cfg.PageTokens, Mark: n.policyMark.Load(),
	}
}

const slabNodes = 128

// slab hands out nodes in chunks, so that a new node costs no allocation of its own. A node's id is its place.
type slab struct {
	pools  int
	chunks [][]node
	free   *node // linked by next
	live   int
}

func (s *slab) node(id uint32) *node { return &s.chunks[id/slabNodes][id%slabNodes] }

func (s *slab) grow() {
	nodes := make([]node, slabNodes)
	pools := make([]poolState, slabNodes*s.pools)
	first := uint32(len(s.chunks) * slabNodes)
	s.chunks = append(s.chunks, nodes)
	for i := range nodes {
		n := &nodes[i]
		n.pools = pools[i*s.pools : (i+1)*s.pools : (i+1)*s.pools]
		n.id = first + uint32(i)
		n.freed = true
		n.next, s.free = s.free, n
	}
}

// take returns a node without pages, pins or links.
func (s *slab) take() *node {
	if s.free == nil {
		s.grow()
	}
	n := s.free
	s.free = n.next
	s.live++
	n.next, n.freed = nil, false
	for p := range n.pools {
		n.pools[p].devID, n.pools[p].hostID = ids.None, ids.None
	}
	return n
}

// put takes n back, or leaves it to the dirty list, which still points to it and puts it back itself.
func (s *slab) put(n *node) {
	n.parent, n.chain, n.kid, n.next, n.prev, n.strip, n.hashes, n.space = nil, nil, nil, nil, nil, nil, nil, nil
	n.start, n.off, n.pages, n.room, n.kids, n.devKids, n.hostKids, n.hostEnd, n.skip, n.detached = 0, 0, 0, 0, 0, 0, 0, 0, 0, false
	n.stamp.Store(0)
	n.hits.Store(0)
	n.priority.Store(0)
	n.history.Store(0)
	n.policyMark.Store(0)
	n.created, n.retain, n.expired = 0, 0, false
	for p := range n.pools {
		st := &n.pools[p]
		st.dev, st.host, st.pending, st.first, st.hostFirst, st.backing, st.storing = 0, 0, 0, 0, 0, false, false
		st.stamp.Store(0)
	}
	n.freed = true
	n.gen++
	s.live--
	if !n.marked.Load() {
		n.next, s.free = s.free, n
	}
}

// childTable finds a child by its parent and its first page. One table for the tree: a node with a million children and one with a single
// child cost the same.
type childTable struct {
	slots  map[uint64]*node
	seed   uint64
	shared int // nodes that are not the first in their slot: hashes that met by chance
}

func (c *childTable) hash(parent uint32, page []uint32) uint64 {
	h := c.seed ^ uint64(parent)*0x9e3779b97f4a7c15
	i := 0
	for ; i+2 <= len(page); i += 2 {
		h = (h ^ (uint64(page[i]) | uint64(page[i+1])<<32)) * 0xff51afd7ed558ccd
		h ^= h >> 32
	}
	if i < len(page) {
		h = (h ^ uint64(page[i])) * 0xc4ceb9fe1a85ec53
		h ^= h >> 29
	}
	return h
}

// add puts n, whose key is set, into the table.
func (c *childTable) add(n *node) {
	if n.chain = c.slots[n.key]; n.chain != nil {
		c.shared++
	}
	c.slots[n.key] = n
}

func (c *childTable) remove(n *node) {
	if c.shared == 0 {
		delete(c.slots, n.key)
		return
	}
	at := c.slots[n.key]
	switch {
	case at != n:
		for at.chain != n {
			at = at.chain
		}
		at.chain = n.chain
		c.shared--
	case n.chain == nil:
		delete(c.slots, n.key)
	default:
		c.slots[n.key] = n.chain
		c.shared--
	}
	n.chain = nil
}

// child returns the child of p whose first page is page, or nil.
func (t *Tree) child(p *node, page []uint32) *node {
	for n := t.kids.slots[t.kids.hash(p.id, page)]; n != nil; n = n.chain {
		if n.parent == p && commonPrefix(t.firstPage(n), page) == t.pt {
			return n
		}
	}
	return nil
}

// hang puts n among the children of p, without p's counts.
func (t *Tree) hang(p, n *node) {
	n.parent = p
	n.key = t.kids.hash(p.id, t.firstPage(n))
	t.kids.add(n)
	n.prev, n.next = nil, p.kid
	if p.kid != nil {
		p.kid.prev = n
	}
	p.kid = n
}

// link makes n a child of p; n has its pages.
func (t *Tree) link(p, n *node) {
	t.hang(p, n)
	p.kids++
	if n.has(t.full) {
		p.devKids++
	}
	if n.hasHost(t.full) {
		was := p.hasHost(t.full)
		p.hostKids++
		t.hostChanged(p, was)
	}
	t.version++
}

// unlink takes n out of its parent's children but leaves n.parent, which receipts still climb.
func (t *Tree) unlink(n *node) {
	p := n.parent
	t.cutLink(n)
	p.kids--
	if n.has(t.full) {
		p.devKids--
	}
	if n.hasHost(t.full) {
		was := p.hasHost(t.full)
		p.hostKids--
		t.hostChanged(p, was)
	}
	t.version++
}

// cutLink is unlink without the parent's counts.
func (t *Tree) cutLink(n *node) {
	p := n.parent
	t.kids.remove(n)
	if n.prev != nil {
		n.prev.next = n.next
	} else {
		p.kid = n.next
	}
	if n.next != nil {
		n.next.prev = n.prev
	}
	n.prev, n.next = nil, nil
}
