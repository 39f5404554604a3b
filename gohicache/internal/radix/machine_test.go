package radix

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/policy"
	"pgregory.net/rapid"
)

// machine drives a tree and the model with the same random operations.
type machine struct {
	*model
	tree     *Tree
	writeAll bool // evictions back up instead of dropping
	seen     mirror
}

func TestAgainstTheModel(t *testing.T) {
	rounds := 8 // each of -rapid.checks runs
	if testing.Short() {
		rounds = 2
	}
	for i := range rounds {
		t.Run(fmt.Sprint(i), func(t *testing.T) { rapid.Check(t, runMachine) })
	}
}

// runMachine is one run: a random tree, three times -rapid.steps operations on it, and an end after which nothing may be left.
func runMachine(r *rapid.T) {
	cfg := Config{PageTokens: rapid.IntRange(1, 2).Draw(r, "pageTokens")}
	cfg.Tokens = TokenForm(max(0, rapid.IntRange(-2, 2).Draw(r, "tokenForm"))) // half of the runs are narrow
	cfg.WholeLeaf = rapid.IntRange(0, 5).Draw(r, "wholeLeaf") == 0
	cfg.HostPrefixClosed = rapid.Bool().Draw(r, "hostPrefixClosed")
	cfg.Hashes = rapid.IntRange(0, 3).Draw(r, "hashes") == 0
	window := func() PoolConfig {
		return PoolConfig{SWA, rapid.IntRange(1, 6).Draw(r, "window")}
	}
	switch rapid.IntRange(0, 5).Draw(r, "pools") {
	case 0, 1:
		cfg.Pools = []PoolConfig{{Role: Full}}
	case 2:
		cfg.Pools = []PoolConfig{{Role: Full}, window()}
	case 3:
		cfg.Pools = []PoolConfig{window(), {Role: Full}, window()}
	case 4:
		cfg.Pools = []PoolConfig{{Role: Full}, {Role: State}}
	case 5:
		cfg.Pools = []PoolConfig{{Role: State}, window(), {Role: Full}}
	}
	name := "lru"
	if rapid.IntRange(0, 2).Draw(r, "otherPolicy") == 0 {
		name = rapid.SampledFrom(policy.Names()).Draw(r, "policy")
	}
	cfg.Policy, _ = policy.ByName(name)
	seen := mirror{}
	cfg.OnChange = seen.apply
	f := newFixture(r, cfg)
	m := &machine{model: newModel(f), tree: f.tree, seen: seen, writeAll: rapid.Bool().Draw(r, "writeBack")}
	actions := map[string]func(*rapid.T){
		"match":      m.match,
		"matchToo":   m.match,
		"insert":     m.insert,
		"insertToo":  m.insert,
		"release":    m.release,
		"suspend":    m.suspend,
		"load":       m.load,
		"loadToo":    m.load,
		"landed":     m.landed,
		"backUp":     m.backUp,
		"copied":     m.copied,
		"evict":      m.evict,
		"evictHost":  m.evictHost,
		"prefetch":   m.prefetch,
		"store":      m.store,
		"clear":      m.clear,
		"orphans":    m.orphans,
		"newWindows": m.releaseWindows,
		"onDevice":   m.releaseHost,
		"":           func(r *rapid.T) { m.verify(r) },
	}
	for range 3 {
		r.Repeat(actions)
	}
	m.end(r)
}

func (m *machine) verify(r *rapid.T) {
	if bad := m.tree.Verify(); bad != nil {
		r.Fatalf("%v", bad)
	}
	if lost := m.tree.lostStrips(); lost != 0 {
		r.Fatalf("%d strips belong to no node", lost)
	}
	if m.tree.cfg.Hashes {
		m.must(r, m.seen.compare(m.model))
		snapshot := mirror{}
		m.tree.Snapshot(func() {}, snapshot.apply)
		if !maps.Equal(snapshot, m.seen) {
			r.Fatalf("a snapshot has %d entries, the changes made %d", len(snapshot), len(m.seen))
		}
	}
}

func (m *machine) must(r *rapid.T, err error) {
	if err != nil {
		r.Fatal(err)
	}
}

// mirror is a consumer of changes that knows pages by their hashes: what it holds must be what the tree can serve.
type mirror map[mirrorKey]Namespace

type mirrorKey struct {
	hash Hash
	pool int
	tier Tier
}

func (s mirror) apply(c Change) {
	if c.Kind == Cleared {
		clear(s)
		return
	}
	for _, h := range c.Hashes {
		if k := (mirrorKey{h, c.Pool, c.Tier}); c.Kind == Stored {
			s[k] = c.Namespace
		} else {
			delete(s, k)
		}
	}
}

// compare checks the mirror against the model.
func (s mirror) compare(m *model) error {
	n := 0
	for prefix, p := range m.pages {
		h := m.hash(prefix)
		for pool, c := range m.pools {
			var dev, host bool
			switch c.Role {
			case Full:
				dev, host = p.dev != none && p.load == nil, p.host != ids.NoHostPage
			case SWA:
				dev, _ = m.window(p, pool, false)
				host = p.winH[pool] != ids.NoHostPage
			case State:
				dev, host = p.stDev[pool] != none && p.stLoad[pool] == nil, p.stHost[pool] != ids.NoHostPage
			}
			for tier, want := range []bool{dev, host} {
				if _, got := s[mirrorKey{h, pool, Tier(tier)}]; got != want {
					return fmt.Errorf("changes say %v about pool %d tier %d of a page, the tree %v", got, pool, tier, want)
				} else if got {
					n++
				}
			}
		}
	}
	if n != len(s) {
		return fmt.Errorf("changes left %d entries, the tree has %d", len(s), n)
	}
	return nil
}

func (m *machine) draw(r *rapid.T) (Namespace, []uint32) {
	ns := []Namespace{{}, {LoRA: Some("a")}}[rapid.IntRange(0, 7).Draw(r, "ns")/7]
	tokens := make([]uint32, rapid.IntRange(0, 8*m.tree.pt+1).Draw(r, "tokens"))
	for range rapid.IntRange(0, 1).Draw(r, "flips") {
		if len(tokens) > 0 {
			tokens[rapid.IntRange(0, len(tokens)-1).Draw(r, "flip")] = 1
		}
	}
	if rapid.IntRange(0, 19).Draw(r, "long") == 0 {
		tokens = append(make([]uint32, 30*m.tree.pt), tokens...)
	}
	return ns, tokens
}

func (m *machine) match(r *rapid.T) {
	ns, tokens := m.draw(r)
	opt := MatchOptions{FullHit: rapid.Bool().Draw(r, "full"), Join: rapid.Bool().Draw(r, "join"), NoLoad: rapid.IntRange(0, 3).Draw(r, "noLoad") == 0,
		Peek: rapid.IntRange(0, 3).Draw(r, "peek") == 0}
	if !opt.Peek {
		m.clock++
		opt.Now = m.clock
	}
	got := new(Match)
	m.tree.Match(ns, tokens, opt, got)
	m.must(r, m.checkMatch(ns, tokens, opt, got))
	if opt.Peek {
		return
	}
	p := &modelPin{pin: got.Pin, ns: ns, tokens: tokens, usable: got.Usable, hostFrom: got.Usable, match: got}
	if len(got.LoadFull) > 0 {
		p.hostFrom = len(got.Resident)
	}
	for k := range m.pools {
		p.windowsOnDev[k] = len(got.LoadWindows[k]) == 0
	}
	m.pins = append(m.pins, p)
	for n := 1; n <= got.Usable; n++ {
		m.at(ns, tokens, n).stamp = m.clock
	}
}

func (m *machine) takePin(r *rapid.T, ok func(*modelPin) bool) *modelPin {
	var list []*modelPin
	for _, p := range m.pins {
		if ok(p) {
			list = append(list, p)
		}
	}
	if len(list) == 0 {
		r.Skip("no such pin")
	}
	return list[rapid.IntRange(0, len(list)-1).Draw(r, "pin")]
}

func (m *machine) release(r *rapid.T) {
	p := m.takePin(r, func(*modelPin) bool { return true })
	if !m.tree.Release(p.pin) || m.tree.Release(p.pin) {
		r.Fatal("a pin is released once")
	}
	m.pins = slices.DeleteFunc(m.pins, func(q *modelPin) bool { return q == p })
}

// suspend sends a whole path to the host: what loads are made of.
func (m *machine) suspend(r *rapid.T) {
	p := m.takePin(r, func(*modelPin) bool { return true })
	var b BackUp
	if m.tree.BeginBackUp(p.pin, 0, &b) {
		m.opened(r, &b)
		o := m.backs[len(m.backs)-1]
		m.backs = m.backs[:len(m.backs)-1]
		m.finishBack(r, o, true)
	}
	m.tree.Release(p.pin)
	m.pins = slices.DeleteFunc(m.pins, func(q *modelPin) bool { return q == p })
	req := EvictRequest{Tier: Device, Unbacked: Keep, Want: make([]int, len(m.pools))}
	for k := range req.Want {
		req.Want[k] = rapid.IntRange(0, 20).Draw(r, "want")
	}
	var res EvictResult
	m.tree.Evict(&req, &res)
	m.must(r, m.gone(&res.Freed, true))
}

func (m *machine) releaseWindows(r *rapid.T) {
	p := m.takePin(r, func(*modelPin) bool { return true })
	m.tree.ReleaseWindows(p.pin)
	p.noWindows = true
	p.match = nil // its windows may go now, so it is no base for a load
}

func (m *machine) releaseHost(r *rapid.T) {
	p := m.takePin(r, func(*modelPin) bool { return true })
	m.tree.ReleaseHost(p.pin)
	p.hostFrom, p.match = p.usable, nil
	for k := range p.windowsOnDev {
		p.windowsOnDev[k] = true
	}
}

func (m *machine) orphans(r *rapid.T) {
	var f Freed
	m.tree.DrainOrphans(&f)
	m.must(r, m.gone(&f, false))
}

func (m *machine) insert(r *rapid.T) {
	req := InsertRequest{Rebind: rapid.Bool().Draw(r, "rebind"), Pin: rapid.Bool().Draw(r, "pinIt")}
	if len(m.pins) > 0 && rapid.Bool().Draw(r, "continue") {
		p := m.takePin(r, func(*modelPin) bool { return true })
		more := rapid.SliceOfN(rapid.Uint32Range(0, 1), 0, 6*m.tree.pt).Draw(r, "more")
		req.Namespace, req.After = p.ns, p.pin
		req.Tokens = append(slices.Clone(p.tokens[:p.usable*m.tree.pt]), more...)
		req.From = rapid.IntRange(0, p.usable).Draw(r, "from")
	} else {
		req.Namespace, req.Tokens = m.draw(r)
		if rapid.Bool().Draw(r, "prefix") {
			req.From = rapid.IntRange(0, len(req.Tokens)/m.tree.pt).Draw(r, "from")
		}
	}
	end := len(req.Tokens) / m.tree.pt
	if rapid.IntRange(0, 3).Draw(r, "prioritised") == 0 {
		req.Priority = uint8(rapid.IntRange(0, 99).Draw(r, "priority"))
		req.Retain = m.clock * uint64(rapid.IntRange(0, 2).Draw(r, "retain"))
	}
	m.clock++
	req.Now = m.clock
	req.Pages = m.f.pages(m.tree.full, end-req.From)
	if rapid.Bool().Draw(r, "someWindows") {
		for range m.pools {
			req.WindowFrom = append(req.WindowFrom, rapid.IntRange(0, end).Draw(r, "windowFrom"))
		}
	}
	for p, c := range m.pools {
		if c.Role == State && end > 0 && rapid.Bool().Draw(r, "checkpoint") {
			req.Checkpoints = append(req.Checkpoints, Checkpoint{p, rapid.IntRange(1, end).Draw(r, "at"), m.f.page(p)})
		}
	}
	for i, v := range req.Pages {
		e := &enginePage{prefix: m.key(req.Namespace, req.Tokens, req.From+i+1)}
		for p, c := range m.pools {
			e.win[p] = c.Role == SWA && (req.WindowFrom == nil || req.From+i >= req.WindowFrom[p])
		}
		m.eng[v] = e
	}
	for _, c := range req.Checkpoints {
		m.stP[c.Pool][c.Page] = m.key(req.Namespace, req.Tokens, c.At)
	}
	want := m.prefixError(&req)
	var res InsertResult
	err := m.tree.Insert(&req, &res)
	if !errors.Is(err, want) || (err == nil) != (want == nil) {
		r.Fatalf("insert: %v, want %v", err, want)
	}
	if err != nil {
		f := Freed{}
		f.fit(len(m.pools))
		f.Device[m.tree.full] = req.Pages
		for _, c := range req.Checkpoints {
			f.Device[c.Pool] = append(f.Device[c.Pool], c.Page)
		}
		m.must(r, m.gone(&f, false))
		return
	}
	m.inserted(r, &req, &res, end)
}

// prefixError is what an insert must say about the pages before From.
func (m *machine) prefixError(req *InsertRequest) error {
	var windows bool
	for n := 1; n <= req.From; n++ {
		p := m.at(req.Namespace, req.Tokens, n)
		if p == nil || p.dev == none {
			return ErrGap
		}
	}
	for n := 1; n <= req.From; n++ {
		p := m.at(req.Namespace, req.Tokens, n)
		if p.load != nil {
			return ErrPending
		}
		for _, by := range m.eng[p.dev].winBy {
			windows = windows || by != nil
		}
	}
	if windows {
		return ErrPending
	}
	// A window in flight beyond From on the same node is refused too; the model has no nodes, so it asks.
	if req.From > 0 {
		m.tree.mu.RLock()
		defer m.tree.mu.RUnlock()
		n, k, _, err := m.tree.locate(req.Namespace, req.After, req.From, req.Tokens, req.From+len(req.Pages))
		if err == nil {
			return m.tree.checkPrefix(n, k, req.From)
		}
		return err
	}
	return nil
}

func (m *machine) inserted(r *rapid.T, req *InsertRequest, res *InsertResult, end int) {
	if res.Pages != end || len(res.Now) != end-req.From || res.New+res.Existing+res.Revived != end-req.From {
		r.Fatalf("insert of %d..%d: %+v", req.From, end, res)
	}
	for _, b := range res.Rebinds {
		from, to := m.eng[b.From], m.eng[b.To]
		if !from.win[b.Pool] || to.win[b.Pool] || from.prefix != to.prefix {
			r.Fatalf("rebind %+v of %+v to %+v", b, from, to)
		}
		from.win[b.Pool], to.win[b.Pool] = false, true
	}
	for i, v := range res.Now {
		p := m.ensure(req.Namespace, req.Tokens, req.From+i+1)
		if e := m.eng[v]; e == nil || e.prefix != m.key(req.Namespace, req.Tokens, req.From+i+1) {
			r.Fatalf("position %d: page %d now", req.From+i, v)
		}
		if p.dev != v {
			if p.dev != none && v != req.Pages[i] {
				r.Fatal("a third page appeared")
			}
			if p.dev != none && p.load == nil && m.pinned(m.eng[p.dev].prefix, m.tree.full, Device) {
				r.Fatal("a pinned page was replaced")
			}
			p.dev, p.load = v, nil
		}
	}
	for n := 1; n <= end; n++ {
		m.at(req.Namespace, req.Tokens, n).stamp = m.clock
	}
	for _, c := range req.Checkpoints {
		if p := m.at(req.Namespace, req.Tokens, c.At); p.stDev[c.Pool] == none {
			p.stDev[c.Pool] = c.Page
		}
	}
	m.must(r, m.gone(&res.Freed, false))
	if req.Pin {
		p := &modelPin{pin: res.Pin, ns: req.Namespace, tokens: req.Tokens, usable: end, hostFrom: end, insertedBottom: true}
		for k := range m.pools {
			p.windowsOnDev[k] = true
		}
		m.pins = append(m.pins, p)
	}
}

func (m *machine) evict(r *rapid.T) {
	req := EvictRequest{Tier: Device, Unbacked: Unbacked(rapid.IntRange(0, 2).Draw(r, "unbacked"))}
	if !m.writeAll && req.Unbacked == Back {
		req.Unbacked = Drop
	}
	total := 0
	for range m.pools {
		w := rapid.IntRange(0, 6).Draw(r, "want")
		req.Want = append(req.Want, w)
		total += w
	}
	if rapid.IntRange(0, 3).Draw(r, "stopEarly") == 0 {
		at := rapid.IntRange(1, 4).Draw(r, "stopAt")
		req.Stop = func(gone []int) bool { return gone[m.tree.full] >= at }
	}
	exact := m.tree.policy.Name() == "lru" && len(m.pools) == 1 && req.Unbacked == Drop && !m.tree.cfg.WholeLeaf && len(m.loads)+len(m.backs)+len(m.stores) == 0
	var want []ids.VirtualPage
	if exact {
		want = m.predict(&req)
	}
	var res EvictResult
	m.tree.Evict(&req, &res)
	if exact && !slices.Equal(res.Freed.Device[0], want) {
		r.Fatalf("evicted %v, LRU gives up %v", res.Freed.Device[0], want)
	}
	for p := range m.pools {
		short := res.Gone[p]+res.Pending[p] < req.Want[p]
		if short && req.Stop == nil && res.Blocker[p] == NotBlocked {
			r.Fatalf("pool %d: short without a blocker", p)
		}
		if m.pools[p].Role != SWA && res.Gone[p] != len(res.Freed.Device[p]) {
			r.Fatalf("pool %d: %d gone, %d freed", p, res.Gone[p], len(res.Freed.Device[p]))
		}
	}
	m.must(r, m.gone(&res.Freed, true))
	for i := range res.BackUps {
		m.opened(r, &res.BackUps[i])
	}
}

// predict lists LRU's victims on a copy of the device column.
func (m *machine) predict(req *EvictRequest) (out []ids.VirtualPage) {
	saved := map[*modelPage]ids.VirtualPage{}
	for len(out) < req.Want[0] && (req.Stop == nil || len(out) == 0 || !req.Stop([]int{len(out)})) {
		v, ok := m.victim()
		if !ok {
			break
		}
		p := m.pages[m.eng[v].prefix]
		saved[p] = v
		p.dev = none
		out = append(out, v)
	}
	for p, v := range saved {
		p.dev = v
	}
	return out
}

func (m *machine) evictHost(r *rapid.T) {
	req := EvictRequest{Tier: Host, Duplicates: rapid.Bool().Draw(r, "duplicates")}
	for range m.pools {
		req.Want = append(req.Want, rapid.IntRange(0, 4).Draw(r, "want"))
	}
	var res EvictResult
	m.tree.Evict(&req, &res)
	for p := range m.pools {
		if res.Gone[p] != len(res.Freed.Host[p]) {
			r.Fatalf("pool %d: %d gone, %d freed", p, res.Gone[p], len(res.Freed.Host[p]))
		}
	}
	m.must(r, m.gone(&res.Freed, true))
}

func (m *machine) clear(r *rapid.T) {
	if rapid.IntRange(0, 9).Draw(r, "really") > 0 {
		r.Skip("not now")
	}
	var f Freed
	ns := Namespace{LoRA: Some("a")}
	prefix := fmt.Sprintf("%v|", ns)
	if rapid.Bool().Draw(r, "one") {
		m.tree.DropNamespace(ns, &f)
	} else {
		m.tree.Clear(&f)
		prefix = ""
	}
	for k := range m.pages {
		if len(k) >= len(prefix) && k[:len(prefix)] == prefix {
			delete(m.pages, k)
		}
	}
	for _, p := range m.pins { // what they pinned is an orphan now; they can still be released
		if prefix == "" || p.ns == ns {
			p.usable, p.hostFrom, p.match, p.tokens = 0, 0, nil, nil
		}
	}
	m.must(r, m.gone(&f, false))
}

// end ends everything that is open; then nothing may be left anywhere.
func (m *machine) end(r *rapid.T) {
	for len(m.loads) > 0 {
		l := m.loads[0]
		m.loads = m.loads[1:]
		m.finishLoad(r, l, true)
	}
	for len(m.backs) > 0 {
		o := m.backs[0]
		m.backs = m.backs[1:]
		m.finishBack(r, o, true)
	}
	for _, s := range m.stores {
		m.must(r, m.tree.FinishStore(s.id, 1))
	}
	m.stores = nil
	for _, p := range m.pins {
		m.tree.Release(p.pin)
	}
	m.pins = nil
	m.verify(r)
	var f Freed
	m.pages = map[string]*modelPage{}
	m.tree.Clear(&f)
	m.must(r, m.gone(&f, false))
	m.tree.DrainOrphans(&f)
	m.must(r, m.gone(&f, false))
	m.verify(r)
	if m.tree.Nodes() != 0 || len(m.eng) != 0 {
		r.Fatalf("%d nodes and %d device pages left", m.tree.Nodes(), len(m.eng))
	}
	for p := range m.pools {
		if len(m.f.live[p])+len(m.f.hlive[p]) != 0 {
			r.Fatalf("pool %d: %d device and %d host pages left", p, len(m.f.live[p]), len(m.f.hlive[p]))
		}
		if m.tree.Counts(p) != (Counts{}) {
			r.Fatalf("pool %d: %+v", p, m.tree.Counts(p))
		}
	}
}
