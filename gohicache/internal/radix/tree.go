package radix

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/hicache/hicache/gohicache/internal/policy"
)

// Tree is the prefix tree of one cache.
//
// Locking: mu guards structure and page values. Matches and releases hold it shared and change only atomics (pins, recency, hit counts, the
// dirty list); everything else holds it exclusively. pinMu guards the receipt table and is taken after mu, never before.
type Tree struct {
	cfg    Config
	pt     int // words of tokens in a page
	full   int // index of the FULL pool
	swa    []swaPool
	states []int // pool indices
	rank   []int // by pool: its index in swa or states
	policy policy.Policy
	learn  policy.Learner // nil if the policy does not adapt
	cols   int            // page columns of a strip
	hostPC atomic.Bool    // Config.HostPrefixClosed, switchable

	clock atomic.Uint64
	dirty atomic.Pointer[node] // nodes whose place in the orders must be looked at again

	mu       sync.RWMutex
	version  uint64 // changes with every structural change
	spaces   map[Namespace]*node
	kids     childTable
	strips   stripHeap
	slab     slab
	orders   []order
	ledgers  []ledger
	pass     uint32 // of evictions; see node.skip
	skipped  []*node
	evictor  evictor
	orphans  []*node // detached, still pinned
	limbo    []limboPage
	waiting  atomic.Int32 // len(orphans)+len(limbo)
	loads    slots[load]
	backs    slots[backUp]
	stores   slots[store]
	path     []*node // scratch
	entry    policy.Entry
	dropping Namespace // of the subtree being detached
	cause    Cause     // of the eviction under way
	clearing bool      // everything is: one change says it all

	learnMu    sync.Mutex
	learnEntry policy.Entry

	pinMu sync.Mutex
	pins  pinTable
}

// swaPool is what the tree needs of a window pool.
type swaPool struct {
	pool   int
	window int // pages that the window at any boundary can touch: ceil(WindowTokens / PageTokens)
}

// ledger counts the pages of a pool. Atomics, because pins move pages between free and pinned under the shared lock.
type ledger struct {
	dev, devFree, pending atomic.Int64
	host, hostFree, dup   atomic.Int64
}

// New builds an empty tree. Errors name the field.
func New(cfg Config) (*Tree, error) {
	t := &Tree{cfg: cfg, pt: cfg.PageTokens * cfg.Tokens.Words(), full: -1, policy: cfg.Policy, spaces: map[Namespace]*node{}}
	if cfg.PageTokens <= 0 || cfg.PageTokens > 1<<20 {
		return nil, fmt.Errorf("%w: PageTokens %d is not in 1..%d", ErrArgument, cfg.PageTokens, 1<<20)
	}
	if cfg.Tokens > Bigram {
		return nil, fmt.Errorf("%w: Tokens is %d", ErrArgument, cfg.Tokens)
	}
	if len(cfg.Pools) == 0 || len(cfg.Pools) > MaxPools {
		return nil, fmt.Errorf("%w: %d Pools, want 1..%d", ErrArgument, len(cfg.Pools), MaxPools)
	}
	for i, p := range cfg.Pools {
		switch p.Role {
		case Full:
			if t.full >= 0 {
				return nil, fmt.Errorf("%w: Pools[%d] and Pools[%d] are both FULL", ErrArgument, t.full, i)
			}
			t.full = i
			t.rank = append(t.rank, 0)
		case SWA:
			if p.WindowTokens <= 0 {
				return nil, fmt.Errorf("%w: Pools[%d].WindowTokens is %d", ErrArgument, i, p.WindowTokens)
			}
			t.rank = append(t.rank, len(t.swa))
			t.swa = append(t.swa, swaPool{i, (p.WindowTokens + cfg.PageTokens - 1) / cfg.PageTokens})
		case State:
			t.rank = append(t.rank, len(t.states))
			t.states = append(t.states, i)
		default:
			return nil, fmt.Errorf("%w: Pools[%d].Role is %d", ErrArgument, i, p.Role)
		}
	}
	if t.full < 0 {
		return nil, fmt.Errorf("%w: Pools has no FULL pool", ErrArgument)
	}
	if len(t.swa) > maxWindowPools {
		return nil, fmt.Errorf("%w: %d SWA pools, at most %d", ErrArgument, len(t.swa), maxWindowPools)
	}
	if t.policy == nil {
		t.policy = policy.LRU()
	}
	t.learn, _ = t.policy.(policy.Learner)
	t.cols = colWindowHost + len(t.swa)
	t.orders = make([]order, orderAux+2*len(cfg.Pools))
	t.ledgers = make([]ledger, len(cfg.Pools))
	t.kids = childTable{slots: map[uint64]*node{}, seed: rand.Uint64()}
	t.slab.pools = len(cfg.Pools)
	t.pins.pools = len(cfg.Pools)
	t.hostPC.Store(cfg.HostPrefixClosed)
	t.pass = 1
	return t, nil
}

// Counts are the ledgers of one pool, in pages (states for a STATE pool).
type Counts struct {
	Device          int // on the device, loads in flight included
	DeviceEvictable int // of these, in nodes that nothing pins
	DevicePending   int // of these, being loaded
	Host            int
	HostEvictable   int // on nodes without a host pin (duplicates included)
	HostDuplicates  int // FULL only: also on the device
}

// Counts returns the ledgers of a pool. O(1); the figures are each exact, not a common snapshot.
func (t *Tree) Counts(pool int) Counts {
	l := &t.ledgers[pool]
	return Counts{
		Device: int(l.dev.Load()), DeviceEvictable: int(l.devFree.Load()), DevicePending: int(l.pending.Load()),
		Host: int(l.host.Load()), HostEvictable: int(l.hostFree.Load()), HostDuplicates: int(l.dup.Load()),
	}
}

// Nodes is the number of nodes, roots included. O(1).
func (t *Tree) Nodes() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.slab.live
}

// SetHostPrefixClosed switches Config.HostPrefixClosed.
func (t *Tree) SetHostPrefixClosed(on bool) { t.hostPC.Store(on) }

// tick is the time of one access: the caller's, or the next of the tree's own counter.
func (t *Tree) tick(now uint64) uint64 {
	if now == 0 {
		return t.clock.Add(1)
	}
	for {
		old := t.clock.Load()
		if old >= now || t.clock.CompareAndSwap(old, now) {
			return now
		}
	}
}

// Advance makes the tree's clock show at least now, for callers whose Retain is a time. Accesses without a time of their own count on from there.
func (t *Tree) Advance(now uint64) { t.tick(now) }

// addDev and addHost move the page counts of a node and its pool together. mu is held exclusively.
func (t *Tree) addDev(n *node, pool int, d int32) {
	s, l := &n.pools[pool], &t.ledgers[pool]
	had := s.dev > 0
	s.dev += d
	l.dev.Add(int64(d))
	if s.pins.Load() == 0 {
		l.devFree.Add(int64(d))
	}
	if pool == t.full && n.parent != nil && !n.detached && had != (s.dev > 0) {
		if had {
			n.parent.devKids--
		} else {
			n.parent.devKids++
		}
		t.reconcile(n.parent)
	}
}

func (t *Tree) addHost(n *node, pool int, d int32) {
	s, l := &n.pools[pool], &t.ledgers[pool]
	had := n.hasHost(t.full)
	s.host += d
	l.host.Add(int64(d))
	if s.hostPins.Load() == 0 {
		l.hostFree.Add(int64(d))
	}
	if pool == t.full {
		t.hostChanged(n, had)
	}
}

// hostChanged carries "some FULL page at or below is on the host" towards the root.
func (t *Tree) hostChanged(n *node, had bool) {
	for n.parent != nil && !n.detached && n.hasHost(t.full) != had {
		p := n.parent
		was := p.hasHost(t.full)
		if had {
			p.hostKids--
		} else {
			p.hostKids++
		}
		t.reconcile(p)
		n, had = p, was
	}
}

func (t *Tree) addPending(n *node, pool int, d int32) {
	n.pools[pool].pending += d
	t.ledgers[pool].pending.Add(int64(d))
}
