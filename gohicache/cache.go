package hicache

import (
	"context"
	"errors"
	"slices"

	"github.com/hicache/hicache/gohicache/internal/lifecycle"
)

// Cache is one tiered cache: an engine with its tree, policy and lifecycle. Safe for many goroutines.
type Cache struct {
	core   *lifecycle.Core
	opt    Options
	pools  []PoolInfo
	layers []uint32 // global ids that any pool serves, ascending
}

// Open checks the options, loads libhicache and takes all memory of the cache. ctx bounds the opening only. The cache must go to Close.
// Errors: ErrInvalid and ErrUnsupported (naming fields), ErrInfeasible (itemised), ErrABI, ErrDevice.
func Open(ctx context.Context, o *Options) (*Cache, error) {
	if err := needsContext("open", ctx); err != nil {
		return nil, err
	}
	if o == nil {
		return nil, invalid("Options", "nil")
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, &Error{Op: "open", Err: err}
	}
	c := &Cache{opt: o.withDefaults()}
	core, err := lifecycle.Open(ctx, lifecycleConfig(&c.opt))
	if err != nil {
		return nil, c.publicError("open", err)
	}
	c.core = core
	c.pools = poolInfos(&c.opt, core)
	for i := range c.opt.Pools {
		for _, l := range c.opt.Pools[i].Layers {
			c.layers = append(c.layers, uint32(l))
		}
	}
	slices.Sort(c.layers)
	c.layers = slices.Compact(c.layers)
	return c, nil
}

// Close stops the cache: new calls fail with ErrClosed, back-ups and stores in flight end. If leases, sequences or steps are still held it
// returns ErrBusy listing them; release them and call Close again. A Close after a successful one does nothing.
func (c *Cache) Close() error { return c.publicErrorOrNil("close", c.core.Close()) }

// Flush waits until everything that was inserted so far is backed up and stored as the policies say, or has failed, or ctx ends.
func (c *Cache) Flush(ctx context.Context) error {
	if err := needsContext("flush", ctx); err != nil {
		return err
	}
	return c.publicErrorOrNil("flush", c.core.Flush(ctx))
}

// Clear forgets everything on device and host; pages that somebody holds go when they are released. Storage keeps its objects.
func (c *Cache) Clear() error { return c.publicErrorOrNil("clear", c.core.Clear()) }

// DropNamespace forgets one namespace on device and host.
func (c *Cache) DropNamespace(ns Namespace) error {
	return c.publicErrorOrNil("drop namespace", c.core.DropNamespace(ns.radix()))
}

// Options returns the options in effect, with every default written out.
func (c *Cache) Options() Options { return c.opt }

// Stats returns the counters.
func (c *Cache) Stats() Stats { return c.core.Stats() }

var kinds = map[lifecycle.Kind]error{
	lifecycle.KindInvalid: ErrInvalid, lifecycle.KindNoCapacity: ErrNoCapacity, lifecycle.KindInfeasible: ErrInfeasible,
	lifecycle.KindClosed: ErrClosed, lifecycle.KindBusy: ErrBusy, lifecycle.KindStale: ErrStale, lifecycle.KindUnsupported: ErrUnsupported,
	lifecycle.KindDevice: ErrDevice, lifecycle.KindABI: ErrABI, lifecycle.KindCorrupt: ErrCorrupt, lifecycle.KindTransfer: ErrTransfer,
	lifecycle.KindInternal: ErrInternal,
}

// publicError turns an error of the lifecycle into this package's.
func (c *Cache) publicError(op string, err error) error {
	var e *lifecycle.Error
	if !errors.As(err, &e) {
		return &Error{Op: op, Err: err} // the context's
	}
	out := &Error{Op: op, Need: e.Need, Have: e.Have, Pending: e.Pending, Status: e.Status, Native: e.Native, Message: e.Message, Err: kinds[e.Kind]}
	if e.Pool >= 0 && e.Pool < len(c.opt.Pools) {
		out.Pool = c.opt.Pools[e.Pool].Name
	}
	return out
}

func (c *Cache) publicErrorOrNil(op string, err error) error {
	if err == nil {
		return nil
	}
	return c.publicError(op, err)
}
