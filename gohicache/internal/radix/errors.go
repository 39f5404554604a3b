package radix

import "errors"

var (
	// ErrGap: the pages that the call builds on are not (or no longer) in the tree. Nothing changed; the caller still owns its pages.
	ErrGap = errors.New("radix: the prefix is not in the tree")
	// ErrPending: the pages that the call builds on are still being loaded. Nothing changed; call again when the load has ended.
	ErrPending = errors.New("radix: the prefix is still being loaded")
	// ErrStale: a pin, load, back-up or store that was already ended.
	ErrStale = errors.New("radix: stale id")
	// ErrArgument: lengths or values that do not fit each other; the text says which. Nothing changed.
	ErrArgument = errors.New("radix: bad argument")
)
