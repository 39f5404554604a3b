package proptest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
	hicache "github.com/hicache/hicache/gohicache"
)

func openFixed(t *testing.T, g *geometry) *ffi.Engine {
	t.Helper()
	needLibrary(t)
	engine, err := ffi.Open(g.fixed(ffi.BackendCPU, 4))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return engine
}

// A snapshot is every table of an engine: what a refused call must leave as it was.
type snapshot struct {
	Stats  []ffi.PoolStats
	Places [][]ids.PhysicalPage
	States [][]ffi.PageState
}

func snap(t *testing.T, engine *ffi.Engine, pools int) snapshot {
	t.Helper()
	var s snapshot
	for pool := range uint32(pools) {
		info, err := engine.PoolInfo(ffi.TierDevice, pool)
		stats, err2 := engine.PoolStats(ffi.TierDevice, pool)
		states := make([]ffi.PageState, info.PageCount)
		err3 := engine.Map(ffi.TierDevice, pool, 0, states)
		pages := make([]ids.VirtualPage, info.VirtualPageCount)
		for i := range pages {
			pages[i] = ids.VirtualPage(i)
		}
		places := make([]ids.PhysicalPage, len(pages))
		err4 := engine.Inspect(pool, pages, places)
		if err := errors.Join(err, err2, err3, err4); err != nil {
			t.Fatal(err)
		}
		s.Stats, s.Places, s.States = append(s.Stats, stats), append(s.Places, places), append(s.States, states)
	}
	return s
}

// C30: a demand that fails at page i of n, for every i and in every pool, leaves every table as it was.
func TestRefusedTakesChangeNothing(t *testing.T) {
	for _, g := range geometries {
		t.Run(g.name, func(t *testing.T) {
			engine := openFixed(t, &g)
			first := []ffi.Take{{Pool: 0, Pages: make([]ids.VirtualPage, 3)}}
			if err := engine.Alloc(first); err != nil {
				t.Fatal(err)
			}
			if err := engine.Free([]ffi.Pages{{Pool: 0, Pages: first[0].Pages[:1]}}); err != nil {
				t.Fatal(err)
			}
			before := snap(t, engine, len(g.pools))
			refused := 0
			for pool := range g.pools {
				for n := range uint32(3 * g.pages) {
					demand := []ffi.Take{{Pool: 0, Pages: make([]ids.VirtualPage, 2)}}
					if pool != 0 && g.pools[pool].Role == ffi.RoleSWA {
						demand[0].Pages = make([]ids.VirtualPage, n)
						demand = append(demand, ffi.Take{Pool: uint32(pool), Count: n})
					} else if pool != 0 {
						demand = append(demand, ffi.Take{Pool: uint32(pool), Pages: make([]ids.VirtualPage, n)})
					} else {
						demand[0].Pages = make([]ids.VirtualPage, n)
					}
					reservation, err := engine.Reserve(demand)
					if err == nil {
						if err := engine.Cancel(reservation); err != nil {
							t.Fatal(err)
						}
						continue // Cancel restores the counts; where ids and frontiers are then is another test's.
					}
					refused++
					if !errors.Is(err, ffi.ErrNoCapacity) {
						t.Fatalf("pool %d, %d pages: %v", pool, n, err)
					}
					after := snap(t, engine, len(g.pools))
					if err := engine.Alloc(demand); !errors.Is(err, ffi.ErrNoCapacity) {
						t.Fatalf("pool %d, %d pages: alloc says %v", pool, n, err)
					}
					if diff := cmp.Diff(after, snap(t, engine, len(g.pools)), cmp.AllowUnexported(ffi.PoolStats{})); diff != "" {
						t.Fatalf("pool %d, %d pages refused, and changed (-before +after):\n%s", pool, n, diff)
					}
				}
			}
			if refused == 0 {
				t.Fatal("nothing was refused: the test is void")
			}
			if got, want := snap(t, engine, len(g.pools)).Stats, before.Stats; !sameCounts(got, want) {
				t.Errorf("counts before %+v, after %+v", want, got)
			}
		})
	}
}

func sameCounts(a, b []ffi.PoolStats) bool {
	for i := range a {
		if a[i].LivePages != b[i].LivePages || a[i].ReservedPages != b[i].ReservedPages || a[i].FreeVirtualPages != b[i].FreeVirtualPages {
			return false
		}
	}
	return true
}

// C29: sixteen goroutines see room and take it at once: what is granted never exceeds what there is, and the rest is ErrNoCapacity.
func TestTakesFromManyGoroutines(t *testing.T) {
	engine := openFixed(t, &geometries[1])
	capacity, err := engine.Capacity(ffi.TierDevice, 0)
	if err != nil {
		t.Fatal(err)
	}
	var granted atomic.Int64
	var wg sync.WaitGroup
	held := make([][]ffi.Reservation, 16)
	for worker := range held {
		wg.Go(func() {
			for range 50 {
				takes := []ffi.Take{{Pool: 0, Pages: make([]ids.VirtualPage, 1)}, {Pool: 1, Count: 1}}
				if engine.FitsStatus([]ffi.Demand{{Pool: 0, PageCount: 1}, {Pool: 1, PageCount: 1}}) != ffi.StatusOK {
					continue
				}
				reservation, err := engine.Reserve(takes)
				switch {
				case err == nil:
					granted.Add(1)
					held[worker] = append(held[worker], reservation)
				case !errors.Is(err, ffi.ErrNoCapacity):
					t.Errorf("reserve: %v", err)
				}
				if len(held[worker]) > 1 {
					if err := engine.Cancel(held[worker][0]); err != nil {
						t.Errorf("cancel: %v", err)
					}
					granted.Add(-1)
					held[worker] = held[worker][1:]
				}
			}
		})
	}
	wg.Wait()
	if most := int64(capacity.SchedulablePages); granted.Load() > most {
		t.Errorf("%d pages are granted of %d", granted.Load(), most)
	}
	if report, err := engine.Verify(); err != nil {
		t.Errorf("%v\n%s", err, report)
	}
	for _, list := range held {
		for _, reservation := range list {
			if err := engine.Cancel(reservation); err != nil {
				t.Errorf("cancel: %v", err)
			}
		}
	}
}

// C4: what is schedulable is what a fresh computation says, however often pins come and go (Verify compares the two), also where a float
// lies between; and pages given back in two batches under one step are all there once it has closed.
func TestCapacityAfterPinsComeAndGo(t *testing.T) {
	for _, g := range geometries {
		t.Run(g.name, func(t *testing.T) {
			engine := openFixed(t, &g)
			take := []ffi.Take{{Pool: 0, Pages: make([]ids.VirtualPage, min(8, g.pages))}}
			if err := engine.Alloc(take); err != nil {
				t.Fatal(err)
			}
			pages := take[0].Pages
			capacities := func() []ffi.Capacity {
				all := make([]ffi.Capacity, len(g.pools))
				for pool := range all {
					var err error
					if all[pool], err = engine.Capacity(ffi.TierDevice, uint32(pool)); err != nil {
						t.Fatal(err)
					}
				}
				if report, err := engine.Verify(); err != nil {
					t.Fatalf("%v\n%s", err, report)
				}
				return all
			}
			// Holes at the pool's own end: what lies before them could move there, unless it is pinned.
			kept := len(pages) / 2
			if err := engine.Free([]ffi.Pages{{Pool: 0, Pages: pages[kept:]}}); err != nil {
				t.Fatal(err)
			}
			pages = pages[:kept]
			free := capacities()
			differs := 0
			pinned := func() {
				t.Helper()
				if !cmp.Equal(free, capacities()) {
					differs++
				}
			}
			released := func(what string) {
				t.Helper()
				if diff := cmp.Diff(free, capacities()); diff != "" {
					t.Fatalf("%s (-before +after):\n%s", what, diff)
				}
			}
			for flip := range 100 {
				lease, err := engine.LeaseAcquire([]ffi.Pages{{Pool: 0, Pages: pages[flip%kept:]}})
				if err != nil {
					t.Fatal(err)
				}
				pinned()
				if err := engine.LeaseRelease(lease); err != nil {
					t.Fatal(err)
				}
				released("after a lease")
			}
			host := []ids.HostPage{0}
			if err := engine.HostAlloc([]ffi.HostPages{{Pool: 0, Pages: host}}); err != nil {
				t.Fatal(err)
			}
			for range 10 {
				if _, err := engine.BackUp(&ffi.Transfer{Copies: []ffi.Copy{{Pool: 0, DevicePage: pages[0], HostPage: host[0]}}}); err != nil {
					t.Fatal(err)
				}
				pinned()
				if n, err := engine.FaultRun(1, false); n != 1 || err != nil {
					t.Fatalf("%d copies ran: %v", n, err)
				}
				if n, err := engine.CompletionPoll(make([]ffi.Completion, 2)); n != 1 || err != nil {
					t.Fatalf("%d completions: %v", n, err)
				}
				released("after a back-up")
			}
			if want := 110; len(g.pools) > 1 && differs != want { // a lone pool has nobody whose room it could take
				t.Errorf("pins changed what is schedulable %d times, want %d", differs, want)
			}
			step, err := engine.StepOpen(1, []ffi.Pages{{Pool: 0, Pages: pages}})
			if err != nil {
				t.Fatal(err)
			}
			for _, batch := range [][]ids.VirtualPage{pages[:1], pages[1:]} {
				if err := engine.Free([]ffi.Pages{{Pool: 0, Pages: batch}}); err != nil {
					t.Fatal(err)
				}
			}
			if pending := capacities()[0].PendingPages; pending != uint64(len(pages)) {
				t.Errorf("%d pages are pending, want %d", pending, len(pages))
			}
			if err := engine.StepClose(step); err != nil {
				t.Fatal(err)
			}
			after := capacities()[0]
			if after.PendingPages != 0 || after.SchedulablePages != free[0].SchedulablePages+uint64(len(pages)) {
				t.Errorf("after the step %+v, before %+v and %d pages given back", after, free[0], len(pages))
			}
		})
	}
}

// C21: what is released twice, by 64 goroutines at once, is released once: STALE_ID in the library, a no-op in the cache.
func TestReleaseTwice(t *testing.T) {
	engine := openFixed(t, &geometries[0])
	page := []ids.VirtualPage{0}
	if err := engine.Alloc([]ffi.Take{{Pool: 0, Pages: page}}); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		lease, err := engine.LeaseAcquire([]ffi.Pages{{Pool: 0, Pages: page}})
		if err != nil {
			t.Fatal(err)
		}
		var ended, stale atomic.Int64
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				switch err := engine.LeaseRelease(lease); {
				case err == nil:
					ended.Add(1)
				case errors.Is(err, ffi.ErrStale):
					stale.Add(1)
				default:
					t.Errorf("release: %v", err)
				}
			})
		}
		wg.Wait()
		if ended.Load() != 1 || stale.Load() != 63 {
			t.Fatalf("%d releases went through and %d were stale", ended.Load(), stale.Load())
		}
		stats, err := engine.PoolStats(ffi.TierDevice, 0)
		if err != nil || stats.PinnedPages != 0 {
			t.Fatalf("%d pages are pinned after the release (%v)", stats.PinnedPages, err)
		}
	}
}

// The same of the cache's matches and leases: a second release does nothing, and the pins come down to none.
func TestReleaseTwiceInTheCache(t *testing.T) {
	needLibrary(t)
	cache, err := hicache.Open(context.Background(), &hicache.Options{PageTokens: 4, DeviceBytes: 1 << 16,
		Pools: []hicache.PoolOptions{{Role: hicache.Full, Layers: []int{0}, LayerBytes: 32}}})
	if err != nil {
		t.Fatal(err)
	}
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	for range 20 {
		match := cache.Match(tokens)
		lease, err := cache.Load(context.Background(), match, hicache.LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := cache.Insert(lease, tokens); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() { match.Release(); lease.Release() })
		}
		wg.Wait()
		stats := cache.Stats()
		if stats.LeasesNow != 0 || stats.PinsNow != 0 {
			t.Fatalf("%d leases and %d pins are held", stats.LeasesNow, stats.PinsNow)
		}
		if err := cache.Verify(); err != nil {
			t.Fatal(err)
		}
	}
	if err := cache.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cache.Close(); err != nil {
		t.Fatalf("a second close: %v", err)
	}
}

// C2: the kernel ids of all live pages are rows of the pool, whatever their virtual ids are.
func TestKernelIDsAreRowsOfThePool(t *testing.T) {
	for _, g := range geometries {
		t.Run(g.name, func(t *testing.T) {
			engine := openFixed(t, &g)
			for round := range 40 { // Virtual ids rotate: after some rounds they exceed the number of pages in use by far.
				takes := []ffi.Take{{Pool: 0, Pages: make([]ids.VirtualPage, 3)}}
				if err := engine.Alloc(takes); err != nil {
					t.Fatal(err)
				}
				info, err := engine.PoolInfo(ffi.TierDevice, 0)
				if err != nil {
					t.Fatal(err)
				}
				held := []ffi.Pages{{Pool: 0, Pages: takes[0].Pages}}
				lease, err := engine.LeaseAcquire(held)
				if err != nil {
					t.Fatal(err)
				}
				kernelIDs := make([]ids.KernelID, 3)
				if _, err := engine.KernelIDs(ffi.Holder(lease), 0, ffi.GranularityPage, takes[0].Pages, kernelIDs); err != nil {
					t.Fatal(err)
				}
				for i, id := range kernelIDs {
					if place := placeOf(&info, id); place < info.FirstPage || place >= info.PageCount {
						t.Errorf("round %d: page %d has kernel id %d: place %d of [%d, %d)", round, takes[0].Pages[i], id, place, info.FirstPage, info.PageCount)
					}
				}
				if err := errors.Join(engine.LeaseRelease(lease), engine.Free(held)); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// C26: slices of ids that a lease hands out have no room behind them and share nothing with those of another lease.
func TestIDSlicesDoNotAlias(t *testing.T) {
	needLibrary(t)
	cache, err := hicache.Open(context.Background(), &hicache.Options{PageTokens: 4, DeviceBytes: 1 << 16,
		Pools: []hicache.PoolOptions{{Role: hicache.Full, Layers: []int{0}, LayerBytes: 32}}})
	if err != nil {
		t.Fatal(err)
	}
	tokens := [][]uint32{{1, 2, 3, 4, 5, 6, 7, 8, 9}, {11, 12, 13, 14, 15}}
	var leases []*hicache.Lease
	var pages [][]ids.VirtualPage
	for _, list := range tokens {
		match := cache.Match(list)
		lease, err := cache.Load(context.Background(), match, hicache.LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		match.Release()
		leases, pages = append(leases, lease), append(pages, lease.VirtualPages())
	}
	for i, list := range pages {
		if cap(list) != len(list) {
			t.Errorf("lease %d: %d ids with room for %d: an append would write into the cache's memory", i, len(list), cap(list))
		}
	}
	_ = append(pages[0], 1234)
	if got := leases[1].VirtualPages(); !cmp.Equal(got, pages[1]) || got[0] == 1234 {
		t.Errorf("an append to one lease's ids changed another's: %v", got)
	}
	for _, lease := range leases {
		lease.Release()
	}
	if err := cache.Close(); err != nil {
		t.Fatal(err)
	}
}
