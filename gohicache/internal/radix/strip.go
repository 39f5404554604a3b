package radix

import "github.com/hicache/hicache/ffi/ids"

// A strip is the memory of a run of pages: a header (see stripHeap), then one column of words for each per-page value, then the tokens. Nodes
// that come of a split share one; its header counts the pages that they still use. Tokens never change once a node is in the tree, so they
// may be read without the lock while the node is pinned.
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

// newStrip returns a strip for pages, all of them counted as used; no page has values but the device column, which is undefined, as tokens
// are. It needs no lock of the tree's.
func (t *Tree) newStrip(pages int) strip {
	s := t.strips.take(t.stripWords(pages, pages))
	s[blockLive], s[blockRoom] = uint32(pages), uint32(pages)
	cols := s[granuleWords:]
	clear(cols[colFlags*pages:][:pages])
	fillNone(cols[colHost*pages:][:pages])
	fillNone(cols[colWindowHost*pages : t.cols*pages])
	return s
}

// stripWords is the size of a strip whose columns have room for room pages and whose tokens end after pages.
func (t *Tree) stripWords(room, pages int) int { return granuleWords + room*t.cols + pages*t.pt }

var none256 = func() (b [256]uint32) {
	for i := range b {
		b[i] = ids.None
	}
	return b
}()

func fillNone(col []uint32) {
	for len(col) > 0 {
		col = col[copy(col, none256[:]):]
	}
}

// live is the count of pages in use.
func (s strip) live() *uint32 { return &s[blockLive] }

// deviceColumn is the device column of a strip's first pages.
func (s strip) deviceColumn(pages int) []uint32 {
	return s[granuleWords+colDevice*int(s[blockRoom]):][:pages]
}

// flagsColumn is the column of flags of a strip's first pages.
func (s strip) flagsColumn(pages int) []uint32 {
	return s[granuleWords+colFlags*int(s[blockRoom]):][:pages]
}

// unuse says that pages of s have no node any more. A strip without any goes back to the heap.
func (t *Tree) unuse(s strip, pages int) {
	*s.live() -= uint32(pages)
	if *s.live() == 0 {
		t.strips.put(s)
	}
}

func (t *Tree) setStrip(n *node, s strip, off, pages int) {
	n.strip, n.off, n.pages = s, int32(off), int32(pages)
	n.room = int32(s[blockRoom])
}

// tokensAt is where the tokens of page i of n lie in its strip; pages beyond n's are those of others.
func (t *Tree) tokensAt(n *node, i int) int {
	return granuleWords + int(n.room)*t.cols + (int(n.off)+i)*t.pt
}

// tokens are the token ids of n's pages.
func (t *Tree) tokens(n *node) []uint32 {
	lo := t.tokensAt(n, 0)
	return n.strip[lo : lo+int(n.pages)*t.pt]
}

// firstPage is the key of n among its siblings.
func (t *Tree) firstPage(n *node) []uint32 {
	lo := t.tokensAt(n, 0)
	return n.strip[lo : lo+t.pt]
}

// col is one column of n, indexed by page within n.
func (t *Tree) col(n *node, c int) []uint32 {
	lo := granuleWords + c*int(n.room) + int(n.off)
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

// thin makes memory follow the pages. A strip that n has to itself is cut behind n's last page, where it is; one of which then still more
// than half is unused is left for a smaller one. Pinned nodes stay as they are, because tokens may be read without the lock.
func (t *Tree) thin(n *node) {
	if n.pages == 0 || n.anyPin() {
		return
	}
	if *n.strip.live() == uint32(n.pages) {
		if words := t.stripWords(int(n.room), int(n.off+n.pages)); words+4*granuleWords <= len(n.strip) {
			n.strip = t.strips.trim(n.strip, words)
		}
	}
	if least := t.stripWords(0, 0) + int(*n.strip.live())*(t.cols+t.pt); 2*least > len(n.strip) || n.room < 16 {
		return
	}
	s := t.newStrip(int(n.pages))
	copy(s[t.stripWords(int(n.pages), 0):], t.tokens(n))
	for c := range t.cols {
		copy(s[granuleWords+c*int(n.pages):], t.col(n, c))
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
