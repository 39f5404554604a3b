// Package hicache is a tiered KV-cache memory manager for LLM inference servers.
//
// One byte arena on the accelerator (tier 1) is shared by full-attention, sliding-window and recurrent-state pools. Pages have stable
// names and movable places. Host memory (tier 2) and storage (tier 3) stand behind it: a prefix that left the device comes back from
// there instead of being computed again. The engine is libhicache (C++ behind a C ABI); this package drives its radix tree, policy and
// lifecycle.
//
// A prefill is four calls:
//
//	m := cache.Match(tokens)                 // longest usable prefix, pinned on every tier
//	defer m.Release()
//	lease, err := cache.Load(ctx, m, hicache.LoadOptions{Tokens: len(tokens), Stream: stream})
//	if err != nil { ... }                    // errors.Is(err, hicache.ErrNoCapacity): retry later, or LoadOptions.Wait
//	defer lease.Release()                    // from here its pages may move
//	for layer, err := range lease.Layers() { // waits for this layer only
//		forward(layer, lease.KernelIDs(hicache.Full), lease.KernelIDs(hicache.SWA))
//	}
//	return cache.Insert(lease, tokens)       // publish the new pages under the prefix
//
// Decoding uses sequences: [Cache.Begin], [Cache.Step] for a whole batch, [Sequence.Append], [Sequence.Finish].
//
// A context must not be nil: calls refuse that with [ErrInvalid].
//
// Threads: a [Cache] may be used by many goroutines at once. A [Match], [Lease], [Sequence] or [Step] belongs to one goroutine at a time.
package hicache
