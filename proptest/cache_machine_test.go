package proptest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hicache/hicache/ffi/ids"
	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/storage"
)

// TestCache drives one cache with random requests, several open at once, over an arena far too small for them, with copies held,
// reordered, delayed and failed, against the naive model. Every reused page is read before use, and Verify runs after each action.
func TestCache(t *testing.T) {
	needLibrary(t)
	for _, g := range cacheGeometries {
		for _, tier := range []string{"two tiers", "three tiers", "no host"} {
			t.Run(g.name+"/"+tier, func(t *testing.T) {
				seen := &cacheCounters{}
				checkUntilMet(t, budget{40, 80}, func(rt *rapid.T) {
					o := g.options(rt)
					if tier != "two tiers" {
						o.Storage = newMemoryStore(rapid.IntRange(0, 3).Draw(rt, "storage faults"))
					}
					if tier == "no host" {
						o.HostBytes = 0
						o.WritePolicy = hicache.WriteThrough
					}
					m := openCacheMachine(rt, o)
					defer m.close()
					defer seen.add(m)
					rt.Repeat(m.actions())
				}, func() []string { return unmet(seen.counts(tier)) })
				t.Logf("met %v", seen.counts(tier))
			})
		}
	}
}

type cacheGeometry struct {
	name  string
	pools []hicache.PoolOptions
	pages int
}

var cacheGeometries = []cacheGeometry{
	{"full", []hicache.PoolOptions{{Role: hicache.Full, Layers: []int{0, 1}, LayerBytes: 32}}, 12},
	{"full and window", []hicache.PoolOptions{{Role: hicache.Full, Layers: []int{2}, LayerBytes: 32},
		{Role: hicache.SWA, Layers: []int{0, 1}, LayerBytes: 32, WindowTokens: 6}}, 12},
	{"full, window and state", []hicache.PoolOptions{{Role: hicache.Full, Layers: []int{2}, LayerBytes: 32},
		{Role: hicache.SWA, Layers: []int{0, 1}, LayerBytes: 32, WindowTokens: 6}, {Role: hicache.State, Layers: []int{3}, KRowBytes: 96, VRowBytes: 32}}, 12},
}

const cachePageTokens = 4

// options draws a cache whose device holds about twelve pages of each pool and whose host about eight.
func (g *cacheGeometry) options(t *rapid.T) *hicache.Options {
	o := &hicache.Options{
		Device: hicache.CPU, PageTokens: cachePageTokens, Pools: slices.Clone(g.pools), Sabotage: uint32(sabotage()),
		WritePolicy: rapid.SampledFrom([]hicache.WritePolicy{hicache.WriteThrough, hicache.WriteThroughSelective, hicache.WriteBack}).Draw(t, "policy"),
		Eviction:    rapid.SampledFrom([]string{"lru", "lfu", "fifo", "slru"}).Draw(t, "eviction"),
		WholeLeaf:   rapid.Bool().Draw(t, "whole leaf"),
		Compaction:  rapid.SampledFrom([]hicache.Compaction{hicache.CompactionLazy, hicache.CompactionEager, hicache.CompactionOff}).Draw(t, "compaction"),
		Faults: &hicache.FaultOptions{Seed: rapid.Uint64().Draw(t, "seed"), Hold: rapid.Bool().Draw(t, "hold"),
			FailPPM: rapid.SampledFrom([]uint32{0, 0, 150_000}).Draw(t, "failures"), DelayMax: 1000},
	}
	for _, p := range g.pools {
		rows := p.LayerBytes + p.KRowBytes + p.VRowBytes
		bytes := uint64(len(p.Layers)) * rows
		if p.Role != hicache.State {
			bytes *= cachePageTokens
		}
		o.DeviceBytes += uint64(g.pages) * bytes
		o.HostBytes += uint64(g.pages) * bytes * 2 / 3
	}
	return o
}

// A cacheMachine is one cache beside its model.
type cacheMachine struct {
	t        *rapid.T
	cache    *hicache.Cache
	options  *hicache.Options
	model    *cacheModel
	open     []*request
	history  [][]uint32 // Tokens of earlier requests: prefixes to share.
	holding  bool
	requests uint64
	clears   map[string]int // By namespace.
}

// A request is a lease between load and release.
type request struct {
	space  string
	tokens []uint32
	lease  *hicache.Lease
	number uint64              // No two requests have the same.
	reused map[pageSlot]uint64 // What the cache supplied.
	clears int                 // Of the namespace before it began.
}

type pageSlot struct{ pool, end int }

func openCacheMachine(t *rapid.T, o *hicache.Options) *cacheMachine {
	cache, err := hicache.Open(context.Background(), o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return &cacheMachine{t: t, cache: cache, options: o, model: newCacheModel(o.Storage != nil), holding: o.Faults.Hold, clears: map[string]int{}}
}

func (m *cacheMachine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatalf("%v", err)
	}
}

func (m *cacheMachine) close() {
	if m.t.Failed() {
		return // What is held now is no leak.
	}
	for _, r := range m.open {
		r.lease.Release()
	}
	m.must(m.cache.HoldTransfers(false, 0))
	m.must(m.cache.Close())
	m.must(m.cache.Close())
}

func (m *cacheMachine) actions() map[string]func(*rapid.T) {
	actions := map[string]func(*cacheMachine){
		"request": (*cacheMachine).request, "another request": (*cacheMachine).request, "whole request": (*cacheMachine).wholeRequest,
		"whole request again": (*cacheMachine).wholeRequest, "one more whole request": (*cacheMachine).wholeRequest,
		"finish": (*cacheMachine).finish, "finish another": (*cacheMachine).finish, "abandon": (*cacheMachine).abandon, "look up": (*cacheMachine).lookUp,
		"drive": (*cacheMachine).drive, "drive all": (*cacheMachine).driveAll, "hold": (*cacheMachine).hold, "fail next": (*cacheMachine).failNext,
		"compact": (*cacheMachine).compact, "clear": (*cacheMachine).clear, "drop namespace": (*cacheMachine).dropNamespace,
		"": (*cacheMachine).checkAll,
	}
	wrapped := map[string]func(*rapid.T){}
	for name, action := range actions {
		wrapped[name] = func(t *rapid.T) {
			m.t = t
			action(m)
		}
	}
	return wrapped
}

var spaces = map[string]hicache.Namespace{"": {}, "a": hicache.Salt("a"), "lora b": hicache.Namespace{}.WithLoRA("b")}

func (m *cacheMachine) drawTokens() (string, []uint32) {
	space := rapid.SampledFrom([]string{"", "", "a", "lora b"}).Draw(m.t, "namespace")
	var tokens []uint32
	if len(m.history) > 0 && rapid.IntRange(0, 3).Draw(m.t, "share") > 0 {
		base := rapid.SampledFrom(m.history).Draw(m.t, "base")
		tokens = append(tokens, base[:rapid.IntRange(0, len(base)).Draw(m.t, "cut")]...)
	}
	tail := rapid.SliceOfN(rapid.Uint32Range(1, 2), 1, 3*cachePageTokens).Draw(m.t, "tail")
	tokens = append(tokens, tail...)
	if len(tokens) > 6*cachePageTokens {
		tokens = tokens[:6*cachePageTokens]
	}
	return space, tokens
}

// request matches, loads, reads every reused page, and writes the pages of the new tokens.
func (m *cacheMachine) request() {
	space, tokens := m.drawTokens()
	match := m.cache.MatchIn(spaces[space], tokens)
	defer match.Release()
	m.must(match.Err())
	m.checkHit(space, tokens, match.Tokens(), false)
	lease, err := m.load(match)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, hicache.ErrNoCapacity) && len(m.open) == 0 {
		// Back-ups and stores in flight hold pages. When they have ended, nothing stands in the way of one request.
		m.settle()
		lease, err = m.cache.Load(context.Background(), match, hicache.LoadOptions{})
		if err != nil && (len(m.open) == 0 || !errors.Is(err, hicache.ErrNoCapacity)) {
			m.t.Fatalf("a request of %d tokens, with %d others open and no copy in flight: %v", len(tokens), len(m.open), err)
		}
		m.must(m.cache.HoldTransfers(m.holding, 0))
	}
	if errors.Is(err, hicache.ErrNoCapacity) {
		return
	}
	m.must(err)
	m.history = append(m.history, tokens)
	m.requests++
	r := &request{space: space, tokens: tokens, lease: lease, number: m.requests, reused: map[pageSlot]uint64{}, clears: m.clears[space]}
	if m.holding {
		m.must(m.cache.HoldTransfers(false, 0))
		m.driveAll()
	}
	err = lease.Wait(context.Background())
	if m.holding {
		m.must(m.cache.HoldTransfers(true, 0))
	}
	if err != nil {
		if !errors.Is(err, hicache.ErrTransfer) {
			m.t.Fatalf("load: %v", err)
		}
		if err := m.cache.Insert(lease, tokens); !errors.Is(err, hicache.ErrTransfer) {
			m.t.Fatalf("insert of a failed load: %v, want ErrTransfer", err)
		}
		lease.Release()
		return
	}
	m.checkHit(space, tokens, lease.Prefix(), m.options.Storage != nil)
	m.readReused(r)
	m.writeNew(r)
	m.open = append(m.open, r)
}

// checkHit: a hit is whole pages, leaves a token to compute, and every page of it was published by somebody. What storage gives can be more
// than the tree holds, and is held to the same.
func (m *cacheMachine) checkHit(space string, tokens []uint32, hit int, _ bool) {
	m.t.Helper()
	if hit%cachePageTokens != 0 || hit >= len(tokens) && hit > 0 {
		m.t.Fatalf("hit of %d of %d tokens", hit, len(tokens))
	}
	if longest := m.model.longest(space, tokens); hit > longest {
		elsewhere := map[string]int{}
		for other := range spaces {
			elsewhere[other] = m.model.longest(other, tokens)
		}
		m.t.Fatalf("hit of %d tokens of %v in %q, and only %d were ever published (%v)", hit, tokens, space, longest, elsewhere)
	}
}

// kernelPages gives a pool's kernel ids of a lease; nil where the pool is a State pool without a page.
func (m *cacheMachine) kernelPages(r *request, pool int) []ids.KernelID {
	kernelIDs := r.lease.PoolKernelIDs(pool)
	want := pagesFor(uint32(len(r.tokens)), cachePageTokens)
	if m.options.Pools[pool].Role == hicache.State {
		want = 1
	}
	if uint32(len(kernelIDs)) != want {
		m.t.Fatalf("pool %d: %d kernel ids for %d tokens", pool, len(kernelIDs), len(r.tokens))
	}
	return kernelIDs
}

// readReused reads every page of the prefix in every pool: FULL all, the last window of a window pool, the state at its end.
func (m *cacheMachine) readReused(r *request) {
	prefix := r.lease.Prefix()
	for pool := range m.options.Pools {
		kernelIDs := m.kernelPages(r, pool)
		p := &m.options.Pools[pool]
		if p.Role == hicache.State {
			if source, ok := r.lease.StateSource(pool); ok {
				m.readPage(r, pool, source, prefix)
			} else if prefix > 0 {
				m.t.Fatalf("a prefix of %d tokens without its state", prefix)
			}
			continue
		}
		for page := range prefix / cachePageTokens {
			end := (page + 1) * cachePageTokens
			if m.cache.IsSink(pool, kernelIDs[page]) {
				if p.Role == hicache.Full || end > prefix-p.WindowTokens {
					m.t.Fatalf("pool %d: page %d of a prefix of %d tokens is the sink", pool, page, prefix)
				}
				continue
			}
			m.readPage(r, pool, kernelIDs[page], end)
		}
	}
}

// readPage: what the page that ends a prefix holds must be what somebody published under that prefix, and must not change while the lease lives.
func (m *cacheMachine) readPage(r *request, pool int, id ids.KernelID, end int) {
	m.t.Helper()
	content, whole := readContent(m.cache.PageBytes(pool, id))
	before, again := r.reused[pageSlot{pool, end}]
	valid := again && content == before || !again && m.model.published(pool, r.space, r.tokens[:end])[content]
	if !whole || !valid {
		m.t.Fatalf("pool %d, prefix of %d tokens in %q: the page at %d holds %#x (whole: %v); before %#x (%v), published were %v", pool, end, r.space,
			m.cache.PhysicalPage(pool, id), content, whole, before, again, m.model.published(pool, r.space, r.tokens[:end]))
	}
	r.reused[pageSlot{pool, end}] = content
}

// content is what a request writes for a page: no two requests write the same.
func (r *request) content(pool, end int) uint64 {
	return (r.number<<16 | uint64(pool)<<12 | uint64(end)) * 0xd1342543de82ef95
}

func (m *cacheMachine) writeNew(r *request) {
	for pool := range m.options.Pools {
		kernelIDs := m.kernelPages(r, pool)
		if m.options.Pools[pool].Role == hicache.State {
			boundary := len(r.tokens) / cachePageTokens * cachePageTokens
			writeContent(m.cache.PageBytes(pool, kernelIDs[0]), r.content(pool, boundary))
			if boundary > r.lease.Prefix() {
				r.lease.SetCheckpoint(boundary)
			}
			continue
		}
		for page := r.lease.Prefix() / cachePageTokens; page < len(kernelIDs); page++ {
			if m.cache.IsSink(pool, kernelIDs[page]) {
				m.t.Fatalf("pool %d: new page %d has no place", pool, page)
			}
			writeContent(m.cache.PageBytes(pool, kernelIDs[page]), r.content(pool, (page+1)*cachePageTokens))
		}
	}
}

// wholeRequest is what most requests are: nothing of another happens in between.
func (m *cacheMachine) wholeRequest() {
	m.request()
	m.finish()
}

// rarely is true once in a while: what empties the cache must not happen all the time.
func (m *cacheMachine) rarely() bool { return rapid.IntRange(0, 7).Draw(m.t, "rarely") == 7 }

func (m *cacheMachine) drawOpen() *request {
	if len(m.open) == 0 {
		return nil
	}
	i := rapid.IntRange(0, len(m.open)-1).Draw(m.t, "request")
	r := m.open[i]
	m.open = slices.Delete(m.open, i, i+1)
	return r
}

// finish publishes a request's pages and releases it. What was there before it began is read once more: it must not have changed.
func (m *cacheMachine) finish() {
	r := m.drawOpen()
	if r == nil {
		return
	}
	m.readReused(r)
	m.model.publish(m.options, r)
	defer r.lease.Release()
	defer r.lease.Release()
	until := []int{len(r.tokens)}
	if rapid.Bool().Draw(m.t, "in chunks") && m.options.Pools[len(m.options.Pools)-1].Role != hicache.State {
		until = []int{max(r.lease.Prefix(), len(r.tokens)/2), len(r.tokens)}
	}
	for _, n := range until {
		err := m.cache.Insert(r.lease, r.tokens[:n])
		if errors.Is(err, hicache.ErrTransfer) && m.clears[r.space] != r.clears {
			return // What its prefix stood on was forgotten.
		}
		m.must(err)
	}
}

func (m *cacheMachine) abandon() {
	if r := m.drawOpen(); r != nil {
		r.lease.Release()
	}
}

// lookUp matches without loading.
func (m *cacheMachine) lookUp() {
	space, tokens := m.drawTokens()
	match := m.cache.MatchIn(spaces[space], tokens)
	m.checkHit(space, tokens, match.Tokens(), false)
	if match.Ready() > match.Tokens() {
		m.t.Fatalf("%d tokens are ready of %d usable", match.Ready(), match.Tokens())
	}
	match.Release()
	match.Release()
}

func (m *cacheMachine) drive() {
	_, err := m.cache.Drive(rapid.IntRange(1, 3).Draw(m.t, "copies"), rapid.Bool().Draw(m.t, "layers"))
	m.must(err)
}

func (m *cacheMachine) driveAll() {
	_, err := m.cache.Drive(1<<20, false)
	m.must(err)
}

// load gives up soon if copies are held: what it waits for would never come.
func (m *cacheMachine) load(match *hicache.Match) (*hicache.Lease, error) {
	ctx := context.Background()
	if m.holding && m.options.HostBytes == 0 { // What storage gives goes through a copy that the load waits for whatever its context says.
		m.settle()
		defer func() { m.must(m.cache.HoldTransfers(true, 0)) }()
	} else if m.holding {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
	}
	return m.cache.Load(ctx, match, hicache.LoadOptions{})
}

// settle lets every copy and store end, and holds no more.
func (m *cacheMachine) settle() {
	m.must(m.cache.HoldTransfers(false, 0))
	m.driveAll()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	m.must(m.cache.Flush(ctx))
	m.driveAll()
}

func (m *cacheMachine) hold() {
	m.holding = rapid.Bool().Draw(m.t, "on")
	m.must(m.cache.HoldTransfers(m.holding, 0))
	if !m.holding {
		m.driveAll() // What was held stays so until then.
	}
}

func (m *cacheMachine) failNext() { m.must(m.cache.HoldTransfers(m.holding, 1)) }

func (m *cacheMachine) compact() {
	budget := hicache.CompactBudget{Pages: rapid.IntRange(0, 3).Draw(m.t, "pages")}
	if m.options.HostBytes > 0 && rapid.Bool().Draw(m.t, "host") {
		budget.Tier = hicache.TierHost
	}
	if _, err := m.cache.Compact(budget); err != nil && m.options.Compaction != hicache.CompactionOff {
		m.t.Fatalf("compact: %v", err)
	}
}

func (m *cacheMachine) clear() {
	if !m.rarely() {
		return
	}
	m.must(m.cache.Clear())
	for space := range spaces {
		m.forget(space)
	}
}

func (m *cacheMachine) dropNamespace() {
	if !m.rarely() {
		return
	}
	space := rapid.SampledFrom([]string{"a", "lora b"}).Draw(m.t, "namespace")
	m.must(m.cache.DropNamespace(spaces[space]))
	m.forget(space)
}

func (m *cacheMachine) forget(space string) {
	m.model.forget(space)
	m.clears[space]++
}

func (m *cacheMachine) checkAll() {
	if err := m.cache.Verify(); err != nil {
		m.t.Fatalf("verify: %v", err)
	}
}

// TestCacheKeepsWhatFits: in an arena that holds everything, a lookup finds exactly the longest prefix that was published.
func TestCacheKeepsWhatFits(t *testing.T) {
	needLibrary(t)
	for _, g := range cacheGeometries[:2] {
		t.Run(g.name, func(t *testing.T) {
			check(t, budget{60, 1}, func(rt *rapid.T) {
				ample := g
				ample.pages = 400
				o := ample.options(rt)
				o.Faults.FailPPM, o.Faults.Hold = 0, false
				m := openCacheMachine(rt, o)
				defer m.close()
				for range rapid.IntRange(1, 12).Draw(rt, "requests") {
					m.request()
					m.finish()
					space, tokens := m.drawTokens()
					match := m.cache.MatchWith(tokens, hicache.MatchOptions{Namespace: spaces[space], FullHit: true})
					if got, want := match.Tokens(), m.model.longest(space, tokens); got != want {
						rt.Fatalf("hit of %d tokens, %d were published and all fits", got, want)
					}
					match.Release()
				}
			})
		})
	}
}

// cacheCounters sum up what the runs of a test met: a run that never evicted, loaded or moved anything proves nothing about it.
type cacheCounters struct{ total hicache.Stats }

func (s *cacheCounters) add(m *cacheMachine) {
	stats := m.cache.Stats()
	s.total.LoadBacks += stats.LoadBacks
	s.total.BackUps += stats.BackUps
	s.total.Prefetches += stats.Prefetches
	s.total.Moves += stats.Moves
	s.total.TransfersFailed += stats.TransfersFailed
	s.total.Evicted.Device += stats.Evicted.Device
	s.total.Evicted.Host += stats.Evicted.Host
	s.total.HitTokens.Device += stats.HitTokens.Device
	if stats.InternalErrors != 0 {
		m.t.Errorf("the cache survived %d internal errors", stats.InternalErrors)
	}
}

func (s *cacheCounters) counts(tier string) map[string]uint64 {
	met := map[string]uint64{"evictions of the device": s.total.Evicted.Device, "hits on the device": s.total.HitTokens.Device}
	if tier != "no host" {
		met["load-backs"], met["back-ups"] = s.total.LoadBacks, s.total.BackUps
		met["evictions of the host"], met["failed transfers"] = s.total.Evicted.Host, s.total.TransfersFailed
	}
	if tier != "two tiers" {
		met["prefetches"] = s.total.Prefetches
	}
	return met
}

var _ storage.Store = (*memoryStore)(nil)

func (m *cacheMachine) String() string {
	return fmt.Sprintf("%d requests, %d open", m.requests, len(m.open))
}
