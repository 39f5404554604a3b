package radix

import (
	"math/rand/v2"
	"testing"
)

// check walks every slab: blocks lie end to end, know the size before them, no two free ones touch, and the lists hold exactly the free ones.
func (h *stripHeap) check(t *testing.T) (free int) {
	t.Helper()
	listed := map[blockRef]bool{}
	for row := range h.heads {
		for field, b := range h.heads[row] {
			if has := h.fields[row]>>field&1 != 0; has != (b != 0) {
				t.Fatalf("class %d/%d: bit %v, head %x", row, field, has, b)
			}
			for ; b != 0; b = h.link(b, linkNext) {
				if r, f := class(h.header(b)[blockSize] >> 1); r != row || f != field {
					t.Fatalf("a block of %d granules is in class %d/%d", h.header(b)[blockSize]>>1, row, field)
				}
				listed[b] = true
			}
		}
	}
	for i, slab := range h.slabs {
		if slab == nil {
			continue
		}
		before, wasFree := uint32(0), false
		for b := blockRef(i+1) << 32; b != 0; b = h.after(b) {
			size, isFree := h.header(b)[blockSize]>>1, h.header(b)[blockSize]&1 != 0
			if h.header(b)[blockBefore] != before || size == 0 || wasFree && isFree || listed[b] != isFree {
				t.Fatalf("block %x: size %d, before %d (said %d), free %v after free %v, listed %v", b, size, before, h.header(b)[blockBefore], isFree, wasFree, listed[b])
			}
			if isFree {
				free += int(size) * granuleWords
				delete(listed, b)
			}
			before, wasFree = size, isFree
		}
	}
	if len(listed) > 0 {
		t.Fatalf("%d listed blocks are in no slab", len(listed))
	}
	return free
}

func TestStripHeap(t *testing.T) {
	type held struct {
		s    strip
		mark uint32
	}
	for _, seed := range []uint64{1, 2, 3} {
		var h stripHeap
		rng := rand.New(rand.NewPCG(seed, 1))
		var live []held
		words := 0
		look := func(x held) {
			for i, v := range x.s[granuleWords:] {
				if v != x.mark+uint32(i) {
					t.Fatalf("seed %d: a strip of %d words was overwritten at %d", seed, len(x.s), i)
				}
			}
		}
		for step := range 20_000 {
			switch i := 0; {
			case words < 1<<20 || rng.IntN(8) == 0: // a full cache: what comes replaces what goes
				n := granuleWords + 1 + rng.IntN(1<<rng.IntN(17))
				x := held{h.take(n), rng.Uint32()}
				if len(x.s) != n || cap(x.s) != n {
					t.Fatalf("seed %d: asked for %d words, got %d of %d", seed, n, len(x.s), cap(x.s))
				}
				for i := range x.s[granuleWords:] {
					x.s[granuleWords+i] = x.mark + uint32(i)
				}
				live, words = append(live, x), words+n
			case rng.IntN(3) == 0:
				i = rng.IntN(len(live))
				look(live[i])
				n := len(live[i].s)
				live[i].s = h.trim(live[i].s, granuleWords+1+rng.IntN(n-granuleWords))
				words -= n - len(live[i].s)
			default:
				i = rng.IntN(len(live))
				look(live[i])
				words -= len(live[i].s)
				h.put(live[i].s)
				live[i] = live[len(live)-1]
				live = live[:len(live)-1]
			}
			if step%500 == 0 {
				h.check(t)
			}
		}
		for _, x := range live {
			look(x)
		}
		if free := h.check(t); h.words > words*9/4 {
			t.Errorf("seed %d: %d words live in %d, %d of them free", seed, words, h.words, free)
		}
		t.Logf("seed %d: %d strips of %d words in slabs of %d", seed, len(live), words, h.words)
		for _, x := range live {
			h.put(x.s)
		}
		left := 0
		for _, s := range h.slabs {
			left += len(s)
		}
		if free := h.check(t); free != h.words || left != h.words || h.idle == 0 || len(h.slabs[h.idle-1]) != left {
			t.Errorf("seed %d: empty, but %d words in slabs, %d counted, %d free", seed, left, h.words, free)
		}
	}
}

// lostStrips is how many strips are out beyond those of nodes, while no insert is under way.
func (t *Tree) lostStrips() int {
	held := map[*uint32]bool{}
	for _, nodes := range t.slab.chunks {
		for i := range nodes {
			if n := &nodes[i]; !n.freed && n.pages > 0 {
				held[n.strip.live()] = true
			}
		}
	}
	return t.strips.used - len(held)
}
