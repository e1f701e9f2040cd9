package integration

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/internal/freeport"
)

// patience is how long anything may take before a test gives up on it: far
// more than it takes, on a machine that does other things as well.
const patience = 60 * time.Second

// signal wakes those who wait for a change of something.
type signal struct {
	mu sync.Mutex
	ch chan struct{}
}

func (s *signal) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch == nil {
		s.ch = make(chan struct{})
	}
	return s.ch
}

func (s *signal) fire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch != nil {
		close(s.ch)
		s.ch = nil
	}
}

// waitFor waits until ok, which is asked at once and after each change.
func waitFor(t testing.TB, s *signal, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		next := s.next()
		if ok() {
			return
		}
		select {
		case <-next:
		case <-deadline.C:
			t.Fatalf("never: %s", what)
		}
	}
}

// natsServer is a real nats-server in this process. port −1 is a free one.
func natsServer(t testing.TB, port int) *server.Server {
	t.Helper()
	if port < 0 {
		port = freeport.Next(t, 1) // it may be stopped, and come again
	}
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(patience) {
		t.Fatal("nats-server is not ready")
	}
	t.Cleanup(func() { stopNATS(s) })
	return s
}

func stopNATS(s *server.Server) {
	s.Shutdown()
	s.WaitForShutdown()
}

// router reads what the relay publishes and folds it, as a router would that
// was there from the start. It also holds every message to the contract.
type router struct {
	changed signal

	mu       sync.Mutex
	picture  *consumer.Picture
	events   []consumer.Event
	last     map[consumer.Rank]uint64
	pubs     map[consumer.Rank][]uint64
	repeated int
	// mayRepeat: NATS itself fails in this test, so that events come again; ids
	// tell. Else that is broken too.
	mayRepeat bool
	broken    []string // what must not be
}

// newRouter subscribes before any relay is started. port 0: any.
func newRouter(t testing.TB, url string, p consumer.Profile) *router {
	t.Helper()
	r := &router{picture: consumer.NewPicture(), last: map[consumer.Rank]uint64{}, pubs: map[consumer.Rank][]uint64{}}
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.Timeout(patience), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.broken = append(r.broken, "router: "+err.Error())
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if _, err := nc.Subscribe(p.Subject("dynamo", "backend", "generate", false), r.take); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *router) take(m *nats.Msg) {
	defer r.changed.fire()
	msg, err := consumer.ParseMessage(m.Subject, m.Header, m.Data)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.broken = append(r.broken, err.Error())
		return
	}
	out := r.picture.Fold(msg)
	r.repeated += out.Repeated
	for i := range msg.Events {
		e := &msg.Events[i]
		if pubs := r.pubs[e.Rank]; len(pubs) == 0 || pubs[len(pubs)-1] != msg.Publisher {
			r.pubs[e.Rank] = append(pubs, msg.Publisher)
			r.last[e.Rank] = 0
			if e.ID != 1 || e.Kind != consumer.Cleared {
				r.broken = append(r.broken, fmt.Sprintf("a publisher's first event is %v %d", e.Kind, e.ID))
			}
		}
		if e.ID <= r.last[e.Rank] && r.mayRepeat {
			continue
		}
		if e.ID != r.last[e.Rank]+1 {
			r.broken = append(r.broken, fmt.Sprintf("event id %d after %d", e.ID, r.last[e.Rank]))
		}
		r.last[e.Rank] = e.ID
		r.events = append(r.events, *e)
	}
}

// sound fails the test if any message broke the contract: every id once, in
// order, from 1 with a `cleared`.
func (r *router) sound(t testing.TB) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.broken {
		t.Errorf("contract broken: %s", b)
	}
}

// wait waits for a state of what was folded.
func (r *router) wait(t testing.TB, what string, ok func(p *consumer.Picture) bool) {
	t.Helper()
	defer func() {
		if t.Failed() {
			r.mu.Lock()
			defer r.mu.Unlock()
			t.Logf("the router: %d events, last ids %v, broken: %q", len(r.events), r.last, r.broken[:min(len(r.broken), 10)])
		}
	}()
	waitFor(t, &r.changed, what, func() bool { return ok(r.picture) })
}

// allowRepeats: from here on NATS may fail.
func (r *router) allowRepeats() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mayRepeat = true
}

// all are the events so far.
func (r *router) all() []consumer.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]consumer.Event(nil), r.events...)
}

// hashes is what a rank holds in a tier.
func hashes(p *consumer.Picture, k consumer.Rank, tier consumer.Tier) map[uint64]bool {
	out := map[uint64]bool{}
	for h := range p.Blocks(k, tier) {
		out[h] = true
	}
	return out
}
