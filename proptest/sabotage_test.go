package proptest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hicache/hicache/ffi"
)

// The deliberate faults that a library built with HICACHE_SABOTAGE accepts. Each must turn the random tests and the replay red; a check
// that stays green here checks nothing.
var sabotages = []struct {
	name string
	bits ffi.Sabotage
}{
	{"virtual ids on the wire", ffi.SabotageVirtualOnWire},
	{"compaction ignores pins", ffi.SabotageIgnorePins},
	{"a copy drops the last layer", ffi.SabotageDropLastLayer},
}

const sabotageVariable = "HICACHE_SABOTAGE" // Bits that the random tests pass to the engine; for the tests below.

// sabotage is what the environment asks for.
func sabotage() ffi.Sabotage {
	bits, _ := strconv.ParseUint(os.Getenv(sabotageVariable), 0, 32)
	return ffi.Sabotage(bits)
}

// sabotagedLibrary finds the sabotage build: the one that HICACHE_SABOTAGE_LIBRARY names, which must be there, or that of the build folder;
// without one it skips loudly.
func sabotagedLibrary(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("HICACHE_SABOTAGE_LIBRARY"); path != "" {
		if _, err := os.Stat(path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	path, err := filepath.Abs(filepath.Join("..", "build-sabotage", "libhicache.so"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skip("NOT TESTED, no build-sabotage/libhicache.so: make sabotage")
	}
	return path
}

// TestSabotageIsCaughtByTheRandomTests runs this test binary again, on a library that is broken on purpose.
func TestSabotageIsCaughtByTheRandomTests(t *testing.T) {
	library := sabotagedLibrary(t)
	for _, property := range []string{"TestEngine", "TestCache"} {
		arguments := []string{"-test.run=^" + property + "$", "-test.count=1", "-test.failfast", "-rapid.nofailfile", "-rapid.shrinktime=1s"}
		for _, s := range sabotages {
			t.Run(property+"/"+s.name, func(t *testing.T) {
				mustFail(t, library, s.bits, 5, "[rapid] failed after", os.Args[0], func(int) []string { return arguments })
			})
		}
		t.Run(property+"/none", func(t *testing.T) { mustPass(t, library, os.Args[0], append(arguments, "-rapid.checks=5")...) })
	}
}

// TestSabotageIsCaughtByReplay replays a workload whose pages move and come back from the host.
func TestSabotageIsCaughtByReplay(t *testing.T) {
	library := sabotagedLibrary(t)
	program := filepath.Join(t.TempDir(), "hicache")
	if out, err := exec.Command("go", "build", "-o", program, "../gohicache/cmd/hicache").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	arguments := []string{"replay", "--workload", "agent", "--geometry", "gemma-3-27b", "--scale", "256", "--device", "12000tok", "--host", "60000tok",
		"--limit", "300", "--prompt-max", "2048", "--concurrency", "4", "--verify", "all"}
	for _, s := range sabotages {
		t.Run(s.name, func(t *testing.T) {
			runs := 1
			if s.bits == ffi.SabotageIgnorePins {
				runs = 30
			}
			mustFail(t, library, 0, runs, "MISMATCH", program, func(run int) []string {
				return append(slices.Clone(arguments), "--sabotage", fmt.Sprint(uint32(s.bits)), "--seed", fmt.Sprint(run+1))
			})
		})
	}
	t.Run("none", func(t *testing.T) { mustPass(t, library, program, arguments...) })
}

// mustFail runs a program that must notice the broken library: exit code 1, and some words of a check that failed. A fault that shows by chance has
// several runs for it: moves that heed no pins spoil bytes in most of them, but break the allocator's own tables before, or nothing, in a few.
func mustFail(t *testing.T, library string, bits ffi.Sabotage, runs int, word string, program string, arguments func(run int) []string) {
	t.Helper()
	said := ""
	for run := range runs {
		output, err := runWith(t, library, bits, program, arguments(run)...)
		var exit *exec.ExitError
		switch {
		case err == nil:
			said = "a broken library was not noticed"
		case !errors.As(err, &exit) || exit.ExitCode() != 1:
			said = fmt.Sprintf("%v, want exit code 1 (a check failed)", err)
		case !bytes.Contains(output, []byte(word)):
			said = fmt.Sprintf("failed for another reason than %q", word)
		default:
			return
		}
		said += ":\n" + string(tail(output))
	}
	t.Fatalf("the last of %d runs: %s", runs, said)
}

func mustPass(t *testing.T, library, program string, arguments ...string) {
	t.Helper()
	if output, err := runWith(t, library, 0, program, arguments...); err != nil {
		t.Fatalf("the same run without a fault fails too: %v\n%s", err, tail(output))
	}
}

func runWith(t *testing.T, library string, bits ffi.Sabotage, program string, arguments ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, program, arguments...)
	command.Env = append(os.Environ(), libraryVariable+"="+library, fmt.Sprintf("%s=%d", sabotageVariable, bits))
	return command.CombinedOutput()
}

func tail(output []byte) []byte { return output[max(0, len(output)-4000):] }
