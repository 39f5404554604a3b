// Package plan works out on paper what a geometry and tier sizes hold: no memory is taken and no library is needed.
package plan

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/geometry"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/size"
)

// Question is what is to be planned.
type Question struct {
	Geometry      geometry.Geometry
	PageTokens    int
	DeviceBytes   int64
	HostBytes     int64 // 0: no host tier
	Concurrency   int   // requests open at once
	RequestTokens int   // longest request, prompt and answer together
	WindowsTail   bool  // only a prompt's last window has window pages
}

// Line is one pool's part of a tier.
type Line struct {
	Pool       string `json:"pool"`
	Role       string `json:"role"`
	PageBytes  int64  `json:"page_bytes"`
	TokenBytes int64  `json:"token_bytes"` // of a state for a state pool
	OnePages   int64  `json:"one_request_pages"`
	OneBytes   int64  `json:"one_request_bytes"`
	OpenPages  int64  `json:"open_requests_pages"`
	OpenBytes  int64  `json:"open_requests_bytes"`
}

// Tier is the answer for one tier.
type Tier struct {
	Name       string   `json:"tier"`
	Bytes      int64    `json:"bytes"`
	SinkBytes  int64    `json:"sink_bytes"`
	WasteBytes int64    `json:"waste_bytes"` // between pools of different page sizes, and at the end
	Lines      []Line   `json:"pools"`
	OneBytes   int64    `json:"one_request_bytes"` // sink included
	OpenBytes  int64    `json:"open_requests_bytes"`
	Fits       bool     `json:"fits"`         // the open requests
	Tokens     int64    `json:"tokens"`       // full-attention tokens in all, with the windows and states of the open requests beside them
	Cached     int64    `json:"cache_tokens"` // of these, left for prefixes that nobody has open
	Problems   []string `json:"problems,omitempty"`
	FitsOne    bool     `json:"fits_one_request"`
}

// Answer has the device first, then the host if there is one.
type Answer struct {
	Geometry      string `json:"geometry"`
	Source        string `json:"source"`
	Scale         int    `json:"scale"`
	PageTokens    int    `json:"page_tokens"`
	Concurrency   int    `json:"concurrency"`
	RequestTokens int    `json:"request_tokens"`
	FoldedPools   int    `json:"folded_pools,omitempty"` // window pools that no request outgrows: their layers are counted with FULL
	Tiers         []Tier `json:"tiers"`
	Feasible      bool   `json:"feasible"` // one request fits the device
}

// Work answers the question. The error is for sizes of 2^63 bytes or more.
func Work(q Question) (*Answer, error) {
	folded := len(q.Geometry.Pools)
	q.Geometry = q.Geometry.Folded(q.RequestTokens)
	folded -= len(q.Geometry.Pools)
	a := &Answer{FoldedPools: folded, Geometry: q.Geometry.Name, Source: q.Geometry.Source, Scale: q.Geometry.Scale, PageTokens: q.PageTokens, Concurrency: q.Concurrency,
		RequestTokens: q.RequestTokens}
	device, err := q.tier("device", q.DeviceBytes, true)
	if err != nil {
		return nil, err
	}
	a.Tiers, a.Feasible = append(a.Tiers, device), device.FitsOne
	if q.HostBytes > 0 {
		host, err := q.tier("host", q.HostBytes, false)
		if err != nil {
			return nil, err
		}
		a.Tiers = append(a.Tiers, host)
	}
	return a, nil
}

// demand is that of n open requests with `tokens` FULL tokens in all.
func (q *Question) demand(n int, tokens int64) geometry.Demand {
	d := geometry.Demand{Tokens: tokens, PageTokens: q.PageTokens, Requests: n, States: 1}
	if !q.WindowsTail {
		d.WindowTokens = q.RequestTokens
	}
	return d
}

// pagesOf rounds each request up to whole pages.
func (q *Question) pagesOf(n int) int64 {
	return int64(n) * int64((q.RequestTokens+q.PageTokens-1)/q.PageTokens) * int64(q.PageTokens)
}

func (q *Question) tier(name string, bytes int64, sink bool) (Tier, error) {
	t := Tier{Name: name, Bytes: bytes}
	one, oneLines, err := q.place(1, q.pagesOf(1), sink)
	if err != nil {
		return t, err
	}
	open, openLines, err := q.place(q.Concurrency, q.pagesOf(q.Concurrency), sink)
	if err != nil {
		return t, err
	}
	t.OneBytes, t.OpenBytes, t.SinkBytes = one.Bytes, open.Bytes, open.SinkBytes
	t.FitsOne, t.Fits = one.Bytes <= bytes, open.Bytes <= bytes
	for i := range oneLines {
		p := &q.Geometry.Pools[i]
		t.Lines = append(t.Lines, Line{Pool: p.Name, Role: p.Role.String(), PageBytes: oneLines[i].PageBytes, TokenBytes: p.TokenBytes(),
			OnePages: oneLines[i].Pages, OneBytes: oneLines[i].Bytes(), OpenPages: openLines[i].Pages, OpenBytes: openLines[i].Bytes()})
	}
	if !t.FitsOne {
		t.Problems = append(t.Problems, t.refusal("one request of "+fmt.Sprint(q.RequestTokens)+" tokens", one, oneLines))
	} else if !t.Fits {
		t.Problems = append(t.Problems, t.refusal(fmt.Sprintf("%d open requests of %d tokens", q.Concurrency, q.RequestTokens), open, openLines))
	}
	return t, q.fill(&t, sink)
}

func (q *Question) place(n int, tokens int64, sink bool) (geometry.Arena, []geometry.Line, error) {
	lines, err := q.Geometry.Lines(q.demand(n, tokens))
	if err != nil {
		return geometry.Arena{}, nil, err
	}
	arena, err := geometry.Place(lines, sink)
	return arena, lines, err
}

// refusal itemises a demand that does not fit.
func (t *Tier) refusal(what string, a geometry.Arena, lines []geometry.Line) string {
	s := fmt.Sprintf("%s: %s does not fit: needs", t.Name, what)
	for i, l := range lines {
		if i > 0 {
			s += " +"
		}
		s += fmt.Sprintf(" %s %d pages of %d bytes = %d", l.Pool, l.Pages, l.PageBytes, l.Bytes())
	}
	return s + fmt.Sprintf(" + sink %d + waste %d = %d bytes, has %d: %d short", a.SinkBytes, a.Waste, a.Bytes, t.Bytes, a.Bytes-t.Bytes)
}

// fill finds by bisection how many FULL tokens fit beside the open requests' windows and states.
func (q *Question) fill(t *Tier, sink bool) error {
	if !t.Fits {
		return nil
	}
	low, high := q.pagesOf(q.Concurrency)/int64(q.PageTokens), t.Bytes/max(1, q.Geometry.TokenBytes()*int64(q.PageTokens))
	for low < high {
		middle := low + (high-low+1)/2
		arena, _, err := q.place(q.Concurrency, middle*int64(q.PageTokens), sink)
		if err == nil && arena.Bytes <= t.Bytes {
			low = middle
		} else {
			high = middle - 1
		}
	}
	t.Tokens = low * int64(q.PageTokens)
	t.Cached = t.Tokens - q.pagesOf(q.Concurrency)
	arena, _, err := q.place(q.Concurrency, t.Tokens, sink)
	t.WasteBytes = arena.Waste + t.Bytes - arena.Bytes
	return err
}

// Write prints the answer for people.
func (a *Answer) Write(out io.Writer) error {
	fmt.Fprintf(out, "%s (%s)", a.Geometry, a.Source)
	if a.Scale > 1 {
		fmt.Fprintf(out, ", rows shrunk 1:%d", a.Scale)
	}
	fmt.Fprintf(out, "; pages of %d tokens; %d open requests of up to %d tokens\n", a.PageTokens, a.Concurrency, a.RequestTokens)
	if a.FoldedPools > 0 {
		fmt.Fprintf(out, "%d window pools whose window no request outgrows are counted with FULL: give it their layers\n", a.FoldedPools)
	}
	for i := range a.Tiers {
		t := &a.Tiers[i]
		fmt.Fprintf(out, "\n%s, %s\n", t.Name, size.Format(t.Bytes))
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprint(w, "  pool\trole\tpage\ta token (state)\tone request\topen requests\n")
		for _, l := range t.Lines {
			fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%d pages, %s\t%d pages, %s\n", l.Pool, l.Role, size.Format(l.PageBytes), size.Format(l.TokenBytes),
				l.OnePages, size.Format(l.OneBytes), l.OpenPages, size.Format(l.OpenBytes))
		}
		if err := w.Flush(); err != nil {
			return err
		}
		fmt.Fprintf(out, "  sink %s; one request %s, open requests %s, both with the sink\n", size.Format(t.SinkBytes), size.Format(t.OneBytes), size.Format(t.OpenBytes))
		if t.Fits {
			fmt.Fprintf(out, "  fits: %d tokens in all, %d of them for prefixes that no request has open; %s lost at page boundaries\n", t.Tokens, t.Cached, size.Format(t.WasteBytes))
		}
		for _, p := range t.Problems {
			fmt.Fprintf(out, "  DOES NOT FIT: %s\n", p)
		}
	}
	return nil
}
