package bench

import (
	"context"
	"testing"

	hicache "github.com/hicache/hicache/gohicache"
)

// The request loops as Go benchmarks, an operation a run over the first prompts of the conversation trace, for profiles and comparisons of builds.

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
	for b.Loop() {
		l, err := newTreeLoop(pageTokens, capacityToken, false, nil)
		if err != nil {
			b.Fatal(err)
		}
		if err := eachPrompt(prompts, capacityToken, l.request); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(countTokens(prompts))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mtok/s")
}

func BenchmarkStackLoop(b *testing.B) {
	prompts := benchmarkPrompts(b, 1500)
	for _, c := range []struct {
		name   string
		device hicache.Device
		window int
	}{{"full-null", hicache.Null, 0}, {"window-null", hicache.Null, 4096}, {"window-cpu", hicache.CPU, 4096}} {
		b.Run(c.name, func(b *testing.B) {
			requests := 0
			for b.Loop() {
				n, _, err := runStack(context.Background(), &Settings{}, c.device, prompts, pageTokens, capacityToken, c.window, capacityToken/4)
				if err != nil {
					b.Fatal(err)
				}
				requests += n.requests
			}
			b.ReportMetric(float64(requests)/b.Elapsed().Seconds(), "req/s")
		})
	}
}
