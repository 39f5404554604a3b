package radix

import (
	"sync"

	"github.com/hicache/hicache/ffi/ids"
)

// A strip is the memory of a run of pages: one allocation with the tokens of all pages, then one column of words for each per-page value,
// then one word that counts the pages still used by the nodes that share the strip (a split shares it). Tokens never change once a node is
// in the tree, so they may be read without the lock while the node is pinned.
type strip []uint32

// Columns. Window host pages have one column for each SWA pool from colWindowHost on.
const (
	colDevice = iota // FULL: virtual page or None
	colHost          // FULL: host page or None
	colFlags
	colWindowHost
)

// Bits of colFlags. A window page is on the device if its bit is set; it is still being loaded if its pending bit is set too.
const (
	flagStored  = 1 << iota // storage holds the page
	flagStoring             // on its way there
	flagPending             // the FULL device page is being loaded
	flagBacking             // the page, or a window of it, is being backed up
	flagWindow0             // SWA pools' presence from here, then their pending bits

	firstWindowBit = 4
	maxWindowPools = 14
	pendingShift   = maxWindowPools
)

func windowBit(s int) uint32  { return flagWindow0 << s }
func pendingBit(s int) uint32 { return flagWindow0 << (s + pendingShift) }

// windowMask has the presence bits of all SWA pools.
const windowMask = uint32(1<<maxWindowPools-1) << firstWindowBit

// readyWindows are the presence bits of f whose pages have arrived.
func readyWindows(f uint32) uint32 { return f & windowMask &^ (f >> pendingShift) }

// newStrip returns a strip with room for at least pages, all of them counted as used and without values; tokens are undefined. It needs no
// lock of the tree's.
func (t *Tree) newStrip(pages int) strip {
	s := t.spares.take(pages, t.pt+t.cols)
	if s == nil {
		s = make(strip, pages*(t.pt+t.cols)+1)
	}
	*s.live() = uint32(pages)
	room := t.room(s)
	for c := range t.cols {
		v := ids.None
		if c == colFlags {
			v = 0
		}
		col := s[room*(t.pt+c):][:pages]
		for i := range col {
			col[i] = v
		}
	}
	return s
}

// room is the size of a strip in pages.
func (t *Tree) room(s strip) int { return (len(s) - 1) / (t.pt + t.cols) }

func (s strip) live() *uint32 { return &s[len(s)-1] }

// unuse says that pages of s have no node any more. A strip without any is kept for the next insert.
func (t *Tree) unuse(s strip, pages int) {
	*s.live() -= uint32(pages)
	if *s.live() == 0 {
		t.spares.put(s)
	}
}

// spares keeps strips whose pages are gone, because in a full cache every insert follows an eviction: memory that is warm in the caches of
// the processor and no work for the garbage collector. Bounded by number and size.
type spares struct {
	mu    sync.Mutex
	list  [64]strip
	n     int
	words int
}

const maxSpareWords = 4 << 20

// take returns a spare with room for pages and at most an eighth more, or nil.
func (p *spares) take(pages, stride int) strip {
	p.mu.Lock()
	defer p.mu.Unlock()
	best, need := -1, pages*stride+1
	for i := range p.n {
		if l := len(p.list[i]); l >= need && l <= need+need/8 && (best < 0 || l < len(p.list[best])) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	s := p.list[best]
	p.drop(best)
	return s
}

func (p *spares) drop(i int) {
	p.words -= len(p.list[i])
	p.n--
	p.list[i], p.list[p.n] = p.list[p.n], nil
}

// put keeps s, in the place of the oldest if need be.
func (p *spares) put(s strip) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.n > 0 && (p.n == len(p.list) || p.words+len(s) > maxSpareWords) {
		p.drop(0)
	}
	if p.words+len(s) <= maxSpareWords {
		p.list[p.n] = s
		p.n++
		p.words += len(s)
	}
}

func (t *Tree) setStrip(n *node, s strip, off, pages int) {
	n.strip, n.off, n.pages = s, int32(off), int32(pages)
	n.room = int32(t.room(s))
}

// tokens are the token ids of n's pages.
func (t *Tree) tokens(n *node) []uint32 {
	lo := int(n.off) * t.pt
	return n.strip[lo : lo+int(n.pages)*t.pt]
}

// firstPage is the key of n among its siblings; it stays readable after the last page is gone.
func (t *Tree) firstPage(n *node) []uint32 {
	lo := int(n.off) * t.pt
	return n.strip[lo : lo+t.pt]
}

// col is one column of n, indexed by page within n.
func (t *Tree) col(n *node, c int) []uint32 {
	lo := int(n.room)*t.pt + c*int(n.room) + int(n.off)
	return n.strip[lo : lo+int(n.pages)]
}

// shrink gives up the last pages of n; see thin.
func (t *Tree) shrink(n *node, pages int) {
	t.version++
	t.unuse(n.strip, int(n.pages)-pages)
	n.pages = int32(pages)
	if n.hashes != nil {
		n.hashes = n.hashes[:pages:pages]
	}
}

// thin copies n's pages out of a strip that is mostly unused, so that memory follows the pages.
func (t *Tree) thin(n *node) {
	if n.room < 16 || n.pages == 0 || *n.strip.live()*2 >= uint32(n.room) {
		return
	}
	s := t.newStrip(int(n.pages))
	copy(s, t.tokens(n))
	for c := range t.cols {
		copy(s[t.room(s)*(t.pt+c):], t.col(n, c))
	}
	t.unuse(n.strip, int(n.pages))
	t.setStrip(n, s, 0, int(n.pages))
	if n.hashes != nil {
		n.hashes = append([]Hash(nil), n.hashes...)
	}
}

// equalPages returns how many whole pages a and b have in common at their start.
func equalPages(a, b []uint32, pt int) int {
	n := min(len(a), len(b))
	return commonPrefix(a[:n], b[:n]) / pt
}

// commonPrefix is the length of the common prefix of two slices of equal length. Blocks are compared as arrays, which is memequal.
func commonPrefix(a, b []uint32) int {
	i := 0
	for ; i+512 <= len(a); i += 512 {
		if *(*[512]uint32)(a[i:]) != *(*[512]uint32)(b[i:]) {
			break
		}
	}
	for ; i+64 <= len(a); i += 64 {
		if *(*[64]uint32)(a[i:]) != *(*[64]uint32)(b[i:]) {
			break
		}
	}
	for ; i+8 <= len(a); i += 8 {
		if *(*[8]uint32)(a[i:]) != *(*[8]uint32)(b[i:]) {
			break
		}
	}
	for ; i < len(a); i++ {
		if a[i] != b[i] {
			break
		}
	}
	return i
}
