package zmtp

import (
	"context"
	"io"
	"log"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/plain"
)

// library makes a go-zeromq socket listen. It ends with the test.
func library(t testing.TB, endpoint string, make func(context.Context, ...zmq4.Option) zmq4.Socket, opts ...zmq4.Option) (zmq4.Socket, string) {
	t.Helper()
	opts = append(opts, zmq4.WithLogger(log.New(io.Discard, "", 0)))
	s := make(context.Background(), opts...)
	if err := s.Listen(endpoint); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if strings.HasPrefix(endpoint, "tcp:") {
		endpoint = "tcp://" + s.Addr().String()
	}
	return s, endpoint
}

// publish sends until the test has what it wants: PUB drops what comes before the
// subscription.
func publish(t *testing.T, s zmq4.Socket, frames ...string) (stop func()) {
	t.Helper()
	var msg zmq4.Msg
	for _, f := range frames {
		msg.Frames = append(msg.Frames, []byte(f))
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.SendMulti(msg)
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

func TestLibraryPub(t *testing.T) {
	for _, endpoint := range []string{"tcp://127.0.0.1:0", "ipc://" + filepath.Join(t.TempDir(), "pub")} {
		pub, endpoint := library(t, endpoint, zmq4.NewPub)
		o := Options{Type: SUB, Subscriptions: []string{"kv@"}, Heartbeat: testHeartbeat}
		c := mustDial(t, endpoint, o)
		stopNoise := publish(t, pub, "other", "12345678", "no")
		stop := publish(t, pub, "kv@pod", "12345678", strings.Repeat("p", 5000))
		for range 20 {
			m, err := c.Recv()
			if err != nil || len(m) != 3 || string(m[0]) != "kv@pod" || len(m[2]) != 5000 {
				t.Fatalf("%q, %v", m, err)
			}
		}
		stop()
		stopNoise()
		if !c.LastPong().IsZero() {
			t.Error("this library answers PINGs now: the doc of ErrPeerDead and the mock engine can change")
		}
	}
}

func TestLibraryRouter(t *testing.T) {
	router, endpoint := library(t, "tcp://127.0.0.1:0", zmq4.NewRouter)
	c := mustDial(t, endpoint, Options{Type: DEALER, Heartbeat: -1})
	if err := c.Send(nil, []byte("12345678")); err != nil {
		t.Fatal(err)
	}
	msg, err := router.Recv()
	if err != nil || len(msg.Frames) != 3 || len(msg.Frames[1]) != 0 || string(msg.Frames[2]) != "12345678" {
		t.Fatalf("%v, %v", msg, err)
	}
	if err := router.SendMulti(zmq4.NewMsgFrom(msg.Frames[0], nil, []byte("8 bytes."), []byte("payload"))); err != nil {
		t.Fatal(err)
	}
	if m, err := c.Recv(); err != nil || len(m) != 3 || string(m[2]) != "payload" {
		t.Errorf("%q, %v", m, err)
	}
}

// A mechanism that forgets its password after one connection is made anew for
// each.
func TestLibraryPlain(t *testing.T) {
	pub, endpoint := library(t, "tcp://127.0.0.1:0", zmq4.NewPub, zmq4.WithSecurity(plain.Security("", "")))
	o := Options{Type: SUB, Heartbeat: -1, User: "kv", Password: "secret"}
	stop := publish(t, pub, "topic", "payload")
	defer stop()
	for range 3 {
		c := mustDial(t, endpoint, o)
		if m, err := c.Recv(); err != nil || string(m[1]) != "payload" {
			t.Fatalf("%q, %v", m, err)
		}
		c.Close()
	}
	if _, err := Dial(t.Context(), endpoint, sub()); err == nil || !strings.Contains(err.Error(), `"PLAIN"`) {
		t.Errorf("NULL against PLAIN: %v", err)
	}
}
