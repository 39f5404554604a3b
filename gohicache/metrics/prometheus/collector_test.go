package prometheus

import (
	"bytes"
	"context"
	"strings"
	"testing"

	client "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/metrics"
)

func open(t *testing.T) *hicache.Cache {
	t.Helper()
	c, err := hicache.Open(context.Background(), &hicache.Options{Device: hicache.Null, DeviceBytes: 64 << 10, HostBytes: 64 << 10, PageTokens: 4,
		Pools: []hicache.PoolOptions{{Role: hicache.Full, Layers: []int{0}, LayerBytes: 64}, {Role: hicache.SWA, Layers: []int{1}, LayerBytes: 64, WindowTokens: 8}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func request(t *testing.T, c *hicache.Cache, tokens []uint32) {
	t.Helper()
	m := c.Match(tokens)
	defer m.Release()
	l, err := c.Load(context.Background(), m, hicache.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	if err := c.Insert(l, tokens); err != nil {
		t.Fatal(err)
	}
}

// TestCollectorSaysWhatStatsSay: the client accepts and lints everything, has all metrics that the text form has, and the values of the cache.
func TestCollectorSaysWhatStatsSay(t *testing.T) {
	c := open(t)
	registry := client.NewPedanticRegistry()
	if err := registry.Register(New(c, client.Labels{"replica": "a"})); err != nil {
		t.Fatal(err)
	}
	if err := registry.Register(New(c, client.Labels{"replica": "b"})); err != nil {
		t.Fatalf("a second one with other labels: %v", err)
	}
	request(t, c, make([]uint32, 41))
	request(t, c, make([]uint32, 41))
	if err := c.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Fatalf("lint: %v %v", problems, err)
	}
	want := `
# HELP hicache_hit_tokens_total Tokens of prefixes that loads delivered, by the tier that held them.
# TYPE hicache_hit_tokens_total counter
hicache_hit_tokens_total{replica="a",tier="device"} 40
hicache_hit_tokens_total{replica="a",tier="host"} 0
hicache_hit_tokens_total{replica="a",tier="storage"} 0
hicache_hit_tokens_total{replica="b",tier="device"} 40
hicache_hit_tokens_total{replica="b",tier="host"} 0
hicache_hit_tokens_total{replica="b",tier="storage"} 0
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "hicache_hit_tokens_total"); err != nil {
		t.Error(err)
	}
	gathered, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	cached := 0.0
	for _, f := range gathered {
		have[f.GetName()] = true
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if f.GetName() == "hicache_pool_pages" && labels["replica"] == "a" && labels["pool"] == "full" && labels["tier"] == "host" && labels["state"] == "cached" {
				cached = m.GetGauge().GetValue()
			}
		}
	}
	if cached != 10 {
		t.Errorf("%v full pages on the host, want 10", cached)
	}
	var text bytes.Buffer
	stats := c.Stats()
	if err := metrics.WritePrometheus(&text, &stats); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text.String()) {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok && !have[strings.Fields(name)[0]] {
			t.Errorf("the collector lacks %s", name)
		}
	}
}

// TestCollectorOfAClosedCache still tells what was counted.
func TestCollectorOfAClosedCache(t *testing.T) {
	c := open(t)
	request(t, c, make([]uint32, 9))
	registry := client.NewPedanticRegistry()
	if err := registry.Register(New(c, nil)); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP hicache_inserts_total Inserts.
# TYPE hicache_inserts_total counter
hicache_inserts_total 1
`), "hicache_inserts_total"); err != nil {
		t.Error(err)
	}
}
