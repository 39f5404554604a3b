package geometry

import (
	"math"
	"reflect"
	"strings"
	"testing"
)

func TestPublishedShapes(t *testing.T) {
	type pool struct {
		role   Role
		layers int
		bytes  int64 // of a token (a state) in one layer
		window int
	}
	want := map[string][]pool{
		"llama-3-8b":     {{Full, 32, 4 << 10, 0}},
		"llama-3-70b":    {{Full, 80, 4 << 10, 0}},
		"gemma-3-27b":    {{Full, 10, 8 << 10, 0}, {SWA, 52, 8 << 10, 1024}},
		"gpt-oss-20b":    {{Full, 12, 2 << 10, 0}, {SWA, 12, 2 << 10, 128}},
		"qwen3-next-80b": {{Full, 12, 2 << 10, 0}, {State, 36, 2<<20 + 48<<10, 0}},
		"deepseek-v3":    {{Full, 61, 1152, 0}},
		"tri":            {{Full, 8, 4 << 10, 0}, {SWA, 24, 4 << 10, 1024}, {State, 16, 1<<20 + 24<<10, 0}},
	}
	if len(want) != len(Names()) {
		t.Errorf("shapes %v", Names())
	}
	for name, pools := range want {
		g, err := Named(name)
		if err != nil || g.Validate() != nil || len(g.Pools) != len(pools) {
			t.Errorf("%s: %+v, %v", name, g, err)
			continue
		}
		total := 0
		for i, w := range pools {
			p := g.Pools[i]
			if p.Role != w.role || len(p.Layers) != w.layers || p.KRowBytes+p.VRowBytes != w.bytes || p.WindowTokens != w.window {
				t.Errorf("%s: pool %d is %+v, want %+v", name, i, p, w)
			}
			total += len(p.Layers)
		}
		if total != g.Layers {
			t.Errorf("%s: pools serve %d of %d layers", name, total, g.Layers)
		}
	}
	gemma, _ := Named("gemma-3-27b")
	if !reflect.DeepEqual(gemma.Pools[0].Layers, []int{5, 11, 17, 23, 29, 35, 41, 47, 53, 59}) {
		t.Errorf("global layers of gemma-3-27b: %v", gemma.Pools[0].Layers)
	}
	if _, err := Named("llama"); err == nil || !strings.Contains(err.Error(), "llama-3-8b") {
		t.Errorf("an unknown name gave %v", err)
	}
}

func TestScaleKeepsTheStructure(t *testing.T) {
	for _, name := range Names() {
		g, _ := Named(name)
		for _, n := range []int{1, 3, 64, 1 << 30} {
			s, err := g.Scaled(n)
			if err != nil || s.Validate() != nil || s.Scale != n {
				t.Errorf("%s / %d: %v", name, n, err)
			}
			for i := range s.Pools {
				a, b := g.Pools[i], s.Pools[i]
				if b.KRowBytes < 16 || (a.VRowBytes == 0) != (b.VRowBytes == 0) || b.KRowBytes > max(16, a.KRowBytes/int64(n)+15) ||
					!reflect.DeepEqual(a.Layers, b.Layers) || a.WindowTokens != b.WindowTokens {
					t.Errorf("%s / %d: %+v became %+v", name, n, a, b)
				}
			}
		}
		again, _ := Named(name)
		if !reflect.DeepEqual(g, again) {
			t.Errorf("scaling changed the published %s", name)
		}
	}
	g, _ := Named("tri")
	if _, err := g.Scaled(0); err == nil {
		t.Error("scale 0 was accepted")
	}
}

func TestParsePool(t *testing.T) {
	got, err := ParsePool("name=win, role=swa,layers=0-4:2+9,row=64,vrow=32,window=128")
	want := Pool{Name: "win", Role: SWA, Layers: []int{0, 2, 4, 9}, KRowBytes: 64, VRowBytes: 32, WindowTokens: 128}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := ParsePool("role=full,layers=0,row=64,rows=1"); err != nil || got.Name != "full" || got.VRowBytes != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := ByHand([]Pool{got}); err == nil || !strings.Contains(err.Error(), "0 pools of role full") {
		t.Errorf("a geometry without a full pool gave %v", err)
	}
	for text, part := range map[string]string{
		"": "not key=value", "role=mamba": "full, swa or state", "layers=3-1": "from-to", "layers=1+1": "twice", "layers=0-99999": "4095",
		"row=x": "row", "rows=3": "1 or 2", "color=red": "color", "row=16,row=32": "given twice", "layers=0-8:0": "step",
	} {
		if _, err := ParsePool(text); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("ParsePool(%q) gave %v, want %q", text, err, part)
		}
	}
	for _, text := range []string{"role=full,layers=0,row=8", "role=swa,layers=0,row=16", "role=full,layers=0,row=16,window=5"} {
		p, err := ParsePool(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ByHand([]Pool{p}); err == nil {
			t.Errorf("%s was accepted", text)
		}
	}
}

func TestLinesOfATokenSize(t *testing.T) {
	g, _ := Named("tri")
	lines, err := g.Lines(Demand{Tokens: 1000, PageTokens: 16, Requests: 2, States: 2})
	if err != nil {
		t.Fatal(err)
	}
	for i, pages := range []int64{63, 2 * 65, 4} {
		if lines[i].Pages != pages || lines[i].PageBytes != g.Pools[i].PageBytes(16) {
			t.Errorf("line %d: %+v, want %d pages", i, lines[i], pages)
		}
	}
	if more, _ := g.Lines(Demand{Tokens: 1000, PageTokens: 16, Requests: 2, WindowTokens: 4096}); more[1].Pages != 2*257 {
		t.Errorf("windows of 4096 new tokens: %+v", more[1])
	}
	if _, err := g.Lines(Demand{Tokens: math.MaxInt64 / 2, PageTokens: 16}); err == nil {
		t.Error("more than 2^63 bytes were accepted")
	}
}

func TestPlace(t *testing.T) {
	for _, c := range []struct {
		name  string
		lines []Line
		sink  bool
		want  Arena
	}{
		{"one pool", []Line{{Role: Full, Pages: 1000, PageBytes: 64}}, true, Arena{Bytes: 1001 * 64, SinkBytes: 64}},
		{"host", []Line{{Role: Full, Pages: 1000, PageBytes: 64}}, false, Arena{Bytes: 1000 * 64}},
		// Sink to 260; SWA pages 1 to 3 of 260 bytes, to 1040; FULL from page 11 of 100 bytes (1100), 5 pages.
		{"two pools", []Line{{Role: Full, Pages: 5, PageBytes: 100}, {Role: SWA, Pages: 3, PageBytes: 260}}, true, Arena{Bytes: 1600, SinkBytes: 260, Waste: 60}},
		// State up (pages of 500 from 1), SWA floats (next multiple of 260 after 1500 is 1560), FULL down (from 2100).
		{"three pools", []Line{{Role: Full, Pages: 1, PageBytes: 100}, {Role: SWA, Pages: 2, PageBytes: 260}, {Role: State, Pages: 2, PageBytes: 500}}, true,
			Arena{Bytes: 2200, SinkBytes: 500, Waste: 80}},
		{"an empty pool takes nothing", []Line{{Role: Full, Pages: 5, PageBytes: 100}, {Role: SWA, Pages: 0, PageBytes: 260}}, false, Arena{Bytes: 500}},
	} {
		if got, err := Place(c.lines, c.sink); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
	if _, err := Place([]Line{{Role: SWA, Pages: 1 << 40, PageBytes: 1 << 22}, {Role: Full, Pages: 1 << 40, PageBytes: 1 << 22}}, true); err == nil {
		t.Error("more than 2^63 bytes were accepted")
	}
}
