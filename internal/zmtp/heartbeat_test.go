package zmtp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

const (
	testHeartbeat   = 20 * time.Millisecond
	testPeerTimeout = 300 * time.Millisecond
)

func beating() Options {
	return Options{Type: SUB, Heartbeat: testHeartbeat, PeerTimeout: testPeerTimeout}
}

func pong(p *peer, body []byte) bool {
	_, data, _ := splitCommand(body)
	return p.put(appendCommand(nil, "PONG", data[pingTTL:]))
}

func TestPing(t *testing.T) {
	bodies := make(chan []byte, 3)
	endpoint := serve(t, func(p *peer) {
		p.greet("PUB")
		for range 3 {
			bodies <- p.until(isCommand("PING"))
		}
		p.drain()
	})
	mustDial(t, endpoint, beating())
	for i := range uint64(3) {
		b := <-bodies
		name, data, ok := splitCommand(b)
		if !ok || string(name) != "PING" || len(data) != pingTTL+pingContext {
			t.Fatalf("%q", b)
		}
		if ttl := binary.BigEndian.Uint16(data); ttl != 9 { // 3 × 300 ms in tenths
			t.Errorf("TTL %d", ttl)
		}
		if pingNumber(b) != i {
			t.Errorf("PING %d has number %d", i, pingNumber(b))
		}
	}
}

// Every PING is answered with its context, also one within a message, and a
// longer context than allowed is cut.
func TestPong(t *testing.T) {
	contexts := []string{"", "x", "0123456789abcdef", "0123456789abcdefg"}
	got := make(chan string, len(contexts))
	endpoint := serve(t, func(p *peer) {
		p.greet("PUB")
		p.put(appendFrame(nil, flagMore, []byte("topic")))
		for _, ctx := range contexts {
			p.put(appendCommand(nil, "PING", []byte{0, 50}, []byte(ctx)))
		}
		p.put(appendCommand(nil, "NEWS", []byte("of a later version")))
		p.put(appendCommand(nil, "X"))
		p.put(message("payload"))
		for range contexts {
			_, data, _ := splitCommand(p.until(isCommand("PONG")))
			got <- string(data)
		}
		p.drain()
	})
	c := mustDial(t, endpoint, sub())
	m, err := c.Recv()
	if err != nil || len(m) != 2 || string(m[0]) != "topic" || string(m[1]) != "payload" {
		t.Errorf("%q, %v", m, err)
	}
	for _, want := range contexts {
		if ctx := <-got; ctx != want[:min(len(want), 16)] {
			t.Errorf("PONG with %q, want %q", ctx, want)
		}
	}
}

func TestPongSince(t *testing.T) {
	answer := make(chan bool)
	endpoint := serve(t, func(p *peer) {
		p.greet("PUB")
		for range answer {
			b := p.until(isCommand("PING"))
			if b == nil || !pong(p, b) {
				return
			}
		}
		p.drain()
	})
	o := beating()
	o.PeerTimeout = time.Minute
	start := time.Now()
	c := mustDial(t, endpoint, o)
	go c.Recv()
	if !c.LastPong().IsZero() || c.PongSince(time.Time{}) {
		t.Error("a PONG before the first")
	}
	answer <- true
	eventually(t, "the first PONG", func() bool { return !c.LastPong().IsZero() })
	first := c.LastPong()
	if !c.PongSince(start) || c.PongSince(first) || first.Before(start) {
		t.Errorf("PING sent at %v, dialled at %v", first, start)
	}
	// PINGs sent before now and answered after it prove nothing about now.
	now := time.Now()
	eventually(t, "a PING after now answered", func() bool {
		select {
		case answer <- true:
		default:
		}
		return c.PongSince(now)
	})
	if !c.LastPong().After(now) {
		t.Error("LastPong disagrees")
	}
	close(answer)
}

func TestPings(t *testing.T) {
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	ctx := func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
	var p pings
	if p.pong(nil) || p.pong(ctx(0)) || !p.last.IsZero() {
		t.Error("a PONG that nobody asked for counts")
	}
	for n := range 5 {
		p.add(at(n + 1))
	}
	if !p.pong(nil) || p.lastPong() != at(1) {
		t.Errorf("without context: %v, want the oldest", p.lastPong())
	}
	if !p.pong(ctx(3)) || p.lastPong() != at(4) {
		t.Errorf("with context: %v", p.lastPong())
	}
	if p.pong(ctx(5)) || p.pong(ctx(1<<63)) || p.lastPong() != at(4) {
		t.Error("a number never sent counts")
	}
	if !p.pong([]byte("of another kind")) || p.lastPong() != at(5) {
		t.Errorf("foreign context: %v, want the next", p.lastPong())
	}
	if p.pong(ctx(0)) || p.lastPong() != at(5) {
		t.Error("LastPong went back")
	}
	// More unanswered ones than are remembered: the lost times are not made up.
	p = pings{}
	for n := range 100 {
		p.add(at(n + 1))
	}
	if !p.pong(nil) || !p.lastPong().IsZero() {
		t.Errorf("%v", p.lastPong())
	}
	if !p.pong(ctx(98)) || p.lastPong() != at(99) {
		t.Errorf("%v", p.lastPong())
	}
}

// A peer that answered once and then falls silent is dead after PeerTimeout,
// not before; whether anything was sent meanwhile does not matter.
func TestDeadPeer(t *testing.T) {
	endpoint := serve(t, func(p *peer) {
		p.greet("PUB")
		pong(p, p.until(isCommand("PING")))
		p.put(appendFrame(nil, flagMore, []byte("the beginning of a message")))
		p.drain() // frozen, but TCP acknowledges everything
	})
	c := mustDial(t, endpoint, beating())
	start := time.Now()
	err := recvErr(t, c)
	took := time.Since(start)
	if !errors.Is(err, ErrPeerDead) || !strings.Contains(err.Error(), endpoint) {
		t.Errorf("%v", err)
	}
	if took < testPeerTimeout*9/10 || took > 10*testPeerTimeout {
		t.Errorf("found after %v", took)
	}
}

// A ZMTP 3.1 peer has to answer PINGs, so one that froze before its first answer
// is found too: the kernel goes on acknowledging for it.
func TestDeadBeforeTheFirstPong(t *testing.T) {
	c := mustDial(t, serve(t, func(p *peer) { p.greet("PUB"); p.drain() }), beating())
	if err := recvErr(t, c); !errors.Is(err, ErrPeerDead) {
		t.Errorf("%v", err)
	}
}

// Any byte is a sign of life: a large message in many small pieces, or PONGs alone.
func TestLivingPeer(t *testing.T) {
	for name, live := range map[string]func(p *peer){
		"PONGs": func(p *peer) {
			for range 4 * testPeerTimeout / testHeartbeat {
				if b := p.until(isCommand("PING")); b == nil || !pong(p, b) {
					return
				}
			}
			p.put(message("alive"))
		},
		"pieces": func(p *peer) {
			pong(p, p.until(isCommand("PING")))
			tick := time.NewTicker(testPeerTimeout / 5)
			defer tick.Stop()
			for _, b := range message("0123456789alive") {
				<-tick.C
				p.put([]byte{b})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			endpoint := serve(t, func(p *peer) { p.greet("PUB"); live(p); p.drain() })
			c := mustDial(t, endpoint, beating())
			if m, err := c.Recv(); err != nil || !bytes.HasSuffix(m[0], []byte("alive")) {
				t.Errorf("%q, %v", m, err)
			}
		})
	}
}

// A peer that never answers a PING (ZMTP 3.0) is not judged by silence, and one
// whose reader is busy elsewhere is not either.
func TestNotJudged(t *testing.T) {
	silent := func(p *peer) {
		p.greetAs(0, "PUB")
		for range 3 * testPeerTimeout / testHeartbeat {
			if p.until(isCommand("PING")) == nil {
				return
			}
		}
		p.put(message("still here"))
		p.drain()
	}
	c := mustDial(t, serve(t, silent), beating())
	if m, err := c.Recv(); err != nil || string(m[0]) != "still here" {
		t.Errorf("never answered: %q, %v", m, err)
	}

	pinged := make(chan struct{})
	answers := func(p *peer) {
		p.greet("PUB")
		pong(p, p.until(isCommand("PING")))
		p.put(message("first"))
		for range 3 * testPeerTimeout / testHeartbeat {
			if p.until(isCommand("PING")) == nil {
				break
			}
		}
		p.put(message("second"))
		close(pinged)
		p.drain()
	}
	c = mustDial(t, serve(t, answers), beating())
	if m, err := c.Recv(); err != nil || string(m[0]) != "first" {
		t.Fatalf("%q, %v", m, err)
	}
	<-pinged // the reader does something else meanwhile
	if m, err := c.Recv(); err != nil || string(m[0]) != "second" {
		t.Errorf("not reading: %q, %v", m, err)
	}
}

// A flood of PINGs whose answers nobody reads costs the bounded queue, and ends
// with a dead peer, not with a stuck reader.
func TestPingFlood(t *testing.T) {
	flood := bytes.Repeat(appendCommand(nil, "PING", []byte{0, 0}, []byte("0123456789abcdef")), 1000)
	endpoint := serve(t, func(p *peer) {
		p.greet("PUB")
		p.SetReadBuffer(4096)
		for p.put(flood) {
		}
	})
	o := beating()
	o.Heartbeat = -1
	nc, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.(*net.TCPConn).SetWriteBuffer(4096); err != nil {
		t.Fatal(err)
	}
	c, err := Accept(t.Context(), nc, o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := recvErr(t, c); !errors.Is(err, ErrPeerDead) {
		t.Errorf("%v", err)
	}
}

// A peer that closes at the first PING gets a name for it; others do not.
func TestPingRefused(t *testing.T) {
	endpoint := serve(t, func(p *peer) { p.greet("PUB"); p.until(isCommand("PING")) })
	c := mustDial(t, endpoint, beating())
	if err := recvErr(t, c); !errors.Is(err, ErrPingRefused) || !errors.Is(err, io.EOF) {
		t.Errorf("%v", err)
	}
	endpoint = serve(t, func(p *peer) { p.greet("PUB"); pong(p, p.until(isCommand("PING"))); p.put(message("x")) })
	c = mustDial(t, endpoint, beating())
	if err := recvErr(t, c); errors.Is(err, ErrPingRefused) {
		t.Errorf("%v, though it has answered", err)
	}
	endpoint = serve(t, func(p *peer) { p.greet("PUB"); p.frame() })
	c = mustDial(t, endpoint, sub())
	if err := recvErr(t, c); errors.Is(err, ErrPingRefused) {
		t.Errorf("%v, though none was sent", err)
	}
}
