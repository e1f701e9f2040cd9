package natsd

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start1(t *testing.T, o Options) *Server {
	t.Helper()
	s, err := Start(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func dial(t *testing.T, url string) *nats.Conn {
	t.Helper()
	closed := make(chan struct{})
	nc, err := nats.Connect(url, nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close(); <-closed })
	return nc
}

func TestServes(t *testing.T) {
	s := start1(t, Options{Port: -1})
	nc := dial(t, s.URL())
	if nc.MaxPayload() != MaxPayload {
		t.Errorf("max_payload %d", nc.MaxPayload())
	}
	if n := s.Interest("a.b"); n != 0 {
		t.Errorf("%d subscriptions", n)
	}
	got := make(chan string, 1)
	if _, err := nc.Subscribe("a.*", func(m *nats.Msg) { got <- string(m.Data) }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if n := s.Interest("a.b"); n != 1 {
		t.Errorf("%d subscriptions", n)
	}
	if err := nc.Publish("a.b", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if v := <-got; v != "x" {
		t.Errorf("%q", v)
	}
}

// TestTakenPort: the usual port gives way to a free one; a port that was asked
// for does not, and the process goes on.
func TestTakenPort(t *testing.T) {
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	_, err = Start(context.Background(), Options{Port: port})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprint("port ", port)) || !strings.Contains(err.Error(), "KVRELAY_NATS_URL") {
		t.Fatalf("Start: %v", err)
	}
	// Whoever has 4222 here: two of ours cannot.
	a, b := start1(t, Options{}), start1(t, Options{})
	if a.URL() == b.URL() || !b.Moved {
		t.Errorf("%s and %s, moved %v", a.URL(), b.URL(), b.Moved)
	}
	dial(t, b.URL())
}

func TestBadHost(t *testing.T) {
	if _, err := Start(context.Background(), Options{Host: "203.0.113.1"}); err == nil || !strings.Contains(err.Error(), "cannot listen") {
		t.Fatalf("Start: %v", err)
	}
}

// TestFatalIsAnError: what nats-server would end the process for comes back.
func TestFatalIsAnError(t *testing.T) {
	var b bytes.Buffer
	l := &logger{slog.New(slog.NewTextHandler(&b, nil)), make(chan string, 1)}
	l.Fatalf("no %s", "port")
	l.Fatalf("and no %s", "host")
	if got := <-l.fatal; got != "no port" {
		t.Errorf("%q", got)
	}
	l.Warnf("w%d", 1)
	l.Errorf("e%d", 2)
	l.Noticef("n")
	if out := b.String(); !strings.Contains(out, "w1") || !strings.Contains(out, "e2") || strings.Contains(out, "msg=n") {
		t.Errorf("%q", out)
	}
}

// Several that start at the same moment see the default port free together;
// those that come too late move.
func TestStartedAtOnce(t *testing.T) {
	var wg sync.WaitGroup
	servers := make([]*Server, 8)
	for i := range servers {
		wg.Go(func() {
			s, err := Start(t.Context(), Options{})
			if err != nil {
				t.Error(err)
				return
			}
			servers[i] = s
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	for _, s := range servers {
		if s == nil {
			continue
		}
		if seen[s.URL()] {
			t.Errorf("%s twice", s.URL())
		}
		seen[s.URL()] = true
		s.Close()
	}
}
