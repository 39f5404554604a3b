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
