package lifecycle

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/gohicache/internal/radix"
	"github.com/hicache/hicache/gohicache/storage"
)

// keyFormat changes when the meaning of stored bytes does.
const keyFormat = 1

// keychain makes storage keys: a page's key names every token up to the page's end, the namespace, the model, and how its bytes lie.
type keychain struct {
	digest [][sha256.Size]byte // by pool
}

// newKeychain digests what, besides the tokens, decides about a page's bytes.
func newKeychain(cfg *Config, forms []form) *keychain {
	k := &keychain{digest: make([][sha256.Size]byte, len(cfg.Pools))}
	for i, p := range cfg.Pools {
		var b []byte
		text := func(s string) {
			b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
			b = append(b, s...)
		}
		number := func(v uint64) { b = binary.LittleEndian.AppendUint64(b, v) }
		text("hicache page")
		number(keyFormat)
		text(cfg.KeyFields.Model)
		text(cfg.KeyFields.DType)
		number(uint64(cfg.KeyFields.Rank))
		number(uint64(cfg.KeyFields.Ranks))
		number(uint64(cfg.PageTokens))
		text(p.Name)
		number(uint64(p.Role))
		number(uint64(p.Layout))
		number(p.KRowBytes)
		number(p.VRowBytes)
		number(p.PageBytes)
		number(uint64(len(p.Layers)))
		for _, l := range p.Layers {
			number(uint64(l))
		}
		if cfg.Tokens == radix.Bigram { // its KV depends on the next token, too
			text("bigram")
		}
		if f := forms[i]; f.order != ffi.HostLayoutEnvelope {
			text("objects")
			number(uint64(f.order))
			number(uint64(len(f.parts)))
			number(uint64(p.Heads))
		}
		k.digest[i] = sha256.Sum256(b)
	}
	return k
}

// key is the key of the page with that chain hash in a pool.
func (k *keychain) key(pool int, hash radix.Hash) storage.Key {
	var b [2 * sha256.Size]byte
	copy(b[:], hash[:])
	copy(b[sha256.Size:], k.digest[pool][:])
	return sha256.Sum256(b[:])
}
