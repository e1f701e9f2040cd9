package sinks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	nc     *nats.Conn
	answer chan struct{} // a token per answer being made
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
	s := &service{p: p, answer: make(chan struct{}, maxAnswers)}
	// The connection outlives ctx, once it is there: the last heartbeats need it.
	lctx, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	defer hangUp()
	dialling := context.AfterFunc(ctx, hangUp)
	dead, err := s.connect(lctx)
	if err != nil {
		return nil // ctx has ended
	}
	dialling()
	var late *time.Timer // ends what still writes
	defer func() {
		s.nc.Close()
		<-dead
		late.Stop()
	}()
	tctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for tctx.Err() == nil {
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
		}
	}
	// A write to a link that takes nothing any more must not hold up the end.
	late = time.AfterFunc(flushTimeout/2, hangUp)
	wg.Wait()
	if s.nc.IsConnected() {
		_ = s.nc.FlushTimeout(flushTimeout / 4) // the last heartbeats; they may be missed
	}
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

// connect makes the connection. It ends with an error only when ctx does.
func (s *service) connect(ctx context.Context) (dead <-chan struct{}, err error) {
	backoff := s.p.timing.minBackoff
	for {
		if dead, err = s.dial(ctx); err == nil {
			return dead, nil
		}
		// The publishing connection tells of the same trouble.
		s.p.o.Logger.Debug("no connection for heartbeats and recovery yet", "error", err)
		select {
		case <-time.After(backoff/2 + rand.N(backoff/2)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		backoff = min(2*backoff, s.p.timing.maxBackoff)
	}
}

func (s *service) dial(ctx context.Context) (<-chan struct{}, error) {
	p := s.p
	var mu sync.Mutex
	var told time.Time
	nc, dead, err := reconnecting(ctx, &p.o, &p.timing, "service", func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); now.Sub(told) >= repeatLog {
			told = now
			p.o.Logger.Warn("heartbeats or the recovery service have trouble: consumers may not notice what they miss; are kvrelay's own subjects allowed?",
				"subjects", p.rankSubject("*", "*", "heartbeat")+", "+p.rankSubject("*", "*", "recover"), "error", err)
		}
	})
	if err != nil {
		return nil, err
	}
	s.nc = nc
	return dead, nil
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
	sub, err := w.subscribe()
	if err != nil {
		return fmt.Errorf("listening to the heartbeats of worker %d, rank %d: %w", o.workerID, o.rank, err)
	}
	defer sub.Unsubscribe()
	if owned, err := w.own(ctx); err != nil || !owned {
		return err
	}
	withdraw := s.register(ctx, o)
	defer withdraw()
	select {
	case <-o.placed:
	case <-o.gone:
		return nil
	case <-ctx.Done():
		return nil
	}
	svc, err := s.add(ctx, o)
	if err != nil {
		return fmt.Errorf("the recovery service of worker %d, rank %d: %w", o.workerID, o.rank, err)
	}
	if err = w.beat(ctx); err != nil {
		halt()
	}
	_ = svc.Stop() // fails only where the connection is gone
	withdraw()     // a successor may come as soon as we have left
	w.send(StateLeaving)
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
func (s *service) add(ctx context.Context, o *Outbox) (micro.Service, error) {
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
	svc, err := micro.AddService(s.nc, cfg)
	if errors.Is(err, micro.ErrConfigValidation) { // of a build without a version
		cfg.Version = noVersion
		svc, err = micro.AddService(s.nc, cfg)
	}
	if err != nil {
		return nil, err
	}
	err = svc.AddEndpoint("recover", micro.HandlerFunc(func(req micro.Request) {
		s.answer <- struct{}{}
		defer func() { <-s.answer }()
		r.respond(req, s.nc.MaxPayload())
	}), micro.WithEndpointSubject(o.serviceSubject("recover")), micro.WithEndpointMetadata(meta),
		micro.WithEndpointPendingLimits(waitingRequests, waitingBytes))
	if err != nil {
		_ = svc.Stop() // the first error is the cause
		return nil, err
	}
	_ = s.flush(ctx) // a link that is down subscribes again when it is back
	return svc, nil
}

// flush waits for the server, at most for flushTimeout and until ctx ends.
func (s *service) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	return s.nc.FlushWithContext(ctx)
}
