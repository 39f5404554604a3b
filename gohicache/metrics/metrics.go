// Package metrics holds what a cache counts, as plain values that exporters and reports read.
package metrics

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Stats are counters since Open; those named "Now" are gauges. Tokens are tokens of prompts, pages are pages of any pool, bytes are page
// envelopes.
type Stats struct {
	Matches, Loads, Inserts, Steps uint64
	MatchedTokens                  uint64    // Tokens that were looked up.
	HitTokens                      TierCount // Tokens of prefixes that loads delivered, by the tier that held them.

	LoadBacks, BackUps           uint64 // Transfers host→device and device→host that ended well.
	LoadBackPages, BackUpPages   uint64
	BytesH2D, BytesD2H           uint64
	TransfersFailed              uint64
	BackUpsSkipped               uint64 // Back-ups given up because the host had no room.
	BackUpsSkippedPages          uint64
	Prefetches, PrefetchPages    uint64 // Reads of storage that brought pages, and the pages.
	PrefetchesCut                uint64 // Prefetches that brought less than storage said it had: deadline, room, faults.
	StoredPages, StoreSkipped    uint64 // Pages written to storage; pages not written because the queue was full or a write failed.
	StorageReadBytes             uint64
	StorageWriteBytes            uint64
	StorageMisses, StorageFaults uint64 // Lookups that found nothing; operations that failed.
	StorageCorrupt               uint64 // Objects whose checksum did not fit; never served.

	Evicted           TierCount // Pages, by tier.
	Demoted, Dropped  uint64    // Device pages that left with and without a host copy.
	Tombstoned        uint64    // Window pages that left while their full page stayed.
	HostPressureDrops uint64    // Device pages dropped because the host had no room for them.

	NoCapacity   uint64 // Takes that were refused, by the engine or for good.
	CapacityWait uint64 // Calls that waited for room.

	Moves, MovedBytes    uint64 // Of compaction, device arena.
	MovesDuringTransfer  uint64 // Of these, made while a copy was in flight.
	HostMoves            uint64
	MovesBlocked         uint64
	ZeroedBytes          uint64
	SinkTranslations     uint64
	FenceWaitsTakes      uint64 // Stays 0.
	LeasesNow, PinsNow   int64  // Leases, sequences and steps; matches with a pin.
	TransfersInFlightNow int64
	StoreQueueNow        int64 // Pages waiting to be written to storage.
	LeasesExpiredInUse   uint64
	Events, EventGaps    uint64 // Changes told to streams of events; times that a stream lost some.
	InternalErrors       uint64 // Bugs that the cache noticed and survived; they are in the log.

	Submit Histogram // Time a caller spends in submitting a transfer.
	// Degraded says why the cache runs without storage although it was given some; "" if it does not.
	Degraded string
}

// TierCount is a count by tier.
type TierCount struct{ Device, Host, Storage uint64 }

// PoolStats are the gauges of one pool on one tier, in pages; Span is the pool's range of places.
type PoolStats struct {
	Live, Holes, Reserved, Quarantined, Pinned uint64
	SpanLow, SpanHigh                          uint64
	GapLowBytes, GapHighBytes                  uint64
	FreeVirtualPages                           uint64
	Available, Schedulable                     uint64 // Could be taken without and with moves.
	Cached, Evictable                          uint64 // Named by the tree; of these, pinned by nobody.
}

// Histogram counts durations in buckets a quarter of a power of two wide.
type Histogram struct {
	Count   uint64
	Sum     time.Duration
	Buckets [160]uint64
}

// bucketOf puts nanoseconds into 4 buckets a power of two.
func bucketOf(ns uint64) int {
	if ns < 4 {
		return int(ns)
	}
	exp := bits.Len64(ns) - 1
	b := (exp-1)*4 + int(ns>>(exp-2)&3)
	return min(b, 159)
}

// bucketTop is the largest duration of a bucket.
func bucketTop(b int) time.Duration {
	if b < 4 {
		return time.Duration(b)
	}
	exp, frac := b/4+1, b%4
	return time.Duration((uint64(frac)+5)<<(exp-2) - 1)
}

// Quantile is an upper bound of the q-quantile, at most 25 % too high; 0 if nothing was counted.
func (h *Histogram) Quantile(q float64) time.Duration {
	rank, seen := uint64(q*float64(h.Count)), uint64(0)
	for b, n := range h.Buckets {
		if seen += n; n > 0 && seen > rank {
			return bucketTop(b)
		}
	}
	if h.Count == 0 {
		return 0
	}
	return bucketTop(len(h.Buckets) - 1)
}

// Recorder is a Histogram that many goroutines add to.
type Recorder struct {
	count, sum atomic.Uint64
	buckets    [160]atomic.Uint64
}

// Add counts one duration.
func (r *Recorder) Add(d time.Duration) {
	ns := uint64(max(d, 0))
	r.count.Add(1)
	r.sum.Add(ns)
	r.buckets[bucketOf(ns)].Add(1)
}

// Snapshot is the histogram now; durations added meanwhile may be in part of it.
func (r *Recorder) Snapshot() Histogram {
	h := Histogram{Count: r.count.Load(), Sum: time.Duration(r.sum.Load())}
	for i := range r.buckets {
		h.Buckets[i] = r.buckets[i].Load()
	}
	return h
}
