package membership

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// goodbye bounds the wait for the server to have taken back a subscription.
const goodbye = 500 * time.Millisecond

var errNoLink = errors.New("there is no connection to NATS for recovery requests")

// natsLink is one connection. It reconnects by itself, but an error of the
// server that nats.go does not know closes it for good. Then there is another.
type natsLink struct {
	nc    *nats.Conn
	dead  <-chan struct{}
	began time.Time
}

// natsEars are the subjects that are listened to, from link to link.
type natsEars struct {
	heard nats.MsgHandler // called with what comes
	turn  chan struct{}   // a token for who subscribes: one subscription is made at a time
	deaf  chan struct{}   // capacity 1: the server has taken a subscription back

	lmu  sync.Mutex // guards what follows; never held while the network is waited for
	link *natsLink  // nil: none at present
	ears map[string]*ear
}

// ear is a subject that is to be listened to.
type ear struct {
	nc  *nats.Conn         // where sub is heard; nil: nowhere
	sub *nats.Subscription // the newest that a server has taken; nil: none
	why error              // of a refusal since listen began
}

// runNATS has routers ask over NATS until ctx ends, and waits for everything
// that it started. A connection that is closed for good is followed by another,
// on which all subjects are listened to again.
func (r *Registry) runNATS(ctx context.Context) {
	p := newNATSPlane(ctx, r.server)
	defer p.end()
	r.nats = p
	up := sync.OnceFunc(func() { close(r.up) })
	tell := func(err error) { r.tell("connecting to NATS for recovery requests", err) }
	trouble := func(err error) {
		p.refused(err)
		p.trouble(err)
	}
	for pause := retryAfter; ; pause = min(2*pause, retryMost) {
		l := &natsLink{}
		err := again(ctx, tell, func() (err error) {
			l.nc, l.dead, err = r.o.NATS(ctx, trouble)
			return err
		})
		if err != nil {
			return // ctx has ended
		}
		l.began = time.Now()
		p.use(l)
		r.log.Info("answering Dynamo routers' recovery requests over NATS", "server", l.nc.ConnectedUrlRedacted())
		up()
		p.keep(ctx, l)
		p.use(nil)
		if ctx.Err() != nil {
			l.nc.Close()
			<-l.dead
			return
		}
		r.log.Warn("the connection for recovery requests was closed for good: Dynamo routers are not answered until there is another",
			"error", cmp.Or(l.nc.LastError(), nats.ErrConnectionClosed))
		if time.Since(l.began) > retryMost {
			pause = retryAfter
		}
		if !sleep(ctx, pause/2+rand.N(pause/2)) { // what ended it may do so again at once
			return
		}
		tell = p.trouble // what is on record is there already
	}
}

// use makes l the present link; nil: there is none.
func (n *natsEars) use(l *natsLink) {
	n.lmu.Lock()
	defer n.lmu.Unlock()
	n.link = l
}

// keep has every subject be listened to on a new link, and returns when the link
// is dead or ctx has ended. What is refused, at once or later, is tried again.
func (p *natsPlane) keep(ctx context.Context, l *natsLink) {
	pause, next := retryAfter, time.After(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.dead:
			return
		case <-p.deaf:
			if next != nil {
				continue // it is asked for soon
			}
		case <-next:
			next = nil
			err := p.listenToAll(ctx)
			if err == nil || ctx.Err() != nil {
				continue
			}
			p.trouble(err)
		}
		next = time.After(pause/2 + rand.N(pause/2))
		pause = min(2*pause, retryMost)
	}
}

func (n *natsEars) listenToAll(ctx context.Context) (err error) {
	n.lmu.Lock()
	subjects := slices.Collect(maps.Keys(n.ears))
	n.lmu.Unlock()
	for _, s := range subjects {
		err = cmp.Or(err, n.listen(ctx, s)) // one that is refused does not keep the others out
	}
	return err
}

// hear has requests come on a subject of src, until deafen is called, which waits no
// longer than its ctx; there is nothing to do where they come over TCP. It returns
// when the server knows, or with ctx's error: what a router asks before that is lost.
func (r *Registry) hear(ctx context.Context, src Source, subject string) (deafen func(context.Context), err error) {
	if r.nats == nil {
		return func(context.Context) {}, nil
	}
	n := &r.nats.natsEars
	n.lmu.Lock()
	n.ears[subject] = &ear{}
	n.lmu.Unlock()
	err = r.retry(ctx, src, "listening for recovery requests", func() error { return n.listen(ctx, subject) })
	return func(ctx context.Context) { n.deafen(ctx, subject) }, err
}

// listen returns when the server has taken a subscription, now or before. No
// queue group: a subject belongs to one publisher.
func (n *natsEars) listen(ctx context.Context, subject string) error {
	select {
	case n.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-n.turn }()
	n.lmu.Lock()
	l, e := n.link, n.ears[subject]
	done := e == nil || l != nil && e.nc == l.nc // the former: nobody is to listen any more
	var old *nats.Subscription
	if e != nil {
		old, e.why = e.sub, nil
	}
	n.lmu.Unlock()
	switch {
	case done:
		return nil
	case l == nil:
		return errNoLink
	}
	if old != nil {
		_ = old.Unsubscribe() // one that was refused; fails where its link has gone
	}
	sub, err := n.subscribe(ctx, l.nc, subject)
	if errors.Is(err, nats.ErrMaxSubscriptionsExceeded) && time.Since(l.began) > repeatLog {
		l.nc.Close() // its limit stays that of its beginning, and its last error the same
	}
	if sub == nil {
		return err
	}
	if err == nil {
		n.lmu.Lock()
		err = e.why
		if done = err == nil && n.ears[subject] == e; done {
			e.nc, e.sub = l.nc, sub
		}
		n.lmu.Unlock()
	}
	if !done {
		_ = sub.Unsubscribe() // fails where the link has gone
	}
	return err
}

// subscribe returns when the server has answered.
func (n *natsEars) subscribe(ctx context.Context, nc *nats.Conn, subject string) (*nats.Subscription, error) {
	before := nc.LastError() // stays until the link is another
	sub, err := nc.Subscribe(subject, n.heard)
	if err != nil {
		return nil, err
	}
	if err := sub.SetPendingLimits(waitingRequests, waitingBytes); err != nil {
		return sub, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	if err := nc.FlushWithContext(ctx); err != nil {
		return sub, err
	}
	// A refusal comes before the answer to the flush.
	switch err := nc.LastError(); {
	case errors.Is(err, nats.ErrMaxSubscriptionsExceeded): // now, or before: which one is not said
		return sub, fmt.Errorf("raise max_subscriptions of the NATS server, or the account's limit: %w", err)
	case err != before && refuses(err, subject):
		return sub, notAllowed(err)
	}
	return sub, nil
}

func notAllowed(err error) error {
	return fmt.Errorf("allow the relay's NATS user to subscribe there: %w", err)
}

// refuses says whether err is that a subject may not be subscribed to.
func refuses(err error, subject string) bool {
	return errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), `Subscription to "`+subject+`"`)
}

// refused notes what the server has taken back, as it does when its permissions
// change. It does not tell when they change again, so that is asked for.
func (n *natsEars) refused(err error) {
	n.lmu.Lock()
	defer n.lmu.Unlock()
	for subject, e := range n.ears {
		if !refuses(err, subject) {
			continue
		}
		if e.why = notAllowed(err); e.nc != nil {
			e.nc = nil
			select {
			case n.deaf <- struct{}{}:
			default:
			}
		}
	}
}

// deafen ends hearing a subject.
func (n *natsEars) deafen(ctx context.Context, subject string) {
	n.lmu.Lock()
	e := n.ears[subject]
	delete(n.ears, subject)
	n.lmu.Unlock()
	if e == nil || e.sub == nil || e.sub.Unsubscribe() != nil || e.nc == nil || !e.nc.IsConnected() {
		return
	}
	// So that who still asks is told by the server, instead of waiting.
	ctx, cancel := context.WithTimeout(ctx, goodbye)
	defer cancel()
	_ = e.nc.FlushWithContext(ctx) // nothing is lost without it
}
