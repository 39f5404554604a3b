package ffi

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hicache/hicache/ffi/ids"
)

const (
	batchRows = 6  // Sequences of the test's batch.
	rowPages  = 16 // Room of each.
	windowOf  = 8  // Tokens; pages hold 4.
)

func newBatch() *Batch {
	b := &Batch{OwnerPool: poolFull, Sequences: make([]Sequence, batchRows), Tables: []BatchTable{
		{Pool: poolFull, Form: TableFormRagged, Indptr: make([]int32, batchRows+1), LastPageTokens: make([]int32, batchRows)},
		{Pool: poolSWA, Form: TableFormPadded, WindowTokens: windowOf, RowPages: rowPages, PageCounts: make([]int32, batchRows),
			FirstPages: make([]int32, batchRows)},
	}}
	for i := range b.Tables {
		b.Tables[i].IDs = make([]ids.KernelID, batchRows*rowPages)
	}
	for i := range b.Sequences {
		b.Sequences[i] = Sequence{Pages: make([]ids.VirtualPage, 0, rowPages), WindowTailTokens: NoPage}
	}
	return b
}

// apart does what BatchStep does by separate calls and returns the tables as BatchStep lays them out.
type apart struct {
	tb   testing.TB
	e    *Engine
	step Step
}

func (a *apart) run(b *Batch) error {
	a.tb.Helper()
	if a.step != 0 {
		if err := a.e.StepClose(a.step); err != nil {
			a.tb.Fatal(err)
		}
		a.step = 0
	}
	if err := a.e.Extend(b.OwnerPool, b.Sequences); err != nil {
		return err
	}
	var held []Pages
	windows := make([][]ids.VirtualPage, len(b.Sequences))
	for i, s := range b.Sequences {
		held = append(held, Pages{Pool: poolFull, Pages: s.Pages})
		from := max(int(s.Tokens)-windowOf-int(s.NewTokens), 0) / 4
		windows[i] = s.Pages[min(from, len(s.Pages)):]
		places := make([]ids.PhysicalPage, len(windows[i]))
		if err := a.e.Inspect(poolSWA, windows[i], places); err != nil {
			a.tb.Fatal(err)
		}
		for k, page := range windows[i] { // What has no window page is the sink, and there is nothing to hold.
			if places[k] != ids.NoPhysicalPage {
				held = append(held, Pages{Pool: poolSWA, Pages: []ids.VirtualPage{page}})
			}
		}
	}
	var err error
	if a.step, err = a.e.StepOpen(b.Stream, held); err != nil {
		return err
	}
	full, swa := &b.Tables[0], &b.Tables[1]
	at := int32(0)
	for i, s := range b.Sequences {
		full.Indptr[i] = at
		a.kernelIDs(poolFull, s.Pages, full.IDs[at:])
		at += int32(len(s.Pages))
		full.LastPageTokens[i] = int32(s.Tokens) - 4*int32(max(len(s.Pages)-1, 0))
		swa.PageCounts[i], swa.FirstPages[i] = int32(len(windows[i])), int32(len(s.Pages)-len(windows[i]))
		row := swa.IDs[i*rowPages:][:rowPages]
		clear(row)
		a.kernelIDs(poolSWA, windows[i], row)
	}
	full.Indptr[len(b.Sequences)] = at
	return nil
}

func (a *apart) kernelIDs(pool uint32, pages []ids.VirtualPage, out []ids.KernelID) {
	if _, err := a.e.KernelIDs(Holder(a.step), pool, GranularityPage, pages, out); err != nil {
		a.tb.Fatal(err)
	}
}

// The pages of each pool that are in use, by state. (Where they are, and so holes, may differ: a step that takes over from another extends first.)
func counts(tb testing.TB, e *Engine) (out [2]map[PageState]int) {
	for pool, states := range states(tb, e) {
		out[pool] = map[PageState]int{}
		for _, s := range states {
			if s != PageStateGap && s != PageStateHole {
				out[pool][s]++
			}
		}
	}
	return out
}

func states(tb testing.TB, e *Engine) (out [2][]PageState) {
	for pool := range out {
		info, err := e.PoolInfo(TierDevice, uint32(pool))
		if err != nil {
			tb.Fatal(err)
		}
		out[pool] = make([]PageState, info.PageCount)
		if err := e.Map(TierDevice, uint32(pool), 0, out[pool]); err != nil {
			tb.Fatal(err)
		}
	}
	return out
}

// One call for a batch gives the ids, tables, pins and refusals that the separate calls give, forks with copied tails included.
func TestBatchStepEqualsSeparateCalls(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			o := testOptions()
			o.DeviceBytes = uint64(60+random.IntN(60)) * 512
			one, many := open(t, o), &apart{tb: t, e: open(t, o)}
			got, want := newBatch(), newBatch()
			refused := 0
			for range 200 {
				for i := range got.Sequences {
					n, tail := uint32(random.IntN(3)), uint32(NoPage)
					if random.IntN(8) == 0 {
						n, tail = uint32(random.IntN(20)), windowOf
					}
					if full := &got.Sequences[i]; full.Tokens+n > 4*rowPages || random.IntN(30) == 0 {
						restart(t, one, full)
						restart(t, many.e, &want.Sequences[i])
					}
					flags := SequenceFlags(0)
					if random.IntN(4) == 0 {
						flags = SequenceFlagsCopyTail
					}
					for _, b := range []*Batch{got, want} {
						s := &b.Sequences[i]
						s.NewTokens, s.WindowTailTokens, s.Flags = n, tail, flags
					}
				}
				tails := tailsOf(got)
				step, err := one.BatchStep(got)
				wantErr := many.run(want)
				if (err == nil) != (wantErr == nil) || err != nil && !errors.Is(err, ErrNoCapacity) {
					t.Fatalf("batch step says %v, the separate calls %v", err, wantErr)
				}
				got.Previous = step
				if err != nil {
					refused++
				} else {
					sameBatch(t, got, want)
					trueTables(t, one, got)
				}
				if a, b := counts(t, one), counts(t, many.e); !maps.Equal(a[0], b[0]) || !maps.Equal(a[1], b[1]) {
					t.Fatalf("pages by state: %v, want %v", a, b)
				}
				if err == nil {
					dropCopied(t, one, got, tails)
					dropCopied(t, many.e, want, tails)
				}
			}
			if refused == 200 {
				t.Error("nothing was ever granted")
			}
			for _, close := range []struct {
				e    *Engine
				step Step
			}{{one, got.Previous}, {many.e, many.step}} {
				if close.step != 0 {
					if err := close.e.StepClose(close.step); err != nil {
						t.Error(err)
					}
				}
				if report, err := close.e.Verify(); err != nil {
					t.Error(err, report)
				}
			}
		})
	}
}

func restart(t *testing.T, e *Engine, s *Sequence) {
	t.Helper()
	if err := e.Free([]Pages{{Pool: poolFull, Pages: s.Pages}}); err != nil {
		t.Fatal(err)
	}
	s.Pages, s.Tokens = s.Pages[:0], 0
}

func tailsOf(b *Batch) []ids.VirtualPage {
	tails := make([]ids.VirtualPage, len(b.Sequences))
	for i, s := range b.Sequences {
		tails[i] = ids.NoVirtualPage
		if len(s.Pages) > 0 {
			tails[i] = s.Pages[len(s.Pages)-1]
		}
	}
	return tails
}

// dropCopied gives back the tail pages that copies have replaced: in this test nobody else uses them.
func dropCopied(t *testing.T, e *Engine, b *Batch, tails []ids.VirtualPage) {
	t.Helper()
	for i, s := range b.Sequences {
		if tails[i] != ids.NoVirtualPage && !slices.Contains(s.Pages, tails[i]) {
			if err := e.Free([]Pages{{Pool: poolFull, Pages: tails[i : i+1]}}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func sameBatch(t *testing.T, got, want *Batch) {
	t.Helper()
	for i := range got.Sequences {
		if a, b := got.Sequences[i], want.Sequences[i]; !slices.Equal(a.Pages, b.Pages) || a.Tokens != b.Tokens {
			t.Fatalf("sequence %d: %v of %d tokens, want %v of %d", i, a.Pages, a.Tokens, b.Pages, b.Tokens)
		}
	}
	for i := range got.Tables {
		a, b := &got.Tables[i], &want.Tables[i]
		if !slices.Equal(a.Indptr, b.Indptr) || !slices.Equal(a.PageCounts, b.PageCounts) || !slices.Equal(a.LastPageTokens, b.LastPageTokens) ||
			!slices.Equal(a.FirstPages, b.FirstPages) {
			t.Fatalf("table %d: %+v, want %+v", i, a, b)
		}
	}
	for i := range got.Tables[1].IDs {
		if (got.Tables[1].IDs[i] == 0) != (want.Tables[1].IDs[i] == 0) {
			t.Fatalf("window table, entry %d: %d, want %d", i, got.Tables[1].IDs[i], want.Tables[1].IDs[i])
		}
	}
}

// trueTables compares the kernel ids of a batch with the places of its pages.
func trueTables(t *testing.T, e *Engine, b *Batch) {
	t.Helper()
	for i, s := range b.Sequences {
		same := func(pool uint32, pages []ids.VirtualPage, row []ids.KernelID) {
			places := make([]ids.PhysicalPage, len(pages))
			if err := e.Inspect(pool, pages, places); err != nil {
				t.Fatal(err)
			}
			for k, place := range places {
				if place == ids.NoPhysicalPage {
					place = 0
				}
				if int(place) != int(row[k]) {
					t.Fatalf("sequence %d, pool %d, page %d is at %d, the table says %d", i, pool, pages[k], place, row[k])
				}
			}
		}
		full, swa := &b.Tables[0], &b.Tables[1]
		same(poolFull, s.Pages, full.IDs[full.Indptr[i]:full.Indptr[i+1]])
		same(poolSWA, s.Pages[swa.FirstPages[i]:], swa.IDs[i*rowPages:][:rowPages])
	}
}

// A fork writes on in its own copy of the shared tail page; the parent's bytes stay.
func TestBatchStepCopiesTails(t *testing.T) {
	e := open(t, testOptions())
	b := newBatch()
	b.Sequences = b.Sequences[:2]
	parent, child := &b.Sequences[0], &b.Sequences[1]
	parent.NewTokens = 6
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	must(e.Extend(poolFull, b.Sequences[:1]))
	child.Pages, child.Tokens = append(child.Pages, parent.Pages...), parent.Tokens
	lease, err := e.LeaseAcquire([]Pages{{Pool: poolFull, Pages: parent.Pages}})
	must(err)
	tail := envelope(t, e, lease, poolFull, parent.Pages[1])
	for i := range tail {
		tail[i] = stamp(poolFull, 1, i)
	}
	must(e.LeaseRelease(lease))
	parent.NewTokens, child.NewTokens, child.Flags = 1, 1, SequenceFlagsCopyTail
	step, err := e.BatchStep(b)
	must(err)
	if parent.Pages[0] != child.Pages[0] || parent.Pages[1] == child.Pages[1] {
		t.Fatalf("parent %v, child %v", parent.Pages, child.Pages)
	}
	lease, err = e.LeaseAcquire([]Pages{{Pool: poolFull, Pages: child.Pages}})
	must(err)
	copied := envelope(t, e, lease, poolFull, child.Pages[1])
	for _, at := range []int{0, 31, 32, 63} { // The first two tokens of the first layer's K.
		if copied[at] != stamp(poolFull, 1, at) {
			t.Errorf("byte %d of the copy is %d, want %d", at, copied[at], stamp(poolFull, 1, at))
		}
	}
	must(e.LeaseRelease(lease))
	must(e.StepClose(step))
}

func TestBatchStepRefusesShortSlices(t *testing.T) {
	e := open(t, testOptions())
	for name, spoil := range map[string]func(b *Batch){
		"Indptr":         func(b *Batch) { b.Tables[0].Indptr = b.Tables[0].Indptr[:batchRows] },
		"LastPageTokens": func(b *Batch) { b.Tables[0].LastPageTokens = b.Tables[0].LastPageTokens[:1] },
		"PageCounts":     func(b *Batch) { b.Tables[1].PageCounts = b.Tables[1].PageCounts[:1] },
		"FirstPages":     func(b *Batch) { b.Tables[1].FirstPages = b.Tables[1].FirstPages[:1] },
		"ids_capacity":   func(b *Batch) { b.Tables[0].IDs = b.Tables[0].IDs[:1] },
		"row_pages":      func(b *Batch) { b.Tables[1].RowPages = 1 },
		"indptr":         func(b *Batch) { b.Tables[0].Indptr = nil },
		"vpage_capacity": func(b *Batch) { b.Sequences[0].Pages = nil },
		"pool":           func(b *Batch) { b.Tables[1].Pool = 7 },
		"previous":       func(b *Batch) { b.Previous = 12345 },
	} {
		b := newBatch()
		for i := range b.Sequences {
			b.Sequences[i].NewTokens = 9
		}
		spoil(b)
		before := states(t, e)
		if step, err := e.BatchStep(b); err == nil || step != 0 || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: step %d, error %v", name, step, err)
		}
		if after := states(t, e); !slices.Equal(before[0], after[0]) || !slices.Equal(before[1], after[1]) {
			t.Errorf("%s: pages changed", name)
		}
	}
}
