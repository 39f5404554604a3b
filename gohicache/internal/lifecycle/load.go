package lifecycle

import (
	"context"
	"errors"
	"time"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/radix"
)

// LoadRequest are the options of a load.
type LoadRequest struct {
	Tokens         int
	Stream         uint64
	Wait           bool
	WindowTailOnly bool
	windowFrom     []int // by pool, if not nil: the first position whose page gets a window page
	NoStorage      bool
	NoLoadBack     bool
	TTL            time.Duration
}

// Load makes a match resident, takes pages for the new tokens and leases all of it.
func (c *Core) Load(ctx context.Context, m *Match, request LoadRequest) (*Lease, error) {
	l := new(Lease)
	if err := c.LoadAs(ctx, l, m, request); err != nil {
		return nil, err
	}
	return l, nil
}

// LoadAs is Load for callers that bring the memory; l is new, and of no use if it fails.
func (c *Core) LoadAs(ctx context.Context, l *Lease, m *Match, request LoadRequest) error {
	if err := c.load(ctx, m, &request, &l.hold, l); err != nil {
		return err
	}
	if request.TTL > 0 {
		l.mu.Lock()
		l.timer = time.AfterFunc(request.TTL, l.expire)
		l.mu.Unlock()
	}
	return nil
}

// load fills h, which is who's, and leases its pages if that is a lease.
func (c *Core) load(ctx context.Context, m *Match, request *LoadRequest, h *hold, who holder) error {
	if err := c.check(); err != nil {
		return err
	}
	if err := c.owns(m.c, "match"); err != nil {
		return err
	}
	a, err := m.acquire()
	if err != nil {
		return err
	}
	defer func() { a.release() }()
	if err := ctx.Err(); err != nil {
		return err
	}
	c.pump(0)
	plan := c.decide(&a.m, m, request, 0)
	if plan.Prefetch {
		a = c.store.Load().prefetch(ctx, m, a)
		plan = c.decide(&a.m, m, request, 0)
	}
	if plan.Load < a.m.Usable*c.cfg.PageTokens {
		a.release()
		a = c.askFor(m.tokens, &m.request, true)
	}
	err = c.withRoom(ctx, request.Wait, func(turn bool) (err error) {
		if a.starved && turn { // others that were before it have let go of the host by now
			a = c.store.Load().prefetch(ctx, m, a)
		}
		err = c.tryLoad(a, m, request, h, who)
		if errors.Is(err, radix.ErrGap) { // a load that the match joined has failed, or its path was cleared
			a = m.replace(a, c.askFor(m.tokens, &m.request, a.deviceOnly))
			err = &retryAfter{}
		}
		return err
	})
	if err != nil {
		return err
	}
	c.count.loads.Add(1)
	c.count.hitDevice.Add(uint64(h.hitDevice))
	c.count.hitHost.Add(uint64(h.hitHost))
	c.count.hitStorage.Add(uint64(h.hitStorage))
	return nil
}

// retryAfter is what a try returns when room is on its way: the operations whose end brings it.
type retryAfter struct{ ops []*operation }

func (*retryAfter) Error() string { return "room is on its way" }

// withRoom runs try until it succeeds, fails for another reason than room, or waiting is over. Callers that wait take turns in order; try
// is told when it is the caller's turn.
func (c *Core) withRoom(ctx context.Context, wait bool, try func(turn bool) error) error {
	return c.withRoomBeside(ctx, wait, 0, try)
}

// withRoomBeside is withRoom for a caller that holds own sequences and steps itself: waiting for those to go would be waiting for ever.
func (c *Core) withRoomBeside(ctx context.Context, wait bool, own int, try func(turn bool) error) error {
	waiting, alone, vain := false, false, 0
	defer func() {
		if waiting {
			<-c.turn
		}
	}()
	for {
		var change <-chan struct{}
		if wait { // before the try: what is freed after it is not missed
			change = c.room.wait()
		}
		err := try(waiting)
		if err == nil {
			return nil
		}
		var later *retryAfter
		if errors.As(err, &later) {
			good := len(later.ops) == 0
			for _, op := range later.ops {
				err := c.await(ctx, op)
				if ctx.Err() != nil { // also where the copy has just ended well: nothing is taken
					return ctx.Err()
				}
				good = good || err == nil
			}
			if vain++; good {
				vain = 0
			}
			if vain < vainMax {
				continue
			}
			err = fail(KindNoCapacity, "what would have to go cannot be backed up: its copies to the host keep failing")
		}
		var e *Error
		if !errors.As(err, &e) || e.Kind != KindNoCapacity {
			return err
		}
		if !wait {
			c.count.noCapacity.Add(1)
			return err
		}
		if !waiting {
			c.count.capacityWait.Add(1)
			select {
			case c.turn <- struct{}{}:
				waiting = true
				continue // the queue may have lasted
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if c.nothingHeld(own) {
			if alone {
				e.Kind = KindInfeasible
				return e
			}
			alone = true
			continue // what the others held may have gone after the try
		}
		alone = false
		if err := c.waitChange(ctx, change); err != nil {
			return err
		}
	}
}

// nothingHeld reports whether no release and no completion can ever give room: only what the caller itself holds is left, of which each has a
// pin, or its one match.
func (c *Core) nothingHeld(own int) bool {
	return c.holds.count() <= own && c.ops.count() == 0 && c.count.pins.Load() <= int64(max(own, 1)) && c.store.Load().idle()
}

func (c *Core) waitChange(ctx context.Context, change <-chan struct{}) error {
	if c.cfg.Fault != nil && c.pump(pumpTimeout) > 0 {
		return nil
	}
	timeout := time.NewTimer(changeTimeout)
	defer timeout.Stop()
	select {
	case <-change:
	case <-timeout.C: // pages leave quarantine without a word
	case <-c.background.Done():
		return errClosed()
	case <-ctx.Done():
		return ctx.Err()
	}
	return c.check()
}

const changeTimeout = 10 * time.Millisecond

// vainMax is how often in a row back-ups that would give room may all fail before the cache says so.
const vainMax = 4

// demand is what one load takes, by pool, and how its copies and binds are made.
type demand struct {
	usable     int // pages of the prefix that are used
	loadFull   int
	newPages   int
	copies     int // pages of any pool that come from the host
	windowFrom []int
	takes      []ffi.Take
}

// tryLoad plans and carries out a load under the plan lock: everything is taken and queued, or nothing is.
func (c *Core) tryLoad(a *answer, m *Match, request *LoadRequest, h *hold, who holder) error {
	c.plan.Lock()
	defer c.plan.Unlock()
	if err := c.check(); err != nil {
		return err
	}
	if err := c.tree.Refresh(&a.m); err != nil {
		return err
	}
	d, err := c.demandOf(&a.m, m, request)
	if err != nil {
		return err
	}
	c.initHold(h, &a.m, m, request, d)
	if err := c.takeAndLoad(&a.m, a.path, h, d); err != nil {
		return err
	}
	h.path = a.path.retain()
	h.joins(&a.m)
	c.splitHit(h, a, d)
	if lease, ok := who.(*Lease); ok {
		if err := c.pinLease(lease); err != nil {
			h.giveUp()
			return err
		}
	}
	c.holds.add(who)
	return nil
}

// demandOf computes what a load for the match takes.
func (c *Core) demandOf(r *radix.Match, m *Match, request *LoadRequest) (*demand, error) {
	tokens := request.Tokens
	if tokens == 0 {
		tokens = m.count
	}
	d := &c.scratch.demand
	d.usable, d.loadFull = r.Usable, len(r.LoadFull)
	if tokens < d.usable*c.cfg.PageTokens || tokens > maxTokens {
		return nil, fail(KindInvalid, "Tokens is %d, but the prefix has %d and a request at most %d", tokens, d.usable*c.cfg.PageTokens, maxTokens)
	}
	request.Tokens = tokens
	d.newPages = c.pagesFor(tokens) - d.usable
	d.takes = d.takes[:0]
	if n := d.loadFull + d.newPages; n > 0 {
		d.takes = append(d.takes, ffi.Take{Pool: uint32(c.full), Count: uint32(n)}) // its pages are those of the hold, once there is one
	}
	loading := d.usable > r.Ready
	d.copies = d.loadFull
	for _, p := range c.windows {
		d.windowFrom[p] = d.usable
		if request.WindowTailOnly {
			d.windowFrom[p] = min(max(d.usable, c.pagesOf(max(tokens-c.cfg.Pools[p].WindowTokens, 0))), d.usable+d.newPages)
		}
		if request.windowFrom != nil {
			d.windowFrom[p] = min(max(d.usable, request.windowFrom[p]), d.usable+d.newPages)
		}
		n := d.usable + d.newPages - d.windowFrom[p]
		if loading {
			n += len(r.LoadWindows[p])
			d.copies += len(r.LoadWindows[p])
		}
		if n > 0 {
			d.takes = append(d.takes, ffi.Take{Pool: uint32(p), Count: uint32(n)})
		}
	}
	for _, p := range c.states {
		n := 1
		if loading && r.States[p].Device == ids.NoVirtualPage && r.States[p].Host != ids.NoHostPage {
			n = 2
			d.copies++
		}
		d.takes = append(d.takes, ffi.Take{Pool: uint32(p), Pages: make([]ids.VirtualPage, n)})
	}
	return d, c.feasible(d)
}

// feasible refuses what an empty device could not hold.
func (c *Core) feasible(d *demand) error {
	return c.fitsEmpty(func(p int) uint64 {
		switch c.cfg.Pools[p].Role {
		case radix.Full:
			return uint64(d.usable + d.newPages)
		case radix.SWA:
			return uint64(d.usable + d.newPages - d.windowFrom[p] + min(d.usable, c.window[p]))
		}
		return 1
	})
}

// fitsEmpty is ErrInfeasible if so many pages of each pool would not even fit an empty device.
func (c *Core) fitsEmpty(pages func(pool int) uint64) error {
	var bytes uint64
	for p := range c.cfg.Pools {
		info, n := &c.device[p], pages(p)
		if room := uint64(info.PageCount - info.FirstPage); n > room {
			e := fail(KindInfeasible, "%d pages, and the pool can hold %d", n, room)
			e.Pool, e.Need, e.Have = p, n*info.PageBytes, room*info.PageBytes
			return e
		}
		if !c.cfg.Pools[p].Static {
			bytes += n * info.PageBytes
		}
	}
	if room := c.cfg.DeviceBytes; bytes > room {
		e := fail(KindInfeasible, "the request needs more than the whole device")
		e.Need, e.Have = bytes, room
		return e
	}
	return nil
}

const maxTokens = 1 << 30

func (c *Core) initHold(h *hold, r *radix.Match, m *Match, request *LoadRequest, d *demand) {
	n := len(c.cfg.Pools)
	ints := h.ints[:]
	if 3*n > len(ints) {
		ints = make([]int, 3*n)
	}
	*h = hold{c: c, namespace: m.request.Namespace, stream: request.Stream, tokens: request.Tokens, prefix: d.usable, owned: d.usable,
		windowLow: ints[:n:n], windowEnd: ints[n : 2*n : 2*n], windowFrom: ints[2*n : 3*n : 3*n],
		priority: m.request.Priority, retain: c.retainUntil(&m.request)}
	copy(h.windowFrom, d.windowFrom)
	for _, p := range c.windows {
		h.windowLow[p], h.windowEnd[p] = max(0, d.usable-c.window[p]), d.usable
	}
	if len(c.states) > 0 {
		h.state, h.source = make([]ids.VirtualPage, n), make([]ids.VirtualPage, n)
		for p := range h.state {
			h.state[p], h.source[p] = ids.NoVirtualPage, ids.NoVirtualPage
		}
		for _, p := range c.states {
			if d.usable > 0 {
				h.source[p] = r.States[p].Device
			}
		}
	}
	h.pages = make([]ids.VirtualPage, d.usable+d.newPages)
	taken := h.pages[copy(h.pages, r.Resident[:min(len(r.Resident), d.usable)]):]
	if len(taken) > 0 {
		d.takes[0].Pages = taken
	}
}

// takeAndLoad reserves, binds and queues; on failure nothing is taken.
func (c *Core) takeAndLoad(r *radix.Match, path *pin, h *hold, d *demand) error {
	if len(d.takes) == 0 {
		return nil
	}
	if d.copies == 0 {
		if err := c.alloc(d.takes); err != nil {
			return err
		}
		for _, t := range d.takes {
			if c.cfg.Pools[t.Pool].Role == radix.State {
				h.state[t.Pool] = t.Pages[0]
			}
		}
		return nil
	}
	reservation, err := c.take(d.takes)
	if err != nil {
		return err
	}
	transfer, states := c.describe(r, h, d, reservation)
	op := &operation{isLoad: true, pages: len(transfer.Copies)}
	c.ops.begin(op)
	transfer.User = op.user
	start := c.cfg.Clock()
	ticket, err := c.eng.Load(transfer)
	if err != nil {
		c.ops.drop(op)
		c.bug("cancel", c.eng.Cancel(reservation))
		return fromEngine(err)
	}
	c.count.submit.Add(c.cfg.Clock().Sub(start))
	op.ticket = ticket
	loaded := h.pages[len(h.pages)-d.newPages-d.loadFull : len(h.pages)-d.newPages]
	op.load, err = c.tree.BeginLoad(r, loaded, states, &op.surplus)
	if err != nil {
		c.abandonLoad(r, h, d, op, states)
		return fail(KindInternal, "the tree refused a load: %v", err)
	}
	h.waits = append(h.waits, op.use())
	c.tree.ReleaseHost(path.id) // the load has its own; the host copies may go once it has ended
	return nil
}

// abandonLoad takes back a submitted load that the tree does not want: the pages go, and are quarantined until the copy ends.
func (c *Core) abandonLoad(r *radix.Match, h *hold, d *demand, op *operation, states []ids.VirtualPage) {
	var f radix.Freed
	f.Device = make([][]ids.VirtualPage, len(c.cfg.Pools))
	for _, p := range c.windows {
		for _, w := range r.LoadWindows[p] {
			if w.Bind != ids.NoVirtualPage {
				f.Device[p] = append(f.Device[p], w.Bind)
			}
		}
	}
	f.Device[c.full] = h.pages[len(h.pages)-d.newPages-d.loadFull:]
	for _, p := range c.states {
		for _, v := range []ids.VirtualPage{h.state[p], states[p]} {
			if v != ids.NoVirtualPage {
				f.Device[p] = append(f.Device[p], v)
			}
		}
	}
	c.giveBack(&f)
	op.load = radix.LoadID{} // its completion finds nothing to publish
	op.abandoned = true
}

// describe writes the copies and binds of a load, and fills the hold's pages.
func (c *Core) describe(r *radix.Match, h *hold, d *demand, reservation ffi.Reservation) (*ffi.Transfer, []ids.VirtualPage) {
	s := &c.scratch
	s.copies, s.binds = s.copies[:0], s.binds[:0]
	var states []ids.VirtualPage
	loading := d.usable > r.Ready
	for i := range d.takes {
		t := &d.takes[i]
		switch p := int(t.Pool); c.cfg.Pools[p].Role {
		case radix.Full:
			for j := 0; j < d.loadFull; j++ {
				s.copies = append(s.copies, ffi.Copy{Pool: t.Pool, DevicePage: t.Pages[j], HostPage: r.LoadFull[j]})
			}
			for _, v := range t.Pages[d.loadFull:] {
				s.binds = append(s.binds, ffi.Bind{Pool: t.Pool, VPage: v})
			}
		case radix.SWA:
			if loading {
				for _, w := range r.LoadWindows[p] {
					v := w.Bind
					if v == ids.NoVirtualPage {
						v = h.pages[w.At]
					}
					s.copies = append(s.copies, ffi.Copy{Pool: t.Pool, DevicePage: v, HostPage: w.Host})
				}
			}
			for _, v := range h.pages[d.windowFrom[p]:] {
				s.binds = append(s.binds, ffi.Bind{Pool: t.Pool, VPage: v})
			}
		case radix.State:
			if states == nil {
				states = make([]ids.VirtualPage, len(c.cfg.Pools))
				for q := range states {
					states[q] = ids.NoVirtualPage
				}
			}
			h.state[p] = t.Pages[0]
			s.binds = append(s.binds, ffi.Bind{Pool: t.Pool, VPage: t.Pages[0]})
			if len(t.Pages) == 2 {
				states[p], h.source[p] = t.Pages[1], t.Pages[1]
				s.copies = append(s.copies, ffi.Copy{Pool: t.Pool, DevicePage: t.Pages[1], HostPage: r.States[p].Host})
			}
		}
	}
	return &ffi.Transfer{Priority: ffi.ClassUrgent, Reservation: reservation, Copies: s.copies, Binds: s.binds, Stream: h.stream}, states
}

// joins adds the loads of others that bring parts of the prefix.
func (h *hold) joins(r *radix.Match) {
	if len(r.Joins) == 0 {
		return
	}
	for _, op := range h.c.ops.list() {
		for _, id := range r.Joins {
			if op.isLoad && op.load == id && !contains(h.waits, op) {
				h.waits = append(h.waits, op.use())
			}
		}
	}
}

func contains(ops []*operation, op *operation) bool {
	for _, o := range ops {
		if o == op {
			return true
		}
	}
	return false
}

// splitHit says which tier supplied how much of the prefix.
func (c *Core) splitHit(h *hold, a *answer, d *demand) {
	ps := c.cfg.PageTokens
	h.hitStorage = min(a.storage, d.loadFull) * ps
	h.hitHost = d.loadFull*ps - h.hitStorage
	if c.cfg.Staging { // it went straight to the device
		h.hitStorage = min(a.storage, d.usable) * ps
	}
	h.hitDevice = d.usable*ps - h.hitHost - h.hitStorage
}

// scratch are buffers that only the holder of plan uses.
type scratch struct {
	demand     demand
	copies     []ffi.Copy
	binds      []ffi.Bind
	demands    []ffi.Demand
	evictable  []uint64
	quotas     []uint64
	want       []int
	request    radix.EvictRequest
	evict      radix.EvictResult
	hostWant   []int // a host pass may run inside a device pass
	hostEvict  radix.EvictResult
	backUp     radix.BackUp
	inserted   radix.InsertResult
	windowFrom []int // of an insert
	lines      []ffi.Pages
}

func (s *scratch) init(pools int) {
	s.demand.windowFrom, s.windowFrom = make([]int, pools), make([]int, pools)
	s.evictable, s.quotas = make([]uint64, pools), make([]uint64, pools)
	s.want, s.hostWant = make([]int, pools), make([]int, pools)
}
