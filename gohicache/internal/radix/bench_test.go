package radix

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/hicache/hicache/ffi/ids"
)

// grown is a tree of n leaves of leafPages pages each, with prefix pages of prefixTokens shared by all.
func grown(tb testing.TB, page, leaves, prefixPages, leafPages int, cfg Config) (*Tree, []uint32) {
	tree, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	tokens := make([]uint32, (prefixPages+leafPages)*page)
	for i := range tokens {
		tokens[i] = rng.Uint32N(128000)
	}
	pages := make([]ids.VirtualPage, prefixPages+leafPages)
	var r InsertResult
	next := ids.VirtualPage(0)
	for range leaves {
		for i := prefixPages * page; i < len(tokens); i++ {
			tokens[i] = rng.Uint32N(128000)
		}
		from := min(prefixPages, r.Pages)
		for i := range pages[from:] {
			pages[i] = next
			next++
		}
		if err := tree.Insert(&InsertRequest{Tokens: tokens, From: from, Pages: pages[:len(pages)-from]}, &r); err != nil {
			tb.Fatal(err)
		}
	}
	return tree, tokens
}

func BenchmarkMatchHot(b *testing.B) {
	for _, c := range []struct {
		name   string
		window int
	}{{"full", 0}, {"window", 1024}} {
		b.Run(c.name, func(b *testing.B) {
			cfg := fullOnly(16)
			if c.window > 0 {
				cfg = withWindow(16, c.window)
			}
			tree, tokens := grown(b, 16, 1000, 500, 250, cfg)
			var m Match
			b.ReportAllocs()
			b.SetBytes(int64(len(tokens)) * 4)
			for b.Loop() {
				tree.Match(Namespace{}, tokens, MatchOptions{FullHit: true}, &m)
				tree.Release(m.Pin)
			}
			b.ReportMetric(float64(len(tokens))*float64(b.N)/b.Elapsed().Seconds()/1e9, "Gtok/s")
		})
	}
}

func BenchmarkInsertNew(b *testing.B) {
	for _, pages := range []int{1, 8, 100} {
		b.Run(fmt.Sprintf("pages=%d", pages), func(b *testing.B) {
			tree, tokens := grown(b, 16, 1, 100, pages, fullOnly(16))
			list := make([]ids.VirtualPage, pages)
			var r InsertResult
			var m Match
			b.ReportAllocs()
			i := uint32(0)
			for b.Loop() {
				i++
				tokens[100*16] = i
				tree.Match(Namespace{}, tokens[:100*16+1], MatchOptions{}, &m)
				if err := tree.Insert(&InsertRequest{Tokens: tokens, After: m.Pin, From: 100, Pages: list}, &r); err != nil {
					b.Fatal(err)
				}
				tree.Release(m.Pin)
			}
		})
	}
}

// Steady state: each eviction of a leaf makes room for the insert of one.
func BenchmarkEvictLeaf(b *testing.B) {
	for _, leaves := range []int{10_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("leaves=%d", leaves), func(b *testing.B) {
			tree, tokens := grown(b, 16, leaves, 4, 1, fullOnly(16))
			rng := rand.New(rand.NewPCG(3, 4))
			var r InsertResult
			var e EvictResult
			list := make([]ids.VirtualPage, 1)
			runtime.GC()
			b.ReportAllocs()
			b.ResetTimer()
			b.StopTimer()
			for i := 0; i < b.N; i += 1000 {
				n := min(1000, b.N-i)
				b.StartTimer()
				for range n {
					tree.Evict(&EvictRequest{Want: []int{1}}, &e)
				}
				b.StopTimer()
				if e.Gone[0] != 1 {
					b.Fatal("nothing evicted")
				}
				for range n {
					for j := 4 * 16; j < len(tokens); j++ {
						tokens[j] = rng.Uint32N(128000)
					}
					if err := tree.Insert(&InsertRequest{Tokens: tokens, From: 4, Pages: list}, &r); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

func BenchmarkMemory(b *testing.B) {
	for _, c := range []struct {
		name   string
		hashes bool
	}{{"plain", false}, {"hashes", true}} {
		b.Run(c.name, func(b *testing.B) {
			for range b.N {
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				cfg := withWindow(16, 1024)
				cfg.Hashes = c.hashes
				tree, _ := grown(b, 16, 2000, 100, 700, cfg)
				runtime.GC()
				runtime.ReadMemStats(&after)
				tokens := tree.Counts(0).Device * 16
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(tokens), "B/token")
				b.ReportMetric(float64(tokens)/1e6, "Mtokens")
				runtime.KeepAlive(tree)
			}
		})
	}
}

func BenchmarkMatchParallel(b *testing.B) {
	for _, g := range []int{1, 8} {
		b.Run(fmt.Sprintf("goroutines=%d", g), func(b *testing.B) {
			tree, tokens := grown(b, 16, 1000, 500, 250, fullOnly(16))
			b.SetParallelism((g + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0))
			if g == 1 {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
				b.SetParallelism(1)
			}
			b.RunParallel(func(pb *testing.PB) {
				var m Match
				for pb.Next() {
					tree.Match(Namespace{}, tokens, MatchOptions{FullHit: true}, &m)
					tree.Release(m.Pin)
				}
			})
		})
	}
}
