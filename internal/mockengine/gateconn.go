package mockengine

import (
	"encoding/binary"
	"net"
	"time"
)

// gateConn is a connection of a Gate. One goroutine may read and any may write.
type gateConn struct {
	net.Conn
	gate    *Gate
	writing chan struct{} // held by the writer; guards track

	// guarded by gate.mu
	frozen   bool
	halfOpen bool
	closed   bool
	left     int64 // bytes that may still go to the client; negative: any number
	end      Ending

	track frameTracker // of what was written
}

// thawed waits until the connection may go on. False: it is closed.
func (c *gateConn) thawed() bool {
	g := c.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	for c.frozen && !c.closed {
		g.wake.Wait()
	}
	return !c.closed
}

func (c *gateConn) Read(p []byte) (int, error) {
	if !c.thawed() {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Read(p)
	// What came in while the gate froze is seen when it thaws, as is an end.
	if !c.thawed() {
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *gateConn) Write(p []byte) (int, error) {
	c.writing <- struct{}{}
	defer func() { <-c.writing }()
	if !c.thawed() {
		return 0, net.ErrClosed
	}
	allowed, limited := c.allow(len(p))
	n, err := c.Conn.Write(p[:allowed])
	c.track.wrote(p[:n])
	if err != nil || !limited {
		return n, err
	}
	c.endLimit()
	c.thawed() // a connection that stands still keeps its writer until it is closed
	return n, net.ErrClosed
}

// allow takes up to n bytes from what is left to write; limited: it was fewer.
func (c *gateConn) allow(n int) (allowed int, limited bool) {
	g := c.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.left < 0 {
		return n, false
	}
	allowed = int(min(int64(n), c.left))
	c.left -= int64(allowed)
	return allowed, allowed < n
}

func (c *gateConn) endLimit() {
	g := c.gate
	g.mu.Lock()
	end := c.end
	if end == EndFreeze {
		c.halfOpen, c.frozen = true, true
	}
	g.mu.Unlock()
	if end == EndClose {
		_ = c.Close() // its user sees the closed connection
	}
}

// cut closes the connection, in the middle of a frame when asked for.
func (c *gateConn) cut(midFrame bool) {
	if midFrame {
		t := time.NewTimer(cutPatience)
		defer t.Stop()
		select {
		case c.writing <- struct{}{}:
			if c.track.between() {
				// The head of a long frame of 64 KiB and a few of its bytes.
				head := append([]byte{0x02, 0, 0, 0, 0, 0, 1, 0, 0}, make([]byte, 100)...)
				_ = c.Conn.SetWriteDeadline(time.Now().Add(cutPatience))
				_, _ = c.Conn.Write(head) // when it cannot be written the peer is not reading: closing is all that is left
			}
			defer func() { <-c.writing }()
		case <-t.C:
		}
	}
	_ = c.Close() // nothing to lose any more
}

// Close closes the connection; a half-open one only for its own side: the
// client never learns.
func (c *gateConn) Close() error {
	g := c.gate
	g.mu.Lock()
	if c.halfOpen {
		g.mu.Unlock()
		return nil
	}
	c.closed = true
	delete(g.conns, c)
	g.wake.Broadcast()
	g.mu.Unlock()
	return c.Conn.Close()
}

// frameTracker follows ZMTP's framing in a stream of bytes to know whether it
// stands between two frames.
type frameTracker struct {
	greeting int    // bytes of the greeting still to come
	head     []byte // of the frame that began, until it is whole
	body     uint64 // bytes of the frame still to come
}

const (
	zmtpGreeting = 64
	longFrame    = 0x02
)

func (t *frameTracker) wrote(p []byte) {
	if t.greeting > 0 {
		n := min(t.greeting, len(p))
		t.greeting -= n
		p = p[n:]
	}
	for len(p) > 0 {
		if t.body > 0 {
			n := min(t.body, uint64(len(p)))
			t.body -= n
			p = p[n:]
			continue
		}
		t.head = append(t.head, p[0])
		p = p[1:]
		switch {
		case len(t.head) == 2 && t.head[0]&longFrame == 0:
			t.body = uint64(t.head[1])
			t.head = t.head[:0]
		case len(t.head) == 9:
			t.body = binary.BigEndian.Uint64(t.head[1:])
			t.head = t.head[:0]
		}
	}
}

// between reports whether the greeting is over and no frame is open.
func (t *frameTracker) between() bool { return t.greeting == 0 && len(t.head) == 0 && t.body == 0 }
