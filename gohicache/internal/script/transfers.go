package script

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
)

var classes = map[string]uint32{"urgent": uint32(ffi.ClassUrgent), "normal": uint32(ffi.ClassNormal), "background": uint32(ffi.ClassBackground)}

// load binds reserved pages and queues their copies in one call: input lines "copy pool=pages from=host-pages" and "bind pool=pages".
func (in *Interpreter) load(c *call) error {
	name := c.word("a name for the ticket")
	from := c.value("from", "")
	t, err := in.transfer(c, "from")
	if err != nil {
		return err
	}
	r, err := in.held(from, reservation)
	if err != nil {
		return err
	}
	t.Reservation = ffi.Reservation(r.id)
	id, err := in.engine.Load(t)
	if err != nil {
		return err
	}
	return in.queued(c, name, id, t)
}

// backUp queues copies of device pages into host pages: input lines "copy pool=pages to=host-pages".
func (in *Interpreter) backUp(c *call) error {
	name := c.word("a name for the ticket")
	t, err := in.transfer(c, "to")
	if err != nil {
		return err
	}
	id, err := in.engine.BackUp(t)
	if err != nil {
		return err
	}
	return in.queued(c, name, id, t)
}

func (in *Interpreter) queued(c *call, name string, id ffi.Ticket, t *ffi.Transfer) error {
	b := &binding{kind: ticket, id: uint64(id)}
	var bytes uint64
	for _, cp := range t.Copies {
		bytes += in.pools[cp.Pool].device.PageBytes
		b.copies = append(b.copies, cp.Pool)
	}
	if id == 0 {
		c.out.line("%s: nothing to copy", name)
	} else {
		c.out.line("%s: %s (%d B)", name, count(uint64(len(t.Copies)), "page"), bytes)
	}
	in.tickets[uint64(id)] = name
	return in.bindName(name, b)
}

// transfer reads the options and input lines that loads and back-ups share; side is the key of the host pages.
func (in *Interpreter) transfer(c *call, side string) (*ffi.Transfer, error) {
	t := &ffi.Transfer{Priority: ffi.Class(c.choice("class", "urgent", classes)), User: c.uint("user", 0)}
	after := c.value("after", "")
	if err := c.done(); err != nil {
		return nil, err
	}
	if in.engine == nil {
		return nil, errors.New("no engine is open")
	}
	if after != "" {
		b, err := in.held(after, ticket)
		if err != nil {
			return nil, err
		}
		t.After = ffi.Ticket(b.id)
	}
	for i, line := range c.block.Input {
		if err := in.transferLine(t, line, side); err != nil {
			return nil, fmt.Errorf("line %d: %w", c.block.InputLine+i, err)
		}
	}
	return t, nil
}

func (in *Interpreter) transferLine(t *ffi.Transfer, line, side string) error {
	verb, args, err := parseCommand(line)
	if err != nil {
		return err
	}
	if verb != "copy" && verb != "bind" {
		return fmt.Errorf("%q: a line is \"copy pool=pages %s=host-pages\" or \"bind pool=pages\"", verb, side)
	}
	p := newCall(&Block{Command: verb, Args: args})
	hostWords := p.list(side)
	groups, err := in.pageGroups(p)
	if err != nil {
		return err
	}
	for _, g := range groups {
		if verb == "bind" {
			for _, page := range g.pages {
				t.Binds = append(t.Binds, ffi.Bind{Pool: g.pool, VPage: ids.VirtualPage(page)})
			}
			continue
		}
		host, err := in.pagesOf(hostWords, g.pool, hostPages)
		if err != nil {
			return err
		}
		if len(host) != len(g.pages) {
			return fmt.Errorf("%d device pages and %d host pages", len(g.pages), len(host))
		}
		for i, page := range g.pages {
			t.Copies = append(t.Copies, ffi.Copy{Pool: g.pool, DevicePage: ids.VirtualPage(page), HostPage: ids.HostPage(host[i])})
		}
	}
	return nil
}

// run lets queued copies happen: all, or so many transfers, or so many layer groups.
func (in *Interpreter) run(c *call) error {
	layers := c.flag("layers")
	n := uint32(1 << 20)
	if text, ok := c.positional(); ok {
		numbers, err := parseNumbers([]string{text})
		if err != nil {
			return err
		}
		n = numbers[0]
	}
	if err := c.done(); err != nil {
		return err
	}
	if in.engine == nil {
		return errors.New("no engine is open")
	}
	ran, err := in.engine.FaultRun(n, layers)
	if err != nil {
		return err
	}
	noun := "transfer"
	if layers {
		noun = "step"
	}
	c.out.line("ran %s", count(uint64(ran), noun))
	return nil
}

// hold says whether transfers submitted from now on wait for run; fail makes the next ones fail.
func (in *Interpreter) hold(c *call) error {
	on := c.word("on or off")
	failures := c.uint32("fail", 0)
	if err := c.done(); err != nil {
		return err
	}
	if on != "on" && on != "off" {
		return fmt.Errorf("hold is on or off, not %q", on)
	}
	if in.engine == nil {
		return errors.New("no engine is open")
	}
	in.holds = on == "on"
	return in.engine.FaultHold(in.holds, failures)
}

func (in *Interpreter) failNext(c *call) error {
	text := c.word("a count of transfers")
	if err := c.done(); err != nil {
		return err
	}
	n, err := parseNumbers([]string{text})
	if err != nil {
		return err
	}
	if in.engine == nil {
		return errors.New("no engine is open")
	}
	return in.engine.FaultHold(in.holds, n[0])
}

// poll reads completions: all, or so many. Reading one ends its ticket's pins.
func (in *Interpreter) poll(c *call) error {
	n := uint32(1024)
	if text, ok := c.positional(); ok {
		numbers, err := parseNumbers([]string{text})
		if err != nil {
			return err
		}
		n = numbers[0]
	}
	if err := c.done(); err != nil {
		return err
	}
	if in.engine == nil {
		return errors.New("no engine is open")
	}
	completions := make([]ffi.Completion, n)
	got, err := in.engine.CompletionPoll(completions)
	if err != nil {
		return err
	}
	if got == 0 {
		c.out.line("nothing")
	}
	for _, done := range completions[:got] {
		direction := "d2h"
		if done.Direction == ffi.TransferH2D {
			direction = "h2d"
		}
		c.out.line("%s: %s %s %s (%d B)", in.ticketName(uint64(done.Ticket)), done.Status, direction, count(uint64(done.PageCount), "page"), done.Bytes)
	}
	return nil
}

func (in *Interpreter) ticketName(id uint64) string {
	if name, ok := in.tickets[id]; ok {
		return name
	}
	return fmt.Sprintf("%#x", id)
}

// showTicket prints how far a transfer is.
func (in *Interpreter) showTicket(c *call) error {
	name := c.word("a ticket")
	if err := c.done(); err != nil {
		return err
	}
	b, err := in.held(name, ticket)
	if err != nil {
		return err
	}
	done, layers, err := in.engine.TicketStatus(ffi.Ticket(b.id))
	if err != nil {
		return err
	}
	state := "PENDING"
	if done {
		state = "OK"
	}
	c.out.line("%s: %s, layers below %d have arrived", name, state, layers)
	return nil
}

// waitLayer waits for one layer of a ticket. Held copies would make that wait last for ever, so they run, a layer group at a time, as far as the
// layer needs them.
func (in *Interpreter) waitLayer(c *call) error {
	name := c.word("a ticket")
	text := c.word("a global layer id")
	if err := c.done(); err != nil {
		return err
	}
	b, err := in.held(name, ticket)
	if err != nil {
		return err
	}
	layer, err := parseNumbers([]string{text})
	if err != nil {
		return err
	}
	for in.serves(b, layer[0]) {
		done, arrived, err := in.engine.TicketStatus(ffi.Ticket(b.id))
		if err != nil {
			return err
		}
		if done || arrived > layer[0] {
			break
		}
		ran, err := in.engine.FaultRun(1, true)
		if err != nil {
			return err
		}
		if ran == 0 {
			return fmt.Errorf("layer %d of %s has not arrived and nothing is queued", layer[0], name)
		}
	}
	return in.engine.LayerWait(ffi.Ticket(b.id), layer[0], 0)
}

// serves reports whether a pool with copies in the ticket has the layer.
func (in *Interpreter) serves(b *binding, layer uint32) bool {
	return slices.ContainsFunc(b.copies, func(pool uint32) bool { return slices.Contains(in.pools[pool].layers, layer) })
}
