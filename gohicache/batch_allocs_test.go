//go:build !race

package hicache_test

import (
	"testing"

	hicache "github.com/hicache/hicache/gohicache"
)

// A decode step makes no garbage: what grows with a sequence (its list of pages) grows by doubling.
func TestBatchNoGarbage(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 256 * kib, Pools: windowPools()})
	const sequences = 8
	growth := make([]hicache.Growth, sequences)
	for i := range growth {
		seq, err := s.c.Begin(ctx, prompt(i, 6), hicache.SequenceOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer seq.Abort()
		growth[i] = hicache.Growth{Sequence: seq, NewTokens: 1}
	}
	steps := s.newSteps(true, sequences)
	defer steps.end()
	step := func() {
		if err := steps.batch.Step(ctx, growth, steps.tables, false); err != nil {
			t.Fatal(err)
		}
	}
	for growth[0].Sequence.Len() < 40 { // Room for 64 tokens by now.
		step()
	}
	if got := testing.AllocsPerRun(20, step); got != 0 {
		t.Errorf("%v allocations a step", got)
	}
}

// TestRequestAllocations: a request in a full cache, which evicts, takes, leases, publishes and lets go, makes three objects: the Match, the
// Lease and the list of its pages, which are the caller's to keep.
func TestRequestAllocations(t *testing.T) {
	const tokens, prompts = 64 * pageTokens, 8
	for name, pools := range map[string][]hicache.PoolOptions{"full": fullPools(), "windows": windowPools()} {
		t.Run(name, func(t *testing.T) {
			s := open(t, hicache.Options{Device: hicache.Null, DeviceBytes: 128 * kib, Pools: pools})
			list := make([][]uint32, prompts)
			for i := range list {
				list[i] = prompt(i, tokens)
			}
			n := 0
			request := func() {
				p := list[n%prompts]
				n++
				m := s.c.Match(p)
				defer m.Release()
				lease, err := s.c.Load(ctx, m, hicache.LoadOptions{WindowTailOnly: true})
				if err != nil {
					t.Fatal(err)
				}
				defer lease.Release()
				if err := s.c.Insert(lease, p); err != nil {
					t.Fatal(err)
				}
			}
			for range 20 * prompts { // until slabs, lists and pools have their size
				request()
			}
			before := s.c.Stats().Evicted.Device
			got := testing.AllocsPerRun(200, request)
			if evicted := s.c.Stats().Evicted.Device - before; evicted < 200 {
				t.Fatalf("only %d pages were evicted: the cache is not full", evicted)
			}
			if most := 3.0; got > most {
				t.Errorf("%v objects a request, at most %v", got, most)
			}
		})
	}
}
