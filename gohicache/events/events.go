// Package events carries what changes in a cache to whoever wants to know which prefixes it holds: a router that sends requests to where
// their prefix is, say. A [Stream] is a bounded queue that never makes the cache wait; who reads too slowly loses changes, is told so, and
// gets a snapshot to go on from. Package zmq publishes streams in the form that inference servers use.
package events

import (
	"fmt"
	"time"
)

// Tier is where the pages of an event lie.
type Tier uint8

const (
	Device Tier = iota
	Host
	// Storage events say what this cache wrote to its store and what it found corrupt there. A store may give objects up by itself and other
	// caches may write to it, so they are hints; snapshots leave them out.
	Storage
)

// String names the tier: "device", "host", "storage".
func (t Tier) String() string { return name([]string{"device", "host", "storage"}, int(t)) }

// Kind is what happened.
type Kind uint8

const (
	Stored  Kind = iota // The pages can be matched on the tier.
	Removed             // The pages left the tier.
	Cleared             // Everything left device and host, in every namespace.
)

// String names the kind: "stored", "removed", "cleared".
func (k Kind) String() string { return name([]string{"stored", "removed", "cleared"}, int(k)) }

// Reason says why pages left a tier.
type Reason uint8

const (
	None         Reason = iota // Of a Stored event.
	Capacity                   // Given up because others needed the room.
	HostPressure               // Given up on the device because the host had no room to take them.
	Demoted                    // Left the device; the host has a copy.
	Released                   // The server asked for it: Cache.Evict.
	Aborted                    // What they belonged to failed: a load-back whose copy broke.
	ClearedAll                 // Cache.Clear or Cache.DropNamespace.
	Expired                    // Given up for room, after the time for which their priority counted had run out.
	Integrity                  // Their bytes failed the checksum.
)

// String names the reason as it is published: "capacity", "host_pressure", ...
func (r Reason) String() string {
	return name([]string{"", "capacity", "host_pressure", "demoted", "released", "aborted", "cleared", "expired", "integrity"}, int(r))
}

// ReasonNames are the names of all reasons.
func ReasonNames() []string {
	var out []string
	for r := Capacity; r <= Integrity; r++ {
		out = append(out, r.String())
	}
	return out
}

func name(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("?%d", i)
}

// Label is a part of a namespace; an absent one differs from an empty one.
type Label struct {
	Set  bool
	Text string
}

// Event is one run of consecutive pages of one path in one pool. Its slices are shared between streams: read only.
type Event struct {
	Kind   Kind
	Tier   Tier
	Pool   int // Index in Options.Pools.
	Reason Reason
	// Hashes are the ids of the pages: the first eight bytes, big-endian and signed, of the page hash, which names namespace and every token up
	// to the page's end. Equal ids mean equal prefixes, in every process.
	Hashes []int64
	// Parent is the id of the page before the first; HasParent is false at the start of a path. Of Stored events.
	Parent    int64
	HasParent bool
	// Tokens of the pages, of Stored events. PageTokens is how many a page has: those of FULL and SWA pages are the page's own; a state has
	// those of the page that it follows.
	Tokens     []uint32
	Wide       []uint64 // instead of Tokens, where tokens are 64 bits wide
	PageTokens int
	LoRA, Salt Label // The namespace.
}

// Batch is what a stream has to say at one time.
type Batch struct {
	Epoch uint64 // Of the cache: another one means that the cache was opened anew and everything known before is void.
	// First and Last number the changes of the batch. Numbers rise by one a change, for the whole cache; a batch without Snapshot begins where
	// the one before ended, plus one. Of a snapshot: both are the last change that it includes.
	First, Last uint64
	Time        time.Time
	// Snapshot says that Events, all Stored, are everything there is: forget what was known before.
	Snapshot bool
	// Gap says that the snapshot replaces changes that were lost because they were read too slowly.
	Gap    bool
	Events []Event
}
