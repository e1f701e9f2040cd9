package relay_test

import (
	"context"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/relay"
)

// TestRankTakenBackInAStream: a rank that another source named first begins with
// a `cleared` when its own source comes. What the other one left in the stream is
// nothing to go on from, and no engine was restarted.
func TestRankTakenBackInAStream(t *testing.T) {
	engine, sources := startEngine(t, mockengine.Options{Blocks: 400, Ranks: 1, BufferSteps: 1 << 20})
	_, others := startEngine(t, mockengine.Options{Blocks: 400, Ranks: 1, BufferSteps: 1 << 20})
	squatter := sources[0]
	squatter.Rank = 1 // its batches name rank 0
	squatter.Ranks = 2
	own := others[0]
	own.Ranks = 2
	s := streamServer(t, t.TempDir(), -1, nil)
	arrived := make(chan struct{})
	l := live(t, lifeOptions{servers: []string{s.ClientURL()}, relay: func(ro *relay.Options) {
		ro.Watch = func(ctx context.Context, update func([]discovery.Source)) error {
			update([]discovery.Source{squatter})
			select {
			case <-arrived:
				update([]discovery.Source{squatter, own})
				<-ctx.Done()
			case <-ctx.Done():
			}
			return nil
		}
	}})
	stop := prompts(t, engine, 2*time.Millisecond)
	await(t, "blocks of the squatter", func() bool {
		st := l.relay.Status()
		return len(st.Sources) == 1 && len(st.Sources[0].Ranks) == 2 && st.Sources[0].Ranks[1].Confirmed > 3
	})
	stop()
	await(t, "all of them", func() bool { return l.relay.Status().Sink.UnconfirmedEvents == 0 })
	close(arrived)
	await(t, "the rank's own source", func() bool {
		st := readStream(t, s.ClientURL())
		return l.logged("is taken from a source that named it") && len(st.held) == 0 && st.positions[len(st.positions)-1] == "empty"
	})
	l.cancel()
	<-l.done
	if l.logged("it was restarted") || l.logged("cannot be resumed") {
		t.Error("the log tells of an engine that was restarted")
	}
}
