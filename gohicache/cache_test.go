package hicache_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/storage/file"
)

const kib = 1 << 10

func geometries() map[string][]hicache.PoolOptions {
	return map[string][]hicache.PoolOptions{"full": fullPools(), "windows": windowPools()}
}

// TestTiers sends prefixes down every tier and up again, bytes checked.
func TestTiers(t *testing.T) {
	for name, pools := range geometries() {
		t.Run(name, func(t *testing.T) {
			s := open(t, hicache.Options{DeviceBytes: 256 * kib, HostBytes: 256 * kib, Pools: pools, Storage: file.New(folder(t))})
			a := prompt(1, 41)
			wantHit(t, s.run(a), 0, 0, 0)
			wantHit(t, s.run(a), 40, 0, 0)
			wantHit(t, s.run(a[:40]), 36, 0, 0) // one token is left to compute
			s.flush()
			s.evict(hicache.TierDevice)
			wantHit(t, s.run(a), 0, 40, 0)
			wantHit(t, s.run(a), 40, 0, 0)
			s.flush()
			s.evict(hicache.TierDevice)
			s.evict(hicache.TierHost)
			wantHit(t, s.run(a), 0, 0, 40)
			wantHit(t, s.run(a), 40, 0, 0)
			st := s.c.Stats()
			if st.LoadBacks != 2 || st.BackUps == 0 || st.Prefetches != 1 || st.Evicted.Device == 0 || st.Evicted.Host == 0 || st.BytesH2D == 0 {
				t.Fatalf("stats %+v", st)
			}
		})
	}
}

// TestNewProcess: a cache over the same folder finds what another stored; one of another model finds nothing.
func TestNewProcess(t *testing.T) {
	dir := folder(t)
	a := prompt(1, 41)
	options := func(model string, host uint64) hicache.Options {
		return hicache.Options{DeviceBytes: 64 * kib, HostBytes: host, Pools: windowPools(), Storage: file.New(dir), Model: model}
	}
	t.Run("first", func(t *testing.T) {
		s := open(t, options("m", 64*kib))
		s.run(a)
		s.flush()
	})
	t.Run("second", func(t *testing.T) {
		wantHit(t, open(t, options("m", 64*kib)).run(a), 0, 0, 40)
	})
	t.Run("without host", func(t *testing.T) {
		s := open(t, options("m", 0))
		wantHit(t, s.run(a), 0, 0, 40)
		wantHit(t, s.run(a), 40, 0, 0)
	})
	t.Run("another model", func(t *testing.T) {
		wantHit(t, open(t, options("n", 64*kib)).run(a), 0, 0, 0)
	})
}

// TestNamespaces is field case C75: equal tokens of two namespaces share nothing on any tier.
func TestNamespaces(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: windowPools(), Storage: file.New(folder(t))})
	a := prompt(1, 41)
	s.runIn("x", a)
	s.flush()
	for _, ns := range []hicache.Namespace{{}, hicache.Salt(""), hicache.Salt("y"), hicache.Namespace{}.WithLoRA("x"), hicache.Salt("x").WithLoRA("")} {
		m := s.c.MatchIn(ns, a)
		lease, err := s.c.Load(ctx, m, hicache.LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		wantHit(t, lease.Hit(), 0, 0, 0)
		lease.Release()
		m.Release()
	}
	s.evict(hicache.TierDevice)
	s.evict(hicache.TierHost)
	wantHit(t, s.runIn("y", a), 0, 0, 0)
	wantHit(t, s.runIn("x", a), 0, 0, 40)
	ab, ba := hicache.Salt("bc").WithLoRA("a"), hicache.Salt("c").WithLoRA("ab")
	if ab == ba {
		t.Fatal("('a','bc') == ('ab','c')")
	}
	if err := s.c.DropNamespace(hicache.Salt("x")); err != nil {
		t.Fatal(err)
	}
	if n := func() int { m := s.c.MatchIn(hicache.Salt("x"), a); defer m.Release(); return m.Tokens() }(); n != 0 {
		t.Fatalf("%d tokens left of a dropped namespace", n)
	}
	if n := func() int { m := s.c.MatchIn(hicache.Salt("y"), a); defer m.Release(); return m.Tokens() }(); n != 40 {
		t.Fatalf("%d tokens left of another namespace", n)
	}
}

// TestPressure serves many prompts through a device that holds a few and a host that holds some more (C19, C54: the host smaller than the
// device too), and every byte that comes back is right.
func TestPressure(t *testing.T) {
	for name, pools := range geometries() {
		for _, host := range []uint64{0, 8 * kib, 64 * kib} {
			for _, policy := range []hicache.WritePolicy{hicache.WriteThrough, hicache.WriteThroughSelective, hicache.WriteBack} {
				if host == 0 && policy == hicache.WriteBack {
					continue
				}
				t.Run(fmt.Sprintf("%s/host=%d/%v", name, host, policy), func(t *testing.T) {
					s := open(t, hicache.Options{DeviceBytes: 32 * kib, HostBytes: host, Pools: pools, WritePolicy: policy, Storage: file.New(folder(t))})
					for i := range 120 {
						seed := i * 7 % 13
						if i%3 > 0 {
							seed %= 3 // some are asked for often
						}
						s.run(prompt(seed, 17+(i*29)%60))
						if i%10 == 0 {
							if err := s.c.Idle(); err != nil {
								t.Fatal(err)
							}
						}
					}
					st := s.c.Stats()
					if st.Evicted.Device == 0 || host > 0 && host < 32*kib && policy == hicache.WriteThrough && st.Evicted.Host == 0 {
						t.Fatalf("nothing was evicted: %+v", st.Evicted)
					}
					if st.HitTokens.Device+st.HitTokens.Host+st.HitTokens.Storage == 0 {
						t.Fatal("nothing was hit")
					}
				})
			}
		}
	}
}

// TestSelectiveBackUp: write_through_selective backs a prefix up when it is used for the second time, and of a longer prompt no more than that.
func TestSelectiveBackUp(t *testing.T) {
	for name, pools := range geometries() {
		t.Run(name, func(t *testing.T) {
			s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: pools, WritePolicy: hicache.WriteThroughSelective})
			backed := func(when string, tokens, pages int) {
				t.Helper()
				s.run(prompt(1, tokens))
				s.flush()
				if n := s.live(hicache.TierHost, 0); n != pages {
					t.Fatalf("%s: %d pages on the host, want %d", when, n, pages)
				}
			}
			backed("a first use", 41, 0)
			backed("a second use, which goes on", 61, 10)
			backed("a second use of what was new", 61, 15)
		})
	}
}

// TestManyGoroutines runs requests of overlapping prefixes at once.
func TestManyGoroutines(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: windowPools(), Storage: file.New(folder(t))})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 40 {
				tokens := prompt((g+i)%5, 9+(i*13+g)%60)
				m := s.c.Match(tokens)
				lease, err := s.compute(m, "", tokens, hicache.LoadOptions{Wait: true})
				m.Release()
				if err != nil {
					t.Errorf("goroutine %d, request %d: %v", g, i, err)
					return
				}
				lease.Release()
				lease.Release() // C21: a second release is a no-op
			}
		}()
	}
	wg.Wait()
}

// TestNoCapacity: a request that does not fit now takes nothing and says what it lacks; it fits when a lease goes; waiting waits, in order.
func TestNoCapacity(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 16 * kib, Pools: fullPools()})
	first := s.c.Match(prompt(1, 40))
	defer first.Release()
	lease, err := s.c.Load(ctx, first, hicache.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	second := s.c.Match(prompt(2, 90))
	defer second.Release()
	before := s.c.Stats()
	_, err = s.c.Load(ctx, second, hicache.LoadOptions{})
	var e *hicache.Error
	if !errors.Is(err, hicache.ErrNoCapacity) || !errors.As(err, &e) || e.Need == 0 || e.Pool != "full" {
		t.Fatalf("got %v (%+v)", err, e)
	}
	if after := s.c.Stats(); after.LeasesNow != before.LeasesNow || after.PinsNow != before.PinsNow || after.NoCapacity != before.NoCapacity+1 {
		t.Fatalf("before %+v, after %+v", before, after)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := s.c.Load(short, second, hicache.LoadOptions{Wait: true}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("waiting in vain: %v", err)
	}
	time.AfterFunc(10*time.Millisecond, lease.Release)
	waited, err := s.c.Load(ctx, second, hicache.LoadOptions{Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	waited.Release()
	huge := s.c.Match(prompt(3, 4000))
	first.Release()
	second.Release()
	if _, err := s.c.Load(ctx, huge, hicache.LoadOptions{}); !errors.Is(err, hicache.ErrInfeasible) {
		t.Fatalf("what can never fit: %v", err)
	}
	huge.Release()
}

func TestCloseAndStale(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 16 * kib, Pools: fullPools()})
	a := prompt(1, 20)
	m := s.c.Match(a)
	lease, err := s.compute(m, "", a, hicache.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.Release()
	m.Release()
	if _, err := s.c.Load(ctx, m, hicache.LoadOptions{}); !errors.Is(err, hicache.ErrStale) {
		t.Fatalf("load of a released match: %v", err)
	}
	if err := s.c.Close(); !errors.Is(err, hicache.ErrBusy) || !strings.Contains(err.Error(), "lease of 20 tokens") {
		t.Fatalf("close with a lease: %v", err)
	}
	if m := s.c.Match(a); m.Tokens() != 0 || !errors.Is(m.Err(), hicache.ErrClosed) {
		t.Fatalf("match while closing: %d tokens, %v", m.Tokens(), m.Err())
	}
	lease.Release()
	if err := s.c.Insert(lease, a); !errors.Is(err, hicache.ErrClosed) {
		t.Fatalf("insert after close: %v", err)
	}
	if err := s.c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.c.Close(); err != nil {
		t.Fatalf("second close: %v", err)
	}
	if _, err := s.c.Load(ctx, s.c.Match(a), hicache.LoadOptions{}); !errors.Is(err, hicache.ErrClosed) {
		t.Fatalf("load after close: %v", err)
	}
	if st := s.c.Stats(); st.Inserts != 1 {
		t.Fatalf("stats after close: %+v", st)
	}
}

// TestLookupsWithoutRetrieve is field case C20: lookups that nobody follows up pin nothing once their context ends or their time is over.
func TestLookupsWithoutRetrieve(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 32 * kib, Pools: fullPools()})
	a := prompt(1, 41)
	s.run(a)
	lookups, cancel := context.WithCancel(ctx)
	for range 1000 {
		s.c.MatchWith(a, hicache.MatchOptions{Context: lookups})
	}
	for range 100 {
		s.c.MatchWith(a, hicache.MatchOptions{TTL: time.Millisecond})
	}
	if n, _ := s.c.Evict(hicache.TierDevice, 0, 100); n != 0 {
		t.Fatalf("%d pinned pages were evicted", n)
	}
	cancel()
	for deadline := time.Now().Add(5 * time.Second); s.c.Stats().PinsNow != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d pins left", s.c.Stats().PinsNow)
		}
	}
	if n, _ := s.c.Evict(hicache.TierDevice, 0, 100); n != 10 {
		t.Fatalf("%d pages evicted, want 10", n)
	}
}

// TestChunkedPrompt is field case C37: a prompt inserted in chunks is backed up whole.
func TestChunkedPrompt(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: windowPools()})
	a := prompt(1, 65)
	for n := 8; n <= 64; n += 8 {
		s.run(a[:n])
	}
	s.run(a)
	s.flush()
	s.evict(hicache.TierDevice)
	wantHit(t, s.run(a), 0, 64, 0)
}

// TestFullHit is field case C46: N a multiple of the page size; a match that leaves a token to compute still reaches N minus one page, also from
// storage.
func TestFullHit(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: windowPools(), Storage: file.New(folder(t))})
	a := prompt(1, 40)
	s.run(a)
	s.flush()
	s.evict(hicache.TierDevice)
	s.evict(hicache.TierHost)
	if got := s.run(a).Total(); got != 36 {
		t.Fatalf("%d tokens hit, want 36: the last one is left to compute", got)
	}
	wantHit(t, s.run(a), 36, 0, 0)
	m := s.c.MatchWith(a, hicache.MatchOptions{FullHit: true})
	defer m.Release()
	if m.Tokens() != 40 {
		t.Fatalf("full hit of %d tokens", m.Tokens())
	}
}

func TestPinPrefix(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 16 * kib, Pools: fullPools()})
	a := prompt(1, 16)
	s.run(a)
	pin, err := s.c.PinPrefix(hicache.Namespace{}, a, 0)
	if err != nil || pin.Tokens() != 16 {
		t.Fatal(err, pin.Tokens())
	}
	for i := range 40 {
		s.run(prompt(10+i, 30))
	}
	if n := s.run(a).Device; n != 12 {
		t.Fatalf("%d tokens of the pinned prefix are there", n)
	}
	pin.Release()
	pin.Release()
}

// TestPromptLargerThanHost is field case C54's kind: of a prompt that the host cannot hold its beginning is backed up, and comes back.
func TestPromptLargerThanHost(t *testing.T) {
	for name, pools := range geometries() {
		for _, policy := range []hicache.WritePolicy{hicache.WriteThrough, hicache.WriteBack} {
			t.Run(name+"/"+policy.String(), func(t *testing.T) {
				s := open(t, hicache.Options{DeviceBytes: 128 * kib, HostBytes: 16 * kib, Pools: pools, WritePolicy: policy})
				a := prompt(1, 401)
				s.run(a)
				s.flush()
				s.evict(hicache.TierDevice)
				s.flush()
				hit := s.run(a)
				if policy == hicache.WriteThrough && (hit.Host < 20 || hit.Host > 128) {
					t.Fatalf("hit %+v", hit)
				}
				t.Logf("hit %+v", hit)
			})
		}
		t.Run(name+"/from storage", func(t *testing.T) {
			store := newMemory()
			fill := open(t, hicache.Options{DeviceBytes: 128 * kib, HostBytes: 1024 * kib, Pools: pools, Storage: store})
			a := prompt(1, 401)
			fill.run(a)
			fill.flush()
			s := open(t, hicache.Options{DeviceBytes: 128 * kib, HostBytes: 16 * kib, Pools: pools, Storage: store})
			if hit := s.run(a); hit.Storage < 20 || hit.Storage > 128 {
				t.Fatalf("hit %+v, want the beginning, as much as the host holds", hit)
			}
		})
	}
}

// TestStagingOnly: storage without a host tier, through an arena of a few pages: prompts many times larger come back whole.
func TestStagingOnly(t *testing.T) {
	for name, pools := range geometries() {
		for _, staging := range []uint64{0, 2 * kib, 16 * kib} {
			t.Run(fmt.Sprintf("%s/%d", name, staging), func(t *testing.T) {
				s := open(t, hicache.Options{DeviceBytes: 256 * kib, StagingBytes: staging, Pools: pools, Storage: file.New(folder(t))})
				a := prompt(1, 401)
				s.run(a)
				s.flush()
				s.evict(hicache.TierDevice)
				wantHit(t, s.run(a), 0, 0, 400)
				wantHit(t, s.run(a), 400, 0, 0)
				s.flush()
				for p := range pools {
					if n := s.live(hicache.TierHost, p); n != 0 {
						t.Fatalf("pool %d: %d pages are left in the staging arena", p, n)
					}
				}
				if st := s.c.Stats(); st.Prefetches != 1 || st.PrefetchPages != 100 || st.StoredPages != 100 {
					t.Fatalf("stats %+v", st)
				}
			})
		}
	}
}
