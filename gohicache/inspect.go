package hicache

import (
	"fmt"

	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/lifecycle"
)

// PoolInfo is where a pool's pages are. In the envelope of a page, the K row of layer index l (into Layers) and token t begins at
// l·LayerStrideBytes + t·TokenStrideBytes, and its V row at l·LayerStrideBytes + VOffsetBytes + t·VTokenStrideBytes. The envelope of the page
// with physical number p begins at byte p·PageBytes of the arena.
type PoolInfo struct {
	Name              string
	Role              Role
	Layers            []int
	WindowTokens      int
	PageTokens        int
	PageBytes         uint64
	KRowBytes         uint64
	VRowBytes         uint64
	LayerStrideBytes  uint64
	TokenStrideBytes  uint64
	VTokenStrideBytes uint64
	VOffsetBytes      uint64
	FirstPage         int        // Device pages below are the sink.
	PageCount         int        // Of the device arena.
	HostPageCount     int        // Of the host arena; 0 without.
	HostLayout        HostLayout // Of a host region of its own; HostLayoutDefault: envelopes in the shared arena, or no host tier.
	KernelScale       uint64
	KernelOffset      uint64
	// ArenaBase is the device address of byte 0 of the arena, the same for all pools: what an attention kernel's base pointers are computed from. It
	// stays for the life of the cache, also when the arena is resized. 0 on the Null device. On CUDA it means nothing to the CPU.
	ArenaBase uint64
}

// PageAddress is the device address of the page that a page-granular kernel id names. The page's bytes may be touched only under a lease or in an open
// step that holds it.
func (p *PoolInfo) PageAddress(id ids.KernelID) uint64 {
	return p.ArenaBase + (uint64(id)-p.KernelOffset)/p.KernelScale*p.PageBytes
}

// Pools describes the pools, in the order of Options.Pools; that index is the pool's number everywhere in this package.
func (c *Cache) Pools() []PoolInfo { return c.pools }

// PoolIndex is the number of the pool of that name, -1 if there is none.
func (c *Cache) PoolIndex(name string) int {
	for i := range c.pools {
		if c.pools[i].Name == name {
			return i
		}
	}
	return -1
}

// PageBytes is the memory of a device page by its kernel id, on the CPU device: for simulated forwards and checks. Valid, and allowed,
// only under a lease or in an open step that holds the page. nil on other devices and for ids outside the pool.
func (c *Cache) PageBytes(pool int, id ids.KernelID) []byte {
	return c.core.PageBytes(pool, c.PhysicalPage(pool, id))
}

// ReadTags reads the tags of device pages by kernel id, on the Null device; WriteTags writes them. The pages must be held as for PageBytes.
// One border crossing.
func (c *Cache) ReadTags(pool int, pages []ids.KernelID, tags []uint64) error {
	return c.publicErrorOrNil("tags", c.core.Tags(pool, pages, tags, false))
}

// WriteTags is the counterpart of ReadTags.
func (c *Cache) WriteTags(pool int, pages []ids.KernelID, tags []uint64) error {
	return c.publicErrorOrNil("tags", c.core.Tags(pool, pages, tags, true))
}

// PageStamp is a page of a simulated forward pass on a CUDA device: the rows of its first TokenCount tokens are a function of Digest.
type PageStamp = lifecycle.Stamp

// StampPages fills the rows of device pages by kernel id with words that depend on each page's digest and the salts (two a layer of the pool: K and
// V), with the device itself. CheckStamps counts the 8-byte words of each page that differ. Both run on the legacy default stream, behind the layer
// waits there, and block. CUDA only: else ErrUnsupported. The pages must be held as for PageBytes.
func (c *Cache) StampPages(pool int, stamps []PageStamp, salts []uint64) error {
	return c.publicErrorOrNil("stamp pages", c.core.StampPages(pool, stamps, salts, nil))
}

// CheckStamps is the counterpart of StampPages.
func (c *Cache) CheckStamps(pool int, stamps []PageStamp, salts []uint64, mismatches []uint32) error {
	return c.publicErrorOrNil("check stamps", c.core.StampPages(pool, stamps, salts, mismatches))
}

// DevicePlaces are the places of pages on the device now, ids.NoPhysicalPage where a name has none. Without a lease the answer may be old
// when it returns. For checks and reports.
func (c *Cache) DevicePlaces(pool int, pages []ids.VirtualPage) ([]ids.PhysicalPage, error) {
	p, err := c.core.DevicePlaces(pool, pages)
	return p, c.publicErrorOrNil("inspect", err)
}

// HostPlaces are the places of host pages now, ids.NoPhysicalPage where a name has none.
func (c *Cache) HostPlaces(pool int, pages []ids.HostPage) ([]ids.PhysicalPage, error) {
	p, err := c.core.HostPlaces(pool, pages)
	return p, c.publicErrorOrNil("inspect", err)
}

// PageState is what the page map says of one place.
type PageState uint8

const (
	PageGap PageState = iota
	PageSink
	PageLive
	PageHole
	PageReserved
	PageQuarantined
	// PagePinned is a flag on PageLive, PageReserved and PageQuarantined.
	PagePinned PageState = 0x80
)

func memoryTier(op string, tier Tier) error {
	if tier != TierDevice && tier != TierHost {
		return &Error{Op: op, Err: ErrInvalid, Message: fmt.Sprintf("Tier is %v; it must be device or host", tier)}
	}
	return nil
}

// Map is one byte a physical page of a pool on a tier. O(pages): for reports.
func (c *Cache) Map(tier Tier, pool int) ([]PageState, error) {
	if err := memoryTier("map", tier); err != nil {
		return nil, err
	}
	raw, err := c.core.Map(tier == TierHost, pool)
	if err != nil {
		return nil, c.publicError("map", err)
	}
	states := make([]PageState, len(raw))
	for i, s := range raw {
		states[i] = PageState(s)
	}
	return states, nil
}

// PoolStats are the gauges of a pool on the device or the host.
func (c *Cache) PoolStats(tier Tier, pool int) (PoolStats, error) {
	if err := memoryTier("stats", tier); err != nil {
		return PoolStats{}, err
	}
	s, err := c.core.PoolStats(tier == TierHost, pool)
	return s, c.publicErrorOrNil("stats", err)
}

// CopyChoice says how copies of one direction cross the bus of a CUDA device, and where the choice comes from. String puts it in words.
type CopyChoice = lifecycle.CopyChoice

// CopyChoices are the choices of copies to the device and from it. They are made when the cache opens; on CPU and Null their Source is
// none.
func (c *Cache) CopyChoices() (h2d, d2h CopyChoice, err error) {
	h2d, d2h, err = c.core.CopyChoices()
	return h2d, d2h, c.publicErrorOrNil("copy choices", err)
}

// Verify recomputes every invariant of the engine, of the tree and between them from scratch. nil is healthy; else an ErrInternal whose message
// lists what is wrong. It stops the cache for O(pages): for tests and diagnosis.
func (c *Cache) Verify() error { return c.publicErrorOrNil("verify", c.core.Verify()) }

// Drive runs up to count copies that fault injection holds, in seeded order, and reads their completions; it returns how many ran. By layers,
// a step is one layer group of a copy. ErrUnsupported without Options.Faults.
func (c *Cache) Drive(count int, layers bool) (int, error) {
	n, err := c.core.Drive(count, layers)
	return n, c.publicErrorOrNil("drive", err)
}

// HoldTransfers makes copies submitted from now on wait for Drive (or, false, not any more); failNext makes the next so many fail.
func (c *Cache) HoldTransfers(hold bool, failNext int) error {
	return c.publicErrorOrNil("hold", c.core.HoldTransfers(hold, failNext))
}

// PhysicalPage is the place behind a page-granular kernel id; ids.NoPhysicalPage if there is no such pool.
func (c *Cache) PhysicalPage(pool int, id ids.KernelID) ids.PhysicalPage {
	if pool < 0 || pool >= len(c.pools) {
		return ids.NoPhysicalPage
	}
	p := &c.pools[pool]
	return ids.PhysicalPage((uint64(uint32(id)) - p.KernelOffset) / p.KernelScale)
}

// IsSink reports whether a page-granular kernel id is the sink's: the page has no page in that pool.
func (c *Cache) IsSink(pool int, id ids.KernelID) bool {
	return pool >= 0 && pool < len(c.pools) && int(c.PhysicalPage(pool, id)) < c.pools[pool].FirstPage
}

// Evict gives up pages of one pool on the device or the host in the order of policy, without a shortage: for tests, and for servers that
// know what is coming. It returns how many pages of the pool and with them went, or go once they are backed up.
func (c *Cache) Evict(tier Tier, pool, pages int) (int, error) {
	if err := memoryTier("evict", tier); err != nil {
		return 0, err
	}
	n, err := c.core.Evict(tier == TierHost, pool, pages)
	return n, c.publicErrorOrNil("evict", err)
}
