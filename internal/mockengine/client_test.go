package mockengine

import (
	"context"
	"encoding/binary"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
	"go.uber.org/goleak"
)

// A test that waits longer than this for a state has failed.
const patience = 10 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func timeout(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// client is a bare connection with the library's framing: another
// implementation than the one under test.
type client struct {
	t  testing.TB
	nc net.Conn
	*zmq4.Conn
}

func dial(t testing.TB, endpoint string, typ zmq4.SocketType) *client {
	t.Helper()
	nc, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	c, err := zmq4.Open(nc, null.Security(), typ, nil, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &client{t, nc, c}
}

// subscribe connects and waits until the publisher has the subscription.
func subscribe(t testing.TB, p *Publisher, endpoint, prefix string) *client {
	t.Helper()
	n := p.Subscribers()
	c := dial(t, endpoint, zmq4.Sub)
	c.send(append([]byte{1}, prefix...))
	if err := p.WaitSubscribers(timeout(t), n+1); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *client) send(frames ...[]byte) {
	c.t.Helper()
	if err := c.SendMsg(zmq4.NewMsgFrom(frames...)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) recv() [][]byte {
	c.t.Helper()
	m, err := c.RecvMsg()
	if err != nil {
		c.t.Fatal(err)
	}
	return m.Frames
}

// ask requests a replay and returns the replies before the end marker.
func (c *client) ask(start uint64) [][][]byte {
	c.t.Helper()
	c.send(nil, seqFrame(start))
	var out [][][]byte
	for {
		m := c.recv()
		if isEnd(m) {
			return out
		}
		out = append(out, m)
	}
}

func isEnd(m [][]byte) bool {
	for _, f := range m {
		if len(f) == 8 && binary.BigEndian.Uint64(f) == endSeq {
			return true
		}
	}
	return false
}

// seqs are the numbers of messages that carry theirs before the payload.
func seqs(messages [][][]byte) []uint64 {
	out := []uint64{}
	for _, m := range messages {
		out = append(out, binary.BigEndian.Uint64(m[len(m)-2]))
	}
	return out
}

func from(a, b uint64) []uint64 {
	out := []uint64{}
	for ; a < b; a++ {
		out = append(out, a)
	}
	return out
}

// publisher runs one for the length of the test.
func publisher(t testing.TB, o PublisherOptions) *Publisher {
	t.Helper()
	o.EventAddr, o.ReplayAddr = "127.0.0.1:0", "127.0.0.1:0"
	p := NewPublisher(o)
	if err := p.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return p
}

func start(t testing.TB, o Options) *Engine {
	t.Helper()
	e, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// eventually waits for a state that nothing announces.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func deadline() time.Time { return time.Now().Add(patience) }
