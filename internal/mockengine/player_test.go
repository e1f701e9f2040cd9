package mockengine

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/go-zeromq/zmq4"

	"github.com/kvrelay/kvrelay/internal/capture"
)

func TestReplayShapeOf(t *testing.T) {
	for _, c := range []struct {
		engine, version string
		shape           ReplayShape
		hwm             int
	}{
		{"vllm", "0.9.0", Reply3, 1000}, {"vllm", "0.25.9", Reply3, 1000}, {"vllm", "0.26.0", Reply4, 1000}, {"vllm", "0.32.1rc1", Reply4, 1000},
		{"vllm", "0.33.0", Reply4, 42}, {"vLLM", "v1.0", Reply4, 42}, {"vllm", "", Reply4, 42}, {"vllm", "main", Reply4, 42},
		{"sglang", "0.4.9", Reply3, 1000}, {"sglang", "0.5.21", Reply3, 1000}, {"sglang", "0.5.22", Reply4, 1000}, {"sglang", "0.5.22.post1", Reply4, 1000}, {"sglang", "0.6", Reply4, 1000},
		{"dynamo-mocker", "1.6.1", Reply3, 1000}, {"atom", "0.1", ReplyATOM, 1000}, {"other", "1", Reply4, 42},
	} {
		if shape, hwm := ReplayShapeOf(c.engine, c.version, 20); shape != c.shape || hwm != c.hwm {
			t.Errorf("%s %s: %s %d, want %s %d", c.engine, c.version, shape, hwm, c.shape, c.hwm)
		}
	}
}

// opener opens a capture made of messages.
func opener(t *testing.T, messages ...[][]byte) func() (*capture.Reader, error) {
	t.Helper()
	var b bytes.Buffer
	w, err := capture.NewWriter(&b, &capture.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		if err := w.Write(capture.Message{Frames: m}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return func() (*capture.Reader, error) {
		return capture.NewReader(bytes.NewReader(b.Bytes()), "test", capture.Limits{})
	}
}

func stamped(seq uint64, ts float64) [][]byte {
	c := Encoder{}
	return [][]byte{[]byte("t"), seqFrame(seq), c.Encode(nil, ts, []Event{{Kind: Cleared}})}
}

func TestPlay(t *testing.T) {
	c, err := capture.Load("testdata/live-vllm-0.33.0-base.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	p := publisher(t, PublisherOptions{})
	ended := make(chan PlayStats, 1)
	go func() {
		stats, err := Play(timeout(t), p, func() (*capture.Reader, error) { return capture.Open("testdata/live-vllm-0.33.0-base.jsonl.gz") },
			PlayOptions{Wait: true, Drop: 0.3, Seed: 1, Rate: 2000})
		if err != nil {
			t.Error(err)
		}
		ended <- stats
	}()
	sub := subscribe(t, p, p.eventEndpoint(), "")
	stats := <-ended
	if stats.Messages != len(c.Messages) || stats.Withheld < 5 || stats.Withheld > 25 || stats.Restarts != 0 {
		t.Fatalf("stats %+v", stats)
	}
	live := map[uint64][]byte{}
	for range stats.Messages - stats.Withheld {
		m := sub.recv()
		live[binary.BigEndian.Uint64(m[1])] = m[2]
	}
	replay := dial(t, p.endpoint(), zmq4.Dealer).ask(0)
	if len(replay) != len(c.Messages) {
		t.Fatalf("%d replayed", len(replay))
	}
	for i, m := range replay {
		if !bytes.Equal(m[3], c.Messages[i].Payload()) {
			t.Fatalf("message %d differs", i)
		}
		if got, ok := live[uint64(i)]; ok && !bytes.Equal(got, m[3]) {
			t.Fatalf("live message %d differs", i)
		}
	}
}

// TestPlayLoop: rounds and restarts within the file are new processes, and no
// batch has the same bytes as one of the round before.
func TestPlayLoop(t *testing.T) {
	var seen []Published
	ctx, cancel := context.WithCancel(timeout(t))
	p := publisher(t, PublisherOptions{Observe: func(b Published) {
		if seen = append(seen, b); len(seen) == 12 {
			cancel()
		}
	}})
	open := opener(t, stamped(0, 100), stamped(1, 101), stamped(0, 105), stamped(2, 104))
	stats, err := Play(ctx, p, open, PlayOptions{Loop: true, Rate: 1000})
	if err != nil || stats.Messages < 12 || stats.Restarts < 5 {
		t.Fatalf("%+v, %v", stats, err)
	}
	want := []struct {
		incarnation int
		seq         uint64
		ts          float64
	}{{0, 0, 100}, {0, 1, 101}, {1, 0, 105}, {1, 2, 104}, {2, 0, 106}, {2, 1, 107}, {3, 0, 111}, {3, 2, 110}, {4, 0, 112}}
	for i, w := range want {
		ts := math.Float64frombits(binary.BigEndian.Uint64(seen[i].Payload[2:]))
		if seen[i].Incarnation != w.incarnation || seen[i].Seq != w.seq || ts != w.ts {
			t.Errorf("message %d: process %d seq %d ts %v, want %+v", i, seen[i].Incarnation, seen[i].Seq, ts, w)
		}
	}
}

func TestPlayEnds(t *testing.T) {
	p := publisher(t, PublisherOptions{})
	stats, err := Play(timeout(t), p, opener(t), PlayOptions{Loop: true})
	if err != nil || stats != (PlayStats{}) {
		t.Errorf("an empty capture: %+v, %v", stats, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if stats, err := Play(ctx, p, opener(t, stamped(0, 1)), PlayOptions{Wait: true}); err != nil || stats.Messages != 0 {
		t.Errorf("nobody subscribes: %+v, %v", stats, err)
	}
	broken := func() (*capture.Reader, error) {
		return capture.NewReader(strings.NewReader("{}\n{\"frames\":[\"00\"]}\nx"), "broken", capture.Limits{})
	}
	if stats, err := Play(timeout(t), p, broken, PlayOptions{}); !errors.Is(err, capture.ErrFormat) || stats.Messages != 1 {
		t.Errorf("a broken capture: %+v, %v", stats, err)
	}
}

// A capture that was cut off is played as far as it goes.
func TestPlayTorn(t *testing.T) {
	p := publisher(t, PublisherOptions{BufferSteps: 10})
	stats, err := Play(t.Context(), p, func() (*capture.Reader, error) {
		whole := `{"engine":"vllm","version":"1","topic":""}` + "\n" + `{"frames":["74","0000000000000000","c0"]}` + "\n" + `{"frames":["74",`
		return capture.NewReader(strings.NewReader(whole), "test", capture.Limits{})
	}, PlayOptions{})
	if err != nil || stats.Messages != 1 || !errors.Is(stats.Torn, capture.ErrTorn) {
		t.Errorf("%+v, %v", stats, err)
	}
}

// TestPlayRestartWaits: the subscriber of a restarted engine is given time to
// come back.
func TestPlayRestartWaits(t *testing.T) {
	p := publisher(t, PublisherOptions{})
	sub := subscribe(t, p, p.eventEndpoint(), "")
	ended := make(chan error, 1)
	go func() {
		_, err := Play(timeout(t), p, opener(t, stamped(0, 1), stamped(0, 2)), PlayOptions{Wait: true})
		ended <- err
	}()
	if got := seqs([][][]byte{sub.recv()}); !slices.Equal(got, []uint64{0}) {
		t.Fatal(got)
	}
	eventually(t, "the engine has restarted", func() bool { return p.Incarnation() == 1 })
	again := subscribe(t, p, p.eventEndpoint(), "")
	if got := again.recv(); !bytes.Equal(got[2], stamped(0, 2)[2]) {
		t.Errorf("received %x", got)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
