package geometry

import (
	"fmt"
	"math"
	"math/bits"
)

// Demand is what a tier is asked to hold at once.
type Demand struct {
	Tokens       int64 // full-attention tokens
	PageTokens   int
	Requests     int // open at once: each holds its window (or its new tokens' windows) and its states
	WindowTokens int // new tokens of a request that have window pages until they are published
	States       int // recurrent states a request holds: the one it started from and the one it computes
}

// Line is one pool's part of a demand.
type Line struct {
	Pool      string
	Role      Role
	Pages     int64
	PageBytes int64
}

// Bytes is the line's total.
func (l Line) Bytes() int64 { return l.Pages * l.PageBytes }

// Lines itemises the demand over the pools: FULL pages for the tokens, and windows and states for each open request. A window of w tokens
// meets one page more than w tokens fill.
func (g *Geometry) Lines(d Demand) ([]Line, error) {
	lines := make([]Line, 0, len(g.Pools))
	for i := range g.Pools {
		p := &g.Pools[i]
		line := Line{Pool: p.Name, Role: p.Role, PageBytes: p.PageBytes(d.PageTokens)}
		n := int64(d.PageTokens)
		switch p.Role {
		case Full:
			line.Pages = ceil(d.Tokens, n)
		case SWA:
			line.Pages = int64(d.Requests) * (ceil(int64(max(p.WindowTokens, d.WindowTokens)), n) + 1)
		case State:
			line.Pages = int64(d.Requests) * int64(d.States)
		}
		if hi, lo := bits.Mul64(uint64(line.Pages), uint64(line.PageBytes)); hi != 0 || lo > math.MaxInt64 {
			return nil, fmt.Errorf("pool %s: %d pages of %d bytes are 2^63 bytes or more", p.Name, line.Pages, line.PageBytes)
		}
		lines = append(lines, line)
	}
	return lines, nil
}

// Arena is how lines lie in one arena.
type Arena struct {
	Bytes     int64 // in all
	SinkBytes int64 // kept for padding at the low end
	Waste     int64 // lost between pools of different page sizes
}

// Place puts the lines into the smallest arena that holds them all: the sink, then the pools in the order of the chain, each beginning at
// the next multiple of its page size, as the engine's places are multiples of the page size from byte 0.
func Place(lines []Line, sink bool) (Arena, error) {
	a, at := Arena{}, uint64(0)
	if sink {
		for _, l := range lines {
			a.SinkBytes = max(a.SinkBytes, l.PageBytes)
		}
		at = uint64(a.SinkBytes)
	}
	for _, i := range chain(lines) {
		l := lines[i]
		if l.Pages == 0 {
			continue
		}
		page := uint64(l.PageBytes)
		first := (at + page - 1) / page
		a.Waste += int64(first*page - at)
		hi, end := bits.Mul64(first+uint64(l.Pages), page)
		if hi != 0 || end > math.MaxInt64 {
			return Arena{}, fmt.Errorf("the pools together are 2^63 bytes or more")
		}
		at = end
	}
	a.Bytes = int64(at)
	return a, nil
}

// chain is the order of the pools from byte 0: the one that grows up, the floating ones, and FULL at the high end.
func chain(lines []Line) []int {
	var order []int
	up := -1
	for _, role := range []Role{State, SWA} {
		for i := range lines {
			if up < 0 && lines[i].Role == role {
				up = i
			}
		}
	}
	if up >= 0 {
		order = append(order, up)
	}
	for i := range lines {
		if i != up && lines[i].Role != Full {
			order = append(order, i)
		}
	}
	for i := range lines {
		if lines[i].Role == Full {
			order = append(order, i)
		}
	}
	return order
}

func ceil(a, b int64) int64 { return (a + b - 1) / b }
