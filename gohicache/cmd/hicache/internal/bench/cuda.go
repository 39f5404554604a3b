package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Works of the CUDA backend, which hicache_device_bench measures on a GPU. Each of its parts measures the ceilings first, so a share of the bus is
// one of the same minute.
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
)

// Cuda is the groups of `hicache bench cuda`.
func Cuda() []Group {
	return []Group{
		device("ceilings", workCeiling),
		device("envelopes", workEnvelopes),
		device("small", workGuest),
		device("layers", workLayered),
		device("graph", workGraphWait),
		device("costs", workCalls),
		device("moves", workMoves),
		device("fragments", workFragments),
		device("ids", workGather, workDigest),
		device("open", workOpen),
	}
}

// device is a group that a part of hicache_device_bench measures; its figures are medians already.
func device(part string, works ...string) Group {
	return Group{Name: part, Works: works, run: func(ctx context.Context, s *Settings, r *recorder) error {
		if s.noDevice {
			return nil // said once
		}
		program := s.program(s.DeviceBench, "hicache_device_bench", "build-cuda", "out/h200")
		if program == "" {
			s.noDevice = true
			return errors.New("hicache_device_bench was not found; tools/h200_pack.sh builds it into out/h200")
		}
		out, err := runProgram(ctx, program, part)
		d := deviceRun{s: s, r: r, part: part}
		if said := d.read(out); said != nil {
			s.noDevice = true
			return fmt.Errorf("%s: %w", program, said)
		}
		return err
	}}
}

// deviceRun is the output of one run of hicache_device_bench.
type deviceRun struct {
	s             *Settings
	r             *recorder
	part          string
	gpu           string
	h2d, d2h, d2d float64 // the ceilings of this run, GB/s
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
		work, _ := l["work"].(string)
		kind, rest, _ := strings.Cut(work, ", ")
		take, known := deviceLines[kind]
		if !known {
			return fmt.Errorf("printed a work that nobody here knows: %q", work)
		}
		take(d, deviceLine{l, rest})
	}
	return lines.Err()
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

// deviceLines say, by the beginning of a line's work, what its figures are called and what they should reach on an H200 behind PCIe 5.0 x16.
var deviceLines = map[string]func(*deviceRun, deviceLine){
	"machine": func(d *deviceRun, l deviceLine) {
		d.gpu = l.text("gpu")
		if kernels := l.text("kernels"); kernels != "yes" && !d.s.toldOfKernels {
			d.s.toldOfKernels = true
			d.s.note("the library has no kernels for %s: %s", d.gpu, kernels)
		}
	},
	"ceiling": func(d *deviceRun, l deviceLine) {
		d.h2d, d.d2h, d.d2d = l.number("h2d_gb_s"), l.number("d2h_gb_s"), l.number("d2d_read_write_gb_s")
		if d.part != "ceilings" {
			return
		}
		d.add(l, "h2d_gb_s", Spec{Work: workCeiling, Config: "H2D", Unit: "GB/s"})
		d.add(l, "d2h_gb_s", Spec{Work: workCeiling, Config: "D2H", Unit: "GB/s"})
		d.add(l, "d2d_read_write_gb_s", Spec{Work: workCeiling, Config: "on the device, read and written", Unit: "GB/s"})
	},
	"envelopes 2 MiB scattered": func(d *deviceRun, l deviceLine) {
		var share, each, sum *Bar
		if l.rest == "quanta of 16 MiB" {
			share, each, sum = ratioAtLeast(.95), atLeast(45, "GB/s"), atLeast(95, "GB/s")
		}
		d.addOf(l, "h2d_gb_s", d.h2d, Spec{Work: workEnvelopes, Config: l.rest + ", H2D alone", Unit: "GB/s", Bar: share})
		d.addOf(l, "d2h_gb_s", d.d2h, Spec{Work: workEnvelopes, Config: l.rest + ", D2H alone", Unit: "GB/s", Bar: share})
		d.add(l, "both_h2d", Spec{Work: workEnvelopes, Config: l.rest + ", both ways, H2D", Unit: "GB/s", Bar: each})
		d.add(l, "both_d2h", Spec{Work: workEnvelopes, Config: l.rest + ", both ways, D2H", Unit: "GB/s", Bar: each})
		d.add(l, "both_sum", Spec{Work: workEnvelopes, Config: l.rest + ", both ways, sum", Unit: "GB/s", Bar: sum})
	},
	"another stream's copy during a bulk transfer": func(d *deviceRun, l deviceLine) {
		bytes, limit := l.number("bytes"), 250.0
		if l.rest == "quanta of 4 MiB" {
			limit = 120
		}
		if bytes > 1<<20 {
			limit = 350
		}
		config := fmt.Sprintf("%s, %s of %.0f KiB", l.rest, strings.ToUpper(l.text("direction")), bytes/1024)
		d.add(l, "median_us", Spec{Work: workGuest, Config: config + ", median", Unit: "us", Lower: true, Bar: atMost(limit, "us")})
		d.add(l, "worst_us", Spec{Work: workGuest, Config: config + ", worst", Unit: "us", Lower: true, Bar: atMost(limit, "us")})
	},
	"layer-wise load": func(d *deviceRun, l deviceLine) {
		for _, f := range []struct {
			field, config, unit string
			limit               float64
		}{
			{"layer0_ms", "layer 0 is there", "ms", .82}, {"quarter_ms", "a quarter is there", "ms", 5.4}, {"all_ms", "all is there", "ms", 20.5},
			{"submit_us", "submission, on the caller's thread", "us", 10}, {"layer_wait_us", "a layer wait, on the caller's thread", "us", 10},
		} {
			d.add(l, f.field, Spec{Work: workLayered, Config: f.config, Unit: f.unit, Lower: true, Bar: atMost(f.limit, f.unit)})
		}
	},
	"layer wait in a captured graph": func(d *deviceRun, l deviceLine) {
		d.add(l, "wrong_layers", Spec{Work: workGraphWait, Config: "3 replays with loads and moves in between: wrong layers", Unit: "layers", Lower: true, Bar: atMost(0, "layers")})
		d.add(l, "satisfied_wait_us", Spec{Work: workGraphWait, Config: "satisfied", Unit: "us", Lower: true, Bar: atMost(.5, "us")})
	},
	"calls on the caller's thread": func(d *deviceRun, l deviceLine) {
		for _, call := range []string{"context", "capturing", "event_record", "fence_record", "order_step", "move_one_page"} {
			d.add(l, call+"_us", Spec{Work: workCalls, Config: strings.ReplaceAll(call, "_", " "), Unit: "us", Lower: true})
		}
	},
	"page moves": func(d *deviceRun, l deviceLine) {
		bytes := l.number("page_bytes")
		config := fmt.Sprintf("pages of %.0f KiB", bytes/1024)
		var bar *Bar
		if share, ok := map[float64]float64{32 << 10: .89, 256 << 10: .9, 2 << 20: .925}[bytes]; ok {
			bar = ratioAtLeast(share)
		}
		l.fields["gb_s"] = 1000 * l.number("tb_s")
		d.addOf(l, "gb_s", d.d2d, Spec{Work: workMoves, Config: config + ", read and written", Unit: "GB/s", Bar: bar})
		d.add(l, "burst_16_mib_us", Spec{Work: workMoves, Config: config + ", a burst of 16 MiB", Unit: "us", Lower: true})
	},
	"fragments on both sides": func(d *deviceRun, l deviceLine) {
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
	},
	"translate 1 Mi ids": func(d *deviceRun, l deviceLine) {
		d.r.addBeside(Spec{Work: workGather, Config: d.gpu, Unit: "us", Lower: true, Bar: ratioAtLeast(.5)}, l.number("us"), "plain gather of the ids", l.number("plain_gather_us"))
	},
	"digest of pages": func(d *deviceRun, l deviceLine) {
		d.add(l, "tb_s_read", Spec{Work: workDigest, Unit: "TB/s", Bar: atLeast(2.5, "TB/s")})
	},
	"open": func(d *deviceRun, l deviceLine) {
		gib := l.number("pinned_gib")
		config := fmt.Sprintf("%.0f GiB pinned", gib)
		var bar *Bar
		if limit, ok := map[float64]float64{8: .45, 32: 1.7}[gib]; ok {
			bar = atMost(limit, "s")
		}
		d.add(l, "first_s", Spec{Work: workOpen, Config: config + ", the first time", Unit: "s", Lower: true})
		d.add(l, "again_s", Spec{Work: workOpen, Config: config + ", memory touched before", Unit: "s", Lower: true, Bar: bar})
	},
}
