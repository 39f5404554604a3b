package bench

import (
	"context"
	"fmt"
	"runtime"
	"time"

	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/trace"
)

const (
	workLoop      = "request loop, FULL"
	workLoopHit   = "request loop, FULL: hit rate"
	workWhole     = "request loop in whole-leaf mode"
	workStack     = "whole stack, FULL+SWA"
	workStackHit  = "whole stack, FULL+SWA: hit rate"
	workBlocks    = "block manager: request loop, no hashing"
	workWholeRun  = "whole agent trace, null backend"
	capacityToken = 2_000_000
	pageTokens    = 64
)

// Cache is the groups of `hicache bench cache`.
func Cache() []Group {
	return []Group{requestLoop(), wholeLeaf(), wholeStack(), blockManager(), pageHashes(), hotMatch(), evictLeaf(), memoryPerToken(), allocations(), goroutines(), agentTrace()}
}

// radixQuery is a run of the peer's tree over the first requests of the conversation trace.
func radixQuery(impl string, page, capacity, limit int, op, unit, field string) *Query {
	return &Query{Script: "bench_radix.py", Args: []string{"--impl", impl, "--page", fmt.Sprint(page), "--cap", fmt.Sprint(capacity), "--limit", fmt.Sprint(limit), "--reps", "3"},
		Op: op, Unit: unit, Field: field}
}

const (
	peerLoopOp = "request loop (match+lock+evict+alloc+insert)"
	rustCore   = "unified-rust"
)

func loopConfig(n int, page, capacity int, more string) string {
	return fmt.Sprintf("conversation[:%d], page %d, %s tokens, %s", n, page, figure(float64(capacity)), more)
}

// sizes of the request loops.
func (s *Settings) loopSizes(requests int) (limit, capacity int) {
	return scaled(s, requests, 60), scaled(s, capacityToken, 200_000) / pageTokens * pageTokens
}

func requestLoop() Group {
	return Group{Name: "request-loop", Works: []string{workLoop, workLoopHit}, run: func(ctx context.Context, s *Settings, r *recorder) error {
		limit, capacity := s.loopSizes(3000)
		prompts, err := s.prompts(conversation, limit)
		if err != nil {
			return err
		}
		rate := func(more string, c *counts, d time.Duration) {
			config := loopConfig(limit, pageTokens, capacity, more)
			r.add(Spec{Work: workLoop, Config: config, Unit: "M tokens/s", Bar: ratioAtLeast(8), Peer: radixQuery(rustCore, pageTokens, capacity, limit, "request loop", "Mtok/s", "")},
				float64(c.tokens)/d.Seconds()/1e6)
			r.add(Spec{Work: workLoopHit, Config: config, Unit: "of tokens", Peer: radixQuery(rustCore, pageTokens, capacity, limit, peerLoopOp, "requests/s", "hit_rate")}, c.hitRate())
		}
		return repeat(ctx, s.runs(), func() error {
			l, err := newTreeLoop(pageTokens, capacity, false, nil)
			if err != nil {
				return err
			}
			d, err := processTime(func() error { return eachPrompt(prompts, capacity, l.request) })
			if err != nil {
				return err
			}
			rate("tree alone", &l.counts, d)
			c, d, err := runStack(ctx, s, hicache.Null, prompts, pageTokens, capacity, 0, capacity)
			if err != nil {
				return err
			}
			rate("with the engine on the null backend", c, d)
			return nil
		})
	}}
}

// eachPrompt leaves out what is longer than the limit, as the peers' scripts do.
func eachPrompt(prompts [][]uint32, limit int, f func([]uint32) error) error {
	for _, p := range prompts {
		if len(p) > limit {
			continue
		}
		if err := f(p); err != nil {
			return err
		}
	}
	return nil
}

// runStack runs prompts through a fresh cache.
func runStack(ctx context.Context, s *Settings, device hicache.Device, prompts [][]uint32, page, capacity, window, limit int) (*counts, time.Duration, error) {
	l, err := openStack(ctx, s, device, page, capacity, window, false)
	if err != nil {
		return nil, 0, err
	}
	d, err := processTime(func() error {
		return eachPrompt(prompts, limit, func(p []uint32) error { return l.request(ctx, p) })
	})
	if closed := l.cache.Close(); err == nil {
		err = closed
	}
	return &l.counts, d, err
}

// wholeLeaf checks that the tree in the peers' mode decides as the peers do: counts without noise.
func wholeLeaf() Group {
	return Group{Name: "whole-leaf", Works: []string{workWhole}, run: func(_ context.Context, s *Settings, r *recorder) error {
		limit, capacity := s.loopSizes(3000)
		prompts, err := s.prompts(conversation, limit)
		if err != nil {
			return err
		}
		l, err := newTreeLoop(pageTokens, capacity, true, nil)
		if err != nil {
			return err
		}
		if err := eachPrompt(prompts, capacity, l.request); err != nil {
			return err
		}
		config := loopConfig(limit, pageTokens, capacity, "tree alone")
		for _, c := range []struct {
			unit, field      string
			value, tolerance float64
		}{
			{"hit rate of tokens", "hit_rate", l.hitRate(), 0.00005001},
			{"evicted tokens", "evicted_tokens", float64(l.evictedTokens), 0},
			{"evict calls", "evict_calls", float64(l.evictionCalls), 0},
		} {
			r.add(Spec{Work: workWhole, Config: config, Unit: c.unit, Bar: equalsPeer(c.tolerance),
				Peer: radixQuery(rustCore, pageTokens, capacity, limit, peerLoopOp, "requests/s", c.field)}, c.value)
		}
		return nil
	}}
}

// wholeStack is FULL and SWA over one arena, with the peer's byte sizes: on the CPU backend pages are zeroed and moved, on the null one only counted.
func wholeStack() Group {
	return Group{Name: "whole-stack", Works: []string{workStack, workStackHit}, run: func(ctx context.Context, s *Settings, r *recorder) error {
		const window = 4096
		limit, capacity := s.loopSizes(1500)
		prompts, err := s.prompts(conversation, limit)
		if err != nil {
			return err
		}
		query := func(op, unit, field string) *Query {
			return &Query{Script: "bench_stack.py", Args: []string{"--core", "rust", "--page", fmt.Sprint(pageTokens), "--window", fmt.Sprint(window), "--cap", fmt.Sprint(capacity),
				"--limit", fmt.Sprint(limit), "--reps", "2"}, Op: op, Unit: unit, Field: field}
		}
		return repeat(ctx, s.runs(), func() error {
			for _, b := range []struct {
				name   string
				device hicache.Device
				bar    float64
			}{{"cpu", hicache.CPU, 20}, {"null", hicache.Null, 100}} {
				c, d, err := runStack(ctx, s, b.device, prompts, pageTokens, capacity, window, capacity/4)
				if err != nil {
					return fmt.Errorf("%s: %w", b.name, err)
				}
				config := loopConfig(limit, pageTokens, capacity, "window "+fmt.Sprint(window)+", "+b.name+" backend")
				r.add(Spec{Work: workStack, Config: config, Unit: "requests/s", Bar: ratioAtLeast(b.bar), Peer: query("request loop", "requests/s", "")}, perSecond(float64(c.requests), d))
				r.add(Spec{Work: workStackHit, Config: config, Unit: "of tokens", Peer: query("request loop", "requests/s", "hit_rate")}, c.hitRate())
			}
			return nil
		})
	}}
}

// blockManager is the same loop at small pages, beside a manager of fixed blocks with a hash table.
func blockManager() Group {
	return Group{Name: "block-manager", Works: []string{workBlocks}, run: func(ctx context.Context, s *Settings, r *recorder) error {
		const page = 16
		limit, capacity := s.loopSizes(1000)
		prompts, err := s.prompts(conversation, limit)
		if err != nil {
			return err
		}
		peer := &Query{Script: "bench_vllm.py", Args: []string{"--block", fmt.Sprint(page), "--hash", "sha256", "--cap", fmt.Sprint(capacity), "--limit", fmt.Sprint(limit), "--reps", "2"},
			Op: "request loop without block hashing", Unit: "requests/s"}
		add := func(more string, c *counts, d time.Duration) {
			r.add(Spec{Work: workBlocks, Config: loopConfig(limit, page, capacity, more), Unit: "requests/s", Bar: ratioAtLeast(50), Peer: peer}, perSecond(float64(c.requests), d))
		}
		return repeat(ctx, s.runs(), func() error {
			l, err := newTreeLoop(page, capacity, false, nil)
			if err != nil {
				return err
			}
			d, err := processTime(func() error { return eachPrompt(prompts, capacity-page, l.request) })
			if err != nil {
				return err
			}
			add("tree alone", &l.counts, d)
			c, d, err := runStack(ctx, s, hicache.Null, prompts, page, capacity, 0, capacity-page)
			if err != nil {
				return err
			}
			add("with the engine on the null backend", c, d)
			return nil
		})
	}}
}

// agentTrace runs the agent trace through the whole cache. Making tokens of block ids is no work of a cache and is taken off.
func agentTrace() Group {
	return Group{Name: "agent-trace", Works: []string{workWholeRun}, run: func(ctx context.Context, s *Settings, r *recorder) error {
		const capacity = 5_000 * 512
		limit := scaled(s, 5000, 100)
		config := fmt.Sprintf("coding_agent[:%d], page %d, %s tokens", limit, pageTokens, figure(capacity))
		if s.Full && !s.Quick {
			limit = 0
			config = fmt.Sprintf("coding_agent, page %d, %s tokens", pageTokens, figure(capacity))
		}
		l, err := openStack(ctx, s, hicache.Null, pageTokens, capacity, 0, false)
		if err != nil {
			return err
		}
		defer l.cache.Close()
		runtime.LockOSThread() // so that the expansion's CPU time is this thread's
		defer runtime.UnlockOSThread()
		var expansion time.Duration
		var tokens []uint32
		all, err := processTime(func() error {
			return s.eachRequest(codingAgent, limit, func(row *trace.Request, e trace.Expander) error {
				start := cpu(threadClock)
				tokens = e.Prompt(tokens[:0], row)
				expansion += cpu(threadClock) - start
				if err := ctx.Err(); err != nil {
					return err
				}
				return l.request(ctx, tokens)
			})
		})
		if err != nil {
			return err
		}
		r.add(Spec{Work: workWholeRun, Config: config, Unit: "requests/s", Bar: atLeast(2000, "requests/s")}, perSecond(float64(l.requests), all-expansion))
		r.add(Spec{Work: workWholeRun, Config: config, Unit: "M tokens/s"}, float64(l.tokens)/(all-expansion).Seconds()/1e6)
		r.add(Spec{Work: workWholeRun, Config: config, Unit: "hit rate of tokens"}, l.hitRate())
		return nil
	}}
}
