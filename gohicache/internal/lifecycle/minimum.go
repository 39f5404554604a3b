package lifecycle

import (
	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
)

// checkStaging: the staging arena must hold two minimum transfers at once, one on its way to storage and one on its way back. A transfer is cut into
// chunks, so the smallest is a page of every pool, whatever the prefetch threshold; the engine itself is asked, whose pages have places.
func (c *Core) checkStaging() error {
	var taken []bounce
	var err error
	for range 2 {
		b := c.minimumTransfer()
		if err = c.eng.HostAlloc(b.takes); err != nil {
			break
		}
		taken = append(taken, b)
	}
	for i := range taken {
		c.bug("host free", c.eng.HostFree(taken[i].takes))
	}
	if err == nil {
		return nil
	}
	if !lacksRoom(err) {
		return fromEngine(err)
	}
	e := fail(KindInfeasible, "the staging arena of %d bytes must hold two minimum transfers of %d bytes, a page of every pool, each at a multiple of its size",
		c.cfg.HostBytes, c.minimumBytes())
	e.Need, e.Have = 2*c.minimumBytes(), c.cfg.HostBytes
	return e
}

// minimumTransfer is the smallest set of host pages that brings something to storage or back.
func (c *Core) minimumTransfer() bounce {
	var b bounce
	for p := range c.host {
		b.takes = append(b.takes, ffi.HostPages{Pool: uint32(p), Pages: make([]ids.HostPage, 1)})
	}
	return b
}

func (c *Core) minimumBytes() (sum uint64) {
	for p := range c.host {
		sum += c.host[p].PageBytes
	}
	return sum
}
