package replay

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/zeebo/xxh3"
)

// noSeq is the number no batch can have: engines use it as the end marker of
// a replay.
const noSeq = math.MaxUint64

// Cursor brings the batches of one engine's PUB socket into order: it decides
// which batch is next, asks replay for what is missing, and declares what
// never existed, what is lost, and that the engine is another one.
//
// It is a state machine. Its inputs are its methods, its outputs the calls it
// makes on its Host, its clock the now of each input. It starts no goroutine, and
// its methods must not be called at the same time, nor – State excepted – from
// within the Host.
//
// The host calls Tick once at the beginning and then whenever Deadline, which any
// input may change, has passed. Payloads are read during the call only; a batch
// that has to wait is copied.
type Cursor struct {
	cfg   Config
	host  Host
	now   time.Time // of the input that is being handled
	ended bool      // Stop, or history lost under LostExit: nothing happens any more

	// Where this epoch stands.
	epoch   uint64
	begun   bool    // a batch of this epoch has been applied
	base    uint64  // first seq of this epoch that counts: what is below is unknown …
	unknown bool    // … and that is to be said with the first batch applied
	next    uint64  // the seq expected
	anchor  seen    // the newest applied batch; every request starts at it once begun
	ts      float64 // newest wall clock applied, when hasTS
	hasTS   bool
	ring    ring      // the newest applied batches, the anchor included
	ringAt  time.Time // when the first batch came into the empty ring
	held    held      // batches that wait for the numbers before them
	hint    hint      // highest seq that is known to exist and was not kept
	more    more      // what of held waits for Drain
	left    int       // bytes of held that the present input may still apply, with Config.Portion

	// The live connection.
	live    bool
	proven  bool          // it leads to the incarnation whose batches were applied
	shown   bool          // without replay: a batch of this very connection fitted in
	credit  bool          // batches may be applied
	waiting bool          // Away was said, and not yet taken back
	readied bool          // Ready was said
	downAt  time.Time     // when the live connection ended; zero: it is up, or never asked for
	upAt    time.Time     // when it came up last
	wasDown time.Duration // in all before, since one was proven or lasted
	pinged  time.Time     // when the newest PING that it answered was sent

	// The replay connection and the round on it.
	round     *round // nil: none asked for
	lastID    uint64
	reusable  bool      // the connection's last round ended with its marker: nothing stale can arrive
	connected time.Time // when the newest replay connection was made
	starting  bool      // a replay from 0 is under way, pauses included: live batches wait for its end
	resumeAt  time.Time // end of the pause before the next round; zero: no pause
	again     bool      // replay was wanted while a round was under way
	pending   bool      // replay was wanted while there was no credit
	pollAt    time.Time
	pollEvery time.Duration

	// What rounds have shown so far.
	attempts  int       // rounds in a row without progress
	above     int       // rounds in a row whose first reply was above the anchor
	empty     int       // rounds in a row that had nothing even from 0
	answered  bool      // this epoch has had a replayed batch
	conflicts int       // times in a row that live and replay were of two incarnations
	refused   time.Time // since when the endpoint refuses while it matters; zero: it does not
	refusals  int       // in a row
	neighbors []pair    // replies around the numbers that the round before skipped
	denied    bool      // an unproven connection brought a batch that is not of our incarnation
	strayAt   time.Time // since when the anchor is missing among replies that match the ring

	// LostKeep, while it waits for a PONG.
	keepBy   time.Time // until then; zero: it does not wait
	keepGone bool      // for history that the engine no longer has …
	keepTo   uint64    // … up to here

	count Counters
}

// NewCursor returns a Cursor at Start: no connection, nothing applied.
func NewCursor(c Config, h Host) *Cursor {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&c.Heartbeat, 2*time.Second)
	def(&c.Idle, time.Second)
	def(&c.DeadAfter, 30*time.Second)
	if c.Attempts <= 0 {
		c.Attempts = 8
	}
	if c.Ring <= 0 {
		c.Ring = 1024
	}
	if c.Safe <= 0 {
		c.Safe = 1000
	}
	if c.TS == nil {
		c.TS = func([]byte) (float64, bool) { return 0, false }
	}
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	cur := &Cursor{cfg: c, host: h, epoch: c.Epoch, credit: true, pollEvery: c.Heartbeat}
	cur.ring.size = c.Ring
	cur.held.budget = c.Hold
	return cur
}

// LiveUp: a live connection is up and its subscription is in force. Frames of
// an earlier one must not follow.
func (c *Cursor) LiveUp(now time.Time) {
	if !c.enter(now) {
		return
	}
	if c.live {
		c.lostLive()
	}
	if now.Sub(c.downAt) > c.cfg.Idle {
		// Perhaps another engine, which may open its ROUTER late. Shorter interruptions
		// do not count, or a live connection that flaps would wait for ever.
		c.refused, c.refusals = time.Time{}, 0
	}
	if !c.downAt.IsZero() {
		c.wasDown += now.Sub(c.downAt)
	}
	c.live, c.upAt, c.downAt, c.pinged = true, now, time.Time{}, time.Time{}
	c.restPoll()
	if c.cfg.NoReplay {
		c.proven, c.shown = true, false
		c.ready()
		return
	}
	if c.conflicts > 0 {
		// An engine that never replays what it published would make us
		// reconnect at full speed.
		c.pause(c.backoff(c.conflicts - 1))
		return
	}
	c.want()
}

// LiveDown: the live connection has ended. Without effect when it was not up,
// so a host may also say it after ReopenLive.
func (c *Cursor) LiveDown(now time.Time) {
	if c.enter(now) && c.live {
		c.lostLive()
	}
}

// Live is a batch from the live connection.
func (c *Cursor) Live(now time.Time, seq uint64, payload []byte) {
	c.count.Frames++
	if !c.enter(now) || !c.live {
		c.count.Discarded++
		return
	}
	c.restPoll()
	switch {
	case seq == noSeq:
		c.count.Malformed++
	case !c.credit:
		c.discard(seq)
	case c.cfg.NoReplay:
		c.alone(seq, payload)
	case c.proven && !c.starting && !c.waiting:
		c.feed(seq, xxh3.Hash(payload), payload, false)
	default:
		// Not proven: the numbers may fit by accident, and be another engine's.
		sum := xxh3.Hash(payload)
		if seq >= c.next {
			c.hold(seq, sum, payload, false)
		} else {
			c.denied = c.denied || !c.repeats(seq, sum, payload, false)
			c.count.Discarded++
		}
		c.want()
	}
}

// Discard is a batch from the live connection that the host threw away unseen
// for want of credit. It implies Credit(now, false).
func (c *Cursor) Discard(now time.Time, seq uint64) {
	c.count.Frames++
	alive := c.enter(now)
	if alive {
		c.noCredit()
	}
	if !alive || !c.live {
		c.count.Discarded++
		return
	}
	c.restPoll()
	c.discard(seq)
}

func (c *Cursor) discard(seq uint64) {
	if seq == noSeq {
		c.count.Malformed++
		return
	}
	c.count.Discarded++
	c.ahead(seq)
}

// Credit says whether batches may be applied. Without, a running replay is
// dropped, and the host calls Discard instead of Live. With it again, replay is
// asked for what was missed.
func (c *Cursor) Credit(now time.Time, ok bool) {
	if !c.enter(now) || ok == c.credit {
		return
	}
	if !ok {
		c.noCredit()
		return
	}
	c.credit = true
	c.restPoll()
	if c.cfg.NoReplay {
		c.aloneAgain()
		return
	}
	if c.pending || c.missing() || !c.proven {
		c.pending = false
		c.want()
	}
}

func (c *Cursor) noCredit() {
	if !c.credit {
		return
	}
	c.credit = false
	if c.busy() {
		c.pending = true
		c.dropRound()
	}
	if !c.keepBy.IsZero() { // what was to be decided is found again by the next rounds
		c.keepBy = time.Time{}
		c.count.Discarded += c.held.dropReplayed()
	}
}

// Pong: the live connection has answered a PING that was sent at sentAt. Only
// LostKeep looks at it; every answered heartbeat may be told.
func (c *Cursor) Pong(now, sentAt time.Time) {
	if !c.enter(now) || !c.live {
		return
	}
	if sentAt.After(c.pinged) {
		c.pinged = sentAt
	}
	if !c.keepBy.IsZero() && c.pinged.After(c.connected) {
		c.keep()
	}
}

// Tick does what is due at now.
func (c *Cursor) Tick(now time.Time) {
	if !c.enter(now) {
		return
	}
	due := func(t time.Time) bool { return !t.IsZero() && !now.Before(t) }
	if !c.live {
		if c.downAt.IsZero() {
			c.downAt = now
		}
		if !c.waiting && due(c.deadAt()) {
			c.away()
		}
		return
	}
	if due(c.keepBy) {
		c.keepBy = time.Time{}
		c.forget(c.keepGone, c.keepTo)
	}
	if due(c.resumeAt) {
		c.resume()
	}
	if r := c.round; r != nil && r.sent && due(r.deadline(c.cfg.Idle)) {
		c.stall()
	}
	if c.polls() && due(c.pollAt) {
		c.poll()
	}
}

// Deadline is when Tick is to be called; zero: nothing waits for time.
func (c *Cursor) Deadline() time.Time {
	var d time.Time
	sooner := func(t time.Time) {
		if !t.IsZero() && (d.IsZero() || t.Before(d)) {
			d = t
		}
	}
	switch {
	case c.ended:
	case !c.live:
		if !c.waiting && !c.downAt.IsZero() {
			d = c.deadAt()
		}
	default:
		sooner(c.keepBy)
		sooner(c.resumeAt)
		if r := c.round; r != nil && r.sent {
			sooner(r.deadline(c.cfg.Idle))
		}
		if c.polls() {
			sooner(c.pollAt)
		}
	}
	return d
}

// Stop gives back what is held. Nothing happens afterwards.
func (c *Cursor) Stop() {
	c.count.Discarded += c.held.clear()
	c.ended = true
}

// enter begins an input, and reports whether anything may happen.
func (c *Cursor) enter(now time.Time) bool {
	c.now, c.left = now, 0
	return !c.ended
}
