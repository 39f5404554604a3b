package radix

import "github.com/hicache/hicache/ffi/ids"

// StoreID names a write to storage from BeginStore to FinishStore. The zero value is none.
type StoreID struct{ slot, gen uint32 }

// Store describes host pages that storage lacks, ascending positions. Reused like Match.
type Store struct {
	ID      StoreID
	At      []int
	Full    []ids.HostPage
	Windows [][]ids.HostPage // by pool, one for each of Full, NoHostPage where the page has no window on the host
	States  [][]ids.HostPage // by pool, one for each of Full: the state after that page, or NoHostPage
}

// store is a write in flight.
type store struct {
	pin    Pin
	bottom *node
	at     []int32
}

// BeginStore collects, on the path of p, every page that is on the host, not in storage and not on its way there. They are pinned on the
// host until FinishStore. It returns false, with no id taken, if there is nothing to do. Tree.Hashes has the keys.
func (t *Tree) BeginStore(p Pin, s *Store) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.reset(len(t.cfg.Pools))
	n, live := t.bottom(p)
	if !live || n == nil || n.detached {
		return false
	}
	t.path = pathTo(n, t.path[:0])
	for _, m := range t.path {
		if m.pools[t.full].host == 0 {
			continue
		}
		host, flags := t.col(m, colHost), t.col(m, colFlags)
		for i := range host {
			if host[i] != ids.None && flags[i]&(flagStored|flagStoring) == 0 {
				flags[i] |= flagStoring
				t.listStore(m, i, host[i], s)
			}
		}
	}
	if len(s.At) == 0 {
		return false
	}
	slot, gen, r := t.stores.take()
	s.ID = StoreID{slot, gen}
	r.at = r.at[:0]
	for _, at := range s.At {
		r.at = append(r.at, int32(at))
	}
	// Host pins alone: storage is slow, and the device pages may be demoted meanwhile.
	r.bottom = holder(t.path, r.at[len(r.at)-1])
	var spec pinSpec
	spec.reset(len(t.cfg.Pools))
	spec.host[t.full] = r.at[0]
	for _, w := range t.swa {
		spec.host[w.pool] = r.at[0]
	}
	r.pin = t.pin(r.bottom, &spec)
	return true
}

func (s *Store) reset(pools int) {
	s.ID, s.At, s.Full = StoreID{}, s.At[:0], s.Full[:0]
	for len(s.Windows) < pools {
		s.Windows, s.States = append(s.Windows, nil), append(s.States, nil)
	}
	for p := range pools {
		s.Windows[p], s.States[p] = s.Windows[p][:0], s.States[p][:0]
	}
}

func (t *Tree) listStore(n *node, i int, host uint32, s *Store) {
	s.At = append(s.At, int(n.start)+i)
	s.Full = append(s.Full, ids.HostPage(host))
	for k, w := range t.swa {
		s.Windows[w.pool] = append(s.Windows[w.pool], ids.HostPage(t.col(n, colWindowHost+k)[i]))
	}
	for _, p := range t.states {
		h := ids.NoHostPage
		if i == int(n.pages)-1 {
			h = ids.HostPage(n.pools[p].hostID)
			n.pools[p].storing = h != ids.NoHostPage
			t.mark(n)
		}
		s.States[p] = append(s.States[p], h)
	}
}

// FinishStore ends a store; its first n pages are in storage now, the rest are not and can be stored again.
func (t *Tree) FinishStore(id StoreID, n int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.stores.get(id.slot, id.gen)
	if r == nil {
		return ErrStale
	}
	m := r.bottom // climbs through pinned nodes only
	for j := len(r.at) - 1; j >= 0; j-- {
		at := r.at[j]
		for m.start > at {
			m = m.parent
		}
		flags := &t.col(m, colFlags)[at-m.start]
		*flags &^= flagStoring
		if at == m.start+m.pages-1 {
			for _, p := range t.states {
				m.pools[p].storing = false
				t.mark(m)
			}
		}
		if j < n && t.col(m, colHost)[at-m.start] != ids.None {
			*flags |= flagStored
		}
	}
	t.release(r.pin)
	r.bottom = nil
	t.stores.put(id.slot)
	t.settle()
	return nil
}

// ForgetStored makes no page count as being in storage any more, for a store that was taken away. O(pages); the tree is locked meanwhile.
func (t *Tree) ForgetStored() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.spaces {
		t.forgetStored(r)
	}
}

func (t *Tree) forgetStored(n *node) {
	if !n.root() {
		flags := t.col(n, colFlags)
		for i := range flags {
			flags[i] &^= flagStored
		}
	}
	for c := n.kid; c != nil; c = c.next {
		t.forgetStored(c)
	}
}
