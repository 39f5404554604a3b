package policy

import (
	"math/rand/v2"
)

// Auto is the policy of our own: LRU in two respects improved, each by a rule that costs nothing where LRU is right.
//
// Probation: what nobody has asked for a second time ages one capacity sooner. Most pages of a prompt are never used again; LRU keeps them
// as long as the few that are. This is the idea of 2Q (Johnson and Shasha, VLDB'94) and of SLRU's probationary segment (Karedla et al.,
// IEEE Computer, 1994), in time instead of queue sizes, so that nothing has to be sized.
//
// Lottery: where the working set is far larger than the cache, everything is evicted before it is used again, and any subset that stays
// beats the most recent one (BIP and DIP, Qureshi et al., ISCA'07; why mixing in a larger cache for a share of the traffic is worth the
// convex hull: Talus, Beckmann and Sanchez, HPCA'15). So one request in ten draws a ticket that keeps its pages ten capacities longer.
// Whether that pays is measured: two ghosts, caches of the same capacity without contents, see every request at coarse units, one with and
// one without the lottery (miniature simulation, Waldspurger et al., ATC'17), and the better one decides.
//
// A key is set when a node is touched and stays, so the order is a heap like LRU's: O(log n) an access. A touch never lowers a key.
type Auto struct {
	options  AutoOptions
	capacity int    // tokens on the device under pressure; 0: there was none yet
	clock    uint64 // tokens requested so far
	draw     *rand.Rand
	duel     *duel // nil until there was pressure
}

// AutoOptions are Auto's constants; the zero value gives the defaults.
type AutoOptions struct {
	UnitTokens int // of the ghosts; 512
	GhostUnits int // most units a ghost holds; 16,384. Units grow with the cache beyond that
	Seed       uint64
}

const (
	ticketShare = 0.1     // of requests
	ticketWorth = 10      // capacities
	epoch       = 1 << 40 // so that keys stay positive
)

// NewAuto returns an Auto that has learned nothing; it starts without lottery.
func NewAuto(o AutoOptions) *Auto {
	if o.UnitTokens <= 0 {
		o.UnitTokens = 512
	}
	if o.GhostUnits <= 0 {
		o.GhostUnits = 16384
	}
	return &Auto{options: o, clock: epoch, draw: rand.New(rand.NewPCG(o.Seed, 0x9e3779b97f4a7c15))}
}

func (a *Auto) Name() string { return "auto" }

// Key is the mark less the depth of the node's end: of one prompt's pages the last go first.
func (a *Auto) Key(e *Entry, _ uint64) Key {
	return Key{Hi: e.Mark - uint64(e.Before+e.Tokens), Lo: e.LastAccess}
}

// Admit draws the request's ticket, lets the ghosts see it, and moves the clock on.
func (a *Auto) Admit(r *Request) Ticket {
	tokens := len(r.Tokens)
	a.capacity = max(a.capacity, r.Resident*r.PageTokens)
	lucky := a.draw.Float64() < ticketShare
	t := Ticket{Base: a.clock + uint64(tokens)}
	a.clock += uint64(tokens)
	if a.duel != nil {
		a.duel.admit(r, lucky)
		if lucky && a.duel.lottery {
			t.Bonus = uint64(ticketWorth * a.capacity)
		}
	}
	return t
}

// Touch raises the node's mark to the request's.
func (a *Auto) Touch(e *Entry, t Ticket) uint64 {
	mark := t.Base + t.Bonus
	if e.Hits == 0 {
		mark -= uint64(a.capacity)
	}
	return max(e.Mark, mark)
}

// Pressure sets the capacity to what is on the device when something has to go.
func (a *Auto) Pressure(tokens int) {
	a.capacity = tokens
	if a.duel == nil {
		a.duel = newDuel(tokens, a.options)
	}
	a.duel.resize(tokens)
}
