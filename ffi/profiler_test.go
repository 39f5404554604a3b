package ffi

import "testing"

func TestRangesWithoutAProfiler(t *testing.T) {
	library, err := Load("")
	if err != nil {
		t.Skipf("NOT TESTED, no libhicache.so (run make): %v", err)
	}
	if library.ProfilerListens() {
		t.Skip("NOT TESTED: a profiler listens to this process")
	}
	if id := library.RangeStart(ActivityMatch, 3); id != 0 {
		t.Errorf("a range nobody listens to has the id %d, want 0", id)
	}
	library.RangeEnd(0)
}
