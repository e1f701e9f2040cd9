package mockengine

import (
	"context"
	"errors"
	"maps"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/go-zeromq/zmq4"
)

// follow applies the payloads of a replay in order and returns what they hold.
func follow(t testing.TB, messages [][][]byte, blockSize int) map[uint64]int {
	t.Helper()
	r := newEventReader()
	for _, m := range messages {
		_, events, _, err := decodeBatch(m[len(m)-1])
		if err != nil {
			t.Fatal(err)
		}
		if problem := r.read(events, blockSize); problem != "" {
			t.Fatal(problem)
		}
	}
	return r.copies
}

func TestEngineStory(t *testing.T) {
	for _, o := range []Options{
		{Encoding: Array, Hashes: Signed, Replay: Reply3, OmitRank: true},
		{Encoding: Map, BatchEncoding: Map, Hashes: BytesHash},
	} {
		o.BlockSize, o.Blocks, o.Topic = 4, 6, "kv@a@b"
		e := start(t, o)
		r := e.Rank(0)
		sub := subscribe(t, r.Publisher, r.Endpoint(), "kv@")
		prompt := append(slices.Clone(golden), 1)
		other := from32(100, 121)

		if hit, err := e.Prompt(prompt, PromptOptions{}); err != nil || hit != 0 {
			t.Fatal(hit, err)
		}
		if n := e.Step(); n != 1 {
			t.Fatalf("%d batches", n)
		}
		if n := e.Step(); n != 0 {
			t.Fatalf("%d batches of a step in which nothing happened", n)
		}
		if hit, err := e.Prompt(prompt, PromptOptions{}); err != nil || hit != 8 || r.Hit(prompt) != 8 {
			t.Fatal(hit, err)
		}
		if _, err := e.Prompt(other, PromptOptions{}); err != nil { // needs all 6 blocks
			t.Fatal(err)
		}
		if err := e.Flush(timeout(t)); err != nil {
			t.Fatal(err)
		}
		var live [][][]byte
		for range 2 {
			live = append(live, sub.recv())
		}
		h := BlockHashes(prompt, 4)
		_, events, rank, err := decodeBatch(live[1][2])
		if err != nil {
			t.Fatal(err)
		}
		if (rank == nil) != o.OmitRank {
			t.Errorf("rank %v", rank)
		}
		// The child goes before its parent, then the new blocks come.
		want := []Event{
			{Kind: Removed, Hashes: h[1:]},
			{Kind: Removed, Hashes: h[:1]},
			{Kind: Stored, Hashes: BlockHashes(other, 4), Tokens: other[:20]},
		}
		if !reflect.DeepEqual(events, want) {
			t.Errorf("events %v, want %v", events, want)
		}
		if hit := r.Hit(prompt); hit != 0 {
			t.Errorf("hit %d after eviction", hit)
		}
		if got := follow(t, live, 4); !maps.Equal(got, r.Truth()) {
			t.Errorf("live %v, truth %v", got, r.Truth())
		}
		replay := dial(t, r.ReplayEndpoint(), zmq4.Dealer)
		if got := replay.ask(0); !reflect.DeepEqual(payloadsOf(got), payloadsOf(live)) {
			t.Error("the replay differs from live")
		}
	}
}

func payloadsOf(messages [][][]byte) (out [][]byte) {
	for _, m := range messages {
		out = append(out, m[len(m)-1])
	}
	return out
}

func from32(a, b uint32) (out []uint32) {
	for ; a < b; a++ {
		out = append(out, a)
	}
	return out
}

func TestPromptErrors(t *testing.T) {
	e, err := New(Options{BlockSize: 4, Blocks: 4})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Prompt(nil, PromptOptions{}); !errors.Is(err, ErrPrompt) {
		t.Error(err)
	}
	if _, err := e.Prompt(from32(0, 17), PromptOptions{}); !errors.Is(err, ErrPrompt) {
		t.Error(err)
	}
	if _, err := e.Prompt(from32(0, 10), PromptOptions{Answer: 7}); !errors.Is(err, ErrPrompt) {
		t.Error(err)
	}
	if _, err := e.Prompt(golden, PromptOptions{Rank: 1}); err == nil {
		t.Error("a rank that is not there")
	}
	r := e.Rank(0)
	r.Kill()
	if _, err := e.Prompt(golden, PromptOptions{}); !errors.Is(err, ErrDown) || r.Step() || !errors.Is(r.Clear(), ErrDown) {
		t.Errorf("a dead rank works: %v", err)
	}
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Prompt(golden, PromptOptions{Answer: 8}); err != nil || !r.Step() {
		t.Error(err)
	}
}

func TestAnswerIsRepeatable(t *testing.T) {
	e, err := New(Options{BlockSize: 4, Blocks: 64})
	if err != nil {
		t.Fatal(err)
	}
	_, first, err := e.complete(golden, PromptOptions{Answer: 12})
	if err != nil || len(first) != 12 {
		t.Fatal(first, err)
	}
	hit, again, err := e.complete(golden, PromptOptions{Answer: 12})
	if err != nil || !slices.Equal(first, again) || hit != 4 {
		t.Errorf("hit %d, answers %v and %v, %v", hit, first, again, err)
	}
	if hit := e.Rank(0).Hit(append(slices.Clone(golden), append(first, 1)...)); hit != 20 {
		t.Errorf("a further turn hits %d tokens, want 20", hit)
	}
}

// TestFaultyEngines: under each fault, and under all, an engine with sockets
// ends with a replay buffer that gives exactly what it holds.
func TestFaultyEngines(t *testing.T) {
	all := "drop,burst=5,restart=80,overtake=90,kill=80,cut=60,freeze=60,halfopen=90,silent,burn,garbage,late=7,slowjoin=9"
	for _, text := range append(strings.Split(all, ","), all, "truncate=3", "holes=3") {
		t.Run(text, func(t *testing.T) {
			e := start(t, Options{BlockSize: 4, Blocks: 32, Workload: &Workload{Steps: 300}, Seed: 5, Faults: faults(t, text)})
			r := e.Rank(0)
			for range 5000 {
				if e.Done() {
					break
				}
				e.Step()
			}
			if !e.Done() {
				t.Fatal("the workload does not end")
			}
			kind, _, _ := strings.Cut(text, "=")
			if slices.Contains([]string{"restart", "overtake", "kill", "halfopen", "drop,burst"}, kind) != (r.Incarnation() > 0) {
				t.Errorf("%d restarts", r.Incarnation())
			}
			reader := newEventReader()
			next := uint64(0)
			for next < r.NextSeq() { // truncated and holed replays need several rounds
				for _, m := range patientAsk(t, r, next, strings.Contains(text, "truncate")) {
					seq := seqs([][][]byte{m})[0]
					if seq < next {
						continue
					}
					if seq > next && strings.Contains(text, "holes") {
						break
					}
					next = seq + 1
					payload := m[len(m)-1]
					if len(payload) < 20 || payload[0] == 0x91 || payload[0] == 0xc1 {
						continue // garbage
					}
					_, events, _, err := decodeBatch(payload)
					if err != nil {
						t.Fatal(err)
					}
					if problem := reader.read(events, 4); problem != "" {
						t.Fatal(problem)
					}
				}
				if strings.Contains(text, "burn") {
					break // the last numbers may be burned
				}
			}
			if !maps.Equal(reader.copies, r.Truth()) || len(r.Truth()) == 0 {
				t.Errorf("replayed %d blocks, the engine holds %d", len(reader.copies), len(r.Truth()))
			}
		})
	}
}

// patientAsk asks until there is an answer: with the fault silent half of the
// requests get none. The request after it ends the wait: the end marker of a
// start that is beyond everything.
func patientAsk(t *testing.T, r *Rank, start uint64, truncated bool) [][][]byte {
	t.Helper()
	for range 50 {
		c := dial(t, r.ReplayEndpoint(), zmq4.Dealer)
		c.send(nil, seqFrame(start))
		for range 20 {
			c.send(nil, seqFrame(endSeq)) // some of these are answered
		}
		var out [][][]byte
		for {
			m := c.recv()
			if isEnd(m) {
				break
			}
			out = append(out, m)
		}
		_ = c.Close()
		if len(out) > 0 {
			return out
		}
	}
	t.Fatal("the ROUTER never answers")
	return nil
}

func TestRate(t *testing.T) {
	e := start(t, Options{BlockSize: 4, Blocks: 32, Ranks: 2, FirstRank: 4, Rate: 500, Workload: &Workload{}})
	for i, r := range e.Ranks() {
		if r.Number() != 4+i {
			t.Errorf("rank %d", r.Number())
		}
		c := subscribe(t, r.Publisher, r.Endpoint(), "")
		for range 20 {
			_, _, rank, err := decodeBatch(c.recv()[2])
			if err != nil || number(rank) != uint64(4+i) {
				t.Fatal(rank, err)
			}
		}
	}
}

func TestPortTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if _, err := Start(Options{EventPort: taken.Addr().(*net.TCPAddr).Port}); err == nil || !strings.Contains(err.Error(), "rank 0: event socket") {
		t.Errorf("Start: %v", err)
	}
	if _, err := Start(Options{ReplayPort: taken.Addr().(*net.TCPAddr).Port}); err == nil || !strings.Contains(err.Error(), "rank 0: replay socket") {
		t.Errorf("Start: %v", err)
	}
	// A program says so and goes on: the rank is not advertised, the other is.
	var e *Engine
	for try := 0; ; try++ { // until the port before a taken one is free
		second, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer second.Close()
		if e, err = New(Options{EventPort: second.Addr().(*net.TCPAddr).Port - 1, Ranks: 2}); err != nil {
			t.Fatal(err)
		}
		err = e.Listen()
		if err == nil || !strings.Contains(err.Error(), "rank 1: event socket") {
			t.Fatalf("Listen: %v", err)
		}
		if !strings.Contains(err.Error(), "rank 0") {
			break
		}
		if try > 50 {
			t.Fatalf("no free pair of ports: %v", err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	if got := e.Sources(); len(got) != 1 || got[0].Rank != 0 {
		t.Errorf("sources %v", got)
	}
	for _, r := range e.Ranks() {
		if _, err := e.Prompt(from32(0, 32), PromptOptions{Rank: r.Number()}); err != nil {
			t.Error(err)
		}
	}
	e.Step()
	if got := dial(t, e.Rank(0).ReplayEndpoint(), zmq4.Dealer).ask(0); len(got) != 1 {
		t.Errorf("%d batches", len(got))
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestDecodeRole(t *testing.T) {
	e := start(t, Options{Role: Decode})
	if hit, err := e.Prompt(append(from32(0, 64), 1), PromptOptions{}); err != nil || hit != 0 {
		t.Fatal(err)
	}
	if e.Step() != 0 || len(e.Sources()) != 0 || e.Rank(0).Endpoint() != "" {
		t.Error("a decode engine publishes")
	}
	if hit := e.Rank(0).Hit(append(from32(0, 64), 1)); hit != 64 {
		t.Errorf("hit %d", hit)
	}
}

func TestNoReplay(t *testing.T) {
	e := start(t, Options{Replay: NoReplay, BlockSize: 4})
	r := e.Rank(0)
	if r.ReplayEndpoint() != "" || r.ReplayPort() != 0 {
		t.Error("there is a replay endpoint")
	}
	c := subscribe(t, r.Publisher, r.Endpoint(), "")
	if _, err := e.Prompt(golden, PromptOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := e.Flush(timeout(t)); err != nil {
		t.Fatal(err)
	}
	c.recv()
	r.CloseReplay()
	e.Restart()
	e.Kill()
}
