//go:build gorgonia

package gorgonia

import (
	"fmt"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/hicache/hicache/ffi/ids"
	hicache "github.com/hicache/hicache/gohicache"
)

// Both sides name a stream by its CUstream: a cu.Stream is a struct of that one pointer, a hicache.Stream the pointer as a number. These fail to
// compile if either changes its size.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(cu.Stream{})-unsafe.Sizeof(hicache.Stream(0))]
	_ = [1]struct{}{}[unsafe.Sizeof(cu.CUContext{})-unsafe.Sizeof(uintptr(0))]
)

// Stream is a stream of cu as calls of the cache take it. The stream stays cu's: destroy it there, after the cache's last use.
func Stream(s cu.Stream) hicache.Stream { return hicache.Stream(uintptr(unsafe.Pointer(s.C()))) }

// FromStream is the reverse, for streams that a server made elsewhere. Do not destroy the result.
func FromStream(s hicache.Stream) cu.Stream {
	handle := uintptr(s)
	return *(*cu.Stream)(unsafe.Pointer(&handle))
}

// Device is a device of cu as Options.Device takes it.
func Device(d cu.Device) hicache.Device { return hicache.CUDA(int(d)) }

// Context makes the context that the cache uses on a device the calling thread's: the device's primary context, as the CUDA runtime does. A context
// made with cuCtxCreate is another address space of the same GPU: its kernels do not see the arena. Lock the goroutine to its thread first, and
// release the primary context when done.
func Context(d cu.Device) (cu.CUContext, error) {
	ctx, err := d.RetainPrimaryCtx()
	if err != nil {
		return ctx, fmt.Errorf("gorgonia: primary context of device %d: %w", d, err)
	}
	if err := cu.SetCurrentContext(ctx); err != nil {
		return ctx, fmt.Errorf("gorgonia: make the primary context of device %d current: %w", d, err)
	}
	return ctx, nil
}

// Page is the memory of the page that a page-granular kernel id names, and how many bytes it has. Touch it only under a lease or in an open step that
// holds the page, on the stream that the lease or step was given.
func Page(c *hicache.Cache, pool int, id ids.KernelID) (cu.DevicePtr, int64, error) {
	pools := c.Pools()
	if pool < 0 || pool >= len(pools) {
		return 0, 0, fmt.Errorf("gorgonia: pool %d of %d", pool, len(pools))
	}
	p := &pools[pool]
	if p.ArenaBase == 0 {
		return 0, 0, fmt.Errorf("gorgonia: pool %q has no memory: the cache is on the Null device", p.Name)
	}
	if page := c.PhysicalPage(pool, id); int(page) < p.FirstPage || int(page) >= p.PageCount {
		return 0, 0, fmt.Errorf("gorgonia: kernel id %d is no page of pool %q: want [%d, %d) and have page %d", id, p.Name, p.FirstPage, p.PageCount, page)
	}
	return cu.DevicePtr(p.PageAddress(id)), int64(p.PageBytes), nil
}
