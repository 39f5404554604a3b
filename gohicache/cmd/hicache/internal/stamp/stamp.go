// Package stamp is the simulated forward pass: what it "computes" into a page is a function of (namespace, all tokens up to and including
// the page, pool, layer, K or V), so that a page at the wrong place, of another prefix, layer or age cannot look right. Every byte of
// every row is written and every byte is checked.
package stamp

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"
)

// Digest stands for a namespace and all tokens up to the end of a page: the chain Root(namespace), Next(…, page 0), Next(…, page 1), ….
type Digest uint64

// Root starts the chain of a namespace.
func Root(namespace string) Digest { return Digest(xxh3.HashStringSeed(namespace, 0x6e616d657370)) }

// Next extends the chain by the tokens of one page (or of a page's written part).
func Next(d Digest, tokens []uint32) Digest {
	var buf [1024]byte
	h := uint64(d)
	for len(tokens) > 0 {
		n := min(len(tokens), len(buf)/4)
		for i, t := range tokens[:n] {
			binary.LittleEndian.PutUint32(buf[4*i:], t)
		}
		h = xxh3.HashSeed(buf[:4*n], h)
		tokens = tokens[n:]
	}
	return Digest(h)
}

// Layout is where the rows of one pool's page are: the K row of token t in the pool's l-th layer is at l·LayerStride + t·TokenStride of the
// page, and its V row VOffset behind. Rows are multiples of 8 bytes; VRowBytes is 0 where there is no V.
type Layout struct {
	Pool        string
	Layers      []int // global layer ids
	PageTokens  int
	KRowBytes   int
	VRowBytes   int
	LayerStride int
	TokenStride int
	VOffset     int
}

// LayerMajor and TokenMajor are the two envelope layouts with these rows.
func LayerMajor(pool string, layers []int, pageTokens, kRowBytes, vRowBytes int) Layout {
	return Layout{Pool: pool, Layers: layers, PageTokens: pageTokens, KRowBytes: kRowBytes, VRowBytes: vRowBytes,
		LayerStride: pageTokens * (kRowBytes + vRowBytes), TokenStride: kRowBytes, VOffset: pageTokens * kRowBytes}
}

// TokenMajor puts all layers of a token beside each other.
func TokenMajor(pool string, layers []int, pageTokens, kRowBytes, vRowBytes int) Layout {
	row := kRowBytes + vRowBytes
	return Layout{Pool: pool, Layers: layers, PageTokens: pageTokens, KRowBytes: kRowBytes, VRowBytes: vRowBytes,
		LayerStride: row, TokenStride: row * len(layers), VOffset: kRowBytes}
}

// Stamper writes and checks the pages of one pool. It holds no state between calls and is safe for many goroutines.
type Stamper struct {
	layout  Layout
	salts   []uint64 // two a layer: K, V
	tagSalt uint64
}

// New makes the stamper of a pool.
func New(l Layout) (*Stamper, error) {
	if len(l.Layers) == 0 || l.PageTokens < 1 || l.KRowBytes < 8 || l.KRowBytes%8 != 0 || l.VRowBytes%8 != 0 || l.VRowBytes < 0 {
		return nil, fmt.Errorf("stamp: pool %q: %d layers, %d tokens, rows of %d and %d bytes", l.Pool, len(l.Layers), l.PageTokens, l.KRowBytes, l.VRowBytes)
	}
	s := &Stamper{layout: l, salts: make([]uint64, 2*len(l.Layers)), tagSalt: xxh3.HashStringSeed(l.Pool, 0x746167)}
	for i, id := range l.Layers {
		for part := range 2 {
			s.salts[2*i+part] = xxh3.HashString(fmt.Sprintf("%s\x00%d\x00%d", l.Pool, id, part))
		}
	}
	return s, nil
}

// Layout returns where the rows are.
func (s *Stamper) Layout() *Layout { return &s.layout }

// Tag is the 8 bytes that stand for a whole page on a backend without bytes. It is never 0.
func (s *Stamper) Tag(d Digest) uint64 { return mix(uint64(d)^s.tagSalt) | 1 }

// Salts are what the seeds of the pool's layers are made of, two a layer (K, V): for a device that writes and checks stamps itself.
func (s *Stamper) Salts() []uint64 { return s.salts }

// BytesPerToken is what one token takes in all layers: the bytes written, and checked, for each token.
func (s *Stamper) BytesPerToken() int {
	return len(s.layout.Layers) * (s.layout.KRowBytes + s.layout.VRowBytes)
}

// Write writes the first `tokens` rows of all layers of the page.
func (s *Stamper) Write(page []byte, d Digest, tokens int) {
	for layer := range s.layout.Layers {
		s.WriteLayer(page, layer, d, tokens)
	}
}

// WriteLayer writes the first `tokens` rows of the pool's layer-th layer (an index, not a global id).
func (s *Stamper) WriteLayer(page []byte, layer int, d Digest, tokens int) {
	for part := range 2 {
		r, seed := s.rows(layer, part), s.seed(layer, part, d)
		if r.packed() {
			fill(page[r.start:r.start+tokens*r.bytes], seed, 0)
			continue
		}
		for t := range tokens {
			fill(page[r.at(t):r.at(t)+r.bytes], seed, t*r.bytes/8)
		}
	}
}

// Verify checks the first `tokens` rows of all layers and returns the first mismatch, nil if there is none.
func (s *Stamper) Verify(page []byte, d Digest, tokens int) *Mismatch {
	for layer := range s.layout.Layers {
		if m := s.VerifyLayer(page, layer, d, tokens); m != nil {
			return m
		}
	}
	return nil
}

// VerifyLayer checks the first `tokens` rows of the pool's layer-th layer.
func (s *Stamper) VerifyLayer(page []byte, layer int, d Digest, tokens int) *Mismatch {
	for part := range 2 {
		r, seed := s.rows(layer, part), s.seed(layer, part, d)
		if r.packed() {
			if off := differs(page[r.start:r.start+tokens*r.bytes], seed, 0); off >= 0 {
				return s.mismatch(page, layer, part, d, r.start+off)
			}
			continue
		}
		for t := range tokens {
			if off := differs(page[r.at(t):r.at(t)+r.bytes], seed, t*r.bytes/8); off >= 0 {
				return s.mismatch(page, layer, part, d, r.at(t)+off)
			}
		}
	}
	return nil
}

// Mismatch is the first place where a page is not what its digest says.
type Mismatch struct {
	Pool       string
	Layer      int    // global id
	Part       string // "K" or "V"
	Token      int    // in the page
	Byte       int    // in the page
	Want, Got  uint64 // the 8 bytes there
	WantDigest uint64 // XXH3 of the part's row that ought to be there
	GotDigest  uint64 // XXH3 of the row that is there
}

func (m *Mismatch) Error() string {
	return fmt.Sprintf("pool %s, layer %d, %s, token %d of the page, byte %d: got %016x, want %016x; row digests: got %016x, want %016x",
		m.Pool, m.Layer, m.Part, m.Token, m.Byte, m.Got, m.Want, m.GotDigest, m.WantDigest)
}

func (s *Stamper) mismatch(page []byte, layer, part int, d Digest, at int) *Mismatch {
	l, r := &s.layout, s.rows(layer, part)
	token := (at - r.start) / r.stride
	lo := r.at(token)
	ideal := make([]byte, r.bytes)
	fill(ideal, s.seed(layer, part, d), token*r.bytes/8)
	got := page[lo : lo+r.bytes]
	return &Mismatch{Pool: l.Pool, Layer: l.Layers[layer], Part: [2]string{"K", "V"}[part], Token: token, Byte: at,
		Want: binary.LittleEndian.Uint64(ideal[at-lo:]), Got: binary.LittleEndian.Uint64(got[at-lo:]),
		WantDigest: xxh3.Hash(ideal), GotDigest: xxh3.Hash(got)}
}

// rows are the K or V rows of one layer: token t's is at start + t·stride.
type rows struct {
	start, stride, bytes int
}

func (r rows) at(token int) int { return r.start + token*r.stride }
func (r rows) packed() bool     { return r.stride == r.bytes }

func (s *Stamper) rows(layer, part int) rows {
	l := &s.layout
	k := rows{start: layer * l.LayerStride, stride: l.TokenStride, bytes: l.KRowBytes}
	if part == 0 {
		return k
	}
	v := rows{start: k.start + l.VOffset, stride: l.TokenStride, bytes: l.VRowBytes}
	if k.packed() { // where tokens of K lie packed, those of V do too, with rows of their own size
		v.stride = v.bytes
	}
	return v
}

func (s *Stamper) seed(layer, part int, d Digest) uint64 {
	return mix(uint64(d) ^ s.salts[2*layer+part])
}

func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
