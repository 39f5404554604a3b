package lifecycle

import (
	"context"
	"slices"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
)

// Sequence is a request over many steps: a hold without a lease.
type Sequence struct {
	hold
	named     []uint32 // tokens whose KV the pages hold or will hold; at most tokens of them
	ended     bool
	suspended bool       // hold is over, named is not
	commons   []*commons // pages shared with forks
	tail      *commons   // the tail page while it is shared
	batch     uint64     // number of the last batch that it was in
}

// Growth asks for room for more tokens of a sequence.
type Growth struct {
	Sequence  *Sequence
	NewTokens int
}

// Begin matches, loads and takes pages for a prompt.
func (c *Core) Begin(ctx context.Context, prompt []uint32, match MatchRequest, load LoadRequest) (*Sequence, error) {
	m := c.Match(prompt, match)
	defer m.Release()
	load.Tokens = m.count
	s := &Sequence{named: slices.Clone(prompt)}
	if err := c.load(ctx, m, &load, &s.hold, s); err != nil {
		return nil, err
	}
	s.continues = true
	return s, nil
}

// Len is the number of tokens that there are pages for.
func (s *Sequence) Len() int { return s.tokens }

// VirtualPages are the FULL pages in order.
func (s *Sequence) VirtualPages() []ids.VirtualPage { return s.pages }

// Append names generated tokens.
func (s *Sequence) Append(tokens []uint32) error {
	if s.ended || s.suspended {
		return s.errOver()
	}
	if had, more := s.c.countOf(s.named), s.c.countOf(tokens); had+more > s.tokens {
		return fail(KindInvalid, "%d tokens on top of %d named ones; there are pages for %d", more, had, s.tokens)
	}
	s.named = append(s.named, tokens...)
	return nil
}

func (s *Sequence) errOver() *Error {
	if s.suspended && !s.ended {
		return fail(KindStale, "the sequence is suspended: Resume it first")
	}
	return fail(KindStale, "the sequence has ended")
}

// Publish inserts the whole pages of the first computed named tokens (0: of all).
func (c *Core) Publish(s *Sequence, computed int) error {
	if err := c.check(); err != nil {
		return err
	}
	if s.ended || s.suspended {
		return s.errOver()
	}
	named := c.countOf(s.named)
	if computed == 0 {
		computed = named
	}
	if computed < s.Prefix() || computed > named {
		return fail(KindInvalid, "%d computed tokens; the prefix has %d and %d are named", computed, s.Prefix(), named)
	}
	if err := s.publish(s.named, computed); err != nil {
		return err
	}
	s.narrowWindows()
	return nil
}

// narrowWindows forgets window pages that are the tree's and not pinned any more: it keeps those of the last window before what was published.
func (s *Sequence) narrowWindows() {
	for _, p := range s.c.windows {
		low := s.windowFrom[p]
		if low <= s.windowEnd[p] {
			low = s.windowLow[p] // the prefix's window and what follows are one run
		}
		s.windowLow[p] = min(max(low, s.owned-s.c.window[p]), s.owned)
		s.windowEnd[p], s.windowFrom[p] = s.owned, max(s.windowFrom[p], s.owned)
	}
}

// Finish publishes all named tokens and ends the sequence, also when publishing fails.
func (c *Core) Finish(s *Sequence) error {
	if s.ended {
		return nil
	}
	err := c.Publish(s, 0)
	c.Abort(s)
	return err
}

// Abort ends a sequence; again is a no-op.
func (c *Core) Abort(s *Sequence) {
	if s.ended {
		return
	}
	s.ended = true
	if s.suspended {
		return
	}
	c.holds.remove(s)
	s.leave()
}

// leave gives up all pages: own ones are freed, shared ones when the last fork leaves.
func (s *Sequence) leave() {
	s.c.plan.Lock()
	for _, m := range s.commons {
		m.drop(s.c)
	}
	s.commons = nil
	s.leaveStates()
	if s.tail != nil {
		s.pages = s.pages[:len(s.pages)-1]
		s.leaveTail(true)
	}
	s.c.plan.Unlock()
	s.giveUp()
}

// Extend gives every sequence room for its new tokens, or none.
func (c *Core) Extend(ctx context.Context, batch []Growth, wait bool) error {
	if err := c.checkBatch(batch); err != nil {
		return err
	}
	return c.withRoomBeside(ctx, wait, len(batch), func(bool) error {
		c.plan.Lock()
		defer c.plan.Unlock()
		return c.extend(batch)
	})
}

func (c *Core) checkBatch(batch []Growth) error {
	if err := c.check(); err != nil {
		return err
	}
	stamp := c.batches.Add(1)
	for i, g := range batch {
		switch s := g.Sequence; {
		case s == nil:
			return fail(KindInvalid, "sequence %d of the batch is nil", i)
		case s.c != c:
			return fail(KindInvalid, "sequence %d of the batch belongs to another cache", i)
		case s.ended || s.suspended:
			return s.errOver()
		case s.batch == stamp: // both lines would name the same places for different tokens
			return fail(KindInvalid, "sequence %d of the batch is in it twice", i)
		case g.NewTokens < 0 || g.NewTokens > maxTokens-s.tokens:
			return fail(KindInvalid, "NewTokens of sequence %d is %d", i, g.NewTokens)
		default:
			s.batch = stamp
		}
	}
	return brokenLoad(batch)
}

// brokenLoad names the first sequence of a batch of which a load has failed: what it brought is gone.
func brokenLoad(batch []Growth) error {
	for i, g := range batch {
		if g.Sequence == nil {
			continue // refused as it is
		}
		if err := g.Sequence.Err(); err != nil {
			return fail(KindTransfer, "sequence %d of the batch: %v", i, err)
		}
	}
	return nil
}

// Err is why the sequence is of no use: a load that brought a part of its prefix has failed.
func (s *Sequence) Err() error {
	for _, op := range s.waits {
		select {
		case <-op.done:
			if op.err != nil {
				return op.err
			}
		default:
		}
	}
	return nil
}

// extend takes the pages of a batch. The caller holds plan.
func (c *Core) extend(batch []Growth) error {
	sequences := make([]ffi.Sequence, 0, len(batch))
	pages := 0
	var writers map[*commons]int
	for _, g := range batch {
		if g.NewTokens == 0 {
			continue
		}
		c.trimWindows(g.Sequence)
		q, more := c.growing(g, &writers)
		sequences = append(sequences, q)
		pages += more
	}
	if len(sequences) == 0 {
		return nil
	}
	demands := append(c.scratch.demands[:0], ffi.Demand{Pool: uint32(c.full), PageCount: uint32(pages)})
	for _, p := range c.windows {
		demands = append(demands, ffi.Demand{Pool: uint32(p), PageCount: uint32(pages)})
	}
	c.scratch.demands = demands
	undo, err := c.takeStates(batch)
	if err != nil {
		return err
	}
	if err := c.takeWith(demands, func() error { return c.eng.Extend(uint32(c.full), sequences) }); err != nil {
		undo()
		return err
	}
	i := 0
	for _, g := range batch {
		if g.NewTokens > 0 {
			g.Sequence.grown(&sequences[i])
			i++
		}
	}
	return nil
}

// growing is a sequence's line of a batch, and how many pages it takes. writers counts the batch's writers to shared tail pages.
func (c *Core) growing(g Growth, writers *map[*commons]int) (q ffi.Sequence, pages int) {
	s := g.Sequence
	pages = c.pagesFor(s.tokens+g.NewTokens) - len(s.pages)
	s.pages = slices.Grow(s.pages, pages)
	q = ffi.Sequence{Pages: s.pages, Tokens: uint32(s.tokens), NewTokens: uint32(g.NewTokens), WindowTailTokens: ffi.NoPage}
	if g.NewTokens > 0 && s.copiesTail(writers) {
		q.Flags = ffi.SequenceFlagsCopyTail
		pages++
	}
	return q, pages
}

// grown takes over what an extension made of the line. The caller holds plan.
func (s *Sequence) grown(q *ffi.Sequence) {
	if q.NewTokens == 0 {
		return
	}
	s.leaveTail(q.Flags != 0)
	s.pages, s.tokens = q.Pages, int(q.Tokens)
}

// trimWindows gives back own window pages that decoding has left behind, a few at a time.
func (c *Core) trimWindows(s *Sequence) {
	for _, p := range c.windows {
		keep := c.pagesOf(max(s.tokens-c.cfg.Pools[p].WindowTokens, 0))
		from := s.windowFrom[p]
		if from < s.owned {
			from = s.owned // published pages are the tree's
		}
		if keep-from < trimPages || keep > len(s.pages) {
			continue
		}
		if err := c.eng.Free([]ffi.Pages{{Pool: uint32(p), Pages: s.pages[from:keep]}}); err != nil {
			c.bug("free windows", err)
			continue
		}
		s.windowFrom[p] = keep
		c.room.ring()
	}
}

const trimPages = 4

// Step is an open unit of compute over a batch.
type Step struct {
	c      *Core
	step   ffi.Step
	batch  []*Sequence
	source [][]ids.VirtualPage // states that the server is to copy in it
	closed bool
}

// Step extends a batch and opens a step over it.
func (c *Core) Step(ctx context.Context, stream uint64, batch []Growth, wait bool) (*Step, error) {
	if err := c.Extend(ctx, batch, wait); err != nil {
		return nil, err
	}
	st := &Step{c: c}
	var lines []ffi.Pages
	for _, g := range batch {
		st.batch = append(st.batch, g.Sequence)
		lines = g.Sequence.appendHeld(lines)
	}
	var err error
	if st.step, err = c.eng.StepOpen(stream, lines); err != nil {
		if broken := brokenLoad(batch); broken != nil { // meanwhile
			return nil, broken
		}
		return nil, fromEngine(err)
	}
	c.plan.Lock()
	st.source = c.stepOpened(batch, nil)
	c.plan.Unlock()
	c.holds.add(st)
	c.count.steps.Add(1)
	return st, nil
}

// Tables are the page tables of the batch for one pool, concatenated.
func (st *Step) Tables(pool int) (indptr []int32, out []ids.KernelID, err error) {
	if pool < 0 || pool >= len(st.c.cfg.Pools) {
		return nil, nil, fail(KindInvalid, "pool %d of %d", pool, len(st.c.cfg.Pools))
	}
	if st.closed {
		return nil, nil, fail(KindStale, "the step is closed")
	}
	indptr = make([]int32, 1, len(st.batch)+1)
	var pages []ids.VirtualPage
	for _, s := range st.batch {
		pages = s.table(pool, pages)
		indptr = append(indptr, int32(len(pages)))
	}
	out = make([]ids.KernelID, len(pages))
	_, err = st.c.eng.KernelIDs(ffi.Holder(st.step), uint32(pool), ffi.GranularityPage, pages, out)
	return indptr, out, fromEngine(err)
}

// StateSource is the kernel id of the state that sequence i is to copy into its own before the step's kernels write; false if there is none.
func (st *Step) StateSource(i, pool int) (ids.KernelID, bool) {
	if st.closed {
		return 0, false
	}
	return st.c.sourceOf(st.step, st.source, i, pool)
}

// WaitLayer waits for a layer of the loads of all sequences.
func (st *Step) WaitLayer(layer uint32) error {
	if st.closed {
		return fail(KindStale, "the step is closed")
	}
	for _, s := range st.batch {
		if err := s.WaitLayer(layer); err != nil {
			st.c.stepFailed(st.batch, st.source)
			return err
		}
	}
	return nil
}

// Close ends the step; again is a no-op.
func (st *Step) Close() {
	if st.closed {
		return
	}
	st.closed = true
	st.c.holds.remove(st)
	st.c.bug("step close", st.c.closeStep(st.step))
	st.c.room.ring()
}
