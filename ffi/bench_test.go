package ffi

import (
	"testing"

	"github.com/hicache/hicache/ffi/ids"
)

// The names of the benchmarks say the call mode: run them with CGO_ENABLED=0 for purego and with -tags hicache_cgo for cgo.

// BenchmarkCall is the border alone: the library answers with a constant.
func BenchmarkCall(b *testing.B) {
	lib := library(b)
	f := newFrame()
	defer f.release()
	b.Run(CallMode, func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			lib.table.callABIVersion(f)
		}
	})
}

// BenchmarkEmptyTake is the border with its guard, frame and one line of arguments, and nothing to take.
func BenchmarkEmptyTake(b *testing.B) {
	e := open(b, testOptions())
	b.Run(CallMode, func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := e.Alloc([]Take{{Pool: poolSWA}}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkTakeFree is a take and a free of 4 pages in FULL and SWA, in an arena of 10⁴ pages; the bar is 1.2 µs without an allocation.
func BenchmarkTakeFree(b *testing.B) {
	o := testOptions()
	o.Backend, o.DeviceBytes, o.HostBytes = BackendNull, 2*10_000*512, 0
	e := open(b, o)
	pages := make([]ids.VirtualPage, 4)
	b.Run(CallMode, func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := e.Alloc([]Take{{Pool: poolFull, Pages: pages}, {Pool: poolSWA, Count: 4}}); err != nil {
				b.Fatal(err)
			}
			if err := e.Free([]Pages{{Pool: poolFull, Pages: pages}}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkTakeFreeParallel is BenchmarkTakeFree from every core at once, against one engine.
func BenchmarkTakeFreeParallel(b *testing.B) {
	o := testOptions()
	o.Backend, o.DeviceBytes, o.HostBytes = BackendNull, 2*10_000*512, 0
	e := open(b, o)
	b.Run(CallMode, func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			pages := make([]ids.VirtualPage, 4)
			for pb.Next() {
				if err := e.Alloc([]Take{{Pool: poolFull, Pages: pages}, {Pool: poolSWA, Count: 4}}); err != nil {
					b.Error(err)
					return
				}
				if err := e.Free([]Pages{{Pool: poolFull, Pages: pages}}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}

// BenchmarkKernelIDs translates the pages of a sequence of 4,096 pages under a lease.
func BenchmarkKernelIDs(b *testing.B) {
	o := testOptions()
	o.Backend, o.DeviceBytes, o.HostBytes = BackendNull, 2*10_000*512, 0
	e := open(b, o)
	pages := make([]ids.VirtualPage, 4096)
	if err := e.Alloc([]Take{{Pool: poolFull, Pages: pages}}); err != nil {
		b.Fatal(err)
	}
	lease, err := e.LeaseAcquire([]Pages{{Pool: poolFull, Pages: pages}})
	if err != nil {
		b.Fatal(err)
	}
	out := make([]ids.KernelID, len(pages))
	b.Run(CallMode, func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := e.KernelIDs(Holder(lease), poolFull, GranularityPage, pages, out); err != nil {
				b.Fatal(err)
			}
		}
	})
	if err := e.LeaseRelease(lease); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkDecodeStep is one decode step of 256 sequences of 4 to 8 pages: close the step before, extend each by a token, open a step over all
// pages and write the page tables of both pools; the bar is 30 µs without an allocation. The sequences begin anew when they are full.
func BenchmarkDecodeStep(b *testing.B) {
	const sequences, tokens, pageTokens = 256, 128, 16
	o := testOptions()
	for i := range o.Pools {
		o.Pools[i].PageTokens = pageTokens
	}
	o.Pools[poolSWA].WindowTokens = tokens
	o.Backend, o.DeviceBytes, o.HostBytes = BackendNull, 2*10_000*2048, 0
	e := open(b, o)
	batch := Batch{OwnerPool: poolFull, Sequences: make([]Sequence, sequences), Tables: []BatchTable{
		{Pool: poolFull, Form: TableFormRagged, Indptr: make([]int32, sequences+1), LastPageTokens: make([]int32, sequences)},
		{Pool: poolSWA, Form: TableFormPadded, RowPages: tokens / pageTokens},
	}}
	for i := range batch.Tables {
		batch.Tables[i].IDs = make([]ids.KernelID, sequences*tokens/pageTokens)
	}
	for i := range batch.Sequences {
		batch.Sequences[i] = Sequence{Pages: make([]ids.VirtualPage, 0, tokens/pageTokens), WindowTailTokens: NoPage}
	}
	all := make([]ids.VirtualPage, 0, sequences*tokens/pageTokens)
	begin := func(b *testing.B) {
		if batch.Previous != 0 {
			if err := e.StepClose(batch.Previous); err != nil {
				b.Fatal(err)
			}
			batch.Previous = 0
		}
		all = all[:0]
		for i := range batch.Sequences {
			s := &batch.Sequences[i]
			all = append(all, s.Pages...)
			s.Pages, s.Tokens, s.NewTokens = s.Pages[:0], 0, tokens/2
		}
		if err := e.Free([]Pages{{Pool: poolFull, Pages: all}}); err != nil {
			b.Fatal(err)
		}
		if err := e.Extend(poolFull, batch.Sequences); err != nil {
			b.Fatal(err)
		}
		for i := range batch.Sequences {
			batch.Sequences[i].NewTokens = 1
		}
	}
	b.Run(CallMode, func(b *testing.B) {
		b.ReportAllocs()
		for n := 0; b.Loop(); n++ {
			if n%(tokens/2) == 0 {
				b.StopTimer()
				begin(b)
				b.StartTimer()
			}
			step, err := e.BatchStep(&batch)
			if err != nil {
				b.Fatal(err)
			}
			batch.Previous = step
		}
	})
	begin(b)
}
