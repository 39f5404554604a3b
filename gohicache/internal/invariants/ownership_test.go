package invariants

import "testing"

func TestOwnership(t *testing.T) {
	for _, c := range []struct {
		live, named int
		idle        bool
		wrong       int
	}{
		{5, 5, true, 0}, {5, 5, false, 0},
		{6, 5, false, 0},                  // a lease holds one
		{6, 5, true, 1},                   // a leak
		{4, 5, false, 1}, {4, 5, true, 1}, // freed twice
	} {
		if got := Ownership([]Ledger{{"full", "device", c.live, c.named}}, c.idle); len(got) != c.wrong {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
