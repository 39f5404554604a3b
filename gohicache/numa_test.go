package hicache_test

import (
	"errors"
	"strings"
	"testing"

	hicache "github.com/hicache/hicache/gohicache"
)

// TestHostNUMANodes: a node that the machine does not have is refused by name; node 0 is everybody's.
func TestHostNUMANodes(t *testing.T) {
	o := hicache.Options{DeviceBytes: 32 * kib, HostBytes: 32 * kib, Pools: fullPools()}
	open(t, o) // Skips where there is no library.
	o.HostNUMANodes = 1 << 63
	if c, err := hicache.Open(ctx, &o); err == nil {
		_ = c.Close()
		t.Error("node 63 was accepted")
	} else if !errors.Is(err, hicache.ErrInvalid) || !strings.Contains(err.Error(), "numa") {
		t.Errorf("node 63: %v", err)
	}
	o.HostNUMANodes = 1
	open(t, o)
}
