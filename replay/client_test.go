package replay

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"go.uber.org/goleak"

	"github.com/kvrelay/kvrelay/internal/zmtp"
)

// router is a ROUTER that answers every request with what answer returns, frame
// for frame. It ends with the test, and the test fails when the client left a goroutine.
func router(t *testing.T, answer func(start uint64) [][][]byte) (endpoint string) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		goleak.VerifyNone(t, before,
			goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*routerQReader).listen"),
			goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*socket).connReaper"))
	})
	s := zmq4.NewRouter(context.Background(), zmq4.WithLogger(log.New(io.Discard, "", 0)))
	if err := s.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			msg, err := s.Recv()
			if err != nil {
				return
			}
			if len(msg.Frames) != 3 || len(msg.Frames[1]) != 0 || len(msg.Frames[2]) != 8 {
				continue // as engines do; a PING arrives here too
			}
			for _, frames := range answer(binary.BigEndian.Uint64(msg.Frames[2])) {
				if s.SendMulti(zmq4.NewMsgFrom(append([][]byte{msg.Frames[0]}, frames...)...)) != nil {
					break
				}
			}
		}
	}()
	t.Cleanup(func() { s.Close(); <-ended })
	return "tcp://" + s.Addr().String()
}

func dialRouter(t *testing.T, endpoint string) *Client {
	t.Helper()
	c, err := DialRouter(t.Context(), endpoint, zmtp.Options{Subscriptions: []string{"of the live stream"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	late := time.AfterFunc(20*time.Second, func() { t.Error("stuck"); c.Close() })
	t.Cleanup(func() { late.Stop() })
	return c
}

func TestClient(t *testing.T) {
	buffered := func(shape func(seq []byte, payload string) [][]byte) func(uint64) [][][]byte {
		return func(start uint64) (out [][][]byte) {
			for s := max(start, 100); s < 2000; s++ {
				out = append(out, shape(binary.BigEndian.AppendUint64(nil, s), strings.Repeat("p", int(s))))
			}
			return append(out, shape([]byte(ends), ""))
		}
	}
	for name, shape := range map[string]func([]byte, string) [][]byte{
		"four frames": func(seq []byte, p string) [][]byte { return [][]byte{nil, []byte("kv@pod@model"), seq, []byte(p)} },
		"three":       func(seq []byte, p string) [][]byte { return [][]byte{nil, seq, []byte(p)} },
		"two":         func(seq []byte, p string) [][]byte { return [][]byte{seq, []byte(p)} },
	} {
		t.Run(name, func(t *testing.T) {
			c := dialRouter(t, router(t, buffered(shape)))
			for _, start := range []uint64{0, 1990, 5000, 1<<64 - 1} {
				if err := c.Ask(start); err != nil {
					t.Fatal(err)
				}
				for want := max(start, 100); ; want++ {
					r, err := c.Next()
					if err != nil {
						t.Fatal(err)
					}
					if r.End {
						if want != max(start, 2000) {
							t.Errorf("from %d: ended before %d", start, want)
						}
						break
					}
					if r.Seq != want || len(r.Payload) != int(want) || name == "four frames" && string(r.Topic) != "kv@pod@model" {
						t.Fatalf("from %d: seq %d, %d bytes; want seq %d", start, r.Seq, len(r.Payload), want)
					}
				}
			}
			if c.Buffered() {
				t.Error("something follows the end marker")
			}
		})
	}
}

// A malformed reply costs itself; too many in a row the connection.
func TestClientMalformed(t *testing.T) {
	bad, good := [][]byte{nil, []byte("rubbish")}, [][]byte{nil, []byte(seq7), []byte("batch")}
	endpoint := router(t, func(start uint64) (out [][][]byte) {
		for range start {
			out = append(out, bad)
		}
		return append(out, good)
	})
	c := dialRouter(t, endpoint)
	for range 2 { // the bound is on replies in a row: a good one starts it anew
		if err := c.Ask(maxMalformed - 1); err != nil {
			t.Fatal(err)
		}
		for range maxMalformed - 1 {
			_, err := c.Next()
			var m *MalformedReply
			if !errors.As(err, &m) || m.Frames != 2 || errors.Is(err, ErrNoRouter) || !strings.Contains(err.Error(), endpoint) || strings.Contains(err.Error(), "rubbish") {
				t.Fatalf("%v", err)
			}
		}
		if r, err := c.Next(); err != nil || r.Seq != 7 || string(r.Payload) != "batch" {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	if err := c.Ask(maxMalformed); err != nil {
		t.Fatal(err)
	}
	var err error
	for range maxMalformed {
		_, err = c.Next()
	}
	var m *MalformedReply
	if !errors.Is(err, ErrNoRouter) || errors.As(err, &m) || !strings.Contains(err.Error(), endpoint) {
		t.Errorf("%v", err)
	}
	if _, err := c.Next(); !errors.Is(err, zmtp.ErrClosed) {
		t.Errorf("goes on: %v", err)
	}
}

func TestClientClose(t *testing.T) {
	endpoint := router(t, func(uint64) [][][]byte { return nil })
	c := dialRouter(t, endpoint)
	if err := c.Ask(0); err != nil {
		t.Fatal(err)
	}
	got := make(chan error)
	go func() {
		_, err := c.Next()
		got <- err
	}()
	c.Close()
	if err := <-got; !errors.Is(err, zmtp.ErrClosed) || !strings.Contains(err.Error(), endpoint) {
		t.Errorf("%v", err)
	}
	if err := c.Ask(1); !errors.Is(err, zmtp.ErrClosed) {
		t.Errorf("%v", err)
	}
	if c.Close() != nil || c.Endpoint() != endpoint || !c.LastPong().IsZero() || c.PongSince(time.Time{}) {
		t.Error("a closed client says strange things")
	}
	if _, err := DialRouter(t.Context(), "tcp://host", zmtp.Options{}); !errors.Is(err, zmtp.ErrEndpoint) {
		t.Errorf("%v", err)
	}
}
