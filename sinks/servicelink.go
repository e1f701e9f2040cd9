package sinks

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
)

// serviceLink is one connection. It reconnects by itself, but an error of the
// server that nats.go does not know closes it for good, such as that of an
// answer above a max_payload that a reload has lowered. Then there is another.
type serviceLink struct {
	nc   *nats.Conn
	dead <-chan struct{}
}

// set makes l the present link; nil: none.
func (s *service) set(l *serviceLink) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != l {
		s.link = l
		close(s.changed)
		s.changed = make(chan struct{})
	}
}

// await is the present link; nil when ctx or the outbox ended before there was one.
func (s *service) await(ctx context.Context, o *Outbox) *serviceLink {
	for {
		s.mu.Lock()
		l, changed := s.link, s.changed
		s.mu.Unlock()
		if l != nil && !l.nc.IsClosed() {
			return l
		}
		select {
		case <-changed:
		case <-o.gone:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// connect makes a link that lives until lctx ends; nil when ctx has ended before.
func (s *service) connect(ctx, lctx context.Context, hangUp func()) *serviceLink {
	defer context.AfterFunc(ctx, hangUp)()
	for {
		nc, dead, err := reconnecting(lctx, &s.p.o, &s.p.timing, "service", s.trouble)
		if err == nil {
			return &serviceLink{nc, dead}
		}
		// The publishing connection tells of the same trouble.
		s.p.o.Logger.Debug("no connection for heartbeats and recovery yet", "error", err)
		if !s.pause(lctx) {
			return nil
		}
	}
}

// pause waits before the next dial; false when ctx has ended.
func (s *service) pause(ctx context.Context) bool {
	backoff := s.backoff
	s.backoff = min(2*backoff, s.p.timing.maxBackoff)
	select {
	case <-time.After(backoff/2 + rand.N(backoff/2)):
		return true
	case <-ctx.Done():
		return false
	}
}

// trouble tells what goes wrong on a link. A subscription that is refused is
// missing until it is made on another link: the server does not tell when it may be.
func (s *service) trouble(err error) {
	if errors.Is(err, nats.ErrMaxSubscriptionsExceeded) || refusedSubscription(err) {
		select {
		case s.deaf <- struct{}{}:
		default:
		}
	}
	select {
	case s.sick <- struct{}{}:
	default:
	}
	if e := limited(redactAll(s.p.o.Servers), err); e != nil {
		err = e
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Sub(s.told) >= repeatLog {
		s.told = now
		s.p.o.Logger.Warn("heartbeats or the recovery service have trouble: consumers may not notice what they miss; are kvrelay's own subjects allowed?",
			"subjects", s.p.rankSubject("*", "*", "heartbeat")+", "+s.p.rankSubject("*", "*", "recover"), "error", err)
	}
}

// well tells that a trouble that was told is over.
func (s *service) well() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.told.IsZero() {
		s.told = time.Time{} // what comes next is news
		s.p.o.Logger.Info("heartbeats and the recovery service work again")
	}
}
