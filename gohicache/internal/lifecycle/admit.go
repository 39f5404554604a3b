package lifecycle

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/radix"
)

// AdmitRequest is what a request is going to take.
type AdmitRequest struct {
	Extend int // prompt tokens to be computed; 0: what the match leaves of its tokens
	MaxNew int // tokens that it may generate
	Chunk  int // at most so many prompt tokens are computed at once; 0: all
}

// Admission keeps room promised to a request that has not taken it yet.
type Admission struct {
	c     *Core
	pages []uint32 // by pool
	over  atomic.Bool
}

// Pages is the price of the request, by pool.
func (a *Admission) Pages() []uint32 { return a.pages }

// Release ends the promise; again is a no-op.
func (a *Admission) Release() {
	if a.over.Swap(true) {
		return
	}
	a.c.plan.Lock()
	for p, n := range a.pages {
		a.c.admitted[p] -= uint64(n)
	}
	a.c.plan.Unlock()
	a.c.room.ring()
}

// headroomPages are kept free for each request beyond what it asks for: tail pages of it and of its neighbours.
const headroomPages = 2

// Admit prices a request together with those admitted before, gives up pages until all of it fits, and promises the room. It takes nothing.
func (c *Core) Admit(m *Match, request AdmitRequest) (*Admission, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if request.Extend < 0 || request.MaxNew < 0 || request.Chunk < 0 {
		return nil, fail(KindInvalid, "Extend, MaxNew and ChunkTokens must not be negative")
	}
	if request.Extend > maxTokens || request.MaxNew > maxTokens {
		return nil, fail(KindInvalid, "Extend is %d and MaxNew %d; a request has at most %d tokens", request.Extend, request.MaxNew, maxTokens)
	}
	if m.c != nil && m.c != c {
		return nil, c.owns(m.c, "match")
	}
	a, err := m.acquire()
	if err != nil {
		return nil, err
	}
	defer a.release()
	c.pump(0)
	c.plan.Lock()
	defer c.plan.Unlock()
	out := &Admission{c: c, pages: c.price(&a.m, m, request)}
	resident := uint64(a.m.Usable - len(a.m.LoadFull)) // pages of the prefix that are there and stay
	if err := c.fitsEmpty(func(p int) uint64 {
		if p == c.full {
			return resident + uint64(out.pages[p])
		}
		return uint64(out.pages[p])
	}); err != nil {
		return nil, err
	}
	var demands []ffi.Demand
	for p, n := range out.pages {
		if total := uint64(n) + c.admitted[p]; total > 0 {
			demands = append(demands, ffi.Demand{Pool: uint32(p), PageCount: uint32(min(total, 1<<31))})
		}
	}
	fits := func() error { return c.eng.Fits(demands) }
	err = c.takeWith(demands, fits)
	if later := new(retryAfter); errors.As(err, &later) { // what has to go does so once it is backed up; this call waits for nothing
		err = c.refused(fits())
	}
	if err != nil {
		return nil, err
	}
	for p, n := range out.pages {
		c.admitted[p] += uint64(n)
	}
	return out, nil
}

// price is what a request takes of each pool, in pages.
func (c *Core) price(r *radix.Match, m *Match, request AdmitRequest) []uint32 {
	ps := c.cfg.PageTokens
	extend := request.Extend
	if extend == 0 {
		extend = max(m.count-r.Usable*ps, 0)
	}
	pages := make([]uint32, len(c.cfg.Pools))
	for p := range pages {
		switch c.cfg.Pools[p].Role {
		case radix.Full:
			pages[p] = uint32(len(r.LoadFull) + c.pagesFor(extend+request.MaxNew) + headroomPages)
		case radix.SWA:
			pages[p] = uint32(c.pagesFor(windowPeak(extend, request.MaxNew, request.Chunk, c.cfg.Pools[p].WindowTokens, ps, len(r.LoadWindows[p])*ps)))
		case radix.State:
			pages[p] = 1
			if r.Usable > 0 && r.States[p].Device == ids.NoVirtualPage {
				pages[p] = 2
			}
		}
	}
	return pages
}

// windowPeak is the most tokens that one request holds in a window pool at once: what a chunk of its prompt sticks out of the window, the window
// itself, a page of slack, and what is loaded of the window of its prefix.
func windowPeak(extend, maxNew, chunk, window, pageTokens, hostTokens int) int {
	if chunk == 0 || chunk > extend {
		chunk = extend
	}
	loaded := (hostTokens + pageTokens - 1) / pageTokens * pageTokens
	return max(chunk-window, 0) + min(extend+maxNew, window) + pageTokens + loaded
}

// Estimate compares loading what the host has of a prefix with computing it.
type Estimate struct {
	Bytes     uint64        // that the load would copy
	Load      time.Duration // at the rate of the loads so far; 0 if there was none
	Recompute time.Duration // at the server's rate; 0 if it is not known
}

// Estimate of a match.
func (m *Match) Estimate(tokensPerSecond float64) Estimate {
	m.mu.Lock()
	defer m.mu.Unlock()
	var e Estimate
	if m.answer == nil || m.c.host == nil {
		return e
	}
	plan := m.c.decide(&m.answer.m, m, &LoadRequest{}, tokensPerSecond)
	return Estimate{m.c.loadBytes(&m.answer.m), plan.LoadTime, plan.ComputeTime}
}

// rate is a running mean of bytes a second.
type rate struct{ bits atomic.Uint64 }

const rateWeight = 0.2 // of the newest sample

// add takes a copy of so many bytes in so many nanoseconds into account. One caller at a time.
func (r *rate) add(bytes, ns uint64) {
	if ns == 0 || bytes == 0 {
		return
	}
	sample := float64(bytes) * 1e9 / float64(ns)
	if old := r.get(); old > 0 {
		sample = old + rateWeight*(sample-old)
	}
	r.bits.Store(uint64(sample))
}

func (r *rate) get() float64 { return float64(r.bits.Load()) }

// SetWritePolicy changes the write policy, if what the cache holds allows it; else nothing changes.
func (c *Core) SetWritePolicy(p WritePolicy) error {
	if err := c.check(); err != nil {
		return err
	}
	c.plan.Lock()
	defer c.plan.Unlock()
	old := c.policy()
	if p == WriteBack && (c.cfg.HostBytes == 0 || c.cfg.Staging) {
		return fail(KindUnsupported, "WritePolicy with HostBytes: write_back needs a host tier to write back to")
	}
	if old == WriteBack && p != WriteBack {
		if ok, why := c.tree.WriteThroughCompatible(); !ok {
			return fail(KindUnsupported, "the host tier was filled under write_back and does not allow %s: Clear the cache first (%s)", policyNames[p], why)
		}
	}
	c.tree.SetHostPrefixClosed(p != WriteBack)
	c.writePolicy.Store(uint32(p))
	return nil
}

var policyNames = map[WritePolicy]string{WriteThrough: "write_through", WriteThroughSelective: "write_through_selective", WriteBack: "write_back"}

func (c *Core) policy() WritePolicy { return WritePolicy(c.writePolicy.Load()) }
