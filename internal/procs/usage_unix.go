//go:build unix

package procs

import (
	"syscall"
	"time"
)

// processCPU is what the process has used so far, in user and system mode.
func processCPU() (used time.Duration, ok bool) {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}
