package relay_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/relay"
	"github.com/kvrelay/kvrelay/replay"
	"github.com/kvrelay/kvrelay/sinks"
)

var kills = flag.Int("kills", 25, "times that a relay or a server is killed; 200 is the long variant")

const streamSubject = "kvrelay.test.7.0.events"

// streamServer runs nats-server with JetStream on a directory and, after the first, the same port.
func streamServer(t *testing.T, dir string, port int, change func(*server.Options)) *server.Server {
	t.Helper()
	o := &server.Options{Host: "127.0.0.1", Port: port, NoSigs: true, NoLog: true, JetStream: true, StoreDir: dir}
	if change != nil {
		change(o)
	}
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("nats-server is not ready")
	}
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	return s
}

// life is one process of kvrelay.
type life struct {
	relay  *relay.Relay
	link   link
	cancel context.CancelFunc
	done   chan error

	mu   sync.Mutex
	logs bytes.Buffer
}

func (l *life) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.logs.Write(p)
}

func (l *life) logged(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.logs.Bytes(), []byte(text))
}

// kill ends the life as kill -9 does: what is on the way stays there, nobody is told.
func (l *life) kill(t *testing.T) {
	t.Helper()
	l.link.cut(true)
	l.cancel()
	<-l.done
}

type lifeOptions struct {
	servers []string
	sink    sinks.Options
	relay   func(*relay.Options)
	sources []discovery.Source
}

func live(t *testing.T, o lifeOptions) *life {
	t.Helper()
	l := &life{done: make(chan error, 1)}
	log := slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
	so := o.sink
	so.Kind, so.Servers, so.Namespace, so.Logger, so.Dial = sinks.JetStream, o.servers, "test", log, l.link.dial
	so.CreateStream, so.Listen = true, time.Millisecond
	p, err := sinks.New(so)
	if err != nil {
		t.Fatal(err)
	}
	ro := relay.Options{
		WorkerID: worker, Publisher: p, Log: log,
		Replay:    replay.Config{Heartbeat: 100 * time.Millisecond, Idle: 200 * time.Millisecond, Attempts: 4, DeadAfter: 20 * time.Second},
		HoldBytes: 1 << 20, OutBytes: 1 << 20, Replays: 4, DrainFor: 50 * time.Millisecond,
		Watch: func(ctx context.Context, update func([]discovery.Source)) error {
			update(o.sources)
			<-ctx.Done()
			return nil
		},
	}
	if o.relay != nil {
		o.relay(&ro)
	}
	l.relay = relay.New(ro)
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	go func() { l.done <- l.relay.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if t.Failed() {
			l.mu.Lock()
			defer l.mu.Unlock()
			if n := l.logs.Len(); n > 6000 {
				l.logs.Next(n - 6000)
			}
			t.Logf("log of a life:\n%s", l.logs.String())
		}
	})
	return l
}

func startEngine(t *testing.T, o mockengine.Options) (*mockengine.Engine, []discovery.Source) {
	t.Helper()
	if o.BlockSize == 0 {
		o.BlockSize = 4
	}
	e, err := mockengine.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	r := e.Rank(0)
	return e, []discovery.Source{{
		Engine: "mock", Kind: "static", Ranks: 1, Endpoint: r.Endpoint(), Replay: r.ReplayEndpoint(), BlockSize: uint32(e.BlockSize()),
	}}
}

// prompts has the engine work until stop.
func prompts(t *testing.T, e *mockengine.Engine, every time.Duration) (stop func()) {
	t.Helper()
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			tokens := make([]uint32, 3*e.BlockSize())
			for j := range tokens {
				tokens[j] = uint32(1000*(i%300) + j)
			}
			if _, err := e.Prompt(tokens, mockengine.PromptOptions{}); err != nil {
				t.Error(err)
				return
			}
			e.Step()
		}
	}()
	var once sync.Once
	stop = func() { once.Do(func() { close(end); <-ended }) }
	t.Cleanup(stop)
	return stop
}

// step is one block that an event stores or removes, or a cleared.
type step struct {
	kind consumer.Kind
	tier consumer.Tier
	hash uint64
}

// story is what a stream says.
type story struct {
	steps      []step
	clears     int
	publishers []uint64
	positions  []string
	held       map[uint64]bool
	broken     string
}

// readStream reads all of a subject, and checks that ids have no hole and no repeat.
func readStream(t *testing.T, url string) story {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := js.Stream(ctx, "KVRELAY")
	if err != nil {
		t.Fatal(err)
	}
	st := story{held: map[uint64]bool{}}
	last := uint64(0)
	for seq := s.CachedInfo().State.FirstSeq; seq <= s.CachedInfo().State.LastSeq; seq++ {
		m, err := s.GetMsg(ctx, seq)
		if err != nil {
			t.Fatalf("message %d: %v", seq, err)
		}
		msg, err := consumer.ParseMessage(m.Subject, m.Header, m.Data)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(st.publishers); n == 0 || st.publishers[n-1] != msg.Publisher {
			st.publishers = append(st.publishers, msg.Publisher)
			last = 0
		}
		st.positions = append(st.positions, m.Header.Get("Kvrelay-Position"))
		for _, e := range msg.Events {
			if last++; e.ID != last {
				st.broken = fmt.Sprintf("message %d: event %d where %d was expected", seq, e.ID, last)
				last = e.ID
			}
			switch e.Kind {
			case consumer.Cleared:
				st.clears++
				clear(st.held)
				st.steps = append(st.steps, step{kind: e.Kind})
			case consumer.Stored:
				for _, b := range e.Blocks {
					st.held[b.Hash] = true
					st.steps = append(st.steps, step{e.Kind, e.Tier, b.Hash})
				}
			default:
				for _, h := range e.Hashes {
					delete(st.held, h)
					st.steps = append(st.steps, step{e.Kind, e.Tier, h})
				}
			}
		}
	}
	return st
}

// truth says whether a stream ends with the engine's cache.
func (st *story) truth(e *mockengine.Engine) bool {
	n := 0
	for h := range e.Rank(0).Truth() {
		if !st.held[h] {
			return false
		}
		n++
	}
	return n == len(st.held)
}

// confirmedAll waits until the life has published all that the engine said.
func (l *life) confirmedAll(t *testing.T, e *mockengine.Engine) {
	t.Helper()
	next := e.Rank(0).NextSeq()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		st := l.relay.Status()
		if len(st.Sources) == 1 && len(st.Sources[0].Ranks) == 1 {
			s := st.Sources[0]
			if s.Cursor.Next == next && s.Ready && s.Ranks[0].LastID == s.Ranks[0].Confirmed && s.Ranks[0].LastID > 0 && st.Sink.UnconfirmedEvents == 0 {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("not all is published; engine's next seq %d; status: %+v", next, st)
		}
		<-tick.C
	}
}

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
	s := streamServer(t, dir, -1, nil)
	port := s.Addr().(*net.TCPAddr).Port
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

// TestKilledAfterDeadEngine: the engine was dead and came back; its blocks were
// published again. Behind that the stream is resumed as ever, and killed in the
// middle of it, it is cleared.
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
