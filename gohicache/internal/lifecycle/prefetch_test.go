package lifecycle

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/gohicache/internal/policy"
	"github.com/hicache/hicache/gohicache/internal/radix"
	"github.com/hicache/hicache/gohicache/storage/file"
)

// openCore opens a small cache with a host tier.
func openCore(t *testing.T) *Core {
	t.Helper()
	lru, err := policy.ByName("lru")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(context.Background(), Config{DeviceBytes: 1 << 16, HostBytes: 1 << 16, PageTokens: 4, Pools: []Pool{{Name: "full", Role: radix.Full, Layers: []uint32{0}, KRowBytes: 32}},
		CopyThreads: 1, WriteThreshold: 2, Policy: lru, PrefetchTimeout: time.Second, StoreQueueMax: 1 << 10, StorageBatch: 8, Clock: time.Now,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestPrefetchOfWhatIsThere: a load that starved looks at storage again when its turn comes; by then somebody else may have brought all of it.
func TestPrefetchOfWhatIsThere(t *testing.T) {
	c := openCore(t)
	if err := c.Attach(context.Background(), file.New(t.TempDir())); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	m := c.Match(tokens, MatchRequest{})
	l, err := c.Load(context.Background(), m, LoadRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.publish(tokens, len(tokens)); err != nil {
		t.Fatal(err)
	}
	l.Release()
	m.Release()
	m = c.Match(tokens, MatchRequest{})
	defer m.Release()
	a, err := m.acquire()
	if err != nil {
		t.Fatal(err)
	}
	a.starved = true
	if got := c.store.Load().prefetch(context.Background(), m, a); got != a || got.starved || got.m.Usable != 2 {
		t.Errorf("a prefetch of nothing: starved %v, %d pages", got.starved, got.m.Usable)
	}
	a.release()
}

// TestBugsAreCounted: what cannot happen is counted and logged; the end of the engine is none of it.
func TestBugsAreCounted(t *testing.T) {
	var log strings.Builder
	c := &Core{log: slog.New(slog.NewTextHandler(&log, nil))}
	c.bug("free", nil)
	c.bug("free", ffi.ErrClosed)
	if c.count.bugs.Load() != 0 {
		t.Error("counted what is no bug")
	}
	c.bug("free", ffi.ErrStale)
	if c.count.bugs.Load() != 1 || !strings.Contains(log.String(), "operation=free") {
		t.Errorf("%d bugs, log %q", c.count.bugs.Load(), log.String())
	}
}
