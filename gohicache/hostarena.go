package hicache

import "fmt"

// HostLayout is the order of a pool's pages in host memory. Copies between the tiers convert: hits, bytes and what storage holds do not depend
// on it.
type HostLayout uint8

const (
	HostLayoutDefault   HostLayout = iota // What HostArena says: envelopes, or page_first in separate regions.
	HostLayerFirst                        // [K|V][layer][tokens][row], in a region of the pool's own.
	HostPageFirst                         // [K|V][tokens][layer][row], likewise.
	HostPageFirstDirect                   // [K|V][page][layer][token][row], likewise.
	HostPageHead                          // [K|V][page][head][token][layer][row of the head], likewise. Needs Heads.
)

var hostLayoutNames = []string{"default", "layer_first", "page_first", "page_first_direct", "page_head"}

// String names the layout as options do.
func (l HostLayout) String() string { return nameOf(hostLayoutNames, int(l), "host layout") }

// ParseHostLayout is the inverse of String.
func ParseHostLayout(s string) (HostLayout, error) {
	l, err := parseName(hostLayoutNames, s, "host layout")
	return HostLayout(l), err
}

// HostArena says whether pools share one host arena of page envelopes or have a region each.
type HostArena uint8

const (
	// HostArenaAuto: envelopes in one arena, unless the store cannot keep a page as one object, or a layout for regions is asked for.
	HostArenaAuto HostArena = iota
	// HostArenaEnvelope: envelopes in one arena. Refused with a store that cannot keep a page as one object.
	HostArenaEnvelope
	// HostArenaSeparate: a region for each pool.
	HostArenaSeparate
	// HostArenaReference: as the system that the idea comes from chooses, for comparison: envelopes for one FULL and one SWA pool with K and V
	// rows, without storage or with a store named "mori"; else a region for each pool.
	HostArenaReference
)

var hostArenaNames = []string{"auto", "envelope", "separate", "reference"}

// String names the mode as options do.
func (a HostArena) String() string { return nameOf(hostArenaNames, int(a), "host arena") }

// ParseHostArena is the inverse of String.
func ParseHostArena(s string) (HostArena, error) {
	a, err := parseName(hostArenaNames, s, "host arena")
	return HostArena(a), err
}

func nameOf(names []string, i int, what string) string {
	if i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%s(%d)", what, i)
}

func parseName(names []string, s, what string) (int, error) {
	for i, name := range names {
		if name == s {
			return i, nil
		}
	}
	return 0, &Error{Op: "parse", Err: ErrInvalid, Message: fmt.Sprintf("%s %q is none of %v", what, s, names)}
}

// envelopes says whether a store can serve an arena of envelopes.
func (o *Options) envelopes() bool {
	return o.Storage == nil || o.Storage.Capabilities().OneObjectPerPage
}

// hostRegions says whether pools have regions of their own by default.
func (o *Options) hostRegions() bool {
	switch o.HostArena {
	case HostArenaEnvelope:
		return false
	case HostArenaSeparate:
		return true
	case HostArenaReference:
		return o.referenceRegions()
	}
	return o.HostLayout != HostLayoutDefault || !o.envelopes()
}

func (o *Options) referenceRegions() bool {
	if o.Storage != nil && o.Storage.Name() != "mori" || len(o.Pools) != 2 {
		return true
	}
	roles := map[Role]bool{}
	for i := range o.Pools {
		roles[o.Pools[i].Role] = true
		if _, v := o.Pools[i].rows(); v == 0 {
			return true
		}
	}
	return !roles[Full] || !roles[SWA]
}

// hostLayout is the layout in effect of a pool: HostLayoutDefault for envelopes in the shared arena.
func (o *Options) hostLayout(pool int) HostLayout {
	p := &o.Pools[pool]
	switch {
	case p.HostLayout != HostLayoutDefault:
		return p.HostLayout
	case !o.hostRegions():
		return HostLayoutDefault
	case o.HostLayout == HostPageHead && p.Heads <= 1, o.HostLayout == HostLayoutDefault:
		return HostPageFirst // a state has no heads
	}
	return o.HostLayout
}
