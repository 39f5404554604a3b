package radix

// space returns the root of a namespace, or nil.
func (t *Tree) space(ns Namespace) *node { return t.spaces[ns] }

// openSpace returns the root of a namespace and makes it if need be. mu is held exclusively.
func (t *Tree) openSpace(ns Namespace) *node {
	r := t.spaces[ns]
	if r == nil {
		r = t.slab.take()
		r.space = &ns
		t.spaces[ns] = r
	}
	return r
}

// closeSpace drops a root without children.
func (t *Tree) closeSpace(r *node) {
	if r.kids == 0 {
		delete(t.spaces, *r.space)
		t.slab.put(r)
	}
}

// descend walks down from n, whose path and first k pages agree with tokens, and returns the last node that agrees with tokens on at least
// one page and on how many of its pages. Only the first limit pages of tokens are looked at. A root agrees on no pages.
func (t *Tree) descend(n *node, k int, tokens []uint32, limit int) (*node, int) {
	for k == int(n.pages) {
		at := n.end()
		if at >= limit {
			break
		}
		c := t.child(n, tokens[at*t.pt:(at+1)*t.pt])
		if c == nil {
			break
		}
		n, k = c, t.agree(c, tokens, limit)
	}
	return n, k
}

// agree is how many pages of n tokens repeats.
func (t *Tree) agree(n *node, tokens []uint32, limit int) int {
	k := min(int(n.pages), limit-int(n.start))
	if k <= 0 {
		return 0
	}
	lo := int(n.start) * t.pt
	return equalPages(t.tokens(n)[:k*t.pt], tokens[lo:lo+k*t.pt], t.pt)
}

// climb returns the node on the path of n that holds position at, or the root's first node below it; n.end() > at or n is returned.
func climb(n *node, at int) *node {
	for int(n.start) > at && !n.parent.root() {
		n = n.parent
	}
	return n
}

// pathTo appends the nodes from the first below the root to n, in order.
func pathTo(n *node, path []*node) []*node {
	for m := n; m != nil && !m.root(); m = m.parent {
		path = append(path, m)
	}
	for i, j := 0, len(path)-1; i < j; i, j = i+1, j-1 {
		path[i], path[j] = path[j], path[i]
	}
	return path
}

// readyPages is how many of n's first pages are on the device, those in flight only if join.
func (t *Tree) readyPages(n *node, join bool) int {
	f := &n.pools[t.full]
	if join || f.pending == 0 {
		return int(f.dev)
	}
	for i, v := range t.col(n, colFlags)[:f.dev] {
		if v&flagPending != 0 {
			return i
		}
	}
	return int(f.dev)
}

// locate returns the last node on the path of tokens and how many of its pages agree; a nil node if the namespace holds nothing. The walk
// starts at the path of after, of which it trusts everything before from. hinted is where after's path ends. mu is held, shared is enough.
func (t *Tree) locate(ns Namespace, after Pin, from int, tokens []uint32, limit int) (n *node, k, hinted int, err error) {
	start := t.space(ns)
	if after != (Pin{}) {
		b, live := t.bottom(after)
		if !live {
			return nil, 0, 0, ErrStale
		}
		if b != nil && !b.detached {
			hinted = b.end()
			if hinted <= min(from, limit) {
				n, k = t.descend(b, int(b.pages), tokens, limit)
				return n, k, hinted, nil
			}
			start = climb(b, min(from, limit))
		}
	}
	if start == nil {
		return nil, 0, 0, nil
	}
	n, k = t.descend(start, t.agree(start, tokens, limit), tokens, limit)
	return n, k, hinted, nil
}

// foresight is a place in the tree that was found under a lock which was let go since: tokens agree with the path of node up to position at.
// Paths change but never what they say, so as long as the node lives, nothing before at has to be compared again.
type foresight struct {
	node *node
	gen  uint32
	at   int
}

func foresee(n *node, k int) foresight {
	if n == nil {
		return foresight{}
	}
	return foresight{n, n.gen, int(n.start) + k}
}

// resume returns the node that holds the last agreed position and how many of its pages agree; nil if the node is gone. A split may have
// moved the position up, an eviction may have taken it.
func (f *foresight) resume() (n *node, k int) {
	n = f.node
	if n == nil || n.gen != f.gen || n.freed || n.detached {
		return nil, 0
	}
	for int(n.start) >= f.at && !n.root() {
		n = n.parent
	}
	return n, min(f.at-int(n.start), int(n.pages))
}

// relocate is locate for an insert that has looked before, so that the exclusive lock is not held for the length of a prompt.
func (t *Tree) relocate(f *foresight, ns Namespace, after Pin, from int, tokens []uint32, limit int) (n *node, k, hinted int, err error) {
	n, k = f.resume()
	if n == nil {
		return t.locate(ns, after, from, tokens, limit)
	}
	if after != (Pin{}) {
		b, live := t.bottom(after)
		if !live {
			return nil, 0, 0, ErrStale
		}
		if b != nil && !b.detached {
			hinted = b.end()
		}
	}
	n, k = t.descend(n, k, tokens, limit)
	return n, k, hinted, nil
}
