package discovery

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	minDelay     = 250 * time.Millisecond // after a change or a failure; doubles with every round
	maxDelay     = 5 * time.Second        // while the engine does not answer
	minGap       = time.Second            // between rounds, when Lost hurries them
	maxPartial   = 3                      // answers in a row that lack something, then it goes without
	sayAgain     = 30 * time.Second       // between two lines that say what is awaited
	sourcesNamed = 8                      // in a log line; of more only the number is said
	newsAtOnce   = 16                     // lines about single sources within sayAgain; of more only the number is said
)

// watcher is the loop of Watch; one goroutine's.
type watcher struct {
	d      *Discoverer
	update func([]Source)

	at       int // index of the prober that brought sources, plus 1; 0: ask in all ways
	told     []Source
	partials int // answers in a row that lacked something
	asked    time.Time
	delay    time.Duration
	pause    time.Duration // at least this between an answer and the next question
	taken    time.Time     // when an answer last took a source back
	failing  bool
	words    words
}

func (w *watcher) run(ctx context.Context) {
	w.words = words{log: w.d.o.Log}
	for {
		w.asked = time.Now()
		changed := w.round(ctx)
		if ctx.Err() != nil {
			return
		}
		w.next(changed)
		if !w.wait(ctx) {
			return
		}
	}
}

// next sets the delay to the next round: short after a change, since ranks of
// an engine may appear one by one, then doubling.
func (w *watcher) next(changed bool) {
	most := w.d.o.Interval
	if w.failing {
		most = maxDelay
	}
	if changed {
		w.delay = 0
	}
	w.delay = min(max(2*w.delay, minDelay), most)
}

// wait waits for the next round and says whether there is one. A lost stream
// brings it forward; while the engine does not answer, asking more often would
// not bring it back.
func (w *watcher) wait(ctx context.Context) bool {
	delay, gap := w.delay, minGap
	if !w.failing { // what comes up after a failure has nothing to take back that lives
		delay, gap = max(delay, w.pause), max(gap, w.pause)
	}
	timer := time.NewTimer(delay - rand.N(delay/4+1))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-w.d.lost:
			if !w.failing {
				w.delay = minDelay
				timer.Reset(max(0, gap-time.Since(w.asked)))
			}
		}
	}
}

// round asks once, and says whether something is no longer as it was.
func (w *watcher) round(ctx context.Context) (changed bool) {
	probers := w.d.probers
	if w.at > 0 {
		probers = probers[w.at-1 : w.at]
	}
	replies := probe(ctx, probers)
	if ctx.Err() != nil {
		return false
	}
	i := best(replies)
	if i < 0 {
		// Whatever comes up at the address may be another engine.
		w.at = 0
		return w.failed(silence(probers, replies))
	}
	a, p := replies[i].answer, probers[i]
	if a.partial == "" {
		w.partials = 0
	} else if w.partials++; len(w.told) == 0 && w.partials <= maxPartial {
		// A Source that begins without a block size cannot be given one later
		// without ending its stream: rather wait a moment.
		return w.failed(waiting{classes: "partial", text: p.target.url + ": " + a.partial})
	} else if len(w.told) == 0 {
		a.warnings = append(a.warnings, a.partial+"; going on without")
	}
	if w.at == 0 && len(a.list) > 0 {
		w.at = i + 1
	}
	return w.answered(a, resolve(a, p.target, &w.d.o))
}

// failed takes a round without an answer.
func (w *watcher) failed(why waiting) (changed bool) {
	now := time.Now()
	first := !w.failing
	w.failing = true
	w.words.silent(now, why, len(w.told) > 0)
	w.d.set(func(s *State) {
		s.Asked++
		s.Failed++
		s.LastError, s.LastFailed = why.text, now
		s.Awaiting, s.Since = why.text, w.words.since
	})
	return first
}

// answered takes an answer, and tells what changed by it.
func (w *watcher) answered(a *answer, o outcome) (changed bool) {
	now := time.Now()
	next := settle(w.told, o.sources)
	changed = !slices.Equal(w.told, next)
	first := w.failing
	w.failing = false
	awaiting := ""
	switch {
	case len(next) > 0:
	case o.unchosen != "":
		awaiting = o.unchosen
	case len(o.refused) > 0:
		awaiting = "none of the engine's sources can be used"
	default:
		awaiting = a.nothing()
	}
	w.words.answered(now, a, o, next, awaiting, changed)
	w.pace(now, takesBack(w.told, next), o.engine)
	w.d.set(func(s *State) {
		s.Asked++
		s.Kind, s.Version, s.Instance, s.Role = a.kind, a.version, a.instance, a.role
		s.Engine = o.engine
		s.LastAnswer = now
		s.Awaiting, s.Since = awaiting, w.words.since
		s.Sources, s.Refused, s.Warnings = next, o.refused, o.warnings
	})
	if changed {
		w.told = next
		w.update(slices.Clone(next))
	}
	return changed || first
}
