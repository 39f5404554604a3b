package events

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ErrClosed: the stream, or the cache it belongs to, was closed.
var ErrClosed = errors.New("events: stream is closed")

// Feed is the cache's end of its streams. Publish is called by the cache alone, one call at a time.
type Feed struct {
	epoch    uint64
	clock    func() time.Time
	snapshot func(begin func(), tell func(*Event))
	open     atomic.Int32

	mu      sync.Mutex
	seq     uint64
	streams []*Stream
	closed  bool
	hashes  []int64  // tail of the memory that events of late share, so that consecutive ones can be joined
	tokens  []uint32 //
	gaps    atomic.Uint64
}

// NewFeed makes the feed of a cache. snapshot must call begin and then tell for everything that is there, parents first, with no Publish in
// between.
func NewFeed(epoch uint64, clock func() time.Time, snapshot func(begin func(), tell func(*Event))) *Feed {
	return &Feed{epoch: epoch, clock: clock, snapshot: snapshot}
}

// Listening reports whether anybody reads; without, Publish need not be called.
func (f *Feed) Listening() bool { return f.open.Load() > 0 }

// Gaps counts how often a stream lost changes.
func (f *Feed) Gaps() uint64 { return f.gaps.Load() }

// Seq is the number of the last change.
func (f *Feed) Seq() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seq
}

const arenaPages = 4096

// copyOf takes e's slices into memory of the feed.
func (f *Feed) copyOf(e *Event) Event {
	c := *e
	if cap(f.hashes)-len(f.hashes) < len(e.Hashes) {
		f.hashes = make([]int64, 0, max(arenaPages, len(e.Hashes)))
	}
	n := len(f.hashes)
	f.hashes = append(f.hashes, e.Hashes...)
	c.Hashes = f.hashes[n:]
	if cap(f.tokens)-len(f.tokens) < len(e.Tokens) {
		f.tokens = make([]uint32, 0, max(arenaPages*e.PageTokens, len(e.Tokens)))
	}
	n = len(f.tokens)
	f.tokens = append(f.tokens, e.Tokens...)
	c.Tokens, c.Wide = f.tokens[n:], slices.Clone(e.Wide)
	return c
}

// Publish tells every stream of a change. It never waits for a reader. e's slices are copied.
func (f *Feed) Publish(e *Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seq++
	if len(f.streams) == 0 {
		return
	}
	c := f.copyOf(e)
	for _, s := range f.streams {
		s.push(&c, f.seq)
	}
}

// Open adds a stream whose queue holds at most pagesMax pages. Its first batch is a snapshot.
func (f *Feed) Open(pagesMax int) (*Stream, error) {
	s := &Stream{feed: f, max: pagesMax, lost: true, first: true, wake: make(chan struct{}, 1)}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, ErrClosed
	}
	f.streams = append(f.streams, s)
	f.open.Add(1)
	s.ring()
	return s, nil
}

// Close ends every stream.
func (f *Feed) Close() {
	f.mu.Lock()
	streams := f.streams
	f.streams, f.closed = nil, true
	f.open.Store(0)
	f.mu.Unlock()
	for _, s := range streams {
		s.end()
	}
}

// Stream is a queue of changes. One goroutine reads it; Close may be called from any.
type Stream struct {
	feed *Feed
	max  int
	wake chan struct{} // holds a token when there may be something to read

	mu     sync.Mutex
	queue  []Event
	seq    uint64 // of the last change in the queue, or delivered
	read   uint64 // of the last change delivered
	pages  int
	lost   bool // changes were dropped: the next batch is a snapshot
	first  bool // nothing was read yet
	closed bool
}

func (s *Stream) ring() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// push queues a change, or drops the whole queue where it does not fit.
func (s *Stream) push(e *Event, seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost || s.closed {
		return
	}
	weight := max(1, len(e.Hashes))
	if s.pages+weight > s.max {
		s.queue, s.pages, s.lost = nil, 0, true
		s.feed.gaps.Add(1)
		s.ring()
		return
	}
	s.pages += weight
	s.seq = seq
	if n := len(s.queue); n > 0 && s.queue[n-1].extend(e) {
		return
	}
	s.queue = append(s.queue, *e)
	s.ring()
}

// extend joins a run to the one that it continues, if both lie in the same memory; false if it does not.
func (e *Event) extend(next *Event) bool {
	n := len(e.Hashes)
	if e.Kind == Cleared || e.Kind != next.Kind || e.Tier != next.Tier || e.Pool != next.Pool || e.Reason != next.Reason || e.LoRA != next.LoRA ||
		e.Salt != next.Salt || n == 0 || cap(e.Hashes) < n+len(next.Hashes) || &e.Hashes[:n+1][n] != &next.Hashes[0] {
		return false
	}
	if e.Kind == Stored {
		if len(e.Wide) > 0 {
			return false
		}
		t := len(e.Tokens)
		if !next.HasParent || next.Parent != e.Hashes[n-1] || t == 0 || cap(e.Tokens) < t+len(next.Tokens) || &e.Tokens[:t+1][t] != &next.Tokens[0] {
			return false
		}
		e.Tokens = e.Tokens[:t+len(next.Tokens)]
	}
	e.Hashes = e.Hashes[:n+len(next.Hashes)]
	return true
}

// Next waits for changes and returns all there are. The first batch of a stream, and the one after a loss, is a snapshot of the whole cache:
// it costs O(pages), during which matches go on and inserts wait. Errors: ErrClosed, the context's.
// ctx must not be nil.
func (s *Stream) Next(ctx context.Context) (*Batch, error) {
	for {
		if b, err := s.take(); b != nil || err != nil {
			return b, err
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Poll is Next without waiting: nil if there is nothing.
func (s *Stream) Poll() (*Batch, error) { return s.take() }

func (s *Stream) take() (*Batch, error) {
	s.mu.Lock()
	switch {
	case s.closed:
		s.mu.Unlock()
		return nil, ErrClosed
	case s.lost:
		s.mu.Unlock()
		return s.resync()
	case len(s.queue) == 0:
		s.mu.Unlock()
		return nil, nil
	}
	b := &Batch{Epoch: s.feed.epoch, First: s.read + 1, Last: s.seq, Time: s.feed.clock(), Events: s.queue}
	s.queue, s.pages, s.read = nil, 0, s.seq
	s.mu.Unlock()
	for i := range b.Events { // what follows in memory is another event's
		b.Events[i].Hashes, b.Events[i].Tokens = slices.Clip(b.Events[i].Hashes), slices.Clip(b.Events[i].Tokens)
	}
	return b, nil
}

// resync takes a snapshot and lets the queue go on from there.
func (s *Stream) resync() (*Batch, error) {
	b := &Batch{Epoch: s.feed.epoch, Time: s.feed.clock(), Snapshot: true}
	s.feed.snapshot(func() {
		seq := s.feed.Seq()
		s.mu.Lock()
		defer s.mu.Unlock()
		b.First, b.Last, b.Gap = seq, seq, !s.first
		s.queue, s.pages, s.lost, s.first = nil, 0, false, false
		s.seq, s.read = seq, seq
	}, func(e *Event) {
		c := *e
		c.Hashes, c.Tokens, c.Wide = slices.Clone(e.Hashes), slices.Clone(e.Tokens), slices.Clone(e.Wide)
		b.Events = append(b.Events, c)
	})
	return b, nil
}

// Resync makes the next batch a snapshot, for a consumer that has lost track.
func (s *Stream) Resync() {
	s.mu.Lock()
	s.queue, s.pages, s.lost, s.first = nil, 0, true, true
	s.mu.Unlock()
	s.ring()
}

// Close ends the stream; a second Close does nothing.
func (s *Stream) Close() {
	f := s.feed
	f.mu.Lock()
	if i := slices.Index(f.streams, s); i >= 0 {
		f.streams = slices.Delete(f.streams, i, i+1)
		f.open.Add(-1)
	}
	f.mu.Unlock()
	s.end()
}

func (s *Stream) end() {
	s.mu.Lock()
	s.queue, s.closed = nil, true
	s.mu.Unlock()
	s.ring()
}
