package relay_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/relay"
)

// waiting waits until a life's only source waits for the stream to say where to go on.
func (l *life) waiting(t *testing.T) {
	t.Helper()
	await(t, "waiting to resume", func() bool {
		st := l.relay.Status()
		return len(st.Sources) == 1 && st.Sources[0].Reason == "waiting for the JetStream stream to say where to go on"
	})
}

// TestClearedWithoutResuming: a relay that ends, with CLEAR_ON_EXIT, or loses its
// source while it still waits to resume says that nothing is held any more; one
// that merely ends does not.
func TestClearedWithoutResuming(t *testing.T) {
	for _, what := range []string{"CLEAR_ON_EXIT", "the source goes", "it ends"} {
		t.Run(what, func(t *testing.T) {
			engine, sources := startEngine(t, mockengine.Options{Blocks: 400, BufferSteps: 1 << 20})
			s := streamServer(t, t.TempDir(), -1, nil)
			o := lifeOptions{servers: []string{s.ClientURL()}, sources: sources}
			l := live(t, o)
			stop := prompts(t, engine, 2*time.Millisecond)
			<-time.After(50 * time.Millisecond)
			stop()
			l.confirmedAll(t, engine)
			l.kill(t)
			before := readStream(t, s.ClientURL())

			gone := make(chan struct{})
			o.sink.Listen = 400 * time.Millisecond
			o.relay = func(ro *relay.Options) {
				ro.ClearOnExit = what == "CLEAR_ON_EXIT"
				ro.DrainFor = 20 * time.Second
				ro.Watch = func(ctx context.Context, update func([]discovery.Source)) error {
					update(sources)
					select {
					case <-gone:
						update(nil)
						<-ctx.Done()
					case <-ctx.Done():
					}
					return nil
				}
			}
			l = live(t, o)
			l.waiting(t)
			end := sync.OnceFunc(func() {
				l.cancel()
				if err := <-l.done; err != nil {
					t.Errorf("ended with %v", err)
				}
			})
			if what == "the source goes" {
				close(gone)
				await(t, "a cleared stream", func() bool { st := readStream(t, s.ClientURL()); return len(st.held) == 0 })
			}
			end()
			st := readStream(t, s.ClientURL())
			if what == "it ends" {
				if len(st.steps) != len(before.steps) {
					t.Errorf("%d steps became %d", len(before.steps), len(st.steps))
				}
				return
			}
			if st.broken != "" || len(st.held) != 0 || st.clears != before.clears+1 || st.positions[len(st.positions)-1] != "empty" {
				t.Errorf("broken %q, %d held, %d clears, was %d; positions end with %q", st.broken, len(st.held), st.clears, before.clears, st.positions[len(st.positions)-1])
			}
		})
	}
}
