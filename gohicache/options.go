package hicache

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/hicache/hicache/gohicache/internal/policy"
	"github.com/hicache/hicache/gohicache/storage"
)

// Options configure a cache. The zero value of a field is its documented default; only Pools and DeviceBytes have none. OptionTable
// lists all of them as data.
type Options struct {
	// Device holds the first tier. Default CPU.
	Device Device
	// Library is the path of libhicache. Default: HICACHE_LIBRARY, then beside the executable, then the build folder, then the system.
	Library string
	// PageTokens is the number of tokens in a page of FULL and SWA pools. Default 16.
	PageTokens int
	// Tokens says how wide token ids are, and whether pages are keyed by pairs of them. Default Tokens32.
	Tokens TokenForm
	// DeviceBytes is the size of the device arena. Required.
	DeviceBytes uint64
	// HostBytes is the size of the host arena; 0 turns the tier off (storage then keeps a small staging arena, see StagingBytes).
	HostBytes uint64
	// HostNUMANodes says where the host arena's memory comes from: bit n is NUMA node n, several bits take turns. Open refuses a node that the machine
	// does not have. Default 0: where the kernel likes.
	HostNUMANodes uint64
	// StagingBytes is the host arena that storage uses when HostBytes is 0. Default: room for 64 pages of every pool if there is storage; a cache
	// that is opened without, and shall get some from AttachStorage, needs it said.
	StagingBytes uint64
	// HostArena says whether pools share one host arena of envelopes or have a region each. Default HostArenaAuto.
	HostArena HostArena
	// HostLayout is the order of pages in regions, of the pools that do not say their own. Default: page_first where there are regions.
	HostLayout HostLayout
	// Pools of pages, 1 to 16. Exactly one is Full, at most 14 are SWA, the others State.
	Pools []PoolOptions
	// RequestTokensMax makes Open fail with ErrInfeasible if one request of so many tokens can never fit. Default 0: one page.
	RequestTokensMax int

	// WritePolicy says when pages are backed up to the host. Default WriteThrough.
	WritePolicy WritePolicy
	// WriteThreshold is the number of requests that must have covered a page before WriteThroughSelective backs it up. Default 2.
	WriteThreshold int
	// Eviction names the eviction order: lru, auto (probation and lottery), lfu, fifo, mru, filo, slru, priority, tlru. Default lru.
	Eviction string
	// WholeLeaf evicts whole leaves of the tree instead of trimming them page by page from their tail. Default false.
	WholeLeaf bool
	// LoadBackMinTokens: a host hit that gains fewer tokens than this is not loaded. Default 0: everything is.
	LoadBackMinTokens int
	// Events makes the cache hash pages when they are inserted, and lets Cache.Events tell what changes. Default false.
	Events bool
	// Compaction says when the engine moves pages. Default CompactionLazy.
	Compaction Compaction
	// Placement says how the engine places pages. Default PlacementBest.
	Placement Placement

	// Storage is the third tier; nil: none. The cache does not close it.
	Storage storage.Store
	// Model, DType, Rank and Ranks go into storage keys, so that pages of another model, data type or tensor-parallel split never match.
	// Default: "", "", 0, 1.
	Model string
	DType string
	Rank  int
	Ranks int
	// Prefetch says how long a load waits for storage. Default PrefetchTimeout.
	Prefetch PrefetchPolicy
	// PrefetchMinTokens: a storage hit that gains fewer tokens than this is not read. Default 0: one page.
	PrefetchMinTokens int
	// PrefetchTimeout and PrefetchTimeoutPerKiTokens bound PrefetchTimeout. Default 1 s and 0.25 s.
	PrefetchTimeout            time.Duration
	PrefetchTimeoutPerKiTokens time.Duration
	// StoreQueueMax is the number of pages that may wait to be written to storage; more are skipped and counted. Default 65536.
	StoreQueueMax int
	// HeadGroups cuts a page into so many objects by heads, in a store that cannot keep it as one. Default 0: K and V.
	HeadGroups int
	// StorageBatch is the number of pages in one call of the store. Default 32.
	StorageBatch int

	// CopyThreads is the number of copy workers a direction on CPU and Null. Default 1.
	CopyThreads int
	// H2DSlowdownMax and D2HSlowdownMax are the slowdown of compute, in per mille, that is accepted beside copies to and from the device on CUDA: methods
	// that cost more are not used while a step is about. The copy engine alone is used whatever it costs (20 to 30). Default 0: 200.
	H2DSlowdownMax, D2HSlowdownMax int
	// NoCopyCalibration has CUDA choose copy methods by the library's table instead of measuring them at open (under 100 ms). Default false.
	NoCopyCalibration bool
	// Clock stands in for time.Now where leases and pins expire. Default time.Now.
	Clock func() time.Time
	// Logger gets what an operator should know. Default: nothing is logged.
	Logger *slog.Logger
	// Faults injects failures and simulated time; nil: none. For tests.
	Faults *FaultOptions
	// Sabotage breaks the engine on purpose (bits of the library's HICACHE_SABOTAGE_*), to show that checks catch it. Default 0.
	Sabotage uint32
}

// PoolOptions describe one pool.
type PoolOptions struct {
	// Name is how reports, errors and KernelIDsOf name the pool. Default: the role's name.
	Name string
	// Role says what the pages hold. Required.
	Role Role
	// Layers are the global ids of the layers that the pool serves, ascending. Required.
	Layers []int
	// LayerBytes is the size of one layer's K and V rows of a token together, halved between them. Either it or KRowBytes.
	LayerBytes uint64
	// KRowBytes is one layer's K row (latent row, recurrent state) of a token; a multiple of 16.
	KRowBytes uint64
	// VRowBytes is one layer's V row (convolution state); a multiple of 16, 0 for a latent row.
	VRowBytes uint64
	// WindowTokens is the sliding window of an SWA pool. Required there, 0 elsewhere.
	WindowTokens int
	// PageBytes enlarges the page envelope. Default 0: layers × rows × page tokens.
	PageBytes uint64
	// VirtualPages bounds the number of pages in use at once. Default 0: as many as can ever be.
	VirtualPages int
	// Layout is the order inside the envelope. Default LayerMajor.
	Layout Layout
	// HostLayout is the order of the pool's pages in a host region of its own. Default: Options.HostLayout, or envelopes in the shared arena.
	HostLayout HostLayout
	// HostPages is the number of pages of that region. Default 0: pools that say nothing share HostBytes so that each has as many.
	HostPages int
	// Heads is the number of heads of a row, for HostPageHead and HeadGroups. Default 0: rows are not cut.
	Heads int
	// Zeroing says what handing out a page zeroes. Default ZeroDefault.
	Zeroing Zeroing
	// Direction is the pool's place in the arena. Default DirectionAuto.
	Direction Direction
	// Static gives the pool VirtualPages pages of its own outside the shared arena; nothing of it moves.
	Static bool
}

// FaultOptions inject failures and simulated time below the whole cache: the suite runs over them. The cache then has no goroutine that
// reads completions on its own: they are read inside calls that wait and inside Drive, so that a run with one goroutine repeats exactly.
type FaultOptions struct {
	Seed          uint64
	FailTransferN uint64        // The n-th transfer (from 1) fails; 0 none.
	FailPPM       uint32        // Each transfer fails with this probability in parts per million.
	Hold          bool          // Transfers run only inside Cache.Drive.
	DelayMax      time.Duration // Virtual delay of a transfer, uniform in [0, max].
}

const (
	defaultPageTokens   = 16
	defaultStagingPages = 64
	poolsMax            = 16
	windowsMax          = 14 // radix has two bits a window pool and page
	windowMax           = 1 << 30
	bytesMax            = uint64(1) << 62
)

// rows gives the K and V row of one layer and token.
func (p *PoolOptions) rows() (k, v uint64) {
	if p.KRowBytes == 0 && p.LayerBytes != 0 {
		return p.LayerBytes / 2, p.LayerBytes / 2
	}
	return p.KRowBytes, p.VRowBytes
}

// name is Name or the role's.
func (p *PoolOptions) name() string {
	if p.Name != "" {
		return p.Name
	}
	return p.Role.String()
}

// withDefaults returns a copy in which every zero value is what it stands for.
func (o *Options) withDefaults() Options {
	d := *o
	d.Pools = slices.Clone(o.Pools)
	setDefault(&d.PageTokens, defaultPageTokens)
	setDefault(&d.WriteThreshold, 2)
	setDefault(&d.Ranks, 1)
	setDefault(&d.PrefetchTimeout, time.Second)
	setDefault(&d.PrefetchTimeoutPerKiTokens, 250*time.Millisecond)
	setDefault(&d.StoreQueueMax, 1<<16)
	setDefault(&d.StorageBatch, 32)
	setDefault(&d.CopyThreads, 1)
	if d.Eviction == "" {
		d.Eviction = "lru"
	}
	if d.Clock == nil {
		d.Clock = time.Now
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	for i := range d.Pools {
		d.Pools[i].Name = d.Pools[i].name()
	}
	return d
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate checks what can be checked without a library. The error names the field, or both fields of a pair that does not go together.
func (o *Options) Validate() error {
	d := o.withDefaults()
	for _, check := range []func(*Options) error{checkSizes, checkPools, checkPairs} {
		if err := check(&d); err != nil {
			return err
		}
	}
	return nil
}

func invalid(field, format string, args ...any) error {
	return &Error{Op: "options", Err: ErrInvalid, Message: field + ": " + fmt.Sprintf(format, args...)}
}

func checkSizes(o *Options) error {
	if o.DeviceBytes == 0 {
		return invalid("DeviceBytes", "required, in bytes")
	}
	for _, f := range []struct {
		name  string
		value uint64
	}{{"DeviceBytes", o.DeviceBytes}, {"HostBytes", o.HostBytes}, {"StagingBytes", o.StagingBytes}} {
		if f.value > bytesMax {
			return invalid(f.name, "%d is more than 2^62 bytes", f.value)
		}
	}
	for _, f := range []struct {
		name           string
		value, lo, max int
	}{
		{"PageTokens", o.PageTokens, 1, 1 << 20}, {"RequestTokensMax", o.RequestTokensMax, 0, math.MaxInt32},
		{"WriteThreshold", o.WriteThreshold, 1, math.MaxInt32}, {"LoadBackMinTokens", o.LoadBackMinTokens, 0, math.MaxInt32},
		{"PrefetchMinTokens", o.PrefetchMinTokens, 0, math.MaxInt32}, {"StoreQueueMax", o.StoreQueueMax, 1, math.MaxInt32},
		{"StorageBatch", o.StorageBatch, 1, 1 << 16}, {"CopyThreads", o.CopyThreads, 1, 64},
		{"H2DSlowdownMax", o.H2DSlowdownMax, 0, 10000}, {"D2HSlowdownMax", o.D2HSlowdownMax, 0, 10000}, {"Ranks", o.Ranks, 1, 1 << 16},
		{"Rank", o.Rank, 0, o.Ranks - 1}, {"HeadGroups", o.HeadGroups, 0, 1 << 16},
	} {
		if f.value < f.lo || f.value > f.max {
			return invalid(f.name, "%d is not in [%d, %d]", f.value, f.lo, f.max)
		}
	}
	if o.WritePolicy > WriteBack {
		return invalid("WritePolicy", "%d is no policy", o.WritePolicy)
	}
	if _, err := policy.ByName(o.Eviction); err != nil {
		return invalid("Eviction", "%v", err)
	}
	if o.Prefetch > PrefetchOff {
		return invalid("Prefetch", "%d is no policy", o.Prefetch)
	}
	if o.Tokens > TokenBigrams {
		return invalid("Tokens", "%d is no form of tokens", o.Tokens)
	}
	if o.HostArena > HostArenaReference {
		return invalid("HostArena", "%d is no mode", o.HostArena)
	}
	if o.HostLayout > HostPageHead {
		return invalid("HostLayout", "%d is no layout", o.HostLayout)
	}
	if o.Compaction > CompactionOff {
		return invalid("Compaction", "%d is no mode", o.Compaction)
	}
	if o.PrefetchTimeout < 0 || o.PrefetchTimeoutPerKiTokens < 0 {
		return invalid("PrefetchTimeout", "must not be negative")
	}
	if o.Device.ordinal < 0 {
		return invalid("Device", "CUDA ordinal %d is negative", o.Device.ordinal)
	}
	return nil
}

func checkPools(o *Options) error {
	if len(o.Pools) == 0 || len(o.Pools) > poolsMax {
		return invalid("Pools", "%d pools; there must be 1 to %d", len(o.Pools), poolsMax)
	}
	if o.HostLayout == HostPageHead && !slices.ContainsFunc(o.Pools, func(p PoolOptions) bool { return p.Heads > 1 }) {
		return invalid("HostLayout", "page_head needs Heads of a pool")
	}
	full, windows, names, served := 0, 0, map[string]bool{}, map[int]string{}
	for i := range o.Pools {
		p := &o.Pools[i]
		field := func(name string) string { return fmt.Sprintf("Pools[%d] (%s).%s", i, p.Name, name) }
		if p.Role < Full || p.Role > State {
			return invalid(field("Role"), "%d is none of Full, SWA, State", p.Role)
		}
		if p.Role == Full {
			full++
		}
		if p.Role == SWA {
			windows++
		}
		if names[p.Name] {
			return invalid(field("Name"), "two pools have it")
		}
		names[p.Name] = true
		if err := checkPool(p, field); err != nil {
			return err
		}
		if p.Role == State {
			continue // a state pool may serve layers of its own group only
		}
		for _, l := range p.Layers {
			if other, ok := served[l]; ok {
				return invalid(field("Layers"), "layer %d is already served by pool %s", l, other)
			}
			served[l] = p.Name
		}
	}
	if windows > windowsMax {
		return invalid("Pools", "%d pools are SWA; there may be %d", windows, windowsMax)
	}
	if full != 1 {
		return invalid("Pools", "%d pools are Full; there must be exactly one", full)
	}
	return nil
}

func checkPool(p *PoolOptions, field func(string) string) error {
	if len(p.Layers) == 0 {
		return invalid(field("Layers"), "required: the global ids of the layers that the pool serves")
	}
	for j, l := range p.Layers {
		if l < 0 || l > math.MaxInt32 || (j > 0 && l <= p.Layers[j-1]) {
			return invalid(field("Layers"), "must be ascending and not negative, has %d at %d", l, j)
		}
	}
	if p.LayerBytes != 0 && (p.KRowBytes != 0 || p.VRowBytes != 0) {
		return invalid(field("LayerBytes"), "cannot be given together with %s and %s", field("KRowBytes"), field("VRowBytes"))
	}
	k, v := p.rows()
	if k == 0 {
		return invalid(field("LayerBytes"), "required, or KRowBytes")
	}
	if p.LayerBytes%32 != 0 || k%16 != 0 || v%16 != 0 || k > bytesMax || v > bytesMax {
		return invalid(field("LayerBytes"), "rows must be multiples of 16 bytes, are K %d and V %d", k, v)
	}
	if (p.Role == SWA) != (p.WindowTokens > 0) || p.WindowTokens < 0 || p.WindowTokens > windowMax {
		return invalid(field("WindowTokens"), "%d; must be 1 to %d for SWA and 0 for the others", p.WindowTokens, windowMax)
	}
	if p.VirtualPages < 0 || p.VirtualPages > math.MaxInt32 || (p.Role == SWA && p.VirtualPages != 0) {
		return invalid(field("VirtualPages"), "%d; the FULL pool decides for SWA pools", p.VirtualPages)
	}
	if p.HostLayout > HostPageHead {
		return invalid(field("HostLayout"), "%d is no layout", p.HostLayout)
	}
	if p.HostPages < 0 || p.HostPages > math.MaxInt32 {
		return invalid(field("HostPages"), "%d is not in [0, %d]", p.HostPages, math.MaxInt32)
	}
	if p.Heads < 0 || p.Heads > 1<<16 || p.Heads > 1 && (k%uint64(16*p.Heads) != 0 || v%uint64(16*p.Heads) != 0) {
		return invalid(field("Heads"), "%d; a head's part of rows of K %d and V %d bytes must be a multiple of 16", p.Heads, k, v)
	}
	if p.HostLayout == HostPageHead && p.Heads <= 1 {
		return invalid(field("HostLayout"), "page_head needs %s", field("Heads"))
	}
	if p.Static && p.VirtualPages == 0 {
		return invalid(field("VirtualPages"), "required with %s", field("Static"))
	}
	return nil
}

// refusal is one row of the table of option pairs that do not go together.
type refusal struct {
	A, B   string
	Why    string
	Refuse func(o *Options) bool
}

// refusals is the whole table; the documentation and the tests are generated from it.
var refusals = []refusal{
	{"WritePolicy", "HostBytes", "write_back needs a host tier to write back to",
		func(o *Options) bool { return o.WritePolicy == WriteBack && o.HostBytes == 0 }},
	{"StagingBytes", "HostBytes", "the host arena is the staging arena when there is one",
		func(o *Options) bool { return o.StagingBytes != 0 && o.HostBytes != 0 }},
	{"Storage", "Device", "the null device has no bytes to store",
		func(o *Options) bool { return o.Storage != nil && o.Device.kind == deviceNull }},
	{"HostArena", "Storage", "the store cannot keep a page as one object, which an arena of envelopes needs",
		func(o *Options) bool { return o.HostArena == HostArenaEnvelope && !o.envelopes() }},
	{"HostArena", "HostLayout", "envelopes share one arena, the layouts are for regions",
		func(o *Options) bool { return o.HostArena == HostArenaEnvelope && o.HostLayout != HostLayoutDefault }},
	{"HostArena", "Pools[].HostLayout", "envelopes share one arena, the layouts are for regions",
		func(o *Options) bool {
			return o.HostArena == HostArenaEnvelope && slices.ContainsFunc(o.Pools, func(p PoolOptions) bool { return p.HostLayout != HostLayoutDefault })
		}},
	{"Pools[].HostPages", "HostArena", "only a region has pages of its own",
		func(o *Options) bool {
			for i := range o.Pools {
				if o.Pools[i].HostPages > 0 && o.hostLayout(i) == HostLayoutDefault {
					return true
				}
			}
			return false
		}},
	{"HeadGroups", "Pools[].Heads", "each group has as many heads, at least one",
		func(o *Options) bool {
			return o.HeadGroups > 1 && slices.ContainsFunc(o.Pools, func(p PoolOptions) bool { return p.Heads > 1 && p.Heads%o.HeadGroups != 0 })
		}},
	{"Faults", "Device", "failures are injected below the cpu and null devices only",
		func(o *Options) bool { return o.Faults != nil && o.Device.kind == deviceCUDA }},
}

func checkPairs(o *Options) error {
	for _, r := range refusals {
		if r.Refuse(o) {
			return &Error{Op: "options", Err: ErrUnsupported, Message: fmt.Sprintf("%s with %s: %s", r.A, r.B, r.Why)}
		}
	}
	return nil
}
