package relay_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/internal/freeport"
	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/relay"
	"github.com/kvrelay/kvrelay/sinks"
)

// TestKills: however often kvrelay is killed, the stream holds each event once,
// in order, without a hole and without a second cleared.
func TestKills(t *testing.T) {
	for _, pr := range []sinks.Profile{sinks.Dynamo, sinks.JSON} {
		t.Run(pr.String(), func(t *testing.T) {
			engine, sources := startEngine(t, mockengine.Options{Blocks: 200, BufferSteps: 1 << 20})
			s := streamServer(t, t.TempDir(), -1, func(o *server.Options) { o.MaxPayload = 4096 })
			o := lifeOptions{servers: []string{s.ClientURL()}, sources: sources, sink: sinks.Options{Profile: pr}}
			stop := prompts(t, engine, 3*time.Millisecond)
			r := rand.New(rand.NewPCG(uint64(pr), 1))
			resumed := 0
			for i := range *kills / 2 {
				l := live(t, o)
				if i%2 == 1 { // however slow the machine is, half of them get beyond the start
					await(t, "a life that is ready", func() bool {
						st := l.relay.Status()
						return len(st.Sources) == 1 && st.Sources[0].Ready
					})
				}
				timer := time.NewTimer(time.Duration(r.IntN(100)) * time.Millisecond)
				<-timer.C
				l.kill(t)
				if l.logged("resumed: the stream goes on") {
					resumed++
				}
			}
			if resumed < *kills/4-2 {
				t.Errorf("only %d lives came so far as to resume", resumed)
			}
			stop()
			l := live(t, o)
			l.confirmedAll(t, engine)
			st := readStream(t, s.ClientURL())
			l.cancel()
			if err := <-l.done; err != nil {
				t.Error(err)
			}
			if st.broken != "" || st.clears != 1 || len(st.publishers) != 1 || !st.truth(engine) {
				t.Fatalf("broken %q, %d clears, %d publishers, %d blocks, as the engine: %v", st.broken, st.clears, len(st.publishers), len(st.held), st.truth(engine))
			}
			// A relay that was never killed says the same.
			whole := streamServer(t, t.TempDir(), -1, nil)
			o.servers = []string{whole.ClientURL()}
			l = live(t, o)
			l.confirmedAll(t, engine)
			if want := readStream(t, whole.ClientURL()); !slices.Equal(st.steps, want.steps) {
				t.Errorf("%d steps, a relay that is never killed has %d", len(st.steps), len(want.steps))
			}
			l.cancel()
			<-l.done
			t.Logf("%d steps in %d messages, %d lives resumed", len(st.steps), len(st.positions), resumed)
		})
	}
}

// TestServerRestarts: nats-server is killed and comes back with its files.
func TestServerRestarts(t *testing.T) {
	engine, sources := startEngine(t, mockengine.Options{Blocks: 200, BufferSteps: 1 << 20})
	dir := t.TempDir()
	port := freeport.Next(t, 1)
	s := streamServer(t, dir, port, nil)
	stop := prompts(t, engine, 3*time.Millisecond)
	l := live(t, lifeOptions{servers: []string{s.ClientURL()}, sources: sources})
	r := rand.New(rand.NewPCG(3, 1))
	for range max(3, *kills/8) {
		timer := time.NewTimer(time.Duration(100+r.IntN(300)) * time.Millisecond)
		<-timer.C
		s.Shutdown()
		s.WaitForShutdown()
		s = streamServer(t, dir, port, nil)
	}
	stop()
	l.confirmedAll(t, engine)
	st := readStream(t, s.ClientURL())
	if st.broken != "" || st.clears != 1 || len(st.publishers) != 1 || !st.truth(engine) {
		t.Errorf("broken %q, %d clears, %d publishers, as the engine: %v", st.broken, st.clears, len(st.publishers), st.truth(engine))
	}
	l.cancel()
	if err := <-l.done; err != nil {
		t.Error(err)
	}
}

// TestRefusals: the three reasons for which a stream is not resumed, each said.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name, log string
		buffer    int
		between   func(*mockengine.Engine, *lifeOptions)
	}{
		{"settings", "settings, the engine's block size", 1 << 20, func(_ *mockengine.Engine, o *lifeOptions) {
			o.relay = func(ro *relay.Options) { ro.Convert.Duplicates = convert.Presence }
		}},
		{"engine", "the engine is another one than before", 1 << 20, func(e *mockengine.Engine, _ *lifeOptions) { e.Restart() }},
		{"short", "no longer reaches back", 20, func(e *mockengine.Engine, _ *lifeOptions) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			engine, sources := startEngine(t, mockengine.Options{Blocks: 100, BufferSteps: c.buffer})
			s := streamServer(t, t.TempDir(), -1, nil)
			o := lifeOptions{servers: []string{s.ClientURL()}, sources: sources}
			work := func(from, n int) {
				t.Helper()
				for i := from; i < from+n; i++ {
					tokens := make([]uint32, 3*engine.BlockSize())
					for j := range tokens {
						tokens[j] = uint32(1000*i + j)
					}
					if _, err := engine.Prompt(tokens, mockengine.PromptOptions{}); err != nil {
						t.Fatal(err)
					}
					engine.Step()
				}
			}
			l := live(t, o)
			work(0, 10)
			l.confirmedAll(t, engine)
			l.kill(t)
			c.between(engine, &o)
			work(20, 30)
			l = live(t, o)
			l.confirmedAll(t, engine)
			st := readStream(t, s.ClientURL())
			if st.broken != "" || st.clears != 2 || len(st.publishers) != 1 || !l.logged(c.log) {
				t.Errorf("broken %q, %d clears, %d publishers, said: %v", st.broken, st.clears, len(st.publishers), l.logged(c.log))
			}
			if c.name != "short" && !st.truth(engine) {
				t.Error("the stream does not end as the engine")
			}
			l.cancel()
			<-l.done
		})
	}
}
