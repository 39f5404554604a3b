// Package lint checks rules of the house that the compiler does not know.
package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/hicache/hicache/"

// layers says, for each package of the core module, which packages of this module it may import. Left knows right, right never knows left:
// gohicache → lifecycle → radix → policy, and lifecycle → ffi. A package that is not listed may import none.
var layers = map[string][]string{
	"ffi":                           {"ffi/ids"},
	"gohicache":                     {"ffi/ids", "gohicache/events", "gohicache/internal/lifecycle", "gohicache/internal/policy", "gohicache/internal/radix", "gohicache/metrics", "gohicache/storage"},
	"gohicache/internal/lifecycle":  {"ffi", "ffi/ids", "gohicache/events", "gohicache/internal/invariants", "gohicache/internal/policy", "gohicache/internal/radix", "gohicache/metrics", "gohicache/storage"},
	"gohicache/internal/radix":      {"ffi/ids", "ffi/words", "gohicache/internal/policy"},
	"gohicache/internal/oplog":      {"ffi", "ffi/ids"},
	"gohicache/internal/policy":     {},
	"gohicache/internal/invariants": {},
	"gohicache/events":              {},
	"gohicache/metrics":             {},
	"gohicache/storage":             {},
	"gohicache/storage/file":        {"gohicache/storage"},
	"ffi/ids":                       {},
	"ffi/words":                     {},
}

// pure packages decide; they may not read a clock, do I/O or start anything.
var pure = []string{"gohicache/internal/policy", "gohicache/internal/radix", "gohicache/internal/invariants"}

var impure = []string{"os", "net", "io", "log", "log/slog", "context", "syscall", "unsafe"}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// imports lists, by package folder, the imports of its non-test files.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	top := root(t)
	for _, tree := range []string{"ffi", "gohicache"} {
		err := filepath.WalkDir(filepath.Join(top, tree), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() {
				_, err := os.Stat(filepath.Join(path, "go.mod"))
				if d.Name() == "testdata" || err == nil {
					return filepath.SkipDir // a module of its own may import what it likes
				}
			}
			if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			if err != nil {
				return err
			}
			folder, err := filepath.Rel(top, filepath.Dir(path))
			if err != nil {
				return err
			}
			folder = filepath.ToSlash(folder)
			if _, ok := out[folder]; !ok {
				out[folder] = nil
			}
			for _, spec := range f.Imports {
				name, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					return err
				}
				if !slices.Contains(out[folder], name) {
					out[folder] = append(out[folder], name)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestLayers(t *testing.T) {
	all := imports(t)
	for folder := range layers {
		if _, ok := all[folder]; !ok {
			t.Errorf("%s is in the table but not in the tree", folder)
		}
	}
	for folder, list := range all {
		allowed, listed := layers[folder]
		for _, name := range list {
			in, ok := strings.CutPrefix(name, module)
			if !ok {
				continue
			}
			if !listed && !strings.HasPrefix(folder, "gohicache/internal/script") && !strings.HasPrefix(folder, "ffi/abigen") {
				t.Errorf("%s imports %s but has no row in the table of layers", folder, in)
			} else if listed && !slices.Contains(allowed, in) {
				t.Errorf("%s imports %s, which its layer may not know", folder, in)
			}
		}
	}
}

func TestPurePackages(t *testing.T) {
	all := imports(t)
	for _, folder := range pure {
		for _, name := range all[folder] {
			if slices.Contains(impure, name) {
				t.Errorf("%s imports %s; it must stay pure", folder, name)
			}
		}
	}
}

// TestPurePackagesHaveNoClock: durations are values, but nothing may ask what time it is or wait.
func TestPurePackagesHaveNoClock(t *testing.T) {
	clocks := []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}
	for _, folder := range pure {
		files, err := filepath.Glob(filepath.Join(root(t), folder, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatal(folder, err)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clocks, s.Sel.Name) {
						t.Errorf("%s uses time.%s; it must stay pure", path, s.Sel.Name)
					}
				}
				return true
			})
		}
	}
}

// TestUnsafeOnlyInFFI: package ffi is the only Go code with unsafe, but for the one function of words.
func TestUnsafeOnlyInFFI(t *testing.T) {
	for folder, list := range imports(t) {
		if folder != "ffi" && folder != "ffi/words" && slices.Contains(list, "unsafe") {
			t.Errorf("%s imports unsafe", folder)
		}
	}
}

// TestDependencies: the core depends on purego and a hash library, and nothing else outside the standard library.
func TestDependencies(t *testing.T) {
	allowed := map[string]string{"github.com/ebitengine/purego": "ffi", "github.com/zeebo/xxh3": ""}
	for folder, list := range imports(t) {
		if strings.HasPrefix(folder, "gohicache/internal/script") { // the script language of the tests
			continue
		}
		for _, name := range list {
			first, _, _ := strings.Cut(name, "/")
			if !strings.Contains(first, ".") || strings.HasPrefix(name, module) {
				continue
			}
			only, ok := allowed[name]
			if !ok || only != "" && only != folder {
				t.Errorf("%s imports %s, which the core may not depend on", folder, name)
			}
		}
	}
}

// TestWords: names that say nothing are not used for packages or files.
func TestWords(t *testing.T) {
	bad := []string{"util", "utils", "common", "helper", "helpers", "manager", "base", "misc"}
	for folder := range imports(t) {
		if slices.Contains(bad, filepath.Base(folder)) {
			t.Errorf("package %s", folder)
		}
	}
	top := root(t)
	for _, tree := range []string{"ffi", "gohicache", "csrc", "proptest"} {
		_ = filepath.WalkDir(filepath.Join(top, tree), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil // a tree that is not there yet has no bad names
			}
			name, _, _ := strings.Cut(d.Name(), ".")
			if !d.IsDir() && slices.Contains(bad, name) {
				t.Errorf("file %s", path)
			}
			return nil
		})
	}
}
