package ffi

import (
	"unsafe"

	"github.com/hicache/hicache/ffi/ids"
)

// BatchTable is the page table of one pool for a batch, into slices of the caller. IDs is as long as there is room; Indptr needs
// len(Sequences) + 1 entries and is for TableFormRagged alone; each of the others has len(Sequences) entries or is nil.
type BatchTable struct {
	Pool         uint32 // The owner pool or an SWA pool of its group.
	Form         TableForm
	WindowTokens uint32 // 0: every page of a sequence; else those that meet its new tokens or the WindowTokens before them.
	RowPages     uint32 // TableFormPadded: ids in a row; the rest of a row is the sink. TableFormRagged: 0.

	IDs            []ids.KernelID // Out: page-granular kernel ids.
	Indptr         []int32        // Out: sequence i has IDs[Indptr[i]:Indptr[i+1]].
	PageCounts     []int32        // Out: pages listed of each sequence.
	LastPageTokens []int32        // Out: tokens in each sequence's last page, 1..page_tokens; 0: it has none.
	FirstPages     []int32        // Out: index within the sequence of the first page listed.
}

// Batch is a server's step over many sequences. Keep it and use it again: BatchStep allocates nothing then.
type Batch struct {
	OwnerPool uint32
	Stream    uint64
	Previous  Step         // An open step to close first, its kernels being enqueued; 0: none.
	Sequences []Sequence   // In/out, as for Extend; NewTokens 0 is fine.
	Tables    []BatchTable // The step holds the pages that these list. At most one a pool.
	Pages     []Pages      // Further pages for the step to hold, e.g. recurrent states.
}

// BatchStep closes the previous step, extends every sequence or none, opens a step on the pages that the tables list and writes the tables:
// one border crossing. With SequenceFlagsCopyTail a fork gets its own copy of a shared tail page in the same call. Errors as Extend and
// StepOpen; ErrInvalid, before anything is done, for slices too short. After any other error the previous step is closed and nothing else
// has changed. Cost: O(pages listed).
func (e *Engine) BatchStep(b *Batch) (Step, error) {
	for i := range b.Tables {
		if err := b.Tables[i].check(i, len(b.Sequences)); err != nil {
			return 0, err
		}
	}
	f := e.begin()
	if f == nil {
		return 0, closed("batch step")
	}
	f.putSequences(b.Sequences)
	f.putPages(b.Pages)
	for i := range b.Tables {
		t := &b.Tables[i]
		f.tables = append(f.tables, abiBatchTable{
			pool: t.Pool, form: t.Form, windowTokens: t.WindowTokens, rowPages: t.RowPages, ids: unsafe.SliceData(t.IDs), indptr: first(t.Indptr),
			pageCounts: first(t.PageCounts), lastPageTokens: first(t.LastPageTokens), firstPages: first(t.FirstPages), idsCapacity: count(len(t.IDs)),
		})
	}
	f.batch = abiBatch{
		structSize: uint32(unsafe.Sizeof(f.batch)), ownerPool: b.OwnerPool, stream: b.Stream, previous: b.Previous,
		sequences: unsafe.SliceData(f.sequences), tables: unsafe.SliceData(f.tables), pages: unsafe.SliceData(f.pages),
		sequenceCount: count(len(f.sequences)), tableCount: count(len(f.tables)), pagesCount: count(len(f.pages)),
	}
	f.out64 = 0
	status := e.library.table.callBatchStep(f, e.handle, ptr(&f.batch), ptr(&f.out64), f.errorOut())
	if status >= 0 {
		f.takeSequences(b.Sequences)
	}
	step := Step(f.out64)
	return step, e.end(f, "batch step", status)
}

// check refuses slices that the library would write past.
func (t *BatchTable) check(index, sequences int) error {
	for _, a := range [...]struct {
		name   string
		length int
		need   int
	}{
		{"Indptr", len(t.Indptr), sequences + 1}, {"PageCounts", len(t.PageCounts), sequences},
		{"LastPageTokens", len(t.LastPageTokens), sequences}, {"FirstPages", len(t.FirstPages), sequences},
	} {
		if a.length != 0 && a.length < a.need {
			return invalid("batch step", "table %d: %s has %d entries, needs %d", index, a.name, a.length, a.need)
		}
	}
	return nil
}

// first is the first entry of a slice, nil if it has none.
func first(s []int32) *int32 {
	if len(s) == 0 {
		return nil
	}
	return &s[0]
}
