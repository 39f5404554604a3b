package radix

import (
	"fmt"
	"testing"
	"time"

	"github.com/hicache/hicache/ffi/ids"
)

// blockTokens expands block ids as the peers' benchmarks do: token i of block h is splitmix64(h·512+i) mod 128000.
func blockTokens(blocks []uint32, dst []uint32) []uint32 {
	for _, h := range blocks {
		for i := range uint64(512) {
			x := uint64(h)*512 + i + 0x9e3779b97f4a7c15
			x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
			x = (x ^ x>>27) * 0x94d049bb133111eb
			dst = append(dst, uint32((x^x>>31)%128000))
		}
	}
	return dst
}

// BenchmarkRequestLoop is match, evict, insert, release over the conversation trace at 2 M tokens; token expansion is not timed.
func BenchmarkRequestLoop(b *testing.B) {
	reqs := loadTrace(b, "conversation.jsonl.gz")[:1000]
	var prompts [][]uint32
	for _, r := range reqs {
		prompts = append(prompts, blockTokens(r, nil))
	}
	for _, page := range []int{16, 64} {
		for _, window := range []int{0, 4096} {
			b.Run(fmt.Sprintf("page=%d/window=%d", page, window), func(b *testing.B) {
				b.ReportAllocs()
				var hit, total, worst int
				for b.Loop() {
					hit, total, worst = requestLoop(b, prompts, page, window, 2_000_000/page)
				}
				s := b.Elapsed().Seconds() / float64(b.N)
				b.ReportMetric(float64(len(reqs))/s, "req/s")
				b.ReportMetric(float64(total*page)/s/1e6, "Mtok/s")
				b.ReportMetric(float64(hit)/float64(total), "hit")
				b.ReportMetric(float64(worst)/1e3, "max-us")
			})
		}
	}
}

func requestLoop(b *testing.B, prompts [][]uint32, page, window, capacity int) (hit, total, worst int) {
	cfg := fullOnly(page)
	if window > 0 {
		cfg = withWindow(page, window)
	}
	tree, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	var m Match
	var r InsertResult
	var e EvictResult
	pages := make([]ids.VirtualPage, capacity)
	for i := range pages {
		pages[i] = ids.VirtualPage(i)
	}
	floor := make([]int, len(cfg.Pools))
	for _, tokens := range prompts {
		start := time.Now()
		n := len(tokens) / page
		tree.Match(Namespace{}, tokens, MatchOptions{FullHit: true}, &m)
		hit, total = hit+m.Usable, total+n
		if short := n - m.Usable - (capacity - tree.Counts(0).Device); short > 0 {
			tree.Evict(&EvictRequest{Want: []int{short}}, &e)
			if e.Gone[0] < short {
				b.Fatalf("short of %d pages: %+v", short, e)
			}
		}
		req := InsertRequest{Tokens: tokens, After: m.Pin, From: m.Usable, Pages: pages[:n-m.Usable]}
		if window > 0 {
			floor[1] = n - window/page
			req.WindowFrom = floor
		}
		if err := tree.Insert(&req, &r); err != nil {
			b.Fatal(err)
		}
		tree.Release(m.Pin)
		worst = max(worst, int(time.Since(start)))
	}
	return hit, total, worst
}
