package script

import (
	"errors"
	"fmt"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
)

// leasePages keeps pages in place and allocated until release.
func (in *Interpreter) leasePages(c *call) error {
	name := c.word("a name for the lease")
	groups, err := in.pageGroups(c)
	if err != nil {
		return err
	}
	id, err := in.engine.LeaseAcquire(ffiPages(groups))
	if err != nil {
		return err
	}
	return in.keep(name, &binding{kind: lease, id: uint64(id)})
}

// keep names something held and remembers to give it back when the script ends.
func (in *Interpreter) keep(name string, b *binding) error {
	in.holding = append(in.holding, b)
	return in.bindName(name, b)
}

func (in *Interpreter) release(c *call) error {
	name := c.word("a lease")
	if err := c.done(); err != nil {
		return err
	}
	b, err := in.held(name, lease)
	if err != nil {
		return err
	}
	return in.engine.LeaseRelease(ffi.Lease(b.id))
}

// openStep opens a unit of compute on a stream; while open its pages stay.
func (in *Interpreter) openStep(c *call) error {
	name := c.word("a name for the step")
	stream := c.uint("stream", 1)
	groups, err := in.pageGroups(c)
	if err != nil {
		return err
	}
	id, err := in.engine.StepOpen(stream, ffiPages(groups))
	if err != nil {
		return err
	}
	return in.keep(name, &binding{kind: step, id: uint64(id)})
}

func (in *Interpreter) closeStep(c *call) error {
	name := c.word("a step")
	if err := c.done(); err != nil {
		return err
	}
	b, err := in.held(name, step)
	if err != nil {
		return err
	}
	return in.engine.StepClose(ffi.Step(b.id))
}

// translate prints the kernel ids of virtual pages, page-granular; what has no page reads the sink.
func (in *Interpreter) translate(c *call) error {
	tokens := c.flag("tokens")
	groups, err := in.pageGroups(c)
	if err != nil {
		return err
	}
	for _, g := range groups {
		kernelIDs, err := in.kernelIDs(g, tokens)
		if err != nil {
			return err
		}
		p := &in.pools[g.pool]
		sinkEnd := int64(p.device.FirstPage) * int64(p.device.KernelPageScale)
		if tokens {
			sinkEnd *= int64(p.pageTokens)
		}
		text := p.name + ":"
		for _, id := range kernelIDs {
			if int64(id) < sinkEnd {
				text += " sink"
			} else {
				text += fmt.Sprintf(" %d", id)
			}
		}
		c.out.line("%s", text)
		c.out.set(p.name, kernelIDs)
	}
	return nil
}

// kernelIDs translates under a lease of its own on those pages that are mapped: an answer holds only while something holds the pages.
func (in *Interpreter) kernelIDs(g pageGroup, tokens bool) ([]ids.KernelID, error) {
	places, err := in.whereAre(g)
	if err != nil {
		return nil, err
	}
	var mapped []ids.VirtualPage
	for i, place := range places {
		if place != ids.None {
			mapped = append(mapped, ids.VirtualPage(g.pages[i]))
		}
	}
	held, err := in.engine.LeaseAcquire([]ffi.Pages{{Pool: g.pool, Pages: mapped}})
	if err != nil {
		return nil, err
	}
	n, granularity := len(g.pages), ffi.GranularityPage
	if tokens {
		n *= int(in.pools[g.pool].pageTokens)
		granularity = ffi.GranularityToken
	}
	out := make([]ids.KernelID, n)
	_, err = in.engine.KernelIDs(ffi.Holder(held), g.pool, granularity, virtualPages(g.pages), out)
	return out, errors.Join(err, in.engine.LeaseRelease(held))
}

// whereAre returns the places of virtual pages, None where there is no page. Ids beyond the table, and of the sink, have none.
func (in *Interpreter) whereAre(g pageGroup) ([]uint32, error) {
	physical := make([]ids.PhysicalPage, len(g.pages))
	if err := in.engine.Inspect(g.pool, virtualPages(g.pages), physical); err != nil {
		return nil, err
	}
	places := plain(physical)
	for i := range places {
		if places[i] < in.pools[g.pool].device.FirstPage {
			places[i] = ids.None
		}
	}
	return places, nil
}

// where prints places as they are now, without holding anything.
func (in *Interpreter) where(c *call) error {
	groups, err := in.pageGroups(c)
	if err != nil {
		return err
	}
	for _, g := range groups {
		places, err := in.whereAre(g)
		if err != nil {
			return err
		}
		text := in.pools[g.pool].name + ":"
		for i, place := range places {
			if place == ids.None {
				text += fmt.Sprintf(" %d>none", g.pages[i])
			} else {
				text += fmt.Sprintf(" %d>%d", g.pages[i], place)
			}
		}
		c.out.line("%s", text)
	}
	return nil
}

// compact packs pages within a budget.
func (in *Interpreter) compact(c *call) error {
	budget := ffi.CompactBudget{Tier: ffi.TierDevice, Pool: ffi.NoPool, PagesMax: c.uint32("pages", 0), BytesMax: c.uint("bytes", 0)}
	if c.flag("host") {
		budget.Tier = ffi.TierHost
	}
	poolName := c.value("pool", "")
	if err := c.done(); err != nil {
		return err
	}
	if in.engine == nil {
		return errors.New("no engine is open")
	}
	if poolName != "" {
		pool, err := in.pool(poolName)
		if err != nil {
			return err
		}
		budget.Pool = pool
	}
	result, err := in.engine.Compact(&budget)
	if err != nil {
		return err
	}
	c.out.line("moved %s (%d B), blocked %d, holes %d", count(result.MovedPages, "page"), result.MovedBytes, result.BlockedPages, result.HolePages)
	c.out.set("moved_pages", result.MovedPages)
	c.out.set("moved_bytes", result.MovedBytes)
	c.out.set("blocked_pages", result.BlockedPages)
	c.out.set("hole_pages", result.HolePages)
	return nil
}

func (in *Interpreter) setCompaction(c *call) error {
	mode := c.word("lazy, eager or off")
	if err := c.done(); err != nil {
		return err
	}
	if in.engine == nil {
		return errors.New("no engine is open")
	}
	value, ok := compactions[mode]
	if !ok {
		return fmt.Errorf("compaction is lazy, eager or off, not %q", mode)
	}
	return in.engine.SetCompaction(ffi.Compaction(value))
}

func (in *Interpreter) resize(c *call) error {
	size, err := parseSize(c.word("a size"))
	if err != nil {
		return err
	}
	if err := c.done(); err != nil {
		return err
	}
	if in.engine == nil {
		return errors.New("no engine is open")
	}
	if err := in.engine.Resize(size); err != nil {
		return err
	}
	return in.describePools(c, in.pools[0].host.PageBytes > 0)
}
