package proptest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
)

// TestEngine drives one engine with random calls, and with copies held, reordered, delayed and failed, against the naive model. After
// each action: Verify, every content, every pinned place, every gauge, and the answers of the capacity questions.
func TestEngine(t *testing.T) {
	needLibrary(t)
	for _, g := range geometries {
		for _, backend := range []ffi.Backend{ffi.BackendCPU, ffi.BackendNull} {
			t.Run(fmt.Sprintf("%s/%s", g.name, backendNames[backend]), func(t *testing.T) {
				seen := &engineCounters{}
				checkUntilMet(t, budget{40, 120}, func(rt *rapid.T) {
					pageTokens := rapid.SampledFrom([]uint32{1, 4, 16}).Draw(rt, "page tokens")
					m := openMachine(rt, g.options(rt, backend, pageTokens))
					defer m.close()
					defer seen.add(m)
					rt.Repeat(m.actions())
				}, func() []string { return unmet(seen.counts()) })
				t.Logf("met %v", seen.counts())
			})
		}
	}
}

var backendNames = map[ffi.Backend]string{ffi.BackendCPU: "cpu", ffi.BackendNull: "null"}

// A machine is one engine beside its model. t is the rapid run of the action under way.
type machine struct {
	t         *rapid.T
	options   *ffi.Options
	engine    *ffi.Engine
	info      []ffi.PoolInfo // Device tier.
	model     *engineModel
	sequences []*sequenceModel
	steps     map[uint64]bool // Which holders are steps.
	content   uint64          // Last content written anywhere.
}

type sequenceModel struct {
	pages  []ids.VirtualPage
	tokens uint32
}

func openMachine(t *rapid.T, o *ffi.Options) *machine {
	engine, err := ffi.Open(o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	m := &machine{t: t, options: o, engine: engine}
	var owner []int
	var deviceBytes, hostBytes []uint64
	var host []ffi.PoolInfo
	sink := uint64(0)
	for i := range o.Pools {
		device, err := engine.PoolInfo(ffi.TierDevice, uint32(i))
		m.must(err)
		h, err := engine.PoolInfo(ffi.TierHost, uint32(i))
		m.must(err)
		m.info, host = append(m.info, device), append(host, h)
		owner = append(owner, int(device.IDOwner))
		deviceBytes, hostBytes = append(deviceBytes, device.PageBytes), append(hostBytes, h.PageBytes)
		sink = max(sink, device.PageBytes)
	}
	m.model = newEngineModel(owner, newArenaModel(deviceBytes, chainOf(m.info), o.DeviceBytes, sink),
		newArenaModel(hostBytes, chainOf(host), o.HostBytes, 0))
	return m
}

func (m *machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatalf("%v", err)
	}
}

// close gives everything back first: a leak of ours is not the engine's.
func (m *machine) close() {
	if m.t.Failed() {
		return
	}
	for _, id := range sortedIDs(m.model.reservations) {
		_ = m.engine.Cancel(ffi.Reservation(id))
	}
	for _, id := range sortedIDs(m.model.holders) {
		m.endHolder(id)
	}
	if err := m.engine.Close(); err != nil {
		m.t.Errorf("close: %v", err)
	}
}

// engineCounters sum up what the runs of a test met: runs without moves, refusals or quarantine prove nothing about them.
type engineCounters struct{ total ffi.Stats }

func (s *engineCounters) add(m *machine) {
	stats, err := m.engine.Stats()
	m.must(err)
	s.total.Takes += stats.Takes
	s.total.TakesRefused += stats.TakesRefused
	s.total.Moves += stats.Moves
	s.total.MovesDuringTransfer += stats.MovesDuringTransfer
	s.total.TransfersCancelled += stats.TransfersCancelled
	s.total.HostMoves += stats.HostMoves
	s.total.Loads += stats.Loads
	s.total.BackUps += stats.BackUps
	s.total.FreesQuarantined += stats.FreesQuarantined
	s.total.TransfersFailed += stats.TransfersFailed
}

func (s *engineCounters) counts() map[string]uint64 {
	return map[string]uint64{"takes": s.total.Takes, "refusals": s.total.TakesRefused, "moves": s.total.Moves,
		"moves during a transfer": s.total.MovesDuringTransfer, "moves on the host": s.total.HostMoves, "transfers cancelled": s.total.TransfersCancelled, "loads": s.total.Loads, "back-ups": s.total.BackUps,
		"quarantined pages": s.total.FreesQuarantined, "failed transfers": s.total.TransfersFailed}
}

func sortedIDs[V any](held map[uint64]V) []uint64 { return slices.Sorted(maps.Keys(held)) }

// actions are what a server can do, and what copies can do meanwhile.
func (m *machine) actions() map[string]func(*rapid.T) {
	actions := map[string]func(*machine){
		"alloc": (*machine).alloc, "window": (*machine).window, "free": (*machine).free, "tombstone": (*machine).tombstone,
		"extend": (*machine).extend, "free sequence": (*machine).freeSequence,
		"reserve": (*machine).reserve, "cancel": (*machine).cancel, "load": (*machine).load, "back up": (*machine).backUp,
		"run copies": (*machine).runCopies, "run layers": (*machine).runLayers, "poll": (*machine).poll, "fail next": (*machine).failNext,
		"cancel transfer": (*machine).cancelTransfer,
		"lease":           (*machine).lease, "step": (*machine).step, "end holder": (*machine).releaseHolder,
		"reserve again": (*machine).reserve, "load again": (*machine).load, "write again": (*machine).write, "poll again": (*machine).poll,
		"alloc again": (*machine).alloc, "host take": (*machine).hostTake, "host free": (*machine).hostFree,
		"write": (*machine).write, "compact": (*machine).compact, "set compaction": (*machine).setCompaction, "resize": (*machine).resize,
		"plan": (*machine).plan, "misuse": (*machine).misuse,
		"": (*machine).checkAll,
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

// drawDemand draws pages of every pool; a window pool gets at most as many as its owner.
func (m *machine) drawDemand() []int {
	demand := make([]int, len(m.info))
	for pool, owner := range m.model.owner {
		if owner == pool {
			demand[pool] = rapid.IntRange(0, 4).Draw(m.t, fmt.Sprintf("pages of pool %d", pool))
		}
	}
	for pool, owner := range m.model.owner {
		if owner != pool {
			demand[pool] = rapid.IntRange(0, demand[owner]).Draw(m.t, fmt.Sprintf("windows of pool %d", pool))
		}
	}
	return demand
}

func (m *machine) takes(demand []int) []ffi.Take {
	var takes []ffi.Take
	for pool, n := range demand {
		take := ffi.Take{Pool: uint32(pool), Count: uint32(n)}
		if m.model.owner[pool] == pool {
			take.Pages = make([]ids.VirtualPage, n)
		}
		takes = append(takes, take)
	}
	return takes
}

// expect compares the outcome of a take with the model: it succeeds exactly when the formula says so, and the refusal is named rightly. With
// moves off the model cannot know which demands need one, but the engine's own predicate must.
func (m *machine) expect(op string, demand []int, before ffi.Status, err error) bool {
	m.t.Helper()
	got := statusOf(m.t, err)
	if got != before {
		m.t.Fatalf("%s of %v: %v, but fits had said %v", op, demand, got, before)
	}
	fits, packed := m.model.device.fits(demand, false), m.model.device.fits(demand, true)
	switch {
	case got == ffi.StatusOK && !fits:
		m.t.Fatalf("%s of %v was granted and cannot fit", op, demand)
	case got == ffi.StatusNoCapacity && packed:
		m.t.Fatalf("%s of %v: NO_CAPACITY, but it fits once packed: %v", op, demand, err)
	case got == ffi.StatusMovesBlocked && !packed:
		m.t.Fatalf("%s of %v: MOVES_BLOCKED, but it would not fit packed: %v", op, demand, err)
	case got == ffi.StatusMovesBlocked && fits && m.options.Compaction != ffi.CompactionOff:
		m.t.Fatalf("%s of %v was refused and fits: %v", op, demand, err)
	}
	return got == ffi.StatusOK
}

func statusOf(t *rapid.T, err error) ffi.Status {
	var e *ffi.Error
	switch {
	case err == nil:
		return ffi.StatusOK
	case !errors.As(err, &e):
		t.Fatalf("not an *ffi.Error: %v", err)
	}
	return e.Status
}

func demandsOf(demand []int) []ffi.Demand {
	var demands []ffi.Demand
	for pool, n := range demand {
		demands = append(demands, ffi.Demand{Pool: uint32(pool), PageCount: uint32(n)})
	}
	return demands
}

// bindTaken records the pages of a take: the owners' new ids, and for window pools the last of them.
func (m *machine) bindTaken(demand []int, takes []ffi.Take) {
	for pool, owner := range m.model.owner {
		pages := takes[owner].Pages
		for _, page := range pages[len(pages)-demand[pool]:] {
			name := pageName{pool, uint32(page)}
			if owner == pool {
				if m.model.ids[name] {
					m.t.Fatalf("virtual page %d of pool %d was handed out twice", page, pool)
				}
				m.model.ids[name] = true
			}
			zeroed := m.options.Pools[pool].Role != ffi.RoleState
			m.model.device.bind(name, 0, zeroed)
		}
	}
}

func (m *machine) alloc() {
	demand := m.drawDemand()
	takes := m.takes(demand)
	before := m.engine.FitsStatus(demandsOf(demand))
	if m.expect("alloc", demand, before, m.engine.Alloc(takes)) {
		m.bindTaken(demand, takes)
	}
}

// window gives window pages to allocated pages that have none.
func (m *machine) window() {
	pool := m.drawPool("window pool", func(pool int) bool { return m.model.owner[pool] != pool })
	if pool < 0 {
		return
	}
	owner := m.model.owner[pool]
	bare := m.model.device.names(owner, nil)
	bare = slices.DeleteFunc(bare, func(name pageName) bool { return m.model.device.live[pageName{pool, name.id}] != nil })
	chosen := m.subset(bare, 3)
	demand := make([]int, len(m.info))
	demand[pool] = len(chosen)
	before := m.engine.FitsStatus(demandsOf(demand))
	if m.expect("window", demand, before, m.engine.Alloc([]ffi.Take{{Pool: uint32(pool), Pages: virtual(chosen)}})) {
		for _, name := range chosen {
			m.model.device.bind(pageName{pool, name.id}, 0, true)
		}
	}
}

// drawPool draws a pool that satisfies the condition, or -1.
func (m *machine) drawPool(label string, wanted func(int) bool) int {
	var pools []int
	for pool := range m.info {
		if wanted == nil || wanted(pool) {
			pools = append(pools, pool)
		}
	}
	if len(pools) == 0 {
		return -1
	}
	return rapid.SampledFrom(pools).Draw(m.t, label)
}

// subset draws up to most of the names, in a random order.
func (m *machine) subset(names []pageName, most int) []pageName {
	if len(names) == 0 {
		return nil
	}
	n := rapid.IntRange(0, min(most, len(names))).Draw(m.t, "count")
	return rapid.Permutation(names).Draw(m.t, "order")[:n]
}

func virtual(names []pageName) []ids.VirtualPage {
	pages := make([]ids.VirtualPage, len(names))
	for i, name := range names {
		pages[i] = ids.VirtualPage(name.id)
	}
	return pages
}

func (m *machine) free() { m.freeIn(func(pool int) bool { return m.model.owner[pool] == pool }) }

func (m *machine) tombstone() { m.freeIn(func(pool int) bool { return m.model.owner[pool] != pool }) }

func (m *machine) freeIn(wanted func(int) bool) {
	pool := m.drawPool("pool", wanted)
	if pool < 0 {
		return
	}
	chosen := m.subset(m.model.device.names(pool, nil), 4)
	m.must(m.engine.Free([]ffi.Pages{{Pool: uint32(pool), Pages: virtual(chosen)}}))
	m.dropped(chosen)
}

// dropped records freed pages; sequences that had one are no more.
func (m *machine) dropped(names []pageName) {
	for _, name := range names {
		m.model.free(name)
		m.sequences = slices.DeleteFunc(m.sequences, func(s *sequenceModel) bool {
			return m.options.Pools[name.pool].Role != ffi.RoleState && slices.Contains(s.pages, ids.VirtualPage(name.id))
		})
	}
}

// extend grows one or two sequences: the tail page first, then new pages with window pages for those that meet the tail.
func (m *machine) extend() {
	pageTokens := m.options.Pools[0].PageTokens
	if len(m.sequences) == 0 || len(m.sequences) < 3 && rapid.Bool().Draw(m.t, "new sequence") {
		m.sequences = append(m.sequences, &sequenceModel{})
	}
	chosen := rapid.Permutation(m.sequences).Draw(m.t, "sequences")[:rapid.IntRange(1, min(2, len(m.sequences))).Draw(m.t, "batch")]
	batch := make([]ffi.Sequence, len(chosen))
	demand := make([]int, len(m.info))
	firstWindow := make([]uint32, len(chosen)) // First page index that gets window pages.
	for i, s := range chosen {
		n := rapid.Uint32Range(0, 3*pageTokens).Draw(m.t, "tokens")
		tail := rapid.SampledFrom([]uint32{ids.None, 0, 1, pageTokens}).Draw(m.t, "window tail")
		old, now := pagesFor(s.tokens, pageTokens), pagesFor(s.tokens+n, pageTokens)
		batch[i] = ffi.Sequence{Pages: slices.Grow(slices.Clone(s.pages), int(now-old)), Tokens: s.tokens, NewTokens: n, WindowTailTokens: tail}
		firstWindow[i] = old
		if tail != ids.None {
			firstWindow[i] = max(old, (s.tokens+n-min(tail, s.tokens+n))/pageTokens)
		}
		if tail == 0 {
			firstWindow[i] = now
		}
		for _, pool := range m.model.group(0) {
			demand[pool] += int(now - old)
			if pool != 0 {
				demand[pool] -= int(min(firstWindow[i], now) - old)
			}
		}
	}
	before := m.engine.FitsStatus(demandsOf(demand))
	if !m.expect("extend", demand, before, m.engine.Extend(0, batch)) {
		return
	}
	for i, s := range chosen {
		m.extended(s, &batch[i], firstWindow[i])
	}
}

func pagesFor(tokens, pageTokens uint32) uint32 { return (tokens + pageTokens - 1) / pageTokens }

func (m *machine) extended(s *sequenceModel, got *ffi.Sequence, firstWindow uint32) {
	old := len(s.pages)
	if !slices.Equal(got.Pages[:old], s.pages) || got.Tokens != s.tokens+got.NewTokens {
		m.t.Fatalf("extend of %v by %d tokens gave %v, %d tokens", s.pages, got.NewTokens, got.Pages, got.Tokens)
	}
	if want := pagesFor(got.Tokens, m.options.Pools[0].PageTokens); uint32(len(got.Pages)) != want {
		m.t.Fatalf("%d tokens in %d pages, want %d", got.Tokens, len(got.Pages), want)
	}
	s.pages, s.tokens = slices.Clone(got.Pages), got.Tokens
	for i := old; i < len(s.pages); i++ {
		id := uint32(s.pages[i])
		if m.model.ids[pageName{0, id}] {
			m.t.Fatalf("extend handed out virtual page %d twice", id)
		}
		m.model.ids[pageName{0, id}] = true
		for _, pool := range m.model.group(0) {
			if pool == 0 || uint32(i) >= firstWindow {
				m.model.device.bind(pageName{pool, id}, 0, true)
			}
		}
	}
}

func (m *machine) freeSequence() {
	if len(m.sequences) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.sequences)-1).Draw(m.t, "sequence")
	s := m.sequences[i]
	m.must(m.engine.Free([]ffi.Pages{{Pool: 0, Pages: s.pages}}))
	m.sequences = slices.Delete(m.sequences, i, i+1)
	for _, page := range s.pages {
		m.model.free(pageName{0, uint32(page)})
	}
}
