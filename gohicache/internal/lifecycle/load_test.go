package lifecycle

import (
	"context"
	"errors"
	"testing"
)

// TestContextEndsWithTheCopyThatGivesRoom: a call whose context ends while it waits for room has not got it, also if the copy that it waits for ends
// in the same moment.
func TestContextEndsWithTheCopyThatGivesRoom(t *testing.T) {
	ended := &operation{done: make(chan struct{})}
	close(ended.done)
	ctx, cancel := context.WithCancel(context.Background())
	c, tries := &Core{}, 0
	err := c.withRoom(ctx, false, func(bool) error {
		tries++
		cancel()
		return &retryAfter{ops: []*operation{ended}}
	})
	if !errors.Is(err, context.Canceled) || tries != 1 {
		t.Errorf("%v after %d tries", err, tries)
	}
}

// TestContextEndsWithOneOfManyCopies: who waits for all copies is not told that they have ended if its context ends as one of them does.
func TestContextEndsWithOneOfManyCopies(t *testing.T) {
	c := &Core{}
	ended := &operation{}
	c.ops.begin(ended)
	close(ended.done)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := c.awaitAll(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
