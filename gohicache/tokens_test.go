package hicache_test

import (
	"errors"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/events"
)

// serveWide is one request of 64-bit tokens from match to release.
func serveWide(t *testing.T, c *hicache.Cache, tokens []uint64) (prefix int) {
	t.Helper()
	m := c.MatchWide(tokens, hicache.MatchOptions{})
	defer m.Release()
	lease, err := c.Load(ctx, m, hicache.LoadOptions{Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	if lease.Tokens() != len(tokens) {
		t.Fatalf("a lease for %d of %d tokens", lease.Tokens(), len(tokens))
	}
	if err := c.InsertWide(lease, tokens); err != nil {
		t.Fatal(err)
	}
	return lease.Prefix()
}

// TestTokenForms matches random prompts of each form against a naive model: the longest prefix of whole pages that somebody published, where a
// page of bigrams counts once the token after it is known.
func TestTokenForms(t *testing.T) {
	for _, form := range []hicache.TokenForm{hicache.Tokens32, hicache.Tokens64, hicache.TokenBigrams} {
		t.Run(form.String(), func(t *testing.T) {
			s := open(t, hicache.Options{DeviceBytes: 1 << 20, HostBytes: 1 << 20, Pools: fullPools(), Tokens: form})
			r := rand.New(rand.NewPCG(uint64(form), 4))
			key := func(tokens []uint64, page int) (k string) {
				end := (page + 1) * pageTokens
				if form == hicache.TokenBigrams {
					end++
				}
				if end > len(tokens) {
					return ""
				}
				for _, v := range tokens[:end] {
					k += string(rune(v&3)) + string(rune(v>>32&3))
				}
				return k
			}
			published := map[string]bool{}
			for i := range 400 {
				tokens := make([]uint64, 1+r.IntN(40))
				for j := range tokens {
					if tokens[j] = uint64(r.IntN(8) / 7); form == hicache.Tokens64 {
						tokens[j] |= uint64(r.IntN(8)/7) << 32
					}
				}
				want := 0
				for p := 0; (p+1)*pageTokens < len(tokens) && published[key(tokens, p)]; p++ {
					want += pageTokens
				}
				if got := serveWide(t, s.c, tokens); got != want {
					t.Fatalf("request %d of %d tokens: prefix of %d, want %d", i, len(tokens), got, want)
				}
				for p := 0; key(tokens, p) != ""; p++ {
					published[key(tokens, p)] = true
				}
				if i%50 == 0 {
					if err := s.c.Verify(); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// TestWideTokensThroughAllTiers: ids beyond 2^32 survive device, host and storage; those that differ in the high half alone share nothing; and what
// fits 32 bits has the keys of a cache of 32 bits.
func TestWideTokensThroughAllTiers(t *testing.T) {
	store := newMemory()
	o := hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: windowPools(), Tokens: hicache.Tokens64, Storage: store}
	s := open(t, o)
	high, low := make([]uint64, 41), make([]uint64, 41)
	for i := range high {
		high[i], low[i] = uint64(i)|1<<40, uint64(i)
	}
	if n := serveWide(t, s.c, high); n != 0 {
		t.Fatalf("prefix of %d in an empty cache", n)
	}
	s.flush()
	if n := serveWide(t, s.c, low); n != 0 {
		t.Fatalf("tokens that differ in their high half share %d", n)
	}
	narrowed := make([]uint32, len(low))
	for i := range low {
		narrowed[i] = uint32(low[i])
	}
	same := s.c.Match(narrowed) // Tokens of 32 bits are those of 64 whose high half is 0.
	if same.Tokens() != 40 {
		t.Fatalf("%d tokens of 32 bits are found of what 64 bits published", same.Tokens())
	}
	same.Release()
	for _, tier := range []hicache.Tier{hicache.TierDevice, hicache.TierHost} {
		s.flush()
		s.evict(tier)
		if n := serveWide(t, s.c, high); n != 40 {
			t.Fatalf("prefix of %d after eviction from the %v", n, tier)
		}
	}
	s.flush()
	s.evict(hicache.TierDevice)
	s.evict(hicache.TierHost)
	if n := serveWide(t, s.c, high); n != 40 || s.c.Stats().HitTokens.Storage == 0 {
		t.Fatalf("prefix of %d from storage", n)
	}
	narrow := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: windowPools(), Storage: store})
	m := narrow.c.MatchWide(low, hicache.MatchOptions{})
	defer m.Release()
	lease, err := narrow.c.Load(ctx, m, hicache.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	if lease.Hit().Storage != 40 {
		t.Fatalf("a cache of 32 bits finds %+v of what one of 64 bits stored", lease.Hit())
	}
	wide := open(t, hicache.Options{DeviceBytes: 64 * kib, Pools: fullPools(), Tokens: hicache.Tokens64, Events: true})
	st := stream(t, wide.c, hicache.EventOptions{})
	next(t, st)
	serveWide(t, wide.c, high)
	if e := next(t, st).Events[0]; len(e.Tokens) != 0 || len(e.Wide) != 40 || e.Wide[3] != 3|1<<40 || e.Kind != events.Stored {
		t.Fatalf("event %+v", e)
	}
}

// TestBigrams: a page is published once the token after it is known, chunk by chunk and by decoding, and its keys are those of pairs.
func TestBigrams(t *testing.T) {
	a, b := newMemory(), newMemory()
	o := hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: fullPools(), Tokens: hicache.TokenBigrams, Storage: a}
	s := open(t, o)
	tokens := prompt(1, 40)
	seq, err := s.c.Begin(ctx, tokens[:8], hicache.SequenceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer seq.Abort()
	found := func(n int) int {
		m := s.c.MatchWith(tokens[:n], hicache.MatchOptions{FullHit: true})
		defer m.Release()
		return m.Tokens()
	}
	if err := seq.Publish(0); err != nil {
		t.Fatal(err)
	}
	if n := found(40); n != 4 {
		t.Fatalf("8 tokens published: %d found, want 4", n)
	}
	for n := 8; n < 21; n++ {
		step, err := s.c.Step(ctx, 0, []hicache.Growth{{Sequence: seq, NewTokens: 1}}, false)
		if err != nil {
			t.Fatal(err)
		}
		step.Close()
		if err := seq.Append(tokens[n]); err != nil {
			t.Fatal(err)
		}
		if err := seq.Publish(0); err != nil {
			t.Fatal(err)
		}
		if got, want := found(40), n/4*4; got != want {
			t.Fatalf("%d tokens published: %d found, want %d", n+1, got, want)
		}
	}
	if n := found(20); n != 16 {
		t.Errorf("a prompt of 20 tokens finds %d, want 16: its fifth page has no successor", n)
	}
	if err := seq.Publish(12); err != nil { // fewer than before: nothing to do
		t.Fatal(err)
	}
	other := append(append([]uint32(nil), tokens[:8]...), tokens[8]+1, tokens[9])
	m := s.c.Match(other)
	if m.Tokens() != 4 {
		t.Errorf("a page whose successor differs was matched: %d tokens", m.Tokens())
	}
	m.Release()
	s.flush()
	s.evict(hicache.TierDevice)
	seq.Abort()
	s.evict(hicache.TierDevice)
	s.evict(hicache.TierHost)
	m = s.c.Match(tokens[:21])
	lease, err := s.c.Load(ctx, m, hicache.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if hit := lease.Hit(); hit.Storage != 20 {
		t.Errorf("hit %+v", hit)
	}
	lease.Release()
	m.Release()
	o.Tokens, o.Storage = hicache.Tokens32, b
	plain := open(t, o)
	plain.run(tokens[:21])
	plain.flush()
	for k := range maps.Keys(b.keys()) {
		if a.keys()[k] {
			t.Fatal("pages of bigrams and of tokens share a key")
		}
	}
}

// TestTokensThatDoNotFit: ids of 2^32 and more are refused by a cache of 32 bits, by position, wherever tokens come in; nothing is lost.
func TestTokensThatDoNotFit(t *testing.T) {
	for _, form := range []hicache.TokenForm{hicache.Tokens32, hicache.TokenBigrams} {
		s := open(t, hicache.Options{DeviceBytes: 16 * kib, Pools: fullPools(), Tokens: form})
		bad := []uint64{1, 2, 3, 1 << 32, 5}
		says := func(err error) {
			t.Helper()
			if !errors.Is(err, hicache.ErrInvalid) || !strings.Contains(err.Error(), "token 3 is 4294967296") || !strings.Contains(err.Error(), "Tokens64") {
				t.Errorf("err %v", err)
			}
		}
		m := s.c.MatchWide(bad, hicache.MatchOptions{})
		says(m.Err())
		if m.Tokens() != 0 || m.Ready() != 0 {
			t.Error("a match of nothing has tokens")
		}
		_, err := s.c.Load(ctx, m, hicache.LoadOptions{})
		says(err)
		_ = m.Estimate(1)
		m.Release()
		_, err = s.c.BeginWide(ctx, bad, hicache.SequenceOptions{})
		says(err)
		seq, err := s.c.BeginWide(ctx, []uint64{1, 2, 3}, hicache.SequenceOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.c.Extend(ctx, []hicache.Growth{{Sequence: seq, NewTokens: 5}}, false); err != nil {
			t.Fatal(err)
		}
		says(seq.AppendWide(bad...))
		if err := seq.AppendWide(7, 8, 9); err != nil {
			t.Fatal(err)
		}
		if err := seq.Finish(); err != nil {
			t.Fatal(err)
		}
		good := s.c.Match([]uint32{1, 2, 3, 7, 8, 9})
		if good.Tokens() != 4 {
			t.Errorf("%d tokens", good.Tokens())
		}
		lease, err := s.c.Load(ctx, good, hicache.LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		says(s.c.InsertWide(lease, append([]uint64{1, 2, 3}, 1<<32)))
		lease.Release()
		good.Release()
	}
}
