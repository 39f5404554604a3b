package radix

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/hicache/hicache/ffi/ids"
)

// The naive model: a map from whole prefixes to what is where, and an engine that knows which prefix every page was computed for. It is
// slow, has no nodes, and learns of evictions only from what the tree hands back, so a page that the tree forgets, frees twice or serves
// for the wrong prefix shows.

const none = ids.NoVirtualPage

type modelPage struct {
	dev    ids.VirtualPage
	load   *modelLoad // dev is still being loaded by it
	host   ids.HostPage
	winH   [4]ids.HostPage // by pool
	stDev  [4]ids.VirtualPage
	stLoad [4]*modelLoad
	stHost [4]ids.HostPage
	stamp  uint64
}

// enginePage is a device page of the FULL group: whose KV it holds and which pools have a window page for it.
type enginePage struct {
	prefix string
	win    [4]bool
	winBy  [4]*modelLoad // the window is still being loaded
}

type modelPin struct {
	pin            Pin
	ns             Namespace
	tokens         []uint32
	usable         int
	hostFrom       int // FULL host pages [hostFrom, usable) are pinned too; usable if none
	noWindows      bool
	windowsOnDev   [4]bool // nothing of the window had to be loaded
	match          *Match
	insertedBottom bool
}

type modelLoad struct {
	id    LoadID
	ns    Namespace
	toks  []uint32
	to    int
	from  int
	pages []ids.VirtualPage
	// What it reads.
	fullFrom   []ids.HostPage
	windowFrom [4][]ids.HostPage
}

type openBack struct {
	b    BackUp
	keys [][]string // by list: prefixes of Full, then of each pool's windows and states
}

type openStore struct {
	id   StoreID
	from []ids.HostPage
}

// busy says which transfer reads or writes a device page or state of a pool.
func (m *model) busy(pool int, v ids.VirtualPage) string {
	for _, o := range m.backs {
		if pool == m.f.tree.full && slices.Contains(o.b.Full, v) || slices.Contains(o.b.Windows[pool], v) || slices.Contains(o.b.States[pool], v) {
			return "back-up"
		}
		for p := range m.pools { // a window goes with its full page
			if pool == m.f.tree.full && slices.Contains(o.b.Windows[p], v) {
				return "back-up of a window"
			}
		}
	}
	for _, l := range m.loads {
		if pool == m.f.tree.full && slices.Contains(l.pages, v) {
			return "load"
		}
	}
	if e := m.eng[v]; m.pools[pool].Role == SWA && e != nil && e.winBy[pool] != nil {
		return "load of a window"
	}
	return ""
}

// busyHost is busy for host pages.
func (m *model) busyHost(pool int, h ids.HostPage) string {
	for _, l := range m.loads {
		if pool == m.f.tree.full && slices.Contains(l.fullFrom, h) || slices.Contains(l.windowFrom[pool], h) {
			return "load"
		}
	}
	for _, s := range m.stores {
		if pool == m.f.tree.full && slices.Contains(s.from, h) {
			return "store"
		}
	}
	return ""
}

type model struct {
	f      *fixture
	pools  []PoolConfig
	pages  map[string]*modelPage
	eng    map[ids.VirtualPage]*enginePage
	hostP  []map[ids.HostPage]string // by pool: whose bytes
	stP    []map[ids.VirtualPage]string
	pins   []*modelPin
	loads  []*modelLoad
	backs  []*openBack
	stores []*openStore
	clock  uint64
}

func newModel(f *fixture) *model {
	m := &model{f: f, pools: f.tree.cfg.Pools, pages: map[string]*modelPage{}, eng: map[ids.VirtualPage]*enginePage{}}
	for range m.pools {
		m.hostP = append(m.hostP, map[ids.HostPage]string{})
		m.stP = append(m.stP, map[ids.VirtualPage]string{})
	}
	return m
}

// key names the prefix of the first n pages.
func (m *model) key(ns Namespace, tokens []uint32, n int) string {
	b := fmt.Appendf(nil, "%v|", ns)
	for _, t := range tokens[:n*m.f.tree.pt] {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	return string(b)
}

// hash is the hash of the last page of a prefix.
func (m *model) hash(prefix string) Hash {
	i := strings.LastIndexByte(prefix[:strings.IndexByte(prefix, '|')+1], '|')
	ns := Namespace{}
	if prefix[:i] != fmt.Sprint(ns) {
		ns = Namespace{LoRA: Some("a")}
	}
	var tokens []uint32
	for b := []byte(prefix[i+1:]); len(b) > 0; b = b[4:] {
		tokens = append(tokens, binary.LittleEndian.Uint32(b))
	}
	all := coldHashes(m.f.tree.cfg, NamespaceSeed(ns), tokens)
	return all[len(all)-1]
}

func (m *model) at(ns Namespace, tokens []uint32, n int) *modelPage {
	return m.pages[m.key(ns, tokens, n)]
}

func (m *model) ensure(ns Namespace, tokens []uint32, n int) *modelPage {
	k := m.key(ns, tokens, n)
	p := m.pages[k]
	if p == nil {
		p = &modelPage{dev: none, host: ids.NoHostPage}
		for i := range p.winH {
			p.winH[i], p.stDev[i], p.stHost[i] = ids.NoHostPage, none, ids.NoHostPage
		}
		m.pages[k] = p
	}
	return p
}

// window reports whether page p's window in a pool is on the device (ready or joined), and on any tier.
func (m *model) window(p *modelPage, pool int, join bool) (dev, any bool) {
	if p.dev != none {
		e := m.eng[p.dev]
		dev = e.win[pool] && (join || e.winBy[pool] == nil && p.load == nil)
	}
	return dev, dev || p.winH[pool] != ids.NoHostPage
}

// good reports whether n pages serve every pool.
func (m *model) good(ns Namespace, tokens []uint32, n int, join bool) (dev, any bool) {
	dev, any = true, true
	for p, c := range m.pools {
		switch c.Role {
		case SWA:
			need := (c.WindowTokens + m.f.tree.cfg.PageTokens - 1) / m.f.tree.cfg.PageTokens
			for i := max(0, n-need) + 1; i <= n; i++ {
				d, a := m.window(m.at(ns, tokens, i), p, join)
				dev, any = dev && d, any && a
			}
		case State:
			e := m.at(ns, tokens, n)
			d := e.stDev[p] != none && (join || e.stLoad[p] == nil)
			dev, any = dev && d, any && (d || e.stHost[p] != ids.NoHostPage)
		}
	}
	return dev, any
}

// expect is what a match must say.
func (m *model) expect(ns Namespace, tokens []uint32, opt MatchOptions) (b bounds) {
	cfg := m.f.tree.cfg
	limit := len(tokens) // positions
	if cfg.Tokens != Narrow {
		limit /= 2
	}
	if !opt.FullHit && cfg.Tokens != Bigram {
		limit--
	}
	limit = max(0, limit) / cfg.PageTokens
	on := true
	for n := 1; n <= limit; n++ {
		p := m.at(ns, tokens, n)
		if p == nil {
			break
		}
		b.hit = n
		on = on && p.dev != none && (opt.Join || p.load == nil)
		if on {
			b.device = n
		}
		d, a := m.good(ns, tokens, n, opt.Join)
		if a {
			b.usable = n
		}
		if d && on {
			b.ready = n
		}
	}
	if opt.NoLoad {
		b.usable = b.ready
	}
	return b
}

// checkMatch compares a match with the model and looks at every page it names.
func (m *model) checkMatch(ns Namespace, tokens []uint32, opt MatchOptions, got *Match) error {
	want := m.expect(ns, tokens, opt)
	if got.Usable != want.usable || got.Ready != want.ready || got.Hit != want.hit {
		return fmt.Errorf("match says usable %d ready %d hit %d, want %+v", got.Usable, got.Ready, got.Hit, want)
	}
	if len(got.Resident) != min(want.device, want.usable) || len(got.Resident)+len(got.LoadFull) != got.Usable {
		return fmt.Errorf("match has %d resident and %d to load of %d, want %+v", len(got.Resident), len(got.LoadFull), got.Usable, want)
	}
	for i, v := range got.Resident {
		if e := m.eng[v]; e == nil || e.prefix != m.key(ns, tokens, i+1) {
			return fmt.Errorf("position %d: page %d holds something else", i, v)
		}
	}
	for i, h := range got.LoadFull {
		if n := len(got.Resident) + i + 1; m.hostP[m.f.tree.full][h] != m.key(ns, tokens, n) {
			return fmt.Errorf("position %d: host page %d holds something else", n-1, h)
		}
	}
	for p, c := range m.pools {
		if c.Role == SWA {
			if err := m.checkWindows(ns, tokens, opt, got, p); err != nil {
				return err
			}
		}
		if c.Role == State && got.Usable > 0 {
			e, s, k := m.at(ns, tokens, got.Usable), got.States[p], m.key(ns, tokens, got.Usable)
			if s.Device != none && m.stP[p][s.Device] != k || s.Host != ids.NoHostPage && m.hostP[p][s.Host] != k || s.Host != e.stHost[p] {
				return fmt.Errorf("state of pool %d: %+v, model %+v", p, s, e)
			}
		}
	}
	return nil
}

func (m *model) checkWindows(ns Namespace, tokens []uint32, opt MatchOptions, got *Match, pool int) error {
	need := (m.pools[pool].WindowTokens + m.f.tree.cfg.PageTokens - 1) / m.f.tree.cfg.PageTokens
	i := 0
	for n := max(0, got.Usable-need) + 1; n <= got.Usable; n++ {
		e := m.at(ns, tokens, n)
		if d, _ := m.window(e, pool, opt.Join); d {
			continue
		}
		if i >= len(got.LoadWindows[pool]) {
			return fmt.Errorf("pool %d: window at %d is missing and not to be loaded", pool, n-1)
		}
		w := got.LoadWindows[pool][i]
		bind := none
		if n <= len(got.Resident) {
			bind = e.dev
		}
		if w.At != n-1 || w.Host != e.winH[pool] || w.Bind != bind {
			return fmt.Errorf("pool %d: to load %+v, model at %d has %+v", pool, w, n-1, e)
		}
		i++
	}
	if i != len(got.LoadWindows[pool]) {
		return fmt.Errorf("pool %d: %d windows to load, want %d", pool, len(got.LoadWindows[pool]), i)
	}
	return nil
}

// gone takes pages that the tree gave back out of the model. evicting: nobody may rely on them.
func (m *model) gone(f *Freed, evicting bool) error {
	full := m.f.tree.full
	for p, list := range f.Device {
		for _, v := range list {
			if why := m.busy(p, v); why != "" && evicting {
				return fmt.Errorf("pool %d: page %d evicted under a %s", p, v, why)
			}
			switch m.pools[p].Role {
			case Full:
				e := m.eng[v]
				if e == nil {
					return fmt.Errorf("page %d freed, and it was free", v)
				}
				if r := m.pages[e.prefix]; r != nil && r.dev == v {
					if evicting && m.pinned(e.prefix, full, Device) {
						return fmt.Errorf("page %d evicted while pinned", v)
					}
					r.dev, r.load = none, nil
					m.prune(e.prefix)
				}
				delete(m.eng, v)
			case SWA:
				e := m.eng[v]
				if e == nil || !e.win[p] {
					return fmt.Errorf("pool %d: tombstone of page %d, which has no window", p, v)
				}
				if evicting && m.pinned(e.prefix, p, Device) {
					return fmt.Errorf("pool %d: window of page %d evicted while pinned", p, v)
				}
				e.win[p], e.winBy[p] = false, nil
			case State:
				k, ok := m.stP[p][v]
				if !ok {
					return fmt.Errorf("pool %d: state %d freed twice", p, v)
				}
				delete(m.stP[p], v)
				if r := m.pages[k]; r != nil && r.stDev[p] == v {
					r.stDev[p], r.stLoad[p] = none, nil
				}
			}
		}
	}
	for p, list := range f.Host {
		for _, h := range list {
			k, ok := m.hostP[p][h]
			if !ok {
				return fmt.Errorf("pool %d: host page %d freed twice", p, h)
			}
			if why := m.busyHost(p, h); why != "" && evicting {
				return fmt.Errorf("pool %d: host page %d evicted under a %s", p, h, why)
			}
			delete(m.hostP[p], h)
			r := m.pages[k]
			if r == nil {
				continue
			}
			if evicting && (r.host == h || r.winH[p] == h) && m.pinned(k, p, Host) {
				return fmt.Errorf("pool %d: host page %d evicted while pinned", p, h)
			}
			switch {
			case p == full && r.host == h:
				r.host = ids.NoHostPage
				m.prune(k)
			case r.winH[p] == h:
				r.winH[p] = ids.NoHostPage
			case r.stHost[p] == h:
				r.stHost[p] = ids.NoHostPage
			}
		}
	}
	m.f.free(f)
	return nil
}

// prune forgets a prefix that is on no tier.
func (m *model) prune(k string) {
	if r := m.pages[k]; r.dev == none && r.host == ids.NoHostPage {
		delete(m.pages, k)
	}
}

// pinned reports whether a live match or insert relies on the page of a prefix.
func (m *model) pinned(k string, pool int, tier Tier) bool {
	for _, p := range m.pins {
		for n := 1; n <= p.usable; n++ {
			if m.key(p.ns, p.tokens, n) != k {
				continue
			}
			need := p.usable
			if c := m.pools[pool]; c.Role == SWA {
				need = (c.WindowTokens + m.f.tree.cfg.PageTokens - 1) / m.f.tree.cfg.PageTokens
				if p.noWindows {
					continue
				}
			}
			inWindow := n > p.usable-need
			switch {
			case tier == Device && inWindow:
				return true
			case tier == Host && pool == m.f.tree.full && n > p.hostFrom:
				return true
			case tier == Host && pool != m.f.tree.full && inWindow && !p.windowsOnDev[pool]:
				return true
			}
		}
	}
	return false
}

// victim is the page that LRU over pages, tail first, gives up next; FULL only.
func (m *model) victim() (ids.VirtualPage, bool) {
	best, found := none, false
	var stamp uint64
	size := 4 * m.f.tree.pt
	parents := map[string]bool{}
	for k, p := range m.pages {
		if p.dev != none {
			parents[k[:len(k)-size]] = true
		}
	}
	for k, p := range m.pages {
		if p.dev == none || parents[k] || m.pinned(k, m.f.tree.full, Device) {
			continue
		}
		if !found || p.stamp < stamp {
			best, stamp, found = p.dev, p.stamp, true
		}
	}
	return best, found
}
