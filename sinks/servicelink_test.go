package sinks

import (
	"fmt"
	"log/slog"
	"maps"
	"strings"
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
