package ffi

import (
	"math"
	"slices"
	"sync"
	"unsafe"
)

// frame is the memory of one call: arguments, arrays of structs on their way to C, and results on their way back. Frames are heap objects
// that are used again, so a call allocates nothing, C's view of them does not move, and every pointer that C sees is stored in a field
// the collector scans until the frame is released.
type frame struct {
	callState
	err abiError

	takes     []abiTake
	pages     []abiPages
	sequences []abiSequence
	tables    []abiBatchTable
	batch     abiBatch
	hostTakes []abiHostTake
	hostPages []abiHostPages
	addresses []uintptr // Of host pages: not memory of Go.
	transfer  abiTransfer
	handOver  abiHandOver

	handOverLines []abiHandOverLine

	out32 uint32
	out64 uint64
	text  uintptr // A static string of the library.

	info      PoolInfo
	capacity  Capacity
	budget    CompactBudget
	compacted CompactResult
	stats     Stats
	poolStats PoolStats
}

var frames = sync.Pool{New: func() any {
	f := &frame{
		takes:     make([]abiTake, 0, 16),
		pages:     make([]abiPages, 0, 16),
		hostTakes: make([]abiHostTake, 0, 16),
		hostPages: make([]abiHostPages, 0, 16),
	}
	f.err.reset()
	return f
}}

func newFrame() *frame { return frames.Get().(*frame) }

// release gives the frame back. The caller's memory is forgotten: a pool of frames must not keep a server's buffers alive.
func (f *frame) release() {
	clear(f.hold[:])
	f.takes = forget(f.takes)
	f.pages = forget(f.pages)
	f.sequences = forget(f.sequences)
	f.tables = forget(f.tables)
	f.hostTakes = forget(f.hostTakes)
	f.hostPages = forget(f.hostPages)
	f.handOverLines = forget(f.handOverLines)
	frames.Put(f)
}

func forget[T any](s []T) []T {
	if len(s) > 0 {
		clear(s)
	}
	return s[:0]
}

func (e *abiError) reset() {
	*e = abiError{structSize: uint32(unsafe.Sizeof(*e)), pool: NoPool}
}

func (f *frame) errorOut() unsafe.Pointer { return unsafe.Pointer(&f.err) }

// data is the address of a slice's first element for C; what it points to is kept by the frame that the pointer is stored in.
func data[T any](s []T) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(s)) }

// count is a length as the ABI counts. What does not fit becomes the largest count, which the library refuses.
func count(n int) uint32 { return uint32(min(uint64(n), math.MaxUint32)) }

func (f *frame) putTakes(takes []Take) {
	for i := range takes {
		t := &takes[i]
		n := t.Count
		if t.Pages != nil {
			n = count(len(t.Pages))
		}
		f.takes = append(f.takes, abiTake{pool: t.Pool, pageCount: n, vpages: unsafe.SliceData(t.Pages)})
	}
}

func (f *frame) putPages(pages []Pages) {
	for i := range pages {
		p := &pages[i]
		f.pages = append(f.pages, abiPages{pool: p.Pool, pageCount: count(len(p.Pages)), vpages: unsafe.SliceData(p.Pages)})
	}
}

func (f *frame) putSequences(sequences []Sequence) {
	f.sequences = slices.Grow(f.sequences, len(sequences))[:len(sequences)]
	for i := range sequences {
		s := &sequences[i]
		f.sequences[i] = abiSequence{
			vpages: unsafe.SliceData(s.Pages), vpageCount: count(len(s.Pages)), vpageCapacity: count(cap(s.Pages)),
			tokenCount: s.Tokens, newTokenCount: s.NewTokens, windowTailTokens: s.WindowTailTokens, flags: s.Flags,
		}
	}
}

// takeSequences brings what an extension made of the sequences back to the caller.
func (f *frame) takeSequences(sequences []Sequence) {
	for i := range f.sequences {
		s, grown := &sequences[i], &f.sequences[i]
		if n := int(grown.vpageCount); n != len(s.Pages) {
			s.Pages = s.Pages[:n]
		}
		s.Tokens = grown.tokenCount
	}
}

func (f *frame) putHostPages(pages []HostPages) {
	for i := range pages {
		p := &pages[i]
		f.hostPages = append(f.hostPages, abiHostPages{pool: p.Pool, pageCount: count(len(p.Pages)), hpages: unsafe.SliceData(p.Pages)})
	}
}

// goString copies a NUL-terminated string of the library.
func goString(address uintptr) string {
	p := foreign(address)
	if p == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(p, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(p), n))
}

// foreign makes a pointer of an address of the library's memory. It goes through memory, because vet rightly distrusts the direct
// conversion: an address of Go memory must never come this way.
func foreign(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }

// ptr is the address of a result in a frame.
func ptr[T any](p *T) unsafe.Pointer { return unsafe.Pointer(p) }
