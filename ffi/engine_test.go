package ffi

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hicache/hicache/ffi/ids"
)

const (
	poolFull  = 0
	poolSWA   = 1
	testPages = 4
)

func testOptions() *Options {
	return &Options{
		Backend: BackendCPU, DeviceBytes: 64 << 10, HostBytes: 64 << 10,
		Pools: []PoolOptions{
			{Role: RoleFull, PageTokens: 4, LayerIDs: []uint32{0, 2}, KRowBytes: 32, VRowBytes: 32},
			{Role: RoleSWA, PageTokens: 4, WindowTokens: 8, LayerIDs: []uint32{1, 3}, KRowBytes: 32, VRowBytes: 32},
		},
	}
}

// open opens an engine that the test's end closes.
func open(tb testing.TB, o *Options) *Engine {
	tb.Helper()
	e, err := library(tb).Open(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := e.Close(); err != nil {
			tb.Error("close:", err)
		}
	})
	return e
}

func stamp(pool uint32, page, at int) byte { return byte(int(pool)*131 + page*31 + at*7 + at/256) }

// takeBoth takes pages in both pools.
func takeBoth(tb testing.TB, e *Engine, n int) []ids.VirtualPage {
	tb.Helper()
	pages := make([]ids.VirtualPage, n)
	if err := e.Alloc([]Take{{Pool: poolFull, Pages: pages}, {Pool: poolSWA, Count: uint32(n)}}); err != nil {
		tb.Fatal(err)
	}
	return pages
}

func both(pages []ids.VirtualPage) []Pages {
	return []Pages{{Pool: poolFull, Pages: pages}, {Pool: poolSWA, Pages: pages}}
}

// envelope is the bytes of a held page, found through its kernel id as a kernel would.
func envelope(tb testing.TB, e *Engine, lease Lease, pool uint32, page ids.VirtualPage) []byte {
	tb.Helper()
	var id [1]ids.KernelID
	sinks, err := e.KernelIDs(Holder(lease), pool, GranularityPage, []ids.VirtualPage{page}, id[:])
	if err != nil || sinks != 0 {
		tb.Fatalf("kernel ids of %d: %d sinks, %v", page, sinks, err)
	}
	info, err := e.PoolInfo(TierDevice, pool)
	if err != nil {
		tb.Fatal(err)
	}
	place := ids.PhysicalPage((uint64(id[0]) - info.KernelPageOffset) / info.KernelPageScale)
	var now [1]ids.PhysicalPage
	if err := e.Inspect(pool, []ids.VirtualPage{page}, now[:]); err != nil || now[0] != place {
		tb.Fatalf("page %d: inspect says %d (%v), the kernel id %d", page, now[0], err, place)
	}
	bytes, err := e.DevicePage(pool, place)
	if err != nil {
		tb.Fatal(err)
	}
	return bytes
}

func drain(tb testing.TB, e *Engine, ticket Ticket) Completion {
	tb.Helper()
	out := make([]Completion, 8)
	for {
		n, err := e.CompletionWait(10*time.Second, out)
		if err != nil || n == 0 {
			tb.Fatalf("completion of %d: %d, %v", ticket, n, err)
		}
		for _, c := range out[:n] {
			if c.Status != StatusOK {
				tb.Fatalf("ticket %d: %s", c.Ticket, c.Status)
			}
			if c.Ticket == ticket {
				return c
			}
		}
	}
}

func copies(pages []ids.VirtualPage, host [2][]ids.HostPage) []Copy {
	var out []Copy
	for pool := range uint32(2) {
		for i, page := range pages {
			out = append(out, Copy{Pool: pool, DevicePage: page, HostPage: host[pool][i]})
		}
	}
	return out
}

// Pages go to the host tier and come back elsewhere with the same bytes.
func TestRoundTrip(t *testing.T) {
	e := open(t, testOptions())
	pages := takeBoth(t, e, testPages)
	lease, err := e.LeaseAcquire(both(pages))
	if err != nil {
		t.Fatal(err)
	}
	for pool := range uint32(2) {
		for i, page := range pages {
			for at, bytes := 0, envelope(t, e, lease, pool, page); at < len(bytes); at++ {
				bytes[at] = stamp(pool, i, at)
			}
		}
	}
	if err := e.LeaseRelease(lease); err != nil {
		t.Fatal(err)
	}
	if err := e.LeaseRelease(lease); !errors.Is(err, ErrStale) {
		t.Errorf("second release: %v", err)
	}
	host := [2][]ids.HostPage{make([]ids.HostPage, testPages), make([]ids.HostPage, testPages)}
	if err := e.HostAlloc([]HostPages{{Pool: poolFull, Pages: host[0]}, {Pool: poolSWA, Pages: host[1]}}); err != nil {
		t.Fatal(err)
	}
	ticket, err := e.BackUp(&Transfer{Priority: ClassNormal, Copies: copies(pages, host), User: 7})
	if err != nil {
		t.Fatal(err)
	}
	if c := drain(t, e, ticket); c.User != 7 || c.PageCount != 2*testPages || c.Direction != TransferD2H || c.Bytes == 0 || c.EndNs < c.SubmitNs {
		t.Errorf("completion %+v", c)
	}
	views := make([][]byte, testPages)
	for pool := range uint32(2) {
		lease, err := e.HostView(HostPages{Pool: pool, Pages: host[pool]}, views)
		if err != nil {
			t.Fatal(err)
		}
		for i, view := range views {
			checkStamp(t, "host", pool, i, view)
		}
		if err := e.LeaseRelease(lease); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Free([]Pages{{Pool: poolFull, Pages: pages}}); err != nil {
		t.Fatal(err)
	}
	if err := e.Free([]Pages{{Pool: poolFull, Pages: pages}}); !errors.Is(err, ErrStale) {
		t.Errorf("second free: %v", err)
	}
	takeBoth(t, e, 2) // Takes old places and zeroes them.

	back := make([]ids.VirtualPage, testPages)
	r, err := e.Reserve([]Take{{Pool: poolFull, Pages: back}, {Pool: poolSWA, Count: testPages}})
	if err != nil {
		t.Fatal(err)
	}
	places := make([]ids.PhysicalPage, 16)
	if n, err := e.ReservationPages(r, poolSWA, places); err != nil || n != testPages {
		t.Errorf("reservation pages: %d, %v", n, err)
	}
	ticket, err = e.Load(&Transfer{Reservation: r, Copies: copies(back, host)})
	if err != nil {
		t.Fatal(err)
	}
	for layer := range uint32(4) {
		if err := e.LayerWait(ticket, layer, 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, layers, err := e.TicketStatus(ticket); err != nil || layers < 4 {
		t.Errorf("ticket status: %d layers, %v", layers, err)
	}
	drain(t, e, ticket)
	if lease, err = e.LeaseAcquire(both(back)); err != nil {
		t.Fatal(err)
	}
	for pool := range uint32(2) {
		for i, page := range back {
			checkStamp(t, "device", pool, i, envelope(t, e, lease, pool, page))
		}
	}
	if err := e.LeaseRelease(lease); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Compact(nil); err != nil {
		t.Error(err)
	}
	if report, err := e.Verify(); err != nil {
		t.Errorf("%v\n%s", err, report)
	}
	if stats, err := e.Stats(); err != nil || stats.Loads != 1 || stats.BackUps != 1 || stats.PoolCount != 2 {
		t.Errorf("stats %+v, %v", stats, err)
	}
}

func checkStamp(t *testing.T, where string, pool uint32, page int, bytes []byte) {
	t.Helper()
	if len(bytes) != 2*4*64 {
		t.Fatalf("%s page of %d bytes", where, len(bytes))
	}
	for at, b := range bytes {
		if b != stamp(pool, page, at) {
			t.Fatalf("%s page %d of pool %d: byte %d is %#x, want %#x", where, page, pool, at, b, stamp(pool, page, at))
		}
	}
}

func TestExtend(t *testing.T) {
	e := open(t, testOptions())
	seqs := []Sequence{
		{Pages: make([]ids.VirtualPage, 0, 8), NewTokens: 5, WindowTailTokens: NoPage},
		{Pages: make([]ids.VirtualPage, 0, 8), NewTokens: 1, WindowTailTokens: NoPage},
	}
	if err := e.Extend(poolFull, seqs); err != nil {
		t.Fatal(err)
	}
	if len(seqs[0].Pages) != 2 || seqs[0].Tokens != 5 || len(seqs[1].Pages) != 1 || seqs[1].Tokens != 1 {
		t.Errorf("after the first extend: %+v", seqs)
	}
	seqs[0].NewTokens, seqs[1].NewTokens = 3, 4
	if err := e.Extend(poolFull, seqs); err != nil {
		t.Fatal(err)
	}
	if len(seqs[0].Pages) != 2 || seqs[0].Tokens != 8 || len(seqs[1].Pages) != 2 || seqs[1].Tokens != 5 {
		t.Errorf("the tail page was not filled first: %+v", seqs)
	}
	seqs[0].NewTokens = 100
	if err := e.Extend(poolFull, seqs); !errors.Is(err, ErrInvalid) {
		t.Errorf("no room for the ids: %v", err)
	}
	if len(seqs[0].Pages) != 2 || seqs[0].Tokens != 8 {
		t.Errorf("a refused extend changed the sequence: %+v", seqs[0])
	}
}

func TestErrors(t *testing.T) {
	wrong := testOptions()
	wrong.Pools[1].KRowBytes = 8
	if _, err := library(t).Open(wrong); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "k_row_bytes") {
		t.Errorf("a row of 8 bytes: %v", err)
	}
	e := open(t, testOptions())
	err := e.Alloc([]Take{{Pool: poolFull, Pages: make([]ids.VirtualPage, 1000)}})
	var detail *Error
	if !errors.As(err, &detail) || !errors.Is(err, ErrNoCapacity) || detail.Op != "alloc" || detail.Need <= detail.Have || detail.Message == "" {
		t.Errorf("1000 pages: %#v", err)
	}
	demand := []Demand{{Pool: poolFull, PageCount: 1000}}
	if err := e.Fits(demand); !errors.Is(err, ErrNoCapacity) || e.FitsStatus(demand) != StatusNoCapacity {
		t.Errorf("fits: %v, %v", err, e.FitsStatus(demand))
	}
	demand[0].PageCount = 1
	if err := e.Fits(demand); err != nil || e.FitsStatus(demand) != StatusOK {
		t.Errorf("fits: %v, %v", err, e.FitsStatus(demand))
	}
	if _, err := e.PoolInfo(TierDevice, 9); !errors.Is(err, ErrInvalid) {
		t.Errorf("pool 9: %v", err)
	}
	if err := e.LayerWait(12345, 0, 0); !errors.Is(err, ErrStale) {
		t.Errorf("layer wait: %v", err)
	}
	// Where the library would write past a slice of the caller's, the call is not made.
	pages := takeBoth(t, e, 2)
	lease, err := e.LeaseAcquire(both(pages))
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"kernel ids, pages":  second(e.KernelIDs(Holder(lease), poolFull, GranularityPage, pages, make([]ids.KernelID, 1))),
		"kernel ids, tokens": second(e.KernelIDs(Holder(lease), poolFull, GranularityToken, pages, make([]ids.KernelID, 7))),
		"inspect":            e.Inspect(poolFull, pages, make([]ids.PhysicalPage, 1)),
		"host inspect":       e.HostInspect(poolFull, make([]ids.HostPage, 2), make([]ids.PhysicalPage, 1)),
		"host view":          second(e.HostView(HostPages{Pages: make([]ids.HostPage, 2)}, make([][]byte, 1))),
		"tags":               e.DeviceTags(poolFull, make([]ids.KernelID, 2), make([]uint64, 1), false),
		"reclaim plan":       e.ReclaimPlan(nil, make([]uint64, 2), PreferenceFullFirst, make([]uint64, 1)),
		"map":                e.Map(TierDevice, poolFull, 0, make([]PageState, 1<<20)),
	} {
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := e.LeaseRelease(lease); err != nil {
		t.Fatal(err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestViews(t *testing.T) {
	e := open(t, testOptions())
	all, err := e.DeviceBytes(0, 64<<10)
	if err != nil || len(all) != 64<<10 {
		t.Fatalf("device bytes: %d, %v", len(all), err)
	}
	for _, c := range []struct{ offset, length uint64 }{{64 << 10, 1}, {1, 64 << 10}, {^uint64(0), 2}} {
		if _, err := e.DeviceBytes(c.offset, c.length); !errors.Is(err, ErrInvalid) {
			t.Errorf("device bytes [%d, +%d): %v", c.offset, c.length, err)
		}
	}
	if _, err := e.DevicePage(9, 0); !errors.Is(err, ErrInvalid) {
		t.Errorf("device page of pool 9: %v", err)
	}
	if page, err := e.DevicePage(poolFull, 3); err != nil || &page[0] != &all[3*512] {
		t.Errorf("device page 3 is elsewhere: %v", err)
	}
	if bytes, err := e.HostBytes(0, 1); err != nil || len(bytes) != 1 {
		t.Errorf("host bytes: %v", err)
	}
	o := testOptions()
	o.Backend = BackendNull
	null := open(t, o)
	if _, err := null.DeviceBytes(0, 1); !errors.Is(err, ErrUnsupported) {
		t.Errorf("null backend: %v", err)
	}
	host := make([]ids.HostPage, 2)
	if err := null.HostAlloc([]HostPages{{Pool: poolFull, Pages: host}}); err != nil {
		t.Fatal(err)
	}
	views := [][]byte{{1}, {2}}
	lease, err := null.HostView(HostPages{Pool: poolFull, Pages: host}, views)
	if err != nil || views[0] != nil || views[1] != nil {
		t.Errorf("host view on the null backend: %v, %v", views, err)
	}
	if err := null.LeaseRelease(lease); err != nil {
		t.Error(err)
	}
	if err := null.HostTags(poolFull, host, []uint64{11, 12}, true); err != nil {
		t.Error(err)
	}
	got := make([]uint64, 2)
	if err := null.HostTags(poolFull, host, got, false); err != nil || got[0] != 11 || got[1] != 12 {
		t.Errorf("tags %v, %v", got, err)
	}
}
