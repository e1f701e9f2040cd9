package sinks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvrelay/kvrelay/convert"
)

// writer brings one rank's envelopes into the stream: one in flight, each with
// the sequence that the subject must end with. A process that is killed at any
// point leaves a stream that ends with whole envelopes, each once and in order.
type writer struct {
	j *jsRun
	o *Outbox

	expect uint64 // sequence of the subject's last message
	prev   string // its id
	link   *jsLink
	flight *frozen // sent, fate unknown; nil: none
	again  bool    // began again once in this process's run
	retry  time.Duration
	over   error // what the link had said when the stream last took something: no reason for what comes later
}

// run writes until ctx ends or the outbox is done (nil), or somebody else
// writes to the subject.
func (w *writer) run(ctx context.Context) error {
	for !w.turn() {
		if !w.wait(ctx) {
			return nil
		}
	}
	for placed := false; w.flight != nil || !w.j.p.halted(); {
		l := w.j.await(ctx, w.o)
		if l == nil {
			return nil
		}
		var err error
		switch {
		case !placed:
			if err = w.begin(ctx, l); err == nil {
				placed = true
				w.well(l) // an idle engine's rank has nothing to store
			}
		case w.flight == nil && !w.next(l):
			if !w.wait(ctx) {
				return nil
			}
			continue
		default:
			placed, err = w.send(ctx, l)
		}
		var fatal *WriterError
		switch {
		case errors.As(err, &fatal):
			return err
		case err != nil:
			if !w.pause(ctx, l, err) {
				return nil
			}
		default:
			w.retry = 0
		}
	}
	return nil
}

// turn says whether the outbox may publish: the rank is ours, and the outbox before it is done.
func (w *writer) turn() bool {
	p := w.j.p
	p.mu.Lock()
	defer p.mu.Unlock()
	return w.o.before == nil && !w.o.unowned
}

// wait waits for something to do, and says whether there may be.
func (w *writer) wait(ctx context.Context) bool {
	select {
	case <-w.o.wake:
		return true
	case <-w.o.gone:
		return false
	case <-w.j.p.halt:
		return false
	case <-ctx.Done():
		return false
	}
}

// pause waits before the next attempt, and says whether there is one.
func (w *writer) pause(ctx context.Context, l *jsLink, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	select {
	case <-l.dead:
		return true // the next link is waited for
	default:
	}
	if !errors.Is(err, errContested) || w.retry >= maxRetry { // what is wanted next time is nearly always right
		w.j.p.say(w.o, "the stream takes no events, trying on: batches wait in the engine's replay buffer", w.explain(l, err))
	}
	w.retry = min(maxRetry, max(minRetry, 2*w.retry))
	select {
	case <-time.After(w.retry/2 + rand.N(w.retry/2+1)):
	case <-l.dead:
	case <-w.o.gone:
		return false
	case <-w.j.p.halt:
		return false
	case <-ctx.Done():
		return false
	}
	return true
}

// last reads what the subject ends with.
func (w *writer) last(ctx context.Context, l *jsLink) (lastMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	m, err := l.stream.GetLastMsgForSubject(ctx, w.o.subject)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return lastMessage{}, nil
	case err != nil:
		w.unheard(l, err)
		return lastMessage{}, err
	}
	return w.o.parseLast(m), nil
}

// begin reads where the subject stands and has the outbox go on from there.
func (w *writer) begin(ctx context.Context, l *jsLink) error {
	last, err := w.last(ctx, l)
	if err != nil {
		return err
	}
	w.expect, w.prev = last.seq, last.text
	w.o.goOn(last)
	return nil
}

// goOn continues a publisher, or begins a new one where the subject has none of ours.
func (o *Outbox) goOn(last lastMessage) {
	r := Resumption{}
	o.mu.Lock()
	if o.resumes && last.ours {
		o.name(last.id.publisher)
		o.log.release()
		o.log.next, o.log.lo = last.id.last+1, last.id.last+1
		o.confirmed, o.sent, o.recent = last.id.last, last.id.last, 0
		o.firstSeq, o.frozen, o.resend = last.sequence+1, nil, 0
		r.LastID = last.id.last
		switch {
		case last.place.Kind == PlaceEmpty:
			r.Start = StartCleared
		case last.place.Kind != PlaceAt:
			r.Reason = "the last message has no position to go on from: a returned engine's blocks were being published again"
		default:
			r.Start, r.Place = StartAt, last.place
		}
	}
	o.placedAt = true
	o.pay()
	o.mu.Unlock()
	select {
	case <-o.placed:
	default:
		close(o.placed)
	}
	if o.resumes {
		select {
		case <-o.known: // an answer that nobody has asked for
		default:
		}
		o.known <- r
	}
}

// next freezes the next envelope; false when nothing waits.
func (w *writer) next(l *jsLink) bool {
	o := w.o
	if w.link != l { // another server may have another max_payload
		o.rewind()
		w.link = l
	}
	f, ok := o.freeze(l.name)
	if !ok {
		return false
	}
	w.flight = f
	return true
}

// send sends the envelope in flight once, and settles its fate where it
// becomes known. placed is false when the writer must begin anew.
func (w *writer) send(ctx context.Context, l *jsLink) (placed bool, err error) {
	f := w.flight
	if w.link != l && int64(f.size) > l.limit {
		return true, w.refreeze(ctx, l)
	}
	f.msg.Header[nats.ExpectedLastSubjSeqHdr] = []string{strconv.FormatUint(w.expect, 10)}
	f.msg.Header[nats.ExpectedStreamHdr] = []string{l.name}
	fut, err := l.js.PublishMsgAsync(&f.msg, jetstream.WithRetryAttempts(0))
	if err != nil {
		return true, err
	}
	p := w.j.p
	p.envelopes.Add(1)
	if f.sent {
		p.resent.Add(1)
	}
	f.sent = true
	select {
	case ack := <-fut.Ok():
		w.stored(l, ack.Sequence)
		return true, nil
	case err = <-fut.Err():
	case <-l.dead:
		return true, errLinkLost
	case <-ctx.Done():
		return true, ctx.Err()
	}
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
		return w.contested(ctx, l)
	}
	if errors.Is(err, jetstream.ErrStreamMessageExceedsMaximum) {
		if info, ierr := l.stream.Info(ctx); ierr == nil && info.Config.MaxMsgSize > 0 && int64(info.Config.MaxMsgSize) < l.limit {
			l.drop(fmt.Errorf("stream %s takes smaller messages now", l.name)) // what is too long is cut on the next link
		}
	}
	if w.unheard(l, err) {
		return true, err
	}
	if errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, jetstream.ErrAsyncPublishTimeout) {
		// No stream takes the subject: it may have been deleted, or has no leader.
		// Where a subscriber of NATS core has the subject, silence says so.
		if _, ierr := l.stream.Info(ctx); errors.Is(ierr, jetstream.ErrStreamNotFound) {
			l.drop(fmt.Errorf("stream %s is gone", l.name)) // it is found or created on the next link
		}
	}
	return true, err
}

var errLinkLost = errors.New("the link was lost")

// stored notes that the stream has the envelope in flight.
func (w *writer) stored(l *jsLink, seq uint64) {
	w.expect, w.prev = seq, w.flight.id
	w.o.mark = w.flight.last
	w.flight = nil
	w.well(l)
	w.j.p.confirm(w.o)
}

// well ends what was told of trouble: the stream has answered.
func (w *writer) well(l *jsLink) {
	w.over = l.nc.LastError()
	w.j.p.well(w.o, "the stream takes events again")
}

// contested: the subject does not end with what we expect.
func (w *writer) contested(ctx context.Context, l *jsLink) (placed bool, err error) {
	last, err := w.last(ctx, l)
	switch {
	case err != nil:
		return true, err
	case last.seq == 0: // purged, or a new stream
		w.expect = 0
		return true, errContested
	case last.text == w.flight.id:
		w.stored(l, last.seq)
		return true, nil
	case last.text == w.prev && last.text != "",
		last.ours && last.id.publisher == w.o.PublisherID() && last.id.life == w.j.p.life && last.id.last <= w.o.Confirmed():
		// Ours from before: newer ones were removed from the stream, or a replica that lags has answered.
		w.expect = last.seq
		return true, errContested
	case last.ours && last.id.publisher == w.o.PublisherID() && last.id.life != w.j.p.life && w.o.resumes && !w.again:
		// A late envelope of the life before ours. What it says is not in our
		// picture of the stream, so we begin as at start.
		w.again = true
		w.flight = nil
		w.o.drop()
		w.o.begin()
		return false, nil
	}
	return true, &WriterError{Stream: l.name, Subject: w.o.subject, Sequence: last.seq, MessageID: last.text}
}

// errContested only has the envelope sent again with another expectation.
var errContested = errors.New("the subject ends elsewhere than expected")

// refreeze: the envelope in flight no longer fits. When it was not stored, it
// is cut. A copy of it that were stored later would be met as another writer's.
func (w *writer) refreeze(ctx context.Context, l *jsLink) error {
	last, err := w.last(ctx, l)
	if err != nil {
		return err
	}
	if last.text == w.flight.id {
		w.stored(l, last.seq)
		return nil
	}
	w.flight = nil
	w.o.mu.Lock()
	w.o.frozen = nil
	w.o.mu.Unlock()
	w.link = nil
	return nil
}

// drop forgets what is not stored, and what comes until Resume is called.
func (o *Outbox) drop() {
	o.mu.Lock()
	last := o.log.next - 1
	bytes, events := 0, int(last-o.confirmed)
	o.placedAt = false
	if events > 0 {
		o.oweLast(last)
		bytes = o.log.size(o.confirmed+1, last)
		if paid := min(o.extra, bytes); paid != 0 {
			bytes -= paid
			o.extra -= paid
		}
	}
	o.deaf = true
	o.splits++ // no snapshot outlives it
	o.log.release()
	o.log.lo, o.log.next, o.sent = o.confirmed+1, o.confirmed+1, o.confirmed
	o.frozen, o.resend, o.recent = nil, 0, 0
	o.mu.Unlock()
	o.p.unconfirmedBytes.Add(int64(-bytes))
	if o.released != nil && bytes != 0 {
		o.released(bytes)
	}
	o.p.forget(o) // closed meanwhile: the rank's next one waits for it
	if o.p.unconfirmedEvents.Add(int64(-events)) == 0 {
		o.p.notifyWaiters()
	}
}

// oweLast has the event of that id, which is about to be dropped, published after
// all if it is a `cleared` and nobody comes to resume. o.mu is held.
func (o *Outbox) oweLast(id uint64) {
	if !o.resumes {
		return
	}
	si, i := o.log.find(id)
	e, err := o.decode(o.log.segs[si].bytes(i))
	if err != nil {
		panic(err) // our own encoding
	}
	if o.owed = nil; e.Kind != convert.Cleared {
		return
	}
	if o.owed = &e; o.closed {
		o.p.unconfirmedEvents.Add(1)
	}
}

// explain says what keeps the stream from taking an envelope.
func (w *writer) explain(l *jsLink, err error) error {
	var api *jetstream.APIError
	late := silence(err)
	switch refused := l.nc.LastError(); {
	case late && refused != w.over && refusesOurs(refused, w.o.subject): // the answer to that is silence
		return w.j.p.publishError(refused)
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("stream %s does not answer: it has no leader, or is gone (%w)", l.name, err)
	case late:
		return fmt.Errorf("stream %s has not answered in time (%w)", l.name, err)
	case errors.As(err, &api):
		return fmt.Errorf("stream %s refuses (code %d: %s): its limits or its storage are used up, or it is changing its leader", l.name, api.ErrorCode, api.Description)
	}
	return fmt.Errorf("stream %s: %w", l.name, err)
}
