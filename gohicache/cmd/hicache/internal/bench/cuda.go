package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Works of the CUDA backend, which hicache_device_bench measures on a GPU. Each of its parts measures the ceilings first, so a share of the bus is
// one of the same minute. The last two need more than the bench: tools/h200_run.sh measures them, and they are read from its results.
const (
	workCeiling   = "contiguous copy"
	workEnvelopes = "envelopes of 2 MiB, scattered"
	workGuest     = "another stream's copy during a bulk transfer"
	workLayered   = "layer-wise load, 1 GiB, 32 layers, page 16"
	workGraphWait = "layer wait in a captured graph"
	workCalls     = "calls on the caller's thread"
	workMoves     = "page moves"
	workFragments = "fragments on both sides"
	workGather    = "translate 1 Mi ids on the device"
	workDigest    = "digest of pages, call and answer included"
	workOpen      = "open"
	workMoving    = "envelopes beside page moves"
	workOverlap   = "load of 32 layers beside compute of equal length"
	workSlices    = "layer slices into large host runs"
	workKernel    = "kernel alone"
	workBeside    = "beside compute"
	workProfiled  = "kernel under ncu"
	workCallers   = "submit and layer wait on the caller's thread"
	workCalibrate = "calibration at open"
	workProbe     = "rate that calibration measured"
	workHandOver  = "pages handed from one GPU to another"
)

// Cuda is the groups of `hicache bench cuda`.
func Cuda() []Group {
	return []Group{
		device("ceilings", workCeiling),
		device("envelopes", workEnvelopes),
		device("small", workGuest),
		device("moving", workMoving),
		device("layers", workLayered),
		device("overlap", workOverlap),
		device("graph", workGraphWait),
		device("costs", workCalls, workCallers),
		device("moves", workMoves),
		device("calibration", workCalibrate, workProbe),
		device("staged", workSlices),
		device("fragments", workFragments),
		device("ids", workGather, workDigest),
		device("kernels", workKernel),
		device("open", workOpen),
		recorded("peer", workHandOver),
		recorded("beside", workBeside),
		recorded("ncu", workProfiled),
	}
}

// device is a group that a part of hicache_device_bench measures; its figures are medians already.
func device(part string, works ...string) Group {
	return Group{Name: part, Works: works, run: func(ctx context.Context, s *Settings, r *recorder) error {
		d := deviceRun{s: s, r: r, part: part}
		if s.Recorded != "" {
			return d.readRecorded()
		}
		if s.noDevice {
			return nil // said once
		}
		program := s.program(s.DeviceBench, "hicache_device_bench", "build-cuda", "out/h200")
		if program == "" {
			s.noDevice = true
			return errors.New("hicache_device_bench was not found; tools/h200_pack.sh builds it into out/h200")
		}
		out, err := runProgram(ctx, program, part)
		if said := d.read(out); said != nil {
			s.noDevice = true
			return fmt.Errorf("%s: %w", program, said)
		}
		return err
	}}
}

// recorded is a group whose figures are read from the results of tools/h200_run.sh alone.
func recorded(part, work string) Group {
	return Group{Name: part, Works: []string{work}, run: func(_ context.Context, s *Settings, r *recorder) error {
		if s.Recorded == "" {
			s.note("%s: not measured here: tools/h200_run.sh does, and --recorded reads its results", work)
			return nil
		}
		d := deviceRun{s: s, r: r, part: part}
		return d.readRecorded()
	}}
}

// deviceRun is the output of one run of hicache_device_bench, or what of a recording belongs to one part.
type deviceRun struct {
	s             *Settings
	r             *recorder
	part          string
	gpu           string
	h2d, d2h, d2d float64 // the ceilings of this run, GB/s

	peer, peerBoth float64 // plain copies between two GPUs, GB/s
}

// read turns every line that the program printed into figures. An error is the program's own.
func (d *deviceRun) read(out []byte) error {
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		var l map[string]any
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return fmt.Errorf("printed %q: %w", lines.Text(), err)
		}
		if text, ok := l["error"].(string); ok {
			return errors.New(text)
		}
		work, kind, line := splitWork(l)
		take, known := deviceLines[kind]
		if !known {
			return fmt.Errorf("printed a work that nobody here knows: %q", work)
		}
		take.read(d, line)
	}
	return lines.Err()
}

func splitWork(l map[string]any) (work, kind string, line deviceLine) {
	work, _ = l["work"].(string)
	kind, rest, _ := strings.Cut(work, ", ")
	return work, kind, deviceLine{l, rest}
}

// deviceRecording is results.json of tools/h200_report.py: the lines that its programs printed.
type deviceRecording struct {
	Parts []struct {
		Part    string `json:"part"`
		Outcome string `json:"outcome"`
	} `json:"parts"`
	Bench        []map[string]any `json:"bench"`
	Peer         []map[string]any `json:"peer"`
	Interference []map[string]any `json:"interference"`
	Kernels      []map[string]any `json:"kernels"`
}

// readRecorded takes the lines of d's part from the recording. What a run could not measure is said, and does not keep the rest from being judged.
func (d *deviceRun) readRecorded() error {
	text, err := os.ReadFile(d.s.Recorded)
	if err != nil {
		return err
	}
	var recording deviceRecording
	if err := json.Unmarshal(text, &recording); err != nil {
		return fmt.Errorf("%s is no results.json of tools/h200_run.sh: %w", d.s.Recorded, err)
	}
	if len(recording.Parts) == 0 && len(recording.Bench) == 0 {
		return fmt.Errorf("%s is no results.json of tools/h200_run.sh: it has neither parts nor figures", d.s.Recorded)
	}
	tell := !d.s.toldOfRecording // once for all groups
	d.s.toldOfRecording = true
	for _, p := range recording.Parts {
		if tell && p.Outcome != "passed" {
			d.s.note("part %s: %s", p.Part, p.Outcome)
		}
	}
	for _, l := range slices.Concat(recording.Bench, recording.Peer, recording.Interference, recording.Kernels) {
		work, kind, line := splitWork(l)
		take, known := deviceLines[kind]
		switch said, failed := l["error"].(string); {
		case failed && tell:
			d.s.note("%s: %s", strings.TrimSpace(work+" "+line.text("beside")), said)
		case failed:
		case !known && tell:
			d.s.note("a work that nobody here knows: %q", work)
		case known && (take.part == d.part || take.part == ""):
			take.read(d, line)
		}
	}
	return nil
}

// deviceLine is one printed line; rest is what follows the first comma of its work.
type deviceLine struct {
	fields map[string]any
	rest   string
}

func (l deviceLine) number(field string) float64 { v, _ := l.fields[field].(float64); return v }
func (l deviceLine) text(field string) string    { v, _ := l.fields[field].(string); return v }

// add records a figure, if the program printed it. Every row names the GPU, without which it says nothing.
func (d *deviceRun) add(l deviceLine, field string, s Spec) {
	if _, ok := l.fields[field].(float64); !ok {
		return
	}
	s.Config = strings.TrimSuffix(d.gpu+", "+s.Config, ", ")
	d.r.add(s, l.number(field))
}

// addOf records a rate beside the ceiling of the same run.
func (d *deviceRun) addOf(l deviceLine, field string, ceiling float64, s Spec) {
	s.Config = d.gpu + ", " + s.Config
	if ceiling > 0 {
		d.r.addBeside(s, l.number(field), workCeiling, ceiling)
	}
}

// lineReader reads a kind of line. part is the bench's that prints it; "": all of them do.
type lineReader struct {
	part string
	read func(*deviceRun, deviceLine)
}

// deviceLines say, by the beginning of a line's work, what its figures are called and what they should reach on an H200 behind PCIe 5.0 x16.
var deviceLines = map[string]lineReader{
	"machine": {"", func(d *deviceRun, l deviceLine) {
		d.gpu = l.text("gpu")
		if kernels := l.text("kernels"); kernels != "yes" && !d.s.toldOfKernels {
			d.s.toldOfKernels = true
			d.s.note("the library has no kernels for %s: %s", d.gpu, kernels)
		}
	}},
	"ceiling": {"", func(d *deviceRun, l deviceLine) {
		d.h2d, d.d2h, d.d2d = l.number("h2d_gb_s"), l.number("d2h_gb_s"), l.number("d2d_read_write_gb_s")
		if d.part != "ceilings" {
			return
		}
		d.add(l, "h2d_gb_s", Spec{Work: workCeiling, Config: "H2D", Unit: "GB/s"})
		d.add(l, "d2h_gb_s", Spec{Work: workCeiling, Config: "D2H", Unit: "GB/s"})
		d.add(l, "d2d_read_write_gb_s", Spec{Work: workCeiling, Config: "on the device, read and written", Unit: "GB/s"})
	}},
	"envelopes 2 MiB scattered": {"envelopes", func(d *deviceRun, l deviceLine) {
		var share, each, sum *Bar
		if l.rest == "quanta of 16 MiB" {
			share, each, sum = ratioAtLeast(.95), atLeast(45, "GB/s"), atLeast(95, "GB/s")
		}
		d.addOf(l, "h2d_gb_s", d.h2d, Spec{Work: workEnvelopes, Config: l.rest + ", H2D alone", Unit: "GB/s", Bar: share})
		d.addOf(l, "d2h_gb_s", d.d2h, Spec{Work: workEnvelopes, Config: l.rest + ", D2H alone", Unit: "GB/s", Bar: share})
		d.add(l, "both_h2d", Spec{Work: workEnvelopes, Config: l.rest + ", both ways, H2D", Unit: "GB/s", Bar: each})
		d.add(l, "both_d2h", Spec{Work: workEnvelopes, Config: l.rest + ", both ways, D2H", Unit: "GB/s", Bar: each})
		d.add(l, "both_sum", Spec{Work: workEnvelopes, Config: l.rest + ", both ways, sum", Unit: "GB/s", Bar: sum})
	}},
	"another stream's copy during a bulk transfer": {"small", func(d *deviceRun, l deviceLine) {
		bytes, limit := l.number("bytes"), 250.0
		if l.rest == "quanta of 4 MiB" {
			limit = 120
		}
		if bytes > 1<<20 {
			limit = 350
		}
		config := fmt.Sprintf("%s, %s of %.0f KiB", l.rest, strings.ToUpper(l.text("direction")), bytes/1024)
		d.add(l, "median_us", Spec{Work: workGuest, Config: config + ", median", Unit: "us", Lower: true, Bar: atMost(limit, "us")})
		if n := l.number("count"); n > 0 {
			config += fmt.Sprintf(", of %.0f", n)
		}
		d.add(l, "p99_us", Spec{Work: workGuest, Config: config + ", 99th percentile", Unit: "us", Lower: true, Bar: atMost(limit, "us")})
		d.add(l, "worst_us", Spec{Work: workGuest, Config: config + ", worst", Unit: "us", Lower: true, Bar: atMost(limit, "us")})
	}},
	"layer-wise load": {"layers", func(d *deviceRun, l deviceLine) {
		for _, f := range []struct {
			field, config, unit string
			limit               float64
		}{
			{"layer0_ms", "layer 0 is there", "ms", .82}, {"quarter_ms", "a quarter is there", "ms", 5.4}, {"all_ms", "all is there", "ms", 20.5},
			{"submit_us", "submission, on the caller's thread", "us", 10}, {"layer_wait_us", "a layer wait, on the caller's thread", "us", 10},
		} {
			d.add(l, f.field, Spec{Work: workLayered, Config: f.config, Unit: f.unit, Lower: true, Bar: atMost(f.limit, f.unit)})
		}
	}},
	"layer wait in a captured graph": {"graph", func(d *deviceRun, l deviceLine) {
		d.add(l, "wrong_layers", Spec{Work: workGraphWait, Config: "3 replays with loads and moves in between: wrong layers", Unit: "layers", Lower: true, Bar: atMost(0, "layers")})
		d.add(l, "satisfied_wait_us", Spec{Work: workGraphWait, Config: "satisfied", Unit: "us", Lower: true, Bar: atMost(.5, "us")})
	}},
	"calls on the caller's thread": {"costs", func(d *deviceRun, l deviceLine) {
		for _, call := range []string{"context", "capturing", "event_record", "fence_record", "order_step", "move_one_page"} {
			d.add(l, call+"_us", Spec{Work: workCalls, Config: strings.ReplaceAll(call, "_", " "), Unit: "us", Lower: true})
		}
	}},
	"page moves": {"moves", func(d *deviceRun, l deviceLine) {
		bytes := l.number("page_bytes")
		config := fmt.Sprintf("pages of %.0f KiB", bytes/1024)
		var bar *Bar
		if share, ok := map[float64]float64{32 << 10: .89, 256 << 10: .9, 2 << 20: .925}[bytes]; ok {
			bar = ratioAtLeast(share)
		}
		l.fields["gb_s"] = 1000 * l.number("tb_s")
		d.addOf(l, "gb_s", d.d2d, Spec{Work: workMoves, Config: config + ", read and written", Unit: "GB/s", Bar: bar})
		d.add(l, "burst_16_mib_us", Spec{Work: workMoves, Config: config + ", a burst of 16 MiB", Unit: "us", Lower: true})
	}},
	"fragments on both sides": {"fragments", func(d *deviceRun, l deviceLine) {
		bytes, method, blocks := l.number("bytes"), l.text("method"), l.number("blocks")
		config := fmt.Sprintf("%.1f KiB, %s", bytes/1024, method)
		var bar *Bar
		if method == "kernel" {
			config += fmt.Sprintf(" on %.0f blocks", blocks)
			if share, ok := map[float64]float64{512: .8, 2048: .9}[bytes]; ok && blocks == 4 {
				bar = ratioAtLeast(share)
			}
		}
		d.addOf(l, "h2d_gb_s", d.h2d, Spec{Work: workFragments, Config: config + ", H2D", Unit: "GB/s", Bar: bar})
		d.addOf(l, "d2h_gb_s", d.d2h, Spec{Work: workFragments, Config: config + ", D2H", Unit: "GB/s", Bar: bar})
	}},
	"translate 1 Mi ids": {"ids", func(d *deviceRun, l deviceLine) {
		d.r.addBeside(Spec{Work: workGather, Config: d.gpu, Unit: "us", Lower: true, Bar: ratioAtLeast(.5)}, l.number("us"), "plain gather of the ids", l.number("plain_gather_us"))
	}},
	"digest of pages": {"ids", func(d *deviceRun, l deviceLine) {
		d.add(l, "tb_s_read", Spec{Work: workDigest, Unit: "TB/s", Bar: atLeast(2.5, "TB/s")})
	}},
	"open": {"open", func(d *deviceRun, l deviceLine) {
		gib := l.number("pinned_gib")
		config := fmt.Sprintf("%.0f GiB pinned", gib)
		var bar *Bar
		if limit, ok := map[float64]float64{8: .45, 32: 1.7}[gib]; ok {
			bar = atMost(limit, "s")
		}
		d.add(l, "first_s", Spec{Work: workOpen, Config: config + ", the first time", Unit: "s", Lower: true})
		d.add(l, "again_s", Spec{Work: workOpen, Config: config + ", memory touched before", Unit: "s", Lower: true, Bar: bar})
	}},
	"envelopes beside page moves": {"moving", func(d *deviceRun, l deviceLine) {
		config := strings.ToUpper(l.text("direction")) + fmt.Sprintf(", moves of %.0f GB/s", l.number("moves_gb_s"))
		var bar *Bar
		if limited, _ := l.fields["limited"].(bool); limited && l.number("moves_gb_s") >= 400 {
			bar = ratioAtLeast(.95)
		}
		d.r.addBeside(Spec{Work: workMoving, Config: d.gpu + ", " + config, Unit: "GB/s", Bar: bar}, l.number("gb_s"), "without moves", l.number("alone_gb_s"))
	}},
	"load of 32 layers beside compute of equal length": {"overlap", func(d *deviceRun, l deviceLine) {
		d.add(l, "load_ms", Spec{Work: workOverlap, Config: "the load alone", Unit: "ms", Lower: true})
		d.add(l, "compute_ms", Spec{Work: workOverlap, Config: "the compute alone", Unit: "ms", Lower: true})
		d.add(l, "of_the_longer", Spec{Work: workOverlap, Config: "both together, of the longer", Unit: "x", Lower: true, Bar: atMost(1.06, "x")})
	}},
	"layer slices into large host runs": {"staged", func(d *deviceRun, l deviceLine) {
		config := fmt.Sprintf("%.0f KiB, %s", l.number("bytes")/1024, l.text("method"))
		var bar *Bar
		if l.text("method") == "auto" {
			bar = atLeast(52, "GB/s")
		}
		d.addOf(l, "h2d_gb_s", d.h2d, Spec{Work: workSlices, Config: config + ", H2D", Unit: "GB/s", Bar: bar})
		d.addOf(l, "d2h_gb_s", d.d2h, Spec{Work: workSlices, Config: config + ", D2H", Unit: "GB/s", Bar: bar})
	}},
	"submit and its pieces": {"costs", func(d *deviceRun, l deviceLine) {
		d.add(l, "submit_us", Spec{Work: workCallers, Config: "submit, " + l.rest, Unit: "us", Lower: true, Bar: atMost(10, "us")})
		d.add(l, "layer_wait_us", Spec{Work: workCallers, Config: "layer wait, " + l.rest, Unit: "us", Lower: true, Bar: atMost(10, "us")})
	}},
	"layer wait": {"costs", func(d *deviceRun, l deviceLine) {
		d.add(l, "median_us", Spec{Work: workCallers, Config: "layer wait " + l.rest, Unit: "us", Lower: true, Bar: atMost(10, "us")})
	}},
	"calibration at open": {"calibration", func(d *deviceRun, l deviceLine) {
		if us, ok := l.fields["us"].(float64); ok {
			l.fields["ms"] = us / 1000
		}
		d.add(l, "ms", Spec{Work: workCalibrate, Config: l.rest + ", " + strings.ToUpper(l.text("direction")), Unit: "ms", Lower: true, Bar: atMost(100, "ms")})
	}},
	"probe": {"calibration", func(d *deviceRun, l deviceLine) {
		config := fmt.Sprintf("%s, %s, %.0f copies of %.1f KiB by %s", l.rest, strings.ToUpper(l.text("direction")), l.number("count"), l.number("bytes")/1024, l.text("method"))
		if blocks := l.number("blocks"); blocks > 0 {
			config += fmt.Sprintf(" on %.0f blocks", blocks)
		}
		if run := l.number("run"); run > 0 {
			config += fmt.Sprintf(", runs of %.0f KiB", run/1024)
		}
		if l.number("both") != 0 {
			config += ", both ways"
		}
		d.add(l, "gb_s", Spec{Work: workProbe, Config: config, Unit: "GB/s"})
	}},
	"plain peer copy": {"peer", func(d *deviceRun, l deviceLine) {
		d.peer, d.peerBoth = l.number("gb_s"), l.number("both_ways_gb_s")
	}},
	"hand-over": {"peer", func(d *deviceRun, l deviceLine) {
		if text := l.text("not_measured"); text != "" {
			d.s.note("hand-over: %s", text)
			return
		}
		way := l.text("way")
		config := fmt.Sprintf("%.0f pages of %.0f KiB, %s", l.number("pages"), l.number("page_kib"), way)
		if blocks := l.text("blocks"); blocks != "" {
			config += " on " + blocks + " blocks"
		}
		var bar *Bar
		if way == "chosen" {
			bar = ratioAtLeast(.85)
		}
		for _, f := range []struct {
			field, config string
			ceiling       float64
			bar           *Bar
		}{{"gb_s", config, d.peer, bar}, {"both_ways_gb_s", config + ", both ways", d.peerBoth, nil}} {
			if d.peer > 0 {
				d.r.addBeside(Spec{Work: workHandOver, Config: d.gpu + ", " + f.config, Unit: "GB/s", Bar: f.bar}, l.number(f.field), "plain peer copy", f.ceiling)
			}
		}
	}},
	"kernel alone": {"kernels", func(d *deviceRun, l deviceLine) {
		d.add(l, "gb_s", Spec{Work: workKernel, Config: l.text("kernel") + " " + l.text("what"), Unit: "GB/s"})
	}},
	"kernel under ncu": {"ncu", func(d *deviceRun, l deviceLine) {
		config := l.text("kernel") + " " + l.text("what")
		d.add(l, "us", Spec{Work: workProfiled, Config: config, Unit: "us", Lower: true})
		d.add(l, "dram_gb_s", Spec{Work: workProfiled, Config: config + ", DRAM", Unit: "GB/s"})
		d.add(l, "memory_percent", Spec{Work: workProfiled, Config: config + ", memory of its peak", Unit: "%"})
		d.add(l, "occupancy_percent", Spec{Work: workProfiled, Config: config + ", warps of the most", Unit: "%"})
	}},
}

// besideBars are a kind's beside GEMM, prefill and decode; 0: none.
type besideBars struct {
	rate, slowdown [3]float64 // GB/s, %
	share          float64    // of the ceiling
}

var besideWorks = map[string]besideBars{
	"envelopes H2D":        {rate: [3]float64{51, 51, 50}, slowdown: [3]float64{3, 2.5, 3.6}},
	"envelopes D2H":        {rate: [3]float64{50.5, 50.5, 49}, slowdown: [3]float64{3, 2.5, 1.2}},
	"envelopes both ways":  {},
	"layer-wise loads":     {rate: [3]float64{50, 50, 48.5}},
	"moves at 0.1 TB/s":    {slowdown: [3]float64{2, 2, 3}},
	"rows of 2 KiB H2D":    {share: .7, slowdown: [3]float64{10, 20, 4.5}},
	"rows of 2 KiB D2H":    {share: .7, slowdown: [3]float64{10, 20, 4.5}},
	"slices of 32 KiB H2D": {rate: [3]float64{51, 51, 50}, slowdown: [3]float64{4, 4, 6.5}},
	"slices of 32 KiB D2H": {rate: [3]float64{51, 51, 50}, slowdown: [3]float64{3.5, 3.5, 4}},
}

func init() {
	for work, bars := range besideWorks {
		deviceLines[work] = lineReader{"beside", func(d *deviceRun, l deviceLine) { d.addBesideCompute(work, bars, l) }}
	}
}

func (d *deviceRun) addBesideCompute(work string, bars besideBars, l deviceLine) {
	config := work + " beside " + l.text("beside")
	ceiling := d.h2d
	if strings.Contains(work, "D2H") {
		ceiling = d.d2h
	}
	var rate, slowdown *Bar
	if i := slices.Index([]string{"gemm", "prefill", "decode"}, l.text("beside")); i >= 0 {
		if bars.rate[i] > 0 {
			rate = atLeast(bars.rate[i], "GB/s")
		}
		if bars.slowdown[i] > 0 {
			slowdown = atMost(bars.slowdown[i], "%")
		}
	}
	if bars.share > 0 {
		rate = ratioAtLeast(bars.share)
	}
	rates, _ := l.fields["gb_s"].([]any)
	for i, r := range rates {
		if v, ok := r.(float64); ok {
			l.fields["rate"] = v
			of := config
			if len(rates) > 1 {
				of += []string{", H2D", ", D2H"}[i%2]
			}
			if work == "moves at 0.1 TB/s" {
				d.add(l, "rate", Spec{Work: workBeside, Config: of, Unit: "GB/s", Bar: rate})
			} else {
				d.addOf(l, "rate", ceiling, Spec{Work: workBeside, Config: of, Unit: "GB/s", Bar: rate})
			}
		}
	}
	d.add(l, "slowdown_percent", Spec{Work: workBeside, Config: config + ", slowdown", Unit: "%", Lower: true, Bar: slowdown})
}
