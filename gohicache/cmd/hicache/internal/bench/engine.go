package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/hicache/hicache/ffi"
)

// Works of the engine that engine_bench measures, by the text it prints.
const (
	workTakeC      = "take + free of 4 pages, FULL+SWA, through C"
	workTakeSpread = "take + free, slowest over fastest arena"
	workChurn      = "churn: free 16 + take 16 pages at 25 % holes"
	workChurnFlat  = "churn, fastest over slowest arena"
	workPack       = "packing, whole pass"
	workPackPage   = "packing, a moved page"
	workBulk       = "bulk take of 256 pages out of holes, a page"
	workShort      = "take of 16 pages that needs moves"
	workShortMoved = "take of 16 pages that needs moves: pages moved"
	workShortFlat  = "take that needs moves, slowest over fastest arena"
	workTranslate  = "translate virtual to kernel ids"
	workReclaim    = "reclaim plan"
	workSubmit     = "submit of one load, on the caller"
	workSubmitPage = "submit of one load, each page beyond"
	workCopy       = "CPU backend, load, 2 workers"
	workTables     = "memory for tables, a page"
)

// Engine is the groups of `hicache bench engine`.
func Engine() []Group {
	return []Group{
		external("take-free", takeSpec, func(r *recorder) {
			r.spread(workTakeC, Spec{Work: workTakeSpread, Unit: "x", Lower: true, Bar: atMost(3, "x")})
		}, workTakeC, workTakeSpread),
		throughGo(),
		external("churn", churnSpec, func(r *recorder) {
			r.spread(workChurn, Spec{Work: workChurnFlat, Unit: "x", Lower: true, Bar: atMost(3, "x")})
		}, workChurn, workChurnFlat),
		external("packing", packSpec, nil, workPack, workPackPage),
		external("bulk", barOf(true, atMost(8, "ns")), nil, workBulk),
		external("shortfall", shortSpec, func(r *recorder) {
			r.spread(workShort, Spec{Work: workShortFlat, Unit: "x", Lower: true, Bar: atMost(3, "x")})
		}, workShort, workShortMoved, workShortFlat),
		external("translate", translateSpec, nil, workTranslate),
		external("reclaim", barOf(true, atMost(1000, "ns")), nil, workReclaim),
		external("submit", submitSpec, nil, workSubmit, workSubmitPage),
		external("copy-rate", barOf(false, ratioAtLeast(.85)), nil, workCopy),
		external("tables", barOf(true, atMost(32, "bytes")), nil, workTables),
		decodeStep(),
	}
}

func barOf(lower bool, b *Bar) func(*Spec) {
	return func(s *Spec) { s.Lower, s.Bar = lower, b }
}

func takeSpec(s *Spec) { s.Lower, s.Bar = true, atMost(500, "ns") }

// allocatorQuery is a run of the peer's allocator over an arena of so many pages, 16 pages a call.
func allocatorQuery(pages, op, unit string) *Query {
	reps := "3"
	if len(pages) >= 7 {
		reps = "2"
	}
	return &Query{Script: "bench_alloc.py", Args: []string{"--pages", pages, "--batch", "16", "--calls", "500", "--churn", "60", "--reps", reps},
		Op: op, Unit: unit, Config: pages + " pages"}
}

var plainCounts = map[string]string{"10^3": "1000", "10^4": "10000", "10^5": "100000", "10^6": "1000000"}

// pagesOf is the number of pages that a configuration begins with, as digits.
func pagesOf(config string) string {
	count, _, _ := strings.Cut(config, " ")
	return plainCounts[count]
}

func churnSpec(s *Spec) {
	s.Bar = ratioAtLeast(300)
	if n := pagesOf(s.Config); n != "" {
		s.Peer = allocatorQuery(n, "churn free+alloc at 25% holes, 16 pages/call", "pages/s")
	}
}

func packSpec(s *Spec) {
	s.Lower = true
	if s.Work == workPackPage {
		s.Bar = atMost(45, "ns")
		return
	}
	s.Bar = ratioAtLeast(20)
	if n := pagesOf(s.Config); n != "" {
		s.Peer = allocatorQuery(n, "urgent compaction at 50% random holes", "ms")
	}
}

func shortSpec(s *Spec) { s.Lower = true }

// The bar is about a hot table; the large one says what a cold one costs.
func translateSpec(s *Spec) {
	if strings.HasSuffix(s.Config, "table of 64 KiB") {
		s.Bar = atLeast(400, "M ids/s")
	}
}

func submitSpec(s *Spec) {
	s.Lower = true
	if s.Work == workSubmit {
		s.Bar = atMost(1000, "us")
	} else {
		s.Bar = atMost(100, "ns")
	}
}

// external is a group that a case of engine_bench measures. spec fills in bar and peer by the work; after, if given, derives figures.
func external(name string, spec func(*Spec), after func(*recorder), works ...string) Group {
	return Group{Name: name, Works: works, run: func(ctx context.Context, s *Settings, r *recorder) error {
		program := s.program(s.EngineBench, "engine_bench", "build")
		if program == "" {
			if !s.toldOfC {
				s.note("engine_bench was not found, so what is measured through C is left out; `make engine-bench` builds it")
			}
			s.toldOfC = true
			return nil
		}
		if err := runEngineBench(ctx, s, program, name, spec, r); err != nil {
			return err
		}
		if after != nil {
			after(r)
		}
		return nil
	}}
}

// program is the path of a bench program that the build makes, "" if there is none: the one that was named, or one beside the library, beside this
// program or in the folders of a build.
func (s *Settings) program(named, name string, builds ...string) string {
	if named != "" {
		return named
	}
	var folders []string
	for _, path := range []string{s.Library, os.Getenv("HICACHE_LIBRARY")} {
		if path != "" {
			folders = append(folders, filepath.Dir(path))
		}
	}
	if program, err := os.Executable(); err == nil {
		folders = append(folders, filepath.Dir(program))
		for _, b := range builds {
			folders = append(folders, filepath.Join(filepath.Dir(program), "..", b))
		}
	}
	for _, f := range append(folders, builds...) {
		if path := filepath.Join(f, name); isFile(path) {
			return path
		}
	}
	return ""
}

// runProgram returns what a program printed, also beside an error, which has its complaint.
func runProgram(ctx context.Context, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(complaint.String()))
	}
	return out, err
}

type engineLine struct {
	Work      string  `json:"work"`
	Config    string  `json:"config"`
	Unit      string  `json:"unit"`
	Value     float64 `json:"value"`
	Peer      string  `json:"peer"`
	PeerValue float64 `json:"peer_value"`
}

func runEngineBench(ctx context.Context, s *Settings, program, name string, spec func(*Spec), r *recorder) error {
	args := []string{"--runs", fmt.Sprint(s.runs())}
	if s.Quick {
		args = append(args, "--quick")
	}
	out, err := runProgram(ctx, program, append(args, name)...)
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		var l engineLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return fmt.Errorf("%s printed %q: %w", program, lines.Text(), err)
		}
		sp := Spec{Work: l.Work, Config: l.Config, Unit: l.Unit}
		spec(&sp)
		if l.Peer != "" {
			r.addBeside(sp, l.Value, l.Peer, l.PeerValue)
		} else {
			r.add(sp, l.Value)
		}
	}
	return lines.Err()
}

// enginePools are FULL and SWA with one layer each.
func enginePools(pageTokens uint32, window uint32) []ffi.PoolOptions {
	return []ffi.PoolOptions{
		{Role: ffi.RoleFull, PageTokens: pageTokens, LayerIDs: []uint32{0}, KRowBytes: 16, VRowBytes: 16},
		{Role: ffi.RoleSWA, PageTokens: pageTokens, WindowTokens: window, LayerIDs: []uint32{1}, KRowBytes: 16, VRowBytes: 16},
	}
}
