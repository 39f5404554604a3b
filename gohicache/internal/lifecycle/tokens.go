package lifecycle

import "github.com/hicache/hicache/gohicache/internal/radix"

// Tokens come as words: one a token, two where they are 64 bits wide. The tree's keys are words too; only bigrams are made of other words than
// the tokens themselves.

// countOf is the number of tokens in words.
func (c *Core) countOf(words []uint32) int {
	if c.cfg.Tokens == radix.Wide {
		return len(words) / 2
	}
	return len(words)
}

// keyOf makes the tree's words of tokens; the same slice except for bigrams.
func (c *Core) keyOf(words []uint32) []uint32 {
	if c.cfg.Tokens != radix.Bigram || len(words) == 0 {
		return words
	}
	key := make([]uint32, 0, 2*(len(words)-1))
	for i, next := range words[1:] {
		key = append(key, words[i], next)
	}
	return key
}

// pageWords is the number of words in the key of a page.
func (c *Core) pageWords() int { return c.cfg.PageTokens * c.cfg.Tokens.Words() }
