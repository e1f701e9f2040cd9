package discovery

import (
	"slices"
	"time"
)

// Each source that is taken back ends a stream. One answer that does so costs
// nothing; while they go on, the pause before the next question doubles.
const (
	maxPause = 30 * time.Second
	restless = 4 * time.Second // the pause at which a line says so: the fifth time
	calm     = 2 * time.Minute // without any, and the pause is forgotten; more than 2 × maxPause, since a source must appear to vanish again
)

// pace makes the pause longer with each answer that takes a source back.
func (w *watcher) pace(now time.Time, takesBack bool, engine string) {
	switch {
	case takesBack:
		w.taken = now
		w.pause = min(max(2*w.pause, minDelay), maxPause)
		if w.pause == restless {
			w.d.o.Log.Warn("the engine says something else of its sources again and again: it is asked less often, since each time their ranks are cleared", "engine", engine)
		}
	case now.Sub(w.taken) >= calm:
		w.pause = 0
	}
}

// takesBack says whether a told Source is no longer there as it was. The total
// of ranks alone ends no stream.
func takesBack(told, next []Source) bool {
	return slices.ContainsFunc(told, func(t Source) bool {
		return !slices.ContainsFunc(next, func(n Source) bool {
			n.Ranks = t.Ranks
			return n == t
		})
	})
}

// settle keeps a told Source where the new one is the same stream and merely
// says more or less about it: a change would end the stream and clear what it
// published.
func settle(told, next []Source) []Source {
	next = slices.Clone(next)
	for i, n := range next {
		for _, t := range told {
			m := n
			m.Engine = t.Engine // two addresses of one engine
			m.BlockSize = known(t.BlockSize, n.BlockSize)
			// A rank that vanishes is no news to the others: once there were several,
			// it is safe to go on as if there still were.
			m.Ranks = max(t.Ranks, known(t.Ranks, n.Ranks))
			m.Version = known(t.Version, n.Version)
			if m == t {
				next[i] = t
			}
		}
	}
	return next
}

// known is the old value where one of the two says nothing, else the new one.
func known[T comparable](old, now T) T {
	var nothing T
	if old == nothing || now == nothing {
		return old
	}
	return now
}
