package consumer

import (
	"container/heap"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// world is a simulation of one rank: relays that come, crash, leave and
// overlap, links that lose, duplicate and reorder, and one follower. Time is
// virtual. Every scenario follows from its seed.
type world struct {
	r      *rand.Rand
	now    time.Time
	queue  simQueue
	order  int
	relays []*simRelay
	pubs   uint64

	f       *follower
	state   map[blockKey]Entry
	heldMax int
	used    int
	down    bool // the consumer's connection is cut
	paused  bool // its process does not run
	inbox   []func()

	// How bad the world is until calm.
	calm                  time.Time
	sound                 bool // nothing ever goes wrong
	loss, hbLoss, ansLoss float64
	hashes                uint64
	delay, lag            time.Duration
	ring, chunk, logPart  int

	lastAsk  time.Time
	asks     int
	begun    int // questions that begin anew
	failed   int // answers that were errors
	violated string
}

type simRelay struct {
	*fakeRelay
	alive, serving bool
	linkGen        int
	link           bool
	sent           uint64
	fifo           map[string]time.Time
}

type simEvent struct {
	at    time.Time
	order int
	run   func()
}
type simQueue []simEvent

func (q simQueue) Len() int { return len(q) }
func (q simQueue) Less(i, j int) bool {
	return q[i].at.Before(q[j].at) || q[i].at.Equal(q[j].at) && q[i].order < q[j].order
}
func (q simQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *simQueue) Push(x any)   { *q = append(*q, x.(simEvent)) }
func (q *simQueue) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}

const (
	simFaults = 20 * time.Second // until then things go wrong
	simEvents = 26 * time.Second // until then events are published
	simEnd    = 50 * time.Second
)

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func pickMS(r *rand.Rand, of ...int64) time.Duration {
	return time.Duration(pick(r, of...)) * time.Millisecond
}

func newWorld(seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 1))
	start := time.Unix(1_790_000_000, 0)
	w := &world{
		r: r, now: start, calm: start.Add(simFaults), state: map[blockKey]Entry{},
		loss: pick(r, 0, .02, .1, .3), hbLoss: pick(r, 0, 0, .2), ansLoss: pick(r, 0, 0, .1, .3),
		hashes: pick(r, uint64(6), 12, 24), delay: pickMS(r, 3, 30, 200),
		lag:  pickMS(r, 2, 40, 300),
		ring: pick(r, 6, 12, 25, 60, 400), chunk: pick(r, 1, 2, 4, 16), logPart: pick(r, 2, 5, 20),
		heldMax: pick(r, 1<<30, 1<<30, 5000),
	}
	w.f = &follower{host: w, rank: Rank{7, 1}, jitter: r.Float64}
	return w
}

func (w *world) after(d time.Duration, f func()) {
	w.order++
	heap.Push(&w.queue, simEvent{w.now.Add(d), w.order, f})
}

func (w *world) every(d func() time.Duration, until time.Duration, f func()) {
	end := w.calm.Add(until - simFaults)
	var again func()
	again = func() {
		if !w.now.Before(end) {
			return
		}
		f()
		w.after(d(), again)
	}
	w.after(d(), again)
}

func fixed(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

func (w *world) upTo(d time.Duration) time.Duration { return time.Duration(w.r.Int64N(int64(d)) + 1) }
func (w *world) faulty() bool                       { return !w.sound && w.now.Before(w.calm) }
func (w *world) chance(p float64) bool              { return w.faulty() && w.r.Float64() < p }

// arrive runs f in the consumer's process, after a delay.
func (w *world) arrive(d time.Duration, f func()) {
	w.after(d, func() {
		switch {
		case w.down:
		case w.paused:
			w.inbox = append(w.inbox, f)
		default:
			f()
		}
	})
}

func (w *world) spawn() *simRelay {
	w.pubs++
	x := &simRelay{
		fakeRelay: newFakeRelay(w.f.rank, w.pubs, w.pubs, w.ring, w.chunk, w.logPart),
		alive:     true, serving: true, link: true, fifo: map[string]time.Time{},
	}
	w.relays = append(w.relays, x)
	w.publish(x, Event{Kind: Cleared})
	w.beat(x, "live")
	w.every(fixed(time.Second), simEnd, func() { w.beat(x, "live") })
	w.every(fixed(10*time.Millisecond), simEnd, func() {
		gen, to := x.linkGen, x.sent
		if x.link && to > x.confirmed {
			w.after(w.upTo(w.lag), func() {
				if x.alive && x.link && x.linkGen == gen {
					x.confirmed = max(x.confirmed, to)
				}
			})
		}
	})
	return x
}

func (w *world) owner() *simRelay { return w.relays[len(w.relays)-1] }

func (w *world) publish(x *simRelay, e Event) {
	if x.alive {
		x.fakeRelay.publish(e)
		w.push(x)
	}
}

// push sends what the link has not carried yet, in messages of a few events.
func (w *world) push(x *simRelay) {
	for x.link && x.sent < x.next-1 {
		n := min(x.next-1-x.sent, 1+w.r.Uint64N(3))
		evs := slices.Clone(x.history[x.sent : x.sent+n])
		x.sent += n
		if w.chance(w.loss) {
			continue
		}
		pub := x.publisher
		deliver := func() { w.arrive(w.onward(x, "events"), func() { w.f.message(w.now, pub, evs, false) }) }
		deliver()
		if w.chance(.05) {
			deliver()
		}
	}
}

// onward is a delay that keeps the order on one link.
func (w *world) onward(x *simRelay, kind string) time.Duration {
	key := fmt.Sprint(kind, x.linkGen)
	at := w.now.Add(w.upTo(w.delay))
	if w.chance(.003) {
		at = at.Add(pickMS(w.r, 1000, 3000, 6000)) // a route is stuck
	}
	if before := x.fifo[key]; at.Before(before) {
		at = before
	}
	x.fifo[key] = at
	return at.Sub(w.now)
}

func (w *world) beat(x *simRelay, state string) {
	if !x.alive || w.chance(w.hbLoss) {
		return
	}
	hb := x.heartbeat(state)
	w.arrive(w.onward(x, "beat"), func() { w.f.heartbeat(w.now, hb, false) })
}

// cut breaks the publishing link: what was not confirmed is sent again later.
func (w *world) cut() {
	x := w.owner()
	x.link, x.linkGen = false, x.linkGen+1
	w.after(pickMS(w.r, 20, 800, 4000), func() {
		if x.alive && !x.link {
			x.link, x.sent = true, x.confirmed
			w.push(x)
		}
	})
}

// replace ends the owner, by a crash or in good order, and begins another life
// with what the engine holds.
func (w *world) replace() {
	old := w.owner()
	if !old.alive {
		return
	}
	if w.r.IntN(2) == 0 {
		w.beat(old, StateLeaving)
	}
	old.alive, old.serving = false, false
	w.after(pickMS(w.r, 10, 200, 1500, 5000), func() {
		x := w.spawn()
		for k, e := range old.state {
			w.publish(x, Event{Kind: Stored, Tier: k.tier, Parent: e.Parent, HasParent: e.HasParent, Blocks: []Block{{Hash: k.hash, TokensHash: e.TokensHash}}})
		}
	})
}

func (w *world) pause() {
	w.paused = true
	w.after(pickMS(w.r, 500, 3000, 8000), func() {
		w.paused = false
		box := w.inbox
		w.inbox = nil
		w.r.Shuffle(len(box)/2, func(i, j int) { box[i], box[j] = box[j], box[i] })
		for _, f := range box {
			f()
		}
	})
}

func (w *world) cutConsumer() {
	w.down = true
	w.after(pickMS(w.r, 500, 4000, 9000), func() { w.down = false })
}

// The follower's host.

func (w *world) apply(e *Event) { foldInto(w.state, e) }

func (w *world) hold(n int) bool {
	if w.used+n > w.heldMax {
		return false
	}
	w.used += n
	return true
}
func (w *world) unhold(n int) { w.used -= n }

func (w *world) ask(_ Rank, q question) {
	w.asks++
	if q.token == "" {
		w.begun++
	}
	w.lastAsk = w.now
	x := w.owner()
	if w.down || w.chance(w.ansLoss) {
		return
	}
	w.after(w.upTo(40*time.Millisecond), func() {
		a := &answer{failed: true}
		if x.serving {
			m := x.serve(w.now, pick(w.r, Dynamo, JSON), q.body())
			m.Subject = fmt.Sprintf("_INBOX.x.7.1.%d", q.id)
			in := parseAnswer(m)
			if in.err != nil || in.question != q.id || in.rank != w.f.rank {
				w.violate("answer not readable: %v", in.err)
				return
			}
			a = in.answer
			if a.failed {
				w.failed++
			}
		}
		if w.chance(w.ansLoss) {
			return
		}
		w.arrive(w.upTo(40*time.Millisecond), func() {
			w.f.answered(w.now, q.id, a)
			if w.f.based && a.snapshot && !a.more && !a.failed && a.publisher == x.publisher && a.token != "" && w.f.snapToken == "" {
				w.check("after a snapshot")
			}
		})
	})
}

func (w *world) violate(format string, args ...any) {
	if w.violated == "" {
		w.violated = fmt.Sprintf("at %v: ", w.now.Sub(w.calm.Add(-simFaults))) + fmt.Sprintf(format, args...)
	}
}

// check holds a follower that thinks itself whole up to last to the fold of
// what its publisher published up to there.
func (w *world) check(when string) {
	f := w.f
	if !f.based || f.snapToken != "" {
		return
	}
	for _, x := range w.relays {
		if x.publisher != f.publisher {
			continue
		}
		want := map[blockKey]Entry{}
		for i := range x.history[:f.last] {
			foldInto(want, &x.history[i])
		}
		if !maps.Equal(want, w.state) {
			w.violate("%s: state at %d,%d is not the fold", when, f.publisher, f.last)
		}
	}
}

func (w *world) run() {
	r := w.r
	w.spawn()
	w.after(w.upTo(pick(r, time.Millisecond, simFaults)), func() { w.f.start(w.now) })
	started := func() bool { return !w.f.heard.IsZero() }
	rate := pickMS(r, 30, 120, 500)
	w.every(func() time.Duration { return w.upTo(2 * rate) }, simEvents, func() { w.publish(w.owner(), randomEvent(r, w.hashes)) })
	w.every(fixed(100*time.Millisecond), simEnd, func() {
		if started() && !w.paused {
			w.f.tick(w.now, false)
			w.check("tick")
		}
	})
	for _, fault := range []func(){w.cut, w.replace, w.pause, w.cutConsumer} {
		for range r.IntN(4) {
			w.after(w.upTo(simFaults), func() {
				if started() {
					fault()
				}
			})
		}
	}
	for w.queue.Len() > 0 && w.violated == "" {
		e := heap.Pop(&w.queue).(simEvent)
		w.now = e.at
		e.run()
	}
	o := w.owner()
	switch f := w.f; {
	case w.violated != "":
	case f.state(w.now) != Live:
		w.violate("ends %v", f.state(w.now))
	case f.publisher != o.publisher || f.last != o.next-1:
		w.violate("ends at %d,%d, the relay at %d,%d", f.publisher, f.last, o.publisher, o.next-1)
	case !maps.Equal(w.state, o.state):
		w.violate("ends with another set")
	case w.now.Sub(w.lastAsk) < 8*time.Second:
		w.violate("still asks: %d times", w.asks)
	case w.used != 0 || f.heldBytes != 0 || len(f.held) != 0:
		w.violate("held events left: %d bytes", w.used)
	}
}
