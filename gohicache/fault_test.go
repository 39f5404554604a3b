package hicache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/storage/file"
)

// TestFailedLoad: a load whose copy fails is rolled back whole, its host copy stays (C60), the request that waited is told, and the next try
// succeeds.
func TestFailedLoad(t *testing.T) {
	for name, pools := range geometries() {
		t.Run(name, func(t *testing.T) {
			s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: pools, Faults: &hicache.FaultOptions{Seed: 1}})
			a := prompt(1, 41)
			s.run(a)
			s.flush()
			s.evict(hicache.TierDevice)
			if err := s.c.HoldTransfers(false, 1); err != nil {
				t.Fatal(err)
			}
			m := s.c.Match(a)
			if _, err := s.compute(m, "", a, hicache.LoadOptions{}); !errors.Is(err, hicache.ErrTransfer) {
				t.Fatalf("a failed load gave %v", err)
			}
			m.Release()
			if err := s.c.Verify(); err != nil {
				t.Fatal(err)
			}
			s.evict(hicache.TierDevice)
			for p := range s.c.Pools() {
				if st, _ := s.c.PoolStats(hicache.TierDevice, p); st.Live != 0 {
					t.Fatalf("pool %d: %d pages are live after the roll-back", p, st.Live)
				}
			}
			wantHit(t, s.run(a), 0, 40, 0)
			if s.c.Stats().TransfersFailed != 1 {
				t.Fatalf("%d failed transfers counted", s.c.Stats().TransfersFailed)
			}
		})
	}
}

// TestJoinedLoad: a second request for a prefix that is being loaded waits for the same copies, and fails with them.
func TestJoinedLoad(t *testing.T) {
	for _, fails := range []int{0, 1} {
		t.Run(fmt.Sprint("fails=", fails), func(t *testing.T) {
			s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: windowPools(), Faults: &hicache.FaultOptions{Seed: 1}})
			a := prompt(1, 41)
			s.run(a)
			s.flush()
			s.evict(hicache.TierDevice)
			if err := s.c.HoldTransfers(true, fails); err != nil {
				t.Fatal(err)
			}
			var leases []*hicache.Lease
			for range 3 {
				m := s.c.Match(a)
				lease, err := s.c.Load(ctx, m, hicache.LoadOptions{})
				if err != nil {
					t.Fatal(err)
				}
				m.Release()
				leases = append(leases, lease)
			}
			if err := s.c.Verify(); err != nil {
				t.Fatal(err)
			}
			if n, err := s.c.Drive(100, false); err != nil || n != 1 {
				t.Fatalf("%d copies for three loads of one prefix, %v", n, err)
			}
			for _, lease := range leases {
				if err := lease.Wait(ctx); (err != nil) != (fails > 0) || err != nil && !errors.Is(err, hicache.ErrTransfer) {
					t.Fatalf("wait: %v", err)
				}
				if fails == 0 {
					s.check("joined", "", a, lease.PoolKernelIDs, 0, 10)
				}
				if err := s.c.Insert(lease, a); (err != nil) != (fails > 0) {
					t.Fatalf("insert: %v", err)
				}
				lease.Release()
			}
			if err := s.c.HoldTransfers(false, 0); err != nil {
				t.Fatal(err)
			}
			s.run(a)
		})
	}
}

// TestFailedBackUp: a back-up that failed is not durable: what the device gives up then is gone, and nothing wrong comes in its place.
func TestFailedBackUp(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: windowPools(), Faults: &hicache.FaultOptions{Seed: 1}})
	a := prompt(1, 41)
	if err := s.c.HoldTransfers(false, 1); err != nil {
		t.Fatal(err)
	}
	s.run(a)
	s.flush()
	if st, _ := s.c.PoolStats(hicache.TierHost, 0); st.Live != 0 {
		t.Fatalf("%d host pages are live after a failed back-up", st.Live)
	}
	wantHit(t, s.run(a), 40, 0, 0) // backs up again
	s.flush()
	s.evict(hicache.TierDevice)
	wantHit(t, s.run(a), 0, 40, 0)
}

// TestBackUpHolds is field cases C56 and C35's kind: pages that a queued back-up has not read yet are neither evicted nor overwritten.
func TestBackUpHolds(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 16 * kib, HostBytes: 64 * kib, Pools: fullPools(), Faults: &hicache.FaultOptions{Seed: 1, Hold: true}})
	a := prompt(1, 65)
	s.run(a)
	if n, _ := s.c.Evict(hicache.TierDevice, 0, 100); n != 0 {
		t.Fatalf("%d pages were evicted under their back-up", n)
	}
	m := s.c.Match(prompt(2, 100))
	if _, err := s.c.Load(ctx, m, hicache.LoadOptions{}); !errors.Is(err, hicache.ErrNoCapacity) {
		t.Fatalf("a load over the sources of a back-up: %v", err)
	}
	if err := s.c.HoldTransfers(false, 0); err != nil {
		t.Fatal(err)
	}
	lease, err := s.c.Load(ctx, m, hicache.LoadOptions{Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
	m.Release()
	if hit := s.run(a); hit.Total() != 64 || hit.Host == 0 {
		t.Fatalf("hit %+v, want 64 tokens, some of them from the host", hit)
	}
}

// TestHostTakesWhatItCan: under write_back, a host that has no room for all that eviction would give up takes what fits; nothing is dropped for that.
func TestHostTakesWhatItCan(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 32 * kib, HostBytes: 4 * kib, Pools: fullPools(), WritePolicy: hicache.WriteBack}) // 8 pages
	a := prompt(1, 61)
	s.run(a)
	if n, err := s.c.Evict(hicache.TierDevice, 0, 12); err != nil || n == 0 || n > 8 {
		t.Fatalf("%d of 12 pages are going to a host of 8: %v", n, err)
	}
	s.flush()
	if st := s.c.Stats(); st.BackUpPages == 0 || st.HostPressureDrops != 0 {
		t.Fatalf("%d pages were backed up, %d dropped", st.BackUpPages, st.HostPressureDrops)
	}
	if m := s.c.Match(a); m.Tokens() != 60 {
		t.Errorf("%d tokens are left of 60", m.Tokens())
	} else {
		m.Release()
	}
}

// TestHostFull is field case C35: under write_back a page that finds no room on the host stays on the device while another victim exists.
func TestHostFull(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 32 * kib, HostBytes: 4 * kib, Pools: fullPools(), WritePolicy: hicache.WriteBack})
	a, b := prompt(1, 49), prompt(2, 49)
	s.run(a)
	s.evict(hicache.TierDevice)
	s.flush()
	pin, err := s.c.PinPrefix(hicache.Namespace{}, a, 0) // the host is full, and locked
	if err != nil {
		t.Fatal(err)
	}
	s.run(b)
	s.flush()
	wantHit(t, s.run(b), 48, 0, 0)
	pin.Release()
	if err := s.c.Verify(); err != nil {
		t.Fatal(err)
	}
}

// TestRandomFaults runs many requests over failing, delayed and reordered copies: bytes are right whenever they are served, and nothing leaks.
func TestRandomFaults(t *testing.T) {
	for _, policy := range []hicache.WritePolicy{hicache.WriteThrough, hicache.WriteBack} {
		for seed := range uint64(6) {
			t.Run(fmt.Sprintf("%v/%d", policy, seed), func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 5))
				pools := []([]hicache.PoolOptions){fullPools(), windowPools()}[seed%2]
				s := open(t, hicache.Options{DeviceBytes: 24 * kib, HostBytes: 16 * kib, Pools: pools, WritePolicy: policy,
					Faults: &hicache.FaultOptions{Seed: seed, FailPPM: 200_000, DelayMax: 1e6}})
				failed := 0
				for i := range 150 {
					tokens := prompt(r.IntN(6), 5+r.IntN(60))
					m := s.c.Match(tokens)
					lease, err := s.compute(m, "", tokens, hicache.LoadOptions{})
					m.Release()
					if errors.Is(err, hicache.ErrTransfer) || errors.Is(err, hicache.ErrNoCapacity) {
						failed++
						continue
					}
					if err != nil {
						t.Fatalf("request %d: %v", i, err)
					}
					lease.Release()
					if i%10 == 0 {
						if err := s.c.Verify(); err != nil {
							t.Fatalf("request %d: %v", i, err)
						}
					}
				}
				if s.c.Stats().TransfersFailed == 0 {
					t.Fatal("no transfer failed: the test shows nothing")
				}
				t.Logf("%d requests failed, %d transfers", failed, s.c.Stats().TransfersFailed)
			})
		}
	}
}

// TestCorruptStorage flips a bit in every stored object: nothing of it is served, each is counted, and the run goes on.
func TestCorruptStorage(t *testing.T) {
	for name, pools := range geometries() {
		t.Run(name, func(t *testing.T) {
			dir := folder(t)
			s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: pools, Storage: file.New(dir)})
			a := prompt(1, 41)
			s.run(a)
			s.flush()
			s.evict(hicache.TierDevice)
			s.evict(hicache.TierHost)
			flipped := 0
			err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				raw, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				raw[len(raw)-1] ^= 4
				flipped++
				return os.WriteFile(path, raw, 0o600)
			})
			if err != nil || flipped < 10 {
				t.Fatal(err, flipped)
			}
			wantHit(t, s.run(a), 0, 0, 0)
			if st := s.c.Stats(); st.StorageCorrupt == 0 || st.Degraded != "" {
				t.Fatalf("stats %+v", st)
			}
		})
	}
}

// TestOneLostObject: where one object is missing, the prefix before it is served, as far as its windows go.
func TestOneLostObject(t *testing.T) {
	for name, pools := range geometries() {
		t.Run(name, func(t *testing.T) {
			dir := folder(t)
			s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: pools, Storage: file.New(dir)})
			a := prompt(1, 81)
			s.run(a)
			s.flush()
			var files []string
			_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
				if err == nil && !d.IsDir() {
					files = append(files, path)
				}
				return err
			})
			for i := range files {
				raw, err := os.ReadFile(files[i])
				if err != nil {
					t.Fatal(err)
				}
				if err := os.Remove(files[i]); err != nil { // behind the store's back
					t.Fatal(err)
				}
				s.evict(hicache.TierDevice)
				s.evict(hicache.TierHost)
				hit := s.run(a)
				if hit.Total() > 80 || hit.Device+hit.Host != 0 {
					t.Fatalf("hit %+v", hit)
				}
				if err := os.WriteFile(files[i], raw, 0o600); err != nil {
					t.Fatal(err)
				}
				s.flush()
			}
		})
	}
}

// TestUnusableStorage: a folder that cannot be used does not stop the cache, which says so.
func TestUnusableStorage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: windowPools(), Storage: file.New(path)})
	a := prompt(1, 41)
	s.run(a)
	s.flush()
	s.evict(hicache.TierDevice)
	wantHit(t, s.run(a), 0, 40, 0)
	if d := s.c.Stats().Degraded; !strings.Contains(d, "storage is off") {
		t.Fatalf("degraded: %q", d)
	}
}

// TestStorageGone: a folder that goes away while the cache runs.
func TestStorageGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: windowPools(), Storage: file.New(dir)})
	s.run(prompt(1, 41))
	s.flush()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.evict(hicache.TierDevice)
	s.evict(hicache.TierHost)
	for i := range 5 {
		s.run(prompt(i, 41))
	}
	s.flush()
	if s.c.Stats().Degraded == "" {
		t.Fatal("the cache does not say that it runs without storage")
	}
}

// TestFailedLoadKeepsHostCopies (C60): what a load reads stays on the host until it has ended, also under pressure there, so that nothing is lost if it
// fails.
func TestFailedLoadKeepsHostCopies(t *testing.T) {
	for name, pools := range geometries() {
		t.Run(name, func(t *testing.T) {
			s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: pools, Faults: &hicache.FaultOptions{Seed: 1}})
			tokens := prompt(1, 41)
			s.run(tokens)
			s.flush()
			s.evict(hicache.TierDevice)
			if err := s.c.HoldTransfers(true, 1); err != nil {
				t.Fatal(err)
			}
			m := s.c.Match(tokens)
			lease, err := s.c.Load(ctx, m, hicache.LoadOptions{})
			if err != nil {
				t.Fatal(err)
			}
			m.Release()
			s.evict(hicache.TierHost)
			if err := s.c.HoldTransfers(false, 0); err != nil {
				t.Fatal(err)
			}
			if err := lease.Wait(ctx); !errors.Is(err, hicache.ErrTransfer) {
				t.Fatalf("got %v", err)
			}
			lease.Release()
			wantHit(t, s.run(tokens), 0, 40, 0)
		})
	}
}

// inUse loads tokens under a lease that is used when its time is over: on a busy machine it may be over before the use begins, then it has more.
func inUse(t *testing.T, s *server, tokens []uint32) (lease *hicache.Lease, end func()) {
	t.Helper()
	for ttl := 50 * time.Millisecond; ; ttl *= 2 {
		m := s.c.Match(tokens)
		lease, err := s.c.Load(ctx, m, hicache.LoadOptions{TTL: ttl})
		m.Release()
		if err != nil {
			t.Fatal(err)
		}
		if end, err = lease.Use(); err == nil {
			return lease, end
		}
		if !errors.Is(err, hicache.ErrStale) || ttl > 10*time.Second {
			t.Fatal(err)
		}
	}
}

// TestLeaseExpiry is field case C22: a lease whose time is over goes at once, or when its reader is done, which is counted.
func TestLeaseExpiry(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 16 * kib, Pools: fullPools()})
	load := func(ttl time.Duration) *hicache.Lease {
		m := s.c.Match(prompt(1, 20))
		defer m.Release()
		lease, err := s.c.Load(ctx, m, hicache.LoadOptions{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
	gone := func(lease *hicache.Lease) {
		t.Helper()
		await(t, "a lease that is over gives its pages up", func() bool {
			return lease.KernelIDs(hicache.Full) == nil && s.live(hicache.TierDevice, 0) == 0
		})
	}
	gone(load(time.Millisecond))
	lease, end := inUse(t, s, prompt(1, 20))
	await(t, "the expiry is counted", func() bool { return s.c.Stats().LeasesExpiredInUse > 0 })
	if s.live(hicache.TierDevice, 0) != 5 {
		t.Fatal("an expired lease gave its pages up under its reader")
	}
	end()
	end()
	gone(lease)
	if n := s.c.Stats().LeasesExpiredInUse; n != 1 {
		t.Fatalf("%d leases expired in use", n)
	}
	if _, err := lease.Use(); !errors.Is(err, hicache.ErrStale) {
		t.Fatalf("use of an expired lease: %v", err)
	}
	lease.Release()
}

// TestLeaseThatEndsDuringInsert: an Insert waits for the loads of its prefix; a lease that expires or is released meanwhile ends behind it, so that no
// page is published that was given back.
func TestLeaseThatEndsDuringInsert(t *testing.T) {
	for _, expires := range []bool{true, false} {
		grace := 100 * time.Millisecond
		for leaseEndsBeforeInsert(t, expires, grace) {
			if grace *= 2; grace > 20*time.Second {
				t.Fatal("an Insert never began before its lease was over")
			}
		}
	}
}

// leaseEndsBeforeInsert lets a lease end while an Insert waits, which has so much time to begin to. True if that was not enough, on a busy machine: the
// Insert found the lease over.
func leaseEndsBeforeInsert(t *testing.T, expires bool, grace time.Duration) bool {
	t.Helper()
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: windowPools(), Faults: &hicache.FaultOptions{Seed: 1}})
	tokens := prompt(1, 61)
	s.run(tokens[:41])
	s.flush()
	s.evict(hicache.TierDevice)
	if err := s.c.HoldTransfers(true, 0); err != nil {
		t.Fatal(err)
	}
	o := hicache.LoadOptions{}
	if expires {
		o.TTL = grace
	}
	m := s.c.Match(tokens)
	lease, err := s.c.Load(ctx, m, o)
	if err != nil {
		t.Fatal(err)
	}
	m.Release()
	if end, err := lease.Use(); err == nil {
		s.write("", tokens, lease.PoolKernelIDs, 10, 15)
		end()
	}
	inserted := make(chan error, 1)
	go func() { inserted <- s.c.Insert(lease, tokens) }()
	if !expires {
		time.Sleep(grace) // Until Insert waits.
		lease.Release()
	}
	await(t, "the lease is over", func() bool {
		end, err := lease.Use()
		end()
		return errors.Is(err, hicache.ErrStale) || expires && s.c.Stats().LeasesExpiredInUse == 1 // An Insert is a use.
	})
	select {
	case err := <-inserted:
		if !errors.Is(err, hicache.ErrStale) {
			t.Fatalf("insert did not wait for the prefix: %v", err)
		}
		if err := s.c.HoldTransfers(false, 0); err != nil {
			t.Fatal(err)
		}
		s.flush()
		return true
	default:
	}
	if err := s.c.HoldTransfers(false, 0); err != nil {
		t.Fatal(err)
	}
	for done := false; !done; {
		if _, err := s.c.Drive(100, false); err != nil {
			t.Fatal(err)
		}
		select {
		case err = <-inserted:
			done = true
		case <-time.After(time.Millisecond):
		}
	}
	if errors.Is(err, hicache.ErrStale) { // It had not begun yet.
		s.flush()
		return true
	}
	if err != nil {
		t.Fatalf("insert: %v", err)
	}
	s.flush()
	if err := s.c.Verify(); err != nil {
		t.Fatal(err)
	}
	wantHit(t, s.run(tokens), 60, 0, 0)
	return false
}

// TestManyPrefetches is field case C42: many requests whose whole prompts storage has, on a host and a device that hold a few, all at once: nobody
// holds what another waits for.
func TestManyPrefetches(t *testing.T) {
	dir := folder(t)
	t.Run("fill", func(t *testing.T) {
		s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: windowPools(), Storage: file.New(dir)})
		for i := range 50 {
			s.run(prompt(i, 40))
			s.flush()
		}
	})
	s := open(t, hicache.Options{DeviceBytes: 16 * kib, HostBytes: 12 * kib, Pools: windowPools(), Storage: file.New(dir), Prefetch: hicache.PrefetchWait})
	var wg sync.WaitGroup
	var stored atomic.Int64
	for i := range 50 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			deadline, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			tokens := prompt(i, 40)
			m := s.c.Match(tokens)
			defer m.Release()
			lease, err := s.c.Load(deadline, m, hicache.LoadOptions{Wait: true})
			if err != nil {
				t.Errorf("request %d: %v", i, err)
				return
			}
			defer lease.Release()
			if err := lease.Wait(deadline); err != nil {
				t.Errorf("request %d: %v", i, err)
				return
			}
			s.check("prefetched", "", tokens, lease.PoolKernelIDs, 0, lease.Prefix()/pageTokens)
			stored.Add(int64(lease.Hit().Storage))
		}()
	}
	wg.Wait()
	t.Logf("%d of 1800 tokens came from storage", stored.Load())
	if stored.Load() < 180 {
		t.Errorf("%d tokens came from storage", stored.Load())
	}
}

// TestPreemptReadmit is field case C57: sequences are suspended and resumed while their copies are still under way.
func TestPreemptReadmit(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 40 * kib, HostBytes: 64 * kib, Pools: windowPools(), Faults: &hicache.FaultOptions{Seed: 3, DelayMax: 1e6}})
	r := rand.New(rand.NewPCG(1, 1))
	type request struct {
		seq    *hicache.Sequence
		tokens []uint32
		asleep bool
	}
	var list []*request
	for i := range 4 {
		tokens := prompt(i, 30)
		seq, err := s.c.Begin(ctx, tokens, hicache.SequenceOptions{})
		if err != nil {
			t.Fatal(err)
		}
		step, err := s.c.Step(ctx, 0, []hicache.Growth{{Sequence: seq}}, false)
		if err != nil {
			t.Fatal(err)
		}
		s.write("", tokens, s.stepTables(step, 0), 0, 7)
		step.Close()
		list = append(list, &request{seq: seq, tokens: tokens})
	}
	resumed := 0
	for range 200 {
		q := list[r.IntN(len(list))]
		if !q.asleep {
			if err := q.seq.Suspend(ctx); err != nil {
				t.Fatal(err)
			}
			q.asleep = true
			s.evict(hicache.TierDevice)
			continue
		}
		if err := q.seq.Resume(ctx, hicache.SequenceOptions{}); errors.Is(err, hicache.ErrNoCapacity) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		q.asleep = false
		if r.IntN(2) == 0 { // straight away again, its load still under way
			continue
		}
		step, err := s.c.Step(ctx, 0, []hicache.Growth{{Sequence: q.seq}}, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range step.Layers() {
			if err != nil {
				t.Fatal(err)
			}
		}
		s.check("resumed", "", q.tokens, s.stepTables(step, 0), 0, q.seq.Prefix()/pageTokens)
		step.Close()
		resumed++
	}
	for _, q := range list {
		q.seq.Abort()
	}
	if resumed == 0 {
		t.Fatal("nothing was resumed")
	}
}

// TestBackUpsThatKeepFailing: under write_back, with a host that no copy reaches, a request that needs room is refused, not retried for ever.
func TestBackUpsThatKeepFailing(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 16 * kib, HostBytes: 64 * kib, Pools: fullPools(), WritePolicy: hicache.WriteBack,
		Faults: &hicache.FaultOptions{Seed: 1, FailPPM: 1_000_000}})
	s.run(prompt(1, 80))
	m := s.c.Match(prompt(2, 80))
	defer m.Release()
	_, err := s.c.Load(ctx, m, hicache.LoadOptions{})
	if !errors.Is(err, hicache.ErrNoCapacity) || !strings.Contains(err.Error(), "keep failing") {
		t.Fatalf("got %v", err)
	}
	wantHit(t, s.run(prompt(1, 80)), 76, 0, 0)
}

// TestStagedLoadCancelled: a load that storage feeds returns when its context ends, also with a copy under way; the copy is cancelled, and its
// pages are not lost.
func TestStagedLoadCancelled(t *testing.T) {
	dir := folder(t)
	a := prompt(1, 81)
	t.Run("fill", func(t *testing.T) {
		s := open(t, hicache.Options{DeviceBytes: 64 * kib, Pools: windowPools(), Storage: file.New(dir)})
		s.run(a)
		s.flush()
	})
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, Pools: windowPools(), Storage: file.New(dir), Faults: &hicache.FaultOptions{Seed: 1, Hold: true}})
	short, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	m := s.c.Match(a)
	lease, err := s.c.Load(short, m, hicache.LoadOptions{})
	if err == nil {
		lease.Release()
	} else if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	m.Release()
	for deadline := time.Now().Add(5 * time.Second); s.c.Stats().PinsNow != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) { // nobody lets the copy run: it was cancelled
			t.Fatal(s.c.Stats().PinsNow)
		}
	}
	if after := s.c.Match(a); after.Tokens() != 0 {
		t.Fatalf("%d tokens are found, and no copy has run", after.Tokens())
	} else {
		after.Release()
	}
	if st := s.c.Stats(); err != nil && st.TransfersFailed != 0 {
		t.Fatalf("%d transfers failed, none should but that which was cancelled", st.TransfersFailed)
	}
	if err := s.c.HoldTransfers(false, 0); err != nil {
		t.Fatal(err)
	}
	s.quiet()
	if hit := s.run(a); hit.Total() != 80 {
		t.Fatalf("hit %+v", hit)
	}
}

// TestClearWhileStoring: paths that are cleared while they wait to be stored are not stored under anybody's key, and nothing is counted as a fault.
func TestClearWhileStoring(t *testing.T) {
	for _, host := range []uint64{0, 64 * kib} {
		s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: host, Pools: windowPools(), Storage: file.New(folder(t))})
		for i := range 60 {
			s.runIn("tenant", prompt(i, 41))
			var err error
			if i%2 == 0 {
				err = s.c.DropNamespace(hicache.Salt("tenant"))
			} else {
				err = s.c.Clear()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		s.flush()
		for i := range 60 {
			wantHit(t, s.runIn("", prompt(i, 41)), 0, 0, 0)
		}
		if st := s.c.Stats(); st.StorageFaults != 0 || st.InternalErrors != 0 {
			t.Fatalf("%d faults, %d internal errors", st.StorageFaults, st.InternalErrors)
		}
	}
}
