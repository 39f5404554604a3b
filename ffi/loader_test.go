package ffi

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// library is the one under test: HICACHE_LIBRARY or the build folder's.
func library(tb testing.TB) *Library {
	tb.Helper()
	lib, err := Load("")
	if err != nil {
		tb.Fatalf("these tests need the library (make lib): %v", err)
	}
	return lib
}

// compileC makes a shared library of a few lines of C.
func compileC(t *testing.T, source string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("SKIPPED: no C compiler (cc) to make a foreign library with")
	}
	dir := t.TempDir()
	file, out := filepath.Join(dir, "lib.c"), filepath.Join(dir, "libforeign.so")
	if err := os.WriteFile(file, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	if text, err := exec.Command(cc, "-shared", "-fPIC", "-o", out, file).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, text)
	}
	return out
}

func TestLoadRefuses(t *testing.T) {
	text := filepath.Join(t.TempDir(), "libhicache.so")
	if err := os.WriteFile(text, bytes.Repeat([]byte("not an ELF file\n"), 64), 0o644); err != nil {
		t.Fatal(err)
	}
	empty := t.TempDir()
	for _, c := range []struct {
		name, path, want string
		abi              bool
	}{
		{name: "a path that is not there", path: filepath.Join(empty, "nothing.so"), want: "no such file"},
		{name: "a folder without the library", path: empty, want: filepath.Join(empty, "libhicache.so") + ": no such file"},
		{name: "a file that is no library", path: text, want: "invalid ELF header"},
		{name: "a foreign library", path: compileC(t, "int answer(void) { return 42; }"), want: "not a hicache library"},
		{name: "a later major", path: compileC(t, "unsigned hicache_abi_version(void) { return 7u << 16 | 3; }"),
			want: "a hicache library of ABI 7.3, this program speaks ABI 0.", abi: true},
		{name: "an older minor", path: compileC(t, "unsigned hicache_abi_version(void) { return 0; }"),
			want: "a hicache library of ABI 0.0, this program needs 0.", abi: true},
		{name: "a function short", path: compileC(t, "unsigned hicache_abi_version(void) { return 0xffff; }"),
			want: "without hicache_build_info", abi: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, origin := range []string{"option", libraryEnv} {
				path := c.path
				if origin == libraryEnv {
					t.Setenv(libraryEnv, c.path)
					path = ""
				}
				_, err := Load(path)
				var load *LoadError
				if !errors.As(err, &load) || !errors.Is(err, ErrNoLibrary) {
					t.Fatalf("%s: got %v, want a LoadError", origin, err)
				}
				if len(load.Tried) != 1 || load.Tried[0].Origin != origin {
					t.Errorf("%s: tried %+v, want that path alone", origin, load.Tried)
				}
				if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), origin+": ") {
					t.Errorf("%s: error %q lacks %q", origin, err, c.want)
				}
				if errors.Is(err, ErrABI) != c.abi {
					t.Errorf("%s: is ErrABI: %v, want %v", origin, !c.abi, c.abi)
				}
			}
			if _, err := Open(&Options{Library: c.path}); !errors.Is(err, ErrNoLibrary) {
				t.Errorf("Open: %v", err)
			}
		})
	}
}

// A refused library does not stop the search, and the error names every place.
func TestSearchOrder(t *testing.T) {
	t.Setenv(libraryEnv, "")
	root := t.TempDir()
	for _, dir := range []string{"build", "deep/er"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "go.mod"), []byte("// c\nmodule "+modulePath+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(root, "deep", "er"))
	var origins []string
	found := false
	for _, c := range candidates("") {
		origins = append(origins, c.origin)
		real, _ := filepath.EvalSymlinks(root)
		found = found || c.path == filepath.Join(root, "build", libraryFile) || c.path == filepath.Join(real, "build", libraryFile)
	}
	want := "beside the executable, build folder, build folder, system, system"
	if _, file, _, _ := runtime.Caller(0); !filepath.IsAbs(file) { // Built with -trimpath: where the module lay is not known.
		want = "beside the executable, build folder, system, system"
	}
	if got := strings.Join(origins, ", "); got != want {
		t.Errorf("origins %s, want %s", got, want)
	}
	if !found {
		t.Error("the build folder above the working directory is not searched")
	}
	err := &LoadError{Tried: []Attempt{{"option", "/a", "r1", false}, {"system", "b", "r2", true}}}
	if want := "hicache: no usable libhicache.so\n  option: /a: r1\n  system: b: r2"; err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
	if !errors.Is(err, ErrABI) || !errors.Is(err, ErrNoLibrary) || errors.Is(err, ErrNoCapacity) {
		t.Error("LoadError.Is is wrong")
	}
}

// Another module's go.mod is not ours: its build folder is not searched.
func TestForeignModule(t *testing.T) {
	t.Setenv(libraryEnv, "")
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "go.mod"), []byte("module example.com/server\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Chdir(root)
	for _, c := range candidates("") {
		if strings.HasPrefix(c.path, root) {
			t.Errorf("searches %s", c.path)
		}
	}
}

func TestLoadShares(t *testing.T) {
	lib := library(t)
	again, err := Load(lib.Path())
	if err != nil || again != lib {
		t.Errorf("a second load gave %p, %v; want %p", again, err, lib)
	}
	if major, minor := lib.ABIVersion(); major != ABIMajor || minor < ABIMinor {
		t.Errorf("ABI %d.%d", major, minor)
	}
	if lib.BuildInfo() == "" {
		t.Error("no build info")
	}
}
