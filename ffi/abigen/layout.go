package main

import (
	"fmt"
	"strings"
)

// The layout rules of both supported platforms (linux amd64 and arm64, LP64): every scalar is aligned to its size, a struct to its widest
// member, and its size is a multiple of that. The generator computes the numbers from the header; tests compare them with what the
// library exports (hicache_abi_layout) and with what each language says.

// Layout is one entry: "struct" with its size, or "struct.field" with its offset in bytes.
type Layout struct {
	Name  string
	Value uint64
}

var scalarSize = map[string]uint64{
	"char": 1, "int8_t": 1, "uint8_t": 1, "int16_t": 2, "uint16_t": 2, "int32_t": 4, "uint32_t": 4, "int64_t": 8, "uint64_t": 8, "size_t": 8,
}

func isPointer(ctype string) bool { return strings.HasSuffix(ctype, "*") }

func (h *Header) sizeOf(ctype string) (uint64, error) {
	if isPointer(ctype) {
		elem := strings.TrimSpace(strings.TrimPrefix(strings.TrimRight(ctype, "*"), "const "))
		if elem == "void" {
			return 8, nil
		}
		if s := h.structOf(elem); s != nil {
			return 8, nil
		}
		_, err := h.sizeOf(elem)
		return 8, err
	}
	if s := h.structOf(ctype); s != nil {
		if s.Opaque {
			return 0, fmt.Errorf("%s is opaque", ctype)
		}
		size, _, err := h.layoutOf(s)
		return size, err
	}
	if n, ok := scalarSize[h.resolve(ctype)]; ok {
		return n, nil
	}
	return 0, fmt.Errorf("unknown type %q", ctype)
}

func (h *Header) alignOf(ctype string) uint64 {
	if s := h.structOf(ctype); s != nil {
		var align uint64 = 1
		for _, f := range s.Fields {
			align = max(align, h.alignOf(f.Type))
		}
		return align
	}
	n, _ := h.sizeOf(ctype)
	return n
}

// layoutOf is the size of a struct and the offset of each field.
func (h *Header) layoutOf(s *Struct) (size uint64, offsets []uint64, err error) {
	var align uint64 = 1
	for _, f := range s.Fields {
		n, err := h.sizeOf(f.Type)
		if err != nil {
			return 0, nil, err
		}
		a := h.alignOf(f.Type)
		align = max(align, a)
		size = (size + a - 1) / a * a
		offsets = append(offsets, size)
		size += n * uint64(max(f.Array, 1))
	}
	return (size + align - 1) / align * align, offsets, nil
}

// Layouts lists every struct and field of the header in order.
func (h *Header) Layouts() []Layout {
	var out []Layout
	for i := range h.Structs {
		s := &h.Structs[i]
		if s.Opaque {
			continue
		}
		size, offsets, err := h.layoutOf(s)
		if err != nil {
			panic(err) // check has been through it.
		}
		out = append(out, Layout{s.Tag, size})
		for j, f := range s.Fields {
			out = append(out, Layout{s.Tag + "." + f.Name, offsets[j]})
		}
	}
	return out
}
