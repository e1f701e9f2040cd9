package sinks

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// countedConn counts the connections that are open.
type countedConn struct {
	net.Conn
	closed atomic.Bool
	open   *atomic.Int64
}

func (c *countedConn) Close() error {
	if !c.closed.Swap(true) {
		c.open.Add(-1)
	}
	return c.Conn.Close()
}

// TestNoConnectionIsLeft: while a proxy before NATS takes each connection and
// ends it before the greeting – as a load balancer does whose backend is away –
// no dialled connection stays open. nats.go does not close those of its own
// reconnecting; hours of it would take every descriptor.
func TestNoConnectionIsLeft(t *testing.T) {
	s := startServer(t, nil)
	var away atomic.Bool
	var open, dialled atomic.Int64
	closer, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := closer.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { closer.Close(); <-ended })
	var d net.Dialer
	var mu sync.Mutex
	var links []net.Conn
	p := newTest(t, Options{Servers: []string{s.ClientURL()}, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		if away.Load() {
			address = closer.Addr().String()
		}
		c, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		dialled.Add(1)
		open.Add(1)
		mu.Lock()
		links = append(links, c)
		mu.Unlock()
		return &countedConn{Conn: c, open: &open}, nil
	}})
	p.timing = brisk
	openRank(t, p, 7, 1, 50)
	run(t, p)
	nc := connect(t, s.ClientURL())
	served(t, nc, "kvrelay.dynamo.7.0.recover")
	before := open.Load()
	away.Store(true)
	base := dialled.Load()
	mu.Lock()
	for _, c := range links {
		_ = c.Close() // the link breaks; that nats.go then closes its side is what is counted
	}
	mu.Unlock()
	eventually(t, "30 dials in vain", func() bool { return dialled.Load() >= base+30 })
	if n := open.Load(); n > before {
		t.Errorf("%d connections are open after 30 dials in vain, %d before", n, before)
	}
	away.Store(false)
	eventually(t, "both connections again", func() bool { return open.Load() == before })
}
