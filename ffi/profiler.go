package ffi

// Activity is what a range of a profiler is named after.
type Activity uint32

// Activities; loads, back-ups and compaction are shown by the library itself.
const (
	ActivityMatch        = Activity(RangeMatch)
	ActivityPlan         = Activity(RangePlan)
	ActivityStorageRead  = Activity(RangeStorageRead)
	ActivityStorageWrite = Activity(RangeStorageWrite)
)

// ProfilerListens reports whether an NVTX tool such as Nsight Systems listens to this process. The first call looks for it.
func (l *Library) ProfilerListens() bool {
	f := newFrame()
	defer f.release()
	return l.table.callProfilerListens(f) != 0
}

// RangeStart starts a range on the profiler's timeline, with pages as its payload; it may end on another thread. 0 when nobody listens.
func (l *Library) RangeStart(a Activity, pages int) uint64 {
	f := newFrame()
	defer f.release()
	return l.table.callRangeStart(f, uint32(a), uint64(pages))
}

// RangeEnd ends a range; 0 is none.
func (l *Library) RangeEnd(id uint64) {
	f := newFrame()
	defer f.release()
	l.table.callRangeEnd(f, id)
}
