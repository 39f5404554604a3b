package script

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
)

// available prints what could be taken of each pool alone, in pages and tokens, and of a FULL pool with its windows jointly.
func (in *Interpreter) available(c *call) error { return in.availableOn(c, ffi.TierDevice) }

func (in *Interpreter) hostAvailable(c *call) error { return in.availableOn(c, ffi.TierHost) }

func (in *Interpreter) availableOn(c *call, tier ffi.Tier) error {
	names := c.words()
	if err := c.done(); err != nil {
		return err
	}
	pools, err := in.poolList(names)
	if err != nil {
		return err
	}
	for _, pool := range pools {
		capacity, err := in.engine.Capacity(tier, pool)
		if err != nil {
			return err
		}
		p := &in.pools[pool]
		now, moved := capacity.AvailablePages, capacity.SchedulablePages
		text := fmt.Sprintf("%s: %s", p.name, count(now, "page"))
		if p.role == ffi.RoleState {
			text += fmt.Sprintf(", with moves %d", moved)
		} else {
			text += fmt.Sprintf(" (%d tokens), with moves %d (%d)", now*uint64(p.pageTokens), moved, moved*uint64(p.pageTokens))
		}
		if capacity.PendingPages > 0 {
			text += fmt.Sprintf(", pending %d", capacity.PendingPages)
		}
		c.out.line("%s", text)
		c.out.set(p.name, capacity)
	}
	if group := in.fullGroup(); len(names) == 0 && len(group) > 1 && tier == ffi.TierDevice {
		return in.printJoint(c, group)
	}
	return nil
}

// fullGroup lists the first FULL pool and its window pools.
func (in *Interpreter) fullGroup() []uint32 {
	owner, err := in.ownerPool("")
	if err != nil {
		return nil
	}
	var group []uint32
	for i := range in.pools {
		if in.pools[i].owner == owner {
			group = append(group, uint32(i))
		}
	}
	return group
}

// joint prints the largest n for which n pages of each named pool fit at once.
func (in *Interpreter) joint(c *call) error {
	names := c.words()
	if err := c.done(); err != nil {
		return err
	}
	pools, err := in.poolList(names)
	if err != nil {
		return err
	}
	return in.printJoint(c, pools)
}

// printJoint searches with the library's one predicate: what fits is downward closed.
func (in *Interpreter) printJoint(c *call, pools []uint32) error {
	low, high := uint32(0), in.pools[pools[0]].device.PageCount+1 // low fits, high does not.
	for low+1 < high {
		middle := low + (high-low)/2
		demands := make([]ffi.Demand, len(pools))
		for i, pool := range pools {
			demands[i] = ffi.Demand{Pool: pool, PageCount: middle}
		}
		err := in.engine.Fits(demands)
		switch {
		case err == nil:
			low = middle
		case errors.Is(err, ffi.ErrNoCapacity) || errors.Is(err, ffi.ErrMovesBlocked):
			high = middle
		default:
			return err
		}
	}
	names := make([]string, len(pools))
	for i, pool := range pools {
		names[i] = in.pools[pool].name
	}
	c.out.line("joint %s: %s (%d tokens)", strings.Join(names, " "), count(uint64(low), "page"), uint64(low)*uint64(in.pools[pools[0]].pageTokens))
	c.out.set("joint_pages", low)
	return nil
}

// fits asks whether a take would succeed now, moves included.
func (in *Interpreter) fits(c *call) error {
	list, err := in.demands(c)
	if err != nil {
		return err
	}
	demands := make([]ffi.Demand, len(list))
	for i, d := range list {
		demands[i] = ffi.Demand{Pool: d.pool, PageCount: d.count}
	}
	err = in.engine.Fits(demands)
	switch {
	case err == nil:
		c.out.line("yes")
	case errors.Is(err, ffi.ErrNoCapacity) || errors.Is(err, ffi.ErrMovesBlocked):
		c.out.line("no: %s", in.describe(err))
	default:
		return err
	}
	c.out.set("fits", err == nil)
	return nil
}

var preferences = map[string]uint32{"full-first": uint32(ffi.PreferenceFullFirst), "swa-first": uint32(ffi.PreferenceSWAFirst)}

// plan prints the smallest eviction quotas that make a demand fit.
func (in *Interpreter) plan(c *call) error {
	evictable, err := in.evictable(c)
	if err != nil {
		return err
	}
	preference := ffi.Preference(c.choice("prefer", "full-first", preferences))
	list, err := in.demands(c)
	if err != nil {
		return err
	}
	demands := make([]ffi.Demand, len(list))
	for i, d := range list {
		demands[i] = ffi.Demand{Pool: d.pool, PageCount: d.count}
	}
	quotas := make([]uint64, len(in.pools))
	if err := in.engine.ReclaimPlan(demands, evictable, preference, quotas); err != nil {
		return err
	}
	var parts []string
	for pool, quota := range quotas {
		if quota == 0 {
			continue
		}
		p := &in.pools[pool]
		part := fmt.Sprintf("%s %s", p.name, count(quota, "page"))
		if p.role != ffi.RoleState {
			part += fmt.Sprintf(" (%d tokens)", quota*uint64(p.pageTokens))
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		parts = []string{"nothing"}
	}
	c.out.line("evict %s", strings.Join(parts, ", "))
	c.out.set("quotas_pages", quotas)
	return nil
}

// evictable reads "evictable=(pool:pages, ...)".
func (in *Interpreter) evictable(c *call) ([]uint64, error) {
	pages := make([]uint64, len(in.pools))
	for _, text := range c.list("evictable") {
		name, number, _ := strings.Cut(text, ":")
		pool, err := in.pool(name)
		if err != nil {
			return nil, err
		}
		if pages[pool], err = parseSize(number); err != nil {
			return nil, err
		}
	}
	return pages, nil
}

// table prints a pool's span, counts, holes, and where every virtual page is.
func (in *Interpreter) table(c *call) error { return in.tableOn(c, ffi.TierDevice) }

func (in *Interpreter) hostTable(c *call) error { return in.tableOn(c, ffi.TierHost) }

func (in *Interpreter) tableOn(c *call, tier ffi.Tier) error {
	names := c.words()
	if err := c.done(); err != nil {
		return err
	}
	pools, err := in.poolList(names)
	if err != nil {
		return err
	}
	for _, pool := range pools {
		if err := in.tableOf(c, tier, pool); err != nil {
			return err
		}
	}
	return nil
}

func (in *Interpreter) tableOf(c *call, tier ffi.Tier, pool uint32) error {
	p := &in.pools[pool]
	stats, err := in.engine.PoolStats(tier, pool)
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s [%d,%d) live %d", p.name, stats.SpanLow, stats.SpanHigh, stats.LivePages)
	states, err := in.states(tier, pool)
	if err != nil {
		return err
	}
	var holes []uint32
	for page, state := range states {
		if state&^ffi.PageStatePinned == ffi.PageStateHole {
			holes = append(holes, uint32(page))
		}
	}
	if len(holes) > 0 {
		fmt.Fprintf(&b, " holes %s", ranges(holes))
	}
	if stats.ReservedPages > 0 {
		fmt.Fprintf(&b, " reserved %d", stats.ReservedPages)
	}
	if stats.QuarantinedPages > 0 {
		fmt.Fprintf(&b, " quarantined %d", stats.QuarantinedPages)
	}
	if stats.PinnedPages > 0 {
		fmt.Fprintf(&b, " pinned %d", stats.PinnedPages)
	}
	b.WriteByte(':')
	places, err := in.places(tier, pool)
	if err != nil {
		return err
	}
	for name, place := range places {
		if place != ids.None {
			fmt.Fprintf(&b, " %d>%d", name, place)
		}
	}
	c.out.line("%s", b.String())
	return nil
}

// places returns where each name of a pool is now; the index is the name. The sink's own entry is left out.
func (in *Interpreter) places(tier ffi.Tier, pool uint32) ([]uint32, error) {
	p := &in.pools[pool]
	info := &p.device
	if tier == ffi.TierHost {
		info = &p.host
	}
	names := make([]uint32, info.VirtualPageCount)
	for i := range names {
		names[i] = uint32(i)
	}
	physical := make([]ids.PhysicalPage, len(names))
	var err error
	if tier == ffi.TierHost {
		err = in.engine.HostInspect(pool, hostPagesOf(names), physical)
	} else {
		err = in.engine.Inspect(pool, virtualPages(names), physical)
	}
	if err != nil {
		return nil, err
	}
	places := plain(physical)
	for name := range places {
		if places[name] < info.FirstPage {
			places[name] = ids.None
		}
	}
	return places, nil
}

func (in *Interpreter) states(tier ffi.Tier, pool uint32) ([]ffi.PageState, error) {
	pages := in.pools[pool].device.PageCount
	if tier == ffi.TierHost {
		pages = in.pools[pool].host.PageCount
	}
	states := make([]ffi.PageState, pages)
	return states, in.engine.Map(tier, pool, 0, states)
}

var pictures = map[ffi.PageState]byte{ffi.PageStateGap: '.', ffi.PageStateSink: '_', ffi.PageStateLive: 'x', ffi.PageStateHole: 'o',
	ffi.PageStateReserved: 'r', ffi.PageStateQuarantined: 'q'}

// pageMap draws one character a page of a pool's own grid; pinned pages are capital letters.
func (in *Interpreter) pageMap(c *call) error {
	tier := ffi.TierDevice
	if c.flag("host") {
		tier = ffi.TierHost
	}
	names := c.words()
	if err := c.done(); err != nil {
		return err
	}
	pools, err := in.poolList(names)
	if err != nil {
		return err
	}
	for _, pool := range pools {
		states, err := in.states(tier, pool)
		if err != nil {
			return err
		}
		var b strings.Builder
		for _, state := range states {
			picture := pictures[state&^ffi.PageStatePinned]
			if state&ffi.PageStatePinned != 0 {
				picture -= 'a' - 'A'
			}
			b.WriteByte(picture)
		}
		c.out.line("%s %s", in.pools[pool].name, b.String())
	}
	return nil
}

// stats prints counters by their names in the header, or all that are not zero.
func (in *Interpreter) stats(c *call) error {
	names := c.words()
	if err := c.done(); err != nil {
		return err
	}
	if in.engine == nil {
		return errors.New("no engine is open")
	}
	stats, err := in.engine.Stats()
	if err != nil {
		return err
	}
	fields := map[string]uint64{}
	var order []string
	v := reflect.ValueOf(stats)
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if !field.IsExported() || field.Type.Kind() != reflect.Uint64 {
			continue
		}
		name := snake(field.Name)
		fields[name] = v.Field(i).Uint()
		if fields[name] != 0 {
			order = append(order, name)
		}
	}
	if len(names) > 0 {
		order = names
	}
	for _, name := range order {
		value, ok := fields[name]
		if !ok {
			return fmt.Errorf("no counter %q; they are %s", name, strings.Join(sortedKeys(fields), " "))
		}
		c.out.line("%s %d", name, value)
		c.out.set(name, value)
	}
	return nil
}

// snake turns "H2DBytes" into "h2d_bytes", as the header writes it.
func snake(name string) string {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		ch := name[i]
		upper := ch >= 'A' && ch <= 'Z'
		if upper && i > 0 && name[i-1] >= 'a' && name[i-1] <= 'z' ||
			upper && i > 0 && i+1 < len(name) && name[i+1] >= 'a' && name[i+1] <= 'z' {
			b.WriteByte('_')
		}
		if upper {
			ch += 'a' - 'A'
		}
		b.WriteByte(ch)
	}
	return b.String()
}

// verify recomputes every invariant.
func (in *Interpreter) verify(c *call) error {
	if err := c.done(); err != nil {
		return err
	}
	if in.engine == nil {
		return errors.New("no engine is open")
	}
	report, err := in.engine.Verify()
	if err != nil {
		c.out.line("%s", report)
		return err
	}
	c.out.line("ok")
	return nil
}
