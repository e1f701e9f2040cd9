package membership

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Requests over NATS that wait to be read, of one rank. What is more is dropped
// by the client library: it is not acknowledged, so the router asks again.
const (
	waitingRequests = 2 * maxAnswers
	waitingBytes    = waitingRequests * maxBody

	// goodbye bounds the wait for the server to have taken back a subscription.
	goodbye = 500 * time.Millisecond
)

// natsPlane is Dynamo's NATS request plane, as far as recovery needs it: a
// request is a message on the subject that the record names, its body the same
// two parts as over TCP, and an empty reply acknowledges it. The answer takes
// the same way home over TCP.
type natsPlane struct {
	s  *server
	nc *nats.Conn

	hearing sync.Mutex // one subscription is made at a time

	mu      sync.Mutex
	ctx     context.Context // of the answers
	ended   bool            // nothing more is begun
	answers sync.WaitGroup
	ignored int       // messages that were no request
	told    time.Time // when the log told of them last
}

// runNATS has routers ask over NATS until ctx ends, and waits for everything
// that it started.
func (r *Registry) runNATS(ctx context.Context) {
	p := &natsPlane{s: r.server, ctx: ctx}
	var dead <-chan struct{}
	err := r.retry(ctx, "connecting to NATS for recovery requests", func() (err error) {
		p.nc, dead, err = r.o.NATS(ctx, p.trouble)
		return err
	})
	if p.nc != nil {
		defer func() {
			p.mu.Lock()
			p.ended = true
			p.mu.Unlock()
			p.nc.Close()
			<-dead
			p.answers.Wait()
		}()
	}
	if err != nil {
		return // ctx has ended
	}
	r.nats = p
	close(r.up)
	r.log.Info("answering Dynamo routers' recovery requests over NATS", "server", p.nc.ConnectedUrlRedacted())
	<-ctx.Done()
}

func (p *natsPlane) trouble(err error) {
	p.s.log.Warn("recovery requests of Dynamo routers over NATS have trouble: are their subjects allowed, and answers to them?", "error", err)
}

// hear has requests come on a subject, until deafen is called, which waits no
// longer than its ctx; there is nothing to do where they come over TCP. It returns
// when the server knows, or with ctx's error: what a router asks before that is lost.
func (r *Registry) hear(ctx context.Context, subject string) (deafen func(context.Context), err error) {
	if r.nats == nil {
		return func(context.Context) {}, nil
	}
	var sub *nats.Subscription
	deafen = func(ctx context.Context) {
		if sub != nil && sub.Unsubscribe() == nil && r.nats.nc.IsConnected() {
			// So that who still asks is told by the server, instead of waiting.
			ctx, cancel := context.WithTimeout(ctx, goodbye)
			_ = r.nats.nc.FlushWithContext(ctx) // nothing is lost without it
			cancel()
		}
		sub = nil
	}
	err = r.retry(ctx, "listening for recovery requests", func() (err error) {
		deafen(ctx)
		sub, err = r.nats.subscribe(ctx, subject)
		return err
	})
	return deafen, err
}

// subscribe returns when the server has taken the subscription. No queue group:
// a subject belongs to one publisher.
func (p *natsPlane) subscribe(ctx context.Context, subject string) (*nats.Subscription, error) {
	p.hearing.Lock()
	defer p.hearing.Unlock()
	before := p.nc.LastError() // stays until the link is another
	sub, err := p.nc.Subscribe(subject, p.take)
	if err != nil {
		return nil, err
	}
	if err := sub.SetPendingLimits(waitingRequests, waitingBytes); err != nil {
		return sub, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	if err := p.nc.FlushWithContext(ctx); err != nil {
		return sub, err
	}
	// A refusal comes before the answer to the flush.
	if err := p.nc.LastError(); err != before && errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), subject) {
		return sub, fmt.Errorf("allow the relay's NATS user to subscribe there: %w", err)
	}
	return sub, nil
}

// take acknowledges a request and has it answered. It is called for one message
// of a subject after the other, and must not wait.
func (p *natsPlane) take(m *nats.Msg) {
	req, err := parseMessage(m)
	if err != nil {
		p.ignore(m.Subject, err)
		return
	}
	if !p.s.begin() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || m.Respond(nil) != nil { // the link is down: the router asks again
		p.s.done()
		return
	}
	req.local = true
	p.answers.Go(func() {
		defer p.s.done()
		p.s.answer(p.ctx, &req)
	})
}

// parseMessage reads a request that came over NATS. Its error is an errRequest,
// without anything of the text.
func parseMessage(m *nats.Msg) (request, error) {
	switch {
	case m.Reply == "":
		return request{}, fmt.Errorf("%w: it wants no acknowledgement", errRequest)
	case len(m.Data) > maxBody:
		return request{}, fmt.Errorf("%w: its body has %d bytes, %d are allowed", errRequest, len(m.Data), maxBody)
	}
	return parseBody(m.Subject, m.Data)
}

// ignore counts a message that is no request, and tells of the first, and of
// further ones once a minute.
func (p *natsPlane) ignore(subject string, err error) {
	p.mu.Lock()
	p.ignored++
	n, tell := p.ignored, time.Since(p.told) > repeatLog
	if tell {
		p.told = time.Now()
	}
	p.mu.Unlock()
	if tell {
		p.s.log.Warn("a message on a recovery subject is ignored: it is not what a Dynamo router sends", "subject", subject, "ignored_so_far", n, "error", err)
	}
}

// segment makes one segment of a subject of any name, as Dynamo does: every byte
// but ASCII letters, digits, _ and - becomes %XX.
func segment(name string) string {
	return strings.NewReplacer("%5F", "_", "%2D", "-").Replace(escape(name))
}
