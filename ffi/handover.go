package ffi

import (
	"unsafe"

	"github.com/hicache/hicache/ffi/ids"
)

// HandOverLine names pages of one pool of the source, and as many of one pool of the target, which get their bytes in this order.
type HandOverLine struct {
	SourcePool, TargetPool   uint32
	SourcePages, TargetPages []ids.VirtualPage
}

// HandOver is what goes from one engine to another.
type HandOver struct {
	Lines []HandOverLine
	// SourceStream and TargetStream are, on CUDA, the streams whose work so far the copies follow: the producer of the pages on the source's
	// device, the last reader of what is overwritten on the target's. 0: the legacy default stream.
	SourceStream, TargetStream uint64
	// Held: what is enqueued on TargetStream from here on follows the arrival, and target pages may be held by leases and by open steps of that
	// stream. Without it they must be held by nobody.
	Held bool
}

// HandOver copies pages into pages that another engine of the process has taken, on another device or the same: all lines or none. On CUDA it is
// in order with the work of both engines and does not block; on the CPU backend it blocks for the copy. The first call between two engines
// may take milliseconds; one without lines does just that. Pools must agree in role, tokens, layers, rows and page size.
// Errors: ErrInvalid (Pool, Need, Have of what differs; a target twice; the same engine twice; a stream of another device), ErrUnsupported (different
// backends or libraries), ErrNotMapped, ErrBusy (a transfer, or without Held a holder, is at a page), ErrLimit, ErrClosed, ErrDevice.
func (e *Engine) HandOver(target *Engine, h *HandOver) error {
	if target == nil || h == nil {
		return invalid("hand over", "the target or the request is nil")
	}
	for i := range h.Lines {
		if from, to := len(h.Lines[i].SourcePages), len(h.Lines[i].TargetPages); from != to {
			return invalid("hand over", "line %d has %d source pages and %d target pages", i, from, to)
		}
	}
	f := e.begin()
	if f == nil {
		return closed("hand over")
	}
	if target.library != e.library {
		return e.end(f, "hand over", f.refuse(StatusUnsupported, "the engines run in different libraries"))
	}
	if !target.gate.enter() {
		return e.end(f, "hand over", f.refuse(StatusClosed, "the target is closed"))
	}
	f.putHandOver(h)
	status := e.library.table.callHandOver(f, e.handle, target.handle, ptr(&f.handOver), f.errorOut())
	target.gate.leave()
	f.handOver = abiHandOver{}
	return e.end(f, "hand over", status)
}

func (f *frame) putHandOver(h *HandOver) {
	for i := range h.Lines {
		line := &h.Lines[i]
		f.handOverLines = append(f.handOverLines, abiHandOverLine{
			sourcePool: line.SourcePool, targetPool: line.TargetPool, pageCount: count(len(line.SourcePages)),
			sourceVPages: unsafe.SliceData(line.SourcePages), targetVPages: unsafe.SliceData(line.TargetPages),
		})
	}
	f.handOver = abiHandOver{
		structSize: uint32(unsafe.Sizeof(f.handOver)), lineCount: count(len(f.handOverLines)), lines: unsafe.SliceData(f.handOverLines),
		sourceStream: h.SourceStream, targetStream: h.TargetStream,
	}
	if h.Held {
		f.handOver.flags = HandOverHeld
	}
}

// refuse is the status of a call that this package answers itself.
func (f *frame) refuse(status Status, message string) Status {
	f.err.message = [len(f.err.message)]byte{}
	copy(f.err.message[:], message)
	return status
}
