package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/cli"
)

// TestDocumentedCommands runs what README and docs tell people to type: hicache commands for real (replays of a few requests), make targets and
// packages by name. A block that begins with a line "# needs ..." wants more than a CPU and is only read.
func TestDocumentedCommands(t *testing.T) {
	needLibrary(t)
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	files := documents(t)
	t.Chdir(root)
	commands := 0
	for _, file := range files {
		for _, line := range commandLines(t, file) {
			command, _, _ := strings.Cut(line.text, " #")
			words := strings.Fields(command)
			for len(words) > 0 && strings.Contains(words[0], "=") { // variables
				words = words[1:]
			}
			switch {
			case len(words) == 0:
			case words[0] == "make":
				commands++
				for _, target := range words[1:] {
					if !strings.Contains(target, "=") && !regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(target)+`:`).Match(makefile) {
						t.Errorf("%s: %q: the Makefile has no target %s", file, command, target)
					}
				}
			case words[0] == "go" || words[0] == "go," || words[0] == "cd":
				commands++
				for _, word := range words[1:] {
					if dir, ok := strings.CutPrefix(word, "./"); ok {
						if _, err := os.Stat(strings.TrimSuffix(dir, "/...")); err != nil {
							t.Errorf("%s: %q: %v", file, command, err)
						}
					}
				}
			case strings.HasSuffix(words[0], "bin/hicache") && !line.needs:
				commands++
				args := words[1:]
				if args[0] == "replay" {
					args = append(args, "--limit", "12")
				}
				if exit, _, errs := run(args...); exit != cli.OK {
					t.Errorf("%s: %q: exit %d: %s", file, command, exit, errs)
				}
			}
		}
	}
	if commands < 10 {
		t.Errorf("found %d commands in README and docs: this test no longer reads them", commands)
	}
}

const root = "../../.."

func documents(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no docs: %v", err)
	}
	var out []string
	for _, file := range append(files, filepath.Join(root, "README.md")) {
		rel, err := filepath.Rel(root, file)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, rel)
	}
	return out
}

type commandLine struct {
	text  string
	needs bool // its block says that it needs something
}

// commandLines are the lines of a file's fenced blocks, with lines that end in a backslash joined to the next.
func commandLines(t *testing.T, file string) (lines []commandLine) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	inside, needs := false, false
	for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", " ")) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "```"):
			inside, needs = !inside && (line == "```" || line == "```sh"), false
		case inside && strings.HasPrefix(line, "# needs "):
			needs = true
		case inside:
			lines = append(lines, commandLine{line, needs})
		}
	}
	return lines
}

// TestDocumentsLinkToFiles: no link of README and docs to a file that is not there.
func TestDocumentsLinkToFiles(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	for _, file := range documents(t) {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(file), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", file, m[1], err)
			}
		}
	}
}
