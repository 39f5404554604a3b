package proptest

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"sync"

	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/storage"
)

// The naive model of a cache: for each pool and prefix, the contents that requests have published under it. It knows nothing of tiers or
// eviction: it says what a cache may answer, and, where everything fits, what it must.
type cacheModel struct {
	contents map[pagePrefix]map[uint64]bool
	lasting  bool // Storage keeps what clear forgets.
}

// A pagePrefix names a page by all tokens up to its end.
type pagePrefix struct {
	pool   int
	space  string
	tokens string
}

func newCacheModel(lasting bool) *cacheModel {
	return &cacheModel{contents: map[pagePrefix]map[uint64]bool{}, lasting: lasting}
}

func prefixName(pool int, space string, tokens []uint32) pagePrefix {
	text := make([]byte, 0, 4*len(tokens))
	for _, token := range tokens {
		text = binary.LittleEndian.AppendUint32(text, token)
	}
	return pagePrefix{pool, space, string(text)}
}

// published returns what the page that ends these tokens may hold.
func (m *cacheModel) published(pool int, space string, tokens []uint32) map[uint64]bool {
	return m.contents[prefixName(pool, space, tokens)]
}

// longest returns how many tokens of whole pages, from the start, were published in the FULL pool.
func (m *cacheModel) longest(space string, tokens []uint32) int {
	end := 0
	for end+cachePageTokens <= len(tokens) && m.published(0, space, tokens[:end+cachePageTokens]) != nil {
		end += cachePageTokens
	}
	return end
}

// publish records what a request's pages hold: those it computed, and those it reused, which stay published if they were forgotten meanwhile.
func (m *cacheModel) publish(o *hicache.Options, r *request) {
	boundary := len(r.tokens) / cachePageTokens * cachePageTokens
	for slot, content := range r.reused {
		m.add(slot.pool, r.space, r.tokens[:slot.end], content)
	}
	for pool := range o.Pools {
		for end := r.lease.Prefix() + cachePageTokens; end <= boundary; end += cachePageTokens {
			if o.Pools[pool].Role != hicache.State || end == boundary {
				m.add(pool, r.space, r.tokens[:end], r.content(pool, end))
			}
		}
	}
}

func (m *cacheModel) add(pool int, space string, tokens []uint32, content uint64) {
	name := prefixName(pool, space, tokens)
	if m.contents[name] == nil {
		m.contents[name] = map[uint64]bool{}
	}
	m.contents[name][content] = true
}

// forget drops a namespace, unless storage remembers.
func (m *cacheModel) forget(space string) {
	if m.lasting {
		return
	}
	for name := range m.contents {
		if name.space == space {
			delete(m.contents, name)
		}
	}
}

// memoryStore is a third tier in a map, with faults: every n-th call of one kind fails.
type memoryStore struct {
	mu      sync.Mutex
	objects map[storage.Key][]byte
	every   int // 0: no faults; else every (8·every)-th object operation fails, in turn as a lost, corrupt or refused one.
	calls   int
}

func newMemoryStore(faults int) *memoryStore {
	return &memoryStore{objects: map[storage.Key][]byte{}, every: 8 * faults}
}

var errFlaky = errors.New("memory store: this call fails")

func (s *memoryStore) Name() string { return "memory" }

func (s *memoryStore) Capabilities() storage.Capabilities {
	return storage.Capabilities{OneObjectPerPage: true}
}

func (s *memoryStore) Ready(context.Context) error { return nil }

func (s *memoryStore) fails() bool {
	s.calls++
	return s.every > 0 && s.calls%s.every == 0
}

func (s *memoryStore) Exists(_ context.Context, keys []storage.Key, found []bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails() {
		return errFlaky
	}
	for i, key := range keys {
		_, found[i] = s.objects[key]
	}
	return nil
}

func (s *memoryStore) Get(_ context.Context, keys []storage.Key, dst [][]byte, errs []error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, key := range keys {
		object, ok := s.objects[key]
		switch {
		case !ok:
			errs[i] = fs.ErrNotExist
		case s.fails():
			errs[i] = storage.ErrCorrupt
			delete(s.objects, key)
		default:
			errs[i] = nil
			copy(dst[i], object)
		}
	}
	return nil
}

func (s *memoryStore) Put(_ context.Context, keys []storage.Key, src [][]byte, errs []error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, key := range keys {
		if s.fails() {
			errs[i] = storage.ErrFull
			continue
		}
		errs[i] = nil
		if _, ok := s.objects[key]; !ok {
			s.objects[key] = append([]byte(nil), src[i]...)
		}
	}
	return nil
}

func (s *memoryStore) Stats() storage.Stats { return storage.Stats{} }

func (s *memoryStore) Close() error { return nil }
