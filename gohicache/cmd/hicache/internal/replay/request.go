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
	hit       hicache.HitTokens
	submitted time.Time     // when Load returned
	submit    time.Duration // how long Load took

	virtual        []ids.VirtualPage
	checks, writes []item
	hostMoved      []bool // of one pool's reused pages
	moved          int    // of the pages to check, those that have changed their place

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

// plan lists the pages to check and to write, and looks up in the ledger which of them have moved. It is the run's goroutine that does it.
func (q *request) plan(r *run) error {
	q.checks, q.writes, q.moved = q.checks[:0], q.writes[:0], 0
	pageTokens := r.cfg.PageTokens
	reused := q.lease.Prefix() / pageTokens
	q.virtual = append(q.virtual[:0], q.lease.VirtualPages()...)
	virtual := q.virtual
	for pool := range r.cache.Pools() {
		info := &r.cache.Pools()[pool]
		kernel := q.lease.PoolKernelIDs(pool)
		if info.Role == hicache.State {
			q.planState(r, pool, kernel)
			continue
		}
		if len(kernel) < len(q.digests) || len(virtual) < len(q.digests) {
			return fmt.Errorf("pool %s: %d kernel ids and %d virtual pages for %d pages", info.Name, len(kernel), len(virtual), len(q.digests))
		}
		needed := neededFrom(info, q.lease.Prefix())
		q.findHostMoves(r, pool, reused)
		for i, d := range q.digests {
			it := item{pool: pool, page: i, kernel: kernel[i], digest: d, tokens: min(pageTokens, len(q.tokens)-i*pageTokens)}
			sink := r.cache.IsSink(pool, kernel[i])
			switch {
			case i >= reused && !sink:
				r.ledger.write(pool, virtual[i], r.cache.PhysicalPage(pool, kernel[i]), d, q.row.Index)
				q.writes = append(q.writes, it)
			case i < reused && sink && i >= needed:
				return &missingPage{pool: info.Name, page: i, virtual: virtual[i], prefix: q.lease.Prefix()}
			case i < reused && !sink:
				moved := r.ledger.reuse(pool, virtual[i], r.cache.PhysicalPage(pool, kernel[i]), d, q.row.Index)
				if r.wants(d) {
					q.checks = append(q.checks, it)
					if moved || q.hostMoved[i] {
						q.moved++
					}
				}
			}
		}
	}
	return nil
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
	if r.cfg.Host.IsZero() || reused == 0 {
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

// missingPage is a hit on a page that is not there.
type missingPage struct {
	pool         string
	page, prefix int
	virtual      ids.VirtualPage
}

func (m *missingPage) Error() string {
	return fmt.Sprintf("pool %s: page %d (virtual page %d) of a hit of %d tokens has no page on the device: its kernel id is the sink's", m.pool, m.page, m.virtual, m.prefix)
}

// forward checks what is reused and computes the rest, in a goroutine of its own.
func (q *request) forward(r *run) {
	defer close(q.done)
	loading := q.hit.Host+q.hit.Storage > 0
	q.wrong, q.first, q.forwards = r.memory.check(q.checks, q.lease, loading)
	if q.forwards == nil && loading { // the tree must know of the arrival before anything is published behind it
		q.forwards = q.lease.Wait(context.Background())
		q.arrived = time.Since(q.submitted)
	}
	if q.forwards != nil || q.first != nil {
		return
	}
	for i := range q.checks {
		q.checked += r.memory.bytes(&q.checks[i])
	}
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
	return r.cache.Insert(q.lease, q.tokens)
}

func (q *request) release() {
	q.lease.Release()
	q.match.Release()
}

var errMismatch = errors.New("a reused page is not what it ought to be")
