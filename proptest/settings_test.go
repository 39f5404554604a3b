package proptest

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
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

// rounds is how often checkUntilMet runs its budget before it calls a test void. What a round misses by bad luck (its seed is new each time) the next ones meet.
const rounds = 10

// checkUntilMet is check, repeated while missing names something that the runs were to meet and have not: a random test that met no move
// proves nothing about moves, yet what one round meets is chance.
func checkUntilMet(t *testing.T, b budget, property func(*rapid.T), missing func() []string) {
	t.Helper()
	for round := range rounds {
		check(t, b, property)
		if t.Failed() || repeating() || len(missing()) == 0 {
			return // A failure, a single run that is being repeated, or all met.
		}
		t.Logf("round %d met no %s", round+1, strings.Join(missing(), ", no "))
	}
	t.Errorf("%d rounds met no %s: the test is void there", rounds, strings.Join(missing(), ", no "))
}

// unmet are the names that count zero.
func unmet(counts map[string]uint64) (names []string) {
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		if counts[what] == 0 {
			names = append(names, what)
		}
	}
	return names
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
