package relay_test

import (
	"errors"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/relay"
	"github.com/kvrelay/kvrelay/replay"
)

// What was published before the relay came, what comes while it is there, and
// what is dropped on the way: all of it arrives, once.
func TestPictureEqualsCache(t *testing.T) {
	b := start(t, setup{engine: mockengine.Options{Blocks: 40}, later: true})
	b.prompt(0, 0, 5) // nobody has subscribed yet
	b.update(b.sources(nil))
	b.same()
	b.ready()
	b.prompt(0, 5, 30) // evicts
	b.same()
	b.engine.Rank(0).DropNext(3)
	b.prompt(0, 40, 4)
	b.same()
	b.engine.Rank(0).DropNext(1)
	b.prompt(0, 50, 1) // the last before silence: found by polling
	b.same()
	if s := b.source(0); s.Cursor.Losses != 0 || s.Cursor.Replayed == 0 {
		t.Fatalf("cursor: %+v", s.Cursor)
	}
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
}

func TestRestartIsCleared(t *testing.T) {
	b := start(t, setup{})
	b.prompt(0, 0, 5)
	b.same()
	b.engine.Restart()
	b.prompt(0, 100, 2)
	b.same()
	b.await("the restart in status", func() bool { return b.source(0).Cursor.Restarts == 1 })
	b.await("life after the restart", func() bool { s := b.source(0); return s.State == relay.StateLive && s.Ready })
}

// Garbage costs itself, marks the rank suspect, and closes nothing.
func TestGarbageMarksSuspect(t *testing.T) {
	b := start(t, setup{})
	b.prompt(0, 0, 2)
	b.same()
	b.engine.Rank(0).Garbage()
	b.prompt(0, 10, 2)
	b.same()
	s := b.source(0)
	if s.Undecodable != 1 || s.Ranks[0].State != relay.StateSuspect || s.Connects != 1 {
		t.Fatalf("status: %+v", s)
	}
	if err := b.engine.Rank(0).Clear(); err != nil {
		t.Fatal(err)
	}
	b.engine.Step()
	b.prompt(0, 20, 1)
	b.same()
	b.await("an end of suspicion", func() bool { return b.source(0).Ranks[0].State == relay.StateLive })
}

// A network that is cut for longer than DEAD_AFTER: cleared, then all of it again.
func TestAwayAndBack(t *testing.T) {
	b := start(t, setup{later: true})
	live, replay := b.network()
	b.update(b.sources(func(s *discovery.Source) {
		s.Endpoint, s.Replay = "tcp://"+live.Addr(), "tcp://"+replay.Addr()
	}))
	b.prompt(0, 0, 5)
	b.same()
	for _, p := range []*mockengine.Proxy{live, replay} {
		p.Refuse()
		p.Cut(true)
	}
	b.prompt(0, 10, 1)
	b.await("cleared", func() bool { return len(b.held(0)) == 0 })
	for _, p := range []*mockengine.Proxy{live, replay} {
		if err := p.Admit(); err != nil {
			t.Fatal(err)
		}
	}
	b.same()
	if s := b.source(0); s.Cursor.Restarts != 0 || s.Cursor.Losses != 0 {
		t.Fatalf("the same engine was taken for another: %+v", s.Cursor)
	}
	if !b.logged("the same engine is back") {
		t.Error("its return is not in the log")
	}
}

// An engine that loads its model for longer than DEAD_AFTER has not been away.
func TestFirstSeenAfterDeadAfter(t *testing.T) {
	b := start(t, setup{later: true})
	live, replay := b.network()
	for _, p := range []*mockengine.Proxy{live, replay} {
		p.Refuse()
	}
	b.update(b.sources(func(s *discovery.Source) {
		s.Endpoint, s.Replay = "tcp://"+live.Addr(), "tcp://"+replay.Addr()
	}))
	b.await("the line", func() bool { return b.logged("the engine has not been reachable") })
	for _, p := range []*mockengine.Proxy{live, replay} {
		if err := p.Admit(); err != nil {
			t.Fatal(err)
		}
	}
	b.prompt(0, 0, 5)
	b.same()
	if b.logged("the same engine is back") {
		t.Error("an engine that was never seen before is said to be back")
	}
}

// While NATS is away nothing grows; when it is back nothing is missing.
func TestOutageOfNATS(t *testing.T) {
	b := start(t, setup{
		engine: mockengine.Options{Blocks: 4000},
		relay:  func(o *relay.Options) { o.OutBytes = 20_000 },
	})
	b.prompt(0, 0, 2)
	b.same()
	b.link.cut(true)
	b.prompt(0, 10, 400)
	b.await("a stall for want of credit", func() bool { return b.source(0).Withheld })
	if st := b.relay.Status(); st.Unconfirmed > 40_000 {
		t.Fatalf("%d bytes unconfirmed with a bound of 20000", st.Unconfirmed)
	}
	b.link.cut(false)
	b.same()
}

func TestTwoSourcesOfOneRank(t *testing.T) {
	b := start(t, setup{
		engine: mockengine.Options{Ranks: 2, OmitRank: true},
		source: func(s *discovery.Source) { s.Rank = 0 },
	})
	b.await("a refusal", func() bool { return b.logged("is sent by two sources") })
}

// The ranks of one worker do not wait for each other.
func TestRankBesideABrokenOne(t *testing.T) {
	b := start(t, setup{engine: mockengine.Options{Ranks: 2}})
	b.prompt(0, 0, 2)
	b.prompt(1, 0, 2)
	b.same()
	b.engine.Rank(1).Freeze()
	b.prompt(0, 10, 20)
	b.await("rank 0", func() bool { return len(b.held(0)) == len(b.engine.Rank(0).Truth()) })
	b.engine.Rank(1).Thaw()
	b.same()
}

// A source that moves or vanishes is cleared; one that comes back is relayed anew.
func TestSourcesChange(t *testing.T) {
	b := start(t, setup{})
	b.prompt(0, 0, 3)
	b.same()
	b.update(nil)
	b.await("cleared", func() bool { return len(b.held(0)) == 0 })
	b.update(b.sources(nil))
	b.same()
}

func TestLostExit(t *testing.T) {
	b := start(t, setup{
		engine: mockengine.Options{BufferSteps: 3},
		relay:  func(o *relay.Options) { o.Replay.Lost = replay.LostExit },
	})
	b.prompt(0, 0, 2)
	b.same()
	b.engine.Rank(0).DropNext(8)
	b.prompt(0, 10, 12)
	deadline := time.AfterFunc(15*time.Second, func() { b.stop() })
	defer deadline.Stop()
	var lost *relay.LostError
	if err := b.ended(); !errors.As(err, &lost) {
		t.Fatalf("Run: %v, want a *LostError", err)
	}
	if !b.logged("history is lost") {
		t.Error("the log does not tell")
	}
}

func TestClearOnExit(t *testing.T) {
	b := start(t, setup{relay: func(o *relay.Options) { o.ClearOnExit = true }})
	b.prompt(0, 0, 3)
	b.same()
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	b.await("cleared", func() bool { return len(b.held(0)) == 0 })
}

func TestUnconfirmedAtTheEnd(t *testing.T) {
	b := start(t, setup{relay: func(o *relay.Options) { o.DrainFor = 200 * time.Millisecond }})
	b.prompt(0, 0, 3)
	b.same()
	b.link.cut(true)
	b.prompt(0, 10, 3)
	b.await("unconfirmed events", func() bool { return b.relay.Status().Unconfirmed > 0 })
	var left *relay.UnconfirmedError
	if err := b.stop(); !errors.As(err, &left) {
		t.Fatalf("Run: %v, want an *UnconfirmedError", err)
	}
}
