package bench

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/trace"
	"github.com/hicache/hicache/gohicache/internal/policy"
)

// referenceRow is the name under which the published LRU rates are printed.
const referenceRow = "reference LRU"

// classical are the policies that others have too; LRU among them is what our own are judged by.
var classical = []string{"lru", "lfu", "fifo", "mru", "filo", "slru", "priority", "tlru"}

// hitTrace is a trace with the capacities, in blocks, at which its hit rates are known.
type hitTrace struct {
	name, file, reference string
	capacities            []int
}

var hitTraces = []hitTrace{
	{"conversation", conversation, "mooncake_conversation", []int{1000, 5000, 10_000, 30_000, 50_000, 100_000}},
	{"synthetic", synthetic, "mooncake_synthetic", []int{1000, 5000, 10_000, 30_000, 50_000}},
	{"coding_agent", codingAgent, "coding_agent_b512", []int{500, 1000, 2000, 5000, 10_000}},
}

// HitRate is the groups of `hicache bench hitrate`, one a trace. A request hits its leading blocks that are resident when it arrives; rates are
// shares of all blocks of all requests; prompts only. Eviction trims from the tail, so LRU here is the published LRU in the order in which a prompt's
// start is its most recent part. A block is a page of one token that is the block's id: the tree then makes the decisions that it makes with the
// block's 512 tokens in one page.
func HitRate() []Group {
	var groups []Group
	for _, t := range hitTraces {
		groups = append(groups, Group{Name: "hit-rate-" + t.name, Works: []string{"hit rate, " + t.name}, run: t.run})
	}
	return groups
}

func (t *hitTrace) run(ctx context.Context, s *Settings, r *recorder) error {
	requests, err := s.blocks(t.file)
	if err != nil {
		return err
	}
	reference, err := readReference(filepath.Join(s.Traces, "lru-hit-rates.csv"), t.reference)
	if err != nil {
		s.note("the published hit rates are left out: %v", err)
	}
	if s.Quick {
		reference = nil // of whole traces
	}
	for _, capacity := range scaled(s, t.capacities, t.capacities[:2]) {
		lru := math.NaN()
		for _, name := range slices.Concat([]string{"lru"}, others(policy.Names())) {
			if err := ctx.Err(); err != nil {
				return err
			}
			rate, err := blockHitRate(requests, capacity, name)
			if err != nil {
				return fmt.Errorf("%s at %d blocks: %w", name, capacity, err)
			}
			if name == "lru" {
				lru = rate
			}
			spec := Spec{Work: "hit rate, " + t.name, Config: fmt.Sprintf("%d blocks, %s", capacity, name), Unit: "of blocks", Bar: t.bar(capacity, name, lru)}
			if known, ok := reference[capacity]; ok {
				r.addBeside(spec, rate, referenceRow, known)
			} else {
				r.add(spec, rate)
			}
		}
	}
	return nil
}

// bar says what a policy must reach: LRU the published rates, ours never less than LRU and more where LRU thrashes.
func (t *hitTrace) bar(capacity int, name string, lru float64) *Bar {
	switch {
	case name == "lru":
		return equalsPeer(0.00005001)
	case slices.Contains(classical, name):
		return nil
	case t.name == "conversation" && capacity == 1000:
		return relativeTo(lru, +0.005)
	}
	return relativeTo(lru, -0.002)
}

func relativeTo(lru, margin float64) *Bar {
	return &Bar{fmt.Sprintf(">= LRU %+.3f", margin), func(r *Row) *bool { return verdict(r.Value >= lru+margin) }}
}

func others(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == "lru" })
}

// blockPolicy is a policy with its constants in blocks where they are in tokens, since a token stands for a block here.
func blockPolicy(name string) (policy.Policy, error) {
	switch name {
	case "auto":
		return policy.NewAuto(policy.AutoOptions{UnitTokens: 1}), nil
	case "tlru":
		return policy.TLRU(policy.DefaultThreshold/trace.DefaultBlockTokens, policy.DefaultNextPrompt/trace.DefaultBlockTokens), nil
	}
	return policy.ByName(name)
}

// blockHitRate runs a trace's blocks through the tree.
func blockHitRate(requests [][]uint32, capacity int, name string) (float64, error) {
	p, err := blockPolicy(name)
	if err != nil {
		return 0, err
	}
	l, err := newTreeLoop(1, capacity, false, p)
	if err != nil {
		return 0, err
	}
	total := 0
	for _, blocks := range requests {
		total += len(blocks)
		if err := l.request(blocks); err != nil {
			return 0, err
		}
	}
	return float64(l.hitTokens) / float64(max(1, total)), nil
}

// readReference reads the published rates of one trace by capacity.
func readReference(path, traceName string) (map[int]float64, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil || len(rows) == 0 {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	column := func(name string) int { return slices.Index(rows[0], name) }
	name, capacity, order, rate := column("trace"), column("capacity_blocks"), column("touch_order"), column("prefix_hit_rate")
	if min(name, capacity, order, rate) < 0 {
		return nil, fmt.Errorf("%s: columns are %v", path, rows[0])
	}
	out := map[int]float64{}
	for _, row := range rows[1:] {
		blocks, err := strconv.Atoi(row[capacity])
		if err != nil || row[name] != traceName || row[order] != "rev" {
			continue
		}
		if out[blocks], err = strconv.ParseFloat(row[rate], 64); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return out, nil
}

// WriteHitRates prints hit rates side by side: a line a trace and capacity, a column a policy; as a table for people or for a document.
func WriteHitRates(out io.Writer, rows []Row, markdown bool) error {
	lines := hitRateLines(rows)
	if markdown {
		return writePipes(out, lines)
	}
	return writeColumns(out, lines)
}

func hitRateLines(rows []Row) [][]string {
	columns, places := []string{referenceRow}, []string{}
	cells := map[string]string{}
	for _, r := range rows {
		capacity, name, _ := strings.Cut(r.Config, ", ")
		place := strings.TrimPrefix(r.Work, "hit rate, ") + "\t" + capacity
		if !slices.Contains(columns, name) {
			columns = append(columns, name)
		}
		if !slices.Contains(places, place) {
			places = append(places, place)
		}
		text := fmt.Sprintf("%.4f", r.Value)
		if r.Meets != nil && !*r.Meets {
			text += " (not " + *r.Bar + ")"
		}
		cells[place+"\t"+name] = text
		if r.PeerValue != nil {
			cells[place+"\t"+referenceRow] = fmt.Sprintf("%.4f", *r.PeerValue)
		}
	}
	lines := [][]string{slices.Concat([]string{"trace", "capacity"}, columns)}
	for _, place := range places {
		line := strings.Split(place, "\t")
		for _, name := range columns {
			text := cells[place+"\t"+name]
			if text == "" {
				text = "-"
			}
			line = append(line, text)
		}
		lines = append(lines, line)
	}
	return lines
}
