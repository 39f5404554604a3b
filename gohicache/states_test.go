package hicache_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"iter"
	"math/rand/v2"
	"testing"

	"github.com/hicache/hicache/ffi/ids"
	hicache "github.com/hicache/hicache/gohicache"
)

func statePools() []hicache.PoolOptions {
	return []hicache.PoolOptions{
		{Role: hicache.Full, Layers: []int{0, 2}, LayerBytes: 64},
		{Name: "state", Role: hicache.State, Layers: []int{1}, KRowBytes: 32},
		{Name: "conv", Role: hicache.State, Layers: []int{3}, KRowBytes: 32},
	}
}

// stateAfter is what the state page of a pool must hold after tokens; all zero means "anew".
func stateAfter(tokens []uint32, pool int) []byte {
	h := sha256.New()
	_ = binary.Write(h, binary.LittleEndian, uint32(pool))
	for _, t := range tokens {
		_ = binary.Write(h, binary.LittleEndian, t)
	}
	return h.Sum(nil)
}

// answer is a sequence with recurrent states, and how many of its tokens its states have seen.
type answer struct {
	seq    *hicache.Sequence
	tokens []uint32
	seen   int
}

// stateServer computes recurrent states as a server would, and checks every state that it goes on from.
type stateServer struct {
	*server
	batch *hicache.Batch // computes in its steps, if it has one
}

// open opens a step and gives what finds the own state page of a sequence in it.
func (s stateServer) open(growth []hicache.Growth) (openStep, func(i, pool int) ids.KernelID, error) {
	if s.batch == nil {
		step, err := s.c.Step(ctx, 0, growth, false)
		return step, func(i, pool int) ids.KernelID { return s.stepTables(step, i)(pool)[0] }, err
	}
	return s.batch, func(i, pool int) ids.KernelID {
		id, ok := s.batch.StatePage(i, pool)
		if !ok {
			s.t.Fatalf("sequence %d has no state page in pool %d", i, pool)
		}
		return id
	}, s.batch.Step(ctx, growth, nil, false)
}

// step gives every sequence of the batch one new token, or computes what its prompt lacks if it is new.
func (s stateServer) step(batch []*answer, next func() uint32) error {
	growth := make([]hicache.Growth, len(batch))
	for i, a := range batch {
		growth[i] = hicache.Growth{Sequence: a.seq}
		if a.seen == len(a.tokens) {
			growth[i].NewTokens = 1
		}
	}
	step, own, err := s.open(growth)
	if err != nil {
		return err
	}
	defer step.Close()
	for layer, err := range step.Layers() {
		if err != nil {
			s.t.Fatalf("layer %d: %v", layer, err)
		}
	}
	for pool := 1; pool <= 2; pool++ {
		for i, a := range batch { // all copies before any write
			if source, ok := step.StateSource(i, pool); ok {
				copy(s.c.PageBytes(pool, own(i, pool)), s.c.PageBytes(pool, source))
			} else if a.seen == -1 && a.seq.Prefix() > 0 {
				s.t.Fatal("a prefix without a state to go on from")
			}
		}
	}
	for i, a := range batch {
		seen := a.seen
		if seen == -1 {
			seen = a.seq.Prefix()
		}
		if growth[i].NewTokens == 1 {
			a.tokens = append(a.tokens[:len(a.tokens):len(a.tokens)], next())
			if err := a.seq.Append(a.tokens[len(a.tokens)-1]); err != nil {
				s.t.Fatal(err)
			}
		}
		for pool := 1; pool <= 2; pool++ {
			id := own(i, pool)
			if s.c.IsSink(pool, id) {
				s.t.Fatalf("a sequence of %d tokens writes without a state page", len(a.tokens))
			}
			state := s.c.PageBytes(pool, id)[:32]
			if seen > 0 && !bytes.Equal(state, stateAfter(a.tokens[:seen], pool)) {
				s.t.Fatalf("pool %d: the state is not that of the %d tokens before", pool, seen)
			}
			copy(state, stateAfter(a.tokens, pool))
		}
		a.seen = len(a.tokens)
	}
	return nil
}

// TestHostStateStaysForItsMatch (G53): the state that a match goes on from stays on the host until it is loaded, whatever is given up there.
func TestHostStateStaysForItsMatch(t *testing.T) {
	s := stateServer{server: open(t, hicache.Options{DeviceBytes: 16 * kib, HostBytes: 16 * kib, Pools: statePools()})}
	p := prompt(1, 2*pageTokens)
	seq, err := s.c.Begin(ctx, p, hicache.SequenceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.step([]*answer{{seq, p, -1}}, nil); err != nil {
		t.Fatal(err)
	}
	if err := seq.Finish(); err != nil {
		t.Fatal(err)
	}
	s.flush()
	s.evict(hicache.TierDevice)
	m := s.c.MatchWith(p, hicache.MatchOptions{FullHit: true})
	defer m.Release()
	s.evict(hicache.TierHost)
	lease, err := s.c.Load(ctx, m, hicache.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	if err := lease.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	wantHit(t, lease.Hit(), 0, len(p), 0)
	for pool := 1; pool <= 2; pool++ {
		if id, ok := lease.StateSource(pool); !ok || !bytes.Equal(s.c.PageBytes(pool, id)[:32], stateAfter(p, pool)) {
			t.Errorf("pool %d: the state is not that of the prefix (%v)", pool, ok)
		}
	}
}

// TestStepThatWritesNothing: a step without new tokens over a sequence whose state the tree has keeps what the sequence goes on from, for itself and for
// its forks.
func TestStepThatWritesNothing(t *testing.T) {
	s := stateServer{server: open(t, hicache.Options{DeviceBytes: 8 * kib, HostBytes: 8 * kib, Pools: statePools()})}
	p := prompt(1, 2*pageTokens)
	seq, err := s.c.Begin(ctx, p, hicache.SequenceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer seq.Abort()
	parent := &answer{seq, p, -1}
	if err := s.step([]*answer{parent}, nil); err != nil {
		t.Fatal(err)
	}
	if err := seq.Publish(0); err != nil { // its state is a checkpoint now
		t.Fatal(err)
	}
	idle := func() {
		t.Helper()
		batch := s.c.NewBatch(0)
		defer batch.Close()
		for range 2 {
			if err := batch.Step(ctx, []hicache.Growth{{Sequence: seq}}, nil, false); err != nil {
				t.Fatal(err)
			}
			if _, ok := batch.StateSource(0, 1); ok {
				t.Error("a source, and no state page to copy it to")
			}
			if _, ok := batch.StatePage(0, 1); ok {
				t.Error("a state page to write, in a step that writes nothing")
			}
		}
	}
	idle()
	child, err := seq.Fork()
	if err != nil {
		t.Fatal(err)
	}
	defer child.Abort()
	both := []*answer{parent, {child, p, len(p)}}
	idle()
	for i := range uint32(2) {
		if err := s.step(both, func() uint32 { return i }); err != nil {
			t.Fatal(err)
		}
	}
}

// TestForkWithStates forks, steps, publishes, suspends and ends sequences with recurrent states at random, over a device too small for them: each
// always goes on from its own state, whoever writes first, and checkpoints are those of their prefix.
func TestForkWithStates(t *testing.T) {
	forks, prefixes, refused := 0, 0, 0
	for seed := range uint64(4) {
		s := stateServer{server: open(t, hicache.Options{DeviceBytes: 8 * kib, HostBytes: 8 * kib, Pools: statePools()})}
		if seed%2 == 1 {
			s.batch = s.c.NewBatch(0)
		}
		r := rand.New(rand.NewPCG(seed, 6))
		var open []*answer
		end := func(i int) {
			if r.IntN(2) == 0 {
				open[i].seq.Abort()
			} else if err := open[i].seq.Finish(); err != nil {
				t.Fatal(err)
			}
			open = append(open[:i], open[i+1:]...)
		}
		for range 3000 {
			switch k := r.IntN(12); {
			case k < 2 && len(open) < 6:
				p := prompt(r.IntN(3), 2+r.IntN(12))
				seq, err := s.c.Begin(ctx, p, hicache.SequenceOptions{})
				if errors.Is(err, hicache.ErrNoCapacity) {
					refused++
					continue
				} else if err != nil {
					t.Fatal(err)
				}
				if seq.Prefix() > 0 {
					prefixes++
				}
				open = append(open, &answer{seq, p, -1})
			case len(open) == 0:
			case k < 4 && len(open) < 8:
				a := open[r.IntN(len(open))]
				child, err := a.seq.Fork()
				if err != nil {
					t.Fatal(err)
				}
				forks++
				open = append(open, &answer{child, a.tokens, a.seen})
				if a.seen == -1 { // neither has computed its prompt
					child.Abort()
					open = open[:len(open)-1]
				}
			case k == 4:
				end(r.IntN(len(open)))
			case k == 5:
				if a := open[r.IntN(len(open))]; a.seen >= 0 {
					if err := a.seq.Publish(0); err != nil {
						t.Fatal(err)
					}
				}
			case k == 6:
				if _, err := s.c.Evict(hicache.TierDevice, r.IntN(3), 1+r.IntN(3)); err != nil {
					t.Fatal(err)
				}
			default:
				r.Shuffle(len(open), func(i, j int) { open[i], open[j] = open[j], open[i] })
				err := s.step(open[:1+r.IntN(len(open))], func() uint32 { return r.Uint32N(3) })
				if errors.Is(err, hicache.ErrNoCapacity) || errors.Is(err, hicache.ErrInfeasible) {
					refused++
					end(r.IntN(len(open)))
				} else if err != nil {
					t.Fatal(err)
				}
			}
			if r.IntN(50) == 0 {
				if err := s.c.Verify(); err != nil {
					t.Fatal(err)
				}
			}
		}
		for len(open) > 0 {
			end(0)
		}
		s.flush()
	}
	if forks < 100 || prefixes < 10 || refused == 0 {
		t.Errorf("%d forks, %d prefixes, %d refusals: the test shows too little", forks, prefixes, refused)
	}
}

// TestForkedStateIsCopiedOnWrite: forks share one state page until they write; the last one keeps it.
func TestForkedStateIsCopiedOnWrite(t *testing.T) {
	s := stateServer{server: open(t, hicache.Options{DeviceBytes: 16 * kib, Pools: statePools()})}
	seq, err := s.c.Begin(ctx, prompt(1, 6), hicache.SequenceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a := &answer{seq, prompt(1, 6), -1}
	token := func() uint32 { return 7 }
	if err := s.step([]*answer{a}, token); err != nil {
		t.Fatal(err)
	}
	var forks []*answer
	for range 3 {
		child, err := seq.Fork()
		if err != nil {
			t.Fatal(err)
		}
		forks = append(forks, &answer{child, a.tokens, a.seen})
	}
	if n := s.live(hicache.TierDevice, 1); n != 1 {
		t.Fatalf("%d state pages for four forks that have not written", n)
	}
	for i, f := range forks {
		if err := s.step([]*answer{f}, token); err != nil {
			t.Fatal(err)
		}
		if n := s.live(hicache.TierDevice, 1); n != 2+i {
			t.Fatalf("%d state pages after %d forks have written", n, i+1)
		}
	}
	for _, f := range forks {
		f.seq.Abort()
	}
	if err := s.step([]*answer{a}, token); err != nil {
		t.Fatal(err)
	}
	if n := s.live(hicache.TierDevice, 1); n != 1 {
		t.Fatalf("%d state pages for the last one", n)
	}
	seq.Abort()
	if n := s.live(hicache.TierDevice, 1); n != 0 {
		t.Fatalf("%d state pages for nobody", n)
	}
}

// TestStateSourceAfterAFailedStep: a step whose layers do not arrive, because the load of one sequence fails, computes nothing for the others either:
// they have the state that they go on from in the step after it.
func TestStateSourceAfterAFailedStep(t *testing.T) {
	t.Run("step", func(t *testing.T) {
		stateSourceAfterAFailedStep(t, func(c *hicache.Cache, growth []hicache.Growth) (openStep, error) {
			return c.Step(ctx, 0, growth, false)
		})
	})
	t.Run("batch", func(t *testing.T) {
		stateSourceAfterAFailedStep(t, func(c *hicache.Cache, growth []hicache.Growth) (openStep, error) {
			b := c.NewBatch(0)
			return b, b.Step(ctx, growth, nil, false)
		})
	})
}

// openStep is a step, or a batch in one.
type openStep interface {
	StateSource(i, pool int) (ids.KernelID, bool)
	Layers() iter.Seq2[int, error]
	Close()
}

func stateSourceAfterAFailedStep(t *testing.T, stepOver func(*hicache.Cache, []hicache.Growth) (openStep, error)) {
	s := stateServer{server: open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: statePools(), Faults: &hicache.FaultOptions{Seed: 1}})}
	token := func() uint32 { return 7 }
	begin := func(tokens []uint32) *answer {
		t.Helper()
		seq, err := s.c.Begin(ctx, tokens, hicache.SequenceOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return &answer{seq, tokens, -1}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	hosted := begin(prompt(2, 8))
	must(s.step([]*answer{hosted}, token))
	must(hosted.seq.Finish())
	s.flush()
	s.evict(hicache.TierDevice)

	parent := begin(prompt(1, 6))
	must(s.step([]*answer{parent}, token))
	seq, err := parent.seq.Fork()
	must(err)
	child := &answer{seq, parent.tokens, parent.seen}

	must(s.c.HoldTransfers(true, 1))
	broken := begin(prompt(2, 9))
	if broken.seq.Prefix() != 8 {
		t.Fatalf("a prefix of %d tokens, want 8 from the host", broken.seq.Prefix())
	}
	step, err := stepOver(s.c, []hicache.Growth{{Sequence: child.seq, NewTokens: 1}, {Sequence: broken.seq}})
	must(err)
	if _, ok := step.StateSource(0, 1); !ok {
		t.Error("the fork has no state to go on from in its first step")
	}
	must(s.c.HoldTransfers(false, 0))
	var failed error
	for _, failed = range step.Layers() {
		if failed != nil {
			break
		}
	}
	if !errors.Is(failed, hicache.ErrTransfer) {
		t.Fatalf("the layers of a failed load gave %v", failed)
	}
	step.Close()
	broken.seq.Abort()
	must(s.step([]*answer{child}, token)) // Checks the state that it goes on from.
	child.seq.Abort()
	parent.seq.Abort()
}
