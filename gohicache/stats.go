package hicache

import (
	"time"

	"github.com/hicache/hicache/gohicache/metrics"
)

// Stats are the counters of a cache; see package metrics for each. Reading them costs one border crossing.
type Stats = metrics.Stats

// PoolStats are the gauges of one pool on one tier, in pages.
type PoolStats = metrics.PoolStats

// CompactBudget bounds one call of Compact. The zero value bounds nothing and packs the device arena.
type CompactBudget struct {
	Tier  Tier   // TierDevice (default) or TierHost.
	Pages int    // 0: no bound.
	Bytes uint64 // 0: no bound.
}

// CompactResult says what a Compact did.
type CompactResult struct {
	MovedPages, MovedBytes uint64
	BlockedPages           uint64 // Would have moved but are pinned.
	HolePages              uint64 // Left.
}

// Compact packs pages within the budget, around everything that is pinned. For idle points of the server.
func (c *Cache) Compact(b CompactBudget) (CompactResult, error) {
	if b.Pages < 0 || b.Tier > TierHost {
		return CompactResult{}, &Error{Op: "compact", Err: ErrInvalid, Message: "Pages must not be negative, Tier device or host"}
	}
	r, err := c.core.Compact(b.Tier == TierHost, uint32(b.Pages), b.Bytes)
	if err != nil {
		return CompactResult{}, c.publicError("compact", err)
	}
	return CompactResult{r.MovedPages, r.MovedBytes, r.BlockedPages, r.HolePages}, nil
}

// Idle is what a server calls when it has nothing to do: it gives back what has ended meanwhile and moves at most about a millisecond's
// worth of pages.
func (c *Cache) Idle() error {
	_, err := c.Compact(CompactBudget{Pages: idlePagesMax, Bytes: idleBytesMax})
	return err
}

const (
	idlePagesMax = 4096
	idleBytesMax = 64 << 20
)

// PrefixPin keeps a prefix in the cache; see Cache.PinPrefix.
type PrefixPin struct{ m *Match }

// Tokens is the length of the pinned prefix.
func (p *PrefixPin) Tokens() int { return p.m.Tokens() }

// Release ends the pin early; a second Release does nothing.
func (p *PrefixPin) Release() { p.m.Release() }

// PinPrefix keeps the cached prefix of tokens (a system prompt, say) from eviction on the tiers that hold it now, for ttl (0: until
// Release).
func (c *Cache) PinPrefix(ns Namespace, tokens []uint32, ttl time.Duration) (*PrefixPin, error) {
	m := c.MatchWith(tokens, MatchOptions{Namespace: ns, FullHit: true, TTL: ttl})
	if err := m.Err(); err != nil {
		return nil, err
	}
	return &PrefixPin{m}, nil
}
