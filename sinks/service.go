package sinks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// serviceName is the recovery service as `nats micro ls` shows it.
const serviceName = "kvrelay"

// noVersion stands where Options.Version is no semantic version.
const noVersion = "0.0.0"

const (
	// maxAnswers bounds the recovery requests answered at once in the process,
	// and with them the answers in memory, each of max_payload at most. Further
	// ones wait, up to waitingRequests a rank; what is more is dropped by the
	// client library, and asked again by consumers that get no answer.
	maxAnswers      = 4
	waitingRequests = 1024
	waitingBytes    = 4 << 20
	// flushTimeout bounds what waits for the service connection.
	flushTimeout = 2 * time.Second
)

// service is everything that a Publisher says beside events: heartbeats and
// recovery, over one connection that reconnects by itself. What that loses or
// overtakes is said again a second later, or asked again.
type service struct {
	p      *Publisher
	answer chan struct{} // a token per answer being made
	deaf   chan struct{} // capacity 1: a subscription was refused on the present link
	sick   chan struct{} // capacity 1: there was trouble

	// Owned by serve: the wait before the next dial.
	backoff time.Duration

	mu      sync.Mutex // guards what follows
	link    *serviceLink
	changed chan struct{} // closed when link is another
	told    time.Time     // when a trouble was logged; zero: none was since all was well
}

// serve runs the service from the first outbox with a source until ctx ends, or
// another relay has a rank (*OwnerError). Then halt, which ends publishing and
// waits for it, is called before the last heartbeats.
func (p *Publisher) serve(ctx context.Context, halt func()) error {
	select {
	case <-p.opened:
	case <-ctx.Done():
		return nil
	}
	s := &service{p: p, answer: make(chan struct{}, maxAnswers), deaf: make(chan struct{}, 1), sick: make(chan struct{}, 1), backoff: p.timing.minBackoff, changed: make(chan struct{})}
	tctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A link outlives ctx, once it is there: the last heartbeats need it.
	lctx, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	defer hangUp()
	l := s.connect(tctx, lctx, hangUp)
	up := time.Now()
	var wg sync.WaitGroup
	var renew <-chan time.Time // nil: nothing was refused
	var quiet <-chan time.Time // nil: all is well, or waits for renew
	for l != nil && tctx.Err() == nil {
		s.set(l)
		for _, o := range p.unmanned(func(o *Outbox) bool { return o.source != nil }) {
			wg.Go(func() {
				defer close(o.tended)
				if err := s.tend(tctx, o, halt); err != nil {
					halt()
					cancel(err)
				}
			})
		}
		select {
		case <-p.opened:
		case <-tctx.Done():
		case <-s.deaf:
			if renew == nil {
				renew = time.After(p.timing.deaf)
			}
		case <-renew:
			l.nc.Close()
		case <-s.sick:
			quiet = time.After(3 * p.timing.beat) // a heartbeat that is refused is trouble each time
		case <-quiet:
			switch quiet = nil; {
			case renew != nil:
			case !l.nc.IsConnected(): // nothing is refused where nothing is sent
				quiet = time.After(3 * p.timing.beat)
			default:
				s.well()
			}
		case <-l.dead:
			s.set(nil)
			s.trouble(cmp.Or(l.nc.LastError(), errLinkLost))
			renew = nil
			select {
			case <-s.deaf: // of this link: its callbacks have all been run
			default:
			}
			if time.Since(up) > p.timing.maxBackoff {
				s.backoff = p.timing.minBackoff
			}
			if l = nil; s.pause(tctx) {
				l = s.connect(tctx, lctx, hangUp)
			}
			up = time.Now()
		}
	}
	// A write to a link that takes nothing any more must not hold up the end.
	late := time.AfterFunc(flushTimeout/2, hangUp)
	wg.Wait()
	if l != nil {
		if l.nc.IsConnected() {
			_ = l.nc.FlushTimeout(flushTimeout / 4) // the last heartbeats; they may be missed
		}
		l.nc.Close()
		<-l.dead
	}
	late.Stop()
	if err := context.Cause(tctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// unmanned are the live outboxes that fit and have no goroutine yet; they count as having one now.
func (p *Publisher) unmanned(fit func(*Outbox) bool) []*Outbox {
	p.mu.Lock()
	defer p.mu.Unlock()
	var os []*Outbox
	for o := range p.live {
		if !o.manned && fit(o) {
			o.manned = true
			os = append(os, o)
		}
	}
	return os
}

// rankSubject is one of kvrelay's own subjects of a rank.
func (p *Publisher) rankSubject(worker, rank, what string) string {
	ns := p.o.Namespace
	if ns == "" {
		ns = "dynamo" // the setting's default: the subject needs one
	}
	return "kvrelay." + escape(ns) + "." + worker + "." + rank + "." + what
}

func (o *Outbox) serviceSubject(what string) string {
	return o.p.rankSubject(strconv.FormatUint(o.workerID, 10), strconv.FormatUint(uint64(o.rank), 10), what)
}

// tend does all for one rank: waits until it is ours, then sends heartbeats and
// answers, until it is closed and confirmed, ctx ends, or another relay has it.
func (s *service) tend(ctx context.Context, o *Outbox, halt func()) error {
	if o.prior != nil {
		select {
		case <-o.prior:
		case <-ctx.Done():
			return nil
		}
	}
	w := &watch{s: s, o: o, others: map[uint64]other{}}
	defer func() {
		if w.withdraw != nil {
			w.withdraw()
		}
	}()
	for {
		if w.link = s.await(ctx, o); w.link == nil {
			return nil
		}
		err := s.tendOn(ctx, w, halt)
		if err == nil || !w.link.nc.IsClosed() {
			return err
		}
		if owner := new(OwnerError); errors.As(err, &owner) {
			return err
		}
	}
}

// tendOn is tend on one link. Every error but an *OwnerError is of no meaning
// when the link is closed: all begins again on the next, but for the ownership.
func (s *service) tendOn(ctx context.Context, w *watch, halt func()) error {
	o := w.o
	sub, err := w.subscribe()
	if err != nil {
		return fmt.Errorf("listening to the heartbeats of worker %d, rank %d: %w", o.workerID, o.rank, err)
	}
	defer sub.Unsubscribe()
	if w.withdraw == nil {
		if owned, err := w.own(ctx); err != nil || !owned {
			return err
		}
		w.withdraw = s.register(ctx, o)
	}
	select {
	case <-o.placed:
	case <-o.gone:
		return nil
	case <-ctx.Done():
		return nil
	}
	svc, err := s.add(ctx, w.link.nc, o)
	if err != nil {
		return fmt.Errorf("the recovery service of worker %d, rank %d: %w", o.workerID, o.rank, err)
	}
	err = w.beat(ctx)
	_, other := err.(*OwnerError)
	if other {
		halt()
	}
	_ = svc.Stop() // fails only where the connection is gone
	if err == nil || other {
		w.withdraw() // a successor may come as soon as we have left
		w.send(StateLeaving)
	}
	return err
}

// register lets an owned rank publish, once it is on record where that is asked
// for. It does not wait: heartbeats go out meanwhile. withdraw ends that, and
// takes the rank off the record; it may be called twice.
func (s *service) register(ctx context.Context, o *Outbox) (withdraw func()) {
	if s.p.o.Register == nil {
		s.p.own(o)
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		remove, err := s.p.o.Register(ctx, o)
		if err != nil {
			return // ctx has ended
		}
		s.p.own(o)
		<-ctx.Done()
		remove()
	}()
	return func() { cancel(); <-done }
}

// add registers the recovery service of a rank.
func (s *service) add(ctx context.Context, nc *nats.Conn, o *Outbox) (micro.Service, error) {
	r := newRecovery(o)
	meta := map[string]string{
		"worker_id":    strconv.FormatUint(o.workerID, 10),
		"dp_rank":      strconv.FormatUint(uint64(o.rank), 10),
		"publisher_id": strconv.FormatUint(o.PublisherID(), 10),
		"profile":      s.p.o.Profile.String(),
	}
	cfg := micro.Config{
		Name:        serviceName,
		Version:     s.p.o.Version,
		Description: "KV-cache router events that a consumer missed, and snapshots of what is published",
		Metadata:    meta,
	}
	svc, err := micro.AddService(nc, cfg)
	if errors.Is(err, micro.ErrConfigValidation) { // of a build without a version
		cfg.Version = noVersion
		svc, err = micro.AddService(nc, cfg)
	}
	if err != nil {
		return nil, err
	}
	err = svc.AddEndpoint("recover", micro.HandlerFunc(func(req micro.Request) {
		s.answer <- struct{}{}
		defer func() { <-s.answer }()
		r.respond(req, nc.MaxPayload())
	}), micro.WithEndpointSubject(o.serviceSubject("recover")), micro.WithEndpointMetadata(meta),
		micro.WithEndpointPendingLimits(waitingRequests, waitingBytes))
	if err != nil {
		_ = svc.Stop() // the first error is the cause
		return nil, err
	}
	_ = flush(ctx, nc) // a link that is down subscribes again when it is back
	return svc, nil
}

// flush waits for the server, at most for flushTimeout and until ctx ends.
func flush(ctx context.Context, nc *nats.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	return nc.FlushWithContext(ctx)
}
