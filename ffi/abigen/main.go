// Command abigen makes the declarations of the C ABI in Go, Rust and Python from include/hicache.h, and the golden include/hicache.abi.
//
//	go run ./ffi/abigen          write them
//	go run ./ffi/abigen -check   fail, naming the file, when one is not what the header says
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

// output is one generated file.
type output struct {
	path string
	emit func(*Header) []byte
}

var outputs = []output{
	{"include/hicache.abi", emitGolden},
	{"csrc/abi_layout_gen.inc", emitLayoutTable},
	{"ffi/abi_gen.go", emitGo},
	{"ffi/abi_purego_gen.go", emitPurego},
	{"ffi/abi_cgo_gen.go", emitCgo},
	{"bindings/rust/hicache-sys/src/bindings.rs", emitRust},
	{"bindings/python/hicache/_abi.py", emitPython},
}

func main() {
	check := flag.Bool("check", false, "compare instead of writing")
	root := flag.String("root", "", "root of the repository; default: found from the working directory")
	flag.Parse()
	if err := run(*root, *check); err != nil {
		fmt.Fprintln(os.Stderr, "abigen:", err)
		os.Exit(1)
	}
}

func run(root string, check bool) error {
	if root == "" {
		found, err := findRoot()
		if err != nil {
			return err
		}
		root = found
	}
	path := filepath.Join(root, "include", "hicache.h")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	header, err := Parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	stale := 0
	for _, o := range outputs {
		want := o.emit(header)
		file := filepath.Join(root, filepath.FromSlash(o.path))
		have, err := os.ReadFile(file)
		if err == nil && bytes.Equal(have, want) {
			continue
		}
		if check {
			fmt.Fprintf(os.Stderr, "abigen: %s is not what include/hicache.h says\n", o.path)
			stale++
			continue
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, want, 0o644); err != nil {
			return err
		}
	}
	if stale > 0 {
		return fmt.Errorf("%d stale: run go run ./ffi/abigen", stale)
	}
	return nil
}

// findRoot walks up from the working directory to the header.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "include", "hicache.h")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("include/hicache.h is in no folder above the working directory; use -root")
		}
		dir = parent
	}
}
