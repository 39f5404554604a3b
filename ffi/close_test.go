package ffi

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hicache/hicache/ffi/ids"
)

// Every method of a closed engine says so, and a second Close is nothing.
func TestClosed(t *testing.T) {
	e, err := library(t).Open(testOptions())
	if err != nil {
		t.Fatal(err)
	}
	pages := []ids.VirtualPage{1}
	for range 2 {
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for name, err := range map[string]error{
		"pool info":         second(e.PoolInfo(TierDevice, 0)),
		"alloc":             e.Alloc([]Take{{Pages: pages}}),
		"free":              e.Free([]Pages{{Pages: pages}}),
		"extend":            e.Extend(0, make([]Sequence, 1)),
		"reserve":           second(e.Reserve([]Take{{Pages: pages}})),
		"cancel":            e.Cancel(1),
		"reservation pages": second(e.ReservationPages(1, 0, nil)),
		"load":              second(e.Load(&Transfer{})),
		"back up":           second(e.BackUp(&Transfer{})),
		"layer wait":        e.LayerWait(1, 0, 0),
		"completion poll":   second(e.CompletionPoll(make([]Completion, 1))),
		"completion wait":   second(e.CompletionWait(-1, make([]Completion, 1))),
		"completion wake":   e.CompletionWake(),
		"completion fd":     second(e.CompletionFD()),
		"lease acquire":     second(e.LeaseAcquire([]Pages{{Pages: pages}})),
		"lease release":     e.LeaseRelease(1),
		"step open":         second(e.StepOpen(0, []Pages{{Pages: pages}})),
		"step close":        e.StepClose(1),
		"kernel ids":        second(e.KernelIDs(1, 0, GranularityPage, pages, make([]ids.KernelID, 1))),
		"inspect":           e.Inspect(0, pages, make([]ids.PhysicalPage, 1)),
		"compact":           second(e.Compact(nil)),
		"set compaction":    e.SetCompaction(CompactionOff),
		"fits":              e.Fits(nil),
		"fits status":       e.FitsStatus(nil).Err(),
		"capacity":          second(e.Capacity(TierDevice, 0)),
		"reclaim plan":      e.ReclaimPlan(nil, make([]uint64, 2), 0, make([]uint64, 2)),
		"resize":            e.Resize(1),
		"host alloc":        e.HostAlloc(nil),
		"host free":         e.HostFree(nil),
		"host view":         second(e.HostView(HostPages{}, nil)),
		"host inspect":      e.HostInspect(0, nil, nil),
		"device tags":       e.DeviceTags(0, nil, nil, false),
		"host tags":         e.HostTags(0, nil, nil, false),
		"stats":             second(e.Stats()),
		"pool stats":        second(e.PoolStats(TierDevice, 0)),
		"map":               e.Map(TierDevice, 0, 0, nil),
		"verify":            second(e.Verify()),
		"fault run":         second(e.FaultRun(1, false)),
		"fault hold":        e.FaultHold(true, 0),
		"device bytes":      second(e.DeviceBytes(0, 1)),
		"host bytes":        second(e.HostBytes(0, 1)),
		"device page":       second(e.DevicePage(0, 0)),
		"host page":         second(e.HostPageAt(0, 0)),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := e.TicketStatus(1); !errors.Is(err, ErrClosed) {
		t.Errorf("ticket status: %v", err)
	}
}

// Close against calls in flight: each call works or is ErrClosed, and a goroutine that waits for completions is let go.
func TestCloseRace(t *testing.T) {
	for range 20 {
		e, err := library(t).Open(testOptions())
		if err != nil {
			t.Fatal(err)
		}
		var calls atomic.Int64
		var wg sync.WaitGroup
		fail := func(what string, err error) {
			if !errors.Is(err, ErrClosed) {
				t.Errorf("%s: %v", what, err)
			}
		}
		for range 4 {
			wg.Go(func() {
				pages := make([]ids.VirtualPage, 2)
				for {
					if err := e.Alloc([]Take{{Pool: poolFull, Pages: pages}}); err != nil {
						fail("alloc", err)
						return
					}
					if err := e.Free([]Pages{{Pool: poolFull, Pages: pages}}); err != nil {
						fail("free", err)
						return
					}
					calls.Add(1)
				}
			})
		}
		wg.Go(func() {
			out := make([]Completion, 4)
			for {
				if _, err := e.CompletionWait(-1, out); err != nil {
					fail("completion wait", err)
					return
				}
			}
		})
		for calls.Load() < 100 {
			time.Sleep(50 * time.Microsecond)
		}
		for range 3 { // Concurrent closes agree.
			wg.Go(func() {
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
}

// A close that is refused fails nobody else.
func TestCloseBusy(t *testing.T) {
	e := open(t, testOptions())
	pages := takeBoth(t, e, 2)
	lease, err := e.LeaseAcquire(both(pages))
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := e.Stats(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 50 {
		if err := e.Close(); !errors.Is(err, ErrBusy) {
			t.Errorf("close with a lease: %v", err)
		}
	}
	close(stop)
	wg.Wait()
	if err := e.LeaseRelease(lease); err != nil {
		t.Error(err)
	}
}
