package consumer

import "time"

// The follower's questions and their answers.

// ask begins anew: from the last event where the state is whole, else a
// snapshot.
func (f *follower) ask(now time.Time, delay time.Duration) {
	f.asking = true
	f.behindAt = time.Time{}
	f.snapToken, f.snapNext = "", 0
	q := question{publisher: f.publisher}
	if f.based {
		q.from = f.last + 1
	}
	f.put(now, q, delay)
}

func (f *follower) put(now time.Time, q question, delay time.Duration) {
	f.tries = 0
	q.id = f.q.id
	f.q = q
	if delay > 0 {
		f.askAt = now.Add(delay)
		return
	}
	f.send(now)
}

func (f *follower) send(now time.Time) {
	f.askAt = time.Time{}
	f.timeout = now.Add(answerWithin)
	f.q.id++
	f.tries++
	f.asks++
	f.host.ask(f.rank, f.q)
}

// unanswered: 2 s went by. A part may be asked for again; else all anew.
func (f *follower) unanswered(now time.Time) {
	if f.q.token != "" && f.tries < partTries {
		f.send(now)
		return
	}
	f.retry(now)
}

// retry asks anew after a growing pause.
func (f *follower) retry(now time.Time) {
	if f.backoff *= 2; f.backoff == 0 {
		f.backoff = backoffFirst
	}
	f.backoff = min(f.backoff, backoffMax)
	f.ask(now, f.backoff/2+time.Duration(f.jitter()*float64(f.backoff/2)))
}

// answered takes the answer to question id.
func (f *follower) answered(now time.Time, id uint64, a *answer) {
	if !f.asking || id != f.q.id || !f.askAt.IsZero() {
		return
	}
	switch {
	case a.failed:
		f.retry(now)
	case a.snapshot:
		f.part(now, a)
	default:
		f.events(now, a)
	}
}

// events takes an answer of kind events.
func (f *follower) events(now time.Time, a *answer) {
	if a.publisher != f.publisher || f.q.from == 0 {
		f.retry(now)
		return
	}
	before := f.last
	for i := range a.events {
		e := &a.events[i]
		if e.ID <= f.last {
			continue
		}
		if e.ID != f.last+1 {
			f.retry(now)
			return
		}
		f.apply(e)
	}
	switch {
	case a.more && f.last == before:
		f.retry(now)
	case a.more:
		f.ask(now, 0)
	default:
		f.drain(now, f.last == before)
	}
}

// part takes one part of a snapshot.
func (f *follower) part(now time.Time, a *answer) {
	if a.part == 0 {
		f.follow(a.publisher)
		f.based = false
		f.snapToken, f.snapNext = a.token, 0
	}
	if a.publisher != f.publisher || a.token != f.snapToken || a.part != f.snapNext || a.token == "" {
		f.retry(now)
		return
	}
	f.snapNext++
	for i := range a.events {
		f.host.apply(&a.events[i])
	}
	if a.more {
		f.put(now, question{publisher: f.publisher, token: f.snapToken, part: f.snapNext}, 0)
		return
	}
	f.last, f.based, f.snapToken = a.last, true, ""
	f.drain(now, true)
}

// drain applies what was held and goes on. idle: the answer brought nothing
// new, so a hole that is still there is asked for after a pause.
func (f *follower) drain(now time.Time, idle bool) {
	hs := f.held
	f.held = nil
	f.host.unhold(f.heldBytes)
	f.heldBytes = 0
	f.asking = false
	// First all that the followed publisher sent, in the order it came; held
	// events behind a hole are held again by event, which asks.
	for i := range hs {
		if h := &hs[i]; h.publisher == f.publisher {
			if f.asking {
				f.hold(*h)
				continue
			}
			if idle && h.e.ID > f.last+1 && h.e.Kind != Cleared {
				f.hold(*h)
				f.retry(now)
				continue
			}
			f.event(now, *h)
		}
	}
	if !f.asking {
		f.backoff = 0
	}
	for i := range hs {
		if h := &hs[i]; h.publisher != f.publisher {
			f.event(now, *h)
		}
	}
}
