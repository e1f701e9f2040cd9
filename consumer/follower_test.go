package consumer

import (
	"container/heap"
	"flag"
	"maps"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

var simSeeds = flag.Int("seeds", 200, "random scenarios of TestFollowerScenarios")

// The follower ends equal to what the relay published, in every scenario of
// loss, repetition, reordering, restarts, pauses and cuts; whenever it takes
// itself to be whole, it is; and it asks no longer than it must.
func TestFollowerScenarios(t *testing.T) {
	for seed := range uint64(*simSeeds) {
		w := newWorld(seed)
		w.run()
		if w.violated != "" {
			t.Fatalf("seed %d: %s", seed, w.violated)
		}
	}
}

// A world without faults needs one question.
func TestFollowerAsksOnce(t *testing.T) {
	for seed := range uint64(50) {
		w := newWorld(seed)
		w.sound = true
		w.heldMax = 1 << 30
		w.spawn()
		w.f.start(w.now)
		w.every(func() time.Duration { return w.upTo(50 * time.Millisecond) }, simFaults/2, func() { w.publish(w.owner(), randomEvent(w.r, w.hashes)) })
		w.every(fixed(100*time.Millisecond), simFaults, func() { w.f.tick(w.now, false) })
		for w.queue.Len() > 0 {
			e := heap.Pop(&w.queue).(simEvent)
			w.now = e.at
			e.run()
		}
		if w.violated != "" || len(w.owner().history) < 100 || w.f.holes != 0 || w.begun-w.failed != 1 || !maps.Equal(w.state, w.owner().state) {
			t.Errorf("seed %d: %s, %d holes, asked %d times, %d in vain", seed, w.violated, w.f.holes, w.begun, w.failed)
		}
	}
}

func TestErrorAnswers(t *testing.T) {
	for name, h := range map[string]nats.Header{
		"no responders": {"Status": {"503"}},
		"service error": {"Nats-Service-Error-Code": {"404"}},
		"no publisher":  {headerKind: {"events"}, headerLast: {"1"}},
		"no kind":       {PublisherHeader: {"1"}},
		"no last":       {PublisherHeader: {"1"}, headerKind: {"events"}},
		"no part":       {PublisherHeader: {"1"}, headerKind: {"snapshot"}, headerSnapshot: {"t"}, headerMore: {"true"}},
		"no done":       {PublisherHeader: {"1"}, headerKind: {"snapshot"}, headerSnapshot: {"t"}, headerPart: {"0"}},
	} {
		in := parseAnswer(&nats.Msg{Subject: "_INBOX.x.7.1.3", Header: h, Data: []byte("[]")})
		if in.answer == nil || !in.answer.failed || in.question != 3 || (in.rank != Rank{7, 1}) {
			t.Errorf("%s: %+v, want a failed answer", name, in)
		}
	}
}

// lonely is a host that has nobody to ask.
type lonely struct{}

func (lonely) apply(*Event)       {}
func (lonely) ask(Rank, question) {}
func (lonely) hold(int) bool      { return true }
func (lonely) unhold(int)         {}

// asked counts questions that nobody answers.
type asked struct {
	lonely
	n int
}

func (a *asked) ask(Rank, question) { a.n++ }

// A relay whose heartbeats do not come through is asked again as long as its
// events do; one of which nothing comes is not.
func TestEventsWithoutHeartbeats(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	a := &asked{}
	f := &follower{host: a, jitter: func() float64 { return 0 }}
	f.start(now)
	pass := func(events bool) (questions int) {
		before := a.n
		for id := range uint64(600) { // a minute
			now = now.Add(100 * time.Millisecond)
			if events && id%10 == 0 {
				f.message(now, 1, []Event{{ID: 100 + id, Kind: Removed}}, false)
			}
			f.tick(now, false)
		}
		return a.n - before
	}
	if n := pass(true); n < 8 {
		t.Errorf("%d questions in a minute of events", n)
	}
	pass(false)
	if n := pass(false); n != 0 {
		t.Errorf("%d questions in a minute of silence", n)
	}
	f.message(now, 1, []Event{{ID: 900, Kind: Removed}}, true) // of the past of a stream
	if n := pass(false); n != 0 {
		t.Errorf("%d questions for what is past", n)
	}
}

// A snapshot that is broken off leaves a part, and says so until there is a whole one.
func TestBrokenSnapshot(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	f := &follower{host: lonely{}, jitter: func() float64 { return 0 }}
	state := func(want State) {
		t.Helper()
		if got := f.state(now); got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
	f.start(now)
	state(Waiting)
	f.answered(now, f.q.id, &answer{publisher: 1, snapshot: true, token: "a", more: true, events: []Event{{Kind: Cleared}}})
	state(Recovering)
	f.answered(now, f.q.id, &answer{failed: true})
	state(Recovering)
	now = now.Add(time.Second)
	f.tick(now, false)
	f.answered(now, f.q.id, &answer{publisher: 1, snapshot: true, token: "b", last: 7})
	state(Live)
	f.message(now, 1, []Event{{ID: 9}}, false) // a hole: what was known before it stands
	state(Waiting)
}

// A stream that was deleted and made anew counts from 1: it is read, and not
// waited for until it is as long as the old one was.
func TestStreamMadeAnew(t *testing.T) {
	srv := startNATS(t)
	js, err := jetstream.New(dial(t, srv))
	if err != nil {
		t.Fatal(err)
	}
	cfg := jetstream.StreamConfig{Name: "KVRELAY", Subjects: []string{"kvrelay.*.*.*.events"}}
	create := func() {
		t.Helper()
		if _, err := js.CreateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	create()
	rank := Rank{1, 1}
	s := startService(t, dial(t, srv), js, Dynamo, newFakeRelay(rank, 5, 1, 100, 10, 10))
	c, p := follow(t, Options{Conn: dial(t, srv), Namespace: "a.b", JetStream: "KVRELAY"})
	store := func(n int) {
		for range n {
			s.publish(Event{Kind: Stored, Blocks: []Block{{Hash: s.f.next, TokensHash: 2}}})
		}
	}
	store(50)
	eventually(t, "the old stream", s.settled(c, p))
	if err := js.DeleteStream(t.Context(), "KVRELAY"); err != nil {
		t.Fatal(err)
	}
	create()
	store(10)
	eventually(t, "the new stream", func() bool {
		st := statusOf(c, rank) // what a heartbeat had it ask for before is repeated by the stream
		return s.settled(c, p)() && (st.Repeated > 0 || st.Asks == 0)
	})
}
