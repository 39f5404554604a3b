package replay

import (
	"math"
	"slices"
	"time"

	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/report"
)

const (
	samplesMax   = 400
	columnsMax   = 200
	mapRowsMax   = 480
	sampleFirst  = 20 * time.Millisecond // between samples at first; doubles when there are too many
	progressGap  = 500 * time.Millisecond
	latencyLimit = 1 << 14 // latencies kept between two samples
)

// Progress is where a run stands.
type Progress struct {
	Requests     int64
	Fraction     float64 // of the stream, 0 to 1; 0 unknown
	Elapsed      time.Duration
	PromptTokens int64
	HitTokens    int64
}

// recording is what a report is drawn from.
type recording struct {
	pools   []report.Pool
	samples []report.Sample
	arena   report.Map
}

// sampler looks at the run now and then: for the progress line, and for the report when one was asked for.
type sampler struct {
	r            *run
	nextProgress time.Time
	nextSample   time.Time
	gap          time.Duration
	nextColumn   time.Time
	columnGap    time.Duration
	submits      []float64 // microseconds, of loads since the last sample
	arrivals     []float64
	used         [][]usage // by pool and physical page
}

// usage is what a place was last seen to hold, and when it was last used.
type usage struct {
	state hicache.PageState
	at    time.Time
}

func newSampler(r *run) *sampler {
	now := time.Now()
	s := &sampler{r: r, nextProgress: now.Add(progressGap), nextSample: now, gap: sampleFirst, nextColumn: now, columnGap: sampleFirst}
	if !r.cfg.Record {
		return s
	}
	rec := &recording{}
	pages := 0
	for _, p := range r.cache.Pools() {
		rec.pools = append(rec.pools, report.Pool{Name: p.Name, Role: p.Role.String(), PageBytes: int64(p.PageBytes)})
		s.used = append(s.used, make([]usage, p.PageCount))
		pages = max(pages, p.PageCount)
	}
	rec.arena = report.Map{Bytes: r.result.Config.DeviceBytes, Rows: min(mapRowsMax, max(1, pages)), Sampled: pages > mapRowsMax}
	r.result.report = rec
	return s
}

// latency notes how long a request's load took.
func (s *sampler) latency(q *request) {
	if !s.r.cfg.Record {
		return
	}
	if q.arrived > 0 && len(s.submits) < latencyLimit {
		s.submits = append(s.submits, micros(q.submit))
		s.arrivals = append(s.arrivals, micros(q.arrived))
	}
	now := time.Now()
	for _, items := range [][]item{q.checks, q.writes} {
		for i := range items {
			if place := int(s.r.cache.PhysicalPage(items[i].pool, items[i].kernel)); place < len(s.used[items[i].pool]) {
				s.used[items[i].pool][place].at = now
			}
		}
	}
}

// tick is called after each request; last says that the run is over.
func (s *sampler) tick(last bool) {
	now := time.Now()
	if s.r.cfg.Progress != nil && now.After(s.nextProgress) {
		s.nextProgress = now.Add(progressGap)
		s.r.cfg.Progress(s.progress(now))
	}
	if !s.r.cfg.Record {
		return
	}
	if last || now.After(s.nextSample) {
		s.nextSample = now.Add(s.gap)
		s.sample(now)
	}
	if last || now.After(s.nextColumn) {
		s.nextColumn = now.Add(s.columnGap)
		s.column(now)
	}
}

func (s *sampler) progress(now time.Time) Progress {
	res := s.r.result
	p := Progress{Requests: res.Requests, Fraction: s.r.cfg.Source.Fraction(), Elapsed: now.Sub(s.r.start), PromptTokens: res.PromptTokens, HitTokens: res.HitTokens.sum()}
	if limit := s.r.cfg.Limit; limit > 0 {
		p.Fraction = max(p.Fraction, float64(res.Requests)/float64(limit))
	}
	return p
}

// thin halves a series that has become too long, keeping the last entry, and says whether it did.
func thin[T any](series []T, most int) ([]T, bool) {
	if len(series) <= most {
		return series, false
	}
	kept := series[:0]
	for i := range series {
		if i%2 == 0 || i == len(series)-1 {
			kept = append(kept, series[i])
		}
	}
	return kept, true
}

func (s *sampler) sample(now time.Time) {
	r, stats := s.r, s.r.cache.Stats()
	p := report.Sample{Seconds: now.Sub(r.start).Seconds(), Requests: r.result.Requests, PromptTokens: r.result.PromptTokens,
		HitTokens: [3]int64{r.result.HitTokens.Device, r.result.HitTokens.Host, r.result.HitTokens.Storage},
		H2DBytes:  int64(stats.BytesH2D), D2HBytes: int64(stats.BytesD2H), ReadBytes: int64(stats.StorageReadBytes), WriteBytes: int64(stats.StorageWriteBytes),
		SubmitP50: quantile(s.submits, 0.5), SubmitP99: quantile(s.submits, 0.99), LoadP50: quantile(s.arrivals, 0.5), LoadP99: quantile(s.arrivals, 0.99),
		Moves: int64(stats.Moves)}
	s.submits, s.arrivals = s.submits[:0], s.arrivals[:0]
	for i := range r.cache.Pools() {
		p.Device = append(p.Device, s.occupancy(hicache.TierDevice, i))
		p.Host = append(p.Host, s.occupancy(hicache.TierHost, i))
	}
	rec, thinned := r.result.report, false
	if rec.samples, thinned = thin(append(rec.samples, p), samplesMax); thinned {
		s.gap *= 2
	}
}

func (s *sampler) occupancy(tier hicache.Tier, pool int) report.Occupancy {
	if tier == hicache.TierHost && s.r.result.Config.HostBytes == 0 {
		return report.Occupancy{}
	}
	st, err := s.r.cache.PoolStats(tier, pool)
	if err != nil {
		return report.Occupancy{}
	}
	b := int64(s.r.cache.Pools()[pool].PageBytes)
	return report.Occupancy{Live: int64(st.Live) * b, Hole: int64(st.Holes) * b, Reserved: int64(st.Reserved) * b, Quarantined: int64(st.Quarantined) * b}
}

// column adds the arena as it is now to the memory map.
func (s *sampler) column(now time.Time) {
	rec := s.r.result.report
	cells := make([]report.Cell, rec.arena.Rows)
	for pool, info := range s.r.cache.Pools() {
		states, err := s.r.cache.Map(hicache.TierDevice, pool)
		if err != nil {
			return
		}
		used := s.used[pool]
		for i, st := range states[:min(len(states), len(used))] {
			if st&^hicache.PagePinned != used[i].state {
				used[i].state = st &^ hicache.PagePinned
				used[i].at = now
			}
		}
		for row := range cells {
			middle := (float64(row) + 0.5) / float64(len(cells)) * float64(rec.arena.Bytes)
			page := int(middle / float64(info.PageBytes))
			if page >= len(states) || cells[row].State > report.Sink {
				continue
			}
			if st := states[page]; st != hicache.PageGap {
				cells[row] = report.Cell{State: report.State(st &^ hicache.PagePinned), Pool: uint8(pool), Pinned: st&hicache.PagePinned != 0, Age: age(now.Sub(used[page].at))}
			}
		}
	}
	thinned := false
	if rec.arena.Columns, thinned = thin(append(rec.arena.Columns, report.Column{Seconds: now.Sub(s.r.start).Seconds(), Cells: cells}), columnsMax); thinned {
		s.columnGap *= 2
	}
}

// age is the time since the last use in the report's steps: 0 below a millisecond, then AgeSteps a doubling.
func age(d time.Duration) uint8 {
	ms := float64(d) / float64(time.Millisecond)
	if ms < 1 {
		return 0
	}
	return uint8(min(255, math.Log2(ms)*report.AgeSteps))
}

func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[min(len(values)-1, int(q*float64(len(values))))]
}

// Report is the page of the run; ok is false when the run did not record.
func (r *Result) Report() (d *report.Data, ok bool) {
	if r.report == nil {
		return nil, false
	}
	c := r.Config
	d = &report.Data{Title: "hicache replay", Notes: r.notes(), Pools: r.report.pools, Samples: r.report.samples, Map: r.report.arena,
		Device: report.Tier{Bytes: c.DeviceBytes}, Host: report.Tier{Bytes: c.HostBytes}, Subtitle: c.String()}
	d.Totals = append(d.Totals, report.Group{Title: "headline", Rows: []report.Row{
		{Name: "requests", Value: grouped(r.Requests)}, {Name: "token hit rate", Value: percent(r.HitRateTokens)},
		{Name: "mismatches in " + grouped(r.PagesVerified) + " pages verified", Value: grouped(r.Mismatches)},
		{Name: "verified pages that had moved", Value: grouped(r.RelocatedPagesVerified)},
		{Name: "requests a second", Value: grouped(int64(r.RequestsPerS))}}})
	for _, l := range r.lines() {
		if d.Totals[len(d.Totals)-1].Title != l.group {
			d.Totals = append(d.Totals, report.Group{Title: l.group})
		}
		g := &d.Totals[len(d.Totals)-1]
		g.Rows = append(g.Rows, report.Row{Name: l.name, Value: l.value})
	}
	return d, true
}
