package hicache_test

import (
	"testing"

	"github.com/hicache/hicache/ffi"
	hicache "github.com/hicache/hicache/gohicache"
)

// TestCopyChoicesWithoutABus: the options of CUDA are taken everywhere, and where nothing crosses a bus the choice says so.
func TestCopyChoicesWithoutABus(t *testing.T) {
	for _, device := range []hicache.Device{hicache.CPU, hicache.Null} {
		s := open(t, hicache.Options{Device: device, Pools: fullPools(), DeviceBytes: 1 << 20, H2DSlowdownMax: 10000, D2HSlowdownMax: 1, NoCopyCalibration: true})
		h2d, d2h, err := s.c.CopyChoices()
		if err != nil {
			t.Fatal(err)
		}
		if h2d != (hicache.CopyChoice{}) || d2h != (hicache.CopyChoice{}) || h2d.Source != ffi.ChoiceSourceNone {
			t.Errorf("%v: %v, %v", device, h2d, d2h)
		}
	}
}
