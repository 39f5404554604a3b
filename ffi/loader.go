package ffi

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
)

const (
	libraryFile   = "libhicache.so"
	librarySONAME = "libhicache.so.0" // The number is the ABI's MAJOR.
	libraryEnv    = "HICACHE_LIBRARY"
	modulePath    = "github.com/hicache/hicache"
)

// CallMode is how this build calls the library: "purego" or "cgo".
const CallMode = callMode

// Library is a loaded libhicache. It is never unloaded: engines own threads of it.
type Library struct {
	table table
	path  string
	major uint32
	minor uint32
	info  string
}

// Attempt is one place where the loader looked.
type Attempt struct {
	Origin string // "option", "HICACHE_LIBRARY", "beside the executable", "build folder" or "system".
	Path   string
	Reason string // Why it was not used.
	ABI    bool   // It is a hicache library of another ABI.
}

// LoadError lists every path that was tried and why it was not used. It is ErrNoLibrary, and ErrABI if a library of another ABI was met.
type LoadError struct {
	Tried []Attempt
}

// Error has one line a path.
func (e *LoadError) Error() string {
	var b strings.Builder
	b.WriteString("hicache: no usable " + libraryFile)
	for _, a := range e.Tried {
		fmt.Fprintf(&b, "\n  %s: %s: %s", a.Origin, a.Path, a.Reason)
	}
	return b.String()
}

// Is reports whether target is ErrNoLibrary or, where it applies, ErrABI or ErrUnsupported.
func (e *LoadError) Is(target error) bool {
	switch target {
	case ErrNoLibrary:
		return true
	case ErrUnsupported:
		return platformRefusal != ""
	case ErrABI:
		for _, a := range e.Tried {
			if a.ABI {
				return true
			}
		}
	}
	return false
}

type candidate struct {
	origin, path string
}

// loaded are the libraries of this process by path, so that every engine of a path shares one.
var loaded struct {
	sync.Mutex
	byPath map[string]*Library
}

// Load loads libhicache. A path (a file, or a folder that holds libhicache.so) is the only one tried; else HICACHE_LIBRARY, if set, is the
// only one tried; else the folder of the executable, the build folder of this module (found from the place of its source, or above
// the working directory) and the system's loader, in this order. Loading a path again gives the same Library. The error is a
// *LoadError.
func Load(path string) (*Library, error) {
	var tried []Attempt
	for _, c := range candidates(path) {
		lib, attempt := load(c)
		if lib != nil {
			return lib, nil
		}
		tried = append(tried, attempt)
		if platformRefusal != "" {
			break
		}
	}
	return nil, &LoadError{Tried: tried}
}

func candidates(option string) []candidate {
	if option != "" {
		return []candidate{{"option", fileIn(option)}}
	}
	if env := os.Getenv(libraryEnv); env != "" {
		return []candidate{{libraryEnv, fileIn(env)}}
	}
	var out []candidate
	if exe, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(exe); err == nil {
			exe = real
		}
		out = append(out, candidate{"beside the executable", filepath.Join(filepath.Dir(exe), libraryFile)})
	}
	for _, root := range moduleRoots() {
		out = append(out, candidate{"build folder", filepath.Join(root, "build", libraryFile)})
	}
	return append(out, candidate{"system", librarySONAME}, candidate{"system", libraryFile})
}

// fileIn is the library inside path if that is a folder, else path.
func fileIn(path string) string {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return filepath.Join(path, libraryFile)
	}
	return path
}

// moduleRoots are the roots of this module as far as they can be known: from where this file was compiled, and above the working
// directory.
func moduleRoots() []string {
	var roots []string
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) { // Not with -trimpath.
		roots = append(roots, filepath.Dir(filepath.Dir(file)))
	}
	dir, err := os.Getwd()
	for err == nil {
		if isModuleRoot(dir) {
			if len(roots) == 0 || roots[0] != dir {
				roots = append(roots, dir)
			}
			break
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			break
		}
		dir = parent
	}
	return roots
}

func isModuleRoot(dir string) bool {
	file, err := os.Open(filepath.Join(dir, "go.mod"))
	if err != nil {
		return false
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if name, ok := strings.CutPrefix(strings.TrimSpace(lines.Text()), "module "); ok {
			return strings.TrimSpace(name) == modulePath
		}
	}
	return false
}

func load(c candidate) (*Library, Attempt) {
	attempt := Attempt{Origin: c.origin, Path: c.path}
	if strings.ContainsRune(c.path, filepath.Separator) {
		if absolute, err := filepath.Abs(c.path); err == nil {
			attempt.Path = absolute
		}
		if _, err := os.Stat(attempt.Path); err != nil { // A shorter reason than the system loader's.
			attempt.Reason = reason(err)
			return nil, attempt
		}
	} else if c.origin != "system" { // Without a separator the system loader would search its own folders.
		attempt.Path, _ = filepath.Abs(c.path)
		if _, err := os.Stat(attempt.Path); err != nil {
			attempt.Reason = reason(err)
			return nil, attempt
		}
	}
	loaded.Lock()
	defer loaded.Unlock()
	if lib := loaded.byPath[attempt.Path]; lib != nil {
		return lib, attempt
	}
	handle, err := dlopen(attempt.Path)
	if err != nil {
		attempt.Reason = strings.TrimPrefix(err.Error(), attempt.Path+": ")
		return nil, attempt
	}
	lib := &Library{path: attempt.Path}
	if err := lib.bind(handle); err != nil {
		dlclose(handle)
		attempt.Reason, attempt.ABI = err.Error(), errors.Is(err, ErrABI)
		return nil, attempt
	}
	if loaded.byPath == nil {
		loaded.byPath = map[string]*Library{}
	}
	loaded.byPath[attempt.Path] = lib
	return lib, attempt
}

func reason(err error) string {
	var pathError *os.PathError
	if errors.As(err, &pathError) {
		return pathError.Err.Error()
	}
	return err.Error()
}

type symbol struct {
	name    string
	address *uintptr
}

// bind checks that the library is hicache's and of this ABI, and finds its functions.
func (l *Library) bind(handle uintptr) error {
	version, err := dlsym(handle, "hicache_abi_version")
	if err != nil || version == 0 {
		return errors.New("not a hicache library: it has no hicache_abi_version")
	}
	l.table.fnABIVersion = version
	f := newFrame()
	defer f.release()
	packed := l.table.callABIVersion(f)
	l.major, l.minor = packed>>16, packed&0xffff
	if l.major != ABIMajor {
		return fmt.Errorf("a hicache library of ABI %d.%d, this program speaks ABI %d.%d: %w", l.major, l.minor, ABIMajor, ABIMinor, ErrABI)
	}
	if l.minor < ABIMinor {
		return fmt.Errorf("a hicache library of ABI %d.%d, this program needs %d.%d or a later %d.x: %w",
			l.major, l.minor, ABIMajor, ABIMinor, ABIMajor, ErrABI)
	}
	for _, s := range l.table.symbols() {
		address, err := dlsym(handle, s.name)
		if err != nil || address == 0 {
			return fmt.Errorf("a hicache library of ABI %d.%d without %s: %w", l.major, l.minor, s.name, ErrABI)
		}
		*s.address = address
	}
	l.info = goString(l.table.callBuildInfo(f))
	return nil
}

// Path is where the library was found; a bare name if the system's loader found it.
func (l *Library) Path() string { return l.path }

// ABIVersion is the version of the ABI that the library speaks.
func (l *Library) ABIVersion() (major, minor uint32) { return l.major, l.minor }

// BuildInfo is the library's own line about itself: version, compiler, backends.
func (l *Library) BuildInfo() string { return l.info }

// StatusName is the library's name for a status, "UNKNOWN" for one that it does not know.
func (l *Library) StatusName(s Status) string {
	f := newFrame()
	defer f.release()
	return goString(l.table.callStatusName(f, int32(s)))
}

// LayoutEntry is one size ("struct") or offset ("struct.field") in bytes.
type LayoutEntry struct {
	Name  string
	Value uint64
}

// Layout lists sizes and offsets as the library was compiled.
func (l *Library) Layout() []LayoutEntry {
	f := newFrame()
	defer f.release()
	n := l.table.callABILayout(f, 0, nil, nil)
	out := make([]LayoutEntry, 0, n)
	for i := range n {
		l.table.callABILayout(f, i, ptr(&f.text), ptr(&f.out64))
		out = append(out, LayoutEntry{goString(f.text), f.out64})
	}
	return out
}
