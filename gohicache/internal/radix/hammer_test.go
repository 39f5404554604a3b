package radix

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/policy"
)

// Many goroutines match, insert, load, back up, evict and clear at once; run it with -race. Each page id must come back exactly once.
func TestHammer(t *testing.T) {
	const workers, rounds, pageIDs = 8, 400, 1 << 22
	tree, err := New(Config{PageTokens: 2, Pools: []PoolConfig{{Role: Full}, {SWA, 6}, {Role: State}}, HostPrefixClosed: true,
		Policy: policy.NewAuto(policy.AutoOptions{UnitTokens: 4})})
	if err != nil {
		t.Fatal(err)
	}
	h := &hammer{t: t, tree: tree, out: make([]atomic.Int32, pageIDs)}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			h.work(rand.New(rand.NewPCG(uint64(w), 7)), rounds)
		}()
	}
	wg.Wait()
	if bad := tree.Verify(); bad != nil {
		t.Fatal(bad)
	}
	if lost := tree.lostStrips(); lost != 0 {
		t.Fatalf("%d strips belong to no node", lost)
	}
	var f Freed
	tree.Clear(&f)
	h.back(&f)
	tree.DrainOrphans(&f)
	h.back(&f)
	for i := range h.next.Load() {
		if n := h.out[i].Load(); n != 0 {
			t.Fatalf("page id %d is out %d times", i, n)
		}
	}
}

type hammer struct {
	t    *testing.T
	tree *Tree
	next atomic.Uint32
	out  []atomic.Int32 // by id, of all pools and tiers alike
}

func (h *hammer) take() uint32 {
	id := h.next.Add(1) - 1
	h.out[id].Store(1)
	return id
}

func (h *hammer) pages(n int) []ids.VirtualPage {
	out := make([]ids.VirtualPage, n)
	for i := range out {
		out[i] = ids.VirtualPage(h.take())
	}
	return out
}

func (h *hammer) hostPages(n int) []ids.HostPage {
	out := make([]ids.HostPage, n)
	for i := range out {
		out[i] = ids.HostPage(h.take())
	}
	return out
}

func (h *hammer) back(f *Freed) {
	for p := range f.Device {
		if p == 1 {
			continue // tombstones name full pages
		}
		for _, v := range f.Device[p] {
			if h.out[v].Add(-1) != 0 {
				h.t.Errorf("page %d of pool %d came back twice", v, p)
			}
		}
	}
	for p := range f.Host {
		for _, v := range f.Host[p] {
			if h.out[v].Add(-1) != 0 {
				h.t.Errorf("host page %d of pool %d came back twice", v, p)
			}
		}
	}
	f.Reset()
}

func (h *hammer) work(rng *rand.Rand, rounds int) {
	var m Match
	var r InsertResult
	var e EvictResult
	var b BackUp
	var f Freed
	for range rounds {
		tokens := make([]uint32, 2+rng.IntN(60))
		for range rng.IntN(3) {
			tokens[rng.IntN(len(tokens))] = rng.Uint32N(3)
		}
		h.tree.Match(Namespace{}, tokens, MatchOptions{Join: true}, &m)
		switch {
		case m.NeedsLoad() && rng.IntN(2) == 0:
			h.load(&m, rng, &f)
		default:
			h.insert(&m, tokens, &r, rng)
			if r.Pin != (Pin{}) {
				if h.tree.BeginBackUp(r.Pin, 1, &b) {
					h.copy(&b, rng.IntN(4) > 0, &f)
				}
				h.tree.Release(r.Pin)
				r.Pin = Pin{}
			}
		}
		h.tree.Release(m.Pin)
		switch rng.IntN(6) {
		case 0:
			h.tree.Evict(&EvictRequest{Want: []int{rng.IntN(60), rng.IntN(9), rng.IntN(3)}, Unbacked: Unbacked(rng.IntN(3))}, &e)
			h.evicted(&e, &f)
		case 1:
			h.tree.Evict(&EvictRequest{Tier: Host, Want: []int{rng.IntN(40), rng.IntN(9), rng.IntN(3)}, Duplicates: true}, &e)
			h.evicted(&e, &f)
		case 2:
			if rng.IntN(20) == 0 {
				h.tree.Clear(&f)
				h.back(&f)
			}
		}
		h.tree.DrainOrphans(&f)
		h.back(&f)
	}
}

func (h *hammer) evicted(e *EvictResult, f *Freed) {
	h.back(&e.Freed)
	for i := range e.BackUps {
		h.copy(&e.BackUps[i], i%2 == 0, f)
	}
}

func (h *hammer) copy(b *BackUp, ok bool, f *Freed) {
	var full []ids.HostPage
	windows, states := make([][]ids.HostPage, 3), make([][]ids.HostPage, 3)
	if ok {
		full, windows[1], states[2] = h.hostPages(len(b.Full)), h.hostPages(len(b.Windows[1])), h.hostPages(len(b.States[2]))
	}
	if err := h.tree.FinishBackUp(b.ID, ok, full, windows, states, f); err != nil {
		h.t.Error(err)
	}
	h.back(f)
}

func (h *hammer) load(m *Match, rng *rand.Rand, f *Freed) {
	if h.tree.Refresh(m) != nil {
		return
	}
	full := h.pages(len(m.LoadFull))
	states := []ids.VirtualPage{none, none, none}
	if m.Usable > 0 && m.States[2].Device == none {
		states[2] = ids.VirtualPage(h.take())
	}
	var surplus Freed
	id, err := h.tree.BeginLoad(m, full, states, &surplus)
	if err != nil {
		surplus.fit(3)
		surplus.Device[0] = append(surplus.Device[0], full...)
		surplus.device(2, uint32(states[2]))
		h.back(&surplus)
		return
	}
	if _, err := h.tree.FinishLoad(id, rng.IntN(4) > 0, f); err != nil {
		h.t.Error(err)
	}
	h.back(&surplus)
	h.back(f)
}

func (h *hammer) insert(m *Match, tokens []uint32, r *InsertResult, rng *rand.Rand) {
	end := len(tokens) / 2
	req := InsertRequest{Tokens: tokens, After: m.Pin, From: min(m.Ready, end), Pin: true}
	req.Pages = h.pages(end - req.From)
	if end > 0 {
		req.Checkpoints = []Checkpoint{{2, 1 + rng.IntN(end), ids.VirtualPage(h.take())}}
	}
	if h.tree.Insert(&req, r) != nil { // the prefix is in flight or was cleared: the pages are still ours
		r.Freed.fit(3)
		r.Freed.Reset()
		r.Freed.Device[0] = append(r.Freed.Device[0], req.Pages...)
		for _, c := range req.Checkpoints {
			r.Freed.Device[2] = append(r.Freed.Device[2], c.Page)
		}
	}
	h.back(&r.Freed)
}
