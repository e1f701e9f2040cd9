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
