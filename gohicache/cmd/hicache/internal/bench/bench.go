// Package bench measures the engine, the cache and its eviction policies, and judges the figures against bars: what a server needs, and what
// others do in the same run on the same machine. A figure is the median of several runs, with the least and the largest beside it. Nothing
// fails on a bar, since machines are noisy; a row says whether it is met.
package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"time"
)

// Settings are what all groups share.
type Settings struct {
	Runs        int
	Only        *regexp.Regexp // of "work, config"; nil: everything
	Quick       bool           // tiny sizes, to see that everything runs
	Full        bool           // the sizes that take minutes
	Library     string         // of libhicache; "": where the loader looks
	EngineBench string         // path of engine_bench; "": beside the library and the program
	DeviceBench string         // path of hicache_device_bench; likewise
	Recorded    string         // results.json of tools/h200_run.sh, judged in place of a run; "": none
	Traces      string         // folder of the request traces
	Peers       Peers
	Progress    func(group string, done, all int)
	Note        func(text string) // what the reader of the figures should know

	toldOfC       bool // that engine_bench is missing
	toldOfKernels bool // that the library has none
	noDevice      bool // said already

	toldOfRecording bool // what of it failed
}

// runs is how often something is measured that may be measured so often.
func (s *Settings) runs() int { return max(1, s.Runs) }

// scaled is full, or quick where Settings.Quick asks for it.
func scaled[T any](s *Settings, full, quick T) T {
	if s.Quick {
		return quick
	}
	return full
}

// Spec says what a figure is.
type Spec struct {
	Work, Config, Unit string
	Lower              bool // smaller is better
	Bar                *Bar
	Peer               *Query // whose figure stands beside it; nil: nobody's, or one that was measured by the group itself
}

// Row is one figure, as printed. Pointers are nil where there is nothing to say.
type Row struct {
	Work      string   `json:"work"`
	Config    string   `json:"config"`
	Unit      string   `json:"unit"`
	Value     float64  `json:"value"`
	Peer      *string  `json:"peer"`
	PeerValue *float64 `json:"peer_value"`
	Ratio     *float64 `json:"ratio"` // how many times better than the peer
	Bar       *string  `json:"bar"`
	Meets     *bool    `json:"meets"` // nil without a bar, and where the bar is about a peer that was not run
	Runs      int      `json:"runs"`
	Min       float64  `json:"min"`
	Max       float64  `json:"max"`
}

// Bar is what a figure should reach. judge answers nil where it cannot tell.
type Bar struct {
	Text  string
	judge func(r *Row) *bool
}

func verdict(b bool) *bool { return &b }

func atMost(limit float64, unit string) *Bar {
	return &Bar{fmt.Sprintf("<= %s %s", figure(limit), unit), func(r *Row) *bool { return verdict(r.Value <= limit) }}
}

func atLeast(limit float64, unit string) *Bar {
	return &Bar{fmt.Sprintf(">= %s %s", figure(limit), unit), func(r *Row) *bool { return verdict(r.Value >= limit) }}
}

func ratioAtLeast(limit float64) *Bar {
	text := fmt.Sprintf(">= %s x the peer", figure(limit))
	if limit < 1 {
		text = fmt.Sprintf(">= %.0f %% of the peer", 100*limit)
	}
	return &Bar{text, func(r *Row) *bool {
		if r.Ratio == nil {
			return nil
		}
		return verdict(*r.Ratio >= limit)
	}}
}

// equalsPeer is for counts, which have no noise.
func equalsPeer(tolerance float64) *Bar {
	return &Bar{"= the peer", func(r *Row) *bool {
		if r.PeerValue == nil {
			return nil
		}
		return verdict(math.Abs(r.Value-*r.PeerValue) <= tolerance)
	}}
}

// recorder collects the measurements of a group.
type recorder struct {
	entries []*entry
	index   map[string]*entry
}

type entry struct {
	spec       Spec
	values     []float64
	peer       string
	peerValues []float64
}

func newRecorder() *recorder { return &recorder{index: map[string]*entry{}} }

func (r *recorder) add(s Spec, value float64) *entry {
	key := s.Work + "\x00" + s.Config + "\x00" + s.Unit
	e := r.index[key]
	if e == nil {
		e = &entry{spec: s}
		r.index[key] = e
		r.entries = append(r.entries, e)
	}
	e.values = append(e.values, value)
	return e
}

// addBeside adds a value together with what a peer did in the same run.
func (r *recorder) addBeside(s Spec, value float64, peer string, peerValue float64) {
	e := r.add(s, value)
	e.peer = peer
	e.peerValues = append(e.peerValues, peerValue)
}

// spread adds the slowest over the fastest configuration of a work as a figure of its own, of medians.
func (r *recorder) spread(work string, s Spec) {
	least, most, n := math.Inf(1), 0.0, 0
	for _, e := range r.entries {
		if e.spec.Work == work {
			m := median(e.values)
			least, most = min(least, m), max(most, m)
			n++
		}
	}
	if n > 1 && least > 0 {
		r.add(s, most/least)
	}
}

func (e *entry) row() Row {
	row := Row{Work: e.spec.Work, Config: e.spec.Config, Unit: e.spec.Unit, Value: median(e.values), Runs: len(e.values), Min: slices.Min(e.values), Max: slices.Max(e.values)}
	if len(e.peerValues) > 0 {
		p := median(e.peerValues)
		row.Peer, row.PeerValue = &e.peer, &p
		if ratio := quotient(row.Value, p, e.spec.Lower); !math.IsInf(ratio, 0) && !math.IsNaN(ratio) {
			row.Ratio = &ratio
		}
	}
	if e.spec.Bar != nil {
		row.Bar = &e.spec.Bar.Text
		row.Meets = e.spec.Bar.judge(&row)
	}
	return row
}

func quotient(ours, theirs float64, lower bool) float64 {
	if lower {
		return theirs / ours
	}
	return ours / theirs
}

// median of an even number of values is the mean of the middle two.
func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	if n == 0 {
		return math.NaN()
	}
	if n%2 == 1 {
		return v[n/2]
	}
	return (v[n/2-1] + v[n/2]) / 2
}

// Group is a number of figures that are measured together. Works are the works it may report, for Settings.Only.
type Group struct {
	Name  string
	Works []string
	run   func(ctx context.Context, s *Settings, r *recorder) error
}

// Error is what stopped a group.
type Error struct {
	Group string
	Cause error
}

func (e *Error) Error() string { return fmt.Sprintf("group %s: %v", e.Group, e.Cause) }
func (e *Error) Unwrap() error { return e.Cause }

// Run measures the groups one after the other. A group that cannot go on does not keep the others from it: what was measured is returned beside the
// errors, of type *Error. When ctx ends, its error is returned.
func Run(ctx context.Context, groups []Group, s *Settings) ([]Row, error) {
	var rows []Row
	var failed []error
	for i, g := range groups {
		if !s.wants(&g) {
			continue
		}
		if s.Progress != nil {
			s.Progress(g.Name, i, len(groups))
		}
		rec := newRecorder()
		err := g.run(ctx, s, rec)
		if err == nil {
			err = s.askPeers(ctx, rec)
		}
		for _, e := range rec.entries {
			if s.Only == nil || s.Only.MatchString(g.Name+": "+e.spec.Work+", "+e.spec.Config) {
				rows = append(rows, e.row())
			}
		}
		if ctx.Err() != nil {
			return rows, ctx.Err()
		}
		if err != nil {
			failed = append(failed, &Error{g.Name, err})
		}
	}
	return rows, errors.Join(failed...)
}

// wants reports whether Only may match a figure of g. Configurations are known only once measured, so a pattern that names none of a group's
// works by itself still runs groups whose works it matches with anything behind.
func (s *Settings) wants(g *Group) bool {
	if s.Only == nil {
		return true
	}
	for _, w := range g.Works {
		if s.Only.MatchString(g.Name + ": " + w + ", ") {
			return true
		}
	}
	return false
}

func (s *Settings) note(format string, args ...any) {
	if s.Note != nil {
		s.Note(fmt.Sprintf(format, args...))
	}
}

// repeat calls f for each run until the context ends.
func repeat(ctx context.Context, n int, f func() error) error {
	for range n {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func perSecond(n float64, d time.Duration) float64 { return n / d.Seconds() }
