// Package policy holds the pure decisions of the cache: in which order nodes are given up (Policy) and what to do about a shortage (Plan).
// Nothing here allocates pages, blocks, reads a clock or calls the engine.
package policy

// Key orders eviction candidates: the smallest key goes first. Hi decides, Lo breaks ties.
type Key struct{ Hi, Lo uint64 }

// Less reports whether k is given up before o.
func (k Key) Less(o Key) bool { return k.Hi < o.Hi || (k.Hi == o.Hi && k.Lo < o.Lo) }

// Entry is what a policy may know about one node. Times are the tree's logical time: larger is later, equal only for one and the same
// request.
type Entry struct {
	LastAccess uint64 // of the last request that covered the node
	Created    uint64
	Hits       uint32 // requests that covered the node, the inserting one included
	Priority   uint8  // 0..99, larger is kept longer
	Retain     uint64 // time until which Priority counts; 0: for ever
	Before     int    // tokens on the path before this node
	Tokens     int    // tokens of this node
	History    int    // tokens of the longest path that was ever inserted or matched through this node
	Mark       uint64 // owned by a Learner: what Touch returned last; copied on a split
}

// Policy gives the eviction order of nodes. Keys must be O(1), pure functions of the entry and the time; the tree asks for them whenever an
// entry may have changed, not when time passes.
type Policy interface {
	Name() string
	Key(e *Entry, now uint64) Key
}

// Request is one request as a Learner sees it. Tokens are valid during the call only.
type Request struct {
	Tokens     []uint32 // of the prompt
	Namespace  uint64   // equal for requests that can share pages
	PageTokens int
	Resident   int // full pages on the device at present
}

// Ticket is what a Learner keeps of a request until the last of its nodes is touched.
type Ticket struct{ Base, Bonus uint64 }

// Learner is a Policy that adapts to its traffic. The tree serialises Admit, Touch and Pressure.
type Learner interface {
	Policy
	// Admit is told of each request once, before any of its nodes is touched.
	Admit(r *Request) Ticket
	// Touch tells that t's request covered e, before LastAccess and Hits change (Hits is 0 for a node that the request itself inserted),
	// and returns the new Mark.
	Touch(e *Entry, t Ticket) uint64
	// Pressure tells how many tokens were on the device when some had to go.
	Pressure(tokens int)
}
