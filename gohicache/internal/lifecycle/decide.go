package lifecycle

import (
	"github.com/hicache/hicache/gohicache/internal/policy"
	"github.com/hicache/hicache/gohicache/internal/radix"
)

// decide asks policy what to do about a match.
func (c *Core) decide(r *radix.Match, m *Match, request *LoadRequest, tokensPerSecond float64) policy.Plan {
	ps := c.cfg.PageTokens
	return policy.Decide(&policy.Snapshot{
		Prefix: policy.Prefix{Ready: r.Ready * ps, Usable: r.Usable * ps, Wanted: c.wantedPages(m) * ps, LoadBytes: int64(c.loadBytes(r)),
			NoHost:    c.host == nil || request.NoLoadBack,
			NoStorage: c.store.Load() == nil || request.NoStorage || request.NoLoadBack || c.cfg.Prefetch == PrefetchOff},
		Rules: c.rules(),
		Rates: policy.Rates{LoadBytesPerSecond: c.loadRate.get(), ComputeTokensPerSecond: tokensPerSecond},
	})
}

// rules are the thresholds in effect.
func (c *Core) rules() policy.Rules {
	r := policy.Rules{MinLoad: c.cfg.LoadBackMinTokens, MinPrefetch: max(c.cfg.PrefetchMinTokens, c.cfg.PageTokens)}
	if c.cfg.HostBytes == 0 {
		return r
	}
	switch c.policy() {
	case WriteThrough:
		r.BackUpMinHits = 1
	case WriteThroughSelective:
		r.BackUpMinHits = c.cfg.WriteThreshold
	}
	return r
}

// wantedPages is the longest prefix, in pages, that a match may use: a token is left to compute unless the full hit is wanted, and the last one
// makes no bigram.
func (c *Core) wantedPages(m *Match) int {
	n := m.count
	if !m.request.FullHit || c.cfg.Tokens == radix.Bigram {
		n--
	}
	return c.pagesOf(max(n, 0))
}

// loadBytes is what a load for the match copies.
func (c *Core) loadBytes(r *radix.Match) uint64 {
	if c.host == nil {
		return 0
	}
	total := uint64(len(r.LoadFull)) * c.host[c.full].PageBytes
	for _, p := range c.windows {
		total += uint64(len(r.LoadWindows[p])) * c.host[p].PageBytes
	}
	return total
}
