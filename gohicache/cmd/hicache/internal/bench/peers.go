package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Peers is where other systems' benchmarks are: scripts that each print a JSON object a line, {peer, op, config, unit, min, median, max, …}. The zero
// value has none.
type Peers struct {
	scripts, python string
	answers         map[string][]peerRow
}

// Query picks one figure of one script's run.
type Query struct {
	Script string
	Args   []string
	Op     string
	Unit   string
	Config string // a prefix of the row's config
	Field  string // an extra of the row, e.g. hit_rate; "": its median
	Scale  float64
}

type peerRow struct {
	Peer   string  `json:"peer"`
	Op     string  `json:"op"`
	Config string  `json:"config"`
	Unit   string  `json:"unit"`
	Median float64 `json:"median"`
	extra  map[string]any
}

const peersEnvironment = "hicache-peers" // in the home folder, where the scripts' installer puts it

// FindPeers looks for the scripts and their interpreter. dir holds the scripts (bench_alloc.py, …), or the environment (venv/bin/python), or both;
// scripts is where the scripts are if dir has none.
func FindPeers(dir, scripts string) (Peers, error) {
	if dir == "" {
		return Peers{}, nil
	}
	if !isFile(filepath.Join(dir, "bench_alloc.py")) && !isFile(filepath.Join(dir, "venv", "bin", "python")) {
		return Peers{}, fmt.Errorf("%s has neither bench_alloc.py nor venv/bin/python", dir)
	}
	home, _ := os.UserHomeDir()
	p := Peers{answers: map[string][]peerRow{}}
	for _, d := range []string{dir, scripts} {
		if p.scripts == "" && isFile(filepath.Join(d, "bench_alloc.py")) {
			p.scripts = d
		}
	}
	for _, d := range []string{dir, os.Getenv("PEER"), filepath.Join(home, peersEnvironment)} {
		if path := filepath.Join(d, "venv", "bin", "python"); p.python == "" && d != "" && isFile(path) {
			p.python = path
		}
	}
	if p.scripts == "" {
		return p, fmt.Errorf("no bench_alloc.py in %s or %s", dir, scripts)
	}
	if p.python == "" {
		return p, fmt.Errorf("no venv/bin/python in %s, $PEER or ~/%s", dir, peersEnvironment)
	}
	return p, nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// askPeers runs the peers' scripts that the group's figures name, each once, and puts their figures beside ours.
func (s *Settings) askPeers(ctx context.Context, r *recorder) error {
	if s.Peers.scripts == "" {
		return nil
	}
	for _, e := range r.entries {
		if e.spec.Peer == nil {
			continue
		}
		rows, err := s.Peers.rows(ctx, e.spec.Peer)
		if err != nil {
			s.note("the peer of %q gave nothing: %v", e.spec.Work, err)
			continue
		}
		name, value, ok := e.spec.Peer.pick(rows)
		if !ok {
			s.note("the peer's script %s printed no %q in %s", e.spec.Peer.Script, e.spec.Peer.Op, e.spec.Peer.Unit)
			continue
		}
		e.peer, e.peerValues = name, []float64{value}
	}
	return ctx.Err()
}

func (q *Query) pick(rows []peerRow) (peer string, value float64, ok bool) {
	for _, row := range rows {
		if row.Op != q.Op || row.Unit != q.Unit || !strings.HasPrefix(row.Config, q.Config) {
			continue
		}
		value, ok = row.Median, true
		if q.Field != "" {
			value, ok = row.extra[q.Field].(float64)
		}
		if q.Scale != 0 {
			value *= q.Scale
		}
		return row.Peer, value, ok
	}
	return "", 0, false
}

// rows runs a script once a set of arguments.
func (p *Peers) rows(ctx context.Context, q *Query) ([]peerRow, error) {
	key := q.Script + " " + strings.Join(q.Args, " ")
	if rows, ok := p.answers[key]; ok {
		return rows, nil
	}
	spare, err := os.CreateTemp("", "peer-*.jsonl") // the scripts also append what they print to a file
	if err != nil {
		return nil, err
	}
	spare.Close()
	defer os.Remove(spare.Name())
	cmd := exec.CommandContext(ctx, p.python, slices.Concat([]string{q.Script}, q.Args)...)
	cmd.Dir = p.scripts
	cmd.Env = append(os.Environ(), "PEER_RESULTS="+spare.Name(), "PEER_QUIET_S=0")
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	runErr := cmd.Run()
	rows := parsePeerRows(out.Bytes())
	if len(rows) == 0 {
		last := complaint.String()
		last = last[max(0, len(last)-300):]
		runErr = errors.Join(runErr, fmt.Errorf("%s printed no figures: %s", q.Script, strings.TrimSpace(last)))
		return nil, runErr
	}
	p.answers[key] = rows
	return rows, nil
}

func parsePeerRows(out []byte) []peerRow {
	var rows []peerRow
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var row peerRow
		if json.Unmarshal(lines.Bytes(), &row) != nil || row.Op == "" || json.Unmarshal(lines.Bytes(), &row.extra) != nil {
			continue // whatever else a script prints
		}
		rows = append(rows, row)
	}
	return rows
}
