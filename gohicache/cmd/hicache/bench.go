package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"strings"
	"syscall"

	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/bench"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/cli"
)

const benchAbout = `Measures this machine's engine and cache and prints, for each piece of work, the median of several runs with the least and the largest, what
others do in the same run (with --peers) and whether a bar is met. Times are CPU time unless a row says wall. Nothing fails on a bar.

  engine   takes, frees, moves, translation, loads: the library, most of it through its C ABI by engine_bench (make engine-bench builds it)
  cache    the tree, its policy and the whole cache: request loops over traces, hashes, matches, evictions, memory
  hitrate  hit rates of all eviction policies over the traces, side by side
  cuda     the CUDA backend on a GPU of this machine, by hicache_device_bench (tools/h200_pack.sh builds it): wall or device time, one run, each figure a
           median; its bars are an H200's`

var benchSets = []struct {
	name   string
	groups func() []bench.Group
}{{"engine", bench.Engine}, {"cache", bench.Cache}, {"hitrate", bench.HitRate}, {"cuda", bench.Cuda}}

type benchOptions struct {
	runs        int
	only        string
	quick, full bool
	json        bool
	markdown    bool
	into        string
	library     string
	engineBench string
	deviceBench string
	recorded    string
	traces      string
	peers       string
}

func benchFlags(o *benchOptions) *cli.Flags {
	f := cli.NewFlags("bench", "engine|cache|hitrate|cuda [options]", benchAbout, 0)
	f.Group("what")
	f.String(&o.only, "only", "PATTERN", "", "only figures whose \"group: work, config\" matches this regular expression")
	f.Int(&o.runs, "runs", "times", 5, "how often each thing is measured")
	f.Bool(&o.full, "full", "also the sizes that take minutes: the whole agent trace, a tree of 100 M tokens")
	f.Bool(&o.quick, "quick", "tiny sizes: shows that everything runs; the figures mean little")
	f.Group("where")
	f.String(&o.peers, "peers", "FOLDER", "", "the peers' scripts (bench_*.py) or their environment (venv/bin/python); they run beside ours. None: peers stay empty")
	f.String(&o.traces, "traces", "FOLDER", "", "the request traces; none: $HICACHE_SHARED/traces, then ../shared/traces")
	f.String(&o.library, "library", "FILE", "", "path of libhicache; none: HICACHE_LIBRARY, beside the program, the build folder, the system")
	f.String(&o.engineBench, "engine-bench", "FILE", "", "path of engine_bench; none: beside the library, beside the program, the build folder")
	f.String(&o.deviceBench, "device-bench", "FILE", "", "path of hicache_device_bench; none: beside the library, beside the program, build-cuda, out/h200")
	f.String(&o.recorded, "recorded", "FILE", "", "cuda: judge results.json of tools/h200_run.sh in place of a run")
	f.Group("output")
	f.Bool(&o.json, "json", "print the figures as one JSON array of {work, config, unit, value, peer, peer_value, ratio, bar, meets, runs, min, max}")
	f.Bool(&o.markdown, "markdown", "print the table for a document")
	f.String(&o.into, "into", "FILE.md", "", "write the table between the lines <!-- bench NAME --> and <!-- end NAME --> of a document, e.g. docs/PERFORMANCE.md")
	return f
}

func runBench(args []string, _ io.Reader, out, errOut io.Writer) int {
	var o benchOptions
	f := benchFlags(&o)
	var set string
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		set, args = args[0], args[1:]
	}
	if exit, done := f.Parse(args, out, errOut); done {
		return exit
	}
	fail := func(code int, err error) int {
		fmt.Fprintf(errOut, "hicache bench: %v\n", err)
		return code
	}
	groups, err := benchGroups(set)
	if err != nil {
		return fail(cli.Usage, err)
	}
	s, err := o.settings(errOut)
	if err != nil {
		return fail(cli.Usage, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	before := loadAverage()
	rows, runErr := bench.Run(ctx, groups, s)
	newProgressLine(errOut).clear()
	if err := o.print(set, rows, before, out); err != nil {
		return fail(cli.Failed, err)
	}
	switch {
	case errors.Is(runErr, context.Canceled):
		return cli.Interrupted
	case runErr != nil:
		return fail(cli.Failed, runErr)
	}
	return cli.OK
}

func benchGroups(set string) ([]bench.Group, error) {
	var names []string
	for _, b := range benchSets {
		if b.name == set {
			return b.groups(), nil
		}
		names = append(names, b.name)
	}
	return nil, fmt.Errorf("want one of %s, got %q; see hicache bench --help", strings.Join(names, ", "), set)
}

func (o *benchOptions) settings(errOut io.Writer) (*bench.Settings, error) {
	if o.runs < 1 || o.runs > 1000 {
		return nil, fmt.Errorf("option --runs: %d, want 1 to 1000", o.runs)
	}
	s := &bench.Settings{Runs: o.runs, Quick: o.quick, Full: o.full, Library: o.library, EngineBench: o.engineBench, DeviceBench: o.deviceBench, Recorded: o.recorded, Traces: o.traces}
	var err error
	if o.only != "" {
		if s.Only, err = regexp.Compile(o.only); err != nil {
			return nil, fmt.Errorf("option --only: %w", err)
		}
	}
	if s.Traces == "" {
		s.Traces = bench.DefaultTraces()
	}
	if s.Peers, err = bench.FindPeers(o.peers, bench.DefaultPeerScripts()); err != nil {
		return nil, fmt.Errorf("option --peers: %w", err)
	}
	s.Note = func(text string) { fmt.Fprintf(errOut, "hicache bench: note: %s\n", text) }
	line := newProgressLine(errOut)
	s.Progress = func(group string, done, all int) {
		if line.out != nil {
			line.shown = true
			fmt.Fprintf(line.out, "\r\x1b[K%s (%d of %d)", group, done+1, all)
		}
	}
	return s, nil
}

func (o *benchOptions) print(set string, rows []bench.Row, loadBefore string, out io.Writer) error {
	if o.json {
		return bench.WriteJSON(out, rows)
	}
	var text strings.Builder
	markdown := o.markdown || o.into != ""
	write := bench.WriteTable
	switch {
	case set == "hitrate":
		write = func(out io.Writer, rows []bench.Row) error { return bench.WriteHitRates(out, rows, markdown) }
	case markdown:
		write = bench.WriteMarkdown
	}
	if err := write(&text, rows); err != nil {
		return err
	}
	if set != "hitrate" { // hit rates are the same on every machine
		fmt.Fprintf(&text, "\n%d CPUs, %s; load average %s before, %s after. ?: the bar is about a peer that was not run.\n", runtime.NumCPU(), runtime.GOARCH, loadBefore, loadAverage())
	}
	if o.into != "" {
		return bench.ReplaceSection(o.into, set, text.String())
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// loadAverage is the kernel's, over the last minute.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}
