package relay_test

import (
	"testing"

	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/relay"
	"github.com/kvrelay/kvrelay/sinks"
)

// A rank that appears or vanishes is nothing to the others: their streams go
// on, and nothing is said of them.
func TestOtherRanksComeAndGo(t *testing.T) {
	b := start(t, setup{engine: mockengine.Options{Ranks: 2}, later: true})
	both := b.sources(nil)
	alone := both[0]
	alone.Ranks = 1
	b.update([]discovery.Source{alone})
	b.prompt(0, 0, 3)
	b.await("blocks of rank 0", func() bool { return len(b.held(0)) == 9 })
	began := b.source(0)
	for range 3 {
		b.update(both)
		b.prompt(1, 10, 1)
		b.same()
		b.update([]discovery.Source{alone})
		b.await("rank 1 empty", func() bool { return len(b.held(1)) == 0 })
	}
	now := b.source(0)
	if now.Connects != 1 || now.LiveSince != began.LiveSince || now.Ranks[0].LastID != began.Ranks[0].LastID {
		t.Errorf("rank 0 began again: %+v, was %+v", now, began)
	}
	if n := b.count("the engine no longer has this source"); n != 3 || b.logged(`this source" source="rank 0`) || b.logged("begins again") {
		t.Errorf("a source is said to be gone %d times, want 3 and only rank 1", n)
	}
}

// What a stream depends on ends it, and the log says what that was.
func TestSourceChanges(t *testing.T) {
	b := start(t, setup{engine: mockengine.Options{Ranks: 2}})
	b.prompt(0, 0, 1)
	b.prompt(1, 10, 1)
	b.same()
	other := b.source(1)
	list := b.sources(nil)
	list[0].Version = "2"
	b.update(list)
	b.same()
	b.await("rank 0 again", func() bool { return b.source(0).Source.Version == "2" && b.source(0).Ready })
	if b.source(1).LiveSince != other.LiveSince {
		t.Error("rank 1 began again")
	}
	if b.logged("no longer has") || !b.logged(`changed="version  → 2"`) {
		t.Error("the log does not say what changed")
	}
}

// Where ranks share a subject whose readers do not tell them apart, the first
// rank must know of the second: a `cleared` would take both.
func TestSecondRankOnASharedSubject(t *testing.T) {
	b := start(t, setup{engine: mockengine.Options{Ranks: 2}, later: true, relay: func(o *relay.Options) {
		o.Profile = sinks.DynamoSingle
	}})
	both := b.sources(nil)
	alone := both[0]
	alone.Ranks = 1
	b.update([]discovery.Source{alone})
	b.ready()
	b.update(both)
	b.ready()
	began := b.source(0)
	both[0].Ranks, both[1].Ranks = 3, 3
	b.update(both)
	if now := b.source(0); now.LiveSince != began.LiveSince {
		t.Error("a third rank is nothing new")
	}
	if b.count("begins again") != 1 || !b.logged(`changed="one rank → several"`) {
		t.Error("want one new beginning")
	}
}
