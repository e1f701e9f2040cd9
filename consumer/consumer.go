package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Options are a Consumer's surroundings.
type Options struct {
	// Conn is used, and not closed. Let it reconnect for ever
	// (nats.MaxReconnects(-1)); what a cut costs is recovered.
	Conn *nats.Conn

	// Profile, Namespace, Component and Endpoint are the relays' settings; they
	// say where events are published. Empty: dynamo, backend, generate.
	Profile                        Profile
	Namespace, Component, Endpoint string
	// Subject replaces the subject that follows from them; it may have wildcards.
	Subject string
	// Worker, when not zero, is the only worker followed.
	Worker uint64
	// JetStream is the name of a stream to replay and then to follow (relays
	// with SINK=jetstream). Empty: NATS core.
	JetStream string

	// OnEvent is called for every event, in an order that makes folding them
	// right: each rank's events by id, each once; after a loss that the relay
	// no longer remembers, a snapshot (a `cleared`, then events with id 0, then
	// numbered ones). It runs on Run's goroutine: while it does not return,
	// nothing else is read. The event is the hook's to keep. Required.
	OnEvent func(*Event)
	// OnState is called when a rank's state changes, on Run's goroutine.
	OnState func(Rank, State)

	// Forget is how long nothing may be heard of a rank that is Stale before it is
	// dropped, with a `cleared` (id 0) to OnEvent. 0: 5 minutes.
	Forget time.Duration
	// MaxRanks bounds the ranks followed, against subjects filled with invented
	// ones; what comes from further ones is counted and ignored. 0: 4096.
	MaxRanks int
	// HoldBytes bounds the events held while answers are awaited, all ranks
	// together. When it is reached the newest are dropped and asked for later.
	// 0: 64 MiB.
	HoldBytes int
	// Logger gets a line where something went wrong, at most one a second for
	// messages that cannot be read. nil: none.
	Logger *slog.Logger
}

// RankStatus is what a Consumer knows of one rank's stream.
type RankStatus struct {
	Rank      Rank
	State     State
	Publisher uint64
	LastID    uint64 // the last event applied
	// Relay is the last heartbeat heard, at HeardAt; zero before the first.
	Relay   Heartbeat
	HeardAt time.Time

	Asks        uint64 // recovery questions sent
	Holes       uint64 // times that something was found missing
	Repeated    uint64 // events that had been applied before
	HeldDropped uint64 // events not held because of HoldBytes
	HeldBytes   int
}

// Stats counts what belongs to no rank.
type Stats struct {
	Messages  uint64 // read from NATS, of all kinds
	Malformed uint64 // could not be read; what was in them is found missing
	Ignored   uint64 // of ranks beyond MaxRanks
}

// Consumer follows the router events of many ranks. Make one with New and
// call Run once.
type Consumer struct {
	o     Options
	inbox string // prefix of reply subjects: <inbox>.<worker>.<rank>.<question>

	// Owned by Run.
	ranks      map[Rank]*follower
	heldBytes  int
	backlog    bool // the stream has not been read to its end
	streamRead time.Time
	complained time.Time

	mu     sync.Mutex // guards status, stats
	status map[Rank]RankStatus
	stats  Stats
}

const (
	tickEvery = 100 * time.Millisecond
	// caughtUpAfter: a stream that delivers nothing for so long has been read
	// to its end, even if no message said so.
	caughtUpAfter = 2 * time.Second
)

// New checks options. It does no I/O.
func New(o Options) (*Consumer, error) {
	if o.Conn == nil || o.OnEvent == nil {
		return nil, errors.New("consumer: Options need Conn and OnEvent")
	}
	def(&o.Namespace, "dynamo")
	def(&o.Component, "backend")
	def(&o.Endpoint, "generate")
	def(&o.Forget, 5*time.Minute)
	def(&o.MaxRanks, 4096)
	def(&o.HoldBytes, 64<<20)
	def(&o.Subject, o.Profile.Subject(o.Namespace, o.Component, o.Endpoint, o.JetStream != ""))
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Consumer{
		o:      o,
		inbox:  o.Conn.NewInbox(),
		ranks:  make(map[Rank]*follower),
		status: make(map[Rank]RankStatus),
	}, nil
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Run reads and recovers until ctx ends (nil) or the connection is closed for
// good (an error). All its goroutines have ended when it returns.
func (c *Consumer) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	in := make(chan inbound, 256) // full: the readers wait, and NATS holds up to their limits
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	sources, err := c.subscribe()
	defer func() {
		for _, s := range sources {
			_ = s.sub.Unsubscribe() // fails only where the connection is gone
		}
	}()
	if err != nil {
		return err
	}
	// One question a rank is out at a time; answers beyond the channel are
	// dropped by NATS and asked for again.
	answers := make(chan *nats.Msg, 256)
	replies, err := c.o.Conn.ChanSubscribe(c.inbox+".*.*.*", answers)
	if err != nil {
		return fmt.Errorf("subscribing to answers: %w", err)
	}
	defer func() { _ = replies.Unsubscribe() }()
	wg.Go(func() { readAnswers(ctx, answers, in) })
	failed := make(chan error, len(sources)+1)
	for _, s := range sources {
		wg.Go(func() { failed <- s.read(ctx, in) })
	}
	if c.o.JetStream != "" {
		c.backlog, c.streamRead = true, time.Now()
		wg.Go(func() { failed <- c.readStream(ctx, in) })
	}

	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			if ctx.Err() != nil {
				return nil
			}
			return err
		case m := <-in:
			c.handle(time.Now(), m)
		case now := <-tick.C:
			c.tick(now)
		}
	}
}

// handle takes one message.
func (c *Consumer) handle(now time.Time, m inbound) {
	c.count(func(s *Stats) { s.Messages++ })
	if m.err != nil {
		c.count(func(s *Stats) { s.Malformed++ })
		if now.Sub(c.complained) >= time.Second { // the rest is counted only
			c.complained = now
			c.o.Logger.Warn("message from NATS cannot be read", "error", m.err)
		}
	}
	if m.stream {
		c.backlog, c.streamRead = m.pending, now
	}
	switch {
	case m.answer != nil:
		if f := c.ranks[m.rank]; f != nil {
			f.answered(now, m.question, m.answer)
			c.update(now, f)
		}
	case m.beat != nil:
		f := c.follower(now, m.rank, m.beat.State != StateLeaving)
		if f == nil {
			return
		}
		f.heartbeat(now, *m.beat, c.backlog)
		c.update(now, f)
	case m.msg != nil && len(m.msg.Events) > 0:
		f := c.follower(now, m.msg.Events[0].Rank, true)
		if f == nil {
			return
		}
		f.message(now, m.msg.Publisher, m.msg.Events, m.pending)
		c.update(now, f)
	}
}

// follower is the rank's; a new one asks at once, but for JetStream, where the
// stream itself may tell everything.
func (c *Consumer) follower(now time.Time, r Rank, create bool) *follower {
	if f := c.ranks[r]; f != nil || !create {
		return f
	}
	if c.o.Worker != 0 && r.Worker != c.o.Worker {
		return nil
	}
	if len(c.ranks) >= c.o.MaxRanks {
		c.count(func(s *Stats) { s.Ignored++ })
		return nil
	}
	f := &follower{host: c, rank: r, ordered: c.o.JetStream != "", jitter: rand.Float64}
	c.ranks[r] = f
	if f.ordered {
		f.heard = now
	} else {
		f.start(now)
	}
	return f
}

func (c *Consumer) tick(now time.Time) {
	if c.backlog && now.Sub(c.streamRead) >= caughtUpAfter {
		c.backlog = false
	}
	for r, f := range c.ranks {
		f.tick(now, c.backlog)
		if f.state(now) == Stale && f.silent(now) >= c.o.Forget {
			c.forget(r, f)
			continue
		}
		c.update(now, f)
	}
}

func (c *Consumer) forget(r Rank, f *follower) {
	c.unhold(f.heldBytes)
	delete(c.ranks, r)
	c.o.OnEvent(&Event{Rank: r, Kind: Cleared})
	c.mu.Lock()
	delete(c.status, r)
	c.mu.Unlock()
}

// update publishes a rank's status.
func (c *Consumer) update(now time.Time, f *follower) {
	s := RankStatus{
		Rank: f.rank, State: f.state(now), Publisher: f.publisher, LastID: f.last, Relay: f.beat,
		Asks: f.asks, Holes: f.holes, Repeated: f.repeated, HeldDropped: f.heldDropped, HeldBytes: f.heldBytes,
	}
	if f.beat.Publisher != 0 {
		s.HeardAt = f.heard
	}
	c.mu.Lock()
	old, known := c.status[f.rank]
	c.status[f.rank] = s
	c.mu.Unlock()
	if c.o.OnState != nil && (!known || old.State != s.State) {
		c.o.OnState(f.rank, s.State)
	}
}

func (c *Consumer) count(f func(*Stats)) {
	c.mu.Lock()
	f(&c.stats)
	c.mu.Unlock()
}

// Ranks tells how each rank is followed, in no order. Safe at any time.
func (c *Consumer) Ranks() []RankStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]RankStatus, 0, len(c.status))
	for _, s := range c.status {
		out = append(out, s)
	}
	return out
}

// Stats are the counters that belong to no rank. Safe at any time.
func (c *Consumer) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// The follower's host.

func (c *Consumer) apply(e *Event) { c.o.OnEvent(e) }

func (c *Consumer) hold(n int) bool {
	if c.heldBytes+n > c.o.HoldBytes {
		return false
	}
	c.heldBytes += n
	return true
}

func (c *Consumer) unhold(n int) { c.heldBytes -= n }

func (c *Consumer) ask(r Rank, q question) {
	err := c.o.Conn.PublishMsg(&nats.Msg{
		Subject: serviceSubject(c.o.Namespace, r, "recover"),
		Reply:   c.inbox + "." + strconv.FormatUint(r.Worker, 10) + "." + strconv.FormatUint(uint64(r.DP), 10) + "." + strconv.FormatUint(q.id, 10),
		Data:    q.body(),
	})
	if err != nil {
		// The question counts as unanswered, and is asked again.
		c.o.Logger.Warn("recovery question could not be sent", "rank", r.String(), "error", fmt.Errorf("publish: %w", err))
	}
}
