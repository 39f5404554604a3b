package proptest

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	hicache "github.com/hicache/hicache/gohicache"
)

// TestASeedRepeatsARun: with injected faults and one goroutine, the order of completions, the failures and all that follows come from the
// seed. The same seed gives the same counters and the same contents; another gives another run.
func TestASeedRepeatsARun(t *testing.T) {
	needLibrary(t)
	for _, g := range cacheGeometries {
		t.Run(g.name, func(t *testing.T) {
			first := simulate(t, &g, 1)
			again := simulate(t, &g, 1)
			if diff := cmp.Diff(first, again, cmpopts.IgnoreFields(hicache.Stats{}, "Submit")); diff != "" {
				t.Errorf("the same seed gave another run (-first +second):\n%s", diff)
			}
			if other := simulate(t, &g, 2); cmp.Equal(first, other, cmpopts.IgnoreFields(hicache.Stats{}, "Submit")) {
				t.Error("another seed gave the same run: the seed does nothing")
			}
		})
	}
}

// A simulation is what a run gave: its counters, and of each request how much was reused or why not.
type simulation struct {
	Stats   hicache.Stats
	Answers []int
}

// simulate runs 300 requests, some of them open at once, with delayed and failing copies.
func simulate(t *testing.T, g *cacheGeometry, seed uint64) simulation {
	t.Helper()
	o := &hicache.Options{PageTokens: cachePageTokens, Pools: g.pools, DeviceBytes: 20 * 1024, HostBytes: 16 * 1024, WritePolicy: hicache.WriteThrough,
		Faults: &hicache.FaultOptions{Seed: seed, FailPPM: 100_000, DelayMax: time.Millisecond}}
	cache, err := hicache.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(7, 7)) // What is asked is the same in every run; what happens is the seed's.
	var s simulation
	var open []*hicache.Lease
	for range 300 {
		tokens := make([]uint32, 1+random.IntN(6*cachePageTokens))
		for i := range tokens {
			tokens[i] = uint32(random.IntN(2))
		}
		match := cache.Match(tokens)
		lease, err := cache.Load(context.Background(), match, hicache.LoadOptions{})
		match.Release()
		if err != nil {
			if !errors.Is(err, hicache.ErrNoCapacity) {
				t.Fatal(err)
			}
			s.Answers = append(s.Answers, -1)
			continue
		}
		s.Answers = append(s.Answers, lease.Prefix())
		if err := lease.Wait(context.Background()); err != nil {
			s.Answers = append(s.Answers, -2)
		} else if err := cache.Insert(lease, tokens); err != nil {
			t.Fatal(err)
		}
		open = append(open, lease)
		for len(open) > random.IntN(4) {
			open[0].Release()
			open = open[1:]
		}
		if random.IntN(3) == 0 {
			if _, err := cache.Drive(1, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, lease := range open {
		lease.Release()
	}
	if err := cache.Verify(); err != nil {
		t.Fatal(err)
	}
	s.Stats = cache.Stats()
	if err := cache.Close(); err != nil {
		t.Fatal(err)
	}
	return s
}
