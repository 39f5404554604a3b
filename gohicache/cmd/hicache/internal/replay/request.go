package replay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hicache/hicache/ffi/ids"
	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/stamp"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/trace"
)

// request is one request of the stream while it is open: between begin, which matches and loads, and end, which publishes and releases.
// Its buffers are used again for later requests.
type request struct {
	row       *trace.Request
	namespace hicache.Namespace
	tokens    []uint32 // prompt, then the answer
	prompt    int      // tokens of the prompt
	digests   []stamp.Digest
	match     *hicache.Match
	lease     *hicache.Lease
	sequence  *hicache.Sequence // instead of match and lease when answers are stepped
	step      *hicache.Step     // open while the prompt is computed
	written   int               // tokens whose KV is in the pages, when answers are stepped
	shared    bool              // the prompt is published already
	hit       hicache.HitTokens
	submitted time.Time     // when Load returned
	submit    time.Duration // how long Load took

	virtual        []ids.VirtualPage
	checks, writes []item
	hostMoved      []bool // of one pool's reused pages
	moved          int    // of the pages to check, those that have changed their place
	pagesChecked   int    // and found right
	pagesMoved     int    // of these

	done     chan struct{} // closed when the forward has ended
	wrong    int
	first    *mismatch
	arrived  time.Duration // from submitted until the loads had arrived; 0 if nothing was loaded
	checked  int64         // bytes
	forwards error

	forwardTries int // forwards whose load failed
}

// virtualOf is the virtual page at a position; the name outlives the lease.
func (q *request) virtualOf(page int) ids.VirtualPage {
	if page < len(q.virtual) {
		return q.virtual[page]
	}
	return ids.NoVirtualPage
}

// prepare expands the row into tokens and chains their digests, page by page.
func (q *request) prepare(r *run, row *trace.Request) {
	q.row, q.namespace = row, namespaceOf(row)
	e := trace.Expander{BlockTokens: r.cfg.Source.BlockTokens(), Seed: r.cfg.Seed}
	if r.cfg.AsBlocks {
		q.tokens = e.PromptAsBlocks(q.tokens[:0], row)
		q.prompt = len(q.tokens)
	} else {
		q.tokens = e.Prompt(q.tokens[:0], row)
		q.prompt = len(q.tokens)
		q.tokens = e.Output(q.tokens, row)
	}
	q.digests = q.digests[:0]
	d := stamp.Root(row.Namespace)
	for part := range slices.Chunk(q.tokens, r.cfg.PageTokens) {
		d = stamp.Next(d, part)
		q.digests = append(q.digests, d)
	}
}

func namespaceOf(row *trace.Request) hicache.Namespace {
	if row.Namespace == "" {
		return hicache.Namespace{}
	}
	return hicache.Salt(row.Namespace)
}

// begin matches, loads and takes pages. On an error the request holds nothing.
func (q *request) begin(ctx context.Context, r *run, wait bool) error {
	if r.cfg.Stepped {
		return q.beginStepped(ctx, r, wait)
	}
	q.match = r.cache.MatchWith(q.tokens[:q.prompt], hicache.MatchOptions{Namespace: q.namespace, FullHit: r.cfg.AsBlocks})
	start := time.Now()
	lease, err := r.cache.Load(ctx, q.match, hicache.LoadOptions{Tokens: len(q.tokens), Wait: wait, WindowTailOnly: r.cfg.WindowsTail})
	q.submitted = time.Now()
	q.submit = q.submitted.Sub(start)
	if err != nil {
		q.match.Release()
		return err
	}
	q.lease, q.hit = lease, lease.Hit()
	return nil
}

// view is how a request's pages lie while something holds them.
type view struct {
	prefix  int // tokens
	virtual []ids.VirtualPage
	kernel  func(pool int) ([]ids.KernelID, error) // one a page
	upto    int                                    // tokens that are to be in the pages
}

// plan lists the pages to check and to write, and looks up in the ledger which of them have moved. It is the run's goroutine that does it.
func (q *request) plan(r *run) error {
	return q.planPages(r, view{q.lease.Prefix(), q.lease.VirtualPages(), func(pool int) ([]ids.KernelID, error) { return q.lease.PoolKernelIDs(pool), nil }, len(q.tokens)})
}

func (q *request) planPages(r *run, v view) error {
	q.checks, q.writes, q.moved = q.checks[:0], q.writes[:0], 0
	q.virtual = append(q.virtual[:0], v.virtual...)
	pageTokens := r.cfg.PageTokens
	reused, pages := v.prefix/pageTokens, (v.upto+pageTokens-1)/pageTokens
	for pool := range r.cache.Pools() {
		info := &r.cache.Pools()[pool]
		kernel, err := v.kernel(pool)
		if err != nil {
			return err
		}
		if info.Role == hicache.State {
			if q.sequence != nil {
				source := func(pool int) (ids.KernelID, bool) { return q.step.StateSource(0, pool) }
				if err := q.planStateStep(r, pool, kernel, source, v.prefix, v.upto); err != nil {
					return err
				}
				continue
			}
			q.planState(r, pool, kernel)
			continue
		}
		if len(kernel) < pages || len(q.virtual) < pages {
			return fmt.Errorf("pool %s: %d kernel ids and %d virtual pages for %d pages", info.Name, len(kernel), len(q.virtual), pages)
		}
		needed := neededFrom(info, v.prefix)
		q.findHostMoves(r, pool, reused)
		for i := range pages {
			sink := r.cache.IsSink(pool, kernel[i])
			switch {
			case i >= reused && !sink:
				q.addWrite(r, pool, i, kernel[i], v.upto)
			case i < reused && sink && i >= needed:
				return &missingPage{pool: pool, page: i, kernel: kernel[i], tokens: v.prefix}
			case i < reused && !sink:
				q.addCheck(r, pool, i, kernel[i], v.upto, q.hostMoved[i])
			}
		}
	}
	return nil
}

// item is the page at a position when the first upto tokens of the request are written.
func (q *request) item(r *run, pool, page int, kernel ids.KernelID, upto int) item {
	start := page * r.cfg.PageTokens
	end := min(start+r.cfg.PageTokens, upto)
	d := q.digests[page]
	if end < min(start+r.cfg.PageTokens, len(q.tokens)) { // a page that is not full yet
		before := stamp.Root(q.row.Namespace)
		if page > 0 {
			before = q.digests[page-1]
		}
		d = stamp.Next(before, q.tokens[start:end])
	}
	return item{pool: pool, page: page, kernel: kernel, digest: d, tokens: end - start}
}

func (q *request) addWrite(r *run, pool, page int, kernel ids.KernelID, upto int) {
	it := q.item(r, pool, page, kernel, upto)
	r.ledger.write(pool, q.virtual[page], r.cache.PhysicalPage(pool, kernel), it.digest, q.row.Index)
	q.writes = append(q.writes, it)
}

// addCheck lists a page for checking. movedElsewhere says that it moved on the tier that it came from.
func (q *request) addCheck(r *run, pool, page int, kernel ids.KernelID, upto int, movedElsewhere bool) {
	it := q.item(r, pool, page, kernel, upto)
	moved := r.ledger.reuse(pool, q.virtual[page], r.cache.PhysicalPage(pool, kernel), it.digest, q.row.Index)
	if r.wants(it.digest) {
		q.checks = append(q.checks, it)
		if moved || movedElsewhere {
			q.moved++
		}
	}
}

// neededFrom is the first page of a prefix that a pool must have: all of a FULL pool's, the last window's of an SWA pool.
func neededFrom(p *hicache.PoolInfo, prefix int) int {
	if p.Role == hicache.Full {
		return 0
	}
	return max(0, prefix-p.WindowTokens+1) / p.PageTokens
}

// planState handles a STATE pool. The checkpoint that the prefix ends with is checked; the request's own page gets the state at the last whole
// page of the request, computed from it.
func (q *request) planState(r *run, pool int, kernel []ids.KernelID) {
	reused := q.lease.Prefix() / r.cfg.PageTokens
	if source, ok := q.lease.StateSource(pool); ok && reused > 0 && r.wants(q.digests[reused-1]) {
		q.checks = append(q.checks, item{pool: pool, page: reused - 1, kernel: source, digest: q.digests[reused-1], tokens: 1})
	}
	if n := len(q.tokens) / r.cfg.PageTokens; n > reused && len(kernel) > 0 && !r.cache.IsSink(pool, kernel[0]) {
		q.writes = append(q.writes, item{pool: pool, page: n - 1, kernel: kernel[0], digest: q.digests[n-1], tokens: 1})
		q.lease.SetCheckpoint(n * r.cfg.PageTokens)
	}
}

// findHostMoves fills hostMoved: which reused pages were loaded from a place in the host arena other than the one where their host copy was
// first seen.
func (q *request) findHostMoves(r *run, pool, reused int) {
	q.hostMoved = append(q.hostMoved[:0], make([]bool, reused)...)
	if r.cfg.Host.IsZero() || reused == 0 || q.lease == nil {
		return
	}
	names := q.lease.HostPages(pool)
	names = names[:min(len(names), reused)]
	places, err := r.cache.HostPlaces(pool, names)
	if err != nil {
		return // the places are for counting only
	}
	fresh := q.hit.Device / r.cfg.PageTokens // pages behind it came from the host now
	for i, h := range names {
		if h != ids.NoHostPage && places[i] != ids.NoPhysicalPage {
			q.hostMoved[i] = r.ledger.hosted(pool, h, places[i], q.digests[i]) && i >= fresh
		}
	}
}

// missingPage is a hit on a page that is not there, or an own page that is gone.
type missingPage struct {
	pool, page int
	kernel     ids.KernelID
	tokens     int // that ought to be there
}

func (m *missingPage) Error() string {
	return fmt.Sprintf("the page has no place on the device, its kernel id is the sink's, although the first %d tokens ought to be there", m.tokens)
}

// blame makes a missing page the request's mismatch; false if err is something else.
func (q *request) blame(r *run, err error) bool {
	var missing *missingPage
	if !errors.As(err, &missing) {
		return false
	}
	it := q.item(r, missing.pool, missing.page, missing.kernel, missing.tokens)
	q.wrong, q.first, q.forwards = 1, &mismatch{it, missing.Error()}, nil
	return true
}

// forward checks what is reused and computes the rest, in a goroutine of its own.
func (q *request) forward(r *run) {
	defer close(q.done)
	if q.step != nil {
		defer q.step.Close()
	}
	loading := q.hit.Host+q.hit.Storage > 0
	if q.step != nil {
		q.compute(r, q.step, loading)
	} else {
		q.compute(r, q.lease, loading)
	}
}

// compute checks and writes what was planned.
func (q *request) compute(r *run, h holder, loading bool) {
	q.wrong, q.first, q.forwards = r.memory.check(q.checks, h, loading)
	if loading {
		q.arrived = time.Since(q.submitted)
	}
	if q.forwards != nil || q.first != nil {
		return
	}
	for i := range q.checks {
		q.checked += r.memory.bytes(&q.checks[i])
	}
	q.pagesChecked += len(q.checks)
	q.pagesMoved += q.moved
	q.forwards = r.memory.write(q.writes)
}

// end publishes what the forward computed and lets go of everything.
func (q *request) end(r *run) error {
	<-q.done
	defer q.release()
	if q.forwards != nil {
		return q.forwards
	}
	if q.first != nil {
		return errMismatch
	}
	if q.sequence != nil {
		return q.sequence.Finish()
	}
	if q.shared {
		return nil
	}
	return r.cache.Insert(q.lease, q.tokens)
}

// release lets go of everything; again does nothing.
func (q *request) release() {
	if q.sequence != nil {
		q.sequence.Abort() // nothing after Finish
		return
	}
	q.lease.Release()
	q.match.Release()
}

var errMismatch = errors.New("a reused page is not what it ought to be")
