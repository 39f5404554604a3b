package hicache_test

import (
	"context"
	"testing"
	"time"

	hicache "github.com/hicache/hicache/gohicache"
)

// TestStuckStoreDoesNotHoldLoads: a store that returns at no end of a context holds no load past its time to prefetch, nor past its context, nor the
// others that want the same pages; once it answers the pages are found, and nothing is left behind.
func TestStuckStoreDoesNotHoldLoads(t *testing.T) {
	store := newMemory()
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: windowPools(), Storage: store, PrefetchTimeout: time.Millisecond,
		PrefetchTimeoutPerKiTokens: time.Millisecond})
	tokens := prompt(1, 41)
	s.run(tokens)
	s.flush()
	if err := s.c.Clear(); err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	store.set(func(m *memory) { m.gate, m.deaf = gate, true })
	load := func(within context.Context) {
		t.Helper()
		m := s.c.Match(tokens)
		defer m.Release()
		loaded := make(chan struct{})
		go func() {
			defer close(loaded)
			if lease, err := s.c.Load(within, m, hicache.LoadOptions{}); err == nil {
				lease.Release()
			} else if within.Err() == nil {
				t.Error(err)
			}
		}()
		select {
		case <-loaded:
		case <-time.After(10 * time.Second):
			t.Fatal("a stuck store holds a load")
		}
	}
	load(context.Background())
	load(context.Background()) // Waits for the fetch of the first, no longer than its own time.
	short, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	load(short)
	if store.waiting.Load() == 0 {
		t.Fatal("the store was not asked: the test is void")
	}
	if s.c.Stats().PrefetchesCut == 0 {
		t.Error("no prefetch counts as cut")
	}
	store.set(func(m *memory) { m.gate, m.deaf = nil, false })
	close(gate)
	s.flush()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		m := s.c.Match(tokens)
		lease, err := s.c.Load(ctx, m, hicache.LoadOptions{})
		m.Release()
		if err != nil {
			t.Fatal(err)
		}
		hit := lease.Hit()
		lease.Release()
		if hit.Host+hit.Storage == 40 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("hit %+v long after the store answered, want 40 tokens of host or storage", hit)
		}
	}
}
