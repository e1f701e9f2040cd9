package zmtp

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// openDoor is a Door whose callers have an hour for their handshake.
func openDoor(t *testing.T) (d *Door, refused *atomic.Int64) {
	t.Helper()
	refused = new(atomic.Int64)
	d, err := Open(t.Context(), "tcp://127.0.0.1:*", func() Options {
		return Options{Type: SUB, Heartbeat: -1, HandshakeTimeout: time.Hour}
	}, func(net.Addr) { refused.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d, refused
}

func (d *Door) caller(t *testing.T) *peer {
	t.Helper()
	nc, err := net.Dial("tcp", d.ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return newPeer(t, nc)
}

func (d *Door) next(t *testing.T) (*Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return d.Next(ctx)
}

// gone waits until the connection is ended by the other side.
func (p *peer) gone() {
	p.t.Helper()
	if _, err := io.Copy(io.Discard, p.br); errors.Is(err, os.ErrDeadlineExceeded) {
		p.t.Errorf("the connection stays: %v", err)
	}
}

// A publisher gets in however many silent strangers there are; the oldest of too many goes.
func TestDoorSilentStrangers(t *testing.T) {
	d, refused := openDoor(t)
	oldest := d.caller(t)
	for range maxCallers {
		d.caller(t)
	}
	oldest.gone()
	if c, err := d.next(t); c != nil || !errors.Is(err, ErrHandshake) || !errors.Is(err, errCrowded) || !strings.Contains(err.Error(), oldest.LocalAddr().String()) {
		t.Fatalf("%v, want the oldest stranger's end", err)
	}
	p := d.caller(t)
	if !p.greet("PUB") {
		t.Fatal("the publisher is not let in")
	}
	var c *Conn
	for c == nil {
		var err error
		if c, err = d.next(t); err != nil && !errors.Is(err, errCrowded) {
			t.Fatal(err)
		}
	}
	defer c.Close()
	p.put(message("in"))
	if m, err := c.Recv(); err != nil || string(m[0]) != "in" {
		t.Errorf("%q, %v", m, err)
	}
	d.mu.Lock()
	waiting := len(d.callers)
	d.mu.Unlock()
	if waiting > maxCallers || refused.Load() != 0 {
		t.Errorf("%d callers, %d refused", waiting, refused.Load())
	}
}

// One peer has the door at a time, whoever is ready first; strangers before it are told.
func TestDoorOnePeer(t *testing.T) {
	d, refused := openDoor(t)
	d.caller(t).put([]byte("GET / HTTP/1.1\r\n\r\n"))
	if _, err := d.next(t); !errors.Is(err, ErrHandshake) || !strings.Contains(err.Error(), "GET /") {
		t.Errorf("a stranger: %v", err)
	}
	silent, first := d.caller(t), d.caller(t)
	if !first.greet("PUB") {
		t.Fatal("the first is not let in")
	}
	silent.gone() // it may call again
	second := d.caller(t)
	second.gone()
	if refused.Load() != 1 {
		t.Errorf("%d refused, want 1", refused.Load())
	}
	c, err := d.next(t)
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	if _, err := c.Recv(); err == nil {
		t.Error("a message of nobody")
	}
	c.Close()
	d.Leave()
	if !d.caller(t).greet("XPUB") {
		t.Error("the next is not let in")
	}
	if c, err = d.next(t); err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// Close ends what is on its way, and a peer that nobody has taken.
func TestDoorCloses(t *testing.T) {
	d, _ := openDoor(t)
	silent := d.caller(t)
	d.Close()
	silent.gone()
	if _, err := net.Dial("tcp", d.ln.Addr().String()); err == nil {
		t.Error("still open")
	}
	d, _ = openDoor(t)
	untaken := d.caller(t)
	if !untaken.greet("PUB") {
		t.Fatal("not let in")
	}
	eventually(t, "a peer that is ready", func() bool { return len(d.ready) == 1 })
	d.Close()
	untaken.gone()
}
