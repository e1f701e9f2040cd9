package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/consumer/index"
)

// Holdings come from recovery: the events passed before tail was there.
func TestTailIndex(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, ignore) })
	h := index.TokensHashes(nil, 4, false, index.Prompt{Tokens: queryPrompt})
	r := &recovering{worker: 7, rank: 1, publisher: 70}
	r.events = []map[string]any{storedEvent(r, "device", 0, nil, []uint64{100, 101}, h), storedEvent(r, "disk", 0, nil, []uint64{100}, h[:1])}
	url := queried(t, r)
	code, out, errs := run(t, "tail", "--index", "--nats-url", url, "--profile=json", "--for=1s")
	want := "WORKER/RANK  DEVICE  HOST_PINNED  DISK  EXTERNAL  LAST ID  HOLES  FOLLOWED  RELAY\n7/1          2       0            1     0         5        0      live      live\n"
	if code != exitOK || errs != "" || !strings.HasSuffix(strings.TrimSpace(out)+"\n", want) {
		t.Errorf("code %d, stderr %q, got\n%swant\n%s", code, errs, out, want)
	}
	code, out, _ = run(t, "tail", "--index", "--json", "--nats-url", url, "--profile=json", "--for=1s")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var list []holding
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &list); err != nil || code != exitOK {
		t.Fatalf("code %d, %v: %s", code, err, out)
	}
	if len(list) != 1 || list[0].Worker != 7 || list[0].Blocks["device"] != 2 || list[0].Blocks["disk"] != 1 || list[0].Publisher != 70 {
		t.Errorf("%+v", list)
	}
	code, _, errs = run(t, "tail", "--index", "--count=3")
	if code != exitUsage || !strings.Contains(errs, "--index") {
		t.Errorf("code %d, stderr %q", code, errs)
	}
}

// In place: the table is drawn over itself, also when it gets shorter.
func TestHoldingsScreen(t *testing.T) {
	var b bytes.Buffer
	s := holdingsScreen{out: &b, live: true}
	one, two := []holding{{Worker: 1}}, []holding{{Worker: 1}, {Worker: 2}}
	for _, list := range [][]holding{two, one, two} {
		if err := s.show(list); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Count(b.String(), "\x1b[3A"); got != 2 || strings.Count(b.String(), "\n") != 9 {
		t.Errorf("%d redraws: %q", got, b.String())
	}
	b.Reset()
	s = holdingsScreen{out: &b}
	_ = s.show(one)
	_ = s.show(one)
	if strings.Count(b.String(), "1/0") != 1 {
		t.Errorf("said again without a change: %q", b.String())
	}
	if got := holdingsText(nil); got != "no worker has been heard of yet\n" {
		t.Errorf("%q", got)
	}
}

// A stream is shown from its beginning.
func TestTailStream(t *testing.T) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("no server")
	}
	nc, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "KVRELAY", Subjects: []string{"kvrelay.*.*.*.events"}}); err != nil {
		t.Fatal(err)
	}
	for id, data := range []string{`"cleared"`, `{"removed":{"block_hashes":[9]}}`} {
		body := []byte(`[{"worker_id":7,"storage_tier":"device","event":{"event_id":` + string(rune('1'+id)) + `,"data":` + data + `,"dp_rank":0}}]`)
		if _, err := js.PublishMsg(ctx, &nats.Msg{Subject: "kvrelay.dynamo.7.0.events", Header: nats.Header{consumer.PublisherHeader: {"3"}}, Data: body}); err != nil {
			t.Fatal(err)
		}
	}
	code, out, errs := run(t, "tail", "--nats-url", s.ClientURL(), "--stream=KVRELAY", "--count=2")
	if code != exitOK || !strings.Contains(errs, "of stream KVRELAY") || strings.Count(out, "\n") != 2 || !strings.Contains(out, "cleared") || !strings.Contains(out, "removed") {
		t.Errorf("code %d, stderr %q\n%s", code, errs, out)
	}
	code, _, errs = run(t, "tail", "--nats-url", s.ClientURL(), "--stream=NONE")
	if code != exitFailed || !strings.Contains(errs, `stream "NONE"`) {
		t.Errorf("code %d, stderr %q", code, errs)
	}
}
