package policy

import "time"

// Snapshot is everything a plan is made from: numbers read at one moment, and one question that the engine answers.
type Snapshot struct {
	// Evictable is, by pool, how many device pages an eviction could give up.
	Evictable []int
	// Fits reports whether the demand would fit, once everything movable is packed and everything pending has come back, if this many pages
	// of each pool were given up. It must be monotone: giving up more never makes a fit fail. nil: there is no demand.
	Fits func(evict []int) bool
	// Last lists pools in the order in which their pages are spared: the first is given up only if all others together do not suffice.
	Last []int

	Prefix Prefix
	Rules  Rules
	Rates  Rates
}

// Prefix is what a match found, in tokens.
type Prefix struct {
	Ready     int   // usable from the device alone
	Usable    int   // usable once a load has brought the rest from the host
	Wanted    int   // the whole prompt
	LoadBytes int64 // what that load copies
	NoHost    bool  // no host tier, or the caller wants no load
	NoStorage bool
}

// Rules are the thresholds of the configuration.
type Rules struct {
	MinLoad       int // tokens; a shorter load is not worth its overhead
	MinPrefetch   int // tokens that storage must be able to add
	BackUpMinHits int // requests that must have covered a node before it is backed up; 0: never at insert (write_back, no host)
}

// Rates are what was measured; a zero rate is unknown and decides nothing.
type Rates struct {
	LoadBytesPerSecond     float64
	LoadLatency            time.Duration // of any load, however small
	ComputeTokensPerSecond float64
}

// Plan says what to do, and in which order: evict, then load; prefetch and back-ups at leisure.
type Plan struct {
	Evict      []int // pages to give up, by pool
	Infeasible bool  // giving up everything evictable would not make the demand fit; Evict is empty
	Load       int   // tokens of prefix to have ready: Prefix.Usable or Prefix.Ready
	// Estimates of bringing the loadable part and of computing it; 0 if unknown. A load that is slower is still planned: the server decides
	// (SlowLoad).
	LoadTime, ComputeTime time.Duration
	SlowLoad              bool
	Prefetch              bool // ask storage for what lies beyond Usable
	BackUpMinHits         int
}

// Decide makes the plan of a snapshot. O(pools · log pages) calls of Fits.
func Decide(s *Snapshot) Plan {
	p := Plan{Load: s.Prefix.Ready, BackUpMinHits: s.Rules.BackUpMinHits}
	var ok bool
	if p.Evict, ok = Quotas(s.Evictable, s.Last, s.Fits); !ok {
		p.Infeasible = true
	}
	gain := s.Prefix.Usable - s.Prefix.Ready
	if gain > 0 && gain >= s.Rules.MinLoad && !s.Prefix.NoHost {
		p.Load = s.Prefix.Usable
		p.LoadTime, p.ComputeTime = s.Rates.estimate(s.Prefix.LoadBytes, gain)
		p.SlowLoad = p.LoadTime > 0 && p.ComputeTime > 0 && p.LoadTime > p.ComputeTime
	}
	p.Prefetch = !s.Prefix.NoStorage && s.Prefix.Wanted-s.Prefix.Usable >= max(1, s.Rules.MinPrefetch)
	return p
}

func (r Rates) estimate(bytes int64, tokens int) (load, compute time.Duration) {
	if r.LoadBytesPerSecond > 0 {
		load = r.LoadLatency + time.Duration(float64(bytes)/r.LoadBytesPerSecond*float64(time.Second))
	}
	if r.ComputeTokensPerSecond > 0 {
		compute = time.Duration(float64(tokens) / r.ComputeTokensPerSecond * float64(time.Second))
	}
	return load, compute
}

// Quotas finds quotas, one a pool, that make fits true and of which none can be lowered alone: one shortfall never becomes an eviction of
// everything. Pools are minimised in the order of last, with whatever is not yet minimised at its most; pools that last does not name come
// after it, in index order. false: not even everything would do.
func Quotas(evictable, last []int, fits func(evict []int) bool) ([]int, bool) {
	q := make([]int, len(evictable))
	if fits == nil || fits(q) {
		return q, true
	}
	copy(q, evictable)
	if !fits(q) {
		return make([]int, len(evictable)), false
	}
	done := make([]bool, len(q))
	for _, p := range last {
		if !done[p] {
			lower(q, p, fits)
			done[p] = true
		}
	}
	for p := range q {
		if !done[p] {
			lower(q, p, fits)
		}
	}
	return q, true
}

// lower sets q[p] to the least value that fits, the others as they are; q fits.
func lower(q []int, p int, fits func([]int) bool) {
	lo, hi := 0, q[p] // hi fits
	for lo < hi {
		q[p] = (lo + hi) / 2
		if fits(q) {
			hi = q[p]
		} else {
			lo = q[p] + 1
		}
	}
	q[p] = hi
}
