// Package ffi is the Go side of the C ABI (include/hicache.h): it loads libhicache and gives each function of the ABI as a method with
// typed ids and slices. It is the only Go code of the module that uses package unsafe, and it decides nothing.
//
// # Calls
//
// By default calls go through purego, so that CGO_ENABLED=0 builds work; the build tag hicache_cgo (with cgo on) makes the same calls
// through cgo. Both find the library by the same rules, see [Load].
//
// # Memory
//
// Slices are borrowed for the call. The calls of a server's steady state make no garbage: argument blocks are reused, and nothing of a
// caller's slice is copied. The memory behind a slice of ids, copies, binds or completions must not move, so the compiler puts it on the
// heap: keep such slices and use them again, as a buffer declared in a loop is allocated there each time.
//
// # Threads
//
// Every method may be called from any goroutine. Calls that can block say so; a blocked call holds an OS thread, not a scheduler slot.
// After [Engine.Close] every method returns an error that is [ErrClosed].
package ffi
