//go:build integration

package integration

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/internal/zmtp"
	"github.com/kvrelay/kvrelay/replay"
)

// zmtpPython is one libzmq socket. It is told what to do by lines of JSON and
// answers each with one; frames are base64.
const zmtpPython = `
import base64, json, sys, zmq
b64 = lambda f: base64.b64encode(f).decode()
typ, bind, endpoint, opts = sys.argv[1], sys.argv[2] == "bind", sys.argv[3], json.loads(sys.argv[4])
ctx = zmq.Context()
if "plain" in opts:
    from zmq.auth.thread import ThreadAuthenticator
    auth = ThreadAuthenticator(ctx); auth.start()
    auth.configure_plain("*", opts.pop("plain"))
    opts["PLAIN_SERVER"] = 1
if opts.pop("curve", False):
    opts["CURVE_SERVER"] = 1
    opts["CURVE_SECRETKEY"] = zmq.curve_keypair()[1]
s = ctx.socket(getattr(zmq, typ))
s.linger = 0
if "XPUB_VERBOSE" not in opts and typ == "XPUB":
    s.setsockopt(zmq.XPUB_VERBOSE, 1)
for k, v in opts.items():
    s.setsockopt(getattr(zmq, k), v if isinstance(v, (bytes, int)) else v.encode())
(s.bind if bind else s.connect)(endpoint)
print(json.dumps({"endpoint": s.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()}), flush=True)
for line in sys.stdin:
    q = json.loads(line)
    a = {}
    if q["op"] == "recv":
        a["frames"] = [b64(f) for f in s.recv_multipart()] if s.poll(q.get("ms", 10000)) else None
    elif q["op"] == "send":
        for f in q["messages"]:
            s.send_multipart([base64.b64decode(x) for x in f])
    elif q["op"] == "many":  # numbered messages of a size
        for i in range(q["n"]):
            s.send_multipart([b"kv@pod", i.to_bytes(8, "big"), bytes([i % 251]) * q["size"]])
    elif q["op"] == "serve":  # one replay
        ident, _, start = s.recv_multipart()
        front = [ident] + [base64.b64decode(x) for x in q["front"]]
        for i in range(int.from_bytes(start, "big"), q["n"]):
            s.send_multipart(front + [i.to_bytes(8, "big"), bytes([i % 251]) * q["size"]])
        s.send_multipart(front + [b"\xff" * 8, b""])
    print(json.dumps(a), flush=True)
`

type zmtpPeer struct {
	t        *testing.T
	cmd      *exec.Cmd
	in       io.WriteCloser
	out      *bufio.Reader
	endpoint string
}

// newZMTPPeer starts a socket of real libzmq; opts are pyzmq's option names.
func newZMTPPeer(t *testing.T, typ, how, endpoint string, opts map[string]any) *zmtpPeer {
	t.Helper()
	python := filepath.Join("..", ".venv", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		t.Fatalf("real libzmq is missing, run `make venv`: %v", err)
	}
	if opts == nil {
		opts = map[string]any{}
	}
	o, err := json.Marshal(opts)
	if err != nil {
		t.Fatal(err)
	}
	p := &zmtpPeer{t: t, cmd: exec.Command(python, "-c", zmtpPython, typ, how, endpoint, string(o))}
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.kill() })
	var hello struct{ Endpoint string }
	p.read(&hello)
	p.endpoint = hello.Endpoint
	return p
}

func (p *zmtpPeer) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

func (p *zmtpPeer) read(into any) {
	p.t.Helper()
	line, err := p.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, into)
	}
	if err != nil {
		p.t.Fatalf("the Python peer: %v", err)
	}
}

func (p *zmtpPeer) begin(command map[string]any) {
	p.t.Helper()
	if err := json.NewEncoder(p.in).Encode(command); err != nil {
		p.t.Fatalf("the Python peer: %v", err)
	}
}

// do carries out a command and returns the frames that it received, if any.
func (p *zmtpPeer) do(command map[string]any) []string {
	p.t.Helper()
	p.begin(command)
	var a struct{ Frames [][]byte }
	p.read(&a)
	var frames []string
	for _, f := range a.Frames {
		frames = append(frames, string(f))
	}
	return frames
}

func (p *zmtpPeer) send(frames ...string) {
	p.t.Helper()
	var f []string
	for _, s := range frames {
		f = append(f, base64.StdEncoding.EncodeToString([]byte(s)))
	}
	p.do(map[string]any{"op": "send", "messages": [][]string{f}})
}

// subscribed waits until an XPUB has our subscription.
func (p *zmtpPeer) subscribed(topic string) {
	p.t.Helper()
	if f := p.do(map[string]any{"op": "recv"}); len(f) != 1 || f[0] != "\x01"+topic {
		p.t.Fatalf("subscription %q, want %q", f, topic)
	}
}

func zmtpDial(t *testing.T, endpoint string, o zmtp.Options) *zmtp.Conn {
	t.Helper()
	c, err := zmtp.Dial(t.Context(), endpoint, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func zmtpRecv(t *testing.T, c *zmtp.Conn) ([][]byte, error) {
	t.Helper()
	late := time.AfterFunc(20*time.Second, func() { t.Error("Recv is stuck"); c.Close() })
	defer late.Stop()
	return c.Recv()
}

func zmtpEventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("never: %s", what)
		}
	}
}

func TestZMTPSubscribe(t *testing.T) {
	endpoints := []string{"tcp://127.0.0.1:*", "ipc://" + filepath.Join(t.TempDir(), "pub")}
	if runtime.GOOS == "linux" {
		endpoints = append(endpoints, fmt.Sprintf("ipc://@kvrelay-zmtp-%d", os.Getpid()))
	}
	for _, endpoint := range endpoints {
		p := newZMTPPeer(t, "XPUB", "bind", endpoint, map[string]any{"SNDHWM": 0})
		c := zmtpDial(t, p.endpoint, zmtp.Options{Type: zmtp.SUB, Subscriptions: []string{"kv@"}})
		p.subscribed("kv@")
		p.send("other", "12345678", "no")
		for _, size := range []int{0, 1, 255, 256, 70_000, 5 << 20} {
			p.send("kv@pod@model", "12345678", strings.Repeat("p", size))
			m, err := zmtpRecv(t, c)
			if err != nil || len(m) != 3 || string(m[0]) != "kv@pod@model" || string(m[1]) != "12345678" || len(m[2]) != size {
				t.Fatalf("%s, %d bytes: %d frames, %v", endpoint, size, len(m), err)
			}
		}
		const n = 20_000
		p.begin(map[string]any{"op": "many", "n": n, "size": 500})
		for i := range n {
			m, err := zmtpRecv(t, c)
			if err != nil || len(m) != 3 || m[1][7] != byte(i) || m[1][6] != byte(i>>8) || len(m[2]) != 500 || m[2][499] != byte(i%251) {
				t.Fatalf("%s, message %d: %d frames, %v", endpoint, i, len(m), err)
			}
		}
	}
}

// libzmq answers our PINGs with their context, and is satisfied with our PONGs,
// also between the frames of its messages.
func TestZMTPHeartbeats(t *testing.T) {
	p := newZMTPPeer(t, "XPUB", "bind", "tcp://127.0.0.1:*", map[string]any{"HEARTBEAT_IVL": 10, "HEARTBEAT_TIMEOUT": 500})
	c := zmtpDial(t, p.endpoint, zmtp.Options{Type: zmtp.SUB, Heartbeat: 50 * time.Millisecond, PeerTimeout: 5 * time.Second})
	p.subscribed("")
	ended := make(chan error, 1)
	messages := make(chan int, 100)
	go func() {
		for {
			m, err := c.Recv()
			if err != nil {
				ended <- err
				return
			}
			messages <- len(m)
		}
	}()
	zmtpEventually(t, "a PONG", func() bool { return !c.LastPong().IsZero() })
	for range 20 { // two libzmq timeouts long
		now := time.Now()
		zmtpEventually(t, "a PONG to a later PING", func() bool { return c.PongSince(now) })
		p.send(strings.Split(strings.Repeat("frame ", 30), " ")...)
		if n := <-messages; n != 31 {
			t.Fatalf("%d frames", n)
		}
	}
	select {
	case err := <-ended:
		t.Fatal(err)
	default:
	}
	c.Close()
	if err := <-ended; !errors.Is(err, zmtp.ErrClosed) {
		t.Error(err)
	}
}

// A publisher that is stopped (not closed: the kernel keeps its connection) is dead
// after PeerTimeout; one that is killed ends the connection at once.
func TestZMTPFrozenAndKilled(t *testing.T) {
	o := zmtp.Options{Type: zmtp.SUB, Heartbeat: 100 * time.Millisecond, PeerTimeout: time.Second}
	p := newZMTPPeer(t, "XPUB", "bind", "tcp://127.0.0.1:*", nil)
	c := zmtpDial(t, p.endpoint, o)
	ended := make(chan error)
	go func() {
		_, err := c.Recv()
		ended <- err
	}()
	zmtpEventually(t, "a PONG", func() bool { return !c.LastPong().IsZero() })
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, zmtp.ErrPeerDead) {
		t.Errorf("frozen: %v", err)
	}
	if since := time.Since(c.LastPong()); since > 5*time.Second {
		t.Errorf("frozen: found %v after the last PONG", since)
	}

	p = newZMTPPeer(t, "XPUB", "bind", "tcp://127.0.0.1:*", nil)
	c = zmtpDial(t, p.endpoint, o)
	p.subscribed("")
	p.send("last", "words")
	if m, err := zmtpRecv(t, c); err != nil || len(m) != 2 {
		t.Errorf("before it was killed: %q, %v", m, err)
	}
	p.kill()
	if _, err := zmtpRecv(t, c); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("killed: %v", err)
	}
}

// The TTL in our PINGs, after which libzmq forgets a silent relay, does not cost a
// living one its connection.
func TestZMTPTTL(t *testing.T) {
	p := newZMTPPeer(t, "ROUTER", "bind", "tcp://127.0.0.1:*", map[string]any{"ROUTER_MANDATORY": 1})
	c := zmtpDial(t, p.endpoint, zmtp.Options{Type: zmtp.DEALER, Heartbeat: 100 * time.Millisecond, PeerTimeout: 400 * time.Millisecond})
	if err := c.Send([]byte("here I am")); err != nil {
		t.Fatal(err)
	}
	f := p.do(map[string]any{"op": "recv"})
	if len(f) != 2 {
		t.Fatalf("%q", f)
	}
	// As long as it is alive it is kept, beyond its TTL of 1.2 s.
	since := time.Now().Add(2 * time.Second)
	ended := make(chan error, 1)
	go func() {
		_, err := c.Recv()
		ended <- err
	}()
	zmtpEventually(t, "PONGs for two seconds", func() bool {
		select {
		case err := <-ended:
			t.Fatal(err)
		default:
		}
		return c.PongSince(since)
	})
	p.send(f[0], "still there?")
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestZMTPReplay(t *testing.T) {
	b := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	for name, front := range map[string][]string{
		"vLLM now": {b(""), b("kv@pod")}, "vLLM before": {b("")}, "ATOM": {b("")}, "nothing in front": {},
	} {
		for _, how := range []string{"tcp://127.0.0.1:*", "ipc://" + filepath.Join(t.TempDir(), "router")} {
			p := newZMTPPeer(t, "ROUTER", "bind", how, map[string]any{"SNDHWM": 0})
			c, err := replay.DialRouter(t.Context(), p.endpoint, zmtp.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			const n, size = 10_000, 1000
			for _, start := range []uint64{0, n - 3, n + 5} {
				p.begin(map[string]any{"op": "serve", "n": n, "size": size, "front": front})
				if err := c.Ask(start); err != nil {
					t.Fatal(err)
				}
				for want := start; ; want++ {
					r, err := c.Next()
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					if r.End {
						if want != max(start, n) {
							t.Errorf("%s: from %d ended at %d", name, start, want)
						}
						break
					}
					if r.Seq != want || len(r.Payload) != size || r.Payload[0] != byte(want%251) {
						t.Fatalf("%s: seq %d, want %d", name, r.Seq, want)
					}
				}
				var done struct{}
				p.read(&done)
			}
		}
	}
}

// An engine whose PUB connects.
func TestZMTPListen(t *testing.T) {
	for _, endpoint := range []string{"tcp://127.0.0.1:*", "ipc://" + filepath.Join(t.TempDir(), "sub")} {
		l, err := zmtp.Listen(t.Context(), endpoint)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if strings.HasPrefix(endpoint, "tcp") {
			endpoint = "tcp://" + l.Addr().String()
		}
		p := newZMTPPeer(t, "XPUB", "connect", endpoint, nil)
		nc, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c, err := zmtp.Accept(t.Context(), nc, zmtp.Options{Type: zmtp.SUB, Subscriptions: []string{"kv"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		p.subscribed("kv")
		p.send("kv@pod", "12345678", "payload")
		if m, err := zmtpRecv(t, c); err != nil || len(m) != 3 || string(m[2]) != "payload" {
			t.Errorf("%q, %v", m, err)
		}
	}
}

func TestZMTPRefusals(t *testing.T) {
	sub, dealer := zmtp.Options{Type: zmtp.SUB, HandshakeTimeout: 2 * time.Second}, zmtp.Options{Type: zmtp.DEALER, HandshakeTimeout: 2 * time.Second}
	withPassword := func(password string) zmtp.Options {
		o := sub
		o.User, o.Password = "kv", password
		return o
	}
	plain := map[string]any{"plain": map[string]string{"kv": "secret"}}
	for _, c := range []struct {
		name, typ string
		opts      map[string]any
		o         zmtp.Options
		text      string // "": is accepted
	}{
		{"PUB", "PUB", nil, sub, ""},
		{"DEALER", "DEALER", nil, dealer, ""},
		{"REP", "REP", nil, dealer, ""},
		{"PUSH", "PUSH", nil, sub, `"PUSH" socket, SUB wants PUB or XPUB`},
		{"the replay port as live port", "ROUTER", nil, sub, `"ROUTER" socket, SUB wants`},
		{"the live port as replay port", "PUB", nil, dealer, `"PUB" socket, DEALER wants`},
		{"CURVE", "PUB", map[string]any{"curve": true}, sub, "mechanism"},
		{"PLAIN", "PUB", plain, withPassword("secret"), ""},
		{"PLAIN without a password", "PUB", plain, sub, "mechanism"},
		{"PLAIN with a wrong one", "PUB", plain, withPassword("guess"), `peer sent ERROR "400"`},
		{"a password nobody wants", "PUB", nil, withPassword("secret"), "mechanism"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newZMTPPeer(t, c.typ, "bind", "tcp://127.0.0.1:*", c.opts)
			conn, err := zmtp.Dial(t.Context(), p.endpoint, c.o)
			if err == nil {
				conn.Close()
			}
			if c.text == "" {
				if err != nil {
					t.Error(err)
				}
			} else if !errors.Is(err, zmtp.ErrHandshake) || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "guess") {
				t.Errorf("%v: want %s", err, c.text)
			}
		})
	}
}
