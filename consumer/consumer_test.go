package consumer

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func startNATS(t testing.TB) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(), NoSystemAccount: false})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("nats-server not ready")
	}
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	return s
}

func dial(t testing.TB, s *server.Server) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// eventually polls a condition until it holds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("never: %s", what)
		case <-tick.C:
		}
	}
}

// service is a fakeRelay on NATS: it publishes, answers and beats.
type service struct {
	t       testing.TB
	nc      *nats.Conn
	js      jetstream.JetStream // not nil: events go there
	profile Profile
	ns      string
	mu      sync.Mutex
	f       *fakeRelay
	seq     uint64
	stop    chan struct{}
	done    sync.WaitGroup
}

func startService(t testing.TB, nc *nats.Conn, js jetstream.JetStream, p Profile, f *fakeRelay) *service {
	t.Helper()
	s := &service{t: t, nc: nc, js: js, profile: p, ns: "a.b", f: f, stop: make(chan struct{})}
	sub, err := nc.Subscribe(serviceSubject(s.ns, f.rank, "recover"), func(m *nats.Msg) {
		s.mu.Lock()
		a := s.f.serve(time.Now(), p, m.Data)
		s.mu.Unlock()
		if err := m.RespondMsg(a); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	s.publish(Event{Kind: Cleared})
	s.done.Go(func() {
		tick := time.NewTicker(HeartbeatEvery)
		defer tick.Stop()
		for {
			s.beat("live")
			select {
			case <-s.stop:
				_ = sub.Unsubscribe()
				return
			case <-tick.C:
			}
		}
	})
	t.Cleanup(s.close)
	return s
}

func (s *service) close() {
	select {
	case <-s.stop:
	default:
		close(s.stop)
		s.done.Wait()
	}
}

func (s *service) beat(state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nc.IsClosed() {
		return
	}
	_ = s.nc.Publish(serviceSubject(s.ns, s.f.rank, "heartbeat"), mustJSON(s.f.heartbeat(state)))
}

// publish sends events as one message each; lost ones are not sent.
func (s *service) publish(e Event) { s.send(e, false) }

func (s *service) send(e Event, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e = s.f.publish(e)
	s.f.confirmed = e.ID
	if lost {
		return
	}
	subject := s.profile.Subject(s.ns, "backend", "generate", false)
	if s.js != nil || s.profile == JSON {
		subject = serviceSubject(s.ns, s.f.rank, "events")
	}
	m := &nats.Msg{Subject: subject, Header: nats.Header{PublisherHeader: {strconv.FormatUint(s.f.publisher, 10)}}}
	m.Data = encodeMessage(s.profile, s.f.publisher, s.seq, []Event{e})
	s.seq++
	if s.js != nil {
		if _, err := s.js.PublishMsg(context.Background(), m); err != nil {
			s.t.Error(err)
		}
		return
	}
	if err := s.nc.PublishMsg(m); err != nil {
		s.t.Error(err)
	}
}

func (s *service) want() map[blockKey]Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.f.state)
}

// follow runs a Consumer over a Picture until the test ends.
func follow(t testing.TB, o Options) (*Consumer, *Picture) {
	t.Helper()
	p := NewPicture()
	hook := o.OnEvent
	o.OnEvent = func(e *Event) {
		p.Apply(e)
		if hook != nil {
			hook(e)
		}
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return c, p
}

func pictureOf(p *Picture, k Rank) map[blockKey]Entry {
	out := map[blockKey]Entry{}
	for tier := range Tier(NumTiers) {
		for h, e := range p.Blocks(k, tier) {
			out[blockKey{tier, h}] = e
		}
	}
	return out
}

func statusOf(c *Consumer, k Rank) RankStatus {
	for _, s := range c.Ranks() {
		if s.Rank == k {
			return s
		}
	}
	return RankStatus{}
}

func (s *service) settled(c *Consumer, p *Picture) func() bool {
	return func() bool {
		st := statusOf(c, s.f.rank)
		return st.State == Live && st.LastID == s.f.next-1 && st.Publisher == s.f.publisher && maps.Equal(pictureOf(p, s.f.rank), s.want())
	}
}

// Late start, lost messages, a lost last one, a restart: over real NATS, for
// each profile, core and JetStream.
func TestConsumerOverNATS(t *testing.T) {
	for _, profile := range []Profile{Dynamo, DynamoSingle, JSON} {
		t.Run(profile.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, uint64(profile)))
			srv := startNATS(t)
			rank := Rank{1 << 60, 3}
			s := startService(t, dial(t, srv), nil, profile, newFakeRelay(rank, 111, 1, 300, 64, 50))
			for range 500 { // before the consumer, and more than the ring
				s.publish(randomEvent(r, 400))
			}
			nc := dial(t, srv)
			c, p := follow(t, Options{Conn: nc, Profile: profile, Namespace: "a.b"})
			eventually(t, "caught up after a late start", s.settled(c, p))
			for range 400 {
				s.send(randomEvent(r, 400), r.IntN(4) == 0)
			}
			s.send(randomEvent(r, 400), true) // the last one before silence
			eventually(t, "equal after losses", s.settled(c, p))
			if st := statusOf(c, rank); st.Holes == 0 {
				t.Errorf("no hole noticed: %+v", st)
			}
			s.close()
			s2 := startService(t, dial(t, srv), nil, profile, newFakeRelay(rank, 222, 2, 300, 64, 50))
			for range 100 {
				s2.send(randomEvent(r, 400), r.IntN(4) == 0)
			}
			eventually(t, "equal after a restart", s2.settled(c, p))
		})
	}
}

func TestConsumerOverJetStream(t *testing.T) {
	for _, profile := range []Profile{Dynamo, JSON} {
		for _, trimmed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, trimmed %v", profile, trimmed), func(t *testing.T) {
				r := rand.New(rand.NewPCG(2, uint64(profile)))
				srv := startNATS(t)
				nc := dial(t, srv)
				js, err := jetstream.New(nc)
				if err != nil {
					t.Fatal(err)
				}
				cfg := jetstream.StreamConfig{Name: "KVRELAY", Subjects: []string{"kvrelay.*.*.*.events"}}
				if trimmed {
					cfg.MaxMsgs = 150
				}
				if _, err := js.CreateStream(context.Background(), cfg); err != nil {
					t.Fatal(err)
				}
				rank := Rank{12, 0}
				old := startService(t, nc, js, profile, newFakeRelay(rank, 111, 1, 300, 64, 50))
				for range 100 {
					old.publish(randomEvent(r, 100))
				}
				old.close()
				s := startService(t, nc, js, profile, newFakeRelay(rank, 222, 2, 300, 64, 50))
				for range 200 {
					s.publish(Event{Kind: Stored, Blocks: []Block{{Hash: r.Uint64(), TokensHash: 1}}})
				}
				ids := map[uint64]int{}
				c, p := follow(t, Options{Conn: dial(t, srv), Profile: profile, Namespace: "a.b", JetStream: "KVRELAY",
					OnEvent: func(e *Event) { ids[e.ID]++ }})
				eventually(t, "the stream replayed", s.settled(c, p))
				for range 200 {
					s.publish(randomEvent(r, 100))
				}
				eventually(t, "following live", s.settled(c, p))
				switch st := statusOf(c, rank); {
				case trimmed && st.Asks == 0:
					t.Error("a stream that begins in the middle was believed")
				case !trimmed && st.Asks != 0:
					t.Errorf("asked %d times for what the stream has", st.Asks)
				}
			})
		}
	}
}

// A stream that does not exist yet is waited for.
func TestJetStreamComesLater(t *testing.T) {
	srv := startNATS(t)
	nc := dial(t, srv)
	c, p := follow(t, Options{Conn: dial(t, srv), Namespace: "a.b", JetStream: "KVRELAY"})
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(context.Background(), jetstream.StreamConfig{Name: "KVRELAY", Subjects: []string{"kvrelay.*.*.*.events"}}); err != nil {
		t.Fatal(err)
	}
	s := startService(t, nc, js, Dynamo, newFakeRelay(Rank{1, 1}, 5, 1, 100, 10, 10))
	s.publish(Event{Kind: Stored, Blocks: []Block{{Hash: 1, TokensHash: 2}}})
	eventually(t, "events of a late stream", s.settled(c, p))
}

// A consumer that is cut off from NATS gets back what it missed.
func TestConsumerReconnects(t *testing.T) {
	srv := startNATS(t)
	s := startService(t, dial(t, srv), nil, Dynamo, newFakeRelay(Rank{9, 0}, 5, 1, 1000, 64, 50))
	nc := dial(t, srv)
	c, p := follow(t, Options{Conn: nc, Namespace: "a.b"})
	eventually(t, "live", s.settled(c, p))
	r := rand.New(rand.NewPCG(3, 3))
	for range 20 {
		if err := nc.ForceReconnect(); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			s.publish(randomEvent(r, 100))
		}
	}
	eventually(t, "equal after cuts", s.settled(c, p))
}

// Relays that vanish become stale, are forgotten, and are welcome again.
func TestStaleAndForgotten(t *testing.T) {
	srv := startNATS(t)
	rank := Rank{9, 0}
	s := startService(t, dial(t, srv), nil, JSON, newFakeRelay(rank, 5, 1, 1000, 64, 50))
	s.publish(Event{Kind: Stored, Blocks: []Block{{Hash: 1, TokensHash: 2}}})
	var mu sync.Mutex
	seen := map[State]bool{}
	c, p := follow(t, Options{Conn: dial(t, srv), Profile: JSON, Namespace: "a.b", Worker: 9, Forget: 200 * time.Millisecond,
		OnState: func(_ Rank, st State) { mu.Lock(); seen[st] = true; mu.Unlock() }})
	eventually(t, "live", s.settled(c, p))
	s.close()
	s.beat(StateLeaving)
	eventually(t, "forgotten", func() bool { return len(c.Ranks()) == 0 && p.Len(rank, Device) == 0 })
	mu.Lock()
	if !seen[Live] || !seen[Stale] {
		t.Errorf("states seen: %v", seen)
	}
	mu.Unlock()
	s2 := startService(t, dial(t, srv), nil, JSON, newFakeRelay(rank, 6, 2, 1000, 64, 50))
	s2.publish(Event{Kind: Stored, Blocks: []Block{{Hash: 3, TokensHash: 2}}})
	eventually(t, "back", s2.settled(c, p))
}

// Rubbish on every subject costs nothing but a counter.
func TestConsumerIgnoresRubbish(t *testing.T) {
	srv := startNATS(t)
	rank := Rank{9, 0}
	s := startService(t, dial(t, srv), nil, Dynamo, newFakeRelay(rank, 5, 1, 1000, 64, 50))
	nc := dial(t, srv)
	c, p := follow(t, Options{Conn: nc, Namespace: "a.b", MaxRanks: 3})
	eventually(t, "live", s.settled(c, p))
	other := dial(t, srv)
	events := Dynamo.Subject("a.b", "backend", "generate", false)
	beat := serviceSubject("a.b", rank, "heartbeat")
	for _, data := range [][]byte{nil, {0xc1}, []byte("[]"), []byte("{}"), []byte(`{"publisher_id":-1}`), make([]byte, 5000), encodeMessage(JSON, 1, 1, sampleEvents())} {
		for _, subject := range []string{events, beat, "kvrelay." + Escape("a.b") + ".x.0.heartbeat"} {
			if err := other.Publish(subject, data); err != nil {
				t.Fatal(err)
			}
		}
	}
	for w := range uint64(10) { // invented workers
		if err := other.Publish(serviceSubject("a.b", Rank{100 + w, 0}, "heartbeat"), []byte(`{"publisher_id":1,"last_event_id":5,"state":"live"}`)); err != nil {
			t.Fatal(err)
		}
	}
	s.publish(Event{Kind: Stored, Blocks: []Block{{Hash: 1, TokensHash: 2}}})
	eventually(t, "still following", s.settled(c, p))
	eventually(t, "counted", func() bool { st := c.Stats(); return st.Malformed >= 15 && st.Ignored >= 8 })
	if n := len(c.Ranks()); n != 3 {
		t.Errorf("%d ranks followed, want MaxRanks", n)
	}
}

func TestRunEndsWhenTheConnectionCloses(t *testing.T) {
	nc := dial(t, startNATS(t))
	c, err := New(Options{Conn: nc, OnEvent: func(*Event) {}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- c.Run(context.Background()) }()
	eventually(t, "subscribed", func() bool { return nc.NumSubscriptions() == 3 })
	nc.Close()
	if err := <-done; err == nil {
		t.Error("Run ended without an error")
	}
}
