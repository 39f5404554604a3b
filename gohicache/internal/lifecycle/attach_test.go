package lifecycle

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hicache/hicache/gohicache/storage"
)

// stuck is a store whose calls do not return before it is let go, whatever their context says.
type stuck struct{ free, in chan struct{} }

func (s stuck) Name() string { return "stuck" }
func (s stuck) Capabilities() storage.Capabilities {
	return storage.Capabilities{OneObjectPerPage: true}
}
func (s stuck) Ready(context.Context) error { return nil }
func (s stuck) Stats() storage.Stats        { return storage.Stats{} }
func (s stuck) Close() error                { return nil }

func (s stuck) Exists(context.Context, []storage.Key, []bool) error {
	<-s.free
	return nil
}

func (s stuck) Get(context.Context, []storage.Key, [][]byte, []error) error {
	<-s.free
	return nil
}

func (s stuck) Put(context.Context, []storage.Key, [][]byte, []error) error {
	s.in <- struct{}{}
	<-s.free
	return nil
}

// TestStuckStore (G68): a store that does not return makes Detach, and Close, fail in bounded time; a later call succeeds.
func TestStuckStore(t *testing.T) {
	defer func(d time.Duration) { detachWait, closeStorageWait = d, d }(detachWait)
	detachWait, closeStorageWait = 50*time.Millisecond, 50*time.Millisecond
	kind := func(err error) Kind {
		var e *Error
		if !errors.As(err, &e) {
			t.Fatalf("err %v", err)
		}
		return e.Kind
	}
	insert := func(c *Core, tokens []uint32) {
		m := c.Match(tokens, MatchRequest{})
		defer m.Release()
		l, err := c.Load(context.Background(), m, LoadRequest{NoStorage: true})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Release()
		if err := l.publish(tokens, len(tokens)); err != nil {
			t.Fatal(err)
		}
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()

	c, free, in := openCore(t), make(chan struct{}), make(chan struct{}, 9)
	if err := c.Attach(context.Background(), stuck{free, in}); err != nil {
		t.Fatal(err)
	}
	insert(c, []uint32{1, 2, 3, 4, 5})
	<-in
	for range 2 {
		if err := c.Detach(ended); kind(err) != KindBusy {
			t.Fatalf("detach: %v", err)
		}
	}
	if err := c.Attach(context.Background(), stuck{free, in}); kind(err) != KindBusy {
		t.Fatalf("attach: %v", err)
	}
	insert(c, []uint32{9, 2, 3, 4, 5}) // the cache goes on
	if err := c.Close(); kind(err) != KindBusy || !strings.Contains(err.Error(), "has not returned") {
		t.Fatalf("close: %v", err)
	}
	close(free)
	detachWait, closeStorageWait = 20*time.Second, 20*time.Second
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}

	c, free = openCore(t), make(chan struct{})
	if err := c.Attach(context.Background(), stuck{free, in}); err != nil {
		t.Fatal(err)
	}
	insert(c, []uint32{1, 2, 3, 4, 5})
	<-in
	detachWait = 50 * time.Millisecond
	if err := c.Detach(ended); kind(err) != KindBusy {
		t.Fatalf("detach: %v", err)
	}
	close(free)
	detachWait = 20 * time.Second
	if err := c.Detach(ended); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}
