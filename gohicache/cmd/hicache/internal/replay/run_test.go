package replay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/geometry"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/report"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/size"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/stamp"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/trace"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/workload"
)

func places(p uint32) ids.PhysicalPage { return ids.PhysicalPage(p) }
func digest(d uint64) stamp.Digest     { return stamp.Digest(d) }

func needLibrary(t *testing.T) {
	t.Helper()
	if _, err := ffi.Load(""); err != nil {
		if os.Getenv("HICACHE_LIBRARY") != "" || errors.Is(err, ffi.ErrABI) {
			t.Fatal(err) // a library that is there and does not fit is a failure
		}
		t.Skipf("SKIPPED, NOT PASSED: %v", err)
	}
}

func mustSize(t *testing.T, text string) size.Size {
	t.Helper()
	s, err := size.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// config is a chat run that the tests change.
func config(t *testing.T, shape, device, host string, requests int) *Config {
	t.Helper()
	g, err := geometry.Named(shape)
	if err != nil {
		t.Fatal(err)
	}
	if g, err = g.Scaled(256); err != nil {
		t.Fatal(err)
	}
	src, err := workload.New(workload.Options{Kind: "chat", Seed: 1, Requests: requests, PromptTokensMax: 2048})
	if err != nil {
		t.Fatal(err)
	}
	return &Config{Title: "chat", Source: src, Seed: 1, Geometry: g, PageTokens: 16, Device: mustSize(t, device), Host: mustSize(t, host), Backend: "cpu",
		WritePolicy: "write_through", Eviction: "lru", Concurrency: 4, IdlePages: 64, PromptTokensMax: 2048}
}

func mustRun(t *testing.T, ctx context.Context, c *Config) *Result {
	t.Helper()
	needLibrary(t)
	s, err := c.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(ctx, c, s)
	if err != nil {
		t.Fatalf("%v\n%s", err, r.Mismatch)
	}
	if r.Mismatches != 0 || !r.VerifyOK {
		t.Fatalf("%d mismatches: %s\n%s", r.Mismatches, r.Mismatch, r.VerifyReport)
	}
	return r
}

func TestEveryShapeAndBackend(t *testing.T) {
	for _, shape := range geometry.Names() {
		for _, backend := range []string{"cpu", "cpu stepped", "null", "null stepped"} {
			t.Run(shape+"/"+backend, func(t *testing.T) {
				c := config(t, shape, "12000tok", "60000tok", 300)
				c.Backend, _, c.Stepped = strings.Cut(backend, " ")
				r := mustRun(t, context.Background(), c)
				if r.Requests != 300 || r.HitTokens.Device == 0 || r.HitTokens.Host == 0 || r.PagesVerified == 0 || r.LoadBacks == 0 || r.Evictions.Device == 0 {
					t.Errorf("%+v", r)
				}
			})
		}
	}
}

func TestTailWindowsAndNoHost(t *testing.T) {
	c := config(t, "gemma-3-27b", "12000tok", "0", 200)
	c.WindowsTail = true
	if r := mustRun(t, context.Background(), c); r.HitTokens.Device == 0 || r.HitTokens.Host+r.HitTokens.Storage != 0 || r.BackUps != 0 {
		t.Errorf("%+v", r)
	}
}

func TestReportOfARun(t *testing.T) {
	c := config(t, "gemma-3-27b", "12000tok", "60000tok", 200)
	c.Record = true
	r := mustRun(t, context.Background(), c)
	page, ok := r.Report()
	if !ok || len(page.Samples) < 2 || len(page.Map.Columns) < 2 || len(page.Totals) < 4 {
		t.Fatalf("%d samples, %d columns", len(page.Samples), len(page.Map.Columns))
	}
	live := 0
	for _, cell := range page.Map.Columns[len(page.Map.Columns)-1].Cells {
		if cell.State == report.Live {
			live++
		}
	}
	if live < page.Map.Rows/2 {
		t.Errorf("%d of %d cells are live at the end of a run that filled the arena", live, page.Map.Rows)
	}
	var b bytes.Buffer
	if err := report.Write(&b, page); err != nil {
		t.Fatal(err)
	}
}

// With failing copies loads fail and are tried again, back-ups are lost, and still nothing wrong is ever reused; a seed repeats exactly.
func TestFaultsNeverReachTheReader(t *testing.T) {
	for _, stepped := range []bool{false, true} {
		faultsRepeat(t, stepped)
	}
}

func faultsRepeat(t *testing.T, stepped bool) {
	var first *Result
	for range 2 {
		c := config(t, "gemma-3-27b", "12000tok", "60000tok", 300)
		c.Stepped = stepped
		c.Concurrency, c.Faults = 1, &hicache.FaultOptions{Seed: 11, FailPPM: 50000, DelayMax: time.Millisecond}
		r := mustRun(t, context.Background(), c)
		if r.FailedLoads == 0 || r.HitTokens.Host == 0 || r.Requests != 300 {
			t.Errorf("%d failed loads, %d tokens from host, %d requests", r.FailedLoads, r.HitTokens.Host, r.Requests)
		}
		if first == nil {
			first = r
			continue
		}
		for _, pair := range [][2]any{{first.HitTokens, r.HitTokens}, {first.Evictions, r.Evictions}, {first.Bytes, r.Bytes}, {first.CompactionMoves, r.CompactionMoves},
			{first.RelocatedPagesVerified, r.RelocatedPagesVerified}, {first.FailedLoads, r.FailedLoads}, {first.LoadBacks, r.LoadBacks}, {first.BackUps, r.BackUps}} {
			if pair[0] != pair[1] {
				t.Errorf("a seed gave %v and then %v", pair[0], pair[1])
			}
		}
	}
}

// reference is block-level LRU with the tail of a prompt evicted first, from the definition of published hit rates: how many leading blocks of each
// prompt are there, in a pool of `capacity` blocks.
func reference(rows []*trace.Request, capacity int) (hits, total int) {
	type key struct{ parent, id uint64 }
	names, clock := map[key]uint64{}, 0
	at := map[uint64]int{} // last use
	for _, r := range rows {
		var chain []uint64
		parent := uint64(0)
		for id := range r.IDs() {
			k := key{parent, id}
			if names[k] == 0 {
				names[k] = uint64(len(names) + 1)
			}
			parent = names[k]
			chain = append(chain, parent)
		}
		total += len(chain)
		for _, b := range chain {
			if _, ok := at[b]; !ok {
				break
			}
			hits++
		}
		for i := len(chain) - 1; i >= 0; i-- {
			clock++
			at[chain[i]] = clock
			if len(at) > capacity {
				oldest := chain[i]
				for b, when := range at {
					if when < at[oldest] {
						oldest = b
					}
				}
				delete(at, oldest)
			}
		}
	}
	return hits, total
}

// slice is a stream from memory.
type slice struct {
	rows  []*trace.Request
	at    int
	block int
}

func (s *slice) Next() (*trace.Request, error) {
	if s.at == len(s.rows) {
		return nil, io.EOF
	}
	s.at++
	return s.rows[s.at-1], nil
}
func (s *slice) BlockTokens() int  { return s.block }
func (s *slice) Fraction() float64 { return float64(s.at) / float64(len(s.rows)) }
func (s *slice) Close() error      { return nil }

func TestHitRatesAreThoseOfBlockLRU(t *testing.T) {
	src, err := workload.New(workload.Options{Kind: "chat", Seed: 3, Requests: 600})
	if err != nil {
		t.Fatal(err)
	}
	var rows []*trace.Request
	for {
		row, err := src.Next()
		if err != nil {
			break
		}
		row.Namespace = "" // the reference knows none
		rows = append(rows, row)
	}
	for i, capacity := range []int{600, 1500, 4000, 600, 1500, 4000} {
		hits, total := reference(rows, capacity)
		c := config(t, "llama-3-8b", "1tok", "0", 0)
		c.Source, c.Device, c.AsBlocks, c.Backend, c.Concurrency = &slice{rows: rows, block: 16}, size.Size{Tokens: int64(capacity) * 16}, true, "null", 1+i/3*3
		c.PromptTokensMax = 0
		r := mustRun(t, context.Background(), c)
		if want := float64(hits) / float64(total); r.HitRateBlocks < want-0.0005 || r.HitRateBlocks > want+0.0005 {
			t.Errorf("%d blocks, %d open: hit rate %.5f, want %.5f", capacity, c.Concurrency, r.HitRateBlocks, want)
		}
	}
}

// spoiler writes one page wrong, once.
type spoiler struct {
	memory
	left atomic.Int64
}

func (s *spoiler) write(items []item) error {
	if s.left.Add(-1) == 0 && len(items) > 0 {
		items = append([]item(nil), items...)
		items[0].digest++
	}
	return s.memory.write(items)
}

func TestAWrongPageIsFoundAndExplained(t *testing.T) {
	needLibrary(t)
	for _, backend := range []string{"cpu", "cpu stepped", "null", "null stepped"} {
		c := config(t, "gemma-3-27b", "40000tok", "0", 400)
		c.Backend, _, c.Stepped = strings.Cut(backend, " ")
		c.Concurrency = 1 // at more, the spoiled page may be a duplicate that is never published
		c.wrap = func(m memory) memory {
			s := &spoiler{memory: m}
			s.left.Store(1)
			return s
		}
		s, err := c.Resolve()
		if err != nil {
			t.Fatal(err)
		}
		r, err := Run(context.Background(), c, s)
		if err != nil || r.Mismatches == 0 {
			t.Fatalf("%s: %d mismatches, %v", backend, r.Mismatches, err)
		}
		for _, want := range []string{"pool full", "virtual page", "physical page", "kernel id", "want", "last events", "written"} {
			if !strings.Contains(r.Mismatch, want) {
				t.Errorf("%s: the explanation lacks %q:\n%s", backend, want, r.Mismatch)
			}
		}
		if c.Backend == "cpu" && !strings.Contains(r.Mismatch, "layer 5, K") {
			t.Errorf("the layer is missing:\n%s", r.Mismatch)
		}
	}
}

// stopper cancels the run after some requests.
type stopper struct {
	trace.Source
	left   int
	cancel func()
}

func (s *stopper) Next() (*trace.Request, error) {
	if s.left--; s.left == 0 {
		s.cancel()
	}
	return s.Source.Next()
}

func TestInterruptedRunIsPartialAndWhole(t *testing.T) {
	for _, stepped := range []bool{false, true} {
		c := config(t, "gemma-3-27b", "12000tok", "60000tok", 400)
		c.Stepped = stepped
		ctx, cancel := context.WithCancel(context.Background())
		c.Source = &stopper{c.Source, 120, cancel}
		r := mustRun(t, ctx, c)
		if !r.Partial || r.Requests > 119 || r.Requests < 119-int64(c.Concurrency) {
			t.Errorf("stepped %v: partial %v after %d requests", stepped, r.Partial, r.Requests)
		}
	}
}

// When a batch outgrows the arena its youngest sequence gives way, begins again later, and nothing is lost or wrong.
func TestYoungestSequenceGivesWay(t *testing.T) {
	c := config(t, "llama-3-8b", "3000tok", "60000tok", 200)
	c.Stepped, c.Concurrency = true, 16
	if r := mustRun(t, context.Background(), c); r.Preempted == 0 || r.Requests != 200 || r.NoCapacity == 0 {
		t.Errorf("%d gave way, %d requests", r.Preempted, r.Requests)
	}
}

func TestARequestThatCanNeverFit(t *testing.T) {
	needLibrary(t)
	c := config(t, "llama-3-8b", "1024tok", "0", 50)
	c.PromptTokensMax = 0
	s, _ := c.Resolve()
	r, err := Run(context.Background(), c, s)
	if !errors.Is(err, hicache.ErrInfeasible) || !strings.Contains(err.Error(), "request ") || !r.VerifyOK {
		t.Errorf("%v, verify %v", err, r.VerifyOK)
	}
	c = config(t, "llama-3-8b", "1024tok", "0", 50)
	s, _ = c.Resolve()
	if r, err := Run(context.Background(), c, s); !errors.Is(err, hicache.ErrInfeasible) || r.Requests != 0 {
		t.Errorf("open with longer prompts than fit: %v", err)
	}
}

// endless has prompts that fit and answers that do not.
type endless struct{ trace.Source }

func (e *endless) Next() (*trace.Request, error) {
	row, err := e.Source.Next()
	if err == nil {
		row.OutputTokens, row.OutputRuns = 1<<20, nil
	}
	return row, err
}

// TestAnswerThatOutgrowsTheArena ends the run at once: nothing that anybody else holds could make room.
func TestAnswerThatOutgrowsTheArena(t *testing.T) {
	needLibrary(t)
	c := config(t, "llama-3-8b", "12000tok", "20000tok", 3)
	c.Stepped = true
	c.Source = &endless{c.Source}
	s, err := c.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	r, err := Run(context.Background(), c, s)
	if !errors.Is(err, hicache.ErrInfeasible) || !strings.Contains(err.Error(), "request 0") || !r.VerifyOK {
		t.Errorf("%v, verify %v", err, r.VerifyOK)
	}
	if d := time.Since(start); d > roomTimeout {
		t.Errorf("it took %v", d)
	}
}

func TestJSONHasTheDocumentedFields(t *testing.T) {
	c := config(t, "llama-3-8b", "4096tok", "0", 1)
	var b bytes.Buffer
	if err := newResult(c, Sizing{}).WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for _, path := range strings.Fields(`requests prompt_tokens hit_tokens.device hit_tokens.host hit_tokens.storage hit_rate_blocks hit_rate_tokens
		pages_verified relocated_pages_verified bytes_verified mismatches load_backs back_ups prefetches bytes.h2d bytes.d2h bytes.storage_read
		bytes.storage_write compaction_moves evictions.device evictions.host evictions.storage no_capacity wall_s requests_per_s tokens_per_s
		submit_us.p50 submit_us.p99 moves_during_transfer verify_ok partial degraded`) {
		at := any(got)
		for _, name := range strings.Split(path, ".") {
			m, _ := at.(map[string]any)
			var ok bool
			if at, ok = m[name]; !ok {
				t.Errorf("the result lacks %s", path)
			}
		}
	}
}

func TestResolveSizes(t *testing.T) {
	c := config(t, "llama-3-8b", "512000tok", "0", 1)
	c.PageTokens = 512
	s, err := c.Resolve()
	page := int64(512 * 32 * 2 * 16)
	if err != nil || s.DeviceBytes != 1001*page || s.HostBytes != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	if c.Device = (size.Size{}); true {
		if _, err := c.Resolve(); err == nil {
			t.Error("a device of 0 was accepted")
		}
	}
	if c.Device = (size.Size{Tokens: 1 << 62}); true {
		if _, err := c.Resolve(); err == nil {
			t.Error("more than 2^63 bytes were accepted")
		}
	}
}

func TestGrouped(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000"} {
		if got := grouped(n); got != want {
			t.Errorf("grouped(%d) = %s", n, got)
		}
	}
}
