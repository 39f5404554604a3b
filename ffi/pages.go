package ffi

import (
	"unsafe"

	"github.com/hicache/hicache/ffi/ids"
)

// Take is one line of a demand.
type Take struct {
	Pool uint32
	// Pages of an id-owning pool (FULL, STATE): out, len(Pages) new virtual pages. Pages of an SWA pool, Alloc: in, the virtual pages that get
	// a window page. Nil: Count pages of an SWA pool, in Alloc the last Count pages that the call takes of the owner.
	Pages []ids.VirtualPage
	Count uint32 // Only where Pages is nil.
}

// Pages names pages of one pool.
type Pages struct {
	Pool  uint32
	Pages []ids.VirtualPage
}

// Sequence is one sequence of a batch extend. The tail page is filled first, then new pages are taken.
type Sequence struct {
	Pages            []ids.VirtualPage // In/out: in the owner pool, in order; new ones are appended within cap(Pages).
	Tokens           uint32            // In/out.
	NewTokens        uint32
	WindowTailTokens uint32 // Only new pages that meet the last so many tokens get SWA pages; NoPage: all do.
	Flags            SequenceFlags
}

// PoolInfo says where a pool is in a tier's arena.
func (e *Engine) PoolInfo(tier Tier, pool uint32) (PoolInfo, error) {
	f := e.begin()
	if f == nil {
		return PoolInfo{}, closed("pool info")
	}
	f.info = PoolInfo{structSize: uint32(unsafe.Sizeof(f.info))}
	status := e.library.table.callPoolInfo(f, e.handle, uint32(tier), pool, ptr(&f.info), f.errorOut())
	info := f.info
	return info, e.end(f, "pool info", status)
}

// Alloc takes and binds pages of all lines or none. It may move pages, and never waits for a transfer.
// Errors: ErrNoCapacity (Need, Have, Pending), ErrMovesBlocked, ErrNotMapped, ErrStale, ErrInvalid.
func (e *Engine) Alloc(takes []Take) error {
	f := e.begin()
	if f == nil {
		return closed("alloc")
	}
	f.putTakes(takes)
	return e.end(f, "alloc", e.library.table.callAlloc(f, e.handle, data(f.takes), count(len(f.takes)), f.errorOut()))
}

// Free gives pages back. In an id-owning pool a page ends in every pool of its group; in an SWA pool it leaves a tombstone. Never waits.
// ErrStale, with nothing freed, if an id is not allocated or occurs twice.
func (e *Engine) Free(frees []Pages) error {
	f := e.begin()
	if f == nil {
		return closed("free")
	}
	f.putPages(frees)
	return e.end(f, "free", e.library.table.callFree(f, e.handle, data(f.pages), count(len(f.pages)), f.errorOut()))
}

// Extend extends every sequence or none, in all pools of the owner's group. Errors as Alloc; ErrInvalid also when cap(Pages) is short.
func (e *Engine) Extend(ownerPool uint32, sequences []Sequence) error {
	f := e.begin()
	if f == nil {
		return closed("extend")
	}
	f.putSequences(sequences)
	status := e.library.table.callExtend(f, e.handle, ownerPool, data(f.sequences), count(len(f.sequences)), f.errorOut())
	if status >= 0 {
		f.takeSequences(sequences)
	}
	return e.end(f, "extend", status)
}

// Reserve takes pages without binding them: they hold their place and do not move until exactly one of Load and Cancel. The virtual ids of
// id-owning pools are written now and translate to nothing until the load. Errors as Alloc, and ErrLimit.
func (e *Engine) Reserve(takes []Take) (Reservation, error) {
	f := e.begin()
	if f == nil {
		return 0, closed("reserve")
	}
	f.putTakes(takes)
	f.out64 = 0
	status := e.library.table.callReserve(f, e.handle, data(f.takes), count(len(f.takes)), ptr(&f.out64), f.errorOut())
	r := Reservation(f.out64)
	return r, e.end(f, "reserve", status)
}

// Cancel gives a reservation back whole.
func (e *Engine) Cancel(r Reservation) error {
	f := e.begin()
	if f == nil {
		return closed("cancel")
	}
	return e.end(f, "cancel", e.library.table.callCancel(f, e.handle, uint64(r), f.errorOut()))
}

// ReservationPages writes the places of a reservation's pages in one pool, as many as fit, and returns how many there are.
func (e *Engine) ReservationPages(r Reservation, pool uint32, out []ids.PhysicalPage) (int, error) {
	f := e.begin()
	if f == nil {
		return 0, closed("reservation pages")
	}
	f.out32 = 0
	status := e.library.table.callReservationPages(f, e.handle, uint64(r), pool, data(out), count(len(out)), ptr(&f.out32), f.errorOut())
	n := int(f.out32)
	return n, e.end(f, "reservation pages", status)
}
