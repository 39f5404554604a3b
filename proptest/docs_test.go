package proptest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTestingPageNamesWhatExists: docs/TESTING.md says which test stands for what; each name must be that of a test.
func TestTestingPageNamesWhatExists(t *testing.T) {
	text, err := os.ReadFile("../docs/TESTING.md")
	if err != nil {
		t.Fatal(err)
	}
	known := testNames(t)
	named := regexp.MustCompile("`(Test[A-Za-z]+|[a-z0-9-]+\\.script|[A-Z][A-Za-z]+\\.[A-Z][A-Za-z]+)`").FindAllStringSubmatch(string(text), -1)
	if len(named) < 40 {
		t.Fatalf("only %d tests are named: the pattern does not fit the page any more", len(named))
	}
	for _, match := range named {
		if !known[match[1]] {
			t.Errorf("docs/TESTING.md names %s, and there is no such test", match[1])
		}
	}
}

// testNames collects Go tests, C++ tests as Suite.Name, and scripts.
func testNames(t *testing.T) map[string]bool {
	known := map[string]bool{}
	goTest := regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)\(`)
	cppTest := regexp.MustCompile(`(?m)^TEST(?:_F|_P)?\((\w+), (\w+)\)`)
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() && name != ".." && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "build")) {
			return filepath.SkipDir
		}
		switch {
		case strings.HasSuffix(name, ".script"):
			known[name] = true
		case strings.HasSuffix(name, "_test.go"), strings.HasSuffix(name, "_test.cpp"):
			source, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, match := range goTest.FindAllStringSubmatch(string(source), -1) {
				known[match[1]] = true
			}
			for _, match := range cppTest.FindAllStringSubmatch(string(source), -1) {
				known[match[1]+"."+match[2]] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return known
}
