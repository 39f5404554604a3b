// Package policy holds the pure decisions of the cache: in which order nodes are given up (Policy) and what to do about a shortage (Plan).
// Nothing here allocates pages, blocks, reads a clock or calls the engine.
package policy

// Key orders eviction candidates: the smallest key goes first. Hi decides, Lo breaks ties.
type Key struct{ Hi, Lo uint64 }

// Less reports whether k is given up before o.
func (k Key) Less(o Key) bool { return k.Hi < o.Hi || (k.Hi == o.Hi && k.Lo < o.Lo) }

// Entry is what a policy may know about one node. Times are the tree's logical time: larger is later, equal only for one and the same request.
type Entry struct {
	LastAccess uint64 // of the last request that covered the node
	Created    uint64
	Hits       uint32 // requests that covered the node, the inserting one included
	Priority   uint8  // 0..99, larger is kept longer
	Retain     uint64 // time until which Priority counts; 0: for ever
	Before     int    // tokens on the path before this node
	Tokens     int    // tokens of this node
	History    int    // tokens of the longest path that was ever inserted or matched through this node
	Feature    uint32 // owned by a Learner: set in Touch, kept with the node, copied on a split
}

// Policy gives the eviction order of nodes. Keys must be O(1), pure functions of the entry, the time and what a Learner has learned; the tree
// asks for them whenever an entry may have changed, not when time passes.
type Policy interface {
	Name() string
	Key(e *Entry, now uint64) Key
}

// Learner is a Policy that adapts. The tree serialises Touch and Evicted with each other, but calls Key beside Touch, so what Key reads must be
// safe for that.
type Learner interface {
	Policy
	// Touch tells of a request that covered e, before LastAccess and Hits change, and returns the new Feature.
	Touch(e *Entry, now uint64) uint32
	// Evicted tells that pages of e left the device.
	Evicted(e *Entry, pages int, now uint64)
}
