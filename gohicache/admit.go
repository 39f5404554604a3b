package hicache

import (
	"time"

	"github.com/hicache/hicache/gohicache/internal/lifecycle"
)

// AdmitOptions say what a request is going to need.
type AdmitOptions struct {
	Extend      int // Prompt tokens that will be computed. 0: what the match leaves of its tokens.
	MaxNew      int // Tokens that it may generate.
	ChunkTokens int // At most so many prompt tokens are computed at once (chunked prefill). 0: all.
}

// Admission keeps room promised to a request until it has taken it.
type Admission struct{ a *lifecycle.Admission }

// Pages is the price of the request, by pool.
func (a *Admission) Pages() []uint32 { return a.a.Pages() }

// Release ends the promise: after the request's load, or when it is given up. A second Release does nothing.
func (a *Admission) Release() {
	if a != nil {
		a.a.Release()
	}
}

// Admit prices a request before its load: the rows that the load brings, the prompt, the tokens that it may generate, the peak of each
// window, its state, and everything that was admitted before and not released. What has to go so that all of it fits goes now. It takes and
// pins nothing; ErrNoCapacity promises nothing, and ErrInfeasible says that not even an empty device would hold the request.
func (c *Cache) Admit(m *Match, o AdmitOptions) (*Admission, error) {
	if m == nil {
		return nil, &Error{Op: "admit", Err: ErrStale, Message: "the match is nil"}
	}
	a, err := c.core.Admit(&m.m, lifecycle.AdmitRequest{Extend: o.Extend, MaxNew: o.MaxNew, Chunk: o.ChunkTokens})
	if err != nil {
		return nil, c.publicError("admit", err)
	}
	return &Admission{a}, nil
}

// Estimate compares loading what the host holds of a prefix with computing it again.
type Estimate struct {
	Bytes     uint64        // That the load would copy.
	Load      time.Duration // At the rate of the loads so far; 0 before the first.
	Recompute time.Duration // At the server's rate.
}

// Worthwhile says whether loading is faster, or nothing is known yet.
func (e Estimate) Worthwhile() bool { return e.Load == 0 || e.Recompute == 0 || e.Load < e.Recompute }

// Estimate prices the load of this match; tokensPerSecond is how fast the server computes a prompt. The server decides: see
// LoadOptions.NoLoadBack.
func (m *Match) Estimate(tokensPerSecond float64) Estimate {
	e := m.m.Estimate(tokensPerSecond)
	return Estimate{e.Bytes, e.Load, e.Recompute}
}

// SetWritePolicy changes the write policy. It is checked before anything changes: from write_back the host tier must be such as the new policy
// could have made it (ErrUnsupported otherwise; Clear first), and write_back needs a host tier.
func (c *Cache) SetWritePolicy(p WritePolicy) error {
	if p > WriteBack {
		return invalid("WritePolicy", "%d is no policy", p)
	}
	return c.publicErrorOrNil("set write policy", c.core.SetWritePolicy(lifecycle.WritePolicy(p)))
}
