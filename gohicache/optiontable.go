package hicache

// Option is one row of the documentation of Options and PoolOptions.
type Option struct {
	Name    string // As Options{...} writes it; "Pools[].Role" for those of a pool.
	Unit    string // "" if it has none.
	Default string
	Doc     string
}

// OptionTable lists every option with its unit and default. The documentation is generated from it, and a test compares it with the
// structs and with what an empty Options resolves to.
func OptionTable() []Option {
	return []Option{
		{"Device", "", "cpu", "backend of the first tier: CPU, Null or CUDA(n)"},
		{"Library", "", "searched", "path of libhicache"},
		{"PageTokens", "tokens", "16", "tokens in a page of FULL and SWA pools"},
		{"Tokens", "", "32 bits", "width of token ids, or pairs of them as keys: Tokens32, Tokens64, TokenBigrams"},
		{"DeviceBytes", "bytes", "required", "size of the device arena"},
		{"HostBytes", "bytes", "0", "size of the host arena; 0: no host tier"},
		{"HostNUMANodes", "bit mask", "0", "NUMA nodes of the host arena; 0: as the kernel likes"},
		{"StagingBytes", "bytes", "64 pages of every pool", "host arena for storage where there is no host tier"},
		{"HostArena", "", "auto", "whether pools share one host arena of envelopes or have a region each: auto, envelope, separate, reference"},
		{"HostLayout", "", "page_first in regions", "order of pages in host regions: layer_first, page_first, page_first_direct, page_head"},
		{"Pools", "", "required", "the pools; exactly one is Full"},
		{"RequestTokensMax", "tokens", "0", "open fails if one request of so many tokens can never fit; 0: one page"},
		{"WritePolicy", "", "write_through", "when pages are copied to the host"},
		{"WriteThreshold", "requests", "2", "requests that must have covered a page before write_through_selective copies it"},
		{"Eviction", "", "lru", "order in which pages are given up: lru, lfu, fifo, mru, filo, slru, priority, tlru, auto"},
		{"WholeLeaf", "", "false", "give up whole leaves instead of trimming them page by page"},
		{"LoadBackMinTokens", "tokens", "0", "host hits that gain less are not loaded"},
		{"Events", "", "false", "hash pages when they are inserted, and tell listeners what changes"},
		{"Compaction", "", "lazy", "when pages move: lazy, eager, off"},
		{"Placement", "", "best", "how pages are placed: best, reference"},
		{"Storage", "", "none", "the third tier"},
		{"Model", "", "\"\"", "goes into storage keys"},
		{"DType", "", "\"\"", "goes into storage keys"},
		{"Rank", "", "0", "tensor-parallel rank; goes into storage keys"},
		{"Ranks", "", "1", "number of ranks; goes into storage keys"},
		{"Prefetch", "", "timeout", "how long a load waits for storage: timeout, wait, best effort, off"},
		{"PrefetchMinTokens", "tokens", "0", "storage hits that gain less are not read"},
		{"PrefetchTimeout", "time", "1s", "bound of the timeout policy"},
		{"PrefetchTimeoutPerKiTokens", "time", "250ms", "added to it for each 1,024 tokens"},
		{"StoreQueueMax", "pages", "65536", "pages that may wait to be stored, within a quarter of the host arena; more are skipped"},
		{"HeadGroups", "objects", "0", "objects of a page by heads, in a store that cannot keep it as one; 0: K and V"},
		{"StorageBatch", "pages", "32", "pages in one call of the store"},
		{"CopyThreads", "threads", "1", "copy workers a direction on cpu and null"},
		{"H2DSlowdownMax", "per mille", "0", "slowdown of compute accepted beside copies to the device (CUDA); 0: 200"},
		{"D2HSlowdownMax", "per mille", "0", "the same beside copies from the device; 0: 200"},
		{"NoCopyCalibration", "", "false", "choose copy methods by the library's table instead of measuring them at open (CUDA)"},
		{"Clock", "", "time.Now", "stands in for the clock in measurements"},
		{"Logger", "", "silent", "where the cache says what an operator should know"},
		{"Faults", "", "none", "injected failures and simulated time, for tests"},
		{"Sabotage", "", "0", "deliberate faults of the engine, for tests of the checks"},
		{"Pools[].Name", "", "the role", "name in reports and errors"},
		{"Pools[].Role", "", "required", "Full, SWA or State"},
		{"Pools[].Layers", "", "required", "global ids of the layers that the pool serves, ascending"},
		{"Pools[].LayerBytes", "bytes", "this or KRowBytes", "K and V rows of one layer and token together"},
		{"Pools[].KRowBytes", "bytes", "LayerBytes / 2", "K row (latent row, recurrent state) of one layer and token"},
		{"Pools[].VRowBytes", "bytes", "LayerBytes / 2", "V row (convolution state); 0 for a latent row"},
		{"Pools[].WindowTokens", "tokens", "required for SWA", "the sliding window"},
		{"Pools[].PageBytes", "bytes", "layers × rows × page tokens", "size of the page envelope, at least that"},
		{"Pools[].VirtualPages", "pages", "as many as can be", "pages in use at once; required with Static"},
		{"Pools[].Layout", "", "layer-major", "order inside the envelope: layer-major, token-major"},
		{"Pools[].HostLayout", "", "HostLayout", "order of the pool's pages in a host region of its own"},
		{"Pools[].HostPages", "pages", "0", "pages of that region; 0: an equal share of HostBytes"},
		{"Pools[].Heads", "heads", "0", "heads of a row, for page_head and HeadGroups"},
		{"Pools[].Zeroing", "", "always, STATE never", "what handing out a page zeroes: always, tail, never"},
		{"Pools[].Direction", "", "auto", "place in the arena: up, float, down"},
		{"Pools[].Static", "", "false", "pages of its own outside the shared arena; nothing moves"},
	}
}

// Refusal is a pair of options that do not go together.
type Refusal struct{ A, B, Why string }

// Refusals lists every pair that Open refuses with ErrUnsupported.
func Refusals() []Refusal {
	out := make([]Refusal, len(refusals))
	for i, r := range refusals {
		out[i] = Refusal{r.A, r.B, r.Why}
	}
	return out
}
