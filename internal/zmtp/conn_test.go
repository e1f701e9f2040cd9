package zmtp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestRecv(t *testing.T) {
	endpoint := serve(t, func(p *peer) {
		p.greet("PUB")
		for i := range 1000 {
			p.put(message("topic", fmt.Sprintf("%08d", i), strings.Repeat("x", i*i%3000)))
		}
		p.drain()
	})
	c := mustDial(t, endpoint, sub())
	for i := range 1000 {
		m, err := c.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if len(m) != 3 || string(m[0]) != "topic" || string(m[1]) != fmt.Sprintf("%08d", i) || len(m[2]) != i*i%3000 {
			t.Fatalf("message %d: %q", i, m)
		}
	}
	if c.Buffered() {
		t.Error("buffered, and nothing left")
	}
	if c.RemoteAddr().String() != strings.TrimPrefix(endpoint, "tcp://") || c.Endpoint() != endpoint {
		t.Errorf("%v, %v", c.RemoteAddr(), c.Endpoint())
	}
}

func TestSend(t *testing.T) {
	got := make(chan []byte, 10)
	endpoint := serve(t, func(p *peer) {
		p.greet("ROUTER")
		for {
			flags, b, err := p.frame()
			if err != nil {
				return
			}
			got <- append([]byte{flags}, b...)
		}
	})
	c := mustDial(t, endpoint, Options{Type: DEALER, Heartbeat: -1})
	large := bytes.Repeat([]byte("L"), 300)
	if err := c.Send(nil, []byte("12345678"), large); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"\x01", "\x0112345678", "\x02" + string(large)} {
		if b := <-got; string(b) != want {
			t.Errorf("frame %d: %q", i, b)
		}
	}
	if err := c.Send(); err == nil {
		t.Error("a message without frames was sent")
	}
}

// What ends a connection, and what Recv says then – again and again.
func TestRecvEnds(t *testing.T) {
	afterwards := func(data []byte) func(*peer) {
		return func(p *peer) { p.greet("PUB"); p.put(data); p.drain() }
	}
	for _, c := range []struct {
		name string
		peer func(*peer)
		is   error
		as   any
		text string
	}{
		{"peer closes", func(p *peer) { p.greet("PUB"); p.until(func(byte, []byte) bool { return true }) }, io.EOF, nil, "closed by the peer: EOF"},
		{"dies within a header", func(p *peer) { p.greet("PUB"); p.put([]byte{2, 0, 0}); p.CloseWrite() }, io.ErrUnexpectedEOF, nil, "within a message"},
		{"dies within a frame", func(p *peer) { p.greet("PUB"); p.put(message("topic", "payload")[:12]); p.CloseWrite() }, io.ErrUnexpectedEOF, nil, "within a message"},
		{"dies between frames", func(p *peer) { p.greet("PUB"); p.put(appendFrame(nil, flagMore, []byte("topic"))); p.CloseWrite() }, io.ErrUnexpectedEOF, nil, "within a message"},
		{"2^62", afterwards(long(0, 1<<62)), nil, new(*FrameError), "frame too large: 4611686018427387904 (limit 1000)"},
		{"2 GB in nine bytes", afterwards(append(appendFrame(nil, flagMore, []byte("topi")), long(0, 2<<30)...)), nil, new(*FrameError), "frame too large: 2147483648"},
		{"frames without end", afterwards(bytes.Repeat([]byte{1, 0}, 1000)), nil, new(*FrameError), "too many frames: 65 (limit 64)"},
		{"message too large", afterwards(message(string(make([]byte, 1000)), string(make([]byte, 1000)))), nil, new(*FrameError), "message too large: 2000 (limit 1999)"},
		{"garbage", afterwards([]byte("GET / HTTP/1.1\r\n")), nil, new(*FrameError), "bad flags: 71"},
		{"large command", afterwards(long(flagCommand, 5000)), nil, new(*FrameError), "command too large"},
		{"nameless command", afterwards([]byte{4, 0}), nil, new(*FrameError), "bad command"},
		{"PING without a TTL", afterwards(appendCommand(nil, "PING", []byte{1})), nil, new(*FrameError), "bad command"},
		{"ERROR", afterwards(appendCommand(nil, "ERROR", []byte("\x09too\nslow!"))), nil, new(*PeerError), `peer sent ERROR "too?slow!"`},
		{"ERROR without a reason", afterwards(appendCommand(nil, "ERROR")), nil, new(*PeerError), `peer sent ERROR ""`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			endpoint := serve(t, c.peer)
			o := sub()
			o.MaxFrame, o.MaxMessage = 1000, 1999
			conn := mustDial(t, endpoint, o)
			err := recvErr(t, conn)
			if c.is != nil && !errors.Is(err, c.is) || c.as != nil && !errors.As(err, c.as) {
				t.Errorf("%v: of the wrong kind", err)
			}
			if !strings.HasPrefix(err.Error(), "zmtp "+endpoint+": ") || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v: want the endpoint and %q", err, c.text)
			}
			for range 2 {
				if _, again := conn.Recv(); again != err {
					t.Errorf("then %v", again)
				}
			}
			if serr := conn.Send([]byte("x")); serr != err {
				t.Errorf("Send: %v", serr)
			}
			<-conn.kept // without Close: nothing of a dead connection stays
		})
	}
}

// What a peer sent before it died is still received.
func TestRecvWhatCameBefore(t *testing.T) {
	endpoint := serve(t, func(p *peer) {
		p.greet("PUB")
		p.frame()
		p.put(append(message("a"), message("b")...))
	})
	c := mustDial(t, endpoint, sub())
	for _, want := range []string{"a", "b"} {
		if m, err := c.Recv(); err != nil || string(m[0]) != want {
			t.Fatalf("%q, %v; want %s", m, err, want)
		}
	}
	if err := recvErr(t, c); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// Promised sizes cost what arrives, on a real connection too.
func TestRecvPromise(t *testing.T) {
	sent := make(chan struct{})
	endpoint := serve(t, func(p *peer) {
		p.greet("PUB")
		p.put(append(long(0, 60<<20), "0123456789"...))
		p.CloseWrite()
		close(sent)
		p.drain()
	})
	c := mustDial(t, endpoint, sub())
	<-sent
	if err := recvErr(t, c); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	if len(c.in.buf) > baseBuffer {
		t.Errorf("ten bytes cost %d", len(c.in.buf))
	}
}

func TestClose(t *testing.T) {
	endpoint := serve(t, func(p *peer) { p.greet("PUB"); p.drain() })
	c := mustDial(t, endpoint, sub())
	got := make(chan error)
	go func() {
		_, err := c.Recv()
		got <- err
	}()
	eventually(t, "the reader waits", func() bool { return c.waiting.Load() != 0 })
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			c.Close()
			select {
			case <-c.kept:
			default:
				t.Error("Close did not wait for the Conn's goroutine")
			}
		})
	}
	if err := <-got; !errors.Is(err, ErrClosed) || !strings.Contains(err.Error(), endpoint) {
		t.Errorf("%v", err)
	}
	wg.Wait()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := c.Send([]byte("x")); !errors.Is(err, ErrClosed) {
		t.Errorf("Send: %v", err)
	}
}

// A peer that takes nothing blocks Send no longer than PeerTimeout, and Close
// not at all.
func TestSendToADeafPeer(t *testing.T) {
	deaf := func(p *peer) { p.greet("ROUTER"); <-p.t.Context().Done() }
	flood := func(c *Conn) error {
		for {
			if err := c.Send(make([]byte, 1<<20)); err != nil {
				return err
			}
		}
	}
	for _, endpoint := range []string{
		serve(t, deaf), // given up by TCP itself where it can
		serveOn(t, "unix", filepath.Join(t.TempDir(), "deaf"), deaf),
	} {
		c := mustDial(t, endpoint, Options{Type: DEALER, PeerTimeout: 300 * time.Millisecond})
		if err := flood(c); !errors.Is(err, ErrPeerDead) {
			t.Errorf("%v", err)
		}
		c = mustDial(t, endpoint, Options{Type: DEALER, PeerTimeout: time.Hour})
		got := make(chan error)
		go func() { got <- flood(c) }()
		eventually(t, "Send blocks", func() bool {
			if c.writing.TryLock() {
				c.writing.Unlock()
				return false
			}
			return true
		})
		c.Close()
		if err := <-got; !errors.Is(err, ErrClosed) {
			t.Errorf("%v", err)
		}
	}
}

// Many senders beside heartbeats and a reader: whole messages arrive.
func TestSendBesideEverything(t *testing.T) {
	const senders, each = 4, 200
	done := make(chan map[string]int, 1)
	endpoint := serve(t, func(p *peer) {
		p.greet("ROUTER")
		seen := map[string]int{}
		var msg []string
		for n := 0; n < senders*each; {
			flags, b, err := p.frame()
			if err != nil {
				break
			}
			if flags&flagCommand != 0 {
				p.put(appendCommand(nil, "PING", []byte{0, 0}, []byte("x")))
				continue
			}
			msg = append(msg, string(b))
			if flags&flagMore == 0 {
				if len(msg) == 3 && msg[0] == "" && msg[1] == msg[2] {
					seen[msg[1]]++
				}
				msg, n = nil, n+1
			}
		}
		done <- seen
		p.drain()
	})
	c := mustDial(t, endpoint, Options{Type: DEALER, Heartbeat: time.Millisecond, PeerTimeout: time.Minute})
	go c.Recv()
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			for range each {
				id := []byte(strings.Repeat(string(rune('a'+s)), 300))
				if err := c.Send(nil, id, id); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	seen := <-done
	for s := range senders {
		if n := seen[strings.Repeat(string(rune('a'+s)), 300)]; n != each {
			t.Errorf("sender %d: %d whole messages", s, n)
		}
	}
}

func TestAccept(t *testing.T) {
	for _, endpoint := range []string{"tcp://127.0.0.1:*", "ipc://" + t.TempDir() + "/pub"} {
		l, err := Listen(t.Context(), endpoint)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		var wg sync.WaitGroup
		wg.Go(func() {
			nc, err := net.Dial(l.Addr().Network(), l.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			defer nc.Close()
			p := newPeer(t, nc)
			p.greet("PUB")
			if _, b, _ := p.frame(); string(b) != "\x01kv" {
				t.Errorf("subscription %q", b)
			}
			p.put(message("kv", "payload"))
			p.drain()
		})
		nc, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		o := sub()
		o.Subscriptions = []string{"kv"}
		c, err := Accept(t.Context(), nc, o)
		if err != nil {
			t.Fatal(err)
		}
		if m, err := c.Recv(); err != nil || len(m) != 2 || string(m[1]) != "payload" {
			t.Errorf("%q, %v", m, err)
		}
		if !strings.HasPrefix(c.Endpoint(), endpoint[:6]) || len(c.Endpoint()) < 10 {
			t.Errorf("named %q", c.Endpoint())
		}
		c.Close()
		wg.Wait()
	}
	// Refused connections are closed.
	a, b := net.Pipe()
	if _, err := Accept(t.Context(), a, Options{Type: "PUB"}); !errors.Is(err, ErrEndpoint) {
		t.Error(err)
	}
	if _, err := b.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("left open: %v", err)
	}
	a, b = net.Pipe()
	go io.Copy(io.Discard, b)
	go b.Write([]byte("HTTP/1.1 200 OK"))
	if _, err := Accept(t.Context(), a, sub()); !errors.Is(err, ErrHandshake) {
		t.Error(err)
	}
	b.Close()
}

// A peer that sends nothing but commands keeps Recv from returning, not Close.
func TestCloseUnderCommands(t *testing.T) {
	flood := bytes.Repeat(appendCommand(nil, "NEWS", []byte("none")), 1000)
	endpoint := serve(t, func(p *peer) {
		p.greet("PUB")
		for p.put(flood) {
		}
	})
	c := mustDial(t, endpoint, sub())
	got := make(chan error)
	go func() {
		_, err := c.Recv()
		got <- err
	}()
	eventually(t, "the flood arrives", func() bool { return c.waiting.Load() > int64(time.Millisecond) })
	c.Close()
	if err := <-got; !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
}

// What TCP reports when it gives a peer up counts as a dead peer; a reset does not.
func TestReadErrors(t *testing.T) {
	c := &Conn{endpoint: "tcp://gone:1"}
	for errno, dead := range map[syscall.Errno]bool{
		syscall.ETIMEDOUT: true, syscall.EHOSTUNREACH: true, syscall.ENETUNREACH: true,
		syscall.ECONNRESET: false, syscall.EPIPE: false,
	} {
		err := c.readError(&net.OpError{Op: "read", Err: os.NewSyscallError("read", errno)})
		if errors.Is(err, ErrPeerDead) != dead || !dead && !errors.Is(err, errno) || !strings.Contains(err.Error(), c.endpoint) {
			t.Errorf("%v: %v", errno, err)
		}
	}
}

// pingNumber is the number in a PING of ours.
func pingNumber(body []byte) uint64 {
	_, data, _ := splitCommand(body)
	return binary.BigEndian.Uint64(data[pingTTL:])
}

// What Recv has returned is in its caller's hands until the next Recv, and a
// reply that came whole at once is told as well.
func TestArrivingUntilTheNextRecv(t *testing.T) {
	more := make(chan []byte)
	endpoint := serve(t, func(p *peer) {
		if !p.greet("ROUTER") {
			return
		}
		for b := range more {
			p.put(b)
		}
	})
	defer close(more)
	c := mustDial(t, endpoint, Options{Type: DEALER, Heartbeat: -1})
	begin := time.Now()
	for _, size := range []int{3, 300_000} {
		reply := message(string(make([]byte, size)))
		got := make(chan error)
		go func() {
			_, err := c.Recv()
			got <- err
		}()
		eventually(t, "what was received before is forgotten", func() bool { return c.Arriving() == Arrival{} })
		more <- reply[:len(reply)-2]
		if size > 3 { // a header alone is no news
			eventually(t, "a part has come", func() bool { return c.Arriving().Bytes >= int64(len(reply)-2) })
			if c.Arriving().Whole {
				t.Error("a part is the whole")
			}
		}
		more <- reply[len(reply)-2:]
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		a := c.Arriving()
		if a.Bytes != int64(len(reply)) || !a.Whole || a.First.Before(begin) || a.Newest.Before(a.First) || a.Newest.After(time.Now()) {
			t.Errorf("%+v", a)
		}
	}
}
