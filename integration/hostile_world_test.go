package integration

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/internal/zmtp"
	"github.com/kvrelay/kvrelay/relay"
	"github.com/kvrelay/kvrelay/replay"
	"github.com/kvrelay/kvrelay/sinks"
)

// inFour runs four tests at once, each with every fourth of the rows.
func inFour[T any](t *testing.T, rows []T, run func(*testing.T, []T)) {
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			var own []T
			for j := i; j < len(rows); j += 4 {
				own = append(own, rows[j])
			}
			run(t, own)
		})
	}
}

// What every hostile input must leave: memory below it, and the picture right
// this soon after the engine is back.
const (
	hostileMemory = 256 << 20
	hostileHeal   = 15 * time.Second
)

// hostileWorld is an engine of two ranks, a relay and a router. Rank 0 is
// behind fronts where somebody hostile can take its place; rank 1 is not, and
// must not notice.
type hostileWorld struct {
	t            *testing.T
	engine       *mockengine.Engine
	live, replay *front
	relay        *relay.Relay
	update       func([]discovery.Source) // nil with a Watch of the test's own
	picture      *consumer.Picture
	prompts      int

	mu      sync.Mutex
	logs    bytes.Buffer
	holes   uint64
	broken  []string
	needles [][]byte
}

type hostileOptions struct {
	ranks int // of the engine; 2
	relay func(*relay.Options)
	watch func(w *hostileWorld) func(context.Context, func([]discovery.Source)) error // nil: both ranks from the start
	later bool                                                                        // sources are told by the test
}

// Write takes the relay's log.
func (w *hostileWorld) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.logs.Write(p)
}

func (w *hostileWorld) log() *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func newHostileWorld(t *testing.T, o hostileOptions) *hostileWorld {
	t.Helper()
	w := &hostileWorld{t: t, picture: consumer.NewPicture()}
	token := binary.BigEndian.AppendUint32(nil, plantedToken)
	le := binary.LittleEndian.AppendUint32(nil, plantedToken)
	w.needles = [][]byte{[]byte(plantedSalt), []byte(plantedText), []byte(fmt.Sprint(plantedToken)), token, le, []byte(plantedSecret)}
	var err error
	if w.engine, err = mockengine.Start(mockengine.Options{Ranks: max(2, o.ranks), BlockSize: 4, Blocks: 60}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.engine.Close(); err != nil {
			t.Error(err)
		}
	})
	w.live = newFront(t, w.engine.Rank(0).Endpoint()[len("tcp://"):])
	w.replay = newFront(t, w.engine.Rank(0).ReplayEndpoint()[len("tcp://"):])
	url := natsServer(t, -1).ClientURL()
	w.subscribe(url)

	log := w.log()
	p, err := sinks.New(sinks.Options{Servers: []string{url}, Namespace: "dynamo", Component: "backend", Endpoint: "generate", Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	ro := relay.Options{
		WorkerID: 42, Publisher: p, Log: log,
		Replay:    replay.Config{Heartbeat: 100 * time.Millisecond, Idle: 200 * time.Millisecond, Attempts: 4, DeadAfter: 5 * time.Second},
		ZMTP:      zmtp.Options{Heartbeat: 200 * time.Millisecond, PeerTimeout: time.Second, HandshakeTimeout: 700 * time.Millisecond, DialTimeout: time.Second},
		HoldBytes: 64 << 20, OutBytes: 64 << 20, Replays: 4,
	}
	told := make(chan struct{})
	ro.Watch = func(ctx context.Context, update func([]discovery.Source)) error {
		w.update = update
		if !o.later {
			update(w.sources())
		}
		close(told)
		<-ctx.Done()
		return nil
	}
	if o.watch != nil {
		ro.Watch = o.watch(w)
		close(told)
	}
	if o.relay != nil {
		o.relay(&ro)
	}
	w.relay = relay.New(ro)
	background(t, w.relay.Run)
	<-told
	t.Cleanup(func() {
		if t.Failed() {
			w.mu.Lock()
			defer w.mu.Unlock()
			t.Logf("log of the relay:\n%s", tail(w.logs.String(), 8_000))
		}
	})
	return w
}

// sources are what a discovery would say of the engine behind the fronts.
func (w *hostileWorld) sources() []discovery.Source {
	var list []discovery.Source
	for i, r := range w.engine.Ranks() {
		s := discovery.Source{
			Engine: "mock", Kind: "static", Rank: uint32(i), Ranks: uint32(len(w.engine.Ranks())),
			Endpoint: r.Endpoint(), Replay: r.ReplayEndpoint(), BlockSize: 4,
		}
		if i == 0 {
			s.Endpoint, s.Replay = w.live.endpoint(), w.replay.endpoint()
		}
		list = append(list, s)
	}
	return list
}

// subscribe reads everything that is on NATS, heartbeats included.
func (w *hostileWorld) subscribe(url string) {
	w.t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(nc.Close)
	sub, err := nc.Subscribe(">", w.take)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		w.t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *hostileWorld) take(m *nats.Msg) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.needles {
		if bytes.Contains(m.Data, n) || bytes.Contains([]byte(fmt.Sprint(m.Header)), n) {
			w.broken = append(w.broken, fmt.Sprintf("%q is in a message on %s", n, m.Subject))
		}
	}
	if m.Subject != consumer.Dynamo.Subject("dynamo", "backend", "generate", false) {
		return
	}
	msg, err := consumer.ParseMessage(m.Subject, m.Header, m.Data)
	if err != nil {
		w.broken = append(w.broken, err.Error())
		return
	}
	w.holes += w.picture.Fold(msg).Missing
}

// await waits for a state.
func (w *hostileWorld) await(d time.Duration, what string, ok func() bool) {
	w.t.Helper()
	if !eventually(d, ok) {
		w.t.Fatalf("no %s within %v; status: %+v", what, d, w.relay.Status())
	}
}

// prompt has rank r compute something new.
func (w *hostileWorld) prompt(r int) {
	w.t.Helper()
	w.prompts++
	tokens := make([]uint32, 12)
	for i := range tokens {
		tokens[i] = uint32(1000*w.prompts + i)
	}
	if _, err := w.engine.Prompt(tokens, mockengine.PromptOptions{Rank: r}); err != nil {
		w.t.Fatal(err)
	}
	w.engine.Step()
}

// right says whether the router's picture of rank r is the engine's cache.
func (w *hostileWorld) right(r int) bool {
	truth, held := map[uint64]bool{}, map[uint64]bool{}
	for h := range w.engine.Rank(r).Truth() {
		truth[h] = true
	}
	for h := range w.picture.Blocks(consumer.Rank{Worker: 42, DP: uint32(r)}, consumer.Device) {
		held[h] = true
	}
	return maps.Equal(truth, held)
}

// settled has every rank do something and waits until the picture is right.
func (w *hostileWorld) settled(what string) {
	w.t.Helper()
	for r := range w.engine.Ranks() {
		w.prompt(r)
	}
	w.await(hostileHeal, "equality of picture and cache "+what, func() bool {
		for r := range w.engine.Ranks() {
			if !w.right(r) {
				return false
			}
		}
		return true
	})
	// And live: only a connection that brings something ends the pauses between dials.
	w.prompt(0)
	w.await(hostileHeal, "live batch "+what, func() bool { return w.right(0) })
}

func (w *hostileWorld) source(rank uint32) relay.SourceStatus {
	for _, s := range w.relay.Status().Sources {
		if s.Source.Rank == rank {
			return s
		}
	}
	w.t.Fatalf("no source of rank %d", rank)
	panic("unreachable")
}

// undisturbed: rank 1 has noticed nothing.
func (w *hostileWorld) undisturbed() {
	w.t.Helper()
	s := w.source(1)
	if s.Connects != 1 || s.Cursor.Restarts != 0 || s.Cursor.Losses != 0 || s.Undecodable != 0 || s.Ranks[0].State == relay.StateSuspect {
		w.t.Errorf("rank 1 was disturbed: %+v", s)
	}
}

// discreet: nothing planted has come out anywhere, and the contract was kept.
func (w *hostileWorld) discreet() {
	w.t.Helper()
	status := fmt.Appendf(nil, "%+v", w.relay.Status())
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.needles {
		if bytes.Contains(w.logs.Bytes(), n) {
			w.t.Errorf("%q is in the log", n)
		}
		if bytes.Contains(status, n) {
			w.t.Errorf("%q is in the status", n)
		}
	}
	if w.holes > 0 {
		w.t.Errorf("%d event ids are missing", w.holes)
	}
	slices.Sort(w.broken)
	for _, b := range slices.Compact(w.broken) {
		w.t.Error(b)
	}
}

// watcher looks at memory and at how long a status takes, all the time.
type watcher struct {
	stop   chan struct{}
	ended  chan struct{}
	base   uint64
	memory uint64        // the most that the heap had in objects beyond base
	waited time.Duration // the longest that a status took
}

// watch begins to look. Memory counts from here: what the test itself keeps
// must be there before.
func (w *hostileWorld) watch() *watcher {
	runtime.GC()
	m := &watcher{stop: make(chan struct{}), ended: make(chan struct{}), base: heapObjects()}
	go func() {
		defer close(m.ended)
		tick := time.NewTicker(3 * time.Millisecond)
		defer tick.Stop()
		for {
			start := time.Now()
			w.relay.Status()
			m.waited = max(m.waited, time.Since(start))
			if now := heapObjects(); now > m.base {
				m.memory = max(m.memory, now-m.base)
			}
			select {
			case <-m.stop:
				return
			case <-tick.C:
			}
		}
	}()
	return m
}

// end says what was seen, and fails the test if it was too much.
func (m *watcher) end(t *testing.T) {
	t.Helper()
	close(m.stop)
	<-m.ended
	t.Logf("at most %d MiB, status within %v", m.memory>>20, m.waited.Round(time.Millisecond))
	if m.memory > hostileMemory {
		t.Errorf("memory grew by %d MiB, the bound is %d", m.memory>>20, hostileMemory>>20)
	}
	if m.waited > statusWithin() {
		t.Errorf("a status took %v: the lock was held for so long", m.waited)
	}
}

// statusWithin is how long a status may take: longer, and the lock is held by
// something that waits. What the largest batches cost, whose work holds it too, is
// TestHostileCost's; here a busy machine makes it many times as long, and the race
// detector ten times that.
func statusWithin() time.Duration {
	if raceEnabled {
		return 40 * time.Second
	}
	return 10 * time.Second
}

func heapObjects() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// plantedSecret is a token, a password or any other secret of the settings.
const plantedSecret = "secret-of-ours-9f33"
