package metrics

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestBucketsCoverEverything(t *testing.T) {
	last := -1
	for ns := uint64(0); ns < 1<<20; ns++ {
		b := bucketOf(ns)
		if b < last || b > last+1 {
			t.Fatalf("%d ns is in bucket %d after %d", ns, b, last)
		}
		if top := uint64(bucketTop(b)); top < ns || top > ns+ns/4 {
			t.Fatalf("%d ns is in bucket %d, which ends at %d", ns, b, top)
		}
		last = b
	}
	if bucketOf(1<<63) >= len(Histogram{}.Buckets) {
		t.Fatal("large durations have no bucket")
	}
}

func TestQuantile(t *testing.T) {
	var r Recorder
	var all []time.Duration
	random := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		d := time.Duration(random.ExpFloat64() * 50_000)
		all = append(all, d)
		r.Add(d)
	}
	slices.Sort(all)
	h := r.Snapshot()
	for _, q := range []float64{0, .5, .9, .99, .999} {
		got, want := h.Quantile(q), all[int(q*float64(len(all)))]
		if got < want || got > want+want/4+1 {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	if h.Count != 10_000 || (&Histogram{}).Quantile(.5) != 0 {
		t.Errorf("count %d", h.Count)
	}
}
