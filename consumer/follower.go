package consumer

import "time"

// State is how well a rank is followed.
type State uint8

const (
	// Waiting: nothing is known of the rank yet, or an answer to a question is
	// awaited; what was known before still stands.
	Waiting State = iota
	// Recovering: a snapshot is being applied, or was broken off and is asked for
	// again; what is known is a part of it.
	Recovering
	// Live: everything published so far, as far as this reader can know, was applied.
	Live
	// Stale: three heartbeats are missing, or the relay said that it leaves.
	// What is known is the past.
	Stale
)

// String is the state's name.
func (s State) String() string {
	switch s {
	case Waiting:
		return "waiting"
	case Recovering:
		return "recovering"
	case Live:
		return "live"
	}
	return "stale"
}

// The consumer's clock (recovery.md's numbers).
const (
	answerWithin  = 2 * time.Second
	behindAfter   = time.Second
	strangerEvery = time.Second
	backoffFirst  = 100 * time.Millisecond
	backoffMax    = 5 * time.Second
	staleAfter    = 3*HeartbeatEvery + HeartbeatEvery/2
	partTries     = 3 // a part is asked for again this often before all begins anew
	maxStrangers  = 64
)

// question is one recovery request.
type question struct {
	id        uint64 // names it; an answer to an older one is ignored
	publisher uint64 // followed one; 0: none
	from      uint64 // 0: a snapshot is wanted
	token     string // a further part of a snapshot
	part      int
}

// answer is what came back.
type answer struct {
	failed    bool // an error, or nobody there
	publisher uint64
	snapshot  bool
	token     string
	part      int
	more      bool
	last      uint64 // id reached: Kvrelay-Last, or Kvrelay-Done on a snapshot's last part
	events    []Event
}

// followerHost carries out what a follower decides.
type followerHost interface {
	// apply consumes an event: it is next in order, or part of a snapshot.
	apply(e *Event)
	// ask sends a question; its answer comes back by answered.
	ask(r Rank, q question)
	// hold charges n bytes of held events; false when the bound is reached.
	hold(n int) bool
	// unhold gives n bytes back.
	unhold(n int)
}

// held is an event that waits for an answer.
type held struct {
	publisher uint64
	backlog   bool
	e         Event
}

// follower is one rank's part of the recovery protocol: a state machine
// without clock, socket or logger. Its owner calls it from one goroutine and
// ticks it at least every 100 ms.
type follower struct {
	host followerHost
	rank Rank
	// ordered: events come from a JetStream, in order and without loss but for
	// what its limits removed, so a publisher's `cleared` is a sound beginning.
	ordered bool
	jitter  func() float64 // [0,1)

	publisher uint64 // the followed one; 0: none
	last      uint64 // id of the last event applied
	based     bool   // state is whole up to last: `from` may be asked
	inStream  bool   // ordered: the followed publisher was met in the stream itself

	asking  bool
	q       question
	tries   int           // of the present part
	backoff time.Duration // 0: none yet
	askAt   time.Time     // backing off until; zero: the question is out
	timeout time.Time

	// The snapshot under way: its token, and the next part expected.
	snapToken string
	snapNext  int

	held      []held
	heldBytes int

	// A heartbeat that named an id not yet applied, and when it came.
	behindID uint64
	behindAt time.Time
	// When each publisher not followed last made us ask; at most maxStrangers,
	// further ones are not asked for until an old one is a second past.
	strangers map[uint64]time.Time

	heard time.Time // the last heartbeat
	seen  time.Time // the last event that was not of a stream's past
	beat  Heartbeat
	left  bool
	// Counters.
	asks, holes, repeated, heldDropped uint64
}

// start asks for everything.
func (f *follower) start(now time.Time) {
	f.heard = now
	f.ask(now, 0)
}

// state is how well the rank is followed now.
func (f *follower) state(now time.Time) State {
	switch {
	case f.left || now.Sub(f.heard) > staleAfter:
		return Stale
	case f.asking && f.publisher != 0 && !f.based:
		return Recovering
	case f.asking || f.publisher == 0:
		return Waiting
	}
	return Live
}

// message takes published events. backlog: they come from the past of a
// stream that has not been read to its end.
func (f *follower) message(now time.Time, publisher uint64, evs []Event, backlog bool) {
	if !backlog {
		f.seen = now
	}
	for i := range evs {
		f.event(now, held{publisher, backlog, evs[i]})
	}
}

func (f *follower) event(now time.Time, h held) {
	switch {
	case f.asking:
		f.hold(h)
	case h.publisher != f.publisher:
		f.stranger(now, h)
	default:
		f.inStream = f.inStream || f.ordered
		switch {
		case h.e.ID <= f.last:
			f.repeated++
		case h.e.ID == f.last+1:
			f.apply(&h.e)
		case h.e.Kind == Cleared:
			f.apply(&h.e) // whatever is missing before it is over
		default:
			f.holes++
			f.hold(h)
			f.ask(now, 0)
		}
	}
}

func (f *follower) apply(e *Event) {
	f.host.apply(e)
	f.last = e.ID
}

// stranger takes an event of a publisher that is not followed.
func (f *follower) stranger(now time.Time, h held) {
	if f.ordered && (f.inStream || f.publisher == 0) && h.e.Kind == Cleared {
		f.follow(h.publisher)
		f.inStream, f.based = true, true
		f.apply(&h.e)
		return
	}
	if f.ordered && !f.inStream && f.publisher != 0 && h.backlog {
		return // older than the answer that told whom to follow
	}
	if f.mayAsk(now, h.publisher) {
		f.holes++
		f.hold(h)
		f.ask(now, 0)
	}
}

func (f *follower) follow(publisher uint64) {
	f.publisher, f.inStream = publisher, false
	f.behindAt = time.Time{}
}

// mayAsk says whether a stranger is worth a question: once a second for each.
func (f *follower) mayAsk(now time.Time, publisher uint64) bool {
	if at, ok := f.strangers[publisher]; ok && now.Sub(at) < strangerEvery {
		return false
	}
	if len(f.strangers) >= maxStrangers {
		for p, at := range f.strangers {
			if now.Sub(at) >= strangerEvery {
				delete(f.strangers, p)
			}
		}
		if len(f.strangers) >= maxStrangers {
			return false
		}
	}
	if f.strangers == nil {
		f.strangers = make(map[uint64]time.Time)
	}
	f.strangers[publisher] = now
	return true
}

// heartbeat takes a relay's heartbeat. backlog: the stream has not been read
// to its end, so being behind means nothing yet.
func (f *follower) heartbeat(now time.Time, hb Heartbeat, backlog bool) {
	leaving := hb.State == StateLeaving
	if hb.Publisher != f.publisher && leaving {
		return
	}
	f.heard, f.beat, f.left = now, hb, leaving
	if f.asking || backlog {
		f.behindAt = time.Time{}
		return
	}
	if hb.Publisher != f.publisher {
		if f.mayAsk(now, hb.Publisher) {
			f.ask(now, 0)
		}
		return
	}
	if f.behindAt.IsZero() && hb.LastEventID > f.last {
		f.behindAt, f.behindID = now, hb.LastEventID
	}
}

// tick lets time pass. backlog as in heartbeat.
func (f *follower) tick(now time.Time, backlog bool) {
	switch {
	case f.asking && !f.askAt.IsZero():
		// Nobody answers for a relay that is gone: wait for its next heartbeat, or
		// event where its heartbeats do not come through.
		if !now.Before(f.askAt) && (f.state(now) != Stale || f.silent(now) <= staleAfter) {
			f.send(now)
		}
	case f.asking:
		if !now.Before(f.timeout) {
			f.unanswered(now)
		}
	case f.behindAt.IsZero():
	case f.last >= f.behindID || backlog:
		f.behindAt = time.Time{}
	case now.Sub(f.behindAt) >= behindAfter:
		f.holes++
		f.ask(now, 0)
	}
}

// silent is how long nothing was heard of a relay of the rank.
func (f *follower) silent(now time.Time) time.Duration {
	if f.seen.After(f.heard) {
		return now.Sub(f.seen)
	}
	return now.Sub(f.heard)
}

// hold keeps an event until the answer has come. When the bound is reached the
// newest are dropped: the hole they leave is seen and asked for afterwards.
func (f *follower) hold(h held) {
	n := h.e.size()
	if !f.host.hold(n) {
		f.heldDropped++
		return
	}
	f.held = append(f.held, h)
	f.heldBytes += n
}

// size is about what an event occupies, in bytes.
func (e *Event) size() int {
	n := 200 + len(e.Session) + 40*len(e.Blocks) + 8*len(e.Hashes)
	for i := range e.Blocks {
		for j := range e.Blocks[i].MM {
			n += 32 + 16*len(e.Blocks[i].MM[j].Offsets)
		}
	}
	return n
}
