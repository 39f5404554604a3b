package main

import (
	"bytes"
	"fmt"
	"strings"
)

// emitLayoutTable is csrc/abi_layout_gen.inc: what hicache_abi_layout answers, with the numbers of the compiler that built the library.
func emitLayoutTable(h *Header) []byte {
	var b bytes.Buffer
	b.WriteString(generated)
	for i := range h.Structs {
		s := &h.Structs[i]
		if s.Opaque {
			continue
		}
		fmt.Fprintf(&b, "{%q, sizeof(%s_t)},\n", s.Tag, s.Tag)
		for _, f := range s.Fields {
			fmt.Fprintf(&b, "{%q, offsetof(%s_t, %s)},\n", s.Tag+"."+f.Name, s.Tag, f.Name)
		}
	}
	return b.Bytes()
}

// emitGolden is include/hicache.abi: everything that a binary depends on, one fact a line. A change of a line that is there already is a
// break (MAJOR); new lines are an addition (MINOR).
func emitGolden(h *Header) []byte {
	var b bytes.Buffer
	b.WriteString("# The binary interface of libhicache on linux amd64 and arm64, made by ffi/abigen from hicache.h and compared with the library.\n")
	b.WriteString("# const NAME VALUE; size STRUCT BYTES; offset STRUCT.FIELD BYTES TYPE; symbol NAME RESULT (PARAMETERS)\n")
	for _, c := range h.Constants {
		fmt.Fprintf(&b, "const %s %d\n", c.Name, c.Value)
	}
	for i := range h.Structs {
		s := &h.Structs[i]
		if s.Opaque {
			continue
		}
		size, offsets, _ := h.layoutOf(s)
		fmt.Fprintf(&b, "size %s %d\n", s.Tag, size)
		for j, f := range s.Fields {
			ctype := h.resolve(f.Type)
			if f.Array > 0 {
				ctype = fmt.Sprintf("%s[%d]", ctype, f.Array)
			}
			fmt.Fprintf(&b, "offset %s.%s %d %s\n", s.Tag, f.Name, offsets[j], ctype)
		}
	}
	for _, f := range h.Functions {
		var params []string
		for _, p := range f.Params {
			params = append(params, h.resolve(p.Type))
		}
		fmt.Fprintf(&b, "symbol %s %s (%s)\n", f.Name, h.resolve(f.Result), strings.Join(params, ", "))
	}
	return b.Bytes()
}
