package script

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hicache/hicache/ffi"
)

var rewriteScripts = flag.Bool("rewrite", false, "write the outputs into the scripts of testdata instead of comparing them")

// needLibrary skips, loudly, where no libhicache was built and none is asked for: these are tests of the engine.
func needLibrary(t *testing.T) {
	t.Helper()
	if _, err := ffi.Load(""); err != nil {
		if errors.Is(err, ffi.ErrABI) || os.Getenv("HICACHE_LIBRARY") != "" {
			t.Fatal(err) // There is one, or there should be.
		}
		t.Skipf("NOT TESTED, no libhicache.so (run make): %v", err)
	}
}

// TestScripts runs every script of testdata: the worked examples, scenarios and field cases, and the scripts that bugs left.
func TestScripts(t *testing.T) {
	needLibrary(t)
	names, err := filepath.Glob("testdata/*.script")
	if err != nil || len(names) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".script"), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if *rewriteScripts {
				if code := runNamed(name, Options{Rewrite: true}, os.Stdout, os.Stderr); code != 0 {
					t.Errorf("exit code %d", code)
				}
				return
			}
			checkScript(t, name, string(text))
		})
	}
}

// checkScript fails for every block that is not as expected.
func checkScript(t *testing.T, name, text string) {
	t.Helper()
	f, err := Parse(name, text)
	if err != nil {
		t.Fatal(err)
	}
	results, err := RunFile(f, "", nil)
	if err != nil {
		t.Errorf("close: %v", err)
	}
	for i, r := range results {
		b := &f.Blocks[i]
		switch {
		case r.OK:
		case b.Compared:
			t.Errorf("%s:%d: %s (-expected +got)\n%s", name, r.Line, r.Command, cmp.Diff(strings.Split(b.Expected, "\n"), strings.Split(r.Output, "\n")))
		default:
			t.Errorf("%s:%d: %s failed: %s", name, r.Line, r.Command, r.Output)
		}
	}
}

// TestPlacementReferenceGivesTheSameWorkedExamples: the places of the worked examples hold under both placements.
func TestWorkedExamplesUnderBothPlacements(t *testing.T) {
	needLibrary(t)
	for _, name := range []string{"worked-1-two-ended", "worked-3-asymmetric"} {
		text, err := os.ReadFile(filepath.Join("testdata", name+".script"))
		if err != nil {
			t.Fatal(err)
		}
		reference := strings.Replace(string(text), " page-tokens=4\n", " page-tokens=4 placement=reference\n", 1)
		if reference == string(text) {
			t.Fatalf("%s: no open line to change", name)
		}
		t.Run(name, func(t *testing.T) { checkScript(t, name, reference) })
	}
}

const manual = "../../../docs/SCRIPT.md"

// TestManualExamples runs every example of docs/SCRIPT.md; each command must have one.
func TestManualExamples(t *testing.T) {
	needLibrary(t)
	text, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	const fence = "```script\n"
	parts := strings.Split(string(text), fence)
	shown := map[string]bool{}
	for i, part := range parts[1:] {
		body, rest, ok := strings.Cut(part, "```")
		if !ok {
			t.Fatalf("example %d is not closed", i+1)
		}
		f, err := Parse("example of docs/SCRIPT.md", body)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range f.Blocks {
			shown[b.Command] = true
		}
		if !*rewriteScripts {
			checkScript(t, f.Name, body)
			continue
		}
		results, err := RunFile(f, "", nil)
		if err != nil {
			t.Errorf("close: %v", err)
		}
		outputs := make([]string, len(results))
		for j, r := range results {
			if outputs[j] = r.Output; !f.Blocks[j].Compared && r.Failed {
				t.Errorf("%s: %s", r.Command, r.Output)
			}
		}
		parts[i+1] = f.Rewrite(outputs) + "```" + rest
	}
	for _, name := range Commands() {
		if !shown[name] {
			t.Errorf("%s has no example", name)
		}
	}
	if *rewriteScripts {
		if err := os.WriteFile(manual, []byte(strings.Join(parts, fence)), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}
