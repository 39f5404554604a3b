package script

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
)

// A stamp is 8 bytes that say whose page this is: pool, virtual page, and a tag of the script's choosing. On a backend with bytes the
// stamp is spread over the whole envelope, different at each word, so a shifted, stale or half copied page does not pass.
func stampOf(pool, page uint32, tag uint64) uint64 {
	return mix(uint64(pool)<<48 ^ uint64(page) ^ tag*0x9e3779b97f4a7c15)
}

// mix is the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func fill(page []byte, stamp uint64) {
	for i := 0; i+8 <= len(page); i += 8 {
		binary.LittleEndian.PutUint64(page[i:], stamp^mix(uint64(i))^mix(0))
	}
}

// readStamp returns the stamp a page carries, and whether all of the page carries it.
func readStamp(page []byte) (uint64, bool) {
	stamp := binary.LittleEndian.Uint64(page)
	for i := 0; i+8 <= len(page); i += 8 {
		if binary.LittleEndian.Uint64(page[i:]) != stamp^mix(uint64(i))^mix(0) {
			return stamp, false
		}
	}
	return stamp, true
}

// stamp writes each page's stamp through its kernel id, as a server's kernels would.
func (in *Interpreter) stamp(c *call) error {
	tag := c.uint("tag", 0)
	groups, err := in.pageGroups(c)
	if err != nil {
		return err
	}
	for _, g := range groups {
		kernelPages, err := in.mappedKernelPages(g)
		if err != nil {
			return err
		}
		stamps := make([]uint64, len(g.pages))
		for i, page := range g.pages {
			stamps[i] = stampOf(g.pool, page, tag)
			in.stamps[stamps[i]] = fmt.Sprintf("%s page %d tag %d", in.pools[g.pool].name, page, tag)
		}
		if in.pools[g.pool].device.ArenaBase == 0 {
			if err := in.engine.DeviceTags(g.pool, kernelPages, stamps, true); err != nil {
				return err
			}
			continue
		}
		for i, id := range kernelPages {
			page, err := in.devicePage(g.pool, id)
			if err != nil {
				return err
			}
			fill(page, stamps[i])
		}
	}
	return nil
}

// mappedKernelPages translates pages of which each must have a place.
func (in *Interpreter) mappedKernelPages(g pageGroup) ([]ids.KernelID, error) {
	places, err := in.whereAre(g)
	if err != nil {
		return nil, err
	}
	for i, place := range places {
		if place == ids.None {
			return nil, fmt.Errorf("%s page %d has no place", in.pools[g.pool].name, g.pages[i])
		}
	}
	return in.kernelIDs(g, false)
}

func (in *Interpreter) devicePage(pool uint32, id ids.KernelID) ([]byte, error) {
	info := &in.pools[pool].device
	return in.engine.DevicePage(pool, ids.PhysicalPage((uint64(id)-info.KernelPageOffset)/info.KernelPageScale))
}

// check compares pages with the stamps of "of" (themselves if absent): "check full=y of=x" says that y holds what was written in x.
func (in *Interpreter) check(c *call) error {
	tag := c.uint("tag", 0)
	of := c.list("of")
	host := c.flag("host")
	if host {
		return in.checkHost(c, of, tag)
	}
	groups, err := in.pageGroups(c)
	if err != nil {
		return err
	}
	for _, g := range groups {
		kernelPages, err := in.mappedKernelPages(g)
		if err != nil {
			return err
		}
		found := make([]uint64, len(g.pages))
		whole := make([]bool, len(g.pages))
		if in.pools[g.pool].device.ArenaBase == 0 {
			if err := in.engine.DeviceTags(g.pool, kernelPages, found, false); err != nil {
				return err
			}
		}
		for i, id := range kernelPages {
			if whole[i] = true; in.pools[g.pool].device.ArenaBase == 0 {
				continue
			}
			page, err := in.devicePage(g.pool, id)
			if err != nil {
				return err
			}
			found[i], whole[i] = readStamp(page)
		}
		if err := in.compare(c, g.pool, g.pages, of, tag, found, whole); err != nil {
			return err
		}
	}
	return nil
}

// checkHost compares host pages, read under a view, with the stamps of device pages.
func (in *Interpreter) checkHost(c *call, of []string, tag uint64) error {
	groups, err := in.hostGroups(c)
	if err != nil {
		return err
	}
	if of == nil {
		return errors.New("host pages need of=PAGES: whose stamps they should hold")
	}
	for _, g := range groups {
		found := make([]uint64, len(g.Pages))
		whole := make([]bool, len(g.Pages))
		views := make([][]byte, len(g.Pages))
		held, err := in.engine.HostView(g, views)
		if err != nil {
			return err
		}
		if in.pools[g.Pool].host.HostLayout != ffi.HostLayoutEnvelope && in.pools[g.Pool].host.ArenaBase != 0 {
			if views, err = in.copyOut(held, g); err != nil {
				return errors.Join(err, in.engine.LeaseRelease(held))
			}
		}
		for i, view := range views {
			if whole[i] = true; view != nil {
				found[i], whole[i] = readStamp(view)
			}
		}
		if len(views) > 0 && views[0] == nil {
			err = in.engine.HostTags(g.Pool, g.Pages, found, false)
		}
		if err := errors.Join(err, in.engine.LeaseRelease(held)); err != nil {
			return err
		}
		if err := in.compare(c, g.Pool, plain(g.Pages), of, tag, found, whole); err != nil {
			return err
		}
	}
	return nil
}

// copyOut puts pages that do not lie in one piece together.
func (in *Interpreter) copyOut(view ffi.Lease, g ffi.HostPages) ([][]byte, error) {
	size := in.pools[g.Pool].host.PageBytes
	buf, views := make([]byte, uint64(len(g.Pages))*size), make([][]byte, len(g.Pages))
	for i := range views {
		views[i] = buf[uint64(i)*size : uint64(i+1)*size]
	}
	return views, in.engine.HostCopy(view, g, ffi.HostLayoutEnvelope, false, buf)
}

// compare prints how many pages are right, and each wrong one with what it holds.
func (in *Interpreter) compare(c *call, pool uint32, pages []uint32, of []string, tag uint64, found []uint64, whole []bool) error {
	expected := pages
	if of != nil {
		var err error
		if expected, err = in.pagesOf(of, in.pools[pool].owner, devicePages, sequence, reservation); err != nil {
			return err
		}
	}
	if len(expected) != len(pages) {
		return fmt.Errorf("%d pages and %d to compare with", len(pages), len(expected))
	}
	right := 0
	name := in.pools[pool].name
	for i, page := range pages {
		if whole[i] && found[i] == stampOf(pool, expected[i], tag) {
			right++
			continue
		}
		holds, known := in.stamps[found[i]]
		switch {
		case !known:
			holds = "no stamp"
		case !whole[i]:
			holds = "only part of " + holds
		}
		c.out.line("%s page %d holds %s", name, page, holds)
	}
	c.out.line("%s: %s right", name, count(uint64(right), "page"))
	c.out.set(name, right)
	if right != len(pages) {
		return fmt.Errorf("%s: %d of %d wrong", name, len(pages)-right, len(pages))
	}
	return nil
}
