package lifecycle

import (
	"log/slog"
	"time"

	"github.com/hicache/hicache/gohicache/internal/policy"
	"github.com/hicache/hicache/gohicache/internal/radix"
	"github.com/hicache/hicache/gohicache/storage"
)

// Backend is which memory the engine works on.
type Backend uint8

const (
	BackendCPU Backend = iota
	BackendNull
	BackendCUDA
)

// WritePolicy says when device pages are copied to the host.
type WritePolicy uint8

const (
	WriteThrough WritePolicy = iota
	WriteThroughSelective
	WriteBack
)

// PrefetchPolicy says how long a load waits for storage.
type PrefetchPolicy uint8

const (
	PrefetchTimeout PrefetchPolicy = iota
	PrefetchWait
	PrefetchBestEffort
	PrefetchOff
)

// Pool describes one pool; Layout, Zeroing and Direction are the library's numbers.
type Pool struct {
	Name                       string
	Role                       radix.Role
	Layers                     []uint32
	KRowBytes, VRowBytes       uint64
	PageBytes                  uint64
	WindowTokens               int
	VirtualPages               int
	Layout, Zeroing, Direction uint32
	Static                     bool
	HostLayout                 uint32 // the library's number
	HostPages                  int    // of a host region of its own; 0: a share of HostBytes
	Heads                      int
}

// Fault is the fault injection of the engine.
type Fault struct {
	Seed, FailTransferN uint64
	FailPPM             uint32
	Hold                bool
	DelayMax            time.Duration
}

// Config is what a Core is opened with. Everything is resolved: no zero value stands for something else.
type Config struct {
	Library               string
	Backend               Backend
	Ordinal               int
	DeviceBytes           uint64
	HostNUMANodes         uint64
	HostBytes             uint64 // the staging arena's if Staging
	Staging               bool   // the host arena only serves storage; hits in it count as storage's
	Pools                 []Pool
	PageTokens            int
	Tokens                radix.TokenForm
	RequestTokensMax      int
	Compaction, Placement uint32
	CopyThreads           int
	H2DSlowdownMax        int // per mille; 0: the engine's default
	D2HSlowdownMax        int
	NoCopyCalibration     bool
	Sabotage              uint32
	Fault                 *Fault

	WritePolicy       WritePolicy
	WriteThreshold    int
	Policy            policy.Policy
	WholeLeaf         bool
	LoadBackMinTokens int
	Events            bool // pages are hashed when they are inserted, and changes told to who listens

	Store                      storage.Store
	KeyFields                  KeyFields
	Prefetch                   PrefetchPolicy
	PrefetchMinTokens          int
	PrefetchTimeout            time.Duration
	PrefetchTimeoutPerKiTokens time.Duration
	StoreQueueMax              int
	StorageBatch               int
	HeadGroups                 int // objects of a page in a store without envelopes, by heads; 0 or 1: not by heads

	Clock  func() time.Time
	Logger *slog.Logger
}

// KeyFields go into storage keys beside the geometry.
type KeyFields struct {
	Model, DType string
	Rank, Ranks  int
}
