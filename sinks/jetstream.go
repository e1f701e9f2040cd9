package sinks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Limits of a stream that we create; one that is there is used as it is.
const (
	streamBytes      = 1 << 30         // the oldest go then; who needs them asks for a snapshot
	streamDuplicates = 2 * time.Minute // nats-server's default
)

const (
	// ackTimeout is how long the answer to an envelope is waited for before it is sent again.
	ackTimeout = 5 * time.Second
	// requestTimeout bounds one question to the JetStream API.
	requestTimeout = 5 * time.Second
	// Between two attempts at one envelope.
	minRetry = 2 * time.Millisecond
	maxRetry = 100 * time.Millisecond
)

// WriterError ends a Publisher: somebody else writes to a rank's subject.
type WriterError struct {
	Stream, Subject string
	Sequence        uint64 // of the message that is not ours
	MessageID       string // its Nats-Msg-Id
}

func (e *WriterError) Error() string {
	return fmt.Sprintf("another writer is in stream %s, subject %s: message %d has the id %q; only one relay may write there, and only one at a time",
		e.Stream, e.Subject, e.Sequence, e.MessageID)
}

// jsRun publishes to a stream: one goroutine an outbox, and one link for all.
type jsRun struct {
	p *Publisher

	mu      sync.Mutex
	link    *jsLink
	changed chan struct{} // closed when link is another
}

// jsLink is one connection with the stream on it.
type jsLink struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	stream jetstream.Stream
	name   string
	limit  int64 // of a message with its headers: max_payload, or the stream's max_msg_size
	dead   <-chan struct{}
	lost   chan error // capacity 1: why the link is given up
}

// drop gives the link up; the first reason counts.
func (l *jsLink) drop(why error) {
	select {
	case l.lost <- why:
	default:
	}
}

// runJetStream is Run for JetStream: one connection after the other, while each
// outbox's goroutine brings one envelope after the other into the stream.
func (p *Publisher) runJetStream(ctx context.Context) error {
	j := &jsRun{p: p, changed: make(chan struct{})}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg, writers sync.WaitGroup
	wg.Go(func() { j.keepLink(ctx) })
	for ctx.Err() == nil && !p.halted() {
		for _, o := range p.unwritten() {
			writers.Go(func() {
				w := writer{j: j, o: o}
				if err := w.run(ctx); err != nil {
					cancel(err)
				}
			})
		}
		select {
		case <-p.wake:
		case <-p.halt:
		case <-ctx.Done():
		}
	}
	writers.Wait()
	cancel(nil)
	wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// unwritten are the live outboxes without a writer; they count as having one now.
func (p *Publisher) unwritten() []*Outbox {
	p.mu.Lock()
	defer p.mu.Unlock()
	var os []*Outbox
	for o := range p.live {
		if !o.queued { // what NATS core uses to know who is in ready
			o.queued = true
			os = append(os, o)
		}
	}
	return os
}

// keepLink connects, and connects again, until ctx ends.
func (j *jsRun) keepLink(ctx context.Context) {
	p := j.p
	var peers []string
	backoff := p.timing.minBackoff
	for ctx.Err() == nil {
		nc, dead, err := p.dial(ctx, p.o.Servers)
		if err != nil && len(peers) > 0 {
			if n, d, perr := p.dial(ctx, peers); perr == nil {
				nc, dead, err = n, d, nil
			}
		}
		if err == nil {
			peers = p.peersOf(nc)
			var l *jsLink
			if l, err = j.open(ctx, nc, dead); err == nil {
				backoff = p.timing.minBackoff
				j.set(l)
				select {
				case <-dead:
					err = p.publishError(nc.LastError())
				case err = <-l.lost:
				case <-ctx.Done():
				}
				j.set(nil)
			}
			nc.Close()
			<-dead
		}
		if ctx.Err() != nil {
			break
		}
		p.linkDown(err)
		select {
		case <-time.After(backoff/2 + rand.N(backoff/2)):
		case <-ctx.Done():
		}
		backoff = min(2*backoff, p.timing.maxBackoff)
	}
	p.linkDown(nil)
}

// open finds or creates the stream on a new connection.
func (j *jsRun) open(ctx context.Context, nc *nats.Conn, dead <-chan struct{}) (*jsLink, error) {
	p := j.p
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncTimeout(ackTimeout), jetstream.WithDefaultTimeout(requestTimeout))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s, err := p.openStream(ctx, js)
	if err != nil {
		if refused := nc.LastError(); errors.Is(refused, nats.ErrPermissionViolation) { // the answer is silence
			err = p.publishError(refused)
		}
		return nil, err
	}
	name, limit := s.CachedInfo().Config.Name, nc.MaxPayload()
	if m := int64(s.CachedInfo().Config.MaxMsgSize); m > 0 {
		limit = min(limit, m)
	}
	p.mu.Lock()
	p.link.stream = name
	p.mu.Unlock()
	p.linkUp(nc, limit)
	return &jsLink{nc: nc, js: js, stream: s, name: name, limit: limit, dead: dead, lost: make(chan error, 1)}, nil
}

// openStream returns the stream that our subjects go to.
func (p *Publisher) openStream(ctx context.Context, js jetstream.JetStream) (jetstream.Stream, error) {
	want := p.streamConfig()
	s, err := js.Stream(ctx, p.o.Stream)
	switch {
	case err == nil:
		return s, p.checkStream(s.CachedInfo().Config, want)
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return nil, p.streamError(err)
	}
	// Another stream may have the subjects: what is there is used.
	name, err := js.StreamNameBySubject(ctx, want.Subjects[0])
	if err == nil {
		if s, err = js.Stream(ctx, name); err == nil {
			p.tell("STREAM names no stream, and another one has the subjects: it is used", "stream", p.o.Stream, "used", name)
			return s, p.checkStream(s.CachedInfo().Config, want)
		}
	}
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, p.streamError(err)
	}
	if !p.o.CreateStream {
		return nil, fmt.Errorf("stream %s is absent: create it with the subjects %s, or set KVRELAY_STREAM_CREATE=true", p.o.Stream, want.Subjects[0])
	}
	if s, err = js.CreateStream(ctx, want); err != nil { // one that was created meanwhile is found at the next attempt
		var api *jetstream.APIError
		if errors.As(err, &api) {
			return nil, fmt.Errorf("stream %s cannot be created (code %d: %s): raise JetStream's limits, those of the server and of the account, since it takes up to %d bytes in files; or create it yourself, it is used as it is",
				want.Name, api.ErrorCode, api.Description, want.MaxBytes)
		}
		return nil, p.streamError(err)
	}
	p.o.Logger.Info("created the JetStream stream", "stream", want.Name, "subjects", want.Subjects[0],
		"storage", "file", "max_bytes", want.MaxBytes, "discard", "old", "replicas", want.Replicas, "duplicates", want.Duplicates.String())
	return s, nil
}

// streamConfig is the stream as we would create it.
func (p *Publisher) streamConfig() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:        p.o.Stream,
		Description: "router events of KV caches, one subject per worker and data-parallel rank",
		Subjects:    []string{p.subject.pattern()},
		Storage:     jetstream.FileStorage,
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardOld,
		MaxBytes:    streamBytes,
		Replicas:    1,
		Duplicates:  streamDuplicates,
	}
}

// checkStream says what is different in a stream that is there, and refuses
// one that cannot take our messages.
func (p *Publisher) checkStream(have, want jetstream.StreamConfig) error {
	if !slices.ContainsFunc(have.Subjects, func(s string) bool { return covers(s, want.Subjects[0]) }) {
		if !slices.ContainsFunc(have.Subjects, func(s string) bool { return covers(want.Subjects[0], s) }) {
			return fmt.Errorf("stream %s has the subjects %s, not %s: add it there, or set KVRELAY_STREAM", have.Name, strings.Join(have.Subjects, " "), want.Subjects[0])
		}
	}
	if have.Sealed || have.Mirror != nil {
		return fmt.Errorf("stream %s is sealed or a mirror: it takes no messages; set KVRELAY_STREAM", have.Name)
	}
	if have.NoAck {
		return fmt.Errorf("stream %s has no_ack: nothing would tell what is stored; switch that off, or set KVRELAY_STREAM", have.Name)
	}
	if m := int64(have.MaxMsgSize); m > 0 && m < minMaxPayloadStream {
		return fmt.Errorf("stream %s takes messages of %d bytes only: raise its max_msg_size to %d at least, or set KVRELAY_STREAM", have.Name, m, minMaxPayloadStream)
	}
	if have.Retention != want.Retention {
		p.warn("the stream does not keep events for all who want them: with this retention what nobody waits for, or one consumer has read, is gone, also for a relay that starts anew; "+
			"give it retention limits, or set KVRELAY_STREAM to a stream that has", "stream", have.Name, "retention", strings.ToLower(have.Retention.String()))
	}
	var differs []any
	note := func(name string, is, would any) {
		if is != would {
			differs = append(differs, name, fmt.Sprint(is), name+"_if_created", fmt.Sprint(would))
		}
	}
	note("retention", have.Retention, want.Retention)
	note("storage", have.Storage, want.Storage)
	note("discard", have.Discard, want.Discard)
	note("max_bytes", have.MaxBytes, want.MaxBytes)
	note("max_msgs_per_subject", max(have.MaxMsgsPerSubject, 0), max(want.MaxMsgsPerSubject, 0))
	note("max_age", have.MaxAge, want.MaxAge)
	note("replicas", have.Replicas, want.Replicas)
	if len(differs) > 0 {
		p.tell("the JetStream stream is used as it is; one created by kvrelay would differ", append([]any{"stream", have.Name}, differs...)...)
	}
	return nil
}

// tell logs at level info, each text once in a process's run.
func (p *Publisher) tell(text string, attrs ...any) {
	if p.first(text) {
		p.o.Logger.Info(text, attrs...)
	}
}

// warn is tell at level warn.
func (p *Publisher) warn(text string, attrs ...any) {
	if p.first(text) {
		p.o.Logger.Warn(text, attrs...)
	}
}

// first says whether text was not told yet.
func (p *Publisher) first(text string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	told := p.link.tales[text]
	p.link.tales[text] = true
	return !told
}

// streamError says what to change.
func (p *Publisher) streamError(err error) error {
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount), errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("NATS has no JetStream here (%w): enable it for the server and the account, or set KVRELAY_SINK=nats", err)
	default:
		return fmt.Errorf("stream %s: %w", p.o.Stream, err)
	}
}

// covers says whether the pattern a matches every subject of the pattern b.
func covers(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range x {
		switch {
		case x[i] == ">":
			return len(y) > i
		case i >= len(y) || y[i] == ">":
			return false
		case x[i] != "*" && x[i] != y[i]:
			return false
		}
	}
	return len(x) == len(y)
}

// set makes l the present link; nil: none.
func (j *jsRun) set(l *jsLink) {
	j.mu.Lock()
	j.link = l
	close(j.changed)
	j.changed = make(chan struct{})
	j.mu.Unlock()
}

// await is the present link; nil when ctx or the outbox ended before there was one.
func (j *jsRun) await(ctx context.Context, o *Outbox) *jsLink {
	for {
		j.mu.Lock()
		l, changed := j.link, j.changed
		j.mu.Unlock()
		if l != nil {
			return l
		}
		select {
		case <-changed:
		case <-o.gone:
			return nil
		case <-j.p.halt:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}
