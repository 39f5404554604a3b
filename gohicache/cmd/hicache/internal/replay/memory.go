package replay

import (
	"fmt"
	"iter"
	"runtime"
	"slices"
	"sync"

	"github.com/hicache/hicache/ffi/ids"
	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/stamp"
)

// item is one page to check or to write. The page is held by a lease, so its kernel id holds too.
type item struct {
	pool   int
	page   int // position in the request
	kernel ids.KernelID
	digest stamp.Digest
	tokens int // written rows of the page
}

// mismatch is a page that is not what its digest says.
type mismatch struct {
	item
	detail string
}

// memory is how a backend's pages are written and checked.
type memory interface {
	write(items []item) error
	// check returns how many items are wrong, and the first of them. h waits for each layer's loads; loading says that some of the items may
	// still be on their way.
	check(items []item, h holder, loading bool) (wrong int, first *mismatch, err error)
	// bytes is what writing or checking the item touches.
	bytes(it *item) int64
}

// holder is a lease or an open step: while it lives, its pages stay where they are.
type holder interface {
	Layers() iter.Seq2[int, error]
}

// newMemory picks the memory of the cache's device.
func newMemory(c *hicache.Cache, backend string) (memory, error) {
	stampers := make([]*stamp.Stamper, len(c.Pools()))
	for i, p := range c.Pools() {
		s, err := stamp.New(stamp.Layout{Pool: p.Name, Layers: p.Layers, PageTokens: p.PageTokens, KRowBytes: int(p.KRowBytes), VRowBytes: int(p.VRowBytes),
			LayerStride: int(p.LayerStrideBytes), TokenStride: int(p.TokenStrideBytes), VOffset: int(p.VOffsetBytes)})
		if err != nil {
			return nil, err
		}
		stampers[i] = s
	}
	if backend == "null" {
		return &tagMemory{c, stampers}, nil
	}
	if backend == "cuda" {
		return &deviceMemory{c, stampers}, nil
	}
	return &byteMemory{c, stampers}, nil
}

// deviceMemory is a CUDA device, which writes and checks every byte itself.
type deviceMemory struct {
	cache    *hicache.Cache
	stampers []*stamp.Stamper
}

func (m *deviceMemory) bytes(it *item) int64 {
	return int64(it.tokens) * int64(m.stampers[it.pool].BytesPerToken())
}

func (m *deviceMemory) write(items []item) error {
	return byPool(items, func(pool int, part []item, _ []ids.KernelID) error {
		return m.cache.StampPages(pool, stampsOf(part), m.stampers[pool].Salts())
	})
}

func (m *deviceMemory) check(items []item, h holder, _ bool) (wrong int, first *mismatch, err error) {
	for _, err := range h.Layers() { // the stream waits, not we
		if err != nil {
			return 0, nil, err
		}
	}
	err = byPool(items, func(pool int, part []item, _ []ids.KernelID) error {
		words := make([]uint32, len(part))
		if err := m.cache.CheckStamps(pool, stampsOf(part), m.stampers[pool].Salts(), words); err != nil {
			return err
		}
		for i, n := range words {
			if n == 0 {
				continue
			}
			if wrong++; first == nil {
				first = &mismatch{part[i], fmt.Sprintf("%d words of the page differ from what digest %016x makes", n, uint64(part[i].digest))}
			}
		}
		return nil
	})
	return wrong, first, err
}

func stampsOf(items []item) []hicache.PageStamp {
	out := make([]hicache.PageStamp, len(items))
	for i := range items {
		out[i] = hicache.PageStamp{Digest: uint64(items[i].digest), Page: items[i].kernel, TokenCount: uint32(items[i].tokens)}
	}
	return out
}

// byteMemory is the CPU device: every byte is there.
type byteMemory struct {
	cache    *hicache.Cache
	stampers []*stamp.Stamper
}

func (m *byteMemory) bytes(it *item) int64 {
	return int64(it.tokens) * int64(m.stampers[it.pool].BytesPerToken())
}

func (m *byteMemory) page(it *item) ([]byte, error) {
	b := m.cache.PageBytes(it.pool, it.kernel)
	if b == nil {
		return nil, fmt.Errorf("pool %s: kernel id %d has no memory", m.cache.Pools()[it.pool].Name, it.kernel)
	}
	return b, nil
}

func (m *byteMemory) write(items []item) error {
	return inParallel(items, func(part []item) error {
		for i := range part {
			b, err := m.page(&part[i])
			if err != nil {
				return err
			}
			m.stampers[part[i].pool].Write(b, part[i].digest, part[i].tokens)
		}
		return nil
	})
}

func (m *byteMemory) check(items []item, h holder, loading bool) (int, *mismatch, error) {
	bad := &findings{}
	if !loading { // still walk the layers: a page may be on its way for another request
		for _, err := range h.Layers() {
			if err != nil {
				return 0, nil, err
			}
		}
		err := inParallel(items, func(part []item) error {
			for i := range part {
				b, err := m.page(&part[i])
				if err != nil {
					return err
				}
				bad.add(&part[i], m.stampers[part[i].pool].Verify(b, part[i].digest, part[i].tokens))
			}
			return nil
		})
		return bad.wrong(), bad.first, err
	}
	for layer, err := range h.Layers() {
		if err != nil {
			return 0, nil, err
		}
		err := inParallel(items, func(part []item) error { return m.checkLayer(part, layer, bad) })
		if err != nil {
			return 0, nil, err
		}
	}
	return bad.wrong(), bad.first, nil
}

// checkLayer checks one global layer of the items whose pool serves it.
func (m *byteMemory) checkLayer(items []item, layer int, bad *findings) error {
	pool, index := -1, 0
	for i := range items {
		it := &items[i]
		if it.pool != pool {
			pool, index = it.pool, slices.Index(m.stampers[it.pool].Layout().Layers, layer)
		}
		if index < 0 {
			continue
		}
		b, err := m.page(it)
		if err != nil {
			return err
		}
		bad.add(it, m.stampers[pool].VerifyLayer(b, index, it.digest, it.tokens))
	}
	return nil
}

// findings collects mismatches from several goroutines; a page counts once however many of its layers are wrong.
type findings struct {
	mu    sync.Mutex
	pages map[[2]int]bool
	first *mismatch
}

func (f *findings) add(it *item, m *stamp.Mismatch) {
	if m == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pages == nil {
		f.pages = map[[2]int]bool{}
	}
	f.pages[[2]int{it.pool, it.page}] = true
	if f.first == nil {
		f.first = &mismatch{*it, m.Error()}
	}
}

func (f *findings) wrong() int { return len(f.pages) }

// inParallel splits items over the processors when there are enough of them.
func inParallel(items []item, f func([]item) error) error {
	const grain = 32
	n := min(runtime.GOMAXPROCS(0), len(items)/grain)
	if n < 2 {
		return f(items)
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for k := range n {
		wg.Go(func() { errs[k] = f(items[len(items)*k/n : len(items)*(k+1)/n]) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// tagMemory is the null device: a page is an 8-byte tag.
type tagMemory struct {
	cache    *hicache.Cache
	stampers []*stamp.Stamper
}

func (m *tagMemory) bytes(*item) int64 { return 8 }

// byPool calls f once a pool with its items' kernel ids; items of a pool stand together.
func byPool(items []item, f func(pool int, part []item, kernel []ids.KernelID) error) error {
	for len(items) > 0 {
		n := 1
		for n < len(items) && items[n].pool == items[0].pool {
			n++
		}
		kernel := make([]ids.KernelID, n)
		for i := range kernel {
			kernel[i] = items[i].kernel
		}
		if err := f(items[0].pool, items[:n], kernel); err != nil {
			return err
		}
		items = items[n:]
	}
	return nil
}

func (m *tagMemory) write(items []item) error {
	return byPool(items, func(pool int, part []item, kernel []ids.KernelID) error {
		tags := make([]uint64, len(part))
		for i := range part {
			tags[i] = m.stampers[pool].Tag(part[i].digest)
		}
		return m.cache.WriteTags(pool, kernel, tags)
	})
}

func (m *tagMemory) check(items []item, h holder, _ bool) (wrong int, first *mismatch, err error) {
	for _, err := range h.Layers() {
		if err != nil {
			return 0, nil, err
		}
	}
	err = byPool(items, func(pool int, part []item, kernel []ids.KernelID) error {
		tags := make([]uint64, len(part))
		if err := m.cache.ReadTags(pool, kernel, tags); err != nil {
			return err
		}
		for i := range part {
			if want := m.stampers[pool].Tag(part[i].digest); tags[i] != want {
				if wrong++; first == nil {
					first = &mismatch{part[i], fmt.Sprintf("tag is %016x, want %016x", tags[i], want)}
				}
			}
		}
		return nil
	})
	return wrong, first, err
}
