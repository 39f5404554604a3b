package radix

import "github.com/hicache/hicache/ffi/ids"

// tombstone gives up window pages of one node, the lowest first: those before the last window serve only matches that end inside the node.
// A page with a host copy, or any page under Drop, goes at once; under Back the rest is backed up first.
func (e *evictor) tombstone(n *node) {
	t := e.t
	s := t.rank[e.pool]
	st := &n.pools[e.pool]
	hi := int(n.pages)
	if n.pinned(e.pool) || e.tailHasWindow(n) && !t.cfg.WholeLeaf {
		hi = t.coldEnd(n, e.pool)
	}
	flags, host := t.col(n, colFlags), t.col(n, colWindowHost+s)
	i := int(st.first)
	for ; i < hi && e.short(); i++ {
		if flags[i]&windowBit(s) == 0 {
			continue
		}
		if flags[i]&(flagBacking|pendingBit(s)) != 0 {
			e.skip(n)
			break
		}
		if host[i] == ids.None && e.req.Unbacked != Drop {
			if e.req.Unbacked == Keep || !e.backUpWindows(n, s, i, hi) {
				e.skip(n)
			}
			break
		}
		e.gone(e.pool, Tombstoned, int(n.start)+i, 1)
		t.dropWindow(n, s, i, e.f)
		e.ask()
	}
	if st.dev > 0 {
		for st.first = int32(min(i, int(st.first))); flags[st.first]&windowBit(s) == 0; {
			st.first++
		}
	}
	t.reconcile(n)
}

// dropWindow takes one window page off the device; the full page stays.
func (t *Tree) dropWindow(n *node, s, i int, f *Freed) {
	pool := t.swa[s].pool
	t.col(n, colFlags)[i] &^= windowBit(s)
	f.device(pool, t.col(n, colDevice)[i])
	t.addDev(n, pool, -1)
	t.emit(Removed, Device, pool, Tombstoned, n, i, i+1)
}

// backUpWindows begins the back-up of window pages of n in [from, hi), as many as are wanted.
func (e *evictor) backUpWindows(n *node, s, from, hi int) bool {
	t := e.t
	b := e.newBackUp()
	room := e.req.Want[e.pool] - e.r.Gone[e.pool] - e.r.Pending[e.pool]
	dev, flags, host := t.col(n, colDevice), t.col(n, colFlags), t.col(n, colWindowHost+s)
	for i := from; i < hi && room > 0; i++ {
		if flags[i]&windowBit(s) == 0 {
			continue
		}
		if flags[i]&(flagBacking|pendingBit(s)) != 0 || host[i] != ids.None {
			break
		}
		b.Windows[e.pool] = append(b.Windows[e.pool], ids.VirtualPage(dev[i]))
		b.WindowsAt[e.pool] = append(b.WindowsAt[e.pool], int(n.start)+i)
		room--
	}
	if b.empty() {
		e.r.BackUps = e.r.BackUps[:len(e.r.BackUps)-1]
		return false
	}
	t.beginBackUp(n, b, demoteWindow, e.pool)
	e.r.Pending[e.pool] += len(b.Windows[e.pool])
	e.ask()
	e.skip(n)
	return true
}

// state gives up the checkpoint of one node.
func (e *evictor) state(n *node) {
	t := e.t
	s := &n.pools[e.pool]
	if s.host == 0 && e.req.Unbacked != Drop {
		if e.req.Unbacked == Back {
			b := e.newBackUp()
			t.listState(n, e.pool, b)
			t.beginBackUp(n, b, demoteState, e.pool)
			e.pending(b)
			e.ask()
		}
		e.skip(n)
		return
	}
	kind := Dropped
	if s.host > 0 {
		kind = Demoted
	}
	e.gone(e.pool, kind, n.end()-1, 1)
	t.dropState(n, e.pool, e.f)
	e.ask()
	t.reconcile(n)
}

func (t *Tree) dropState(n *node, pool int, f *Freed) {
	s := &n.pools[pool]
	kind := Dropped
	if s.host > 0 {
		kind = Demoted
	}
	f.device(pool, s.devID)
	s.devID = ids.None
	t.addDev(n, pool, -1)
	t.emit(Removed, Device, pool, kind, n, int(n.pages)-1, int(n.pages))
}

// host serves the present pool's Want on the host.
func (e *evictor) host() {
	t := e.t
	if e.pool != t.full {
		e.hostAux()
		return
	}
	for o := orderHostLeaf; e.short(); {
		n := t.top(o)
		if n == nil {
			break
		}
		e.trimHost(n)
	}
	for o := orderDuplicate; e.req.Duplicates && e.short(); {
		n := t.top(o)
		if n == nil {
			break
		}
		e.trimDuplicate(n)
	}
}

// trimHost gives up pages that only the host holds, from the tail of a leaf.
func (e *evictor) trimHost(n *node) {
	t := e.t
	for n.pages > n.pools[t.full].dev && (t.cfg.WholeLeaf || e.short()) {
		e.dropHostTail(n, HostEvicted)
		if t.cfg.WholeLeaf {
			continue
		}
		e.ask()
		if e.pool != t.full && !e.hostTailHasWindow(n) {
			break // the rest of the leaf has nothing that is wanted
		}
	}
	if t.cfg.WholeLeaf {
		e.ask()
	}
	e.close(n)
}

// hostTailHasWindow is tailHasWindow on the host.
func (e *evictor) hostTailHasWindow(n *node) bool {
	t := e.t
	return t.candidate(orderHostLeaf, n) && t.col(n, colWindowHost+t.rank[e.pool])[n.pages-1] != ids.None
}

// dropHostTail gives up the last page of n, which only the host holds.
func (e *evictor) dropHostTail(n *node, kind Reason) {
	t := e.t
	i := int(n.pages) - 1
	for _, p := range t.states {
		if n.pools[p].dev > 0 {
			t.dropState(n, p, e.f)
		}
		if t.dropStateHost(n, p, e.f, kind) {
			e.hostGone(p, kind, n.end()-1)
		}
	}
	e.dropHostPage(n, i, kind)
	t.shrink(n, i)
}

// dropHostPage frees the host copy of page i and the hosted windows that go with it.
func (e *evictor) dropHostPage(n *node, i int, kind Reason) {
	t := e.t
	for s, w := range t.swa {
		if t.dropWindowHost(n, s, i, e.f, kind) {
			e.hostGone(w.pool, kind, int(n.start)+i)
		}
	}
	host := t.col(n, colHost)
	if host[i] == ids.None {
		return
	}
	e.f.host(t.full, host[i])
	host[i] = ids.None
	if i < int(n.pools[t.full].dev) {
		t.ledgers[t.full].dup.Add(-1)
	}
	t.addHost(n, t.full, -1)
	e.hostGone(t.full, kind, int(n.start)+i)
	t.emit(Removed, Host, t.full, kind, n, i, i+1)
}

// hostGone counts a host page; pages of the host that a device pass takes along are in Freed but not in Gone.
func (e *evictor) hostGone(pool int, kind Reason, at int) {
	if e.req != nil && e.req.Tier == Host {
		e.gone(pool, kind, at, 1)
	}
}

// trimDuplicate gives up host copies of pages that are on the device, the last first.
func (e *evictor) trimDuplicate(n *node) {
	t := e.t
	for n.pools[t.full].host > 0 && e.short() {
		i := int(min(n.hostEnd, n.pages)) - 1
		for t.col(n, colHost)[i] == ids.None {
			i--
		}
		n.hostEnd = int32(i)
		if i == int(n.pages)-1 {
			for _, p := range t.states {
				if t.dropStateHost(n, p, e.f, HostEvicted) {
					e.hostGone(p, HostEvicted, n.end()-1)
				}
			}
		}
		e.dropHostPage(n, i, HostEvicted)
		e.ask()
	}
	t.reconcile(n)
}

// dropWindowHost frees the hosted window of page i and reports whether there was one.
func (t *Tree) dropWindowHost(n *node, s, i int, f *Freed, kind Reason) bool {
	col := t.col(n, colWindowHost+s)
	if col[i] == ids.None {
		return false
	}
	f.host(t.swa[s].pool, col[i])
	col[i] = ids.None
	t.addHost(n, t.swa[s].pool, -1)
	t.emit(Removed, Host, t.swa[s].pool, kind, n, i, i+1)
	return true
}

func (t *Tree) dropStateHost(n *node, pool int, f *Freed, kind Reason) bool {
	s := &n.pools[pool]
	if s.hostID == ids.None {
		return false
	}
	f.host(pool, s.hostID)
	s.hostID = ids.None
	t.addHost(n, pool, -1)
	t.emit(Removed, Host, pool, kind, n, int(n.pages)-1, int(n.pages))
	return true
}

// hostAux gives up hosted windows or states, least recently used first. A leaf on the host goes from its tail as a whole, as on the device.
func (e *evictor) hostAux() {
	t := e.t
	o := orderHost(e.pool)
	for e.short() {
		n := t.top(o)
		if n == nil {
			return
		}
		if t.cfg.Pools[e.pool].Role == State {
			t.dropStateHost(n, e.pool, e.f, HostEvicted)
			e.hostGone(e.pool, HostEvicted, n.end()-1)
			e.ask()
			t.reconcile(n)
			continue
		}
		s := t.rank[e.pool]
		if e.hostTailHasWindow(n) {
			e.trimHost(n)
			continue
		}
		st := &n.pools[e.pool]
		for i := int(st.hostFirst); i < int(n.pages) && e.short(); i++ {
			if t.dropWindowHost(n, s, i, e.f, HostEvicted) {
				e.hostGone(e.pool, HostEvicted, int(n.start)+i)
				e.ask()
			}
			st.hostFirst = int32(i + 1)
		}
		t.reconcile(n)
	}
}
