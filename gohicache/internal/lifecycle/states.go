package lifecycle

import (
	"slices"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/radix"
)

// A sequence writes its recurrent state in place, step by step. Forks share the state until one of them writes: that one gets pages of its own, and
// in its next step the server copies the shared ones there (its source). So does a sequence whose state became a checkpoint of the tree.

// states is what a sequence has to do with states that are not its own alone. plan is held for every change.
type states struct {
	continues bool     // a sequence's: it goes on after a checkpoint
	stepped   bool     // a step over it was opened, so its own state is written
	copied    bool     // and its source was copied in one
	frozen    *commons // hold.state belongs to several sequences
	from      *commons // hold.source does
	path      *pin     // pins hold.source where hold.path does not any more
}

// lacksState reports whether a sequence needs state pages of its own before it writes.
func (s *Sequence) lacksState() bool {
	if s.frozen != nil {
		return s.frozen.refs > 1
	}
	return slices.ContainsFunc(s.c.states, func(p int) bool { return s.state[p] == ids.NoVirtualPage })
}

// dropSource ends a sequence's share in what it has copied.
func (h *hold) dropSource() {
	if h.from != nil {
		h.from.drop(h.c)
	}
	h.states.path.release()
	h.from, h.copied, h.states.path = nil, false, nil
	for _, p := range h.c.states {
		h.source[p] = ids.NoVirtualPage
	}
}

func (h *hold) hasSource() bool {
	return slices.ContainsFunc(h.c.states, func(p int) bool { return h.source[p] != ids.NoVirtualPage })
}

// leavePath lets go of the path up to here once a longer one is pinned. It keeps one that was dropped meanwhile, since the request computes with
// its pages; and one for the source at its end, if that was not copied yet. fresh says that the source is the end of the longer one.
func (h *hold) leavePath(old *pin, fresh bool) {
	if h.c.tree.Dropped(old.id) { // the new path has pages of others for what this one has
		h.dropped = append(h.dropped, old)
		return
	}
	if !h.continues || fresh || !h.hasSource() {
		old.release()
		return
	}
	if h.copied {
		h.dropSource()
	}
	if h.copied || h.states.path != nil || !h.hasSource() {
		old.release()
		return
	}
	h.states.path = old
}

// takeStates gives state pages to every sequence of the batch that is going to write and has none of its own, or to none of them. The caller
// holds plan; undo takes them back if the rest of the batch cannot be had.
func (c *Core) takeStates(batch []Growth) (undo func(), err error) {
	undo = func() {}
	if len(c.states) == 0 {
		return undo, nil
	}
	var takers []*Sequence
	for _, g := range batch {
		s := g.Sequence
		if g.NewTokens == 0 {
			continue
		}
		if s.copied {
			s.dropSource()
		}
		switch {
		case s.lacksState():
			takers = append(takers, s)
		case s.frozen != nil: // the others have gone
			s.frozen = nil
		}
	}
	if len(takers) == 0 {
		return undo, nil
	}
	var fresh []freshState
	var takes []ffi.Take
	for _, p := range c.states {
		first := len(fresh)
		for _, s := range takers {
			if s.frozen != nil || s.state[p] == ids.NoVirtualPage { // of several pools, the tree may have kept the state of one
				fresh = append(fresh, freshState{s: s, pool: p, old: s.state[p], shared: s.frozen})
			}
		}
		if n := len(fresh) - first; n > 0 {
			takes = append(takes, ffi.Take{Pool: uint32(p), Pages: make([]ids.VirtualPage, n)})
		}
	}
	if err := c.alloc(takes); err != nil {
		return undo, err
	}
	at := 0
	for _, t := range takes {
		for _, page := range t.Pages {
			f := &fresh[at]
			f.s.state[f.pool] = page
			if f.shared != nil {
				f.s.source[f.pool] = f.old
				f.s.from, f.s.frozen = f.shared, nil
			}
			at++
		}
	}
	return func() { c.undoStates(fresh) }, nil
}

// freshState is a state page that a sequence took: instead of old, which was shared or None.
type freshState struct {
	s      *Sequence
	pool   int
	old    ids.VirtualPage
	shared *commons
}

func (c *Core) undoStates(fresh []freshState) {
	free := radix.Freed{Device: make([][]ids.VirtualPage, len(c.cfg.Pools))}
	for _, f := range fresh {
		free.Device[f.pool] = append(free.Device[f.pool], f.s.state[f.pool])
		f.s.state[f.pool] = f.old
		if f.shared != nil {
			f.s.source[f.pool] = ids.NoVirtualPage
			f.s.frozen, f.s.from = f.shared, nil
		}
	}
	c.giveBack(&free)
}

// stepOpened notes that a step is open over a batch, and appends, one for each sequence, the sources that the server is to copy in it.
func (c *Core) stepOpened(batch []Growth, sources [][]ids.VirtualPage) [][]ids.VirtualPage {
	sources = sources[:0]
	if len(c.states) == 0 {
		return sources
	}
	for _, g := range batch {
		s := g.Sequence
		var source []ids.VirtualPage
		if !s.lacksState() { // else there is nowhere to copy to: it takes pages when it has something to write
			if !s.copied && s.hasSource() {
				source = slices.Clone(s.source)
				s.copied = true
			}
			s.stepped = true
		}
		sources = append(sources, source)
	}
	return sources
}

// stepFailed takes back that the sources of a step were copied in it: a load that some sequence of the batch waited for has failed, so the server
// computed nothing, and those whose own loads are well have their source to copy in a later step.
func (c *Core) stepFailed(batch []*Sequence, sources [][]ids.VirtualPage) {
	if len(sources) == 0 {
		return
	}
	c.plan.Lock()
	defer c.plan.Unlock()
	for i, s := range batch {
		if sources[i] != nil && slices.Equal(s.source, sources[i]) {
			s.copied = false
		}
	}
}

// sourceOf is the kernel id of a source within an open step; false if the sequence has none to copy.
func (c *Core) sourceOf(step ffi.Step, sources [][]ids.VirtualPage, i, pool int) (ids.KernelID, bool) {
	if i < 0 || i >= len(sources) || pool < 0 || pool >= len(sources[i]) {
		return 0, false
	}
	return c.stateID(step, pool, sources[i][pool])
}

// stateID is the kernel id of a state page that an open step holds; false of none.
func (c *Core) stateID(step ffi.Step, pool int, page ids.VirtualPage) (ids.KernelID, bool) {
	if page == ids.NoVirtualPage {
		return 0, false
	}
	out := make([]ids.KernelID, 1)
	if _, err := c.eng.KernelIDs(ffi.Holder(step), uint32(pool), ffi.GranularityPage, []ids.VirtualPage{page}, out); err != nil {
		c.bug("state page", err)
		return 0, false
	}
	return out[0], true
}

// shareStates lets a fork start from the parent's state.
func (s *Sequence) shareStates(child *Sequence) {
	if len(s.c.states) == 0 {
		return
	}
	child.state, child.source = slices.Clone(s.state), slices.Clone(s.source)
	child.states = states{continues: true, stepped: s.stepped}
	if s.copied { // the parent's source is in its state
		for _, p := range s.c.states {
			child.source[p] = ids.NoVirtualPage
		}
	} else if s.hasSource() || !s.stepped {
		// The parent's own pages hold nothing yet: the child takes some of its own, and starts from where the parent starts.
		if child.from = s.from; child.from != nil {
			child.from.refs++
		}
		if s.states.path != nil {
			child.states.path = s.states.path.retain()
		}
		for _, p := range s.c.states {
			child.state[p] = ids.NoVirtualPage
		}
		return
	}
	if s.frozen == nil {
		s.frozen = &commons{refs: 1}
		s.frozen.pages.Device = make([][]ids.VirtualPage, len(s.c.cfg.Pools))
		for _, p := range s.c.states {
			s.frozen.pages.Device[p] = []ids.VirtualPage{s.state[p]}
		}
	}
	s.frozen.refs++
	child.frozen = s.frozen
}

// leaveStates ends the shares of a sequence that ends. Its own pages stay in hold.state.
func (s *Sequence) leaveStates() {
	if len(s.c.states) == 0 {
		return
	}
	s.dropSource()
	if s.frozen != nil {
		s.frozen.drop(s.c)
		s.frozen = nil
		for _, p := range s.c.states {
			s.state[p] = ids.NoVirtualPage
		}
	}
}

// afterCheckpoints settles what became of the states that an insert offered: the tree has them, or they are duplicates. A sequence goes on from
// the tree's, which are pinned as the end of its path then (fresh), or keeps its own where all are duplicates.
func (h *hold) afterCheckpoints(offered []radix.Checkpoint, r *radix.InsertResult) (fresh bool) {
	duplicate := func(cp radix.Checkpoint) int { return slices.Index(r.Freed.Device[cp.Pool], cp.Page) }
	for _, cp := range offered {
		fresh = fresh || duplicate(cp) < 0
	}
	if h.continues && !fresh {
		for _, cp := range offered {
			r.Freed.Device[cp.Pool] = slices.Delete(r.Freed.Device[cp.Pool], duplicate(cp), duplicate(cp)+1)
		}
		return false
	}
	if h.continues {
		h.dropSource()
	}
	for _, cp := range offered {
		h.state[cp.Pool] = ids.NoVirtualPage // the tree's now, or in r.Freed
		if !h.continues {
			continue
		}
		h.source[cp.Pool] = cp.Page
		if i := duplicate(cp); i >= 0 { // a source of its own beside those of the tree
			r.Freed.Device[cp.Pool] = slices.Delete(r.Freed.Device[cp.Pool], i, i+1)
			if h.from == nil {
				h.from = &commons{refs: 1, pages: radix.Freed{Device: make([][]ids.VirtualPage, len(h.c.cfg.Pools))}}
			}
			h.from.pages.Device[cp.Pool] = []ids.VirtualPage{cp.Page}
		}
	}
	return fresh
}
