package hicache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/events"
	"github.com/hicache/hicache/gohicache/storage/file"
)

// place is a page on a tier in a pool, as events name it.
type place struct {
	tier events.Tier
	pool int
	hash int64
}

// follower is a consumer of events that keeps what they say is there, and nothing that hangs in the air.
type follower struct {
	t     testing.TB
	epoch uint64
	last  uint64
	there map[place]bool
	why   map[events.Reason]int // pages removed
	gaps  int
}

func follow(t testing.TB) *follower {
	return &follower{t: t, there: map[place]bool{}, why: map[events.Reason]int{}}
}

func (f *follower) apply(b *events.Batch) {
	switch {
	case b.Snapshot:
		clear(f.there)
		f.epoch = b.Epoch
		if b.Gap {
			f.gaps++
		}
	case b.Epoch != f.epoch:
		f.t.Fatalf("epoch %d follows %d without a snapshot", b.Epoch, f.epoch)
	case b.First != f.last+1:
		f.t.Fatalf("change %d follows %d without a snapshot", b.First, f.last)
	}
	f.last = b.Last
	for _, e := range b.Events {
		if e.Tier == events.Storage {
			f.why[e.Reason] += len(e.Hashes)
			continue
		}
		switch e.Kind {
		case events.Stored:
			if len(e.Tokens) != len(e.Hashes)*e.PageTokens {
				f.t.Fatalf("%d tokens for %d pages", len(e.Tokens), len(e.Hashes))
			}
			for _, h := range e.Hashes {
				f.there[place{e.Tier, e.Pool, h}] = true
			}
		case events.Removed:
			f.why[e.Reason] += len(e.Hashes)
			for _, h := range e.Hashes {
				delete(f.there, place{e.Tier, e.Pool, h})
			}
		case events.Cleared:
			f.why[e.Reason]++
			clear(f.there)
		}
	}
}

// drain applies everything that is waiting.
func (f *follower) drain(s *events.Stream) {
	for {
		b, err := s.Poll()
		if err != nil {
			f.t.Fatal(err)
		}
		if b == nil {
			return
		}
		f.apply(b)
	}
}

// compare checks what the follower has against the pages that the cache counts and against a fresh snapshot.
func (f *follower) compare(c *hicache.Cache) {
	f.t.Helper()
	s, err := c.Events(hicache.EventOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	defer s.Close()
	fresh := follow(f.t)
	fresh.drain(s)
	for p := range fresh.there {
		if !f.there[p] {
			f.t.Fatalf("the cache has %v, the follower does not", p)
		}
	}
	counts := map[[2]int]uint64{}
	for p := range f.there {
		if !fresh.there[p] {
			f.t.Fatalf("the follower has %v, the cache does not", p)
		}
		counts[[2]int{int(p.tier), p.pool}]++
	}
	for p := range c.Pools() {
		for i, tier := range []hicache.Tier{hicache.TierDevice, hicache.TierHost} {
			st, err := c.PoolStats(tier, p)
			if err != nil {
				f.t.Fatal(err)
			}
			if got := counts[[2]int{i, p}]; got != st.Cached {
				f.t.Fatalf("pool %d on the %v: events say %d pages, the cache counts %d", p, tier, got, st.Cached)
			}
		}
	}
}

func stream(t testing.TB, c *hicache.Cache, o hicache.EventOptions) *events.Stream {
	t.Helper()
	s, err := c.Events(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// next is the batch that must be waiting.
func next(t testing.TB, s *events.Stream) *events.Batch {
	t.Helper()
	wait, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	b, err := s.Next(wait)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// take reads until there are n events: how many a batch holds depends on when it is read.
func take(t testing.TB, s *events.Stream, n int) (got []events.Event) {
	t.Helper()
	for len(got) < n {
		got = append(got, next(t, s).Events...)
	}
	return got
}

// TestEventsOfOnePath (G62): an insert of two pages is one event with two hashes and no parent, its continuation names it as the parent, a
// demotion removes it from the device alone, and a load-back stores it there again.
func TestEventsOfOnePath(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 32 * kib, HostBytes: 32 * kib, Pools: fullPools(), Events: true})
	st := stream(t, s.c, hicache.EventOptions{})
	if b := next(t, st); !b.Snapshot || b.Gap || len(b.Events) != 0 {
		t.Fatalf("the first batch of an empty cache is %+v", b)
	}
	tokens := prompt(1, 9)
	s.run(tokens[:9])
	s.flush()
	got := take(t, st, 2)
	on, host := got[0], got[1]
	if on.Kind != events.Stored || on.Tier != events.Device || len(on.Hashes) != 2 || on.HasParent || !slices.Equal(on.Tokens, tokens[:8]) || on.PageTokens != 4 {
		t.Fatalf("insert: %+v", on)
	}
	if host.Kind != events.Stored || host.Tier != events.Host || !slices.Equal(host.Hashes, on.Hashes) || !slices.Equal(host.Tokens, tokens[:8]) || len(got) != 2 {
		t.Fatalf("back-up: %+v", got[1:])
	}
	if b, _ := st.Poll(); b != nil {
		t.Fatalf("more: %+v", b)
	}
	longer := prompt(1, 17)
	s.run(longer)
	s.flush()
	got = take(t, st, 2) // the second is its back-up
	if e := got[0]; e.Kind != events.Stored || !e.HasParent || e.Parent != on.Hashes[1] || len(e.Hashes) != 2 || !slices.Equal(e.Tokens, longer[8:16]) {
		t.Fatalf("continuation: %+v", e)
	}
	s.evict(hicache.TierDevice)
	removed := map[int64]bool{}
	for _, e := range next(t, st).Events {
		if e.Kind != events.Removed || e.Tier != events.Device || e.Reason != events.Demoted {
			t.Fatalf("demotion: %+v", e)
		}
		for _, h := range e.Hashes {
			removed[h] = true
		}
	}
	if len(removed) != 4 || !removed[on.Hashes[0]] {
		t.Fatalf("%d pages were demoted", len(removed))
	}
	s.run(longer)
	s.flush()
	back := 0
	for _, e := range next(t, st).Events {
		if e.Kind != events.Stored || e.Tier != events.Device {
			t.Fatalf("load-back: %+v", e)
		}
		back += len(e.Hashes)
	}
	if back != 4 {
		t.Fatalf("%d pages came back", back)
	}
}

// TestRunsThatDoNotJoin: consecutive changes become one event only where one continues the other: not two prompts, and not two namespaces.
func TestRunsThatDoNotJoin(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 32 * kib, Pools: fullPools(), Events: true})
	st := stream(t, s.c, hicache.EventOptions{})
	next(t, st)
	names, of := []string{"a", "b", "b"}, map[int64]string{}
	label := func(name string) events.Label { return events.Label{Text: name, Set: true} }
	for i, name := range names {
		s.runIn(name, prompt(i, 9))
	}
	got := take(t, st, 3)
	for i, e := range got {
		if e.HasParent || len(e.Hashes) != 2 || !slices.Equal(e.Tokens, prompt(i, 9)[:8]) || e.Salt != label(names[i]) {
			t.Fatalf("insert %d: %+v", i, e)
		}
		for _, h := range e.Hashes {
			of[h] = names[i]
		}
	}
	s.evict(hicache.TierDevice)
	for _, e := range next(t, st).Events {
		for _, h := range e.Hashes {
			if e.Kind != events.Removed || e.Salt != label(of[h]) {
				t.Fatalf("%+v says that a page of namespace %q went", e, of[h])
			}
			delete(of, h)
		}
	}
	if len(of) != 0 {
		t.Fatalf("nothing is said of %d pages that went", len(of))
	}
}

// removals counts the pages that leave, by reason, while do runs.
func removals(t *testing.T, s *server, do func()) map[events.Reason]int {
	t.Helper()
	st := stream(t, s.c, hicache.EventOptions{})
	f := follow(t)
	f.drain(st)
	do()
	s.flush()
	f.drain(st)
	f.compare(s.c)
	return f.why
}

func only(t *testing.T, got map[events.Reason]int, want ...events.Reason) {
	t.Helper()
	for _, r := range want {
		if got[r] == 0 {
			t.Errorf("nothing was removed for %v", r)
		}
	}
	for r, n := range got {
		if !slices.Contains(want, r) {
			t.Errorf("%d pages were removed for %q", n, r)
		}
	}
}

// TestRemovalReasons (C86): one cause each.
func TestRemovalReasons(t *testing.T) {
	seen := map[string]bool{}
	one := func(name string, o hicache.Options, also []events.Reason, do func(t *testing.T, s *server)) {
		seen[name] = true
		t.Run(name, func(t *testing.T) {
			o.Events, o.Pools = true, fullPools()
			s := open(t, o)
			want := events.Reason(1 + slices.Index(events.ReasonNames(), name))
			only(t, removals(t, s, func() { do(t, s) }), append(also, want)...)
		})
	}
	fill := func(s *server, n int) {
		for i := range n {
			s.run(prompt(i, 40))
		}
	}
	one("capacity", hicache.Options{DeviceBytes: 8 * kib}, nil, func(_ *testing.T, s *server) { fill(s, 4) })
	one("demoted", hicache.Options{DeviceBytes: 8 * kib, HostBytes: 64 * kib}, nil, func(_ *testing.T, s *server) {
		for i := range 4 {
			s.run(prompt(i, 40))
			s.flush()
		}
	})
	one("released", hicache.Options{DeviceBytes: 8 * kib}, nil, func(_ *testing.T, s *server) {
		s.run(prompt(1, 40))
		s.evict(hicache.TierDevice)
	})
	one("released", hicache.Options{DeviceBytes: 8 * kib, HostBytes: 8 * kib}, []events.Reason{events.Demoted}, func(_ *testing.T, s *server) {
		s.run(prompt(1, 40))
		s.flush()
		s.evict(hicache.TierDevice)
		s.evict(hicache.TierHost)
	})
	one("cleared", hicache.Options{DeviceBytes: 16 * kib, HostBytes: 16 * kib}, nil, func(t *testing.T, s *server) {
		s.runIn("tenant", prompt(1, 40))
		s.run(prompt(2, 20))
		s.flush()
		if err := s.c.DropNamespace(hicache.Salt("tenant")); err != nil {
			t.Fatal(err)
		}
		if m := s.c.Match(prompt(2, 20)); m.Tokens() != 16 {
			t.Errorf("dropping a namespace left %d tokens of another", m.Tokens())
		} else {
			m.Release()
		}
		if err := s.c.Clear(); err != nil {
			t.Fatal(err)
		}
	})
	one("host_pressure", hicache.Options{DeviceBytes: 8 * kib, HostBytes: 4 * kib, WritePolicy: hicache.WriteBack}, []events.Reason{events.Demoted},
		func(t *testing.T, s *server) {
			s.run(prompt(1, 40))
			s.evict(hicache.TierDevice)
			s.flush()
			pin, err := s.c.PinPrefix(hicache.Namespace{}, prompt(1, 40), 0) // the host is full, and nothing there can go
			if err != nil {
				t.Fatal(err)
			}
			defer pin.Release()
			for i := range 4 {
				s.run(prompt(2+i, 40))
			}
		})
	one("aborted", hicache.Options{DeviceBytes: 16 * kib, HostBytes: 16 * kib, Faults: &hicache.FaultOptions{}}, []events.Reason{events.Demoted},
		func(t *testing.T, s *server) {
			s.run(prompt(1, 40))
			s.flush()
			s.evict(hicache.TierDevice)
			m := s.c.Match(prompt(1, 40))
			defer m.Release()
			if err := s.c.HoldTransfers(false, 1); err != nil {
				t.Fatal(err)
			}
			lease, err := s.c.Load(ctx, m, hicache.LoadOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer lease.Release()
			if err := lease.Wait(ctx); !errors.Is(err, hicache.ErrTransfer) {
				t.Fatalf("the load-back did not fail: %v", err)
			}
		})
	var now atomic.Int64
	clock := func() time.Time { return time.Unix(1_700_000_000, now.Add(1)) }
	one("expired", hicache.Options{DeviceBytes: 8 * kib, Eviction: "priority", Clock: clock}, []events.Reason{events.Capacity}, func(t *testing.T, s *server) {
		keep := func(seed int) {
			m := s.c.MatchWith(prompt(seed, 24), hicache.MatchOptions{Priority: 50, Retain: time.Minute})
			defer m.Release()
			lease, err := s.compute(m, "", prompt(seed, 24), hicache.LoadOptions{})
			if err != nil {
				t.Fatal(err)
			}
			lease.Release()
		}
		keep(1)
		for i := range 6 {
			s.run(prompt(10+i, 24))
		}
		if m := s.c.MatchWith(prompt(1, 24), hicache.MatchOptions{FullHit: true}); m.Tokens() != 24 {
			t.Errorf("what has priority went first: %d tokens are left", m.Tokens())
		} else {
			m.Release()
		}
		now.Add(int64(2 * time.Minute))
		for i := range 6 {
			s.run(prompt(20+i, 24))
		}
		if m := s.c.MatchWith(prompt(1, 24), hicache.MatchOptions{FullHit: true}); m.Tokens() != 0 {
			t.Errorf("a priority outlived its time: %d tokens", m.Tokens())
		} else {
			m.Release()
		}
	})
	dir := folder(t)
	store := file.New(dir)
	one("integrity", hicache.Options{DeviceBytes: 16 * kib, HostBytes: 16 * kib, Storage: store}, []events.Reason{events.None, events.ClearedAll},
		func(t *testing.T, s *server) {
			s.run(prompt(1, 40))
			s.flush()
			if err := s.c.Clear(); err != nil {
				t.Fatal(err)
			}
			damage(t, dir)
			s.run(prompt(1, 40))
			if s.c.Stats().StorageCorrupt == 0 {
				t.Fatal("nothing corrupt was met")
			}
		})
	for _, name := range events.ReasonNames() {
		if !seen[name] {
			t.Errorf("no test for the reason %q", name)
		}
	}
}

// damage flips the last byte of every object of a store.
func damage(t *testing.T, dir string) {
	t.Helper()
	n := 0
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil || len(b) < 64 {
			return err
		}
		b[len(b)-1] ^= 1
		n++
		return os.WriteFile(path, b, 0o600)
	})
	if err != nil || n == 0 {
		t.Fatalf("%d objects damaged: %v", n, err)
	}
}

// TestSlowFollower (C88): who reads too slowly is told of the gap and gets a snapshot; who joins late, and who meets a cache that was opened
// anew, converges too; and the cache waits for none of them.
func TestSlowFollower(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: windowPools(), Events: true})
	slow, fast := stream(t, s.c, hicache.EventOptions{QueuePages: 20}), stream(t, s.c, hicache.EventOptions{})
	a, b := follow(t), follow(t)
	a.drain(slow)
	b.drain(fast)
	for i := range 60 {
		s.run(prompt(i%9, 20+i))
		if i%20 == 19 {
			s.flush()
			a.drain(slow)
			b.drain(fast)
			a.compare(s.c)
			b.compare(s.c)
		}
	}
	if a.gaps == 0 || b.gaps != 0 {
		t.Fatalf("%d gaps of the slow one, %d of the fast one", a.gaps, b.gaps)
	}
	gaps := a.gaps
	s.run(prompt(99, 9)) // fits the slow one's queue: it goes on after its gap
	s.flush()
	a.drain(slow)
	b.drain(fast)
	a.compare(s.c)
	if a.gaps != gaps {
		t.Fatalf("%d gaps of the slow one, there were %d and its queue had room", a.gaps, gaps)
	}
	if st := s.c.Stats(); st.EventGaps == 0 || st.Events != b.last {
		t.Fatalf("%d events and %d gaps counted; the last change is %d", st.Events, st.EventGaps, b.last)
	}
	late := follow(t)
	joined := stream(t, s.c, hicache.EventOptions{})
	s.run(prompt(3, 200))
	s.flush()
	late.drain(joined)
	late.compare(s.c)

	again := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: windowPools(), Events: true})
	again.run(prompt(1, 50))
	again.flush()
	epoch := late.epoch
	late.drain(stream(t, again.c, hicache.EventOptions{}))
	if late.epoch == epoch {
		t.Fatal("a cache that was opened anew has the epoch of the one before")
	}
	late.compare(again.c)
}

// TestSnapshotNamesParentsFirst: a consumer that drops children of unknown parents loses nothing.
func TestSnapshotNamesParentsFirst(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: windowPools(), Events: true})
	for i := range 40 {
		s.run(append(prompt(i%4, 16+4*(i%7)), prompt(i, 20)...))
	}
	s.flush()
	known, pages := map[int64]bool{}, 0
	for _, e := range next(t, stream(t, s.c, hicache.EventOptions{})).Events {
		if e.Pool != 0 {
			continue
		}
		if e.HasParent && !known[e.Parent] {
			t.Fatalf("%+v: its parent is unknown", e)
		}
		for _, h := range e.Hashes {
			known[h] = true
			pages++
		}
	}
	if pages == 0 {
		t.Fatal("the snapshot is empty")
	}
}

// TestEventStreamEnds: closed by itself, by the cache, or never there.
func TestEventStreamEnds(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 8 * kib, Pools: fullPools(), Events: true})
	a, b := stream(t, s.c, hicache.EventOptions{}), stream(t, s.c, hicache.EventOptions{})
	next(t, a)
	next(t, b)
	a.Close()
	a.Close()
	if _, err := a.Next(ctx); !errors.Is(err, events.ErrClosed) {
		t.Fatalf("a closed stream says %v", err)
	}
	ended := make(chan error)
	go func() {
		_, err := b.Next(ctx)
		ended <- err
	}()
	if err := s.c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, events.ErrClosed) {
		t.Fatalf("a stream of a closed cache says %v", err)
	}
	if _, err := s.c.Events(hicache.EventOptions{}); !errors.Is(err, hicache.ErrClosed) {
		t.Fatalf("a stream of a closed cache: %v", err)
	}
	quiet := open(t, hicache.Options{DeviceBytes: 8 * kib, Pools: fullPools()})
	if _, err := quiet.c.Events(hicache.EventOptions{}); !errors.Is(err, hicache.ErrUnsupported) {
		t.Fatalf("events without the option: %v", err)
	}
	if _, err := quiet.c.Events(hicache.EventOptions{QueuePages: -1}); !errors.Is(err, hicache.ErrInvalid) {
		t.Fatalf("a queue of -1 pages: %v", err)
	}
}

// TestEventsRebuildTheTiers: a consumer has exactly what the cache has after random requests, evictions, drops and failed copies.
func TestEventsRebuildTheTiers(t *testing.T) {
	for i, pools := range [][]hicache.PoolOptions{fullPools(), windowPools()} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			o := hicache.Options{DeviceBytes: 24 * kib, HostBytes: 24 * kib, Pools: pools, Events: true, WritePolicy: hicache.WritePolicy(i % 2 * 2),
				Faults: &hicache.FaultOptions{Seed: 1, FailPPM: 50_000}}
			s := open(t, o)
			short, whole := stream(t, s.c, hicache.EventOptions{QueuePages: 400}), stream(t, s.c, hicache.EventOptions{})
			f, all := follow(t), follow(t) // One that loses changes and goes on from snapshots, one that sees every change.
			r := rand.New(rand.NewPCG(uint64(i), 3))
			for op := range 3000 {
				switch k := r.IntN(100); {
				case k == 0:
					_ = s.c.Clear()
				case k < 3:
					_ = s.c.DropNamespace(hicache.Salt("b"))
				case k < 6:
					_, _ = s.c.Evict(hicache.TierHost, r.IntN(len(pools)), 1+r.IntN(4))
				case k < 9:
					_, _ = s.c.Evict(hicache.TierDevice, r.IntN(len(pools)), 1+r.IntN(4))
				default:
					ns := []string{"", "", "b"}[r.IntN(3)]
					var space hicache.Namespace
					if ns != "" {
						space = hicache.Salt(ns)
					}
					tokens := prompt(r.IntN(8), 5+r.IntN(60))
					m := s.c.MatchIn(space, tokens)
					lease, err := s.compute(m, ns, tokens, hicache.LoadOptions{})
					m.Release()
					if err == nil {
						lease.Release()
					} else if !errors.Is(err, hicache.ErrTransfer) && !errors.Is(err, hicache.ErrNoCapacity) {
						t.Fatal(err)
					}
				}
				if op%7 == 0 {
					f.drain(short)
					all.drain(whole)
				}
				if op%500 == 499 {
					s.flush()
					f.drain(short)
					f.compare(s.c)
					all.drain(whole)
					all.compare(s.c)
				}
			}
			if all.gaps != 0 {
				t.Errorf("%d gaps of the long queue", all.gaps)
			}
		})
	}
}
