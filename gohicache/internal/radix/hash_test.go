package radix

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"testing"

	"github.com/hicache/hicache/ffi/words"
)

// E.10: the vectors of the hash chain, and G61's namespaces.
func TestHashVectors(t *testing.T) {
	lora := Namespace{LoRA: Some("lora-A")}
	text := func(h *Hash) string { return hex.EncodeToString(h[:]) }
	chain := HashPages(nil, []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 4, nil)
	seed := NamespaceSeed(lora)
	inLora := HashPages(seed, []uint32{1, 2, 3, 4}, 4, nil)
	page := func(form TokenForm, words ...uint32) Hash {
		return newFixture(t, Config{PageTokens: 4, Tokens: form, Pools: []PoolConfig{{Role: Full}}}).tree.HashPages(nil, words, nil)[0]
	}
	wide := page(Wide, 1, 0, 2, 0, 3, 0, 0, 2)
	narrow := page(Wide, 1, 0, 2, 0, 3, 0, 4, 0)
	bigram := page(Bigram, 1, 2, 2, 3, 3, 4, 4, 5)
	for _, c := range []struct {
		got  *Hash
		want string
	}{
		{&chain[0], "cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72"},
		{&chain[1], "4ebfa8a1f3c341517621838c6e1b9aa350307e3f00b3cbd1a07ef740f54396d6"},
		{&chain[2], "6dc571acd2ccb712fb7a8b13854443ded3fba409ddd9aa84849d3840c1547ca3"},
		{seed, "19091e73108efe79001c7f32d5a406346de6d857c582ce3b77311ba43e5ab43a"},
		{&inLora[0], "ca5912b2b40c1105611683a8680b486156fbbcdf3b6ff5d012d0a00740966a0a"},
		{&wide, "a2ad9fe92a425d06aaaf12e074281aa24f51ecd05ff669e37f20e537b82238a1"},
		{&narrow, "cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72"},
		{&bigram, "f721fe42aac11dcbfd1a17f24cc5765a0d5b6bc264d1c0b6581d775a7344c11f"},
	} {
		if text(c.got) != c.want {
			t.Errorf("got %s, want %s", text(c.got), c.want)
		}
	}
	if chain[0].EventID() != -3488128144981237669 {
		t.Errorf("event id %d", chain[0].EventID())
	}
	if NamespaceSeed(Namespace{}) != nil || text(NamespaceSeed(Namespace{LoRA: Some("")})) == text(NamespaceSeed(Namespace{Salt: Some("")})) {
		t.Error("absent and empty labels share a seed")
	}
}

// coldHashes computes hashes from words by the rules alone.
func coldHashes(cfg Config, prior *Hash, words []uint32) (out []Hash) {
	per := cfg.PageTokens
	if cfg.Tokens != Narrow {
		per *= 2
	}
	for ; len(words) >= per; words = words[per:] {
		h := sha256.New()
		if prior != nil {
			h.Write(prior[:])
		}
		wide := false
		for i := 1; cfg.Tokens == Wide && i < per; i += 2 {
			wide = wide || words[i] > 0
		}
		if wide {
			h.Write([]byte{0xff})
		}
		for i, w := range words[:per] {
			if cfg.Tokens != Wide || wide || i%2 == 0 {
				h.Write([]byte{byte(w), byte(w >> 8), byte(w >> 16), byte(w >> 24)})
			}
		}
		out = append(out, Hash(h.Sum(nil)))
		prior = &out[len(out)-1]
	}
	return out
}

// C76: a tree that grew without hashes gives the chain of a cold computation later.
func TestHashesLater(t *testing.T) {
	f := newFixture(t, fullOnly(4))
	f.insert(InsertRequest{Tokens: seq(0, 16)})
	f.insert(InsertRequest{Tokens: append(seq(0, 8), 1, 1, 1, 1)})
	r := f.insert(InsertRequest{Tokens: seq(0, 32), Pin: true})
	for range 2 {
		got, err := f.tree.Hashes(r.Pin, 0, 8, nil)
		if err != nil || !slices.Equal(got, HashPages(nil, seq(0, 32), 4, nil)) {
			t.Fatalf("%v %v", got, err)
		}
		f.verify()
	}
	if _, err := f.tree.Hashes(r.Pin, 0, 9, nil); err != ErrArgument {
		t.Errorf("hashes beyond the pin: %v", err)
	}
	f.tree.Release(r.Pin)
	if _, err := f.tree.Hashes(r.Pin, 0, 1, nil); err != ErrStale {
		t.Errorf("hashes of a released pin: %v", err)
	}
}

func TestPut(t *testing.T) {
	tokens := seq(1<<20, 1<<20+19)
	want, got := make([]byte, 4*len(tokens)), make([]byte, 4*len(tokens))
	for i, v := range tokens {
		binary.LittleEndian.PutUint32(want[4*i:], v)
	}
	for _, native := range []bool{false, words.LittleEndian} {
		clear(got)
		if putAs(got, tokens, native); !bytes.Equal(got, want) {
			t.Errorf("native %v: %x, want %x", native, got, want)
		}
	}
}
