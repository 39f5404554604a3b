package bench

import (
	"context"
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
	"small": `{"work": "another stream's copy during a bulk transfer, quanta of 16 MiB", "direction": "h2d", "bytes": 4096, "median_us": 16, "worst_us": 470}
{"work": "envelopes 2 MiB scattered, quanta of 4 MiB", "h2d_gb_s": 40, "d2h_gb_s": 36, "both_h2d": 46, "both_d2h": 44, "both_sum": 90}
{"work": "another stream's copy during a bulk transfer, quanta of 4 MiB", "direction": "d2h", "bytes": 2097152, "median_us": 130, "worst_us": 340}
{"work": "another stream's copy during a bulk transfer, quanta of 4 MiB", "direction": "h2d", "bytes": 4096, "median_us": 119, "worst_us": 121}
`,
	"layers": `{"work": "layer-wise load, 1 GiB, 32 layers, page 16", "layer0_ms": 0.9, "quarter_ms": 5.5, "all_ms": 20.1, "submit_us": 12.7, "layer_wait_us": 3}
`,
	"graph": `{"work": "layer wait in a captured graph", "replays": 3, "wrong_layers": 0, "satisfied_wait_us": 0.29}
`,
	"costs": `{"work": "calls on the caller's thread", "context_us": 0.1, "capturing_us": 0.2, "event_record_us": 1.5, "fence_record_us": 2, "order_step_us": 3, "move_one_page_us": 4}
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
	rows, err := Run(context.Background(), Cuda(), &Settings{DeviceBench: program, Note: func(text string) { t.Error(text) }})
	if err != nil {
		t.Fatal(err)
	}
	if asked, _ := os.ReadFile(log); strings.Join(strings.Fields(string(asked)), " ") != "ceilings envelopes small layers graph costs moves fragments ids open" {
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
		{"another stream's copy during a bulk transfer, quanta of 16 MiB, H2D of 4 KiB, worst", 470, 0, no},
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

func TestCudaOnlyWhatIsAskedFor(t *testing.T) {
	program, log := fakeDevice(t, printed)
	rows, err := Run(context.Background(), Cuda(), &Settings{DeviceBench: program, Only: regexp.MustCompile("page moves")})
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
