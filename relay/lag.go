package relay

import "time"

// LagBounds are the upper bounds of the lag histogram's buckets, in seconds.
var LagBounds = [...]float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}

// Lag is a histogram of now − batch ts over applied batches. A clock of the
// engine's that is ahead counts as no lag.
type Lag struct {
	Counts [len(LagBounds) + 1]uint64 // per bucket, the last is above all bounds
	Sum    float64                    // seconds
	N      uint64
	Last   float64 // seconds
}

func (l *Lag) observe(ts float64, now time.Time) {
	d := max(0, float64(now.UnixNano())/1e9-ts)
	if d != d || d > 1e9 {
		return // NaN or no wall clock at all: some test engines send 0 or 1
	}
	i := 0
	for i < len(LagBounds) && d > LagBounds[i] {
		i++
	}
	l.Counts[i]++
	l.Sum += d
	l.N++
	l.Last = d
}
