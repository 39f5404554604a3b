package lifecycle

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/radix"
	"github.com/hicache/hicache/gohicache/storage"
)

// fetch is one prefetch: what storage has of a prompt beyond what device and host have.
type fetch struct {
	s       *storer
	ns      radix.Namespace
	tokens  []uint32
	from    int          // pages that device and host have
	hashes  []radix.Hash // of all whole pages of tokens
	full    int          // end of the leading run of FULL pages in storage
	sides   []int        // SWA and STATE pools: the ones of which only the end counts
	found   [][]bool     // by such a pool: position from+i is in storage
	ask     func() *answer
	start   *answer // what device and host have
	starved bool    // the host had no room
	answer  *answer // asked when the pages were published
	end     int     // of what was published
}

// prefetchRounds bounds how often a prefetch is planned anew after an object turned out to be missing.
const prefetchRounds = 3

// prefetch brings what storage has of the match's tokens to the host and matches again. It takes over the caller's share of a and returns a
// share of the answer to go on with, which is a itself if nothing came.
func (s *storer) prefetch(ctx context.Context, m *Match, a *answer) *answer {
	if s == nil || s.off() { // detached meanwhile
		return a
	}
	c := s.c
	pages, from := c.wantedPages(m), a.m.Usable
	if from >= pages { // a second try after somebody else has brought it
		a.starved = false
		return a
	}
	f, err := s.newFetch(m, a, pages)
	if err != nil { // the path was dropped meanwhile: the load finds out
		s.gone("hashes", err)
		return a
	}
	if c.cfg.Prefetch == PrefetchBestEffort && !c.cfg.Staging { // without a host tier there is nowhere to keep it
		s.behind(f)
		return a
	}
	if c.cfg.Prefetch == PrefetchTimeout {
		limit := c.cfg.PrefetchTimeout + time.Duration((pages-from)*c.cfg.PageTokens)*c.cfg.PrefetchTimeoutPerKiTokens/1024
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	// The fetch may outlive the load, if the store heeds no context: it has tokens and a share of the answer of its own.
	tokens, request := slices.Clone(m.tokens), m.request
	f.start, f.tokens = a, tokens[:len(f.tokens)]
	f.ask = func() *answer { return c.ask(tokens, &request) }
	waited, left := f.apart(ctx)
	switch {
	case left: // everything of f is the goroutine's now
		a.starved = false
		return a
	case f.answer != nil:
		f.answer.storage = max(0, min(f.end, f.answer.m.Usable)-from)
		return m.replace(a, f.answer)
	case waited:
		a = m.replace(a, f.ask())
	}
	a.starved = f.starved || waited
	return a
}

func (s *storer) newFetch(m *Match, a *answer, pages int) (*fetch, error) {
	c, from := s.c, a.m.Usable
	f := &fetch{s: s, sides: slices.Concat(c.windows, c.states), ns: m.request.Namespace, tokens: m.tokens[:pages*c.pageWords()], from: from, end: from}
	prior := radix.NamespaceSeed(f.ns)
	if from > 0 {
		last, err := c.tree.Hashes(a.path.id, from-1, from, nil)
		if err != nil {
			return nil, err
		}
		prior = &last[0]
	}
	f.hashes = c.tree.HashPages(prior, f.tokens[from*c.pageWords():], make([]radix.Hash, from, pages))
	return f, nil
}

// behindMax bounds the fetches that nobody waits for.
const behindMax = 4

// behind runs a fetch for later requests, if room for one more is left: nobody waits for it, so it must not keep others from the store.
func (s *storer) behind(f *fetch) {
	if s.c.check() != nil || !s.readBehind() {
		s.c.count.prefetchesCut.Add(1)
		return
	}
	f.tokens = slices.Clone(f.tokens) // the match may be released before
	go func() {
		defer s.readers.Done()
		f.alone(s.ctx)
		s.mu.Lock()
		s.behindNow--
		s.mu.Unlock()
	}()
}

func (s *storer) readBehind() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving || s.reading > 0 || s.behindNow == behindMax {
		return false
	}
	s.behindNow++
	s.readers.Add(1)
	return true
}

const (
	// storeGrace is how long a load still waits once its own time is over: a store that heeds its context has returned by then, and what it brought
	// counts.
	storeGrace = 100 * time.Millisecond
	// leftMax bounds the fetches that loads have left because the store does not return. From there on storage is not asked.
	leftMax = 64
)

// Who has the end of a fetch: nobody yet, the load that waits for it, or its goroutine alone because the load has left.
const (
	endOpen = iota
	endTaken
	endLeft
)

// apart runs the fetch in a goroutine of its own and waits for it, but no longer than ctx and the grace: a stuck store must not hold a load. left says
// that the load goes on without it; the goroutine keeps its host pages until the store returns, and then gives them back or to later requests.
func (f *fetch) apart(ctx context.Context) (waited, left bool) {
	s := f.s
	s.mu.Lock()
	if s.leaving || s.leftNow >= leftMax {
		s.mu.Unlock()
		s.c.count.prefetchesCut.Add(1)
		return false, true
	}
	s.readers.Add(1)
	s.mu.Unlock()
	f.start.refs.Add(1)
	var end atomic.Int32
	done := make(chan bool, 1)
	go func() {
		defer s.readers.Done()
		waited := f.alone(ctx)
		f.start.release() // before the load goes on: it leaves no pin behind
		if end.CompareAndSwap(endOpen, endTaken) {
			done <- waited
			return
		}
		if f.answer != nil {
			f.answer.release()
		}
		s.leftBy(-1)
	}()
	select {
	case waited = <-done:
		return waited, false
	case <-ctx.Done():
	}
	grace := time.NewTimer(storeGrace)
	defer grace.Stop()
	select {
	case waited = <-done:
		return waited, false
	case <-grace.C:
	}
	s.leftBy(1)
	if !end.CompareAndSwap(endOpen, endLeft) { // it came after all
		s.leftBy(-1)
		return <-done, false
	}
	s.c.count.prefetchesCut.Add(1)
	return false, true
}

func (s *storer) leftBy(n int) {
	s.mu.Lock()
	s.leftNow += n
	s.mu.Unlock()
}

// alone runs the fetch unless one for the same first page is under way: then it waits for that and reports so.
func (f *fetch) alone(ctx context.Context) (waited bool) {
	s, key := f.s, f.s.keys.key(f.s.c.full, f.hashes[f.from])
	s.mu.Lock()
	if s.leaving {
		s.mu.Unlock()
		return false
	}
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
		return true
	}
	defer func() {
		s.mu.Lock()
		delete(s.fetching, key)
		s.mu.Unlock()
		close(mine)
		s.change.ring()
	}()
	f.run(ctx)
	return false
}

// run looks, takes host pages, reads and publishes.
func (f *fetch) run(ctx context.Context) {
	limit := len(f.hashes)
	for range prefetchRounds {
		end, err := f.look(ctx, limit)
		if err != nil {
			f.failed(ctx, "exists", err)
			return
		}
		if end <= f.from {
			f.s.c.count.storageMisses.Add(1)
			return
		}
		if f.s.c.cfg.Staging {
			f.bringStaged(ctx, f.start, end)
			return
		}
		bytes := f.bytesTo(end)
		if !f.s.enter(ctx, bytes) {
			f.starved = true
			f.s.c.count.prefetchesCut.Add(1)
			return
		}
		cut := f.bring(ctx, end)
		f.s.exit(bytes)
		if f.end > f.from || cut <= f.from || ctx.Err() != nil {
			return
		}
		limit = cut // an object was not what storage said: plan again without it
	}
}

// bytesTo is what a fetch up to end takes of the host.
func (f *fetch) bytesTo(end int) uint64 {
	c := f.s.c
	total := uint64(end-f.from) * c.host[c.full].PageBytes
	for _, p := range f.sides {
		total += uint64(min(end-f.from, c.window[p])) * c.host[p].PageBytes
	}
	return total
}

// enter waits until the fetches under way leave room in their share of the host arena. Who waits holds no host page for it.
func (s *storer) enter(ctx context.Context, bytes uint64) bool {
	for {
		change := s.change.wait()
		s.mu.Lock()
		ok := s.reading == 0 || s.reading+bytes <= s.c.cfg.HostBytes/hostShareFetch
		if ok {
			s.reading += bytes
		}
		s.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-change:
		case <-ctx.Done():
			return false
		}
	}
}

func (s *storer) exit(bytes uint64) {
	s.mu.Lock()
	s.reading -= bytes
	s.mu.Unlock()
	s.change.ring()
}

// hostShareFetch is the share of the host arena that fetches may fill at once, as its divisor. One fetch may always run.
const hostShareFetch = 2

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
	pools := slices.Repeat([]int{pool}, len(keys))
	return guard(func() error { return f.s.store.exists(ctx, pools, keys, found[:len(keys)]) })
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
// could not be read, end if all could.
func (f *fetch) bring(ctx context.Context, end int) (cut int) {
	c := f.s.c
	b, end := f.takeRoom(end)
	if b == nil {
		f.starved = true
		c.count.prefetchesCut.Add(1)
		return f.from
	}
	cut = f.read(ctx, b, end)
	if cut < end {
		c.count.prefetchesCut.Add(1)
		if len(f.sides) > 0 { // windows and states were those of end
			f.giveBack(b)
			return cut
		}
	}
	if cut <= f.from {
		f.giveBack(b)
		return cut
	}
	f.publish(b, cut)
	return cut
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
	if err := b.add(s, pool, pages, hashes, true); err != nil {
		s.c.bug("host view", err)
		return 0
	}
	errs := make([]error, len(b.keys))
	defer s.c.ended(s.c.began(ffi.ActivityStorageRead, len(b.keys)))
	if err := guard(func() error { return s.store.get(ctx, b.pool, b.keys, b.bytes, errs) }); err != nil {
		if ctx.Err() == nil {
			s.fault("read", err)
		}
		return 0
	}
	if err := b.deliver(s.c); err != nil {
		s.c.bug("host copy", err)
		return 0
	}
	for i, err := range errs {
		if err != nil {
			s.missing(err, pool, hashes[i])
			return i
		}
		s.c.count.storageRead.Add(uint64(len(b.bytes[i])))
	}
	return len(errs)
}

// publish gives the pages up to end to the tree, and asks again before anybody else can evict them.
func (f *fetch) publish(b *brought, end int) {
	c := f.s.c
	request := radix.InsertHostRequest{Namespace: f.ns, Tokens: f.tokens[:end*c.pageWords()], From: f.from, Pages: b.full[:end-f.from],
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
	if err == nil && f.ask != nil {
		f.answer = f.ask()
	}
	c.plan.Unlock()
	if err != nil { // the prefix went meanwhile
		c.count.prefetchesCut.Add(1)
		f.giveBack(b)
		return
	}
	f.end = end
	if rest := b.full[end-f.from:]; len(rest) > 0 {
		for len(freed.Host) <= c.full {
			freed.Host = append(freed.Host, nil)
		}
		freed.Host[c.full] = append(freed.Host[c.full], rest...)
	}
	c.giveBack(&freed)
	c.count.prefetches.Add(1)
	c.count.prefetchPages.Add(uint64(len(request.Pages)))
}
