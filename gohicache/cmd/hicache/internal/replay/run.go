package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/stamp"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/trace"
)

const (
	failedLoadRetries = 3                // of one request whose load failed
	roomTimeout       = 30 * time.Second // for room when nothing is open but copies may still hold pages
	flushTimeout      = 60 * time.Second // for back-ups and stores at the end
	hostIdleEvery     = 16               // idle points between compactions of the host arena
)

// run is one replay. Everything but request.forward belongs to the goroutine of Run.
type run struct {
	cfg    *Config
	cache  *hicache.Cache
	memory memory
	ledger *ledger
	result *Result
	watch  *sampler
	open   []*request // oldest first
	spare  []*request
	// preempted requests begin again before the stream goes on.
	preempted []*request
	idles     int
	start     time.Time
}

// Run replays the stream. When ctx ends the open requests are finished and the result is marked partial. The result is never nil; the error says
// why the run could not go on (a mismatch is in the result, not an error).
func Run(ctx context.Context, cfg *Config, s Sizing) (*Result, error) {
	r := &run{cfg: cfg, result: newResult(cfg, s), start: time.Now()}
	o, err := cfg.Options(s)
	if err != nil {
		return r.result, err
	}
	if r.cache, err = hicache.Open(ctx, o); err != nil {
		return r.result, err
	}
	if r.memory, err = newMemory(r.cache, cfg.Backend); err != nil {
		return r.result, errors.Join(err, r.cache.Close())
	}
	if cfg.wrap != nil {
		r.memory = cfg.wrap(r.memory)
	}
	r.ledger = newLedger(len(r.cache.Pools()))
	r.watch = newSampler(r)
	err = r.loop(ctx)
	return r.result, errors.Join(err, r.finish(ctx))
}

// loop begins requests in order, with up to Concurrency open at once, and ends the oldest when there are more.
func (r *run) loop(ctx context.Context) error {
	for n := 0; r.cfg.Limit == 0 || n < r.cfg.Limit; n++ {
		row, err := r.cfg.Source.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return errors.Join(err, r.drain(ctx))
		}
		for len(r.open) >= r.cfg.Concurrency {
			if err := r.advance(ctx); interrupted(ctx, err) {
				break
			} else if err != nil {
				return errors.Join(err, r.drain(ctx))
			}
		}
		if ctx.Err() != nil {
			r.result.Partial = true
			break
		}
		r.publishOpen()
		err = r.resume(ctx)
		if err == nil {
			err = r.begin(ctx, row)
		}
		if interrupted(ctx, err) {
			r.result.Partial = true
			break
		} else if err != nil {
			return errors.Join(err, r.drain(ctx))
		}
		if r.result.Mismatches > 0 {
			break
		}
		r.watch.tick(false)
	}
	return r.drain(ctx)
}

// interrupted says that err is only the end of ctx.
func interrupted(ctx context.Context, err error) bool {
	return errors.Is(err, context.Canceled) && ctx.Err() != nil
}

// begin opens one request. One that does not fit waits for the oldest open one to end, so the order stays.
func (r *run) begin(ctx context.Context, row *trace.Request) error {
	q := r.take()
	q.prepare(r, row)
	if q.prompt == 0 { // a prompt shorter than a block, as blocks
		r.result.Requests++
		r.spare = append(r.spare, q)
		return nil
	}
	if err := r.beginWithRetry(ctx, q, failedLoadRetries); err != nil {
		return fmt.Errorf("request %d (%d tokens): %w", row.Index, len(q.tokens), err)
	}
	return nil
}

// beginWithRetry gets the request its pages and starts its forward. retries is how often a failed load may be tried again.
func (r *run) beginWithRetry(ctx context.Context, q *request, retries int) error {
	q.done = make(chan struct{})
	q.arrived, q.checked, q.pagesChecked, q.pagesMoved = 0, 0, 0, 0
	q.wrong, q.first, q.forwards, q.shared = 0, nil, nil, false
	for {
		err := q.begin(ctx, r, false)
		if errors.Is(err, hicache.ErrNoCapacity) {
			r.result.NoCapacity++
			if len(r.open) > 0 {
				if err := r.advance(ctx); err != nil {
					return err
				}
				continue
			}
			err = r.waitForRoom(ctx, q)
		}
		if errors.Is(err, hicache.ErrTransfer) && retries > 0 {
			retries--
			continue
		}
		if err != nil {
			return err
		}
		break
	}
	plan := q.plan
	if r.cfg.Stepped {
		plan = q.planPrompt
	}
	err := plan(r)
	if err == nil {
		r.open = append(r.open, q)
		go q.forward(r)
		return nil
	}
	if q.step != nil {
		q.step.Close()
	}
	if q.blame(r, err) {
		close(q.done)
		r.open = append(r.open, q) // ends as a mismatch
		return nil
	}
	q.release()
	return err
}

// waitForRoom is for a request that does not fit although nothing else is open: copies in flight may still hold what it needs.
func (r *run) waitForRoom(ctx context.Context, q *request) error {
	ctx, cancel := context.WithTimeout(ctx, roomTimeout)
	defer cancel()
	err := q.begin(ctx, r, true)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no room after %v although no other request is open: %w", roomTimeout, err)
	}
	return err
}

// advance makes room among the open requests: the oldest ends, or with stepped answers the batch takes a step.
func (r *run) advance(ctx context.Context) error {
	if r.cfg.Stepped {
		return r.round(ctx)
	}
	return r.endOldest(ctx)
}

// publishOpen publishes the open requests before the next one looks for its prefix, where hit rates are defined so: as blocks, a request is open
// while the next ones run, but its prompt is known to them.
func (r *run) publishOpen() {
	if !r.cfg.AsBlocks {
		return
	}
	for _, q := range r.open {
		if <-q.done; q.forwards == nil && q.first == nil && !q.shared {
			q.forwards, q.shared = r.cache.Insert(q.lease, q.tokens), true
		}
	}
}

// endOldest waits for the oldest open request and publishes it; then the server is idle for a moment.
func (r *run) endOldest(ctx context.Context) error {
	q := r.open[0]
	r.open = r.open[1:]
	return r.settle(ctx, q, q.end(r))
}

// settle accounts for a request that has ended with err.
func (r *run) settle(ctx context.Context, q *request, err error) error {
	switch {
	case errors.Is(err, errMismatch):
		r.result.Mismatches += int64(q.wrong)
		if r.result.Mismatch == "" {
			r.result.Mismatch = r.explain(q)
		}
	case errors.Is(err, hicache.ErrTransfer): // its load failed: nothing was published, it is begun again
		r.result.FailedLoads++
		r.result.FailedLoad = fmt.Sprintf("request %d: %v", q.row.Index, err)
		if q.forwardTries++; q.forwardTries > failedLoadRetries {
			return fmt.Errorf("request %d: its load failed %d times: %w", q.row.Index, q.forwardTries, err)
		}
		return r.beginWithRetry(ctx, q, failedLoadRetries)
	case err != nil:
		return fmt.Errorf("request %d: %w", q.row.Index, err)
	default:
		r.count(q)
	}
	r.spare = append(r.spare, q)
	return r.idle(ctx)
}

func (r *run) count(q *request) {
	res := r.result
	res.Requests++
	res.PromptTokens += int64(q.prompt)
	res.OutputTokens += int64(len(q.tokens) - q.prompt)
	res.HitTokens.Device += int64(q.hit.Device)
	res.HitTokens.Host += int64(q.hit.Host)
	res.HitTokens.Storage += int64(q.hit.Storage)
	block := r.cfg.Source.BlockTokens()
	res.blocks += int64((q.prompt + block - 1) / block)
	res.hitBlocks += int64(q.hit.Total() / block)
	res.PagesVerified += int64(q.pagesChecked)
	res.RelocatedPagesVerified += int64(q.pagesMoved)
	res.BytesVerified += q.checked
	r.watch.latency(q)
}

// idle is the server's idle point: pages that left holes behind are packed, within a budget.
func (r *run) idle(ctx context.Context) error {
	if err := r.quiet(ctx); err != nil {
		return err
	}
	if r.cfg.IdlePages <= 0 {
		return nil
	}
	if _, err := r.cache.Compact(hicache.CompactBudget{Pages: r.cfg.IdlePages}); err != nil {
		return fmt.Errorf("compact the device arena: %w", err)
	}
	if r.idles++; r.idles%hostIdleEvery == 0 && !r.cfg.Host.IsZero() {
		if _, err := r.cache.Compact(hicache.CompactBudget{Tier: hicache.TierHost, Pages: r.cfg.IdlePages}); err != nil {
			return fmt.Errorf("compact the host arena: %w", err)
		}
	}
	return nil
}

// resume begins preempted requests again, oldest first, as far as fewer than Concurrency are open.
func (r *run) resume(ctx context.Context) error {
	slices.SortFunc(r.preempted, func(a, b *request) int { return a.row.Index - b.row.Index })
	for len(r.preempted) > 0 {
		q := r.preempted[0]
		for len(r.open) >= r.cfg.Concurrency {
			if err := r.advance(ctx); err != nil {
				return err
			}
		}
		r.preempted = slices.DeleteFunc(r.preempted, func(p *request) bool { return p == q })
		if err := r.beginWithRetry(ctx, q, failedLoadRetries); err != nil {
			return fmt.Errorf("request %d, begun again: %w", q.row.Index, err)
		}
	}
	return nil
}

// quiet waits until no copy is in flight, where the run is to repeat exactly.
func (r *run) quiet(ctx context.Context) error {
	if !r.cfg.Settle {
		return nil
	}
	if err := r.cache.Flush(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("flush: %w", err)
	}
	return nil
}

// drain ends all open requests.
func (r *run) drain(ctx context.Context) error {
	var first error
	for len(r.open)+len(r.preempted) > 0 {
		if r.cfg.Stepped && ctx.Err() != nil { // answers are not finished once the run is interrupted
			r.result.Partial = true
			r.abandon()
			break
		}
		if len(r.open) == 0 {
			if first != nil || ctx.Err() != nil || r.result.Mismatches > 0 {
				break // what was preempted is not part of a partial result
			}
			if first = r.resume(ctx); first != nil {
				continue
			}
		}
		open := len(r.open)
		if err := r.advance(ctx); interrupted(ctx, err) {
			r.result.Partial = true
		} else if err != nil {
			if first == nil {
				first = err
			}
			if len(r.open) >= open { // the next step would fail in the same way
				r.abandon()
			}
		}
	}
	return first
}

// explain writes the report of a mismatch: where, what, and the page's last events.
func (r *run) explain(q *request) string {
	m := q.first
	info := &r.cache.Pools()[m.pool]
	virtual := q.virtualOf(m.page)
	return fmt.Sprintf("request %d, page %d of %d, pool %s\n  %s\n  virtual page %d, physical page %d, kernel id %d\n  content digest %016x (namespace %q, tokens 0 to %d)\n  last events of that page, oldest first:\n%s",
		q.row.Index, m.page, len(q.digests), info.Name, m.detail, virtual, r.cache.PhysicalPage(m.pool, m.kernel), m.kernel,
		uint64(m.digest), q.row.Namespace, min((m.page+1)*r.cfg.PageTokens, len(q.tokens)), r.ledger.history(m.pool, virtual, m.digest))
}

// wants says whether a reused page is checked.
func (r *run) wants(d stamp.Digest) bool {
	switch r.cfg.Verify {
	case VerifyAll:
		return true
	case VerifySample:
		return uint64(d)*0x9e3779b97f4a7c15 < math.MaxUint64/sampleOneIn
	}
	return false
}

func (r *run) take() *request {
	if n := len(r.spare); n > 0 {
		q := r.spare[n-1]
		r.spare = r.spare[:n-1]
		q.forwardTries = 0
		return q
	}
	return &request{}
}

// finish waits for what is still being written, checks every invariant, reads the counters and closes the cache.
func (r *run) finish(ctx context.Context) error {
	wall := time.Since(r.start)
	limit := flushTimeout
	if r.result.Partial {
		limit = 5 * time.Second
	}
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	flushErr := r.cache.Flush(flush)
	if errors.Is(flushErr, context.DeadlineExceeded) {
		flushErr = nil // what was not written in time is not needed
	}
	verifyErr := r.cache.Verify()
	r.result.VerifyOK = verifyErr == nil
	if verifyErr != nil {
		r.result.VerifyReport = verifyErr.Error()
	}
	r.watch.tick(true)
	r.result.take(r.cache.Stats(), wall)
	return errors.Join(flushErr, r.cache.Close())
}
