package mockengine

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
)

// Proxy is a Gate in front of another TCP server, such as a real libzmq peer
// in another process: what the Gate does, the other server's clients see.
type Proxy struct {
	*Gate

	mu     sync.Mutex
	target string
}

// NewProxy makes a proxy that listens on addr (port 0: a free one) and connects
// each client to target, host:port. It does no I/O.
func NewProxy(addr, target string) *Proxy {
	return &Proxy{Gate: NewGate(addr), target: target}
}

// SetTarget sends later clients to another server; open connections stay.
func (p *Proxy) SetTarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Run serves until ctx ends, then closes every connection and waits for them.
// It listens when Listen has not been called. A target that cannot be reached
// costs the client its connection.
func (p *Proxy) Run(ctx context.Context) error {
	if err := p.Listen(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = p.Close() }) // the listener's end is what was wanted
	defer stop()
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		client, err := p.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			cancel()
			return errors.Join(err, p.Close())
		}
		clients.Go(func() { p.serve(ctx, client) })
	}
}

// serve copies both ways until one side ends, then ends the other.
func (p *Proxy) serve(ctx context.Context, client net.Conn) {
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	defer func() { _ = client.Close() }() // its end is not news
	var d net.Dialer
	server, err := d.DialContext(ctx, "tcp", target)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }() // likewise
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(server, client) // how a connection ended is the peers' business
		_ = server.Close()
	})
	_, _ = io.Copy(client, server)
	_ = client.Close()
	up.Wait()
}
