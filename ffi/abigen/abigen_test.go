package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const sample = `// Prose.
#ifndef HICACHE_H_
#define HICACHE_H_
#include <stdint.h>
// ---- Things -------------

// First of two.
#define HICACHE_ROLE_FULL 1u
#define HICACHE_BUSY (-22) // Held.

typedef uint32_t hicache_vpage_t; // A name.
typedef struct hicache_engine hicache_engine_t;

// A line.
// And more.
typedef struct hicache_take {
  uint32_t pool; // Which.
                 // Really.
  // Both.
  uint64_t big_bytes, other_bytes;
  const hicache_vpage_t *vpages;
  char text[5];
} hicache_take_t;

// Takes.
HICACHE_API int32_t hicache_alloc(hicache_engine_t *engine, const hicache_take_t *takes,
                                  uint32_t take_count, const char **name_out);
`

func TestParse(t *testing.T) {
	got, err := Parse(sample)
	if err != nil {
		t.Fatal(err)
	}
	want := &Header{
		Constants: []Constant{
			{Name: "HICACHE_ROLE_FULL", Value: 1, Doc: []string{"First of two."}},
			{Name: "HICACHE_BUSY", Value: -22, Signed: true, Doc: []string{"Held."}},
		},
		Typedefs: []Typedef{{Name: "hicache_vpage_t", Type: "uint32_t", Doc: []string{"A name."}}},
		Structs: []Struct{
			{Tag: "hicache_engine", Opaque: true},
			{Tag: "hicache_take", Doc: []string{"A line.", "And more."}, Fields: []Field{
				{Name: "pool", Type: "uint32_t", Doc: []string{"Which.", "Really."}},
				{Name: "big_bytes", Type: "uint64_t", Doc: []string{"Both."}},
				{Name: "other_bytes", Type: "uint64_t"},
				{Name: "vpages", Type: "const hicache_vpage_t *"},
				{Name: "text", Type: "char", Array: 5},
			}},
		},
		Functions: []Function{{Name: "hicache_alloc", Result: "int32_t", Doc: []string{"Takes."}, Params: []Param{
			{"engine", "hicache_engine_t *"}, {"takes", "const hicache_take_t *"}, {"take_count", "uint32_t"}, {"name_out", "const char **"},
		}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	layout := []Layout{
		{"hicache_take", 40}, {"hicache_take.pool", 0}, {"hicache_take.big_bytes", 8}, {"hicache_take.other_bytes", 16},
		{"hicache_take.vpages", 24}, {"hicache_take.text", 32},
	}
	if diff := cmp.Diff(layout, got.Layouts()); diff != "" {
		t.Error(diff)
	}
}

// What the parser does not know must stop it: a declaration skipped in silence would be missing from every binding.
func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a line of another kind", "static int x;", `line 1: cannot read "static int x;"`},
		{"a macro that is no integer", "#define HICACHE_X sizeof(int)", "want #define HICACHE_NAME integer"},
		{"an unknown type", "typedef struct hicache_a {\n  float x;\n} hicache_a_t;\nHICACHE_API int32_t hicache_b(void);", `struct hicache_a, field x: unknown type "float"`},
		{"a bitfield", "typedef struct hicache_a {\n  uint32_t x : 3;\n} hicache_a_t;", `cannot read the field "uint32_t x : 3;"`},
		{"a type name that is not the tag's", "typedef struct hicache_a {\n  uint32_t x;\n} hicache_b_t;", "struct hicache_a has the type name hicache_b_t"},
		{"a struct without an end", "typedef struct hicache_a {\n  uint32_t x;", "struct hicache_a has no end"},
		{"an empty struct", "typedef struct hicache_a {\n} hicache_a_t;", "no fields"},
		{"a function without an end", "HICACHE_API int32_t hicache_b(void)", "has no end"},
		{"a struct by value", "typedef struct hicache_a {\n  uint32_t x;\n} hicache_a_t;\nHICACHE_API int32_t hicache_b(hicache_a_t a);", "passes a struct by value"},
		{"a callback", "HICACHE_API int32_t hicache_b(void (*f)(int));", "hicache_b: cannot read the parameter"},
		{"one name twice", "HICACHE_API int32_t hicache_b(void);\nHICACHE_API int32_t hicache_b(void);", "function hicache_b is declared twice"},
		{"nothing", "", "no functions"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse(c.text)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// The committed files are what the committed header says, and -check notices when one is not.
func TestOutputsAreCurrent(t *testing.T) {
	root, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	if err := run(root, true); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	text, err := os.ReadFile(filepath.Join(root, "include", "hicache.h"))
	if err != nil {
		t.Fatal(err)
	}
	header := filepath.Join(dir, "include", "hicache.h")
	if err := os.MkdirAll(filepath.Dir(header), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(content string) {
		if err := os.WriteFile(header, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(string(text))
	if err := run(dir, false); err != nil {
		t.Fatal(err)
	}
	if err := run(dir, true); err != nil {
		t.Fatal("fresh output is stale:", err)
	}
	write(strings.Replace(string(text), "uint32_t page_tokens;", "uint64_t page_tokens;", 1))
	if err := run(dir, true); err == nil {
		t.Fatal("a field changed its width and -check passed")
	}
}

func TestNames(t *testing.T) {
	for snake, want := range map[string]string{
		"NO_CAPACITY": "NoCapacity", "h2d_bytes": "H2DBytes", "vpage": "VPage", "completion_fd": "CompletionFD", "stale_id": "StaleID",
	} {
		if got := camel(snake); got != want {
			t.Errorf("camel(%q) = %q, want %q", snake, got, want)
		}
	}
	if got := lowerCamel("id_owner"); got != "idOwner" {
		t.Errorf("lowerCamel: %q", got)
	}
}
