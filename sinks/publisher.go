// Package sinks brings router events to NATS in order: it numbers them, packs
// them into envelopes, publishes, and keeps each one until the server has
// confirmed it. To NATS core, or into a JetStream stream, which a later process
// resumes ([Outbox.Resume]). Of ranks with a [RankSource] it sends heartbeats,
// sees to it that no other relay has them, and gives consumers back what they
// missed: a micro service named kvrelay.
//
// There is one [Outbox] per data-parallel rank of a worker, and one goroutine,
// [Publisher.Run], that publishes for all. Appending to an outbox never waits
// for NATS. What a lost link may have swallowed is sent again, in order, with
// the same ids: on the wire at least once, once after a consumer has ignored
// the ids that it knows.
package sinks

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvrelay/kvrelay/convert"
)

var (
	// ErrRankOpen is returned by Open for a rank whose outbox was not closed.
	ErrRankOpen = errors.New("the rank's outbox is still open")
	// ErrRunning is returned by a second Run.
	ErrRunning = errors.New("the publisher runs or has run already")
	// ErrEnded is returned by Resume when Run has returned.
	ErrEnded = errors.New("the publisher has ended")
)

// Publisher publishes what is appended to its outboxes. Use New.
type Publisher struct {
	o       Options
	timing  timing
	subject *subject
	encode  func(dst []byte, e *convert.RouterEvent, workerID uint64, rank uint32, id uint64) []byte

	started atomic.Bool
	done    chan struct{} // closed when Run has returned
	wake    chan struct{} // capacity 1: something is ready
	opened  chan struct{} // capacity 1: there is an outbox with a source
	halt    chan struct{} // closed when nothing more is published: another relay has a rank
	born    time.Time     // heartbeats count from it
	life    uint64        // random, tells this process from others in heartbeats

	// maxEvent is how long one encoded event may be; the server's max_payload
	// less what an envelope adds. Stored before the outboxes are looked at,
	// and read under an outbox's lock, so no event slips through a change.
	maxEvent atomic.Int64

	counters
	pool segmentPool

	mu      sync.Mutex
	latest  map[rankKey]*Outbox // the newest outbox of each rank
	live    map[*Outbox]struct{}
	ready   []*Outbox // have something to publish; each at most once
	waiters []chan struct{}
	link    linkState
}

// counters are kept without a lock, so that State never waits.
type counters struct {
	unconfirmedEvents atomic.Int64
	unconfirmedBytes  atomic.Int64
	confirmedEvents   atomic.Uint64
	confirmedBytes    atomic.Uint64
	envelopes         atomic.Uint64
	resent            atomic.Uint64
	split             atomic.Uint64
	tooLarge          atomic.Uint64
	reconnects        atomic.Uint64
	failures          atomic.Uint64
}

type rankKey struct {
	workerID uint64
	rank     uint32
}

// New makes a Publisher. It does no I/O. Its error names every setting that is wrong.
func New(o Options) (*Publisher, error) {
	o, err := o.withDefaults()
	p := &Publisher{
		o:      o,
		timing: usualTiming,
		born:   time.Now(),
		done:   make(chan struct{}),
		wake:   make(chan struct{}, 1),
		opened: make(chan struct{}, 1),
		halt:   make(chan struct{}),
		latest: map[rankKey]*Outbox{},
		live:   map[*Outbox]struct{}{},
	}
	if o.Kind != Stdout {
		var serr error
		p.subject, serr = newSubject(&o)
		err = errors.Join(err, serr)
	}
	if err != nil {
		return nil, err
	}
	if p.life, err = newPublisherID(); err != nil {
		return nil, err
	}
	if o.Listen != 0 {
		p.timing.listen = o.Listen
	}
	p.link = linkState{since: o.Now(), tales: map[string]bool{}, troubled: map[*Outbox]string{}, warned: map[string]time.Time{}}
	switch {
	case o.Kind == Stdout:
		p.encode = convert.AppendEventJSON
	case o.Profile == JSON:
		p.encode = convert.AppendEventJSON
	case o.Profile == DynamoSingle:
		p.encode = convert.AppendEventSingle
	default:
		p.encode = convert.AppendEvent
	}
	if o.Kind == Stdout {
		p.maxEvent.Store(1<<31 - 1)
		return p, nil
	}
	p.maxEvent.Store(p.eventLimit(unknownMaxPayload))
	return p, nil
}

// Run publishes until ctx ends, and returns nil then. With NATS it never gives
// up: what does not work is logged once, shown by State, and tried again. Only
// another relay that has a rank ends it (*OwnerError), or another writer in a
// rank's JetStream subject (*WriterError). With Stdout it returns the error of
// a failed write.
func (p *Publisher) Run(ctx context.Context) error {
	if p.started.Swap(true) {
		return ErrRunning
	}
	defer func() {
		close(p.done)
		p.notifyWaiters()
	}()
	if p.o.Kind == Stdout {
		return p.runStdout(ctx)
	}
	return p.runNATS(ctx)
}

// haltTime bounds the wait for what is on its way when a rank is lost.
const haltTime = 500 * time.Millisecond

// halted says that nothing more is published.
func (p *Publisher) halted() bool {
	select {
	case <-p.halt:
		return true
	default:
		return false
	}
}

// runNATS runs what publishes and what serves. Serving outlives publishing, so
// that the last heartbeat comes behind the last event.
func (p *Publisher) runNATS(ctx context.Context) error {
	pctx, stopPublishing := context.WithCancel(ctx)
	defer stopPublishing()
	sctx, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	served, published := make(chan error, 1), make(chan struct{})
	// After a lost rank no event may come behind the last heartbeats: what is on
	// its way is let through, for a moment.
	halt := sync.OnceFunc(func() {
		close(p.halt)
		select {
		case <-published:
		case <-time.After(haltTime):
		}
		stopPublishing()
		<-published
	})
	go func() { served <- p.serve(sctx, halt) }()
	publish := p.runCore
	if p.o.Kind == JetStream {
		publish = p.runJetStream
	}
	err := publish(pctx)
	close(published)
	if !p.halted() { // else it ends by itself, and says why
		stopServing()
	}
	return errors.Join(err, <-served)
}

// Open makes the outbox of one data-parallel rank under a new publisher id. It
// may be called at any time, before or while Run runs.
//
// The caller appends `cleared` first, because a router may hold what an
// earlier publisher of the rank has said. released, which may be nil, is
// called with the number of bytes that were confirmed; their sum equals what
// Append returned. It is called from Run without a lock held, and must not block.
//
// A closed outbox of the same rank is published to its end before the new one
// begins; one that is open is ErrRankOpen.
func (p *Publisher) Open(workerID uint64, rank uint32, released func(n int)) (*Outbox, error) {
	return p.OpenRank(workerID, rank, RankOptions{Released: released})
}

// OpenRank is Open for a rank with more around it.
func (p *Publisher) OpenRank(workerID uint64, rank uint32, ro RankOptions) (*Outbox, error) {
	id, err := newPublisherID()
	if err != nil {
		return nil, err
	}
	if p.o.Kind == Stdout {
		ro.Source = nil
	}
	o := &Outbox{
		p: p, workerID: workerID, rank: rank, released: ro.Released, source: ro.Source, started: p.o.Now().UnixMilli(),
		resumes: ro.Resume && p.o.Kind == JetStream, begin: ro.Again, unowned: ro.Source != nil,
		changed: make(chan struct{}, 1), gone: make(chan struct{}), tended: make(chan struct{}),
		wake: make(chan struct{}, 1), known: make(chan Resumption, 1), placed: make(chan struct{}),
	}
	o.deaf = o.resumes
	o.log.pool = &p.pool
	o.log.next = 1
	o.log.lo = 1
	if p.subject != nil {
		o.subject = p.subject.of(workerID, rank)
	}
	o.name(id)
	if p.o.Kind != JetStream {
		close(o.placed)
	}
	if o.source == nil {
		close(o.tended)
	}
	if err := p.enlist(o); err != nil {
		return nil, err
	}
	wake := []chan struct{}{p.wake}
	if o.source != nil {
		wake = append(wake, p.opened)
	}
	for _, c := range wake {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	return o, nil
}

// name gives o its publisher id.
func (o *Outbox) name(id uint64) {
	o.id = id
	o.header = nats.Header{publisherHeader: {strconv.FormatUint(id, 10)}}
}

// enlist makes o the newest outbox of its rank.
func (p *Publisher) enlist(o *Outbox) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := rankKey{o.workerID, o.rank}
	if old := p.latest[k]; old != nil {
		if !old.isClosed() {
			return fmt.Errorf("worker %d, rank %d: %w", o.workerID, o.rank, ErrRankOpen)
		}
		o.before, old.after, o.prior = old, o, old.tended
	}
	p.latest[k] = o
	p.live[o] = struct{}{}
	return nil
}

// Resumes says whether an outbox can go on where an earlier process ended.
func (p *Publisher) Resumes() bool { return p.o.Kind == JetStream }

// newPublisherID draws from 1 … 2^53 − 1, so that JavaScript and JSON keep it exact.
func newPublisherID() (uint64, error) {
	var b [8]byte
	for {
		if _, err := rand.Read(b[:]); err != nil {
			return 0, fmt.Errorf("drawing a publisher id: %w", err)
		}
		if id := binary.LittleEndian.Uint64(b[:]) >> 11; id != 0 {
			return id, nil
		}
	}
}

// Drain waits until everything appended was confirmed, ctx ends, or Run has
// returned. It returns how many router events are unconfirmed. Run must still be running.
func (p *Publisher) Drain(ctx context.Context) (unconfirmed int) {
	for {
		p.mu.Lock()
		n := int(p.unconfirmedEvents.Load())
		if n == 0 {
			p.mu.Unlock()
			return 0
		}
		w := make(chan struct{})
		p.waiters = append(p.waiters, w)
		p.mu.Unlock()
		select {
		case <-w:
		case <-p.done:
			return int(p.unconfirmedEvents.Load())
		case <-ctx.Done():
			return int(p.unconfirmedEvents.Load())
		}
	}
}

func (p *Publisher) notifyWaiters() {
	p.mu.Lock()
	for _, w := range p.waiters {
		close(w)
	}
	p.waiters = p.waiters[:0]
	p.mu.Unlock()
}

// State is a look at a Publisher.
type State struct {
	Connected  bool
	Server     string    // the connected server, without credentials
	MaxPayload int64     // the server's, bytes, or a stream's max_msg_size when that is less; 0 before the first connection
	LastError  string    // why there is no connection, or why events are refused on the one there is; "": all is well
	Since      time.Time // of the connection, or of its loss
	Outboxes   int
	Unowned    int // of these, that must not publish yet: not owned, or not put on record
	// Unregistered is why one of them cannot be put on record; "": there is no such trouble.
	Unregistered string
	Stream       string // JetStream: the stream in use; "" before it is known

	UnconfirmedEvents int64
	UnconfirmedBytes  int64  // as charged by Append
	ConfirmedEvents   uint64 // since start
	ConfirmedBytes    uint64
	Envelopes         uint64 // messages handed to the link, resent ones included
	Resent            uint64 // of these, sent again after a lost link
	Split             uint64 // events that were split for max_payload or their number of blocks
	TooLarge          uint64 // blocks dropped because one alone exceeds max_payload
	Reconnects        uint64 // connections after the first
	Failures          uint64 // connections that could not be made, or broke, and tries that were refused
}

// State never waits for NATS.
func (p *Publisher) State() State {
	p.mu.Lock()
	l, n, unowned, why := p.link, len(p.live), 0, ""
	for o := range p.live {
		if o.unowned {
			unowned++
		}
		why = cmp.Or(why, o.Unregistered())
	}
	p.mu.Unlock()
	return State{
		Connected:         l.connected,
		Server:            l.server,
		MaxPayload:        l.maxPayload,
		LastError:         l.lastError,
		Since:             l.since,
		Outboxes:          n,
		Unowned:           unowned,
		Unregistered:      why,
		Stream:            l.stream,
		UnconfirmedEvents: p.unconfirmedEvents.Load(),
		UnconfirmedBytes:  p.unconfirmedBytes.Load(),
		ConfirmedEvents:   p.confirmedEvents.Load(),
		ConfirmedBytes:    p.confirmedBytes.Load(),
		Envelopes:         p.envelopes.Load(),
		Resent:            p.resent.Load(),
		Split:             p.split.Load(),
		TooLarge:          p.tooLarge.Load(),
		Reconnects:        p.reconnects.Load(),
		Failures:          p.failures.Load(),
	}
}
