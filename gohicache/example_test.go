package hicache_test

import (
	"context"
	"fmt"
	"log"

	hicache "github.com/hicache/hicache/gohicache"
)

// A prefill: match, load, compute what is missing, publish. The second request finds the first one's pages.
func Example() {
	cache, err := hicache.Open(context.Background(), &hicache.Options{
		PageTokens:  16,
		DeviceBytes: 4 << 20,
		HostBytes:   16 << 20,
		Pools: []hicache.PoolOptions{
			{Role: hicache.Full, Layers: []int{5, 11}, LayerBytes: 256},
			{Role: hicache.SWA, Layers: []int{0, 1, 2, 3, 4, 6, 7, 8, 9, 10}, LayerBytes: 256, WindowTokens: 64},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()

	prefill := func(tokens []uint32) error {
		m := cache.Match(tokens)
		defer m.Release()
		lease, err := cache.Load(context.Background(), m, hicache.LoadOptions{})
		if err != nil {
			return fmt.Errorf("prefill: %w", err)
		}
		defer lease.Release()
		for layer, err := range lease.Layers() {
			if err != nil {
				return fmt.Errorf("prefill: layer %d: %w", layer, err)
			}
			// forward(layer, lease.KernelIDs(hicache.Full), lease.KernelIDs(hicache.SWA)) for tokens[lease.Prefix():]
		}
		fmt.Printf("%d tokens, %d of them cached\n", len(tokens), lease.Prefix())
		return cache.Insert(lease, tokens)
	}

	conversation := make([]uint32, 100)
	for i := range conversation {
		conversation[i] = uint32(i)
	}
	if err := prefill(conversation[:60]); err != nil {
		log.Fatal(err)
	}
	if err := prefill(conversation); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 60 tokens, 0 of them cached
	// 100 tokens, 48 of them cached
}

// Decoding: a batch of sequences grows by a token a step; whole pages of what was generated can be reused.
func ExampleCache_Step() {
	ctx := context.Background()
	cache, err := hicache.Open(ctx, &hicache.Options{PageTokens: 4, DeviceBytes: 1 << 20,
		Pools: []hicache.PoolOptions{{Role: hicache.Full, Layers: []int{0}, LayerBytes: 64}}})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()

	seq, err := cache.Begin(ctx, []uint32{1, 2, 3, 4, 5}, hicache.SequenceOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for token := uint32(6); token <= 12; token++ {
		step, err := cache.Step(ctx, 0, []hicache.Growth{{Sequence: seq, NewTokens: 1}}, false)
		if err != nil {
			log.Fatal(err)
		}
		indptr, _, err := step.Tables(0) // page tables for the attention kernels of the whole batch
		if err != nil {
			log.Fatal(err)
		}
		step.Close()
		if err := seq.Append(token); err != nil {
			log.Fatal(err)
		}
		if token == 12 {
			fmt.Println("pages:", indptr[1])
		}
	}
	if err := seq.Finish(); err != nil {
		log.Fatal(err)
	}
	m := cache.Match([]uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13})
	defer m.Release()
	fmt.Println("cached:", m.Tokens())
	// Output:
	// pages: 3
	// cached: 12
}
