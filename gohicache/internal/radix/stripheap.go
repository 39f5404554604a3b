package radix

import (
	"math/bits"
	"sync"
)

// stripHeap cuts strips out of slabs, large pieces of memory without pointers. In a full cache every insert follows an eviction, so strips
// come and go at the rate of requests: from Go's own heap each would be fresh memory to clear, to fault in and to collect.
//
// It is a two-level segregated fit (Masmano et al., "TLSF: a new dynamic memory allocator for real-time systems", 2004): lists of free
// blocks by size class, eight classes to a power of two, found through two bitmaps, and neighbours that are free are merged at once. O(1).
// The header of a block lies in front of it, so a strip is found again without a table. A slab that is free as a whole goes back to Go,
// except one.
//
// It has a lock of its own, because inserts lay out their strips before they take the tree's.
type stripHeap struct {
	mu     sync.Mutex
	slabs  [][]uint32 // by number less one; nil: given back
	gaps   []uint32   // numbers of slabs that were given back
	rows   uint64     // bit r: some list of row r has a block
	fields [maxRows]uint8
	heads  [maxRows][rowClasses]blockRef
	idle   uint32 // a slab that is free as a whole; 0: none
	words  int    // of all slabs
	used   int    // strips that are out
}

// Sizes and places are in granules: a header is one.
const (
	granuleWords = 8
	rowClasses   = 8
	maxRows      = 32

	slabMin = 1 << 12 // granules of the first slab
	slabMax = 1 << 17
)

// Words of a block's header. Those from blockLive on belong to a block in use, the links to a free one.
const (
	blockSize   = iota // granules, times two, plus one if free
	blockBefore        // granules of the block before it in the slab; 0: it is the first
	blockSlab          // number of the slab; written once when in use
	blockPlace         // granule in the slab
	blockLive          // pages in use by nodes
	blockRoom          // pages that the columns have room for
	linkNext    = blockSlab
	linkPrev    = blockLive
)

// blockRef names a block: slab number and granule. 0 is none, since slabs are numbered from one.
type blockRef uint64

func (h *stripHeap) header(b blockRef) []uint32 {
	return h.slabs[b>>32-1][uint32(b)*granuleWords:][:granuleWords]
}

func (h *stripHeap) link(b blockRef, which int) blockRef {
	head := h.header(b)
	return blockRef(head[which])<<32 | blockRef(head[which+1])
}

func (h *stripHeap) setLink(b blockRef, which int, to blockRef) {
	head := h.header(b)
	head[which], head[which+1] = uint32(to>>32), uint32(to)
}

func granules(words int) uint32 { return uint32((words + granuleWords - 1) / granuleWords) }

// class is the list that a free block of a size belongs to.
func class(size uint32) (row, field int) {
	if size < rowClasses {
		return 0, int(size)
	}
	row = bits.Len32(size) - 3 // of sizes in [8, 16): 1
	return row, int(size>>(row-1)) & (rowClasses - 1)
}

// take returns a strip of words words, the header among them. Its contents are undefined.
func (h *stripHeap) take(words int) strip {
	need := granules(words)
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.find(need)
	if b == 0 {
		b = h.grow(need)
	}
	h.unlist(b)
	h.cut(b, need)
	h.used++
	head := h.header(b)
	head[blockSize] &^= 1
	slab := uint32(b >> 32)
	head[blockSlab], head[blockPlace] = slab, uint32(b)
	if h.idle == slab {
		h.idle = 0
	}
	return strip(h.slabs[slab-1][uint32(b)*granuleWords:][:words:words])
}

// find returns a free block of at least need granules, or none. Every block of the classes that it looks at is large enough.
func (h *stripHeap) find(need uint32) blockRef {
	up := need
	if need >= rowClasses {
		up += 1<<(bits.Len32(need)-4) - 1 // to where the next class begins
	}
	row, field := class(up)
	if in := h.fields[row] >> field << field; in != 0 {
		return h.heads[row][bits.TrailingZeros8(in)]
	}
	if above := h.rows >> (row + 1) << (row + 1); above != 0 {
		row = bits.TrailingZeros64(above)
		return h.heads[row][bits.TrailingZeros8(h.fields[row])]
	}
	return 0
}

// grow adds a slab and returns it as a free block. Slabs grow with the heap, so that a small tree stays small.
func (h *stripHeap) grow(need uint32) blockRef {
	size := max(need, min(max(granules(h.words/8), slabMin), slabMax))
	var number uint32
	if n := len(h.gaps); n > 0 {
		number, h.gaps = h.gaps[n-1], h.gaps[:n-1]
	} else {
		h.slabs = append(h.slabs, nil)
		number = uint32(len(h.slabs))
	}
	h.slabs[number-1] = make([]uint32, int(size)*granuleWords)
	h.words += int(size) * granuleWords
	b := blockRef(number) << 32
	h.header(b)[blockSize] = size << 1
	h.list(b)
	return b
}

// put takes a strip back.
func (h *stripHeap) put(s strip) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.used--
	h.free(blockRef(s[blockSlab])<<32 | blockRef(s[blockPlace]))
}

// trim gives back the end of s where it is, and returns what is left of it.
func (h *stripHeap) trim(s strip, words int) strip {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cut(blockRef(s[blockSlab])<<32|blockRef(s[blockPlace]), granules(words))
	return s[:words:words]
}

// cut leaves need granules to a block in use, and frees the rest if it can serve anybody.
func (h *stripHeap) cut(b blockRef, need uint32) {
	head := h.header(b)
	size := head[blockSize] >> 1
	if size < need+2 {
		return
	}
	head[blockSize] = need << 1
	rest := b + blockRef(need)
	r := h.header(rest)
	r[blockSize], r[blockBefore] = (size-need)<<1, need
	if after := h.after(rest); after != 0 {
		h.header(after)[blockBefore] = size - need
	}
	h.free(rest)
}

// after is the block behind b in its slab, or none.
func (h *stripHeap) after(b blockRef) blockRef {
	next := b + blockRef(h.header(b)[blockSize]>>1)
	if int(uint32(next))*granuleWords == len(h.slabs[b>>32-1]) {
		return 0
	}
	return next
}

// free lists a block that is in no list, merged with its free neighbours.
func (h *stripHeap) free(b blockRef) {
	size := h.header(b)[blockSize] >> 1
	if after := h.after(b); after != 0 && h.header(after)[blockSize]&1 != 0 {
		h.unlist(after)
		size += h.header(after)[blockSize] >> 1
	}
	if before := h.header(b)[blockBefore]; before != 0 {
		if at := b - blockRef(before); h.header(at)[blockSize]&1 != 0 {
			h.unlist(at)
			b, size = at, size+before
		}
	}
	h.header(b)[blockSize] = size << 1
	if after := h.after(b); after != 0 {
		h.header(after)[blockBefore] = size
	}
	if number := uint32(b >> 32); int(size)*granuleWords == len(h.slabs[number-1]) {
		if h.idle != 0 && h.idle != number {
			h.giveBack(number)
			return
		}
		h.idle = number
	}
	h.list(b)
}

// giveBack leaves a slab without blocks to Go.
func (h *stripHeap) giveBack(number uint32) {
	h.words -= len(h.slabs[number-1])
	h.slabs[number-1] = nil
	h.gaps = append(h.gaps, number)
}

func (h *stripHeap) list(b blockRef) {
	head := h.header(b)
	row, field := class(head[blockSize] >> 1)
	head[blockSize] |= 1
	next := h.heads[row][field]
	h.setLink(b, linkNext, next)
	h.setLink(b, linkPrev, 0)
	if next != 0 {
		h.setLink(next, linkPrev, b)
	}
	h.heads[row][field] = b
	h.fields[row] |= 1 << field
	h.rows |= 1 << row
}

func (h *stripHeap) unlist(b blockRef) {
	row, field := class(h.header(b)[blockSize] >> 1)
	next, prev := h.link(b, linkNext), h.link(b, linkPrev)
	if next != 0 {
		h.setLink(next, linkPrev, prev)
	}
	if prev != 0 {
		h.setLink(prev, linkNext, next)
		return
	}
	h.heads[row][field] = next
	if next == 0 {
		if h.fields[row] &^= 1 << field; h.fields[row] == 0 {
			h.rows &^= 1 << row
		}
	}
}
