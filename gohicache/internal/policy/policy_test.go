package policy

import (
	"sort"
	"strings"
	"testing"
	"time"
)

func TestOrders(t *testing.T) {
	// Four nodes; names in the order of their creation.
	nodes := map[string]Entry{
		"a": {Created: 1, LastAccess: 9, Hits: 1, Priority: 0, Before: 0, Tokens: 100, History: 4000},
		"b": {Created: 2, LastAccess: 3, Hits: 5, Priority: 50, Before: 4000, Tokens: 100, History: 4100},
		"c": {Created: 3, LastAccess: 7, Hits: 2, Priority: 50, Retain: 8, Before: 100, Tokens: 100, History: 200},
		"d": {Created: 4, LastAccess: 5, Hits: 1, Priority: 10, Before: 1000, Tokens: 100, History: 9000},
	}
	for _, c := range []struct {
		policy Policy
		now    uint64
		want   string
	}{
		{LRU(), 10, "bdca"},
		{LFU(), 10, "dacb"},
		{FIFO(), 10, "abcd"},
		{MRU(), 10, "acdb"},
		{FILO(), 10, "dcba"},
		{SLRU(2), 10, "dabc"},
		{Priority(), 7, "adbc"},
		{Priority(), 8, "cadb"}, // c's priority has run out
		{TLRU(2048, 512), 10, "bcda"},
	} {
		names := []string{"a", "b", "c", "d"}
		sort.Slice(names, func(i, j int) bool {
			x, y := nodes[names[i]], nodes[names[j]]
			return c.policy.Key(&x, c.now).Less(c.policy.Key(&y, c.now))
		})
		if got := strings.Join(names, ""); got != c.want {
			t.Errorf("%s at %d gives up %s, want %s", c.policy.Name(), c.now, got, c.want)
		}
	}
}

func TestByName(t *testing.T) {
	for _, n := range Names() {
		p, err := ByName(n)
		if err != nil || p.Name() != n {
			t.Errorf("%s: %v %v", n, p, err)
		}
	}
	if _, err := ByName("clock"); err == nil || !strings.Contains(err.Error(), "lru") || !strings.Contains(err.Error(), `"clock"`) {
		t.Errorf("an unknown name: %v", err)
	}
}

func TestDecide(t *testing.T) {
	base := Snapshot{Prefix: Prefix{Ready: 100, Usable: 500, Wanted: 1000, LoadBytes: 1 << 20}, Rules: Rules{MinLoad: 10, MinPrefetch: 256, BackUpMinHits: 1}}
	for _, c := range []struct {
		name  string
		edit  func(*Snapshot)
		check func(Plan) bool
	}{
		{"load and prefetch", func(*Snapshot) {}, func(p Plan) bool { return p.Load == 500 && p.Prefetch && p.BackUpMinHits == 1 && !p.SlowLoad }},
		{"too short to load", func(s *Snapshot) { s.Rules.MinLoad = 401 }, func(p Plan) bool { return p.Load == 100 }},
		{"no host", func(s *Snapshot) { s.Prefix.NoHost = true }, func(p Plan) bool { return p.Load == 100 }},
		{"too short to prefetch", func(s *Snapshot) { s.Rules.MinPrefetch = 501 }, func(p Plan) bool { return !p.Prefetch }},
		{"nothing left to prefetch", func(s *Snapshot) { s.Prefix.Wanted, s.Rules.MinPrefetch = 500, 0 }, func(p Plan) bool { return !p.Prefetch }},
		{"a load slower than computing", func(s *Snapshot) {
			s.Rates = Rates{LoadBytesPerSecond: 1 << 20, LoadLatency: time.Millisecond, ComputeTokensPerSecond: 4000}
		}, func(p Plan) bool {
			return p.SlowLoad && p.Load == 500 && p.LoadTime == 1001*time.Millisecond && p.ComputeTime == 100*time.Millisecond
		}},
	} {
		s := base
		c.edit(&s)
		if p := Decide(&s); !c.check(p) {
			t.Errorf("%s: %+v", c.name, p)
		}
	}
}

// Auto turns its lottery on where everything is evicted before it is used again, and off where recency is right.
func TestAutoLottery(t *testing.T) {
	const unit, prompt, capacity = 4, 10, 200 // tokens; units; units
	tokens := func(id int) []uint32 {
		out := make([]uint32, unit*prompt)
		for i := range out {
			out[i] = uint32(id*len(out) + i)
		}
		return out
	}
	a := NewAuto(AutoOptions{UnitTokens: unit})
	a.Pressure(capacity * unit)
	run := func(requests, working int) (bonus int) {
		for i := range requests {
			if a.Admit(&Request{Tokens: tokens(i % working), PageTokens: 1, Resident: capacity * unit}).Bonus > 0 {
				bonus++
			}
		}
		return bonus
	}
	if n := run(2000, 10); n != 0 || a.duel.lottery {
		t.Errorf("a working set that fits: %d tickets", n)
	}
	if n := run(4000, 100); n < 200 || n > 600 || !a.duel.lottery {
		t.Errorf("a loop five times the cache: %d tickets, lottery %v", n, a.duel.lottery)
	}
	if run(4000, 10); a.duel.lottery {
		t.Error("the lottery stays on where recency is right")
	}
	for i, g := range a.duel.ghosts {
		if g.size > g.capacity || len(g.leaves) > g.size {
			t.Errorf("ghost %d holds %d units of %d, %d leaves", i, g.size, g.capacity, len(g.leaves))
		}
	}
	a.Pressure(capacity * unit / 2)
	run(100, 100)
	for i, g := range a.duel.ghosts {
		if g.size > capacity/2 {
			t.Errorf("ghost %d holds %d units after the cache shrank to %d", i, g.size, capacity/2)
		}
	}
	if len(a.duel.units) > 2*capacity {
		t.Errorf("%d units known", len(a.duel.units))
	}
}

// A touch never lowers a key, a page that was used again outlives one that was not, and a prompt's end goes before its start.
func TestAutoKeys(t *testing.T) {
	a := NewAuto(AutoOptions{})
	a.Pressure(1000)
	first := a.Admit(&Request{Tokens: make([]uint32, 100), PageTokens: 1})
	fresh := Entry{Tokens: 50}
	fresh.Mark = a.Touch(&fresh, first)
	tail := Entry{Before: 50, Tokens: 50, Mark: fresh.Mark}
	if !a.Key(&tail, 0).Less(a.Key(&fresh, 0)) {
		t.Error("the start of a prompt goes before its end")
	}
	used := fresh
	used.Hits = 1
	used.Mark = a.Touch(&used, first)
	later := a.Admit(&Request{Tokens: make([]uint32, 100), PageTokens: 1})
	once := Entry{Tokens: 50}
	once.Mark = a.Touch(&once, later)
	if !a.Key(&once, 0).Less(a.Key(&used, 0)) {
		t.Error("a page used once outlives one used twice, of a capacity ago")
	}
	if used.Hits = 0; a.Touch(&used, first) < used.Mark {
		t.Error("a touch lowered a mark")
	}
}
