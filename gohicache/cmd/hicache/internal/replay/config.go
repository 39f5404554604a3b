// Package replay runs a request stream through a cache with all its tiers: it simulates the forward pass by writing stamps through kernel
// ids, and checks every reused page before use.
package replay

import (
	"fmt"
	"log/slog"
	"strings"

	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/geometry"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/size"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/trace"
	"github.com/hicache/hicache/gohicache/storage"
)

// Verification says which reused pages are checked.
type Verification int

const (
	VerifyAll    Verification = iota // every reused page, every byte
	VerifySample                     // one page in sampleOneIn, every byte of it
	VerifyOff
)

const sampleOneIn = 16

// ParseVerification reads all, sample or off.
func ParseVerification(s string) (Verification, error) {
	for v, name := range []string{"all", "sample", "off"} {
		if s == name {
			return Verification(v), nil
		}
	}
	return 0, fmt.Errorf("%q is not all, sample or off", s)
}

// Config is a whole run. The caller owns Source and Store and closes them.
type Config struct {
	Title    string // what is replayed, for the report
	Source   trace.Source
	Seed     uint64
	Limit    int // requests; 0 all
	AsBlocks bool

	Geometry     geometry.Geometry
	PageTokens   int
	Device, Host size.Size
	Backend      string // cpu or null
	Store        storage.Store
	StoreName    string
	Degraded     string // why there is no store although one was asked for
	WritePolicy  string
	HostLayout   string // "", or the order of pages in host regions
	Eviction     string
	WindowsTail  bool // only a prompt's last window gets window pages

	Stepped     bool // answers grow step by step in a batch of sequences; else a request's pages are leased for prompt and answer at once
	Concurrency int
	Verify      Verification
	IdlePages   int  // moved at most at each idle point
	Settle      bool // wait at each idle point until no copy is in flight, so that a run with one open request repeats exactly

	PromptTokensMax int    // longest prompt to expect, 0 unknown
	Library         string // path of libhicache, "" to search
	Sabotage        uint32
	Faults          *hicache.FaultOptions // failures and simulated time below the cache; nil none
	CopyThreads     int
	Logger          *slog.Logger

	Progress func(Progress) // called now and then by the run's goroutine; nil for none
	Record   bool           // keep samples and memory maps for a report

	wrap func(memory) memory // for tests: stands between the run and the pages
}

// unknownPromptTokens is how many new tokens with window pages a request is given in sizes in tokens, when nothing says how long prompts are.
const unknownPromptTokens = 8192

// Sizing is what the sizes came to.
type Sizing struct {
	DeviceBytes, HostBytes int64
	Lines                  []string // how, one line a tier, for people
}

// Resolve turns the sizes into bytes.
func (c *Config) Resolve() (Sizing, error) {
	var s Sizing
	var err error
	var line string
	if c.Device.IsZero() {
		return s, fmt.Errorf("device size %s: a cache needs a device tier", c.Device)
	}
	if s.DeviceBytes, line, err = c.resolve("device", c.Device, true); err != nil {
		return s, err
	}
	s.Lines = append(s.Lines, line)
	if s.HostBytes, line, err = c.resolve("host", c.Host, false); err != nil {
		return s, err
	}
	s.Lines = append(s.Lines, line)
	return s, nil
}

func (c *Config) resolve(tier string, z size.Size, sink bool) (int64, string, error) {
	if z.IsZero() {
		return 0, tier + ": off", nil
	}
	if z.Tokens == 0 {
		return z.Bytes, fmt.Sprintf("%s: %s = %d bytes", tier, z, z.Bytes), nil
	}
	lines, err := c.lines(z)
	if err != nil {
		return 0, "", fmt.Errorf("%s size %s: %w", tier, z, err)
	}
	arena, err := geometry.Place(lines, sink)
	if err != nil {
		return 0, "", fmt.Errorf("%s size %s: %w", tier, z, err)
	}
	var parts []string
	for _, l := range lines {
		parts = append(parts, fmt.Sprintf("%d %s pages of %s", l.Pages, l.Pool, size.Format(l.PageBytes)))
	}
	text := fmt.Sprintf("%s: %s = %s", tier, z, strings.Join(parts, " + "))
	if arena.SinkBytes > 0 {
		text += fmt.Sprintf(" + sink %s", size.Format(arena.SinkBytes))
	}
	return arena.Bytes, fmt.Sprintf("%s = %s (%d bytes)", text, size.Format(arena.Bytes), arena.Bytes), nil
}

// lines are the pages of each pool that a size in tokens stands for.
func (c *Config) lines(z size.Size) ([]geometry.Line, error) {
	d := geometry.Demand{Tokens: z.Tokens, PageTokens: c.PageTokens, Requests: c.Concurrency, States: 2}
	if !c.WindowsTail {
		d.WindowTokens = c.PromptTokensMax
		if d.WindowTokens == 0 {
			d.WindowTokens = unknownPromptTokens
		}
	}
	return c.Geometry.Lines(d)
}

// regions gives each pool a host region of the pages that the host's size in tokens stands for; a size in bytes is shared by the cache.
func (c *Config) regions(pools []hicache.PoolOptions) error {
	if c.Host.Tokens == 0 {
		return nil
	}
	lines, err := c.lines(c.Host)
	for i := range lines {
		pools[i].HostPages = int(lines[i].Pages)
	}
	return err
}

// Options are the cache's options for this run.
func (c *Config) Options(s Sizing) (*hicache.Options, error) {
	policy, err := hicache.ParseWritePolicy(c.WritePolicy)
	if err != nil {
		return nil, fmt.Errorf("write policy: %w", err)
	}
	layout := hicache.HostLayoutDefault
	if c.HostLayout != "" {
		if layout, err = hicache.ParseHostLayout(c.HostLayout); err != nil {
			return nil, fmt.Errorf("host layout: %w", err)
		}
	}
	o := &hicache.Options{HostLayout: layout,
		PageTokens: c.PageTokens, DeviceBytes: uint64(s.DeviceBytes), HostBytes: uint64(s.HostBytes), Pools: Pools(&c.Geometry),
		RequestTokensMax: c.PromptTokensMax, WritePolicy: policy, Eviction: c.Eviction, Storage: c.Store, Model: c.Geometry.Name,
		Library: c.Library, Sabotage: c.Sabotage, Faults: c.Faults, CopyThreads: c.CopyThreads, Logger: c.Logger,
		Prefetch: hicache.PrefetchWait,
	}
	if layout != hicache.HostLayoutDefault {
		if err := c.regions(o.Pools); err != nil {
			return nil, err
		}
	}
	if o.Device, err = Device(c.Backend); err != nil {
		return nil, err
	}
	return o, o.Validate()
}

// Backends lists what Device knows.
const Backends = "cpu|null|cuda"

// Device is the device of a backend's name.
func Device(backend string) (hicache.Device, error) {
	switch backend {
	case "cpu":
		return hicache.CPU, nil
	case "null":
		return hicache.Null, nil
	case "cuda":
		return hicache.CUDA(0), nil
	}
	return hicache.Device{}, fmt.Errorf("backend %q is not known: want one of %s (faults on purpose: option --fault-seed over cpu or null)", backend, Backends)
}

// Pools are a geometry's pools as the cache takes them.
func Pools(g *geometry.Geometry) []hicache.PoolOptions {
	roles := map[geometry.Role]hicache.Role{geometry.Full: hicache.Full, geometry.SWA: hicache.SWA, geometry.State: hicache.State}
	var pools []hicache.PoolOptions
	for i := range g.Pools {
		p := &g.Pools[i]
		pools = append(pools, hicache.PoolOptions{Name: p.Name, Role: roles[p.Role], Layers: p.Layers,
			KRowBytes: uint64(p.KRowBytes), VRowBytes: uint64(p.VRowBytes), WindowTokens: p.WindowTokens, Heads: p.HeadsOf()})
	}
	return pools
}
