package ffi

import "testing"

// The header's numbers, Go's and those of the compiler that built the library are the same.
func TestLayout(t *testing.T) {
	for _, l := range layout {
		if l.header != l.here {
			t.Errorf("%s: %d in Go, %d by the header", l.name, l.here, l.header)
		}
	}
	theirs := map[string]uint64{}
	for _, l := range library(t).Layout() {
		theirs[l.Name] = l.Value
	}
	if len(theirs) != len(layout) {
		t.Errorf("the library lists %d sizes and offsets, the header has %d", len(theirs), len(layout))
	}
	for _, l := range layout {
		if value, ok := theirs[l.name]; !ok || value != uint64(l.here) {
			t.Errorf("%s: %d in the library (listed: %v), %d in Go", l.name, value, ok, l.here)
		}
	}
}

func TestStatusNames(t *testing.T) {
	lib := library(t)
	for status, name := range statusNames {
		if got := lib.StatusName(status); got != name || status.String() != name {
			t.Errorf("%d: %q in the library, %q in Go, %q by the header", status, got, status, name)
		}
	}
	if got := lib.StatusName(-999); got != "UNKNOWN" {
		t.Errorf("-999: %q", got)
	}
	if got := Status(-999).String(); got != "UNKNOWN(-999)" {
		t.Errorf("-999 in Go: %q", got)
	}
	for status := range statusNames {
		err := &Error{Status: status}
		if sentinel := status.Err(); sentinel != nil && !err.Is(sentinel) || sentinel == nil && status < 0 {
			t.Errorf("%s: sentinel %v", status, sentinel)
		}
	}
}
