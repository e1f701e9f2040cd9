package mockengine

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
)

// echo serves what a gate accepts: every byte comes back.
func echo(t *testing.T) *Gate {
	t.Helper()
	g := NewGate("127.0.0.1:0")
	if err := g.Listen(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() {
		_ = g.Close()
		<-ended
	})
	go func() {
		defer close(ended)
		done := make(chan struct{}, 100)
		n := 0
		for {
			c, err := g.Accept()
			if err != nil {
				break
			}
			n++
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
				done <- struct{}{}
			}()
		}
		for range n {
			<-done
		}
	}()
	return g
}

func connect(t *testing.T, g *Gate) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", g.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return c
}

// say sends text and expects it back.
func say(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("came back %q, %v; want %q", got, err, text)
	}
}

// still expects that nothing comes for a while: a state of which there is no event.
func still(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %d bytes, %v, where everything should stand still", n, err)
	}
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
}

func TestGateRefuseAdmit(t *testing.T) {
	g := echo(t)
	addr := g.Addr()
	c := connect(t, g)
	say(t, c, "before")
	for range 3 {
		g.Refuse()
		if err := g.Listen(); err != nil { // as a Proxy does whose Run begins now
			t.Fatal(err)
		}
		if _, err := net.Dial("tcp", addr); err == nil {
			t.Fatal("connected to a gate that refuses")
		}
		say(t, c, "an open connection stays")
		if err := g.Admit(); err != nil {
			t.Fatal(err)
		}
		say(t, connect(t, g), "again")
	}
	if g.Addr() != addr {
		t.Errorf("address moved from %s to %s", addr, g.Addr())
	}
}

func TestGateNeverBound(t *testing.T) {
	g := NewGate("127.0.0.1:0")
	g.Refuse()
	if err := g.Admit(); err != nil || g.Addr() != "127.0.0.1:0" {
		t.Errorf("a gate that never listened listens at %s, %v", g.Addr(), err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if _, err := g.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
	if err := g.Listen(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Listen after Close: %v", err)
	}
}

func TestGateFreeze(t *testing.T) {
	g := echo(t)
	c := connect(t, g)
	say(t, c, "before")
	g.Freeze()
	if _, err := io.WriteString(c, "held"); err != nil {
		t.Fatal(err)
	}
	still(t, c)
	late := connect(t, g) // the kernel takes it
	if _, err := io.WriteString(late, "late"); err != nil {
		t.Fatal(err)
	}
	still(t, late)
	g.Thaw()
	for c, want := range map[net.Conn]string{c: "held", late: "late"} {
		got := make([]byte, 4)
		if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
			t.Errorf("after Thaw %q, %v", got, err)
		}
		say(t, c, "after")
	}
}

func TestGateHalfOpen(t *testing.T) {
	g := echo(t)
	old := connect(t, g)
	say(t, old, "before")
	g.HalfOpen()
	if _, err := io.WriteString(old, "lost"); err != nil {
		t.Fatal(err)
	}
	still(t, old)
	say(t, connect(t, g), "a new one is served")
	g.Freeze()
	g.Thaw()
	g.Cut(false)
	still(t, old) // neither heals it nor closes it
	if g.Conns() != 1 {
		t.Errorf("%d connections, want the half-open one", g.Conns())
	}
}

func TestGateLimit(t *testing.T) {
	for end, name := range []string{EndClose: "close", EndFreeze: "freeze"} {
		t.Run(name, func(t *testing.T) {
			g := echo(t)
			c := connect(t, g)
			say(t, c, "before")
			g.Limit(7, Ending(end))
			say(t, c, "1234")
			if _, err := io.WriteString(c, "56789"); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 3)
			if _, err := io.ReadFull(c, got); err != nil || string(got) != "567" {
				t.Fatalf("read %q, %v", got, err)
			}
			if Ending(end) == EndFreeze {
				still(t, c)
				return
			}
			if _, err := c.Read(got); err == nil {
				t.Error("the connection is still open")
			}
		})
	}
}

// TestCutMidFrame: what a client got ends in the middle of a frame, whether
// the engine was idle or its client did not read.
func TestCutMidFrame(t *testing.T) {
	for _, busy := range []bool{false, true} {
		p := publisher(t, PublisherOptions{})
		c := subscribe(t, p, p.eventEndpoint(), "")
		if busy {
			for range 200 {
				p.Publish(make([]byte, 1<<20)) // until the kernel takes no more
			}
		} else {
			p.Publish([]byte("whole"))
			if err := p.Flush(timeout(t)); err != nil {
				t.Fatal(err)
			}
		}
		p.Cut()
		rest, err := io.ReadAll(c.nc)
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !strings.Contains(err.Error(), "reset") {
			t.Fatal(err)
		}
		// The greeting and READY were read by the handshake.
		track := frameTracker{}
		track.wrote(rest)
		if track.between() || len(rest) == 0 {
			t.Errorf("busy %v: %d bytes end between two frames", busy, len(rest))
		}
		// The engine goes on.
		next := subscribe(t, p, p.eventEndpoint(), "")
		want := p.Publish([]byte("next"))
		if got := seqs([][][]byte{next.recv()}); got[0] != want {
			t.Errorf("busy %v: after the cut came %d, want %d", busy, got[0], want)
		}
	}
}

func TestFrameTracker(t *testing.T) {
	short := []byte{0, 3, 'a', 'b', 'c'}
	long := append([]byte{longFrame, 0, 0, 0, 0, 0, 0, 1, 0}, make([]byte, 256)...)
	stream := bytes.Join([][]byte{make([]byte, zmtpGreeting), short, {1, 0}, long, {4, 1, 'x'}}, nil)
	ends := map[int]bool{64: true, 69: true, 71: true, 71 + 265: true, 71 + 268: true}
	for size := range 80 {
		track := frameTracker{greeting: zmtpGreeting}
		for i := 0; i < len(stream); {
			n := min(size+1, len(stream)-i)
			track.wrote(stream[i : i+n])
			if i += n; track.between() != ends[i] {
				t.Fatalf("pieces of %d: between frames at %d is %v", size+1, i, track.between())
			}
		}
	}
}

func TestProxy(t *testing.T) {
	p := publisher(t, PublisherOptions{})
	_, target, _ := strings.Cut(p.eventEndpoint(), "//")
	proxy := NewProxy("127.0.0.1:0", target)
	if err := proxy.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- proxy.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	c := subscribe(t, p, proxy.Addr(), "")
	p.Publish([]byte("through"))
	if got := c.recv(); string(got[2]) != "through" {
		t.Fatalf("received %q", got)
	}
	proxy.Cut(true)
	rest, _ := io.ReadAll(c.nc)
	track := frameTracker{}
	if track.wrote(rest); track.between() {
		t.Errorf("the cut left %x: no frame is open", rest)
	}
	eventually(t, "the server's side is closed as well", func() bool { return p.Subscribers() == 0 })

	// A target that is not there costs the client its connection, not the proxy.
	proxy.SetTarget("127.0.0.1:1")
	nc, err := net.Dial("tcp", proxy.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := io.ReadAll(nc); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Error(err)
	}
	proxy.SetTarget(target)
	again := subscribe(t, p, proxy.Addr(), "")
	p.Publish([]byte("again"))
	if got := again.recv(); string(got[2]) != "again" {
		t.Errorf("received %q", got)
	}
}

// TestHostileClients: whatever a client does, the others are served.
func TestHostileClients(t *testing.T) {
	p := publisher(t, PublisherOptions{})
	greeting := append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'}, make([]byte, 48)...)
	for name, bytes := range map[string][]byte{
		"nothing":        {},
		"HTTP":           []byte("GET / HTTP/1.1\r\n\r\n"),
		"2^62 header":    append(greeting, 0x06, 0x40, 0, 0, 0, 0, 0, 0, 0),
		"2 GB header":    append(greeting, 0x06, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff),
		"broken READY":   append(greeting, 0x04, 8, 5, 'R', 'E', 'A', 'D', 'Y', 0xff, 'x'),
		"long READY":     append(append(greeting, 0x06, 0, 0, 0, 0, 0, 1, 0x86, 0xa0), make([]byte, 100_000)...),
		"empty command":  append(greeting, 0x04, 0),
		"wrong greeting": make([]byte, 64),
	} {
		c := dialRaw(t, p.eventEndpoint())
		_, _ = c.Write(bytes) // the publisher may hang up in the middle
		if name != "nothing" {
			_ = c.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, c) // until it is closed
		}
	}
	for name, frames := range map[string][]byte{
		"reserved flags":  {0x40, 0},
		"endless message": {0x03, 0x7f, 0, 0, 0, 0, 0, 0, 0},
		"many frames":     make([]byte, 0),
	} {
		c := dial(t, p.eventEndpoint(), zmq4.Sub)
		if name == "many frames" {
			for range maxInFrames + 1 {
				frames = append(frames, 1, 0)
			}
		}
		_, _ = c.nc.Write(frames)
		// The end, or a reset where something of it was not read any more.
		if n, err := c.nc.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: not closed: %d bytes, %v", name, n, err)
		}
	}
	good := subscribe(t, p, p.eventEndpoint(), "")
	p.Publish([]byte("x"))
	if got := good.recv(); string(got[2]) != "x" {
		t.Errorf("received %q", got)
	}
}

func dialRaw(t *testing.T, endpoint string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return c
}
