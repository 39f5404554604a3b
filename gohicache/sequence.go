package hicache

import (
	"context"
	"iter"

	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/lifecycle"
)

// SequenceOptions tune one sequence.
type SequenceOptions struct {
	Namespace Namespace
	Stream    Stream // Compute stream of its steps.
	FullHit   bool   // As MatchOptions.FullHit.
	Wait      bool   // As LoadOptions.Wait.
	NoStorage bool   // As LoadOptions.NoStorage.
	// WindowTailOnly is as LoadOptions.WindowTailOnly, for the prompt.
	WindowTailOnly bool
}

// Sequence is a request that lives over many steps. It owns its pages; between steps it holds no lease, so they may move.
type Sequence struct {
	c *Cache
	s *lifecycle.Sequence
}

// Begin starts a sequence for a prompt: match, load and pages for all of the prompt, in one call. Errors as for Load. The sequence must go
// to Finish or Abort once.
func (c *Cache) Begin(ctx context.Context, prompt []uint32, o SequenceOptions) (*Sequence, error) {
	return c.begin(ctx, c.words(prompt), o)
}

func (c *Cache) begin(ctx context.Context, words []uint32, o SequenceOptions) (*Sequence, error) {
	if err := needsContext("begin", ctx); err != nil {
		return nil, err
	}
	s, err := c.core.Begin(ctx, words, lifecycle.MatchRequest{Namespace: o.Namespace.radix(), FullHit: o.FullHit},
		lifecycle.LoadRequest{Stream: uint64(o.Stream), Wait: o.Wait, NoStorage: o.NoStorage, WindowTailOnly: o.WindowTailOnly})
	if err != nil {
		return nil, c.publicError("begin", err)
	}
	return &Sequence{c: c, s: s}, nil
}

// Prefix is the number of prompt tokens that need no compute.
func (s *Sequence) Prefix() int { return s.s.Prefix() }

// Hit says which tier supplied the prefix.
func (s *Sequence) Hit() HitTokens {
	d, h, st := s.s.Hit()
	return HitTokens{d, h, st}
}

// Len is the number of tokens that the sequence has pages for.
func (s *Sequence) Len() int { return s.s.Len() }

// Err is nil, or ErrTransfer once a load that brought a part of the sequence's prefix has failed: it must be aborted and begun again. A Step over it
// fails with the same error.
func (s *Sequence) Err() error { return s.c.publicErrorOrNil("sequence", s.s.Err()) }

// VirtualPages are the FULL pages of the sequence, in order. The slice is valid until the next Extend, Step, Publish or end.
func (s *Sequence) VirtualPages() []ids.VirtualPage { return s.s.VirtualPages() }

// Append names tokens that were generated and whose pages were taken by Extend or Step, so that Publish and Finish know them.
// ErrInvalid if there are more than Len.
func (s *Sequence) Append(tokens ...uint32) error {
	return s.c.publicErrorOrNil("append", s.s.Append(s.c.words(tokens)))
}

// Publish inserts the whole pages of the named tokens, as Cache.Insert does; computed says how many tokens' KV is written by
// enqueued kernels (0: all named tokens). For chunked prefill, and for long generations that others may share.
func (s *Sequence) Publish(computed int) error {
	return s.c.publicErrorOrNil("publish", s.c.core.Publish(s.s, computed))
}

// Finish publishes all named tokens and ends the sequence. A page that the last token filled is published too.
func (s *Sequence) Finish() error {
	return s.c.publicErrorOrNil("finish", s.c.core.Finish(s.s))
}

// Abort ends the sequence without publishing anything more; what it published before stays. A second end does nothing.
func (s *Sequence) Abort() {
	if s != nil && s.c != nil {
		s.c.core.Abort(s.s)
	}
}

// Fork makes a second sequence that continues the same tokens (n > 1 sampling). Whole pages are shared; the partial tail page is shared until
// one of the two writes on and gets a copy of it. All tokens that there are pages for must be named, and their KV written by enqueued
// kernels. Recurrent states are shared too: see Step.StateSource.
func (s *Sequence) Fork() (*Sequence, error) {
	child, err := s.c.core.Fork(s.s)
	if err != nil {
		return nil, s.c.publicError("fork", err)
	}
	return &Sequence{c: s.c, s: child}, nil
}

// Suspend gives a sequence's pages up for others (retraction): whole pages are published and, with a host tier, copied there first, also
// under write_back. It waits for that copy, or ctx; a Suspend that ctx ends leaves the sequence as it was.
func (s *Sequence) Suspend(ctx context.Context) error {
	if err := needsContext("suspend", ctx); err != nil {
		return err
	}
	return s.c.publicErrorOrNil("suspend", s.c.core.Suspend(ctx, s.s))
}

// Resume makes a suspended sequence resident again, in other pages. Afterwards Prefix says how many of its tokens need not be computed
// again: those of the partial tail page always do. Errors as for Load; the sequence stays suspended then.
func (s *Sequence) Resume(ctx context.Context, o SequenceOptions) error {
	if err := needsContext("resume", ctx); err != nil {
		return err
	}
	return s.c.publicErrorOrNil("resume", s.c.core.Resume(ctx, s.s, lifecycle.LoadRequest{Stream: uint64(o.Stream), Wait: o.Wait,
		NoStorage: o.NoStorage, WindowTailOnly: o.WindowTailOnly}))
}

// Growth asks for room for NewTokens more tokens of a sequence; 0 leaves it as it is.
type Growth struct {
	Sequence  *Sequence
	NewTokens int
}

func (g Growth) core() lifecycle.Growth {
	if g.Sequence == nil { // refused with the batch
		return lifecycle.Growth{NewTokens: g.NewTokens}
	}
	return lifecycle.Growth{Sequence: g.Sequence.s, NewTokens: g.NewTokens}
}

// Extend gives every sequence of the batch room for its new tokens, or none of them (ErrNoCapacity): the tail page is filled first, then
// new pages are taken. A sequence may be in a batch once. One border crossing for the batch, however large. Other errors: ErrInvalid, ErrStale,
// ErrTransfer, naming the sequence by its place in the batch.
func (c *Cache) Extend(ctx context.Context, batch []Growth, wait bool) error {
	if err := needsContext("extend", ctx); err != nil {
		return err
	}
	return c.publicErrorOrNil("extend", c.core.Extend(ctx, growths(batch), wait))
}

func growths(batch []Growth) []lifecycle.Growth {
	g := make([]lifecycle.Growth, len(batch))
	for i, b := range batch {
		g[i] = b.core()
	}
	return g
}

// Step extends a batch (as Extend does), opens a unit of compute over all of its pages on the stream and gives their page tables, in a
// fixed number of border crossings whatever the batch's size. The pages stay where they are until Close. Errors as for Extend; nothing is open then.
func (c *Cache) Step(ctx context.Context, stream Stream, batch []Growth, wait bool) (*Step, error) {
	if err := needsContext("step", ctx); err != nil {
		return nil, err
	}
	st, err := c.core.Step(ctx, uint64(stream), growths(batch), wait)
	if err != nil {
		return nil, c.publicError("step", err)
	}
	return &Step{c: c, s: st}, nil
}

// Step is an open unit of compute.
type Step struct {
	c *Cache
	s *lifecycle.Step
}

// Tables gives the page tables of the whole batch for one pool, in the form that attention kernels take: sequence i has the kernel ids
// ids[indptr[i]:indptr[i+1]], one a page. Valid until Close.
func (s *Step) Tables(pool int) (indptr []int32, kernelIDs []ids.KernelID, err error) {
	indptr, kernelIDs, err = s.s.Tables(pool)
	return indptr, kernelIDs, s.c.publicErrorOrNil("step", err)
}

// StateSource is the kernel id, in a State pool, of the recurrent state that sequence i of the batch goes on from, for the server to copy into the
// sequence's own state page (its entry in Tables) before any kernel of this step writes states. false if there is nothing to copy: the own page
// has it already, or the state starts anew. A sequence has a source in its first step after Begin or Resume with a prefix, after a Fork, and after a
// Publish that made its state a checkpoint. After an error of Layers nothing of the step counts as computed, also for sequences without an error of
// their own: they have their source again in the next step.
func (s *Step) StateSource(i, pool int) (ids.KernelID, bool) { return s.s.StateSource(i, pool) }

// Layers is as Lease.Layers, for the loads of all sequences in the batch: of a closed step it yields the first layer with ErrStale.
func (s *Step) Layers() iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		for _, layer := range s.c.layers {
			err := s.c.publicErrorOrNil("step", s.s.WaitLayer(layer))
			if !yield(int(layer), err) || err != nil {
				return
			}
		}
	}
}

// Close says that the step's kernels are enqueued: the pages may move again, behind them. It cannot fail; a second Close does nothing.
func (s *Step) Close() {
	if s != nil && s.s != nil {
		s.s.Close()
	}
}
