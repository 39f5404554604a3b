package workload

import (
	"errors"
	"io"
	"math"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/trace"
)

func draw(t testing.TB, o Options) []*trace.Request {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	var out []*trace.Request
	for {
		r, err := s.Next()
		if errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
}

func TestSeedRepeatsAndSeedsDiffer(t *testing.T) {
	for _, kind := range Kinds() {
		a, b := draw(t, Options{Kind: kind, Seed: 7, Requests: 500}), draw(t, Options{Kind: kind, Seed: 7, Requests: 500})
		c := draw(t, Options{Kind: kind, Seed: 8, Requests: 500})
		if !reflect.DeepEqual(a, b) || reflect.DeepEqual(a, c) {
			t.Errorf("%s: a seed must give one stream and another seed another", kind)
		}
	}
}

// What a generator makes must be a valid trace: the reader's own checks are the judge.
func TestStreamsAreValidTraces(t *testing.T) {
	for _, kind := range Kinds() {
		for _, o := range []Options{{Requests: 400}, {Requests: 200, BlockTokens: 512}, {Requests: 40, BlockTokens: 1, PromptTokensMax: 2000}, {Requests: 300, PromptTokensMax: 64}} {
			o.Kind = kind
			want := draw(t, o)
			path := filepath.Join(t.TempDir(), "t.jsonl")
			block := o.BlockTokens
			if block == 0 {
				block = DefaultBlockTokens
			}
			w, _ := trace.Create(path, block)
			last := 0.0
			for _, r := range want {
				if w.Write(r) != nil {
					t.Fatal("write")
				}
				if r.TimestampMS < last || r.InputTokens == 0 || r.InputTokens > max(o.PromptTokensMax, 65536) {
					t.Errorf("%s %+v: %+v after time %v", kind, o, r, last)
				}
				if o.PromptTokensMax > 0 && r.InputTokens > o.PromptTokensMax {
					t.Errorf("%s %+v: a prompt of %d tokens", kind, o, r.InputTokens)
				}
				last = r.TimestampMS
			}
			w.Close()
			in, err := trace.Open(path, 0)
			if err != nil {
				t.Fatal(err)
			}
			for i := range want {
				got, err := in.Next()
				if err != nil || !reflect.DeepEqual(got, want[i]) {
					t.Fatalf("%s %+v: row %d: %+v, want %+v, %v", kind, o, i, got, want[i], err)
				}
			}
			in.Close()
		}
	}
}

// Equal id must mean equal whole prefix, or an id would stand for two contents.
func TestIDsNamePrefixes(t *testing.T) {
	for _, kind := range Kinds() {
		parent := map[uint64]uint64{}
		for _, r := range draw(t, Options{Kind: kind, Seed: 3, Requests: 2000}) {
			before := uint64(math.MaxUint64)
			for id := range r.IDs() {
				if p, ok := parent[id]; ok && p != before {
					t.Fatalf("%s: block %d follows %d and %d", kind, id, p, before)
				}
				parent[id] = before
				before = id
			}
		}
	}
}

// shape measures what the About texts promise.
func shape(rows []*trace.Request) (meanIn, meanOut, hit float64) {
	seen := map[uint64]bool{}
	blocks, hits := 0, 0
	for _, r := range rows {
		meanIn += float64(r.InputTokens) / float64(len(rows))
		meanOut += float64(r.OutputTokens) / float64(len(rows))
		leading := true
		for id := range r.IDs() {
			leading = leading && seen[id]
			if blocks++; leading {
				hits++
			}
		}
		for id := range r.IDs() {
			seen[id] = true
		}
		for _, run := range r.OutputRuns {
			for i := range run.Count {
				seen[run.First+i] = true
			}
		}
	}
	return meanIn, meanOut, float64(hits) / float64(blocks)
}

func TestStatisticsAreAsDocumented(t *testing.T) {
	for _, c := range []struct {
		kind         string
		in, out, hit [2]float64
	}{
		{"chat", [2]float64{900, 2500}, [2]float64{260, 340}, [2]float64{0.7, 0.97}},
		{"agent", [2]float64{12000, 40000}, [2]float64{150, 220}, [2]float64{0.88, 0.99}},
		{"rag", [2]float64{2300, 3600}, [2]float64{150, 240}, [2]float64{0.2, 0.6}},
		{"uniform", [2]float64{2100, 2400}, [2]float64{125, 147}, [2]float64{0.3, 0.55}},
	} {
		in, out, hit := shape(draw(t, Options{Kind: c.kind, Seed: 1, Requests: 3000}))
		t.Logf("%s: mean prompt %.0f, mean answer %.0f, most a cache can hit %.3f", c.kind, in, out, hit)
		for _, v := range []struct {
			what string
			got  float64
			want [2]float64
		}{{"prompt", in, c.in}, {"answer", out, c.out}, {"hit", hit, c.hit}} {
			if v.got < v.want[0] || v.got > v.want[1] {
				t.Errorf("%s: mean %s %v is outside %v", c.kind, v.what, v.got, v.want)
			}
		}
	}
}

func TestDistributions(t *testing.T) {
	src, _ := New(Options{Kind: "uniform", Seed: 5})
	s := src.(*stream)
	const n = 200000
	turns, small := 0.0, 0.0
	below := 0
	z, first := newZipf(24, 1.2), 0
	for range n {
		turns += float64(s.geometric(5)) / n
		if s.lognormal(48, 1.0, 4, 2048) < 48 {
			below++
		}
		if z.draw(s) == 0 {
			first++
		}
		small += float64(s.geometric(25)) / n
	}
	if math.Abs(turns-5) > 0.1 || math.Abs(small-25) > 0.5 {
		t.Errorf("geometric means %v and %v, want 5 and 25", turns, small)
	}
	if share := float64(below) / n; math.Abs(share-0.5) > 0.02 {
		t.Errorf("%v of the lengths are below the median", share)
	}
	want := 0.0
	for k := range 24 {
		want += math.Pow(float64(k+1), -1.2)
	}
	if share := float64(first) / n; math.Abs(share-1/want) > 0.01 {
		t.Errorf("the most popular has %v, want %v", share, 1/want)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, o := range []Options{{Kind: "batch"}, {Kind: ""}, {Kind: "chat", Requests: -1}, {Kind: "chat", BlockTokens: -1},
		{Kind: "rag", PromptTokensMax: 10}, {Kind: "chat", PromptTokensMax: 1 << 30}} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
	for _, k := range Kinds() {
		if About(k) == "" {
			t.Errorf("%s has no documentation", k)
		}
	}
}
