package radix

import (
	"errors"

	"github.com/hicache/hicache/ffi/ids"
)

var (
	// ErrGap: the pages before InsertRequest.From are not (or no longer) in the tree, so what follows would hang in the air. Nothing changed;
	// the caller still owns its pages.
	ErrGap = errors.New("radix: the prefix before the inserted pages is not in the tree")
	// ErrStale: a pin, load, back-up or store id that was already ended.
	ErrStale = errors.New("radix: stale id")
	// ErrArgument: lengths that do not fit each other; the wrapped text says which. Nothing changed.
	ErrArgument = errors.New("radix: bad argument")
)

// Pin is a receipt for pinned nodes. The zero value pins nothing. It is a value: copies are the same receipt, and a second Release of any
// of them is a no-op.
type Pin struct{ slot, gen uint32 }

// LoadID, BackUpID and StoreID name a transfer that the tree knows of, from its Begin to its Finish. The zero value is none.
type (
	LoadID   struct{ slot, gen uint32 }
	BackUpID struct{ slot, gen uint32 }
	StoreID  struct{ slot, gen uint32 }
)

// Freed lists pages that the tree no longer names and that the caller must give back, indexed by pool. Device[full] are whole pages: they
// go from every pool of the id group. Device[swa] are tombstones: only that pool's page goes. Device[state] are states.
// Append-only for the tree; Reset empties it and keeps the memory.
type Freed struct {
	Device [][]ids.VirtualPage
	Host   [][]ids.HostPage
}

// MatchOptions tune one match. The zero value is what a server wants before a prefill.
type MatchOptions struct {
	FullHit  bool   // allow a hit of all tokens; otherwise at least one token is left to compute
	Join     bool   // count pages of loads in flight as on the device; Match.Joins then names the loads to wait for
	Peek     bool   // pin nothing and leave no trace in recency and hit counts
	NoLoad   bool   // only what is on the device counts
	Now      uint64 // time of this access; 0: the tree's own counter. Must not run backwards.
	Priority uint8  // raises the priority of the matched nodes to at least this
}

// HostWindow is one window page that a load must bring.
type HostWindow struct {
	At   int             // position
	Host ids.HostPage    // its bytes
	Bind ids.VirtualPage // the resident full page that it joins, or NoVirtualPage if At lies in the run of full pages to be loaded
}

// StateMatch is the checkpoint of one STATE pool at the usable end.
type StateMatch struct {
	Device ids.VirtualPage // NoVirtualPage if not on the device
	Host   ids.HostPage    // NoHostPage if not on the host
}

// Match is the answer to one match. Tree.Match overwrites it and reuses its slices.
type Match struct {
	Pin Pin // until Tree.Release: every node below is pinned on every tier it is needed on

	Usable int // the longest prefix that serves every pool, from device or host
	Ready  int // the longest prefix that serves every pool from the device alone; <= Usable
	Hit    int // the prefix that FULL alone holds on device or host; >= Usable. Hit > Usable: a new window or checkpoint planted at Hit would pay

	// Resident are the full pages of positions [0, len), on the device. len <= Usable; a load brings the rest.
	Resident []ids.VirtualPage
	// LoadFull are the host pages of positions [len(Resident), Usable).
	LoadFull []ids.HostPage
	// LoadWindows are, by pool, the window pages of the usable end's window that are not on the device; only SWA pools have any.
	LoadWindows [][]HostWindow
	// States are, by pool, the checkpoints at Usable; only STATE pools use theirs. Both ids None if Usable is 0.
	States []StateMatch
	// Joins are loads in flight whose pages are in Resident (or whose windows count), if MatchOptions.Join.
	Joins []LoadID

	tokens []uint32
	ns     Namespace
	opt    MatchOptions
}

// NeedsLoad reports whether using the whole usable prefix takes a load.
func (m *Match) NeedsLoad() bool { return m.Usable > m.Ready }

// Match finds the longest usable prefix of tokens and pins it. tokens is read during the call and by later calls that take m, so it must
// not change before m is released. O(tokens); no allocation once m has grown. A partial page at the end is ignored.
func (t *Tree) Match(ns Namespace, tokens []uint32, opt MatchOptions, m *Match) { panic("soon") }

// Refresh recomputes what a load for m must bring after other loads, inserts or evictions went by. m stays pinned; Usable does not shrink
// while the pin lives, except when a load that m joined has failed.
func (t *Tree) Refresh(m *Match) { panic("soon") }

// Release ends a pin; it cannot fail, and ending it twice is a no-op that returns false. Pages of nodes that were dropped while pinned
// become available through DrainOrphans.
func (t *Tree) Release(p Pin) bool { panic("soon") }

// ReleaseWindows ends the SWA and STATE part of a pin early: a decode that moved on past the window needs only the full pages.
func (t *Tree) ReleaseWindows(p Pin) { panic("soon") }

// DrainOrphans appends to f the pages of nodes that were dropped while pinned (Clear, DropNamespace, a failed load) and whose last pin is gone
// by now. Cheap when there are none; call it after Release and at every poll.
func (t *Tree) DrainOrphans(f *Freed) { panic("soon") }

// BeginLoad publishes the device pages of a load that is queued for m (after Refresh under the caller's load lock): full[i] becomes the page
// of position len(m.Resident)+i, the windows of m.LoadWindows are bound at their positions, states[pool] is the state of that pool (None
// where none is loaded). They are pending: matched only with Join, until FinishLoad. The load has pins of its own on device and host, so m
// may be released. Positions that became resident since the Refresh keep the page they have; the load's page is listed in surplus and must
// be freed at the acknowledgement.
func (t *Tree) BeginLoad(m *Match, full []ids.VirtualPage, states []ids.VirtualPage, surplus *Freed) (LoadID, error) {
	panic("soon")
}

// FinishLoad ends a load. ok: its pages are matchable. Not ok: they are unpublished, and so is everything that was computed on top of them;
// f lists what has to be freed now (what is still pinned follows through DrainOrphans). It returns ok, or false for a load whose prefix failed
// meanwhile.
func (t *Tree) FinishLoad(id LoadID, ok bool, f *Freed) (bool, error) { panic("soon") }

// Checkpoint is a recurrent state at a page boundary.
type Checkpoint struct {
	Pool int
	At   int // length of the prefix in pages that the state stands for, > 0
	Page ids.VirtualPage
}

// InsertRequest publishes pages that a request computed.
type InsertRequest struct {
	Namespace Namespace
	Tokens    []uint32 // from the start of the sequence; a partial page at the end is ignored
	// After is a pin (of the match, or of an earlier insert of this sequence) on a prefix of Tokens; the walk starts there instead of at the root. Optional.
	After Pin
	From  int               // position of Pages[0]; everything before is in the tree
	Pages []ids.VirtualPage // positions From, From+1, ...; at most the whole pages of Tokens
	// WindowFrom is, by pool, the first position whose page has a window page in that SWA pool (positions below it were given up by the
	// request). nil: From for all.
	WindowFrom  []int
	Checkpoints []Checkpoint // ascending At, at most one a pool and boundary
	Priority    uint8        // 0..99
	Retain      uint64       // time until which Priority counts; 0: for ever
	Now         uint64       // as MatchOptions.Now
	// Rebind allows a window page to move from a duplicate page to the resident page of the same position (the engine must then carry out
	// InsertResult.Rebinds). Without it a pinned page with a missing window stays without.
	Rebind bool
	Pin    bool // pin the inserted path, windows and state included
}

// Rebind tells the engine to give From's window page in Pool to To, whose own window is a tombstone, before From is freed.
type Rebind struct {
	Pool     int
	From, To ids.VirtualPage
}

// InsertResult is reused like Match.
type InsertResult struct {
	Pin      Pin // if asked for
	Pages    int // length of the path now in the tree
	Existing int // positions from From on that were there already on the device
	New      int // positions that are new in the tree
	Revived  int // positions that the host held and that are on the device again
	Rebinds  []Rebind
	Freed    Freed // duplicates, replaced pages, replaced states: free them after the rebinds
	// Pages of the path after the insert: positions [From, Pages), which differ from the request's where those were duplicates.
	Now []ids.VirtualPage
}

// Insert publishes req.Pages and takes ownership of them: each is in the tree or in r.Freed afterwards. O(tokens beyond After); at most one
// allocation a new node. Errors: ErrGap, ErrArgument, ErrStale (After); the caller then still owns everything.
func (t *Tree) Insert(req *InsertRequest, r *InsertResult) error { panic("soon") }

// InsertHostRequest publishes host pages that a prefetch brought.
type InsertHostRequest struct {
	Namespace Namespace
	Tokens    []uint32
	From      int
	Pages     []ids.HostPage
	Windows   [][]HostWindow // by pool; Bind is ignored
	States    []HostCheckpoint
	Refill    bool // pages on the device without host copy take the fetched page as theirs (not under write_back)
	Stored    bool // mark the pages as being in storage
	Now       uint64
}

// HostCheckpoint is a recurrent state on the host.
type HostCheckpoint struct {
	Pool, At int
	Page     ids.HostPage
}

// InsertHost publishes prefetched pages; the ones that were there already are in f. It returns the number of positions that are new on the
// host. Errors as for Insert.
func (t *Tree) InsertHost(req *InsertHostRequest, f *Freed) (int, error) { panic("soon") }

// BackUp describes what a back-up must copy; parents before children. Reused like Match.
type BackUp struct {
	ID        BackUpID
	Full      []ids.VirtualPage   // whole path, ascending positions
	FullAt    []int               // their positions
	Windows   [][]ids.VirtualPage // by pool: pages whose window has no host copy
	WindowsAt [][]int
	States    []ids.VirtualPage // by pool: the state at the end, or None
	StateAt   int
}

// BeginBackUp collects, on the path of p, every page that is on the device, not on the host, not already on its way there, and whose node was
// covered by at least minHits requests; it pins them until FinishBackUp. It returns false, with no id taken, if there is nothing to do.
func (t *Tree) BeginBackUp(p Pin, minHits int, b *BackUp) bool { panic("soon") }

// FinishBackUp ends a back-up. ok: full[i], windows[pool][i], states[pool] are published as the host copies; those that lost a race or whose parent
// has none (HostPrefixClosed) are in f. Not ok: nothing is published; the caller frees the host pages. demote: pages that an eviction asked to
// back up leave the device now and are in f.
func (t *Tree) FinishBackUp(id BackUpID, ok bool, full []ids.HostPage, windows [][]ids.HostPage, states []ids.HostPage, f *Freed) error {
	panic("soon")
}

// Store describes host pages that storage lacks, ascending positions.
type Store struct {
	ID      StoreID
	At      []int
	Hashes  []Hash
	Full    []ids.HostPage
	Windows [][]ids.HostPage // by pool, same order as At, None where there is none
}

// BeginStore collects, on the path of p, every host page that is not in storage nor on its way; pinned on the host until FinishStore. False if none.
func (t *Tree) BeginStore(p Pin, s *Store) bool { panic("soon") }

// FinishStore marks the first n pages of the store as being in storage and ends it.
func (t *Tree) FinishStore(id StoreID, n int) error { panic("soon") }

// Hashes appends the hashes of positions [from, to) of the path that p pins. They are computed outside the lock, once a node.
func (t *Tree) Hashes(p Pin, from, to int, dst []Hash) ([]Hash, error) { panic("soon") }

// Unbacked says what an eviction does with device pages that have no host copy.
type Unbacked uint8

const (
	Drop Unbacked = iota // give them up
	Back                 // list them in EvictResult.BackUps and go on; they leave the device at FinishBackUp (write_back)
	Keep                 // skip them
)

// EvictRequest asks for pages of one tier.
type EvictRequest struct {
	Tier Tier
	// Want is, by pool, how many pages to give up at most. Pools are served in index order; pages that go along (a window with its full page) count.
	Want []int
	// Stop, if set, is asked after every victim with the pages given up so far, by pool, pages pending in back-ups included; true ends the pass. It runs under
	// the tree's lock: short, and calling nothing of the tree.
	Stop     func(gone []int) bool
	Unbacked Unbacked
	// Duplicates lets a host pass also take host copies of pages that are on the device (write_back, or a host full of mirrors).
	Duplicates bool
	Now        uint64
}

// Blocker says why an eviction pass ended without what was wanted.
type Blocker uint8

const (
	NotBlocked     Blocker = iota
	NothingLeft            // the tree holds no more pages of the pool on the tier
	Pinned                 // what is left is pinned by matches, leases or sequences
	InTransfer             // what is left is the source or target of a transfer
	OnlyUnbacked           // what is left has no host copy and the request said Keep
	OnlyDuplicates         // what is left on the host mirrors the device and the request did not allow it
)

// Victim is a run of pages of one node that left a tier in one pass.
type Victim struct {
	Pool  int
	Kind  Reason // Demoted, Dropped, Tombstoned or HostEvicted
	From  int    // position
	Pages int
}

// EvictResult is reused like Match.
type EvictResult struct {
	Gone    []int // by pool, without the pending ones
	Pending []int // by pool: in BackUps, free once those are finished
	Victims []Victim
	Freed   Freed
	BackUps []BackUp  // begun; the caller runs them and calls FinishBackUp, or gives up with ok=false
	Blocker []Blocker // by pool
}

// Evict gives up pages in policy order until Want is met, Stop says so, or nothing more can go (Blocker says why). O(log nodes) a victim.
func (t *Tree) Evict(req *EvictRequest, r *EvictResult) { panic("soon") }

// Counts are the ledgers of one pool, in pages (states for a STATE pool).
type Counts struct {
	Device          int // on the device, loads in flight included
	DeviceEvictable int // of these, in nodes that nothing pins
	DevicePending   int // of these, being loaded
	Host            int
	HostEvictable   int // on unpinned nodes (duplicates included)
	HostDuplicates  int // also on the device
}

// Counts returns the ledgers of a pool. O(1).
func (t *Tree) Counts(pool int) Counts { panic("soon") }

// Nodes is the number of nodes, roots included. O(1).
func (t *Tree) Nodes() int { panic("soon") }

// Clear drops everything; what is pinned stays allocated until its last pin and then comes through DrainOrphans. DropNamespace does so for one namespace.
func (t *Tree) Clear(f *Freed)                       { panic("soon") }
func (t *Tree) DropNamespace(ns Namespace, f *Freed) { panic("soon") }

// WriteThroughCompatible reports whether the host side could have been built under write_through: host copies are prefix-closed and no
// window or state is hosted without its full page. The text names the first offender.
func (t *Tree) WriteThroughCompatible() (bool, string) { panic("soon") }

// SetHostPrefixClosed switches Config.HostPrefixClosed.
func (t *Tree) SetHostPrefixClosed(on bool) { panic("soon") }

// Verify recomputes every invariant from scratch and returns what is wrong; nil is healthy. O(pages).
func (t *Tree) Verify() []string { panic("soon") }

// Tree is the prefix tree.
type Tree struct{ cfg Config }

// New builds an empty tree. Errors name the field.
func New(cfg Config) (*Tree, error) { panic("soon") }
