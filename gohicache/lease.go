package hicache

import (
	"context"
	"iter"
	"time"

	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/lifecycle"
)

// LoadOptions tune one load. The zero value loads what the match found and adds pages for the rest of the matched tokens.
type LoadOptions struct {
	// Tokens is how many tokens the lease shall have pages for, from the start of the sequence; prefix and new ones together. 0: as many
	// as were matched against. It may be more (room for output tokens) or less (the first chunk of a chunked prefill), but not less than
	// the prefix.
	Tokens int
	// Stream is the compute stream that will use the pages.
	Stream Stream
	// Wait makes the call wait for room until the context ends, instead of ErrNoCapacity. Order among waiters is kept.
	Wait bool
	// WindowTailOnly gives window pages only to those new pages that meet the last window of Tokens; the others have none and their
	// kernel ids are the sink's. For servers that compute a prefill's window layers from its activations. Without it all new pages get window
	// pages, so that any position of the prefix can be matched later.
	WindowTailOnly bool
	// NoStorage leaves storage alone in this load.
	NoStorage bool
	// NoLoadBack uses only what is on the device, for when Match.Estimate says that computing is faster than loading.
	NoLoadBack bool
	// TTL, if positive, ends the lease after that time, for callers that may go away. While it is in use (Lease.Use, or inside Layers) the end waits
	// for that, and is counted.
	TTL time.Duration
}

// Load makes the matched prefix resident, takes pages for the new tokens, and leases all of them: what is on the host is queued for
// load-back (only the pages that are missing), what storage has beyond that is read first, and everything is taken at once or not
// at all; what must go to make room goes first. It returns when the copies are queued, not when they have arrived: see Lease.Layers.
//
// Errors: ErrNoCapacity (nothing taken; retry later or Wait), ErrInfeasible (never fits), ErrStale (the match was released), ErrInvalid (Tokens, or a
// match of another cache), ErrClosed, ErrDevice, or the context's error. Whatever it returns, m stays the caller's to release. ctx bounds waiting and storage reads, never a copy in flight.
func (c *Cache) Load(ctx context.Context, m *Match, o LoadOptions) (*Lease, error) {
	if err := needsContext("load", ctx); err != nil {
		return nil, err
	}
	if m == nil || m.c == nil {
		return nil, &Error{Op: "load", Err: ErrStale, Message: "the match is nil"}
	}
	l := &Lease{c: c}
	err := c.core.LoadAs(ctx, &l.h, &m.m, lifecycle.LoadRequest{Tokens: o.Tokens, Stream: uint64(o.Stream), Wait: o.Wait,
		WindowTailOnly: o.WindowTailOnly, NoStorage: o.NoStorage, NoLoadBack: o.NoLoadBack, TTL: o.TTL})
	if err != nil {
		return nil, c.publicError("load", err)
	}
	return l, nil
}

// Lease keeps the pages of one request where they are, from Load to Release.
type Lease struct {
	c *Cache
	h lifecycle.Lease
}

// Prefix is the number of tokens, from the start, whose KV the cache supplied: compute begins there. A multiple of the page size.
func (l *Lease) Prefix() int { return l.h.Prefix() }

// Tokens is the number of tokens that the lease has pages for.
func (l *Lease) Tokens() int { return l.h.Tokens() }

// Hit says which tier supplied how many tokens of the prefix.
func (l *Lease) Hit() HitTokens {
	d, h, s := l.h.Hit()
	return HitTokens{d, h, s}
}

// Layers yields each global layer that a pool serves, ascending, once the lease's loads of it have arrived: on a CUDA stream it makes
// the stream wait and returns at once; on CPU and Null it blocks. If a load failed it yields the error with the layer it came to and
// ends; then nothing of the load was published, the pages' content is undefined and the request must be matched again. Of a lease that is over
// it yields the first layer with ErrStale.
func (l *Lease) Layers() iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		end, err := l.Use()
		if err != nil {
			if len(l.c.layers) > 0 {
				yield(int(l.c.layers[0]), err)
			}
			return
		}
		defer end()
		for _, layer := range l.c.layers {
			err := l.h.WaitLayer(layer)
			if err != nil {
				err = l.c.publicError("load", err)
			}
			if !yield(int(layer), err) || err != nil {
				return
			}
		}
	}
}

// Wait waits until the lease's loads have arrived whole and are published, or have failed. It returns at once if nothing was loaded.
func (l *Lease) Wait(ctx context.Context) error {
	if err := needsContext("load", ctx); err != nil {
		return err
	}
	return l.c.publicErrorOrNil("load", l.h.Wait(ctx))
}

// KernelIDs are the page-granular kernel ids of the first pool of that role, one a page of Tokens, in order; pages without a page in
// that pool have the sink's id. For a State pool it is the state page alone. The slice is the lease's: it must not be changed and is valid
// until Release. nil if there is no such pool or the lease is over. The first call costs one border crossing a pool.
func (l *Lease) KernelIDs(role Role) []ids.KernelID {
	for i := range l.c.opt.Pools {
		if l.c.opt.Pools[i].Role == role {
			return l.PoolKernelIDs(i)
		}
	}
	return nil
}

// PoolKernelIDs is KernelIDs for a pool by its index.
func (l *Lease) PoolKernelIDs(pool int) []ids.KernelID {
	k, err := l.h.KernelIDs(pool)
	if err != nil {
		return nil
	}
	return k
}

// VirtualPages are the stable names of the lease's FULL pages (its window pages share them), one a page of Tokens, in order. They stay
// the names of the published pages after Release for as long as those live. The slice is the lease's.
func (l *Lease) VirtualPages() []ids.VirtualPage { return l.h.VirtualPages() }

// StateSource is the kernel id of the recurrent state that the prefix ends with, in a State pool, for the caller to copy into its own state
// page; false if the state starts anew.
func (l *Lease) StateSource(pool int) (ids.KernelID, bool) { return l.h.StateSource(pool) }

// SetCheckpoint says that the State pool's page of this lease holds the state after that many tokens (a page boundary), so that Insert
// may publish it there. Without it a state is published only if the inserted tokens end at a page boundary.
func (l *Lease) SetCheckpoint(tokens int) { l.h.SetCheckpoint(tokens) }

// Use keeps the lease beyond its TTL until the returned function is called; ErrStale if it is over already.
func (l *Lease) Use() (end func(), err error) {
	if l.c == nil {
		return func() {}, &Error{Op: "use", Err: ErrStale, Message: "the lease is nil"}
	}
	end, ok := l.h.Use()
	if !ok {
		return end, &Error{Op: "use", Err: ErrStale, Message: "the lease is over"}
	}
	return end, nil
}

// Release ends the lease: its pages may move and be evicted again, and pages that were not inserted are given back. It cannot fail; a
// second Release does nothing.
func (l *Lease) Release() {
	if l != nil && l.c != nil {
		l.h.Release()
	}
}

// Insert publishes the lease's pages under tokens (prefix and computed tokens, from the start; at most Tokens): whole pages become
// matchable by others and are backed up as the write policy says. What somebody else published meanwhile is not published twice; the
// duplicates go at Release. It may be called again with more tokens (chunked prefill). The caller's kernels that wrote the pages must be
// enqueued on the lease's stream before.
//
// Errors: ErrInvalid (tokens shorter than the prefix, or more than Tokens; a lease of another cache), ErrStale (the lease is over), ErrTransfer (its load failed, so
// nothing may be published). Nothing changes then.
func (c *Cache) Insert(l *Lease, tokens []uint32) error { return c.insert(l, c.words(tokens)) }

func (c *Cache) insert(l *Lease, words []uint32) error {
	if l == nil {
		return &Error{Op: "insert", Err: ErrStale, Message: "the lease is nil"}
	}
	return c.publicErrorOrNil("insert", c.core.Insert(&l.h, words))
}

// HostPages are the host copies of the lease's pages in one pool, ids.NoHostPage where there is none, as the match found them. For checks and
// reports. The slice is the lease's.
func (l *Lease) HostPages(pool int) []ids.HostPage { return l.h.HostPages(pool) }
