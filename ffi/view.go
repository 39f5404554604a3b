package ffi

import (
	"unsafe"

	"github.com/hicache/hicache/ffi/ids"
)

// The views show memory of the library without a call. They are valid until Close; whether the bytes are yours to touch is a matter of
// leases and steps, which a view does not check.

// DeviceBytes shows bytes [offset, offset + length) of the device arena of the CPU backend. ErrUnsupported on the others.
func (e *Engine) DeviceBytes(offset, length uint64) ([]byte, error) {
	return e.view("device bytes", TierDevice, 0, offset, length)
}

// HostBytes shows bytes [offset, offset + length) of the host arena. ErrUnsupported without a host tier and on the null backend.
func (e *Engine) HostBytes(offset, length uint64) ([]byte, error) {
	return e.view("host bytes", TierHost, 0, offset, length)
}

// DevicePage shows the envelope of a physical page of the CPU backend.
func (e *Engine) DevicePage(pool uint32, page ids.PhysicalPage) ([]byte, error) {
	return e.pageView("device page", TierDevice, pool, page)
}

// HostPageAt shows the envelope of the host page at a place (see HostInspect). It leases nothing: prefer HostView.
func (e *Engine) HostPageAt(pool uint32, page ids.PhysicalPage) ([]byte, error) {
	if int(pool) < len(e.pools) && e.pools[pool].host.HostLayout != HostLayoutEnvelope {
		return nil, &Error{Op: "host page", Pool: pool, Status: StatusUnsupported, Message: "the page does not lie in one piece: use HostView and HostCopy"}
	}
	return e.pageView("host page", TierHost, pool, page)
}

func (e *Engine) pageView(op string, tier Tier, pool uint32, page ids.PhysicalPage) ([]byte, error) {
	if int(pool) >= len(e.pools) {
		return nil, invalid(op, "pool %d of %d", pool, len(e.pools))
	}
	size := e.pools[pool].info(tier).PageBytes
	return e.view(op, tier, pool, uint64(page)*size, size)
}

// view shows bytes from a pool's arena base: a static pool has memory of its own, the others share the tier's arena.
func (e *Engine) view(op string, tier Tier, pool uint32, offset, length uint64) ([]byte, error) {
	if e.gate.closed.Load() {
		return nil, closed(op)
	}
	info := e.pools[pool].info(tier)
	if info.ArenaBase == 0 || tier == TierDevice && e.backend != BackendCPU {
		return nil, &Error{Op: op, Pool: NoPool, Status: StatusUnsupported, Message: "this engine has no such bytes in host memory"}
	}
	total := info.ArenaBytes
	if tier == TierDevice && info.ArenaBase == e.pools[0].device.ArenaBase {
		total = e.deviceBytes.Load()
	}
	if offset > total || length > total-offset {
		return nil, invalid(op, "bytes [%d, %d+%d) of an arena of %d", offset, offset, length, total)
	}
	return unsafe.Slice((*byte)(foreign(uintptr(info.ArenaBase+offset))), length), nil
}
