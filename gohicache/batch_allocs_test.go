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
