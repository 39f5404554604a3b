package lifecycle

import (
	"context"
	"slices"

	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/radix"
)

// commons are pages that several sequences of one origin use and none may free alone. plan is held for every change.
type commons struct {
	refs  int
	pages radix.Freed
}

// drop gives up one share; the last one frees the pages.
func (m *commons) drop(c *Core) {
	if m.refs--; m.refs == 0 {
		c.giveBack(&m.pages)
	}
}

// Fork makes a second sequence that continues the same tokens. Whole pages are published and shared through the tree; the partial tail page is
// shared until one of the two writes on, which then takes a copy.
func (c *Core) Fork(s *Sequence) (*Sequence, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	switch {
	case s.ended || s.suspended:
		return nil, s.errOver()
	case c.cfg.Tokens == radix.Bigram && s.tokens%c.cfg.PageTokens == 0:
		return nil, fail(KindUnsupported, "Fork with Tokens = TokenBigrams at a page boundary: the last page is not published before the next token")
	case c.countOf(s.named) != s.tokens:
		return nil, fail(KindInvalid, "there are pages for %d tokens but only %d are named: Append them first", s.tokens, c.countOf(s.named))
	}
	if err := c.Publish(s, 0); err != nil {
		return nil, err
	}
	c.plan.Lock()
	defer c.plan.Unlock()
	child := &Sequence{named: slices.Clone(s.named), hold: hold{
		c: c, namespace: s.namespace, stream: s.stream, path: s.path.retain(), pages: slices.Clone(s.pages), tokens: s.tokens, prefix: s.owned, owned: s.owned,
		windowLow: slices.Clone(s.windowLow), windowEnd: slices.Clone(s.windowEnd), windowFrom: slices.Clone(s.windowFrom), waits: slices.Clone(s.waits),
		hitDevice: s.owned * c.cfg.PageTokens}}
	for _, op := range child.waits {
		op.use()
	}
	for _, p := range s.dropped {
		child.dropped = append(child.dropped, p.retain())
	}
	for _, m := range s.commons { // of forks before
		m.refs++
		child.commons = append(child.commons, m)
	}
	if !s.late.Empty() { // duplicates that the parent computes with: the child does too
		s.share(child, s.late)
		s.late = radix.Freed{}
	}
	if s.owned < len(s.pages) {
		s.shareTail(child)
	}
	s.shareStates(child)
	c.holds.add(child)
	return child, nil
}

// share puts pages under the care of both sequences.
func (s *Sequence) share(child *Sequence, pages radix.Freed) {
	m := &commons{refs: 2, pages: pages}
	s.commons, child.commons = append(s.commons, m), append(child.commons, m)
}

// shareTail makes the partial tail page, the only one that is not the tree's, common.
func (s *Sequence) shareTail(child *Sequence) {
	if s.tail == nil {
		s.tail = &commons{refs: 1}
		s.tail.pages.Device = make([][]ids.VirtualPage, len(s.c.cfg.Pools))
		s.tail.pages.Device[s.c.full] = slices.Clone(s.pages[len(s.pages)-1:])
	}
	s.tail.refs++
	child.tail = s.tail
}

// copiesTail says whether the next write to the tail page must go to a copy: others still read it. writers counts those of this batch before.
func (s *Sequence) copiesTail(writers *map[*commons]int) bool {
	if s.tail == nil || s.tokens%s.c.cfg.PageTokens == 0 {
		return false
	}
	if *writers == nil {
		*writers = map[*commons]int{}
	}
	(*writers)[s.tail]++
	return s.tail.refs-(*writers)[s.tail] >= 1
}

// leaveTail ends the share in the tail page: copied says that the sequence has a page of its own now, else it keeps the shared one alone.
func (s *Sequence) leaveTail(copied bool) {
	if s.tail == nil {
		return
	}
	s.tail.refs--
	if copied && s.tail.refs == 0 {
		s.c.giveBack(&s.tail.pages)
	}
	s.tail = nil
}

// Suspend gives a sequence's pages up for others to use: whole pages are published and, where there is a host tier, copied there first. The tokens
// stay named.
func (c *Core) Suspend(ctx context.Context, s *Sequence) error {
	if s.suspended {
		return nil
	}
	if err := c.Publish(s, 0); err != nil {
		return err
	}
	var op *operation
	if c.cfg.HostBytes > 0 && !c.cfg.Staging {
		c.plan.Lock()
		if b := &c.scratch.backUp; c.tree.BeginBackUp(s.path.id, 0, b) {
			op = c.submitBackUp(b, s.stream, s.path)
		}
		c.plan.Unlock()
	}
	if op != nil {
		if err := c.await(ctx, op); err != nil && ctx.Err() != nil {
			return err
		}
	}
	s.suspended = true
	c.holds.remove(s)
	s.leave()
	return nil
}

// Resume matches a suspended sequence's tokens again and loads what is there. Afterwards Prefix says what need not be computed again.
func (c *Core) Resume(ctx context.Context, s *Sequence, load LoadRequest) error {
	if s.ended || !s.suspended {
		return fail(KindStale, "the sequence is not suspended")
	}
	m := c.Match(s.named, MatchRequest{Namespace: s.namespace, FullHit: true})
	defer m.Release()
	load.Tokens = m.count
	if err := c.load(ctx, m, &load, &s.hold, s); err != nil {
		return err
	}
	s.suspended, s.continues = false, true
	return nil
}
