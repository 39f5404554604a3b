package lifecycle

import "fmt"

// Kind classifies an Error.
type Kind uint8

const (
	KindInvalid Kind = 1 + iota
	KindNoCapacity
	KindInfeasible
	KindClosed
	KindBusy
	KindStale
	KindUnsupported
	KindDevice
	KindABI
	KindCorrupt
	KindTransfer
	KindInternal
)

// Error is every error of this package but the context's.
type Error struct {
	Kind                Kind
	Pool                int // -1 if none
	Need, Have, Pending uint64
	Ticket              uint64 // whose end gives room; 0 if none
	Status, Native      int32
	Message             string
}

func (e *Error) Error() string { return e.Message }

func fail(kind Kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Pool: -1, Message: fmt.Sprintf(format, args...)}
}

// owns refuses what another cache gave out: its page ids are none here, or those of other pages.
func (c *Core) owns(of *Core, what string) error {
	if of != c {
		return fail(KindInvalid, "the %s belongs to another cache", what)
	}
	return nil
}

func errClosed() *Error { return fail(KindClosed, "the cache is closed or closing") }
