package lifecycle

import (
	"errors"
	"runtime"
	"testing"
	"time"
)

// TestCloseBesideALoad: a load that found the cache open takes its pages under plan; Close waits for that, and then sees what it took.
func TestCloseBesideALoad(t *testing.T) {
	c := openCore(t)
	c.plan.Lock()
	end := make(chan error, 1)
	go func() { end <- c.Close() }()
	for !c.closing.Load() {
		runtime.Gosched()
	}
	select {
	case err := <-end:
		t.Fatalf("closed beside a load: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	s := &Sequence{}
	c.holds.add(s)
	c.plan.Unlock()
	var e *Error
	if err := <-end; !errors.As(err, &e) || e.Kind != KindBusy {
		t.Fatalf("with a sequence held: %v", err)
	}
	c.holds.remove(s)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}
