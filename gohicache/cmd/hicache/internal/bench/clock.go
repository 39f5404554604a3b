package bench

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Clocks. getrusage would do, but counts in ticks of the scheduler.
const (
	threadClock  = unix.CLOCK_THREAD_CPUTIME_ID
	processClock = unix.CLOCK_PROCESS_CPUTIME_ID
)

// cpu is the CPU time of this thread or process so far.
func cpu(clock int32) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(clock, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// threadTime is the CPU time that f takes on its thread: what others do on the machine does not count, and neither does the collector. f runs in C,
// or makes no garbage.
func threadTime(f func() error) (time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := cpu(threadClock)
	err := f()
	return max(cpu(threadClock)-start, time.Nanosecond), err
}

// processTime is the CPU time that this process takes while f runs: all goroutines, the collector and the library's threads included.
func processTime(f func() error) (time.Duration, error) {
	runtime.GC()
	start := cpu(processClock)
	err := f()
	return max(cpu(processClock)-start, time.Nanosecond), err
}
