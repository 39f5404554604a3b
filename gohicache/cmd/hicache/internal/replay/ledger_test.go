package replay

import (
	"strings"
	"testing"
	"time"
)

func TestLedgerCountsChangesOfPlace(t *testing.T) {
	l := newLedger(2)
	l.write(0, 7, 100, 0xaa, 1)
	for _, c := range []struct {
		what  string
		pool  int
		place uint32
		d     uint64
		want  bool
	}{
		{"where it was written", 0, 100, 0xaa, false},
		{"elsewhere", 0, 101, 0xaa, true},
		{"still elsewhere", 0, 101, 0xaa, true},
		{"back", 0, 100, 0xaa, false},
		{"other content of the same name: loaded here", 0, 300, 0xbb, false},
		{"and moved since", 0, 301, 0xbb, true},
		{"another pool", 1, 5, 0xaa, false},
	} {
		if got := l.reuse(c.pool, 7, places(c.place), digest(c.d), 2); got != c.want {
			t.Errorf("%s: moved %v", c.what, got)
		}
	}
	for i, c := range []struct {
		place uint32
		d     uint64
		want  bool
	}{{9, 0xaa, false}, {9, 0xaa, false}, {10, 0xaa, true}, {11, 0xcc, false}} {
		if got := l.hosted(0, 3, places(c.place), digest(c.d)); got != c.want {
			t.Errorf("host copy, look %d: moved %v", i, got)
		}
	}
}

func TestHistoryTellsTheLastEvents(t *testing.T) {
	l := newLedger(1)
	for i := range 3 * len(l.events) { // the ring goes round
		l.write(0, 1, 1, 0x11, i)
	}
	l.write(0, 7, 100, 0xaa, 90)
	l.reuse(0, 7, 101, 0xaa, 91)
	l.write(0, 7, 102, 0xbb, 92)
	h := l.history(0, 7, 0xaa)
	for _, want := range []string{"request 90: virtual page 7 at physical page 100: written, the same content", "request 91", "found moved", "request 92", "other content (00000000000000bb)"} {
		if !strings.Contains(h, want) {
			t.Errorf("history lacks %q:\n%s", want, h)
		}
	}
	if strings.Count(h, "\n") != 3 {
		t.Errorf("history of one page has others':\n%s", h)
	}
	if !strings.Contains(l.history(0, 500, 0xdd), "none in the last") {
		t.Error("a page without events")
	}
}

func TestThinKeepsTheLast(t *testing.T) {
	s := []int{}
	halved := 0
	for i := range 1000 {
		var did bool
		if s, did = thin(append(s, i), 40); did {
			halved++
		}
		if s[len(s)-1] != i || s[0] != 0 || len(s) > 40 {
			t.Fatalf("after %d: %v", i, s)
		}
	}
	if halved < 4 {
		t.Errorf("halved %d times", halved)
	}
}

func TestAgeAndQuantile(t *testing.T) {
	for d, want := range map[time.Duration]uint8{0: 0, time.Millisecond: 0, 2 * time.Millisecond: 16, 1024 * time.Millisecond: 160, 1000 * time.Hour: 255} {
		if got := age(d); got != want {
			t.Errorf("age(%v) = %d, want %d", d, got, want)
		}
	}
	v := []float64{5, 1, 4, 2, 3}
	if quantile(nil, 0.5) != 0 || quantile(v, 0.5) != 3 || quantile(v, 0.99) != 5 {
		t.Error("quantiles")
	}
}
