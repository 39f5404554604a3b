package radix

import (
	"fmt"

	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/policy"
)

// Checkpoint is a recurrent state at a page boundary.
type Checkpoint struct {
	Pool int
	At   int // length in pages of the prefix that the state stands for, > 0
	Page ids.VirtualPage
}

// InsertRequest publishes pages that a request computed.
type InsertRequest struct {
	Namespace Namespace
	Tokens    []uint32 // from the start of the sequence; a partial page at the end is ignored
	// After is a pin (of the match, or of an earlier insert of this sequence) on a prefix of Tokens; the walk starts there instead of at
	// the root. Optional.
	After Pin
	From  int               // position of Pages[0]; everything before is in the tree
	Pages []ids.VirtualPage // positions From, From+1, ...; at most the whole pages of Tokens
	// WindowFrom is, by pool, the first position whose page has a window page in that SWA pool (those below were given up by the
	// request). nil: From for all.
	WindowFrom  []int
	Checkpoints []Checkpoint // at most one a pool and boundary; boundaries in (0, From+len(Pages)]
	Priority    uint8        // 0..99
	Retain      uint64       // time until which Priority counts; 0: for ever
	Now         uint64       // as MatchOptions.Now
	// Rebind allows a window page to move from a duplicate page to the resident page of the same position (the engine must then carry out
	// InsertResult.Rebinds). Without it a pinned page with a missing window stays without.
	Rebind bool
	Pin    bool // pin the inserted path, windows and state included
}

// Rebind tells the engine to give From's window page in Pool to To, whose own window is a tombstone, before From is freed.
type Rebind struct {
	Pool     int
	From, To ids.VirtualPage
}

// InsertResult is reused like Match.
type InsertResult struct {
	Pin      Pin // if asked for
	Pages    int // length of the path now in the tree
	Existing int // positions from From on that were on the device already
	New      int // positions that are new in the tree
	Revived  int // positions that only the host held and that are on the device again
	Rebinds  []Rebind
	Freed    Freed             // duplicates, replaced pages and states: free them after the rebinds
	Now      []ids.VirtualPage // the pages that stand for positions [From, Pages) from here on
}

func (r *InsertResult) reset(pools int) {
	r.Pin, r.Pages, r.Existing, r.New, r.Revived = Pin{}, 0, 0, 0, 0
	r.Rebinds, r.Now = r.Rebinds[:0], r.Now[:0]
	r.Freed.fit(pools)
	r.Freed.Reset()
}

// Insert publishes req.Pages and takes ownership of them: each is in the tree or in r.Freed afterwards. O(tokens beyond After); at most one
// allocation a new node. Errors: ErrGap, ErrPending (the pages before From are still being loaded), ErrArgument, ErrStale (After); the
// caller then still owns everything and nothing has changed.
func (t *Tree) Insert(req *InsertRequest, r *InsertResult) error {
	r.reset(len(t.cfg.Pools))
	end := req.From + len(req.Pages)
	if err := t.checkInsert(req, end); err != nil {
		return err
	}
	now := t.tick(req.Now)
	ticket, known := t.ticketOf(req.After)
	if !known {
		ticket = t.admit(req.Namespace, req.Tokens)
	}
	ahead, err := t.prepare(req, end)
	if err != nil {
		return err
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	n, k, hinted, err := t.relocate(&ahead.found, req.Namespace, req.After, req.From, req.Tokens, end)
	if err == nil {
		err = t.checkPrefix(n, k, req.From)
	}
	if err != nil || n != nil && int(n.start)+k >= end { // nothing to hang, or somebody else was faster
		t.dropStrip(&ahead)
	}
	if err != nil {
		return err
	}
	if n == nil {
		if end == 0 {
			if req.Pin {
				r.Pin = t.pinWhole(nil, 0, ticket)
			}
			return nil
		}
		n = t.openSpace(req.Namespace)
	}
	if k > 0 && k < int(n.pages) {
		if t.cfg.WholeLeaf {
			raise(&n.stamp, now)
		}
		n = t.split(n, k)
	}
	t.path = pathTo(n, t.path[:0])
	for _, m := range t.path {
		if m.end() > req.From {
			t.overlap(m, req, r)
		}
	}
	if n.end() < end {
		n = t.grow(n, req, r, &ahead, now)
	}
	r.Pages = end
	for _, c := range req.Checkpoints {
		t.plant(n, c, &r.Freed)
	}
	t.visit(n, req, hinted, now, ticket)
	if req.Pin {
		r.Pin = t.pinWhole(n, end, ticket)
	}
	return nil
}

func (t *Tree) checkInsert(req *InsertRequest, end int) error {
	switch {
	case req.From < 0 || end*t.pt > len(req.Tokens):
		return fmt.Errorf("%w: pages %d..%d of %d tokens at %d a page", ErrArgument, req.From, end, len(req.Tokens), t.pt)
	case req.WindowFrom != nil && len(req.WindowFrom) != len(t.cfg.Pools):
		return fmt.Errorf("%w: %d WindowFrom, %d pools", ErrArgument, len(req.WindowFrom), len(t.cfg.Pools))
	case req.Priority > 99:
		return fmt.Errorf("%w: Priority %d is not in 0..99", ErrArgument, req.Priority)
	}
	for _, c := range req.Checkpoints {
		if c.Pool < 0 || c.Pool >= len(t.cfg.Pools) || t.cfg.Pools[c.Pool].Role != State || c.At <= 0 || c.At > end {
			return fmt.Errorf("%w: checkpoint of pool %d at page %d of %d", ErrArgument, c.Pool, c.At, end)
		}
	}
	return nil
}

// prepared is what an insert does before it takes the exclusive lock.
type prepared struct {
	found  foresight
	strip  strip // of positions [found.at, end), or nil
	hashes []Hash
}

// dropStrip gives up a strip that turns out not to be needed.
func (t *Tree) dropStrip(p *prepared) {
	if p.strip != nil {
		t.strips.put(p.strip)
		p.strip = nil
	}
}

// prepare does outside the exclusive lock what needs no lock: it finds where the path will probably end and lays out the pages beyond.
func (t *Tree) prepare(req *InsertRequest, end int) (p prepared, err error) {
	t.mu.RLock()
	n, k, _, err := t.locate(req.Namespace, req.After, req.From, req.Tokens, end)
	p.found = foresee(n, k)
	t.mu.RUnlock()
	at := p.found.at
	if err == nil && at < req.From {
		err = ErrGap
	}
	if err != nil || at >= end {
		return p, err
	}
	if t.cfg.Hashes {
		if p.hashes, err = t.hashAhead(req.Namespace, req.After, req.Tokens, at, end); err != nil {
			return p, err
		}
	}
	p.strip = t.layStrip(req, at, end)
	return p, nil
}

// layStrip makes a strip with the request's tokens, device pages and window bits of positions [at, end).
func (t *Tree) layStrip(req *InsertRequest, at, end int) strip {
	pages := end - at
	s := t.newStrip(pages)
	copy(s[t.stripWords(pages, 0):], req.Tokens[at*t.pt:end*t.pt])
	dev, flags := s.deviceColumn(pages), s.flagsColumn(pages)
	for i, v := range req.Pages[at-req.From:][:len(dev)] {
		dev[i] = uint32(v)
	}
	for k, w := range t.swa {
		for i := max(0, windowFrom(req, w.pool)-at); i < pages; i++ {
			flags[i] |= windowBit(k)
		}
	}
	return s
}

func windowFrom(req *InsertRequest, pool int) int {
	if req.WindowFrom == nil {
		return req.From
	}
	return max(req.From, req.WindowFrom[pool])
}

// checkPrefix makes sure that everything before from is on the device and has arrived.
func (t *Tree) checkPrefix(n *node, k, from int) error {
	if from == 0 {
		return nil
	}
	if n == nil || int(n.start)+k < from {
		return ErrGap
	}
	m := n
	for int(m.start) >= from {
		m = m.parent
	}
	if int(m.start+m.pools[t.full].dev) < from {
		return ErrGap
	}
	for ; !m.root(); m = m.parent {
		if t.readyPages(m, false) < min(int(m.pages), from-int(m.start)) {
			return ErrPending
		}
		for _, w := range t.swa {
			if m.pools[w.pool].pending > 0 {
				return ErrPending
			}
		}
	}
	return nil
}

// overlap settles the request's pages at positions that n already has.
func (t *Tree) overlap(n *node, req *InsertRequest, r *InsertResult) {
	full := &n.pools[t.full]
	dev := t.col(n, colDevice)
	revived := int(full.dev)
	for i := max(0, req.From-int(n.start)); i < int(n.pages); i++ {
		at := int(n.start) + i
		v := uint32(req.Pages[at-req.From])
		incoming := uint32(0)
		for s, w := range t.swa {
			if at >= windowFrom(req, w.pool) {
				incoming |= windowBit(s)
			}
		}
		switch {
		case i >= int(full.dev): // on the host only: the fresh page revives it
			dev[i] = v
			t.addDev(n, t.full, 1)
			t.dupRange(n, i, i+1, 1)
			t.setWindows(n, i, incoming, ByInsert)
			r.Revived++
		case dev[i] == v: // the request's own page, inserted before
			r.Existing++
		default:
			t.duplicate(n, i, v, incoming, req, r)
			r.Existing++
		}
		r.Now = append(r.Now, ids.VirtualPage(dev[i]))
	}
	t.emit(Stored, Device, t.full, ByInsert, n, revived, int(full.dev))
	t.reconcile(n)
}

// duplicate settles a page v for a position that has a device page. The resident page stays unless the newcomer has a window that the
// resident one has lost, and nobody relies on the resident one; or unless the resident one is still being loaded, in which case the load
// finds itself superseded.
func (t *Tree) duplicate(n *node, i int, v, incoming uint32, req *InsertRequest, r *InsertResult) {
	dev, flags := t.col(n, colDevice), t.col(n, colFlags)
	if flags[i]&flagPending != 0 {
		flags[i] &^= flagPending
		t.addPending(n, t.full, -1)
		t.clearWindows(n, i, flags)
		dev[i] = v
		t.setWindows(n, i, incoming, ByInsert)
		t.emit(Stored, Device, t.full, ByInsert, n, i, i+1)
		return
	}
	present := flags[i] & windowMask
	missing := incoming &^ present
	if missing == 0 {
		r.Freed.device(t.full, v)
		return
	}
	if !n.pinned(t.full) && present&^incoming == 0 {
		r.Freed.device(t.full, dev[i])
		dev[i] = v
		t.setWindows(n, i, missing, ByInsert)
		return
	}
	if req.Rebind {
		for s, w := range t.swa {
			if missing&windowBit(s) != 0 {
				r.Rebinds = append(r.Rebinds, Rebind{w.pool, ids.VirtualPage(v), ids.VirtualPage(dev[i])})
			}
		}
		t.setWindows(n, i, missing, ByInsert)
	}
	r.Freed.device(t.full, v)
}

// setWindows puts window pages of page i on the books; none of them was there.
func (t *Tree) setWindows(n *node, i int, mask uint32, reason Reason) {
	if mask == 0 {
		return
	}
	t.col(n, colFlags)[i] |= mask
	for s, w := range t.swa {
		if mask&windowBit(s) == 0 {
			continue
		}
		st := &n.pools[w.pool]
		if st.dev == 0 || st.first > int32(i) {
			st.first = int32(i)
		}
		t.addDev(n, w.pool, 1)
		t.emit(Stored, Device, w.pool, reason, n, i, i+1)
	}
}

// grow hangs a new leaf with the request's remaining pages under n, in the strip that lies ready if it begins early enough.
func (t *Tree) grow(n *node, req *InsertRequest, r *InsertResult, ahead *prepared, now uint64) *node {
	from, end := n.end(), req.From+len(req.Pages)
	if ahead.strip == nil || from < ahead.found.at {
		t.dropStrip(ahead)
		ahead.found.at, ahead.hashes = from, nil
		ahead.strip = t.layStrip(req, from, end)
	}
	skip := from - ahead.found.at
	leaf := t.slab.take()
	leaf.start = int32(from)
	leaf.created = now
	t.setStrip(leaf, ahead.strip, skip, end-from)
	*leaf.strip.live() = uint32(leaf.pages)
	t.hashLeaf(n, leaf, ahead.hashes, skip)
	t.thin(leaf)
	t.addDev(leaf, t.full, leaf.pages)
	for s, w := range t.swa {
		st := &leaf.pools[w.pool]
		st.first = int32(max(0, windowFrom(req, w.pool)-from))
		if c := countBits(t.col(leaf, colFlags), windowBit(s)); c > 0 {
			t.addDev(leaf, w.pool, c)
		}
	}
	t.link(n, leaf)
	r.Now = append(r.Now, req.Pages[from-req.From:]...)
	r.New += int(leaf.pages)
	t.emit(Stored, Device, t.full, ByInsert, leaf, 0, int(leaf.pages))
	for _, w := range t.swa {
		if st := &leaf.pools[w.pool]; st.dev > 0 {
			t.emit(Stored, Device, w.pool, ByInsert, leaf, int(st.first), int(leaf.pages))
		}
	}
	t.reconcile(leaf)
	t.reconcile(n)
	return leaf
}

// plant attaches a checkpoint at its boundary on the path that ends with n, and cuts a node there if none ends there.
func (t *Tree) plant(n *node, c Checkpoint, f *Freed) {
	for int(n.start) >= c.At {
		n = n.parent
	}
	if n.end() > c.At {
		n = t.split(n, c.At-int(n.start))
	}
	s := &n.pools[c.Pool]
	if s.devID != ids.None {
		f.device(c.Pool, uint32(c.Page))
		return
	}
	s.devID = uint32(c.Page)
	t.addDev(n, c.Pool, 1)
	t.emit(Stored, Device, c.Pool, ByInsert, n, int(n.pages)-1, int(n.pages))
	t.reconcile(n)
}

// visit records the insert as one access of the whole path: recency everywhere, so that what a request inserted is never fresher than
// what it hangs on; a hit only beyond hinted, because the match has counted up to there.
func (t *Tree) visit(n *node, req *InsertRequest, hinted int, now uint64, ticket policy.Ticket) {
	end := n.end()
	for m := n; !m.root(); m = m.parent {
		raise(&m.stamp, now)
		if int(m.start) >= hinted {
			if t.learn != nil {
				t.teach(m, ticket)
			}
			m.hits.Add(1)
		}
		if m.history.Load() < int32(end) {
			m.history.Store(int32(end))
		}
		if t.prefer(m, req) {
			t.mark(m)
		}
		for _, w := range t.swa {
			if m.end() > end-w.window {
				raise(&m.pools[w.pool].stamp, now)
			}
		}
		t.markListed(m)
	}
	for _, p := range t.states {
		if n.pools[p].dev > 0 {
			raise(&n.pools[p].stamp, now)
		}
	}
	t.settle()
}

// Prefer gives the path that p pins a priority until a time (0: for ever), as an insert does.
func (t *Tree) Prefer(p Pin, priority uint8, retain uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, live := t.bottom(p)
	if !live || n == nil || n.detached {
		return
	}
	for ; !n.root(); n = n.parent {
		if t.prefer(n, &InsertRequest{Priority: priority, Retain: retain}) {
			t.mark(n)
		}
	}
	t.settle()
}

// prefer raises the priority of n to the request's, or lengthens the time for which it counts, and reports whether it did.
func (t *Tree) prefer(n *node, req *InsertRequest) bool {
	p, old := uint32(req.Priority), n.priority.Load()
	longer := p == old && n.retain != 0 && (req.Retain == 0 || req.Retain > n.retain)
	if p == 0 || p < old || p == old && !longer {
		return false
	}
	n.priority.Store(p)
	n.retain, n.expired = req.Retain, false
	return true
}

// pinWhole pins the path to n on the device with its last windows and its state.
func (t *Tree) pinWhole(n *node, end int, ticket policy.Ticket) Pin {
	var spec pinSpec
	spec.reset(len(t.cfg.Pools))
	spec.ticket = ticket
	spec.dev[t.full] = 0
	for _, w := range t.swa {
		spec.dev[w.pool] = int32(max(0, end-w.window))
	}
	for _, p := range t.states {
		spec.dev[p] = 0
	}
	return t.pin(n, &spec)
}
