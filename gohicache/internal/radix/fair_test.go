package radix

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hicache/hicache/ffi/ids"
)

// TestFair: while others insert and evict without a pause, matches go on, and while others match without a pause, inserts do.
func TestFair(t *testing.T) {
	const pageTokens, prefix, storm, guests, turns = 4, 64, 6, 2, 200
	tree, err := New(fullOnly(pageTokens))
	if err != nil {
		t.Fatal(err)
	}
	shared := seq(0, prefix*pageTokens)
	var page atomic.Uint32
	publish := func(tail uint32) error { // a leaf of its own behind the shared prefix, and one goes
		req := InsertRequest{Tokens: append(append([]uint32(nil), shared...), tail, tail, tail, tail)}
		for range len(req.Tokens) / pageTokens {
			req.Pages = append(req.Pages, ids.VirtualPage(page.Add(1)))
		}
		var r InsertResult
		var e EvictResult
		tree.Evict(&EvictRequest{Want: []int{1}}, &e)
		return tree.Insert(&req, &r)
	}
	match := func(uint32) error {
		var m Match
		tree.Match(Namespace{}, shared, MatchOptions{FullHit: true}, &m)
		tree.Release(m.Pin)
		return nil
	}
	for name, c := range map[string]struct{ storm, guest func(uint32) error }{"writers": {publish, match}, "readers": {match, publish}} {
		t.Run(name, func(t *testing.T) {
			var stop atomic.Bool
			var stormed, served atomic.Int64
			var all, invited sync.WaitGroup
			run := func(wg *sync.WaitGroup, id int, f func(uint32) error, count *atomic.Int64, more func(done int) bool) {
				defer wg.Done()
				for i := 0; more(i); i++ {
					if err := f(uint32(id<<20 + i)); err != nil {
						t.Error(err)
						return
					}
					count.Add(1)
				}
			}
			all.Add(storm)
			for id := range storm {
				go run(&all, id, c.storm, &stormed, func(int) bool { return !stop.Load() })
			}
			invited.Add(guests)
			for id := range guests {
				go run(&invited, storm+id, c.guest, &served, func(done int) bool {
					for stormed.Load() == 0 && !stop.Load() {
						runtime.Gosched()
					}
					return done < turns && !stop.Load()
				})
			}
			over := make(chan struct{})
			go func() {
				invited.Wait()
				close(over)
			}()
			select {
			case <-over:
			case <-time.After(time.Minute): // no measure of speed: who starves gets nowhere at all
			}
			before := stormed.Load()
			stop.Store(true)
			<-over
			all.Wait()
			if n := served.Load(); n != guests*turns || before == 0 {
				t.Fatalf("%d of %d turns while %d were taken by the storm", n, guests*turns, before)
			}
			if bad := tree.Verify(); bad != nil {
				t.Fatal(bad)
			}
		})
	}
}
