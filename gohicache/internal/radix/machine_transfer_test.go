package radix

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hicache/hicache/ffi/ids"
	"pgregory.net/rapid"
)

func (m *machine) backUp(r *rapid.T) {
	p := m.takePin(r, func(*modelPin) bool { return true })
	var b BackUp
	if m.tree.BeginBackUp(p.pin, rapid.IntRange(0, 2).Draw(r, "minHits"), &b) {
		m.opened(r, &b)
	}
}

// opened remembers which prefixes a back-up copies. The eviction's result is reused, so it is copied.
func (m *machine) opened(r *rapid.T, b *BackUp) {
	o := &openBack{}
	o.b.ID = b.ID
	o.b.Full = slices.Clone(b.Full)
	var keys []string
	prefix := func(v ids.VirtualPage) {
		e := m.eng[v]
		if e == nil || m.pages[e.prefix] == nil || m.pages[e.prefix].dev != v || m.pages[e.prefix].load != nil {
			r.Fatalf("back-up of page %d, which is not a resident page", v)
		}
		keys = append(keys, e.prefix)
	}
	for _, v := range b.Full {
		prefix(v)
	}
	o.keys = append(o.keys, keys)
	for p := range m.pools {
		keys = nil
		o.b.Windows, o.b.States = append(o.b.Windows, slices.Clone(b.Windows[p])), append(o.b.States, slices.Clone(b.States[p]))
		for _, v := range b.Windows[p] {
			if e := m.eng[v]; e == nil || !e.win[p] || e.winBy[p] != nil {
				r.Fatalf("back-up of a window that is not there")
			}
			prefix(v)
		}
		for _, v := range b.States[p] {
			keys = append(keys, m.stP[p][v])
		}
		o.keys = append(o.keys, keys)
	}
	m.backs = append(m.backs, o)
}

func (m *machine) copied(r *rapid.T) {
	if len(m.backs) == 0 {
		r.Skip("no back-up")
	}
	i := rapid.IntRange(0, len(m.backs)-1).Draw(r, "backUp")
	o := m.backs[i]
	m.backs = slices.Delete(m.backs, i, i+1)
	m.finishBack(r, o, rapid.IntRange(0, 3).Draw(r, "ok") > 0)
}

func (m *machine) finishBack(r *rapid.T, o *openBack, ok bool) {
	var full []ids.HostPage
	windows, states := make([][]ids.HostPage, len(m.pools)), make([][]ids.HostPage, len(m.pools))
	type copied struct {
		pool int
		key  string
		h    ids.HostPage
	}
	var list []copied
	note := func(pool int, keys []string, pages []ids.HostPage) {
		for i, h := range pages {
			m.hostP[pool][h] = keys[i]
			list = append(list, copied{pool, keys[i], h})
		}
	}
	if ok {
		n := len(o.b.Full)
		if n > 0 && rapid.IntRange(0, 3).Draw(r, "partly") == 0 {
			n = rapid.IntRange(0, n).Draw(r, "copied")
		}
		full = m.f.hostPages(m.tree.full, n)
		note(m.tree.full, o.keys[0], full)
		for p, c := range m.pools {
			if c.Role == SWA {
				windows[p] = m.f.hostPages(p, len(o.b.Windows[p]))
				note(p, o.keys[p+1], windows[p])
			} else if c.Role == State {
				states[p] = m.f.hostPages(p, len(o.b.States[p]))
				note(p, o.keys[p+1], states[p])
			}
		}
	}
	var f Freed
	m.must(r, m.tree.FinishBackUp(o.b.ID, ok, full, windows, states, &f))
	refused := map[copied]bool{}
	for p, l := range f.Host {
		for _, h := range l {
			refused[copied{p, m.hostP[p][h], h}] = true
		}
	}
	for _, c := range list {
		if refused[c] {
			continue
		}
		p := m.pages[c.key]
		if p == nil {
			r.Fatalf("a host copy for a prefix that is gone was kept")
		}
		switch m.pools[c.pool].Role {
		case Full:
			parent := c.key[:len(c.key)-4*m.tree.pt]
			if q := m.pages[parent]; m.tree.cfg.HostPrefixClosed && q != nil && q.host == ids.NoHostPage {
				r.Fatal("a host copy below a page that has none")
			}
			p.host = c.h
		case SWA:
			p.winH[c.pool] = c.h
		case State:
			p.stHost[c.pool] = c.h
		}
	}
	m.must(r, m.gone(&f, true))
}

func (m *machine) load(r *rapid.T) {
	p := m.takePin(r, func(p *modelPin) bool { return p.match != nil && p.match.NeedsLoad() })
	if err := m.tree.Refresh(p.match); err != nil {
		if !errors.Is(err, ErrPending) && !errors.Is(err, ErrGap) {
			r.Fatal(err)
		}
		return
	}
	got := p.match
	if !got.NeedsLoad() {
		return
	}
	l := &modelLoad{ns: p.ns, toks: p.tokens, from: len(got.Resident), to: got.Usable}
	l.pages = m.f.pages(m.tree.full, len(got.LoadFull))
	l.fullFrom = slices.Clone(got.LoadFull)
	for k := range m.pools {
		for _, w := range got.LoadWindows[k] {
			l.windowFrom[k] = append(l.windowFrom[k], w.Host)
		}
	}
	var states []ids.VirtualPage
	for k, c := range m.pools {
		v := none
		if c.Role == State && got.States[k].Device == none {
			v = m.f.page(k)
			m.stP[k][v] = m.key(p.ns, p.tokens, l.to)
		}
		states = append(states, v)
	}
	for i, v := range l.pages {
		m.eng[v] = &enginePage{prefix: m.key(p.ns, p.tokens, l.from+i+1)}
		q := m.at(p.ns, p.tokens, l.from+i+1)
		q.dev, q.load = v, l
	}
	for k := range m.pools {
		for _, w := range got.LoadWindows[k] {
			e := m.eng[m.at(p.ns, p.tokens, w.At+1).dev]
			e.win[k], e.winBy[k] = true, l
		}
	}
	for k, v := range states {
		if v != none {
			q := m.at(p.ns, p.tokens, l.to)
			q.stDev[k], q.stLoad[k] = v, l
		}
	}
	var surplus Freed
	var err error
	l.id, err = m.tree.BeginLoad(got, l.pages, states, &surplus)
	m.must(r, err)
	if !surplus.Empty() {
		r.Fatalf("surplus right after a refresh: %+v", surplus)
	}
	m.loads = append(m.loads, l)
}

func (m *machine) landed(r *rapid.T) {
	if len(m.loads) == 0 {
		r.Skip("no load")
	}
	i := rapid.IntRange(0, len(m.loads)-1).Draw(r, "load")
	l := m.loads[i]
	m.loads = slices.Delete(m.loads, i, i+1)
	m.finishLoad(r, l, rapid.IntRange(0, 2).Draw(r, "ok") > 0)
}

func (m *machine) finishLoad(r *rapid.T, l *modelLoad, ok bool) {
	lowest := ""
	for i, v := range l.pages {
		k := m.key(l.ns, l.toks, l.from+i+1)
		if p := m.pages[k]; p != nil && p.dev == v && lowest == "" {
			lowest = k
		}
	}
	var f Freed
	whole, err := m.tree.FinishLoad(l.id, ok, &f)
	m.must(r, err)
	for k, p := range m.pages {
		if p.load == l {
			p.load = nil
		}
		for q := range p.stLoad {
			if p.stLoad[q] == l {
				p.stLoad[q] = nil
			}
		}
		if !whole && lowest != "" && len(k) >= len(lowest) && k[:len(lowest)] == lowest {
			// Everything on the device below a failed page is off the books now, freed or in limbo.
			p.dev, p.load = none, nil
			for q := range p.stDev {
				p.stDev[q], p.stLoad[q] = none, nil
			}
		}
	}
	for _, e := range m.eng {
		for q := range e.winBy {
			if e.winBy[q] == l {
				e.winBy[q] = nil
			}
		}
	}
	m.must(r, m.gone(&f, false))
	if !whole {
		m.forgetLost()
	}
}

// forgetLost drops prefixes without a copy and everything below them, which went with them.
func (m *machine) forgetLost() {
	size := 4 * m.tree.pt
	for again := true; again; {
		again = false
		for k, p := range m.pages {
			parent := k[:len(k)-size]
			orphan := parent[len(parent)-1] != '|' && m.pages[parent] == nil
			if orphan || p.dev == none && p.host == ids.NoHostPage {
				delete(m.pages, k)
				again = true
			}
		}
	}
}

func (m *machine) prefetch(r *rapid.T) {
	ns, tokens := m.draw(r)
	end := len(tokens) / m.tree.pt
	m.clock++
	req := InsertHostRequest{Namespace: ns, Tokens: tokens, From: rapid.IntRange(0, end).Draw(r, "from"), Refill: rapid.Bool().Draw(r, "refill"), Stored: true, Now: m.clock}
	req.Pages = m.f.hostPages(m.tree.full, end-req.From)
	req.Windows = make([][]HostWindow, len(m.pools))
	put := func(pool int, h ids.HostPage, n int) { m.hostP[pool][h] = m.key(ns, tokens, n) }
	for i, h := range req.Pages {
		put(m.tree.full, h, req.From+i+1)
		for p, c := range m.pools {
			if c.Role == SWA && rapid.Bool().Draw(r, "window") {
				w := m.f.hostPages(p, 1)[0]
				put(p, w, req.From+i+1)
				req.Windows[p] = append(req.Windows[p], HostWindow{At: req.From + i, Host: w})
			}
		}
	}
	for p, c := range m.pools {
		if c.Role == State && end > req.From && rapid.Bool().Draw(r, "state") {
			s := m.f.hostPages(p, 1)[0]
			put(p, s, end)
			req.States = append(req.States, HostCheckpoint{p, end, s})
		}
	}
	gap := req.From > 0 && m.at(ns, tokens, req.From) == nil
	var f Freed
	_, err := m.tree.InsertHost(&req, &f)
	if gap != errors.Is(err, ErrGap) || !gap && err != nil {
		r.Fatalf("prefetch: %v, gap %v", err, gap)
	}
	if err != nil {
		f.fit(len(m.pools))
		f.Host[m.tree.full] = req.Pages
		for p := range m.pools {
			for _, w := range req.Windows[p] {
				f.Host[p] = append(f.Host[p], w.Host)
			}
		}
		for _, s := range req.States {
			f.Host[s.Pool] = append(f.Host[s.Pool], s.Page)
		}
		m.must(r, m.gone(&f, false))
		return
	}
	back := map[string]bool{}
	for p, l := range f.Host {
		for _, h := range l {
			back[fmt.Sprint(p, h)] = true
		}
	}
	for i, h := range req.Pages {
		if !back[fmt.Sprint(m.tree.full, h)] {
			m.ensure(ns, tokens, req.From+i+1).host = h
		}
	}
	for p := range m.pools {
		for _, w := range req.Windows[p] {
			if !back[fmt.Sprint(p, w.Host)] {
				m.at(ns, tokens, w.At+1).winH[p] = w.Host
			}
		}
	}
	for _, s := range req.States {
		if !back[fmt.Sprint(s.Pool, s.Page)] {
			m.at(ns, tokens, s.At).stHost[s.Pool] = s.Page
		}
	}
	m.must(r, m.gone(&f, false))
}

func (m *machine) store(r *rapid.T) {
	if len(m.stores) > 0 && rapid.Bool().Draw(r, "stored") {
		m.must(r, m.tree.FinishStore(m.stores[0].id, rapid.IntRange(0, 3).Draw(r, "n")))
		m.stores = m.stores[1:]
		return
	}
	p := m.takePin(r, func(*modelPin) bool { return true })
	var s Store
	if m.tree.BeginStore(p.pin, &s) {
		hashes, err := m.tree.Hashes(p.pin, 0, p.usable, nil)
		m.must(r, err)
		want := coldHashes(m.tree.cfg, NamespaceSeed(p.ns), p.tokens[:p.usable*m.tree.pt])
		if !slices.Equal(hashes, want) {
			r.Fatal("hashes of the tree differ from a cold computation")
		}
		for i, at := range s.At {
			if m.hostP[m.tree.full][s.Full[i]] != m.key(p.ns, p.tokens, at+1) {
				r.Fatalf("store of position %d: another page", at)
			}
		}
		o := &openStore{id: s.ID, from: s.Full}
		m.stores = append(m.stores, o)
	}
}
