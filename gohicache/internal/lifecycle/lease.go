package lifecycle

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/radix"
)

// Lease keeps a request's pages where they are.
type Lease struct {
	hold
	lease    ffi.Lease
	step     ffi.Step // instead of lease where streams are real, see pinLease
	released atomic.Bool
	kernel   [][]ids.KernelID // by pool, made when first asked for
	hosts    [][]ids.HostPage // by pool: what the load read

	mu      sync.Mutex
	timer   *time.Timer
	readers int  // uses that the end waits for
	expired bool // while readers were there
	over    bool // released while readers were there
}

// Use keeps the lease past its time to live until the returned function is called; false if the lease is over.
func (l *Lease) Use() (end func(), ok bool) {
	if !l.beginUse() {
		return func() {}, false
	}
	var once sync.Once
	return func() { once.Do(l.endUse) }, true
}

// beginUse is Use for the lease's own calls; endUse follows if it is true.
func (l *Lease) beginUse() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.released.Load() || l.expired && l.readers == 0 { // whoever found no reader is about to release
		return false
	}
	l.readers++
	return true
}

func (l *Lease) endUse() {
	l.mu.Lock()
	l.readers--
	last := l.readers == 0
	over, expired := last && l.over, last && l.expired
	l.mu.Unlock()
	if over {
		l.end()
	} else if expired {
		l.Release()
	}
}

// expire ends a lease whose time is over, or leaves that to the last reader.
func (l *Lease) expire() {
	l.mu.Lock()
	l.expired = true
	open := l.readers > 0
	l.mu.Unlock()
	if !open {
		l.Release()
	} else if !l.released.Load() {
		l.c.count.expiredInUse.Add(1)
	}
}

// pinLease keeps the pages of a lease where they are. Where streams are real the lease is an open step on its stream: what the server enqueues there
// after Load runs behind moves and zeroing of the pages and behind other streams' use of them, and what it has enqueued before Release is a fence for
// whoever gets the pages next. The caller holds plan.
func (c *Core) pinLease(l *Lease) (err error) {
	c.scratch.lines = l.appendHeld(c.scratch.lines[:0])
	if c.cfg.Backend == BackendCUDA {
		l.step, err = c.eng.StepOpen(l.stream, c.scratch.lines)
	} else {
		l.lease, err = c.eng.LeaseAcquire(c.scratch.lines)
	}
	return fromEngine(err)
}

func (l *Lease) holder() ffi.Holder {
	if l.step != 0 {
		return ffi.Holder(l.step)
	}
	return ffi.Holder(l.lease)
}

// fence leaves a fence on the pages behind what is enqueued by now, and goes on holding them: pages that are about to be published can be read on
// another stream before this lease ends.
func (l *Lease) fence() error {
	if l.step == 0 {
		return nil
	}
	next, err := l.c.eng.StepOpen(l.stream, l.appendHeld(nil))
	if err != nil {
		return fromEngine(err)
	}
	l.step, err = next, l.c.closeStep(l.step)
	return fromEngine(err)
}

func (l *Lease) unpin() {
	if l.step != 0 {
		l.c.bug("step close", l.c.closeStep(l.step))
	} else {
		l.c.bug("lease release", l.c.eng.LeaseRelease(l.lease))
	}
}

// Tokens is the number of tokens that there are pages for.
func (l *Lease) Tokens() int { return l.tokens }

// VirtualPages are the FULL pages in order.
func (l *Lease) VirtualPages() []ids.VirtualPage { return l.pages }

// KernelIDs are the page-granular kernel ids of one pool.
func (l *Lease) KernelIDs(pool int) ([]ids.KernelID, error) {
	if pool < 0 || pool >= len(l.c.cfg.Pools) {
		return nil, fail(KindInvalid, "pool %d of %d", pool, len(l.c.cfg.Pools))
	}
	if !l.beginUse() {
		return nil, fail(KindStale, "the lease was released")
	}
	defer l.endUse()
	if l.kernel == nil {
		l.kernel = make([][]ids.KernelID, len(l.c.cfg.Pools))
	}
	if l.kernel[pool] != nil {
		return l.kernel[pool], nil
	}
	pages := l.pages
	if l.c.cfg.Pools[pool].Role != radix.Full {
		pages = l.table(pool, make([]ids.VirtualPage, 0, len(l.pages)))
	}
	out := make([]ids.KernelID, len(pages))
	if _, err := l.c.eng.KernelIDs(l.holder(), uint32(pool), ffi.GranularityPage, pages, out); err != nil {
		return nil, fromEngine(err)
	}
	l.kernel[pool] = out
	return out, nil
}

// StateSource is the kernel id of the checkpoint that the prefix ends with, in a STATE pool; false if the state starts anew.
func (l *Lease) StateSource(pool int) (ids.KernelID, bool) {
	if pool < 0 || pool >= len(l.source) || l.source[pool] == ids.NoVirtualPage || !l.beginUse() {
		return 0, false
	}
	defer l.endUse()
	out := make([]ids.KernelID, 1)
	if _, err := l.c.eng.KernelIDs(l.holder(), uint32(pool), ffi.GranularityPage, l.source[pool:pool+1], out); err != nil {
		return 0, false
	}
	return out[0], true
}

// SetCheckpoint says how many tokens the own state page stands for.
func (l *Lease) SetCheckpoint(tokens int) { l.checkpoint = tokens }

// HostPages are the host pages that the load read, by position.
func (l *Lease) HostPages(pool int) []ids.HostPage {
	if pool < 0 || pool >= len(l.hosts) {
		return nil
	}
	return l.hosts[pool]
}

// Release ends the lease; again is a no-op. Uses under way in other goroutines go on with its pages: the last one gives them up.
func (l *Lease) Release() {
	if l.released.Swap(true) {
		return
	}
	l.mu.Lock()
	if l.timer != nil {
		l.timer.Stop()
	}
	l.over = l.readers > 0
	now := !l.over
	l.mu.Unlock()
	if now {
		l.end()
	}
}

func (l *Lease) end() {
	l.c.holds.remove(l)
	l.unpin()
	l.giveUp()
}

// Insert publishes a lease's pages.
func (c *Core) Insert(l *Lease, tokens []uint32) error {
	if err := c.check(); err != nil {
		return err
	}
	if l.c == nil || !l.beginUse() {
		return fail(KindStale, "the lease was released")
	}
	defer l.endUse()
	if err := c.owns(l.c, "lease"); err != nil {
		return err
	}
	n := c.countOf(tokens)
	if n < l.Prefix() || n > l.tokens {
		return fail(KindInvalid, "%d tokens; the lease has a prefix of %d and room for %d", n, l.Prefix(), l.tokens)
	}
	if err := l.fence(); err != nil {
		return err
	}
	return l.publish(tokens, n)
}
