package lifecycle

import (
	"math/rand/v2"

	"github.com/hicache/hicache/gohicache/events"
	"github.com/hicache/hicache/gohicache/internal/radix"
)

// teller turns the tree's changes into events. Its buffer belongs to the tree's lock.
type teller struct {
	feed *events.Feed
	c    *Core
	ids  []int64
}

// newTeller makes the teller of a cache whose tree is to be made; an epoch is drawn at random, so that a restart never looks like the cache before.
func newTeller(c *Core) *teller {
	t := &teller{c: c}
	t.feed = events.NewFeed(rand.Uint64()>>1|1, c.cfg.Clock, func(begin func(), tell func(*events.Event)) {
		var buffer []int64 // not the teller's: a snapshot holds the lock only shared
		c.tree.Snapshot(begin, func(change radix.Change) {
			var e events.Event
			buffer = t.event(&change, &e, buffer)
			tell(&e)
		})
	})
	return t
}

// changed is the tree's OnChange.
func (t *teller) changed(change radix.Change) {
	if !t.feed.Listening() {
		return
	}
	var e events.Event
	t.ids = t.event(&change, &e, t.ids)
	t.feed.Publish(&e)
}

// event describes a change; ids is memory for its hashes.
func (t *teller) event(change *radix.Change, e *events.Event, ids []int64) []int64 {
	ids = ids[:0]
	for i := range change.Hashes {
		ids = append(ids, change.Hashes[i].EventID())
	}
	*e = events.Event{Kind: events.Kind(change.Kind), Tier: events.Tier(change.Tier), Pool: change.Pool, Hashes: ids, PageTokens: t.c.cfg.PageTokens,
		LoRA: events.Label(change.Namespace.LoRA), Salt: events.Label(change.Namespace.Salt)}
	switch change.Kind {
	case radix.Stored:
		t.tokens(change, e)
		if change.Parent != nil {
			e.Parent, e.HasParent = change.Parent.EventID(), true
		}
	case radix.Removed:
		e.Reason = reasonOf(change)
	case radix.Cleared:
		e.Reason = events.ClearedAll
	}
	return ids
}

// tokens gives an event the tokens of its pages; of bigrams, the first of each.
func (t *teller) tokens(change *radix.Change, e *events.Event) {
	switch t.c.cfg.Tokens {
	case radix.Narrow:
		e.Tokens = change.Tokens
	case radix.Wide:
		for w := change.Tokens; len(w) > 0; w = w[2:] {
			e.Wide = append(e.Wide, uint64(w[0])|uint64(w[1])<<32)
		}
	case radix.Bigram:
		for w := change.Tokens; len(w) > 0; w = w[2:] {
			e.Tokens = append(e.Tokens, w[0])
		}
	}
}

func reasonOf(change *radix.Change) events.Reason {
	switch change.Reason {
	case radix.Demoted:
		return events.Demoted
	case radix.ByLoad:
		return events.Aborted
	case radix.ByClear:
		return events.ClearedAll
	}
	switch change.Cause {
	case radix.HostPressure:
		return events.HostPressure
	case radix.Requested:
		return events.Released
	case radix.Expired:
		return events.Expired
	}
	return events.Capacity
}

// storage tells of pages of one pool that reached the store, or were found corrupt there.
func (t *teller) storage(kind events.Kind, pool int, hashes ...radix.Hash) {
	if t == nil || !t.feed.Listening() || len(hashes) == 0 {
		return
	}
	e := events.Event{Kind: kind, Tier: events.Storage, Pool: pool, PageTokens: t.c.cfg.PageTokens}
	if kind == events.Removed {
		e.Reason = events.Integrity
	}
	for i := range hashes {
		e.Hashes = append(e.Hashes, hashes[i].EventID())
	}
	t.feed.Publish(&e)
}

// Events opens a stream of what changes, whose queue holds at most pagesMax pages.
func (c *Core) Events(pagesMax int) (*events.Stream, error) {
	if c.teller == nil {
		return nil, fail(KindUnsupported, "a stream of events without Options.Events: pages have no hashes")
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	s, err := c.teller.feed.Open(pagesMax)
	if err != nil {
		return nil, errClosed()
	}
	return s, nil
}
