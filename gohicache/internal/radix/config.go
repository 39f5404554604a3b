// Package radix is the prefix tree: which pages hold the KV of which tokens, on which tier, for every pool of a cache at once.
//
// It owns page names (virtual ids on the device, host pages), never bytes, and calls nothing: who allocates, copies and frees is the
// lifecycle, which tells the tree before and after. Positions and lengths are in pages unless a name says tokens. All methods of Tree are
// safe for many goroutines; a Match, InsertResult, EvictResult or BackUp belongs to one goroutine at a time and may be reused, which is how
// the steady state stays free of garbage.
package radix

import (
	"github.com/hicache/hicache/gohicache/internal/policy"
)

// Role says what a pool keeps of a prefix.
type Role uint8

const (
	Full  Role = iota // every page of the prefix
	SWA               // the last WindowTokens of the prefix; shares the virtual ids of Full
	State             // one recurrent state at chosen page boundaries; virtual ids of its own
)

// Tier is where a copy lies.
type Tier uint8

const (
	Device Tier = iota
	Host
)

// MaxPools is the largest number of pools of a tree.
const MaxPools = 16

// PoolConfig describes one pool; its index in Config.Pools is its name everywhere in this package.
type PoolConfig struct {
	Role         Role
	WindowTokens int // SWA only, > 0
}

// TokenForm says what a key is made of. Token arguments are words of 32 bits in every form.
type TokenForm uint8

const (
	Narrow TokenForm = iota // a word a token
	Wide                    // two words a token of 64 bits, the low one first
	// Bigram keys are for the pages of speculative drafts, whose KV at a position depends on the token there and on the next: two words a
	// position, the token and its successor. n tokens make n-1 positions.
	Bigram
)

// Words is the number of words of a token, or of a position.
func (f TokenForm) Words() int {
	if f == Narrow {
		return 1
	}
	return 2
}

// Config describes a tree. Exactly one pool is Full; at most MaxPools in all.
type Config struct {
	PageTokens int
	Tokens     TokenForm
	Pools      []PoolConfig
	Policy     policy.Policy // nil: LRU
	// WholeLeaf makes a leaf go in one piece instead of page by page from its tail, and an access refresh the rest of a node that it cuts:
	// what other caches do, for comparison with them.
	WholeLeaf bool
	// HostPrefixClosed refuses a host copy whose parent page has none (write_through). False under write_back.
	HostPrefixClosed bool
	// Hashes makes OnChange carry page hashes, computed when a page first becomes matchable.
	Hashes bool
	// OnChange, if set, is told of every page that becomes matchable or goes on a tier, in order. It runs under the tree's lock: it must
	// be short, keep nothing it was given, and call nothing of the tree.
	OnChange func(Change)
}

// Label is a part of a namespace; an absent one differs from an empty one. The zero value is absent.
type Label struct {
	Set  bool
	Text string
}

// Some is a present label.
func Some(s string) Label { return Label{true, s} }

// Namespace separates prefixes that share tokens but not KV. Two requests share pages only if both labels are equal.
type Namespace struct{ LoRA, Salt Label }

// ChangeKind says what happened to the pages of a Change.
type ChangeKind uint8

const (
	Stored  ChangeKind = iota // pages became matchable on the tier
	Removed                   // pages left the tier
	Cleared                   // everything left every tier, in all namespaces
)

// Change is one run of consecutive pages of one path. Slices are valid during the call only.
type Change struct {
	Kind      ChangeKind
	Tier      Tier
	Pool      int
	Reason    Reason
	Cause     Cause // of what an eviction gave up
	Namespace Namespace
	From      int // position of the first page
	Pages     int
	Tokens    []uint32 // of the run, in words
	Hashes    []Hash   // of the run, if Config.Hashes
	Parent    *Hash    // of the page before the run; nil at the start of a path or without hashes
}

// Reason says why pages left a tier.
type Reason uint8

const (
	ByInsert   Reason = iota // replaced or published by an insert
	ByLoad                   // published by a load-back, or taken back because it failed
	ByBackUp                 // published by a back-up
	ByPrefetch               // published by InsertHost
	Demoted                  // left the device, the host keeps a copy
	Dropped                  // left the device, no copy is left
	Tombstoned               // a window page left, the full page stays
	HostEvicted
	ByClear
)

// Cause says what an eviction was for.
type Cause uint8

const (
	ForRoom      Cause = iota // others needed the room
	HostPressure              // and the host had none for what left the device
	Requested                 // the server asked for it
	Expired                   // as ForRoom, of pages whose priority had run out
)
