package relay_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/internal/natsd"
	"github.com/kvrelay/kvrelay/internal/zmtp"
	"github.com/kvrelay/kvrelay/relay"
	"github.com/kvrelay/kvrelay/replay"
	"github.com/kvrelay/kvrelay/sinks"
)

// The writers of zmq4's PUB sockets outlive Close: a flaw of that library,
// which only tests use as PUB.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run"))
}

const worker = 7

// bench is a relay with a router beside it: mock engine → relay → NATS → picture.
type bench struct {
	t       *testing.T
	engine  *mockengine.Engine
	nats    *natsd.Server
	link    link
	relay   *relay.Relay
	picture *consumer.Picture
	update  func([]discovery.Source)
	stop    func() error
	ended   func() error // waits for an end that nobody asked for

	mu      sync.Mutex
	changed *sync.Cond
	holes   uint64
	events  int
	logs    bytes.Buffer
}

// Write takes the relay's log.
func (b *bench) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.logs.Write(p)
}

func (b *bench) logged(text string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Contains(b.logs.Bytes(), []byte(text))
}

// count is how often the log says text.
func (b *bench) count(text string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Count(b.logs.Bytes(), []byte(text))
}

type setup struct {
	engine mockengine.Options
	relay  func(*relay.Options)
	source func(*discovery.Source)
	later  bool // sources are told by the test
}

func start(t *testing.T, o setup) *bench {
	t.Helper()
	b := &bench{t: t, picture: consumer.NewPicture()}
	b.changed = sync.NewCond(&b.mu)
	if o.engine.BlockSize == 0 {
		o.engine.BlockSize = 4
	}
	var err error
	if b.engine, err = mockengine.Start(o.engine); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.engine.Close() })
	if b.nats, err = natsd.Start(t.Context(), natsd.Options{Port: -1}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.nats.Close)
	b.subscribe()

	log := slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
	p, err := sinks.New(sinks.Options{
		Servers: []string{b.nats.URL()}, Profile: sinks.Dynamo,
		Namespace: "test", Component: "c", Endpoint: "e", Logger: log, Dial: b.link.dial, Listen: 10 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	ro := relay.Options{
		WorkerID: worker, Publisher: p, Log: log,
		Replay: replay.Config{
			Heartbeat: 100 * time.Millisecond, Idle: 200 * time.Millisecond, Attempts: 4, DeadAfter: time.Second,
		},
		ZMTP:      zmtp.Options{Heartbeat: 100 * time.Millisecond, PeerTimeout: 500 * time.Millisecond},
		HoldBytes: 1 << 20, OutBytes: 1 << 20, Replays: 4,
	}
	told := make(chan struct{})
	ro.Watch = func(ctx context.Context, update func([]discovery.Source)) error {
		b.update = update
		if !o.later {
			update(b.sources(o.source))
		}
		close(told)
		<-ctx.Done()
		return nil
	}
	if o.relay != nil {
		o.relay(&ro)
	}
	b.relay = relay.New(ro)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.relay.Run(ctx) }()
	<-told
	b.ended = sync.OnceValue(func() error { return <-done })
	b.stop = func() error { cancel(); return b.ended() }
	t.Cleanup(func() { b.stop() })
	t.Cleanup(func() {
		if t.Failed() {
			b.mu.Lock()
			defer b.mu.Unlock()
			t.Logf("log of the relay:\n%s", b.logs.String())
		}
	})
	return b
}

// network puts a proxy before both sockets of rank 0, whose Gates can cut it.
func (b *bench) network() (live, replay *mockengine.Proxy) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	b.t.Cleanup(func() { cancel(); wg.Wait() })
	make := func(endpoint string) *mockengine.Proxy {
		p := mockengine.NewProxy("127.0.0.1:0", strings.TrimPrefix(endpoint, "tcp://"))
		if err := p.Listen(); err != nil {
			b.t.Fatal(err)
		}
		wg.Go(func() { p.Run(ctx) })
		return p
	}
	r := b.engine.Rank(0)
	return make(r.Endpoint()), make(r.ReplayEndpoint())
}

// sources are what discovery would say of the engine.
func (b *bench) sources(change func(*discovery.Source)) []discovery.Source {
	var list []discovery.Source
	for i, r := range b.engine.Ranks() {
		src := discovery.Source{
			Engine: "mock", Kind: "static", Rank: uint32(i), Ranks: uint32(len(b.engine.Ranks())),
			Endpoint: r.Endpoint(), Replay: r.ReplayEndpoint(), BlockSize: uint32(b.engine.BlockSize()),
		}
		if change != nil {
			change(&src)
		}
		list = append(list, src)
	}
	return list
}

func (b *bench) subscribe() {
	nc, err := nats.Connect(b.nats.URL())
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(nc.Close)
	_, err = nc.Subscribe("namespace.test.>", func(m *nats.Msg) {
		msg, err := consumer.ParseMessage(m.Subject, m.Header, m.Data)
		if err != nil {
			b.t.Errorf("message: %v", err)
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		out := b.picture.Fold(msg)
		b.holes += out.Missing
		b.events += out.Applied
		b.changed.Broadcast()
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// held is the router's picture of a rank.
func (b *bench) held(rank uint32) map[uint64]bool {
	held := map[uint64]bool{}
	for h := range b.picture.Blocks(consumer.Rank{Worker: worker, DP: rank}, consumer.Device) {
		held[h] = true
	}
	return held
}

// await waits until ok, which is looked at whenever the router heard something.
func (b *bench) await(what string, ok func() bool) {
	b.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			b.t.Fatalf("no %s within 20 s; status: %+v", what, b.relay.Status())
		}
		<-tick.C
	}
}

// same waits until the router's picture equals the engine's cache.
func (b *bench) same() {
	b.t.Helper()
	b.await("equality of the router's picture and the engine's cache", func() bool {
		for i, r := range b.engine.Ranks() {
			truth := map[uint64]bool{}
			for h := range r.Truth() {
				truth[h] = true
			}
			if !maps.Equal(truth, b.held(uint32(i))) {
				return false
			}
		}
		return true
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holes > 0 {
		b.t.Fatalf("%d event ids are missing", b.holes)
	}
}

// prompt runs n prompts of some blocks each, one batch each.
func (b *bench) prompt(rank, from, n int) {
	b.t.Helper()
	for i := from; i < from+n; i++ {
		tokens := make([]uint32, 3*b.engine.BlockSize())
		for j := range tokens {
			tokens[j] = uint32(1000*i + j)
		}
		if _, err := b.engine.Prompt(tokens, mockengine.PromptOptions{Rank: rank}); err != nil {
			b.t.Fatal(err)
		}
		b.engine.Step()
	}
}

func (b *bench) ready() {
	b.t.Helper()
	b.await("readiness", func() bool {
		st := b.relay.Status()
		for _, s := range st.Sources {
			if !s.Ready {
				return false
			}
		}
		return len(st.Sources) > 0
	})
}

func (b *bench) source(rank uint32) relay.SourceStatus {
	for _, s := range b.relay.Status().Sources {
		if s.Source.Rank == rank {
			return s
		}
	}
	b.t.Fatalf("no source of rank %d", rank)
	panic("unreachable")
}

// link is the way from the relay to NATS, which a test can cut.
type link struct {
	mu    sync.Mutex
	down  bool
	conns []net.Conn
}

func (l *link) dial(ctx context.Context, network, address string) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return nil, errors.New("cut by the test")
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, network, address)
	if err == nil {
		l.conns = append(l.conns, c)
	}
	return c, err
}

func (l *link) cut(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = down
	for _, c := range l.conns {
		c.Close()
	}
	l.conns = nil
}
