// Package words looks at memory of words as memory of bytes. With package ffi it is the only Go code with unsafe; it imports nothing of the
// module, and every package may import it.
package words

import (
	"encoding/binary"
	"unsafe"
)

// LittleEndian reports whether the machine stores the low byte of a word first.
var LittleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// Bytes is the memory of w, in the machine's byte order. The result is w's memory, not a copy.
func Bytes(w []uint32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), len(w)*int(unsafe.Sizeof(uint32(0))))
}
