package bench

import (
	"context"
	"fmt"

	"github.com/hicache/hicache/ffi/ids"
	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/internal/policy"
	"github.com/hicache/hicache/gohicache/internal/radix"
)

// counts are what a request loop did, for comparison with others that ran the same requests.
type counts struct {
	requests, tokens, hitTokens  int
	evictedTokens, evictionCalls int
}

func (c *counts) hitRate() float64 { return float64(c.hitTokens) / float64(max(1, c.tokens)) }

// treeLoop runs prompts through a tree alone: match and pin, evict if short, take, insert, release. Pages come from a counter, since nothing stands
// behind them. Prompts are cut to whole pages; those larger than skipAbove tokens are left out, as the peers' scripts do.
type treeLoop struct {
	tree     *radix.Tree
	page     int
	capacity int // pages
	numbers  []ids.VirtualPage
	next     int
	m        radix.Match
	r        radix.InsertResult
	e        radix.EvictResult
	counts
}

func newTreeLoop(page, capacityTokens int, wholeLeaf bool, p policy.Policy) (*treeLoop, error) {
	tree, err := radix.New(radix.Config{PageTokens: page, Pools: []radix.PoolConfig{{Role: radix.Full}}, WholeLeaf: wholeLeaf, Policy: p})
	if err != nil {
		return nil, err
	}
	l := &treeLoop{tree: tree, page: page, capacity: capacityTokens / page}
	l.numbers = make([]ids.VirtualPage, l.capacity)
	for i := range l.numbers {
		l.numbers[i] = ids.VirtualPage(i)
	}
	return l, nil
}

// request runs one prompt. One that is larger than the whole capacity keeps its head only.
func (l *treeLoop) request(prompt []uint32) error {
	n := min(len(prompt)/l.page, l.capacity)
	if n == 0 {
		return nil
	}
	tokens := prompt[:n*l.page]
	l.tree.Match(radix.Namespace{}, tokens, radix.MatchOptions{FullHit: true}, &l.m)
	need := n - l.m.Usable
	if short := need - (l.capacity - l.tree.Counts(0).Device); short > 0 {
		l.tree.Evict(&radix.EvictRequest{Want: []int{short}}, &l.e)
		if l.e.Gone[0] < short {
			return fmt.Errorf("wanted %d pages, the tree gave %d (%v)", short, l.e.Gone[0], l.e.Blocker[0])
		}
		l.evictedTokens += l.e.Gone[0] * l.page
		l.evictionCalls++
	}
	if l.next+need > len(l.numbers) {
		l.next = 0
	}
	err := l.tree.Insert(&radix.InsertRequest{Tokens: tokens, After: l.m.Pin, From: l.m.Usable, Pages: l.numbers[l.next : l.next+need]}, &l.r)
	if err != nil {
		return err
	}
	l.next += need
	l.tree.Release(l.m.Pin)
	l.requests++
	l.tokens += n * l.page
	l.hitTokens += l.m.Usable * l.page
	return nil
}

// stack is a whole cache through its public API.
type stack struct {
	cache *hicache.Cache
	page  int
	load  hicache.LoadOptions
	counts
}

// rowBytes is the size of a K or V row of a token: that of the peer's benchmark, so that bookkeeping is timed and not memory.
const rowBytes = 16

// openStack opens a cache with a FULL pool of fullTokens, and with window > 0 an SWA pool of a quarter as many, over one arena.
func openStack(ctx context.Context, s *Settings, device hicache.Device, page, fullTokens, window int, wholeLeaf bool) (*stack, error) {
	o := &hicache.Options{Device: device, Library: s.Library, PageTokens: page, WholeLeaf: wholeLeaf,
		Pools: []hicache.PoolOptions{{Role: hicache.Full, Layers: []int{0}, KRowBytes: rowBytes, VRowBytes: rowBytes}}}
	pageBytes := uint64(page * 2 * rowBytes)
	sinks := pageBytes
	o.DeviceBytes = uint64(fullTokens/page) * pageBytes
	if window > 0 {
		o.Pools = append(o.Pools, hicache.PoolOptions{Role: hicache.SWA, Layers: []int{1}, KRowBytes: rowBytes, VRowBytes: rowBytes, WindowTokens: window})
		o.DeviceBytes += uint64(fullTokens/4/page) * pageBytes
		sinks *= 2
	}
	o.DeviceBytes += sinks
	cache, err := hicache.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	return &stack{cache: cache, page: page, load: hicache.LoadOptions{WindowTailOnly: true}}, nil
}

// request runs one prompt: match, lease the pages of all of it, publish, release. Nothing is written into the pages; the engine zeroes and
// moves them.
func (l *stack) request(ctx context.Context, prompt []uint32) error {
	n := len(prompt) / l.page * l.page
	if n == 0 {
		return nil
	}
	m := l.cache.MatchWith(prompt[:n], hicache.MatchOptions{FullHit: true})
	defer m.Release()
	l.load.Tokens = n
	lease, err := l.cache.Load(ctx, m, l.load)
	if err != nil {
		return fmt.Errorf("prompt of %d tokens: %w", n, err)
	}
	defer lease.Release()
	l.requests++
	l.tokens += n
	l.hitTokens += lease.Prefix()
	return l.cache.Insert(lease, prompt[:n])
}
