package ffi

import (
	"unsafe"

	"github.com/hicache/hicache/ffi/ids"
)

// HostPages names pages of one pool in the host tier.
type HostPages struct {
	Pool  uint32
	Pages []ids.HostPage
}

// HostAlloc takes host pages in all lines or none: each line's Pages is filled.
func (e *Engine) HostAlloc(takes []HostPages) error {
	f := e.begin()
	if f == nil {
		return closed("host alloc")
	}
	for i := range takes {
		t := &takes[i]
		f.hostTakes = append(f.hostTakes, abiHostTake{pool: t.Pool, pageCount: count(len(t.Pages)), hpages: unsafe.SliceData(t.Pages)})
	}
	return e.end(f, "host alloc", e.library.table.callHostAlloc(f, e.handle, data(f.hostTakes), count(len(f.hostTakes)), f.errorOut()))
}

// HostFree gives host pages back; they are quarantined while a copy or a view still touches them.
func (e *Engine) HostFree(frees []HostPages) error {
	f := e.begin()
	if f == nil {
		return closed("host free")
	}
	f.putHostPages(frees)
	return e.end(f, "host free", e.library.table.callHostFree(f, e.handle, data(f.hostPages), count(len(f.hostPages)), f.errorOut()))
}

// HostView leases host pages and writes their bytes, one slice a page, into views: valid until LeaseRelease, and never after. The slices are nil on
// the null backend, which has no bytes (use Tags), and in a region where a page does not lie in one piece (use HostCopy).
func (e *Engine) HostView(pages HostPages, views [][]byte) (Lease, error) {
	if len(views) < len(pages.Pages) {
		return 0, invalid("host view", "views has room for %d pages, need %d", len(views), len(pages.Pages))
	}
	f := e.begin()
	if f == nil {
		return 0, closed("host view")
	}
	f.hostPages = append(f.hostPages, abiHostPages{pool: pages.Pool, pageCount: count(len(pages.Pages)), hpages: unsafe.SliceData(pages.Pages)})
	if n := len(pages.Pages); cap(f.addresses) < n {
		f.addresses = make([]uintptr, n)
	}
	f.addresses = f.addresses[:len(pages.Pages)]
	f.out64 = 0
	status := e.library.table.callHostView(f, e.handle, data(f.hostPages), data(f.addresses), ptr(&f.out64), f.errorOut())
	if status >= 0 {
		size := e.pools[pages.Pool].host.PageBytes
		for i, address := range f.addresses {
			views[i] = nil
			if address != 0 && e.pools[pages.Pool].host.HostLayout == HostLayoutEnvelope {
				views[i] = unsafe.Slice((*byte)(foreign(address)), size)
			}
		}
	}
	lease := Lease(f.out64)
	return lease, e.end(f, "host view", status)
}

// HostCopy copies whole host pages, which a view holds, into buf or (toHost) out of it: PageBytes a page, one after the other, each as layout has
// it in a region of one page; HostLayoutEnvelope is the device's order. Blocks for the copy.
// Errors: ErrStale, ErrNotMapped, ErrInvalid, ErrUnsupported on the null backend.
func (e *Engine) HostCopy(view Lease, pages HostPages, layout HostLayout, toHost bool, buf []byte) error {
	if int(pages.Pool) >= len(e.pools) {
		return invalid("host copy", "pool %d of %d", pages.Pool, len(e.pools))
	}
	if need := uint64(len(pages.Pages)) * e.pools[pages.Pool].host.PageBytes; uint64(len(buf)) < need {
		return invalid("host copy", "buf has %d bytes, need %d", len(buf), need)
	}
	f := e.begin()
	if f == nil {
		return closed("host copy")
	}
	f.hostPages = append(f.hostPages, abiHostPages{pool: pages.Pool, pageCount: count(len(pages.Pages)), hpages: unsafe.SliceData(pages.Pages)})
	var mode uint32
	if toHost {
		mode = 1
	}
	return e.end(f, "host copy", e.library.table.callHostCopy(f, e.handle, uint64(view), data(f.hostPages), uint32(layout), mode, data(buf), f.errorOut()))
}

// HostInspect writes the places of host pages now, NoPhysicalPage where not allocated.
func (e *Engine) HostInspect(pool uint32, pages []ids.HostPage, out []ids.PhysicalPage) error {
	if len(out) < len(pages) {
		return invalid("host inspect", "out has room for %d pages, need %d", len(out), len(pages))
	}
	f := e.begin()
	if f == nil {
		return closed("host inspect")
	}
	status := e.library.table.callHostInspect(f, e.handle, pool, data(pages), count(len(pages)), data(out), f.errorOut())
	return e.end(f, "host inspect", status)
}

// DeviceTags reads, or with write writes, the null backend's 8-byte tags of device pages by their page-granular kernel ids.
func (e *Engine) DeviceTags(pool uint32, pages []ids.KernelID, tags []uint64, write bool) error {
	return e.tags(TierDevice, pool, data(pages), len(pages), tags, write)
}

// HostTags reads, or with write writes, the null backend's 8-byte tags of host pages.
func (e *Engine) HostTags(pool uint32, pages []ids.HostPage, tags []uint64, write bool) error {
	return e.tags(TierHost, pool, data(pages), len(pages), tags, write)
}

func (e *Engine) tags(tier Tier, pool uint32, pages unsafe.Pointer, n int, tags []uint64, write bool) error {
	if len(tags) < n {
		return invalid("tags", "tags has room for %d pages, need %d", len(tags), n)
	}
	f := e.begin()
	if f == nil {
		return closed("tags")
	}
	var mode uint32
	if write {
		mode = 1
	}
	return e.end(f, "tags", e.library.table.callTags(f, e.handle, uint32(tier), pool, pages, count(n), data(tags), mode, f.errorOut()))
}
