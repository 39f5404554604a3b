//go:build !race

package ffi

import (
	"runtime"
	"runtime/debug"
	"sync"
	"testing"

	"github.com/hicache/hicache/ffi/ids"
)

// The calls of a server's steady state make no garbage. (Not under the race detector, where sync.Pool drops frames on purpose.)
func TestNoGarbage(t *testing.T) {
	e := open(t, testOptions())
	pages := takeBoth(t, e, testPages)
	fresh := make([]ids.VirtualPage, testPages)
	host := [2][]ids.HostPage{make([]ids.HostPage, testPages), make([]ids.HostPage, testPages)}
	out := make([]ids.KernelID, 4*testPages)
	ring := make([]Completion, 8)
	demands := []Demand{{Pool: poolFull, PageCount: 1 << 20}}
	seqs := []Sequence{{Pages: make([]ids.VirtualPage, 0, 8)}}
	batch := newBatch()
	down, up := make([]Copy, 0, 8), make([]Copy, 0, 8)
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	must(e.HostAlloc([]HostPages{{Pool: 0, Pages: host[0]}, {Pool: 1, Pages: host[1]}}))
	wait := func() {
		n, err := e.CompletionWait(-1, ring)
		if n != 1 || err != nil || ring[0].Status != StatusOK {
			t.Fatalf("%d completions, %v, %s", n, err, ring[0].Status)
		}
	}
	for name, call := range map[string]func(){
		"alloc and free": func() {
			must(e.Alloc([]Take{{Pool: poolFull, Pages: fresh}, {Pool: poolSWA, Count: testPages}}))
			must(e.Free([]Pages{{Pool: poolFull, Pages: fresh}}))
		},
		"lease, kernel ids": func() {
			lease, err := e.LeaseAcquire([]Pages{{Pool: poolFull, Pages: pages}, {Pool: poolSWA, Pages: pages}})
			must(err)
			_, err = e.KernelIDs(Holder(lease), poolFull, GranularityToken, pages, out)
			must(err)
			must(e.LeaseRelease(lease))
		},
		"step": func() {
			step, err := e.StepOpen(0, []Pages{{Pool: poolFull, Pages: pages}})
			must(err)
			must(e.StepClose(step))
		},
		"extend": func() {
			seqs[0] = Sequence{Pages: seqs[0].Pages[:0], NewTokens: 9, WindowTailTokens: NoPage}
			must(e.Extend(poolFull, seqs))
			must(e.Free([]Pages{{Pool: poolFull, Pages: seqs[0].Pages}}))
		},
		"batch step": func() {
			for i := range batch.Sequences {
				s := &batch.Sequences[i]
				s.Pages, s.Tokens, s.NewTokens = s.Pages[:0], 0, 1
			}
			for range 6 {
				step, err := e.BatchStep(batch)
				must(err)
				batch.Previous = step
			}
			must(e.StepClose(batch.Previous))
			batch.Previous = 0
			for i := range batch.Sequences {
				must(e.Free([]Pages{{Pool: poolFull, Pages: batch.Sequences[i].Pages}}))
			}
		},
		"reserve and cancel": func() {
			r, err := e.Reserve([]Take{{Pool: poolFull, Pages: fresh}})
			must(err)
			must(e.Cancel(r))
		},
		"back up, reserve, load": func() {
			down = down[:0]
			for i, page := range pages {
				down = append(down, Copy{Pool: poolFull, DevicePage: page, HostPage: host[0][i]})
			}
			_, err := e.BackUp(&Transfer{Priority: ClassNormal, Copies: down})
			must(err)
			wait()
			r, err := e.Reserve([]Take{{Pool: poolFull, Pages: fresh}})
			must(err)
			up = up[:0]
			for i, page := range fresh {
				up = append(up, Copy{Pool: poolFull, DevicePage: page, HostPage: host[0][i]})
			}
			ticket, err := e.Load(&Transfer{Reservation: r, Copies: up})
			must(err)
			must(e.LayerWait(ticket, 2, 0))
			_, _, err = e.TicketStatus(ticket)
			must(err)
			wait()
			must(e.Free([]Pages{{Pool: poolFull, Pages: fresh}}))
		},
		"poll": func() {
			n, err := e.CompletionPoll(ring)
			must(err)
			if n != 0 {
				t.Fatal(n)
			}
		},
		"capacity, fits, stats": func() {
			_, err := e.Capacity(TierDevice, poolFull)
			must(err)
			if e.FitsStatus(demands) != StatusNoCapacity {
				t.Fatal("a million pages fit")
			}
			_, err = e.Stats()
			must(err)
			_, err = e.PoolStats(TierDevice, poolSWA)
			must(err)
		},
		"views": func() {
			_, err := e.DevicePage(poolFull, 3)
			must(err)
		},
	} {
		call() // The first may fill pools.
		if got := testing.AllocsPerRun(200, call); got != 0 {
			t.Errorf("%s: %v allocations", name, got)
		}
	}
}

// Goroutine stacks move when they grow, the collector runs all the time, and C must still see the caller's memory.
func TestMemoryStays(t *testing.T) {
	e := open(t, testOptions())
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	var deep func(depth int) error
	deep = func(depth int) error {
		var ballast [64]byte
		var pages [2]ids.VirtualPage
		takes := [...]Take{{Pool: poolFull, Pages: pages[:]}, {Pool: poolSWA, Count: 2}}
		if err := e.Alloc(takes[:]); err != nil {
			return err
		}
		if pages[0] == pages[1] {
			t.Errorf("took %v", pages)
		}
		if depth > 0 {
			if err := deep(depth - 1); err != nil {
				return err
			}
		}
		runtime.KeepAlive(ballast)
		return e.Free([]Pages{{Pool: poolFull, Pages: pages[:]}})
	}
	for range 50 {
		var wg sync.WaitGroup
		wg.Go(func() { // A fresh goroutine begins with a small stack.
			if err := deep(15); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
	}
	if report, err := e.Verify(); err != nil {
		t.Errorf("%v\n%s", err, report)
	}
}
