package main

import (
	"bytes"
	"fmt"
	"strings"
)

// Both call files give the same methods on table. A pointer parameter is first stored in the frame: it is a heap object that the
// collector scans, so the memory behind the pointer is on the heap, stays where it is and lives until frame.release.

func emitHold(b *bytes.Buffer, h *Header, f Function) {
	n := 0
	for _, p := range f.Params {
		if _, pointer := callParam(h, p); pointer {
			fmt.Fprintf(b, "\tf.hold[%d] = %s\n", n, goParam(p))
			n++
		}
	}
}

// limits are the sizes of the frame's arrays.
func limits(h *Header) (args, holds int) {
	for _, f := range h.Functions {
		args = max(args, len(f.Params))
		n := 0
		for _, p := range f.Params {
			if _, pointer := callParam(h, p); pointer {
				n++
			}
		}
		holds = max(holds, n)
	}
	return args, holds
}

// callArguments is the room in hicache_call.
const callArguments = 9

// emitPurego is ffi/abi_purego_gen.go.
func emitPurego(h *Header) []byte {
	var b bytes.Buffer
	b.WriteString(generated + "\n//go:build !(hicache_cgo && cgo && linux && (amd64 || arm64))\n\npackage ffi\n\nimport \"unsafe\"\n\n")
	args, holds := limits(h)
	if args > callArguments {
		panic(fmt.Sprintf("a function with %d parameters: hicache_call has room for %d", args, callArguments))
	}
	fmt.Fprintf(&b, "// callState is the part of a frame that the calls of this file use. The argument block is reused: nothing is allocated.\n")
	fmt.Fprintf(&b, "type callState struct {\n\tcall abiCall\n\thold [%d]unsafe.Pointer\n}\n\nconst callMode = \"purego\"\n", holds)
	for _, f := range h.Functions {
		fmt.Fprintf(&b, "\n%s {\n", callSignature(h, f))
		emitHold(&b, h, f)
		for i, p := range f.Params {
			name := goParam(p)
			if _, pointer := callParam(h, p); pointer {
				name = "uintptr(" + name + ")"
			}
			fmt.Fprintf(&b, "\tf.call.arguments[%d] = uint64(%s)\n", i, name)
		}
		if r := callResult(h, f); r != "" {
			fmt.Fprintf(&b, "\treturn %s(t.invoke(f, t.%s))\n}\n", r, goFunction(f))
		} else {
			fmt.Fprintf(&b, "\tt.invoke(f, t.%s)\n}\n", goFunction(f))
		}
	}
	return gofmt(b.Bytes())
}

// emitCgo is ffi/abi_cgo_gen.go. The functions are called through the addresses that the loader found, so that both builds find the
// library by the same rules. The C side needs no header: a module that vendors this package has none.
func emitCgo(h *Header) []byte {
	var b bytes.Buffer
	b.WriteString(generated + "\n//go:build hicache_cgo && cgo && linux && (amd64 || arm64)\n\npackage ffi\n\n/*\n#include <stddef.h>\n#include <stdint.h>\n\n")
	for _, f := range h.Functions {
		fmt.Fprintf(&b, "#cgo noescape go_%s\n#cgo nocallback go_%s\n", f.Name, f.Name)
	}
	for _, f := range h.Functions {
		var types, params, args []string
		for i, p := range f.Params {
			ctype := cgoType(h, p.Type)
			types = append(types, ctype)
			if isPointer(p.Type) {
				params = append(params, fmt.Sprintf("uintptr_t a%d", i))
				args = append(args, fmt.Sprintf("(%s)a%d", ctype, i))
			} else {
				params = append(params, fmt.Sprintf("%s a%d", ctype, i))
				args = append(args, fmt.Sprintf("a%d", i))
			}
		}
		result, cast := cgoType(h, f.Result), ""
		if isPointer(f.Result) {
			result, cast = "uintptr_t", "(uintptr_t)"
		}
		fmt.Fprintf(&b, "\nstatic %s go_%s(%s) {\n", result, f.Name, strings.Join(append([]string{"uintptr_t f"}, params...), ", "))
		fmt.Fprintf(&b, "  return %s((%s (*)(%s))f)(%s);\n}\n", cast, cgoType(h, f.Result), orVoid(strings.Join(types, ", ")), strings.Join(args, ", "))
	}
	b.WriteString("*/\nimport \"C\"\n\nimport \"unsafe\"\n\n")
	_, holds := limits(h)
	fmt.Fprintf(&b, "// callState is the part of a frame that the calls of this file use. Pointers go to C as uintptr: what they point to holds\n")
	fmt.Fprintf(&b, "// pointers to heap memory of Go, which the frame keeps alive and the collector does not move.\n")
	fmt.Fprintf(&b, "type callState struct {\n\thold [%d]unsafe.Pointer\n}\n\nconst callMode = \"cgo\"\n", holds)
	for _, f := range h.Functions {
		fmt.Fprintf(&b, "\n%s {\n", callSignature(h, f))
		emitHold(&b, h, f)
		args := []string{"C.uintptr_t(t." + goFunction(f) + ")"}
		for _, p := range f.Params {
			switch {
			case p.Type == "hicache_engine_t *":
				args = append(args, "C.uintptr_t("+goParam(p)+")")
			case isPointer(p.Type):
				args = append(args, "C.uintptr_t(uintptr("+goParam(p)+"))")
			default:
				args = append(args, "C."+cgoType(h, p.Type)+"("+goParam(p)+")")
			}
		}
		call := fmt.Sprintf("C.go_%s(%s)", f.Name, strings.Join(args, ", "))
		if r := callResult(h, f); r != "" {
			call = fmt.Sprintf("return %s(%s)", r, call)
		}
		fmt.Fprintf(&b, "\t%s\n}\n", call)
	}
	return gofmt(b.Bytes())
}

// cgoType is a type of the header in plain C: pointers to the header's structs are void *.
func cgoType(h *Header, ctype string) string {
	if isPointer(ctype) {
		return "void *"
	}
	return h.resolve(ctype)
}

func orVoid(params string) string {
	if params == "" {
		return "void"
	}
	return params
}
