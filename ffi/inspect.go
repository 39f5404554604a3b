package ffi

import (
	"bytes"
	"unsafe"
)

// Stats reads the engine's counters.
func (e *Engine) Stats() (Stats, error) {
	f := e.begin()
	if f == nil {
		return Stats{}, closed("stats")
	}
	f.stats = Stats{structSize: uint32(unsafe.Sizeof(f.stats))}
	status := e.library.table.callStats(f, e.handle, ptr(&f.stats), f.errorOut())
	stats := f.stats
	return stats, e.end(f, "stats", status)
}

// PoolStats reads a pool's gauges in one tier.
func (e *Engine) PoolStats(tier Tier, pool uint32) (PoolStats, error) {
	f := e.begin()
	if f == nil {
		return PoolStats{}, closed("pool stats")
	}
	f.poolStats = PoolStats{structSize: uint32(unsafe.Sizeof(f.poolStats))}
	status := e.library.table.callPoolStats(f, e.handle, uint32(tier), pool, ptr(&f.poolStats), f.errorOut())
	stats := f.poolStats
	return stats, e.end(f, "pool stats", status)
}

// Map writes the states of the physical pages [first, first + len(states)) of a pool. ErrInvalid past the end.
func (e *Engine) Map(tier Tier, pool, first uint32, states []PageState) error {
	f := e.begin()
	if f == nil {
		return closed("map")
	}
	status := e.library.table.callMap(f, e.handle, uint32(tier), pool, first, count(len(states)), data(states), f.errorOut())
	return e.end(f, "map", status)
}

// Verify recomputes every invariant of both arenas from scratch: nil, or ErrInternal with the first violation; report has as many as fit in 64
// KiB, one a line. It holds the engine's lock for O(arena).
func (e *Engine) Verify() (report string, err error) {
	f := e.begin()
	if f == nil {
		return "", closed("verify")
	}
	text := make([]byte, 64<<10)
	status := e.library.table.callVerify(f, e.handle, data(text), uintptr(len(text)), f.errorOut())
	text, _, _ = bytes.Cut(text, []byte{0})
	return string(text), e.end(f, "verify", status)
}

// FaultRun runs up to n held or waiting transfers (one layer group each if layers), in seeded order, and returns how many steps ran.
// ErrUnsupported without fault injection.
func (e *Engine) FaultRun(n uint32, layers bool) (int, error) {
	f := e.begin()
	if f == nil {
		return 0, closed("fault run")
	}
	var mode uint32
	if layers {
		mode = 1
	}
	f.out32 = 0
	status := e.library.table.callFaultRun(f, e.handle, n, mode, ptr(&f.out32), f.errorOut())
	ran := int(f.out32)
	return ran, e.end(f, "fault run", status)
}

// FaultHold holds or releases transfers submitted from now on, and makes the next failNext of them fail.
func (e *Engine) FaultHold(hold bool, failNext uint32) error {
	f := e.begin()
	if f == nil {
		return closed("fault hold")
	}
	var mode uint32
	if hold {
		mode = 1
	}
	return e.end(f, "fault hold", e.library.table.callFaultHold(f, e.handle, mode, failNext, f.errorOut()))
}
