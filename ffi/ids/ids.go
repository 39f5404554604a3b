// Package ids holds the id types of the three id spaces and of the host tier, so that a mix-up does not compile. It is the leaf that
// every package may import and it imports nothing.
package ids

// VirtualPage is the stable name of a device page for its lifetime. It says nothing about where the page's bytes are.
type VirtualPage uint32

// PhysicalPage is where a device page sits now: page p of a pool is bytes [p·page_bytes, (p+1)·page_bytes) of the arena. It is valid only
// while something pins the page.
type PhysicalPage uint32

// KernelID is what attention kernels index with, page-granular (page tables) or token-granular. It is valid inside an open step or under a
// lease.
type KernelID int32

// HostPage is the stable name of a page of the host tier; the host arena may move its bytes like the device arena does.
type HostPage uint32

// None marks "no page" in every page id space; the library never hands it out.
const None = ^uint32(0)

// NoVirtualPage, NoPhysicalPage and NoHostPage are None in their own types.
const (
	NoVirtualPage  = VirtualPage(None)
	NoPhysicalPage = PhysicalPage(None)
	NoHostPage     = HostPage(None)
)
