package replay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hicache/hicache/ffi/ids"
	hicache "github.com/hicache/hicache/gohicache"
)

// Stepped answers: the open requests are sequences that decode together, a page's worth of tokens a step. Between steps nothing holds their
// pages, so compaction moves them; each step therefore checks the page that it goes on filling, and all of a sequence's own pages are
// checked before it is published.

// beginStepped starts a sequence and opens the step in which its prompt is computed.
func (q *request) beginStepped(ctx context.Context, r *run, wait bool) error {
	start := time.Now()
	s, err := r.cache.Begin(ctx, q.tokens[:q.prompt], hicache.SequenceOptions{Namespace: q.namespace, FullHit: r.cfg.AsBlocks, Wait: wait, WindowTailOnly: r.cfg.WindowsTail})
	q.submitted = time.Now()
	q.submit = q.submitted.Sub(start)
	if err != nil {
		return err
	}
	q.sequence, q.hit, q.written, q.shared = s, s.Hit(), q.prompt, false
	if q.step, err = r.cache.Step(ctx, 0, []hicache.Growth{{Sequence: s}}, false); err != nil {
		s.Abort()
		return err
	}
	return nil
}

// planPrompt is plan for a sequence's first step.
func (q *request) planPrompt(r *run) error {
	return q.planPages(r, view{q.sequence.Prefix(), q.sequence.VirtualPages(), tableOf(q.step, 0), q.prompt})
}

// tableOf gives the page table of one sequence of a step's batch.
func tableOf(step *hicache.Step, at int) func(int) ([]ids.KernelID, error) {
	return func(pool int) ([]ids.KernelID, error) {
		start, kernel, err := step.Tables(pool)
		if err != nil {
			return nil, err
		}
		return kernel[start[at]:start[at+1]], nil
	}
}

// round takes one step of the whole batch. Sequences whose answer is complete end instead, in the order of their begin.
func (r *run) round(ctx context.Context) error {
	for _, q := range r.open {
		<-q.done
		if q.forwards == nil && q.first == nil && !q.shared { // others may use the prompt while the answer grows
			q.forwards, q.shared = q.sequence.Publish(q.prompt), true
			if err := r.quiet(ctx); err != nil {
				return err
			}
		}
	}
	for i, q := range r.open {
		if q.forwards != nil || q.first != nil || q.written == len(q.tokens) {
			r.open = slices.Delete(r.open, i, i+1)
			return r.settle(ctx, q, r.endStepped(ctx, q))
		}
	}
	batch := r.open
	limited, cancel := context.WithTimeout(ctx, roomTimeout)
	defer cancel()
	for {
		step, err := r.cache.Step(limited, 0, r.growth(batch), len(batch) == 1)
		if err == nil {
			return r.decode(step, batch)
		}
		if len(batch) == 1 {
			return r.outgrown(ctx, batch[0], err)
		}
		if !errors.Is(err, hicache.ErrNoCapacity) {
			return fmt.Errorf("a step of %d sequences: %w", len(batch), err)
		}
		r.result.NoCapacity++ // the youngest gives way: it begins again when the others are done
		q := batch[len(batch)-1]
		batch = batch[:len(batch)-1]
		r.open = batch
		q.release()
		r.result.Preempted++
		r.preempted = append(r.preempted, q)
	}
}

// outgrown ends the only open sequence, which found no room for its next step because of err.
func (r *run) outgrown(ctx context.Context, q *request, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		if step, why := r.cache.Step(ctx, 0, r.growth(r.open), false); why != nil { // asked without a wait it says what is lacking
			err = fmt.Errorf("no room after %v although no other request is open: %w", roomTimeout, why)
		} else {
			return r.decode(step, r.open)
		}
	}
	r.open = nil
	q.release()
	return fmt.Errorf("request %d (%d tokens), after %d: %w", q.row.Index, len(q.tokens), q.written, err)
}

// abandon gives up what is open: no answer is finished.
func (r *run) abandon() {
	for _, q := range r.open {
		<-q.done
		q.release()
	}
	r.open, r.preempted = nil, nil
}

// growth is what each sequence of a batch computes next.
func (r *run) growth(batch []*request) []hicache.Growth {
	g := make([]hicache.Growth, len(batch))
	for i, q := range batch {
		g[i] = hicache.Growth{Sequence: q.sequence, NewTokens: min(r.cfg.PageTokens, len(q.tokens)-q.written)}
	}
	return g
}

// decode computes the new tokens of a batch in an open step.
func (r *run) decode(step *hicache.Step, batch []*request) error {
	defer step.Close()
	for i, q := range batch {
		n := min(r.cfg.PageTokens, len(q.tokens)-q.written)
		source := func(pool int) (ids.KernelID, bool) { return step.StateSource(i, pool) }
		if err := q.planStep(r, tableOf(step, i), source, n); q.blame(r, err) {
			continue // round ends it
		} else if err != nil {
			return err
		}
		q.compute(r, step, false)
		if q.forwards != nil || q.first != nil {
			continue
		}
		if err := q.sequence.Append(q.tokens[q.written : q.written+n]...); err != nil {
			return err
		}
		q.written += n
	}
	step.Close()
	return r.idle(context.Background())
}

// planStep lists the pages that n more tokens touch: a page that is partly full is checked for what it holds, then written anew.
func (q *request) planStep(r *run, table func(int) ([]ids.KernelID, error), source func(int) (ids.KernelID, bool), n int) error {
	q.checks, q.writes, q.moved = q.checks[:0], q.writes[:0], 0
	q.virtual = append(q.virtual[:0], q.sequence.VirtualPages()...)
	for pool := range r.cache.Pools() {
		kernel, err := table(pool)
		if err != nil {
			return err
		}
		if r.cache.Pools()[pool].Role == hicache.State {
			if err := q.planStateStep(r, pool, kernel, source, q.written, q.written+n); err != nil {
				return err
			}
			continue
		}
		first, last := q.written/r.cfg.PageTokens, (q.written+n-1)/r.cfg.PageTokens
		if q.written%r.cfg.PageTokens != 0 && !r.cache.IsSink(pool, kernel[first]) {
			q.addCheck(r, pool, first, kernel[first], q.written, false)
		}
		for page := first; page <= last; page++ {
			if r.cache.IsSink(pool, kernel[page]) {
				return &missingPage{pool: pool, page: page, kernel: kernel[page], tokens: q.written + n}
			}
			q.addWrite(r, pool, page, kernel[page], q.written+n)
		}
	}
	return nil
}

// planStateStep handles a STATE pool in a step from have tokens to upto: what the sequence goes on from is checked, and its own page gets the state
// after the step.
func (q *request) planStateStep(r *run, pool int, kernel []ids.KernelID, source func(int) (ids.KernelID, bool), have, upto int) error {
	if len(kernel) == 0 || r.cache.IsSink(pool, kernel[0]) {
		return &missingPage{pool: pool, tokens: upto}
	}
	from, other := source(pool)
	switch {
	case other:
		q.checkState(r, pool, from, have)
	case have > 0 && have == q.sequence.Prefix() && q.written == q.prompt && have < q.prompt:
		return &missingPage{pool: pool, kernel: kernel[0], tokens: have} // a prefix without the state at its end
	case have > 0:
		q.checkState(r, pool, kernel[0], have)
	}
	if upto > have {
		it := q.item(r, pool, (upto-1)/r.cfg.PageTokens, kernel[0], upto)
		it.tokens = 1
		q.writes = append(q.writes, it)
	}
	return nil
}

// checkState lists a state page that must hold the state after so many tokens.
func (q *request) checkState(r *run, pool int, kernel ids.KernelID, tokens int) {
	it := q.item(r, pool, (tokens-1)/r.cfg.PageTokens, kernel, tokens)
	if it.tokens = 1; r.wants(it.digest) {
		q.checks = append(q.checks, it)
	}
}

// endStepped checks all pages that the sequence wrote, where they are now, and publishes them.
func (r *run) endStepped(ctx context.Context, q *request) error {
	if q.forwards != nil || q.first != nil || r.cfg.Verify == VerifyOff {
		return q.end(r)
	}
	step, err := r.cache.Step(ctx, 0, []hicache.Growth{{Sequence: q.sequence}}, true)
	if err != nil {
		q.release()
		return err
	}
	defer step.Close()
	q.checks, q.writes, q.moved = q.checks[:0], q.writes[:0], 0
	q.virtual = append(q.virtual[:0], q.sequence.VirtualPages()...)
	for pool := range r.cache.Pools() {
		kernel, err := tableOf(step, 0)(pool)
		if err != nil {
			q.release()
			return err
		}
		if r.cache.Pools()[pool].Role == hicache.State {
			if !r.cache.IsSink(pool, kernel[0]) {
				q.checkState(r, pool, kernel[0], q.written)
			}
			continue
		}
		for page := q.sequence.Prefix() / r.cfg.PageTokens; page < len(q.digests); page++ {
			if !r.cache.IsSink(pool, kernel[page]) {
				q.addCheck(r, pool, page, kernel[page], q.written, false)
			}
		}
	}
	q.compute(r, step, false)
	step.Close()
	return q.end(r)
}
