package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/events"
	"github.com/hicache/hicache/gohicache/internal/radix"
	"github.com/hicache/hicache/gohicache/storage"
)

// Without a host tier, storage works through a small staging arena: pages pass through it chunk by chunk and the tree never sees them there. A
// prefix may be any number of times larger than the arena.

// deviceShareStage is the share of the device arena that paths which wait to be stored may keep from eviction, as its divisor.
const deviceShareStage = 4

// stageJob is a path whose device pages storage may lack. The back-up keeps them on the device until it is finished.
type stageJob struct {
	radix.BackUp
	path   *pin
	stream uint64
	bytes  uint64
}

// stage queues what of a path storage may lack. The caller holds plan.
func (s *storer) stage(path *pin, stream uint64, threshold int) {
	c, job := s.c, &stageJob{path: path.retain(), stream: stream}
	s.mu.Lock()
	off := s.degraded != "" || s.readOnly
	s.mu.Unlock()
	if off || !c.tree.BeginBackUp(path.id, threshold, &job.BackUp) {
		path.release()
		return
	}
	job.bytes = uint64(len(job.Full)) * c.device[c.full].PageBytes
	for p := range job.Windows {
		job.bytes += uint64(len(job.Windows[p])+len(job.States[p])) * c.device[p].PageBytes
	}
	s.mu.Lock()
	room := len(s.stages) < cap(s.stages) && (s.queued == 0 || s.bytes+job.bytes <= c.cfg.DeviceBytes/deviceShareStage)
	if room {
		s.queued += len(job.Full)
		s.bytes += job.bytes
		s.stages <- job // stage runs under plan: nobody else fills the queue in between
	}
	s.mu.Unlock()
	if !room {
		c.count.storeSkipped.Add(uint64(len(job.Full)))
		s.unstage(job)
	}
}

// unstage lets go of a job's pages.
func (s *storer) unstage(job *stageJob) {
	var f radix.Freed
	s.c.bug("finish staging", s.c.tree.FinishBackUp(job.ID, false, nil, nil, nil, &f))
	s.c.giveBack(&f)
	job.path.release()
}

// piece is one object to be stored.
type piece struct {
	at, pool int
	page     ids.VirtualPage
	hash     radix.Hash
	key      storage.Key
}

// writeStaged copies a job's pages to the staging arena, chunk by chunk, and stores them.
func (s *storer) writeStaged(job *stageJob) {
	stored, total := 0, len(job.Full)
	pieces, err := s.lacking(job)
	if err != nil && s.ctx.Err() == nil {
		s.fault("exists", err)
	}
	for len(pieces) > 0 && err == nil {
		n := min(s.c.cfg.StorageBatch, len(pieces))
		if n, err = s.storeChunk(job, pieces[:n]); err != nil {
			if s.ctx.Err() == nil {
				s.fault("write", err)
			}
			break
		}
		for _, p := range pieces[:n] {
			if p.pool == s.c.full {
				stored++
				s.c.teller.storage(events.Stored, p.pool, p.hash)
			}
		}
		pieces = pieces[n:]
	}
	left := 0
	for _, p := range pieces {
		if p.pool == s.c.full {
			left++
		}
	}
	s.c.count.storedPages.Add(uint64(stored))
	s.c.count.storeSkipped.Add(uint64(left))
	s.unstage(job)
	s.mu.Lock()
	s.queued -= total
	s.bytes -= job.bytes
	s.mu.Unlock()
	s.c.room.ring()
	s.change.ring()
}

// lacking lists what of a job storage does not have, parents first.
func (s *storer) lacking(job *stageJob) ([]piece, error) {
	c := s.c
	var pieces []piece
	end := 0
	add := func(pool int, pages []ids.VirtualPage, at []int, last int) {
		for i, v := range pages {
			pieces = append(pieces, piece{at: at[i] - last, pool: pool, page: v})
			end = max(end, at[i]-last+1)
		}
	}
	add(c.full, job.Full, job.FullAt, 0)
	for _, p := range c.windows {
		add(p, job.Windows[p], job.WindowsAt[p], 0)
	}
	for _, p := range c.states {
		add(p, job.States[p], job.StatesAt[p], 1) // a state stands for the prefix that ends with that page
	}
	slices.SortStableFunc(pieces, func(a, b piece) int { return cmp.Compare(a.at, b.at) })
	hashes, err := c.tree.Hashes(job.path.id, 0, end, nil)
	if err != nil { // the path was dropped meanwhile: nobody needs it stored
		s.gone("hashes", err)
		return nil, nil
	}
	keys, pools, found := make([]storage.Key, len(pieces)), make([]int, len(pieces)), make([]bool, len(pieces))
	for i := range pieces {
		keys[i], pools[i] = s.keys.key(pieces[i].pool, hashes[pieces[i].at]), pieces[i].pool
		pieces[i].key, pieces[i].hash = keys[i], hashes[pieces[i].at]
	}
	if err := guard(func() error { return s.store.exists(s.ctx, pools, keys, found) }); err != nil {
		return nil, err
	}
	rest := pieces[:0]
	for i, p := range pieces {
		if !found[i] {
			rest = append(rest, p)
		}
	}
	return rest, nil
}

// bounce are pages of the staging arena, by pool.
type bounce struct{ takes []ffi.HostPages }

// add appends a page to be taken and returns where it will stand.
func (b *bounce) add(pool int) (line, i int) {
	for line = range b.takes {
		if b.takes[line].Pool == uint32(pool) {
			b.takes[line].Pages = append(b.takes[line].Pages, ids.NoHostPage)
			return line, len(b.takes[line].Pages) - 1
		}
	}
	b.takes = append(b.takes, ffi.HostPages{Pool: uint32(pool), Pages: []ids.HostPage{ids.NoHostPage}})
	return len(b.takes) - 1, 0
}

// takeBounce takes the pages, waiting for those that others use; whoever has some gives them back without waiting for more. False if the arena can
// never hold so much, or ctx ends.
func (c *Core) takeBounce(ctx context.Context, b *bounce) bool {
	var bytes uint64
	for _, t := range b.takes {
		bytes += uint64(len(t.Pages)) * c.host[t.Pool].PageBytes
	}
	if bytes > c.cfg.HostBytes/2 && bytes > c.minimumBytes() {
		return false // one half is for writing, one for reading
	}
	for {
		change := c.room.wait()
		err := c.eng.HostAlloc(b.takes)
		if err == nil {
			return true
		}
		if !lacksRoom(err) || c.waitChange(ctx, change) != nil {
			return false
		}
	}
}

func (c *Core) freeBounce(b *bounce) {
	c.bug("host free", c.eng.HostFree(b.takes))
	c.room.ring()
}

// storeChunk moves pieces to storage and returns how many of them; fewer where the arena is small.
func (s *storer) storeChunk(job *stageJob, pieces []piece) (int, error) {
	c := s.c
	var b bounce
	for {
		b = bounce{}
		for _, p := range pieces {
			b.add(p.pool)
		}
		if c.takeBounce(s.ctx, &b) {
			break
		}
		if s.ctx.Err() != nil || len(pieces) == 1 {
			return 0, fail(KindNoCapacity, "the staging arena has no room")
		}
		pieces = pieces[:len(pieces)/2]
	}
	defer c.freeBounce(&b)
	next := make([]int, len(c.cfg.Pools))
	line := make([]int, len(c.cfg.Pools))
	for i, t := range b.takes {
		line[t.Pool] = i
	}
	place := make([]ids.HostPage, len(pieces))
	copies := make([]ffi.Copy, len(pieces))
	for i, p := range pieces {
		place[i] = b.takes[line[p.pool]].Pages[next[p.pool]]
		next[p.pool]++
		copies[i] = ffi.Copy{Pool: uint32(p.pool), DevicePage: p.page, HostPage: place[i]}
	}
	op := &operation{bounce: true, pages: len(copies)}
	c.ops.begin(op)
	if err := c.queueBackUp(op, copies, job.stream); err != nil {
		c.ops.drop(op)
		return 0, fromEngine(err)
	}
	if err := c.await(s.ctx, op); err != nil {
		c.recall(op)
		return 0, err
	}
	var o objects
	defer o.release(c)
	for i, p := range pieces {
		if err := o.addPage(s, p.pool, i, place[i], p.key); err != nil {
			return 0, err
		}
	}
	errs := make([]error, len(pieces))
	if err := guard(func() error { return s.store.put(s.ctx, o.pool, o.keys, o.bytes, errs) }); err != nil {
		return 0, err
	}
	for i := range errs {
		if errs[i] == nil {
			c.count.storageWrite.Add(uint64(len(o.bytes[i])))
		}
	}
	return len(pieces), errors.Join(errs...)
}

// bringStaged reads [from, end) chunk by chunk through the staging arena straight into device pages and publishes them there.
func (f *fetch) bringStaged(ctx context.Context, a *answer, end int) {
	c := f.s.c
	path := a.path.retain()
	defer func() { path.release() }()
	at, n := f.from, f.chunkPages()
	for at < end && n > 0 {
		n = min(n, end-at)
		good, next := f.bringChunk(ctx, path, at, n, end)
		if next != nil {
			path.release()
			path = next
			at += good
		}
		if good < n {
			c.count.prefetchesCut.Add(1)
			break
		}
	}
	if at == f.from {
		return
	}
	f.end = at
	f.answer = f.ask()
	c.count.prefetches.Add(1)
	c.count.prefetchPages.Add(uint64(at - f.from))
}

// chunkPages is how many pages of a prefix, with all that goes with them, half the staging arena holds.
func (f *fetch) chunkPages() int {
	per := f.s.c.minimumBytes()
	return max(1, min(f.s.c.cfg.StorageBatch, int(f.s.c.cfg.HostBytes/2/per)))
}

// bringChunk brings positions [at, at+n) of a prefix that ends at end. It returns how many came, and the pin of the path with them.
func (f *fetch) bringChunk(ctx context.Context, path *pin, at, n, end int) (int, *pin) {
	c := f.s.c
	var b bounce
	from := make([]int, len(c.cfg.Pools)) // by pool: the first position of the chunk that needs a page there
	for i := range n {
		b.add(c.full)
		for _, p := range f.sides {
			if from[p] = max(at, end-c.window[p]); at+i >= from[p] {
				b.add(p)
			}
		}
	}
	if !c.takeBounce(ctx, &b) {
		f.starved = true
		return 0, nil
	}
	takes, ok := f.readChunk(ctx, &b, at, from)
	if !ok {
		c.freeBounce(&b)
		return 0, nil
	}
	op, full, states := f.loadChunk(&b, takes, at, from)
	if op == nil {
		f.starved = true
		c.freeBounce(&b)
		return 0, nil
	}
	finish := func() *pin { // once the copy has ended
		defer c.freeBounce(&b)
		if op.err == nil {
			if next := f.publishChunk(path, at, n, from, full, states); next != nil {
				return next
			}
		}
		freed := radix.Freed{Device: make([][]ids.VirtualPage, len(c.cfg.Pools))}
		freed.Device[c.full] = full
		for p, v := range states {
			freed.Device[p] = []ids.VirtualPage{v}
		}
		c.giveBack(&freed)
		return nil
	}
	if err := c.await(ctx, op); err != nil && ctx.Err() != nil { // what the device has begun has to end: somebody else waits for that
		path.retain()
		f.s.readers.Add(1)
		go func() {
			defer f.s.readers.Done()
			c.recall(op)
			finish().release()
			path.release()
		}()
		return 0, nil
	}
	if next := finish(); next != nil {
		return n, next
	}
	return 0, nil
}

// readChunk fills the bounce pages of a chunk from storage and lists the device pages that it needs.
func (f *fetch) readChunk(ctx context.Context, b *bounce, at int, from []int) (takes []ffi.Take, ok bool) {
	for _, t := range b.takes {
		p, first := int(t.Pool), at
		if p != f.s.c.full {
			first = from[p]
		}
		if f.readPool(ctx, p, t.Pages, first) < first+len(t.Pages) {
			return nil, false
		}
		take := ffi.Take{Pool: t.Pool, Count: uint32(len(t.Pages))}
		if f.s.c.cfg.Pools[p].Role != radix.SWA {
			take = ffi.Take{Pool: t.Pool, Pages: make([]ids.VirtualPage, len(t.Pages))}
		}
		takes = append(takes, take)
	}
	return takes, true
}

// publishChunk gives loaded pages to the tree; nil, and the pages stay the caller's, if the prefix before them is gone.
func (f *fetch) publishChunk(path *pin, at, n int, from []int, full []ids.VirtualPage, states map[int]ids.VirtualPage) *pin {
	c := f.s.c
	request := radix.InsertRequest{Namespace: f.ns, Tokens: f.tokens[:(at+n)*c.pageWords()], After: path.id, From: at, Pages: full, Pin: true,
		WindowFrom: make([]int, len(c.cfg.Pools))}
	for _, p := range c.windows {
		request.WindowFrom[p] = min(from[p], at+n)
	}
	for p, v := range states {
		request.Checkpoints = append(request.Checkpoints, radix.Checkpoint{Pool: p, At: at + n, Page: v})
	}
	var r radix.InsertResult
	c.plan.Lock()
	err := c.tree.Insert(&request, &r)
	c.plan.Unlock()
	if err != nil {
		return nil
	}
	c.giveBack(&r.Freed)
	return c.newPin(r.Pin)
}

// loadChunk takes device pages and queues their copies; nil if there is no room. It returns the FULL pages and, by pool, the state pages.
func (f *fetch) loadChunk(b *bounce, takes []ffi.Take, at int, from []int) (*operation, []ids.VirtualPage, map[int]ids.VirtualPage) {
	c := f.s.c
	c.plan.Lock()
	defer c.plan.Unlock()
	reservation, err := c.take(takes)
	if err != nil {
		return nil, nil, nil
	}
	op := &operation{bounce: true, isLoad: true, pages: 0}
	var full []ids.VirtualPage
	states := map[int]ids.VirtualPage{}
	var copies []ffi.Copy
	for i, t := range b.takes {
		p := int(t.Pool)
		for j, h := range t.Pages {
			var v ids.VirtualPage
			switch c.cfg.Pools[p].Role {
			case radix.Full:
				v = takes[i].Pages[j]
				full = append(full, v)
			case radix.SWA:
				v = full[from[p]+j-at]
			case radix.State:
				v = takes[i].Pages[j]
				states[p] = v
			}
			copies = append(copies, ffi.Copy{Pool: t.Pool, DevicePage: v, HostPage: h})
		}
	}
	op.pages = len(copies)
	c.ops.begin(op)
	ticket, err := c.eng.Load(&ffi.Transfer{Priority: ffi.ClassUrgent, Reservation: reservation, Copies: copies, User: op.user})
	if err != nil {
		c.ops.drop(op)
		c.bug("cancel", c.eng.Cancel(reservation))
		return nil, nil, nil
	}
	op.ticket = ticket
	return op, full, states
}
