//go:build !linux

package fuzzlimit

import "time"

var began = time.Now()

// clock is the wall's, where the system has none for a thread.
func clock() time.Duration { return time.Since(began) }
