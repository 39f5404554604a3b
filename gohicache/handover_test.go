package hicache_test

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"

	hicache "github.com/hicache/hicache/gohicache"
)

func pairOf(t *testing.T, o hicache.Options) (prefill, decode *server) {
	return open(t, o), open(t, o)
}

// TestHandOver: what a prefill's cache computed is a decode's cache's own, byte for byte, and only what that lacks is copied.
func TestHandOver(t *testing.T) {
	for name, pools := range map[string]func() []hicache.PoolOptions{"full": fullPools, "windows": windowPools} {
		t.Run(name, func(t *testing.T) {
			prefill, decode := pairOf(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: pools()})
			decode.run(prompt(7, 20)) // so that pages have other names and places there
			tokens := prompt(1, 42)
			for _, n := range []int{18, 42} { // the second time a part is there
				m := prefill.c.Match(tokens[:n])
				lease, err := prefill.compute(m, "", tokens[:n], hicache.LoadOptions{})
				m.Release()
				if err != nil {
					t.Fatal(err)
				}
				for range 2 { // again: nothing is left to copy
					got, err := prefill.c.HandOver(ctx, lease, tokens[:n], decode.c, hicache.HandOverOptions{})
					if err != nil || got != n/pageTokens*pageTokens {
						t.Fatalf("handed over %d of %d tokens: %v", got, n, err)
					}
				}
				lease.Release()
				hit := decode.run(tokens[:n]) // checks every page of its prefix
				wantHit(t, hit, (n-1)/pageTokens*pageTokens, 0, 0)
			}
			decode.flush()
			decode.evict(hicache.TierDevice) // it is the target's like any other: backed up, given up, loaded back
			hit := decode.run(tokens)
			wantHit(t, hit, 0, 40, 0)
			if hit := prefill.run(prompt(7, 20)); hit.Total() != 0 {
				t.Errorf("the source has %d tokens of the target's", hit.Total())
			}
		})
	}
}

// TestHandOverNamespaces: in the target the prompt is what the options say.
func TestHandOverNamespaces(t *testing.T) {
	prefill, decode := pairOf(t, hicache.Options{DeviceBytes: 64 * kib, Pools: fullPools()})
	tokens := prompt(2, 16)
	m := prefill.c.Match(tokens)
	lease, err := prefill.compute(m, "salt", tokens, hicache.LoadOptions{})
	m.Release()
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	if _, err := prefill.c.HandOver(ctx, lease, tokens, decode.c, hicache.HandOverOptions{Namespace: hicache.Salt("salt")}); err != nil {
		t.Fatal(err)
	}
	wantHit(t, decode.runIn("salt", tokens), 12, 0, 0)
	wantHit(t, decode.run(tokens), 0, 0, 0)
}

// TestHandOverStates: the recurrent state goes with the prompt, at a page boundary.
func TestHandOverStates(t *testing.T) {
	prefill, decode := pairOf(t, hicache.Options{DeviceBytes: 64 * kib, Pools: statePools()})
	tokens := prompt(3, 24)
	m := prefill.c.Match(tokens)
	lease, err := prefill.c.Load(ctx, m, hicache.LoadOptions{})
	m.Release()
	if err != nil {
		t.Fatal(err)
	}
	prefill.write("", tokens, lease.PoolKernelIDs, 0, 0)
	for pool := 1; pool <= 2; pool++ {
		copy(prefill.c.PageBytes(pool, lease.PoolKernelIDs(pool)[0]), stateAfter(tokens, pool))
	}
	if _, err := prefill.c.HandOver(ctx, lease, tokens[:22], decode.c, hicache.HandOverOptions{}); !errors.Is(err, hicache.ErrInvalid) {
		t.Fatalf("a state inside a page: %v", err)
	}
	if n, err := prefill.c.HandOver(ctx, lease, tokens, decode.c, hicache.HandOverOptions{}); err != nil || n != 24 {
		t.Fatalf("handed over %d tokens: %v", n, err)
	}
	if err := prefill.c.Insert(lease, tokens); err != nil {
		t.Fatal(err)
	}
	third := open(t, hicache.Options{DeviceBytes: 64 * kib, Pools: statePools()})
	if _, err := prefill.c.HandOver(ctx, lease, tokens, third.c, hicache.HandOverOptions{}); !errors.Is(err, hicache.ErrInvalid) {
		t.Fatalf("a state that is the tree's: %v", err)
	}
	lease.Release()
	// From the target on to a third, by a lease that has it all as its prefix.
	m = decode.c.MatchWith(tokens, hicache.MatchOptions{FullHit: true})
	lease, err = decode.c.Load(ctx, m, hicache.LoadOptions{})
	m.Release()
	if err != nil {
		t.Fatal(err)
	}
	if n, err := decode.c.HandOver(ctx, lease, tokens, third.c, hicache.HandOverOptions{}); err != nil || n != 24 {
		t.Fatalf("handed on %d tokens: %v", n, err)
	}
	lease.Release()
	for _, s := range []*server{decode, third} {
		m := s.c.MatchWith(tokens, hicache.MatchOptions{FullHit: true})
		lease, err := s.c.Load(ctx, m, hicache.LoadOptions{})
		m.Release()
		if err != nil {
			t.Fatal(err)
		}
		if lease.Prefix() != 24 {
			t.Errorf("a prefix of %d tokens", lease.Prefix())
		}
		for pool := 1; pool <= 2; pool++ {
			id, ok := lease.StateSource(pool)
			if !ok || !bytes.Equal(s.c.PageBytes(pool, id)[:32], stateAfter(tokens, pool)) {
				t.Errorf("pool %d: no state, or another", pool)
			}
		}
		lease.Release()
	}
}

func TestHandOverRefuses(t *testing.T) {
	prefill, decode := pairOf(t, hicache.Options{DeviceBytes: 64 * kib, Pools: fullPools()})
	null := open(t, hicache.Options{DeviceBytes: 64 * kib, Pools: fullPools(), Device: hicache.Null})
	longer := open(t, hicache.Options{DeviceBytes: 64 * kib, Pools: fullPools(), PageTokens: 8})
	wide := open(t, hicache.Options{DeviceBytes: 64 * kib, Pools: []hicache.PoolOptions{{Role: hicache.Full, Layers: []int{0, 1}, LayerBytes: 128}}})
	tiny := open(t, hicache.Options{DeviceBytes: 2 * kib, Pools: fullPools()})
	tokens := prompt(4, 32)
	m := prefill.c.Match(tokens)
	lease, err := prefill.compute(m, "", tokens, hicache.LoadOptions{})
	m.Release()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		lease  *hicache.Lease
		tokens []uint32
		to     *hicache.Cache
		want   error
		text   string
	}{
		{"no lease", nil, tokens, decode.c, hicache.ErrStale, "nil"},
		{"no target", lease, tokens, nil, hicache.ErrInvalid, "nil"},
		{"itself", lease, tokens, prefill.c, hicache.ErrInvalid, "one cache"},
		{"too many tokens", lease, prompt(4, 33), decode.c, hicache.ErrInvalid, "33 tokens"},
		{"another backend", lease, tokens, null.c, hicache.ErrUnsupported, "backend"},
		{"other page tokens", lease, tokens, longer.c, hicache.ErrInvalid, "page tokens"},
		{"other rows", lease, tokens, wide.c, hicache.ErrInvalid, "k_row_bytes"},
		{"no room", lease, tokens, tiny.c, hicache.ErrInfeasible, ""},
	} {
		n, err := prefill.c.HandOver(ctx, c.lease, c.tokens, c.to, hicache.HandOverOptions{})
		if n != 0 || !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %d, %v", c.name, n, err)
		}
	}
	lease.Release()
	if _, err := prefill.c.HandOver(ctx, lease, tokens, decode.c, hicache.HandOverOptions{}); !errors.Is(err, hicache.ErrStale) {
		t.Errorf("a lease that is over: %v", err)
	}
	for _, s := range []*server{decode, wide, tiny} {
		if hit := s.c.Match(tokens); hit.Tokens() != 0 {
			t.Errorf("%d tokens after a refusal", hit.Tokens())
		} else {
			hit.Release()
		}
	}
}

// TestHandOverAtOnce: both caches hand prompts to each other from many goroutines beside their own requests.
func TestHandOverAtOnce(t *testing.T) {
	a, b := pairOf(t, hicache.Options{DeviceBytes: 32 * kib, HostBytes: 32 * kib, Pools: windowPools()})
	caches := []*server{a, b}
	var wait sync.WaitGroup
	for worker := range 4 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			from, to := caches[worker%2], caches[1-worker%2]
			for i := range 40 {
				tokens := prompt(worker*10+i%5, 17+i%16)
				m := from.c.Match(tokens)
				lease, err := from.compute(m, "", tokens, hicache.LoadOptions{Wait: true})
				m.Release()
				if err != nil {
					t.Errorf("compute: %v", err)
					return
				}
				_, err = from.c.HandOver(ctx, lease, tokens, to.c, hicache.HandOverOptions{})
				lease.Release()
				if err != nil && !errors.Is(err, hicache.ErrNoCapacity) {
					t.Errorf("hand over: %v", err)
					return
				}
				m = to.c.Match(tokens)
				lease, err = to.compute(m, "", tokens, hicache.LoadOptions{Wait: true}) // checks what came
				m.Release()
				if err != nil {
					t.Errorf("compute there: %v", err)
					return
				}
				lease.Release()
			}
		}()
	}
	wait.Wait()
}

// TestHandOverWide: ids beyond 32 bits go over as they are, and a cache of 32 bits is no target.
func TestHandOverWide(t *testing.T) {
	prefill, decode := pairOf(t, hicache.Options{DeviceBytes: 64 * kib, Pools: fullPools(), Tokens: hicache.Tokens64})
	tokens := make([]uint64, 20)
	for i := range tokens {
		tokens[i] = uint64(i) | 1<<40
	}
	m := prefill.c.MatchWide(tokens, hicache.MatchOptions{FullHit: true})
	defer m.Release()
	lease, err := prefill.c.Load(ctx, m, hicache.LoadOptions{Tokens: len(tokens)})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	if n, err := prefill.c.HandOverWide(ctx, lease, tokens, decode.c, hicache.HandOverOptions{}); err != nil || n != 20 {
		t.Fatalf("%d tokens, %v", n, err)
	}
	found := decode.c.MatchWide(tokens, hicache.MatchOptions{FullHit: true})
	defer found.Release()
	if found.Tokens() != 20 {
		t.Errorf("%d tokens found", found.Tokens())
	}
	narrow := open(t, hicache.Options{DeviceBytes: 64 * kib, Pools: fullPools()})
	if _, err := prefill.c.HandOverWide(ctx, lease, tokens, narrow.c, hicache.HandOverOptions{}); !errors.Is(err, hicache.ErrInvalid) {
		t.Errorf("into a cache of 32 bits: %v", err)
	}
	if _, err := narrow.c.HandOverWide(ctx, lease, tokens, decode.c, hicache.HandOverOptions{}); !errors.Is(err, hicache.ErrInvalid) {
		t.Errorf("out of a cache of 32 bits: %v", err)
	}
}
