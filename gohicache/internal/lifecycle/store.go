package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/events"
	"github.com/hicache/hicache/gohicache/internal/radix"
	"github.com/hicache/hicache/gohicache/metrics"
	"github.com/hicache/hicache/gohicache/storage"
)

// storer moves pages between the host arena and storage. One goroutine writes; reads run in the goroutine of the load that wants them.
type storer struct {
	c     *Core
	ctx   context.Context // ends with the cache, or when the store is detached
	stop  context.CancelFunc
	store *pageStore
	keys  *keychain

	jobs   chan *storeJob
	stages chan *stageJob // instead of jobs where there is no host tier
	end    chan struct{}

	mu        sync.Mutex
	queued    int    // FULL pages in jobs that are not done
	bytes     uint64 // of all their objects: pinned on the host
	promised  int    // paths that will be offered in a moment
	missed    bool   // paths were not stored for want of room in the queue, or because there was no store
	leaving   bool   // detached: nothing new is begun
	degraded  string // why storage is off, "" while it is on
	readOnly  bool   // full: reads go on
	fetching  map[storage.Key]chan struct{}
	reading   uint64 // bytes of the host arena that fetches fill
	behindNow int    // fetches that nobody waits for
	leftNow   int    // fetches whose loads have gone on without them
	readers   sync.WaitGroup
	leave     sync.Once
	left      chan struct{} // closed once run and readers have ended; made by ended
	change    signal
}

// The queue is bounded in jobs, in pages by StoreQueueMax, and by a share of the host arena: what waits is pinned there, and a slow store must not
// cost the host tier its room.
const (
	jobsMax        = 4096
	hostShareQueue = 4
)

// storeJob is a write of pages that the tree keeps on the host until it is done.
type storeJob struct {
	radix.Store
	hashes []radix.Hash // of the pages at Store.At
	bytes  uint64
}

// roomFor says whether the queue takes that much more. An empty queue takes anything. mu is held.
func (s *storer) roomFor(pages int, bytes uint64) bool {
	return s.queued == 0 || s.queued+pages <= s.c.cfg.StoreQueueMax && s.bytes+bytes <= s.c.cfg.HostBytes/hostShareQueue
}

// bytesOf is the size of a job's objects.
func (s *storer) bytesOf(job *radix.Store) uint64 {
	total := uint64(len(job.Full)) * s.c.host[s.c.full].PageBytes
	for p := range job.Windows {
		for _, h := range job.Windows[p] {
			if h != ids.NoHostPage {
				total += s.c.host[p].PageBytes
			}
		}
		for _, h := range job.States[p] {
			if h != ids.NoHostPage {
				total += s.c.host[p].PageBytes
			}
		}
	}
	return total
}

// newStorer starts to use a store; ready is what it said of itself.
func newStorer(c *Core, store storage.Store, ready error) *storer {
	pages := newPageStore(store, &c.cfg, c.host)
	s := &storer{c: c, store: pages, keys: newKeychain(&c.cfg, pages.forms), jobs: make(chan *storeJob, jobsMax), stages: make(chan *stageJob, jobsMax), end: make(chan struct{}),
		fetching: map[storage.Key]chan struct{}{}}
	s.ctx, s.stop = context.WithCancel(c.background)
	if ready != nil {
		s.degraded = fmt.Sprintf("storage is off: %v", ready)
		c.log.Error("hicache: the cache goes on without storage", "store", s.store.Name(), "error", ready)
	}
	go func() {
		s.run()
		close(s.end)
	}()
	return s
}

// promise says that an offer follows, so that whoever drains the queue in between waits for it. False, and none may, of a store that is leaving.
func (s *storer) promise() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving {
		return false
	}
	s.promised++
	return true
}

// offer takes over a share of a path whose pages have just reached the host, and queues what storage lacks of it. Every offer was promised.
func (s *storer) offer(path *pin) {
	defer func() {
		path.release()
		s.mu.Lock()
		s.promised--
		s.mu.Unlock()
		s.change.ring()
	}()
	s.mu.Lock()
	off := s.degraded != "" || s.readOnly || !s.roomFor(1, 0)
	s.missed = s.missed || off
	s.mu.Unlock()
	job := new(storeJob)
	if off || !s.c.tree.BeginStore(path.id, &job.Store) {
		return
	}
	n := len(job.Full)
	last := job.At[n-1] + 1
	hashes, err := s.c.tree.Hashes(path.id, 0, last, nil)
	if err != nil { // the path was dropped meanwhile: nobody needs it stored
		s.gone("hashes", err)
		s.c.bug("finish store", s.c.tree.FinishStore(job.ID, 0))
		return
	}
	for _, at := range job.At {
		job.hashes = append(job.hashes, hashes[at])
	}
	s.mu.Lock()
	job.bytes = s.bytesOf(&job.Store)
	room := s.roomFor(n, job.bytes)
	if room {
		s.queued += n
		s.bytes += job.bytes
	}
	s.missed = s.missed || !room
	s.mu.Unlock()
	if !room {
		s.c.count.storeSkipped.Add(uint64(n))
		s.c.bug("finish store", s.c.tree.FinishStore(job.ID, 0))
		return
	}
	select {
	case s.jobs <- job:
	default:
		s.done(job, 0)
	}
}

// gone reports an error of the tree about a path, unless it only says that the path was dropped.
func (s *storer) gone(what string, err error) {
	if !errors.Is(err, radix.ErrStale) && !errors.Is(err, radix.ErrGap) {
		s.c.bug(what, err)
	}
}

// secondChance reports, now and then, that there is room again after paths had to be skipped.
func (s *storer) secondChance() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.missed || !s.roomFor(s.c.cfg.StoreQueueMax/2, s.c.cfg.HostBytes/hostShareQueue/2) || s.degraded != "" || s.readOnly || s.leaving {
		return false
	}
	s.promised++
	return true
}

// run writes jobs until the cache closes.
func (s *storer) run() {
	for {
		select {
		case job := <-s.jobs:
			s.write(job)
		case job := <-s.stages:
			s.writeStaged(job)
		case <-s.ctx.Done():
			s.sweep()
			return
		}
	}
}

// sweep gives up what is queued.
func (s *storer) sweep() {
	for {
		select {
		case job := <-s.jobs:
			s.done(job, 0)
		case job := <-s.stages:
			s.unstage(job)
			s.mu.Lock()
			s.queued -= len(job.Full)
			s.bytes -= job.bytes
			s.mu.Unlock()
		default:
			return
		}
	}
}

func (s *storer) done(job *storeJob, n int) {
	s.c.bug("finish store", s.c.tree.FinishStore(job.ID, n))
	s.c.teller.storage(events.Stored, s.c.full, job.hashes[:n]...)
	s.c.count.storedPages.Add(uint64(n))
	s.c.count.storeSkipped.Add(uint64(len(job.Full) - n))
	s.c.drainOrphans() // Before the store looks idle: a page that only the job held is nobody's until then.
	s.mu.Lock()
	s.queued -= len(job.Full)
	s.bytes -= job.bytes
	s.missed = s.missed || n < len(job.Full) // tried again when the path is next used
	s.mu.Unlock()
	s.c.room.ring()
	s.change.ring()
}

// write stores a job batch by batch; the pages up to the first that failed count as stored.
func (s *storer) write(job *storeJob) {
	stored := 0
	for from := 0; from < len(job.Full); from += s.c.cfg.StorageBatch {
		to := min(from+s.c.cfg.StorageBatch, len(job.Full))
		n, err := s.writeBatch(job, from, to)
		stored += n
		if err != nil && s.ctx.Err() == nil {
			s.fault("write", err)
		}
		if n < to-from || s.ctx.Err() != nil {
			break
		}
	}
	s.done(job, stored)
}

// writeBatch stores positions [from, to) of a job and returns how many from the start are whole in storage.
func (s *storer) writeBatch(job *storeJob, from, to int) (int, error) {
	var b objects
	defer b.release(s.c)
	if err := b.add(s, s.c.full, job.Full[from:to], job.hashes[from:to], false); err != nil {
		return 0, err
	}
	for _, p := range s.c.windows {
		if err := b.add(s, p, job.Windows[p][from:to], job.hashes[from:to], false); err != nil {
			return 0, err
		}
	}
	for _, p := range s.c.states {
		if err := b.add(s, p, job.States[p][from:to], job.hashes[from:to], false); err != nil {
			return 0, err
		}
	}
	errs := make([]error, len(b.keys))
	defer s.c.ended(s.c.began(ffi.ActivityStorageWrite, len(b.keys)))
	if err := guard(func() error { return s.store.put(s.ctx, b.pool, b.keys, b.bytes, errs) }); err != nil {
		return 0, err
	}
	good := to - from
	var first error
	for i, err := range errs {
		if err == nil {
			s.c.count.storageWrite.Add(uint64(len(b.bytes[i])))
			continue
		}
		if first == nil {
			first = err
		}
		good = min(good, b.at[i])
	}
	return good, first
}

// guard runs a call of a backend; a panic there is a fault, not the end of the program.
func guard(call func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the storage backend panicked: %v", r)
		}
	}()
	return call()
}

// fault counts a failed operation and turns off what cannot work any more.
func (s *storer) fault(op string, err error) {
	s.c.count.storageFaults.Add(1)
	full, gone := errors.Is(err, storage.ErrFull), errors.Is(err, storage.ErrUnavailable)
	s.mu.Lock()
	first := s.degraded == "" && !s.readOnly
	switch {
	case gone:
		s.degraded = fmt.Sprintf("storage is off: %v", err)
	case full:
		s.readOnly = true
	}
	s.mu.Unlock()
	if !full && !gone {
		s.c.log.Warn("hicache: storage operation failed", "operation", op, "store", s.store.Name(), "error", err)
	} else if first {
		s.c.log.Error("hicache: storage is given up", "operation", op, "store", s.store.Name(), "error", err)
	}
}

func (s *storer) off() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.degraded != ""
}

func (s *storer) idle() bool {
	if s == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queued == 0 && s.promised == 0 && len(s.fetching) == 0
}

// drain waits until the queue is empty.
func (s *storer) drain(ctx context.Context) error {
	for {
		change := s.change.wait()
		s.mu.Lock()
		busy := s.queued + s.promised
		s.mu.Unlock()
		if busy == 0 {
			return nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *storer) stats(out *metrics.Stats) {
	s.mu.Lock()
	out.StoreQueueNow, out.Degraded = int64(s.queued), s.degraded
	if s.readOnly && s.degraded == "" {
		out.Degraded = "storage takes no more pages: it is full"
	}
	s.mu.Unlock()
	out.Evicted.Storage = uint64(s.store.Stats().Evicted)
}

// missing sorts an error of one object, of a pool and with a hash: a miss, a corrupt object, or a fault. Each is counted; none is served.
func (s *storer) missing(err error, pool int, hash radix.Hash) {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.c.count.storageMisses.Add(1)
	case errors.Is(err, storage.ErrCorrupt):
		s.c.count.storageCorrupt.Add(1)
		s.c.teller.storage(events.Removed, pool, hash)
		s.c.log.Error("hicache: stored page is corrupt, not served", "store", s.store.Name(), "error", err)
	default:
		s.fault("read", err)
	}
}
