package stamp

import (
	"bytes"
	"fmt"
	"testing"
)

func layouts() map[string]Layout {
	layers := []int{5, 11, 17}
	return map[string]Layout{
		"layer-major": LayerMajor("full", layers, 16, 32, 32),
		"token-major": TokenMajor("full", layers, 16, 32, 32),
		"16-byte row": LayerMajor("full", layers, 16, 16, 16),
		"latent":      LayerMajor("full", layers, 4, 1152, 0),
		"uneven":      LayerMajor("full", layers, 4, 48, 16),
		"state":       LayerMajor("state", layers, 1, 4096, 96),
		"odd words":   LayerMajor("full", layers, 3, 24, 8),
	}
}

func newPage(t testing.TB, l Layout) (*Stamper, []byte) {
	t.Helper()
	s, err := New(l)
	if err != nil {
		t.Fatal(err)
	}
	return s, make([]byte, s.BytesPerToken()*l.PageTokens)
}

func TestEveryByteIsWrittenAndChecked(t *testing.T) {
	for name, l := range layouts() {
		s, page := newPage(t, l)
		d := Next(Root("a"), []uint32{1, 2, 3})
		s.Write(page, d, l.PageTokens)
		again := bytes.Repeat([]byte{0xff}, len(page))
		if s.Write(again, d, l.PageTokens); !bytes.Equal(page, again) {
			t.Fatalf("%s: some bytes were not written", name)
		}
		if m := s.Verify(page, d, l.PageTokens); m != nil {
			t.Fatalf("%s: %v", name, m)
		}
		for at := range page {
			page[at] ^= 0x10
			m := s.Verify(page, d, l.PageTokens)
			if m == nil || m.Byte != at/8*8 || m.Want == m.Got || m.WantDigest == m.GotDigest {
				t.Fatalf("%s: byte %d flipped: %+v", name, at, m)
			}
			page[at] ^= 0x10
		}
	}
}

func TestMismatchNamesThePlace(t *testing.T) {
	for _, name := range []string{"layer-major", "token-major"} {
		l := layouts()[name]
		s, page := newPage(t, l)
		d := Root("")
		s.Write(page, d, 16)
		at := 1*l.LayerStride + l.VOffset + 7*l.TokenStride + 11 // V of token 7 in the second layer
		page[at] ^= 1
		m := s.Verify(page, d, 16)
		if m == nil || m.Layer != 11 || m.Part != "V" || m.Token != 7 || m.Byte != at/8*8 {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

func TestWrongContentIsNeverAccepted(t *testing.T) {
	l := LayerMajor("full", []int{0, 1}, 4, 16, 16)
	s, page := newPage(t, l)
	other, _ := New(LayerMajor("swa", []int{0, 1}, 4, 16, 16))
	a := Next(Root(""), []uint32{1, 2, 3, 4})
	s.Write(page, a, 4)
	for name, d := range map[string]Digest{
		"another token":      Next(Root(""), []uint32{1, 2, 3, 5}),
		"another prefix":     Next(Next(Root(""), []uint32{9, 9, 9, 9}), []uint32{1, 2, 3, 4}),
		"another namespace":  Next(Root("x"), []uint32{1, 2, 3, 4}),
		"fewer tokens":       Next(Root(""), []uint32{1, 2, 3}),
		"the root":           Root(""),
		"tokens in one more": Next(Next(Root(""), []uint32{1, 2}), []uint32{3, 4}),
	} {
		if s.Verify(page, d, 4) == nil || s.Tag(d) == s.Tag(a) {
			t.Errorf("%s was accepted", name)
		}
	}
	if other.Verify(page, a, 4) == nil || other.Tag(a) == s.Tag(a) {
		t.Error("another pool's page was accepted")
	}
	half := len(page) / 2
	swapped := append(append([]byte(nil), page[half:]...), page[:half]...)
	if s.Verify(swapped, a, 4) == nil {
		t.Error("swapped layers were accepted")
	}
	s.Write(page, a, 4)
	kv := append([]byte(nil), page...)
	copy(kv[:64], page[64:128])
	copy(kv[64:128], page[:64])
	if s.Verify(kv, a, 4) == nil {
		t.Error("K and V of a layer swapped were accepted")
	}
	clear(page[half:])
	if s.Verify(page, a, 4) == nil {
		t.Error("a page whose last layer was never copied was accepted")
	}
}

func TestPartOfAPage(t *testing.T) {
	for name, l := range layouts() {
		if l.PageTokens < 3 {
			continue
		}
		s, page := newPage(t, l)
		s.Write(page, 77, 2)
		if m := s.Verify(page, 77, 2); m != nil {
			t.Errorf("%s: %v", name, m)
		}
		if s.Verify(page, 77, 3) == nil {
			t.Errorf("%s: a token that was never written was accepted", name)
		}
	}
}

func TestLongPagesChainWhole(t *testing.T) {
	tokens := make([]uint32, 512)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	d := Next(1, tokens)
	tokens[511]++
	if d == Next(1, tokens) {
		t.Error("the last token of a long page does not count")
	}
	tokens[511]--
	tokens[0]++
	if d == Next(1, tokens) {
		t.Error("the first token of a long page does not count")
	}
}

func TestNewRefusesShapesItCannotWrite(t *testing.T) {
	for _, l := range []Layout{LayerMajor("p", nil, 1, 16, 16), LayerMajor("p", []int{0}, 0, 16, 16), LayerMajor("p", []int{0}, 1, 4, 0), LayerMajor("p", []int{0}, 1, 16, 12)} {
		if _, err := New(l); err == nil {
			t.Errorf("%+v was accepted", l)
		}
	}
}

func BenchmarkWriteAndVerify(b *testing.B) {
	for _, row := range []int{16, 128, 2048} {
		l := LayerMajor("full", make([]int, 32), 16, row, row)
		s, page := newPage(b, l)
		b.Run(fmt.Sprintf("write/row=%d", row), func(b *testing.B) {
			b.SetBytes(int64(len(page)))
			for i := 0; b.Loop(); i++ {
				s.Write(page, Digest(i), 16)
			}
		})
		s.Write(page, 5, 16)
		b.Run(fmt.Sprintf("verify/row=%d", row), func(b *testing.B) {
			b.SetBytes(int64(len(page)))
			for b.Loop() {
				if s.Verify(page, 5, 16) != nil {
					b.Fatal("mismatch")
				}
			}
		})
	}
}
