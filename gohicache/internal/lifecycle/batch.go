package lifecycle

import (
	"context"
	"errors"
	"slices"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/radix"
)

// BatchTable is the page table of one Full or SWA pool, into slices of the caller.
type BatchTable struct {
	Pool           int
	RowPages       int // Padded rows of so many ids; 0: ragged.
	IDs            []ids.KernelID
	Indptr         []int32
	PageCounts     []int32
	LastPageTokens []int32
	FirstPages     []int32
}

// Batch runs steps that follow one another over sequences: each closes the one before. What it needs is kept from step to step.
type Batch struct {
	c       *Core
	batch   []*Sequence
	raw     ffi.Batch
	demands []ffi.Demand
	writers map[*commons]int
	source  [][]ids.VirtualPage // states that the server is to copy in the open step
	tight   int                 // so many steps still plan for room before they ask for it
	held    bool                // a step is open
}

// tightSteps is for how many steps a device that had no room is taken for full.
const tightSteps = 32

// NewBatch is a batch without a step, on a stream.
func (c *Core) NewBatch(stream uint64) *Batch {
	return &Batch{c: c, raw: ffi.Batch{OwnerPool: uint32(c.full), Stream: stream}}
}

// Step closes the step before, extends every sequence or none, opens a step and writes the tables. After an error no step is open.
func (b *Batch) Step(ctx context.Context, growth []Growth, tables []BatchTable, wait bool) error {
	c := b.c
	err := c.checkBatch(growth)
	if err == nil {
		err = b.setTables(tables)
	}
	if err == nil {
		own := len(growth)
		if b.held { // the step that this one closes
			own++
		}
		err = c.withRoomBeside(ctx, wait, own, func(bool) error {
			c.plan.Lock()
			defer c.plan.Unlock()
			return b.step(growth)
		})
	}
	if err != nil {
		b.Close()
		if broken := brokenLoad(growth); broken != nil { // meanwhile
			return broken
		}
		return err
	}
	c.count.steps.Add(1)
	return nil
}

func (b *Batch) setTables(tables []BatchTable) error {
	b.raw.Tables = b.raw.Tables[:0]
	for i := range tables {
		t := &tables[i]
		if t.Pool < 0 || t.Pool >= len(b.c.cfg.Pools) || b.c.cfg.Pools[t.Pool].Role == radix.State {
			return fail(KindInvalid, "table %d: pool %d is no Full or SWA pool", i, t.Pool)
		}
		if t.RowPages < 0 || t.RowPages > maxTokens {
			return fail(KindInvalid, "table %d: RowPages is %d", i, t.RowPages)
		}
		raw := ffi.BatchTable{Pool: uint32(t.Pool), RowPages: uint32(t.RowPages), IDs: t.IDs, Indptr: t.Indptr, PageCounts: t.PageCounts,
			LastPageTokens: t.LastPageTokens, FirstPages: t.FirstPages}
		if t.RowPages > 0 {
			raw.Form = ffi.TableFormPadded
		}
		if pool := &b.c.cfg.Pools[t.Pool]; pool.Role == radix.SWA {
			raw.WindowTokens = uint32(pool.WindowTokens)
		}
		b.raw.Tables = append(b.raw.Tables, raw)
	}
	return nil
}

// step is one try. The caller holds plan.
func (b *Batch) step(growth []Growth) (err error) {
	c := b.c
	undo, err := c.takeStates(growth)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			undo()
		} else {
			b.source = c.stepOpened(growth, b.source)
		}
	}()
	clear(b.writers)
	b.raw.Sequences, b.raw.Pages = b.raw.Sequences[:0], b.raw.Pages[:0]
	pages := 0
	for _, g := range growth {
		s := g.Sequence
		c.trimWindows(s)
		q, more := c.growing(g, &b.writers)
		b.raw.Sequences = append(b.raw.Sequences, q)
		pages += more
		b.raw.Pages = b.appendFurther(b.raw.Pages, s)
	}
	b.demands = append(b.demands[:0], ffi.Demand{Pool: uint32(c.full), PageCount: uint32(pages)})
	for _, p := range c.windows {
		b.demands = append(b.demands, ffi.Demand{Pool: uint32(p), PageCount: uint32(pages)})
	}
	// A device with room is asked for it at once; one that had none is planned for first: an error costs more than the question.
	err = ffi.ErrNoCapacity
	if pages == 0 || b.tight == 0 {
		err = b.call()
	}
	if pages > 0 && lacksRoom(err) {
		if b.tight--; b.tight < 0 {
			b.tight = tightSteps
		}
		if err = c.takeWith(b.demands, b.call); err != nil {
			return err
		}
	} else if err != nil {
		return fromEngine(err)
	}
	b.batch = b.batch[:0]
	for i, g := range growth {
		g.Sequence.grown(&b.raw.Sequences[i])
		b.batch = append(b.batch, g.Sequence)
	}
	if !b.held {
		b.held = true
		c.holds.add(b)
	}
	return nil
}

// call is the one border crossing. A step that fails has closed the one before, unless it was refused as it stood.
func (b *Batch) call() error {
	step, err := b.c.eng.BatchStep(&b.raw)
	if err != nil && errors.Is(err, ffi.ErrInvalid) {
		b.closeStep()
	}
	b.raw.Previous = step
	return err
}

// appendFurther appends the pages that a sequence computes with and no table lists.
func (b *Batch) appendFurther(lines []ffi.Pages, s *Sequence) []ffi.Pages {
	c := b.c
	listed := func(pool int) bool {
		return slices.ContainsFunc(b.raw.Tables, func(t ffi.BatchTable) bool { return t.Pool == uint32(pool) })
	}
	if !listed(c.full) && len(s.pages) > 0 {
		lines = append(lines, ffi.Pages{Pool: uint32(c.full), Pages: s.pages})
	}
	for _, p := range c.windows {
		if listed(p) {
			continue
		}
		if low, end := s.windowLow[p], s.windowEnd[p]; low < end {
			lines = append(lines, ffi.Pages{Pool: uint32(p), Pages: s.pages[low:end]})
		}
		if from := s.windowFrom[p]; from < len(s.pages) {
			lines = append(lines, ffi.Pages{Pool: uint32(p), Pages: s.pages[from:]})
		}
	}
	for _, p := range c.states {
		for _, page := range [][]ids.VirtualPage{s.state[p : p+1], s.source[p : p+1]} {
			if page[0] != ids.NoVirtualPage {
				lines = append(lines, ffi.Pages{Pool: uint32(p), Pages: page})
			}
		}
	}
	return lines
}

// StateSource is as Step.StateSource, in the open step.
func (b *Batch) StateSource(i, pool int) (ids.KernelID, bool) {
	if b.raw.Previous == 0 {
		return 0, false
	}
	return b.c.sourceOf(b.raw.Previous, b.source, i, pool)
}

// StatePage is the kernel id of the own state of sequence i of the open step in a STATE pool; false if it has none.
func (b *Batch) StatePage(i, pool int) (ids.KernelID, bool) {
	if b.raw.Previous == 0 || i < 0 || i >= len(b.batch) || !slices.Contains(b.c.states, pool) {
		return 0, false
	}
	return b.c.stateID(b.raw.Previous, pool, b.batch[i].state[pool])
}

// WaitLayer waits for a layer of the loads of all sequences of the open step.
func (b *Batch) WaitLayer(layer uint32) error {
	if !b.held {
		return fail(KindStale, "no step is open")
	}
	for _, s := range b.batch {
		if err := s.WaitLayer(layer); err != nil {
			b.c.stepFailed(b.batch, b.source)
			return err
		}
	}
	return nil
}

func (b *Batch) closeStep() {
	if b.raw.Previous == 0 {
		return
	}
	if err := b.c.closeStep(b.raw.Previous); !errors.Is(err, ffi.ErrStale) {
		b.c.bug("step close", err)
	}
	b.raw.Previous = 0
}

// Close closes the open step, if there is one. The batch can go on afterwards.
func (b *Batch) Close() {
	b.closeStep()
	if b.held {
		b.held = false
		b.c.holds.remove(b)
		b.c.room.ring()
	}
	b.batch = b.batch[:0]
}
