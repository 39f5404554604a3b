package bench

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// fakePeers is a folder with a script that prints a figure for each argument it got, and an interpreter that runs it.
func fakePeers(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	python := filepath.Join(dir, "venv", "bin", "python")
	if err := os.MkdirAll(filepath.Dir(python), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		python: "#!/bin/sh\nexec /bin/sh \"$@\"\n",
		filepath.Join(dir, "bench_alloc.py"): `echo warming up
echo '{"peer": "other", "op": "walk", "config": "small park", "unit": "steps/s", "median": 7, "hit_rate": 0.5}'
echo '{"peer": "other", "op": "walk", "config": "large park", "unit": "steps/s", "median": 9}'
echo ran >> "$(dirname "$0")/log"
`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func walk(values ...float64) Group {
	return Group{Name: "walk", Works: []string{"walk", "rest"}, run: func(_ context.Context, _ *Settings, r *recorder) error {
		for _, v := range values {
			r.add(Spec{Work: "walk", Config: "large", Unit: "steps/s", Bar: ratioAtLeast(2), Peer: &Query{Script: "bench_alloc.py", Op: "walk", Unit: "steps/s", Config: "large"}}, v)
		}
		r.add(Spec{Work: "walk", Config: "small", Unit: "rate", Bar: equalsPeer(0.01), Peer: &Query{Script: "bench_alloc.py", Op: "walk", Unit: "steps/s", Config: "small", Field: "hit_rate"}}, .5)
		r.add(Spec{Work: "rest", Config: "any", Unit: "ns", Lower: true, Bar: atMost(3, "ns")}, 4)
		return nil
	}}
}

func TestRowsWithoutPeers(t *testing.T) {
	rows, err := Run(context.Background(), []Group{walk(30, 10, 20)}, &Settings{})
	if err != nil || len(rows) != 3 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	r := rows[0]
	if r.Value != 20 || r.Min != 10 || r.Max != 30 || r.Runs != 3 || r.Peer != nil || r.Ratio != nil || r.Meets != nil || *r.Bar != ">= 2 x the peer" {
		t.Errorf("%+v", r)
	}
	if r := rows[2]; r.Meets == nil || *r.Meets {
		t.Errorf("4 ns is not within 3 ns: %+v", r)
	}
	var text strings.Builder
	if err := WriteJSON(&text, rows); err != nil {
		t.Fatal(err)
	}
	var back []map[string]any
	if err := json.Unmarshal([]byte(text.String()), &back); err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"work", "config", "unit", "value", "peer", "peer_value", "ratio", "bar", "meets", "runs", "min", "max"} {
		if _, ok := back[0][field]; !ok {
			t.Errorf("no field %q", field)
		}
	}
	if len(back[0]) != 12 || back[0]["peer"] != nil || back[0]["meets"] != nil {
		t.Errorf("%v", back[0])
	}
}

func TestPeersRunOnceInTheSameRun(t *testing.T) {
	dir := fakePeers(t)
	peers, err := FindPeers(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	s := &Settings{Peers: peers, Note: func(text string) { t.Error(text) }}
	rows, err := Run(context.Background(), []Group{walk(30, 10, 20)}, s)
	if err != nil {
		t.Fatal(err)
	}
	if r := rows[0]; *r.Peer != "other" || *r.PeerValue != 9 || *r.Ratio != 20.0/9 || !*r.Meets {
		t.Errorf("%+v", r)
	}
	if r := rows[1]; *r.PeerValue != .5 || !*r.Meets {
		t.Errorf("an extra of the peer's row: %+v", r)
	}
	if log, _ := os.ReadFile(filepath.Join(dir, "log")); string(log) != "ran\n" {
		t.Errorf("the script ran %q", log)
	}
	if _, err := FindPeers(t.TempDir(), ""); err == nil {
		t.Error("an empty folder has peers")
	}
}

func TestOnlyAndFailures(t *testing.T) {
	broken := Group{Name: "broken", Works: []string{"fall"}, run: func(context.Context, *Settings, *recorder) error { return errors.New("fell") }}
	rows, err := Run(context.Background(), []Group{broken, walk(1)}, &Settings{})
	var failed *Error
	if !errors.As(err, &failed) || failed.Group != "broken" || len(rows) != 3 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	rows, err = Run(context.Background(), []Group{broken, walk(1)}, &Settings{Only: regexp.MustCompile("rest")})
	if err != nil || len(rows) != 1 || rows[0].Work != "rest" {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, []Group{walk(1)}, &Settings{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// One page of one token a block decides as a page of all the block's tokens does.
func TestBlocksStandForTheirTokens(t *testing.T) {
	s := &Settings{Traces: tracesOrSkip(t)}
	prompts, err := s.prompts(conversation, 300)
	if err != nil {
		t.Fatal(err)
	}
	const block, capacity = 512, 900
	wide, err := newTreeLoop(block, capacity*block, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	narrow, err := newTreeLoop(1, capacity, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range prompts {
		p = p[:len(p)/block*block]
		names := make([]uint32, len(p)/block)
		for i := range names {
			names[i] = p[i*block] // tokens of different blocks differ in their first one, in this part of the trace
		}
		if err := errors.Join(wide.request(p), narrow.request(names)); err != nil {
			t.Fatal(err)
		}
	}
	if wide.hitTokens != narrow.hitTokens*block || wide.evictionCalls != narrow.evictionCalls || wide.hitTokens == 0 || wide.evictionCalls == 0 {
		t.Errorf("%+v and %+v", wide.counts, narrow.counts)
	}
}

func tracesOrSkip(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("HICACHE_SHARED")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "..", "..", "..", "shared")
	}
	dir = filepath.Join(dir, "traces")
	if !isFile(filepath.Join(dir, conversation)) {
		t.Skipf("SKIPPED, NOT PASSED: no %s in %s (set HICACHE_SHARED)", conversation, dir)
	}
	return dir
}

func TestHitRateTable(t *testing.T) {
	rows, err := Run(context.Background(), HitRate()[:1], &Settings{Quick: true, Traces: tracesOrSkip(t), Note: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := WriteHitRates(&text, rows, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"conversation", "1000 blocks", "slru", referenceRow} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
}

func TestReplaceSection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "doc.md")
	if err := os.WriteFile(path, []byte("before\n<!-- bench walk -->\nold\n<!-- end walk -->\nafter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := ReplaceSection(path, "walk", "new\n"); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := os.ReadFile(path); string(got) != "before\n<!-- bench walk -->\n\nnew\n\n<!-- end walk -->\nafter\n" {
		t.Errorf("%q", got)
	}
	if err := ReplaceSection(path, "run", ""); err == nil {
		t.Error("a section that is not there")
	}
}
