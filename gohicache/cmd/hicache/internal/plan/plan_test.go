package plan

import (
	"bytes"
	"strings"
	"testing"

	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/geometry"
)

func question(t *testing.T, name string, device, host int64) Question {
	t.Helper()
	g, err := geometry.Named(name)
	if err != nil {
		t.Fatal(err)
	}
	return Question{Geometry: g, PageTokens: 16, DeviceBytes: device, HostBytes: host, Concurrency: 2, RequestTokens: 4096}
}

func TestOnePoolToTheByte(t *testing.T) {
	const page = 16 * 128 << 10 // llama-3-8b: 128 KiB a token
	a, err := Work(question(t, "llama-3-8b", 1001*page, 1000*page))
	if err != nil {
		t.Fatal(err)
	}
	device, host := a.Tiers[0], a.Tiers[1]
	if device.Tokens != 16000 || device.SinkBytes != page || device.WasteBytes != 0 || device.Cached != 16000-2*4096 {
		t.Errorf("device: %+v", device)
	}
	if host.Tokens != 16000 || host.SinkBytes != 0 {
		t.Errorf("host: %+v", host)
	}
	if less, _ := Work(question(t, "llama-3-8b", 1001*page-1, 0)); less.Tiers[0].Tokens != 15984 || less.Tiers[0].WasteBytes != page-1 {
		t.Errorf("a byte less: %+v", less.Tiers[0])
	}
}

// The largest number of tokens is found: what the plan says must fit, and a page more must not.
func TestFillIsExact(t *testing.T) {
	for _, name := range geometry.Names() {
		for _, device := range []int64{20 << 30, 20<<30 + 12345, 77777777777} {
			q := question(t, name, device, 0)
			a, err := Work(q)
			if err != nil {
				t.Fatal(err)
			}
			tier := a.Tiers[0]
			if !tier.Fits {
				t.Errorf("%s in %d: %v", name, device, tier.Problems)
				continue
			}
			fits, _, _ := q.place(2, tier.Tokens, true)
			over, _, _ := q.place(2, tier.Tokens+16, true)
			if fits.Bytes > device || over.Bytes <= device || tier.WasteBytes < 0 {
				t.Errorf("%s in %d: %d tokens take %d, a page more %d", name, device, tier.Tokens, fits.Bytes, over.Bytes)
			}
		}
	}
}

func TestRefusalIsItemised(t *testing.T) {
	a, err := Work(question(t, "gemma-3-27b", 1<<30, 0))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := a.Write(&out); err != nil || a.Feasible || a.Tiers[0].Fits || a.Tiers[0].Tokens != 0 {
		t.Errorf("%+v, %v", a, err)
	}
	// FULL: 256 pages of 16 × 10 × 8 KiB; SWA: 257 of 16 × 52 × 8 KiB.
	for _, want := range []string{"one request of 4096 tokens does not fit", "full 256 pages of 1310720 bytes", "swa 257 pages of 6815744 bytes", "has 1073741824", "short", "sink 6815744"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the refusal lacks %q:\n%s", want, out.String())
		}
	}
	q := question(t, "gemma-3-27b", 3<<30, 0)
	one, _ := Work(q)
	if !one.Feasible || one.Tiers[0].Fits || !strings.Contains(one.Tiers[0].Problems[0], "2 open requests") {
		t.Errorf("one request fits, two do not: %+v", one.Tiers[0])
	}
	q.WindowsTail = true
	if tail, _ := Work(q); !tail.Tiers[0].Fits {
		t.Errorf("with tail windows two fit: %v", tail.Tiers[0].Problems)
	}
}

// TestWindowsThatNeverSlide is field case C32: a window that no request outgrows gets no pool of its own.
func TestWindowsThatNeverSlide(t *testing.T) {
	for _, c := range []struct{ requestTokens, pools int }{{1023, 1}, {1024, 1}, {1025, 2}} {
		q := question(t, "gemma-3-27b", 1<<40, 1<<40)
		before := len(q.Geometry.Pools)
		q.RequestTokens = c.requestTokens
		a, err := Work(q)
		if err != nil {
			t.Fatal(err)
		}
		for _, tier := range a.Tiers {
			if len(tier.Lines) != c.pools {
				t.Errorf("requests of %d tokens: %d pools in the %s, want %d", c.requestTokens, len(tier.Lines), tier.Name, c.pools)
			}
		}
		if got := a.FoldedPools; got != before-c.pools {
			t.Errorf("requests of %d tokens: %d pools folded", c.requestTokens, got)
		}
		if c.pools == 1 {
			if layers := q.Geometry.Folded(c.requestTokens).Pools[0].Layers; len(layers) != 62 || layers[61] != 61 {
				t.Errorf("layers after folding: %v", layers)
			}
		}
		if len(q.Geometry.Pools) != before || len(q.Geometry.Pools[0].Layers) != 10 {
			t.Error("the geometry given was changed")
		}
	}
}
