// Package prometheus is a collector of a cache's counters and gauges for Prometheus's Go client. A server that writes its /metrics page itself
// needs only metrics.WritePrometheus.
package prometheus

import (
	"strconv"

	client "github.com/prometheus/client_golang/prometheus"

	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/metrics"
)

// Collector collects from one cache. Register one a cache; with several caches in a registry, give each labels of its own. A scrape costs a border
// crossing for the counters and two a pool and tier.
type Collector struct {
	cache  *hicache.Cache
	labels client.Labels
}

// New makes the collector of a cache; labels are added to every metric.
func New(c *hicache.Cache, labels client.Labels) *Collector { return &Collector{c, labels} }

// families reads everything.
func (c *Collector) families() []metrics.Family {
	stats := c.cache.Stats()
	var pools []metrics.Pool
	for i, p := range c.cache.Pools() {
		for _, tier := range []hicache.Tier{hicache.TierDevice, hicache.TierHost} {
			s, err := c.cache.PoolStats(tier, i)
			if err != nil { // closed: what it counted is still told
				continue
			}
			pools = append(pools, metrics.Pool{Name: p.Name, Tier: tier.String(), PoolStats: s})
		}
	}
	return append(metrics.Families(&stats), metrics.PoolFamilies(pools)...)
}

func (c *Collector) desc(f *metrics.Family, labels []string) *client.Desc {
	return client.NewDesc(f.Name, f.Help, labels, c.labels)
}

// Describe implements the client's Collector.
func (c *Collector) Describe(out chan<- *client.Desc) {
	for _, f := range append(metrics.Families(&metrics.Stats{}), metrics.PoolFamilies(make([]metrics.Pool, 1))...) {
		out <- c.desc(&f, names(&f))
	}
}

// names are the names of a family's labels; a summary's quantiles are not labels to the client.
func names(f *metrics.Family) (out []string) {
	if f.Kind == metrics.Summary || len(f.Samples) == 0 {
		return nil
	}
	for _, l := range f.Samples[0].Labels {
		out = append(out, l.Name)
	}
	return out
}

// Collect implements the client's Collector.
func (c *Collector) Collect(out chan<- client.Metric) {
	for _, f := range c.families() {
		desc := c.desc(&f, names(&f))
		if f.Kind == metrics.Summary {
			quantiles := map[float64]float64{}
			for _, q := range f.Samples {
				at, err := strconv.ParseFloat(q.Labels[0].Value, 64)
				if err == nil {
					quantiles[at] = q.Value
				}
			}
			out <- client.MustNewConstSummary(desc, f.Count, f.Sum, quantiles)
			continue
		}
		kind := client.GaugeValue
		if f.Kind == metrics.Counter {
			kind = client.CounterValue
		}
		for _, s := range f.Samples {
			values := make([]string, len(s.Labels))
			for i, l := range s.Labels {
				values[i] = l.Value
			}
			out <- client.MustNewConstMetric(desc, kind, s.Value, values...)
		}
	}
}
