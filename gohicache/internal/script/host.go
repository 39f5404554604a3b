package script

import (
	"fmt"
	"strings"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
)

// hostTake takes host pages in all pools or none.
func (in *Interpreter) hostTake(c *call) error {
	name := c.word("a name for the host pages")
	list, err := in.demands(c)
	if err != nil {
		return err
	}
	takes := make([]ffi.HostPages, len(list))
	for i, d := range list {
		takes[i] = ffi.HostPages{Pool: d.pool, Pages: make([]ids.HostPage, d.count)}
	}
	if err := in.engine.HostAlloc(takes); err != nil {
		return err
	}
	b := &binding{kind: hostPages, pages: map[uint32][]uint32{}}
	var parts []string
	for _, take := range takes {
		b.pages[take.Pool] = append(b.pages[take.Pool], plain(take.Pages)...)
		parts = append(parts, fmt.Sprintf("%s names %s", in.pools[take.Pool].name, ranges(plain(take.Pages))))
	}
	c.out.line("%s: %s", name, strings.Join(parts, ", "))
	c.out.set("names", in.byName(b.pages))
	return in.bindName(name, b)
}

// hostGroups resolves all keyed arguments as pool=host-pages and ends the reading of arguments.
func (in *Interpreter) hostGroups(c *call) ([]ffi.HostPages, error) {
	var groups []ffi.HostPages
	for _, arg := range c.keyed() {
		pool, err := in.pool(arg.Key)
		if err != nil {
			return nil, err
		}
		pages, err := in.pagesOf(arg.Values, pool, hostPages)
		if err != nil {
			return nil, err
		}
		groups = append(groups, ffi.HostPages{Pool: pool, Pages: hostPagesOf(pages)})
	}
	if len(groups) == 0 && c.err == nil {
		return nil, fmt.Errorf("%s needs pool=host-pages", c.block.Command)
	}
	return groups, c.done()
}

func (in *Interpreter) hostFree(c *call) error {
	groups, err := in.hostGroups(c)
	if err != nil {
		return err
	}
	return in.engine.HostFree(groups)
}

// hostView leases host pages as a reader of their bytes does: they stay in place until release.
func (in *Interpreter) hostView(c *call) error {
	name := c.word("a name for the lease")
	groups, err := in.hostGroups(c)
	if err != nil {
		return err
	}
	if len(groups) != 1 {
		return fmt.Errorf("a view is of one pool")
	}
	id, err := in.engine.HostView(groups[0], make([][]byte, len(groups[0].Pages)))
	if err != nil {
		return err
	}
	return in.keep(name, &binding{kind: lease, id: uint64(id)})
}
