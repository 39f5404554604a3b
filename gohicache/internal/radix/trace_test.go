package radix

import (
	"bufio"
	"compress/gzip"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/policy"
)

// sharedDir finds the data that the repository does not carry.
func sharedDir() string {
	if d := os.Getenv("HICACHE_SHARED"); d != "" {
		return d
	}
	return filepath.Join("..", "..", "..", "..", "shared")
}

// loadTrace reads the block ids of each request. A block stands for one page of one token, so that capacities are in blocks.
func loadTrace(t testing.TB, name string) [][]uint32 {
	path := filepath.Join(sharedDir(), "traces", name)
	file, err := os.Open(path)
	if err != nil {
		t.Skipf("SKIPPED: no trace %s (set HICACHE_SHARED): %v", path, err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	var out [][]uint32
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<26)
	for lines.Scan() {
		var row struct {
			HashIDs []uint32    `json:"hash_ids"`
			Runs    [][2]uint32 `json:"runs"`
		}
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		for _, r := range row.Runs {
			for i := range r[1] {
				row.HashIDs = append(row.HashIDs, r[0]+i)
			}
		}
		out = append(out, row.HashIDs)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// referenceRates reads the published hit rates of LRU in `rev` order: by trace and capacity.
func referenceRates(t testing.TB) map[string]float64 {
	path := filepath.Join(sharedDir(), "traces", "lru-hit-rates.csv")
	file, err := os.Open(path)
	if err != nil {
		t.Skipf("SKIPPED: no reference rates %s (set HICACHE_SHARED): %v", path, err)
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, r := range rows[1:] {
		if r[4] == "rev" {
			rate, err := strconv.ParseFloat(r[7], 64)
			if err != nil {
				t.Fatal(err)
			}
			out[r[0]+"/"+r[2]] = rate
		}
	}
	return out
}

// replayBlocks is the request loop of a server with one open request: match, evict, insert, release. It returns hit blocks and all blocks.
func replayBlocks(t testing.TB, reqs [][]uint32, capacity int, p policy.Policy) (hit, total int) {
	tree, err := New(Config{PageTokens: 1, Pools: []PoolConfig{{Role: Full}}, Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	var m Match
	var r InsertResult
	var e EvictResult
	var pages []ids.VirtualPage
	next := ids.VirtualPage(0)
	for _, tokens := range reqs {
		total += len(tokens)
		tree.Match(Namespace{}, tokens, MatchOptions{FullHit: true}, &m)
		hit += m.Usable
		n := min(len(tokens), capacity)
		need := n - m.Usable
		if short := need - (capacity - tree.Counts(0).Device); short > 0 {
			tree.Evict(&EvictRequest{Want: []int{short}}, &e)
			if e.Gone[0] != short {
				t.Fatalf("wanted %d pages, got %d: %v", short, e.Gone[0], e.Blocker)
			}
		}
		pages = pages[:0]
		for range need {
			pages = append(pages, next)
			next++
		}
		if err := tree.Insert(&InsertRequest{Tokens: tokens[:n], After: m.Pin, From: m.Usable, Pages: pages}, &r); err != nil {
			t.Fatal(err)
		}
		if !r.Freed.Empty() {
			t.Fatal("a single sequence has no duplicates")
		}
		tree.Release(m.Pin)
	}
	if bad := tree.Verify(); bad != nil {
		t.Fatal(bad)
	}
	return hit, total
}

// Tail trimming by pages is LRU over blocks in the order in which a prompt's start is its most recent part.
func TestLRUEqualsTheReferenceRates(t *testing.T) {
	want := referenceRates(t)
	for _, c := range []struct{ trace, file string }{
		{"mooncake_conversation", "conversation.jsonl.gz"}, {"mooncake_synthetic", "synthetic.jsonl.gz"}, {"coding_agent_b512", "coding_agent_b512.jsonl.gz"},
	} {
		if testing.Short() && c.trace == "coding_agent_b512" {
			continue
		}
		reqs := loadTrace(t, c.file)
		for _, capacity := range []int{1000, 5000, 10000, 50000} {
			t.Run(fmt.Sprintf("%s/%d", c.trace, capacity), func(t *testing.T) {
				hit, total := replayBlocks(t, reqs, capacity, policy.LRU())
				got := float64(hit) / float64(total)
				ref, ok := want[fmt.Sprintf("%s/%d", c.trace, capacity)]
				if !ok {
					t.Fatal("no reference rate")
				}
				t.Logf("hit rate %.4f, reference %.4f", got, ref)
				if math.Abs(got-ref) > 0.00005001 {
					t.Errorf("hit rate %.6f, reference %.4f", got, ref)
				}
			})
		}
	}
}
