package lifecycle

import (
	"sync/atomic"

	"github.com/hicache/hicache/gohicache/internal/radix"
	"github.com/hicache/hicache/gohicache/metrics"
)

// counters are the counts that the engine does not keep.
type counters struct {
	matches, loads, inserts, steps, matchedTokens  atomic.Uint64
	hitDevice, hitHost, hitStorage                 atomic.Uint64
	loadBacks, loadBackPages, backUps, backUpPages atomic.Uint64
	bytesH2D, bytesD2H, transfersFailed            atomic.Uint64
	backUpsSkipped, backUpsSkippedPages            atomic.Uint64
	prefetches, prefetchPages, prefetchesCut       atomic.Uint64
	storedPages, storeSkipped                      atomic.Uint64
	storageRead, storageWrite                      atomic.Uint64
	storageMisses, storageFaults, storageCorrupt   atomic.Uint64
	evictedDevice, evictedHost                     atomic.Uint64
	demoted, dropped, tombstoned, hostPressure     atomic.Uint64
	noCapacity, capacityWait, expiredInUse, bugs   atomic.Uint64
	pins                                           atomic.Int64
	submit                                         metrics.Recorder
}

// evicted counts an eviction pass.
func (c *Core) evicted(tier radix.Tier, r *radix.EvictResult) {
	total := uint64(0)
	for _, n := range r.Gone {
		total += uint64(n)
	}
	if tier == radix.Host {
		c.count.evictedHost.Add(total)
		return
	}
	c.count.evictedDevice.Add(total)
	for _, v := range r.Victims {
		switch v.Kind {
		case radix.Demoted:
			c.count.demoted.Add(uint64(v.Pages))
		case radix.Dropped:
			c.count.dropped.Add(uint64(v.Pages))
		case radix.Tombstoned:
			c.count.tombstoned.Add(uint64(v.Pages))
		}
	}
}

// Stats reads all counters.
func (c *Core) Stats() metrics.Stats {
	n := &c.count
	s := metrics.Stats{
		Matches: n.matches.Load(), Loads: n.loads.Load(), Inserts: n.inserts.Load(), Steps: n.steps.Load(), MatchedTokens: n.matchedTokens.Load(),
		HitTokens: metrics.TierCount{Device: n.hitDevice.Load(), Host: n.hitHost.Load(), Storage: n.hitStorage.Load()},
		LoadBacks: n.loadBacks.Load(), LoadBackPages: n.loadBackPages.Load(), BackUps: n.backUps.Load(), BackUpPages: n.backUpPages.Load(),
		BytesH2D: n.bytesH2D.Load(), BytesD2H: n.bytesD2H.Load(), TransfersFailed: n.transfersFailed.Load(),
		BackUpsSkipped: n.backUpsSkipped.Load(), BackUpsSkippedPages: n.backUpsSkippedPages.Load(),
		Prefetches: n.prefetches.Load(), PrefetchPages: n.prefetchPages.Load(), PrefetchesCut: n.prefetchesCut.Load(),
		StoredPages: n.storedPages.Load(), StoreSkipped: n.storeSkipped.Load(),
		StorageReadBytes: n.storageRead.Load(), StorageWriteBytes: n.storageWrite.Load(),
		StorageMisses: n.storageMisses.Load(), StorageFaults: n.storageFaults.Load(), StorageCorrupt: n.storageCorrupt.Load(),
		Evicted: metrics.TierCount{Device: n.evictedDevice.Load(), Host: n.evictedHost.Load()},
		Demoted: n.demoted.Load(), Dropped: n.dropped.Load(), Tombstoned: n.tombstoned.Load(), HostPressureDrops: n.hostPressure.Load(),
		NoCapacity: n.noCapacity.Load(), CapacityWait: n.capacityWait.Load(), LeasesExpiredInUse: n.expiredInUse.Load(),
		InternalErrors: n.bugs.Load(), PinsNow: n.pins.Load(), Submit: n.submit.Snapshot(),
	}
	s.LeasesNow = int64(c.holds.count())
	if c.teller != nil {
		s.Events, s.EventGaps = c.teller.feed.Seq(), c.teller.feed.Gaps()
	}
	if store := c.store.Load(); store != nil {
		store.stats(&s)
	}
	e, err := c.eng.Stats()
	if err != nil {
		return s // closed: the engine's share is gone
	}
	s.Moves, s.MovedBytes, s.MovesDuringTransfer, s.MovesBlocked = e.Moves, e.MovedBytes, e.MovesDuringTransfer, e.MovesBlocked
	s.HostMoves, s.ZeroedBytes, s.SinkTranslations, s.FenceWaitsTakes = e.HostMoves, e.ZeroedBytes, e.SinkTranslations, e.FenceWaitsTakes
	s.TransfersInFlightNow = int64(e.TransfersInFlight)
	return s
}
