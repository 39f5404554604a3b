package script

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/metrics"
	"github.com/hicache/hicache/gohicache/storage/file"
)

// cacheState is the cache of a script with the requests that are open on it.
type cacheState struct {
	cache    *hicache.Cache
	store    *file.Store
	pools    []hicache.PoolInfo
	requests map[string]*cacheRequest
	pins     map[string]*hicache.Match
}

// A cacheRequest is a lease between begin and finish or abandon.
type cacheRequest struct {
	space  string
	tokens []uint32
	lease  *hicache.Lease
}

var policies = map[string]uint32{"write_through": uint32(hicache.WriteThrough), "write_through_selective": uint32(hicache.WriteThroughSelective),
	"write_back": uint32(hicache.WriteBack)}

// openCache opens a cache with the same words for sizes and pools as open. Copies run inside the commands that wait for them, and in drive.
func (in *Interpreter) openCache(c *call) error {
	if err := in.closeCache(); err != nil {
		return err
	}
	pageTokens := c.uint32("page-tokens", 16)
	o := &hicache.Options{
		Library: in.Library, PageTokens: int(pageTokens), DeviceBytes: c.uint("device", 0), HostBytes: c.uint("host", 0),
		WritePolicy: hicache.WritePolicy(c.choice("policy", "write_through", policies)), Eviction: c.value("eviction", "lru"),
		Compaction: hicache.Compaction(c.choice("compaction", "lazy", compactions)), WholeLeaf: c.flag("whole-leaf"), Sabotage: c.uint32("sabotage", 0),
		Faults: &hicache.FaultOptions{Seed: c.uint("seed", 1)},
	}
	folder := c.value("storage", "")
	if err := c.done(); err != nil {
		return err
	}
	raw := &ffi.Options{}
	if _, err := in.readPools(c.block, pageTokens, raw); err != nil {
		return err
	}
	for i := range raw.Pools {
		o.Pools = append(o.Pools, cachePool(c.block, i, &raw.Pools[i]))
	}
	state := &cacheState{requests: map[string]*cacheRequest{}, pins: map[string]*hicache.Match{}}
	if folder != "" {
		if folder == "temporary" { // One folder a script, so that a second cache-open finds what the first one stored.
			if err := in.makeTemporary(); err != nil {
				return err
			}
			folder = in.temporary
		}
		state.store = file.New(folder)
		o.Storage = state.store
	}
	var err error
	if state.cache, err = hicache.Open(context.Background(), o); err != nil {
		return err
	}
	state.pools = state.cache.Pools()
	in.cache = state
	return nil
}

// cachePool is an engine's pool options in the words of the cache.
func cachePool(b *Block, i int, p *ffi.PoolOptions) hicache.PoolOptions {
	name, _, _ := strings.Cut(b.Input[i], " ")
	out := hicache.PoolOptions{Name: name, KRowBytes: p.KRowBytes, VRowBytes: p.VRowBytes, WindowTokens: int(p.WindowTokens), PageBytes: p.PageBytes,
		VirtualPages: int(p.VirtualPageCount)}
	switch p.Role {
	case ffi.RoleFull:
		out.Role = hicache.Full
	case ffi.RoleSWA:
		out.Role = hicache.SWA
	case ffi.RoleState:
		out.Role = hicache.State
	}
	for _, layer := range p.LayerIDs {
		out.Layers = append(out.Layers, int(layer))
	}
	return out
}

func (in *Interpreter) makeTemporary() (err error) {
	if in.temporary == "" {
		in.temporary, err = os.MkdirTemp("", "hicache-script-")
	}
	return err
}

// closeCacheCommand closes the cache as it is: BUSY if requests are open.
func (in *Interpreter) closeCacheCommand(c *call) error {
	if err := c.done(); err != nil {
		return err
	}
	if in.cache == nil {
		return errNoCache
	}
	if err := in.cache.cache.Close(); err != nil {
		return err
	}
	return in.closeCache()
}

// closeCache gives back what the script holds and closes.
func (in *Interpreter) closeCache() error {
	state := in.cache
	if state == nil {
		return nil
	}
	in.cache = nil
	for _, r := range state.requests {
		r.lease.Release()
	}
	for _, m := range state.pins {
		m.Release()
	}
	err := errors.Join(state.cache.HoldTransfers(false, 0), state.cache.Close())
	if errors.Is(err, hicache.ErrClosed) {
		err = nil
	}
	if state.store != nil {
		err = errors.Join(err, state.store.Close())
	}
	return err
}

var errNoCache = errors.New("no cache is open")

// space reads ns=NAME, or ns=lora:NAME for an adapter.
func space(c *call) (string, hicache.Namespace) {
	text := c.value("ns", "")
	if name, ok := strings.CutPrefix(text, "lora:"); ok {
		return text, hicache.Namespace{}.WithLoRA(name)
	}
	if text == "" {
		return "", hicache.Namespace{}
	}
	return text, hicache.Salt(text)
}

// match prints how much of the tokens could be used and how much needs no load.
func (in *Interpreter) match(c *call) error {
	_, ns := space(c)
	full := c.flag("full-hit")
	tokens, err := in.tokens(c)
	if err != nil {
		return err
	}
	m := in.cache.cache.MatchWith(tokens, hicache.MatchOptions{Namespace: ns, FullHit: full})
	defer m.Release()
	if err := m.Err(); err != nil {
		return err
	}
	c.out.line("%s usable, %d ready", count(uint64(m.Tokens()), "token"), m.Ready())
	c.out.set("usable_tokens", m.Tokens())
	c.out.set("ready_tokens", m.Ready())
	return nil
}

// tokens reads the remaining words as token ids and ranges, and ends the reading of arguments.
func (in *Interpreter) tokens(c *call) ([]uint32, error) {
	tokens, err := parseNumbers(c.words())
	if err == nil {
		err = c.done()
	}
	if err == nil && in.cache == nil {
		err = errNoCache
	}
	if err == nil && len(tokens) == 0 {
		err = fmt.Errorf("%s needs tokens", c.block.Command)
	}
	return tokens, err
}

// insert is a whole request: begin, and finish.
func (in *Interpreter) insert(c *call) error {
	r, err := in.beginRequest(c)
	if err != nil {
		return err
	}
	return in.finishRequest(r)
}

// begin matches, loads, checks every reused page, and writes the new pages; the request stays open.
func (in *Interpreter) begin(c *call) error {
	name := c.word("a name for the request")
	r, err := in.beginRequest(c)
	if err != nil {
		return err
	}
	if old := in.cache.requests[name]; old != nil {
		old.lease.Release()
	}
	in.cache.requests[name] = r
	return nil
}

func (in *Interpreter) beginRequest(c *call) (*cacheRequest, error) {
	text, ns := space(c)
	tokens, err := in.tokens(c)
	if err != nil {
		return nil, err
	}
	m := in.cache.cache.MatchIn(ns, tokens)
	defer m.Release()
	lease, err := in.cache.cache.Load(context.Background(), m, hicache.LoadOptions{})
	if err != nil {
		return nil, err
	}
	r := &cacheRequest{space: text, tokens: tokens, lease: lease}
	err = lease.Wait(context.Background())
	if err == nil {
		err = in.cache.readAndWrite(r)
	}
	if err != nil {
		lease.Release()
		return nil, err
	}
	hit := lease.Hit()
	c.out.line("prefix %s (device %d, host %d, storage %d), %d computed", count(uint64(lease.Prefix()), "token"), hit.Device, hit.Host, hit.Storage,
		len(tokens)-lease.Prefix())
	c.out.set("prefix_tokens", lease.Prefix())
	c.out.set("hit_tokens", map[string]int{"device": hit.Device, "host": hit.Host, "storage": hit.Storage})
	return r, nil
}

func (in *Interpreter) finish(c *call) error {
	r, err := in.takeRequest(c)
	if err != nil {
		return err
	}
	return in.finishRequest(r)
}

func (in *Interpreter) finishRequest(r *cacheRequest) error {
	defer r.lease.Release()
	return in.cache.cache.Insert(r.lease, r.tokens)
}

// abandon gives a request up: its new pages are published to nobody.
func (in *Interpreter) abandon(c *call) error {
	r, err := in.takeRequest(c)
	if err != nil {
		return err
	}
	r.lease.Release()
	return nil
}

func (in *Interpreter) takeRequest(c *call) (*cacheRequest, error) {
	name := c.word("a request")
	if err := c.done(); err != nil {
		return nil, err
	}
	if in.cache == nil {
		return nil, errNoCache
	}
	r := in.cache.requests[name]
	if r == nil {
		return nil, fmt.Errorf("no open request %q", name)
	}
	delete(in.cache.requests, name)
	return r, nil
}

// pageStamp is what the page that ends these tokens holds: a function of namespace, tokens and pool, so that a page of another prefix, pool or
// tenant does not pass.
func pageStamp(space string, pool int, tokens []uint32) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%q %d %v", space, pool, tokens)
	return mix(h.Sum64())
}

// readAndWrite checks what the cache supplied and writes what a forward would compute, through kernel ids.
func (s *cacheState) readAndWrite(r *cacheRequest) error {
	prefix := r.lease.Prefix()
	for pool := range s.pools {
		p := &s.pools[pool]
		kernelIDs := r.lease.PoolKernelIDs(pool)
		if p.Role == hicache.State {
			if err := s.stateStep(r, pool, kernelIDs); err != nil {
				return err
			}
			continue
		}
		for i, id := range kernelIDs {
			end := min((i+1)*p.PageTokens, len(r.tokens))
			want := pageStamp(r.space, pool, r.tokens[:end])
			switch sink := s.cache.IsSink(pool, id); {
			case sink && (end > prefix || p.Role == hicache.Full || end > prefix-p.WindowTokens):
				return fmt.Errorf("%s: the page of tokens ..%d has no place", p.Name, end)
			case sink:
			case end > prefix:
				fill(s.cache.PageBytes(pool, id), want)
			default:
				if found, whole := readStamp(s.cache.PageBytes(pool, id)); !whole || found != want {
					return fmt.Errorf("%s: the page of tokens ..%d is wrong", p.Name, end)
				}
			}
		}
	}
	return nil
}

// stateStep checks the state that the prefix ends with, and writes the one at the last page boundary of the tokens into the request's page.
func (s *cacheState) stateStep(r *cacheRequest, pool int, kernelIDs []ids.KernelID) error {
	prefix := r.lease.Prefix()
	source, ok := r.lease.StateSource(pool)
	if ok {
		if found, whole := readStamp(s.cache.PageBytes(pool, source)); !whole || found != pageStamp(r.space, pool, r.tokens[:prefix]) {
			return fmt.Errorf("%s: the state of tokens ..%d is wrong", s.pools[pool].Name, prefix)
		}
	} else if prefix > 0 {
		return fmt.Errorf("%s: a prefix of %d tokens without its state", s.pools[pool].Name, prefix)
	}
	boundary := len(r.tokens) / s.pools[0].PageTokens * s.pools[0].PageTokens
	fill(s.cache.PageBytes(pool, kernelIDs[0]), pageStamp(r.space, pool, r.tokens[:boundary]))
	if boundary > prefix {
		r.lease.SetCheckpoint(boundary)
	}
	return nil
}

// pin keeps a match, and with it the prefix, until unpin.
func (in *Interpreter) pin(c *call) error {
	name := c.word("a name for the match")
	_, ns := space(c)
	tokens, err := in.tokens(c)
	if err != nil {
		return err
	}
	if old := in.cache.pins[name]; old != nil {
		old.Release()
	}
	m := in.cache.cache.MatchWith(tokens, hicache.MatchOptions{Namespace: ns, FullHit: true})
	in.cache.pins[name] = m
	c.out.line("%s pinned", count(uint64(m.Tokens()), "token"))
	return m.Err()
}

func (in *Interpreter) unpin(c *call) error {
	name := c.word("a match")
	if err := c.done(); err != nil {
		return err
	}
	if in.cache == nil || in.cache.pins[name] == nil {
		return fmt.Errorf("no match %q", name)
	}
	in.cache.pins[name].Release()
	return nil
}

// evict gives up pages of pools in the order of policy.
func (in *Interpreter) evict(c *call) error {
	tier := hicache.TierDevice
	if c.flag("host") {
		tier = hicache.TierHost
	}
	wanted := c.keyed()
	if err := c.done(); err != nil {
		return err
	}
	if in.cache == nil {
		return errNoCache
	}
	for _, arg := range wanted {
		pool := in.cache.cache.PoolIndex(arg.Key)
		pages, err := parseNumbers(arg.Values)
		if pool < 0 || err != nil || len(pages) != 1 {
			return fmt.Errorf("%s: want POOL=PAGES", arg.text())
		}
		n, err := in.cache.cache.Evict(tier, pool, int(pages[0]))
		if err != nil {
			return err
		}
		c.out.line("%s: %s evicted", arg.Key, count(uint64(n), "page"))
		c.out.set(arg.Key, n)
	}
	return nil
}

// drive runs copies of the cache and reads their completions.
func (in *Interpreter) drive(c *call) error {
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
	if in.cache == nil {
		return errNoCache
	}
	_, err := in.cache.cache.Drive(int(n), false)
	return err
}

// cacheHold makes copies wait for drive, and the next ones fail.
func (in *Interpreter) cacheHold(c *call) error {
	on := c.word("on or off")
	failures := c.uint32("fail", 0)
	if err := c.done(); err != nil {
		return err
	}
	if in.cache == nil {
		return errNoCache
	}
	if on != "on" && on != "off" {
		return fmt.Errorf("cache-hold is on or off, not %q", on)
	}
	return in.cache.cache.HoldTransfers(on == "on", int(failures))
}

// flush waits until everything inserted is backed up and stored as the policies say.
func (in *Interpreter) flush(c *call) error {
	return in.onCache(c, func(cache *hicache.Cache) error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return cache.Flush(ctx)
	})
}

func (in *Interpreter) clear(c *call) error {
	return in.onCache(c, (*hicache.Cache).Clear)
}

func (in *Interpreter) drop(c *call) error {
	_, ns := space(c)
	return in.onCache(c, func(cache *hicache.Cache) error { return cache.DropNamespace(ns) })
}

func (in *Interpreter) verifyCache(c *call) error {
	return in.onCache(c, func(cache *hicache.Cache) error {
		if err := cache.Verify(); err != nil {
			return err
		}
		c.out.line("ok")
		return nil
	})
}

func (in *Interpreter) onCache(c *call, f func(*hicache.Cache) error) error {
	if err := c.done(); err != nil {
		return err
	}
	if in.cache == nil {
		return errNoCache
	}
	return f(in.cache.cache)
}

// cacheStats prints counters of the cache by name, or all that are not zero.
func (in *Interpreter) cacheStats(c *call) error {
	names := c.words()
	return in.onCache(c, func(cache *hicache.Cache) error {
		fields := map[string]uint64{}
		collect("", reflect.ValueOf(cache.Stats()), fields)
		if len(names) == 0 {
			for _, name := range sortedKeys(fields) {
				if fields[name] != 0 {
					names = append(names, name)
				}
			}
		}
		for _, name := range names {
			value, ok := fields[name]
			if !ok {
				return fmt.Errorf("no counter %q; they are %s", name, strings.Join(sortedKeys(fields), " "))
			}
			c.out.line("%s %d", name, value)
			c.out.set(name, value)
		}
		return nil
	})
}

// collect flattens the whole-number counters of a struct, "evicted_host" for Evicted.Host. Times are left out: they differ from run to run.
func collect(prefix string, v reflect.Value, fields map[string]uint64) {
	for i := range v.NumField() {
		name := prefix + snake(v.Type().Field(i).Name)
		switch field := v.Field(i); field.Kind() {
		case reflect.Uint64:
			fields[name] = field.Uint()
		case reflect.Int64:
			fields[name] = uint64(field.Int())
		case reflect.Struct:
			if field.Type() == reflect.TypeFor[metrics.TierCount]() {
				collect(name+"_", field, fields)
			}
		}
	}
}
