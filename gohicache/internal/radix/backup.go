package radix

import (
	"fmt"

	"github.com/hicache/hicache/ffi/ids"
)

// BackUpID names a back-up from its begin to FinishBackUp. The zero value is none.
type BackUpID struct{ slot, gen uint32 }

// BackUp describes what a back-up must copy, ascending positions, so parents before children. Reused like Match.
type BackUp struct {
	ID        BackUpID
	Full      []ids.VirtualPage
	FullAt    []int
	Windows   [][]ids.VirtualPage // by pool: full pages whose window page has no host copy
	WindowsAt [][]int
	States    [][]ids.VirtualPage // by pool: states without host copy
	StatesAt  [][]int             // the length of the prefix each stands for
}

func (b *BackUp) reset(pools int) {
	b.ID = BackUpID{}
	b.Full, b.FullAt = b.Full[:0], b.FullAt[:0]
	for len(b.Windows) < pools {
		b.Windows, b.WindowsAt = append(b.Windows, nil), append(b.WindowsAt, nil)
		b.States, b.StatesAt = append(b.States, nil), append(b.StatesAt, nil)
	}
	for p := range pools {
		b.Windows[p], b.WindowsAt[p] = b.Windows[p][:0], b.WindowsAt[p][:0]
		b.States[p], b.StatesAt[p] = b.States[p][:0], b.StatesAt[p][:0]
	}
}

func (b *BackUp) empty() bool {
	n := len(b.Full)
	for p := range b.Windows {
		n += len(b.Windows[p]) + len(b.States[p])
	}
	return n == 0
}

// backUp is a back-up in flight. It pins its path, so what it lists stays where it is.
type backUp struct {
	pin     Pin
	bottom  *node
	full    []backPage
	windows []backPage
	states  []backPage
	// Begun by an eviction: what to give up on the device once the copy is there.
	demote demotion
	want   int // pool of a demoteWindow or demoteState
}

type demotion uint8

const (
	demoteNone   demotion = iota
	demoteTail            // the listed full pages, from the tail of their node
	demoteWindow          // the listed window pages; also if the copy failed, the full pages stay
	demoteState           // the listed state; also if the copy failed
)

type backPage struct {
	pool int
	at   int32
	page uint32
}

// BeginBackUp collects, on the path of p, every page, window and state that is on the device, not on the host, not on its way there, and
// whose node was covered by at least minHits requests. They are pinned until FinishBackUp. It returns false, with no id taken, if there is
// nothing to do.
func (t *Tree) BeginBackUp(p Pin, minHits int, b *BackUp) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	b.reset(len(t.cfg.Pools))
	n, live := t.bottom(p)
	if !live || n == nil || n.detached {
		return false
	}
	t.path = pathTo(n, t.path[:0])
	for _, m := range t.path {
		if int(m.hits.Load()) >= minHits {
			t.listUnbacked(m, 0, int(m.pages), b)
		}
	}
	if b.empty() {
		return false
	}
	t.beginBackUp(n, b, demoteNone, 0)
	return true
}

// listUnbacked adds what pages [from, to) of n and the state at n's end lack on the host.
func (t *Tree) listUnbacked(n *node, from, to int, b *BackUp) {
	full := &n.pools[t.full]
	whole := full.host == n.pages
	for _, w := range t.swa {
		st := &n.pools[w.pool]
		whole = whole && (st.dev == 0 || st.host == n.pages)
	}
	if !whole {
		dev, host, flags := t.col(n, colDevice), t.col(n, colHost), t.col(n, colFlags)
		for i := from; i < min(to, int(full.dev)); i++ {
			if flags[i]&(flagBacking|flagPending) != 0 {
				continue
			}
			if host[i] == ids.None {
				b.Full = append(b.Full, ids.VirtualPage(dev[i]))
				b.FullAt = append(b.FullAt, int(n.start)+i)
			}
			t.listWindows(n, i, dev[i], flags[i], b)
		}
	}
	if to < int(n.pages) {
		return
	}
	for _, p := range t.states {
		t.listState(n, p, b)
	}
}

func (t *Tree) listWindows(n *node, i int, page, flags uint32, b *BackUp) {
	ready := readyWindows(flags)
	if ready == 0 {
		return
	}
	for s, w := range t.swa {
		if ready&windowBit(s) != 0 && t.col(n, colWindowHost+s)[i] == ids.None {
			b.Windows[w.pool] = append(b.Windows[w.pool], ids.VirtualPage(page))
			b.WindowsAt[w.pool] = append(b.WindowsAt[w.pool], int(n.start)+i)
		}
	}
}

func (t *Tree) listState(n *node, p int, b *BackUp) {
	if s := &n.pools[p]; s.dev > 0 && s.pending == 0 && s.host == 0 && !s.backing {
		b.States[p] = append(b.States[p], ids.VirtualPage(s.devID))
		b.StatesAt[p] = append(b.StatesAt[p], n.end())
	}
}

// beginBackUp takes an id for b, whose pages lie on the path that ends at n, and pins them.
func (t *Tree) beginBackUp(n *node, b *BackUp, why demotion, want int) {
	slot, gen, r := t.backs.take()
	b.ID = BackUpID{slot, gen}
	r.bottom, r.demote, r.want = n, why, want
	r.full, r.windows, r.states = r.full[:0], r.windows[:0], r.states[:0]
	var spec pinSpec
	spec.reset(len(t.cfg.Pools))
	spec.dev[t.full] = 0
	path := pathTo(n, nil)
	for j, v := range b.Full {
		r.full = append(r.full, backPage{t.full, int32(b.FullAt[j]), uint32(v)})
		t.flag(path, b.FullAt[j])
	}
	for p := range b.Windows {
		for j, v := range b.Windows[p] {
			r.windows = append(r.windows, backPage{p, int32(b.WindowsAt[p][j]), uint32(v)})
			t.flag(path, b.WindowsAt[p][j])
		}
		if len(b.Windows[p]) > 0 {
			spec.dev[p] = int32(b.WindowsAt[p][0])
		}
		for j, v := range b.States[p] {
			at := b.StatesAt[p][j]
			r.states = append(r.states, backPage{p, int32(at), uint32(v)})
			holder(path, int32(at-1)).pools[p].backing = true
		}
	}
	r.pin = t.pin(n, &spec)
	for _, m := range path {
		t.markListed(m)
	}
}

func (t *Tree) flag(path []*node, at int) {
	n := holder(path, int32(at))
	t.col(n, colFlags)[at-int(n.start)] |= flagBacking
}

// AfterBackUps adds to pages, by pool, how many device pages nothing but the back-ups in flight keeps from eviction. O(back-ups × path).
func (t *Tree) AfterBackUps(pages []uint64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.backs.live == 0 {
		return
	}
	pins := map[*node]int32{}
	for _, it := range t.backs.items {
		if it.used {
			for n := it.rec.bottom; n != nil && !n.root(); n = n.parent {
				pins[n]++
			}
		}
	}
	for n, c := range pins {
		if n.detached || n.pools[t.full].pins.Load() != c {
			continue
		}
		for p := range n.pools {
			pages[p] += uint64(n.pools[p].dev)
		}
	}
}

// FinishBackUp ends a back-up. ok: full[i], windows[pool][i] and states[pool][i] become the host copies of BackUp.Full[i] and so on; the
// lists may be shorter than the back-up's, or hold NoHostPage, for what was not copied. Those that found a copy there already, or whose
// parent page has none under HostPrefixClosed, are in f. Not ok: nothing is published and the caller frees the host pages it took. Where an
// eviction began the back-up, the device pages leave now and are in f, unless somebody pinned them since; a failed copy leaves full pages
// where they are and lets a window or a state go.
func (t *Tree) FinishBackUp(id BackUpID, ok bool, full []ids.HostPage, windows, states [][]ids.HostPage, f *Freed) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.backs.get(id.slot, id.gen)
	if r == nil {
		return ErrStale
	}
	if err := r.check(ok, full, windows, states); err != nil {
		return err
	}
	f.fit(len(t.cfg.Pools))
	path := pathTo(r.bottom, t.path[:0])
	t.path = path
	for j, b := range r.full {
		h := ids.NoHostPage
		if ok && j < len(full) {
			h = full[j]
		}
		t.backed(path, b, uint32(h), f)
	}
	var next [MaxPools]int
	for _, b := range r.windows {
		h := ids.NoHostPage
		if j := next[b.pool]; ok && b.pool < len(windows) && j < len(windows[b.pool]) {
			h = windows[b.pool][j]
			next[b.pool]++
		}
		t.backedWindow(path, b, uint32(h), f)
	}
	next = [MaxPools]int{}
	for _, b := range r.states {
		h := ids.NoHostPage
		if j := next[b.pool]; ok && b.pool < len(states) && j < len(states[b.pool]) {
			h = states[b.pool][j]
			next[b.pool]++
		}
		t.backedState(path, b, uint32(h), f)
	}
	t.release(r.pin)
	if !r.bottom.detached {
		t.demote(r, ok, f)
	}
	r.bottom = nil
	t.backs.put(id.slot)
	t.settle()
	return nil
}

// check refuses more host pages than the back-up has pages.
func (r *backUp) check(ok bool, full []ids.HostPage, windows, states [][]ids.HostPage) error {
	if !ok {
		return nil
	}
	var w, s [MaxPools]int
	for _, b := range r.windows {
		w[b.pool]++
	}
	for _, b := range r.states {
		s[b.pool]++
	}
	if len(full) > len(r.full) {
		return fmt.Errorf("%w: %d host pages for %d full pages", ErrArgument, len(full), len(r.full))
	}
	for p := range MaxPools {
		if p < len(windows) && len(windows[p]) > w[p] || p < len(states) && len(states[p]) > s[p] {
			return fmt.Errorf("%w: more host pages of pool %d than the back-up has", ErrArgument, p)
		}
	}
	return nil
}

// backed publishes the host copy h of one full page; h is None if the copy failed.
func (t *Tree) backed(path []*node, b backPage, h uint32, f *Freed) {
	n := holder(path, b.at)
	i := int(b.at - n.start)
	t.col(n, colFlags)[i] &^= flagBacking
	host := t.col(n, colHost)
	if h == ids.None {
		return
	}
	if n.detached || host[i] != ids.None || t.hostPC.Load() && !t.parentHosted(n, i) {
		f.host(t.full, h)
		return
	}
	t.setHost(n, i, h, ByBackUp)
}

// parentHosted reports whether the page before page i of n has a host copy; the first page of a path needs none.
func (t *Tree) parentHosted(n *node, i int) bool {
	if i > 0 {
		return t.col(n, colHost)[i-1] != ids.None
	}
	p := n.parent
	return p == nil || p.root() || t.col(p, colHost)[p.pages-1] != ids.None
}

// setHost gives page i of n its host copy; it had none.
func (t *Tree) setHost(n *node, i int, h uint32, reason Reason) {
	t.col(n, colHost)[i] = h
	n.hostEnd = max(n.hostEnd, int32(i+1))
	if i < int(n.pools[t.full].dev) {
		t.ledgers[t.full].dup.Add(1)
	}
	t.addHost(n, t.full, 1)
	t.emit(Stored, Host, t.full, reason, n, i, i+1)
	t.mark(n)
}

func (t *Tree) backedWindow(path []*node, b backPage, h uint32, f *Freed) {
	n := holder(path, b.at)
	i := int(b.at - n.start)
	t.col(n, colFlags)[i] &^= flagBacking
	if h == ids.None {
		return
	}
	s := t.rank[b.pool]
	orphan := t.hostPC.Load() && t.col(n, colHost)[i] == ids.None // a window without its full page
	if n.detached || t.col(n, colWindowHost+s)[i] != ids.None || orphan {
		f.host(b.pool, h)
		return
	}
	t.setWindowHost(n, s, i, h, ByBackUp)
}

func (t *Tree) setWindowHost(n *node, s, i int, h uint32, reason Reason) {
	st := &n.pools[t.swa[s].pool]
	t.col(n, colWindowHost+s)[i] = h
	if st.host == 0 || st.hostFirst > int32(i) {
		st.hostFirst = int32(i)
	}
	t.addHost(n, t.swa[s].pool, 1)
	t.emit(Stored, Host, t.swa[s].pool, reason, n, i, i+1)
	t.mark(n)
}

func (t *Tree) backedState(path []*node, b backPage, h uint32, f *Freed) {
	n := holder(path, b.at-1)
	s := &n.pools[b.pool]
	s.backing = false
	t.mark(n)
	if h == ids.None {
		return
	}
	if n.detached || s.hostID != ids.None || n.end() != int(b.at) {
		f.host(b.pool, h)
		return
	}
	t.setStateHost(n, b.pool, h, ByBackUp)
}

func (t *Tree) setStateHost(n *node, pool int, h uint32, reason Reason) {
	n.pools[pool].hostID = h
	t.addHost(n, pool, 1)
	t.emit(Stored, Host, pool, reason, n, int(n.pages)-1, int(n.pages))
	t.mark(n)
}

// demote carries out the eviction that asked for r.
func (t *Tree) demote(r *backUp, ok bool, f *Freed) {
	n := r.bottom
	switch r.demote {
	case demoteTail:
		if ok {
			t.demoteTail(n, r, f)
		}
	case demoteWindow:
		s := t.rank[r.want]
		for _, b := range r.windows {
			if b.pool != r.want {
				continue
			}
			m := n
			for m.start > b.at {
				m = m.parent
			}
			i := int(b.at - m.start)
			if (!m.pinned(b.pool) || i < t.coldEnd(m, b.pool)) && t.col(m, colFlags)[i]&windowBit(s) != 0 {
				t.dropWindow(m, s, i, f)
			}
			t.mark(m)
		}
	case demoteState:
		if st := &n.pools[r.want]; !n.pinned(r.want) && st.devID != ids.None && st.pending == 0 {
			t.dropState(n, r.want, f)
		}
		t.mark(n)
	}
}

// demoteTail takes the backed-up tail of a leaf off the device as far as nobody pinned or extended it since.
func (t *Tree) demoteTail(n *node, r *backUp, f *Freed) {
	if !t.candidate(orderLeaf, n) {
		return
	}
	low := int32(1<<31 - 1)
	for _, b := range r.full {
		low = min(low, b.at)
	}
	e := &t.evictor
	*e = evictor{t: t, f: f}
	host := t.col(n, colHost)
	from := int(n.pools[t.full].dev)
	for from > 0 && n.start+int32(from-1) >= low && host[from-1] != ids.None {
		from--
	}
	if from < int(n.pools[t.full].dev) {
		e.demoteRun(n, from)
	}
	e.close(n)
}
