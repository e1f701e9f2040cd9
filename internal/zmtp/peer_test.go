package zmtp

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The library's sockets, our peers in some tests, leave these behind.
		goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run"),
		goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubQReader).listen"),
		goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*qreader).listen"),
		goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*routerQReader).listen"),
		goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*socket).connReaper"),
	)
}

// patience is how long a test waits for what must happen.
const patience = 10 * time.Second

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// peer is the far side, written by hand.
type peer struct {
	net.Conn
	t  *testing.T
	br *bufio.Reader
}

func newPeer(t *testing.T, nc net.Conn) *peer {
	return &peer{Conn: nc, t: t, br: bufio.NewReader(nc)}
}

// CloseWrite ends what the peer says; it goes on listening.
func (p *peer) CloseWrite() { p.Conn.(interface{ CloseWrite() error }).CloseWrite() }

// SetReadBuffer makes little room for what is not read.
func (p *peer) SetReadBuffer(n int) { p.Conn.(*net.TCPConn).SetReadBuffer(n) }

// serve listens on network (tcp, unix) and hands every connection to handle,
// each in its goroutine. All of them end with the test.
func serve(t *testing.T, handle func(p *peer)) (endpoint string) {
	t.Helper()
	return serveOn(t, "tcp", "127.0.0.1:0", handle)
}

func serveOn(t *testing.T, network, addr string, handle func(p *peer)) string {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, nc)
			mu.Unlock()
			wg.Go(func() {
				defer nc.Close()
				handle(newPeer(t, nc))
			})
		}
	})
	t.Cleanup(func() { // after t.Context is done
		l.Close()
		mu.Lock()
		for _, nc := range open {
			nc.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	if network == "unix" {
		return "ipc://" + addr
	}
	return "tcp://" + l.Addr().String()
}

func greetingBytes(major, minor byte, mechanism string) []byte {
	b := make([]byte, greetingLen)
	b[0], b[9], b[10], b[11] = 0xFF, 0x7F, major, minor
	copy(b[12:32], mechanism)
	return b
}

func readyBody(props ...string) []byte {
	b := []byte("\x05READY")
	for i := 0; i < len(props); i += 2 {
		b = append(append(b, byte(len(props[i]))), props[i]...)
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(props[i+1]))), props[i+1]...)
	}
	return b
}

func (p *peer) put(b []byte) bool {
	_, err := p.Write(b)
	return err == nil
}

// greet does a peer's whole part of the handshake, as ZMTP 3.1.
func (p *peer) greet(socketType string) bool { return p.greetAs(1, socketType) }

// greetAs is greet in ZMTP 3.minor.
func (p *peer) greetAs(minor byte, socketType string) bool {
	if !p.put(greetingBytes(3, minor, "NULL")) {
		return false
	}
	theirs := make([]byte, greetingLen)
	if _, err := io.ReadFull(p.br, theirs); err != nil {
		return false
	}
	if _, _, err := p.frame(); err != nil { // READY
		return false
	}
	return p.put(appendFrame(nil, flagCommand, readyBody("Socket-Type", socketType)))
}

// frame reads one frame.
func (p *peer) frame() (flags byte, body []byte, err error) {
	if flags, err = p.br.ReadByte(); err != nil {
		return 0, nil, err
	}
	var size uint64
	if flags&flagLong != 0 {
		err = binary.Read(p.br, binary.BigEndian, &size)
	} else {
		var b byte
		b, err = p.br.ReadByte()
		size = uint64(b)
	}
	if err != nil {
		return 0, nil, err
	}
	body = make([]byte, size)
	_, err = io.ReadFull(p.br, body)
	return flags, body, err
}

// until reads frames until ok accepts one; nil when the connection ended before.
func (p *peer) until(ok func(flags byte, body []byte) bool) []byte {
	for {
		flags, body, err := p.frame()
		if err != nil {
			return nil
		}
		if ok(flags, body) {
			return body
		}
	}
}

// drain reads until the connection ends.
func (p *peer) drain() { io.Copy(io.Discard, p.br) }

func isCommand(name string) func(byte, []byte) bool {
	return func(flags byte, body []byte) bool {
		n, _, ok := splitCommand(body)
		return flags&flagCommand != 0 && ok && string(n) == name
	}
}

func message(frames ...string) []byte {
	var b []byte
	for i, f := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = flagMore
		}
		b = appendFrame(b, flags, []byte(f))
	}
	return b
}

// sub is options with no heartbeat to disturb.
func sub() Options { return Options{Type: SUB, Heartbeat: -1} }

func mustDial(t *testing.T, endpoint string, o Options) *Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := Dial(ctx, endpoint, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// recvErr reads until Recv fails, within patience.
func recvErr(t *testing.T, c *Conn) error {
	t.Helper()
	late := time.AfterFunc(patience, func() {
		t.Errorf("Recv did not end within %v", patience)
		c.Close()
	})
	defer late.Stop()
	for {
		if _, err := c.Recv(); err != nil {
			return err
		}
	}
}
