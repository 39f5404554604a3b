package ffi

import "github.com/hicache/hicache/ffi/ids"

// Holder is a lease or an open step: Holder(lease), Holder(step).
type Holder uint64

// LeaseAcquire keeps pages where they are and allocated. Errors: ErrNotMapped, ErrLimit.
func (e *Engine) LeaseAcquire(pages []Pages) (Lease, error) {
	f := e.begin()
	if f == nil {
		return 0, closed("lease acquire")
	}
	f.putPages(pages)
	f.out64 = 0
	status := e.library.table.callLeaseAcquire(f, e.handle, data(f.pages), count(len(f.pages)), ptr(&f.out64), f.errorOut())
	lease := Lease(f.out64)
	return lease, e.end(f, "lease acquire", status)
}

// LeaseRelease ends a lease, of device pages or of a host view. ErrStale if it is over.
func (e *Engine) LeaseRelease(l Lease) error {
	f := e.begin()
	if f == nil {
		return closed("lease release")
	}
	return e.end(f, "lease release", e.library.table.callLeaseRelease(f, e.handle, uint64(l), f.errorOut()))
}

// StepOpen opens a unit of compute on a stream that reads and writes these pages. While open it pins them. Errors: ErrNotMapped, ErrLimit.
func (e *Engine) StepOpen(stream uint64, pages []Pages) (Step, error) {
	f := e.begin()
	if f == nil {
		return 0, closed("step open")
	}
	f.putPages(pages)
	f.out64 = 0
	status := e.library.table.callStepOpen(f, e.handle, stream, data(f.pages), count(len(f.pages)), ptr(&f.out64), f.errorOut())
	step := Step(f.out64)
	return step, e.end(f, "step open", status)
}

// StepClose closes a step once its kernels are enqueued; it pins nothing from here and leaves a fence.
func (e *Engine) StepClose(s Step) error {
	f := e.begin()
	if f == nil {
		return closed("step close")
	}
	return e.end(f, "step close", e.library.table.callStepClose(f, e.handle, uint64(s), f.errorOut()))
}

// KernelIDs translates virtual pages of one pool to kernel ids: one a page, or page_tokens a page with GranularityToken. Unmapped pages become
// the sink's id; sinkCount says how many. The answer holds while holder does. Errors: ErrInvalid, ErrStale.
func (e *Engine) KernelIDs(holder Holder, pool uint32, g Granularity, pages []ids.VirtualPage, out []ids.KernelID) (sinkCount int, err error) {
	need := uint64(len(pages))
	if g == GranularityToken && int(pool) < len(e.pools) {
		need *= uint64(e.pools[pool].pageTokens)
	}
	if uint64(len(out)) < need {
		return 0, invalid("kernel ids", "out has room for %d ids, need %d", len(out), need)
	}
	f := e.begin()
	if f == nil {
		return 0, closed("kernel ids")
	}
	f.out32 = 0
	status := e.library.table.callKernelIDs(f, e.handle, uint64(holder), pool, uint32(g), data(pages), count(len(pages)), data(out),
		ptr(&f.out32), f.errorOut())
	sinkCount = int(f.out32)
	return sinkCount, e.end(f, "kernel ids", status)
}

// Inspect writes the places of virtual pages now, NoPhysicalPage where unmapped. Without a holder the answer may be old when it returns.
func (e *Engine) Inspect(pool uint32, pages []ids.VirtualPage, out []ids.PhysicalPage) error {
	if len(out) < len(pages) {
		return invalid("inspect", "out has room for %d pages, need %d", len(out), len(pages))
	}
	f := e.begin()
	if f == nil {
		return closed("inspect")
	}
	status := e.library.table.callInspect(f, e.handle, pool, data(pages), count(len(pages)), data(out), f.errorOut())
	return e.end(f, "inspect", status)
}
