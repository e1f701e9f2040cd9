package relay_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/relay"
	"github.com/kvrelay/kvrelay/replay"
	"github.com/kvrelay/kvrelay/sinks"
)

// TestKilledAfterDeadEngine: the engine was dead and came back; its blocks were
// published again. A relay that is killed behind that resumes as ever.
func TestKilledAfterDeadEngine(t *testing.T) {
	engine, sources := startEngine(t, mockengine.Options{Blocks: 400, BufferSteps: 1 << 20})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer func() { cancel(); wg.Wait() }()
	proxy := mockengine.NewProxy("127.0.0.1:0", sources[0].Endpoint[len("tcp://"):])
	if err := proxy.Listen(); err != nil {
		t.Fatal(err)
	}
	wg.Go(func() { proxy.Run(ctx) })
	sources[0].Endpoint = "tcp://" + proxy.Addr()
	s := streamServer(t, t.TempDir(), -1, nil)
	o := lifeOptions{servers: []string{s.ClientURL()}, sources: sources, relay: func(ro *relay.Options) { ro.Replay.DeadAfter = 300 * time.Millisecond }}
	l := live(t, o)
	stop := prompts(t, engine, 2*time.Millisecond)
	<-time.After(300 * time.Millisecond)
	stop()
	l.confirmedAll(t, engine)
	proxy.Refuse()
	proxy.Cut(false)
	await(t, "the dead engine", func() bool { return l.logged("published as cleared until it is back") })
	await(t, "the cleared in the stream", func() bool { st := readStream(t, s.ClientURL()); return st.clears == 2 && len(st.held) == 0 })
	if err := proxy.Admit(); err != nil {
		t.Fatal(err)
	}
	await(t, "the engine's blocks", func() bool { st := readStream(t, s.ClientURL()); return st.truth(engine) })
	l.kill(t)
	st := readStream(t, s.ClientURL())
	if p := st.positions[len(st.positions)-1]; p == "unknown" || p == "empty" {
		t.Errorf("the last position is %q", p)
	}
	stop = prompts(t, engine, 2*time.Millisecond)
	<-time.After(50 * time.Millisecond)
	stop()
	l = live(t, o)
	l.confirmedAll(t, engine)
	st = readStream(t, s.ClientURL())
	if st.broken != "" || st.clears != 2 || !st.truth(engine) || !l.logged("resumed: the stream goes on") {
		t.Errorf("broken %q, %d clears, as the engine: %v", st.broken, st.clears, st.truth(engine))
	}
	l.cancel()
	<-l.done
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("no %s within 20 s", what)
		}
		<-tick.C
	}
}

// TestEmptyEngine: an engine that was restarted and has published nothing yet
// shows that it is another one.
func TestEmptyEngine(t *testing.T) {
	engine, sources := startEngine(t, mockengine.Options{Blocks: 400})
	s := streamServer(t, t.TempDir(), -1, nil)
	o := lifeOptions{servers: []string{s.ClientURL()}, sources: sources, relay: func(ro *relay.Options) { ro.Replay = replay.Config{} }}
	l := live(t, o)
	stop := prompts(t, engine, 2*time.Millisecond)
	<-time.After(100 * time.Millisecond)
	stop()
	l.confirmedAll(t, engine)
	l.kill(t)
	engine.Restart()
	l = live(t, o)
	await(t, "the cleared in the stream", func() bool { st := readStream(t, s.ClientURL()); return st.clears == 2 && len(st.held) == 0 })
	if !l.logged("the engine is another one than before") {
		t.Error("the reason is not said")
	}
	l.cancel()
	<-l.done
}

// TestLateMessageOfEarlierLife: a message of the life before comes when its heir
// has begun. The heir begins again behind it, and goes on as if it were its own.
func TestLateMessageOfEarlierLife(t *testing.T) {
	engine, sources := startEngine(t, mockengine.Options{Blocks: 400, BufferSteps: 1 << 20})
	s := streamServer(t, t.TempDir(), -1, nil)
	o := lifeOptions{servers: []string{s.ClientURL()}, sources: sources, sink: sinks.Options{Profile: sinks.JSON}}
	l := live(t, o)
	stop := prompts(t, engine, 2*time.Millisecond)
	<-time.After(200 * time.Millisecond)
	stop()
	l.confirmedAll(t, engine)

	nc, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	st, err := js.Stream(t.Context(), "KVRELAY")
	if err != nil {
		t.Fatal(err)
	}
	last, err := st.GetLastMsgForSubject(t.Context(), streamSubject)
	if err != nil {
		t.Fatal(err)
	}
	var w, rank, publisher, life, id uint64
	if _, err := fmt.Sscanf(last.Header.Get(nats.MsgIdHdr), "%d.%d.%d.%d.%d", &w, &rank, &publisher, &life, &id); err != nil {
		t.Fatal(err)
	}
	h := last.Header
	h.Set(nats.MsgIdHdr, fmt.Sprintf("%d.%d.%d.%d.%d", w, rank, publisher, life^1, id+1))
	h.Set(nats.ExpectedLastSubjSeqHdr, fmt.Sprint(last.Sequence))
	body := fmt.Sprintf(`[{"worker_id":7,"storage_tier":"device","residency_domain":"worker","event":{"event_id":%d,"data":{"removed":{"block_hashes":[1]}},"dp_rank":0}}]`, id+1)
	if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: streamSubject, Header: h, Data: []byte(body)}); err != nil {
		t.Fatal(err)
	}
	stop = prompts(t, engine, 2*time.Millisecond)
	await(t, "a new beginning", func() bool { return l.logged("beginning again behind it") })
	await(t, "the resumption", func() bool { return l.logged("resumed: the stream goes on") })
	stop()
	l.confirmedAll(t, engine)
	got := readStream(t, s.ClientURL())
	if got.broken != "" || got.clears != 1 || len(got.publishers) != 1 || !got.truth(engine) {
		t.Errorf("broken %q, %d clears, %d publishers, as the engine: %v", got.broken, got.clears, len(got.publishers), got.truth(engine))
	}
	l.cancel()
	if err := <-l.done; err != nil {
		t.Error(err)
	}
}

// TestTwoRanksOfOneSource: the second is never resumed, the first is.
func TestTwoRanksOfOneSource(t *testing.T) {
	engine, sources := startEngine(t, mockengine.Options{Blocks: 400, Ranks: 2, BufferSteps: 1 << 20})
	sources[0].Rank = 1 // its batches name rank 0
	s := streamServer(t, t.TempDir(), -1, nil)
	o := lifeOptions{servers: []string{s.ClientURL()}, sources: sources}
	for range 3 {
		l := live(t, o)
		stop := prompts(t, engine, 2*time.Millisecond)
		<-time.After(50 * time.Millisecond)
		stop()
		await(t, "both ranks", func() bool {
			st := l.relay.Status()
			return len(st.Sources) == 1 && len(st.Sources[0].Ranks) == 2 && st.Sources[0].Cursor.Next == engine.Rank(0).NextSeq() && st.Sink.UnconfirmedEvents == 0
		})
		l.kill(t)
	}
}
