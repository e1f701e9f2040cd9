package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/consumer/index"
	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
	"github.com/kvrelay/kvrelay/internal/natsd"
)

var queryPrompt = []uint32{11, 22, 33, 44, 55, 66, 77, 88, 99}

// recovering is a relay as consumers see it: heartbeats, and a recovery service
// that answers with a snapshot, here of one part.
type recovering struct {
	worker    uint64
	rank      uint32
	publisher uint64
	events    []map[string]any
	mute      bool // heartbeats only
}

func storedEvent(r *recovering, tier string, id int, parent any, hashes []uint64, tokens []uint64) map[string]any {
	var blocks []any
	for i, h := range hashes {
		blocks = append(blocks, map[string]any{"block_hash": h, "tokens_hash": tokens[i], "mm_extra_info": nil})
	}
	return map[string]any{"worker_id": r.worker, "storage_tier": tier, "event": map[string]any{
		"event_id": id, "dp_rank": r.rank, "data": map[string]any{"stored": map[string]any{"parent_hash": parent, "start_position": nil, "blocks": blocks}},
	}}
}

// serve answers until the test ends.
func (r *recovering) serve(t *testing.T, url string) {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	base := fmt.Sprintf("kvrelay.dynamo.%d.%d.", r.worker, r.rank)
	if !r.mute {
		body, err := json.Marshal(append([]map[string]any{{"worker_id": r.worker, "storage_tier": "device", "event": map[string]any{
			"event_id": 0, "dp_rank": r.rank, "data": "cleared"}}}, r.events...))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Subscribe(base+"recover", func(m *nats.Msg) {
			_ = m.RespondMsg(&nats.Msg{Data: body, Header: nats.Header{
				consumer.PublisherHeader: {fmt.Sprint(r.publisher)}, "Kvrelay-Kind": {"snapshot"}, "Kvrelay-Snapshot": {"t"},
				"Kvrelay-Part": {"0"}, "Kvrelay-More": {"false"}, "Kvrelay-Done": {"5"},
			}})
		}); err != nil {
			t.Fatal(err)
		}
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			_ = nc.Publish(base+"heartbeat", fmt.Appendf(nil, `{"publisher_id":%d,"started":1,"life":1,"last_event_id":5,"state":"live","engine_seq":1,"epoch":1,"blocks":2,"lag_ms":1}`, r.publisher))
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-ended; nc.Close() })
}

// queried starts a server with relays and returns its URL.
func queried(t *testing.T, relays ...*recovering) string {
	t.Helper()
	s, err := natsd.Start(t.Context(), natsd.Options{Port: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for _, r := range relays {
		r.serve(t, s.URL())
	}
	return s.URL()
}

func TestQuery(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, ignore) })
	h := index.TokensHashes(nil, 4, false, index.Prompt{Tokens: queryPrompt})
	whole := &recovering{worker: 7, rank: 1, publisher: 70}
	whole.events = []map[string]any{storedEvent(whole, "device", 0, nil, []uint64{100}, h[:1]), storedEvent(whole, "host_pinned", 0, 100, []uint64{101}, h[1:])}
	part := &recovering{worker: 9, publisher: 90}
	part.events = []map[string]any{storedEvent(part, "device", 0, nil, []uint64{200}, h[:1])}
	other := &recovering{worker: 8, publisher: 80}
	other.events = []map[string]any{storedEvent(other, "device", 0, nil, []uint64{300}, []uint64{12345})}
	url := queried(t, whole, part, other)

	args := []string{"query", "--nats-url", url, "--profile=json", "--prompt-tokens=11,22,33,44,55,66,77,88,99"}
	code, out, errs := run(t, args...)
	if code != exitOK || errs != "" {
		t.Fatalf("code %d, stderr %q\n%s", code, errs, out)
	}
	want := `prompt of 9 tokens: 2 whole blocks of 4

WORKER/RANK   DEVICE   + HOST_PINNED   + DISK   + EXTERNAL   TOKENS   STATE
7/1           1        2               2        2            8        live
9/0           1        1               1        1            4        live
8/0           0        0               0        0            0        live
`
	if out != want {
		t.Errorf("got\n%swant\n%s", out, want)
	}

	code, out, _ = run(t, append(args, "--json", "--block-size=4", "--worker=9")...)
	var a queryAnswer
	if err := json.Unmarshal([]byte(out), &a); err != nil || code != exitOK {
		t.Fatalf("code %d, %v: %s", code, err, out)
	}
	if a.BlockSize != 4 || a.Blocks != 2 || !a.Complete || len(a.Holders) != 1 || a.Holders[0].Worker != 9 || a.Holders[0].Tokens["device"] != 4 || a.Holders[0].Blocks["external"] != 1 {
		t.Errorf("answer %+v", a)
	}

	// A salt, another adapter, or another size stands for other blocks.
	for _, more := range []string{"--cache-salt=x", "--lora=x", "--block-size=3", "--eagle"} {
		code, out, _ = run(t, append(args, more)...)
		if code != exitFailed || !strings.Contains(out, "held anywhere") {
			t.Errorf("%s: code %d\n%s", more, code, out)
		}
	}
}

// A relay whose recovery service does not answer: what is known, and that it is not all.
func TestQueryWithoutRecovery(t *testing.T) {
	url := queried(t, &recovering{worker: 7, publisher: 70, mute: true})
	code, out, _ := run(t, "query", "--nats-url", url, "--profile=json", "--prompt-tokens=1", "--wait=300ms")
	if code != exitFailed || !strings.Contains(out, "7/0") || !strings.Contains(out, "waiting") || !strings.Contains(out, "Not every rank is followed") {
		t.Errorf("code %d\n%s", code, out)
	}
	code, out, _ = run(t, "query", "--nats-url", queried(t), "--prompt-tokens=1", "--wait=100ms")
	if code != exitFailed || !strings.Contains(out, "nobody answered") {
		t.Errorf("code %d\n%s", code, out)
	}
	code, out, _ = run(t, "query", "--nats-url", url, "--profile=json", "--prompt-tokens=1", "--wait=100ms", "--worker=8")
	if code != exitFailed || !strings.Contains(out, "worker 8 did not answer") { // though 7 is there
		t.Errorf("code %d\n%s", code, out)
	}
}

func TestQueryUsage(t *testing.T) {
	for args, say := range map[string]string{
		"":                                   "one of --prompt-tokens and --prompt-file",
		"--prompt-tokens=1 --prompt-file=x":  "one of --prompt-tokens and --prompt-file",
		"--prompt-tokens=1,x4711":            "token 2 of the prompt",
		"--prompt-tokens=4294967296":         "token 1 of the prompt",
		"--prompt-tokens=[1":                 "bracket",
		"--prompt-tokens=,":                  "no tokens",
		"--prompt-file=/nonexistent":         "no such file",
		"--prompt-file=-":                    "no tokens", // stdin is empty
		"--prompt-tokens=1 --block-size=-1":  "--block-size=-1",
		"--prompt-tokens=1 --wait=0":         "--wait=0s",
		"--prompt-tokens=1 2":                "no flag",
		"--prompt-tokens=1 --profile=nobody": "dynamo-single",
	} {
		code, out, errs := run(t, append([]string{"query"}, strings.Fields(args)...)...)
		if code != exitUsage || out != "" || !strings.Contains(errs, say) || strings.Contains(errs, "4711") {
			t.Errorf("%q: code %d, stdout %q, stderr %q; want %q", args, code, out, errs, say)
		}
	}
	if code, _, errs := run(t, "query", "--prompt-tokens=1", "--nats-url=nats://127.0.0.1:1"); code != exitFailed || !strings.Contains(errs, "NATS at nats://127.0.0.1:1 cannot be reached") {
		t.Errorf("code %d, stderr %q", code, errs)
	}
}

func TestReadPrompt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "prompt")
	if err := os.WriteFile(file, []byte(" [1, 2,\n3]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	want := []uint32{1, 2, 3}
	for _, c := range []struct{ text, file string }{{"1,2,3", ""}, {"1 2\t3", ""}, {"[1,2,3]", ""}, {"", file}, {"", "-"}} {
		got, err := readPrompt(c.text, c.file, strings.NewReader("1\n2\n3\n"))
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q %q: %v, %v", c.text, c.file, got, err)
		}
	}
	if _, err := readPrompt("", "-", strings.NewReader(strings.Repeat("1 ", maxPrompt/2+1))); err == nil {
		t.Error("a prompt without end was read")
	}
}

func FuzzReadPrompt(f *testing.F) {
	f.Add("1,2,3")
	f.Add("[1 2]")
	f.Fuzz(func(t *testing.T, text string) {
		fuzzlimit.Run(t, len(text), func() { _, _ = readPrompt(text, "", nil) })
		list, err := readPrompt(text, "", nil)
		if (err == nil) != (len(list) > 0) {
			t.Errorf("%d tokens, %v", len(list), err)
		}
	})
}
