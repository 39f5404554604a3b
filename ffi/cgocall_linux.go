//go:build linux && (amd64 || arm64) && !(hicache_cgo && cgo)

package ffi

import "unsafe" // Also for linkname.

// cgocall calls the C function fn(arg) on the system stack and returns its result. It is the runtime's own, which package purego uses in the
// same way and the runtime keeps for that; purego's SyscallN on top of it copies room for 32 arguments, twice, and takes a block from a pool.
//
//go:linkname cgocall runtime.cgocall
func cgocall(fn uintptr, arg unsafe.Pointer) int32
