package bench

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// printed is what hicache_device_bench prints on a GPU, by part.
var printed = map[string]string{
	"": `{"work": "machine", "gpu": "NVIDIA H200", "driver_cuda": 13000, "numa_node": 0, "kernels": "yes"}
{"work": "ceiling, contiguous", "h2d_gb_s": 50, "d2h_gb_s": 40, "d2d_read_write_gb_s": 4000}
`,
	"envelopes": `{"work": "envelopes 2 MiB scattered, quanta of 16 MiB", "h2d_gb_s": 48, "d2h_gb_s": 36, "h2d_of_ceiling": 0.96, "d2h_of_ceiling": 0.9, "both_h2d": 46, "both_d2h": 44, "both_sum": 90}
`,
	"small": `{"work": "another stream's copy during a bulk transfer, quanta of 16 MiB", "direction": "h2d", "bytes": 4096, "count": 300, "median_us": 16, "p99_us": 251, "worst_us": 470}
{"work": "envelopes 2 MiB scattered, quanta of 4 MiB", "h2d_gb_s": 40, "d2h_gb_s": 36, "both_h2d": 46, "both_d2h": 44, "both_sum": 90}
{"work": "another stream's copy during a bulk transfer, quanta of 4 MiB", "direction": "d2h", "bytes": 2097152, "median_us": 130, "worst_us": 340}
{"work": "another stream's copy during a bulk transfer, quanta of 4 MiB", "direction": "h2d", "bytes": 4096, "median_us": 119, "worst_us": 121}
`,
	"moving": `{"work": "envelopes beside page moves", "direction": "h2d", "limited": true, "moves_gb_s": 500, "alone_gb_s": 54, "gb_s": 52, "kept": 0.963}
{"work": "envelopes beside page moves", "direction": "d2h", "limited": true, "moves_gb_s": 500, "alone_gb_s": 50, "gb_s": 47, "kept": 0.94}
{"work": "envelopes beside page moves", "direction": "d2h", "limited": false, "moves_gb_s": 3600, "alone_gb_s": 50, "gb_s": 40, "kept": 0.8}
`,
	"overlap": `{"work": "load of 32 layers beside compute of equal length", "load_ms": 20, "compute_ms": 20.1, "together_ms": 21.4, "of_the_longer": 1.065}
`,
	"staged": `{"work": "layer slices into large host runs", "bytes": 2048, "host_run_bytes": 1048576, "method": "auto", "h2d_gb_s": 52.5, "d2h_gb_s": 51.9, "direct": 0, "kernel": 0, "staged": 1}
{"work": "layer slices into large host runs", "bytes": 65536, "host_run_bytes": 2097152, "method": "staged", "h2d_gb_s": 40, "d2h_gb_s": 40, "direct": 0, "kernel": 0, "staged": 1}
`,
	"kernels": `{"work": "kernel alone", "kernel": "hicache_page_move", "what": "pages of 2 MiB", "bytes": 536870912, "us": 134, "gb_s": 4006.5}
`,
	"layers": `{"work": "layer-wise load, 1 GiB, 32 layers, page 16", "layer0_ms": 0.9, "quarter_ms": 5.5, "all_ms": 20.1, "submit_us": 12.7, "layer_wait_us": 3}
`,
	"graph": `{"work": "layer wait in a captured graph", "replays": 3, "wrong_layers": 0, "satisfied_wait_us": 0.29}
`,
	"costs": `{"work": "calls on the caller's thread", "context_us": 0.1, "capturing_us": 0.2, "event_record_us": 1.5, "fence_record_us": 2, "order_step_us": 3, "move_one_page_us": 4}
{"work": "submit and its pieces, lane dozing", "submit_us": 3.5, "layer_wait_us": 10.5, "clock_us": 0.03}
{"work": "layer wait, 5 us after the submit of 1 GiB", "median_us": 9, "worst_us": 40}
`,
	"calibration": `{"work": "calibration at open, rows of 2 KiB", "direction": "h2d", "source": "calibrated", "us": 84000, "probes": 20, "planned": 20, "direct_from": [49152, 65536], "blocks_alone": 4}
{"work": "calibration at open, rows of 2 KiB", "direction": "h2d", "source": "calibrated", "us": 120000, "probes": 20, "planned": 20, "direct_from": [49152, 65536], "blocks_alone": 4}
{"work": "probe, rows of 2 KiB", "round": 0, "direction": "d2h", "method": "kernel", "bytes": 2048, "run": 0, "blocks": 4, "count": 4096, "both": 1, "gb_s": 44}
`,
	"moves": `{"work": "page moves", "page_bytes": 32768, "tb_s": 3.5, "of_contiguous": 0.875, "burst_16_mib_us": 9.5}
{"work": "page moves", "page_bytes": 262144, "tb_s": 3.58, "of_contiguous": 0.895, "burst_16_mib_us": 9}
{"work": "page moves", "page_bytes": 2097152, "tb_s": 3.72, "of_contiguous": 0.93, "burst_16_mib_us": 9}
`,
	"fragments": `{"work": "fragments on both sides", "bytes": 2048, "method": "kernel", "blocks": 4, "h2d_gb_s": 46, "d2h_gb_s": 35}
{"work": "fragments on both sides", "bytes": 512, "method": "kernel", "blocks": 4, "h2d_gb_s": 40.5, "d2h_gb_s": 31.6}
{"work": "fragments on both sides", "bytes": 2048, "method": "kernel", "blocks": 2, "h2d_gb_s": 30, "d2h_gb_s": 30}
{"work": "fragments on both sides", "bytes": 32768, "method": "direct", "blocks": 0, "h2d_gb_s": 35.6, "d2h_gb_s": 43.3}
`,
	"ids": `{"work": "translate 1 Mi ids", "us": 20, "plain_gather_us": 14, "of_gather": 0.7}
{"work": "digest of pages, call and answer included", "bytes": 4294967296, "ms": 1.3, "tb_s_read": 3.3}
`,
	"open": `{"work": "open", "pinned_gib": 8, "first_s": 1.5, "again_s": 0.38}
{"work": "open", "pinned_gib": 32, "first_s": 7.2, "again_s": 1.88}
`,
}

// fakeDevice is a program that prints what the real one prints, and notes the parts that it was asked for.
func fakeDevice(t *testing.T, text map[string]string) (program, log string) {
	t.Helper()
	dir := t.TempDir()
	for part, lines := range text {
		if err := os.WriteFile(filepath.Join(dir, "part-"+part), []byte(lines), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	program = filepath.Join(dir, "hicache_device_bench")
	script := "#!/bin/sh\ncd \"$(dirname \"$0\")\"\necho $1 >> log\ncat part- || exit 3\n[ $1 = ceilings ] || cat part-$1\ngrep -q error part- && exit 1\nexit 0\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return program, filepath.Join(dir, "log")
}

func TestCudaFigures(t *testing.T) {
	program, log := fakeDevice(t, printed)
	rows, err := Run(context.Background(), Cuda(), &Settings{DeviceBench: program, Note: func(text string) {
		if !strings.Contains(text, "not measured here") {
			t.Error(text)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if asked, _ := os.ReadFile(log); strings.Join(strings.Fields(string(asked)), " ") != "ceilings envelopes small moving layers overlap graph costs moves calibration staged fragments ids kernels open" {
		t.Errorf("asked for %q", asked)
	}
	byName := map[string]Row{}
	for _, r := range rows {
		if !strings.HasPrefix(r.Config, "NVIDIA H200") {
			t.Errorf("%s, %s names no GPU", r.Work, r.Config)
		}
		byName[r.Work+strings.TrimPrefix(r.Config, "NVIDIA H200")] = r
	}
	yes, no := verdict(true), verdict(false)
	for _, want := range []struct {
		name         string
		value, ratio float64 // ratio 0: no peer
		meets        *bool
	}{
		{"contiguous copy, H2D", 50, 0, nil},
		{"contiguous copy, on the device, read and written", 4000, 0, nil},
		{"envelopes of 2 MiB, scattered, quanta of 16 MiB, H2D alone", 48, .96, yes},
		{"envelopes of 2 MiB, scattered, quanta of 16 MiB, D2H alone", 36, .9, no},
		{"envelopes of 2 MiB, scattered, quanta of 16 MiB, both ways, H2D", 46, 0, yes},
		{"envelopes of 2 MiB, scattered, quanta of 16 MiB, both ways, D2H", 44, 0, no},
		{"envelopes of 2 MiB, scattered, quanta of 16 MiB, both ways, sum", 90, 0, no},
		{"envelopes of 2 MiB, scattered, quanta of 4 MiB, H2D alone", 40, .8, nil},
		{"another stream's copy during a bulk transfer, quanta of 16 MiB, H2D of 4 KiB, median", 16, 0, yes},
		{"another stream's copy during a bulk transfer, quanta of 16 MiB, H2D of 4 KiB, of 300, worst", 470, 0, no},
		{"another stream's copy during a bulk transfer, quanta of 16 MiB, H2D of 4 KiB, of 300, 99th percentile", 251, 0, no},
		{"envelopes beside page moves, H2D, moves of 500 GB/s", 52, 52.0 / 54, yes},
		{"envelopes beside page moves, D2H, moves of 500 GB/s", 47, .94, no},
		{"envelopes beside page moves, D2H, moves of 3600 GB/s", 40, .8, nil},
		{"load of 32 layers beside compute of equal length, both together, of the longer", 1.065, 0, no},
		{"layer slices into large host runs, 2 KiB, auto, H2D", 52.5, 1.05, yes},
		{"layer slices into large host runs, 2 KiB, auto, D2H", 51.9, 51.9 / 40, no},
		{"layer slices into large host runs, 64 KiB, staged, H2D", 40, .8, nil},
		{"submit and layer wait on the caller's thread, submit, lane dozing", 3.5, 0, yes},
		{"submit and layer wait on the caller's thread, layer wait, lane dozing", 10.5, 0, no},
		{"submit and layer wait on the caller's thread, layer wait 5 us after the submit of 1 GiB", 9, 0, yes},
		{"calibration at open, rows of 2 KiB, H2D", 102, 0, no},
		{"rate that calibration measured, rows of 2 KiB, D2H, 4096 copies of 2.0 KiB by kernel on 4 blocks, both ways", 44, 0, nil},
		{"kernel alone, hicache_page_move pages of 2 MiB", 4006.5, 0, nil},
		{"another stream's copy during a bulk transfer, quanta of 4 MiB, D2H of 2048 KiB, worst", 340, 0, yes},
		{"layer-wise load, 1 GiB, 32 layers, page 16, layer 0 is there", .9, 0, no},
		{"another stream's copy during a bulk transfer, quanta of 4 MiB, H2D of 4 KiB, median", 119, 0, yes},
		{"another stream's copy during a bulk transfer, quanta of 4 MiB, H2D of 4 KiB, worst", 121, 0, no},
		{"layer-wise load, 1 GiB, 32 layers, page 16, a quarter is there", 5.5, 0, no},
		{"layer-wise load, 1 GiB, 32 layers, page 16, a layer wait, on the caller's thread", 3, 0, yes},
		{"layer-wise load, 1 GiB, 32 layers, page 16, all is there", 20.1, 0, yes},
		{"layer-wise load, 1 GiB, 32 layers, page 16, submission, on the caller's thread", 12.7, 0, no},
		{"layer wait in a captured graph, 3 replays with loads and moves in between: wrong layers", 0, 0, yes},
		{"layer wait in a captured graph, satisfied", .29, 0, yes},
		{"calls on the caller's thread, move one page", 4, 0, nil},
		{"page moves, pages of 32 KiB, read and written", 3500, .875, no},
		{"page moves, pages of 256 KiB, read and written", 3580, .895, no},
		{"page moves, pages of 2048 KiB, read and written", 3720, .93, yes},
		{"page moves, pages of 2048 KiB, a burst of 16 MiB", 9, 0, nil},
		{"fragments on both sides, 2.0 KiB, kernel on 4 blocks, H2D", 46, .92, yes},
		{"fragments on both sides, 2.0 KiB, kernel on 4 blocks, D2H", 35, .875, no},
		{"fragments on both sides, 0.5 KiB, kernel on 4 blocks, H2D", 40.5, .81, yes},
		{"fragments on both sides, 0.5 KiB, kernel on 4 blocks, D2H", 31.6, .79, no},
		{"fragments on both sides, 2.0 KiB, kernel on 2 blocks, H2D", 30, .6, nil},
		{"fragments on both sides, 32.0 KiB, direct, H2D", 35.6, .712, nil},
		{"translate 1 Mi ids on the device", 20, .7, yes},
		{"digest of pages, call and answer included", 3.3, 0, yes},
		{"open, 8 GiB pinned, memory touched before", .38, 0, yes},
		{"open, 32 GiB pinned, memory touched before", 1.88, 0, no},
	} {
		r, ok := byName[want.name]
		ratio := 0.0
		if r.Ratio != nil {
			ratio = *r.Ratio
		}
		if !ok || r.Value != want.value || math.Abs(ratio-want.ratio) > 1e-9 || (r.Meets == nil) != (want.meets == nil) || r.Meets != nil && *r.Meets != *want.meets {
			t.Errorf("%q: %+v, want %+v", want.name, r, want)
		}
	}
}

// What tools/h200_report.py writes, judged as a run would be, with what only it has; and what failed is said.
func TestCudaRecording(t *testing.T) {
	var bench []string
	for _, part := range []string{"", "envelopes", "moves", "small"} {
		bench = append(bench, strings.Split(strings.TrimSpace(printed[part]), "\n")...)
	}
	text := `{"gpu": "NVIDIA H200", "parts": [{"part": "bench", "rc": 0, "outcome": "passed"}, {"part": "ncu", "rc": 124, "outcome": "STOPPED at its limit"}],
"bench": [` + strings.Join(bench, ",\n") + `, {"work": "the dishes", "plates": 3}], "peer": [{"work": "plain peer copy", "gpus": "2 x NVIDIA H200", "gb_s": 400, "back_gb_s": 399, "both_ways_gb_s": 760},
{"work": "hand-over", "page_kib": 2048, "pages": 128, "way": "chosen", "blocks": "", "gb_s": 330, "share": 0.825, "both_ways_gb_s": 700},
{"work": "hand-over", "page_kib": 2048, "pages": 128, "way": "kernel", "blocks": "8", "gb_s": 200, "share": 0.5, "both_ways_gb_s": 390}],
"interference": [{"work": "ceiling, contiguous", "h2d_gb_s": 55, "d2h_gb_s": 54, "d2d_read_write_gb_s": 4000},
{"work": "envelopes H2D", "beside": "gemm", "slowdown_percent": 3.1, "gb_s": [51.0], "alone_ms": 1.6, "replays": [500, 400]},
{"work": "envelopes both ways", "beside": "decode", "slowdown_percent": 3.1, "gb_s": [48, 47], "alone_ms": 1.6, "replays": [500, 400]},
{"work": "rows of 2 KiB D2H", "beside": "prefill", "slowdown_percent": 19, "gb_s": [37], "alone_ms": 1.6, "replays": [500, 400]},
{"work": "moves at 0.1 TB/s", "beside": "decode", "slowdown_percent": 2.9, "gb_s": [100], "alone_ms": 1.6, "replays": [500, 400]},
{"work": "slices of 32 KiB D2H", "beside": "decode", "slowdown_percent": 4, "gb_s": [49.9], "alone_ms": 1.6, "replays": [500, 400]},
{"work": "layer-wise loads", "beside": "gemm", "error": "too few replays: 1 alone, 2 beside"}],
"kernels": [{"work": "kernel under ncu", "kernel": "hicache_page_move", "what": "pages of 2 MiB", "bytes": 1, "us": 140.5, "dram_gb_s": 3900, "occupancy_percent": 93.5}]}`
	file := filepath.Join(t.TempDir(), "results.json")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	var notes []string
	rows, err := Run(context.Background(), Cuda(), &Settings{Recorded: file, Note: func(text string) { notes = append(notes, text) }})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(notes, "; "); got != `part ncu: STOPPED at its limit; a work that nobody here knows: "the dishes"; layer-wise loads gemm: too few replays: 1 alone, 2 beside` {
		t.Errorf("notes: %s", got)
	}
	byName := map[string]Row{}
	for _, r := range rows {
		if _, twice := byName[r.Work+strings.TrimPrefix(r.Config, "NVIDIA H200")]; twice {
			t.Errorf("twice: %s, %s", r.Work, r.Config)
		}
		byName[r.Work+strings.TrimPrefix(r.Config, "NVIDIA H200")] = r
	}
	yes, no := verdict(true), verdict(false)
	for _, want := range []struct {
		name  string
		value float64
		meets *bool
	}{
		{"envelopes of 2 MiB, scattered, quanta of 16 MiB, H2D alone", 48, yes},
		{"envelopes of 2 MiB, scattered, quanta of 4 MiB, H2D alone", 40, nil},
		{"page moves, pages of 2048 KiB, read and written", 3720, yes},
		{"beside compute, envelopes H2D beside gemm", 51, yes},
		{"beside compute, envelopes H2D beside gemm, slowdown", 3.1, no},
		{"beside compute, envelopes both ways beside decode, D2H", 47, nil},
		{"beside compute, rows of 2 KiB D2H beside prefill", 37, no}, // of 54
		{"beside compute, rows of 2 KiB D2H beside prefill, slowdown", 19, yes},
		{"beside compute, moves at 0.1 TB/s beside decode, slowdown", 2.9, yes},
		{"beside compute, slices of 32 KiB D2H beside decode", 49.9, no},
		{"beside compute, slices of 32 KiB D2H beside decode, slowdown", 4, yes},
		{"pages handed from one GPU to another, 128 pages of 2048 KiB, chosen", 330, no},
		{"pages handed from one GPU to another, 128 pages of 2048 KiB, chosen, both ways", 700, nil},
		{"pages handed from one GPU to another, 128 pages of 2048 KiB, kernel on 8 blocks", 200, nil},
		{"kernel under ncu, hicache_page_move pages of 2 MiB, DRAM", 3900, nil},
		{"kernel under ncu, hicache_page_move pages of 2 MiB, warps of the most", 93.5, nil},
	} {
		r, ok := byName[want.name]
		if !ok || r.Value != want.value || (r.Meets == nil) != (want.meets == nil) || r.Meets != nil && *r.Meets != *want.meets {
			t.Errorf("%q: %+v, want %+v", want.name, r, want)
		}
	}
	for _, bad := range []string{`{}`, `null`, `{"name": "something else"}`, "", "[]", "{\"bench\": 3}"} {
		if err := os.WriteFile(file, []byte(bad), 0o644); err != nil {
			t.Fatal(err)
		}
		if rows, err := Run(context.Background(), Cuda(), &Settings{Recorded: file}); err == nil || len(rows) != 0 || !strings.Contains(err.Error(), "results.json") {
			t.Errorf("%q: %d rows, %v", bad, len(rows), err)
		}
	}
	if _, err := Run(context.Background(), Cuda(), &Settings{Recorded: file + "x"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestCudaOnlyWhatIsAskedFor(t *testing.T) {
	program, log := fakeDevice(t, printed)
	rows, err := Run(context.Background(), Cuda(), &Settings{DeviceBench: program, Only: regexp.MustCompile("moves: page moves")})
	if err != nil || len(rows) != 6 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	if asked, _ := os.ReadFile(log); string(asked) != "moves\n" {
		t.Errorf("asked for %q", asked)
	}
}

func TestCudaWithoutAGPU(t *testing.T) {
	for name, c := range map[string]struct {
		text map[string]string
		want string
	}{
		"no driver": {map[string]string{"": `{"error": "open: DEVICE: libcuda.so.1: cannot open"}` + "\n"}, "open: DEVICE: libcuda.so.1: cannot open"},
		"garbage":   {map[string]string{"": "Segmentation fault\n"}, `printed "Segmentation fault"`},
		"a stranger": {map[string]string{"": `{"work": "the dishes", "plates": 3}` + "\n"},
			`printed a work that nobody here knows: "the dishes"`},
		"it falls": {map[string]string{}, "exit status 3"},
	} {
		program, log := fakeDevice(t, c.text)
		rows, err := Run(context.Background(), Cuda(), &Settings{DeviceBench: program})
		if err == nil || len(rows) != 0 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %d rows, %v", name, len(rows), err)
		}
		if asked, _ := os.ReadFile(log); name != "it falls" && string(asked) != "ceilings\n" {
			t.Errorf("%s: asked again: %q", name, asked)
		}
	}
	t.Setenv("HICACHE_LIBRARY", "")
	t.Chdir(t.TempDir())
	_, err := Run(context.Background(), Cuda(), &Settings{})
	if err == nil || strings.Count(err.Error(), "not found") != 1 {
		t.Errorf("no program: %v", err)
	}
}

func TestCudaSaysThatThereAreNoKernels(t *testing.T) {
	text := map[string]string{"": strings.Replace(printed[""], `"yes"`, `"built without them"`, 1), "moves": printed["moves"]}
	program, _ := fakeDevice(t, text)
	var notes []string
	s := &Settings{DeviceBench: program, Note: func(text string) { notes = append(notes, text) }, Only: regexp.MustCompile("page moves|contiguous copy,")}
	if _, err := Run(context.Background(), Cuda(), s); err != nil {
		t.Fatal(err)
	}
	if len(notes) != 1 || notes[0] != "the library has no kernels for NVIDIA H200: built without them" {
		t.Errorf("%q", notes)
	}
}
