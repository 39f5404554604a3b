package metrics

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
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

// TestPrometheusHasEveryField sets each field of Stats alone and expects exactly one metric to change.
func TestPrometheusHasEveryField(t *testing.T) {
	var zero strings.Builder
	if err := WritePrometheus(&zero, &Stats{}); err != nil {
		t.Fatal(err)
	}
	of := reflect.TypeFor[Stats]()
	for i := range of.NumField() {
		var s Stats
		field := reflect.ValueOf(&s).Elem().Field(i)
		switch field.Interface().(type) {
		case uint64:
			field.SetUint(7)
		case int64:
			field.SetInt(7)
		case string:
			field.SetString("off")
		case TierCount:
			field.Set(reflect.ValueOf(TierCount{Host: 7}))
		case Histogram:
			var r Recorder
			r.Add(time.Second)
			field.Set(reflect.ValueOf(r.Snapshot()))
		}
		var b strings.Builder
		if err := WritePrometheus(&b, &s); err != nil {
			t.Fatal(err)
		}
		changed := map[string]bool{}
		before, after := strings.Split(zero.String(), "\n"), strings.Split(b.String(), "\n")
		for j := range after {
			if after[j] != before[j] {
				name, _, _ := strings.Cut(strings.NewReplacer("{", " ", "_sum", "", "_count", "").Replace(after[j]), " ")
				changed[name] = true
			}
		}
		if len(changed) != 1 {
			t.Errorf("%s changes %v, want one metric", of.Field(i).Name, changed)
		}
	}
}

// TestPoolFamiliesHaveEveryField sets each field of PoolStats alone and expects exactly one sample to change.
func TestPoolFamiliesHaveEveryField(t *testing.T) {
	values := func(s PoolStats) (out []float64) {
		for _, f := range PoolFamilies([]Pool{{Name: "full", Tier: "device", PoolStats: s}}) {
			for _, x := range f.Samples {
				out = append(out, x.Value)
			}
		}
		return out
	}
	zero, of := values(PoolStats{}), reflect.TypeFor[PoolStats]()
	if of.NumField() != len(zero) {
		t.Errorf("%d fields, %d samples", of.NumField(), len(zero))
	}
	for i := range of.NumField() {
		var s PoolStats
		reflect.ValueOf(&s).Elem().Field(i).SetUint(7)
		changed := 0
		for j, v := range values(s) {
			if v != zero[j] {
				changed++
			}
		}
		if changed != 1 {
			t.Errorf("%s changes %d samples", of.Field(i).Name, changed)
		}
	}
}
