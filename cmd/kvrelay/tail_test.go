package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/internal/natsd"
	"github.com/kvrelay/kvrelay/sinks"
)

// announced lets a test go on once a command has said its first line.
type announced struct {
	bytes.Buffer
	said chan struct{}
}

func (a *announced) Write(p []byte) (int, error) {
	defer func() {
		select {
		case <-a.said:
		default:
			close(a.said)
		}
	}()
	return a.Buffer.Write(p)
}

// tailOf runs tail until it has shown n events that publish makes.
func tailOf(t *testing.T, profile sinks.Profile, args []string, n string, publish func(o *sinks.Outbox)) (out string) {
	t.Helper()
	s, err := natsd.Start(t.Context(), natsd.Options{Port: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p, err := sinks.New(sinks.Options{Servers: []string{s.URL()}, Profile: profile, Namespace: "n.1", Component: "c", Endpoint: "e"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	published := make(chan error, 1)
	var stdout bytes.Buffer
	stderr := &announced{said: make(chan struct{})}
	code := make(chan int, 1)
	go func() {
		code <- runTail(ctx, append(args, "--nats-url", s.URL(), "--profile", profile.String(), "--namespace", "n.1",
			"--component", "c", "--endpoint-name", "e", "--count", n), nil, &stdout, stderr)
	}()
	<-stderr.said
	go func() { published <- p.Run(ctx) }()
	o, err := p.Open(7, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	publish(o)
	if c := <-code; c != exitOK {
		t.Errorf("exit code %d: %s", c, stderr.String())
	}
	if ctx.Err() != nil {
		t.Errorf("not all events within 20 s:\n%s", stdout.String())
	}
	cancel()
	if err := <-published; err != nil {
		t.Error(err)
	}
	return stdout.String()
}

func threeEvents(o *sinks.Outbox) {
	o.Append(sinks.Place{}, []convert.RouterEvent{
		{Kind: convert.Cleared, NoDomain: true},
		{Kind: convert.Stored, Tier: convert.HostPinned, HasParent: true, Parent: 0xabc, SessionID: []byte("s1"),
			Blocks: []convert.Block{{Hash: 1, TokensHash: 11}, {Hash: 2, TokensHash: 12}}},
		{Kind: convert.Removed, Hashes: []uint64{1, 2}},
	})
}

func TestTailOfEveryProfile(t *testing.T) {
	for _, p := range []sinks.Profile{sinks.Dynamo, sinks.DynamoSingle, sinks.JSON} {
		t.Run(p.String(), func(t *testing.T) {
			out := tailOf(t, p, nil, "3", threeEvents)
			for _, want := range []string{
				"7/2 #1       device      cleared\n",
				"7/2 #2       host_pinned stored     2 blocks  0000000000000001…0000000000000002  after 0000000000000abc  session \"s1\"\n",
				"7/2 #3       device      removed    2 blocks  0000000000000001…\n",
			} {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
		})
	}
}

func TestTailAsJSON(t *testing.T) {
	out := tailOf(t, sinks.Dynamo, []string{"--json"}, "3", threeEvents)
	dec := json.NewDecoder(strings.NewReader(out))
	var ids []uint64
	for {
		var e struct {
			Publisher uint64 `json:"publisher_id"`
			Event     struct {
				Worker uint64 `json:"worker_id"`
				Event  struct {
					ID uint64 `json:"event_id"`
				} `json:"event"`
			} `json:"router_event"`
		}
		err := dec.Decode(&e)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, out)
		}
		if e.Publisher == 0 || e.Event.Worker != 7 {
			t.Errorf("line %+v", e)
		}
		ids = append(ids, e.Event.Event.ID)
	}
	if len(ids) != 3 || ids[0] != 1 || ids[2] != 3 {
		t.Errorf("ids %v, want 1 2 3", ids)
	}
}

func TestTailFiltersAndMarksHoles(t *testing.T) {
	out := tailOf(t, sinks.Dynamo, []string{"--worker", "7", "--rank", "2"}, "1", threeEvents)
	if strings.Count(out, "\n") != 1 {
		t.Errorf("more than one line:\n%s", out)
	}
	if out := tailOf(t, sinks.Dynamo, []string{"--rank", "2"}, "3", threeEvents); strings.Contains(out, "missing") {
		t.Errorf("a hole where there is none:\n%s", out)
	}
}

// An address that is no flag would be ignored, and the server of this host asked.
func TestTailUsage(t *testing.T) {
	for says, args := range map[string][]string{
		"is given with --nats-url":            {"nats://u:S3CR3T@nats:4222"},
		"--rank=-2: want a rank from 0":       {"--rank=-2"},
		"--rank=65536: want a rank from 0":    {"--rank=65536"},
		"--count=-1: want 0 or more":          {"--count=-1"},
		`--for="-1s": want a duration`:        {"--for=-1s"},
		"--index shows ranks, not events: it": {"--index", "--count=1"},
	} {
		var out, errs bytes.Buffer
		if code := runTail(t.Context(), args, nil, &out, &errs); code != exitUsage || !strings.Contains(errs.String(), says) ||
			strings.Contains(errs.String(), "S3CR3T") || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%q: exit code %d, %q", args, code, errs.String())
		}
	}
}

func TestTailWithoutServer(t *testing.T) {
	var out, errs bytes.Buffer
	if code := runTail(t.Context(), []string{"--nats-url", "nats://127.0.0.1:1"}, nil, &out, &errs); code != exitFailed || !strings.Contains(errs.String(), "KVRELAY_NATS_URL") {
		t.Errorf("exit code %d, %q", code, errs.String())
	}
}
