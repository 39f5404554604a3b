package bench

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/internal/radix"
)

const (
	workHashes    = "page hashes of new pages"
	workMatch     = "match alone, hot"
	workMatchP99  = "match alone, hot: 99th percentile"
	workEvict     = "evict one leaf"
	workEvictFlat = "evict one leaf, slowest over fastest tree"
	workMemory    = "memory a cached token, all told"
	workNoGarbage = "allocations in steady state"
	workParallel  = "8 goroutines over 1: throughput of matches and inserts"
	workParallel9 = "8 goroutines over 1: 99th percentile of a match"
)

var (
	fullOnly = []radix.PoolConfig{{Role: radix.Full}}
	withSWA  = []radix.PoolConfig{{Role: radix.Full}, {Role: radix.SWA, WindowTokens: 1024}}
)

// garden is a tree of leaves that share a prefix, with random tokens.
type garden struct {
	tree         *radix.Tree
	page         int
	prefix, leaf int // pages
	tokens       []uint32
	rng          *rand.Rand
	pages        []ids.VirtualPage
	r            radix.InsertResult
	e            radix.EvictResult
}

func plant(cfg radix.Config, leaves, prefixPages, leafPages int) (*garden, error) {
	tree, err := radix.New(cfg)
	if err != nil {
		return nil, err
	}
	g := &garden{tree: tree, page: cfg.PageTokens, prefix: prefixPages, leaf: leafPages, rng: rand.New(rand.NewPCG(1, 2)),
		tokens: make([]uint32, (prefixPages+leafPages)*cfg.PageTokens), pages: make([]ids.VirtualPage, prefixPages+leafPages)}
	for i := range g.pages {
		g.pages[i] = ids.VirtualPage(i)
	}
	g.renew(0)
	for range leaves {
		if err := g.addLeaf(); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// renew draws new tokens from a page on.
func (g *garden) renew(fromPage int) {
	for i := fromPage * g.page; i < len(g.tokens); i++ {
		g.tokens[i] = g.rng.Uint32N(trace128k)
	}
}

const trace128k = 128_000 // as many token ids as the traces' tokens have

// addLeaf inserts a leaf with new tokens; the first one brings the prefix.
func (g *garden) addLeaf() error {
	from := min(g.prefix, g.r.Pages)
	g.renew(from)
	return g.tree.Insert(&radix.InsertRequest{Tokens: g.tokens, From: from, Pages: g.pages[from:]}, &g.r)
}

// pageHashes compares the chain of page hashes with what SHA-256 does on this machine for messages of the same size.
func pageHashes() Group {
	return Group{Name: "page-hashes", Works: []string{workHashes}, run: func(ctx context.Context, s *Settings, r *recorder) error {
		tokens := make([]uint32, scaled(s, 4<<20, 1<<14))
		rng := rand.New(rand.NewPCG(5, 6))
		for i := range tokens {
			tokens[i] = rng.Uint32N(trace128k)
		}
		dst := make([]radix.Hash, 0, len(tokens)/16)
		return repeat(ctx, s.runs(), func() error {
			for _, page := range []int{16, 64} {
				ours, err := threadTime(func() error {
					dst = radix.HashPages(nil, tokens, page, dst[:0])
					return nil
				})
				if err != nil {
					return err
				}
				message := make([]byte, len(radix.Hash{})+4*page)
				machine, err := threadTime(func() error {
					for range len(tokens) / page {
						sum := sha256.Sum256(message)
						message[0] = sum[0]
					}
					return nil
				})
				if err != nil {
					return err
				}
				rate := func(d time.Duration) float64 { return float64(len(tokens)) / d.Seconds() / 1e6 }
				r.addBeside(Spec{Work: workHashes, Config: fmt.Sprintf("page %d, 1 thread", page), Unit: "M tokens/s", Bar: ratioAtLeast(.9)}, rate(ours),
					fmt.Sprintf("SHA-256 of %d bytes", len(message)), rate(machine))
			}
			return nil
		})
	}}
}

// hotMatch looks up prompts of 12k tokens that are resident whole.
func hotMatch() Group {
	return Group{Name: "match", Works: []string{workMatch, workMatchP99}, run: func(ctx context.Context, s *Settings, r *recorder) error {
		const page, promptPages = 16, 768
		for _, c := range []struct {
			name    string
			pools   []radix.PoolConfig
			prompts int
		}{{"FULL, one prompt", fullOnly, 1}, {"FULL+SWA, one prompt", withSWA, 1}, {"FULL, 200 prompts in turn", fullOnly, 200}} {
			g, err := plant(radix.Config{PageTokens: page, Pools: c.pools}, 0, 0, promptPages)
			if err != nil {
				return err
			}
			var prompts [][]uint32
			for range c.prompts {
				g.r.Pages = 0
				if err := g.addLeaf(); err != nil {
					return err
				}
				prompts = append(prompts, slices.Clone(g.tokens))
			}
			n := scaled(s, 20_000, 200)
			took := make([]time.Duration, n)
			var m radix.Match
			loop := func() error {
				for i := range n {
					p := prompts[i%len(prompts)]
					start := time.Now()
					g.tree.Match(radix.Namespace{}, p, radix.MatchOptions{FullHit: true}, &m)
					g.tree.Release(m.Pin)
					took[i] = time.Since(start)
					if m.Usable != promptPages {
						return fmt.Errorf("matched %d of %d pages", m.Usable, promptPages)
					}
				}
				return nil
			}
			config := fmt.Sprintf("%s of %d tokens, page %d", c.name, promptPages*page, page)
			err = repeat(ctx, s.runs(), func() error {
				d, err := threadTime(loop)
				if err != nil {
					return err
				}
				r.add(Spec{Work: workMatch, Config: config, Unit: "G tokens/s", Bar: atLeast(1, "G tokens/s")}, float64(n*promptPages*page)/d.Seconds()/1e9)
				r.add(Spec{Work: workMatchP99, Config: config + ", wall", Unit: "us", Lower: true, Bar: atMost(25, "us")}, percentile(took, .99).Seconds()*1e6)
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	}}
}

// percentile sorts d.
func percentile(d []time.Duration, p float64) time.Duration {
	slices.Sort(d)
	return d[min(len(d)-1, int(p*float64(len(d))))]
}

// evictLeaf is steady state: each leaf that goes makes room for one that comes, and only the going is timed.
func evictLeaf() Group {
	return Group{Name: "evict", Works: []string{workEvict, workEvictFlat}, run: func(ctx context.Context, s *Settings, r *recorder) error {
		for _, leaves := range scaled(s, []int{10_000, 100_000, 1_000_000}, []int{1000, 10_000}) {
			g, err := plant(radix.Config{PageTokens: 16, Pools: fullOnly}, leaves, 4, 1)
			if err != nil {
				return err
			}
			n := scaled(s, 50_000, 500)
			request := &radix.EvictRequest{Want: []int{1}}
			err = repeat(ctx, s.runs(), func() error {
				var spent time.Duration
				for done := 0; done < n; {
					batch := min(1000, leaves/4, n-done)
					d, err := threadTime(func() error {
						for range batch {
							g.tree.Evict(request, &g.e)
							if g.e.Gone[0] != 1 {
								return fmt.Errorf("evicted %d pages, wanted 1", g.e.Gone[0])
							}
						}
						return nil
					})
					if err != nil {
						return err
					}
					spent += d
					for range batch {
						if err := g.addLeaf(); err != nil {
							return err
						}
					}
					done += batch
				}
				r.add(Spec{Work: workEvict, Config: fmt.Sprintf("%s leaves", figure(float64(leaves))), Unit: "ns", Lower: true, Bar: atMost(2000, "ns")}, float64(spent.Nanoseconds())/float64(n))
				return nil
			})
			if err != nil {
				return err
			}
		}
		r.spread(workEvict, Spec{Work: workEvictFlat, Unit: "x", Lower: true, Bar: atMost(2, "x")})
		return nil
	}}
}

// memoryPerToken is the heap that a tree takes, with windows, and with and without page hashes.
func memoryPerToken() Group {
	return Group{Name: "memory", Works: []string{workMemory}, run: func(_ context.Context, s *Settings, r *recorder) error {
		leaves := scaled(s, 900, 20) // of 700 pages behind a prefix of 100: 10 M tokens
		if s.Full && !s.Quick {
			leaves *= 10
		}
		for _, hashes := range []bool{false, true} {
			before := liveHeap()
			g, err := plant(radix.Config{PageTokens: 16, Pools: withSWA, Hashes: hashes}, leaves, 100, 700)
			if err != nil {
				return err
			}
			bytes := liveHeap() - before
			tokens := g.tree.Counts(0).Device * 16
			name := map[bool]string{false: "without hashes", true: "with hashes"}[hashes]
			r.add(Spec{Work: workMemory, Config: fmt.Sprintf("tree of %s tokens, page 16, FULL+SWA, %s", figure(float64(tokens)), name), Unit: "bytes", Lower: true, Bar: atMost(8, "bytes")},
				float64(bytes)/float64(tokens))
			runtime.KeepAlive(g)
		}
		return nil
	}}
}

func liveHeap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func allocations() Group {
	return Group{Name: "allocations", Works: []string{workNoGarbage}, run: func(ctx context.Context, s *Settings, r *recorder) error {
		n := scaled(s, 10_000, 200)
		g, err := plant(radix.Config{PageTokens: 16, Pools: withSWA}, 1000, 100, 4)
		if err != nil {
			return err
		}
		var m radix.Match
		match := func() error {
			for range n {
				g.tree.Match(radix.Namespace{}, g.tokens, radix.MatchOptions{FullHit: true}, &m)
				g.tree.Release(m.Pin)
			}
			return nil
		}
		request := &radix.EvictRequest{Want: []int{g.leaf, g.leaf}}
		insert := func() error { // each makes one node; what it replaces goes
			for range n {
				g.tree.Evict(request, &g.e)
				if err := g.addLeaf(); err != nil {
					return err
				}
			}
			return nil
		}
		return repeat(ctx, s.runs(), func() error {
			for _, c := range []struct {
				config string
				limit  float64
				f      func() error
			}{{"a match of resident tokens", 0.001, match}, {"an insert of one new node, with the eviction that makes room", 1.01, insert}} {
				if err := c.f(); err != nil {
					return err
				}
				made, err := mallocs(c.f)
				if err != nil {
					return err
				}
				r.add(Spec{Work: workNoGarbage, Config: c.config, Unit: "allocations", Lower: true, Bar: atMost(c.limit, "")}, made/float64(n))
			}
			return nil
		})
	}}
}

// goroutines runs nine matches and one insert in turn, from one goroutine and from eight, for a while of wall time.
func goroutines() Group {
	return Group{Name: "goroutines", Works: []string{workParallel, workParallel9}, run: func(ctx context.Context, s *Settings, r *recorder) error {
		cores := runtime.GOMAXPROCS(0)
		config := fmt.Sprintf("%d cores, prompts of 12k tokens, page 16, one insert in ten, wall", cores)
		return repeat(ctx, s.runs(), func() error {
			one, oneP99, err := crowd(s, 1)
			if err != nil {
				return err
			}
			eight, eightP99, err := crowd(s, 8)
			if err != nil {
				return err
			}
			r.add(Spec{Work: workParallel, Config: config, Unit: "x", Bar: atLeast(1.5, "x")}, eight/one)
			r.add(Spec{Work: workParallel9, Config: config, Unit: "x", Lower: true, Bar: atMost(5, "x")}, float64(eightP99)/float64(oneP99))
			return nil
		})
	}}
}

// crowd is the operations a second of n goroutines over one tree, and the 99th percentile of their matches.
func crowd(s *Settings, n int) (perSec float64, p99 time.Duration, err error) {
	const page, prefixPages = 16, 736
	g, err := plant(radix.Config{PageTokens: page, Pools: fullOnly}, 1000, prefixPages, 32)
	if err != nil {
		return 0, 0, err
	}
	var mu sync.Mutex
	var all []time.Duration
	var ops int
	var wg sync.WaitGroup
	start := time.Now()
	until := start.Add(scaled(s, time.Second, 20*time.Millisecond))
	for id := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			took, done, failure := visitor(g, uint64(id), until)
			mu.Lock()
			defer mu.Unlock()
			all, ops = append(all, took...), ops+done
			if failure != nil {
				err = failure
			}
		}()
	}
	wg.Wait()
	return perSecond(float64(ops), time.Since(start)), percentile(all, .99), err
}

// visitor is one goroutine of crowd: it matches, and every tenth time publishes a leaf of its own and lets another go.
func visitor(g *garden, id uint64, until time.Time) (took []time.Duration, ops int, err error) {
	rng := rand.New(rand.NewPCG(id, 9))
	tokens := slices.Clone(g.tokens)
	took = make([]time.Duration, 0, 1<<17)
	var m radix.Match
	var r radix.InsertResult
	var e radix.EvictResult
	for start := time.Now(); ops == 0 || start.Before(until); ops++ { // at least one, however late this goroutine has its turn
		g.tree.Match(radix.Namespace{}, tokens, radix.MatchOptions{FullHit: true}, &m)
		took = append(took, time.Since(start))
		if ops%10 == 9 {
			for i := g.prefix * g.page; i < len(tokens); i++ {
				tokens[i] = rng.Uint32N(trace128k)
			}
			g.tree.Evict(&radix.EvictRequest{Want: []int{g.leaf}}, &e)
			err = g.tree.Insert(&radix.InsertRequest{Tokens: tokens, From: g.prefix, Pages: g.pages[g.prefix:]}, &r)
			if err != nil {
				return took, ops, err
			}
		}
		g.tree.Release(m.Pin)
		start = time.Now()
	}
	return took, ops, nil
}
