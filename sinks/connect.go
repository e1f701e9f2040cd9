package sinks

import (
	"context"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Connect makes one connection to o's servers for what is no event: it sends
// nothing later that it cannot send now, and connects again by itself until the
// caller closes it; dead is closed then. It is closed, too, when the server sends
// an error that nats.go does not come back from, such as that of a message above
// a max_payload that a reload has lowered, and when it has come back to a server
// that is tooNarrow. When ctx ends its link is cut, for
// good. purpose is its name in NATS' monitoring, behind o.Name; trouble is called
// with what goes wrong on it, such as a subscription that is not permitted, and
// must not block. The error says in one line what to change.
func Connect(ctx context.Context, o Options, purpose string, trouble func(error)) (nc *nats.Conn, dead <-chan struct{}, err error) {
	if o, err = o.withDefaults(); err != nil {
		return nil, nil, err
	}
	t := usualTiming
	return reconnecting(ctx, &o, &t, purpose, trouble)
}

func reconnecting(ctx context.Context, o *Options, t *timing, purpose string, trouble func(error)) (nc *nats.Conn, dead <-chan struct{}, err error) {
	opts, err := o.Auth.Options()
	if err != nil {
		return nil, nil, err
	}
	d := &linkDialer{ctx: ctx, dial: o.Dial, timeout: t.dial}
	closed := make(chan struct{})
	opts = append(opts,
		nats.Name(o.Name+" "+purpose),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(), // secrets may be rotated
		nats.ReconnectWait(t.minBackoff),
		nats.CustomReconnectDelay(func(attempts int) time.Duration {
			b := min(t.maxBackoff, t.minBackoff<<min(attempts, 10))
			return b/2 + rand.N(b/2)
		}),
		nats.ReconnectBufSize(-1), // an old heartbeat is worse than none
		nats.Timeout(t.dial),
		nats.FlusherTimeout(t.write),
		nats.PingInterval(t.ping),
		nats.MaxPingsOutstanding(pingsOut),
		nats.SetCustomDialer(d),
		nats.SkipHostLookup(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { trouble(err) }),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			if err := tooNarrow(nc, minMaxPayload); err != nil {
				trouble(err)
				nc.Close()
			}
		}),
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }),
	)
	if nc, err = nats.Connect(strings.Join(o.Servers, ","), opts...); err != nil {
		return nil, nil, o.Auth.explain(o.Servers, err, d.lastErr)
	}
	if err := tooNarrow(nc, minMaxPayload); err != nil {
		nc.Close()
		<-closed
		return nil, nil, err
	}
	return nc, closed, nil
}
