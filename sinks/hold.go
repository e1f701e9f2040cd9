package sinks

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// hold is what a NATS core server lets an outbox publish. One that is refused
// costs the others nothing: the link stays, it alone waits. While it is refused
// one envelope of it is on its way at most; of two, the second could overtake
// the first when the permission comes in between.
type hold uint8

const (
	free     hold = iota
	heldBack      // its subject was refused: nothing is sent
	mayTry        // one envelope may be sent
	tried         // it was sent, its fate is unknown
)

// hold keeps back the outboxes of what is on its way whose subjects were refused.
// It returns the error of a subject that none of them has, as where the server
// maps subjects to others: whose it is cannot be told.
func (c *core) hold(refused map[string]error) error {
	wait := min(2*max(c.wait, c.p.timing.minBackoff), c.p.timing.maxBackoff)
	known := map[string]bool{}
	for _, os := range [][]*Outbox{c.marked, c.flying} {
		for _, o := range os {
			err, ok := refused[o.subject]
			if !ok {
				continue
			}
			known[o.subject] = true
			if o.hold == free {
				c.held = append(c.held, o)
				wait = c.p.timing.minBackoff
			}
			o.hold = heldBack
			c.p.say(o, "NATS takes no events of a rank, trying on: its batches wait in the engine's replay buffer", c.p.publishError(err))
		}
	}
	c.wait = wait
	for subject, err := range refused {
		if !known[subject] {
			return err
		}
	}
	return nil
}

func (c *core) jittered() time.Duration { return c.wait/2 + rand.N(c.wait/2) }

// tryHeld has the first envelope of what is held sent once more, of those
// outboxes of which nothing is on its way. It reports whether there are others.
func (c *core) tryHeld() (others bool) {
	for _, o := range c.held {
		switch {
		case o.hold != heldBack:
		case o.flying || slices.Contains(c.marked, o):
			others = true
		default:
			o.hold = mayTry
			o.rewind()
			c.p.push(o)
		}
	}
	return others
}

// release lets o publish again: an envelope of it was taken.
func (c *core) release(o *Outbox) {
	if o.hold == free {
		return
	}
	o.hold = free
	c.held = slices.DeleteFunc(c.held, func(x *Outbox) bool { return x == o })
	c.p.well(o, "NATS takes the events of all ranks again")
	c.p.push(o) // what came meanwhile
}

// pong is what a PONG says: what was refused of what was published before it, by
// subject, and perhaps of what came after; or why the link is of no use.
type pong struct {
	refused map[string]error
	err     error
}

// refusals hears which messages a server refuses. It answers each with an error
// that comes before the PONG behind it; nats.go keeps the last one, and hands
// all to its error handler, in order, but maybe after the PONG.
type refusals struct {
	heard chan error    // unread ones wait in nats.go, as many as there are messages in a window
	over  chan struct{} // closed when nobody reads any more
	last  error         // owned by before
}

func listen(nc *nats.Conn) *refusals {
	r := &refusals{heard: make(chan error, 64), over: make(chan struct{}), last: nc.LastError()} // may be of a server that was tried first
	nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		select {
		case r.heard <- err:
		case <-r.over:
		}
	})
	return r
}

// before tells what was refused until now, when a PONG has come. An error that
// is no refusal of a message is of the link. It returns with ctx's error when it
// ends: nothing that nats.go may do is to keep a link from its end.
func (r *refusals) before(ctx context.Context, nc *nats.Conn) (refused map[string]error, err error) {
	last := nc.LastError()
	if last == nil || last == r.last {
		return nil, nil
	}
	if _, ok := refusedSubject(last); !ok {
		return nil, last // nats.go does not hand on all of these
	}
	refused = map[string]error{}
	for r.last != last {
		select {
		case r.last = <-r.heard:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		subject, ok := refusedSubject(r.last)
		if !ok {
			return nil, r.last
		}
		refused[subject] = r.last
	}
	return refused, nil
}

func (r *refusals) end() { close(r.over) }

// refusedSubject is the subject that a server does not let us publish to.
func refusedSubject(err error) (subject string, ok bool) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return "", false
	}
	const before = "Permissions Violation for Publish to "
	text := err.Error()
	i := strings.LastIndex(text, before)
	if i < 0 {
		return "", false
	}
	subject, uerr := strconv.Unquote(text[i+len(before):])
	return subject, uerr == nil
}

// refusedSubscription says whether err is that a subscription to one of kvrelay's
// own subjects is not allowed. The $SRV ones, which show the service, may be missing.
func refusedSubscription(err error) bool {
	return errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), `Subscription to "kvrelay.`)
}

// refusedAnswers says whether err is that no answers may be heard.
func refusedAnswers(err error) bool {
	return errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), "Subscription to ")
}

// refusesOurs says whether a stream's silence to what was published to subject
// comes from this refusal: of that subject, or of what JetStream itself needs.
func refusesOurs(err error, subject string) bool {
	refused, ok := refusedSubject(err)
	if !ok {
		return errors.Is(err, nats.ErrPermissionViolation) // of the answer, or of a subject that cannot be read
	}
	return refused == subject || strings.HasPrefix(refused, "$JS.")
}

// unheard says whether err is silence because the link may not hear answers. It is
// given up then: only on another one they are asked for again.
func (w *writer) unheard(l *jsLink, err error) bool {
	refused := l.nc.LastError()
	if !silence(err) || !refusedAnswers(refused) {
		return false
	}
	l.drop(w.j.p.publishError(refused))
	return true
}

// silence says whether err is that no answer came.
func silence(err error) bool {
	return errors.Is(err, jetstream.ErrAsyncPublishTimeout) || errors.Is(err, context.DeadlineExceeded)
}
