// Package invariants holds checks across rooms, as pure functions over what the rooms say of themselves.
package invariants

import "fmt"

// Ledger is what two rooms say of the pages of one pool on one tier.
type Ledger struct {
	Pool, Tier string
	Live       int // pages that the engine has given out
	Named      int // pages that the tree names
}

// Ownership checks that each page has an owner: the engine never has fewer live pages than the tree names, and exactly as many when nobody
// else holds any (idle: no lease, sequence, step, pin, transfer or storage job). A page too many is a leak, one too few was freed twice.
func Ownership(ledgers []Ledger, idle bool) (wrong []string) {
	for _, l := range ledgers {
		switch {
		case l.Live < l.Named:
			wrong = append(wrong, fmt.Sprintf("ownership: pool %s has %d live %s pages, the tree names %d: some were freed under it", l.Pool, l.Live, l.Tier, l.Named))
		case idle && l.Live > l.Named:
			wrong = append(wrong, fmt.Sprintf("ownership: pool %s has %d live %s pages, the tree names %d and nobody holds the rest: a leak", l.Pool, l.Live, l.Tier, l.Named))
		}
	}
	return wrong
}
