package radix

import (
	"testing"

	"github.com/hicache/hicache/ffi/ids"
)

// fixture is a tree with a page allocator behind it that notices leaks and double frees.
type fixture struct {
	t     tester
	tree  *Tree
	next  []uint32 // by pool, device
	hnext []uint32
	live  []map[ids.VirtualPage]bool // by id group: FULL's, and each STATE pool's
	hlive []map[ids.HostPage]bool
}

// tester is what testing.T and rapid.T share.
type tester interface {
	Helper()
	Error(...any)
	Fatal(...any)
	Fatalf(string, ...any)
	Failed() bool
	FailNow()
}

func newFixture(t tester, cfg Config) *fixture {
	t.Helper()
	tree, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, tree: tree}
	for range cfg.Pools {
		f.next, f.hnext = append(f.next, 1), append(f.hnext, 1)
		f.live, f.hlive = append(f.live, map[ids.VirtualPage]bool{}), append(f.hlive, map[ids.HostPage]bool{})
	}
	return f
}

func (f *fixture) page(pool int) ids.VirtualPage {
	v := ids.VirtualPage(f.next[pool])
	f.next[pool]++
	f.live[pool][v] = true
	return v
}

func (f *fixture) pages(pool, n int) []ids.VirtualPage {
	var out []ids.VirtualPage
	for range n {
		out = append(out, f.page(pool))
	}
	return out
}

func (f *fixture) hostPages(pool, n int) []ids.HostPage {
	var out []ids.HostPage
	for range n {
		h := ids.HostPage(f.hnext[pool])
		f.hnext[pool]++
		f.hlive[pool][h] = true
		out = append(out, h)
	}
	return out
}

// free takes back what the tree gave up; windows (device, SWA) only mark tombstones of pages that must still be live.
func (f *fixture) free(fr *Freed) {
	f.t.Helper()
	for p, list := range fr.Device {
		for _, v := range list {
			if f.tree.cfg.Pools[p].Role == SWA {
				if !f.live[f.tree.full][v] {
					f.t.Fatalf("tombstone of page %d, which is free", v)
				}
				continue
			}
			if !f.live[p][v] {
				f.t.Fatalf("pool %d: page %d freed twice", p, v)
			}
			delete(f.live[p], v)
		}
	}
	for p, list := range fr.Host {
		for _, h := range list {
			if !f.hlive[p][h] {
				f.t.Fatalf("pool %d: host page %d freed twice", p, h)
			}
			delete(f.hlive[p], h)
		}
	}
	fr.Reset()
}

func (f *fixture) verify() {
	f.t.Helper()
	for _, s := range f.tree.Verify() {
		f.t.Error(s)
	}
	if lost := f.tree.lostStrips(); lost != 0 {
		f.t.Error(lost, "strips belong to no node")
	}
	if f.t.Failed() {
		f.t.FailNow()
	}
}

// insert puts whole pages of tokens into the tree, all freshly computed from From on, and returns the result. Freed pages are taken back.
func (f *fixture) insert(req InsertRequest) InsertResult {
	f.t.Helper()
	if req.Pages == nil {
		req.Pages = f.pages(f.tree.full, len(req.Tokens)/f.tree.pt-req.From)
	}
	var r InsertResult
	if err := f.tree.Insert(&req, &r); err != nil {
		f.t.Fatalf("insert: %v", err)
	}
	f.free(&r.Freed)
	f.verify()
	return r
}

// backUp gives everything on p's path a host copy.
func (f *fixture) backUp(p Pin) {
	f.t.Helper()
	var b BackUp
	if !f.tree.BeginBackUp(p, 0, &b) {
		f.t.Fatal("nothing to back up")
	}
	f.finish(&b, true)
}

func (f *fixture) finish(b *BackUp, ok bool) {
	f.t.Helper()
	var full []ids.HostPage
	w, s := make([][]ids.HostPage, len(b.Windows)), make([][]ids.HostPage, len(b.Windows))
	if ok {
		full = f.hostPages(f.tree.full, len(b.Full))
		for p := range b.Windows {
			w[p], s[p] = f.hostPages(p, len(b.Windows[p])), f.hostPages(p, len(b.States[p]))
		}
		for p := range s {
			if f.tree.cfg.Pools[p].Role == SWA {
				s[p] = nil
			}
		}
	}
	var fr Freed
	if err := f.tree.FinishBackUp(b.ID, ok, full, w, s, &fr); err != nil {
		f.t.Fatal(err)
	}
	f.free(&fr)
	f.verify()
}

func (f *fixture) match(tokens []uint32, opt MatchOptions) *Match {
	f.t.Helper()
	m := new(Match)
	f.tree.Match(Namespace{}, tokens, opt, m)
	f.verify()
	return m
}

func (f *fixture) evict(req EvictRequest) *EvictResult {
	f.t.Helper()
	r := new(EvictResult)
	f.tree.Evict(&req, r)
	keep := r.Freed
	f.free(&keep)
	f.verify()
	return r
}

// seq is the tokens from, from+1, ... to-1.
func seq(from, to int) []uint32 {
	var out []uint32
	for i := from; i < to; i++ {
		out = append(out, uint32(i))
	}
	return out
}

func fullOnly(page int) Config { return Config{PageTokens: page, Pools: []PoolConfig{{Role: Full}}} }

func withWindow(page, window int) Config {
	return Config{PageTokens: page, Pools: []PoolConfig{{Role: Full}, {Role: SWA, WindowTokens: window}}}
}

func TestInsertThenMatch(t *testing.T) {
	f := newFixture(t, fullOnly(4))
	f.insert(InsertRequest{Tokens: seq(0, 17)})
	for _, c := range []struct {
		tokens []uint32
		full   bool
		want   int
	}{
		{nil, false, 0}, {nil, true, 0},
		{seq(0, 3), true, 0}, {seq(0, 4), true, 1}, {seq(0, 4), false, 0}, {seq(0, 5), false, 1},
		{seq(0, 16), true, 4}, {seq(0, 16), false, 3}, {seq(0, 17), false, 4}, {seq(0, 100), false, 4},
		{seq(1, 17), false, 0}, {append(seq(0, 8), 99, 99, 99, 99), true, 2}, {append(seq(0, 6), 99, 99), true, 1},
	} {
		m := f.match(c.tokens, MatchOptions{FullHit: c.full})
		if m.Usable != c.want || m.Ready != c.want || m.Hit != c.want || len(m.Resident) != c.want {
			t.Errorf("%d tokens, full %v: usable %d, ready %d, hit %d, resident %d, want %d", len(c.tokens), c.full, m.Usable, m.Ready, m.Hit, len(m.Resident), c.want)
		}
		for i, v := range m.Resident {
			if v != ids.VirtualPage(i+1) {
				t.Errorf("position %d is page %d", i, v)
			}
		}
		if !f.tree.Release(m.Pin) || f.tree.Release(m.Pin) {
			t.Error("a pin is released exactly once")
		}
		f.verify()
	}
	if f.tree.Counts(0).DeviceEvictable != 4 {
		t.Errorf("%+v", f.tree.Counts(0))
	}
}

func TestDuplicatesComeBack(t *testing.T) {
	f := newFixture(t, fullOnly(4))
	f.insert(InsertRequest{Tokens: seq(0, 16)})
	r := f.insert(InsertRequest{Tokens: append(seq(0, 12), 7, 7, 7, 7, 8, 8, 8, 8)})
	if r.Existing != 3 || r.New != 2 || r.Pages != 5 || len(r.Now) != 5 {
		t.Fatalf("%+v", r)
	}
	if r.Now[0] != 1 || r.Now[2] != 3 || r.Now[3] != 8 {
		t.Errorf("pages now %v", r.Now)
	}
	if len(f.live[0]) != 6 {
		t.Errorf("%d pages live, want 6", len(f.live[0]))
	}
}

func TestInsertBeyondAGap(t *testing.T) {
	f := newFixture(t, fullOnly(4))
	f.insert(InsertRequest{Tokens: seq(0, 8)})
	var r InsertResult
	for _, req := range []InsertRequest{
		{Tokens: seq(0, 16), From: 3, Pages: f.pages(0, 1)},
		{Tokens: seq(100, 116), From: 1, Pages: f.pages(0, 1)},
		{Namespace: Namespace{LoRA: Some("x")}, Tokens: seq(0, 16), From: 2, Pages: f.pages(0, 1)},
	} {
		if err := f.tree.Insert(&req, &r); err != ErrGap {
			t.Errorf("From %d: %v", req.From, err)
		}
		f.verify()
	}
	req := InsertRequest{Tokens: seq(0, 16), From: 2, Pages: f.pages(0, 3)}
	if err := f.tree.Insert(&req, &r); err == nil {
		t.Error("more pages than tokens went through")
	}
}

func TestNamespaces(t *testing.T) {
	f := newFixture(t, fullOnly(4))
	spaces := []Namespace{
		{}, {LoRA: Some("")}, {Salt: Some("")}, {LoRA: Some("a"), Salt: Some("bc")}, {LoRA: Some("ab"), Salt: Some("c")}, {LoRA: Some("a")}, {Salt: Some("a")},
		{LoRA: Some("nul\x00"), Salt: Some(string(make([]byte, 1<<16)))},
	}
	for i, ns := range spaces {
		var m Match
		f.tree.Match(ns, seq(0, 9), MatchOptions{}, &m)
		if m.Usable != 0 {
			t.Errorf("namespace %d sees pages of another", i)
		}
		f.tree.Release(m.Pin)
		f.insert(InsertRequest{Namespace: ns, Tokens: seq(0, 8)})
	}
	var fr Freed
	f.tree.DropNamespace(spaces[3], &fr)
	if len(fr.Device[0]) != 2 {
		t.Errorf("dropped %v", fr.Device)
	}
	f.free(&fr)
	f.verify()
	for i, ns := range spaces {
		var m Match
		f.tree.Match(ns, seq(0, 9), MatchOptions{}, &m)
		if want := map[bool]int{true: 0, false: 2}[i == 3]; m.Usable != want {
			t.Errorf("namespace %d: usable %d", i, m.Usable)
		}
		f.tree.Release(m.Pin)
	}
	f.tree.Clear(&fr)
	f.free(&fr)
	f.verify()
	if len(f.live[0]) != 0 || f.tree.Nodes() != 0 {
		t.Errorf("%d pages and %d nodes after Clear", len(f.live[0]), f.tree.Nodes())
	}
}

func TestClearWhilePinned(t *testing.T) {
	f := newFixture(t, fullOnly(4))
	f.insert(InsertRequest{Tokens: seq(0, 16)})
	f.insert(InsertRequest{Tokens: append(seq(0, 8), 5, 5, 5, 5)})
	m := f.match(seq(0, 13), MatchOptions{})
	var fr Freed
	f.tree.Clear(&fr)
	if len(fr.Device[0]) != 2 {
		t.Errorf("%d pages freed at once, want the 2 that nobody pins", len(fr.Device[0]))
	}
	f.free(&fr)
	f.verify()
	f.tree.DrainOrphans(&fr)
	if !fr.Empty() {
		t.Error("pinned pages were given back")
	}
	var r InsertResult
	if err := f.tree.Insert(&InsertRequest{Tokens: seq(0, 16), After: m.Pin, From: 3, Pages: f.pages(0, 1)}, &r); err != ErrGap {
		t.Errorf("insert after a cleared prefix: %v", err)
	}
	f.insert(InsertRequest{Tokens: seq(0, 16)}) // the namespace lives on, with a new root
	f.tree.Release(m.Pin)
	f.tree.DrainOrphans(&fr)
	if len(fr.Device[0]) != 3 {
		t.Errorf("%d pages after the release, want 3", len(fr.Device[0]))
	}
	f.free(&fr)
	f.verify()
}
