package hicache_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/storage"
	"github.com/hicache/hicache/gohicache/storage/file"
)

func attach(t *testing.T, s *server, store storage.Store) {
	t.Helper()
	if err := s.c.AttachStorage(ctx, store); err != nil {
		t.Fatal(err)
	}
}

func detach(t *testing.T, s *server) {
	t.Helper()
	if err := s.c.DetachStorage(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestAttachToAGrownTree (C76): a tree that was built without hashes and is then given a store has exactly the keys of a cache that had the store from
// the start, also for the children of what was there before; and what it stored serves another process.
func TestAttachToAGrownTree(t *testing.T) {
	for name, pools := range geometries() {
		t.Run(name, func(t *testing.T) {
			o := hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: pools, Model: "m"}
			early, late := newMemory(), newMemory()
			grow := func(s *server, at func(stage int)) {
				at(0)
				s.runIn("tenant", prompt(1, 30))
				s.run(prompt(1, 45))
				s.run(prompt(2, 20))
				at(1)
				for range 3 { // what the queue had no room for is stored when it is next used
					s.run(prompt(1, 70)) // a child of what was there
					s.flush()
					s.runIn("tenant", prompt(1, 50))
					s.flush()
					s.run(prompt(2, 20))
					s.flush()
					s.run(prompt(3, 33))
					s.flush()
				}
			}
			with := o
			with.Storage = early
			grow(open(t, with), func(int) {})
			s := open(t, o)
			grow(s, func(stage int) {
				if stage == 1 {
					attach(t, s, late)
				}
			})
			if len(late.keys()) == 0 || !maps.Equal(early.keys(), late.keys()) {
				t.Fatalf("%d keys with a store from the start, %d with one attached later", len(early.keys()), len(late.keys()))
			}
			with.Storage = late
			wantHit(t, open(t, with).run(prompt(1, 70)), 0, 0, 68)
		})
	}
}

// TestDetach: what waits is written, then the cache is out of the store; another store gets everything anew.
func TestDetach(t *testing.T) {
	a, b := newMemory(), newMemory()
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: windowPools()})
	attach(t, s, a)
	if name := s.c.StorageName(); name != "memory" {
		t.Fatalf("store %q", name)
	}
	tokens := prompt(1, 61)
	s.run(tokens)
	detach(t, s)
	if name := s.c.StorageName(); name != "" || len(a.keys()) == 0 {
		t.Fatalf("store %q, %d objects", name, len(a.keys()))
	}
	calls := a.calls.Load()
	s.run(tokens)
	s.run(prompt(2, 61))
	s.flush()
	if a.calls.Load() != calls || a.closed.Load() {
		t.Fatal("a detached store was used, or closed")
	}
	if err := s.c.DetachStorage(ctx); !errors.Is(err, hicache.ErrInvalid) {
		t.Fatalf("nothing to detach: %v", err)
	}
	attach(t, s, b)
	s.run(tokens)
	s.flush()
	for k := range a.keys() {
		if !b.keys()[k] {
			t.Fatal("a page that the first store had is not in the second")
		}
	}
}

// TestDetachGivesUp: a detach whose context ends gives up what is not written and cuts reads short; their requests go on.
func TestDetachGivesUp(t *testing.T) {
	store := newMemory()
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: windowPools(), Prefetch: hicache.PrefetchWait})
	attach(t, s, store)
	s.run(prompt(1, 61))
	s.flush()
	stored := len(store.keys())
	s.evict(hicache.TierDevice)
	s.evict(hicache.TierHost)
	gate := make(chan struct{})
	defer close(gate)
	store.set(func(m *memory) { m.gate = gate })
	hits := make(chan hicache.HitTokens)
	for i := range 2 { // one reads, one writes
		go func() { hits <- s.run(prompt(1+i, 61)) }()
	}
	await(t, "both are in the store", func() bool { return store.waiting.Load() >= 2 })
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := s.c.DetachStorage(short); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if hit := <-hits; hit.Total() != 0 {
			t.Errorf("hit %+v of a store that was taken away", hit)
		}
	}
	if len(store.keys()) != stored || store.waiting.Load() != 0 {
		t.Fatalf("%d objects, want %d; %d calls left", len(store.keys()), stored, store.waiting.Load())
	}
	if st := s.c.Stats(); st.StorageFaults != 0 || st.Degraded != "" {
		t.Errorf("%d faults, degraded %q", st.StorageFaults, st.Degraded)
	}
}

// TestIncompatibleStores are refused before anything changes.
func TestIncompatibleStores(t *testing.T) {
	unready := newMemory()
	unready.ready = errors.New("no such server")
	pieces, small := newMemory(), newMemory()
	pieces.caps.OneObjectPerPage = false
	small.caps.ObjectBytesMax = 100
	host := hicache.Options{DeviceBytes: 16 * kib, HostBytes: 16 * kib, Pools: windowPools()}
	bare := hicache.Options{DeviceBytes: 16 * kib, Pools: windowPools()}
	null := host
	null.Device = hicache.Null
	for name, c := range map[string]struct {
		o     hicache.Options
		store storage.Store
		err   error
		says  string
	}{
		"not ready":       {host, unready, hicache.ErrUnsupported, "no such server"},
		"page in pieces":  {host, pieces, hicache.ErrUnsupported, "one object"},
		"objects too big": {host, small, hicache.ErrUnsupported, "100 bytes"},
		"no host memory":  {bare, newMemory(), hicache.ErrUnsupported, "HostBytes or StagingBytes"},
		"null device":     {null, newMemory(), hicache.ErrUnsupported, "Storage with Device"},
		"nil":             {host, nil, hicache.ErrInvalid, "nil"},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, c.o)
			if c.o.Device == hicache.CPU {
				s.run(prompt(1, 40))
				s.flush()
			}
			before := s.c.Stats()
			err := s.c.AttachStorage(ctx, c.store)
			if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("err %v", err)
			}
			if m, ok := c.store.(*memory); ok && (m.calls.Load() > 0 || m.closed.Load()) {
				t.Error("a store that was refused was used, or closed")
			}
			if after := s.c.Stats(); after != before || s.c.StorageName() != "" {
				t.Errorf("a refused store changed %+v to %+v", before, after)
			}
			if c.o.Device == hicache.CPU {
				s.run(prompt(1, 40))
			}
			if c.o.HostBytes > 0 && c.o.Device == hicache.CPU {
				attach(t, s, newMemory())
				if err := s.c.AttachStorage(ctx, newMemory()); !errors.Is(err, hicache.ErrBusy) {
					t.Errorf("a second store: %v", err)
				}
			}
		})
		if m, ok := c.store.(*memory); ok && m != unready && c.o.Device == hicache.CPU && c.o.HostBytes > 0 {
			o := c.o
			o.Storage, o.HostArena = m, hicache.HostArenaEnvelope // auto gives a store of pieces host regions
			if cache, err := hicache.Open(ctx, &o); !errors.Is(err, c.err) {
				t.Errorf("%s: open says %v", name, err)
				if err == nil {
					_ = cache.Close()
				}
			}
		}
	}
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, StagingBytes: 4 * kib, Pools: fullPools()})
	s.run(prompt(1, 40))
	attach(t, s, file.New(folder(t)))
	s.run(prompt(1, 60))
	s.flush()
	s.evict(hicache.TierDevice)
	wantHit(t, s.run(prompt(1, 60)), 0, 0, 56)
	detach(t, s)
	s.evict(hicache.TierDevice)
	wantHit(t, s.run(prompt(1, 60)), 0, 0, 0)
}

// TestAttachUnderTraffic attaches and detaches while requests run: bytes are right, nothing leaks, nobody is stuck.
func TestAttachUnderTraffic(t *testing.T) {
	for _, host := range []uint64{0, 48 * kib} {
		t.Run(fmt.Sprint(host), func(t *testing.T) {
			o := hicache.Options{DeviceBytes: 64 * kib, HostBytes: host, Pools: windowPools()}
			if host == 0 {
				o.StagingBytes = 16 * kib
			}
			s := open(t, o)
			stores := []*memory{newMemory(), newMemory()}
			stop := make(chan struct{})
			var work sync.WaitGroup
			for g := range 4 {
				work.Add(1)
				go func() {
					defer work.Done()
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						default:
						}
						tokens := prompt((g+i)%7, 9+(i*13+g)%60)
						m := s.c.Match(tokens)
						lease, err := s.compute(m, "", tokens, hicache.LoadOptions{Wait: true})
						m.Release()
						if err != nil {
							t.Errorf("request: %v", err)
							return
						}
						lease.Release()
					}
				}()
			}
			rounds := 60
			if testing.Short() {
				rounds = 15
			}
			shown := func() bool { return len(stores[0].keys()) > 0 && (s.c.Stats().HitTokens.Storage > 0 || host > 0) }
			for i, deadline := 0, time.Now().Add(time.Minute); i < rounds || !shown() && time.Now().Before(deadline); i++ { // a busy machine needs more
				attach(t, s, stores[i%2])
				time.Sleep(2 * time.Millisecond)
				limit, cancel := context.WithTimeout(ctx, time.Duration(i%3)*time.Millisecond)
				if err := s.c.DetachStorage(limit); err != nil {
					t.Errorf("detach: %v", err)
				}
				cancel()
			}
			close(stop)
			work.Wait()
			if !shown() {
				t.Errorf("%d objects, %d tokens from storage: the test shows nothing", len(stores[0].keys()), s.c.Stats().HitTokens.Storage)
			}
		})
	}
}

// TestPrefetchBestEffort: a load under best_effort never waits for storage; what it lacked is fetched behind it for the next one, by few fetches at
// once however many ask.
func TestPrefetchBestEffort(t *testing.T) {
	store := newMemory()
	o := hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: windowPools(), Storage: store, Prefetch: hicache.PrefetchBestEffort}
	s := open(t, o)
	for i := range 30 {
		s.run(prompt(i, 41))
		s.flush()
	}
	s.evict(hicache.TierDevice)
	s.evict(hicache.TierHost)
	gate := make(chan struct{})
	store.set(func(m *memory) { m.gate = gate })
	for i := range 30 {
		m := s.c.Match(prompt(i, 41))
		lease, err := s.c.Load(ctx, m, hicache.LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if lease.Prefix() != 0 {
			t.Errorf("a prefix of %d out of nothing", lease.Prefix())
		}
		lease.Release()
		m.Release()
	}
	if n := store.waiting.Load(); n > 4 {
		t.Errorf("%d fetches at once", n)
	}
	close(gate)
	found := func() (tokens int) {
		for i := range 30 {
			m := s.c.Match(prompt(i, 41))
			tokens += m.Tokens()
			m.Release()
		}
		return tokens
	}
	await(t, "something has come", func() bool { return found() >= 40 })
	await(t, "all is quiet", func() bool { return store.waiting.Load() == 0 })
	if n := found(); n > 160 {
		t.Errorf("%d tokens were fetched for later", n)
	}
}
