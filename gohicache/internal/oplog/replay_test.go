package oplog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
)

const (
	poolFull, poolSWA, poolState = 0, 1, 2
	pageTokens                   = 4
)

func options(backend ffi.Backend) *ffi.Options {
	return &ffi.Options{
		Backend: backend, DeviceBytes: 48 << 10, DeviceBytesMax: 64 << 10, HostBytes: 32 << 10, TicketMax: 64,
		Pools: []ffi.PoolOptions{
			{Role: ffi.RoleFull, PageTokens: pageTokens, LayerIDs: []uint32{0, 2}, KRowBytes: 32, VRowBytes: 32},
			{Role: ffi.RoleSWA, PageTokens: pageTokens, WindowTokens: 8, LayerIDs: []uint32{1, 3}, KRowBytes: 32, VRowBytes: 16},
			{Role: ffi.RoleState, PageTokens: 1, LayerIDs: []uint32{4}, KRowBytes: 256, VRowBytes: 64},
		},
	}
}

// user makes random calls on an engine, right ones and wrong ones, alone or as one of several.
type user struct {
	t       *testing.T
	e       *ffi.Engine
	random  *rand.Rand
	fault   bool
	pages   [3][]ids.VirtualPage
	host    [3][]ids.HostPage
	batch   *ffi.Batch
	leases  []ffi.Lease
	steps   []ffi.Step
	held    []ffi.Reservation
	tickets []ffi.Ticket
}

func newUser(t *testing.T, e *ffi.Engine, seed uint64, fault bool) *user {
	u := &user{t: t, e: e, random: rand.New(rand.NewPCG(seed, 9)), fault: fault}
	u.batch = &ffi.Batch{OwnerPool: poolFull, Stream: seed % 2, Tables: []ffi.BatchTable{
		{Pool: poolFull, Form: ffi.TableFormRagged, IDs: make([]ids.KernelID, 64), Indptr: make([]int32, 5)},
		{Pool: poolSWA, Form: ffi.TableFormPadded, WindowTokens: 8, RowPages: 16, IDs: make([]ids.KernelID, 64)},
	}}
	for range 4 {
		u.batch.Sequences = append(u.batch.Sequences, ffi.Sequence{Pages: make([]ids.VirtualPage, 0, 16), WindowTailTokens: ffi.NoPage})
	}
	return u
}

// known passes the refusals that a random call can meet.
func (u *user) known(err error) bool {
	u.t.Helper()
	if err == nil {
		return true
	}
	for _, k := range []error{ffi.ErrNoCapacity, ffi.ErrMovesBlocked, ffi.ErrStale, ffi.ErrNotMapped, ffi.ErrInvalid, ffi.ErrBusy, ffi.ErrLimit, ffi.ErrInfeasible} {
		if errors.Is(err, k) {
			return false
		}
	}
	u.t.Errorf("unexpected: %v", err)
	return false
}

// some takes a few entries out of a slice.
func some[T any](u *user, from *[]T) []T {
	n := min(1+u.random.IntN(4), len(*from))
	at := u.random.IntN(len(*from) - n + 1)
	out := append([]T(nil), (*from)[at:at+n]...)
	*from = append((*from)[:at], (*from)[at+n:]...)
	return out
}

func one[T any](u *user, from *[]T) T {
	at := u.random.IntN(len(*from))
	out := (*from)[at]
	*from = append((*from)[:at], (*from)[at+1:]...)
	return out
}

func (u *user) call() {
	switch u.random.IntN(25) {
	case 0, 1, 2:
		n := 1 + u.random.IntN(6)
		full, state := make([]ids.VirtualPage, n), make([]ids.VirtualPage, u.random.IntN(2))
		if u.known(u.e.Alloc([]ffi.Take{{Pool: poolFull, Pages: full}, {Pool: poolSWA, Count: uint32(u.random.IntN(n + 1))}, {Pool: poolState, Pages: state}})) {
			u.pages[poolFull] = append(u.pages[poolFull], full...)
			u.pages[poolState] = append(u.pages[poolState], state...)
		}
	case 3, 4:
		pool := []int{poolFull, poolFull, poolState}[u.random.IntN(3)]
		if len(u.pages[pool]) > 0 {
			u.known(u.e.Free([]ffi.Pages{{Pool: uint32(pool), Pages: some(u, &u.pages[pool])}}))
		}
	case 5:
		if n := len(u.pages[poolFull]); n > 0 { // A tombstone, or a no-op.
			u.known(u.e.Free([]ffi.Pages{{Pool: poolSWA, Pages: u.pages[poolFull][u.random.IntN(n):][:1]}}))
		}
	case 6, 7, 8, 9:
		u.decode()
	case 10:
		if len(u.pages[poolFull]) > 0 {
			if lease, err := u.e.LeaseAcquire([]ffi.Pages{{Pool: poolFull, Pages: u.pages[poolFull][:1]}}); u.known(err) {
				u.leases = append(u.leases, lease)
			}
		}
	case 11:
		if len(u.leases) > 0 {
			u.known(u.e.LeaseRelease(one(u, &u.leases)))
		}
	case 12:
		if len(u.pages[poolFull]) > 0 {
			if step, err := u.e.StepOpen(7, []ffi.Pages{{Pool: poolFull, Pages: u.pages[poolFull]}}); u.known(err) {
				u.steps = append(u.steps, step)
			}
		}
	case 13:
		if len(u.steps) > 0 {
			u.known(u.e.StepClose(one(u, &u.steps)))
		}
	case 14:
		host := make([]ids.HostPage, 1+u.random.IntN(5))
		if u.known(u.e.HostAlloc([]ffi.HostPages{{Pool: poolFull, Pages: host}})) {
			u.host[poolFull] = append(u.host[poolFull], host...)
		}
	case 15:
		if len(u.host[poolFull]) > 0 {
			u.known(u.e.HostFree([]ffi.HostPages{{Pool: poolFull, Pages: some(u, &u.host[poolFull])}}))
		}
	case 16:
		if len(u.host[poolFull]) > 0 {
			if lease, err := u.e.HostView(ffi.HostPages{Pool: poolFull, Pages: u.host[poolFull][:1]}, make([][]byte, 1)); u.known(err) {
				u.leases = append(u.leases, lease)
			}
		}
	case 17, 18:
		if n := min(len(u.pages[poolFull]), len(u.host[poolFull]), 3); n > 0 {
			var copies []ffi.Copy
			for i := range n {
				copies = append(copies, ffi.Copy{Pool: poolFull, DevicePage: u.pages[poolFull][i], HostPage: u.host[poolFull][len(u.host[poolFull])-1-i]})
			}
			if ticket, err := u.e.BackUp(&ffi.Transfer{Priority: ffi.ClassNormal, Copies: copies}); u.known(err) {
				u.tickets = append(u.tickets, ticket)
			}
		}
	case 19:
		u.load()
	case 20:
		u.poll()
	case 21:
		_, err := u.e.Compact(&ffi.CompactBudget{Tier: ffi.TierDevice + ffi.Tier(u.random.IntN(2)), Pool: ffi.NoPool, PagesMax: uint32(u.random.IntN(8))})
		u.known(err)
	case 22:
		u.known(u.e.Resize(uint64(40+u.random.IntN(24)) << 10))
		u.known(u.e.SetCompaction([]ffi.Compaction{ffi.CompactionLazy, ffi.CompactionLazy, ffi.CompactionEager, ffi.CompactionOff}[u.random.IntN(4)]))
	case 24: // Shows in the log as the status of a completion.
		if len(u.tickets) > 0 {
			u.known(u.e.TransferCancel(one(u, &u.tickets)))
		}
	case 23:
		u.known(u.e.Free([]ffi.Pages{{Pool: poolFull, Pages: []ids.VirtualPage{ids.VirtualPage(u.random.IntN(400))}}})) // Somebody's, or nobody's.
		if u.fault {
			u.known(u.e.FaultHold(u.random.IntN(2) == 0, uint32(u.random.IntN(2))))
			_, err := u.e.FaultRun(uint32(u.random.IntN(4)), u.random.IntN(2) == 0)
			u.known(err)
		}
	}
}

func (u *user) decode() {
	for i := range u.batch.Sequences {
		s := &u.batch.Sequences[i]
		s.NewTokens, s.Flags = uint32(u.random.IntN(3)), 0
		if u.random.IntN(6) == 0 {
			s.Flags = ffi.SequenceFlagsCopyTail
		}
		if s.Tokens+s.NewTokens > 60 || u.random.IntN(20) == 0 {
			u.known(u.e.Free([]ffi.Pages{{Pool: poolFull, Pages: s.Pages}}))
			s.Pages, s.Tokens = s.Pages[:0], 0
		}
	}
	if u.random.IntN(5) == 0 {
		u.known(u.e.Extend(poolFull, u.batch.Sequences))
		return
	}
	step, err := u.e.BatchStep(u.batch)
	if u.known(err) {
		u.batch.Previous = step
	} else if err := u.e.StepClose(u.batch.Previous); u.batch.Previous != 0 {
		u.known(err)
		u.batch.Previous = 0
	}
}

func (u *user) load() {
	n := min(len(u.host[poolFull]), 1+u.random.IntN(3))
	if n == 0 {
		return
	}
	pages := make([]ids.VirtualPage, n)
	r, err := u.e.Reserve([]ffi.Take{{Pool: poolFull, Pages: pages}, {Pool: poolSWA, Count: 1}})
	if !u.known(err) {
		return
	}
	if u.random.IntN(4) == 0 {
		u.held = append(u.held, r)
		return
	}
	t := &ffi.Transfer{Reservation: r, Binds: []ffi.Bind{{Pool: poolSWA, VPage: pages[0]}}}
	for i, page := range pages {
		t.Copies = append(t.Copies, ffi.Copy{Pool: poolFull, DevicePage: page, HostPage: u.host[poolFull][i]})
	}
	if ticket, err := u.e.Load(t); u.known(err) {
		u.pages[poolFull] = append(u.pages[poolFull], pages...)
		u.tickets = append(u.tickets, ticket)
	} else {
		u.known(u.e.Cancel(r))
	}
}

func (u *user) poll() {
	_, err := u.e.CompletionPoll(make([]ffi.Completion, 1+u.random.IntN(4)))
	u.known(err)
}

func (u *user) giveBack() {
	for _, l := range u.leases {
		u.known(u.e.LeaseRelease(l))
	}
	for _, s := range append(u.steps, u.batch.Previous) {
		if s != 0 {
			u.known(u.e.StepClose(s))
		}
	}
	for _, r := range u.held {
		u.known(u.e.Cancel(r))
	}
}

// snapshot is all that the tables of an engine say.
func snapshot(t *testing.T, e *ffi.Engine) string {
	t.Helper()
	var b strings.Builder
	for pool := range uint32(3) {
		for _, tier := range []ffi.Tier{ffi.TierDevice, ffi.TierHost} {
			info, err := e.PoolInfo(tier, pool)
			if err != nil {
				t.Fatal(err)
			}
			states := make([]ffi.PageState, info.PageCount)
			if err := e.Map(tier, pool, 0, states); err != nil {
				t.Fatal(err)
			}
			stats, err := e.PoolStats(tier, pool)
			if err != nil {
				t.Fatal(err)
			}
			places := make([]ids.PhysicalPage, info.VirtualPageCount)
			names := make([]ids.VirtualPage, len(places))
			hosts := make([]ids.HostPage, len(places))
			for i := range places {
				names[i], hosts[i] = ids.VirtualPage(i), ids.HostPage(i)
			}
			if tier == ffi.TierDevice {
				err = e.Inspect(pool, names, places)
			} else {
				err = e.HostInspect(pool, hosts, places)
			}
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "pool %d tier %d: %+v\n%v\n%v\n", pool, tier, stats, states, places)
		}
	}
	return b.String()
}

func drain(t *testing.T, e *ffi.Engine) []byte {
	t.Helper()
	var log []byte
	buffer := make([]byte, 1<<20)
	for {
		n, err := e.LogDrain(buffer)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return log
		}
		log = append(log, buffer[:n]...)
	}
}

// replay repeats a log and gives the snapshot that it ends with.
func replay(t *testing.T, data []byte) (string, error) {
	t.Helper()
	log, err := Parse(data)
	if err != nil {
		return "", err
	}
	r, err := Open(log, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error("close:", err)
		}
	}()
	if err := r.Run(); err != nil {
		return "", err
	}
	if report, err := r.Engine.Verify(); err != nil {
		t.Error(err, report)
	}
	return snapshot(t, r.Engine), nil
}

// record runs users against one engine and gives the log and the snapshot at its end.
func record(t *testing.T, o *ffi.Options, users, calls int, seed uint64) ([]byte, string) {
	t.Helper()
	e, err := ffi.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.LogStart(64 << 20); err != nil {
		t.Fatal(err)
	}
	var all []*user
	var wg sync.WaitGroup
	for i := range users {
		u := newUser(t, e, seed*16+uint64(i), o.Fault.Enabled == 1)
		all = append(all, u)
		wg.Go(func() {
			for range calls {
				u.call()
			}
		})
	}
	wg.Wait()
	before := snapshot(t, e)
	if err := e.LogStop(); err != nil {
		t.Fatal(err)
	}
	data := drain(t, e)
	for _, u := range all {
		u.giveBack()
	}
	if err := e.Close(); err != nil {
		t.Error("close:", err)
	}
	return data, before
}

// A log repeats to the same ids, refusals and tables, whatever the backend, with held and failing transfers, and with many threads at once.
func TestReplayEndsInTheSameTables(t *testing.T) {
	for _, backend := range []ffi.Backend{ffi.BackendCPU, ffi.BackendNull} {
		for _, way := range []string{"threads of its own", "fault injection", "eight users"} {
			t.Run(fmt.Sprintf("backend %d, %s", backend, way), func(t *testing.T) {
				for seed := range uint64(6) {
					o, users, calls := options(backend), 1, 600
					switch way {
					case "fault injection":
						o.Fault = ffi.FaultOptions{Enabled: 1, Seed: seed, FailPPM: 200_000, Hold: uint32(seed % 2), DelayMaxNs: 1000}
					case "eight users":
						users, calls = 8, 150
					}
					data, want := record(t, o, users, calls, seed)
					got, err := replay(t, data)
					if err != nil {
						t.Fatalf("seed %d: %v", seed, err)
					}
					if got != want {
						t.Fatalf("seed %d: the tables differ", seed)
					}
				}
			})
		}
	}
}

// A record that is changed is found: in what it asks for or in what it was answered.
func TestReplayNamesTheRecord(t *testing.T) {
	data, _ := record(t, options(ffi.BackendNull), 1, 60, 3)
	log, err := Parse(data)
	if err != nil || log.End != EndStopped || len(log.Records) == 0 {
		t.Fatal(err, log)
	}
	for i := range log.Records {
		r := &log.Records[i]
		if r.Kind != KindAlloc || r.Status != ffi.StatusOK {
			continue
		}
		r.payload[len(r.payload)-4] ^= 1 // An id that was granted.
		player, err := Open(log, "")
		if err != nil {
			t.Fatal(err)
		}
		var m *Mismatch
		if err := player.Run(); !errors.As(err, &m) || m.Record != r.Number {
			t.Errorf("record %d was changed; replay says %v", r.Number, err)
		}
		if err := player.Close(); err != nil {
			t.Error(err)
		}
		return
	}
	t.Fatal("no take was granted")
}

// Whatever is wrong with a file, the error says where, and nothing is taken for a log that is none.
func TestCorruptLogs(t *testing.T) {
	data, _ := record(t, options(ffi.BackendNull), 1, 40, 5)
	if _, err := Parse(data); err != nil {
		t.Fatal(err)
	}
	ends := map[int]bool{}
	for at := headerBytes; at < len(data); {
		at += int(data[at]) | int(data[at+1])<<8 | int(data[at+2])<<16
		ends[at] = true
	}
	for n := range len(data) {
		log, err := Parse(data[:n])
		switch {
		case ends[n] && err == nil && log.End == EndNone: // Cut between two records: the mark is missing.
		case err == nil || !errors.Is(err, ErrCorrupt):
			t.Fatalf("cut after %d bytes: %v", n, err)
		}
	}
	random := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		bad := append([]byte(nil), data...)
		at := random.IntN(len(bad))
		bad[at] ^= 1 << random.IntN(8)
		if _, err := Parse(bad); !errors.Is(err, ErrCorrupt) && (at < 16 || at >= headerBytes) { // The header's ABI minor and spare words are free.
			t.Fatalf("byte %d flipped: %v", at, err)
		}
	}
	if _, err := Parse([]byte("a text file that is long enough to have a header")); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
}

// A log that is drained too late ends with a mark and can be repeated up to there; one that is drained in time has no end of room.
func TestLogIsBounded(t *testing.T) {
	e, err := ffi.Open(options(ffi.BackendNull))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	const capacity = 64 << 10
	if err := e.LogStart(1000); !errors.Is(err, ffi.ErrInvalid) {
		t.Errorf("a capacity of 1000: %v", err)
	}
	if err := e.LogStart(capacity); err != nil {
		t.Fatal(err)
	}
	pages := make([]ids.VirtualPage, 8)
	churn := func() {
		if err := e.Alloc([]ffi.Take{{Pool: poolFull, Pages: pages}}); err != nil {
			t.Fatal(err)
		}
		if err := e.Free([]ffi.Pages{{Pool: poolFull, Pages: pages}}); err != nil {
			t.Fatal(err)
		}
	}
	var data []byte
	for range 20 { // Drained in time: more than the capacity goes through.
		for range 100 {
			churn()
		}
		data = append(data, drain(t, e)...)
	}
	if len(data) < 2*capacity {
		t.Fatalf("%d bytes", len(data))
	}
	for range 2000 {
		churn()
	}
	data = append(data, drain(t, e)...)
	log, err := Parse(data)
	if err != nil || log.End != EndFull {
		t.Fatalf("%v, %v", err, log)
	}
	if n, err := e.LogDrain(make([]byte, 1<<20)); n != 0 || err != nil {
		t.Errorf("after the end %d bytes, %v", n, err)
	}
	if _, err := replay(t, data); err != nil {
		t.Error(err)
	}
	if err := e.LogStart(capacity); !errors.Is(err, ffi.ErrBusy) {
		t.Errorf("started twice: %v", err)
	}
}

func TestLogBeginsWithTheEngine(t *testing.T) {
	e, err := ffi.Open(options(ffi.BackendNull))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	pages := make([]ids.VirtualPage, 1)
	if err := e.Alloc([]ffi.Take{{Pool: poolFull, Pages: pages}}); err != nil {
		t.Fatal(err)
	}
	if err := e.LogStart(1 << 20); !errors.Is(err, ffi.ErrBusy) {
		t.Errorf("a log of an engine with pages: %v", err)
	}
	if n, err := e.LogDrain(make([]byte, 64)); n != 0 || err != nil {
		t.Errorf("drained %d bytes, %v", n, err)
	}
	if err := e.LogStop(); err != nil {
		t.Error(err)
	}
}
