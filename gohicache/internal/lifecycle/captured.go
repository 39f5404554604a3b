package lifecycle

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hicache/hicache/ffi"
)

// captured are the steps that ended while their stream was being captured into a graph. A fence cannot be left there then, so their pages stay
// pinned until one of the next calls that end a step, lack room or close the cache finds the capture over.
type captured struct {
	mu    sync.Mutex
	steps []ffi.Step
	some  atomic.Bool
}

// closeStep ends a step. Whatever it returns, who had the step has nothing more to do with it.
func (c *Core) closeStep(step ffi.Step) error {
	c.closeCaptured()
	err := c.eng.StepClose(step)
	if !errors.Is(err, ffi.ErrInvalid) {
		return err
	}
	c.log.Warn("hicache: a step ended while its stream was being captured; its pages stay where they are until the capture is over", "error", err)
	c.captured.mu.Lock()
	defer c.captured.mu.Unlock()
	c.captured.steps = append(c.captured.steps, step)
	c.captured.some.Store(true)
	return nil
}

// closeCaptured tries again, and reports whether none is left.
func (c *Core) closeCaptured() bool {
	if !c.captured.some.Load() {
		return true
	}
	c.captured.mu.Lock()
	defer c.captured.mu.Unlock()
	c.captured.steps = slices.DeleteFunc(c.captured.steps, func(step ffi.Step) bool {
		err := c.eng.StepClose(step)
		if errors.Is(err, ffi.ErrInvalid) {
			return false
		}
		c.bug("step close", err)
		return true
	})
	c.captured.some.Store(len(c.captured.steps) > 0)
	return len(c.captured.steps) == 0
}
