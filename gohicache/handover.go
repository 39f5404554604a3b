package hicache

import (
	"context"

	"github.com/hicache/hicache/gohicache/internal/lifecycle"
)

// HandOverOptions say where a prompt goes in the other cache.
type HandOverOptions struct {
	Namespace Namespace // In the target. The source's does not matter.
	// Stream is a compute stream of the target's device. What is enqueued on it later follows the arrival, so it should not be one that is busy with
	// other requests. The source's side is ordered behind the lease's stream.
	Stream Stream
	Wait   bool // As LoadOptions.Wait. Where two caches hand over to each other, give the context a deadline: each may wait for room that the other's leases hold.
}

// HandOver copies the pages of a lease into another cache of the process, on another device or the same, which publishes them under tokens as if it
// had computed them: from a prefill's cache to a decode's, or between replicas. tokens are those whose KV is written, from the start; their whole
// pages go over, without those that the target has already, and their number of tokens is returned. The kernels that wrote them must be enqueued on
// the lease's stream before. On CUDA it does not wait for them or for the copies, but the target's Begin and Load do on the device (it does wait for what the lease still loads); both caches may
// go on at once, and the lease may be released. On the CPU backend it blocks for the copy. Caches must have the same page size and pools.
//
// With sliding windows the lease needs window pages for the last window of tokens. With State pools its state must stand at a page boundary, at the
// end of tokens or where SetCheckpoint said, and be the lease's: hand over before Insert, or from a lease whose match had all of tokens (FullHit).
//
// Errors: ErrInvalid (caches or leases that do not fit), ErrUnsupported (different backends), those of Load for the target, ErrTransfer, ErrStale,
// ErrBusy (a page of the lease is being loaded again).
// Then the target has nothing new. Until it returns, Close of the target says ErrBusy: pages under way are leased there.
func (c *Cache) HandOver(ctx context.Context, l *Lease, tokens []uint32, to *Cache, o HandOverOptions) (int, error) {
	return c.handOver(ctx, l, c.words(tokens), to, o)
}

// HandOverWide is HandOver for token ids of 64 bits.
func (c *Cache) HandOverWide(ctx context.Context, l *Lease, tokens []uint64, to *Cache, o HandOverOptions) (int, error) {
	words, err := c.wideWords(tokens)
	if err != nil {
		return 0, c.publicError("hand over", err)
	}
	return c.handOver(ctx, l, words, to, o)
}

func (c *Cache) handOver(ctx context.Context, l *Lease, words []uint32, to *Cache, o HandOverOptions) (int, error) {
	if err := needsContext("hand over", ctx); err != nil {
		return 0, err
	}
	if l == nil {
		return 0, &Error{Op: "hand over", Err: ErrStale, Message: "the lease is nil"}
	}
	if to == nil {
		return 0, invalid("to", "the target is nil")
	}
	n, err := c.core.HandOver(ctx, &l.h, to.core, words, lifecycle.HandOverRequest{Namespace: o.Namespace.radix(), Stream: uint64(o.Stream),
		Wait: o.Wait})
	return n, c.publicErrorOrNil("hand over", err)
}
