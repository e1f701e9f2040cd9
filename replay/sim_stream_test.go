package replay

import (
	"math"
	"time"
)

const (
	simHeartbeat = 2.0
	simDeadAfter = 30.0
	simIdle      = 1.0
	simSafe      = 30 // stands for 1000, the smallest high-water mark of any ROUTER
)

// stream is the relay around one Cursor, as simple as it can be, the consumer
// behind it, and the part of the oracle that watches each step.
type stream struct {
	s *sim
	p *params
	e *engine
	c *Cursor

	l, r    *conn
	asked   uint64 // newest request, to forget one that waits
	slot    bool   // a replay slot is ours
	credit  bool
	tickAt  int64     // of the tick that is due; MaxInt64: none
	current *simBatch // of this input
	heard   *simBatch // newest from live
	heardOn *conn

	// The consumer.
	cons, ledger blocks
	waiting      bool
	exit         bool

	// What this epoch has applied, and what was declared. Oracle only.
	applied    []*simBatch
	loss       [][2]uint64
	base       uint64
	floating   bool // the epoch began behind a loss: its first batch is its base
	requests   []int64
	lastChange int64
	readies    int
	draining   bool // Drain is due
	drains     int
	count      Counters // of the last look
	viol       map[string]int
}

func newStream(s *sim, p *params, e *engine) *stream {
	st := &stream{s: s, p: p, e: e, credit: true, tickAt: math.MaxInt64, viol: map[string]int{}}
	e.to = st
	st.c = NewCursor(Config{
		NoReplay: p.noReplay, Lost: p.lost, Ring: p.ring, Safe: simSafe, Hold: s.hold, TS: simTS, Rand: s.rng.Float64,
		Portion:   portionOf(p),
		Heartbeat: sec2(simHeartbeat), Idle: sec2(simIdle), DeadAfter: sec2(simDeadAfter),
	}, st)
	s.at(p.relayStart, func() { st.in(func() { st.c.Tick(s.now()) }); st.dial() })
	s.at(p.relayStart+simHeartbeat, st.ping)
	return st
}

// portionOf bounds what one input applies, in two of three histories. It draws
// nothing, so that the same seed makes the same history as without.
func portionOf(p *params) int {
	n := int(1e6 * p.relayStart)
	return n % 3 * (1 + n%400)
}

// drain comes a little later, as a host's does that waits for credit.
func (st *stream) drain() {
	if st.draining || !st.c.Draining() {
		return
	}
	st.draining = true
	st.drains++
	st.s.at(.02*float64(st.drains%4), func() {
		st.draining = false
		if !st.exit {
			st.in(func() { st.c.Drain(st.s.now(), 1+st.drains*97%(1+2*st.c.cfg.Portion)) })
		}
	})
}

func sec2(f float64) time.Duration { return time.Duration(sec(f)) }

func (st *stream) violate(kind string, format string, a ...any) {
	if st.viol[kind]++; st.viol[kind] == 1 {
		st.s.logf("!! "+kind+" "+format, a...)
	}
}

// in hands an input to the Cursor, then looks at what must always hold.
func (st *stream) in(do func()) {
	do()
	st.current = nil
	x := st.c.State()
	if x.Frames != x.Applied+x.Repeated+x.Discarded+x.Malformed+uint64(x.Held) {
		st.violate("FRAMES", "%+v", x)
	}
	if x.Begun && x.Next-x.Base != x.EpochApplied+x.EpochBurned+x.EpochLost {
		st.violate("NUMBERS", "%+v", x)
	}
	under := x.Requests - x.Counters.Ended - x.Stalled - x.Refused - x.Dropped
	if under > 1 {
		st.violate("REQUESTS", "%+v", x)
	}
	if x.Waiting != st.waiting {
		st.violate("WAITING", "%+v", x)
	}
	st.count = x.Counters
	st.drain()
	if d := st.c.Deadline(); !d.IsZero() {
		at := int64(d.Sub(simBegin))
		if at < st.tickAt {
			st.tickAt = at
			st.s.atNS(at, func() { st.tick(at) })
		}
	}
}

func (st *stream) tick(at int64) {
	if at != st.tickAt {
		return
	}
	st.tickAt = math.MaxInt64
	st.in(func() { st.c.Tick(st.s.now()) })
	if d := st.c.Deadline(); !d.IsZero() && !d.After(st.s.now()) {
		st.violate("SPIN", "deadline %v", d.Sub(simBegin))
	}
}

// The live connection.

func (st *stream) dial() {
	if st.exit || st.l != nil {
		return
	}
	e, s := st.e, st.s
	if !e.alive || s.t < e.frozen || s.t < e.cut {
		s.at(s.uniform(.05, st.p.redial), st.dial)
		return
	}
	c := &conn{live: true, inc: e.inc, open: true}
	e.conns = append(e.conns, c)
	st.l = c
	s.at(s.uniform(0, st.p.subDelay), func() { c.sub = true })
	s.logf("LIVE up to incarnation %d", c.inc)
	st.in(func() { st.c.LiveUp(s.now()) })
}

func (st *stream) closed(c *conn) {
	if !c.open {
		return
	}
	c.open = false
	switch c {
	case st.l:
		st.s.logf("LIVE down")
		st.l = nil
		st.in(func() { st.c.LiveDown(st.s.now()) })
		st.s.at(st.s.uniform(0, st.p.redial), st.dial)
	case st.r:
		st.r = nil
		st.freeSlot()
		st.in(func() { st.c.ReplayDown(st.s.now(), st.asked) })
	}
}

func (st *stream) close(c *conn) {
	if c != nil {
		c.open = false
		st.e.forget(c)
	}
}

func (st *stream) gotLive(c *conn, seq uint64, b *simBatch) {
	if st.exit || c != st.l {
		return
	}
	st.current = b
	st.in(func() {
		if st.credit {
			st.heard, st.heardOn = b, c
			st.c.Live(st.s.now(), seq, b.payload)
		} else {
			st.c.Discard(st.s.now(), seq)
		}
	})
}

func (st *stream) ping() {
	if c := st.l; c != nil && st.e.answers(c) {
		sent := st.s.now()
		st.s.at(2*st.p.latL, func() {
			if c == st.l && st.e.answers(c) {
				st.in(func() { st.c.Pong(st.s.now(), sent) })
			}
		})
	}
	st.s.at(simHeartbeat, st.ping)
}

func (st *stream) setCredit(ok bool) {
	st.credit = ok
	st.s.logf("credit %v", ok)
	st.in(func() { st.c.Credit(st.s.now(), ok) })
}

// The replay connection.

func (st *stream) Ask(r Request) {
	st.requests = append(st.requests, st.s.t)
	st.asked = r.ID
	st.s.logf("ASK %d from %d fresh %v", r.ID, r.Start, r.Fresh)
	st.s.at(0, func() {
		st.s.slot(func() {
			if st.asked != r.ID || st.exit {
				st.s.freeSlot()
				return
			}
			st.slot = true
			st.connect(r)
		})
	})
}

func (st *stream) connect(r Request) {
	e, s := st.e, st.s
	fresh := r.Fresh || st.r == nil
	if fresh {
		st.close(st.r)
		st.r = nil
		refuse := func() {
			if st.asked == r.ID && st.slot {
				st.freeSlot()
				st.in(func() { st.c.ReplayRefused(s.now(), r.ID) })
			}
		}
		if s.t < e.cut || e.alive && s.t < e.frozen {
			s.at(s.uniform(1, 5), refuse) // dialling times out
			return
		}
		if !e.alive || s.t < e.replayOpen {
			s.at(st.p.latR, refuse)
			return
		}
		st.r = &conn{inc: e.inc, open: true}
		e.conns = append(e.conns, st.r)
	}
	c := st.r
	st.in(func() { st.c.ReplaySent(s.now(), r.ID, fresh) })
	s.at(st.p.latR, func() { e.request(c, r.Start, r.ID) })
}

func (st *stream) freeSlot() {
	if st.slot {
		st.slot = false
		st.s.freeSlot()
	}
}

func (st *stream) CloseReplay() {
	st.close(st.r)
	st.r = nil
	st.asked = 0
	st.freeSlot()
}

func (st *stream) gotReply(c *conn, id uint64, b *simBatch) {
	if c == st.r && !st.exit {
		st.current = b
		st.in(func() { st.c.ReplayBatch(st.s.now(), id, b.seq, b.payload) })
	}
}

func (st *stream) gotEnd(c *conn, id uint64) {
	if c == st.r && !st.exit {
		st.freeSlot()
		st.in(func() { st.c.ReplayEnd(st.s.now(), id) })
	}
}

func (st *stream) ReopenLive() {
	st.s.logf("REOPEN live")
	st.close(st.l)
	st.l = nil
	st.s.at(st.s.uniform(0, .02), st.dial)
}

// What the Cursor declares.

func (st *stream) last() *simBatch {
	if len(st.applied) == 0 {
		return nil
	}
	return st.applied[len(st.applied)-1]
}

func (st *stream) Apply(at Position, payload []byte, replayed bool) {
	b := st.s.decode(payload)
	if l := st.last(); at.Seq != b.seq || l != nil && b.seq <= l.seq {
		st.violate("ORDER", "%d", b.seq)
	}
	if st.waiting {
		st.violate("APPLIED_AWAY", "%d", b.seq)
	}
	if st.floating {
		st.floating, st.base = false, b.seq
	}
	st.applied = append(st.applied, b)
	st.lastChange = st.s.t
	if b.ok {
		st.cons.fold(b.ev)
		st.ledger.fold(b.ev)
	}
	if st.s.trace != nil {
		st.s.logf("apply %d of incarnation %d, replayed %v", b.seq, b.inc, replayed)
	}
}

func (st *stream) Burned(from, to uint64) {
	st.s.logf("burned %d to %d", from, to)
	st.lastChange = st.s.t
	if l := st.last(); l != nil {
		log := st.e.log[l.inc]
		for q := from; q < min(to, uint64(len(log))); q++ {
			if log[q] != nil {
				st.violate("BURNED_WRONG", "%d", q)
			}
		}
	}
}

func (st *stream) Unknown(first uint64) {
	st.s.logf("older history unknown below %d", first)
	st.base, st.floating = first, false
}

func (st *stream) NewEpoch(epoch uint64, cause Cause) {
	st.s.logf("NEW EPOCH %d cause %d", epoch, cause)
	if cause == CauseRestart {
		// A clock that steps while live batches are below the ring misleads by rule.
		needless := len(st.applied) > 0 && !st.e.stepped && (st.current == nil || st.current.inc == st.e.inc)
		for _, b := range st.applied {
			needless = needless && b.inc == st.e.inc
		}
		if needless {
			st.violate("NEEDLESS_RESTART", "")
		}
	}
	st.cons, st.ledger, st.waiting = blocks{}, blocks{}, false
	st.applied, st.loss, st.base = nil, nil, 0
	st.floating = cause == CauseLostGoingOn
	st.lastChange = st.s.t
}

// recoverable says whether everything from the anchor on is still in the engine's
// buffer.
func (st *stream) recoverable() bool {
	l := st.last()
	if !st.e.alive || l == nil || l.inc != st.e.inc {
		return false
	}
	n := 0
	for _, b := range st.e.log[st.e.inc][l.seq:] {
		if b != nil {
			n++
		}
	}
	for _, b := range st.e.buf {
		if b.seq >= l.seq {
			n--
		}
	}
	return n == 0
}

func (st *stream) Lost(from, to uint64, policy Policy) {
	st.s.logf("LOST %d to %d policy %d", from, to, policy)
	x := st.c.State()
	gone := x.Gone > st.count.Gone
	// Exhausted attempts on an unproven connection are a loss by rule, as long as
	// the ROUTER did stall that often.
	exhausted := !x.Proven && st.p.stall > 0
	if !st.p.noReplay && (gone || from == to && !exhausted) && st.recoverable() {
		st.violate("NEEDLESS_LOSS", "gone %v", gone)
	}
	switch policy {
	case LostExit:
		st.exit = true
		st.freeSlot()
	case LostKeep:
		if st.p.lost != LostKeep || to <= from {
			st.violate("KEEP", "")
		}
		if l := st.last(); l != nil && st.current != nil && st.current.inc != l.inc {
			st.violate("KEEP_MIXED", "") // what comes next is another engine's
		}
		st.loss = append(st.loss, [2]uint64{from, to})
	}
}

func (st *stream) Away() {
	st.s.logf("AWAY")
	if st.waiting {
		st.violate("AWAY_TWICE", "")
	}
	st.cons, st.waiting, st.lastChange = blocks{}, true, st.s.t
}

func (st *stream) Back() {
	st.s.logf("BACK")
	if !st.waiting {
		st.violate("BACK_TWICE", "")
	}
	st.cons.or(st.ledger)
	st.waiting, st.lastChange = false, st.s.t
}

func (st *stream) Ready() {
	st.s.logf("READY")
	if st.readies++; st.readies > 1 {
		st.violate("READY_TWICE", "")
	}
}
