package zmtp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
)

func ready(props ...string) []byte { return appendFrame(nil, flagCommand, readyBody(props...)) }

// Peers that never become one. Dial must say why, in time, at no cost.
func TestHandshakeRefuses(t *testing.T) {
	greeting := greetingBytes(3, 1, "NULL")
	after := func(rest []byte) func(*peer) {
		return func(p *peer) { p.put(greeting); p.put(rest); p.drain() }
	}
	say := func(b []byte) func(*peer) { return func(p *peer) { p.put(b); p.drain() } }
	change := func(at int, b byte) []byte {
		g := bytes.Clone(greeting)
		g[at] = b
		return g
	}
	command := func(name string, data ...byte) []byte { return appendCommand(nil, name, data) }
	for _, c := range []struct {
		name string
		peer func(*peer)
		is   error  // besides ErrHandshake
		text string // part of the error
	}{
		{"accepts and closes", func(*peer) {}, nil, "closed and said nothing"},
		{"closes after the greeting", func(p *peer) { p.put(greeting); p.br.Peek(1) }, nil, ""},
		{"closes within the greeting", func(p *peer) { p.put(greeting[:20]); p.br.Peek(1) }, nil, "another security mechanism"},
		{"says nothing", func(p *peer) { p.drain() }, os.ErrDeadlineExceeded, ", the peer says nothing"},
		{"stops within the greeting", say(greeting[:30]), os.ErrDeadlineExceeded, ", 30 bytes came"},
		{"stops within READY", after(ready("Socket-Type", "PUB")[:9]), os.ErrDeadlineExceeded, "not complete after"},
		{"drips", func(p *peer) {
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for _, b := range append(bytes.Clone(greeting), ready("Socket-Type", "PUB")...) {
				<-tick.C
				if !p.put([]byte{b}) {
					return
				}
			}
		}, os.ErrDeadlineExceeded, "not complete after"},
		{"HTTP", say([]byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")), nil, `begins with "HTTP/1.1 400 Bad`},
		{"NATS", say([]byte("INFO {\"server_id\":\"x\"}\r\n")), nil, `begins with "INFO {`},
		{"TLS alert", say([]byte("\x15\x03\x01\x00\x02\x02\x46")), nil, "speaks TLS"},
		{"escape codes", say([]byte("\x1b[2J\x1b]0;owned\x07 and more")), nil, `begins with "?[2J?]0;owned? a"`},
		{"ZMTP 1.0", say([]byte{1, 0}), nil, "does not speak ZMTP"},
		{"ZMTP 1.0 with a long identity", say(append([]byte{0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0}, 0)), nil, "bad signature"},
		{"ZMTP 2.0", say([]byte{0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0x7F, 1, 1, 0, 0}), nil, "revision 1"},
		{"revision 2", say(change(10, 2)), nil, "revision 2"},
		{"no signature", say(change(0, 0)), nil, "does not speak ZMTP"},
		{"bad server flag", say(change(32, 7)), nil, ""},
		{"CURVE", say(greetingBytes(3, 1, "CURVE")), nil, `wants security mechanism "CURVE"`},
		{"no mechanism", say(greetingBytes(3, 1, "")), nil, `wants security mechanism ""`},
		{"mechanism of escape codes", say(greetingBytes(3, 1, "\x1b[31m")), nil, `"?[31m"`},
		{"ROUTER, swapped", after(ready("Socket-Type", "ROUTER")), nil, `SUB wants PUB or XPUB: are an engine's two endpoints, of events and of replay, swapped?`},
		{"PULL", after(ready("Socket-Type", "PULL")), nil, `peer is a "PULL" socket, SUB wants PUB or XPUB`},
		{"SUB", after(ready("Socket-Type", "SUB")), nil, `a "SUB" socket`},
		{"ROUTER", after(ready("Socket-Type", "ROUTER")), nil, `a "ROUTER" socket`},
		{"unknown type", after(ready("Socket-Type", "TELEX\n")), nil, `a "TELEX?" socket`},
		{"no type", after(ready("Identity", "")), nil, "no socket type"},
		{"empty READY", after(command("READY")), nil, "no socket type"},
		{"READY with a name cut short", after(command("READY", 200, 'x')), nil, "cannot be read"},
		{"READY with a value cut short", after(command("READY", 1, 'x', 0, 0, 1, 0, 'y')), nil, "cannot be read"},
		{"READY with a value of 4 GB", after(command("READY", 1, 'x', 255, 255, 255, 255)), nil, "cannot be read"},
		{"READY cut short behind the type", after(appendFrame(nil, flagCommand, readyBody("Socket-Type", "PUB"), []byte{9, 'x'})), nil, "cannot be read"},
		{"READY with a nameless property", after(ready("Socket-Type", "PUB", "", "x")), nil, "cannot be read"},
		{"type in capitals", after(ready("SOCKET-TYPE", "PUB")), nil, "no socket type"},
		{"READY of 20 KB", after(ready("Socket-Type", "PUB", "X", string(make([]byte, 20<<10)))), nil, "command too large"},
		{"READY of 2 GB", after(long(flagCommand, 2<<30)), nil, "command too large: 2147483648"},
		{"READY of 2^62", after(long(flagCommand, 1<<62)), nil, "command too large"},
		{"READY of 2^64-1", after(long(flagCommand, 1<<64-1)), nil, "command too large"},
		{"READY as a message", after(appendFrame(nil, 0, readyBody("Socket-Type", "PUB"))), nil, "bad flags"},
		{"READY with more", after(appendFrame(nil, flagCommand|flagMore, readyBody("Socket-Type", "PUB"))), nil, "bad flags"},
		{"frames without end", after(bytes.Repeat([]byte{1, 0}, 10_000)), nil, "bad flags"},
		{"command without a name", after([]byte{flagCommand, 0}), nil, "bad command"},
		{"command with an empty name", after([]byte{flagCommand, 2, 0, 0}), nil, "bad command"},
		{"command with a name cut short", after([]byte{flagCommand, 2, 99, 'R'}), nil, "bad command"},
		{"another command", after(command("HELLO")), nil, ""},
		{"endless commands", after(bytes.Repeat(command("PING", 0, 0), 100_000)), nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			endpoint := serve(t, c.peer)
			o := sub()
			o.HandshakeTimeout = 300 * time.Millisecond
			start := time.Now()
			conn, err := Dial(t.Context(), endpoint, o)
			if err == nil {
				conn.Close()
				t.Fatal("accepted")
			}
			if !errors.Is(err, ErrHandshake) || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%v: wraps the wrong errors", err)
			}
			if !strings.Contains(err.Error(), c.text) || !strings.HasPrefix(err.Error(), "zmtp "+endpoint+": ") {
				t.Errorf("%v: want %q and the endpoint", err, c.text)
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("took %v", took)
			}
			for _, r := range err.Error() {
				if r < ' ' || r > '~' {
					t.Fatalf("%q: unprintable", err)
				}
			}
		})
	}
}

func TestHandshakeQuotesError(t *testing.T) {
	for reason, want := range map[string]string{
		"Invalid client":         "Invalid client",
		"":                       "",
		"a\nb\x1b[0m\x00é":       "a?b?[0m???",
		strings.Repeat("x", 255): strings.Repeat("x", 100),
	} {
		endpoint := serve(t, func(p *peer) {
			p.put(greetingBytes(3, 0, "NULL"))
			p.put(appendCommand(nil, "ERROR", append([]byte{byte(len(reason))}, reason...)))
			p.drain()
		})
		_, err := Dial(t.Context(), endpoint, sub())
		var pe *PeerError
		if !errors.Is(err, ErrHandshake) || !errors.As(err, &pe) || pe.Reason != want {
			t.Errorf("%v: want reason %q", err, want)
		}
	}
	if got := errorReason([]byte{200, 'a', 'b'}); got != "ab" {
		t.Errorf("a reason that lies about its length: %q", got)
	}
}

// A peer's promises are not allocated.
func TestHandshakeAllocatesNothingForPromises(t *testing.T) {
	endpoint := serve(t, func(p *peer) {
		p.put(greetingBytes(3, 1, "NULL"))
		p.put(long(flagCommand, 2<<30))
		p.drain()
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := Dial(t.Context(), endpoint, sub()); err == nil {
		t.Fatal("accepted")
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("%d bytes allocated for a promise", n)
	}
}

func TestHandshakeAccepts(t *testing.T) {
	for name, c := range map[string]struct {
		typ   SocketType
		minor byte
		ready []byte
	}{
		"PUB 3.0":            {SUB, 0, ready("Socket-Type", "PUB")},
		"XPUB 3.1":           {SUB, 1, ready("Socket-Type", "XPUB", "Identity", "")},
		"PUB 3.9":            {SUB, 9, ready("Identity", "me", "Socket-Type", "PUB", "X-More", "x")},
		"ROUTER":             {DEALER, 1, ready("Socket-Type", "ROUTER", "Identity", "")},
		"REP":                {DEALER, 1, ready("Socket-Type", "REP")},
		"DEALER":             {DEALER, 1, ready("Socket-Type", "DEALER")},
		"much metadata":      {SUB, 1, ready("Socket-Type", "PUB", "X-A", strings.Repeat("a", 15<<10))},
		"READY in long form": {SUB, 1, append(long(flagCommand, uint64(len(readyBody("Socket-Type", "PUB")))), readyBody("Socket-Type", "PUB")...)},
	} {
		t.Run(name, func(t *testing.T) {
			endpoint := serve(t, func(p *peer) {
				p.put(greetingBytes(3, c.minor, "NULL"))
				// The first message follows in the same packet: nothing of it may get lost.
				p.put(append(bytes.Clone(c.ready), message("topic", "payload")...))
				p.drain()
			})
			conn := mustDial(t, endpoint, Options{Type: c.typ, Heartbeat: -1})
			got, err := conn.Recv()
			if err != nil || len(got) != 2 || string(got[1]) != "payload" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// What the peer gets to see: greeting, READY, subscriptions in order.
func TestHandshakeSends(t *testing.T) {
	type seen struct {
		greeting []byte
		ready    []byte
		subs     []string
	}
	topics := []string{"kv@", "", strings.Repeat("t", 300)}
	got := make(chan seen, 1)
	endpoint := serve(t, func(p *peer) {
		var s seen
		s.greeting = make([]byte, greetingLen)
		io.ReadFull(p.br, s.greeting)
		p.put(greetingBytes(3, 1, "NULL"))
		_, s.ready, _ = p.frame()
		p.put(ready("Socket-Type", "PUB"))
		for range topics {
			_, b, err := p.frame()
			if err != nil || len(b) == 0 || b[0] != 1 {
				break
			}
			s.subs = append(s.subs, string(b[1:]))
		}
		got <- s
		p.drain()
	})
	o := sub()
	o.Subscriptions = topics
	mustDial(t, endpoint, o)
	s := <-got
	if s.greeting[0] != 0xFF || s.greeting[9] != 0x7F || s.greeting[10] != 3 || !bytes.HasPrefix(s.greeting[12:], []byte("NULL\x00")) || s.greeting[32] != 0 {
		t.Errorf("greeting % x", s.greeting)
	}
	name, data, _ := splitCommand(s.ready)
	if typ, _ := property(data, "Socket-Type"); string(name) != "READY" || string(typ) != "SUB" {
		t.Errorf("READY %q", s.ready)
	}
	if strings.Join(s.subs, "|") != strings.Join(topics, "|") {
		t.Errorf("subscriptions %q", s.subs)
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	reached := make(chan struct{})
	endpoint := serve(t, func(p *peer) { p.br.Peek(1); close(reached); p.drain() })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { <-reached; cancel() }()
	o := sub()
	o.HandshakeTimeout = time.Hour
	if _, err := Dial(ctx, endpoint, o); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrHandshake) {
		t.Errorf("%v", err)
	}
	// And with a context that was over before.
	if _, err := Dial(ctx, endpoint, o); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestDialNobody(t *testing.T) {
	l, err := Listen(t.Context(), "tcp://127.0.0.1:*")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	endpoint := "tcp://" + l.Addr().String()
	if _, err := Dial(t.Context(), endpoint, sub()); !errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, ErrHandshake) || !strings.Contains(err.Error(), endpoint) {
		t.Errorf("%v", err)
	}
}

func TestOptions(t *testing.T) {
	for name, o := range map[string]Options{
		"no type":           {},
		"another type":      {Type: "PUSH"},
		"DEALER subscribes": {Type: DEALER, Subscriptions: []string{""}},
		"user too long":     {Type: SUB, User: string(make([]byte, 256))},
		"password too long": {Type: SUB, Password: string(make([]byte, 256))},
	} {
		if _, err := Dial(t.Context(), "tcp://127.0.0.1:1", o); !errors.Is(err, ErrEndpoint) {
			t.Errorf("%s: %v", name, err)
		}
	}
	o, err := Options{Type: SUB, Heartbeat: time.Minute, MaxFrame: 1 << 60}.withDefaults()
	if err != nil || o.Heartbeat != 5*time.Second || o.MaxFrame != maxSize || o.MaxMessage != maxSize {
		t.Errorf("%+v, %v", o, err)
	}
	if o, _ := (Options{Type: SUB, MaxFrame: 1000}).withDefaults(); o.MaxMessage != 1000+messageHeadroom || o.Heartbeat != defaultHeartbeat {
		t.Errorf("%+v", o)
	}
}

func FuzzHandshake(f *testing.F) {
	f.Add(append(greetingBytes(3, 1, "NULL"), ready("Socket-Type", "PUB")...), false)
	f.Add(append(greetingBytes(3, 0, "NULL"), ready("Socket-Type", "PUB", "Identity", "")...), true)
	f.Add(append(greetingBytes(3, 1, "NULL"), appendCommand(nil, "ERROR", []byte{3, 'b', 'a', 'd'})...), false)
	f.Add(append(greetingBytes(3, 1, "PLAIN"), append(appendCommand(nil, "WELCOME"), ready("Socket-Type", "PUB")...)...), true)
	f.Add(append(greetingBytes(3, 1, "NULL"), long(flagCommand, 1<<62)...), false)
	f.Fuzz(func(t *testing.T, data []byte, plain bool) {
		o, err := Options{Type: SUB}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		if plain {
			o.User = "user"
		}
		fuzzlimit.Run(t, len(data), func() { _, _ = handshake(&script{in: bytes.NewReader(data)}, o) })
		nc := &script{in: bytes.NewReader(data)}
		if _, err := handshake(nc, o); err == nil && nc.in.Len() > len(data)-greetingLen {
			t.Error("ready without a READY")
		}
	})
}
