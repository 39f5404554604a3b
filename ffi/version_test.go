package ffi

import (
	"errors"
	"testing"
	"unsafe"
)

// Programs built with another header: the library takes what it can read in full and refuses the rest by name.
func TestOtherHeaders(t *testing.T) {
	lib := library(t)
	// A later header's options: ours, and 64 bytes that this library does not know.
	type later struct {
		abiOptions
		tail [8]uint64
	}
	size := uint32(unsafe.Sizeof(abiOptions{}))
	for _, c := range []struct {
		name   string
		change func(*later)
		want   error
	}{
		{"as it is", func(*later) {}, nil},
		{"a later minor with an empty tail", func(o *later) { o.structSize, o.abiVersion = size+64, ABIMajor<<16|(ABIMinor+1) }, nil},
		{"a later minor that uses its tail", func(o *later) { o.structSize, o.tail[3] = size+64, 1 }, ErrUnsupported},
		{"another major", func(o *later) { o.abiVersion = (ABIMajor + 1) << 16 }, ErrABI},
		{"a size that cannot be", func(o *later) { o.structSize = 3 }, ErrABI},
		{"a size of zero", func(o *later) { o.structSize = 0 }, ErrABI},
		{"a pool's size that cannot be", func(o *later) { o.poolStrideBytes = 5 }, errAny},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := &later{abiOptions: *testOptions().abi()}
			c.change(o)
			f := newFrame()
			defer f.release()
			handle := new(uintptr)
			status := lib.table.callOpen(f, ptr(o), ptr(handle), f.errorOut())
			if status < 0 {
				err := newError("open", status, &f.err)
				if c.want == nil || c.want != errAny && !errors.Is(err, c.want) || err.Message == "" || *handle != 0 {
					t.Errorf("got %v (engine %#x), want %v", err, *handle, c.want)
				}
				return
			}
			if c.want != nil {
				t.Errorf("opened, want %v", c.want)
			}
			if status := lib.table.callClose(f, *handle, f.errorOut()); status < 0 {
				t.Error(newError("close", status, &f.err))
			}
		})
	}
}

// errAny stands for any error of the library.
var errAny = errors.New("any")
