package hicache_test

import (
	"fmt"
	"testing"

	hicache "github.com/hicache/hicache/gohicache"
)

// TestClearUnderASequence: a sequence whose published path is cleared, and whose prompt somebody else then publishes anew, goes on with its own pages
// also after it has published more itself; so does a fork of it. Nothing of them is given to others before they end.
func TestClearUnderASequence(t *testing.T) {
	for name, pools := range geometries() {
		for _, forked := range []bool{false, true} {
			t.Run(fmt.Sprint(name, forked), func(t *testing.T) {
				s := open(t, hicache.Options{DeviceBytes: 64 * kib, Pools: pools})
				tokens := prompt(1, 40)
				seq, err := s.c.Begin(ctx, tokens[:21], hicache.SequenceOptions{})
				if err != nil {
					t.Fatal(err)
				}
				defer seq.Abort()
				step := func(q *hicache.Sequence, n int, look func(step *hicache.Step)) {
					step, err := s.c.Step(ctx, 0, []hicache.Growth{{Sequence: q, NewTokens: n}}, false)
					if err != nil {
						t.Fatal(err)
					}
					defer step.Close()
					look(step)
				}
				step(seq, 0, func(step *hicache.Step) { s.write("", tokens, s.stepTables(step, 0), 0, 5) })
				if err := seq.Publish(0); err != nil {
					t.Fatal(err)
				}
				if err := s.c.Clear(); err != nil {
					t.Fatal(err)
				}
				s.run(tokens[:21]) // somebody else
				step(seq, 5, func(step *hicache.Step) { s.write("", tokens, s.stepTables(step, 0), 5, 6) })
				if err := seq.Append(tokens[21:26]...); err != nil {
					t.Fatal(err)
				}
				if err := seq.Publish(0); err != nil {
					t.Fatal(err)
				}
				goes := seq
				if forked {
					if goes, err = seq.Fork(); err != nil {
						t.Fatal(err)
					}
					defer goes.Abort()
					seq.Abort()
				}
				s.evict(hicache.TierDevice)
				for i := range 6 {
					s.run(prompt(10+i, 41))
				}
				step(goes, 2, func(step *hicache.Step) { s.check("own pages", "", tokens, s.stepTables(step, 0), 0, 6) })
			})
		}
	}
}

// TestClearUnderALoadOfWindows: a path is cleared while a load brings windows of its resident pages. What the load brought goes with those pages, once:
// also where the request goes on, beside others that publish the same prefix anew.
func TestClearUnderALoadOfWindows(t *testing.T) {
	for _, on := range []bool{false, true} {
		s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: windowPools(), Faults: &hicache.FaultOptions{Seed: 1}})
		tokens := prompt(1, 41)
		s.run(tokens)
		s.flush()
		for pool := 1; pool <= 2; pool++ {
			if n, err := s.c.Evict(hicache.TierDevice, pool, 5); err != nil || n != 5 { // the coldest: positions 0 to 4
				t.Fatal(n, err)
			}
		}
		if err := s.c.HoldTransfers(true, 0); err != nil {
			t.Fatal(err)
		}
		m := s.c.Match(tokens[:21])
		lease, err := s.c.Load(ctx, m, hicache.LoadOptions{Tokens: 24})
		if err != nil {
			t.Fatal(err)
		}
		if m.Release(); lease.Hit().Device != 20 || s.c.Stats().TransfersInFlightNow != 1 {
			t.Fatalf("hit %+v: the load is not one of windows alone", lease.Hit())
		}
		if err := s.c.Clear(); err != nil {
			t.Fatal(err)
		}
		if on {
			s.run(tokens)
		} else {
			lease.Release()
		}
		if err := s.c.HoldTransfers(false, 0); err != nil {
			t.Fatal(err)
		}
		s.flush()
		if on {
			s.check("prefix", "", tokens, lease.PoolKernelIDs, 0, 5)
			s.write("", tokens, lease.PoolKernelIDs, 5, 6)
			if err := s.c.Insert(lease, tokens[:24]); err != nil {
				t.Fatal(err)
			}
		}
		lease.Release()
		s.quiet()
		if err := s.c.Clear(); err != nil {
			t.Fatal(err)
		}
		for pool := range s.c.Pools() {
			if n := s.live(hicache.TierDevice, pool); n != 0 {
				t.Errorf("%d pages of pool %d are left", n, pool)
			}
		}
	}
}
