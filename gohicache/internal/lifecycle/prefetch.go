package lifecycle

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/radix"
	"github.com/hicache/hicache/gohicache/storage"
)

// fetch is one prefetch: what storage has of a prompt beyond what device and host have.
type fetch struct {
	s      *storer
	ns     radix.Namespace
	tokens []uint32
	from   int          // pages that device and host have
	hashes []radix.Hash // of all whole pages of tokens
	full   int          // end of the leading run of FULL pages in storage
	sides  []int        // SWA and STATE pools: the ones of which only the end counts
	found  [][]bool     // by such a pool: position from+i is in storage
}

// prefetchRounds bounds how often a prefetch is planned anew after an object turned out to be missing.
const prefetchRounds = 3

// prefetch brings what storage has of the match's tokens to the host and matches again. It takes over the caller's share of a and returns a
// share of the answer to go on with, which is a itself if nothing came.
func (s *storer) prefetch(ctx context.Context, m *Match, a *answer) *answer {
	c := s.c
	if c.cfg.Prefetch == PrefetchOff || s.off() {
		return a
	}
	last := len(m.tokens)
	if !m.request.FullHit {
		last--
	}
	pages, from := c.pagesOf(max(last, 0)), a.m.Usable
	if gain := (pages - from) * c.cfg.PageTokens; gain <= 0 || gain < c.cfg.PrefetchMinTokens {
		return a
	}
	f := &fetch{s: s, sides: slices.Concat(c.windows, c.states), ns: m.request.Namespace, tokens: m.tokens[:pages*c.cfg.PageTokens], from: from}
	f.hashes = radix.HashPages(radix.NamespaceSeed(f.ns), f.tokens, c.cfg.PageTokens, make([]radix.Hash, 0, pages))
	if c.cfg.Prefetch == PrefetchBestEffort {
		return a
	}
	if c.cfg.Prefetch == PrefetchTimeout {
		limit := c.cfg.PrefetchTimeout + time.Duration(len(f.tokens)-from*c.cfg.PageTokens)*c.cfg.PrefetchTimeoutPerKiTokens/1024
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	end, waited := f.alone(ctx)
	if end <= from && !waited {
		return a
	}
	now := c.ask(m.tokens, &m.request)
	if !waited {
		now.storage = max(0, min(end, now.m.Usable)-from)
	}
	return m.replace(a, now)
}

// alone runs the fetch unless one for the same first page is under way: then it waits for that and reports so.
func (f *fetch) alone(ctx context.Context) (end int, waited bool) {
	s, key := f.s, f.s.keys.key(f.s.c.full, f.hashes[f.from])
	s.mu.Lock()
	other, busy := s.fetching[key]
	mine := make(chan struct{})
	if !busy {
		s.fetching[key] = mine
	}
	s.mu.Unlock()
	if busy {
		select {
		case <-other:
		case <-ctx.Done():
		}
		return f.from, true
	}
	defer func() {
		s.mu.Lock()
		delete(s.fetching, key)
		s.mu.Unlock()
		close(mine)
	}()
	return f.run(ctx), false
}

// run looks, takes host pages, reads and publishes. It returns the end of the prefix that is on the host afterwards.
func (f *fetch) run(ctx context.Context) int {
	limit := len(f.hashes)
	for range prefetchRounds {
		end, err := f.look(ctx, limit)
		if err != nil {
			f.failed(ctx, "exists", err)
			return f.from
		}
		if end <= f.from {
			f.s.c.count.storageMisses.Add(1)
			return f.from
		}
		cut, end := f.bring(ctx, end)
		if end > f.from || cut <= f.from || ctx.Err() != nil {
			return end
		}
		limit = cut // an object was not what storage said: plan again without it
	}
	return f.from
}

func (f *fetch) failed(ctx context.Context, op string, err error) {
	if ctx.Err() != nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		f.s.c.count.prefetchesCut.Add(1)
		return
	}
	f.s.fault(op, err)
}

// look asks which pages storage has, and returns the longest prefix up to limit that it can complete.
func (f *fetch) look(ctx context.Context, limit int) (int, error) {
	c := f.s.c
	f.full = f.from
	found := make([]bool, lookBatch)
	for f.full < limit {
		to := min(f.full+lookBatch, limit)
		if err := f.exists(ctx, c.full, f.full, to, found); err != nil {
			return 0, err
		}
		n := 0
		for n < to-f.full && found[n] {
			n++
		}
		f.full += n
		if n < lookBatch {
			break
		}
	}
	f.found = make([][]bool, len(c.cfg.Pools))
	for _, p := range f.sides {
		f.found[p] = make([]bool, f.full-f.from)
		if err := f.exists(ctx, p, f.from, f.full, f.found[p]); err != nil {
			return 0, err
		}
	}
	return f.usable(f.full), nil
}

const lookBatch = 128

func (f *fetch) exists(ctx context.Context, pool, from, to int, found []bool) error {
	if from == to {
		return nil
	}
	keys := make([]storage.Key, to-from)
	for i := range keys {
		keys[i] = f.s.keys.key(pool, f.hashes[from+i])
	}
	return f.s.guard(func() error { return f.s.store.Exists(ctx, keys, found[:len(keys)]) })
}

// usable is the largest end up to limit at which every window is complete and every state there: what lies below from is on device or
// host, as the match says.
func (f *fetch) usable(limit int) int {
	best := f.from
	run := make([]int, len(f.found)) // pages present without a gap up to here
	for i := 0; f.from+i < limit; i++ {
		good := true
		for _, p := range f.sides {
			if run[p]++; !f.found[p][i] {
				run[p] = 0
			}
			good = good && run[p] >= min(f.s.c.window[p], i+1)
		}
		if good {
			best = f.from + i + 1
		}
	}
	return best
}

// bring reads [from, end) and publishes it; where the host has no room for so much, a shorter prefix. It returns the first position that
// could not be read (end if all could) and the end of what was published, from if nothing was.
func (f *fetch) bring(ctx context.Context, end int) (cut, published int) {
	c := f.s.c
	b, end := f.takeRoom(end)
	if b == nil {
		c.count.prefetchesCut.Add(1)
		return f.from, f.from
	}
	cut = f.read(ctx, b, end)
	if cut < end {
		c.count.prefetchesCut.Add(1)
		if len(f.sides) > 0 { // windows and states were those of end
			f.giveBack(b)
			return cut, f.from
		}
	}
	if cut <= f.from {
		f.giveBack(b)
		return cut, f.from
	}
	return cut, f.publish(b, cut)
}

// brought are host pages taken for a fetch: FULL [from, end), and of each other pool what a prefix that ends at end needs.
type brought struct {
	full     []ids.HostPage
	side     [][]ids.HostPage // by pool: positions [sideFrom, end)
	sideFrom []int
}

// takeRoom takes host pages for the longest end that fits.
func (f *fetch) takeRoom(end int) (*brought, int) {
	c := f.s.c
	for end > f.from {
		b := &brought{full: make([]ids.HostPage, end-f.from), side: make([][]ids.HostPage, len(c.cfg.Pools)),
			sideFrom: make([]int, len(c.cfg.Pools))}
		takes := []ffi.HostPages{{Pool: uint32(c.full), Pages: b.full}}
		for _, p := range f.sides {
			b.sideFrom[p] = max(f.from, end-c.window[p])
			b.side[p] = make([]ids.HostPage, end-b.sideFrom[p])
			takes = append(takes, ffi.HostPages{Pool: uint32(p), Pages: b.side[p]})
		}
		c.plan.Lock()
		ok := c.takeHost(takes)
		c.plan.Unlock()
		if ok {
			return b, end
		}
		end = f.usable(f.from + (end-f.from)/2)
	}
	return nil, f.from
}

func (f *fetch) giveBack(b *brought) {
	free := radix.Freed{Host: make([][]ids.HostPage, len(f.s.c.cfg.Pools))}
	free.Host[f.s.c.full] = b.full
	for _, p := range f.sides {
		free.Host[p] = b.side[p]
	}
	f.s.c.giveBack(&free)
}

// read fills the pages, windows and states first: without them the rest is of no use. It returns the first position that is not whole.
func (f *fetch) read(ctx context.Context, b *brought, end int) int {
	c, cut := f.s.c, end
	for _, p := range f.sides {
		cut = min(cut, f.readPool(ctx, p, b.side[p], b.sideFrom[p]))
	}
	if cut < end {
		return cut
	}
	return min(cut, f.readPool(ctx, c.full, b.full, f.from))
}

// readPool reads pages of one pool from a position on, batch by batch, and returns the first position that failed.
func (f *fetch) readPool(ctx context.Context, pool int, pages []ids.HostPage, at int) int {
	s := f.s
	for done := 0; done < len(pages); {
		n := min(s.c.cfg.StorageBatch, len(pages)-done)
		good := s.readBatch(ctx, pool, pages[done:done+n], f.hashes[at+done:at+done+n])
		if done += good; good < n {
			return at + done
		}
	}
	return at + len(pages)
}

// readBatch reads one batch and returns how many pages from its start are good.
func (s *storer) readBatch(ctx context.Context, pool int, pages []ids.HostPage, hashes []radix.Hash) int {
	if ctx.Err() != nil {
		return 0
	}
	var b objects
	defer b.release(s.c)
	if err := b.add(s, pool, pages, hashes); err != nil {
		s.c.bug("host view", err)
		return 0
	}
	errs := make([]error, len(b.keys))
	if err := s.guard(func() error { return s.store.Get(ctx, b.keys, b.bytes, errs) }); err != nil {
		if ctx.Err() == nil {
			s.fault("read", err)
		}
		return 0
	}
	for i, err := range errs {
		if err != nil {
			s.missing(err)
			return i
		}
		s.c.count.storageRead.Add(uint64(len(b.bytes[i])))
	}
	return len(errs)
}

// publish gives the pages up to end to the tree.
func (f *fetch) publish(b *brought, end int) int {
	c := f.s.c
	request := radix.InsertHostRequest{Namespace: f.ns, Tokens: f.tokens[:end*c.cfg.PageTokens], From: f.from, Pages: b.full[:end-f.from],
		Windows: make([][]radix.HostWindow, len(c.cfg.Pools)), Refill: c.policy() != WriteBack, Stored: true}
	for _, p := range c.windows {
		for i, page := range b.side[p] {
			request.Windows[p] = append(request.Windows[p], radix.HostWindow{At: b.sideFrom[p] + i, Host: page, Bind: ids.NoVirtualPage})
		}
	}
	for _, p := range c.states {
		request.States = append(request.States, radix.HostCheckpoint{Pool: p, At: end, Page: b.side[p][0]})
	}
	var freed radix.Freed
	c.plan.Lock()
	_, err := c.tree.InsertHost(&request, &freed)
	c.plan.Unlock()
	if err != nil { // the prefix went meanwhile
		c.count.prefetchesCut.Add(1)
		f.giveBack(b)
		return f.from
	}
	if rest := b.full[end-f.from:]; len(rest) > 0 {
		for len(freed.Host) <= c.full {
			freed.Host = append(freed.Host, nil)
		}
		freed.Host[c.full] = append(freed.Host[c.full], rest...)
	}
	c.giveBack(&freed)
	c.count.prefetches.Add(1)
	c.count.prefetchPages.Add(uint64(len(request.Pages)))
	return end
}
