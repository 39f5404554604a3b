package radix

import (
	"slices"
	"testing"

	"github.com/hicache/hicache/ffi/ids"
)

// G59: which boundaries a window of 8 tokens allows on a path of nodes A = 8, B = 8, C = 4 tokens.
func TestWindowBoundaries(t *testing.T) {
	const page = 4
	pages := func(from, to int) []int { // page positions
		var out []int
		for i := from; i < to; i++ {
			out = append(out, i)
		}
		return out
	}
	for _, c := range []struct {
		name   string
		gone   []int // positions whose window is a tombstone
		hosted bool  // the tombstones have a host copy
		length int   // tokens asked for
		usable int   // tokens
		ready  int
	}{
		{"all there, short of a window", nil, false, 4, 4, 4}, // the root side counts as complete
		{"all there", nil, false, 20, 20, 20},
		{"A gone, to 8", pages(0, 2), false, 8, 0, 0},
		{"A gone, to 16", pages(0, 2), false, 16, 16, 16},
		{"A gone, to 20", pages(0, 2), false, 20, 20, 20},
		{"B gone, to 8", pages(2, 4), false, 8, 8, 8},
		{"B gone, to 16", pages(2, 4), false, 16, 8, 8},
		{"B gone, to 20: only 4 tokens since the gap", pages(2, 4), false, 20, 8, 8},
		{"B gone, 4 tokens more", pages(2, 4), false, 24, 24, 24},
		{"A on the host, to 8", pages(0, 2), true, 8, 8, 0},
		{"B on the host, to 20", pages(2, 4), true, 20, 20, 8},
		{"a gap inside a node", []int{3}, false, 20, 12, 12},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, withWindow(page, 8))
			var pins []Pin
			for _, end := range []int{8, 16, 20, 24} {
				r := f.insert(InsertRequest{Tokens: seq(0, end), From: max(0, end-8+end%8) / page, Pages: nil, Pin: true})
				pins = append(pins, r.Pin)
			}
			if c.hosted {
				f.backUp(pins[3])
			}
			for _, p := range pins {
				f.tree.Release(p)
			}
			f.tombstone(seq(0, 24), c.gone)
			if !c.hosted && len(c.gone) > 0 && f.tree.Counts(1).Device != 6-len(c.gone) {
				t.Fatalf("%d windows on the device", f.tree.Counts(1).Device)
			}
			m := f.match(seq(0, c.length), MatchOptions{FullHit: true})
			if m.Usable*page != c.usable || m.Ready*page != c.ready || m.Hit*page != c.length {
				t.Errorf("usable %d ready %d hit %d tokens, want %d %d %d", m.Usable*page, m.Ready*page, m.Hit*page, c.usable, c.ready, c.length)
			}
			f.tree.Release(m.Pin)
		})
	}
}

// tombstone drops the windows of the given positions, whatever their order of use.
func (f *fixture) tombstone(tokens []uint32, positions []int) {
	f.t.Helper()
	t := f.tree
	var fr Freed
	fr.fit(len(t.cfg.Pools))
	t.mu.Lock()
	n, _, _, _ := t.locate(Namespace{}, Pin{}, 0, tokens, len(tokens)/t.pt)
	path := pathTo(n, nil)
	for _, at := range positions {
		m := holder(path, int32(at))
		t.dropWindow(m, 0, at-int(m.start), &fr)
		st := &m.pools[t.swa[0].pool]
		for st.dev > 0 && t.col(m, colFlags)[st.first]&windowBit(0) == 0 {
			st.first++
		}
		t.reconcile(m)
	}
	t.mu.Unlock()
	f.free(&fr)
	f.verify()
}

// G49: child on the host, parent resident, window of 3 pages: exactly the child's two window pages are loaded.
func TestOnlyMissingWindowsAreLoaded(t *testing.T) {
	f := newFixture(t, withWindow(4, 12))
	f.insert(InsertRequest{Tokens: seq(0, 8)})
	r := f.insert(InsertRequest{Tokens: seq(0, 16), From: 2, Pin: true})
	f.backUp(r.Pin)
	f.tree.Release(r.Pin)
	if e := f.evict(EvictRequest{Want: []int{2}}); e.Gone[0] != 2 || e.Gone[1] != 2 || e.Victims[0].Kind != Demoted {
		t.Fatalf("%+v", e)
	}
	m := f.match(seq(0, 16), MatchOptions{FullHit: true})
	if m.Usable != 4 || m.Ready != 2 || len(m.Resident) != 2 || len(m.LoadFull) != 2 {
		t.Fatalf("%+v", m)
	}
	if w := m.LoadWindows[1]; len(w) != 2 || w[0].At != 2 || w[1].At != 3 || w[0].Bind != none {
		t.Fatalf("windows to load: %+v", w)
	}
	// A parent whose window is gone gets it back at its resident page.
	f.tombstone(seq(0, 16), []int{1})
	if err := f.tree.Refresh(m); err != nil || len(m.LoadWindows[1]) != 3 || m.LoadWindows[1][0].Bind != m.Resident[1] {
		t.Errorf("refresh: %v %+v", err, m.LoadWindows)
	}
}

// A load is pending until it has ended, others may join it, and a failed one leaves no trace but its host copies.
func TestLoads(t *testing.T) {
	for _, ok := range []bool{true, false} {
		f := newFixture(t, withWindow(4, 8))
		r := f.insert(InsertRequest{Tokens: seq(0, 24), Pin: true})
		f.backUp(r.Pin)
		f.tree.Release(r.Pin)
		f.evict(EvictRequest{Want: []int{6}})
		a := f.match(seq(0, 16), MatchOptions{FullHit: true, Join: true})
		first, pages := f.load(a)
		if m := f.match(seq(0, 24), MatchOptions{FullHit: true}); m.Ready != 0 || m.Usable != 6 || f.tree.Refresh(m) != ErrPending {
			t.Errorf("a match that does not join: %+v", m)
		} else {
			f.tree.Release(m.Pin)
		}
		b := f.match(seq(0, 24), MatchOptions{FullHit: true, Join: true})
		if b.Ready != 4 || b.Usable != 6 || !slices.Equal(b.Resident, pages) || !slices.Equal(b.Joins, []LoadID{first}) {
			t.Fatalf("a match that joins: %+v", b)
		}
		second, more := f.load(b)
		var res InsertResult
		if err := f.tree.Insert(&InsertRequest{Tokens: seq(0, 28), After: b.Pin, From: 6, Pages: f.pages(0, 1)}, &res); err != ErrPending {
			t.Errorf("insert on a pending prefix: %v", err)
		}
		var fr Freed
		if whole, err := f.tree.FinishLoad(second, true, &fr); !whole || err != nil || !fr.Empty() {
			t.Fatalf("the load on top: %v %v %+v", whole, err, fr)
		}
		whole, err := f.tree.FinishLoad(first, ok, &fr)
		if whole != ok || err != nil {
			t.Fatalf("the load below: %v %v", whole, err)
		}
		f.verify()
		if _, err := f.tree.FinishLoad(first, ok, &fr); err != ErrStale {
			t.Errorf("a second finish: %v", err)
		}
		if ok {
			if !fr.Empty() || f.tree.Counts(0).Device != 6 {
				t.Errorf("freed %+v, %+v", fr, f.tree.Counts(0))
			}
			continue
		}
		// The failed load's pages come back at once; the other's are stacked on them, and pinned.
		if !slices.Equal(fr.Device[0], pages) {
			t.Errorf("freed %v, want %v", fr.Device[0], pages)
		}
		f.free(&fr)
		f.tree.DrainOrphans(&fr)
		if !fr.Empty() {
			t.Errorf("pinned pages came back: %v", fr.Device)
		}
		f.tree.Release(a.Pin)
		f.tree.Release(b.Pin)
		f.tree.DrainOrphans(&fr)
		if !slices.Equal(fr.Device[0], more) {
			t.Errorf("freed %v, want %v", fr.Device[0], more)
		}
		f.free(&fr)
		if m := f.match(seq(0, 24), MatchOptions{FullHit: true}); m.Usable != 6 || m.Ready != 0 {
			t.Errorf("after the failure: %+v", m)
		}
	}
}

// load begins a load for m.
func (f *fixture) load(m *Match) (LoadID, []ids.VirtualPage) {
	f.t.Helper()
	if err := f.tree.Refresh(m); err != nil {
		f.t.Fatal(err)
	}
	pages := f.pages(f.tree.full, len(m.LoadFull))
	var surplus Freed
	id, err := f.tree.BeginLoad(m, pages, nil, &surplus)
	if err != nil || !surplus.Empty() {
		f.t.Fatal(err, surplus)
	}
	f.verify()
	return id, pages
}

// A load of windows alone that fails gives the window pages back and leaves the full pages.
func TestFailedWindowLoad(t *testing.T) {
	f := newFixture(t, withWindow(4, 8))
	r := f.insert(InsertRequest{Tokens: seq(0, 16), Pin: true})
	f.backUp(r.Pin)
	f.tree.Release(r.Pin)
	f.tombstone(seq(0, 16), []int{0, 1, 2, 3})
	m := f.match(seq(0, 16), MatchOptions{FullHit: true})
	if m.Usable != 4 || m.Ready != 0 || len(m.Resident) != 4 || len(m.LoadFull) != 0 || len(m.LoadWindows[1]) != 2 || m.LoadWindows[1][0].Bind != m.Resident[2] {
		t.Fatalf("%+v", m)
	}
	// Hosted windows that a match counts on stay, although their full pages are on the device.
	if e := f.evict(EvictRequest{Tier: Host, Want: []int{4, 4}, Duplicates: true}); e.Gone[0] != 0 || e.Gone[1] != 0 {
		t.Fatalf("evicted from the host under a match: %+v", e)
	}
	id, _ := f.load(m)
	var fr Freed
	if whole, err := f.tree.FinishLoad(id, false, &fr); whole || err != nil {
		t.Fatal(whole, err)
	}
	if !slices.Equal(fr.Device[1], m.Resident[2:]) || len(fr.Device[0]) != 0 {
		t.Errorf("freed %+v", fr)
	}
	f.free(&fr)
	f.verify()
	if c := f.tree.Counts(1); c.Device != 0 || c.Host != 4 {
		t.Errorf("%+v", c)
	}
}

// Windows that a load brings to pages of a path that was cleared meanwhile go with those pages, so they are not given back before.
func TestClearedUnderAWindowLoad(t *testing.T) {
	for _, ok := range []bool{true, false} {
		f := newFixture(t, withWindow(4, 8))
		r := f.insert(InsertRequest{Tokens: seq(0, 16), Pin: true})
		f.backUp(r.Pin)
		f.tree.Release(r.Pin)
		f.tombstone(seq(0, 16), []int{0, 1, 2, 3})
		m := f.match(seq(0, 16), MatchOptions{FullHit: true})
		id, _ := f.load(m)
		f.tree.Release(m.Pin)
		var fr Freed
		f.tree.Clear(&fr)
		f.free(&fr)
		if whole, err := f.tree.FinishLoad(id, ok, &fr); whole || err != nil {
			t.Fatal(whole, err)
		}
		var rest Freed
		f.tree.DrainOrphans(&rest) // of another goroutine's
		f.free(&rest)
		f.free(&fr)
		f.verify()
		if len(f.live[0]) != 0 {
			t.Errorf("%d pages are left", len(f.live[0]))
		}
	}
}

// C7: a tombstone's window may live on elsewhere; an overlapping insert must not free it.
func TestTombstoneRecovery(t *testing.T) {
	for _, c := range []struct {
		name    string
		pinned  bool
		rebind  bool
		windows int // on the device afterwards
		keep    bool
	}{
		{"unpinned: the newcomer replaces the page", false, false, 4, false},
		{"pinned, no rebinding: stays a tombstone", true, false, 2, true},
		{"pinned, rebinding: the window moves over", true, true, 4, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, withWindow(4, 16))
			old := f.insert(InsertRequest{Tokens: seq(0, 16)}).Now
			f.tombstone(seq(0, 16), []int{1, 2})
			var m *Match
			if c.pinned {
				m = f.match(seq(0, 17), MatchOptions{NoLoad: true})
				pin := f.insert(InsertRequest{Tokens: seq(0, 16), From: 4, Pages: []ids.VirtualPage{}, Pin: true}).Pin
				defer f.tree.Release(pin)
				f.tree.Release(m.Pin)
			}
			fresh := f.pages(0, 4)
			r := new(InsertResult)
			if err := f.tree.Insert(&InsertRequest{Tokens: seq(0, 16), Pages: fresh, Rebind: c.rebind}, r); err != nil {
				t.Fatal(err)
			}
			freed := r.Freed.Device[0]
			if len(freed) != 4 || len(r.Freed.Device[1]) != 0 {
				t.Fatalf("freed %+v", r.Freed)
			}
			for i, v := range r.Now {
				want := old[i]
				if !c.keep && (i == 1 || i == 2) {
					want = fresh[i]
				}
				if v != want || slices.Contains(freed, v) {
					t.Errorf("position %d: page %d, want %d; freed %v", i, v, want, freed)
				}
			}
			if c.rebind && !slices.Equal(r.Rebinds, []Rebind{{1, fresh[1], old[1]}, {1, fresh[2], old[2]}}) {
				t.Errorf("rebinds %+v", r.Rebinds)
			}
			f.free(&r.Freed)
			f.verify()
			if got := f.tree.Counts(1).Device; got != c.windows {
				t.Errorf("%d windows, want %d", got, c.windows)
			}
		})
	}
}

// C12: pages of an aborted chunk are never matchable: what was not inserted is not there, and an insert beyond what was given back is
// refused.
func TestAbortBetweenChunks(t *testing.T) {
	f := newFixture(t, fullOnly(4))
	a := f.insert(InsertRequest{Tokens: seq(0, 8), Pin: true})
	second := f.pages(0, 2)
	f.tree.Release(a.Pin) // abort before the second chunk's insert: its pages are the request's own
	f.free(&Freed{Device: [][]ids.VirtualPage{second}})
	if e := f.evict(EvictRequest{Want: []int{1}}); e.Gone[0] != 1 {
		t.Fatal(e)
	}
	var r InsertResult
	if err := f.tree.Insert(&InsertRequest{Tokens: seq(0, 16), From: 2, Pages: second}, &r); err != ErrGap {
		t.Errorf("a late insert: %v", err)
	}
	if err := f.tree.Insert(&InsertRequest{Tokens: seq(0, 16), After: a.Pin, From: 2, Pages: second}, &r); err != ErrStale {
		t.Errorf("a late insert with the released pin: %v", err)
	}
	if m := f.match(seq(0, 17), MatchOptions{}); m.Usable != 1 {
		t.Errorf("usable %d", m.Usable)
	}
}

// C27: pins nest on every node, releases replay exactly, also across splits, and a second release changes nothing.
func TestReceiptsAcrossSplits(t *testing.T) {
	f := newFixture(t, Config{PageTokens: 1, Pools: []PoolConfig{{Role: Full}, {SWA, 3}, {Role: State}}})
	f.insert(InsertRequest{Tokens: seq(0, 8), Checkpoints: []Checkpoint{{2, 8, f.page(2)}, {2, 5, f.page(2)}}})
	a := f.match(seq(0, 9), MatchOptions{})
	b := f.match(append(seq(0, 5), 99), MatchOptions{})
	if a.Usable != 8 || b.Usable != 5 || a.States[2].Device != 1 || b.States[2].Device != 2 {
		t.Fatalf("%+v %+v", a, b)
	}
	for _, cut := range []int{6, 3, 7, 2} { // branches cut the pinned path in pieces
		f.insert(InsertRequest{Tokens: append(seq(0, cut), 50, uint32(cut))})
	}
	e := f.evict(EvictRequest{Want: []int{100, 100, 100}})
	if f.tree.Counts(0).Device != 8 || f.tree.Counts(1).Device < 6 || // windows: at least positions 2..8
		f.tree.Counts(2).Device != 2 {
		t.Errorf("evicted under pins: %+v, blockers %v", e.Victims, e.Blocker)
	}
	for _, p := range e.Blocker {
		if p != Pinned {
			t.Errorf("blocker %v", p)
		}
	}
	for _, m := range []*Match{a, b} {
		if !f.tree.Release(m.Pin) {
			t.Error("not released")
		}
		f.verify()
		if f.tree.Release(m.Pin) {
			t.Error("released twice")
		}
		f.verify()
	}
	f.evict(EvictRequest{Want: []int{100}})
	if f.tree.Nodes() != 0 {
		t.Errorf("%d nodes left", f.tree.Nodes())
	}
}

// C46: a prompt of a whole number of pages keeps all but its last page usable, window included.
func TestAlignedPromptLeavesOneToken(t *testing.T) {
	f := newFixture(t, withWindow(4, 8))
	f.insert(InsertRequest{Tokens: seq(0, 16), WindowFrom: []int{0, 1}})
	if m := f.match(seq(0, 16), MatchOptions{}); m.Usable != 3 || m.Ready != 3 || m.Hit != 3 {
		t.Errorf("%+v", m)
	}
	if m := f.match(seq(0, 16), MatchOptions{FullHit: true}); m.Usable != 4 {
		t.Errorf("%+v", m)
	}
}

// C62: a state at token N is no use to a request that must compute token N: the one before counts.
func TestStateOfTheLastTokenIsNotUsed(t *testing.T) {
	f := newFixture(t, Config{PageTokens: 4, Pools: []PoolConfig{{Role: Full}, {Role: State}}})
	early, late := f.page(1), f.page(1)
	f.insert(InsertRequest{Tokens: seq(0, 32), Checkpoints: []Checkpoint{{1, 4, early}, {1, 8, late}}})
	for _, c := range []struct {
		tokens []uint32
		full   bool
		usable int
		hit    int
		state  ids.VirtualPage
	}{
		{seq(0, 32), false, 4, 7, early},
		{seq(0, 32), true, 8, 8, late},
		{seq(0, 33), false, 8, 8, late},
		{append(seq(0, 30), 9, 9), false, 4, 7, early}, // C68: diverging falls back to the checkpoint before
		{seq(0, 15), false, 0, 3, none},
	} {
		m := f.match(c.tokens, MatchOptions{FullHit: c.full})
		if m.Usable != c.usable || m.Hit != c.hit || m.States[1].Device != c.state {
			t.Errorf("%d tokens: usable %d hit %d state %v, want %+v", len(c.tokens), m.Usable, m.Hit, m.States[1], c)
		}
		f.tree.Release(m.Pin)
	}
}

// C35, C36, G56: what an eviction under write_back may lose.
func TestWriteBackEviction(t *testing.T) {
	f := newFixture(t, withWindow(4, 8))
	f.insert(InsertRequest{Tokens: seq(0, 16)})
	f.insert(InsertRequest{Tokens: seq(0, 24), From: 4})
	e := f.evict(EvictRequest{Want: []int{2}, Unbacked: Back})
	if e.Gone[0] != 0 || e.Pending[0] != 2 || e.Pending[1] != 2 || len(e.BackUps) != 1 || !slices.Equal(e.BackUps[0].FullAt, []int{4, 5}) {
		t.Fatalf("%+v", e)
	}
	f.finish(&e.BackUps[0], false) // the host is full: the leaf stays
	if c := f.tree.Counts(0); c.Device != 6 || c.Host != 0 || c.DeviceEvictable != 6 {
		t.Fatalf("after a failed back-up: %+v", c)
	}
	e = f.evict(EvictRequest{Want: []int{2}, Unbacked: Back})
	f.finish(&e.BackUps[0], true)
	if c, w := f.tree.Counts(0), f.tree.Counts(1); c.Device != 4 || c.Host != 2 || c.HostDuplicates != 0 || w.Host != 2 || w.Device != 4 {
		t.Fatalf("after the back-up: %+v %+v", c, w)
	}
	// An internal window: backed up first, then dropped; a second time without a copy.
	f.insert(InsertRequest{Tokens: append(seq(0, 16), seq(50, 62)...), From: 4})
	e = f.evict(EvictRequest{Want: []int{0, 2}, Unbacked: Back})
	if len(e.BackUps) != 1 || len(e.BackUps[0].Full) != 0 || !slices.Equal(e.BackUps[0].WindowsAt[1], []int{0, 1}) {
		t.Fatalf("%+v", e)
	}
	f.finish(&e.BackUps[0], true)
	if w := f.tree.Counts(1); w.Device != 5 || w.Host != 4 {
		t.Fatalf("%+v", w)
	}
	e = f.evict(EvictRequest{Want: []int{0, 1}, Unbacked: Back})
	f.finish(&e.BackUps[0], false) // only the window is lost
	if c, w := f.tree.Counts(0), f.tree.Counts(1); c.Device != 7 || w.Device != 4 || w.Host != 4 {
		t.Fatalf("%+v %+v", c, w)
	}
}

// A hosted window is dropped without a copy.
func TestHostedWindowGoesWithoutCopy(t *testing.T) {
	f := newFixture(t, withWindow(4, 8))
	r := f.insert(InsertRequest{Tokens: seq(0, 16), Pin: true})
	f.backUp(r.Pin)
	f.insert(InsertRequest{Tokens: append(seq(0, 16), seq(50, 62)...), From: 4})
	f.tree.Release(r.Pin)
	e := f.evict(EvictRequest{Want: []int{0, 4}, Unbacked: Back})
	if len(e.BackUps) != 0 || e.Gone[1] != 4 || e.Gone[0] != 0 || e.Victims[0].Kind != Tombstoned || len(f.live[0]) != 7 {
		t.Fatalf("%+v", e)
	}
}

// Windows before the last one of a leaf serve only matches that end inside it, so they go before the leaf is trimmed.
func TestColdWindowsGoFirst(t *testing.T) {
	f := newFixture(t, withWindow(4, 8))
	f.insert(InsertRequest{Tokens: seq(0, 20)})
	e := f.evict(EvictRequest{Want: []int{0, 3}})
	if e.Gone[0] != 0 || e.Gone[1] != 3 || !slices.Equal(e.Victims, []Victim{{1, Tombstoned, 0, 3}}) {
		t.Fatalf("%+v", e)
	}
	if m := f.match(seq(0, 20), MatchOptions{FullHit: true}); m.Ready != 5 {
		t.Errorf("ready %d", m.Ready)
	} else {
		f.tree.Release(m.Pin)
	}
	if e = f.evict(EvictRequest{Want: []int{0, 1}}); e.Gone[0] != 1 || e.Gone[1] != 1 {
		t.Fatalf("%+v", e)
	}
}

// G58 (tree part): the stop predicate ends the pass after any page, whatever the quotas say.
func TestStopPredicate(t *testing.T) {
	f := newFixture(t, withWindow(4, 8))
	for i := range 10 {
		f.insert(InsertRequest{Tokens: append([]uint32{uint32(i)}, seq(0, 15)...)})
	}
	asked := 0
	e := f.evict(EvictRequest{Want: []int{40, 40}, Stop: func(gone []int) bool { asked++; return gone[0] >= 3 && gone[1] >= 3 }})
	if e.Gone[0] != 3 || e.Gone[1] != 3 || asked != 3 {
		t.Errorf("%+v after %d questions", e, asked)
	}
}

// A refill under write_through costs no copy; a page below an unbacked one may not have one.
func TestRefill(t *testing.T) {
	f := newFixture(t, Config{PageTokens: 4, HostPrefixClosed: true, Pools: []PoolConfig{{Role: Full}, {SWA, 8}}})
	r := f.insert(InsertRequest{Tokens: seq(0, 16), Pin: true})
	var fr Freed
	fresh, err := f.tree.InsertHost(&InsertHostRequest{Tokens: seq(0, 24), Pages: f.hostPages(0, 6), Refill: true, Stored: true,
		Windows: [][]HostWindow{nil, {{At: 4, Host: f.hostPages(1, 1)[0]}, {At: 5, Host: f.hostPages(1, 1)[0]}}}}, &fr)
	if fresh != 6 || err != nil || !fr.Empty() {
		t.Fatalf("fresh %d, %v, %+v", fresh, err, fr)
	}
	f.verify()
	var b BackUp
	if f.tree.BeginBackUp(r.Pin, 0, &b) && (len(b.Full) != 0 || len(b.Windows[1]) != 4) {
		t.Errorf("pages that the prefetch brought are copied again: %+v", b)
	}
	var s Store
	if f.tree.BeginStore(r.Pin, &s) {
		t.Errorf("pages from storage are stored again: %+v", s)
	}
	if m := f.match(seq(0, 24), MatchOptions{FullHit: true}); m.Usable != 6 || m.Ready != 4 || len(m.LoadWindows[1]) != 2 {
		t.Errorf("%+v", m)
	}

	g := newFixture(t, Config{PageTokens: 4, HostPrefixClosed: true, Pools: []PoolConfig{{Role: Full}}})
	g.insert(InsertRequest{Tokens: seq(0, 16)})
	if fresh, err := g.tree.InsertHost(&InsertHostRequest{Tokens: seq(0, 16), From: 2, Pages: g.hostPages(0, 2), Refill: true}, &fr); fresh != 0 || err != nil || len(fr.Host[0]) != 2 {
		t.Errorf("refill under an unbacked page: %d, %v, %+v", fresh, err, fr)
	}
}

// G55: what a switch to write_through must find.
func TestWriteThroughCompatible(t *testing.T) {
	for _, c := range []struct {
		name string
		ok   bool
		make func(f *fixture, p Pin)
	}{
		{"a root-down chain", true, func(f *fixture, p Pin) { f.backUp(p) }},
		{"an empty host", true, func(*fixture, Pin) {}},
		{"a suffix below an unbacked parent", false, func(f *fixture, p Pin) {
			f.tree.Release(p)
			e := f.evict(EvictRequest{Want: []int{1}, Unbacked: Back})
			f.finish(&e.BackUps[0], true)
		}},
		{"a window without its full page", false, func(f *fixture, p Pin) {
			f.insert(InsertRequest{Tokens: append(seq(0, 16), seq(50, 62)...), From: 4})
			f.tree.Release(p)
			e := f.evict(EvictRequest{Want: []int{0, 2}, Unbacked: Back})
			f.finish(&e.BackUps[0], true)
		}},
	} {
		f := newFixture(t, withWindow(4, 8))
		r := f.insert(InsertRequest{Tokens: seq(0, 16), Pin: true})
		c.make(f, r.Pin)
		if ok, why := f.tree.WriteThroughCompatible(); ok != c.ok || ok != (why == "") {
			t.Errorf("%s: %v %q", c.name, ok, why)
		}
		f.verify()
	}
}
