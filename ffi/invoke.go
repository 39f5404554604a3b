//go:build !(hicache_cgo && cgo && linux && (amd64 || arm64))

package ffi

import (
	"runtime"
	"unsafe"
)

// invoke calls a function of the library with the arguments in the frame's block: one pointer goes over the border, and the block is heap
// memory that stays where it is.
func (t *table) invoke(f *frame, function uintptr) uintptr {
	if t.fnInvoke == 0 { // A library whose version is still to be seen.
		arguments := make([]uintptr, len(f.call.arguments))
		for i, a := range f.call.arguments {
			arguments[i] = uintptr(a)
		}
		return syscallN(function, arguments)
	}
	f.call.function = function
	cgocall(t.fnInvoke, unsafe.Pointer(&f.call))
	runtime.KeepAlive(f)
	return uintptr(f.call.result)
}
