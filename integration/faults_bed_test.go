package integration

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/internal/zmtp"
	"github.com/kvrelay/kvrelay/relay"
	"github.com/kvrelay/kvrelay/sinks"
)

// bedOptions is what the faults of a scenario need.
type bedOptions struct {
	ranks   int
	network bool // proxies stand between the relay and the engine, to be cut
	binary  bool // the relay is the built program, to be killed
	engine  mockengine.PublisherOptions
	relay   relay.Options // HoldBytes, OutBytes, Replays, Replay.*, ZMTP.PeerTimeout, ClearOnExit
	auth    sinks.Auth
	nats    *server.Server // nil: one of its own
}

// bed is an engine of some ranks, a relay with settings shortened, NATS behind
// a proxy, and a router that is connected to NATS without one.
type bed struct {
	t      *testing.T
	r      *rand.Rand
	o      bedOptions
	alone  bool // one fault, which must be seen to strike
	form   consumer.Profile
	ranks  []*bedRank
	nats   *mockengine.Proxy
	router *router

	relay   *relay.Relay             // nil: the program
	watched func() (held, out int64) // the most that was held and unconfirmed
	stop    func() error             // ends the relay
	program *kvrelay
	set     settings

	mu  sync.Mutex
	log bytes.Buffer
}

// Write takes the relay's log.
func (b *bed) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.log.Write(p)
}

// said counts the log lines with a text.
func (b *bed) said(text string) int {
	n := 0
	if b.program != nil {
		n = len(b.program.matching(text))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return n + bytes.Count(b.log.Bytes(), []byte(text))
}

func newBed(t *testing.T, r *rand.Rand, o bedOptions) *bed {
	t.Helper()
	b := &bed{t: t, r: r, o: o}
	def := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	rp := &b.o.relay.Replay
	def(&rp.Heartbeat, 100*time.Millisecond)
	def(&rp.Idle, 200*time.Millisecond)
	def(&rp.DeadAfter, 20*time.Second)
	def(&b.o.relay.ZMTP.PeerTimeout, 2*time.Second) // a loaded machine must not look like a dead peer
	for _, n := range []*int64{&b.o.relay.HoldBytes, &b.o.relay.OutBytes} {
		if *n == 0 {
			*n = 1 << 20
		}
	}
	if b.o.relay.Replays == 0 {
		b.o.relay.Replays = 1 + r.IntN(3)
	}
	if b.o.nats == nil {
		b.o.nats = natsServer(t, -1)
	}
	url := b.o.nats.ClientURL()
	b.form = []consumer.Profile{consumer.Dynamo, consumer.JSON}[r.IntN(2)]
	b.router = newRouter(t, url, b.form)
	b.nats = startProxy(t, strings.TrimPrefix(url, "nats://"))
	for i := range max(1, o.ranks) {
		b.ranks = append(b.ranks, b.newRank(uint32(i)))
	}
	t.Cleanup(func() {
		if t.Failed() {
			b.mu.Lock()
			defer b.mu.Unlock()
			t.Logf("log of the relay:\n%s", tail(b.log.String(), 12_000))
		}
	})
	return b
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

func (b *bed) newRank(i uint32) *bedRank {
	k := &bedRank{b: b, w: newWorkload(b.t, b.r, i), id: consumer.Rank{Worker: 42, DP: i}, first: int(i) * 1_000_000}
	o := b.o.engine
	o.Rank, o.EventAddr, o.ReplayAddr = int(i), "127.0.0.1:0", "127.0.0.1:0"
	if o.Replay == "" {
		o.Replay = []mockengine.ReplayShape{mockengine.Reply4, mockengine.Reply3, mockengine.ReplyATOM}[b.r.IntN(3)]
	}
	o.Seed = b.r.Uint64()
	k.Publisher = mockengine.NewPublisher(o)
	if err := k.Listen(); err != nil {
		b.t.Fatal(err)
	}
	background(b.t, k.Run)
	if b.o.network {
		k.live = startProxy(b.t, fmt.Sprintf("127.0.0.1:%d", k.EventPort()))
		k.replay = startProxy(b.t, fmt.Sprintf("127.0.0.1:%d", k.ReplayPort()))
	}
	return k
}

// background runs something until the test ends.
func background(t testing.TB, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// startProxy runs a proxy until the test ends.
func startProxy(t testing.TB, endpoint string) *mockengine.Proxy {
	t.Helper()
	p := mockengine.NewProxy("127.0.0.1:0", strings.TrimPrefix(endpoint, "tcp://"))
	if err := p.Listen(); err != nil {
		t.Fatal(err)
	}
	background(t, p.Run)
	return p
}

func (k *bedRank) endpoints() (live, replay string) {
	if k.live != nil {
		return "tcp://" + k.live.Addr(), "tcp://" + k.replay.Addr()
	}
	return fmt.Sprintf("tcp://127.0.0.1:%d", k.EventPort()), fmt.Sprintf("tcp://127.0.0.1:%d", k.ReplayPort())
}

// start starts the relay.
func (b *bed) start() {
	b.t.Helper()
	if b.o.binary {
		b.startProgram()
		return
	}
	log := slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
	profile, err := sinks.ParseProfile(b.form.String())
	if err != nil {
		b.t.Fatal(err)
	}
	p, err := sinks.New(sinks.Options{
		Profile: profile,
		Servers: []string{"nats://" + b.nats.Addr()}, Namespace: "dynamo", Component: "backend", Endpoint: "generate", Logger: log, Auth: b.o.auth,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	o := b.o.relay
	o.WorkerID, o.Publisher, o.Profile, o.Log = 42, p, profile, log
	o.Convert = convert.Config{BlockSize: 16}
	o.ZMTP = zmtp.Options{Heartbeat: o.Replay.Heartbeat, PeerTimeout: o.ZMTP.PeerTimeout, DialTimeout: time.Second, HandshakeTimeout: time.Second}
	o.Watch = func(ctx context.Context, update func([]discovery.Source)) error {
		var list []discovery.Source
		for i, k := range b.ranks {
			live, replay := k.endpoints()
			list = append(list, discovery.Source{Engine: "mock", Kind: "static", Rank: uint32(i), Ranks: uint32(len(b.ranks)), Endpoint: live, Replay: replay})
		}
		update(list)
		<-ctx.Done()
		return nil
	}
	b.relay = relay.New(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.relay.Run(ctx) }()
	b.stop = sync.OnceValue(func() error { cancel(); return <-done })
	b.watched = b.watch(ctx)
	b.t.Cleanup(func() { b.stop(); b.watched() })
}

// watch looks at the relay's memory all the time.
func (b *bed) watch(ctx context.Context) func() (held, out int64) {
	var held, out int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			st := b.relay.Status()
			held, out = max(held, st.HeldBytes), max(out, st.Unconfirmed)
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return func() (int64, int64) { <-ended; return held, out }
}

// startProgram starts the built kvrelay, again after it was killed.
func (b *bed) startProgram() {
	b.t.Helper()
	var live, replay []string
	for _, k := range b.ranks {
		l, r := k.endpoints()
		live, replay = append(live, l), append(replay, r)
	}
	o := &b.o.relay
	b.set = settings{
		"NATS_URL": "nats://" + b.nats.Addr(), "PROFILE": b.form.String(), "ENDPOINTS": strings.Join(live, ","), "REPLAY_ENDPOINTS": strings.Join(replay, ","),
		"BLOCK_SIZE": "16", "HEARTBEAT": o.Replay.Heartbeat.String(), "REPLAY_IDLE": o.Replay.Idle.String(), "PEER_TIMEOUT": o.ZMTP.PeerTimeout.String(),
		"DEAD_AFTER": o.Replay.DeadAfter.String(), "HOLD_BYTES": fmt.Sprint(o.HoldBytes), "OUT_BYTES": fmt.Sprint(o.OutBytes),
		"REPLAY_CONCURRENCY": fmt.Sprint(o.Replays),
	}
	b.program = startKvrelay(b.t, b.set)
}

// eventually waits for a state that is looked at every few milliseconds, and
// says whether it came.
func eventually(d time.Duration, ok func() bool) bool {
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			return ok()
		}
	}
	return true
}

// strikes waits until a fault is seen to have struck. Beside another one it may
// be unable to; then it goes on soon.
func (b *bed) strikes(what string, ok func() bool) {
	b.t.Helper()
	if b.alone && !b.o.binary {
		if !eventually(20*time.Second, ok) {
			b.t.Fatalf("the fault did not strike: %s", what)
		}
		return
	}
	eventually(400*time.Millisecond, ok)
}
