package hicache

import "github.com/hicache/hicache/gohicache/events"

// EventOptions tune one stream of events.
type EventOptions struct {
	// QueuePages is how many pages' changes may wait to be read before they are dropped for a snapshot. Default 65536.
	QueuePages int
}

const defaultEventQueuePages = 1 << 16

// Events opens a stream of what becomes matchable and what goes, on device and host and in every pool. Its first batch is a snapshot, so that a
// consumer may join at any time. The cache never waits for it: see package events. The stream ends with Close, its own or the cache's. Errors:
// ErrUnsupported without Options.Events, ErrClosed.
func (c *Cache) Events(o EventOptions) (*events.Stream, error) {
	if o.QueuePages < 0 {
		return nil, &Error{Op: "events", Err: ErrInvalid, Message: "QueuePages must not be negative"}
	}
	setDefault(&o.QueuePages, defaultEventQueuePages)
	s, err := c.core.Events(o.QueuePages)
	if err != nil {
		return nil, c.publicError("events", err)
	}
	return s, nil
}
