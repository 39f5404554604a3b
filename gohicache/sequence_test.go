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

// TestDecodeBatch decodes a batch of sequences, some of one prompt, many steps; the generated pages are found afterwards, also the page that
// the last token filled (C47), on every tier.
func TestDecodeBatch(t *testing.T) {
	for name, pools := range geometries() {
		t.Run(name, func(t *testing.T) {
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
			for round := range 33 {
				growth := make([]hicache.Growth, len(batch))
				for i, d := range batch {
					growth[i] = hicache.Growth{Sequence: d.seq, NewTokens: 1}
				}
				step, err := s.c.Step(ctx, 0, growth, false)
				if err != nil {
					t.Fatal(err)
				}
				for i, d := range batch {
					table := s.stepTables(step, i)
					whole := d.seq.Len() / pageTokens
					s.check("own pages", "", d.tokens, table, max(0, d.done-2), d.done)
					s.write("", d.tokens, table, d.done, whole)
					d.done = whole
				}
				step.Close()
				step.Close()
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
