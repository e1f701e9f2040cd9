package fuzzlimit

import (
	"time"

	"golang.org/x/sys/unix"
)

// clock is the processor time of this thread.
func clock() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) != nil {
		return 0 // Linux has had it since 2.6.12
	}
	return time.Duration(ts.Nano())
}
