package hicache

import (
	"context"
	"fmt"
	"math"

	"github.com/hicache/hicache/gohicache/internal/lifecycle"
)

// TokenForm says how wide the token ids of a cache are, and what its pages are keyed by.
type TokenForm uint8

const (
	// Tokens32 are ids below 2^32: one word a token.
	Tokens32 TokenForm = iota
	// Tokens64 are ids of 64 bits, for servers that fold more than a vocabulary into them. They cost four bytes more a token. Pages whose ids
	// all fit 32 bits have the same keys in storage as with Tokens32.
	Tokens64
	// TokenBigrams are for the pages of speculative drafts (EAGLE), whose KV at a position depends on the token there and on the next: pages are
	// keyed by pairs of neighbours. A page can be published, and matched, once the token after its last one is known, so n tokens have (n-1)/
	// PageTokens whole pages. Token ids are of 32 bits.
	TokenBigrams
)

// String names the form: "32", "64", "bigrams".
func (f TokenForm) String() string {
	switch f {
	case Tokens32:
		return "32"
	case Tokens64:
		return "64"
	case TokenBigrams:
		return "bigrams"
	}
	return fmt.Sprintf("tokens(%d)", uint8(f))
}

// words are tokens as the core takes them.
func (c *Cache) words(tokens []uint32) []uint32 {
	if c.opt.Tokens != Tokens64 {
		return tokens
	}
	out := make([]uint32, 0, 2*len(tokens))
	for _, t := range tokens {
		out = append(out, t, 0)
	}
	return out
}

// wideWords are tokens of 64 bits as the core takes them; an error names the first that does not fit.
func (c *Cache) wideWords(tokens []uint64) ([]uint32, *lifecycle.Error) {
	if c.opt.Tokens == Tokens64 {
		out := make([]uint32, 0, 2*len(tokens))
		for _, t := range tokens {
			out = append(out, uint32(t), uint32(t>>32))
		}
		return out, nil
	}
	out := make([]uint32, len(tokens))
	for i, t := range tokens {
		if t > math.MaxUint32 {
			return nil, lifecycle.Invalid("token %d is %d, which takes more than 32 bits: open the cache with Options.Tokens = Tokens64", i, t)
		}
		out[i] = uint32(t)
	}
	return out, nil
}

// MatchWide is MatchWith for token ids of 64 bits. A cache of another form takes those that fit 32 bits; for others the match is empty and its Err
// says which (ErrInvalid).
func (c *Cache) MatchWide(tokens []uint64, o MatchOptions) *Match {
	m := &Match{c: c}
	if words, err := c.wideWords(tokens); err != nil {
		c.core.MatchOfNone(&m.m, err)
	} else {
		c.core.MatchAs(&m.m, words, o.request())
	}
	return m
}

// InsertWide is Insert for token ids of 64 bits.
func (c *Cache) InsertWide(l *Lease, tokens []uint64) error {
	words, err := c.wideWords(tokens)
	if err != nil {
		return c.publicError("insert", err)
	}
	return c.insert(l, words)
}

// BeginWide is Begin for token ids of 64 bits.
func (c *Cache) BeginWide(ctx context.Context, prompt []uint64, o SequenceOptions) (*Sequence, error) {
	words, err := c.wideWords(prompt)
	if err != nil {
		return nil, c.publicError("begin", err)
	}
	return c.begin(ctx, words, o)
}

// AppendWide is Append for token ids of 64 bits.
func (s *Sequence) AppendWide(tokens ...uint64) error {
	words, err := s.c.wideWords(tokens)
	if err != nil {
		return s.c.publicError("append", err)
	}
	return s.c.publicErrorOrNil("append", s.s.Append(words))
}
