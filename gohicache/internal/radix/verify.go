package radix

import (
	"fmt"
	"slices"

	"github.com/hicache/hicache/ffi/ids"
)

// checker collects what Verify finds wrong.
type checker struct {
	t     *Tree
	bad   []string
	nodes int
	sums  [MaxPools]Counts
	dev   [MaxPools]map[uint32]int // pages seen, by id; FULL and SWA share FULL's
	host  [MaxPools]map[uint32]int
	strip map[*uint32]uint32 // pages counted, by a strip's live word
}

func (c *checker) failf(n *node, format string, a ...any) {
	if len(c.bad) >= 50 {
		return
	}
	c.bad = append(c.bad, fmt.Sprintf("node %d (pages %d..%d): ", n.id, n.start, n.end())+fmt.Sprintf(format, a...))
}

// Verify recomputes every invariant from scratch and returns what is wrong; nil is healthy. It stops matches for its time: O(pages).
func (t *Tree) Verify() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settle()
	c := &checker{t: t, strip: map[*uint32]uint32{}}
	for p := range t.cfg.Pools {
		c.dev[p], c.host[p] = map[uint32]int{}, map[uint32]int{}
	}
	for ns, r := range t.spaces {
		if r.kids == 0 || *r.space != ns || r.parent != nil || r.pages != 0 {
			c.failf(r, "a root of %+v with %d children", ns, r.kids)
		}
		c.nodes++
		c.walk(r)
	}
	for _, n := range t.orphans {
		c.nodes++
		c.columns(n, true)
	}
	if c.nodes != t.slab.live {
		c.bad = append(c.bad, fmt.Sprintf("%d nodes reachable or orphaned, %d taken", c.nodes, t.slab.live))
	}
	for live, n := range c.strip {
		if *live != n {
			c.bad = append(c.bad, fmt.Sprintf("a strip says %d live pages, its nodes have %d", *live, n))
		}
	}
	c.ledgers()
	c.orders()
	c.receipts()
	return c.bad
}

// walk checks the subtree of n and its links.
func (c *checker) walk(n *node) {
	t := c.t
	var kids, devKids, hostKids int32
	var prev *node
	for k := n.kid; k != nil; prev, k = k, k.next {
		kids++
		if k.has(t.full) {
			devKids++
		}
		if k.hasHost(t.full) {
			hostKids++
		}
		if k.parent != n || k.prev != prev || int(k.start) != n.end() || k.pages <= 0 || k.freed || k.detached {
			c.failf(k, "broken links below node %d", n.id)
			return
		}
		if t.child(n, t.firstPage(k)) != k {
			c.failf(k, "the child table does not find it")
		}
		if k.has(t.full) && !n.root() && n.pools[t.full].dev != n.pages {
			c.failf(k, "on the device below a page that is not")
		}
		for p := range k.pools {
			if r := t.cfg.Pools[p].Role; r == Full && !n.root() && n.pools[p].pins.Load() < k.pools[p].pins.Load() {
				c.failf(k, "more FULL pins than its parent")
			}
		}
		c.nodes++
		c.hashes(n, k)
		c.columns(k, false)
		c.pins(k)
		c.walk(k)
	}
	if kids != n.kids || devKids != n.devKids || hostKids != n.hostKids {
		c.failf(n, "counts %d/%d/%d children on any tier/device/host, has %d/%d/%d", n.kids, n.devKids, n.hostKids, kids, devKids, hostKids)
	}
}

// hashes checks the hash chain of k below n, as far as there is one.
func (c *checker) hashes(n, k *node) {
	t := c.t
	if k.hashes == nil {
		if t.cfg.Hashes {
			c.failf(k, "has no hashes")
		}
		return
	}
	var prior *Hash
	if n.root() {
		prior = NamespaceSeed(*n.space)
	} else if n.hashes != nil {
		prior = &n.hashes[n.pages-1]
	} else {
		c.failf(k, "has hashes, its parent has none")
		return
	}
	if want := t.HashPages(prior, t.tokens(k), nil); !slices.Equal(k.hashes, want) {
		c.failf(k, "has a broken hash chain")
	}
}

// pins checks that pins nest: FULL over SWA over STATE, and none is negative.
func (c *checker) pins(n *node) {
	t := c.t
	full, hostFull := n.pools[t.full].pins.Load(), n.pools[t.full].hostPins.Load()
	for p := range n.pools {
		d, h := n.pools[p].pins.Load(), n.pools[p].hostPins.Load()
		if d < 0 || h < 0 {
			c.failf(n, "pool %d has %d device and %d host pins", p, d, h)
		}
		if d > full || h > hostFull {
			c.failf(n, "pool %d has %d device and %d host pins, FULL %d and %d", p, d, h, full, hostFull)
		}
		if t.cfg.Pools[p].Role == State {
			for _, w := range t.swa {
				if d > n.pools[w.pool].pins.Load() {
					c.failf(n, "more pins in STATE pool %d than in SWA pool %d", p, w.pool)
				}
			}
		}
	}
}

// columns recounts what n's pages hold, and checks that no page id stands twice in the tree.
func (c *checker) columns(n *node, orphan bool) {
	t := c.t
	c.strip[n.strip.live()] += uint32(n.pages)
	dev, host, flags := t.col(n, colDevice), t.col(n, colHost), t.col(n, colFlags)
	var got [MaxPools]poolCount
	for i := range dev {
		c.once(c.dev[t.full], dev[i], n, "device page")
		c.once(c.host[t.full], host[i], n, "host page")
		f := &got[t.full]
		f.see(dev[i] != ids.None, flags[i]&flagPending != 0, host[i] != ids.None, i)
		if dev[i] != ids.None && host[i] != ids.None && !orphan {
			c.sums[t.full].HostDuplicates++
		}
		if orphan {
			continue
		}
		if dev[i] == ids.None && host[i] == ids.None {
			c.failf(n, "page %d is on no tier", i)
		}
		if (dev[i] != ids.None) != (i < int(n.pools[t.full].dev)) {
			c.failf(n, "page %d breaks the device prefix of %d", i, n.pools[t.full].dev)
		}
		if dev[i] == ids.None && flags[i]&(windowMask|flagPending) != 0 {
			c.failf(n, "page %d has device flags %x without a page", i, flags[i])
		}
		if host[i] != ids.None && i >= int(n.hostEnd) {
			c.failf(n, "page %d is on the host beyond %d", i, n.hostEnd)
		}
		for s, w := range t.swa {
			h := t.col(n, colWindowHost+s)[i]
			c.once(c.host[w.pool], h, n, "hosted window")
			got[w.pool].see(flags[i]&windowBit(s) != 0, flags[i]&pendingBit(s) != 0, h != ids.None, i)
		}
	}
	for _, p := range t.states {
		s := &n.pools[p]
		c.once(c.dev[p], s.devID, n, "state")
		c.once(c.host[p], s.hostID, n, "hosted state")
		got[p] = poolCount{dev: b32(s.devID != ids.None), pending: s.pending, host: b32(s.hostID != ids.None)}
	}
	if !orphan {
		c.compare(n, &got)
	}
}

type poolCount struct {
	dev, pending, host int32
	first, hostFirst   int32
}

func (p *poolCount) see(dev, pending, host bool, i int) {
	if dev {
		if p.dev == 0 {
			p.first = int32(i)
		}
		p.dev++
	}
	if pending {
		p.pending++
	}
	if host {
		if p.host == 0 {
			p.hostFirst = int32(i)
		}
		p.host++
	}
}

func b32(b bool) int32 {
	if b {
		return 1
	}
	return 0
}

func (c *checker) once(seen map[uint32]int, id uint32, n *node, what string) {
	if id == ids.None {
		return
	}
	if seen[id]++; seen[id] > 1 {
		c.failf(n, "%s %d stands in the tree twice", what, id)
	}
}

// compare checks n's counts against the recount and adds them up.
func (c *checker) compare(n *node, got *[MaxPools]poolCount) {
	for p := range n.pools {
		s, g := &n.pools[p], got[p]
		if s.dev != g.dev || s.pending != g.pending || s.host != g.host {
			c.failf(n, "pool %d says %d device, %d pending, %d host pages; they are %d, %d, %d", p, s.dev, s.pending, s.host, g.dev, g.pending, g.host)
		}
		if c.t.cfg.Pools[p].Role == SWA && (g.dev > 0 && s.first > g.first || g.host > 0 && s.hostFirst > g.hostFirst) {
			c.failf(n, "pool %d looks for windows from %d/%d, there are some from %d/%d", p, s.first, s.hostFirst, g.first, g.hostFirst)
		}
		sum := &c.sums[p]
		sum.Device += int(s.dev)
		sum.DevicePending += int(s.pending)
		sum.Host += int(s.host)
		if s.pins.Load() == 0 {
			sum.DeviceEvictable += int(s.dev)
		}
		if s.hostPins.Load() == 0 {
			sum.HostEvictable += int(s.host)
		}
	}
}

func (c *checker) ledgers() {
	for p := range c.t.cfg.Pools {
		if got := c.t.Counts(p); got != c.sums[p] {
			c.bad = append(c.bad, fmt.Sprintf("pool %d: ledgers %+v, recomputed %+v", p, got, c.sums[p]))
		}
	}
}

// orders checks that every order holds exactly its candidates, with present keys, as a heap.
func (c *checker) orders() {
	t := c.t
	listed := 0
	for o := range t.orders {
		h := &t.orders[o]
		listed += len(h.items)
		for i, it := range h.items {
			n := t.slab.node(it.id)
			if n.listed&(1<<o) == 0 || h.place[it.id] != int32(i) || !t.candidate(o, n) {
				c.failf(n, "should not be in order %d", o)
			} else if k := t.key(o, n, t.clock.Load()); k != it.key {
				c.failf(n, "has key %v in order %d, should have %v", it.key, o, k)
			}
			if i > 0 && it.key.Less(h.items[(i-1)/4].key) {
				c.failf(n, "is below a larger key in order %d", o)
			}
		}
	}
	for _, r := range t.spaces {
		listed -= c.listable(r)
	}
	if listed != 0 {
		c.bad = append(c.bad, fmt.Sprintf("the orders hold %d nodes more than there are candidates", listed))
	}
}

func (c *checker) listable(n *node) (sum int) {
	for o := range c.t.orders {
		sum += int(b32(c.t.candidate(o, n)))
	}
	for k := n.kid; k != nil; k = k.next {
		sum += c.listable(k)
	}
	return sum
}

// receipts checks that the live receipts are exactly the pins.
func (c *checker) receipts() {
	t := c.t
	want := map[*node]*[2 * MaxPools]int32{}
	t.pinMu.Lock()
	defer t.pinMu.Unlock()
	for _, chunk := range t.pins.chunks {
		for i := range chunk {
			r := &chunk[i]
			if r.node == nil {
				continue
			}
			for p := range t.cfg.Pools {
				for k, top := range [2]int32{r.dev[p], r.host[p]} {
					if top == noPin {
						continue
					}
					for n := r.node; ; n = n.parent {
						if want[n] == nil {
							want[n] = new([2 * MaxPools]int32)
						}
						want[n][2*p+k]++
						if t.cfg.Pools[p].Role == State || n.start <= top {
							break
						}
					}
				}
			}
		}
	}
	var check func(n *node)
	check = func(n *node) {
		w := want[n]
		if w == nil {
			w = new([2 * MaxPools]int32)
		}
		for p := range n.pools {
			if d, h := n.pools[p].pins.Load(), n.pools[p].hostPins.Load(); d != w[2*p] || h != w[2*p+1] {
				c.failf(n, "pool %d has %d device and %d host pins, receipts say %d and %d", p, d, h, w[2*p], w[2*p+1])
			}
		}
		for k := n.kid; k != nil; k = k.next {
			check(k)
		}
	}
	for _, r := range t.spaces {
		check(r)
	}
	for _, n := range t.orphans {
		check(n)
	}
}
