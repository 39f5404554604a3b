//go:build !(linux && (amd64 || arm64))

package ffi

import (
	"errors"
	"runtime"
	"unsafe"
)

// platformRefusal is why nothing can be loaded here. The package compiles everywhere, so that a program that merely links it does too.
const platformRefusal = "libhicache runs on linux/amd64 and linux/arm64, not on " + runtime.GOOS + "/" + runtime.GOARCH

func dlopen(string) (uintptr, error) { return 0, errors.New(platformRefusal) }

func dlsym(uintptr, string) (uintptr, error) { return 0, errors.New(platformRefusal) }

func dlclose(uintptr) {}

func syscallN(uintptr, []uintptr) uintptr { panic(platformRefusal) }

func cgocall(uintptr, unsafe.Pointer) int32 { panic(platformRefusal) }
