package lifecycle

import (
	"context"
	"crypto/sha256"
	"strconv"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/radix"
	"github.com/hicache/hicache/gohicache/storage"
)

// A page's bytes in storage do not depend on how the host tier keeps it: they have an order of their own, and caches of any host layout share a
// store.

// form is how a pool's pages are kept in storage: the order of a page's bytes, and the objects that it is cut into.
type form struct {
	order ffi.HostLayout
	parts []part
}

// part is one object of a page.
type part struct {
	tag    string      // tells its key from the page's; "" for a page that is one object
	ranges [][2]uint64 // bytes [from, to) of the page, one after the other
}

func (p *part) size() (n uint64) {
	for _, r := range p.ranges {
		n += r[1] - r[0]
	}
	return n
}

// formOf lists a page's objects in order: the envelope as one; without a store for those, one object for a latent row (MLA), K and V (MHA), or one
// for each group of heads, with its K and its V. What pads the page goes with the last object.
func formOf(p *Pool, pageTokens int, pageBytes uint64, envelopes bool, headGroups int) form {
	if envelopes {
		return form{ffi.HostLayoutEnvelope, []part{{"", [][2]uint64{{0, pageBytes}}}}}
	}
	if p.Role == radix.State {
		pageTokens = 1
	}
	k := p.KRowBytes * uint64(len(p.Layers)*pageTokens)
	v := p.VRowBytes * uint64(len(p.Layers)*pageTokens)
	if headGroups > 1 && p.Heads > 1 {
		f := form{order: ffi.HostLayoutPageHead}
		for g := range uint64(headGroups) {
			n := uint64(headGroups)
			one := part{"h" + strconv.FormatUint(g, 10), [][2]uint64{{g * k / n, (g + 1) * k / n}}}
			if v > 0 {
				one.ranges = append(one.ranges, [2]uint64{k + g*v/n, k + (g+1)*v/n})
			}
			f.parts = append(f.parts, one)
		}
		last := &f.parts[headGroups-1]
		if k+v < pageBytes {
			last.ranges = append(last.ranges, [2]uint64{k + v, pageBytes})
		}
		return f
	}
	f := form{ffi.HostLayoutPageFirstDirect, []part{{"k", [][2]uint64{{0, k}}}}}
	if v > 0 {
		f.parts = append(f.parts, part{"v", [][2]uint64{{k, pageBytes}}})
	} else {
		f.parts[0].ranges[0][1] = pageBytes
	}
	return f
}

// pageStore asks a store for pages, whatever objects they are: a page is there only if all its objects are, and is read or written as a whole.
type pageStore struct {
	storage.Store
	forms []form // by pool
}

// newPageStore decides by what the store can do, never by what it is.
func newPageStore(store storage.Store, cfg *Config, host []ffi.PoolInfo) *pageStore {
	s := &pageStore{Store: store}
	for i := range cfg.Pools {
		s.forms = append(s.forms, formOf(&cfg.Pools[i], cfg.PageTokens, host[i].PageBytes, store.Capabilities().OneObjectPerPage, cfg.HeadGroups))
	}
	return s
}

// objectKey is the key of one object of a page.
func objectKey(page storage.Key, tag string) storage.Key {
	if tag == "" {
		return page
	}
	return sha256.Sum256(append(page[:], tag...))
}

// keysOf lists the objects of pages, page by page, and where each page's begin.
func (s *pageStore) keysOf(pools []int, pages []storage.Key) (keys []storage.Key, first []int) {
	first = make([]int, len(pages)+1)
	for i, page := range pages {
		for _, p := range s.forms[pools[i]].parts {
			keys = append(keys, objectKey(page, p.tag))
		}
		first[i+1] = len(keys)
	}
	return keys, first
}

// plain says that each of the pages is one object that is the page.
func (s *pageStore) plain(pools []int) bool {
	for _, p := range pools {
		if len(s.forms[p].parts) != 1 || s.forms[p].parts[0].tag != "" {
			return false
		}
	}
	return true
}

func (s *pageStore) exists(ctx context.Context, pools []int, pages []storage.Key, found []bool) error {
	if s.plain(pools) {
		return s.Store.Exists(ctx, pages, found)
	}
	keys, first := s.keysOf(pools, pages)
	objects := make([]bool, len(keys))
	if err := s.Store.Exists(ctx, keys, objects); err != nil {
		return err
	}
	for i := range pages {
		found[i] = true
		for _, there := range objects[first[i]:first[i+1]] {
			found[i] = found[i] && there
		}
	}
	return nil
}

// get reads pages into dst, in the order of their form.
func (s *pageStore) get(ctx context.Context, pools []int, pages []storage.Key, dst [][]byte, errs []error) error {
	if s.plain(pools) {
		return s.Store.Get(ctx, pages, dst, errs)
	}
	return s.whole(pools, pages, dst, errs, false, func(keys []storage.Key, bytes [][]byte, each []error) error {
		return s.Store.Get(ctx, keys, bytes, each)
	})
}

func (s *pageStore) put(ctx context.Context, pools []int, pages []storage.Key, src [][]byte, errs []error) error {
	if s.plain(pools) {
		return s.Store.Put(ctx, pages, src, errs)
	}
	return s.whole(pools, pages, src, errs, true, func(keys []storage.Key, bytes [][]byte, each []error) error {
		return s.Store.Put(ctx, keys, bytes, each)
	})
}

// whole runs a call on all objects of pages; a page's error is the first of its objects'. An object of several ranges goes through memory of its
// own.
func (s *pageStore) whole(pools []int, pages []storage.Key, bytes [][]byte, errs []error, write bool, call func([]storage.Key, [][]byte, []error) error) error {
	keys, first := s.keysOf(pools, pages)
	objects, each := make([][]byte, len(keys)), make([]error, len(keys))
	scattered := func(i int, copyRange func(object, page []byte)) {
		for j := range s.forms[pools[i]].parts {
			p := &s.forms[pools[i]].parts[j]
			if len(p.ranges) == 1 {
				continue
			}
			rest := objects[first[i]+j]
			for _, r := range p.ranges {
				copyRange(rest[:r[1]-r[0]], bytes[i][r[0]:r[1]])
				rest = rest[r[1]-r[0]:]
			}
		}
	}
	for i := range pages {
		for j := range s.forms[pools[i]].parts {
			p := &s.forms[pools[i]].parts[j]
			if r := p.ranges[0]; len(p.ranges) == 1 {
				objects[first[i]+j] = bytes[i][r[0]:r[1]]
			} else {
				objects[first[i]+j] = make([]byte, p.size())
			}
		}
		if write {
			scattered(i, func(object, page []byte) { copy(object, page) })
		}
	}
	if err := call(keys, objects, each); err != nil {
		return err
	}
	for i := range pages {
		errs[i] = nil
		for _, err := range each[first[i]:first[i+1]] {
			if errs[i] == nil {
				errs[i] = err
			}
		}
		if !write && errs[i] == nil {
			scattered(i, func(object, page []byte) { copy(page, object) })
		}
	}
	return nil
}

// objects are host pages of one batch as keys and bytes, held by views. Where a page does not lie in one piece, or not in the order of its form,
// the bytes are a copy: of the page when it was added, and put into the page by deliver.
type objects struct {
	pool   []int
	at     []int // index within the batch
	keys   []storage.Key
	bytes  [][]byte
	views  []ffi.Lease
	copies []pageCopies
}

type pageCopies struct {
	view  ffi.Lease
	pages ffi.HostPages
	order ffi.HostLayout
	bytes []byte
}

// add views the pages of one pool, to be written to storage (load says: to be read from there); NoHostPage entries are left out.
func (b *objects) add(s *storer, pool int, pages []ids.HostPage, hashes []radix.Hash, load bool) error {
	var view []ids.HostPage
	for i, page := range pages {
		if page == ids.NoHostPage {
			continue
		}
		view = append(view, page)
		b.at, b.keys = append(b.at, i), append(b.keys, s.keys.key(pool, hashes[i]))
	}
	return b.view(s, pool, view, load)
}

// addPage adds one page under a key that is known, to be written.
func (b *objects) addPage(s *storer, pool, at int, page ids.HostPage, key storage.Key) error {
	b.at, b.keys = append(b.at, at), append(b.keys, key)
	return b.view(s, pool, []ids.HostPage{page}, false)
}

func (b *objects) view(s *storer, pool int, pages []ids.HostPage, load bool) error {
	if len(pages) == 0 {
		return nil
	}
	c, bytes := s.c, make([][]byte, len(pages))
	line := ffi.HostPages{Pool: uint32(pool), Pages: pages}
	lease, err := c.eng.HostView(line, bytes)
	if err != nil {
		return fromEngine(err)
	}
	b.views = append(b.views, lease)
	if order := s.store.forms[pool].order; order != ffi.HostLayoutEnvelope || c.separate(pool) {
		size := c.host[pool].PageBytes
		out := pageCopies{lease, line, order, make([]byte, uint64(len(pages))*size)}
		for i := range bytes {
			bytes[i] = out.bytes[uint64(i)*size : uint64(i+1)*size : uint64(i+1)*size]
		}
		if load {
			b.copies = append(b.copies, out)
		} else if err := c.eng.HostCopy(lease, line, order, false, out.bytes); err != nil {
			return fromEngine(err)
		}
	}
	for range pages {
		b.pool = append(b.pool, pool)
	}
	b.bytes = append(b.bytes, bytes...)
	return nil
}

// deliver puts what was read into the pages.
func (b *objects) deliver(c *Core) error {
	for _, out := range b.copies {
		if err := c.eng.HostCopy(out.view, out.pages, out.order, true, out.bytes); err != nil {
			return fromEngine(err)
		}
	}
	return nil
}

func (b *objects) release(c *Core) {
	for _, v := range b.views {
		c.bug("view release", c.eng.LeaseRelease(v))
	}
	b.views = nil
}
