package ffi

import (
	"bufio"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The library exports the functions of include/hicache.abi and nothing else, under the SONAME of its MAJOR.
func TestGoldenSymbols(t *testing.T) {
	golden, err := os.Open(filepath.Join("..", "include", "hicache.abi"))
	if err != nil {
		t.Fatal(err)
	}
	defer golden.Close()
	var want []string
	for lines := bufio.NewScanner(golden); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "symbol "); ok {
			name, _, _ := strings.Cut(rest, " ")
			want = append(want, name)
		}
	}
	path := library(t).Path()
	if !filepath.IsAbs(path) {
		t.Skipf("SKIPPED: the library came from the system's loader as %s; set HICACHE_LIBRARY to its path", path)
	}
	file, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, s := range symbols {
		bind := elf.ST_BIND(s.Info)
		if s.Section == elf.SHN_UNDEF || bind != elf.STB_GLOBAL && bind != elf.STB_WEAK {
			continue
		}
		// Weak instances of the C++ library's templates and of typeinfo are not ours to hide.
		if bind == elf.STB_WEAK && strings.HasPrefix(s.Name, "_ZNSt") || strings.HasPrefix(s.Name, "_ZTI") || strings.HasPrefix(s.Name, "_ZTS") {
			continue
		}
		have = append(have, s.Name)
	}
	slices.Sort(want)
	slices.Sort(have)
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("exported symbols (-golden +library):\n%s", diff)
	}
	soname, err := file.DynString(elf.DT_SONAME)
	if want := fmt.Sprintf("libhicache.so.%d", ABIMajor); err != nil || len(soname) != 1 || soname[0] != want {
		t.Errorf("SONAME %v, %v; want %s", soname, err, want)
	}
}
