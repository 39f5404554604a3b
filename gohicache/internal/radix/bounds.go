package radix

import "github.com/hicache/hicache/ffi/ids"

// runs counts, at one boundary, the unbroken pages of each SWA pool that end there. The start of a path counts as complete: a boundary
// closer to it than a window needs every page before it, so a run starts at infinity and only a gap makes it finite.
type runs [maxWindowPools]int

const unbroken = 1 << 40

func (r *runs) start(pools int) {
	for s := range pools {
		r[s] = unbroken
	}
}

// holds reports whether every pool's last window is complete.
func (r *runs) holds(t *Tree) bool {
	for s, w := range t.swa {
		if r[s] < unbroken && r[s]*t.cfg.PageTokens < t.cfg.Pools[w.pool].WindowTokens {
			return false
		}
	}
	return true
}

func (r *runs) step(s int, present bool) {
	if present {
		r[s]++
	} else {
		r[s] = 0
	}
}

// bounds finds how far path serves all pools. Of the last node only the first last pages count. Windows are looked at a node at a time
// where a node is uniform, else page by page, because the deepest boundary may lie inside a node.
func (t *Tree) bounds(path []*node, last int, opt MatchOptions) bounds {
	var b bounds
	var any, dev runs
	any.start(len(t.swa))
	dev.start(len(t.swa))
	onDevice := true // the prefix so far
	for i, n := range path {
		k := int(n.pages)
		if i == len(path)-1 {
			k = last
		}
		b.hit = int(n.start) + k
		if onDevice {
			on := min(k, t.readyPages(n, opt.Join))
			b.device = int(n.start) + on
			onDevice = on == int(n.pages)
		}
		if len(t.swa) > 0 {
			t.windowBounds(n, k, &b, &any, &dev, opt)
			continue
		}
		if s := t.stateTiers(n, k, opt.Join); s.any {
			b.usable = b.hit
			if s.device && b.device == b.hit {
				b.ready = b.hit
			}
		}
		if len(t.states) == 0 {
			b.ready = b.device
		}
	}
	if opt.NoLoad {
		b.usable = b.ready
	}
	return b
}

// tiers says where the checkpoints of all STATE pools at one boundary are. Without STATE pools every boundary is good.
type tiers struct{ any, device bool }

func (t *Tree) stateTiers(n *node, k int, join bool) tiers {
	if len(t.states) == 0 {
		return tiers{true, true}
	}
	if k != int(n.pages) {
		return tiers{}
	}
	r := tiers{true, true}
	for _, p := range t.states {
		s := &n.pools[p]
		on := s.devID != ids.None && (join || s.pending == 0)
		r.device = r.device && on
		r.any = r.any && (on || s.hostID != ids.None)
	}
	return r
}

// windowBounds carries the runs over the first k pages of n and moves b to the deepest good boundaries among them.
func (t *Tree) windowBounds(n *node, k int, b *bounds, any, dev *runs, opt MatchOptions) {
	uniform := true
	for _, w := range t.swa {
		s := &n.pools[w.pool]
		if s.pending != 0 || s.dev != 0 && s.dev != n.pages || s.dev == 0 && s.host != 0 && s.host != n.pages {
			uniform = false
			break
		}
	}
	if uniform {
		for s, w := range t.swa {
			st := &n.pools[w.pool]
			advance(&any[s], k, st.dev != 0 || st.host != 0)
			advance(&dev[s], k, st.dev != 0)
		}
		t.goodBoundary(n, k, b, any, dev, opt)
		return
	}
	flags := t.col(n, colFlags)
	for i := range k {
		f := flags[i]
		if !opt.Join {
			f = readyWindows(f)
		}
		for s := range t.swa {
			on := f&windowBit(s) != 0
			dev.step(s, on)
			any.step(s, on || t.col(n, colWindowHost+s)[i] != ids.None)
		}
		t.goodBoundary(n, i+1, b, any, dev, opt)
	}
}

// advance is k steps at once.
func advance(run *int, k int, present bool) {
	if present {
		*run += k
	} else if k > 0 {
		*run = 0
	}
}

// goodBoundary moves b to the boundary after k pages of n if it serves all pools.
func (t *Tree) goodBoundary(n *node, k int, b *bounds, any, dev *runs, opt MatchOptions) {
	if k == 0 || !any.holds(t) {
		return
	}
	s := t.stateTiers(n, k, opt.Join)
	if !s.any {
		return
	}
	at := int(n.start) + k
	b.usable = max(b.usable, at)
	if s.device && at <= b.device && dev.holds(t) {
		b.ready = max(b.ready, at)
	}
}
