package lifecycle

import (
	"context"
	"errors"
	"slices"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/radix"
)

// HandOverRequest says where a prompt goes in the other cache.
type HandOverRequest struct {
	Namespace radix.Namespace
	Stream    uint64 // of the target's device; its later work follows the arrival
	Wait      bool   // for room
}

// HandOver copies a lease's pages into another cache, which publishes them under tokens as if it had computed them: what that cache has of the prompt
// already is not copied. It returns how many tokens the other cache has then, a whole number of pages.
func (c *Core) HandOver(ctx context.Context, l *Lease, to *Core, tokens []uint32, r HandOverRequest) (int, error) {
	if err := c.check(); err != nil {
		return 0, err
	}
	if l.c == nil || !l.beginUse() {
		return 0, fail(KindStale, "the lease was released")
	}
	defer l.endUse()
	if err := c.owns(l.c, "lease"); err != nil {
		return 0, err
	}
	h, err := c.planHandOver(l, to, tokens)
	if err != nil || h.pages == 0 {
		return 0, err
	}
	if err := l.Wait(ctx); err != nil {
		return 0, err
	}
	err = c.tryHandOver(ctx, l, to, tokens[:h.words], r, &h, h.windowFrom)
	var failure *Error
	if errors.As(err, &failure) && (failure.Kind == KindStale || failure.Kind == KindBusy) && !slices.Equal(h.windowFrom, h.windowLast) {
		// Window pages before the last window are the tree's to give up once they have been inserted, whatever the lease holds; another request may
		// be loading them again.
		err = c.tryHandOver(ctx, l, to, tokens[:h.words], r, &h, h.windowLast)
	}
	if err != nil {
		return 0, err
	}
	return h.pages * c.cfg.PageTokens, nil
}

func (c *Core) tryHandOver(ctx context.Context, l *Lease, to *Core, tokens []uint32, r HandOverRequest, h *handOver, windowFrom []int) error {
	var m Match
	to.MatchAs(&m, tokens, MatchRequest{Namespace: r.Namespace, FullHit: true})
	defer m.Release()
	var target Lease
	err := to.LoadAs(ctx, &target, &m, LoadRequest{Tokens: to.countOf(tokens), Stream: r.Stream, Wait: r.Wait, windowFrom: windowFrom})
	if err != nil {
		return err
	}
	defer target.Release()
	if target.prefix >= h.pages {
		return nil
	}
	request := ffi.HandOver{SourceStream: l.stream, TargetStream: r.Stream, Held: true}
	if request.Lines, err = h.lines(l, &target); err != nil {
		return err
	}
	if err := c.eng.HandOver(to.eng, &request); err != nil {
		return fromEngine(err)
	}
	if h.stateAt > 0 {
		target.SetCheckpoint(h.stateAt)
	}
	return to.Insert(&target, tokens)
}

// handOver is what of a lease can go to another cache.
type handOver struct {
	pages      int   // whole ones
	words      int   // of the tokens that those take
	windowFrom []int // by pool: the first position from which on the lease has all window pages, so that shorter prefixes can be matched too,
	windowLast []int // and the first one of the last window
	stateAt    int   // tokens after which the recurrent states stand; 0 where there are none
}

func (c *Core) planHandOver(l *Lease, to *Core, tokens []uint32) (handOver, error) {
	switch {
	case to == c:
		return handOver{}, fail(KindInvalid, "source and target are one cache")
	case to.cfg.Tokens != c.cfg.Tokens || to.cfg.PageTokens != c.cfg.PageTokens || len(to.cfg.Pools) != len(c.cfg.Pools):
		return handOver{}, fail(KindInvalid, "the caches differ in their tokens (%v, %v), page tokens (%d, %d) or pools (%d, %d)", c.cfg.Tokens,
			to.cfg.Tokens, c.cfg.PageTokens, to.cfg.PageTokens, len(c.cfg.Pools), len(to.cfg.Pools))
	}
	for p := range c.cfg.Pools {
		if from, as := c.cfg.Pools[p].Role, to.cfg.Pools[p].Role; from != as {
			return handOver{}, fail(KindInvalid, "pool %d is %v here and %v in the target", p, from, as)
		}
	}
	n := c.countOf(tokens)
	if n > l.tokens {
		return handOver{}, fail(KindInvalid, "%d tokens; the lease has pages for %d", n, l.tokens)
	}
	h := handOver{pages: min(c.pagesOf(n), len(c.keyOf(tokens))/c.pageWords()), windowFrom: make([]int, len(c.cfg.Pools)),
		windowLast: make([]int, len(c.cfg.Pools))}
	if h.pages == 0 {
		return h, nil
	}
	whole := h.pages * c.cfg.PageTokens
	h.words = whole * (len(tokens) / n)
	if c.cfg.Tokens == radix.Bigram {
		h.words++ // the last one's successor is part of its key
	}
	for _, p := range c.windows {
		low := h.pages
		for low > 0 && l.hasWindow(p, low-1) {
			low--
		}
		h.windowLast[p] = c.pagesOf(max(whole-c.cfg.Pools[p].WindowTokens, 0))
		if low > h.windowLast[p] {
			return handOver{}, fail(KindInvalid, "pool %d: the lease has window pages from position %d on, which is not the window of %d tokens", p, low, whole)
		}
		h.windowFrom[p] = low
	}
	return h, c.planStates(&h, l, n)
}

// planStates finds after how many tokens the lease's states stand.
func (c *Core) planStates(h *handOver, l *Lease, tokens int) error {
	if len(c.states) == 0 {
		return nil
	}
	h.stateAt = tokens
	if l.checkpoint > 0 {
		h.stateAt = l.checkpoint
	}
	if h.stateAt%c.cfg.PageTokens != 0 || h.stateAt > h.pages*c.cfg.PageTokens {
		return fail(KindInvalid, "the recurrent state after %d tokens stands at no boundary of the %d whole pages of %d tokens", h.stateAt, h.pages,
			c.cfg.PageTokens)
	}
	return nil
}

// lines names what the target does not have: its own pages, and where the source has their bytes.
func (h *handOver) lines(l, target *Lease) ([]ffi.HandOverLine, error) {
	var lines []ffi.HandOverLine
	for p := range l.c.cfg.Pools {
		line := ffi.HandOverLine{SourcePool: uint32(p), TargetPool: uint32(p)}
		if l.c.cfg.Pools[p].Role == radix.State {
			from := l.state[p]
			if l.Prefix() == h.stateAt {
				from = l.source[p]
			}
			if from == ids.NoVirtualPage || target.state[p] == ids.NoVirtualPage {
				return nil, fail(KindInvalid, "pool %d: the lease has no state after %d tokens of its own (any more)", p, h.stateAt)
			}
			line.SourcePages, line.TargetPages = []ids.VirtualPage{from}, []ids.VirtualPage{target.state[p]}
		} else {
			from, as := l.table(p, nil), target.table(p, nil)
			for i := target.prefix; i < h.pages; i++ {
				if as[i] == ids.NoVirtualPage {
					continue
				}
				line.SourcePages, line.TargetPages = append(line.SourcePages, from[i]), append(line.TargetPages, as[i])
			}
		}
		lines = append(lines, line)
	}
	return lines, nil
}
