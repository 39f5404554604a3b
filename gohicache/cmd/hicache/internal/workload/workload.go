// Package workload makes request streams with documented statistics from a seed. A stream is a trace.Source, and hicache gen writes it as a
// trace file: the same seed gives the same requests on every machine.
package workload

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/trace"
)

// DefaultBlockTokens is the block size of generated streams: fine enough that what is shared is not rounded away.
const DefaultBlockTokens = 16

// Options of a stream. Zero values mean the defaults that the fields name.
type Options struct {
	Kind            string // chat, agent, rag or uniform
	Seed            uint64
	Requests        int // default 1000
	BlockTokens     int // default DefaultBlockTokens
	PromptTokensMax int // no prompt is longer; default by kind
}

// kind is one workload: its documentation, its default and its making.
type kind struct {
	name, about string
	promptMax   int
	start       func(*stream) stepper
}

// stepper makes the next request of a workload.
type stepper interface {
	next() *trace.Request
}

var kinds = []kind{
	{"chat", chatAbout, 8192, newChat},
	{"agent", agentAbout, 65536, newAgent},
	{"rag", ragAbout, 8192, newRAG},
	{"uniform", uniformAbout, 4096, newUniform},
}

// Kinds lists the workloads' names.
func Kinds() []string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// About gives the documented statistics of a workload.
func About(name string) string {
	for _, k := range kinds {
		if k.name == name {
			return k.about
		}
	}
	return ""
}

// stream is what the steppers share: the source of chance and of fresh block ids.
type stream struct {
	Options
	rng   *rand.Rand
	fresh uint64
	made  int
	step  stepper
}

// New starts a stream.
func New(o Options) (trace.Source, error) {
	for _, k := range kinds {
		if k.name != o.Kind {
			continue
		}
		if o.Requests == 0 {
			o.Requests = 1000
		}
		if o.BlockTokens == 0 {
			o.BlockTokens = DefaultBlockTokens
		}
		if o.PromptTokensMax == 0 {
			o.PromptTokensMax = k.promptMax
		}
		if o.Requests < 0 || o.BlockTokens < 1 || o.BlockTokens > 1<<16 || o.PromptTokensMax < 4*o.BlockTokens || o.PromptTokensMax > trace.MaxLengthTokens {
			return nil, fmt.Errorf("workload %s: %d requests, blocks of %d tokens, prompts up to %d tokens: want at least 0, 1 to 65536, and 4 blocks to %d",
				o.Kind, o.Requests, o.BlockTokens, o.PromptTokensMax, trace.MaxLengthTokens)
		}
		s := &stream{Options: o, rng: rand.New(rand.NewPCG(o.Seed, 0x68696361636865))}
		s.step = k.start(s)
		return s, nil
	}
	return nil, fmt.Errorf("workload %q is not known: want one of %s", o.Kind, strings.Join(Kinds(), ", "))
}

// Next implements trace.Source.
func (s *stream) Next() (*trace.Request, error) {
	if s.made == s.Requests {
		return nil, io.EOF
	}
	r := s.step.next()
	r.Index = s.made
	s.made++
	return r, nil
}

func (s *stream) BlockTokens() int  { return s.Options.BlockTokens }
func (s *stream) Fraction() float64 { return float64(s.made) / float64(max(1, s.Requests)) }
func (s *stream) Close() error      { return nil }

// lognormal draws a length in [lo, hi] whose median, before the cut, is median.
func (s *stream) lognormal(median, sigma float64, lo, hi int) int {
	v := median * math.Exp(sigma*s.rng.NormFloat64())
	return max(lo, min(hi, int(v+0.5)))
}

// geometric draws from 1, 2, … with the given mean.
func (s *stream) geometric(mean float64) int {
	return 1 + int(math.Log(1-s.rng.Float64())/math.Log(1-1/mean))
}

// zipf draws 0..n-1 with weights 1/(k+1)^exponent.
type zipf struct {
	cumulative []float64
}

func newZipf(n int, exponent float64) zipf {
	z := zipf{cumulative: make([]float64, n)}
	sum := 0.0
	for k := range n {
		sum += math.Pow(float64(k+1), -exponent)
		z.cumulative[k] = sum
	}
	return z
}

func (z zipf) draw(s *stream) int {
	x := s.rng.Float64() * z.cumulative[len(z.cumulative)-1]
	lo, hi := 0, len(z.cumulative)-1
	for lo < hi {
		if mid := (lo + hi) / 2; z.cumulative[mid] > x {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// text is a growing token sequence as block ids. Its last block may be partial; going on fills it first.
type text struct {
	ids    []uint64
	tokens int
}

// grow appends n tokens that nobody else has.
func (t *text) grow(s *stream, n int) {
	t.tokens += n
	for len(t.ids)*s.Options.BlockTokens < t.tokens {
		t.ids = append(t.ids, s.fresh)
		s.fresh++
	}
}

// whole cuts a text to whole blocks, so that what follows it can differ between the texts that share it.
func (t text) whole(s *stream) text {
	n := t.tokens / s.Options.BlockTokens
	return text{ids: t.ids[:n:n], tokens: n * s.Options.BlockTokens}
}

// fork copies a text so that both can grow apart: the partial last block becomes the copy's own.
func (t text) fork(s *stream) text {
	w := t.whole(s)
	w.ids = append([]uint64(nil), w.ids...)
	w.grow(s, t.tokens-w.tokens)
	return w
}

// ask makes the request "this text, and an answer of n tokens" and lets the text go on with the answer.
func (t *text) ask(s *stream, atMS float64, namespace string, n int) *trace.Request {
	r := &trace.Request{TimestampMS: math.Round(atMS), Namespace: namespace, InputTokens: t.tokens, OutputTokens: n, Runs: trace.RunsOf(t.ids)}
	before := len(t.ids)
	t.grow(s, n)
	if r.OutputRuns = trace.RunsOf(t.ids[before:]); r.OutputRuns == nil {
		r.OutputRuns = []trace.Run{}
	}
	return r
}

// shared makes n texts of whole blocks that many requests begin with.
func (s *stream) shared(n int, median, sigma float64, lo, hi int) []text {
	out := make([]text, n)
	b := s.Options.BlockTokens
	hi = min(hi, s.PromptTokensMax/2)
	for i := range out {
		out[i].grow(s, max(b, s.lognormal(median, sigma, min(lo, hi), hi)/b*b))
	}
	return out
}

// PromptTokensMax is the longest prompt that a stream with these options makes.
func PromptTokensMax(o Options) int {
	for _, k := range kinds {
		if k.name == o.Kind && o.PromptTokensMax == 0 {
			return k.promptMax
		}
	}
	return o.PromptTokensMax
}
