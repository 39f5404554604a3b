package lifecycle

import (
	"errors"
	"slices"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/radix"
)

// alloc takes and binds device pages, giving up what policy says where they do not fit. The caller holds plan. It returns a *retryAfter if room
// is on its way (write_back), a KindNoCapacity error if there is none.
func (c *Core) alloc(takes []ffi.Take) error {
	return c.takeWith(c.demandsOf(takes), func() error { return c.eng.Alloc(takes) })
}

// take is alloc for a reservation.
func (c *Core) take(takes []ffi.Take) (ffi.Reservation, error) {
	var reservation ffi.Reservation
	err := c.takeWith(c.demandsOf(takes), func() (err error) {
		reservation, err = c.eng.Reserve(takes)
		return err
	})
	return reservation, err
}

// demandsOf is what takes ask for, pool by pool, in scratch.
func (c *Core) demandsOf(takes []ffi.Take) []ffi.Demand {
	d := c.scratch.demands[:0]
	for _, t := range takes {
		n := t.Count
		if t.Pages != nil {
			n = uint32(len(t.Pages))
		}
		d = append(d, ffi.Demand{Pool: t.Pool, PageCount: n})
	}
	c.scratch.demands = d
	return d
}

// takeWith runs do, and again after each way of making room: first the smallest quotas that make the demand fit, then, where pinned pages
// keep those from being packed, as many pages of each pool as are asked for.
func (c *Core) takeWith(demands []ffi.Demand, do func() error) error {
	c.closeCaptured()
	var err error = ffi.ErrNoCapacity
	planned, quotas := c.planQuotas(demands) // before the first try: a full device is the normal state, and an error costs more than the question
	if planned && !quotas {
		err = do()
	}
	for _, exact := range []bool{true, false} {
		if !lacksRoom(err) || exact && !quotas {
			continue
		}
		if !exact {
			c.demandQuotas(demands)
		}
		ops, gone := c.evictDevice(radix.ForRoom)
		if len(ops) > 0 {
			return &retryAfter{ops}
		}
		if gone > 0 {
			err = do()
		}
	}
	if err == ffi.ErrNoCapacity || err == ffi.ErrMovesBlocked {
		err = do() // for the numbers
	}
	return c.refused(err)
}

// refused turns an engine's error into this package's. Of one for want of room it says what is on its way besides what the engine knows of: pages that
// can go once they are backed up.
func (c *Core) refused(err error) error {
	if err == nil {
		return nil
	}
	err = fromEngine(err)
	var e *Error
	if !errors.As(err, &e) || e.Kind != KindNoCapacity {
		return err
	}
	pages := make([]uint64, len(c.device))
	c.tree.AfterBackUps(pages)
	static := func(p int) bool { return p >= 0 && c.cfg.Pools[p].Static }
	for p, n := range pages {
		if p == e.Pool || !static(p) && !static(e.Pool) {
			e.Pending += n * c.device[p].PageBytes
		}
	}
	return e
}

func lacksRoom(err error) bool {
	return errors.Is(err, ffi.ErrNoCapacity) || errors.Is(err, ffi.ErrMovesBlocked)
}

// planQuotas writes into scratch.want the smallest quotas whose eviction makes the demand fit; planned is false if none would, some if there
// is anything to evict.
func (c *Core) planQuotas(demands []ffi.Demand) (planned, some bool) {
	s := &c.scratch
	for p := range s.evictable {
		s.evictable[p] = uint64(c.tree.Counts(p).DeviceEvictable)
	}
	preference := ffi.PreferenceFullFirst
	if c.store.Load() != nil {
		preference = ffi.PreferenceSWAFirst // what storage holds comes back whole: keep prefixes, give up windows
	}
	if err := c.eng.ReclaimPlan(demands, s.evictable, preference, s.quotas); err != nil {
		return false, false
	}
	for p, n := range s.quotas {
		s.want[p] = int(n)
		some = some || n > 0
	}
	return true, some
}

// demandQuotas writes into scratch.want one page for each page asked for: a pool that gets its own pages back as holes needs no move.
func (c *Core) demandQuotas(demands []ffi.Demand) {
	clear(c.scratch.want)
	for _, d := range demands {
		c.scratch.want[d.Pool] += int(d.PageCount)
	}
}

// evictDevice gives up scratch.want device pages. It returns how many went, and the back-ups that have to end before more do (write_back). Where
// the host has no room for those it tries fewer pages; only if it can take none at all are pages dropped, so that eviction makes progress.
func (c *Core) evictDevice(cause radix.Cause) (ops []*operation, gone int) {
	pages := 0
	for _, n := range c.scratch.want {
		pages += n
	}
	defer c.ended(c.began(ffi.ActivityPlan, pages))
	unbacked := radix.Drop
	if c.policy() == WriteBack && c.cfg.HostBytes > 0 {
		unbacked = radix.Back
	}
	for {
		ops, gone, refused := c.evictPass(unbacked, cause)
		if gone > 0 || len(ops) > 0 || !refused {
			return ops, gone
		}
		if !halve(c.scratch.want) {
			_, gone, _ = c.evictPass(radix.Drop, radix.HostPressure)
			c.count.hostPressure.Add(uint64(gone))
			return nil, gone
		}
	}
}

// halve makes every quota smaller, down to one; false if none was larger.
func halve(want []int) bool {
	some := false
	for p, n := range want {
		if n > 1 {
			want[p], some = n/2, true
		}
	}
	return some
}

// evictPass is one pass of the tree and what it entails; refused says that a back-up found no room on the host.
func (c *Core) evictPass(unbacked radix.Unbacked, cause radix.Cause) (ops []*operation, gone int, refused bool) {
	r := &c.scratch.evict
	if c.timed.Load() {
		c.tree.Advance(uint64(c.cfg.Clock().UnixNano()))
	}
	request := &c.scratch.request
	*request = radix.EvictRequest{Tier: radix.Device, Want: c.scratch.want, Unbacked: unbacked, Cause: cause}
	c.tree.Evict(request, r)
	ops, failed := c.runBackUps(r.BackUps)
	c.evicted(radix.Device, r)
	for _, n := range r.Gone {
		gone += n
	}
	c.giveBack(&r.Freed)
	return ops, gone, failed > 0
}

// runBackUps submits the back-ups that an eviction asked for; those that find no room on the host are given up.
func (c *Core) runBackUps(list []radix.BackUp) (ops []*operation, failed int) {
	for i := range list {
		if op := c.submitBackUp(&list[i], 0, nil); op != nil {
			ops = append(ops, op)
		} else {
			failed++
		}
	}
	return ops, failed
}

// takeHost takes host pages, giving up others as policy says: first those whose device copy is gone or that nobody used longest, then
// mirrors of device pages. The caller holds plan. False, and nothing taken, if there is no room.
func (c *Core) takeHost(takes []ffi.HostPages) bool {
	err := c.eng.HostAlloc(takes)
	for _, mirrors := range []bool{false, true} {
		if !lacksRoom(err) {
			break
		}
		if c.evictHost(takes, err, mirrors) > 0 {
			err = c.eng.HostAlloc(takes)
		}
	}
	if err != nil && !lacksRoom(err) {
		c.bug("host alloc", err)
	}
	return err == nil
}

// evictHost gives up host pages until the bytes that a take lacks are there. It returns how many pages went.
func (c *Core) evictHost(takes []ffi.HostPages, why error, mirrors bool) int {
	var lack uint64
	var e *ffi.Error
	if errors.As(why, &e) && e.Need > e.Have {
		lack = e.Need - e.Have
	} else {
		for _, t := range takes {
			lack += uint64(len(t.Pages)) * c.host[t.Pool].PageBytes
		}
	}
	s := &c.scratch
	if e != nil && int(e.Pool) < len(c.host) && c.separate(int(e.Pool)) {
		lack = 0 // the engine names a pool whose own region is full; the arena that the others share may have room
	}
	c.regionLacks(takes)
	for p := range s.hostWant {
		if !c.separate(p) {
			s.hostWant[p] = int((lack + c.host[p].PageBytes - 1) / c.host[p].PageBytes)
		}
	}
	request := radix.EvictRequest{Tier: radix.Host, Want: s.hostWant, Duplicates: mirrors, Stop: func(gone []int) bool {
		var bytes uint64
		for p, n := range gone {
			if !c.separate(p) {
				bytes += uint64(n) * c.host[p].PageBytes
			} else if n < s.hostWant[p] {
				return false
			}
		}
		return bytes >= lack
	}}
	c.tree.Evict(&request, &s.hostEvict)
	c.evicted(radix.Host, &s.hostEvict)
	total := 0
	for _, n := range s.hostEvict.Gone {
		total += n
	}
	c.giveBack(&s.hostEvict.Freed)
	return total
}

// separate says that a pool has a host region of its own.
func (c *Core) separate(pool int) bool { return c.host[pool].HostLayout != ffi.HostLayoutEnvelope }

// regionLacks writes into scratch.hostWant how many pages each pool with a host region of its own lacks of a take, and 0 for the others.
func (c *Core) regionLacks(takes []ffi.HostPages) {
	want := c.scratch.hostWant
	clear(want)
	for _, t := range takes {
		if c.separate(int(t.Pool)) {
			want[t.Pool] += len(t.Pages)
		}
	}
	for p, n := range want {
		if n == 0 {
			continue
		}
		room, err := c.eng.Capacity(ffi.TierHost, uint32(p))
		c.bug("capacity", err)
		want[p] = max(0, n-int(room.SchedulablePages))
	}
}

// Evict gives up pages of one pool on one tier in the order of policy, for tests and for servers that know what is coming. It returns how
// many went, those that go once they are backed up included.
func (c *Core) Evict(host bool, pool, pages int) (int, error) {
	if err := c.check(); err != nil {
		return 0, err
	}
	if pool < 0 || pool >= len(c.cfg.Pools) || pages < 0 {
		return 0, fail(KindInvalid, "pool %d of %d, %d pages", pool, len(c.cfg.Pools), pages)
	}
	c.plan.Lock()
	defer c.plan.Unlock()
	s := &c.scratch
	clear(s.want)
	s.want[pool] = pages
	if !host {
		ops, gone := c.evictDevice(radix.Requested)
		for _, op := range ops {
			gone += op.pages
		}
		return gone, nil
	}
	c.tree.Evict(&radix.EvictRequest{Tier: radix.Host, Want: s.want, Duplicates: true, Cause: radix.Requested}, &s.hostEvict)
	c.evicted(radix.Host, &s.hostEvict)
	gone := s.hostEvict.Gone[pool]
	c.giveBack(&s.hostEvict.Freed)
	return gone, nil
}

// backUp copies to the host what the path has on the device alone, if the write policy wants that now. The caller holds plan.
func (c *Core) backUp(path *pin, stream uint64) {
	threshold := c.rules().BackUpMinHits
	if threshold == 0 {
		return
	}
	store := c.store.Load()
	if c.cfg.Staging {
		if store != nil {
			store.stage(path, stream, threshold)
		}
		return
	}
	b := &c.scratch.backUp
	if !c.tree.BeginBackUp(path.id, threshold, b) {
		if store != nil && store.secondChance() {
			go store.offer(path.retain())
		}
		return
	}
	if c.submitBackUp(b, stream, path) == nil {
		c.count.backUpsSkipped.Add(1)
		c.count.backUpsSkippedPages.Add(uint64(len(b.Full)))
	}
}

// submitBackUp takes host pages for a back-up and queues its copies; where the host has no room for all, for a shorter prefix. nil, and the
// back-up ended, if there is no room at all or the engine refuses.
func (c *Core) submitBackUp(b *radix.BackUp, stream uint64, path *pin) *operation {
	op := &operation{backUp: b.ID}
	n := len(b.Full)
	for !c.takeHost(c.hostPagesFor(b, n, op)) {
		if n /= 2; n == 0 || path == nil { // an eviction needs the end of what it backs up, not the beginning
			c.endBackUp(op, false)
			return nil
		}
	}
	if n < len(b.Full) {
		c.count.backUpsSkippedPages.Add(uint64(len(b.Full) - n))
	}
	copies := c.scratch.copies[:0]
	for i, h := range op.full {
		copies = append(copies, ffi.Copy{Pool: uint32(c.full), DevicePage: b.Full[i], HostPage: h})
	}
	for _, p := range c.windows {
		for i := range op.windows[p] {
			copies = append(copies, ffi.Copy{Pool: uint32(p), DevicePage: b.Windows[p][i], HostPage: op.windows[p][i]})
		}
	}
	for _, p := range c.states {
		for i := range op.states[p] {
			copies = append(copies, ffi.Copy{Pool: uint32(p), DevicePage: b.States[p][i], HostPage: op.states[p][i]})
		}
	}
	c.scratch.copies, op.pages = copies, len(copies)
	c.ops.begin(op)
	if err := c.queueBackUp(op, copies, stream); err != nil {
		c.ops.drop(op)
		c.endBackUp(op, true)
		if !errors.Is(err, ffi.ErrLimit) {
			c.bug("back-up", err)
		}
		return nil
	}
	if s := c.store.Load(); path != nil && s != nil {
		op.path, op.store = path.retain(), s
	}
	return op
}

// hostPagesFor makes room in op for the host pages of the first n full pages of a back-up and of what goes with them, and lists the takes that
// fill it.
func (c *Core) hostPagesFor(b *radix.BackUp, n int, op *operation) []ffi.HostPages {
	end := 1 << 62
	if n < len(b.Full) {
		end = b.FullAt[n]
	}
	upTo := func(at []int, end int) int { // how many of the ascending positions are below end
		i, _ := slices.BinarySearch(at, end)
		return i
	}
	pools := len(c.cfg.Pools)
	var takes []ffi.HostPages
	add := func(p, count int) []ids.HostPage {
		pages := make([]ids.HostPage, count)
		if count > 0 {
			takes = append(takes, ffi.HostPages{Pool: uint32(p), Pages: pages})
		}
		return pages
	}
	op.full = add(c.full, n)
	op.windows = make([][]ids.HostPage, pools)
	for _, p := range c.windows {
		op.windows[p] = add(p, upTo(b.WindowsAt[p], end))
	}
	op.states = make([][]ids.HostPage, pools)
	for _, p := range c.states {
		op.states[p] = add(p, upTo(b.StatesAt[p], end))
	}
	return takes
}

// queueBackUp submits the copies so that they are reported after every back-up before them: parents before children.
func (c *Core) queueBackUp(op *operation, copies []ffi.Copy, stream uint64) error {
	c.ops.mu.Lock()
	after := c.ops.lastBackUp
	c.ops.mu.Unlock()
	t := ffi.Transfer{Priority: ffi.ClassNormal, Copies: copies, Stream: stream, After: after, User: op.user}
	start := c.cfg.Clock()
	ticket, err := c.eng.BackUp(&t)
	c.count.submit.Add(c.cfg.Clock().Sub(start))
	if err != nil {
		return err
	}
	op.ticket = ticket
	c.ops.mu.Lock()
	c.ops.lastBackUp = ticket
	c.ops.mu.Unlock()
	return nil
}

// endBackUp ends a back-up that was not submitted; taken says that its host pages are to be given back.
func (c *Core) endBackUp(op *operation, taken bool) {
	var f radix.Freed
	c.bug("finish back-up", c.tree.FinishBackUp(op.backUp, false, nil, nil, nil, &f))
	if taken {
		c.appendHost(&f, op)
	}
	c.giveBack(&f)
}
