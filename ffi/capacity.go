package ffi

import "unsafe"

// Compact packs pages toward their pool's end within the budget; pinned pages stay and are planned around. Nil: the device tier, no bound.
func (e *Engine) Compact(budget *CompactBudget) (CompactResult, error) {
	f := e.begin()
	if f == nil {
		return CompactResult{}, closed("compact")
	}
	if budget != nil {
		f.budget = *budget
	} else {
		f.budget = CompactBudget{Tier: TierDevice, Pool: NoPool}
	}
	f.budget.structSize = uint32(unsafe.Sizeof(f.budget))
	f.compacted = CompactResult{}
	status := e.library.table.callCompact(f, e.handle, ptr(&f.budget), ptr(&f.compacted), f.errorOut())
	result := f.compacted
	return result, e.end(f, "compact", status)
}

// SetCompaction changes when pages move.
func (e *Engine) SetCompaction(mode Compaction) error {
	f := e.begin()
	if f == nil {
		return closed("set compaction")
	}
	return e.end(f, "set compaction", e.library.table.callSetCompaction(f, e.handle, uint32(mode), f.errorOut()))
}

// Fits says whether a take of these pages would succeed now, moves included: nil, ErrNoCapacity or ErrMovesBlocked.
func (e *Engine) Fits(demands []Demand) error {
	f := e.begin()
	if f == nil {
		return closed("fits")
	}
	return e.end(f, "fits", e.library.table.callFits(f, e.handle, data(demands), count(len(demands)), f.errorOut()))
}

// FitsStatus is Fits for those who ask often: the status alone, and no garbage when the answer is no.
func (e *Engine) FitsStatus(demands []Demand) Status {
	f := e.begin()
	if f == nil {
		return StatusClosed
	}
	status := e.library.table.callFits(f, e.handle, data(demands), count(len(demands)), nil)
	_ = e.end(f, "fits", StatusOK)
	return status
}

// Capacity says how many pages of a pool could be taken.
func (e *Engine) Capacity(tier Tier, pool uint32) (Capacity, error) {
	f := e.begin()
	if f == nil {
		return Capacity{}, closed("capacity")
	}
	f.capacity = Capacity{}
	status := e.library.table.callCapacity(f, e.handle, uint32(tier), pool, ptr(&f.capacity), f.errorOut())
	capacity := f.capacity
	return capacity, e.end(f, "capacity", status)
}

// ReclaimPlan writes the smallest quotas, in pages of every pool at once, whose eviction makes the demand fit. evictable and quotas have one
// entry a pool. ErrNoCapacity if even all of it would not do. Nothing changes.
func (e *Engine) ReclaimPlan(demands []Demand, evictable []uint64, p Preference, quotas []uint64) error {
	if len(evictable) != len(e.pools) || len(quotas) != len(e.pools) {
		return invalid("reclaim plan", "evictable has %d entries and quotas %d, both need %d", len(evictable), len(quotas), len(e.pools))
	}
	f := e.begin()
	if f == nil {
		return closed("reclaim plan")
	}
	status := e.library.table.callReclaimPlan(f, e.handle, data(demands), count(len(demands)), data(evictable), uint32(p), data(quotas),
		f.errorOut())
	return e.end(f, "reclaim plan", status)
}

// Resize changes the device arena's size within the range kept at open. Errors: ErrMovesBlocked, ErrNoCapacity, ErrInvalid.
func (e *Engine) Resize(deviceBytes uint64) error {
	f := e.begin()
	if f == nil {
		return closed("resize")
	}
	status := e.library.table.callResize(f, e.handle, deviceBytes, f.errorOut())
	if status >= 0 {
		e.deviceBytes.Store(deviceBytes)
	}
	return e.end(f, "resize", status)
}
