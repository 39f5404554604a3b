package policy

import (
	"container/heap"
	"math"
)

// duel runs the two ghosts and says which of them did better lately.
type duel struct {
	tokens  int // capacity
	unit    int // tokens of a ghost's page
	units   map[uint64]*ghostUnit
	ghosts  [2]ghost // without and with lottery
	lottery bool     // the lottery is ahead
	request uint32
}

// The ghosts' hits are forgotten with a half-life of some capacities requested. The lottery has to be ahead by a share and by so many
// standard deviations of the difference before it is believed, and by a smaller share to stay believed: its pages stay for ten capacities,
// so a wrong entry is dear.
const (
	duelHalfLife = 5
	duelEnter    = 1.15
	duelNoise    = 4
	duelLeave    = 1.03
)

func newDuel(tokens int, o AutoOptions) *duel {
	d := &duel{tokens: tokens, unit: max(o.UnitTokens, tokens/o.GhostUnits), units: map[uint64]*ghostUnit{}}
	for i := range d.ghosts {
		d.ghosts[i] = ghost{which: i, capacity: max(1, tokens/d.unit), clock: epoch, lottery: i == 1}
	}
	return d
}

// resize follows the capacity of the cache, which varies where pools share an arena. A ghost shrinks at its next requests.
func (d *duel) resize(tokens int) {
	if tokens/d.unit == d.tokens/d.unit {
		return
	}
	d.tokens = tokens
	for i := range d.ghosts {
		d.ghosts[i].capacity = max(1, tokens/d.unit)
	}
}

// ghostUnit is one unit of some prefix, in either ghost or both.
type ghostUnit struct {
	id, parent uint64
	in         [2]ghostState
}

type ghostState struct {
	key      uint64
	at       int32 // index in the heap of leaves; -1: not a leaf
	kids     int32
	hits     uint32
	request  uint32 // the last that covered it
	resident bool
}

// ghost is a prefix cache without contents: leaves go first, by Auto's rule, and never under the running request.
type ghost struct {
	which    int
	capacity int
	size     int
	clock    uint64
	lottery  bool
	hits     float64 // decayed
	leaves   []*ghostUnit
}

// admit lets both ghosts serve a request.
func (d *duel) admit(r *Request, lucky bool) {
	n := len(r.Tokens) / d.unit
	if n == 0 {
		return
	}
	d.request++
	ids := d.identify(r, n)
	decay := math.Exp2(-float64(n) / float64(duelHalfLife*d.ghosts[0].capacity))
	for i := range d.ghosts {
		g := &d.ghosts[i]
		g.hits = g.hits*decay + float64(d.serve(g, ids, lucky && g.lottery))
	}
	base, lottery := d.ghosts[0].hits, d.ghosts[1].hits
	if d.lottery {
		d.lottery = lottery >= duelLeave*base
	} else {
		d.lottery = lottery > duelEnter*base+duelNoise*math.Sqrt(base+lottery+1)
	}
}

// identify names the request's units by their whole prefix. A few tokens of each unit stand for all of them: what the ghosts take for equal
// by mistake costs a wrong count, never a wrong page.
func (d *duel) identify(r *Request, n int) []uint64 {
	const probes = 16
	ids := make([]uint64, n)
	h := r.Namespace
	step := max(1, d.unit/probes)
	for i := range ids {
		unit := r.Tokens[i*d.unit : (i+1)*d.unit]
		for j := len(unit) - 1; j >= 0; j -= step {
			h = (h ^ uint64(unit[j])) * 0x9e3779b97f4a7c15
			h ^= h >> 29
		}
		ids[i] = h
	}
	return ids
}

// serve is one request to a ghost; it returns the hits.
func (d *duel) serve(g *ghost, ids []uint64, lucky bool) int {
	base := g.clock + uint64(len(ids))
	if lucky {
		base += uint64(ticketWorth * g.capacity)
	}
	hit, parent := 0, uint64(0)
	for ; hit < len(ids); hit++ {
		u := d.units[ids[hit]]
		if u == nil || !u.in[g.which].resident {
			break
		}
		s := &u.in[g.which]
		s.hits++
		s.request = d.request
		if key := base - uint64(hit); key > s.key {
			s.key = key
			if s.at >= 0 {
				heap.Fix(g, int(s.at))
			}
		}
		parent = u.id
	}
	for k := hit; k < len(ids); k++ {
		for g.size >= g.capacity && d.evict(g) {
		}
		if g.size >= g.capacity {
			break
		}
		d.insert(g, ids[k], parent, base-uint64(k)-uint64(g.capacity))
		parent = ids[k]
	}
	g.clock += uint64(len(ids))
	return hit
}

func (d *duel) insert(g *ghost, id, parent, key uint64) {
	u := d.units[id]
	if u == nil {
		u = &ghostUnit{id: id, parent: parent}
		u.in[0].at, u.in[1].at = -1, -1
		d.units[id] = u
	}
	u.in[g.which] = ghostState{key: key, at: -1, request: d.request, resident: true}
	g.size++
	if p := d.units[parent]; parent != 0 && p != nil {
		s := &p.in[g.which]
		s.kids++
		if s.at >= 0 {
			heap.Remove(g, int(s.at))
		}
	}
	heap.Push(g, u)
}

// evict gives up the leaf with the least key; false if the running request holds them all.
func (d *duel) evict(g *ghost) bool {
	var held []*ghostUnit
	var victim *ghostUnit
	for len(g.leaves) > 0 && victim == nil {
		u := heap.Pop(g).(*ghostUnit)
		if u.in[g.which].request == d.request {
			held = append(held, u)
		} else {
			victim = u
		}
	}
	for _, u := range held {
		heap.Push(g, u)
	}
	if victim == nil {
		return false
	}
	victim.in[g.which] = ghostState{at: -1}
	g.size--
	if p := d.units[victim.parent]; victim.parent != 0 && p != nil {
		s := &p.in[g.which]
		if s.kids--; s.kids == 0 && s.resident {
			heap.Push(g, p)
		}
	}
	if !victim.in[0].resident && !victim.in[1].resident {
		delete(d.units, victim.id)
	}
	return true
}

// Len, Less, Swap, Push and Pop make the ghost's leaves a heap.
func (g *ghost) Len() int { return len(g.leaves) }
func (g *ghost) Less(i, j int) bool {
	return g.leaves[i].in[g.which].key < g.leaves[j].in[g.which].key
}
func (g *ghost) Swap(i, j int) {
	g.leaves[i], g.leaves[j] = g.leaves[j], g.leaves[i]
	g.leaves[i].in[g.which].at, g.leaves[j].in[g.which].at = int32(i), int32(j)
}
func (g *ghost) Push(x any) {
	u := x.(*ghostUnit)
	u.in[g.which].at = int32(len(g.leaves))
	g.leaves = append(g.leaves, u)
}
func (g *ghost) Pop() any {
	u := g.leaves[len(g.leaves)-1]
	g.leaves[len(g.leaves)-1] = nil
	g.leaves = g.leaves[:len(g.leaves)-1]
	u.in[g.which].at = -1
	return u
}
