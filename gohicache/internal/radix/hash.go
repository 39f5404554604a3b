package radix

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/hicache/hicache/ffi/words"
)

// Hash is a page's hash: SHA-256 over the hash of the page before and the page's tokens. It names the whole prefix up to the page.
type Hash [32]byte

// NamespaceSeed is what stands for "the hash before the first page" in a namespace; nil in the one without labels.
func NamespaceSeed(ns Namespace) *Hash {
	if !ns.LoRA.Set && !ns.Salt.Set {
		return nil
	}
	h := sha256.New()
	h.Write([]byte("sglang-cache-namespace-v1")) // the seed is part of keys that other caches share, so its text is theirs
	for _, l := range []Label{ns.LoRA, ns.Salt} {
		if !l.Set {
			h.Write([]byte{0})
			continue
		}
		var b [9]byte
		b[0] = 1
		binary.LittleEndian.PutUint64(b[1:], uint64(len(l.Text)))
		h.Write(b[:])
		h.Write([]byte(l.Text))
	}
	var s Hash
	h.Sum(s[:0])
	return &s
}

// HashPages appends the hashes of the pages of tokens to dst; prior is the hash before the first, nil for none. A partial page at the end
// has a hash too.
func HashPages(prior *Hash, tokens []uint32, pageTokens int, dst []Hash) []Hash {
	room := make([]byte, 32+4*pageTokens)
	for len(tokens) > 0 {
		page := tokens[:min(pageTokens, len(tokens))]
		tokens = tokens[len(page):]
		put(room[32:], page)
		message := room[32 : 32+4*len(page)]
		if prior != nil {
			copy(room, prior[:])
			message = room[:32+4*len(page)]
		}
		dst = append(dst, sha256.Sum256(message))
		prior = &dst[len(dst)-1]
	}
	return dst
}

// put writes tokens as little-endian words.
func put(b []byte, tokens []uint32) { putAs(b, tokens, words.LittleEndian) }

// putAs is put where native says whether that is the machine's order: then in stores as wide as the hash's loads, which would have to wait for
// narrower ones.
func putAs(b []byte, tokens []uint32, native bool) {
	if native {
		copy(b, words.Bytes(tokens))
		return
	}
	for i, v := range tokens {
		binary.LittleEndian.PutUint32(b[4*i:], v)
	}
}

// HashPages appends the hashes of the whole pages of tokens, in words of the tree's form. A page of 64-bit tokens that all fit 32 bits hashes as
// if they were; the words of bigrams are what their hash is made of.
func (t *Tree) HashPages(prior *Hash, words []uint32, dst []Hash) []Hash {
	words = words[:len(words)/t.pt*t.pt]
	if t.cfg.Tokens != Wide {
		return HashPages(prior, words, t.pt, dst)
	}
	low := make([]uint32, t.pt/2)
	room := make([]byte, 32+1+4*t.pt)
	for ; len(words) > 0; words = words[t.pt:] {
		page, wide := words[:t.pt], uint32(0)
		for i := range low {
			low[i] = page[2*i]
			wide |= page[2*i+1]
		}
		if wide == 0 {
			dst = HashPages(prior, low, len(low), dst)
		} else {
			message := room[32:]
			if prior != nil {
				copy(room, prior[:])
				message = room
			}
			room[32] = 0xff
			put(room[33:], page)
			dst = append(dst, sha256.Sum256(message))
		}
		prior = &dst[len(dst)-1]
	}
	return dst
}

// EventID is the 64-bit id of a page in published events: the first eight bytes of its hash, big-endian, as a signed integer.
func (h Hash) EventID() int64 { return int64(binary.BigEndian.Uint64(h[:8])) }

// Hashes appends the hashes of positions [from, to) of the path that p pins. What is missing is computed outside the lock, once a node,
// parents first: also for a tree that grew without hashes. ErrStale (also of a path that was dropped while pinned), ErrArgument.
func (t *Tree) Hashes(p Pin, from, to int, dst []Hash) ([]Hash, error) {
	t.mu.RLock()
	n, live := t.bottom(p)
	if !live {
		t.mu.RUnlock()
		return dst, ErrStale
	}
	if n == nil || from < 0 || to > n.end() || from > to {
		t.mu.RUnlock()
		if from == to {
			return dst, nil
		}
		return dst, ErrArgument
	}
	if n.detached { // Dropped with its namespace or by Clear: nobody knows any more whose tokens these were, and no hash must say it is the default's.
		t.mu.RUnlock()
		return dst, ErrStale
	}
	hashes, tokens, prior := t.known(n)
	t.mu.RUnlock()
	if len(tokens) > 0 {
		start := len(hashes)
		for _, run := range tokens {
			hashes = t.HashPages(prior, run, hashes)
			prior = &hashes[len(hashes)-1]
		}
		t.remember(p, hashes, start)
	}
	return append(dst, hashes[from:to]...), nil
}

// known returns the hashes of n's path as far as nodes have them without a break from the root, and the tokens of the nodes after that;
// prior is the hash that those continue.
func (t *Tree) known(n *node) (hashes []Hash, tokens [][]uint32, prior *Hash) {
	path := pathTo(n, nil)
	hashes = make([]Hash, 0, n.end())
	for _, m := range path {
		if m.hashes != nil && len(tokens) == 0 {
			hashes = append(hashes, m.hashes...)
		} else {
			tokens = append(tokens, t.tokens(m))
		}
	}
	if len(hashes) > 0 {
		return hashes, tokens, &hashes[len(hashes)-1]
	}
	root := n
	for root.parent != nil {
		root = root.parent
	}
	if root.root() {
		prior = NamespaceSeed(*root.space)
	}
	return hashes, tokens, prior
}

// remember keeps computed hashes with the nodes of p's path, which may have been split meanwhile.
func (t *Tree) remember(p Pin, hashes []Hash, from int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, _ := t.bottom(p)
	if n == nil || n.detached {
		return
	}
	kept := append([]Hash(nil), hashes[from:]...)
	for ; !n.root() && int(n.start) >= from; n = n.parent {
		if n.hashes == nil && n.end() <= len(hashes) {
			lo := int(n.start) - from
			n.hashes = kept[lo : lo+int(n.pages) : lo+int(n.pages)]
		}
	}
}

// hashAhead computes the hashes of positions [at, end) before an insert takes the lock.
func (t *Tree) hashAhead(ns Namespace, after Pin, tokens []uint32, at, end int) ([]Hash, error) {
	prior := NamespaceSeed(ns)
	if at > 0 {
		h, err := t.prefixHash(ns, after, tokens, at)
		if err != nil {
			return nil, err
		}
		prior = h
	}
	return t.HashPages(prior, tokens[at*t.pt:end*t.pt], make([]Hash, 0, end-at)), nil
}

// prefixHash is the hash of position at-1: the tree's if its node has hashes, else computed from the tokens.
func (t *Tree) prefixHash(ns Namespace, after Pin, tokens []uint32, at int) (*Hash, error) {
	t.mu.RLock()
	n, k, _, err := t.locate(ns, after, at, tokens, at)
	var h *Hash
	if err == nil && n != nil && n.hashes != nil && k > 0 && int(n.start)+k == at {
		c := n.hashes[k-1]
		h = &c
	}
	t.mu.RUnlock()
	if err != nil || h != nil {
		return h, err
	}
	all := t.HashPages(NamespaceSeed(ns), tokens[:at*t.pt], nil)
	return &all[at-1], nil
}

// hashLeaf gives a new leaf below p its hashes, if Config.Hashes asks for them and hashAhead did not foresee this leaf.
func (t *Tree) hashLeaf(p, leaf *node, hashes []Hash, skip int) {
	switch {
	case !t.cfg.Hashes:
	case hashes != nil:
		leaf.hashes = hashes[skip:]
	case p.root():
		leaf.hashes = t.HashPages(NamespaceSeed(*p.space), t.tokens(leaf), nil)
	default:
		leaf.hashes = t.HashPages(&p.hashes[p.pages-1], t.tokens(leaf), nil)
	}
}
