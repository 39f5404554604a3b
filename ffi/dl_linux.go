//go:build linux && (amd64 || arm64)

package ffi

import "github.com/ebitengine/purego"

// platformRefusal is empty where the library runs.
const platformRefusal = ""

func dlopen(path string) (uintptr, error) {
	return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

func dlsym(library uintptr, name string) (uintptr, error) { return purego.Dlsym(library, name) }

func dlclose(library uintptr) { _ = purego.Dlclose(library) }

func syscallN(fn uintptr, args []uintptr) uintptr {
	r, _, _ := purego.SyscallN(fn, args...)
	return r
}
