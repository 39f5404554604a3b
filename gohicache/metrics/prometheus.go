package metrics

import (
	"bufio"
	"fmt"
	"io"
)

// Label is a name and a value that tell the samples of a family apart.
type Label struct{ Name, Value string }

// Sample is one value of a family.
type Sample struct {
	Labels []Label
	Value  float64
}

// Kind is what a family measures, as Prometheus names it.
type Kind string

const (
	Counter Kind = "counter"
	Gauge   Kind = "gauge"
	Summary Kind = "summary" // the samples are quantiles
)

// Family is one metric.
type Family struct {
	Name, Help string
	Kind       Kind
	Samples    []Sample
	Count      uint64 // Of a summary: how many, and their sum in seconds.
	Sum        float64
}

func counter(name, help string, value uint64) Family {
	return Family{Name: name, Kind: Counter, Help: help, Samples: []Sample{{nil, float64(value)}}}
}

func gauge(name, help string, value float64) Family {
	return Family{Name: name, Kind: Gauge, Help: help, Samples: []Sample{{nil, value}}}
}

func byTier(name, help string, c TierCount) Family {
	sample := func(tier string, value uint64) Sample { return Sample{[]Label{{"tier", tier}}, float64(value)} }
	return Family{Name: name, Kind: Counter, Help: help, Samples: []Sample{sample("device", c.Device), sample("host", c.Host), sample("storage", c.Storage)}}
}

// Families lists every field of Stats as a metric, in a fixed order.
func Families(s *Stats) []Family {
	degraded := 0.0
	if s.Degraded != "" {
		degraded = 1
	}
	return []Family{
		counter("hicache_matches_total", "Look-ups.", s.Matches),
		counter("hicache_loads_total", "Leases and sequences begun.", s.Loads),
		counter("hicache_inserts_total", "Inserts.", s.Inserts),
		counter("hicache_steps_total", "Steps opened.", s.Steps),
		counter("hicache_matched_tokens_total", "Tokens looked up.", s.MatchedTokens),
		byTier("hicache_hit_tokens_total", "Tokens of prefixes that loads delivered, by the tier that held them.", s.HitTokens),
		counter("hicache_load_backs_total", "Transfers from host to device that ended well.", s.LoadBacks),
		counter("hicache_back_ups_total", "Transfers from device to host that ended well.", s.BackUps),
		counter("hicache_load_back_pages_total", "Pages of load-backs.", s.LoadBackPages),
		counter("hicache_back_up_pages_total", "Pages of back-ups.", s.BackUpPages),
		counter("hicache_h2d_bytes_total", "Bytes from host to device.", s.BytesH2D),
		counter("hicache_d2h_bytes_total", "Bytes from device to host.", s.BytesD2H),
		counter("hicache_transfers_failed_total", "Transfers that failed.", s.TransfersFailed),
		counter("hicache_back_ups_skipped_total", "Back-ups given up for want of host memory.", s.BackUpsSkipped),
		counter("hicache_back_ups_skipped_pages_total", "Pages not backed up for want of host memory.", s.BackUpsSkippedPages),
		counter("hicache_prefetches_total", "Reads of storage that brought pages.", s.Prefetches),
		counter("hicache_prefetch_pages_total", "Pages that prefetches brought.", s.PrefetchPages),
		counter("hicache_prefetches_cut_total", "Prefetches that brought less than storage had.", s.PrefetchesCut),
		counter("hicache_stored_pages_total", "Pages written to storage.", s.StoredPages),
		counter("hicache_store_skipped_pages_total", "Pages not written to storage.", s.StoreSkipped),
		counter("hicache_storage_read_bytes_total", "Bytes read from storage.", s.StorageReadBytes),
		counter("hicache_storage_write_bytes_total", "Bytes written to storage.", s.StorageWriteBytes),
		counter("hicache_storage_misses_total", "Look-ups in storage that found nothing.", s.StorageMisses),
		counter("hicache_storage_faults_total", "Operations of storage that failed.", s.StorageFaults),
		counter("hicache_storage_corrupt_total", "Stored objects whose checksum did not fit.", s.StorageCorrupt),
		byTier("hicache_evicted_pages_total", "Pages evicted, by tier.", s.Evicted),
		counter("hicache_demoted_pages_total", "Device pages that left with a host copy.", s.Demoted),
		counter("hicache_dropped_pages_total", "Device pages that left without one.", s.Dropped),
		counter("hicache_tombstoned_pages_total", "Window pages that left while their full page stayed.", s.Tombstoned),
		counter("hicache_host_pressure_drops_total", "Device pages dropped because the host had no room.", s.HostPressureDrops),
		counter("hicache_no_capacity_total", "Requests refused for want of room.", s.NoCapacity),
		counter("hicache_capacity_waits_total", "Requests that waited for room.", s.CapacityWait),
		counter("hicache_moved_pages_total", "Pages moved by compaction on the device.", s.Moves),
		counter("hicache_moved_bytes_total", "Bytes moved by compaction on the device.", s.MovedBytes),
		counter("hicache_moves_during_transfer_total", "Pages moved while a copy was in flight.", s.MovesDuringTransfer),
		counter("hicache_host_moved_pages_total", "Pages moved by compaction on the host.", s.HostMoves),
		counter("hicache_moves_blocked_total", "Takes refused because pinned pages could not move.", s.MovesBlocked),
		counter("hicache_zeroed_bytes_total", "Bytes zeroed.", s.ZeroedBytes),
		counter("hicache_sink_translations_total", "Translations of unmapped pages.", s.SinkTranslations),
		counter("hicache_take_fence_waits_total", "Takes that waited for a fence; stays 0.", s.FenceWaitsTakes),
		gauge("hicache_leases", "Leases, sequences and steps held.", float64(s.LeasesNow)),
		gauge("hicache_pins", "Paths pinned.", float64(s.PinsNow)),
		gauge("hicache_transfers_in_flight", "Transfers in flight.", float64(s.TransfersInFlightNow)),
		gauge("hicache_store_queue_pages", "Pages waiting to be stored.", float64(s.StoreQueueNow)),
		counter("hicache_leases_expired_in_use_total", "Leases whose time ended while a reader was there.", s.LeasesExpiredInUse),
		counter("hicache_events_total", "Changes told to streams of events.", s.Events),
		counter("hicache_event_gaps_total", "Times that a stream of events lost some.", s.EventGaps),
		counter("hicache_internal_errors_total", "Bugs that the cache noticed.", s.InternalErrors),
		summary("hicache_submit_seconds", "Time a caller spends in submitting a transfer.", &s.Submit),
		gauge("hicache_degraded", "1 if the cache runs without the storage it was given.", degraded),
	}
}

func summary(name, help string, h *Histogram) Family {
	f := Family{Name: name, Kind: Summary, Help: help, Count: h.Count, Sum: h.Sum.Seconds()}
	for _, q := range []float64{.5, .9, .99} {
		f.Samples = append(f.Samples, Sample{[]Label{{"quantile", fmt.Sprint(q)}}, h.Quantile(q).Seconds()})
	}
	return f
}

// Pool are the gauges of one pool on one tier.
type Pool struct {
	Name, Tier string
	PoolStats
}

// PoolFamilies lists every field of PoolStats as a metric, for all pools.
func PoolFamilies(pools []Pool) []Family {
	pages := Family{Name: "hicache_pool_pages", Kind: Gauge, Help: "Pages of a pool on a tier, by state; the states overlap."}
	bounds := Family{Name: "hicache_pool_span_place", Kind: Gauge, Help: "First place of a pool in its arena, and the one after its last."}
	gaps := Family{Name: "hicache_pool_gap_bytes", Kind: Gauge, Help: "Room between a pool and its neighbours in the arena."}
	for i := range pools {
		p := &pools[i]
		at := func(name, value string) []Label {
			return []Label{{"pool", p.Name}, {"tier", p.Tier}, {name, value}}
		}
		for _, s := range []struct {
			state string
			n     uint64
		}{{"live", p.Live}, {"hole", p.Holes}, {"reserved", p.Reserved}, {"quarantined", p.Quarantined}, {"pinned", p.Pinned}, {"free_id", p.FreeVirtualPages},
			{"available", p.Available}, {"schedulable", p.Schedulable}, {"cached", p.Cached}, {"evictable", p.Evictable}} {
			pages.Samples = append(pages.Samples, Sample{at("state", s.state), float64(s.n)})
		}
		bounds.Samples = append(bounds.Samples, Sample{at("end", "low"), float64(p.SpanLow)}, Sample{at("end", "high"), float64(p.SpanHigh)})
		gaps.Samples = append(gaps.Samples, Sample{at("side", "low"), float64(p.GapLowBytes)}, Sample{at("side", "high"), float64(p.GapHighBytes)})
	}
	return []Family{pages, bounds, gaps}
}

// WritePrometheus writes the counters in the text exposition format of Prometheus, for a handler of a server's own /metrics page. Package
// prometheus beside this one is a collector for those who use Prometheus's own client.
func WritePrometheus(w io.Writer, s *Stats) error {
	b := bufio.NewWriter(w)
	for _, f := range Families(s) {
		fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n", f.Name, f.Help, f.Name, f.Kind)
		for _, x := range f.Samples {
			b.WriteString(f.Name)
			for i, l := range x.Labels {
				b.WriteString([]string{"{", ","}[min(i, 1)])
				fmt.Fprintf(b, "%s=%q", l.Name, l.Value)
			}
			if len(x.Labels) > 0 {
				b.WriteByte('}')
			}
			fmt.Fprintf(b, " %v\n", x.Value)
		}
		if f.Kind == Summary {
			fmt.Fprintf(b, "%s_sum %v\n%s_count %v\n", f.Name, f.Sum, f.Name, f.Count)
		}
	}
	return b.Flush()
}
