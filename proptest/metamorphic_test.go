package proptest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
)

// TestOptionsChangeSpeedNotAnswers runs the same operations under every compaction mode, placement, backend, page size and completion order:
// what is granted, which virtual pages it is, and what every page holds must be the same.
func TestOptionsChangeSpeedNotAnswers(t *testing.T) {
	needLibrary(t)
	for _, g := range geometries {
		t.Run(g.name, func(t *testing.T) {
			check(t, budget{12, 0}, func(rt *rapid.T) {
				operations := rapid.SliceOfN(rapid.Custom(drawOperation), 10, 80).Draw(rt, "operations")
				var first *answers
				for _, v := range variants() {
					got := run(rt, &g, v, operations)
					if first == nil {
						first = got
						continue
					}
					if diff := cmp.Diff(first.log, got.log); diff != "" {
						rt.Fatalf("%s differs from %s (-first +second):\n%s", got.variant, first.variant, diff)
					}
				}
			})
		})
	}
}

// TestStaticPoolsAnswerAlike: pools with memory of their own give the same pages and contents as pools that share an arena, where both have
// room, and no byte of theirs moves.
func TestStaticPoolsAnswerAlike(t *testing.T) {
	needLibrary(t)
	for _, g := range geometries {
		t.Run(g.name, func(t *testing.T) {
			check(t, budget{12, 0}, func(rt *rapid.T) {
				operations := rapid.SliceOfN(rapid.Custom(drawOperation), 10, 80).Draw(rt, "operations")
				for _, backend := range []ffi.Backend{ffi.BackendCPU, ffi.BackendNull} {
					v := variant{backend: backend, pageTokens: 4, ample: true}
					shared := run(rt, &g, v, operations)
					v.static = true
					static := run(rt, &g, v, operations)
					if diff := cmp.Diff(shared.log, static.log); diff != "" {
						rt.Fatalf("static pools differ (-shared +static):\n%s", diff)
					}
					if static.moves != 0 {
						rt.Fatalf("%d pages of static pools moved", static.moves)
					}
				}
			})
		})
	}
}

// TestHostLayoutsAnswerAlike: the order of a pool's pages in host memory changes neither what is granted nor a byte that comes back, where each
// region has room.
func TestHostLayoutsAnswerAlike(t *testing.T) {
	needLibrary(t)
	for _, g := range geometries {
		t.Run(g.name, func(t *testing.T) {
			check(t, budget{8, 0}, func(rt *rapid.T) {
				operations := rapid.SliceOfN(rapid.Custom(drawOperation), 10, 80).Draw(rt, "operations")
				for i, backend := range []ffi.Backend{ffi.BackendCPU, ffi.BackendCPU, ffi.BackendNull} {
					v := variant{backend: backend, pageTokens: 4, layout: ffi.EnvelopeLayout(i % 2), ample: true}
					envelopes := run(rt, &g, v, operations)
					for v.host = ffi.HostLayoutLayerFirst; v.host <= ffi.HostLayoutPageHead; v.host++ {
						if diff := cmp.Diff(envelopes.log, run(rt, &g, v, operations).log); diff != "" {
							rt.Fatalf("%s differs (-envelopes +layout):\n%s", v, diff)
						}
					}
				}
			})
		})
	}
}

const amplePages = 400 // 80 operations take 4 pages of a pool each at most.

// An operation is drawn once and means the same in every variant: what it picks depends on logical state alone.
type operation struct {
	Verb       string
	Pool, A, B int
}

var verbs = []string{"take", "take", "take", "window", "free", "free", "tombstone", "back up", "load", "load", "lease", "step", "let go", "copies", "compact", "write", "write"}

func drawOperation(t *rapid.T) operation {
	return operation{rapid.SampledFrom(verbs).Draw(t, "verb"), rapid.IntRange(0, 15).Draw(t, "pool"), rapid.IntRange(0, 1000).Draw(t, "a"),
		rapid.IntRange(0, 1000).Draw(t, "b")}
}

type variant struct {
	compaction ffi.Compaction
	placement  ffi.Placement
	backend    ffi.Backend
	pageTokens uint32
	layout     ffi.EnvelopeLayout
	seed       uint64
	ample      bool // Room for everything that the operations can ask for.
	host       ffi.HostLayout
	static     bool // Every pool has memory of its own, and nothing moves.
}

func (v variant) String() string {
	return fmt.Sprintf("compaction %d, placement %d, %s, %d tokens a page, layout %d, host layout %d, seed %d, static %v", v.compaction, v.placement, backendNames[v.backend], v.pageTokens,
		v.layout, v.host, v.seed, v.static)
}

func variants() []variant {
	var all []variant
	for _, compaction := range []ffi.Compaction{ffi.CompactionLazy, ffi.CompactionEager, ffi.CompactionOff} {
		for _, backend := range []ffi.Backend{ffi.BackendCPU, ffi.BackendNull} {
			for i, pageTokens := range []uint32{1, 4, 16, 64} {
				n := len(all)
				all = append(all, variant{compaction: compaction, placement: ffi.Placement(n % 2), backend: backend, pageTokens: pageTokens,
					layout: ffi.EnvelopeLayout(i % 2), seed: uint64(n)})
			}
		}
	}
	return all
}

// answers is one variant under way: the engine, the logical state, and the log that must be the same everywhere.
type answers struct {
	t       *rapid.T
	variant variant
	engine  *ffi.Engine
	info    []ffi.PoolInfo
	owner   []int
	live    [][]uint32          // By pool, virtual pages in the order of their taking.
	content map[pageName]uint64 // 0: zeroed or unknown.
	saved   [][]savedPage       // By pool, host pages with what they hold.
	holders []uint64
	steps   map[uint64]bool
	writes  uint64
	moves   uint64
	log     []string
}

type savedPage struct {
	page    ids.HostPage
	content uint64
}

func run(t *rapid.T, g *geometry, v variant, operations []operation) *answers {
	o := g.fixed(v.backend, v.pageTokens)
	// The sink is a page of the largest pool; a state page does not grow with the page size, so its rows do.
	for i := range o.Pools {
		if o.Pools[i].Role == ffi.RoleState {
			scale := uint64(v.pageTokens)
			o.DeviceBytes += uint64(g.pages) * 144 * (scale - 1) * uint64(len(o.Pools[i].LayerIDs))
			o.HostBytes += uint64(g.pages) * 72 * (scale - 1) * uint64(len(o.Pools[i].LayerIDs))
			o.Pools[i].KRowBytes, o.Pools[i].VRowBytes = o.Pools[i].KRowBytes*scale, o.Pools[i].VRowBytes*scale
		}
		o.Pools[i].EnvelopeLayout, o.Pools[i].HostLayout = v.layout, v.host
	}
	if v.ample {
		o.DeviceBytes *= amplePages
		o.HostBytes *= amplePages
	}
	for i := range o.Pools {
		if v.static {
			o.Pools[i].Flags = ffi.PoolFlagsStatic
			if o.Pools[i].Role != ffi.RoleSWA {
				o.Pools[i].VirtualPageCount = amplePages
			}
		}
	}
	o.Compaction, o.Fault.Seed, o.Fault.DelayMaxNs = v.compaction, v.seed, 1000
	if len(o.Pools) <= 2 {
		o.Placement = v.placement
	}
	engine, err := ffi.Open(o)
	if err != nil {
		t.Fatalf("open of %s: %v", v, err)
	}
	a := &answers{t: t, variant: v, engine: engine, content: map[pageName]uint64{}, steps: map[uint64]bool{}}
	for i := range o.Pools {
		info, err := engine.PoolInfo(ffi.TierDevice, uint32(i))
		a.must(err)
		a.info, a.owner = append(a.info, info), append(a.owner, int(info.IDOwner))
	}
	a.live, a.saved = make([][]uint32, len(a.info)), make([][]savedPage, len(a.info))
	for _, op := range operations {
		a.do(op)
	}
	a.letGo()
	a.readAll()
	stats, err := engine.Stats()
	a.must(err)
	a.moves = stats.Moves
	a.must(engine.Close())
	return a
}

func (a *answers) must(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatalf("%s: %v", a.variant, err)
	}
}

func (a *answers) say(format string, args ...any) {
	a.log = append(a.log, fmt.Sprintf(format, args...))
}

// named gives pages as the log does: counted from the first that the pool hands out, which depends on the size of the sink.
func (a *answers) named(pool int, pages []ids.VirtualPage) []int {
	names := make([]int, len(pages))
	for i, page := range pages {
		names[i] = int(page) - int(a.info[a.owner[pool]].FirstPage)
	}
	return names
}

func (a *answers) do(op operation) {
	pool := op.Pool % len(a.info)
	switch op.Verb {
	case "take":
		a.take(pool, 1+op.A%4, op.B)
	case "window":
		a.window(pool, op.A)
	case "free":
		a.free(a.owner[pool], op.A, 1+op.B%3)
	case "tombstone":
		if a.owner[pool] != pool {
			a.free(pool, op.A, 1+op.B%3)
		}
	case "back up":
		a.backUp(pool, op.A, 1+op.B%3)
	case "load":
		a.load(a.owner[pool], op.A, 1+op.B%3)
	case "lease", "step":
		a.hold(pool, op.A, 1+op.B%3, op.Verb == "step")
	case "let go":
		a.letGo()
	case "copies":
		_, err := a.engine.FaultRun(uint32(1+op.A%3), op.B%2 == 0)
		a.must(err)
	case "compact":
		if _, err := a.engine.Compact(nil); err != nil && a.variant.compaction != ffi.CompactionOff {
			a.must(err)
		}
	case "write":
		a.write(pool, op.A)
	}
	if report, err := a.engine.Verify(); err != nil {
		a.t.Fatalf("%s: after %v: %v\n%s", a.variant, op, err, report)
	}
}

// letGo ends all leases and steps, runs all copies and reads their completions: nothing is pinned and nothing in quarantine then.
func (a *answers) letGo() {
	for _, id := range a.holders {
		if a.steps[id] {
			a.must(a.engine.StepClose(ffi.Step(id)))
		} else {
			a.must(a.engine.LeaseRelease(ffi.Lease(id)))
		}
	}
	a.holders = nil
	done := make([]ffi.Completion, 64)
	for {
		_, err := a.engine.FaultRun(1<<20, false)
		a.must(err)
		n, err := a.engine.CompletionPoll(done)
		a.must(err)
		if n == 0 {
			return
		}
		for _, c := range done[:n] {
			a.must(c.Status.Err())
		}
	}
}

// granted retries what was refused: pins and places differ between variants, so the answer is the one without pins and with moves.
func (a *answers) granted(take func() error) bool {
	err := take()
	if err == nil {
		return true
	}
	a.letGo()
	a.must(a.engine.SetCompaction(ffi.CompactionLazy))
	err = take()
	a.must(a.engine.SetCompaction(a.variant.compaction))
	if err != nil && !errors.Is(err, ffi.ErrNoCapacity) {
		a.t.Fatalf("%s: %v, with nothing pinned", a.variant, err)
	}
	return err == nil
}

// take asks for n pages of a group; windows of the last of them.
func (a *answers) take(pool, n, windows int) {
	owner := a.owner[pool]
	takes := []ffi.Take{{Pool: uint32(owner), Pages: make([]ids.VirtualPage, n)}}
	for p, o := range a.owner {
		if o == owner && p != owner {
			takes = append(takes, ffi.Take{Pool: uint32(p), Count: uint32(windows % (n + 1))})
		}
	}
	if !a.granted(func() error { return a.engine.Alloc(takes) }) {
		a.say("take %d of pool %d: no", n, owner)
		return
	}
	a.say("take %d of pool %d: %v", n, owner, a.named(owner, takes[0].Pages))
	for i, page := range takes[0].Pages {
		for p, o := range a.owner {
			if o == owner && (p == owner || i >= n-windows%(n+1)) {
				a.live[p] = append(a.live[p], uint32(page))
			}
		}
	}
}

// window gives a window page to one page that has none.
func (a *answers) window(pool, pick int) {
	owner := a.owner[pool]
	var bare []uint32
	for _, page := range a.live[owner] {
		if !slices.Contains(a.live[pool], page) {
			bare = append(bare, page)
		}
	}
	if owner == pool || len(bare) == 0 {
		return
	}
	page := bare[pick%len(bare)]
	ok := a.granted(func() error {
		return a.engine.Alloc([]ffi.Take{{Pool: uint32(pool), Pages: []ids.VirtualPage{ids.VirtualPage(page)}}})
	})
	a.say("window of %v in pool %d: %v", a.named(pool, []ids.VirtualPage{ids.VirtualPage(page)}), pool, ok)
	if ok {
		a.live[pool] = append(a.live[pool], page)
	}
}

// pick chooses up to n live pages of a pool from a place on.
func (a *answers) pick(pool, from, n int) []ids.VirtualPage {
	list := a.live[pool]
	if len(list) == 0 {
		return nil
	}
	from %= len(list)
	var pages []ids.VirtualPage
	for _, page := range list[from:min(from+n, len(list))] {
		pages = append(pages, ids.VirtualPage(page))
	}
	return pages
}

func (a *answers) free(pool, from, n int) {
	pages := a.pick(pool, from, n)
	a.must(a.engine.Free([]ffi.Pages{{Pool: uint32(pool), Pages: pages}}))
	for p, owner := range a.owner {
		if p != pool && owner != pool {
			continue
		}
		a.live[p] = slices.DeleteFunc(a.live[p], func(page uint32) bool { return slices.Contains(pages, ids.VirtualPage(page)) })
		for _, page := range pages {
			delete(a.content, pageName{p, uint32(page)})
		}
	}
	a.say("free %v of pool %d", a.named(pool, pages), pool)
}

// write puts a content that no page had before into one page that no copy can be reading.
func (a *answers) write(pool, pick int) {
	pages := a.pick(pool, pick, 1)
	if len(pages) == 0 {
		return
	}
	a.letGo()
	a.writes++
	name := pageName{pool, uint32(pages[0])}
	a.content[name] = a.writes * 0xd1342543de82ef95
	a.access(pool, pages, func(i int, page []byte) uint64 {
		if page != nil {
			writeContent(page, a.content[name])
		}
		return a.content[name]
	}, true)
}

// access visits device pages under a lease: their bytes, or on the null backend their tags.
func (a *answers) access(pool int, pages []ids.VirtualPage, visit func(i int, page []byte) uint64, write bool) []uint64 {
	lease, err := a.engine.LeaseAcquire([]ffi.Pages{{Pool: uint32(pool), Pages: pages}})
	a.must(err)
	kernelIDs := make([]ids.KernelID, len(pages))
	_, err = a.engine.KernelIDs(ffi.Holder(lease), uint32(pool), ffi.GranularityPage, pages, kernelIDs)
	a.must(err)
	values := make([]uint64, len(pages))
	for i, id := range kernelIDs {
		var page []byte
		if a.variant.backend == ffi.BackendCPU {
			page, err = a.engine.DevicePage(uint32(pool), ids.PhysicalPage(placeOf(&a.info[pool], id)))
			a.must(err)
		}
		values[i] = visit(i, page)
	}
	if a.variant.backend == ffi.BackendNull {
		a.must(a.engine.DeviceTags(uint32(pool), kernelIDs, values, write))
	}
	a.must(a.engine.LeaseRelease(lease))
	return values
}

// backUp copies pages to the host; the copies run when the order says so.
func (a *answers) backUp(pool, from, n int) {
	pages := a.pick(pool, from, n)
	pages = slices.DeleteFunc(pages, func(page ids.VirtualPage) bool { return a.content[pageName{pool, uint32(page)}] == 0 })
	if len(pages) == 0 {
		return
	}
	host := make([]ids.HostPage, len(pages))
	if !a.granted(func() error { return a.engine.HostAlloc([]ffi.HostPages{{Pool: uint32(pool), Pages: host}}) }) {
		if len(a.saved[pool]) > 0 { // Make room for the next one.
			a.letGo()
			a.must(a.engine.HostFree([]ffi.HostPages{{Pool: uint32(pool), Pages: []ids.HostPage{a.saved[pool][0].page}}}))
			a.saved[pool] = a.saved[pool][1:]
		}
		a.say("back up %v of pool %d: no", a.named(pool, pages), pool)
		return
	}
	transfer := &ffi.Transfer{Priority: ffi.ClassNormal}
	for i, page := range pages {
		transfer.Copies = append(transfer.Copies, ffi.Copy{Pool: uint32(pool), DevicePage: page, HostPage: host[i]})
		a.saved[pool] = append(a.saved[pool], savedPage{host[i], a.content[pageName{pool, uint32(page)}]})
	}
	_, err := a.engine.BackUp(transfer)
	if errors.Is(err, ffi.ErrBusy) { // A load that may not have run yet brings one of the pages.
		a.letGo()
		_, err = a.engine.BackUp(transfer)
	}
	a.must(err)
	a.say("back up %v of pool %d", a.named(pool, pages), pool)
}

// load takes pages of a group and fills those that it can from the host.
func (a *answers) load(owner, from, n int) {
	if len(a.saved[owner]) == 0 {
		return
	}
	a.letGo() // The sources have arrived.
	takes := []ffi.Take{{Pool: uint32(owner), Pages: make([]ids.VirtualPage, n)}}
	for p, o := range a.owner {
		if o == owner && p != owner {
			takes = append(takes, ffi.Take{Pool: uint32(p), Count: uint32(n)})
		}
	}
	var reservation ffi.Reservation
	ok := a.granted(func() (err error) {
		reservation, err = a.engine.Reserve(takes)
		return err
	})
	if !ok {
		a.say("load %d of pool %d: no", n, owner)
		return
	}
	a.say("load %d of pool %d: %v", n, owner, a.named(owner, takes[0].Pages))
	transfer := &ffi.Transfer{Reservation: reservation}
	for i, page := range takes[0].Pages {
		for _, take := range takes {
			p := int(take.Pool)
			a.live[p] = append(a.live[p], uint32(page))
			if len(a.saved[p]) == 0 {
				transfer.Binds = append(transfer.Binds, ffi.Bind{Pool: take.Pool, VPage: page})
				continue
			}
			source := a.saved[p][(from+i)%len(a.saved[p])]
			transfer.Copies = append(transfer.Copies, ffi.Copy{Pool: take.Pool, DevicePage: page, HostPage: source.page})
			a.content[pageName{p, uint32(page)}] = source.content
		}
	}
	_, err := a.engine.Load(transfer)
	a.must(err)
}

func (a *answers) hold(pool, from, n int, step bool) {
	pages := []ffi.Pages{{Pool: uint32(pool), Pages: a.pick(pool, from, n)}}
	if step {
		id, err := a.engine.StepOpen(uint64(from%3), pages)
		a.must(err)
		a.holders, a.steps[uint64(id)] = append(a.holders, uint64(id)), true
		return
	}
	id, err := a.engine.LeaseAcquire(pages)
	a.must(err)
	a.holders = append(a.holders, uint64(id))
}

// readAll checks every content and puts it into the log.
func (a *answers) readAll() {
	for pool, live := range a.live {
		pages := a.pick(pool, 0, len(live))
		whole := make([]bool, len(pages))
		values := a.access(pool, pages, func(i int, page []byte) (content uint64) {
			if whole[i] = true; page != nil {
				content, whole[i] = readContent(page)
			}
			return content
		}, false)
		for i, page := range pages {
			want := a.content[pageName{pool, uint32(page)}]
			if want != 0 && (!whole[i] || values[i] != want) {
				a.t.Fatalf("%s: page %d of pool %d holds %#x (whole: %v), want %#x", a.variant, page, pool, values[i], whole[i], want)
			}
			a.say("page %v of pool %d: %#x", a.named(pool, pages[i:i+1]), pool, want)
		}
	}
}
