package main

import (
	"bytes"
	"fmt"
	"strings"
)

var pythonTypes = map[string]string{
	"char": "c_char", "uint8_t": "c_uint8", "int32_t": "c_int32", "uint32_t": "c_uint32", "int64_t": "c_int64", "uint64_t": "c_uint64", "size_t": "c_size_t",
}

func pythonType(h *Header, ctype string) string {
	if isPointer(ctype) {
		elem := strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(ctype, "const "), "*"))
		if elem == "void" {
			return "c_void_p"
		}
		if s := h.structOf(elem); s != nil && s.Opaque {
			return "c_void_p"
		}
		if ctype == "const char *" {
			return "c_char_p"
		}
		if strings.HasSuffix(elem, "*") && strings.HasPrefix(ctype, "const ") {
			return "POINTER(" + pythonType(h, "const "+elem) + ")"
		}
		return "POINTER(" + pythonType(h, elem) + ")"
	}
	if h.isStruct(ctype) {
		return ctype
	}
	return pythonTypes[h.resolve(ctype)]
}

// emitPython is hicache/_abi.py: the header's names unchanged.
func emitPython(h *Header) []byte {
	var b bytes.Buffer
	b.WriteString(strings.Replace(generated, "//", "#", 1))
	b.WriteString("\"\"\"Constants, structures and prototypes of include/hicache.h.\"\"\"\n\n")
	b.WriteString("from ctypes import POINTER, Structure, c_char, c_char_p, c_int32, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p, sizeof\n\n")
	for _, c := range h.Constants {
		pythonDoc(&b, "", c.Doc)
		fmt.Fprintf(&b, "%s = %d\n", c.Name, c.Value)
	}
	b.WriteString("\nSTATUS_NAMES = {\n")
	for _, c := range h.Constants {
		if c.Signed {
			fmt.Fprintf(&b, "    %d: %q,\n", c.Value, strings.TrimPrefix(c.Name, "HICACHE_"))
		}
	}
	b.WriteString("}\n")
	for i := range h.Structs {
		pythonStruct(&b, h, &h.Structs[i])
	}
	b.WriteString("\n\n# Sizes and offsets as the header gives them.\nLAYOUT = {\n")
	for _, l := range h.Layouts() {
		fmt.Fprintf(&b, "    %q: %d,\n", l.Name, l.Value)
	}
	b.WriteString("}\n\n# Structures by tag.\nSTRUCTS = {\n")
	for _, s := range h.Structs {
		if !s.Opaque {
			fmt.Fprintf(&b, "    %q: %s_t,\n", s.Tag, s.Tag)
		}
	}
	b.WriteString("}\n\n# Name, result and parameters of each function.\nPROTOTYPES = [\n")
	for _, f := range h.Functions {
		var params []string
		for _, p := range f.Params {
			params = append(params, pythonType(h, p.Type))
		}
		result := "None"
		if f.Result != "void" {
			result = pythonType(h, f.Result)
		}
		fmt.Fprintf(&b, "    (%q, %s, [%s]),\n", f.Name, result, strings.Join(params, ", "))
	}
	b.WriteString("]\n")
	return b.Bytes()
}

func pythonDoc(b *bytes.Buffer, indent string, doc []string) {
	for _, line := range doc {
		fmt.Fprintf(b, "%s# %s\n", indent, line)
	}
}

func pythonStruct(b *bytes.Buffer, h *Header, s *Struct) {
	if s.Opaque {
		return
	}
	b.WriteString("\n\n")
	pythonDoc(b, "", s.Doc)
	fmt.Fprintf(b, "class %s_t(Structure):\n    _fields_ = [\n", s.Tag)
	for _, f := range s.Fields {
		pythonDoc(b, "        ", f.Doc)
		t := pythonType(h, f.Type)
		if f.Array > 0 {
			t = fmt.Sprintf("%s * %d", t, f.Array)
		}
		fmt.Fprintf(b, "        (%q, %s),\n", f.Name, t)
	}
	b.WriteString("    ]\n")
	if s.Fields[0].Name == "struct_size" {
		fmt.Fprintf(b, "\n    def __init__(self, **fields):\n        super().__init__(struct_size=sizeof(type(self)), **fields)\n")
	}
}
