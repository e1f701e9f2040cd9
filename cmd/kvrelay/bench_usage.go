package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// processCost is what a process has used so far.
type processCost struct {
	cpu  time.Duration // user and system
	rss  int64         // bytes, now
	peak int64         // bytes
}

// userHZ is the unit of /proc's CPU times, the same on every Linux.
const userHZ = 100

// processUsage reads /proc, so it is an error elsewhere than on Linux.
func processUsage(pid int) (u processCost, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return u, err
	}
	// The fields begin behind the name, which may have blanks: state is field 3, utime 14, stime 15.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return u, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return u, err
		}
		u.cpu += time.Duration(n) * time.Second / userHZ
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		var kib int64
		switch {
		case strings.HasPrefix(line, "VmHWM:"):
			_, err = fmt.Sscanf(line, "VmHWM: %d kB", &kib)
			u.peak = kib << 10
		case strings.HasPrefix(line, "VmRSS:"):
			_, err = fmt.Sscanf(line, "VmRSS: %d kB", &kib)
			u.rss = kib << 10
		}
		if err != nil {
			return u, err
		}
	}
	return u, nil
}
