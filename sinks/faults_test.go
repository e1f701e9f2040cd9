package sinks

import (
	"context"
	"math/rand/v2"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"
)

// TestServerRestarts: the server is killed and comes back under load. What it
// had not confirmed comes to the next one, in order.
func TestServerRestarts(t *testing.T) {
	s := startServer(t, nil)
	x := startProxy(t, s.Addr().String())
	x.freeze()
	p := newTest(t, Options{Servers: []string{x.url()}})
	p.timing = quick
	o := open(t, p, 42, 0, nil)
	run(t, p)
	w := newWorkload(11)
	const lives = 15
	for life := range lives {
		// A consumer that is there before the publisher, and may know what was
		// confirmed: NATS core forgets that with the server.
		c := follow(t, connect(t, s.ClientURL()), o.Subject(), Dynamo)
		c.mu.Lock()
		c.last[o.PublisherID()] = o.Confirmed()
		c.order = append(c.order, o.PublisherID())
		c.mu.Unlock()
		before := o.Confirmed()
		x.thaw()
		for range 300 {
			o.Append(Place{}, w.events(3))
			if w.r.IntN(20) == 0 {
				<-time.After(time.Millisecond)
			}
		}
		eventually(t, "progress", func() bool { return o.Confirmed() > before })
		if life == lives-1 {
			drained(t, p)
			eventually(t, "the last event", func() bool { return c.lastOf(o.PublisherID()) == o.LastID() })
			break
		}
		x.freeze() // nothing gets through to the next server before its consumer is there
		x.cut()
		stopServer(s)
		s = startServer(t, nil)
		x.set(s.Addr().String(), 0)
	}
	if n := p.State().Reconnects; n < lives-1 {
		t.Errorf("%d reconnects", n)
	}
}

// TestFrozenLink: the peer stops reading for longer than a write may take, and
// goes on, before or after the link is given up.
func TestFrozenLink(t *testing.T) {
	s := startServer(t, nil)
	x := startProxy(t, s.Addr().String())
	p := newTest(t, Options{Servers: []string{x.url()}, Dial: smallBuffers})
	p.timing = quick
	o := open(t, p, 42, 0, nil)
	c := follow(t, connect(t, s.ClientURL()), o.Subject(), Dynamo)
	run(t, p)
	want := fold{}
	w := newWorkload(5)
	w.large = 200
	for i := range 6 {
		eventually(t, "a link", func() bool { return p.State().Connected })
		x.freeze()
		start := time.Now()
		for range 500 {
			evs := w.events(4)
			for k := range evs {
				want.apply(&evs[k])
			}
			o.Append(Place{}, evs)
			p.State()
		}
		if d := time.Since(start); d > patience/2 {
			t.Fatalf("appending waited %v for a frozen link", d)
		}
		if i%2 == 0 { // thaw while the link is still there, or after it was given up
			<-time.After(time.Duration(i*40) * time.Millisecond)
		} else {
			eventually(t, "the link's end", func() bool { return !p.State().Connected })
		}
		x.thaw()
	}
	drained(t, p)
	arrived(t, c, o, want)
}

// TestFailedWrites: a write that fails before its first byte makes nats.go drop
// what it had buffered and keep the connection, and a PONG of a later PING is
// taken for that of the one that was dropped. Nothing of it may be confirmed.
func TestFailedWrites(t *testing.T) {
	s := startServer(t, nil)
	r := rand.New(rand.NewPCG(1, 1))
	p := newTest(t, Options{Servers: []string{s.ClientURL()}, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &failingConn{Conn: c, writes: int32(3 + r.IntN(12))}, nil
	}})
	p.timing = quick
	p.timing.ping = 20 * time.Millisecond
	o := open(t, p, 42, 0, nil)
	c := follow(t, connect(t, s.ClientURL()), o.Subject(), Dynamo)
	run(t, p)
	w := newWorkload(6)
	want := fold{}
	for end := time.Now().Add(patience); p.State().Reconnects < 150; {
		if time.Now().After(end) {
			t.Fatalf("%d links broke", p.State().Reconnects)
		}
		evs := w.events(2)
		for k := range evs {
			want.apply(&evs[k])
		}
		o.Append(Place{}, evs)
		<-time.After(time.Duration(w.r.IntN(1500)) * time.Microsecond)
	}
	drained(t, p)
	arrived(t, c, o, want)
}

// failingConn fails its n-th write, once.
type failingConn struct {
	net.Conn
	writes int32
}

func (c *failingConn) Write(b []byte) (int, error) {
	if atomic.AddInt32(&c.writes, -1) == 0 {
		return 0, os.ErrDeadlineExceeded
	}
	return c.Conn.Write(b)
}

// TestSlowLink: a link far slower than the socket buffers are deep makes
// progress, and neither appending nor State waits for it.
func TestSlowLink(t *testing.T) {
	s := startServer(t, nil)
	x := startProxy(t, s.Addr().String())
	x.set(s.Addr().String(), 600<<10)
	p := newTest(t, Options{Servers: []string{x.url()}})
	p.timing = quick // a PONG must come within 600 ms, a window's worth of data too
	o := open(t, p, 42, 0, nil)
	c := follow(t, connect(t, s.ClientURL()), o.Subject(), Dynamo)
	run(t, p)
	eventually(t, "a link", func() bool { return p.State().Connected })
	want := feed(o, 3, 1500, func() { p.State() })
	if n := p.State().UnconfirmedBytes; n < 1<<20 {
		t.Fatalf("only %d bytes waiting: the link is not slow", n)
	}
	drained(t, p)
	arrived(t, c, o, want)
	if n := p.State().Reconnects; n > 3 {
		t.Errorf("%d reconnects: the window does not find its size", n)
	}
}
