package radix

import "github.com/hicache/hicache/ffi/ids"

// A strip is the memory of a run of pages: one allocation with the tokens of all pages, then one column of words for each per-page value, then
// one word that counts the pages still used by the nodes that share the strip (a split shares it). Tokens never change once a node is in
// the tree, so they may be read without the lock while the node is pinned.
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

func (t *Tree) newStrip(pages int) strip {
	s := make(strip, pages*(t.pt+t.cols)+1)
	s[len(s)-1] = uint32(pages)
	for c := range t.cols {
		if c == colFlags {
			continue
		}
		col := s[pages*t.pt+c*pages:][:pages]
		for i := range col {
			col[i] = ids.None
		}
	}
	return s
}

func (s strip) live() *uint32 { return &s[len(s)-1] }

func (t *Tree) setStrip(n *node, s strip, off, pages int) {
	n.strip, n.off, n.pages = s, int32(off), int32(pages)
	n.room = int32((len(s) - 1) / (t.pt + t.cols))
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
	*n.strip.live() -= uint32(int(n.pages) - pages)
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
		copy(s[int(n.pages)*(t.pt+c):], t.col(n, c))
	}
	*n.strip.live() -= uint32(n.pages)
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
