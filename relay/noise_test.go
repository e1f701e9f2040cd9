package relay_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/internal/freeport"
	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/relay"
)

// noise answers at an address, to each caller with say, until it is stopped.
func noise(t *testing.T, endpoint string, say func(net.Conn)) (stop func()) {
	t.Helper()
	ln, err := net.Listen("tcp", endpoint[len("tcp://"):])
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	open, over := []net.Conn{}, false
	wg.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, nc)
			if over {
				nc.Close()
			}
			mu.Unlock()
			wg.Go(func() { say(nc) })
		}
	})
	return sync.OnceFunc(func() {
		ln.Close()
		mu.Lock()
		over = true
		for _, nc := range open {
			nc.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
}

// handshake is a peer's greeting and READY.
func handshake(socketType string) []byte {
	b := append([]byte{0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0x7F, 3, 0}, "NULL"...)
	b = append(b, make([]byte, 64-len(b))...)
	ready := append([]byte("\x05READY\x0bSocket-Type"), binary.BigEndian.AppendUint32(nil, uint32(len(socketType)))...)
	ready = append(ready, socketType...)
	return append(append(b, 4, byte(len(ready))), ready...)
}

// Something else at both ports of an engine that died: the log names the endpoint and
// what was met there, and the next engine at the same ports is relayed as if nothing
// had been.
func TestNoiseAtThePorts(t *testing.T) {
	says := func(b []byte) func(net.Conn) { return func(nc net.Conn) { nc.Write(b); nc.Read(make([]byte, 1<<10)) } }
	hangs := func(b []byte) func(net.Conn) {
		return func(nc net.Conn) {
			nc.Write(b)
			for err := error(nil); err == nil; {
				_, err = nc.Read(make([]byte, 1<<10))
			}
		}
	}
	random := make([]byte, 4<<10)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	random[0] = 7
	const hung = "its event endpoint takes connections and does not answer"
	const foreign, given = "what answers at its event endpoint is no publisher", "live connection given up: what comes is no ZMTP"
	for name, n := range map[string]struct {
		live, replay func(net.Conn)
		want         []string
	}{
		"random bytes":    {says(random), nil, []string{foreign, "does not speak ZMTP: it begins with"}},
		"half a greeting": {hangs(handshake("PUB")[:30]), nil, []string{hung, "30 bytes came"}},
		"silence":         {hangs(nil), nil, []string{hung, "the peer says nothing"}},
		"closes":          {func(nc net.Conn) { nc.Close() }, nil, []string{foreign}},
		"HTTP":            {says([]byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")), nil, []string{foreign, "HTTP/1.1 400 Bad"}},
		"TLS":             {says([]byte("\x15\x03\x03\x00\x02\x02\x46")), nil, []string{foreign, "peer speaks TLS, not ZMTP"}},
		"redis":           {says([]byte("-ERR Protocol error: unbalanced quotes\r\n")), nil, []string{foreign, "-ERR Protocol er"}},
		"swapped":         {hangs(handshake("ROUTER")), hangs(handshake("PUB")), []string{foreign, "swapped?"}},
		"no frames":       {hangs(append(handshake("PUB"), 0xF3, 1)), nil, []string{given, "bad flags"}},
		"a publisher without its ROUTER": {hangs(handshake("PUB")), says([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")),
			[]string{"what answers at the replay endpoint is no engine's replay socket", "HTTP/1.1 400 Bad"}},
		"a ROUTER that hangs": {hangs(handshake("PUB")), hangs(nil), []string{"the replay endpoint takes connections and does not answer: gaps stay open"}},
		"mute sockets":        {hangs(handshake("PUB")), hangs(handshake("ROUTER")), []string{"replay requests are in vain", "the replay endpoint does not answer"}},
		"a ROUTER of garbage": {hangs(handshake("PUB")), hangs(append(handshake("ROUTER"), bytes.Repeat([]byte{0xF3}, 9)...)),
			[]string{"replay requests are in vain", "sends is no ZMTP"}},
		"a ROUTER of other words": {hangs(handshake("PUB")), hangs(append(handshake("ROUTER"), "\x00\x05hello"...)),
			[]string{"replay requests are in vain", "answers is no batch"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			port := func() int {
				_, p, _ := net.SplitHostPort(freeport.Addr(t))
				n, _ := strconv.Atoi(p)
				return n
			}
			b := start(t, setup{engine: mockengine.Options{EventPort: port(), ReplayPort: port()}, relay: func(o *relay.Options) {
				o.Replay.Idle, o.ZMTP.HandshakeTimeout, o.ZMTP.PeerTimeout = 20*time.Millisecond, 100*time.Millisecond, 5*time.Second
			}})
			b.prompt(0, 0, 3)
			b.same()
			r := b.engine.Rank(0)
			live, replay := r.Endpoint(), r.ReplayEndpoint()
			b.engine.Kill()
			if n.replay == nil {
				n.replay = n.live
			}
			quiet := noise(t, live, n.live)
			defer quiet()
			quieter := noise(t, replay, n.replay)
			defer quieter()
			for _, want := range append(n.want, "engine="+live) {
				b.await("line "+want, func() bool { return b.logged(want) })
			}
			quiet()
			quieter()
			if err := r.Start(); err != nil {
				t.Fatal(err)
			}
			b.prompt(0, 10, 2)
			b.await("the new engine's blocks", func() bool { return b.source(0).Cursor.Restarts > 0 })
			b.same()
			b.prompt(0, 20, 2)
			b.same()
			b.await("life", func() bool { s := b.source(0); return s.State == relay.StateLive && s.Reason == "" && s.Ready })
		})
	}
}
