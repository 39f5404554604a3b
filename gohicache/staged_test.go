package hicache_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/storage"
	"github.com/hicache/hicache/gohicache/storage/file"
)

// TestAttachRefused is scenario G43: a store that the host arena cannot serve is refused before anything of it runs, and nothing has changed.
func TestAttachRefused(t *testing.T) {
	untouched := &watched{Store: &scattered{Store: file.New(folder(t)), name: "scattered"}}
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: headPools()})
	err := s.c.AttachStorage(ctx, untouched)
	if !errors.Is(err, hicache.ErrUnsupported) || !strings.Contains(err.Error(), "host regions") {
		t.Fatalf("got %v", err)
	}
	if untouched.calls.Load() != 0 {
		t.Fatalf("%d calls of a store that was refused", untouched.calls.Load())
	}
	s.run(prompt(1, 41))
	s.flush()
	if st := s.c.Stats(); st.StoredPages != 0 || st.Degraded != "" {
		t.Fatalf("stats %+v", st)
	}
	if err := s.c.AttachStorage(ctx, file.New(folder(t))); err != nil { // one that it can serve
		t.Fatal(err)
	}
	// The same store serves a cache with regions; one without host memory serves none; one that cannot be used is no store.
	regions := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: headPools(), HostArena: hicache.HostArenaSeparate})
	if err := regions.c.AttachStorage(ctx, untouched); err != nil {
		t.Fatal(err)
	}
	bare := open(t, hicache.Options{DeviceBytes: 64 * kib, Pools: headPools()})
	if err := bare.c.AttachStorage(ctx, file.New(folder(t))); !errors.Is(err, hicache.ErrUnsupported) {
		t.Fatalf("without host memory: %v", err)
	}
	broken := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: headPools()})
	if err := broken.c.AttachStorage(ctx, file.New("/proc/none")); !errors.Is(err, hicache.ErrUnsupported) {
		t.Fatalf("an unusable folder: %v", err)
	}
	if st := broken.c.Stats(); st.Degraded != "" {
		t.Fatalf("degraded: %s", st.Degraded)
	}
}

// watched counts every call but those that only describe the store.
type watched struct {
	storage.Store
	calls atomic.Int64
}

func (s *watched) Ready(ctx context.Context) error {
	s.calls.Add(1)
	return s.Store.Ready(ctx)
}

func (s *watched) Put(ctx context.Context, keys []storage.Key, src [][]byte, errs []error) error {
	s.calls.Add(1)
	return s.Store.Put(ctx, keys, src, errs)
}

// TestStagingFloor is scenario G44: a staging arena must hold two minimum transfers. Transfers are cut into chunks, so the minimum is a page of every
// pool, whatever threshold prefetches have.
func TestStagingFloor(t *testing.T) {
	const minimum = 2 * 64 * 4
	for _, threshold := range []int{0, 256} {
		o := hicache.Options{DeviceBytes: 64 * kib, StagingBytes: 2*minimum - 16, Pools: fullPools(), PageTokens: pageTokens, PrefetchMinTokens: threshold, Storage: file.New(folder(t))}
		c, err := hicache.Open(ctx, &o)
		if err == nil {
			_ = c.Close()
		}
		var e *hicache.Error
		if !errors.As(err, &e) || !errors.Is(err, hicache.ErrInfeasible) || e.Need != 2*minimum || e.Have != 2*minimum-16 {
			t.Fatalf("a page too little: %v", err)
		}
		o.StagingBytes = 2 * minimum
		s := open(t, o)
		a := prompt(1, 321)
		s.run(a)
		s.flush()
		s.evict(hicache.TierDevice)
		wantHit(t, s.run(a), 0, 0, 320)
	}
}

// TestStagedLoadBringsWhatIsMissing is scenario G45: of a window that reaches into the resident prefix only the missing pages are loaded, and the staging
// arena is empty again afterwards.
func TestStagedLoadBringsWhatIsMissing(t *testing.T) {
	dir, a := folder(t), prompt(1, 17)
	pools := []hicache.PoolOptions{{Role: hicache.Full, Layers: []int{0}, LayerBytes: 64}, {Role: hicache.SWA, Layers: []int{1}, LayerBytes: 64, WindowTokens: 12}}
	fill := open(t, hicache.Options{DeviceBytes: 64 * kib, Pools: pools, Storage: file.New(dir)})
	fill.run(a)
	fill.flush()
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, Pools: pools, Storage: file.New(dir)})
	short := s.c.Match(a[:9])
	lease, err := s.compute(short, "", a[:9], hicache.LoadOptions{NoStorage: true})
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
	short.Release()
	s.flush()
	live := [2]int{s.live(hicache.TierDevice, 0), s.live(hicache.TierDevice, 1)}
	if live != [2]int{2, 2} {
		t.Fatalf("%v pages before", live)
	}
	match := s.c.Match(a)
	defer match.Release()
	lease, err = s.compute(match, "", a, hicache.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantHit(t, lease.Hit(), 8, 0, 8)
	lease.Release()
	s.flush()
	for pool := range pools {
		if n := s.live(hicache.TierDevice, pool); n != 4 {
			t.Errorf("pool %d: %d pages on the device, want two more", pool, n)
		}
		if n := s.live(hicache.TierHost, pool); n != 0 {
			t.Errorf("pool %d: %d pages are left in the staging arena", pool, n)
		}
	}
	if st := s.c.Stats(); st.LoadBackPages != 4 {
		t.Errorf("%d pages were loaded, want two of each pool", st.LoadBackPages)
	}
	// Of a window that does not reach back to the resident prefix, its own pages.
	long := prompt(1, 41)
	fill.run(long)
	fill.flush()
	before := s.c.Stats().LoadBackPages
	wantHit(t, s.run(long), 16, 0, 24)
	if n := s.c.Stats().LoadBackPages - before; n != 6+3 {
		t.Errorf("%d pages were loaded, want 6 of FULL and a window of 3", n)
	}
}

// TestStagedRowsThatBecameResident is the source system's test of that name: while a staged load is under way another request computes the same pages;
// at the acknowledgement the loaded rows go, the resident ones stay.
func TestStagedRowsThatBecameResident(t *testing.T) {
	dir, a := folder(t), prompt(1, 17)
	fill := open(t, hicache.Options{DeviceBytes: 64 * kib, Pools: fullPools(), Storage: file.New(dir)})
	fill.run(a)
	fill.flush()
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, Pools: fullPools(), Storage: file.New(dir), Faults: &hicache.FaultOptions{Seed: 1, Hold: true}})
	type result struct {
		hit hicache.HitTokens
		err error
	}
	ended := make(chan result, 1)
	go func() {
		m := s.c.Match(a)
		defer m.Release()
		lease, err := s.c.Load(ctx, m, hicache.LoadOptions{})
		if err != nil {
			ended <- result{err: err}
			return
		}
		defer lease.Release()
		ended <- result{hit: lease.Hit()}
	}()
	await(t, "the staged load begins", func() bool { return s.c.Stats().TransfersInFlightNow != 0 })
	m := s.c.Match(a)
	lease, err := s.c.Load(ctx, m, hicache.LoadOptions{NoStorage: true})
	if err != nil {
		t.Fatal(err)
	}
	s.write("", a, lease.PoolKernelIDs, 0, 4)
	if err := s.c.Insert(lease, a); err != nil {
		t.Fatal(err)
	}
	lease.Release()
	m.Release()
	if err := s.c.HoldTransfers(false, 0); err != nil {
		t.Fatal(err)
	}
	var r result
	for waiting := true; waiting; {
		if _, err := s.c.Drive(10, false); err != nil {
			t.Fatal(err)
		}
		select {
		case r = <-ended:
			waiting = false
		case <-time.After(time.Millisecond):
		}
	}
	if r.err != nil || r.hit.Total() != 16 {
		t.Fatalf("%+v, %v", r.hit, r.err)
	}
	s.quiet()
	if n := s.live(hicache.TierDevice, 0); n != 4 {
		t.Errorf("%d pages on the device for 4 of the prefix", n)
	}
	if n := s.live(hicache.TierHost, 0); n != 0 {
		t.Errorf("%d pages are left in the staging arena", n)
	}
	if hit := s.run(a); hit.Total() != 16 {
		t.Fatalf("hit %+v", hit)
	}
}
