package replay

import (
	"time"

	"github.com/zeebo/xxh3"
)

const (
	// A round gives up its slot after this long, however much still trickles in;
	// the next one goes on from what has been applied.
	trickle = 10 * time.Second
	// Silence polls come at doubling intervals up to this one.
	maxPoll = 30 * time.Second
	// Pauses between attempts double up to this one.
	maxPause = 5 * time.Second
)

type roundKind uint8

const (
	fromStart  roundKind = iota // from 0: nothing of this epoch has been applied
	fromAnchor                  // from the anchor, to prove identity and to fetch what follows it
	probeRing                   // from the ring's lowest: there was nothing from the anchor on
	probeZero                   // from 0: nor from there
)

// round is one request and its replies.
type round struct {
	kind   roundKind
	id     uint64
	anchor seen // that was asked for
	next0  uint64
	fresh  bool

	sent           bool
	sentAt, lastAt time.Time // of the request, of its newest frame or the newest bytes of one
	heardAt        time.Time // when the newest reply was taken; of the request before the first
	arriving       bool      // a reply that began within the round's time is worth waiting for

	n       int    // replies
	top     uint64 // highest number replied
	judged  bool   // fromAnchor: the anchor came back unchanged, so the replies are of our incarnation
	prev    uint64 // number of the reply before, when chained
	chained bool
	pairs   []pair // neighbours that skip numbers; at most Config.Safe, beyond which none is trusted

	same, late, below bool // probes: there was a reply equal to the ring, above it, below it
}

// alone says whether the anchor came back, and nothing above it.
func (r *round) alone() bool { return r.judged && r.top == r.anchor.seq }

func (r *round) deadline(idle time.Duration) time.Time {
	d, end := r.lastAt.Add(idle), r.sentAt.Add(trickle)
	if end.Before(d) && !r.arriving {
		return end
	}
	return d
}

// Arrival is how far a reply has come that the Cursor has not been given yet.
type Arrival struct {
	First, Newest time.Time // when the first and the newest of its bytes came
	Fast          bool      // they come at a pace that is worth waiting for
	Whole         bool      // all of them are there: it is given next
}

// ReplayArriving: a reply to request id is on its way. Its bytes end a silence, and
// one that is whole is none for as long as it waits. If it began before the round's
// time was up, and comes fast, the round lasts until it is given, and only a pause
// of REPLAY_IDLE ends it; what begins later is left to the next round, so that
// others have their turn. To be said before Tick, whenever it is so.
func (c *Cursor) ReplayArriving(now time.Time, id uint64, a Arrival) {
	r := c.current(now, id)
	if r == nil || a.Newest.Before(r.heardAt) {
		return // it was given already
	}
	if r.lastAt = a.Newest; a.Whole {
		r.lastAt = now
	}
	r.arriving = (a.Fast || a.Whole) && a.First.Before(r.sentAt.Add(trickle))
}

// busy says whether a replay is under way, pauses and LostKeep's wait included.
func (c *Cursor) busy() bool {
	return c.round != nil || !c.resumeAt.IsZero() || !c.keepBy.IsZero()
}

// want asks replay for whatever is missing, unless that is under way already.
func (c *Cursor) want() {
	switch {
	case c.ended || !c.live || c.cfg.NoReplay:
	case c.busy():
		c.again = true
	case c.Draining():
		c.more.want = true // what it would start at is about to change
	case !c.credit:
		c.pending = true
	case c.begun:
		// From the anchor, not from next: without it a restarted engine that is past
		// next would simply be continued.
		c.begin(fromAnchor, c.anchor.seq)
	default:
		c.begin(fromStart, 0)
	}
}

func (c *Cursor) begin(k roundKind, start uint64) {
	c.lastID++
	c.round = &round{kind: k, id: c.lastID, anchor: c.anchor, next0: c.next, fresh: !c.reusable}
	c.starting = k == fromStart
	c.again = false
	c.count.Requests++
	c.host.Ask(Request{ID: c.lastID, Start: start, Fresh: c.round.fresh})
}

// ReplaySent: request id is handed to a connection that stands; fresh says that
// it was made for this request. To be said before replies are read.
func (c *Cursor) ReplaySent(now time.Time, id uint64, fresh bool) {
	r := c.current(now, id)
	if r == nil || r.sent {
		return
	}
	r.sent, r.sentAt, r.lastAt, r.heardAt = true, now, now, now
	if fresh {
		c.connected = now
	}
	c.refused, c.refusals = time.Time{}, 0
}

// ReplayRefused: no connection could be made for request id, whatever the reason.
func (c *Cursor) ReplayRefused(now time.Time, id uint64) {
	r := c.current(now, id)
	if r == nil {
		return
	}
	c.count.Refused++
	c.round, c.reusable = nil, false
	if c.proven {
		c.starting = false // what live brings in order need not wait for it
		c.drain()
	}
	switch {
	case !c.missing() && c.proven:
		c.refused, c.refusals = time.Time{}, 0
		c.finish() // nothing depends on it; the next poll tries again
		return
	case c.refused.IsZero():
		c.refused = now
	case now.Sub(c.refused) >= c.cfg.DeadAfter:
		c.refused = time.Time{}
		c.exhausted()
		return
	}
	c.pause(c.backoff(c.refusals))
	c.refusals++
}

// ReplayDown: the replay connection ended while request id was on it. The end
// of an idle connection need not be said.
func (c *Cursor) ReplayDown(now time.Time, id uint64) {
	if id == c.lastID {
		c.reusable = false
	}
	if c.current(now, id) != nil {
		c.stall()
	}
}

// ReplayEnd is the end marker of request id.
func (c *Cursor) ReplayEnd(now time.Time, id uint64) {
	r := c.current(now, id)
	if r == nil {
		return
	}
	c.count.Ended++
	c.reusable = true
	c.round = nil
	switch {
	case !c.keepBy.IsZero(): // a PONG or its absence decides
	case r.kind == fromStart:
		c.startEnded(r)
	case r.kind == fromAnchor && !r.judged:
		c.begin(probeRing, c.ring.lowest())
	case r.kind == fromAnchor:
		c.settle(r, true)
	default:
		c.probeEnded(r)
	}
}

// ReplayBatch is a batch in reply to request id.
func (c *Cursor) ReplayBatch(now time.Time, id, seq uint64, payload []byte) {
	c.count.Frames++
	r := c.current(now, id)
	if r == nil {
		c.count.Discarded++
		return
	}
	if !r.sent {
		c.ReplaySent(now, id, r.fresh)
	}
	r.lastAt, r.heardAt, r.arriving = now, now, false
	if seq == noSeq {
		c.count.Malformed++
		return
	}
	r.n++
	r.top = max(r.top, seq)
	c.answered = true
	if sum := xxh3.Hash(payload); r.kind >= probeRing {
		c.probed(r, seq, sum)
	} else {
		c.merge(r, seq, sum, payload)
	}
}

// merge puts a reply, of a round from 0 or from the anchor, in its place.
func (c *Cursor) merge(r *round, seq, sum uint64, payload []byte) {
	if c.conflict(r, seq, sum) {
		c.count.Discarded++
		c.parted()
		return
	}
	if r.kind == fromAnchor && !r.judged {
		c.judge(r, seq, sum, payload)
		return
	}
	prev, chained := r.prev, r.chained
	if !chained || seq > prev { // a reply that comes twice, or late, has no new neighbours
		r.prev, r.chained = seq, true
	}
	if !c.begun {
		c.startAt(seq)
	} else if chained && seq > prev && seq-prev > 1 && r.n <= c.cfg.Safe {
		if c.ring.between(prev, seq) {
			// What we applied there came live, from an incarnation that was dying.
			c.count.Discarded++
			c.restart()
			return
		}
		c.skipped(r, pair{prev, seq})
	}
	c.feed(seq, sum, payload, true)
}

// current returns the round that id names, or nil.
func (c *Cursor) current(now time.Time, id uint64) *round {
	if !c.enter(now) || c.round == nil || c.round.id != id {
		return nil
	}
	return c.round
}

// startEnded: a replay from 0 has ended, so the live connection needs no other proof.
func (c *Cursor) startEnded(r *round) {
	c.starting, c.proven = false, true
	c.back()
	c.drain()
	if first, ok := c.held.min(); ok && !c.begun && !c.more.waits && r.n == 0 {
		// Nothing to replay, yet something was published: an engine may publish
		// before it appends. Once more, then live alone must do.
		if c.empty++; c.empty < 2 {
			c.retry(r, false)
			return
		}
		c.startAt(first)
	}
	c.settle(r, true)
}

// stall ends a round that is silent, trickles, or has lost its connection.
// What it would still have said is unknown. The connection goes, so that no
// late reply is taken for one of the next round.
func (c *Cursor) stall() {
	r := c.round
	c.count.Stalled++
	c.round = nil
	c.closeReplay(true)
	if r.alone() && !c.missing() {
		c.ready() // so ends a replay of an engine that sends no end marker
	}
	switch {
	case !c.keepBy.IsZero():
	case r.kind >= probeRing && c.onlyBelow(r):
		c.restart()
	case r.kind < probeRing && len(r.pairs) > 0 && c.missing():
		c.settle(r, false) // burned numbers need no end marker
	default:
		c.retry(r, false)
	}
}

// retry asks again: at once after progress or when quick, else after a pause.
func (c *Cursor) retry(r *round, quick bool) {
	if c.next > r.next0 {
		c.attempts = 0
	} else if c.attempts++; c.attempts >= c.cfg.Attempts {
		if r.alone() {
			c.hint = hint{} // an end marker would have refuted it long ago
		}
		c.exhausted()
		return
	}
	if quick || c.attempts == 0 {
		c.pause(0)
	} else {
		c.pause(c.backoff(c.attempts))
	}
}

// backoff is the pause after n attempts: 0.1 s doubling to 5 s, with jitter
// so that many ranks do not come back together.
func (c *Cursor) backoff(n int) time.Duration {
	d := maxPause
	if n < 6 {
		d = min(d, 100*time.Millisecond<<n)
	}
	return d/2 + time.Duration(c.cfg.Rand()*float64(d/2))
}

func (c *Cursor) pause(d time.Duration) {
	if d <= 0 {
		c.resume()
		return
	}
	c.resumeAt = c.now.Add(d)
}

func (c *Cursor) resume() {
	c.resumeAt = time.Time{}
	c.want()
}

// finish ends a replay that has found whatever there was.
func (c *Cursor) finish() {
	c.attempts = 0
	c.pollAt = c.now.Add(c.pollEvery)
	if c.proven {
		c.conflicts = 0
		c.ready()
	}
	if c.again && (c.missing() || !c.proven) {
		c.want()
	}
}

// dropRound ends whatever replay is under way.
func (c *Cursor) dropRound() {
	open := c.round != nil
	if open {
		c.count.Dropped++
		c.round = nil
	}
	c.again, c.starting, c.resumeAt = false, false, time.Time{}
	c.closeReplay(open)
}

func (c *Cursor) closeReplay(open bool) {
	if open || c.reusable {
		c.reusable = false
		c.host.CloseReplay()
	}
}

// polls says whether silence is to be polled: a lost last batch is found no other
// way.
func (c *Cursor) polls() bool {
	return c.live && c.credit && !c.cfg.NoReplay && !c.busy() && !c.Draining()
}

func (c *Cursor) poll() {
	c.count.Polls++
	c.pollEvery = min(2*c.pollEvery, max(maxPoll, c.cfg.Heartbeat))
	c.want()
}

// restPoll: something was heard, so the silence begins anew.
func (c *Cursor) restPoll() {
	c.pollEvery = c.cfg.Heartbeat
	c.pollAt = c.now.Add(c.pollEvery)
}

func (c *Cursor) ready() {
	if c.more.waits {
		c.more.ready = true
		return
	}
	if !c.readied {
		c.readied = true
		c.host.Ready()
	}
}
