package bench

import (
	"context"
	"testing"

	hicache "github.com/hicache/hicache/gohicache"
)

// The request loops as Go benchmarks, an operation a run over the first prompts of the conversation trace, for profiles and comparisons of builds.
// The best run by CPU time is what a busy machine still says something by.

func benchmarkPrompts(b *testing.B, limit int) [][]uint32 {
	b.Helper()
	s := &Settings{Traces: tracesOrSkip(b)}
	prompts, err := s.prompts(conversation, limit)
	if err != nil {
		b.Fatal(err)
	}
	return prompts
}

func BenchmarkTreeLoop(b *testing.B) {
	prompts := benchmarkPrompts(b, 3000)
	best := 0.0
	for b.Loop() {
		l, err := newTreeLoop(pageTokens, capacityToken, false, nil)
		if err != nil {
			b.Fatal(err)
		}
		d, err := processTime(func() error { return eachPrompt(prompts, capacityToken, l.request) })
		if err != nil {
			b.Fatal(err)
		}
		best = max(best, float64(l.tokens)/d.Seconds()/1e6)
	}
	b.ReportMetric(best, "best-Mtok/cpu-s")
}

func BenchmarkStackLoop(b *testing.B) {
	prompts := benchmarkPrompts(b, 1500)
	for _, c := range []struct {
		name   string
		device hicache.Device
		page   int
		window int
	}{{"full-null", hicache.Null, 64, 0}, {"full-16-null", hicache.Null, 16, 0}, {"window-null", hicache.Null, 64, 4096}, {"window-cpu", hicache.CPU, 64, 4096}} {
		b.Run(c.name, func(b *testing.B) {
			requests, tokens := 0.0, 0.0
			for b.Loop() {
				n, d, err := runStack(context.Background(), &Settings{}, c.device, prompts, c.page, capacityToken, c.window, capacityToken/4)
				if err != nil {
					b.Fatal(err)
				}
				requests = max(requests, perSecond(float64(n.requests), d))
				tokens = max(tokens, float64(n.tokens)/d.Seconds()/1e6)
			}
			b.ReportMetric(requests, "best-req/cpu-s")
			b.ReportMetric(tokens, "best-Mtok/cpu-s")
		})
	}
}
