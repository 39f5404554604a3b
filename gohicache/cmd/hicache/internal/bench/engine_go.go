package bench

import (
	"context"
	"fmt"
	"runtime"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
)

const (
	workTakeGo    = "take + free of 4 pages, FULL+SWA, through Go"
	workTakeHeap  = "take + free through Go: allocations"
	workDecode    = "decode step: extend, page tables, close, through Go"
	workDecodeMem = "decode step through Go: allocations"
	poolFull      = uint32(0)
	poolSWA       = uint32(1)
)

// mallocs is the number of heap allocations that f makes. Other goroutines' count too.
func mallocs(f func() error) (float64, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := f()
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs - before.Mallocs), err
}

// throughGo is what the border adds to the smallest call.
func throughGo() Group {
	return Group{Name: "take-free-go", Works: []string{workTakeGo, workTakeHeap}, run: func(ctx context.Context, s *Settings, r *recorder) error {
		const pages = 10_000
		e, err := ffi.Open(&ffi.Options{Library: s.Library, Backend: ffi.BackendNull, DeviceBytes: pages * 32, Pools: enginePools(1, 4096)})
		if err != nil {
			return err
		}
		defer e.Close()
		four := make([]ids.VirtualPage, 4)
		n := scaled(s, 100_000, 500)
		loop := func() error {
			for range n {
				if err := e.Alloc([]ffi.Take{{Pool: poolFull, Pages: four}, {Pool: poolSWA, Count: 4}}); err != nil {
					return err
				}
				if err := e.Free([]ffi.Pages{{Pool: poolFull, Pages: four}}); err != nil {
					return err
				}
			}
			return nil
		}
		config := fmt.Sprintf("10^4 pages, %s", ffi.CallMode)
		if err := loop(); err != nil {
			return err
		}
		return repeat(ctx, s.runs(), func() error {
			d, err := threadTime(loop)
			if err != nil {
				return err
			}
			r.add(Spec{Work: workTakeGo, Config: config, Unit: "ns", Lower: true, Bar: atMost(1200, "ns")}, float64(d.Nanoseconds())/float64(n))
			made, err := mallocs(loop)
			r.add(Spec{Work: workTakeHeap, Config: config, Unit: "allocations a call", Lower: true, Bar: atMost(0.001, "")}, made/float64(n))
			return err
		})
	}}
}

// decoding is a batch of sequences that grow by a token a step.
type decoding struct {
	engine *ffi.Engine
	batch  ffi.Batch
	all    []ids.VirtualPage
	steps  int // since the sequences began
}

const (
	decodeSequences  = 256
	decodeTokens     = 128
	decodePageTokens = 16
)

func newDecoding(s *Settings) (*decoding, error) {
	const pages, row = 20_000, decodeTokens / decodePageTokens
	e, err := ffi.Open(&ffi.Options{Library: s.Library, Backend: ffi.BackendNull, DeviceBytes: pages * 32 * decodePageTokens, Pools: enginePools(decodePageTokens, decodeTokens)})
	if err != nil {
		return nil, err
	}
	d := &decoding{engine: e, all: make([]ids.VirtualPage, 0, decodeSequences*row)}
	d.batch = ffi.Batch{OwnerPool: poolFull, Sequences: make([]ffi.Sequence, decodeSequences), Tables: []ffi.BatchTable{
		{Pool: poolFull, Form: ffi.TableFormRagged, IDs: make([]ids.KernelID, decodeSequences*row), Indptr: make([]int32, decodeSequences+1),
			LastPageTokens: make([]int32, decodeSequences)},
		{Pool: poolSWA, Form: ffi.TableFormPadded, RowPages: row, IDs: make([]ids.KernelID, decodeSequences*row)},
	}}
	for i := range d.batch.Sequences {
		d.batch.Sequences[i] = ffi.Sequence{Pages: make([]ids.VirtualPage, 0, row), WindowTailTokens: ffi.NoPage}
	}
	return d, d.begin()
}

// begin gives back the sequences and starts them with half of their tokens.
func (d *decoding) begin() error {
	if d.batch.Previous != 0 {
		if err := d.engine.StepClose(d.batch.Previous); err != nil {
			return err
		}
		d.batch.Previous = 0
	}
	d.all = d.all[:0]
	for i := range d.batch.Sequences {
		q := &d.batch.Sequences[i]
		d.all = append(d.all, q.Pages...)
		q.Pages, q.Tokens, q.NewTokens = q.Pages[:0], 0, decodeTokens/2
	}
	if err := d.engine.Free([]ffi.Pages{{Pool: poolFull, Pages: d.all}}); err != nil {
		return err
	}
	if err := d.engine.Extend(poolFull, d.batch.Sequences); err != nil {
		return err
	}
	for i := range d.batch.Sequences {
		d.batch.Sequences[i].NewTokens = 1
	}
	d.steps = 0
	return nil
}

// step is what a server does around one token of every sequence: FlashInfer's tables for FULL, FlashAttention's for SWA.
func (d *decoding) step() (err error) {
	d.steps++
	d.batch.Previous, err = d.engine.BatchStep(&d.batch)
	return err
}

func decodeStep() Group {
	return Group{Name: "decode-step", Works: []string{workDecode, workDecodeMem}, run: func(ctx context.Context, s *Settings, r *recorder) error {
		d, err := newDecoding(s)
		if err != nil {
			return err
		}
		defer func() {
			_ = d.begin() // closes the last step
			_ = d.engine.Close()
		}()
		config := fmt.Sprintf("%d sequences of %d to %d pages, FULL+SWA, %s", decodeSequences, decodeTokens/decodePageTokens/2, decodeTokens/decodePageTokens, ffi.CallMode)
		rounds := scaled(s, 20, 1)
		life := func() error { // every step of one life of the sequences
			for d.steps < decodeTokens/2 {
				if err := d.step(); err != nil {
					return err
				}
			}
			return nil
		}
		return repeat(ctx, s.runs(), func() error {
			total, made := 0.0, 0.0
			for range rounds {
				if err := d.begin(); err != nil {
					return err
				}
				var spent float64
				m, err := mallocs(func() error {
					t, err := threadTime(life)
					spent = float64(t.Nanoseconds())
					return err
				})
				if err != nil {
					return err
				}
				total, made = total+spent, made+m
			}
			steps := float64(rounds * decodeTokens / 2)
			r.add(Spec{Work: workDecode, Config: config, Unit: "us", Lower: true, Bar: atMost(30, "us")}, total/steps/1e3)
			r.add(Spec{Work: workDecodeMem, Config: config, Unit: "allocations a step", Lower: true, Bar: atMost(0.05, "")}, made/steps)
			return nil
		})
	}}
}
