package hicache_test

import (
	"bytes"
	"context"
	"io/fs"
	"sync"
	"sync/atomic"

	"github.com/hicache/hicache/gohicache/storage"
)

// memory is a store in memory that does what a test says: it waits, fails, or lies about what it can do.
type memory struct {
	mu      sync.Mutex
	objects map[storage.Key][]byte
	putErr  error // of every entry from now on
	getErr  error
	ready   error
	gate    chan struct{} // calls wait until it closes, or their context ends
	deaf    bool          // and not even then
	caps    storage.Capabilities

	waiting atomic.Int32 // calls at the gate
	calls   atomic.Int32
	closed  atomic.Bool
}

func newMemory() *memory {
	return &memory{objects: map[storage.Key][]byte{}, caps: storage.Capabilities{OneObjectPerPage: true}}
}

func (s *memory) set(change func(s *memory)) {
	s.mu.Lock()
	change(s)
	s.mu.Unlock()
}

func (s *memory) pass(ctx context.Context) error {
	s.calls.Add(1)
	s.mu.Lock()
	gate, deaf := s.gate, s.deaf
	s.mu.Unlock()
	if gate == nil {
		return nil
	}
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	if deaf {
		<-gate
		return nil
	}
	select {
	case <-gate:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *memory) Name() string                       { return "memory" }
func (s *memory) Capabilities() storage.Capabilities { return s.caps }

func (s *memory) Ready(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

func (s *memory) Exists(ctx context.Context, keys []storage.Key, found []bool) error {
	if err := s.pass(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, k := range keys {
		_, found[i] = s.objects[k]
	}
	return nil
}

func (s *memory) Get(ctx context.Context, keys []storage.Key, dst [][]byte, errs []error) error {
	if err := s.pass(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, k := range keys {
		o, ok := s.objects[k]
		switch {
		case s.getErr != nil:
			errs[i] = s.getErr
		case !ok:
			errs[i] = fs.ErrNotExist
		case len(o) != len(dst[i]):
			errs[i] = storage.ErrCorrupt
		default:
			copy(dst[i], o)
			errs[i] = nil
		}
	}
	return nil
}

func (s *memory) Put(ctx context.Context, keys []storage.Key, src [][]byte, errs []error) error {
	if err := s.pass(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, k := range keys {
		if errs[i] = s.putErr; s.putErr == nil {
			s.objects[k] = bytes.Clone(src[i])
		}
	}
	return nil
}

func (s *memory) Stats() storage.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return storage.Stats{Objects: int64(len(s.objects))}
}

func (s *memory) Close() error {
	s.closed.Store(true)
	return nil
}

// keys are the keys of all objects.
func (s *memory) keys() map[storage.Key]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[storage.Key]bool{}
	for k := range s.objects {
		out[k] = true
	}
	return out
}
