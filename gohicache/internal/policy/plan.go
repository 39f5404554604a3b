package policy

import "time"

// Snapshot is everything a plan is made from: numbers read at one moment. What must go to make room is the engine's to say: it alone knows what
// fits.
type Snapshot struct {
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

// Plan says what to do: load; prefetch and back-ups at leisure.
type Plan struct {
	Load int // tokens of prefix to have ready: Prefix.Usable or Prefix.Ready
	// Estimates of bringing the loadable part and of computing it; 0 if unknown. A load that is slower is still planned: the server decides
	// (SlowLoad).
	LoadTime, ComputeTime time.Duration
	SlowLoad              bool
	Prefetch              bool // ask storage for what lies beyond Usable
	BackUpMinHits         int
}

// Decide makes the plan of a snapshot.
func Decide(s *Snapshot) Plan {
	p := Plan{Load: s.Prefix.Ready, BackUpMinHits: s.Rules.BackUpMinHits}
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
