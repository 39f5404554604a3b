package lifecycle

import (
	"fmt"
	"strings"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/invariants"
	"github.com/hicache/hicache/gohicache/metrics"
)

func tierOf(host bool) ffi.Tier {
	if host {
		return ffi.TierHost
	}
	return ffi.TierDevice
}

// DeviceInfo and HostInfo are the engine's description of a pool on a tier; HostInfo is zero without a host arena.
func (c *Core) DeviceInfo(pool int) ffi.PoolInfo { return c.device[pool] }

// HostInfo is DeviceInfo for the host arena.
func (c *Core) HostInfo(pool int) ffi.PoolInfo {
	if c.host == nil {
		return ffi.PoolInfo{}
	}
	return c.host[pool]
}

// isPool refuses numbers of pools that there are not; the engine's are narrower.
func (c *Core) isPool(pool int) error {
	if pool < 0 || pool >= len(c.cfg.Pools) {
		return fail(KindInvalid, "pool %d of %d", pool, len(c.cfg.Pools))
	}
	return nil
}

// Compact packs pages within the budget.
func (c *Core) Compact(host bool, pages uint32, bytes uint64) (ffi.CompactResult, error) {
	if err := c.check(); err != nil {
		return ffi.CompactResult{}, err
	}
	c.pump(0)
	c.drainOrphans()
	if host && c.host == nil {
		return ffi.CompactResult{}, nil
	}
	r, err := c.eng.Compact(&ffi.CompactBudget{Tier: tierOf(host), Pool: ffi.NoPool, PagesMax: pages, BytesMax: bytes})
	return r, fromEngine(err)
}

// PageBytes is the memory of a device page of the CPU backend; nil where there is none.
func (c *Core) PageBytes(pool int, page ids.PhysicalPage) []byte {
	if pool < 0 || pool >= len(c.device) || uint32(page) >= c.device[pool].PageCount {
		return nil
	}
	b, err := c.eng.DevicePage(uint32(pool), page)
	if err != nil {
		return nil
	}
	return b
}

// Tags reads or writes tags of the null backend.
func (c *Core) Tags(pool int, pages []ids.KernelID, tags []uint64, write bool) error {
	if err := c.isPool(pool); err != nil {
		return err
	}
	return fromEngine(c.eng.DeviceTags(uint32(pool), pages, tags, write))
}

// Stamp is a page to be stamped by a CUDA device.
type Stamp = ffi.Stamp

// StampPages writes stamps with the device, or compares them (mismatches not nil), on the legacy default stream.
func (c *Core) StampPages(pool int, stamps []Stamp, salts []uint64, mismatches []uint32) error {
	if err := c.isPool(pool); err != nil {
		return err
	}
	return fromEngine(c.eng.StampPages(uint32(pool), 0, stamps, salts, mismatches))
}

// DevicePlaces are the places of device pages now.
func (c *Core) DevicePlaces(pool int, pages []ids.VirtualPage) ([]ids.PhysicalPage, error) {
	if err := c.isPool(pool); err != nil {
		return nil, err
	}
	out := make([]ids.PhysicalPage, len(pages))
	return out, fromEngine(c.eng.Inspect(uint32(pool), pages, out))
}

// HostPlaces are the places of host pages now.
func (c *Core) HostPlaces(pool int, pages []ids.HostPage) ([]ids.PhysicalPage, error) {
	if err := c.isPool(pool); err != nil {
		return nil, err
	}
	out := make([]ids.PhysicalPage, len(pages))
	return out, fromEngine(c.eng.HostInspect(uint32(pool), pages, out))
}

// Map is the state of every place of a pool.
func (c *Core) Map(host bool, pool int) ([]byte, error) {
	if err := c.isPool(pool); err != nil {
		return nil, err
	}
	n := c.device[pool].PageCount
	if host {
		n = c.HostInfo(pool).PageCount
	}
	states := make([]ffi.PageState, n)
	if n > 0 {
		if err := c.eng.Map(tierOf(host), uint32(pool), 0, states); err != nil {
			return nil, fromEngine(err)
		}
	}
	out := make([]byte, n)
	for i, s := range states {
		out[i] = byte(s)
	}
	return out, nil
}

// CopyChoice is how copies of one direction cross the bus.
type CopyChoice = ffi.CopyChoice

// CopyChoices says how copies of each direction cross the bus.
func (c *Core) CopyChoices() (h2d, d2h CopyChoice, err error) {
	s, err := c.eng.Stats()
	return s.H2DChoice, s.D2HChoice, fromEngine(err)
}

// PoolStats are the gauges of one pool on one tier.
func (c *Core) PoolStats(host bool, pool int) (metrics.PoolStats, error) {
	if err := c.isPool(pool); err != nil {
		return metrics.PoolStats{}, err
	}
	if host && c.host == nil {
		return metrics.PoolStats{}, nil
	}
	s, err := c.eng.PoolStats(tierOf(host), uint32(pool))
	if err != nil {
		return metrics.PoolStats{}, fromEngine(err)
	}
	room, err := c.eng.Capacity(tierOf(host), uint32(pool))
	if err != nil {
		return metrics.PoolStats{}, fromEngine(err)
	}
	n := c.tree.Counts(pool)
	out := metrics.PoolStats{Live: s.LivePages, Holes: s.HolePages, Reserved: s.ReservedPages, Quarantined: s.QuarantinedPages, Pinned: s.PinnedPages,
		SpanLow: s.SpanLow, SpanHigh: s.SpanHigh, GapLowBytes: s.GapLowBytes, GapHighBytes: s.GapHighBytes, FreeVirtualPages: s.FreeVirtualPages,
		Available: room.AvailablePages, Schedulable: room.SchedulablePages, Cached: uint64(n.Device), Evictable: uint64(n.DeviceEvictable)}
	if host {
		out.Cached, out.Evictable = uint64(n.Host), uint64(n.HostEvictable)
	}
	return out, nil
}

// Verify checks the engine, the tree, and that each page has exactly one owner.
func (c *Core) Verify() error {
	c.pump(0)
	c.plan.Lock()
	defer c.plan.Unlock()
	if c.closed.Load() {
		return errClosed()
	}
	var wrong []string
	if report, err := c.eng.Verify(); err != nil {
		wrong = append(wrong, fmt.Sprintf("engine: %v\n%s", err, report))
	}
	for _, line := range c.tree.Verify() {
		wrong = append(wrong, "tree: "+line)
	}
	wrong = append(wrong, c.verifyOwnership()...)
	if len(wrong) > 0 {
		return fail(KindInternal, "%s", strings.Join(wrong, "\n"))
	}
	return nil
}

// verifyOwnership compares what the engine has given out with what the tree names.
func (c *Core) verifyOwnership() []string {
	idle := c.holds.count() == 0 && c.ops.count() == 0 && c.count.pins.Load() == 0 && c.store.Load().idle()
	var ledgers []invariants.Ledger
	for p := range c.cfg.Pools {
		n := c.tree.Counts(p)
		for _, host := range []bool{false, true} {
			if host && c.host == nil {
				continue
			}
			s, err := c.eng.PoolStats(tierOf(host), uint32(p))
			if err != nil {
				return []string{err.Error()}
			}
			l := invariants.Ledger{Pool: c.cfg.Pools[p].Name, Tier: "device", Live: int(s.LivePages), Named: n.Device}
			if host {
				l.Tier, l.Named = "host", n.Host
			}
			ledgers = append(ledgers, l)
		}
	}
	return invariants.Ownership(ledgers, idle)
}

// Drive runs held copies of fault injection and reads completions.
func (c *Core) Drive(count int, layers bool) (int, error) {
	if c.cfg.Fault == nil {
		return 0, fail(KindUnsupported, "Drive without Faults: copies run by themselves")
	}
	n, err := c.eng.FaultRun(uint32(max(count, 0)), layers)
	c.pump(0)
	return n, fromEngine(err)
}

// HoldTransfers holds or releases copies, and makes the next ones fail.
func (c *Core) HoldTransfers(hold bool, failNext int) error {
	if c.cfg.Fault == nil {
		return fail(KindUnsupported, "HoldTransfers without Faults")
	}
	return fromEngine(c.eng.FaultHold(hold, uint32(max(failNext, 0))))
}
