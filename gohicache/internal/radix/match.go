package radix

import (
	"slices"

	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/policy"
)

// MatchOptions tune one match. The zero value is what a server wants before a prefill.
type MatchOptions struct {
	FullHit  bool   // allow a hit of all tokens; otherwise at least one token is left to compute
	Join     bool   // count pages of loads in flight as on the device; Match.Joins then names the loads to wait for
	Peek     bool   // pin nothing, and leave no trace in structure, recency and hit counts
	NoLoad   bool   // only what is on the device counts
	Now      uint64 // time of this access; 0: the tree's own counter. Must not run backwards.
	Priority uint8  // raises the priority of the matched nodes to at least this
}

// HostWindow is one window page that a load must bring.
type HostWindow struct {
	At   int             // position
	Host ids.HostPage    // its bytes
	Bind ids.VirtualPage // the resident full page that it joins, or NoVirtualPage if At is among the full pages to be loaded
}

// StateMatch is the checkpoint of one STATE pool at the usable end.
type StateMatch struct {
	Device ids.VirtualPage // NoVirtualPage if not on the device
	Host   ids.HostPage    // NoHostPage if not on the host
}

// Match is the answer to one match. Tree.Match overwrites it and reuses its slices.
type Match struct {
	Pin Pin // until Tree.Release: the usable prefix is pinned on every tier it is needed on

	Usable int // the longest prefix that serves every pool, from device or host
	Ready  int // the longest prefix that serves every pool from the device alone; <= Usable
	Hit    int // the prefix that FULL alone holds on device or host; >= Usable. Hit > Usable: a new window or checkpoint planted at Hit would pay

	// Resident are the full pages of positions [0, len), on the device. len <= Usable; a load brings the rest.
	Resident []ids.VirtualPage
	// LoadFull are the host pages of positions [len(Resident), Usable).
	LoadFull []ids.HostPage
	// LoadWindows are, by pool, the window pages of the usable end's window that are not on the device; only SWA pools have any.
	LoadWindows [][]HostWindow
	// States are, by pool, the checkpoints at Usable; only STATE pools use theirs. Both ids are None if Usable is 0.
	States []StateMatch
	// Joins are loads in flight that Resident, LoadWindows or States count on, if MatchOptions.Join.
	Joins []LoadID

	path   []*node
	opt    MatchOptions
	ticket policy.Ticket
}

// NeedsLoad reports whether using the whole usable prefix takes a load.
func (m *Match) NeedsLoad() bool { return m.Usable > m.Ready }

// Match finds the longest usable prefix of tokens and pins it. A partial page at the end is ignored. O(tokens); no allocation once m has
// grown.
func (t *Tree) Match(ns Namespace, tokens []uint32, opt MatchOptions, m *Match) {
	limit := len(tokens) / t.cfg.Tokens.Words()
	if !opt.FullHit && t.cfg.Tokens != Bigram { // whose last token makes no position of its own
		limit--
	}
	limit = max(0, limit) / t.cfg.PageTokens
	m.opt = opt
	now := uint64(0)
	if !opt.Peek {
		now = t.tick(opt.Now)
		m.ticket = t.admit(ns, tokens)
	}

	t.mu.RLock()
	last := t.findPath(ns, tokens, limit, m)
	b := t.bounds(m.path, last, opt)
	if inside := m.inside(b.usable); inside == nil || opt.Peek {
		t.finishMatch(m, b, now)
		t.mu.RUnlock()
		return
	}
	version := t.version
	found := foresee(m.path[len(m.path)-1], last)
	t.mu.RUnlock()

	// The usable end lies inside a node: cut there, so that pins, recency and a later insert are about exactly the pages that matched.
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.version != version {
		last = t.findAgain(&found, ns, tokens, limit, m)
	}
	b = t.bounds(m.path, last, opt)
	if n := m.inside(b.usable); n != nil {
		if t.cfg.WholeLeaf {
			raise(&n.stamp, now) // other caches touch a node before they cut it
		}
		up := t.split(n, b.usable-int(n.start))
		for i := range m.path {
			if m.path[i] == n {
				m.path[i] = up
				m.path = m.path[:i+1]
				break
			}
		}
	}
	t.finishMatch(m, b, now)
}

// findPath fills m.path with the nodes that agree with tokens and returns the pages of the last one that do.
func (t *Tree) findPath(ns Namespace, tokens []uint32, limit int, m *Match) int {
	m.path = m.path[:0]
	n := t.space(ns)
	if n == nil {
		return 0
	}
	return t.follow(n, 0, tokens, limit, m)
}

// findAgain is findPath where some of it has been found before.
func (t *Tree) findAgain(f *foresight, ns Namespace, tokens []uint32, limit int, m *Match) int {
	n, k := f.resume()
	if n == nil {
		return t.findPath(ns, tokens, limit, m)
	}
	m.path = pathTo(n, m.path[:0])
	return t.follow(n, k, tokens, limit, m)
}

// follow extends m.path, which ends with n, of which k pages agree with tokens; it returns the pages of its last node that do.
func (t *Tree) follow(n *node, k int, tokens []uint32, limit int, m *Match) int {
	for at := n.end(); at < limit && k == int(n.pages); at = n.end() {
		c := t.child(n, tokens[at*t.pt:(at+1)*t.pt])
		if c == nil {
			break
		}
		n, k = c, t.agree(c, tokens, limit)
		m.path = append(m.path, n)
	}
	return k
}

// inside returns the node of m.path that position at cuts in two, or nil.
func (m *Match) inside(at int) *node {
	for i := len(m.path) - 1; i >= 0; i-- {
		n := m.path[i]
		if int(n.start) < at {
			if at < n.end() {
				return n
			}
			return nil
		}
	}
	return nil
}

// bounds are the boundaries of one path, in pages.
type bounds struct {
	hit    int // FULL on any tier
	device int // FULL on the device
	usable int
	ready  int
}

// finishMatch pins, touches and fills m. mu is held, shared is enough; b.usable is the end of a node of m.path.
func (t *Tree) finishMatch(m *Match, b bounds, now uint64) {
	m.Usable, m.Ready, m.Hit = b.usable, b.ready, b.hit
	path := m.path
	for len(path) > 0 && int(path[len(path)-1].start) >= b.usable {
		path = path[:len(path)-1]
	}
	t.fill(m, path, b)
	m.Pin = Pin{}
	if m.opt.Peek {
		return
	}
	var spec pinSpec
	t.spec(&spec, m, b)
	var bottom *node
	if len(path) > 0 {
		bottom = path[len(path)-1]
	}
	m.Pin = t.pin(bottom, &spec)
	t.touch(path, b.usable, now, m)
	m.path = path
}

// spec says what a match with these bounds must pin: FULL on the device over the whole path, the windows and the states of the end, and on
// the host whatever a load would bring. A hosted window or state goes when its full page goes, so the full pages are pinned with it.
func (t *Tree) spec(s *pinSpec, m *Match, b bounds) {
	s.reset(len(t.cfg.Pools))
	s.ticket = m.ticket
	s.dev[t.full] = 0
	top := int32(b.usable)
	if len(m.LoadFull) > 0 {
		top = int32(len(m.Resident))
	}
	for _, w := range t.swa {
		s.dev[w.pool] = int32(max(0, b.usable-w.window))
		if len(m.LoadWindows[w.pool]) > 0 {
			s.host[w.pool] = s.dev[w.pool]
			top = min(top, s.dev[w.pool])
		}
	}
	for _, p := range t.states {
		s.dev[p] = 0
		if m.States[p].Device == ids.NoVirtualPage {
			s.host[p] = 0
			top = min(top, int32(b.usable-1))
		}
	}
	if top < int32(b.usable) {
		s.host[t.full] = max(0, top)
	}
}

// touch records one access to path. mu is held, shared is enough.
func (t *Tree) touch(path []*node, usable int, now uint64, m *Match) {
	for _, n := range path {
		if t.learn != nil {
			t.teach(n, m.ticket)
		}
		raise(&n.stamp, now)
		n.hits.Add(1)
		if h := int32(usable); n.history.Load() < h {
			n.history.Store(h)
		}
		if p := uint32(m.opt.Priority); n.priority.Load() < p {
			n.priority.Store(p)
		}
		for _, w := range t.swa {
			if n.end() > usable-w.window {
				raise(&n.pools[w.pool].stamp, now)
			}
		}
		t.markListed(n)
	}
	if len(path) > 0 {
		for _, p := range t.states {
			raise(&path[len(path)-1].pools[p].stamp, now)
		}
	}
}

// fill lists the pages of a match along path, which ends at b.usable.
func (t *Tree) fill(m *Match, path []*node, b bounds) {
	m.Resident, m.LoadFull, m.Joins = m.Resident[:0], m.LoadFull[:0], m.Joins[:0]
	pools := len(t.cfg.Pools)
	for len(m.LoadWindows) < pools {
		m.LoadWindows = append(m.LoadWindows, nil)
	}
	for len(m.States) < pools {
		m.States = append(m.States, StateMatch{})
	}
	for p := range pools {
		m.LoadWindows[p] = m.LoadWindows[p][:0]
		m.States[p] = StateMatch{ids.NoVirtualPage, ids.NoHostPage}
	}
	resident := min(b.device, b.usable)
	m.Resident = slices.Grow(m.Resident, resident)[:resident]
	pending := false
	for i, n := range path {
		k := min(int(n.pages), b.usable-int(n.start))
		on := max(0, min(k, resident-int(n.start)))
		out := m.Resident[min(resident, int(n.start)):]
		for j, v := range t.col(n, colDevice)[:min(on, len(out))] {
			out[j] = ids.VirtualPage(v)
		}
		for _, h := range t.col(n, colHost)[on:k] {
			m.LoadFull = append(m.LoadFull, ids.HostPage(h))
		}
		for s, w := range t.swa {
			if lo := b.usable - w.window - int(n.start); lo < k {
				t.fillWindows(m, n, s, w.pool, max(0, lo), k, on)
			}
		}
		for p := range n.pools {
			pending = pending || n.pools[p].pending > 0
		}
		if i == len(path)-1 {
			t.fillStates(m, n)
		}
	}
	if pending && m.opt.Join {
		t.fillJoins(m, path)
	}
}

// fillWindows lists the pages [lo, hi) of n whose window in the s-th SWA pool a load must bring. Pages below on are resident in FULL.
func (t *Tree) fillWindows(m *Match, n *node, s, pool, lo, hi, on int) {
	if st := &n.pools[pool]; int(st.dev) == int(n.pages) && st.pending == 0 {
		return
	}
	flags, dev, host := t.col(n, colFlags), t.col(n, colDevice), t.col(n, colWindowHost+s)
	for i := lo; i < hi; i++ {
		f := flags[i]
		if !m.opt.Join {
			f = readyWindows(f)
		}
		if f&windowBit(s) != 0 {
			continue
		}
		w := HostWindow{At: int(n.start) + i, Host: ids.HostPage(host[i]), Bind: ids.NoVirtualPage}
		if i < on {
			w.Bind = ids.VirtualPage(dev[i])
		}
		m.LoadWindows[pool] = append(m.LoadWindows[pool], w)
	}
}

func (t *Tree) fillStates(m *Match, n *node) {
	for _, p := range t.states {
		s := &n.pools[p]
		if s.pending == 0 || m.opt.Join {
			m.States[p].Device = ids.VirtualPage(s.devID)
		}
		m.States[p].Host = ids.HostPage(s.hostID)
	}
}
