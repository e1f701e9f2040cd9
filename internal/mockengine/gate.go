package mockengine

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Gate is a listener whose connections can be cut in mid-frame, frozen, left
// half open, ended after so many bytes, or refused. Its address stays the same
// throughout. All methods are safe for concurrent use.
type Gate struct {
	mu      sync.Mutex
	wake    sync.Cond // on mu; any change of the fields below
	addr    string    // as asked for; after the first Listen the address that it was
	ln      net.Listener
	conns   map[*gateConn]struct{}
	refused bool
	frozen  bool
	closed  bool
}

// cutPatience is how long a cut waits for a write that is under way. A peer
// that does not read keeps it busy for ever; such a write is in mid-frame itself.
const cutPatience = 100 * time.Millisecond

// admitPatience is how long Admit tries to get its port back: a connection of
// somebody else may have taken it as its own end meanwhile.
const admitPatience = 5 * time.Second

// NewGate makes a gate for a TCP address; port 0 is a free one. It does no I/O.
func NewGate(addr string) *Gate {
	g := &Gate{addr: addr, conns: map[*gateConn]struct{}{}}
	g.wake.L = &g.mu
	return g
}

// Listen binds the address. Without effect after Refuse, which Admit alone ends:
// whoever serves may begin later than somebody refuses.
func (g *Gate) Listen() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ln != nil || g.refused {
		return nil
	}
	return g.listen()
}

func (g *Gate) listen() error {
	if g.closed {
		return net.ErrClosed
	}
	ln, err := net.Listen("tcp", g.addr)
	if err != nil {
		return fmt.Errorf("binding: %w", err)
	}
	g.ln, g.addr, g.refused = ln, ln.Addr().String(), false
	g.wake.Broadcast()
	return nil
}

// Addr is the bound host:port; before Listen the one asked for.
func (g *Gate) Addr() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.addr
}

// Accept waits for the next connection, over any number of Refuse and Admit.
// net.ErrClosed after Close.
func (g *Gate) Accept() (net.Conn, error) {
	for {
		g.mu.Lock()
		for !g.closed && (g.ln == nil || g.frozen) {
			g.wake.Wait()
		}
		ln, closed := g.ln, g.closed
		g.mu.Unlock()
		if closed {
			return nil, net.ErrClosed
		}
		nc, err := ln.Accept()
		g.mu.Lock()
		switch {
		case err == nil && !g.closed && ln == g.ln:
			c := &gateConn{Conn: nc, gate: g, writing: make(chan struct{}, 1), left: -1, track: frameTracker{greeting: zmtpGreeting}}
			g.conns[c] = struct{}{}
			// A connection that came while the gate froze is frozen with the rest.
			c.frozen = g.frozen
			g.mu.Unlock()
			return c, nil
		case err == nil: // came in while the gate closed
			_ = nc.Close()
		case !g.closed && ln == g.ln:
			g.mu.Unlock()
			return nil, fmt.Errorf("accepting: %w", err)
		}
		g.mu.Unlock()
	}
}

// Refuse closes the listener, so that connecting is refused; open connections
// stay.
func (g *Gate) Refuse() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ln == nil {
		return // nothing listens: a gate that was never bound is not bound by Admit either
	}
	_ = g.ln.Close() // unblocks Accept; nothing to lose
	g.ln, g.refused = nil, true
	g.wake.Broadcast()
}

// Admit ends Refuse: the same address listens again.
func (g *Gate) Admit() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ln != nil || !g.refused {
		return nil
	}
	deadline := time.Now().Add(admitPatience)
	for {
		err := g.listen()
		if err == nil || errors.Is(err, net.ErrClosed) || time.Now().After(deadline) {
			return err
		}
		t := time.AfterFunc(10*time.Millisecond, g.wake.Broadcast)
		g.wake.Wait()
		t.Stop()
		if g.ln != nil {
			return nil // another Admit was first
		}
	}
}

// Freeze makes the gate stand still as a stopped process does: the kernel
// still takes connections and bytes, nothing is read, written or closed.
func (g *Gate) Freeze() { g.setFrozen(true) }

// Thaw ends Freeze. Connections that HalfOpen left behind stay as they are.
func (g *Gate) Thaw() { g.setFrozen(false) }

func (g *Gate) setFrozen(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.frozen = on
	for c := range g.conns {
		c.frozen = on || c.halfOpen
	}
	g.wake.Broadcast()
}

// HalfOpen leaves the open connections as a host does that lost its power:
// never another byte, never a close. New connections are served. They are held
// until the gate closes; their number is bounded by that of the clients.
func (g *Gate) HalfOpen() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.conns {
		c.halfOpen, c.frozen = true, true
	}
	g.wake.Broadcast()
}

// Cut closes the open connections. With midFrame the client is left with the
// beginning of a frame that never ends. Half-open ones stay.
func (g *Gate) Cut(midFrame bool) {
	for _, c := range g.open() {
		c.cut(midFrame)
	}
}

// Ending is what happens to a connection that has used up its Limit.
type Ending uint8

const (
	EndClose  Ending = iota // it is closed
	EndFreeze               // it stands still for good
)

// Limit lets n more bytes through to each client on the connections open now,
// then ends them.
func (g *Gate) Limit(n int64, end Ending) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.conns {
		c.left, c.end = n, end
	}
}

// Conns is the number of open connections, half-open ones included.
func (g *Gate) Conns() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.conns)
}

func (g *Gate) open() []*gateConn {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]*gateConn, 0, len(g.conns))
	for c := range g.conns {
		if !c.halfOpen {
			out = append(out, c)
		}
	}
	return out
}

// Close ends the listener and every connection.
func (g *Gate) Close() error {
	g.mu.Lock()
	g.closed = true
	var err error
	if g.ln != nil {
		err = g.ln.Close()
	}
	g.ln = nil
	conns := make([]*gateConn, 0, len(g.conns))
	for c := range g.conns {
		c.halfOpen = false
		conns = append(conns, c)
	}
	g.wake.Broadcast()
	g.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // the first error is the listener's
	}
	return err
}
