package radix

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/hicache/hicache/ffi/ids"
)

// TestForesight: whatever happens to the tree between a look under the shared lock and the exclusive one, going on from what was found ends
// where a fresh look does.
func TestForesight(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 5))
		tree, err := New(fullOnly(2))
		if err != nil {
			t.Fatal(err)
		}
		var m Match
		var r InsertResult
		var e EvictResult
		var f Freed
		draw := func() []uint32 { // few tokens, so that paths branch everywhere
			tokens := make([]uint32, 2*(1+rng.IntN(8)))
			for i := range tokens {
				tokens[i] = uint32(rng.IntN(2))
			}
			return tokens
		}
		next := ids.VirtualPage(0)
		change := func() {
			tokens := draw()
			switch rng.IntN(8) {
			case 0:
				tree.Evict(&EvictRequest{Want: []int{1 + rng.IntN(4)}}, &e)
			case 1:
				if rng.IntN(6) == 0 {
					tree.Clear(&f)
				}
			case 2, 3:
				tree.Match(Namespace{}, tokens, MatchOptions{FullHit: true}, &m)
				tree.Release(m.Pin)
			default:
				req := InsertRequest{Tokens: tokens}
				for range len(tokens) / 2 {
					req.Pages = append(req.Pages, next)
					next++
				}
				if err := tree.Insert(&req, &r); err != nil {
					t.Fatal(err)
				}
			}
		}
		kept := 0
		for range 60 {
			req := InsertRequest{Tokens: draw()}
			limit := len(req.Tokens) / 2
			n, k, _, _ := tree.locate(req.Namespace, req.After, 0, req.Tokens, limit)
			seen := foresee(n, k)
			for range rng.IntN(5) {
				change()
			}
			if n, _ := seen.resume(); n != nil {
				kept++
			}
			got, gotK, _, err := tree.relocate(&seen, req.Namespace, req.After, 0, req.Tokens, limit)
			want, wantK, _, wantErr := tree.locate(req.Namespace, req.After, 0, req.Tokens, limit)
			if got != want || gotK != wantK || !errors.Is(err, wantErr) {
				t.Fatalf("seed %d: %v from what was seen: node %p, %d pages, %v; afresh: %p, %d, %v", seed, req.Tokens, got, gotK, err, want, wantK, wantErr)
			}
			var a, b Match
			tree.findPath(Namespace{}, req.Tokens, limit, &a)
			if tree.findAgain(&seen, Namespace{}, req.Tokens, limit, &b); len(a.path) != len(b.path) || len(a.path) > 0 && a.path[len(a.path)-1] != b.path[len(b.path)-1] {
				t.Fatalf("seed %d: %d nodes on the path of what was seen, %d afresh", seed, len(b.path), len(a.path))
			}
		}
		if kept < 10 {
			t.Fatalf("seed %d: only %d of 60 looks were still good for anything", seed, kept)
		}
		if bad := tree.Verify(); bad != nil {
			t.Fatalf("seed %d: %v", seed, bad)
		}
	}
}
