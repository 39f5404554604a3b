package ffi

import (
	"bytes"
	"fmt"
	"strings"
)

// sentinel is what errors.Is compares an [Error] with: all errors of one status.
type sentinel struct {
	status Status
	text   string
}

func (s *sentinel) Error() string { return "hicache: " + s.text }

// Sentinels, one a status. An [*Error] is the sentinel of its status; a [*LoadError] is [ErrNoLibrary], and [ErrABI] when a library was found that
// speaks another ABI.
var (
	ErrInvalid      error = &sentinel{StatusInvalidArgument, "invalid argument"}
	ErrUnsupported  error = &sentinel{StatusUnsupported, "unsupported"}
	ErrABI          error = &sentinel{StatusABIMismatch, "library and program of different ABI"}
	ErrNoCapacity   error = &sentinel{StatusNoCapacity, "no capacity"}
	ErrMovesBlocked error = &sentinel{StatusMovesBlocked, "moves blocked"}
	ErrBusy         error = &sentinel{StatusBusy, "busy"}
	ErrInfeasible   error = &sentinel{StatusInfeasible, "infeasible"}
	ErrClosed       error = &sentinel{StatusClosed, "closed"}
	ErrLimit        error = &sentinel{StatusLimit, "limit reached"}
	ErrStale        error = &sentinel{StatusStaleID, "stale id"}
	ErrNotMapped    error = &sentinel{StatusNotMapped, "not mapped"}
	ErrDevice       error = &sentinel{StatusDevice, "device failed"}
	ErrCorrupt      error = &sentinel{StatusCorrupt, "corrupt"}
	ErrCancelled    error = &sentinel{StatusCancelled, "cancelled"}
	ErrInternal     error = &sentinel{StatusInternal, "internal"}

	// ErrNoLibrary says that no usable libhicache.so was found.
	ErrNoLibrary error = &sentinel{0, "no usable libhicache"}
)

// Error is why a call failed: the ABI's hicache_error_t.
type Error struct {
	Op      string // The call: "alloc".
	Pool    uint32 // Pool concerned; NoPool if none.
	Need    uint64 // Bytes of the demand concerned; 0 if not about room.
	Have    uint64 // Bytes that could be had of it.
	Pending uint64 // Bytes that quarantined pages will give back by themselves.
	Ticket  Ticket // A ticket whose end gives room or unblocks a move; 0 if none.
	Status  Status
	Native  int32 // CUresult or errno; 0 if neither.
	Message string
}

// Error says the operation, the status and the library's sentence.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "hicache %s: %s", e.Op, e.Status)
	if e.Message != "" {
		b.WriteString(": " + e.Message)
	}
	if e.Native != 0 {
		fmt.Fprintf(&b, " (native code %d)", e.Native)
	}
	return b.String()
}

// Is reports whether target is the sentinel of the error's status.
func (e *Error) Is(target error) bool {
	s, ok := target.(*sentinel)
	return ok && s.status == e.Status
}

// String is the status as the header writes it: "NO_CAPACITY".
func (s Status) String() string {
	if name, ok := statusNames[s]; ok {
		return name
	}
	return fmt.Sprintf("UNKNOWN(%d)", int32(s))
}

// Err is nil for OK and PENDING, else the sentinel of the status (ErrInternal for one that this program does not know).
func (s Status) Err() error {
	switch s {
	case StatusOK, StatusPending:
		return nil
	case StatusInvalidArgument:
		return ErrInvalid
	case StatusUnsupported:
		return ErrUnsupported
	case StatusABIMismatch:
		return ErrABI
	case StatusNoCapacity:
		return ErrNoCapacity
	case StatusMovesBlocked:
		return ErrMovesBlocked
	case StatusBusy:
		return ErrBusy
	case StatusInfeasible:
		return ErrInfeasible
	case StatusClosed:
		return ErrClosed
	case StatusLimit:
		return ErrLimit
	case StatusStaleID:
		return ErrStale
	case StatusNotMapped:
		return ErrNotMapped
	case StatusDevice:
		return ErrDevice
	case StatusCorrupt:
		return ErrCorrupt
	case StatusCancelled:
		return ErrCancelled
	}
	return ErrInternal
}

// newError copies what the library wrote and clears it, so that a frame never shows an older error.
func newError(op string, status Status, e *abiError) *Error {
	message, _, _ := bytes.Cut(e.message[:], []byte{0})
	out := &Error{
		Op: op, Pool: e.pool, Need: e.needBytes, Have: e.haveBytes, Pending: e.pendingBytes, Ticket: Ticket(e.ticket),
		Status: status, Native: e.nativeCode, Message: string(message),
	}
	e.reset()
	return out
}

func invalid(op, format string, args ...any) error {
	return &Error{Op: op, Pool: NoPool, Status: StatusInvalidArgument, Message: fmt.Sprintf(format, args...)}
}

func closed(op string) error {
	return &Error{Op: op, Pool: NoPool, Status: StatusClosed, Message: "the engine is closed"}
}
