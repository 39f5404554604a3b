package geometry

import (
	"fmt"
	"math"
	"math/bits"
)

// Demand is what a tier is asked to hold at once.
type Demand struct {
	Tokens        int64 // full-attention tokens
	PageTokens    int
	Windows       int // sequences whose sliding windows are held at once
	WindowSpare   int // pages a window needs beyond its tokens: a partial first page, and the page being filled
	States        int // recurrent states held at once
	SinkPages     int // pages a pool keeps for padding
	PendingTokens int // window tokens of a request that are written before older ones can go
}

// Line is one pool's part of a size.
type Line struct {
	Pool      string
	Role      Role
	Pages     int64 // without the sink
	SinkPages int64
	PageBytes int64
}

// Bytes is the line's total.
func (l Line) Bytes() int64 { return (l.Pages + l.SinkPages) * l.PageBytes }

// Lines itemises the demand over the pools: FULL pages for the tokens, and for each window and state what it needs.
func (g *Geometry) Lines(d Demand) ([]Line, error) {
	lines := make([]Line, 0, len(g.Pools))
	for i := range g.Pools {
		p := &g.Pools[i]
		line := Line{Pool: p.Name, Role: p.Role, SinkPages: int64(d.SinkPages), PageBytes: p.PageBytes(d.PageTokens)}
		n := int64(d.PageTokens)
		switch p.Role {
		case Full:
			line.Pages = ceil(d.Tokens, n)
		case SWA:
			line.Pages = int64(d.Windows) * (ceil(int64(p.WindowTokens)+int64(d.PendingTokens), n) + int64(d.WindowSpare))
		case State:
			line.Pages = int64(d.States)
		}
		if hi, lo := bits.Mul64(uint64(line.Pages+line.SinkPages), uint64(line.PageBytes)); hi != 0 || lo > math.MaxInt64 {
			return nil, fmt.Errorf("pool %s: %d pages of %d bytes are 2^63 bytes or more", p.Name, line.Pages, line.PageBytes)
		}
		lines = append(lines, line)
	}
	return lines, nil
}

// Total sums lines; an error says that the sum is 2^63 bytes or more. Sinks and page boundaries may cost a page per pool more, which the
// caller adds as it places pools.
func Total(lines []Line) (int64, error) {
	sum := uint64(0)
	for _, l := range lines {
		sum += uint64(l.Bytes())
		if sum > math.MaxInt64 {
			return 0, fmt.Errorf("the pools together are 2^63 bytes or more")
		}
	}
	return int64(sum), nil
}

func ceil(a, b int64) int64 { return (a + b - 1) / b }
