package sinks

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/kvrelay/kvrelay/decode"
	"github.com/kvrelay/kvrelay/internal/freeport"
)

// TestAnswerAboveShrunkMaxPayload: the server does not tell that max_payload is
// lower, and closes the link at the first answer that is too long; nats.go does
// not come back from that. Heartbeats and answers go on over another link, and
// the rank stays ours all the while.
func TestAnswerAboveShrunkMaxPayload(t *testing.T) {
	opts := &server.Options{Host: "127.0.0.1", Port: freeport.Next(t, 1), NoSigs: true, NoLog: true, NoSystemAccount: true}
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { stopServer(s) })
	if !s.ReadyForConnections(patience) {
		t.Fatal("nats-server is not ready")
	}
	var mu sync.Mutex
	var log bytes.Buffer
	p := newTest(t, Options{Servers: []string{s.ClientURL()}, Logger: slog.New(slog.NewTextHandler(writerFunc(func(b []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return log.Write(b)
	}), nil))})
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
	again := opts.Clone()
	again.MaxPayload = 4096
	if err := s.ReloadOptions(again); err != nil {
		t.Fatal(err)
	}
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
	mu.Lock()
	defer mu.Unlock()
	if got := log.String(); strings.Count(got, "have trouble") != 1 || !strings.Contains(got, "Maximum Payload Violation") {
		t.Errorf("the log: %s", got)
	}
}

// writerFunc is an io.Writer.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
