package sinks

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/replay"
)

// Place says where router events come from: the position of their batch, and
// the index of the first one among the batch's router events. Base is the first
// seq of the conversion state that made them. It is what a JetStream sink
// resumes from, and means the same whatever max_payload is.
type Place struct {
	Kind  PlaceKind // PlaceAt: the fields below count
	Pos   replay.Position
	Event int // index of the first event in its batch, before any splitting
	Block int // blocks (or hashes) of that event that are done
	Base  uint64
	// Fingerprint is of the conversion (convert.Config.Fingerprint, and what
	// else decides which batches are converted).
	Fingerprint uint64
}

// Outbox takes the router events of one data-parallel rank under one publisher
// id. Its methods may be called from any goroutine; none waits for NATS.
type Outbox struct {
	p        *Publisher
	workerID uint64
	rank     uint32
	subject  string
	released func(n int)
	source   RankSource // nil: no heartbeats, no recovery
	started  int64      // ms
	resumes  bool
	begin    func() // RankOptions.Again

	why atomic.Pointer[string] // Unregistered, which is read once a batch; nil: ""

	changed chan struct{}   // capacity 1: the source's state may have changed
	gone    chan struct{}   // closed when the outbox is forgotten
	tended  chan struct{}   // closed when nothing more is said for the outbox
	prior   <-chan struct{} // tended of the outbox before; nil: none
	wake    chan struct{}   // capacity 1, JetStream: something is ready
	known   chan Resumption // capacity 1, JetStream: for Resume
	placed  chan struct{}   // closed when the publisher id is final

	// Guarded by Publisher.mu: the outboxes of the same rank opened before
	// (publishes first) and after this one; whether this one is in Publisher.ready.
	before, after *Outbox
	queued        bool
	parked        bool // ready, but waits for before, or to be owned
	unowned       bool // another relay may still have the rank
	manned        bool // a goroutine of Run writes or speaks for it

	mu       sync.Mutex // guards what follows
	id       uint64
	header   nats.Header // of JSON messages
	deaf     bool        // appended events are dropped until Resume is called
	placedAt bool        // it is known where the subject ends
	// owed is the `cleared` that was dropped last since the subject's end was
	// known; nil: none. It is published when the outbox is closed without Resume:
	// the source is gone, or the process ends.
	owed      *convert.RouterEvent
	splits    uint64 // times that unconfirmed events were renumbered
	log       eventLog
	sent      uint64 // last id handed to the present link
	confirmed uint64 // last id that a server has confirmed
	frozen    []envelope
	firstSeq  uint64 // sequence of frozen[0], or of the next envelope
	resend    int    // frozen[:resend] went to the present link
	extra     int    // bytes by which events grew when they were split again; never charged
	recent    int    // bytes of the events lo … confirmed
	closed    bool
	piece     convert.RouterEvent // scratch of addRange
	tried     int                 // length of what addWhole refused

	// Owned by Run.
	mark   uint64 // sent, when the flush in flight began
	flying bool   // in core.flying
	hold   hold   // what NATS core lets it publish
}

// envelope is one message that went out and is not confirmed. It goes out
// again with the same events, sequence and time.
type envelope struct {
	last uint64 // id of its last event
	at   int64  // published_at, ms
}

// PublisherID is the outbox's publisher id, 1 … 2^53 − 1.
// A resumed one goes on with the id of the life before, once Resume has returned.
func (o *Outbox) PublisherID() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.id
}

// SetUnregistered says why the rank cannot be put on record, for which Options.Register
// is called; "": there is no such trouble.
func (o *Outbox) SetUnregistered(why string) {
	if why != o.Unregistered() {
		o.why.Store(&why)
		o.Changed()
	}
}

// Unregistered is why the rank cannot be put on record, so that nothing of it is
// published; "": there is no such trouble.
func (o *Outbox) Unregistered() string {
	if why := o.why.Load(); why != nil {
		return *why
	}
	return ""
}

// Subject is where the events go; "" for Stdout.
func (o *Outbox) Subject() string { return o.subject }

// LastID is the id of the newest event, 0 before the first. When a server of
// lower max_payload makes unconfirmed events be split, it grows.
func (o *Outbox) LastID() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.log.next - 1
}

// Confirmed is the id of the newest event that a server has confirmed.
func (o *Outbox) Confirmed() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.confirmed
}

// Append encodes evs, gives them the next ids, and leaves them to Run. It
// returns how many bytes are charged for them until they are confirmed: their
// encoded length and what the index takes. After Close it appends nothing.
//
// An event above max_payload or 8192 blocks becomes several with ids of their
// own, a store chained to its own blocks; a single block above max_payload is dropped and counted.
func (o *Outbox) Append(at Place, evs []convert.RouterEvent) (n int) {
	if len(evs) == 0 {
		return 0
	}
	o.mu.Lock()
	if o.closed || o.deaf {
		if last := evs[len(evs)-1]; !o.closed && last.Kind == convert.Cleared {
			o.owed = &last
		}
		o.mu.Unlock()
		return 0
	}
	first := o.log.next
	before := o.log.charge
	o.log.cur = batchPlace{at.Kind, at.Pos, at.Base, at.Fingerprint}
	block := at.Block
	if at.Kind == PlaceRepublished {
		o.log.cur, block = batchPlace{kind: PlaceUnknown}, 0
	}
	for i := range evs {
		o.add(&evs[i], at.Event+i, block)
		block = 0
	}
	if at.Kind == PlaceRepublished && o.log.next > first {
		o.log.settle(batchPlace{placeSettled, at.Pos, at.Base, at.Fingerprint}, at.Event, at.Block)
	}
	n = o.log.charge - before
	events := int64(o.log.next - first)
	if events > 0 {
		o.p.unconfirmedEvents.Add(events)
		o.p.unconfirmedBytes.Add(int64(n))
	}
	o.mu.Unlock()
	if events > 0 {
		o.p.push(o)
	}
	return n
}

// Close says that nothing more is appended. The outbox is forgotten when all is
// confirmed. A `cleared` that was appended while Resume was to be called counts
// now, behind whatever the subject holds: nobody else will say it.
func (o *Outbox) Close() {
	o.mu.Lock()
	if !o.closed && o.owed != nil {
		o.p.unconfirmedEvents.Add(1)
	}
	o.closed = true
	o.pay()
	o.mu.Unlock()
	o.p.push(o)
	o.p.forget(o)
}

func (o *Outbox) isClosed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.closed
}

// pay publishes what is owed once nobody is left who could call Resume, and it is
// known behind what. It is charged to nobody. o.mu is held.
func (o *Outbox) pay() {
	if o.owed == nil || !o.closed || !o.placedAt {
		return
	}
	before := o.log.charge
	o.log.cur = batchPlace{kind: PlaceEmpty}
	o.add(o.owed, 0, 0)
	o.extra += o.log.charge - before
	o.owed = nil
}

// finished reports that the outbox is closed and all of it confirmed.
func (o *Outbox) finished() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.closed && o.owed == nil && o.confirmed == o.log.next-1
}

// rewind makes everything unconfirmed wait for the next link, and splits what
// is too large for its max_payload. It reports whether something waits.
func (o *Outbox) rewind() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.rewindLocked()
}

func (o *Outbox) rewindLocked() bool {
	o.sent = o.confirmed
	o.resend = 0
	o.splitAgain()
	return o.sent < o.log.next-1
}

// confirm notes that a server has everything up to the id to, and lets go what
// the recent ring need not keep. It returns the charged bytes and the events that this frees.
func (o *Outbox) confirm(to uint64) (bytes, events int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if to <= o.confirmed {
		return 0, 0
	}
	size := o.log.size(o.confirmed+1, to)
	events = int(to - o.confirmed)
	o.confirmed = to
	o.recent += size
	for o.recent > o.p.o.RecentBytes || to-o.log.lo >= uint64(o.p.o.RecentEvents) {
		if o.log.lo > to {
			break
		}
		o.recent -= o.log.dropOldest()
	}
	k := 0
	for k < len(o.frozen) && o.frozen[k].last <= to {
		k++
	}
	o.frozen = slices.Delete(o.frozen, 0, k)
	o.firstSeq += uint64(k)
	o.resend -= k
	// What grew by splitting was never charged, what shrank was.
	bytes = size
	if paid := min(o.extra, bytes); paid != 0 {
		bytes -= paid
		o.extra -= paid
	}
	return bytes, events
}

func (o *Outbox) sentID() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sent
}
