// Package lifecycle carries out what the cache decides: it takes and gives back pages, submits copies, reads their completions, and tells the
// tree before and after. It decides nothing about order or worth; that is policy's and the tree's.
//
// # Locks
//
// Core.plan serialises everything that takes pages or changes what the tree says about them: plans are made and carried out under it, so
// that two of them never count the same free page. It is held for table work, never for a copy, a storage read or a wait. The tree and the
// engine have locks of their own inside; the table of operations has one too. Order: plan, then tree, engine or operations.
//
// # Ownership
//
// A device page belongs to exactly one of: the engine (free), the tree, a hold (lease or sequence: pages not published yet), or an operation
// (between the tree's promise and its acknowledgement). A host page belongs to the engine, the tree, or an operation. Every error path
// gives back what its caller owned.
package lifecycle

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/gohicache/internal/radix"
)

// Core is one cache.
type Core struct {
	cfg  Config
	eng  *ffi.Engine
	tree *radix.Tree
	log  *slog.Logger

	full    int   // pool index of the FULL pool
	windows []int // pool indices of the SWA pools
	states  []int // pool indices of the STATE pools
	window  []int // by pool: pages before the end of a prefix that it needs: the window rounded up, 1 for a state, 0 for FULL
	device  []ffi.PoolInfo
	host    []ffi.PoolInfo // empty without a host arena

	plan        sync.Mutex
	ops         operations
	room        signal        // rung whenever pages may have become free or an operation ended
	turn        chan struct{} // holds the token of the one caller that waits for room; others queue behind it in order
	scratch     scratch       // of plan
	timed       atomic.Bool   // priorities end at a time
	closing     atomic.Bool
	closed      atomic.Bool
	closeMu     sync.Mutex
	holds       holds
	captured    captured
	batches     atomic.Uint64 // numbers them
	count       counters
	admitted    []uint64               // by pool: pages promised to admitted requests; of plan
	loadRate    rate                   // of load-backs, bytes a second
	writePolicy atomic.Uint32          // a WritePolicy
	store       atomic.Pointer[storer] // nil without storage; changes under plan
	leaving     *storer                // detached, but its backend has not let go yet; of attachMu
	attachMu    sync.Mutex
	teller      *teller // nil without Config.Events
	pollEnd     chan struct{}
	pumpMu      sync.Mutex
	pumpBuf     []ffi.Completion
	stop        context.CancelFunc // ends background work
	background  context.Context
	profiled    bool // somebody looks at ranges
}

// Open opens the engine and builds the tree. ctx bounds what the store takes to say that it is ready.
func Open(ctx context.Context, cfg Config) (*Core, error) {
	eng, err := ffi.Open(engineOptions(&cfg))
	if err != nil {
		return nil, fromEngine(err)
	}
	c := &Core{cfg: cfg, eng: eng, log: cfg.Logger, turn: make(chan struct{}, 1), pollEnd: make(chan struct{}),
		profiled: eng.Library().ProfilerListens()}
	c.background, c.stop = context.WithCancel(context.Background())
	if err := c.build(); err != nil {
		c.stop()
		return nil, errors.Join(err, eng.Close())
	}
	if cfg.Store != nil {
		if err := c.serves(cfg.Store); err != nil {
			c.stop()
			return nil, errors.Join(err, eng.Close())
		}
		ready := guard(func() error { return cfg.Store.Ready(ctx) })
		if err := ctx.Err(); err != nil { // it is not the store's fault
			c.stop()
			return nil, errors.Join(err, eng.Close())
		}
		c.store.Store(newStorer(c, cfg.Store, ready))
	}
	if cfg.Fault == nil {
		go c.poll()
	} else {
		close(c.pollEnd)
	}
	return c, nil
}

// build reads the geometry and makes the tree.
func (c *Core) build() error {
	c.writePolicy.Store(uint32(c.cfg.WritePolicy))
	c.admitted = make([]uint64, len(c.cfg.Pools))
	pools := make([]radix.PoolConfig, len(c.cfg.Pools))
	c.window = make([]int, len(pools))
	for i, p := range c.cfg.Pools {
		pools[i] = radix.PoolConfig{Role: p.Role, WindowTokens: p.WindowTokens}
		switch p.Role {
		case radix.Full:
			c.full = i
		case radix.SWA:
			c.windows = append(c.windows, i)
			c.window[i] = (p.WindowTokens + c.cfg.PageTokens - 1) / c.cfg.PageTokens
		case radix.State:
			c.states = append(c.states, i)
			c.window[i] = 1
		}
		info, err := c.eng.PoolInfo(ffi.TierDevice, uint32(i))
		if err != nil {
			return fromEngine(err)
		}
		c.device = append(c.device, info)
		if c.cfg.HostBytes == 0 {
			continue
		}
		if info, err = c.eng.PoolInfo(ffi.TierHost, uint32(i)); err != nil {
			return fromEngine(err)
		}
		c.host = append(c.host, info)
	}
	if c.cfg.Staging {
		if err := c.checkStaging(); err != nil {
			return err
		}
	}
	rc := radix.Config{PageTokens: c.cfg.PageTokens, Tokens: c.cfg.Tokens, Pools: pools, Policy: c.cfg.Policy, WholeLeaf: c.cfg.WholeLeaf, HostPrefixClosed: c.policy() != WriteBack}
	if c.cfg.Events {
		c.teller = newTeller(c)
		rc.Hashes, rc.OnChange = true, c.teller.changed
	}
	tree, err := radix.New(rc)
	if err != nil {
		return fail(KindInvalid, "%v", err)
	}
	c.tree = tree
	c.scratch.init(len(pools))
	return nil
}

func engineOptions(cfg *Config) *ffi.Options {
	o := &ffi.Options{
		Library: cfg.Library, Device: int32(cfg.Ordinal), DeviceBytes: cfg.DeviceBytes, HostBytes: cfg.HostBytes, HostNUMANodes: cfg.HostNUMANodes,
		Compaction: ffi.Compaction(cfg.Compaction), Placement: ffi.Placement(cfg.Placement),
		RequestTokensMax: uint32(cfg.RequestTokensMax), StepMax: 4096 + 256, // leases of CUDA are steps
		CopyThreadCount: uint32(cfg.CopyThreads), Sabotage: ffi.Sabotage(cfg.Sabotage),
		Backend: map[Backend]ffi.Backend{BackendCPU: ffi.BackendCPU, BackendNull: ffi.BackendNull, BackendCUDA: ffi.BackendCUDA}[cfg.Backend],
	}
	o.H2DSlowdownMaxPermille, o.D2HSlowdownMaxPermille = uint32(cfg.H2DSlowdownMax), uint32(cfg.D2HSlowdownMax)
	if cfg.NoCopyCalibration {
		o.CopyCalibration = ffi.CalibrationOff
	}
	if f := cfg.Fault; f != nil {
		o.Fault = ffi.FaultOptions{Enabled: 1, Seed: f.Seed, FailTransferN: f.FailTransferN, FailPPM: f.FailPPM, DelayMaxNs: uint64(f.DelayMax)}
		if f.Hold {
			o.Fault.Hold = 1
		}
	}
	for _, p := range cfg.Pools {
		q := ffi.PoolOptions{Role: map[radix.Role]ffi.Role{radix.Full: ffi.RoleFull, radix.SWA: ffi.RoleSWA, radix.State: ffi.RoleState}[p.Role],
			Direction: ffi.Direction(p.Direction), PageTokens: uint32(cfg.PageTokens), WindowTokens: uint32(p.WindowTokens),
			LayerIDs: p.Layers, EnvelopeLayout: ffi.EnvelopeLayout(p.Layout), Zeroing: ffi.Zeroing(p.Zeroing),
			KRowBytes: p.KRowBytes, VRowBytes: p.VRowBytes, PageBytes: p.PageBytes, VirtualPageCount: uint32(p.VirtualPages),
			HostLayout: ffi.HostLayout(p.HostLayout), HostPageCount: uint32(p.HostPages), HeadCount: uint32(p.Heads)}
		if p.Role == radix.State {
			q.PageTokens = 1
		}
		if p.Static {
			q.Flags |= ffi.PoolFlagsStatic
		}
		o.Pools = append(o.Pools, q)
	}
	return o
}

// fromEngine turns an error of package ffi into this package's.
func fromEngine(err error) error {
	if err == nil {
		return nil
	}
	var load *ffi.LoadError
	if errors.As(err, &load) {
		return fail(KindABI, "%v", load)
	}
	var e *ffi.Error
	if !errors.As(err, &e) {
		return fail(KindInternal, "%v", err)
	}
	out := &Error{Pool: -1, Need: e.Need, Have: e.Have, Pending: e.Pending, Ticket: uint64(e.Ticket), Status: int32(e.Status), Native: e.Native,
		Message: e.Message}
	if e.Pool != ffi.NoPool {
		out.Pool = int(e.Pool)
	}
	switch e.Status {
	case ffi.StatusInvalidArgument:
		out.Kind = KindInvalid
	case ffi.StatusUnsupported:
		out.Kind = KindUnsupported
	case ffi.StatusABIMismatch:
		out.Kind = KindABI
	case ffi.StatusNoCapacity, ffi.StatusMovesBlocked, ffi.StatusLimit:
		out.Kind = KindNoCapacity
	case ffi.StatusBusy:
		out.Kind = KindBusy
	case ffi.StatusInfeasible:
		out.Kind = KindInfeasible
	case ffi.StatusClosed:
		out.Kind = KindClosed
	case ffi.StatusStaleID, ffi.StatusNotMapped:
		out.Kind = KindStale
	case ffi.StatusDevice:
		out.Kind = KindDevice
	case ffi.StatusCorrupt:
		out.Kind = KindCorrupt
	default:
		out.Kind = KindInternal
	}
	return out
}

// bug reports what cannot happen: the cache goes on, Verify and the log say so.
func (c *Core) bug(what string, err error) {
	if err == nil || errors.Is(err, ffi.ErrClosed) {
		return
	}
	c.count.bugs.Add(1)
	c.log.Error("hicache: internal error", "operation", what, "error", err)
}

// giveBack frees what the tree no longer names.
func (c *Core) giveBack(f *radix.Freed) {
	var room [8]ffi.Pages
	frees := room[:0]
	add := func(pool int) {
		if pool < len(f.Device) && len(f.Device[pool]) > 0 {
			frees = append(frees, ffi.Pages{Pool: uint32(pool), Pages: f.Device[pool]})
		}
	}
	for _, p := range c.windows { // before the full pages, whose end would make their tombstones stale
		add(p)
	}
	add(c.full)
	for _, p := range c.states {
		add(p)
	}
	if len(frees) > 0 {
		c.bug("free", c.eng.Free(frees))
	}
	var hostFrees []ffi.HostPages
	for p, pages := range f.Host {
		if len(pages) > 0 {
			hostFrees = append(hostFrees, ffi.HostPages{Pool: uint32(p), Pages: pages})
		}
	}
	if len(hostFrees) > 0 {
		c.bug("host free", c.eng.HostFree(hostFrees))
	}
	f.Reset()
	if len(frees)+len(hostFrees) > 0 {
		c.room.ring()
	}
}

// drainOrphans frees pages of nodes that were dropped while pinned and whose last pin is gone.
func (c *Core) drainOrphans() {
	f := freedPool.Get().(*radix.Freed)
	c.tree.DrainOrphans(f)
	c.giveBack(f)
	freedPool.Put(f)
}

var freedPool = sync.Pool{New: func() any { return new(radix.Freed) }}

// pin shares one pin of the tree between a match, the leases made of it and the operations that need its path.
type pin struct {
	c    *Core
	id   radix.Pin
	refs atomic.Int32
}

func (c *Core) newPin(id radix.Pin) *pin {
	p := pins.Get().(*pin)
	p.c, p.id = c, id
	p.refs.Store(1)
	c.count.pins.Add(1)
	return p
}

func (p *pin) retain() *pin {
	p.refs.Add(1)
	return p
}

// release gives up one share; the last one ends the pin, whose memory the next one takes.
func (p *pin) release() {
	if p == nil || p.refs.Add(-1) != 0 {
		return
	}
	c, id := p.c, p.id
	p.c = nil
	pins.Put(p)
	c.tree.Release(id)
	c.drainOrphans()
	c.count.pins.Add(-1) // Last: whoever sees no pin sees no page that only one held.
	c.room.ring()
}

var pins = sync.Pool{New: func() any { return new(pin) }}

// signal is a condition that can be waited for beside a context: take the channel, look, then wait for the channel to close.
type signal struct {
	mu sync.Mutex
	ch chan struct{}
}

func (s *signal) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch == nil {
		s.ch = make(chan struct{})
	}
	return s.ch
}

func (s *signal) ring() {
	s.mu.Lock()
	if s.ch != nil {
		close(s.ch)
		s.ch = nil
	}
	s.mu.Unlock()
}

// holder is something that a user holds.
type holder interface{ describe() string }

// holds remembers what users hold, so that Close can name it. What describe reads changes under plan, or after remove.
type holds struct {
	mu sync.Mutex
	m  map[holder]struct{}
}

func (h *holds) add(x holder) {
	h.mu.Lock()
	if h.m == nil {
		h.m = map[holder]struct{}{}
	}
	h.m[x] = struct{}{}
	h.mu.Unlock()
}

func (h *holds) remove(x holder) {
	h.mu.Lock()
	delete(h.m, x)
	h.mu.Unlock()
}

func (h *holds) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.m)
}

func (h *holds) list() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]string, 0, len(h.m))
	for x := range h.m {
		out = append(out, x.describe())
	}
	slices.Sort(out)
	return out
}

// pagesOf is the number of whole pages in tokens.
func (c *Core) pagesOf(tokens int) int { return tokens / c.cfg.PageTokens }

// pagesFor is the number of pages that hold tokens, the last one partly.
func (c *Core) pagesFor(tokens int) int { return (tokens + c.cfg.PageTokens - 1) / c.cfg.PageTokens }

func (c *Core) check() error {
	if c.closing.Load() {
		return errClosed()
	}
	return nil
}
