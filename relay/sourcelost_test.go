package relay_test

import (
	"sync/atomic"
	"testing"

	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/relay"
)

// A live connection that ends, and one that cannot be made, is told to who
// found the source: the engine may have moved.
func TestSourceLostIsTold(t *testing.T) {
	var lost atomic.Int64
	b := start(t, setup{engine: mockengine.Options{}, relay: func(o *relay.Options) { o.SourceLost = func() { lost.Add(1) } }})
	b.prompt(0, 0, 1)
	b.same()
	if lost.Load() != 0 {
		t.Errorf("%d losses of a source that is there", lost.Load())
	}
	b.engine.Kill()
	b.await("the loss and a failed dial", func() bool { return lost.Load() >= 2 })
}

// A restart that is found after a long absence reopens the live connection at
// once: the pause between dials, long by then, is for engines that are not there.
func TestReopenedAtOnceAfterAbsence(t *testing.T) {
	var lost atomic.Int64
	b := start(t, setup{relay: func(o *relay.Options) { o.SourceLost = func() { lost.Add(1) } }})
	b.prompt(0, 0, 2)
	b.same()
	b.engine.Kill()
	b.await("a long pause between dials", func() bool { return lost.Load() >= 8 })
	if err := b.engine.Rank(0).Start(); err != nil {
		t.Fatal(err)
	}
	b.await("the restart", func() bool { return b.source(0).Cursor.Restarts == 1 }) // nothing was sent: replay shows it
	b.await("readiness", func() bool { return b.source(0).Ready })
	b.prompt(0, 10, 2)
	b.same()
	if n := b.count("has not been reachable"); n != 1 {
		t.Errorf("the engine was taken for unreachable %d times, want once", n)
	}
}
