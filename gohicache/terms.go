package hicache

import "fmt"

// Device says which backend holds the first tier. The zero value is [CPU].
type Device struct {
	kind    deviceKind
	ordinal int
}

type deviceKind uint8

const (
	deviceCPU deviceKind = iota
	deviceNull
	deviceCUDA
)

var (
	// CPU keeps "device" memory in host memory and copies on worker threads: the byte-exact reference.
	CPU = Device{kind: deviceCPU}
	// Null keeps tables and accounting but no bytes: a page has an 8-byte tag instead, which moves and copies with it. For capacity
	// studies of devices and hosts larger than this machine.
	Null = Device{kind: deviceNull}
)

// CUDA is the CUDA device of that ordinal.
func CUDA(ordinal int) Device { return Device{kind: deviceCUDA, ordinal: ordinal} }

// String names the device as options and reports do: "cpu", "null", "cuda:0".
func (d Device) String() string {
	switch d.kind {
	case deviceNull:
		return "null"
	case deviceCUDA:
		return fmt.Sprintf("cuda:%d", d.ordinal)
	}
	return "cpu"
}

// Role says what a pool's pages hold.
type Role uint8

const (
	// Full pages hold the keys and values of full-attention layers: a prefix needs all of them.
	Full Role = 1 + iota
	// SWA pages hold those of sliding-window layers: a prefix needs only its last window.
	SWA
	// State pages hold a recurrent state each: a prefix needs one, at its end or a checkpoint before it.
	State
)

// String names the role: "full", "swa", "state".
func (r Role) String() string {
	switch r {
	case Full:
		return "full"
	case SWA:
		return "swa"
	case State:
		return "state"
	}
	return fmt.Sprintf("role(%d)", uint8(r))
}

// Tier is a level of memory.
type Tier uint8

const (
	TierDevice  Tier = 1 + iota // L1
	TierHost                    // L2
	TierStorage                 // L3
)

// String names the tier: "device", "host", "storage".
func (t Tier) String() string {
	switch t {
	case TierDevice:
		return "device"
	case TierHost:
		return "host"
	case TierStorage:
		return "storage"
	}
	return fmt.Sprintf("tier(%d)", uint8(t))
}

// WritePolicy says when new pages are copied to the host tier (and from there to storage).
type WritePolicy uint8

const (
	// WriteThrough backs a page up when it is inserted.
	WriteThrough WritePolicy = iota
	// WriteThroughSelective backs a page up when it has been hit [Options.WriteThreshold] times.
	WriteThroughSelective
	// WriteBack backs a page up only when the device evicts it.
	WriteBack
)

// String names the policy as options do.
func (p WritePolicy) String() string {
	switch p {
	case WriteThrough:
		return "write_through"
	case WriteThroughSelective:
		return "write_through_selective"
	case WriteBack:
		return "write_back"
	}
	return fmt.Sprintf("write_policy(%d)", uint8(p))
}

// ParseWritePolicy is the inverse of String.
func ParseWritePolicy(s string) (WritePolicy, error) {
	for p := WriteThrough; p <= WriteBack; p++ {
		if p.String() == s {
			return p, nil
		}
	}
	return 0, &Error{Op: "parse", Err: ErrInvalid, Message: fmt.Sprintf("write policy %q is none of write_through, write_through_selective, write_back", s)}
}

// Compaction says when the engine moves pages to close holes.
type Compaction uint8

const (
	CompactionLazy  Compaction = iota // When a take needs the room, and in [Cache.Compact].
	CompactionEager                   // At each free.
	CompactionOff                     // Never: a take that needs a move fails.
)

// Placement says how the engine places pages.
type Placement uint8

const (
	PlacementBest      Placement = iota // A shortfall moves just what it needs.
	PlacementReference                  // As the system that the idea comes from, for comparison.
)

// PrefetchPolicy says how long a [Cache.Load] waits for pages that storage holds.
type PrefetchPolicy uint8

const (
	// PrefetchTimeout waits up to [Options.PrefetchTimeout] plus [Options.PrefetchTimeoutPerKiTokens] a 1,024 tokens, then goes on with
	// what has arrived.
	PrefetchTimeout PrefetchPolicy = iota
	// PrefetchWait waits for all of it (or for the context of the call).
	PrefetchWait
	// PrefetchBestEffort takes only what is there when the load is planned.
	PrefetchBestEffort
	// PrefetchOff never reads storage.
	PrefetchOff
)

// Layout is the order of bytes inside a page envelope.
type Layout uint8

const (
	LayerMajor Layout = iota // [layer][K|V][token][row]: a layer's slice is contiguous.
	TokenMajor               // [token][layer][K|V][row].
)

// Zeroing says what handing out a page zeroes.
type Zeroing uint8

const (
	ZeroDefault Zeroing = iota // ZeroAlways for FULL and SWA, ZeroNever for STATE.
	ZeroAlways
	ZeroTail // Only rows that nobody says it will write.
	ZeroNever
)

// Direction is where in the arena's chain a pool lives.
type Direction uint8

const (
	DirectionAuto  Direction = iota
	DirectionUp              // Grows from the low end.
	DirectionFloat           // Anywhere between its neighbours.
	DirectionDown            // Grows from the high end.
)

// Stream is the compute stream of a call: a CUstream as a number. The CPU and null devices ignore it.
type Stream uint64
