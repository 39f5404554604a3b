package replay

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/size"
)

// ByTier is a count by tier.
type ByTier struct {
	Device  int64 `json:"device"`
	Host    int64 `json:"host"`
	Storage int64 `json:"storage"`
}

func (t ByTier) sum() int64 { return t.Device + t.Host + t.Storage }

// Bytes are bytes moved between tiers.
type Bytes struct {
	H2D          uint64 `json:"h2d"`
	D2H          uint64 `json:"d2h"`
	StorageRead  uint64 `json:"storage_read"`
	StorageWrite uint64 `json:"storage_write"`
}

// Quantiles are in microseconds.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// Result is what a run found. The names of its JSON fields are part of the program's interface.
type Result struct {
	Requests     int64  `json:"requests"`
	PromptTokens int64  `json:"prompt_tokens"`
	OutputTokens int64  `json:"output_tokens"`
	HitTokens    ByTier `json:"hit_tokens"`
	// HitRateBlocks is whole blocks of the prompts' hits over all blocks of the prompts (the last, partial one counts); HitRateTokens is
	// hit tokens over prompt tokens.
	HitRateBlocks float64 `json:"hit_rate_blocks"`
	HitRateTokens float64 `json:"hit_rate_tokens"`

	PagesVerified int64 `json:"pages_verified"`
	// RelocatedPagesVerified counts checked pages whose place on their tier had changed since their content came to that tier.
	RelocatedPagesVerified int64 `json:"relocated_pages_verified"`
	BytesVerified          int64 `json:"bytes_verified"`
	Mismatches             int64 `json:"mismatches"` // pages

	LoadBacks  uint64 `json:"load_backs"` // transfers
	BackUps    uint64 `json:"back_ups"`
	Prefetches uint64 `json:"prefetches"`
	Bytes      Bytes  `json:"bytes"`

	CompactionMoves     uint64 `json:"compaction_moves"` // pages
	MovesDuringTransfer uint64 `json:"moves_during_transfer"`
	Evictions           ByTier `json:"evictions"`             // pages
	NoCapacity          int64  `json:"no_capacity"`           // times a request had to wait for the oldest open one
	Preempted           int64  `json:"preempted"`             // sequences that gave way to older ones and began again
	FailedLoads         int64  `json:"failed_loads"`          // begun again
	FailedLoad          string `json:"failed_load,omitempty"` // why, the last one

	WallS        float64   `json:"wall_s"`
	RequestsPerS float64   `json:"requests_per_s"`
	TokensPerS   float64   `json:"tokens_per_s"` // prompt tokens
	SubmitUS     Quantiles `json:"submit_us"`

	VerifyOK       bool   `json:"verify_ok"`
	Partial        bool   `json:"partial"`
	Degraded       bool   `json:"degraded"`
	DegradedReason string `json:"degraded_reason,omitempty"`
	VerifyReport   string `json:"verify_report,omitempty"`
	Mismatch       string `json:"mismatch,omitempty"` // the first, with the page's last events
	Error          string `json:"error,omitempty"`

	Config Configuration `json:"config"`

	blocks, hitBlocks int64
	report            *recording
}

// Configuration is what was run.
type Configuration struct {
	What        string `json:"what"`
	Geometry    string `json:"geometry"`
	Scale       int    `json:"scale"`
	PageTokens  int    `json:"page_tokens"`
	BlockTokens int    `json:"block_tokens"`
	DeviceBytes int64  `json:"device_bytes"`
	HostBytes   int64  `json:"host_bytes"`
	Storage     string `json:"storage"`
	Backend     string `json:"backend"`
	WritePolicy string `json:"write_policy"`
	HostLayout  string `json:"host_layout,omitempty"` // of regions; empty: envelopes in one arena
	Eviction    string `json:"eviction"`
	Concurrency int    `json:"concurrency"`
	Seed        uint64 `json:"seed"`
	AsBlocks    bool   `json:"as_blocks"`
}

func newResult(c *Config, s Sizing) *Result {
	return &Result{Degraded: c.Degraded != "", DegradedReason: c.Degraded, Config: Configuration{What: c.Title, Geometry: c.Geometry.Name, Scale: c.Geometry.Scale,
		PageTokens: c.PageTokens, BlockTokens: c.Source.BlockTokens(), DeviceBytes: s.DeviceBytes, HostBytes: s.HostBytes, Storage: c.StoreName,
		Backend: c.Backend, WritePolicy: c.WritePolicy, HostLayout: c.HostLayout, Eviction: c.Eviction, Concurrency: c.Concurrency, Seed: c.Seed, AsBlocks: c.AsBlocks}}
}

// take fills in what the cache counted.
func (r *Result) take(s hicache.Stats, wall time.Duration) {
	r.LoadBacks, r.BackUps, r.Prefetches = s.LoadBacks, s.BackUps, s.Prefetches
	r.Bytes = Bytes{H2D: s.BytesH2D, D2H: s.BytesD2H, StorageRead: s.StorageReadBytes, StorageWrite: s.StorageWriteBytes}
	r.CompactionMoves, r.MovesDuringTransfer = s.Moves, s.MovesDuringTransfer
	r.Evictions = ByTier{int64(s.Evicted.Device), int64(s.Evicted.Host), int64(s.Evicted.Storage)}
	r.SubmitUS = Quantiles{micros(s.Submit.Quantile(0.5)), micros(s.Submit.Quantile(0.99))}
	if s.Degraded != "" {
		r.Degraded, r.DegradedReason = true, s.Degraded
	}
	r.WallS = wall.Seconds()
	r.RequestsPerS, r.TokensPerS = ratio(float64(r.Requests), r.WallS), ratio(float64(r.PromptTokens), r.WallS)
	r.HitRateBlocks, r.HitRateTokens = ratio(float64(r.hitBlocks), float64(r.blocks)), ratio(float64(r.HitTokens.sum()), float64(r.PromptTokens))
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// WriteJSON prints the result as one object.
func (r *Result) WriteJSON(w io.Writer) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// line is a row of the printed table and of the report's.
type line struct{ group, name, value string }

func (r *Result) lines() []line {
	tokens := func(n int64) string { return grouped(n) + " tokens" }
	bytes := func(n uint64) string { return size.Format(int64(n)) }
	pages := func(n int64) string { return grouped(n) + " pages" }
	return []line{
		{"Requests", "requests", grouped(r.Requests)}, {"Requests", "prompt", tokens(r.PromptTokens)}, {"Requests", "answers", tokens(r.OutputTokens)},
		{"Requests", "wall time", fmt.Sprintf("%.2f s", r.WallS)}, {"Requests", "rate", fmt.Sprintf("%.0f requests/s, %s tokens/s", r.RequestsPerS, grouped(int64(r.TokensPerS)))},
		{"Requests", "waited for room", grouped(r.NoCapacity)}, {"Requests", "gave way and began again", grouped(r.Preempted)}, {"Requests", "loads that failed and were tried again", grouped(r.FailedLoads)},
		{"Hits", "from device", tokens(r.HitTokens.Device)}, {"Hits", "from host", tokens(r.HitTokens.Host)}, {"Hits", "from storage", tokens(r.HitTokens.Storage)},
		{"Hits", "hit rate, tokens", fmt.Sprintf("%.4f", r.HitRateTokens)}, {"Hits", "hit rate, blocks", fmt.Sprintf("%.4f", r.HitRateBlocks)},
		{"Checks", "reused pages verified", grouped(r.PagesVerified)}, {"Checks", "of these relocated", grouped(r.RelocatedPagesVerified)},
		{"Checks", "bytes verified", bytes(uint64(r.BytesVerified))}, {"Checks", "mismatches", grouped(r.Mismatches)},
		{"Checks", "invariants", map[bool]string{true: "hold", false: "BROKEN"}[r.VerifyOK]},
		{"Transfers", "load-backs", grouped(int64(r.LoadBacks))}, {"Transfers", "back-ups", grouped(int64(r.BackUps))}, {"Transfers", "prefetches", grouped(int64(r.Prefetches))},
		{"Transfers", "host to device", bytes(r.Bytes.H2D)}, {"Transfers", "device to host", bytes(r.Bytes.D2H)},
		{"Transfers", "storage read", bytes(r.Bytes.StorageRead)}, {"Transfers", "storage written", bytes(r.Bytes.StorageWrite)},
		{"Transfers", "submit, p50 / p99", fmt.Sprintf("%.1f / %.1f µs", r.SubmitUS.P50, r.SubmitUS.P99)},
		{"Memory", "moved by compaction", pages(int64(r.CompactionMoves))}, {"Memory", "of these during a transfer", pages(int64(r.MovesDuringTransfer))},
		{"Memory", "evicted from device", pages(r.Evictions.Device)}, {"Memory", "evicted from host", pages(r.Evictions.Host)}, {"Memory", "evicted from storage", pages(r.Evictions.Storage)},
	}
}

// WriteTable prints the result for people.
func (r *Result) WriteTable(w io.Writer) error {
	for _, n := range r.notes() {
		fmt.Fprintln(w, n)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	group := ""
	for _, l := range r.lines() {
		if l.group != group {
			group = l.group
			fmt.Fprintf(t, "%s\n", group)
		}
		fmt.Fprintf(t, "  %s\t%s\n", l.name, l.value)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if r.Mismatch != "" {
		fmt.Fprintf(w, "\nMISMATCH: %s", r.Mismatch)
	}
	if !r.VerifyOK && r.VerifyReport != "" {
		fmt.Fprintf(w, "\nBROKEN INVARIANTS: %s\n", r.VerifyReport)
	}
	return nil
}

// notes are what a reader must know before the numbers.
func (r *Result) notes() []string {
	var notes []string
	if r.Partial {
		notes = append(notes, fmt.Sprintf("PARTIAL: interrupted after %s requests", grouped(r.Requests)))
	}
	if r.Degraded {
		notes = append(notes, "DEGRADED: ran without storage: "+r.DegradedReason)
	}
	if r.FailedLoad != "" {
		notes = append(notes, fmt.Sprintf("%s loads failed and were tried again; the last: %s", grouped(r.FailedLoads), r.FailedLoad))
	}
	if r.Error != "" {
		notes = append(notes, "STOPPED: "+r.Error)
	}
	return notes
}

// grouped writes a number with its thousands apart.
func grouped(n int64) string {
	s := fmt.Sprint(n)
	sign := ""
	if s[0] == '-' {
		sign, s = "-", s[1:]
	}
	var parts []string
	for len(s) > 3 {
		parts = append([]string{s[len(s)-3:]}, parts...)
		s = s[:len(s)-3]
	}
	return sign + strings.Join(append([]string{s}, parts...), ",")
}

func percent(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }

// String says what was run in one line.
func (c *Configuration) String() string {
	tiers := "device " + size.Format(c.DeviceBytes)
	if c.HostBytes > 0 {
		tiers += ", host " + size.Format(c.HostBytes)
	}
	if c.Storage != "" {
		tiers += ", storage " + c.Storage
	}
	shape := c.Geometry
	if c.Scale > 1 {
		shape += fmt.Sprintf(" scaled 1:%d", c.Scale)
	}
	return fmt.Sprintf("%s on %s, pages of %d tokens; %s; backend %s, %s, %s, %d open at once, seed %d", c.What, shape, c.PageTokens, tiers, c.Backend, c.WritePolicy, c.Eviction, c.Concurrency, c.Seed)
}
