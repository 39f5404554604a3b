package main

import (
	"bytes"
	"fmt"
	"strings"
)

var rustTypes = map[string]string{
	"char": "c_char", "void": "c_void", "uint8_t": "u8", "int32_t": "i32", "uint32_t": "u32", "int64_t": "i64", "uint64_t": "u64", "size_t": "usize",
}

func rustType(h *Header, ctype string) string {
	if isPointer(ctype) {
		kind := "*mut"
		rest, isConst := strings.CutPrefix(ctype, "const ")
		elem := strings.TrimSpace(strings.TrimSuffix(rest, "*"))
		if isConst {
			if strings.HasSuffix(elem, "*") { // const char **: the outer pointer is written through.
				return "*mut " + rustType(h, "const "+elem)
			}
			kind = "*const"
		}
		return kind + " " + rustType(h, elem)
	}
	if t, ok := rustTypes[ctype]; ok {
		return t
	}
	return ctype // A typedef or a struct of the header, under its own name.
}

// emitRust is hicache-sys's bindings.rs: the header's names unchanged.
func emitRust(h *Header) []byte {
	var b bytes.Buffer
	b.WriteString(generated + "\nuse core::ffi::{c_char, c_void};\nuse core::mem::{offset_of, size_of};\n\n")
	for _, t := range h.Typedefs {
		rustDoc(&b, "", t.Doc)
		fmt.Fprintf(&b, "pub type %s = %s;\n", t.Name, rustTypes[t.Type])
	}
	b.WriteString("\n")
	for _, c := range h.Constants {
		rustDoc(&b, "", c.Doc)
		typ := "u32"
		if c.Signed {
			typ = "hicache_status_t"
		} else if strings.HasPrefix(c.Name, "HICACHE_PAGE_") {
			typ = "u8"
		}
		fmt.Fprintf(&b, "pub const %s: %s = %d;\n", c.Name, typ, c.Value)
	}
	for i := range h.Structs {
		rustStruct(&b, h, &h.Structs[i])
	}
	rustLayout(&b, h)
	rustFunctions(&b, h)
	return b.Bytes()
}

func rustDoc(b *bytes.Buffer, indent string, doc []string) {
	for _, line := range doc {
		// rustdoc reads [a, b) as a link and <x> as a tag.
		line = strings.NewReplacer("[", `\[`, "]", `\]`, "<", `\<`, ">", `\>`).Replace(line)
		fmt.Fprintf(b, "%s/// %s\n", indent, line)
	}
}

func rustStruct(b *bytes.Buffer, h *Header, s *Struct) {
	b.WriteString("\n")
	rustDoc(b, "", s.Doc)
	if s.Opaque {
		fmt.Fprintf(b, "#[repr(C)]\npub struct %s_t {\n    _opaque: [u8; 0],\n}\n", s.Tag)
		return
	}
	fmt.Fprintf(b, "#[repr(C)]\n#[derive(Clone, Copy, Debug)]\npub struct %s_t {\n", s.Tag)
	for _, f := range s.Fields {
		rustDoc(b, "    ", f.Doc)
		t := rustType(h, f.Type)
		if f.Array > 0 {
			t = fmt.Sprintf("[%s; %d]", t, f.Array)
		}
		fmt.Fprintf(b, "    pub %s: %s,\n", f.Name, t)
	}
	fmt.Fprintf(b, "}\n\nimpl Default for %s_t {\n    /// All zero, with struct_size set where there is one.\n    fn default() -> Self {\n", s.Tag)
	b.WriteString("        // SAFETY: integers and raw pointers; all of them may be zero.\n")
	if s.Fields[0].Name == "struct_size" {
		b.WriteString("        let mut value: Self = unsafe { core::mem::zeroed() };\n        value.struct_size = size_of::<Self>() as u32;\n        value\n    }\n}\n")
		return
	}
	b.WriteString("        unsafe { core::mem::zeroed() }\n    }\n}\n")
}

func rustLayout(b *bytes.Buffer, h *Header) {
	b.WriteString("\n/// Every struct (size) and field (offset): name, as the header gives it, as this crate has it.\npub const LAYOUT: &[(&str, usize, usize)] = &[\n")
	for i := range h.Structs {
		s := &h.Structs[i]
		if s.Opaque {
			continue
		}
		size, offsets, _ := h.layoutOf(s)
		fmt.Fprintf(b, "    (%q, %d, size_of::<%s_t>()),\n", s.Tag, size, s.Tag)
		for j, f := range s.Fields {
			fmt.Fprintf(b, "    (%q, %d, offset_of!(%s_t, %s)),\n", s.Tag+"."+f.Name, offsets[j], s.Tag, f.Name)
		}
	}
	b.WriteString("];\n")
}

func rustSignature(h *Header, f Function) string {
	var params []string
	for _, p := range f.Params {
		params = append(params, p.Name+": "+rustType(h, p.Type))
	}
	if f.Result == "void" {
		return fmt.Sprintf("(%s)", strings.Join(params, ", "))
	}
	return fmt.Sprintf("(%s) -> %s", strings.Join(params, ", "), rustType(h, f.Result))
}

func rustFunctions(b *bytes.Buffer, h *Header) {
	b.WriteString("\n/// The functions of a library: linked ones (feature `link`) or loaded ones (feature `dlopen`).\n#[derive(Clone, Copy)]\npub struct Api {\n")
	for _, f := range h.Functions {
		rustDoc(b, "    ", f.Doc)
		fmt.Fprintf(b, "    pub %s: unsafe extern \"C\" fn%s,\n", f.Name, rustSignature(h, f))
	}
	b.WriteString("}\n\n#[cfg(feature = \"link\")]\n#[link(name = \"hicache\")]\nextern \"C\" {\n")
	for _, f := range h.Functions {
		fmt.Fprintf(b, "    pub fn %s%s;\n", f.Name, rustSignature(h, f))
	}
	b.WriteString("}\n\nimpl Api {\n    /// The library that this crate is linked with.\n    #[cfg(feature = \"link\")]\n    pub const fn linked() -> Api {\n        Api {\n")
	for _, f := range h.Functions {
		fmt.Fprintf(b, "            %s,\n", f.Name)
	}
	b.WriteString("        }\n    }\n\n    /// Fills the table by name.\n    ///\n    /// # Safety\n    /// `find` must answer with the address of the function of that name in a libhicache of this ABI, or null.\n")
	b.WriteString("    pub unsafe fn from_symbols(mut find: impl FnMut(&'static core::ffi::CStr) -> *mut c_void) -> Result<Api, &'static str> {\n")
	b.WriteString("        macro_rules! symbol {\n            ($name:literal) => {{\n                let address = find($name);\n                if address.is_null() {\n" +
		"                    return Err($name.to_str().unwrap_or(\"\"));\n                }\n                core::mem::transmute(address)\n            }};\n        }\n        Ok(Api {\n")
	for _, f := range h.Functions {
		fmt.Fprintf(b, "            %s: symbol!(c\"%s\"),\n", f.Name, f.Name)
	}
	b.WriteString("        })\n    }\n}\n")
}
