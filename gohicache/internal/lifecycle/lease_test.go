package lifecycle

import "testing"

// TestUseBetweenExpiryAndRelease: expiry that found no reader releases next; a use that began in between would be of pages that are given up.
func TestUseBetweenExpiryAndRelease(t *testing.T) {
	l := &Lease{expired: true}
	if _, ok := l.Use(); ok {
		t.Error("the use of an expired lease without readers began")
	}
	l.readers = 1 // who releases it at its end
	if _, ok := l.Use(); !ok {
		t.Error("a use beside another was refused")
	}
}
