package hicache

import (
	"context"
	"iter"

	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/lifecycle"
)

// BatchTable is the page table of one Full or SWA pool for a batch of n sequences, in the form that attention kernels take, written into
// slices of the caller. Of a Full pool it lists every page of a sequence; of an SWA pool those that meet the new tokens or the window before
// them. A page that has no window page is the sink.
//
// Ragged (RowPages 0, FlashInfer's indptr, indices and last_page_len): sequence i has IDs[Indptr[i]:Indptr[i+1]]. Padded (FlashAttention's
// block table): sequence i has the row IDs[i*RowPages:(i+1)*RowPages], whose rest is the sink.
type BatchTable struct {
	Pool     int
	RowPages int // Ids in a row; 0: ragged.

	IDs            []ids.KernelID // Out, page-granular; as long as there is room.
	Indptr         []int32        // Out, n + 1 entries; ragged only.
	PageCounts     []int32        // Out, n entries or nil: pages listed of each sequence.
	LastPageTokens []int32        // Out, n entries or nil: tokens in the last page of each sequence.
	FirstPages     []int32        // Out, n entries or nil: index within the sequence of the first page listed.
}

// Batch runs a server's steps one after another on a stream: each Step closes the one before, so a decode step of any number of sequences
// crosses the border once, and allocates nothing. For one goroutine.
type Batch struct {
	c      *Cache
	b      *lifecycle.Batch
	growth []lifecycle.Growth
	tables []lifecycle.BatchTable
}

// NewBatch makes a batch for steps on a stream. It holds nothing until its first Step.
func (c *Cache) NewBatch(stream Stream) *Batch {
	return &Batch{c: c, b: c.core.NewBatch(uint64(stream))}
}

// Step says that the kernels of the step before are enqueued, gives every sequence room for its new tokens (or none of them), opens a unit of
// compute over the batch and writes its page tables. The pages stay where they are until the next Step or Close; pages of both steps stay put
// in between. The tail page that forks share is copied for those that write to it. With wait it waits for room, as Extend does.
// Errors: ErrNoCapacity, and ErrInvalid for slices too short; no step is open then, and the sequences are as they were.
// Cost: O(pages listed), of which those that the step before listed too cost a compare.
func (b *Batch) Step(ctx context.Context, growth []Growth, tables []BatchTable, wait bool) error {
	if err := needsContext("batch step", ctx); err != nil {
		b.Close()
		return err
	}
	b.growth, b.tables = b.growth[:0], b.tables[:0]
	for _, g := range growth {
		b.growth = append(b.growth, g.core())
	}
	for _, t := range tables {
		b.tables = append(b.tables, lifecycle.BatchTable(t))
	}
	return b.c.publicErrorOrNil("batch step", b.b.Step(ctx, b.growth, b.tables, wait))
}

// StateSource is as Step.StateSource, in the open step.
func (b *Batch) StateSource(i, pool int) (ids.KernelID, bool) { return b.b.StateSource(i, pool) }

// StatePage is the kernel id, in a State pool, of the own recurrent state of sequence i of the open step: what its kernels read and write, and where its
// source is copied to. false if there is none, as in a step without new tokens over a state that the cache or a fork has. One border crossing.
func (b *Batch) StatePage(i, pool int) (ids.KernelID, bool) { return b.b.StatePage(i, pool) }

// Layers is as Lease.Layers, for the loads of all sequences of the open step.
func (b *Batch) Layers() iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		for _, layer := range b.c.layers {
			err := b.c.publicErrorOrNil("batch step", b.b.WaitLayer(layer))
			if !yield(int(layer), err) || err != nil {
				return
			}
		}
	}
}

// Close says that the last step's kernels are enqueued: its pages may move again, behind them. Without an open step it does nothing. The batch
// can be used again.
func (b *Batch) Close() { b.b.Close() }
