package sinks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// confirmEvery and confirmBytes: a flush is asked for when something was
	// published so long ago, or so much, whichever is first. A tenth of the
	// time would double the CPU, and buys nothing. It goes with the next message,
	// which wakes the process anyway; when none comes, alone after confirmAlone.
	confirmEvery = 10 * time.Millisecond
	confirmAlone = 2 * confirmEvery
	confirmBytes = 256 << 10
	// The bytes on a link that are not confirmed are bounded by a window of
	// minWindow to maxWindow; then publishing waits for the PONG. Sockets alone
	// would take some 3.7 MiB, and on a slow link the PONG behind them would
	// come too late for pingsOut, for ever. A PONG that takes longer than a
	// quarter of the ping interval and a link that breaks halve the window,
	// other PONGs widen it by minWindow. One envelope may always go.
	maxWindow = 1 << 20
	minWindow = 32 << 10
)

// runCore is Run for NATS core: one connection after the other.
func (p *Publisher) runCore(ctx context.Context) error {
	c := &core{p: p, window: maxWindow}
	backoff := p.timing.minBackoff
	for ctx.Err() == nil && !p.halted() {
		nc, dead, err := p.dial(ctx, p.o.Servers)
		if err != nil && len(c.peers) > 0 {
			// The seed is gone; its cluster may not be. The error is the seed's,
			// which is in the settings.
			if n, d, perr := p.dial(ctx, c.peers); perr == nil {
				nc, dead, err = n, d, nil
			}
		}
		if err == nil {
			c.peers = p.peersOf(nc)
			p.linkUp(nc, nc.MaxPayload())
			var confirmed bool
			confirmed, err = c.serve(ctx, nc, dead)
			nc.Close()
			<-dead
			if confirmed {
				backoff = p.timing.minBackoff
			}
		}
		if ctx.Err() != nil || p.halted() {
			break
		}
		p.linkDown(err)
		select {
		case <-time.After(backoff/2 + rand.N(backoff/2)):
		case <-p.halt:
		case <-ctx.Done():
		}
		backoff = min(2*backoff, p.timing.maxBackoff)
	}
	p.linkDown(nil)
	return nil
}

// linkUp notes a new connection and how long its messages may be, asked for
// each link: another server of the cluster may have another max_payload.
func (p *Publisher) linkUp(nc *nats.Conn, limit int64) {
	server := redact(nc.ConnectedUrl())
	p.maxEvent.Store(p.eventLimit(limit))
	p.mu.Lock()
	l := &p.link
	again := l.maxPayload != 0
	tell := !l.told
	l.connected, l.server, l.maxPayload, l.since, l.lastError, l.told = true, server, limit, p.o.Now(), "", true
	p.mu.Unlock()
	if again {
		p.reconnects.Add(1)
	}
	if tell {
		p.o.Logger.Info("connected to NATS", "server", server, "max_payload", limit)
	}
}

// linkDown notes why there is no connection; nil at the end of Run.
func (p *Publisher) linkDown(err error) {
	if err != nil {
		p.failures.Add(1)
	}
	now := p.o.Now()
	p.mu.Lock()
	l := &p.link
	if l.connected {
		l.connected, l.since = false, now
	}
	tell := false
	if err != nil {
		l.lastError = err.Error()
		if tell = l.due(l.lastError, now); tell {
			l.told = false
		}
	}
	p.mu.Unlock()
	if tell {
		p.o.Logger.Warn("no connection to NATS, trying on", "error", err)
	}
}

// core is the state of the publishing goroutine.
type core struct {
	p      *Publisher
	peers  []string // servers that the last one told of
	window int
	buf    []byte
	msg    nats.Msg

	// flying were published to since the last flush was asked for, marked
	// before it: a PONG confirms what these had sent by then.
	flying, marked           []*Outbox
	flyingBytes, markedBytes int

	// held are the outboxes whose subject the server refuses; tried again after wait.
	held []*Outbox
	wait time.Duration
}

// serve publishes over one connection until it breaks or ctx ends. confirmed
// says that the server has confirmed something.
func (c *core) serve(ctx context.Context, nc *nats.Conn, dead <-chan struct{}) (confirmed bool, err error) {
	// Flush needs a deadline; the connection's own pings bound it already.
	fctx, cancel := context.WithTimeout(ctx, 24*365*time.Hour)
	flushes := make(chan struct{})
	pongs := make(chan pong, 1)
	flushed := make(chan struct{})
	refusals := listen(nc)
	go func() {
		defer close(flushed)
		for range flushes {
			var p pong
			if p.err = nc.FlushWithContext(fctx); p.err == nil {
				p.refused, p.err = refusals.before(fctx, nc)
			}
			pongs <- p
		}
	}()
	defer func() {
		cancel()
		close(flushes)
		<-flushed
		refusals.end()
		c.window = max(c.window/2, minWindow)
	}()

	c.reset()
	c.p.rewindAll()
	timer, again := time.NewTimer(time.Hour), time.NewTimer(time.Hour)
	timer.Stop() // runs only while something waits for a flush
	again.Stop() // runs only while something is held
	flushing, armed := false, false
	var asked, oldest time.Time // of the flush; of what waits for one
	flush := func() {
		timer.Stop()
		armed, flushing = false, true
		asked = time.Now()
		c.mark()
		flushes <- struct{}{}
	}
	for {
		for !c.p.halted() && (c.flyingBytes+c.markedBytes < c.window || len(c.flying)+len(c.marked) == 0) {
			some, err := c.publish(nc)
			if err != nil {
				return confirmed, c.p.publishError(err)
			}
			if !some {
				break
			}
			if c.flyingBytes >= min(confirmBytes, c.window/2) && !flushing {
				flush()
			}
		}
		switch {
		case len(c.flying) == 0 || flushing:
		case !armed:
			timer.Reset(confirmAlone)
			armed, oldest = true, time.Now()
		case time.Since(oldest) >= confirmEvery:
			flush()
		}
		select {
		case <-ctx.Done():
			return confirmed, nil
		case <-dead:
			return confirmed, c.p.publishError(nc.LastError())
		case <-c.p.halt:
			return confirmed, nc.FlushWithContext(fctx) // until what was published is behind us, or ctx ends
		case <-c.p.wake:
		case <-timer.C:
			flush()
		case <-again.C:
			if c.tryHeld() {
				again.Reset(c.jittered())
			}
		case p := <-pongs:
			if p.err != nil {
				return confirmed, c.p.publishError(p.err)
			}
			if len(p.refused) > 0 {
				if err := c.hold(p.refused); err != nil {
					return confirmed, c.p.publishError(err)
				}
				again.Reset(c.jittered())
			}
			flushing, confirmed = false, true
			if time.Since(asked) > c.p.timing.ping/4 {
				c.window = max(c.window/2, minWindow)
			} else {
				c.window = min(c.window+minWindow, maxWindow)
			}
			c.confirm()
			if c.flyingBytes >= min(confirmBytes, c.window/2) {
				flush()
			}
		}
	}
}

// publish hands one message to the connection; some is false when nothing is ready.
func (c *core) publish(nc *nats.Conn) (some bool, err error) {
	p := c.p
	for {
		o := p.pop()
		if o == nil {
			return false, nil
		}
		if o.hold == heldBack || o.hold == tried {
			continue // it is pushed again when it may
		}
		msg, ok, again, more := o.take(c.buf)
		c.buf = msg
		if !ok {
			continue
		}
		if p.o.Profile == JSON {
			c.msg.Subject, c.msg.Header, c.msg.Data = o.subject, o.header, msg
			err = nc.PublishMsg(&c.msg)
		} else {
			err = nc.Publish(o.subject, msg)
		}
		if err != nil {
			return false, err
		}
		p.envelopes.Add(1)
		if again {
			p.resent.Add(1)
		}
		if !o.flying {
			o.flying = true
			c.flying = append(c.flying, o)
		}
		c.flyingBytes += len(msg)
		if o.hold == mayTry {
			o.hold = tried
			return true, nil
		}
		if more {
			p.push(o)
		}
		return true, nil
	}
}

// reset forgets what went to the last link.
func (c *core) reset() {
	for _, o := range c.flying {
		o.flying = false
	}
	clear(c.flying)
	clear(c.marked)
	c.flying, c.marked = c.flying[:0], c.marked[:0]
	c.flyingBytes, c.markedBytes = 0, 0
	for _, o := range c.held {
		o.hold = mayTry // another server, or this one since, may allow it
	}
}

// mark notes what the flush that begins now will confirm.
func (c *core) mark() {
	c.marked, c.flying = c.flying, c.marked[:0]
	c.markedBytes, c.flyingBytes = c.flyingBytes, 0
	for _, o := range c.marked {
		o.flying = false
		o.mark = o.sentID()
	}
}

// confirm is called when the PONG for the marks is there.
func (c *core) confirm() {
	for _, o := range c.marked {
		if o.hold != heldBack {
			c.p.confirm(o)
			c.release(o)
		}
	}
	clear(c.marked)
	c.marked, c.markedBytes = c.marked[:0], 0
}

// publishError says what ended a link.
func (p *Publisher) publishError(err error) error {
	switch {
	case err == nil:
		return errors.New("NATS closed the connection")
	case errors.Is(err, nats.ErrPermissionViolation):
		do := "publish"
		if strings.Contains(err.Error(), "Subscription") { // JetStream's answers
			do = "subscribe"
		}
		return fmt.Errorf("NATS does not let %s %s (%w): allow the subject there, or check %s", p.o.Auth.what(p.o.Servers...), do, err, p.o.Auth.settings(p.o.Servers...))
	case errors.Is(err, nats.ErrMaxPayload):
		return fmt.Errorf("a message exceeds max_payload, which has shrunk (%w)", err)
	case errors.Is(err, nats.ErrHeadersNotSupported):
		return fmt.Errorf("the NATS server knows no headers, which PROFILE=json needs (%w): use nats-server 2.2 or later", err)
	case refused(strings.ToLower(err.Error())):
		return p.o.Auth.refusal(p.o.Servers, err)
	}
	if e := limited(redactAll(p.o.Servers), err); e != nil {
		return e
	}
	return fmt.Errorf("the connection to NATS broke: %w", steady(err))
}
