package hicache_test

import (
	"errors"
	"testing"

	"github.com/hicache/hicache/ffi/ids"
	hicache "github.com/hicache/hicache/gohicache"
)

// decoder drives one sequence of a batch.
type decoder struct {
	seq    *hicache.Sequence
	tokens []uint32 // prompt and everything generated
	prompt int
	done   int // pages whose bytes are written
}

// stepTables splits the step's tables by sequence.
func (s *server) stepTables(step *hicache.Step, i int) func(pool int) []ids.KernelID {
	return func(pool int) []ids.KernelID {
		indptr, kernel, err := step.Tables(pool)
		if err != nil {
			s.t.Fatal(err)
		}
		return kernel[indptr[i]:indptr[i+1]]
	}
}

// steps is how a test's batch computes: in steps that are opened and closed one by one, or in a Batch that hands its pages on.
type steps struct {
	s      *server
	step   *hicache.Step
	batch  *hicache.Batch
	tables []hicache.BatchTable
}

const rowPages = 32

// newSteps makes tables of both forms: ragged for Full pools, padded for the others.
func (s *server) newSteps(handedOn bool, sequences int) *steps {
	x := &steps{s: s}
	if !handedOn {
		return x
	}
	x.batch = s.c.NewBatch(0)
	for i, p := range s.c.Pools() {
		table := hicache.BatchTable{Pool: i, IDs: make([]ids.KernelID, sequences*rowPages), PageCounts: make([]int32, sequences),
			FirstPages: make([]int32, sequences), LastPageTokens: make([]int32, sequences)}
		if p.Role == hicache.Full {
			table.Indptr = make([]int32, sequences+1)
		} else {
			table.RowPages = rowPages
		}
		x.tables = append(x.tables, table)
	}
	return x
}

// run opens a step and gives the page table of each sequence, from its first page on.
func (x *steps) run(growth []hicache.Growth) func(i int) func(pool int) []ids.KernelID {
	x.s.t.Helper()
	if x.batch == nil {
		var err error
		if x.step, err = x.s.c.Step(ctx, 0, growth, false); err != nil {
			x.s.t.Fatal(err)
		}
		return func(i int) func(int) []ids.KernelID { return x.s.stepTables(x.step, i) }
	}
	if err := x.batch.Step(ctx, growth, x.tables, false); err != nil {
		x.s.t.Fatal(err)
	}
	for i, g := range growth {
		for _, t := range x.tables {
			if n := t.FirstPages[i] + t.PageCounts[i]; int(n) != len(g.Sequence.VirtualPages()) {
				x.s.t.Errorf("sequence %d, pool %d: the table ends with page %d of %d", i, t.Pool, n, len(g.Sequence.VirtualPages()))
			}
			if want := (g.Sequence.Len()-1)%pageTokens + 1; int(t.LastPageTokens[i]) != want {
				x.s.t.Errorf("sequence %d, pool %d: %d tokens in the last page, want %d", i, t.Pool, t.LastPageTokens[i], want)
			}
		}
	}
	return func(i int) func(int) []ids.KernelID {
		return func(pool int) []ids.KernelID {
			t := &x.tables[pool]
			row := t.IDs[i*rowPages:]
			if t.RowPages == 0 {
				row = t.IDs[t.Indptr[i]:t.Indptr[i+1]]
			}
			return append(make([]ids.KernelID, t.FirstPages[i]), row[:t.PageCounts[i]]...)
		}
	}
}

// done says that the step's kernels are enqueued. A batch says so with its next step.
func (x *steps) done() {
	if x.step != nil {
		x.step.Close()
		x.step.Close()
	}
}

func (x *steps) end() {
	if x.batch != nil {
		x.batch.Close()
		x.batch.Close()
	}
}

// eachWay runs a test for every geometry with steps of both kinds.
func eachWay(t *testing.T, test func(t *testing.T, pools []hicache.PoolOptions, handedOn bool)) {
	for name, pools := range geometries() {
		t.Run(name+"/one by one", func(t *testing.T) { test(t, pools, false) })
		t.Run(name+"/handed on", func(t *testing.T) { test(t, pools, true) })
	}
}

// TestDecodeBatch decodes a batch of sequences, some of one prompt, many steps; the generated pages are found afterwards, also the page that
// the last token filled (C47), on every tier.
func TestDecodeBatch(t *testing.T) {
	eachWay(t, func(t *testing.T, pools []hicache.PoolOptions, handedOn bool) {
		s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: pools})
		var batch []*decoder
		for i := range 4 {
			n := 12 + 3*(i/2)
			d := &decoder{tokens: append(prompt(i/2, n), prompt(100+i, 80-n)...), prompt: n} // two share a prompt and then diverge
			var err error
			if d.seq, err = s.c.Begin(ctx, d.tokens[:n], hicache.SequenceOptions{}); err != nil {
				t.Fatal(err)
			}
			d.done = d.seq.Prefix() / pageTokens
			batch = append(batch, d)
		}
		steps := s.newSteps(handedOn, len(batch))
		for round := range 33 {
			growth := make([]hicache.Growth, len(batch))
			for i, d := range batch {
				growth[i] = hicache.Growth{Sequence: d.seq, NewTokens: 1}
			}
			tables := steps.run(growth)
			for i, d := range batch {
				table := tables(i)
				whole := d.seq.Len() / pageTokens
				s.check("own pages", "", d.tokens, table, max(0, d.done-2), d.done)
				s.write("", d.tokens, table, d.done, whole)
				d.done = whole
			}
			steps.done()
			for _, d := range batch {
				if err := d.seq.Append(d.tokens[d.seq.Len()-1]); err != nil {
					t.Fatal(err)
				}
			}
			if round%8 == 7 {
				if err := s.c.Idle(); err != nil {
					t.Fatal(err)
				}
				if err := batch[round%4].seq.Publish(0); err != nil {
					t.Fatal(err)
				}
				if err := s.c.Verify(); err != nil {
					t.Fatal(err)
				}
			}
		}
		steps.end()
		for _, d := range batch {
			if err := d.seq.Finish(); err != nil {
				t.Fatal(err)
			}
			d.seq.Abort()
		}
		s.flush()
		s.evict(hicache.TierDevice)
		for _, d := range batch {
			n := d.prompt + 33
			m := s.c.MatchWith(d.tokens[:n], hicache.MatchOptions{FullHit: true})
			if m.Tokens() != n/pageTokens*pageTokens {
				t.Errorf("%d tokens of %d found", m.Tokens(), n)
			}
			m.Release()
			s.run(d.tokens[:n])
		}
	})
}

// TestAbort is field case C12: what an aborted sequence had published stays right, what it had not is gone, and its pages come back.
func TestAbort(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 16 * kib, Pools: windowPools()})
	a := prompt(1, 24)
	for range 50 {
		seq, err := s.c.Begin(ctx, a[:16], hicache.SequenceOptions{})
		if err != nil {
			t.Fatal(err)
		}
		step, err := s.c.Step(ctx, 0, []hicache.Growth{{Sequence: seq, NewTokens: 8}}, false)
		if err != nil {
			t.Fatal(err)
		}
		s.write("", a, s.stepTables(step, 0), seq.Prefix()/pageTokens, 4)
		step.Close()
		if err := seq.Append(a[16:]...); err != nil {
			t.Fatal(err)
		}
		if err := seq.Publish(16); err != nil { // the first chunk is computed, the second is not
			t.Fatal(err)
		}
		seq.Abort()
		seq.Abort()
		if _, err := s.c.Step(ctx, 0, []hicache.Growth{{Sequence: seq, NewTokens: 1}}, false); !errors.Is(err, hicache.ErrStale) {
			t.Fatalf("step of an aborted sequence: %v", err)
		}
	}
	m := s.c.Match(a)
	if m.Tokens() != 16 {
		t.Fatalf("%d tokens are matchable, want the 16 that were computed", m.Tokens())
	}
	m.Release()
}

// TestExtendAllOrNone: a batch that does not fit takes nothing.
func TestExtendAllOrNone(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 8 * kib, Pools: fullPools()})
	var growth []hicache.Growth
	for i := range 3 {
		seq, err := s.c.Begin(ctx, prompt(i, 8), hicache.SequenceOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer seq.Abort()
		growth = append(growth, hicache.Growth{Sequence: seq, NewTokens: 4})
	}
	growth[2].NewTokens = 400
	before, err := s.c.PoolStats(hicache.TierDevice, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.c.Extend(ctx, growth, false); !errors.Is(err, hicache.ErrNoCapacity) {
		t.Fatalf("got %v", err)
	}
	after, _ := s.c.PoolStats(hicache.TierDevice, 0)
	if before.Live != after.Live || growth[0].Sequence.Len() != 8 {
		t.Fatalf("%d pages live before, %d after; length %d", before.Live, after.Live, growth[0].Sequence.Len())
	}
	if _, err := s.c.Begin(ctx, prompt(9, 50), hicache.SequenceOptions{}); !errors.Is(err, hicache.ErrNoCapacity) {
		t.Fatalf("got %v", err)
	}
}

// TestFork samples several continuations of one prompt: the prompt's pages are shared, each continuation has its own, and the tail page
// is copied once somebody writes on.
func TestFork(t *testing.T) {
	eachWay(t, func(t *testing.T, pools []hicache.PoolOptions, handedOn bool) {
		s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: pools})
		const n = 22 // two tokens in the tail page
		shared := prompt(1, n)
		root, err := s.c.Begin(ctx, shared, hicache.SequenceOptions{})
		if err != nil {
			t.Fatal(err)
		}
		step, err := s.c.Step(ctx, 0, []hicache.Growth{{Sequence: root}}, false)
		if err != nil {
			t.Fatal(err)
		}
		s.write("", shared, s.stepTables(step, 0), 0, n/pageTokens)
		tail := s.stepTables(step, 0)
		for p := range s.c.Pools() { // the rows of the two tokens that are there
			copy(s.c.PageBytes(p, tail(p)[n/pageTokens]), "the tail page")
		}
		step.Close()
		batch := []*decoder{{seq: root, tokens: append(shared[:n:n], prompt(50, 40)...)}}
		for i := range 3 {
			child, err := batch[i].seq.Fork()
			if err != nil {
				t.Fatal(err)
			}
			batch = append(batch, &decoder{seq: child, tokens: append(shared[:n:n], prompt(51+i, 40)...)})
		}
		before, _ := s.c.PoolStats(hicache.TierDevice, 0)
		if before.Live != 6 {
			t.Fatalf("%d pages for four sequences of one prompt, want 6", before.Live)
		}
		steps := s.newSteps(handedOn, len(batch))
		for round := range 13 {
			growth := make([]hicache.Growth, len(batch))
			for i, d := range batch {
				growth[i] = hicache.Growth{Sequence: d.seq, NewTokens: 1}
			}
			tables := steps.run(growth)
			for i, d := range batch {
				table := tables(i)
				if round == 0 {
					for p := range s.c.Pools() {
						if got := s.c.PageBytes(p, table(p)[n/pageTokens])[:13]; string(got) != "the tail page" && pools[p].Layout == hicache.LayerMajor {
							t.Fatalf("sequence %d, pool %d: the tail page holds %q", i, p, got)
						}
					}
				}
				whole := d.seq.Len() / pageTokens
				if low := max(3, (d.seq.Len()-13)/pageTokens); low < 5 { // A window's table begins with the window.
					s.check("shared pages", "", d.tokens, table, low, 5)
				}
				s.write("", d.tokens, table, 5, whole)
				d.done = whole
			}
			steps.done()
			for _, d := range batch {
				if err := d.seq.Append(d.tokens[d.seq.Len()-1]); err != nil {
					t.Fatal(err)
				}
			}
			if round == 6 {
				batch[1].seq.Abort()
				batch = append(batch[:1], batch[2:]...)
			}
		}
		steps.end()
		for _, d := range batch {
			if err := d.seq.Finish(); err != nil {
				t.Fatal(err)
			}
		}
		for _, d := range batch {
			s.run(d.tokens[:n+13])
		}
	})
}

// TestForkAndAbort: whoever ends last frees what is shared, in any order.
func TestForkAndAbort(t *testing.T) {
	for order := range 6 {
		s := open(t, hicache.Options{DeviceBytes: 64 * kib, Pools: windowPools()})
		a, err := s.c.Begin(ctx, prompt(1, 22), hicache.SequenceOptions{})
		if err != nil {
			t.Fatal(err)
		}
		b, err := a.Fork()
		if err != nil {
			t.Fatal(err)
		}
		c, err := b.Fork()
		if err != nil {
			t.Fatal(err)
		}
		list := []*hicache.Sequence{a, b, c}
		list[order%3].Abort()
		list = append(list[:order%3:order%3], list[order%3+1:]...)
		if order%2 == 0 {
			if err := s.c.Extend(ctx, []hicache.Growth{{Sequence: list[0], NewTokens: 5}}, false); err != nil {
				t.Fatal(err)
			}
		}
		list[order/3].Abort()
		list[1-order/3].Abort()
		s.quiet()
	}
}

// TestDecodeGivesWindowsBack: an answer holds the pages of its windows and a few more, however long it grows; its tables name no others.
func TestDecodeGivesWindowsBack(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, Pools: windowPools()})
	seq, err := s.c.Begin(ctx, prompt(1, 10), hicache.SequenceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer seq.Abort()
	for n := range 150 {
		step, err := s.c.Step(ctx, 0, []hicache.Growth{{Sequence: seq, NewTokens: 1}}, false)
		if err != nil {
			t.Fatal(err)
		}
		for p, pool := range s.c.Pools() {
			if pool.Role != hicache.SWA {
				continue
			}
			window := (pool.WindowTokens + pageTokens - 1) / pageTokens
			live := s.live(hicache.TierDevice, p)
			if live > window+6 {
				t.Fatalf("%d tokens: %d pages of %s, whose window has %d", seq.Len(), live, pool.Name, window)
			}
			named := 0
			table := s.stepTables(step, 0)(p)
			for i, id := range table {
				if !s.c.IsSink(p, id) {
					named++
				} else if i >= len(table)-window {
					t.Fatalf("%d tokens: page %d of %d has no window page in %s", seq.Len(), i, len(table), pool.Name)
				}
			}
			if named != live {
				t.Fatalf("step %d: the table of %s names %d pages of %d", n, pool.Name, named, live)
			}
		}
		if err := seq.Append(uint32(n)); err != nil {
			t.Fatal(err)
		}
		step.Close()
	}
}

// TestTablesNameHeldPagesAlone: a window page before the prefix's window is still the tree's and may go at any moment, so a table names the sink there.
func TestTablesNameHeldPagesAlone(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, Pools: windowPools()})
	tokens := prompt(1, 61)
	s.run(tokens)
	m := s.c.Match(tokens)
	defer m.Release()
	lease, err := s.c.Load(ctx, m, hicache.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	for p, pool := range s.c.Pools() {
		if pool.Role != hicache.SWA {
			continue
		}
		if n := s.live(hicache.TierDevice, p); n < 15 {
			t.Fatalf("%d pages of %s are left: the test is void", n, pool.Name)
		}
		window := (pool.WindowTokens + pageTokens - 1) / pageTokens
		for i, id := range lease.PoolKernelIDs(p) {
			if held := i >= 15-window; s.c.IsSink(p, id) == held {
				t.Errorf("page %d of %s: held %v, kernel id %d", i, pool.Name, held, id)
			}
		}
	}
}

// TestSuspendBacksUp: a suspended sequence is on the host to its last page, whatever the write policy, and comes back in its own namespace.
func TestSuspendBacksUp(t *testing.T) {
	for _, policy := range []hicache.WritePolicy{hicache.WriteThrough, hicache.WriteThroughSelective, hicache.WriteBack} {
		t.Run(policy.String(), func(t *testing.T) {
			s := open(t, hicache.Options{DeviceBytes: 32 * kib, HostBytes: 64 * kib, Pools: windowPools(), WritePolicy: policy})
			a := prompt(1, 40) // ten whole pages
			seq, err := s.c.Begin(ctx, a, hicache.SequenceOptions{Namespace: hicache.Salt("tenant")})
			if err != nil {
				t.Fatal(err)
			}
			step, err := s.c.Step(ctx, 0, []hicache.Growth{{Sequence: seq}}, false)
			if err != nil {
				t.Fatal(err)
			}
			s.write("tenant", a, s.stepTables(step, 0), 0, 10)
			step.Close()
			if err := seq.Suspend(ctx); err != nil {
				t.Fatal(err)
			}
			s.flush()
			if n := s.live(hicache.TierHost, 0); n != 10 {
				t.Fatalf("%d pages on the host, want 10", n)
			}
			s.evict(hicache.TierDevice)
			if err := seq.Resume(ctx, hicache.SequenceOptions{}); err != nil {
				t.Fatal(err)
			}
			if seq.Prefix() != 40 {
				t.Fatalf("%d tokens came back, want 40", seq.Prefix())
			}
			seq.Abort()
		})
	}
}

// TestSuspend is G57: a retracted sequence comes back in other pages with the same content, and what others share of it is untouched.
func TestSuspend(t *testing.T) {
	for _, policy := range []hicache.WritePolicy{hicache.WriteThrough, hicache.WriteBack} {
		for name, pools := range geometries() {
			t.Run(name+"/"+policy.String(), func(t *testing.T) {
				s := open(t, hicache.Options{DeviceBytes: 24 * kib, HostBytes: 512 * kib, Pools: pools, WritePolicy: policy})
				a := prompt(1, 42)
				s.run(a[:17])
				seq, err := s.c.Begin(ctx, a, hicache.SequenceOptions{})
				if err != nil {
					t.Fatal(err)
				}
				step, err := s.c.Step(ctx, 0, []hicache.Growth{{Sequence: seq}}, false)
				if err != nil {
					t.Fatal(err)
				}
				s.write("", a, s.stepTables(step, 0), seq.Prefix()/pageTokens, 10)
				step.Close()
				if err := seq.Suspend(ctx); err != nil {
					t.Fatal(err)
				}
				if err := seq.Suspend(ctx); err != nil {
					t.Fatal(err)
				}
				if err := seq.Append(1); !errors.Is(err, hicache.ErrStale) {
					t.Fatalf("append to a suspended sequence: %v", err)
				}
				s.quiet()
				for i := range 20 {
					s.run(prompt(100+i, 60)) // reuses the rows
				}
				if err := seq.Resume(ctx, hicache.SequenceOptions{Wait: true}); err != nil {
					t.Fatal(err)
				}
				if seq.Prefix() != 40 {
					t.Fatalf("%d tokens came back", seq.Prefix())
				}
				step, err = s.c.Step(ctx, 0, []hicache.Growth{{Sequence: seq, NewTokens: 1}}, false)
				if err != nil {
					t.Fatal(err)
				}
				for _, err := range step.Layers() {
					if err != nil {
						t.Fatal(err)
					}
				}
				s.check("resumed", "", a, s.stepTables(step, 0), 0, 10)
				step.Close()
				seq.Abort()
				s.run(a)
			})
		}
	}
}

// TestBatchRefuses: a step that is refused leaves no step open and the sequences as they were.
func TestBatchRefuses(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 16 * kib, Pools: fullPools()})
	seq, err := s.c.Begin(ctx, prompt(1, 9), hicache.SequenceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	steps := s.newSteps(true, 1)
	one := []hicache.Growth{{Sequence: seq, NewTokens: 1}}
	stats := func() (live, pinned int64) {
		p, err := s.c.PoolStats(hicache.TierDevice, 0)
		if err != nil {
			t.Fatal(err)
		}
		return int64(p.Live), int64(p.Pinned)
	}
	for name, try := range map[string]func() error{
		"room": func() error {
			return steps.batch.Step(ctx, []hicache.Growth{{Sequence: seq, NewTokens: 1 << 12}}, []hicache.BatchTable{{Pool: 0, RowPages: 2048, IDs: make([]ids.KernelID, 2048)}}, false)
		},
		"short": func() error {
			return steps.batch.Step(ctx, one, []hicache.BatchTable{{Pool: 0, RowPages: 1, IDs: steps.tables[0].IDs}}, false)
		},
		"no slice": func() error { return steps.batch.Step(ctx, one, []hicache.BatchTable{{Pool: 0, RowPages: 8}}, false) },
		"pool":     func() error { return steps.batch.Step(ctx, one, []hicache.BatchTable{{Pool: 3, RowPages: 8}}, false) },
		"tokens": func() error {
			return steps.batch.Step(ctx, []hicache.Growth{{Sequence: seq, NewTokens: -1}}, nil, false)
		},
	} {
		steps.run([]hicache.Growth{{Sequence: seq}})
		live, pinned := stats()
		if pinned == 0 {
			t.Errorf("%s: an open step pins nothing", name)
		}
		want := hicache.ErrInvalid
		if name == "room" {
			want = hicache.ErrNoCapacity
		}
		if err := try(); !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
		if after, pinned := stats(); after != live || pinned != 0 || seq.Len() != 9 {
			t.Errorf("%s: %d live pages, %d before; %d pinned; %d tokens", name, after, live, pinned, seq.Len())
		}
	}
	steps.run(one)
	seq.Abort() // Its pages are quarantined until the step ends.
	if err := s.c.Close(); !errors.Is(err, hicache.ErrBusy) {
		t.Errorf("closed with an open batch: %v", err)
	}
	steps.end()
}
