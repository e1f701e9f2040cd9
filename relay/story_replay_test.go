package relay_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/freeport"
	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/relay"
)

const firstEnded, without, answers = "the first replay has ended", "live without the first replay", "the replay endpoint answers"

// late is an engine whose ROUTER is not at the replay endpoint until open is called.
func late(t *testing.T) (b *bench, open func()) {
	t.Helper()
	addr := freeport.Addr(t)
	b = start(t, setup{source: func(s *discovery.Source) { s.Replay = "tcp://" + addr }, later: true})
	b.prompt(0, 0, 3) // nobody has subscribed
	b.update(b.sources(func(s *discovery.Source) { s.Replay = "tcp://" + addr }))
	return b, func() {
		t.Helper()
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		t.Cleanup(func() { cancel(); wg.Wait() })
		p := mockengine.NewProxy(addr, strings.TrimPrefix(b.engine.Rank(0).ReplayEndpoint(), "tcp://"))
		if err := p.Listen(); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { p.Run(ctx) })
	}
}

// A replay endpoint that refuses from the start: after DEAD_AFTER the stream goes
// live without, and no line says that a replay has ended. Where nothing came
// meanwhile, the late endpoint brings everything.
func TestReplayRefusedAtStart(t *testing.T) {
	b, open := late(t)
	b.await("the reason", func() bool { return strings.Contains(b.source(0).Reason, "the replay endpoint cannot be reached") })
	if s := b.source(0); s.Ready || s.State != relay.StateReplaying {
		t.Errorf("before DEAD_AFTER: %+v", s)
	}
	b.ready()
	s := b.source(0)
	if b.logged(firstEnded) || !b.logged(without) || !b.logged(`because="the replay endpoint cannot be reached"`) {
		t.Error("the log does not say that it goes live without the first replay, or says more")
	}
	if s.State != relay.StateLive || !s.ReplayFailing || !strings.Contains(s.Reason, "cannot be reached") {
		t.Errorf("status: %+v", s)
	}
	open()
	b.same()
	b.await("the line", func() bool { return b.logged(answers) })
	if s := b.source(0); s.ReplayFailing || s.Reason != "" || s.Cursor.Losses != 0 || b.logged(firstEnded) {
		t.Errorf("status: %+v", s)
	}
}

// What came live meanwhile is relayed; what was cached before stays unknown, and is said to.
func TestReplayRefusedWhileLive(t *testing.T) {
	b, open := late(t)
	b.ready()
	b.prompt(0, 10, 1)
	b.await("the live batch", func() bool { return len(b.held(0)) == 3 })
	if !b.logged("what the engine stored before this batch is unknown to routers") || !b.logged("because=\"no replay has answered\"") {
		t.Error("the log does not say that what came before is unknown")
	}
	open()
	b.await("the line", func() bool { return b.logged(answers) })
	b.prompt(0, 20, 1)
	b.await("the next batch", func() bool { return len(b.held(0)) == 6 })
	if s := b.source(0); s.Cursor.Losses != 0 || b.logged("history is lost") {
		t.Errorf("status: %+v", s)
	}
}

// A ROUTER that takes requests and never answers is told apart from one that refuses.
func TestReplaySilentAtStart(t *testing.T) {
	faults, err := mockengine.ParseFaults("silent=1")
	if err != nil {
		t.Fatal(err)
	}
	b := start(t, setup{engine: mockengine.Options{Faults: faults}, relay: func(o *relay.Options) { o.Replay.Idle = 20 * time.Millisecond }})
	b.ready()
	if b.logged(firstEnded) || !b.logged(without) || !b.logged(`because="the replay endpoint does not answer"`) {
		t.Error("the log does not say that it goes live without the first replay, or says more")
	}
	b.await("the reason", func() bool { s := b.source(0); return s.ReplayFailing && strings.Contains(s.Reason, "does not answer") })
}

// Replay of another engine that has come less far, and goes on: each round brings
// something, so none is in vain, and none comes as far as the live batches.
func TestReplayOfAnotherEngine(t *testing.T) {
	other, err := mockengine.Start(mockengine.Options{BlockSize: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	const said = "replay ends below what comes live, again and again"
	b := start(t, setup{later: true, relay: func(o *relay.Options) { o.SilentAfter = 300 * time.Millisecond }})
	b.prompt(0, 0, 500) // nobody has subscribed
	b.update(b.sources(func(s *discovery.Source) { s.Replay = other.Rank(0).ReplayEndpoint() }))
	n := 500
	b.until("the line", func() {
		b.prompt(0, n, 1)
		tokens := []uint32{uint32(n), 1, 2, 3, 4}
		if _, err := other.Prompt(tokens, mockengine.PromptOptions{}); err != nil {
			t.Fatal(err)
		}
		other.Step()
		n++
	}, func() bool { return b.logged(said) })
	if s := b.source(0); s.State != relay.StateReplaying || !strings.Contains(s.Reason, said) {
		t.Errorf("status: %+v", s)
	}
	if got := b.count(said); got != 1 {
		t.Errorf("told %d times", got)
	}
}
