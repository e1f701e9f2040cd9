package sinks

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/kvrelay/kvrelay/decode"
)

// TestAnswerAboveShrunkMaxPayload: the server does not tell that max_payload is
// lower, and closes the link at the first answer that is too long; nats.go does
// not come back from that. Heartbeats and answers go on over another link, and
// the rank stays ours all the while.
func TestAnswerAboveShrunkMaxPayload(t *testing.T) {
	s, reload := reloadable(t, nil)
	var log logLines
	p := newTest(t, Options{Servers: []string{s.ClientURL()}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	p.timing = brisk
	k := openRank(t, p, 7, 1, 400)
	nc := connect(t, s.ClientURL())
	heard := beats(t, nc)
	stop := run(t, p)
	const subject = "kvrelay.dynamo.7.0.recover"
	served(t, nc, subject)
	for range 200 {
		k.step([]decode.Event{store(decode.Event{Hashes: []uint64{1 + k.seq*2, 2 + k.seq*2}})})
	}
	drained(t, p)
	reload(func(o *server.Options) { o.MaxPayload = 4096 })
	if m, err := nc.Request(subject, []byte(fmt.Sprintf(`{"publisher_id":%d,"from":1}`, k.o.PublisherID())), time.Second); err == nil {
		t.Fatalf("an answer of %d bytes shows nothing", len(m.Data))
	}
	served(t, nc, subject)
	f, done, parts := readSnapshot(t, nc, subject, func() {})
	if want := k.published(); !maps.Equal(f, want) || done != k.o.LastID() || parts < 4 {
		t.Errorf("%d blocks of %d as of %d of %d in %d parts", len(f), len(want), done, k.o.LastID(), parts)
	}
	n := len(heard())
	eventually(t, "heartbeats", func() bool { return len(heard()) > n+3 })
	other := openRank(t, p, 8, 1, 50)
	eventually(t, "a rank that came later", func() bool { return other.o.Confirmed() == 1 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "leaving", func() bool { h := heard(); return h[len(h)-1].State == StateLeaving })
	if got := strings.Join(log.lines(), "\n"); strings.Count(got, "have trouble") != 1 || !strings.Contains(got, "Maximum Payload Violation") {
		t.Errorf("the log: %s", got)
	}
}

// TestHeartbeatsAfterTinyMaxPayload: a server whose max_payload is too small for
// heartbeats for a while does not tell when it is not any more. The service's link
// that was made meanwhile, or came back to it by itself, must not stay.
func TestHeartbeatsAfterTinyMaxPayload(t *testing.T) {
	for _, byItself := range []bool{false, true} {
		t.Run(fmt.Sprint("byItself=", byItself), func(t *testing.T) {
			s, reload := reloadable(t, nil)
			var log logLines
			p := newTest(t, Options{Servers: []string{s.ClientURL()}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			p.timing = brisk
			var dials atomic.Int64
			dial := p.o.Dial
			p.o.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				dials.Add(1)
				return dial(ctx, network, address)
			}
			k := openRank(t, p, 7, 1, 400)
			stop := run(t, p)
			const subject = "kvrelay.dynamo.7.0.recover"
			served(t, connect(t, s.ClientURL()), subject)
			drained(t, p)
			reload(func(o *server.Options) { o.MaxPayload = 100 })
			service := func() (cid uint64) {
				z, err := s.Connz(&server.ConnzOptions{})
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range z.Conns {
					if strings.HasSuffix(c.Name, " service") {
						cid = c.Cid
					}
				}
				return cid
			}
			if cid := service(); byItself && cid != 0 {
				_ = s.DisconnectClientByID(cid) // else the first heartbeat ends it; which it may have done already
			}
			k.step([]decode.Event{store(decode.Event{Hashes: []uint64{9}})})
			eventually(t, "the trouble", func() bool { return strings.Contains(p.State().LastError, "768") })
			n := dials.Load()
			eventually(t, "both links to be tried again and again", func() bool { return dials.Load() > n+20 })
			reload(func(o *server.Options) { o.MaxPayload = 1 << 20 })
			nc := connect(t, s.ClientURL())
			heard := beats(t, nc)
			eventually(t, "heartbeats", func() bool { return len(heard()) > 3 })
			served(t, nc, subject)
			eventually(t, "the good news", func() bool { return strings.Contains(strings.Join(log.lines(), "\n"), "work again") })
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(log.lines(), "\n"); !strings.Contains(got, "have trouble") {
				t.Errorf("the log: %s", got)
			}
		})
	}
}

// TestHeartbeatsDeniedForAWhile: the log tells that they are refused, that they are not
// any more, and, when they are again, that too.
func TestHeartbeatsDeniedForAWhile(t *testing.T) {
	users := func(deny ...string) func(*server.Options) {
		return func(o *server.Options) {
			o.Users = denying(deny...)
		}
	}
	const refused, over = "have trouble", "heartbeats and the recovery service work again"
	s, reload := reloadable(t, users("kvrelay.*.*.*.heartbeat"))
	var log logLines
	p := newTest(t, Options{Servers: []string{s.ClientURL()}, Auth: Auth{User: "u", Password: "p"}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	p.timing = brisk
	openRank(t, p, 7, 1, 400)
	stop := run(t, p)
	count := func(text string) int { return strings.Count(strings.Join(log.lines(), "\n"), text) }
	for i := range 2 {
		eventually(t, "the trouble", func() bool { return count(refused) == i+1 })
		if n := count(over); n != i {
			t.Fatalf("told %d times that it is over", n)
		}
		reload(users("none"))
		eventually(t, "the good news", func() bool { return count(over) == i+1 })
		reload(users("kvrelay.*.*.*.heartbeat"))
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}
