package lifecycle

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/gohicache/internal/radix"
)

// MatchRequest are the options of a match.
type MatchRequest struct {
	Namespace radix.Namespace
	FullHit   bool
	Context   context.Context
	TTL       time.Duration
	Priority  uint8
	Retain    time.Duration // for which Priority counts; 0: for ever
}

// Match is one lookup and the pin that it holds.
type Match struct {
	c       *Core
	request MatchRequest
	tokens  []uint32 // the tree's words
	count   int      // tokens

	mu     sync.Mutex
	answer *answer // nil once released
	closed bool    // the cache was closed when it was made
	bad    error   // why the tokens are none
	cancel func() bool
	timer  *time.Timer
}

// answer is what the tree said. A match and the loads that run for it share it; the last one gives it back. Leases share its pin only.
type answer struct {
	m       radix.Match
	path    *pin
	storage int // pages at the end of the usable prefix that a prefetch brought for this match
	refs    atomic.Int32

	deviceOnly bool // the question was what needs no load
	starved    bool // storage has more, but the host had no room for it
}

var answers = sync.Pool{New: func() any { return new(answer) }}

// Match looks tokens up. It never fails and never waits.
func (c *Core) Match(tokens []uint32, request MatchRequest) *Match {
	m := new(Match)
	c.MatchAs(m, tokens, request)
	return m
}

// MatchAs is Match for callers that bring the memory; m is new.
func (c *Core) MatchAs(m *Match, tokens []uint32, request MatchRequest) {
	m.c, m.request, m.tokens, m.count = c, request, c.keyOf(tokens), c.countOf(tokens)
	if c.closing.Load() {
		m.closed = true
		return
	}
	c.count.matches.Add(1)
	c.count.matchedTokens.Add(uint64(m.count))
	m.answer = c.ask(m.tokens, &request)
	if request.Retain > 0 {
		c.tree.Prefer(m.answer.path.id, request.Priority, c.retainUntil(&request))
	}
	m.mu.Lock() // either may fire before it is stored
	defer m.mu.Unlock()
	if request.Context != nil {
		m.cancel = context.AfterFunc(request.Context, m.Release)
	}
	if request.TTL > 0 {
		m.timer = time.AfterFunc(request.TTL, m.Release)
	}
}

// MatchOfNone makes m the match of what is no list of tokens; err is all that it ever says.
func (c *Core) MatchOfNone(m *Match, err *Error) { m.c, m.bad = c, err }

// Invalid is the error of an argument.
func Invalid(format string, args ...any) *Error { return fail(KindInvalid, format, args...) }

// ask makes a pinned answer with one share.
func (c *Core) ask(tokens []uint32, request *MatchRequest) *answer {
	return c.askFor(tokens, request, false)
}

// askFor is ask, on request for what needs no load.
func (c *Core) askFor(tokens []uint32, request *MatchRequest, deviceOnly bool) *answer {
	a := answers.Get().(*answer)
	o := radix.MatchOptions{FullHit: request.FullHit, Join: true, NoLoad: deviceOnly}
	if request.Retain == 0 {
		o.Priority = request.Priority
	}
	defer c.ended(c.began(ffi.ActivityMatch, len(tokens)/c.pageWords()))
	c.tree.Match(request.Namespace, tokens, o, &a.m)
	a.path, a.storage, a.deviceOnly, a.starved = c.newPin(a.m.Pin), 0, deviceOnly, false
	a.refs.Store(1)
	return a
}

// retainUntil is when the priority of a request ends, in the tree's time, which from here on is that of the clock; 0: never.
func (c *Core) retainUntil(request *MatchRequest) uint64 {
	if request.Retain <= 0 {
		return 0
	}
	c.timed.Store(true)
	now := c.cfg.Clock()
	c.tree.Advance(uint64(now.UnixNano()))
	return uint64(now.Add(request.Retain).UnixNano())
}

func (a *answer) release() {
	if a.refs.Add(-1) == 0 {
		a.path.release()
		a.path = nil
		answers.Put(a)
	}
}

// acquire takes a share of the answer for as long as a load runs, so that a release meanwhile does no harm.
func (m *Match) acquire() (*answer, error) {
	if m.closed {
		return nil, errClosed()
	}
	if m.bad != nil {
		return nil, m.bad
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.answer == nil {
		return nil, fail(KindStale, "the match was released")
	}
	m.answer.refs.Add(1)
	return m.answer, nil
}

// replace puts a newer answer in place of one that acquire gave, and returns a share of it.
func (m *Match) replace(old, now *answer) *answer {
	m.mu.Lock()
	if m.answer == old {
		now.refs.Add(1)
		m.answer = now
		old.release() // the match's share
	}
	m.mu.Unlock()
	old.release() // the caller's share
	return now
}

// Release ends the match; again is a no-op.
func (m *Match) Release() {
	m.mu.Lock()
	a, timer, cancel := m.answer, m.timer, m.cancel
	m.answer = nil
	m.mu.Unlock()
	if timer != nil {
		timer.Stop()
	}
	if cancel != nil {
		cancel()
	}
	if a != nil {
		a.release()
	}
}

func (m *Match) read(f func(*radix.Match) int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.answer == nil {
		return 0
	}
	return f(&m.answer.m) * m.c.cfg.PageTokens
}

// Tokens, Ready and BranchTokens are lengths of prefixes in tokens; see package hicache.
func (m *Match) Tokens() int       { return m.read(func(r *radix.Match) int { return r.Usable }) }
func (m *Match) Ready() int        { return m.read(func(r *radix.Match) int { return r.Ready }) }
func (m *Match) BranchTokens() int { return m.read(func(r *radix.Match) int { return r.Hit }) }

// Err says why the match is of no use.
func (m *Match) Err() error {
	if m.closed {
		return errClosed()
	}
	if m.bad != nil {
		return m.bad
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.answer == nil {
		return fail(KindStale, "the match was released")
	}
	return nil
}
