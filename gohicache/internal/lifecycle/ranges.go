package lifecycle

import "github.com/hicache/hicache/ffi"

// began starts a range for a profiler that listens. A profiler attaches before the process starts, so Open asks once; without one this is a branch.
func (c *Core) began(a ffi.Activity, pages int) uint64 {
	if !c.profiled {
		return 0
	}
	return c.eng.Library().RangeStart(a, pages)
}

// ended ends what began started.
func (c *Core) ended(id uint64) {
	if id != 0 {
		c.eng.Library().RangeEnd(id)
	}
}
