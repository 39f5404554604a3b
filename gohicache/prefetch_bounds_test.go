package hicache_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/storage"
)

// TestStuckStoreDoesNotHoldLoads: a store that returns at no end of a context holds no load past its time to prefetch, nor past its context, nor the
// others that want the same pages; once it answers the pages are found, and nothing is left behind.
func TestStuckStoreDoesNotHoldLoads(t *testing.T) {
	t.Run("asked", func(t *testing.T) {
		store := newMemory()
		stuckStoreDoesNotHoldLoads(t, windowPools(), store, store, func(gate chan struct{}) { store.set(func(m *memory) { m.gate, m.deaf = gate, gate != nil }) })
	})
	t.Run("read", func(t *testing.T) { // a fetch that is left at its very end has an answer that nobody takes
		store := &deafReads{memory: newMemory()}
		stuckStoreDoesNotHoldLoads(t, fullPools(), store, store.memory, func(gate chan struct{}) { store.gate.Store(&gate) })
	})
}

// deafReads is a store whose reads wait for a gate, and then bring what was asked for; it answers other calls at once.
type deafReads struct {
	*memory
	gate atomic.Pointer[chan struct{}]
}

func (s *deafReads) Get(_ context.Context, keys []storage.Key, dst [][]byte, errs []error) error {
	if gate := s.gate.Load(); gate != nil && *gate != nil {
		s.waiting.Add(1)
		<-*gate
		s.waiting.Add(-1)
	}
	return s.memory.Get(ctx, keys, dst, errs)
}

func stuckStoreDoesNotHoldLoads(t *testing.T, pools []hicache.PoolOptions, used storage.Store, store *memory, stick func(gate chan struct{})) {
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: pools, Storage: used, PrefetchTimeout: 20 * time.Millisecond,
		PrefetchTimeoutPerKiTokens: time.Millisecond})
	tokens := prompt(1, 41)
	s.run(tokens)
	s.flush()
	if err := s.c.Clear(); err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	stick(gate)
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
	for deadline := time.Now().Add(20 * time.Second); store.waiting.Load() == 0; { // A load of a busy machine may be over before it asks.
		load(context.Background())
		if time.Now().After(deadline) {
			t.Fatal("the store was not asked: the test is void")
		}
	}
	load(context.Background()) // Waits for the fetch of the first, no longer than its own time.
	short, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	load(short)
	if s.c.Stats().PrefetchesCut == 0 {
		t.Error("no prefetch counts as cut")
	}
	stick(nil)
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

// TestFewFetchesAreLeft: a stuck store keeps a bounded number of fetches; from there on it is not asked, and once it answers it is again.
func TestFewFetchesAreLeft(t *testing.T) {
	const most = 64
	store := newMemory()
	s := open(t, hicache.Options{DeviceBytes: 256 * kib, HostBytes: 64 * kib, Pools: fullPools(), Storage: store, PrefetchTimeout: time.Millisecond,
		PrefetchTimeoutPerKiTokens: time.Millisecond})
	known := prompt(1000, 41)
	s.run(known)
	s.flush()
	if err := s.c.Clear(); err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	store.set(func(m *memory) { m.gate, m.deaf = gate, true })
	load := func(tokens []uint32) hicache.HitTokens {
		m := s.c.Match(tokens)
		defer m.Release()
		lease, err := s.c.Load(ctx, m, hicache.LoadOptions{})
		if err != nil {
			t.Error(err)
			return hicache.HitTokens{}
		}
		defer lease.Release()
		return lease.Hit()
	}
	var wg sync.WaitGroup
	for i := range most {
		wg.Go(func() { load(prompt(i, 9)) })
	}
	wg.Wait()
	await(t, "all have asked the store", func() bool { return store.waiting.Load() == most })
	load(known)
	if n := store.waiting.Load(); n != most {
		t.Errorf("%d calls of a store that %d fetches wait for", n, most)
	}
	store.set(func(m *memory) { m.gate, m.deaf = nil, false })
	close(gate)
	await(t, "the store is asked again", func() bool {
		hit := load(known)
		return hit.Storage+hit.Host == 40
	})
}
