package consumer

import (
	"container/heap"
	"flag"
	"maps"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
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
