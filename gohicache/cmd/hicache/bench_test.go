package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/bench"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/cli"
)

func TestBenchRunsThroughGo(t *testing.T) {
	needLibrary(t)
	exit, out, errs := run("bench", "engine", "--quick", "--runs", "2", "--json", "--only", "through Go")
	var rows []bench.Row
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	if exit != cli.OK || len(rows) != 4 || errs != "" {
		t.Errorf("exit %d, %d rows, %q", exit, len(rows), errs)
	}
	for _, r := range rows {
		if !strings.Contains(r.Work, "allocations") && (r.Value <= 0 || r.Runs != 2) {
			t.Errorf("%+v", r)
		}
	}
}

func TestBenchRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"engine, cache, hitrate": {"bench", "motor"},
		"--only":                 {"bench", "engine", "--only", "("},
		"--runs":                 {"bench", "engine", "--runs", "0"},
		"--peers":                {"bench", "engine", "--peers", t.TempDir()},
	} {
		if exit, _, errs := run(args...); exit != cli.Usage || !strings.Contains(errs, want) {
			t.Errorf("%v: exit %d, %q", args, exit, errs)
		}
	}
	if exit, out, _ := run("bench", "--help"); exit != cli.OK || !strings.Contains(out, "--peers") {
		t.Errorf("exit %d, %s", exit, out)
	}
}
