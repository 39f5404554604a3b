package lifecycle

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/radix"
)

// operation is one transfer that the engine has not reported yet, and what is owed when it does.
type operation struct {
	user   uint64
	ticket ffi.Ticket
	done   chan struct{} // closed after the tree has been told
	err    error         // why it failed; read only after done

	load     radix.LoadID // of a load-back
	isLoad   bool
	mu       sync.Mutex
	users    int         // requests that compute with what a load brings
	unwanted radix.Freed // pages of theirs that others published first

	surplus radix.Freed // device pages that others made resident first; freed at the end

	backUp    radix.BackUpID
	full      []ids.HostPage   // host pages of a back-up, in the order of its lists
	windows   [][]ids.HostPage // by pool
	states    [][]ids.HostPage // by pool
	abandoned bool             // a load that the tree never learned of
	bounce    bool             // through the staging arena: whoever waits for it does the rest
	path      *pin             // keeps the path until storage has taken it over
	store     *storer          // that is to take it over
	pages     int
}

// use says that one more request computes with what a load brings.
func (op *operation) use() *operation {
	op.mu.Lock()
	op.users++
	op.mu.Unlock()
	return op
}

// unuse ends that; the last one frees the pages that the tree had others for by the time they arrived.
func (op *operation) unuse(c *Core) {
	op.mu.Lock()
	op.users--
	last := op.users == 0
	var f radix.Freed
	if last {
		f, op.unwanted = op.unwanted, radix.Freed{}
	}
	op.mu.Unlock()
	if last {
		c.giveBack(&f)
	}
}

// keep leaves pages that the tree does not name any more to the requests that compute with them; false if there are none.
func (op *operation) keep(f *radix.Freed) bool {
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.users > 0 {
		op.unwanted, *f = *f, radix.Freed{}
	}
	return op.users > 0
}

// operations are the transfers in flight by the number that the completion carries.
type operations struct {
	mu         sync.Mutex
	next       uint64
	m          map[uint64]*operation
	lastBackUp ffi.Ticket // later back-ups publish after it
}

// begin registers an operation before it is submitted, so that its completion finds it however early it comes.
func (o *operations) begin(op *operation) {
	op.done = make(chan struct{})
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.m == nil {
		o.m = map[uint64]*operation{}
	}
	o.next++
	op.user = o.next
	o.m[op.user] = op
}

// drop unregisters one that has ended, or was not submitted after all.
func (o *operations) drop(op *operation) {
	o.mu.Lock()
	delete(o.m, op.user)
	o.mu.Unlock()
}

// find returns the operation of a completion that was read. It stays registered until the tree knows: whoever waits for all transfers must
// not miss one in between.
func (o *operations) find(user uint64) *operation {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.m[user]
}

func (o *operations) list() []*operation {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make([]*operation, 0, len(o.m))
	for _, op := range o.m {
		out = append(out, op)
	}
	return out
}

func (o *operations) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.m)
}

const (
	pollBatch   = 64
	pollTimeout = time.Second
)

// poll is the one goroutine that reads the completion ring.
func (c *Core) poll() {
	defer close(c.pollEnd)
	buf := make([]ffi.Completion, pollBatch)
	for c.background.Err() == nil {
		n, err := c.eng.CompletionWait(pollTimeout, buf)
		if err != nil {
			if !c.closing.Load() {
				c.log.Error("hicache: completions cannot be read", "error", err)
			}
			return
		}
		c.finish(buf[:n])
	}
}

// pump reads completions in the caller's goroutine, where fault injection leaves no other to do it. It returns how many there were.
func (c *Core) pump(timeout time.Duration) int {
	if c.cfg.Fault == nil {
		return 0
	}
	c.pumpMu.Lock()
	defer c.pumpMu.Unlock()
	if c.pumpBuf == nil {
		c.pumpBuf = make([]ffi.Completion, pollBatch)
	}
	n, err := c.eng.CompletionWait(max(timeout, 1), c.pumpBuf) // copies run inside the wait, a poll would run none
	if err != nil {
		c.bug("completion", err)
		return 0
	}
	c.finish(c.pumpBuf[:n])
	return n
}

// finish tells the tree of ended transfers and frees what is owed.
func (c *Core) finish(completions []ffi.Completion) {
	if len(completions) == 0 {
		return
	}
	var offers []*operation
	c.plan.Lock()
	for i := range completions {
		done := &completions[i]
		op := c.ops.find(done.User)
		if op == nil {
			c.bug("completion", fail(KindInternal, "ticket %d has no operation", done.Ticket))
			continue
		}
		if err := done.Status.Err(); err != nil {
			op.err = transferError(done)
		}
		if op.err != nil && done.Status != ffi.StatusCancelled {
			c.count.transfersFailed.Add(1)
			c.log.Warn("hicache: transfer failed", "direction", done.Direction, "pages", done.PageCount, "status", done.Status.String())
		}
		if op.bounce {
			c.finishBounce(op, done.Bytes)
		} else if op.isLoad {
			c.finishLoad(op, done.Bytes)
			if op.err == nil {
				c.loadRate.add(done.Bytes, done.EndNs-done.SubmitNs)
			}
		} else {
			c.finishBackUp(op, done.Bytes)
		}
		if op.path != nil {
			offers = append(offers, op)
		}
		close(op.done)
		c.ops.drop(op)
	}
	c.plan.Unlock()
	for _, op := range offers {
		op.store.offer(op.path)
	}
	c.drainOrphans()
	c.room.ring()
}

func transferError(done *ffi.Completion) error {
	e := fail(KindTransfer, "the copy of %d pages ended with %s; nothing of it was published", done.PageCount, done.Status)
	e.Status, e.Native = int32(done.Status), done.NativeCode
	return e
}

func (c *Core) finishBounce(op *operation, bytes uint64) {
	switch {
	case op.err != nil:
	case op.isLoad:
		c.countLoad(op, bytes)
	default:
		c.countBackUp(op, bytes)
	}
}

func (c *Core) countLoad(op *operation, bytes uint64) {
	c.count.loadBacks.Add(1)
	c.count.loadBackPages.Add(uint64(op.pages))
	c.count.bytesH2D.Add(bytes)
}

func (c *Core) countBackUp(op *operation, bytes uint64) {
	c.count.backUps.Add(1)
	c.count.backUpPages.Add(uint64(op.pages))
	c.count.bytesD2H.Add(bytes)
}

func (c *Core) finishLoad(op *operation, bytes uint64) {
	if op.abandoned {
		return
	}
	f := &op.surplus
	_, err := c.tree.FinishLoad(op.load, op.err == nil, f)
	c.bug("finish load", err)
	if op.err != nil || !op.keep(f) {
		c.giveBack(f)
	}
	if op.err == nil {
		c.countLoad(op, bytes)
	}
}

func (c *Core) finishBackUp(op *operation, bytes uint64) {
	var f radix.Freed
	ok := op.err == nil
	c.bug("finish back-up", c.tree.FinishBackUp(op.backUp, ok, op.full, op.windows, op.states, &f))
	if ok {
		c.countBackUp(op, bytes)
	} else {
		c.appendHost(&f, op)
	}
	c.giveBack(&f)
	if !ok || op.path == nil || !op.store.promise() { // finish offers the path once it has let go of plan
		op.path.release()
		op.path = nil
	}
}

// appendHost adds the host pages of a failed back-up to f.
func (c *Core) appendHost(f *radix.Freed, op *operation) {
	for len(f.Host) < len(c.cfg.Pools) {
		f.Host = append(f.Host, nil)
	}
	f.Host[c.full] = append(f.Host[c.full], op.full...)
	for p := range c.cfg.Pools {
		if p < len(op.windows) {
			f.Host[p] = append(f.Host[p], op.windows[p]...)
		}
		if p < len(op.states) {
			f.Host[p] = append(f.Host[p], op.states[p]...)
		}
	}
}

// awaitAll waits until every transfer that is in flight now has ended, well or not.
func (c *Core) awaitAll(ctx context.Context) error {
	for _, op := range c.ops.list() {
		_ = c.await(ctx, op)
		if err := ctx.Err(); err != nil { // also where this one has just ended: the others have not
			return err
		}
	}
	return nil
}

// recall cancels a transfer that nobody wants any more and waits for its end, which comes as soon as what was handed to the device has run.
func (c *Core) recall(op *operation) {
	if err := c.eng.TransferCancel(op.ticket); err != nil && !errors.Is(err, ffi.ErrStale) { // stale: it has ended and its slot is used again
		c.bug("transfer cancel", err)
	}
	_ = c.await(context.Background(), op)
}

// await waits until an operation has ended, or ctx has; giving up the wait leaves it running.
func (c *Core) await(ctx context.Context, op *operation) error {
	for {
		select {
		case <-op.done:
			return op.err
		default:
		}
		if c.cfg.Fault == nil {
			select {
			case <-op.done:
				return op.err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if c.pump(pumpTimeout) == 0 {
			time.Sleep(pumpPause) // held, or another goroutine reads completions
		}
	}
}

const (
	pumpTimeout = time.Millisecond
	pumpPause   = 50 * time.Microsecond
)
