package proptest

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/hicache/hicache/ffi"
)

// HICACHE_CHECKS multiplies the number of random runs of every test here (1 is the budget of CI).
const checksVariable = "HICACHE_CHECKS"

var (
	factor     = 1
	givenFlags = map[string]bool{} // Flags of the command line, which nothing here overrides.
)

func TestMain(m *testing.M) {
	flag.Parse()
	if text := os.Getenv(checksVariable); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			fmt.Fprintf(os.Stderr, "%s=%q: want a whole number from 1\n", checksVariable, text)
			os.Exit(2)
		}
		factor = n
	}
	flag.Visit(func(f *flag.Flag) { givenFlags[f.Name] = true })
	os.Exit(m.Run())
}

// budget is how much of CI a random test takes: runs, and for state machines the average number of actions of a run.
type budget struct{ checks, steps int }

// check is rapid.Check within a budget. On failure rapid prints the seed or the file of drawn values, and this the command that repeats it.
func check(t *testing.T, b budget, property func(*rapid.T)) {
	t.Helper()
	setFlag("rapid.checks", b.checks*factor)
	setFlag("rapid.steps", b.steps)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("repeat with: %s=%q go test ./proptest -count=1 -run '^%s$' and the -rapid flag printed above",
				libraryVariable, os.Getenv(libraryVariable), strings.ReplaceAll(t.Name(), "/", "$/^"))
		}
	})
	rapid.Check(t, property)
}

func setFlag(name string, value int) {
	if givenFlags[name] {
		return
	}
	if err := flag.Set(name, strconv.Itoa(value)); err != nil {
		panic(err) // A flag of the rapid package is gone: the settings here must follow.
	}
}

// repeating reports whether the command line asks for certain runs: then what they met says nothing about the test.
func repeating() bool {
	return givenFlags["rapid.seed"] || givenFlags["rapid.failfile"] || givenFlags["rapid.checks"]
}

const libraryVariable = "HICACHE_LIBRARY"

// needLibrary skips, loudly, where no libhicache was built and none is asked for.
func needLibrary(t *testing.T) {
	t.Helper()
	if _, err := ffi.Load(""); err != nil {
		if errors.Is(err, ffi.ErrABI) || os.Getenv("HICACHE_LIBRARY") != "" {
			t.Fatal(err) // There is one, or there should be.
		}
		t.Skipf("NOT TESTED, no libhicache.so (run make): %v", err)
	}
}
