package ffi

import (
	"sync"
	"sync/atomic"
	"time"
)

// Engine is an open engine. Its methods are the functions of the ABI, in the order of the header.
type Engine struct {
	library *Library
	handle  uintptr
	backend Backend
	pools   []poolShape
	host    bool
	gate    gate

	deviceBytes atomic.Uint64 // Of the device arena now: Resize changes it.
}

// poolShape is what the checks and views of this package need of a pool.
type poolShape struct {
	pageTokens   uint32
	device, host PoolInfo // host is zero without a host tier.
}

func (p *poolShape) info(tier Tier) *PoolInfo {
	if tier == TierHost {
		return &p.host
	}
	return &p.device
}

// Open loads the library that the options name and opens an engine. The error is a *LoadError or an *Error.
func Open(o *Options) (*Engine, error) {
	library, err := Load(o.Library)
	if err != nil {
		return nil, err
	}
	return library.Open(o)
}

// Open opens an engine and takes all of its memory.
// Errors: ErrInvalid naming the field, ErrInfeasible, ErrABI, ErrUnsupported, ErrDevice.
func (l *Library) Open(o *Options) (*Engine, error) {
	f := newFrame()
	handle := new(uintptr)
	status := l.table.callOpen(f, ptr(o.abi()), ptr(handle), f.errorOut())
	if status < 0 {
		err := newError("open", status, &f.err)
		f.release()
		return nil, err
	}
	f.release()
	e := &Engine{library: l, handle: *handle, backend: o.Backend, host: o.HostBytes > 0}
	if err := e.readPools(o); err != nil {
		_ = e.Close()
		return nil, err
	}
	return e, nil
}

func (e *Engine) readPools(o *Options) (err error) {
	e.pools = make([]poolShape, len(o.Pools))
	for i := range e.pools {
		shape := &e.pools[i]
		shape.pageTokens = o.Pools[i].PageTokens
		if shape.device, err = e.PoolInfo(TierDevice, uint32(i)); err != nil {
			return err
		}
		if !e.host {
			continue
		}
		if shape.host, err = e.PoolInfo(TierHost, uint32(i)); err != nil {
			return err
		}
	}
	e.deviceBytes.Store(e.pools[0].device.ArenaBytes)
	return nil
}

// Library is the library that the engine runs in.
func (e *Engine) Library() *Library { return e.library }

// Close closes the engine: it stops new calls, lets those that run end, and blocks until submitted transfers have ended. ErrBusy, changing
// nothing, while leases, reservations or open steps are held. A second Close is a no-op.
func (e *Engine) Close() error {
	e.gate.mu.Lock()
	defer e.gate.mu.Unlock()
	if e.gate.closed.Load() {
		return nil
	}
	f := newFrame()
	defer f.release()
	e.gate.shut()
	// Calls in flight hold the handle. Only a wait for completions can last, and it can be woken.
	for pause := time.Microsecond; !e.gate.idle(); pause = min(2*pause, time.Millisecond) {
		e.library.table.callCompletionWake(f, e.handle, f.errorOut())
		time.Sleep(pause)
	}
	status := e.library.table.callClose(f, e.handle, f.errorOut())
	if status == StatusBusy {
		e.gate.reopen()
		return newError("close", status, &f.err)
	}
	e.gate.closed.Store(true) // With any other error too: the handle must not be used again.
	if status < 0 {
		return newError("close", status, &f.err)
	}
	return nil
}

// begin admits a call and gives it a frame; nil when the engine is closed.
func (e *Engine) begin() *frame {
	if !e.gate.enter() {
		return nil
	}
	return newFrame()
}

// end releases the frame of a call that begin admitted and makes its status an error.
func (e *Engine) end(f *frame, op string, status Status) error {
	var err error
	if status < 0 {
		err = newError(op, status, &f.err)
	}
	f.release()
	e.gate.leave()
	return err
}

// gate lets calls in while the engine is open. The fast path is one atomic add; Close shuts it and waits until it is empty. A call that
// meets a shut gate waits for Close to decide: a close that is refused (ErrBusy) must not fail others.
type gate struct {
	state  atomic.Int64 // Calls inside, plus gateShut.
	mu     sync.Mutex   // Held by Close.
	closed atomic.Bool
}

const gateShut = int64(1) << 62

func (g *gate) enter() bool {
	for g.state.Add(1)&gateShut != 0 {
		g.state.Add(-1)
		if g.closed.Load() {
			return false
		}
		g.mu.Lock()
		//lint:ignore SA2001 waiting for Close is all.
		g.mu.Unlock()
		if g.closed.Load() {
			return false
		}
	}
	return true
}

func (g *gate) leave()     { g.state.Add(-1) }
func (g *gate) shut()      { g.state.Or(gateShut) }
func (g *gate) reopen()    { g.state.And(^gateShut) }
func (g *gate) idle() bool { return g.state.Load()&^gateShut == 0 }
