package hicache

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// What can go wrong, for errors.Is. The error itself is an [*Error] with the numbers. A cache miss is never an error.
var (
	ErrInvalid     = errors.New("hicache: invalid argument")        // The message names the argument and what it may be.
	ErrNoCapacity  = errors.New("hicache: no capacity")             // Does not fit now; retry after a release, or use Wait.
	ErrInfeasible  = errors.New("hicache: can never fit")           // The message itemises.
	ErrClosed      = errors.New("hicache: cache is closed")         //
	ErrBusy        = errors.New("hicache: busy")                    // Leases, sequences or steps are outstanding.
	ErrStale       = errors.New("hicache: stale")                   // That match, lease, sequence or page is over.
	ErrUnsupported = errors.New("hicache: unsupported combination") // The message names both options.
	ErrDevice      = errors.New("hicache: device failed")           // The engine is poisoned: only Close is left.
	ErrABI         = errors.New("hicache: library does not match")  // Wrong, missing or incompatible libhicache.
	ErrCorrupt     = errors.New("hicache: corrupt data")            // Bytes failed their checksum.
	ErrTransfer    = errors.New("hicache: transfer failed")         // A copy between tiers failed; nothing of it was published.
	ErrInternal    = errors.New("hicache: internal error")          // A bug; please report it with Verify's output.
)

// Error is the concrete error of this package. errors.Is compares its Err.
type Error struct {
	Op      string // What was attempted: "open", "load", "insert", ...
	Pool    string // Pool concerned, "" if none.
	Need    uint64 // Bytes needed; 0 if not about room.
	Have    uint64 // Bytes that could be had.
	Pending uint64 // Bytes that will come back by themselves.
	Status  int32  // libhicache's status, 0 if the error did not come from there.
	Native  int32  // errno or CUresult, 0 if neither.
	Message string // A sentence.
	Err     error  // One of this package's sentinels, or what storage or the context said.
}

// Error writes the operation, the kind, the sentence and the numbers.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	b.WriteString(": ")
	if e.Err != nil {
		b.WriteString(e.Err.Error())
	}
	if e.Pool != "" {
		fmt.Fprintf(&b, " [pool %s]", e.Pool)
	}
	if e.Message != "" {
		b.WriteString(": ")
		b.WriteString(e.Message)
	}
	if e.Need != 0 {
		fmt.Fprintf(&b, " (need %d bytes, have %d, pending %d)", e.Need, e.Have, e.Pending)
	}
	return b.String()
}

// Unwrap gives the sentinel.
func (e *Error) Unwrap() error { return e.Err }

// needsContext refuses a call without a context before it takes anything.
func needsContext(op string, ctx context.Context) error {
	if ctx != nil {
		return nil
	}
	return &Error{Op: op, Err: ErrInvalid, Message: "the context is nil"}
}
