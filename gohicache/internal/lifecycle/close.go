package lifecycle

import (
	"context"
	"strings"
	"time"

	"github.com/hicache/hicache/gohicache/internal/radix"
)

// closeStorageWait bounds how long Close waits for a storage backend that does not answer.
var closeStorageWait = 10 * time.Second

// Flush waits until everything inserted so far is backed up and stored, or has failed.
func (c *Core) Flush(ctx context.Context) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.drain(ctx)
}

// drain waits for the transfers in flight and for the storage queue.
func (c *Core) drain(ctx context.Context) error {
	if err := c.awaitAll(ctx); err != nil {
		return err
	}
	if s := c.store.Load(); s != nil {
		return s.drain(ctx)
	}
	return nil
}

// Close stops the cache, lets what is in flight end and closes the engine, unless users hold something.
func (c *Core) Close() error {
	c.closeMu.Lock()
	defer c.closeMu.Unlock()
	if c.closed.Load() {
		return nil
	}
	c.closing.Store(true)
	c.room.ring() // waiters find it closing
	if c.cfg.Fault != nil {
		c.bug("release held transfers", c.eng.FaultHold(false, 0))
		for c.ops.count() > 0 {
			if n, err := c.eng.FaultRun(64, false); err != nil || n == 0 && c.pump(pumpTimeout) == 0 {
				break
			}
			c.pump(0)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeStorageWait)
	defer cancel()
	if err := c.drain(ctx); err != nil {
		c.log.Warn("hicache: storage did not finish before close", "error", err)
	}
	c.plan.Lock() // a load that found the cache open has its hold listed by now, and what is listed stands still
	held := c.holds.list()
	c.plan.Unlock()
	if len(held) > 0 {
		return fail(KindBusy, "still held: %s", strings.Join(held, "; "))
	}
	if !c.closeCaptured() {
		return fail(KindBusy, "a step has ended whose stream is being captured still; Close again after the capture")
	}
	c.stop()
	c.attachMu.Lock()
	defer c.attachMu.Unlock()
	for _, s := range []*storer{c.store.Load(), c.leaving} {
		if s != nil && !s.ended(ctx) {
			return fail(KindBusy, "store %q has not returned from a call; Close again once it has", s.store.Name())
		}
	}
	if c.teller != nil {
		c.teller.feed.Close()
	}
	c.bug("wake", c.eng.CompletionWake())
	<-c.pollEnd
	c.plan.Lock() // whoever looks at the engine and the tree together ends before
	defer c.plan.Unlock()
	if err := c.eng.Close(); err != nil {
		return fromEngine(err)
	}
	c.closed.Store(true)
	return nil
}

// Clear forgets everything on device and host.
func (c *Core) Clear() error {
	return c.forget(func(f *radix.Freed) { c.tree.Clear(f) })
}

// DropNamespace forgets one namespace.
func (c *Core) DropNamespace(ns radix.Namespace) error {
	return c.forget(func(f *radix.Freed) { c.tree.DropNamespace(ns, f) })
}

func (c *Core) forget(drop func(*radix.Freed)) error {
	if err := c.check(); err != nil {
		return err
	}
	c.pump(0)
	c.plan.Lock()
	defer c.plan.Unlock()
	var f radix.Freed
	drop(&f)
	c.giveBack(&f)
	return nil
}
