package lifecycle

import (
	"context"
	"time"

	"github.com/hicache/hicache/gohicache/storage"
)

// detachWait bounds how long a detach waits for calls of a backend that does not heed its context.
var detachWait = 10 * time.Second

// Attach gives a cache without storage a store. Everything is checked before anything changes.
func (c *Core) Attach(ctx context.Context, store storage.Store) error {
	if err := c.check(); err != nil {
		return err
	}
	c.attachMu.Lock()
	defer c.attachMu.Unlock()
	switch {
	case store == nil:
		return fail(KindInvalid, "the store is nil")
	case c.leaving != nil:
		return fail(KindBusy, "store %q was detached and has not let go yet: Detach again first", c.leaving.store.Name())
	case c.store.Load() != nil:
		return fail(KindBusy, "store %q is attached: Detach it first", c.store.Load().store.Name())
	}
	if err := c.serves(store); err != nil {
		return err
	}
	if err := guard(func() error { return store.Ready(ctx) }); err != nil {
		return fail(KindUnsupported, "store %q cannot be used: %v", store.Name(), err)
	}
	if err := c.check(); err != nil {
		return err
	}
	s := newStorer(c, store, nil)
	s.missed = true // what was backed up before is stored when it is next used
	c.plan.Lock()
	c.store.Store(s)
	c.plan.Unlock()
	return nil
}

// serves says whether this cache's pages can go through a store, and this store can take them.
func (c *Core) serves(store storage.Store) error {
	if c.cfg.Backend == BackendNull {
		return fail(KindUnsupported, "Storage with Device: the null device has no bytes to store")
	}
	if c.host == nil {
		return fail(KindUnsupported, "Storage without HostBytes or StagingBytes: there is no host memory for pages to pass through")
	}
	caps, pages := store.Capabilities(), newPageStore(store, &c.cfg, c.host)
	for p := range c.host {
		if !caps.OneObjectPerPage && !c.separate(p) {
			e := fail(KindUnsupported, "store %q cannot keep a page as one object, and the pool lies in a host arena of page envelopes: it needs a cache opened with host regions", store.Name())
			e.Pool = p
			return e
		}
		var n uint64
		for i := range pages.forms[p].parts {
			n = max(n, pages.forms[p].parts[i].size())
		}
		if caps.ObjectBytesMax > 0 && n > uint64(caps.ObjectBytesMax) {
			e := fail(KindUnsupported, "store %q takes objects of up to %d bytes", store.Name(), caps.ObjectBytesMax)
			e.Pool, e.Need, e.Have = p, n, uint64(caps.ObjectBytesMax)
			return e
		}
	}
	return nil
}

// Detach takes the store away. What waits to be written is written until ctx ends, and then given up; reads under way are cut short, and their
// requests go on with what they have. KindBusy if the backend does not return from a call within detachWait: the cache goes on without it, and
// another Detach waits again.
func (c *Core) Detach(ctx context.Context) error {
	c.attachMu.Lock()
	defer c.attachMu.Unlock()
	s := c.leaving
	if s == nil {
		if err := c.check(); err != nil {
			return err
		}
		if s = c.store.Load(); s == nil {
			return fail(KindInvalid, "no store is attached")
		}
		_ = c.drain(ctx) // back-ups under way are stored, too; what ctx cuts short is reported below
		c.plan.Lock()
		s.mu.Lock()
		s.leaving = true
		s.mu.Unlock()
		c.store.Store(nil)
		c.plan.Unlock()
		c.leaving = s
		if err := s.drain(ctx); err != nil {
			c.log.Warn("hicache: a store is detached before everything was written", "store", s.store.Name(), "error", err)
		}
	}
	s.stop()
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), detachWait)
	defer cancel()
	if !s.ended(limit) {
		return fail(KindBusy, "store %q has not returned from a call in %v", s.store.Name(), detachWait)
	}
	c.leaving = nil
	c.tree.ForgetStored() // another store has none of it
	return nil
}

// ended waits until nobody is inside the store any more, and nothing is queued for it. It has been stopped.
func (s *storer) ended(ctx context.Context) bool {
	for {
		change := s.change.wait()
		s.mu.Lock()
		s.leaving = true // no reader begins any more
		busy := s.promised + len(s.fetching)
		s.mu.Unlock()
		if busy == 0 {
			break
		}
		select {
		case <-change:
		case <-ctx.Done():
			return false
		}
	}
	s.leave.Do(func() {
		s.left = make(chan struct{})
		go func() {
			<-s.end
			s.readers.Wait()
			close(s.left)
		}()
	})
	select {
	case <-s.left:
		s.sweep() // what was offered after run had ended
		return true
	case <-ctx.Done():
		return false
	}
}

// StoreName is the name of the store that is attached, "" without.
func (c *Core) StoreName() string {
	if s := c.store.Load(); s != nil {
		return s.store.Name()
	}
	return ""
}
