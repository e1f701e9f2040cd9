package relay_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvrelay/kvrelay/consumer"
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
	so.CreateStream = true
	if so.Listen == 0 {
		so.Listen = time.Millisecond
	}
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
