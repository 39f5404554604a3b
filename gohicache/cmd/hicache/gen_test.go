package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/cli"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/trace"
)

func run(args ...string) (exit int, out, errOut string) {
	var o, e bytes.Buffer
	exit = cli.Dispatch(commands, about, args, strings.NewReader(""), &o, &e)
	return exit, o.String(), e.String()
}

func TestGenWritesATrace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.jsonl.gz")
	if exit, out, errs := run("gen", "--workload", "rag", "--limit", "20", "--seed", "9", "--out", path); exit != cli.OK || out+errs != "" {
		t.Fatalf("exit %d, %q, %q", exit, out, errs)
	}
	r, err := trace.Open(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	n := 0
	for {
		if _, err := r.Next(); err != nil {
			break
		}
		n++
	}
	if n != 20 || r.BlockTokens() != 16 {
		t.Errorf("%d rows, blocks of %d tokens", n, r.BlockTokens())
	}
	_, a, _ := run("gen", "--limit", "3")
	_, b, _ := run("gen", "--limit", "3", "--seed", "2")
	if strings.Count(a, "\n") != 3 || a == b {
		t.Errorf("standard output: %q, another seed: %q", a, b)
	}
}

func TestGenRefuses(t *testing.T) {
	for _, c := range []struct {
		args string
		exit int
		want string
	}{
		{"--workload batch", cli.Usage, `workload "batch" is not known`},
		{"--limit 0", cli.Usage, "option --limit"},
		{"--block-tokens -3", cli.Usage, "blocks of -3 tokens"},
		{"--out /nonexistent/folder/x", cli.Failed, "no such file"},
		{"--outt x", cli.Usage, "did you mean --out?"},
	} {
		exit, _, errs := run(append([]string{"gen"}, strings.Fields(c.args)...)...)
		if exit != c.exit || !strings.Contains(errs, c.want) {
			t.Errorf("gen %s: exit %d, %q", c.args, exit, errs)
		}
	}
}
