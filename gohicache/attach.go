package hicache

import (
	"context"

	"github.com/hicache/hicache/gohicache/storage"
)

// AttachStorage gives a cache that has no storage a store, while it runs. It is checked before anything changes: the cache needs host memory for
// pages to pass through (HostBytes or StagingBytes), and the store must take objects of the pools' page sizes and be ready. From then on new pages
// are stored as they are backed up, and older ones when they are next used; keys are those that a cache with this store from the start would
// use. The cache does not close the store. Errors: ErrUnsupported (naming what does not go together), ErrBusy (one is attached, or has not let go),
// ErrInvalid, ErrClosed.
func (c *Cache) AttachStorage(ctx context.Context, store storage.Store) error {
	if err := needsContext("attach storage", ctx); err != nil {
		return err
	}
	return c.publicErrorOrNil("attach storage", c.core.Attach(ctx, store))
}

// DetachStorage takes the store away. What waits to be written is written until ctx ends and then given up; reads under way are cut short, and
// their requests go on with what they have. When it returns nil the cache is out of the store, which may be closed, and another one may be attached.
// ErrBusy if the store has not returned from a call ten seconds after that: the cache goes on without it, and another DetachStorage waits again.
// ErrInvalid if none is attached.
func (c *Cache) DetachStorage(ctx context.Context) error {
	if err := needsContext("detach storage", ctx); err != nil {
		return err
	}
	return c.publicErrorOrNil("detach storage", c.core.Detach(ctx))
}

// StorageName is the name of the store that is attached now, "" without.
func (c *Cache) StorageName() string { return c.core.StoreName() }
