package ffi

import (
	"time"
	"unsafe"
)

// Transfer is a load or a back-up: copies of pages between the device and the host tier.
type Transfer struct {
	Priority    Class
	Reservation Reservation // Load only.
	Copies      []Copy
	Binds       []Bind // Load only.
	Stream      uint64 // CUDA: the stream whose work so far the copy must follow.
	After       Ticket // The ring reports this transfer after that one; 0 none.
	User        uint64 // Returned in the completion.
}

func (f *frame) putTransfer(t *Transfer) {
	f.transfer = abiTransfer{
		structSize: uint32(unsafe.Sizeof(f.transfer)), priority: t.Priority, reservation: t.Reservation,
		copies: unsafe.SliceData(t.Copies), copyCount: count(len(t.Copies)),
		binds: unsafe.SliceData(t.Binds), bindCount: count(len(t.Binds)),
		stream: t.Stream, after: t.After, user: t.User,
	}
	f.out64 = 0
}

// Load binds the reserved pages and queues their host-to-device copies in one step, and consumes the reservation, on success only. Pages of
// the reservation that are not mentioned are given back. The ticket is 0 if there was nothing to copy.
// Errors: ErrStale, ErrNotMapped, ErrInvalid, ErrLimit.
func (e *Engine) Load(t *Transfer) (Ticket, error) {
	f := e.begin()
	if f == nil {
		return 0, closed("load")
	}
	f.putTransfer(t)
	status := e.library.table.callLoad(f, e.handle, ptr(&f.transfer), ptr(&f.out64), f.errorOut())
	return f.endTransfer(e, "load", status)
}

// BackUp queues device-to-host copies of bound pages into host pages that the caller has taken. The source stays as it is.
// Errors: ErrNotMapped, ErrStale, ErrInvalid, ErrLimit.
func (e *Engine) BackUp(t *Transfer) (Ticket, error) {
	f := e.begin()
	if f == nil {
		return 0, closed("back up")
	}
	f.putTransfer(t)
	status := e.library.table.callBackUp(f, e.handle, ptr(&f.transfer), ptr(&f.out64), f.errorOut())
	return f.endTransfer(e, "back up", status)
}

func (f *frame) endTransfer(e *Engine, op string, status Status) (Ticket, error) {
	ticket := Ticket(f.out64)
	f.transfer = abiTransfer{}
	return ticket, e.end(f, op, status)
}

// TransferCancel asks that a transfer copy no more: what was not handed to the device yet never runs, and the completion says StatusCancelled if
// that left something out. OK also for a transfer that has ended. Never waits. Errors: ErrStale.
func (e *Engine) TransferCancel(t Ticket) error {
	f := e.begin()
	if f == nil {
		return closed("transfer cancel")
	}
	return e.end(f, "transfer cancel", e.library.table.callTransferCancel(f, e.handle, uint64(t), f.errorOut()))
}

// LayerWait makes a stream wait until a global layer of the ticket's pages has arrived. On the CPU and null backends it blocks the caller
// instead, and returns why the transfer failed if it did.
func (e *Engine) LayerWait(t Ticket, layer uint32, stream uint64) error {
	f := e.begin()
	if f == nil {
		return closed("layer wait")
	}
	return e.end(f, "layer wait", e.library.table.callLayerWait(f, e.handle, uint64(t), layer, stream, f.errorOut()))
}

// TicketStatus says whether a transfer is done and which global layer ids have arrived: those below layersDone. The error is why it failed, or
// ErrStale once its completion has been read and the slot used again.
func (e *Engine) TicketStatus(t Ticket) (done bool, layersDone uint32, err error) {
	f := e.begin()
	if f == nil {
		return false, 0, closed("ticket status")
	}
	f.out32 = 0
	status := e.library.table.callTicketStatus(f, e.handle, uint64(t), ptr(&f.out32), f.errorOut())
	layersDone = f.out32
	return status != StatusPending, layersDone, e.end(f, "ticket status", status)
}

// CompletionPoll reads finished transfers, oldest first, up to len(out), and returns how many. Reading one ends its ticket's pins. Never
// blocks; meant for one goroutine.
func (e *Engine) CompletionPoll(out []Completion) (int, error) {
	f := e.begin()
	if f == nil {
		return 0, closed("completion poll")
	}
	f.out32 = 0
	status := e.library.table.callCompletionPoll(f, e.handle, data(out), count(len(out)), ptr(&f.out32), f.errorOut())
	n := int(f.out32)
	return n, e.end(f, "completion poll", status)
}

// CompletionWait is CompletionPoll that blocks until there is a completion, the timeout has passed (0, nil) or CompletionWake or Close is
// called. A negative timeout waits for ever.
func (e *Engine) CompletionWait(timeout time.Duration, out []Completion) (int, error) {
	f := e.begin()
	if f == nil {
		return 0, closed("completion wait")
	}
	f.out32 = 0
	ns := uint64(timeout)
	if timeout < 0 {
		ns = ^uint64(0)
	}
	status := e.library.table.callCompletionWait(f, e.handle, ns, data(out), count(len(out)), ptr(&f.out32), f.errorOut())
	n := int(f.out32)
	return n, e.end(f, "completion wait", status)
}

// CompletionWake ends a CompletionWait.
func (e *Engine) CompletionWake() error {
	f := e.begin()
	if f == nil {
		return closed("completion wake")
	}
	return e.end(f, "completion wake", e.library.table.callCompletionWake(f, e.handle, f.errorOut()))
}

// CompletionFD is an eventfd that is readable while the ring is not empty; it belongs to the engine. ErrUnsupported where there is none.
func (e *Engine) CompletionFD() (int, error) {
	f := e.begin()
	if f == nil {
		return -1, closed("completion fd")
	}
	fd := e.library.table.callCompletionFD(f, e.handle)
	if fd < 0 {
		return -1, e.end(f, "completion fd", f.refuse(StatusUnsupported, "this engine has no eventfd"))
	}
	return int(fd), e.end(f, "completion fd", StatusOK)
}
