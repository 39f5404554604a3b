package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/radix"
)

// hold is what a lease and a sequence have in common: the pages of one request, shared ones and its own.
type hold struct {
	c         *Core
	namespace radix.Namespace
	stream    uint64
	path      *pin   // of the prefix, later of what was inserted
	dropped   []*pin // paths that were cleared meanwhile, whose pages the request goes on to compute with

	pages  []ids.VirtualPage // FULL, positions 0..
	tokens int               // that there are pages for
	prefix int               // pages at the start that the cache supplied
	owned  int               // pages from here on are this request's own; before, the tree's
	// windowEnd and windowFrom say, by pool, which positions have a window page that this request may use: the last windowed ones before
	// windowEnd (the prefix's window, [windowLow, windowEnd)) and all from windowFrom on.
	windowLow, windowEnd, windowFrom []int
	ints                             [12]int           // where those are, for as many pools as caches mostly have
	state                            []ids.VirtualPage // by pool: own state page, or None
	source                           []ids.VirtualPage // by pool: the checkpoint that the prefix ends with, or None
	checkpoint                       int               // tokens that state stands for, if the user said so

	priority uint8  // of what is inserted
	retain   uint64 // until then, in the tree's time; 0: for ever

	states
	waits []*operation // loads that bring parts of the prefix, own and joined
	late  radix.Freed  // duplicates that others published first: usable here until the end, then freed

	hitDevice, hitHost, hitStorage int // tokens
}

// WaitLayer waits (CUDA: makes the stream wait) until a global layer of everything that is being loaded has arrived.
func (h *hold) WaitLayer(layer uint32) error {
	for _, op := range h.waits {
		if err := h.c.waitLayer(op, layer, h.stream); err != nil {
			return err
		}
	}
	return nil
}

func (c *Core) waitLayer(op *operation, layer uint32, stream uint64) error {
	select {
	case <-op.done:
		return op.err
	default:
	}
	err := c.eng.LayerWait(op.ticket, layer, stream)
	if err == nil {
		return nil
	}
	// The completion says more than the wait, and after it was read the wait knows nothing any more.
	if waitErr := c.await(c.background, op); waitErr != nil {
		return waitErr
	}
	select {
	case <-op.done:
		return op.err
	default:
		return fromEngine(err)
	}
}

// Wait waits until all loads have ended and are published.
func (h *hold) Wait(ctx context.Context) error {
	for _, op := range h.waits {
		if err := h.c.await(ctx, op); err != nil {
			return err
		}
	}
	return nil
}

// Hit is the tokens of the prefix by tier.
func (h *hold) Hit() (device, host, storage int) { return h.hitDevice, h.hitHost, h.hitStorage }

// Prefix is the number of tokens that the cache supplied.
func (h *hold) Prefix() int { return h.prefix * h.c.cfg.PageTokens }

// hasWindow reports whether position i has a window page of pool p that this request may use.
func (h *hold) hasWindow(p, i int) bool {
	return i >= h.windowFrom[p] && i < len(h.pages) || i >= h.windowLow[p] && i < h.windowEnd[p]
}

// appendHeld appends, as one line a pool, the pages that the request computes with: all FULL pages, and the window pages.
func (h *hold) appendHeld(lines []ffi.Pages) []ffi.Pages {
	lines = append(lines, ffi.Pages{Pool: uint32(h.c.full), Pages: h.pages})
	for _, p := range h.c.windows {
		if low, end := h.windowLow[p], h.windowEnd[p]; low < end {
			lines = append(lines, ffi.Pages{Pool: uint32(p), Pages: h.pages[low:end]})
		}
		if from := h.windowFrom[p]; from < len(h.pages) {
			lines = append(lines, ffi.Pages{Pool: uint32(p), Pages: h.pages[from:]})
		}
	}
	for _, p := range h.c.states {
		for _, v := range []ids.VirtualPage{h.state[p], h.source[p]} {
			if v != ids.NoVirtualPage {
				lines = append(lines, ffi.Pages{Pool: uint32(p), Pages: []ids.VirtualPage{v}})
			}
		}
	}
	return lines
}

// table appends the virtual pages of one pool's page table: NoVirtualPage, which translates to the sink, where there is no window page.
func (h *hold) table(pool int, dst []ids.VirtualPage) []ids.VirtualPage {
	switch h.c.cfg.Pools[pool].Role {
	case radix.Full:
		return append(dst, h.pages...)
	case radix.State:
		return append(dst, h.state[pool])
	}
	for i, v := range h.pages {
		if !h.hasWindow(pool, i) {
			v = ids.NoVirtualPage
		}
		dst = append(dst, v)
	}
	return dst
}

// giveUp frees what the request owns and ends its pin. Called once.
func (h *hold) giveUp() {
	for _, p := range h.dropped {
		p.release()
	}
	h.dropped = nil
	for _, op := range h.waits {
		op.unuse(h.c)
	}
	f := &h.late
	if h.owned == len(h.pages) && h.state == nil && f.Empty() {
		h.path.release()
		h.c.room.ring()
		return
	}
	for len(f.Device) < len(h.c.cfg.Pools) {
		f.Device = append(f.Device, nil)
	}
	if h.owned < len(h.pages) {
		f.Device[h.c.full] = append(f.Device[h.c.full], h.pages[h.owned:]...)
	}
	for _, p := range h.c.states {
		if h.state[p] != ids.NoVirtualPage {
			f.Device[p] = append(f.Device[p], h.state[p])
			h.state[p] = ids.NoVirtualPage
		}
	}
	h.owned = len(h.pages)
	h.c.giveBack(f)
	h.path.release()
	h.c.room.ring()
}

// publish inserts the whole pages of the first computed tokens. A prefix is published only once it has arrived, so it waits for the loads that
// bring it, also for those of others.
func (h *hold) publish(tokens []uint32, computed int) error {
	key := h.c.keyOf(tokens)
	if err := h.Wait(h.c.background); err != nil {
		return err
	}
	for {
		h.c.plan.Lock()
		err := h.insert(key, computed)
		h.c.plan.Unlock()
		if !errors.Is(err, radix.ErrPending) {
			return err
		}
		if err := h.c.awaitAll(h.c.background); err != nil {
			return err
		}
	}
}

// insert is one try of publish. The caller holds plan.
func (h *hold) insert(key []uint32, computed int) error {
	c := h.c
	n := min(c.pagesOf(computed), len(key)/c.pageWords())
	checkpoints := h.checkpoints(computed, n)
	if n <= h.owned && len(checkpoints) == 0 {
		c.backUp(h.path, h.stream) // the request may have made its prefix worth it, or an earlier try has failed
		return nil
	}
	from := min(h.owned, n)
	request := radix.InsertRequest{Namespace: h.namespace, Tokens: key[:n*c.pageWords()], After: h.path.id, From: from, Pages: h.pages[from:n],
		Checkpoints: checkpoints, Pin: true, Priority: h.priority, Retain: h.retain}
	if len(c.windows) > 0 {
		request.WindowFrom = c.scratch.windowFrom
		for _, p := range c.windows {
			request.WindowFrom[p] = min(max(h.windowFrom[p], from), n)
		}
	}
	r := &c.scratch.inserted
	if err := c.tree.Insert(&request, r); err != nil {
		if errors.Is(err, radix.ErrPending) {
			return err
		}
		if errors.Is(err, radix.ErrArgument) || errors.Is(err, radix.ErrStale) {
			return fail(KindInternal, "the tree refused an insert: %v", err)
		}
		return fail(KindTransfer, "the prefix is not in the cache any more, because its load failed or it was cleared: %v", err)
	}
	fresh := h.afterCheckpoints(checkpoints, r)
	h.sortFreed(r, from)
	h.owned = max(h.owned, r.Pages)
	old := h.path
	h.path = c.newPin(r.Pin)
	h.leavePath(old, fresh)
	c.count.inserts.Add(1)
	c.backUp(h.path, h.stream)
	return nil
}

func (h *hold) checkpoints(computed, pages int) []radix.Checkpoint {
	at := computed
	if h.checkpoint > 0 {
		at = h.checkpoint
	}
	if h.continues && (h.frozen != nil || !h.stepped || at != h.tokens) { // shared, not written yet, or further on
		return nil
	}
	if at == 0 || at > computed || at > pages*h.c.cfg.PageTokens || at%h.c.cfg.PageTokens != 0 {
		return nil
	}
	var out []radix.Checkpoint
	for _, p := range h.c.states {
		if h.state[p] != ids.NoVirtualPage {
			out = append(out, radix.Checkpoint{Pool: p, At: h.c.pagesOf(at), Page: h.state[p]})
		}
	}
	return out
}

// sortFreed frees at once what an insert replaced, except pages that this request still computes with: those wait for its end.
func (h *hold) sortFreed(r *radix.InsertResult, from int) {
	if r.Freed.Empty() {
		return
	}
	mine := h.pages[from:]
	keep := func(v ids.VirtualPage) bool { return slices.Contains(mine, v) }
	if len(mine) > 16 {
		set := make(map[ids.VirtualPage]struct{}, len(mine))
		for _, v := range mine {
			set[v] = struct{}{}
		}
		keep = func(v ids.VirtualPage) bool { _, ok := set[v]; return ok }
	}
	for p := range r.Freed.Device {
		if h.c.cfg.Pools[p].Role == radix.State {
			continue
		}
		rest := r.Freed.Device[p][:0]
		for _, v := range r.Freed.Device[p] {
			if !keep(v) {
				rest = append(rest, v)
				continue
			}
			for len(h.late.Device) <= p {
				h.late.Device = append(h.late.Device, nil)
			}
			h.late.Device[p] = append(h.late.Device[p], v)
		}
		r.Freed.Device[p] = rest
	}
	h.c.giveBack(&r.Freed)
}

func (h *hold) size() string {
	return fmt.Sprintf("%d tokens in %d pages (%d own)", h.tokens, len(h.pages), len(h.pages)-h.owned)
}

func (l *Lease) describe() string    { return "lease of " + l.size() }
func (s *Sequence) describe() string { return "sequence of " + s.size() }
func (b *Batch) describe() string {
	return fmt.Sprintf("open step of a batch of %d sequences", len(b.batch))
}
func (st *Step) describe() string { return fmt.Sprintf("open step over %d sequences", len(st.batch)) }
