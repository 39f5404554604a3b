package hicache_test

import (
	"testing"

	hicache "github.com/hicache/hicache/gohicache"
)

// benchRequests serves new prompts of 2,720 tokens (170 pages of 16) that each evict another one: match, load, insert, release.
func benchRequests(b *testing.B, device hicache.Device, pools []hicache.PoolOptions, hit bool) {
	const tokens = 2720
	c, err := hicache.Open(ctx, &hicache.Options{Device: device, PageTokens: 16, DeviceBytes: uint64(len(pools)) * 6 << 20, Pools: pools})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	list := make([][]uint32, 64)
	for i := range list {
		list[i] = prompt(i, tokens)
	}
	request := func(tokens []uint32) {
		m := c.Match(tokens)
		lease, err := c.Load(ctx, m, hicache.LoadOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if err := c.Insert(lease, tokens); err != nil {
			b.Fatal(err)
		}
		lease.Release()
		m.Release()
	}
	for _, p := range list {
		request(p)
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if !hit {
			n++
		}
		request(list[n%len(list)])
	}
	b.ReportMetric(float64(b.N)*tokens/b.Elapsed().Seconds()/1e6, "Mtokens/s")
}

func BenchmarkRequest(b *testing.B) {
	pools := map[string][]hicache.PoolOptions{
		"full":   {{Role: hicache.Full, Layers: []int{0}, LayerBytes: 64}},
		"window": {{Role: hicache.Full, Layers: []int{0}, LayerBytes: 64}, {Role: hicache.SWA, Layers: []int{1}, LayerBytes: 64, WindowTokens: 1024}},
	}
	for _, name := range []string{"full", "window"} {
		b.Run(name+"/null/new", func(b *testing.B) { benchRequests(b, hicache.Null, pools[name], false) })
		b.Run(name+"/null/hit", func(b *testing.B) { benchRequests(b, hicache.Null, pools[name], true) })
		b.Run(name+"/cpu/new", func(b *testing.B) { benchRequests(b, hicache.CPU, pools[name], false) })
	}
}
