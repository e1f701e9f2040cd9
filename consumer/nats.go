package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Headers of recovery answers.
const (
	headerKind     = "Kvrelay-Kind"
	headerLast     = "Kvrelay-Last"
	headerMore     = "Kvrelay-More"
	headerSnapshot = "Kvrelay-Snapshot"
	headerPart     = "Kvrelay-Part"
	headerDone     = "Kvrelay-Done"
	headerError    = "Nats-Service-Error-Code"
)

// inbound is one message on its way to Run's goroutine: msg, beat or answer.
type inbound struct {
	msg     *Message
	stream  bool // it came from JetStream
	pending bool // and more of the past follows

	rank     Rank // of beat and answer
	beat     *Heartbeat
	question uint64
	answer   *answer

	err error // why it could not be read
}

// source is one subscription with the parser of its messages.
type source struct {
	sub   *nats.Subscription
	parse func(*nats.Msg) inbound
}

// subscribe opens the subscriptions. Their limits bound what waits for Run:
// beyond them NATS drops messages, which are then found missing.
func (c *Consumer) subscribe() ([]source, error) {
	var all []source
	add := func(subject string, msgs, bytes int, parse func(*nats.Msg) inbound) error {
		sub, err := c.o.Conn.SubscribeSync(subject)
		if err != nil {
			return fmt.Errorf("subscribing to %q: %w", subject, err)
		}
		all = append(all, source{sub, parse})
		if err := sub.SetPendingLimits(msgs, bytes); err != nil {
			return fmt.Errorf("limiting %q: %w", subject, err)
		}
		return nil
	}
	worker := "*"
	if c.o.Worker != 0 {
		worker = strconv.FormatUint(c.o.Worker, 10)
	}
	err := add("kvrelay."+Escape(c.o.Namespace)+"."+worker+".*.heartbeat", 65536, 8<<20, parseBeat)
	if err == nil && c.o.JetStream == "" {
		err = add(c.o.Subject, 65536, 64<<20, parsePublished)
	}
	return all, err
}

// readAnswers passes answers on until ctx ends. A channel delivers them as they
// came; a synchronous subscription would turn "no responders" into an error
// that does not say which question it is about.
func readAnswers(ctx context.Context, answers <-chan *nats.Msg, in chan<- inbound) {
	for {
		select {
		case m := <-answers:
			select {
			case in <- parseAnswer(m):
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// read passes messages on until ctx ends (nil) or the subscription is gone.
func (s *source) read(ctx context.Context, in chan<- inbound) error {
	for {
		m, err := s.sub.NextMsgWithContext(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, nats.ErrSlowConsumer):
			continue // some were dropped; ids and heartbeats will show which
		case err != nil:
			return fmt.Errorf("reading %q: %w", s.sub.Subject, err)
		}
		select {
		case in <- s.parse(m):
		case <-ctx.Done():
			return nil
		}
	}
}

func parsePublished(m *nats.Msg) inbound {
	msg, err := ParseMessage(m.Subject, m.Header, m.Data)
	if err == nil && msg.Publisher == 0 {
		err = &ParseError{Subject: m.Subject, Reason: "no header " + PublisherHeader}
	}
	if err != nil {
		return inbound{err: err}
	}
	return inbound{msg: msg}
}

func parseBeat(m *nats.Msg) inbound {
	r, ok := rankOfSubject(m.Subject)
	h, err := ParseHeartbeat(m.Data)
	if !ok || err != nil {
		return inbound{err: fmt.Errorf("on %q: %w", m.Subject, errHeartbeat)}
	}
	return inbound{rank: r, beat: &h}
}

// body is the question as it is sent.
func (q question) body() []byte {
	v := struct {
		Publisher uint64 `json:"publisher_id,omitempty"`
		From      uint64 `json:"from,omitempty"`
		Snapshot  string `json:"snapshot,omitempty"`
		Part      *int   `json:"part,omitempty"`
	}{Publisher: q.publisher, From: q.from, Snapshot: q.token}
	if q.token != "" {
		v.Publisher, v.Part = 0, &q.part
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // numbers and a string cannot fail
	}
	return b
}

// parseAnswer reads an answer; one that makes no sense counts as an error.
func parseAnswer(m *nats.Msg) inbound {
	var in inbound
	parts := strings.Split(m.Subject, ".")
	if len(parts) < 3 {
		return inbound{err: errors.New("answer to no question")}
	}
	parts = parts[len(parts)-3:]
	w, err1 := strconv.ParseUint(parts[0], 10, 64)
	d, err2 := strconv.ParseUint(parts[1], 10, 32)
	id, err3 := strconv.ParseUint(parts[2], 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		return inbound{err: errors.New("answer to no question")}
	}
	in.rank, in.question = Rank{w, uint32(d)}, id
	in.answer = &answer{failed: true}
	if m.Header.Get("Status") != "" || m.Header.Get(headerError) != "" {
		return in // nobody there, or the service's own error: both are normal while a relay starts
	}
	a, err := readAnswer(m, in.rank)
	if err != nil {
		in.err = fmt.Errorf("recovery answer of %s: %w", in.rank, err)
		return in
	}
	in.answer = a
	return in
}

func readAnswer(m *nats.Msg, r Rank) (*answer, error) {
	publisher, err := publisherOf(m.Header)
	if err != nil || publisher == 0 {
		return nil, errors.New("no publisher named")
	}
	a := &answer{publisher: publisher, more: m.Header.Get(headerMore) == "true"}
	if a.events, err = ParseEvents(m.Subject, m.Data); err != nil {
		return nil, err
	}
	if len(a.events) > 0 && a.events[0].Rank != r {
		return nil, errors.New("events of another rank")
	}
	number := func(name string) (uint64, error) {
		v, err := strconv.ParseUint(m.Header.Get(name), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("header %s is no number", name)
		}
		return v, nil
	}
	switch m.Header.Get(headerKind) {
	case "events":
		a.last, err = number(headerLast)
		return a, err
	case "snapshot":
		a.snapshot, a.token = true, m.Header.Get(headerSnapshot)
		part, err := number(headerPart)
		if err != nil || part > 1<<31 {
			return nil, fmt.Errorf("header %s is no part", headerPart)
		}
		a.part = int(part)
		if !a.more {
			a.last, err = number(headerDone)
		}
		return a, err
	}
	return nil, errors.New("of no known kind")
}

// readStream reads a JetStream from its beginning, and goes on for ever: a
// stream that is absent or gone is tried again from where it stood.
func (c *Consumer) readStream(ctx context.Context, in chan<- inbound) error {
	js, err := jetstream.New(c.o.Conn)
	if err != nil {
		return fmt.Errorf("opening JetStream: %w", err)
	}
	var next uint64 // stream sequence to go on from
	pause := backoffFirst
	for said := false; ; {
		got, err := c.readOrdered(ctx, js, &next, in)
		if ctx.Err() != nil {
			return nil
		}
		if c.o.Conn.IsClosed() {
			return fmt.Errorf("reading stream %q: %w", c.o.JetStream, err)
		}
		if got {
			pause, said = backoffFirst, false
		}
		if !said {
			said = true
			c.o.Logger.Warn("JetStream cannot be read; trying again", "stream", c.o.JetStream, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, backoffMax)
	}
}

// readOrdered reads with one ordered consumer until it fails.
func (c *Consumer) readOrdered(ctx context.Context, js jetstream.JetStream, next *uint64, in chan<- inbound) (got bool, err error) {
	cfg := jetstream.OrderedConsumerConfig{FilterSubjects: []string{c.o.Subject}, DeliverPolicy: jetstream.DeliverAllPolicy}
	if *next > 0 {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, *next
	}
	setup, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cons, err := js.OrderedConsumer(setup, c.o.JetStream, cfg)
	if err != nil {
		return false, err
	}
	it, err := cons.Messages()
	if err != nil {
		return false, err
	}
	defer it.Stop()
	stop := context.AfterFunc(ctx, it.Stop)
	defer stop()
	for {
		m, err := it.Next(jetstream.NextMaxWait(streamIdle))
		if errors.Is(err, nats.ErrTimeout) {
			if begunAnew(ctx, js, c.o.JetStream, *next) {
				*next = 0
				return got, errAnotherStream
			}
			continue
		}
		if err != nil {
			return got, err
		}
		meta, err := m.Metadata()
		if err != nil {
			return got, err
		}
		got, *next = true, meta.Sequence.Stream+1
		one := parsePublished(&nats.Msg{Subject: m.Subject(), Header: m.Headers(), Data: m.Data()})
		one.stream, one.pending = true, meta.NumPending > 0
		select {
		case in <- one:
		case <-ctx.Done():
			return got, nil
		}
	}
}

// streamIdle: a stream that delivers nothing for so long is looked at.
const streamIdle = 3 * time.Second

var errAnotherStream = errors.New("the stream was deleted and made anew: it is read from its beginning")

// begunAnew says that the stream ends before the next message awaited: it was
// deleted and made anew. What is new in it would never be read, since its
// sequences count from 1 again.
func begunAnew(ctx context.Context, js jetstream.JetStream, name string, next uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	s, err := js.Stream(ctx, name)
	return err == nil && s.CachedInfo().State.LastSeq+1 < next
}
