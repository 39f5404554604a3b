package hicache

import (
	"context"
	"time"

	"github.com/hicache/hicache/gohicache/internal/lifecycle"
)

// HitTokens counts reused tokens by the tier that held them.
type HitTokens struct{ Device, Host, Storage int }

// Total is the sum over the tiers.
func (h HitTokens) Total() int { return h.Device + h.Host + h.Storage }

// MatchOptions tune one match. The zero value is what a server wants before a prefill.
type MatchOptions struct {
	Namespace Namespace
	// FullHit allows a hit of all tokens. Without it at least one token is left to compute, since a forward needs one.
	FullHit bool
	// Context, if set, releases the match when it ends: a lookup that nobody follows up pins nothing for ever.
	Context context.Context
	// TTL, if positive, does the same after a time.
	TTL time.Duration
	// Priority (0 to 99) is given to the matched pages, and to those that are inserted after them, if it is higher than theirs. Eviction
	// "priority" gives up the lowest first.
	Priority int
	// Retain is how long Priority counts. 0: for ever.
	Retain time.Duration
}

// Match is the answer to one lookup: the longest prefix of its tokens that every pool can serve, pinned on every tier that holds it until
// Release. Leases made of it have pins of their own.
type Match struct {
	c *Cache
	m lifecycle.Match
}

// Match looks tokens up in the default namespace. It never fails and never waits; of a closed cache it finds nothing. tokens must not
// change until Release. Cost: O(tokens).
func (c *Cache) Match(tokens []uint32) *Match { return c.MatchWith(tokens, MatchOptions{}) }

// MatchIn looks tokens up in a namespace.
func (c *Cache) MatchIn(ns Namespace, tokens []uint32) *Match {
	return c.MatchWith(tokens, MatchOptions{Namespace: ns})
}

// MatchWith looks tokens up with options.
func (c *Cache) MatchWith(tokens []uint32, o MatchOptions) *Match {
	m := &Match{c: c}
	c.core.MatchAs(&m.m, c.words(tokens), o.request())
	return m
}

func (o *MatchOptions) request() lifecycle.MatchRequest {
	return lifecycle.MatchRequest{Namespace: o.Namespace.radix(), FullHit: o.FullHit, Context: o.Context, TTL: o.TTL,
		Priority: uint8(min(max(o.Priority, 0), 99)), Retain: max(o.Retain, 0)}
}

// Tokens is the length of the usable prefix on device and host, a multiple of the page size. Storage may add to it in Load.
func (m *Match) Tokens() int { return m.m.Tokens() }

// Ready is the length of the prefix that needs no load.
func (m *Match) Ready() int { return m.m.Ready() }

// BranchTokens is the length of the prefix that the Full pool alone holds; where it exceeds Tokens, keeping a new window or state at that
// point would pay.
func (m *Match) BranchTokens() int { return m.m.BranchTokens() }

// Err is nil, or why the match is no use: ErrClosed, ErrStale after Release.
func (m *Match) Err() error { return m.c.publicErrorOrNil("match", m.m.Err()) }

// Release ends the match. It cannot fail; a second Release does nothing. Safe beside an expiring context.
func (m *Match) Release() {
	if m != nil {
		m.m.Release()
	}
}
