package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/cli"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/geometry"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/replay"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/report"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/size"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/trace"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/workload"
)

const replayAbout = `Replays a request stream through a cache with all its tiers. For each request, in order: match, load what the host and
storage hold, check every reused page, write the KV of the new tokens into their pages through kernel ids (a simulated forward pass),
publish, release. What is written is a function of the namespace, all tokens up to and including the page, the layer, K or V and the pool, so a
page at the wrong place, of the wrong prefix, layer or age is found.

Sizes are bytes (41943040, 40GiB) or tokens (5120000tok: bytes for that many full-attention tokens, plus what the window and state pools
need for the requests that are open at once; printed).`

// shapeOptions are what replay and plan share.
type shapeOptions struct {
	geometry     string
	pools        poolList
	scale        int
	pageTokens   int
	device, host size.Size
	concurrency  int
	windows      string
	library      string
}

type poolList []geometry.Pool

func (l *poolList) String() string { return "" }

func (l *poolList) Set(text string) error {
	p, err := geometry.ParsePool(text)
	if err == nil {
		*l = append(*l, p)
	}
	return err
}

func addShapeFlags(f *cli.Flags, o *shapeOptions, scale int) {
	o.device, o.host = size.Size{Tokens: 65536, Text: "65536tok"}, size.Size{Tokens: 262144, Text: "262144tok"}
	f.Group("shape")
	f.String(&o.geometry, "geometry", strings.Join(geometry.Names(), "|"), "llama-3-8b", "the KV shape of a published model")
	f.Var(&o.pools, "pool", geometry.PoolSyntax, "", "a pool by hand; again for each pool; replaces --geometry")
	f.Int(&o.scale, "scale", "factor", scale, "shrink a token's rows so many times, to 16 bytes at least; layers, pools and windows stay; 1 is the published size")
	f.Int(&o.pageTokens, "page-tokens", "tokens", 16, "tokens in a page")
	f.String(&o.windows, "windows", "all|tail", "all", "which new pages get pages in sliding-window pools: all, or only those of a prompt's last window")
	f.Group("tiers")
	f.Var(&o.device, "device", "SIZE", o.device.Text, "size of the device tier")
	f.Var(&o.host, "host", "SIZE", o.host.Text, "size of the host tier; 0 turns it off (storage then keeps a small staging arena)")
	f.Int(&o.concurrency, "concurrency", "requests", 4, "requests open at once")
	f.String(&o.library, "library", "FILE", "", "path of libhicache; none: HICACHE_LIBRARY, beside the program, the build folder, the system")
}

// shape is the geometry that the options mean.
func (o *shapeOptions) shape() (geometry.Geometry, error) {
	if o.pageTokens < 1 || o.pageTokens > 1<<20 {
		return geometry.Geometry{}, fmt.Errorf("option --page-tokens: %d, want 1 to %d", o.pageTokens, 1<<20)
	}
	if o.concurrency < 1 || o.concurrency > 4096 {
		return geometry.Geometry{}, fmt.Errorf("option --concurrency: %d, want 1 to 4096", o.concurrency)
	}
	if o.windows != "all" && o.windows != "tail" {
		return geometry.Geometry{}, fmt.Errorf("option --windows: %q is not all or tail", o.windows)
	}
	if len(o.pools) > 0 {
		g, err := geometry.ByHand(o.pools)
		if err != nil {
			return g, fmt.Errorf("option --pool: %w", err)
		}
		return g, nil
	}
	g, err := geometry.Named(o.geometry)
	if err != nil {
		return g, fmt.Errorf("option --geometry: %w", err)
	}
	if g, err = g.Scaled(o.scale); err != nil {
		return g, fmt.Errorf("option --scale: %w", err)
	}
	return g, nil
}

type replayOptions struct {
	shape       shapeOptions
	tracePath   string
	workload    workload.Options
	limit       int
	asBlocks    bool
	storage     string
	writePolicy string
	hostLayout  string
	eviction    string
	backend     string
	verify      string
	idlePages   int
	settle      string
	answers     string
	copyThreads int
	json        bool
	report      string
	verbose     bool
	sabotage    uint64
	faultSeed   uint64
	faultPPM    int
}

func replayFlags(o *replayOptions) *cli.Flags {
	f := cli.NewFlags("replay", "[--trace FILE | --workload NAME] [options]", replayAbout, 0)
	f.Group("requests")
	f.String(&o.tracePath, "trace", "FILE", "", "a trace: JSON lines, plain or gzip, with hash_ids or runs")
	addWorkloadFlags(f, &o.workload, "")
	f.Int(&o.limit, "limit", "requests", 0, "stop after so many; 0: the whole trace, or 1000 of a workload")
	f.Bool(&o.asBlocks, "as-blocks", "a prompt is its ids as whole blocks, full hits count, answers are left out: the definition of published hit rates")
	f.String(&o.answers, "answers", "auto|stepped|leased", "auto", "stepped: the open requests are sequences that decode together, a page a step, and own their pages without a lease between steps; leased: prompt and answer at once under one lease; auto: stepped, except as blocks or with state pools")
	addShapeFlags(f, &o.shape, 16)
	f.String(&o.storage, "storage", "DIR[:SIZE]", "", "a folder for the storage tier, and the most it may hold")
	f.String(&o.backend, "backend", replay.Backends, "cpu", "cpu moves every byte; null keeps tables and a tag a page, for tiers larger than this machine; cuda has the first GPU write and check every byte")
	f.Group("policy")
	f.String(&o.writePolicy, "write-policy", "write_through|write_through_selective|write_back", "write_through", "when pages are copied to the host tier")
	f.String(&o.hostLayout, "host-layout", "layer_first|page_first|page_first_direct|page_head", "", "each pool has a host region of its own, in this order; without it pools share one host arena of envelopes")
	f.String(&o.eviction, "eviction", "lru|auto|lfu|fifo|mru|filo|slru|priority|tlru", "lru", "which pages leave first")
	f.Int(&o.idlePages, "idle-pages", "pages", 256, "compaction moves at most so many at each idle point, between two requests; 0: only when room is short")
	f.String(&o.settle, "settle", "auto|on|off", "auto", "wait at each idle point until no copy is in flight: a run with one open request then repeats exactly, but nothing overlaps; auto: on with --concurrency 1")
	f.Int(&o.copyThreads, "copy-threads", "threads", 1, "copy workers a direction")
	f.Group("checks and output")
	f.String(&o.verify, "verify", "all|sample|off", "all", "which reused pages are checked before use; sample: one in 16")
	f.Bool(&o.json, "json", "print the result as one JSON object")
	f.String(&o.report, "report", "FILE.html", "", "write a self-contained page with charts and a memory map")
	f.Bool(&o.verbose, "verbose", "log what the cache logs, to the standard error")
	f.Group("faults")
	f.Uint64(&o.faultSeed, "fault-seed", "number", 0, "run over the fault backend: copies complete in a seeded order after seeded delays of a virtual clock, so that a run with --concurrency 1 repeats exactly; 0: off")
	f.Int(&o.faultPPM, "fault-ppm", "parts per million", 0, "so many copies fail; needs --fault-seed")
	f.HiddenUint64(&o.sabotage, "sabotage")
	return f
}

func runReplay(args []string, _ io.Reader, out, errOut io.Writer) int {
	var o replayOptions
	f := replayFlags(&o)
	if exit, done := f.Parse(args, out, errOut); done {
		return exit
	}
	fail := func(code int, err error) int {
		fmt.Fprintf(errOut, "hicache replay: %v\n", err)
		return code
	}
	cfg, err := o.config(f, errOut)
	if err != nil {
		return fail(cli.Usage, err)
	}
	defer cfg.Source.Close()
	if cfg.Store != nil {
		defer cfg.Store.Close()
	}
	sizing, err := cfg.Resolve()
	if err != nil {
		return fail(cli.Usage, err)
	}
	if _, err := cfg.Options(sizing); err != nil {
		return fail(cli.Usage, err)
	}
	if !o.json {
		fmt.Fprintln(out, strings.Join(sizing.Lines, "\n"))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	progress := newProgressLine(errOut)
	cfg.Progress = progress.show
	result, runErr := replay.Run(ctx, cfg, sizing)
	progress.clear()
	if runErr != nil {
		result.Error = runErr.Error()
	}
	return o.deliver(result, runErr, out, errOut)
}

// deliver prints the result and gives the exit code. A run that never began has no result, only an error.
func (o *replayOptions) deliver(result *replay.Result, runErr error, out, errOut io.Writer) int {
	exit := exitCode(result, runErr)
	if runErr != nil {
		fmt.Fprintf(errOut, "hicache replay: %v\n", runErr)
		if exit == cli.Usage && result.Requests == 0 {
			return exit
		}
	}
	var err error
	if o.json {
		err = result.WriteJSON(out)
	} else {
		err = result.WriteTable(out)
	}
	if page, ok := result.Report(); ok && err == nil && o.report != "" {
		if err = report.WriteFile(o.report, page); err == nil && !o.json {
			fmt.Fprintf(out, "report: %s\n", o.report)
		}
	}
	if err != nil {
		fmt.Fprintf(errOut, "hicache replay: %v\n", err)
		if exit == cli.OK {
			return cli.Failed
		}
	}
	return exit
}

// exitCode follows cli.ExitCodes.
func exitCode(r *replay.Result, err error) int {
	var inTrace *trace.Error
	switch {
	case r.Mismatches > 0 || r.VerifyReport != "":
		return cli.CheckFailed
	case errors.As(err, &inTrace):
		return cli.Usage
	case err != nil && r.Requests == 0 && (errors.Is(err, hicache.ErrInfeasible) || errors.Is(err, hicache.ErrInvalid) || errors.Is(err, hicache.ErrUnsupported) || errors.Is(err, hicache.ErrABI)):
		return cli.Usage
	case err != nil:
		return cli.Failed
	case r.Partial:
		return cli.Interrupted
	}
	return cli.OK
}

// config turns the options into a run. The caller closes its source and store.
func (o *replayOptions) config(f *cli.Flags, errOut io.Writer) (*replay.Config, error) {
	g, err := o.shape.shape()
	if err != nil {
		return nil, err
	}
	verification, err := replay.ParseVerification(o.verify)
	if err != nil {
		return nil, fmt.Errorf("option --verify: %w", err)
	}
	if o.report != "" { // found out now, not after a long run
		if in, err := os.Stat(filepath.Dir(o.report)); err != nil || !in.IsDir() {
			return nil, fmt.Errorf("option --report: %s: its folder does not exist", o.report)
		}
	}
	stepped, err := o.stepped(&g)
	if err != nil {
		return nil, err
	}
	if o.settle != "auto" && o.settle != "on" && o.settle != "off" {
		return nil, fmt.Errorf("option --settle: %q is not auto, on or off", o.settle)
	}
	if o.limit < 0 || o.idlePages < 0 || o.sabotage > 1<<32-1 {
		return nil, fmt.Errorf("option --limit or --idle-pages is negative")
	}
	c := &replay.Config{Seed: o.workload.Seed, Limit: o.limit, AsBlocks: o.asBlocks, Geometry: g, PageTokens: o.shape.pageTokens, Device: o.shape.device,
		Host: o.shape.host, Backend: o.backend, WritePolicy: o.writePolicy, HostLayout: o.hostLayout, Eviction: o.eviction, WindowsTail: o.shape.windows == "tail",
		Stepped: stepped, Concurrency: o.shape.concurrency, Verify: verification, IdlePages: o.idlePages, Settle: o.settle == "on" || o.settle == "auto" && o.shape.concurrency == 1, Library: o.shape.library, Sabotage: uint32(o.sabotage),
		CopyThreads: o.copyThreads, Record: o.report != ""}
	if o.faultSeed == 0 && o.faultPPM != 0 || o.faultPPM < 0 || o.faultPPM > 1e6 {
		return nil, fmt.Errorf("option --fault-ppm: %d: want 0 to 1000000, and --fault-seed with it", o.faultPPM)
	}
	if o.faultSeed != 0 {
		c.Faults = &hicache.FaultOptions{Seed: o.faultSeed, FailPPM: uint32(o.faultPPM), DelayMax: time.Millisecond}
	}
	if o.verbose {
		c.Logger = slog.New(slog.NewTextHandler(errOut, nil))
	}
	if err := o.openSource(f, c); err != nil {
		return nil, err
	}
	if err := o.openStore(c, errOut); err != nil {
		c.Source.Close()
		return nil, err
	}
	return c, nil
}

// stepped resolves --answers.
func (o *replayOptions) stepped(g *geometry.Geometry) (bool, error) {
	switch o.answers {
	case "auto":
		return !o.asBlocks && !g.Has(geometry.State), nil
	case "leased":
		return false, nil
	case "stepped":
		if o.asBlocks {
			return false, errors.New("option --answers: stepped does not go with --as-blocks")
		}
		return true, nil
	}
	return false, fmt.Errorf("option --answers: %q is not auto, stepped or leased", o.answers)
}

func (o *replayOptions) openSource(f *cli.Flags, c *replay.Config) (err error) {
	if o.tracePath != "" && o.workload.Kind != "" {
		return errors.New("options --trace and --workload: want one of them")
	}
	if o.tracePath == "" && o.workload.Kind == "" {
		return errors.New("want --trace FILE or --workload " + strings.Join(workload.Kinds(), "|"))
	}
	if o.tracePath == "" {
		o.workload.Requests = o.limit
		c.Source, err = workload.New(o.workload)
		c.Title = fmt.Sprintf("workload %s", o.workload.Kind)
		if err == nil {
			c.PromptTokensMax = workload.PromptTokensMax(o.workload)
		}
		return err
	}
	if f.Given("prompt-max") {
		return errors.New("option --prompt-max: only workloads are generated")
	}
	if o.workload.BlockTokens < 0 || o.workload.BlockTokens > trace.MaxLengthTokens {
		return fmt.Errorf("option --block-tokens: %d tokens", o.workload.BlockTokens)
	}
	c.Source, err = trace.Open(o.tracePath, o.workload.BlockTokens)
	c.Title = "trace " + filepath.Base(o.tracePath)
	return err
}

// progressLine overwrites one line of a terminal; elsewhere it is silent.
type progressLine struct {
	out   io.Writer
	shown bool
}

func newProgressLine(out io.Writer) *progressLine {
	if f, ok := out.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			return &progressLine{out: out}
		}
	}
	return &progressLine{}
}

func (l *progressLine) show(p replay.Progress) {
	if l.out == nil {
		return
	}
	l.shown = true
	fmt.Fprint(l.out, "\r\x1b[K", progressText(p))
}

func progressText(p replay.Progress) string {
	s := p.Elapsed.Seconds()
	text := fmt.Sprintf("%d requests, %.0f/s, %.2f M tokens/s", p.Requests, float64(p.Requests)/s, float64(p.PromptTokens)/s/1e6)
	if p.PromptTokens > 0 {
		text += fmt.Sprintf(", hits %.1f %%", 100*float64(p.HitTokens)/float64(p.PromptTokens))
	}
	if p.Fraction > 0.005 {
		left := time.Duration(float64(p.Elapsed) * (1 - p.Fraction) / p.Fraction)
		text += fmt.Sprintf(", %.0f %% done, about %v left", 100*p.Fraction, left.Round(time.Second))
	}
	return text
}

func (l *progressLine) clear() {
	if l.shown {
		fmt.Fprint(l.out, "\r\x1b[K")
	}
}
