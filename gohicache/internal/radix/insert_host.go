package radix

import (
	"fmt"

	"github.com/hicache/hicache/ffi/ids"
)

// InsertHostRequest publishes host pages that a prefetch brought.
type InsertHostRequest struct {
	Namespace Namespace
	Tokens    []uint32
	From      int
	Pages     []ids.HostPage // positions From, From+1, ...
	Windows   [][]HostWindow // by pool, ascending; Bind is ignored. nil: none
	States    []HostCheckpoint
	// Refill lets pages that are on the device without a host copy take the fetched page as theirs (not under write_back).
	Refill bool
	Stored bool // mark the pages as being in storage
	Now    uint64
}

// HostCheckpoint is a recurrent state on the host.
type HostCheckpoint struct {
	Pool, At int
	Page     ids.HostPage
}

// InsertHost publishes prefetched pages and takes ownership of them; those that had a copy already, or that may not become one, are in f.
// It returns the number of positions that are new on the host. Errors: ErrGap if the pages before From are not in the tree, ErrArgument;
// the caller then still owns everything and nothing has changed.
func (t *Tree) InsertHost(req *InsertHostRequest, f *Freed) (int, error) {
	end := req.From + len(req.Pages)
	if err := t.checkInsertHost(req, end); err != nil {
		return 0, err
	}
	now := t.tick(req.Now)
	var hashes []Hash
	if t.cfg.Hashes {
		var err error
		if hashes, err = t.hashAhead(req.Namespace, Pin{}, req.Tokens, req.From, end); err != nil {
			return 0, err
		}
	}
	t.mu.RLock() // the walk of the whole prompt stops nobody
	n, k, _, err := t.locate(req.Namespace, Pin{}, req.From, req.Tokens, end)
	found := foresee(n, k)
	t.mu.RUnlock()
	if err != nil {
		return 0, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	f.fit(len(t.cfg.Pools))
	if n, k, _, err = t.relocate(&found, req.Namespace, Pin{}, req.From, req.Tokens, end); err != nil {
		return 0, err
	}
	if n == nil && req.From > 0 || n != nil && int(n.start)+k < req.From {
		return 0, ErrGap
	}
	if end == 0 {
		return 0, nil
	}
	if n == nil {
		n = t.openSpace(req.Namespace)
	}
	if k > 0 && k < int(n.pages) {
		n = t.split(n, k)
	}
	fresh := 0
	t.path = pathTo(n, t.path[:0])
	for _, m := range t.path {
		if m.end() > req.From {
			fresh += t.refill(m, req, f)
		}
	}
	if n.end() < end {
		n = t.growHost(n, req, hashes, now)
		fresh += int(n.pages)
	}
	t.path = pathTo(n, t.path[:0])
	t.refillWindows(req, f)
	for _, c := range req.States {
		t.plantHost(n, c, f)
	}
	t.settle()
	return fresh, nil
}

func (t *Tree) checkInsertHost(req *InsertHostRequest, end int) error {
	if req.From < 0 || end*t.pt > len(req.Tokens) {
		return fmt.Errorf("%w: pages %d..%d of %d tokens at %d a page", ErrArgument, req.From, end, len(req.Tokens), t.pt)
	}
	for p, list := range req.Windows {
		for _, w := range list {
			if p >= len(t.cfg.Pools) || t.cfg.Pools[p].Role != SWA || w.At < req.From || w.At >= end {
				return fmt.Errorf("%w: window page of pool %d at position %d of %d..%d", ErrArgument, p, w.At, req.From, end)
			}
		}
	}
	for _, c := range req.States {
		if c.Pool < 0 || c.Pool >= len(t.cfg.Pools) || t.cfg.Pools[c.Pool].Role != State || c.At <= req.From || c.At > end {
			return fmt.Errorf("%w: state of pool %d at page %d of %d..%d", ErrArgument, c.Pool, c.At, req.From, end)
		}
	}
	return nil
}

// refill settles the fetched pages at positions that n already has, and returns how many became its host copies. Under HostPrefixClosed a
// page below an unbacked one may not have a copy.
func (t *Tree) refill(n *node, req *InsertHostRequest, f *Freed) (fresh int) {
	host, flags := t.col(n, colHost), t.col(n, colFlags)
	for i := max(0, req.From-int(n.start)); i < int(n.pages); i++ {
		h := uint32(req.Pages[int(n.start)+i-req.From])
		if host[i] != ids.None || !req.Refill || t.hostPC.Load() && !t.parentHosted(n, i) {
			f.host(t.full, h)
		} else {
			t.setHost(n, i, h, ByPrefetch)
			fresh++
		}
		if req.Stored && host[i] != ids.None {
			flags[i] |= flagStored
		}
	}
	return fresh
}

// growHost hangs a new leaf with the remaining pages under n.
func (t *Tree) growHost(n *node, req *InsertHostRequest, hashes []Hash, now uint64) *node {
	from, end := n.end(), req.From+len(req.Pages)
	leaf := t.slab.take()
	leaf.start, leaf.created = int32(from), now
	t.setStrip(leaf, t.newStrip(end-from), 0, end-from)
	copy(t.tokens(leaf), req.Tokens[from*t.pt:end*t.pt])
	host, flags := t.col(leaf, colHost), t.col(leaf, colFlags)
	fillNone(t.col(leaf, colDevice))
	for i := range host {
		host[i] = uint32(req.Pages[from+i-req.From])
		if req.Stored {
			flags[i] |= flagStored
		}
	}
	t.hashLeaf(n, leaf, hashes, from-req.From)
	leaf.hostEnd = leaf.pages
	leaf.stamp.Store(now)
	leaf.history.Store(int32(end))
	for p := range leaf.pools {
		leaf.pools[p].stamp.Store(now)
	}
	t.addHost(leaf, t.full, leaf.pages)
	t.link(n, leaf)
	t.emit(Stored, Host, t.full, ByPrefetch, leaf, 0, int(leaf.pages))
	t.reconcile(leaf)
	t.reconcile(n)
	return leaf
}

// refillWindows attaches the fetched windows to the host pages that lack theirs.
func (t *Tree) refillWindows(req *InsertHostRequest, f *Freed) {
	for p, list := range req.Windows {
		s := t.rank[p]
		for _, w := range list {
			n := holder(t.path, int32(w.At))
			i := w.At - int(n.start)
			if t.col(n, colHost)[i] == ids.None || t.col(n, colWindowHost+s)[i] != ids.None {
				f.host(p, uint32(w.Host))
				continue
			}
			t.setWindowHost(n, s, i, uint32(w.Host), ByPrefetch)
		}
	}
}

// plantHost is plant for the host.
func (t *Tree) plantHost(n *node, c HostCheckpoint, f *Freed) {
	for int(n.start) >= c.At {
		n = n.parent
	}
	if n.end() > c.At {
		n = t.split(n, c.At-int(n.start))
	}
	if n.pools[c.Pool].hostID != ids.None || t.col(n, colHost)[n.pages-1] == ids.None {
		f.host(c.Pool, uint32(c.Page))
		return
	}
	t.setStateHost(n, c.Pool, uint32(c.Page), ByPrefetch)
}

// WriteThroughCompatible reports whether the host side could have been built under write_through: host copies are prefix-closed and no
// window or state is on the host without its full page. The text names the first offender. O(pages).
func (t *Tree) WriteThroughCompatible() (bool, string) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, r := range t.spaces {
		if why := t.incompatible(r); why != "" {
			return false, why
		}
	}
	return true, ""
}

func (t *Tree) incompatible(n *node) string {
	if !n.root() {
		host := t.col(n, colHost)
		for i := range host {
			if host[i] != ids.None {
				if !t.parentHosted(n, i) {
					return fmt.Sprintf("page %d of a path is on the host and the page before it is not", int(n.start)+i)
				}
				continue
			}
			for s, w := range t.swa {
				if t.col(n, colWindowHost+s)[i] != ids.None {
					return fmt.Sprintf("the window of page %d in pool %d is on the host without its full page", int(n.start)+i, w.pool)
				}
			}
		}
		for _, p := range t.states {
			if n.pools[p].host > 0 && host[n.pages-1] == ids.None {
				return fmt.Sprintf("the state at page %d in pool %d is on the host without its full page", n.end(), p)
			}
		}
	}
	for c := n.kid; c != nil; c = c.next {
		if why := t.incompatible(c); why != "" {
			return why
		}
	}
	return ""
}
