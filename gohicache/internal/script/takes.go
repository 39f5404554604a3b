package script

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
)

// A demand is one "pool=count" of a command.
type demand struct {
	pool  uint32
	count uint32
}

func (in *Interpreter) demands(c *call) ([]demand, error) {
	var list []demand
	for _, arg := range c.keyed() {
		pool, err := in.pool(arg.Key)
		if err != nil {
			return nil, err
		}
		if len(arg.Values) != 1 {
			return nil, fmt.Errorf("%s takes one count of pages", arg.Key)
		}
		n, err := strconv.ParseUint(arg.Values[0], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%s: %q is not a count of pages", arg.Key, arg.Values[0])
		}
		list = append(list, demand{pool, uint32(n)})
	}
	if len(list) == 0 && c.err == nil {
		return nil, fmt.Errorf("%s needs pool=pages", c.block.Command)
	}
	return list, c.done()
}

// takes prepares one take a demand, with room for the ids of owning pools.
func (in *Interpreter) takes(list []demand) []ffi.Take {
	takes := make([]ffi.Take, len(list))
	for i, d := range list {
		takes[i] = ffi.Take{Pool: d.pool, Count: d.count}
		if in.pools[d.pool].owner == d.pool {
			takes[i].Pages = make([]ids.VirtualPage, d.count)
		}
	}
	return takes
}

// takenPages collects the ids that the library wrote, by owning pool.
func (in *Interpreter) takenPages(takes []ffi.Take) map[uint32][]uint32 {
	pages := map[uint32][]uint32{}
	for _, take := range takes {
		if in.pools[take.Pool].owner == take.Pool {
			pages[take.Pool] = append(pages[take.Pool], plain(take.Pages)...)
		}
	}
	return pages
}

func (in *Interpreter) alloc(c *call) error {
	name := c.word("a name for the pages")
	list, err := in.demands(c)
	if err != nil {
		return err
	}
	takes := in.takes(list)
	if err := in.engine.Alloc(takes); err != nil {
		return err
	}
	b := &binding{kind: devicePages, pages: in.takenPages(takes)}
	c.out.line("%s: %s", name, in.listPages(b.pages))
	c.out.set("pages", in.byName(b.pages))
	return in.bindName(name, b)
}

// listPages prints "full pages 1 2 (tokens 4..11), state pages 1".
func (in *Interpreter) listPages(pages map[uint32][]uint32) string {
	var parts []string
	for _, pool := range sortedKeys(pages) {
		p, list := &in.pools[pool], pages[pool]
		noun := "pages"
		if len(list) == 1 {
			noun = "page"
		}
		part := fmt.Sprintf("%s %s %s", p.name, noun, ranges(list))
		if p.role != ffi.RoleState && len(list) > 0 {
			part += fmt.Sprintf(" (tokens %s)", tokensOf(list, p.pageTokens))
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

func (in *Interpreter) byName(pages map[uint32][]uint32) map[string][]uint32 {
	named := map[string][]uint32{}
	for pool, list := range pages {
		named[in.pools[pool].name] = list
	}
	return named
}

// windowPages gives window pages to virtual pages that have none: what a recomputed window does to tombstones.
func (in *Interpreter) windowPages(c *call) error {
	groups, err := in.pageGroups(c)
	if err != nil {
		return err
	}
	takes := make([]ffi.Take, len(groups))
	for i, g := range groups {
		if in.pools[g.pool].owner == g.pool {
			return fmt.Errorf("%s hands out its own ids: alloc takes pages of it", in.pools[g.pool].name)
		}
		takes[i] = ffi.Take{Pool: g.pool, Pages: virtualPages(g.pages)}
	}
	return in.engine.Alloc(takes)
}

// A pageGroup is one "pool=pages" of a command.
type pageGroup struct {
	pool  uint32
	pages []uint32
}

// pageGroups resolves all keyed arguments as pool=pages and ends the reading of arguments.
func (in *Interpreter) pageGroups(c *call) ([]pageGroup, error) {
	var groups []pageGroup
	for _, arg := range c.keyed() {
		pool, err := in.pool(arg.Key)
		if err != nil {
			return nil, err
		}
		pages, err := in.pagesOf(arg.Values, in.pools[pool].owner, devicePages, sequence, reservation)
		if err != nil {
			return nil, err
		}
		groups = append(groups, pageGroup{pool, pages})
	}
	if len(groups) == 0 && c.err == nil {
		return nil, fmt.Errorf("%s needs pool=pages", c.block.Command)
	}
	return groups, c.done()
}

func ffiPages(groups []pageGroup) []ffi.Pages {
	pages := make([]ffi.Pages, len(groups))
	for i, g := range groups {
		pages[i] = ffi.Pages{Pool: g.pool, Pages: virtualPages(g.pages)}
	}
	return pages
}

func (in *Interpreter) free(c *call) error {
	groups, err := in.pageGroups(c)
	if err != nil {
		return err
	}
	return in.engine.Free(ffiPages(groups))
}

func (in *Interpreter) reserve(c *call) error {
	name := c.word("a name for the reservation")
	list, err := in.demands(c)
	if err != nil {
		return err
	}
	takes := in.takes(list)
	id, err := in.engine.Reserve(takes)
	if err != nil {
		return err
	}
	b := &binding{kind: reservation, pages: in.takenPages(takes), id: uint64(id)}
	in.holding = append(in.holding, b)
	var parts []string
	for _, d := range list {
		places := make([]ids.PhysicalPage, d.count)
		n, err := in.engine.ReservationPages(id, d.pool, places)
		if err != nil {
			return err
		}
		part := fmt.Sprintf("%s at %s", in.pools[d.pool].name, ranges(plain(places[:min(n, len(places))])))
		if own := b.pages[d.pool]; len(own) > 0 {
			part += " for " + ranges(own)
		}
		parts = append(parts, part)
	}
	c.out.line("%s: %s", name, strings.Join(parts, ", "))
	return in.bindName(name, b)
}

func (in *Interpreter) cancel(c *call) error {
	name := c.word("a reservation or a ticket")
	if err := c.done(); err != nil {
		return err
	}
	b, err := in.held(name, reservation, ticket)
	if err != nil {
		return err
	}
	if b.kind == ticket {
		return in.engine.TransferCancel(ffi.Ticket(b.id))
	}
	return in.engine.Cancel(ffi.Reservation(b.id))
}

// extend grows sequences by tokens, all or none: the tail page is filled first. "extend s=7 u=1" with sequence names.
func (in *Interpreter) extend(c *call) error {
	ownerName := c.value("pool", "")
	tail := c.uint32("window-tail", ids.None)
	copyTail := c.flag("copy-tail")
	growth := c.keyed()
	if err := c.done(); err != nil {
		return err
	}
	owner, err := in.ownerPool(ownerName)
	if err != nil {
		return err
	}
	sequences := make([]ffi.Sequence, len(growth))
	for i, arg := range growth {
		tokens, err := parseNumbers(arg.Values)
		if err != nil || len(tokens) != 1 {
			return fmt.Errorf("%s needs one count of tokens", arg.Key)
		}
		old := in.names[arg.Key]
		if old == nil {
			old = &binding{kind: sequence, pages: map[uint32][]uint32{}}
		} else if old.kind != sequence {
			return fmt.Errorf("%q is a %s, not a sequence", arg.Key, old.kind)
		}
		pages := old.pages[owner]
		room := len(pages) + int(tokens[0]/in.pools[owner].pageTokens) + 2
		buffer := append(make([]ids.VirtualPage, 0, room), virtualPages(pages)...)
		sequences[i] = ffi.Sequence{Pages: buffer, Tokens: old.tokens, NewTokens: tokens[0], WindowTailTokens: tail}
		if copyTail {
			sequences[i].Flags = ffi.SequenceFlagsCopyTail
		}
	}
	if err := in.engine.Extend(owner, sequences); err != nil {
		return err
	}
	for i, arg := range growth {
		s := &sequences[i]
		b := &binding{kind: sequence, pages: map[uint32][]uint32{owner: plain(s.Pages)}, tokens: s.Tokens}
		noun := "pages"
		if len(s.Pages) == 1 {
			noun = "page"
		}
		c.out.line("%s: %s in %s %s", arg.Key, count(uint64(s.Tokens), "token"), noun, ranges(b.pages[owner]))
		if err := in.bindName(arg.Key, b); err != nil {
			return err
		}
	}
	return nil
}

// ownerPool finds the named pool, or the first that hands out token pages.
func (in *Interpreter) ownerPool(name string) (uint32, error) {
	if name != "" {
		return in.pool(name)
	}
	for i := range in.pools {
		if in.pools[i].role == ffi.RoleFull {
			return uint32(i), nil
		}
	}
	return 0, errors.New("no pool with role=full")
}

// fork makes a sequence share another's pages; extend with copy-tail then copies the shared partial page on its first write.
func (in *Interpreter) fork(c *call) error {
	name := c.word("a name for the new sequence")
	from := c.word("a sequence")
	if err := c.done(); err != nil {
		return err
	}
	old, err := in.held(from, sequence)
	if err != nil {
		return err
	}
	b := &binding{kind: sequence, pages: map[uint32][]uint32{}, tokens: old.tokens}
	for owner, pages := range old.pages {
		b.pages[owner] = append([]uint32(nil), pages...)
	}
	return in.bindName(name, b)
}
