package proptest

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/hicache/hicache/ffi"
)

// HICACHE_CHECKS multiplies the number of random runs of every test here (1 is the budget of CI).
const checksVariable = "HICACHE_CHECKS"

func TestMain(m *testing.M) {
	flag.Parse()
	factor := 1
	if text := os.Getenv(checksVariable); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			fmt.Fprintf(os.Stderr, "%s=%q: want a whole number from 1\n", checksVariable, text)
			os.Exit(2)
		}
		factor = n
	}
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given {
		setFlag("rapid.checks", strconv.Itoa(60*factor))
	}
	os.Exit(m.Run())
}

func setFlag(name, value string) {
	if err := flag.Set(name, value); err != nil {
		panic(err) // A flag of the rapid package is gone: the settings here must follow.
	}
}

// check is rapid.Check that also prints, on failure, the one command that repeats the run; rapid prints the seed or the fail file.
func check(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("repeat with: %s=%s go test ./proptest -count=1 -run '^%s$' and the -rapid flag printed above",
				libraryVariable, os.Getenv(libraryVariable), t.Name())
		}
	})
	rapid.Check(t, property)
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
