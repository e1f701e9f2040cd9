package relay

import (
	"context"
	"io"
	"log"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/replay"
)

// replaying is a stream of r that has asked a ROUTER for everything; reply has the
// ROUTER answer with batches of these sizes, from sequence 0. It returns at once: how
// much of them the sockets take before someone reads is the machine's affair.
func replaying(t *testing.T, r *Relay) (s *Stream, reply func(sizes ...int)) {
	t.Helper()
	router := zmq4.NewRouter(context.Background(), zmq4.WithLogger(log.New(io.Discard, "", 0)))
	var sending sync.WaitGroup
	t.Cleanup(func() { router.Close(); sending.Wait() })
	if err := router.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	s = newStream(r, discovery.Source{Endpoint: "tcp://127.0.0.1:1", Replay: "tcp://" + router.Addr().String(), BlockSize: 4})
	ctx, cancel := context.WithCancel(t.Context())
	s.ctx = ctx
	r.credit.join(s)
	s.over = true // what is applied goes nowhere
	s.cursor.LiveUp(s.begin())
	req := *s.replay.want
	s.finish(0)
	readers := make(chan struct{}, 1)
	s.ask(ctx, ctx, req, readers)
	t.Cleanup(func() {
		cancel()
		s.mu.Lock()
		s.closeReplay()
		s.mu.Unlock()
		readers <- struct{}{}
	})
	msg, err := router.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return s, func(sizes ...int) {
		sending.Go(func() {
			for seq, size := range sizes {
				m := zmq4.NewMsgFrom(msg.Frames[0], nil, []byte{0, 0, 0, 0, 0, 0, 0, byte(seq)}, make([]byte, size))
				if err := router.SendMulti(m); err != nil {
					t.Errorf("reply %d: %v", seq, err)
				}
			}
		})
	}
}

// until spins: what is waited for happens under a lock that the test holds.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// A reply that is there, and whose reader waits for the stream's lock, is not asked
// for again: neither REPLAY_IDLE nor the end of the round's 10 s, judged just then,
// take it away.
func TestReplyWaitsForTheLock(t *testing.T) {
	for name, c := range map[string]struct {
		size int
		late time.Duration // when it is judged
	}{
		"idle":        {100, 1500 * time.Millisecond},
		"idle, large": {3 << 20, 1500 * time.Millisecond},
		"slot":        {100, 10 * time.Second},
		"slot, large": {3 << 20, 15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			base, _ := edgeStream(t)
			s, reply := replaying(t, base.r)
			now := s.begin()
			client := s.replay.client
			reply(c.size)
			until(t, "the reply is whole", func() bool { return client.Arriving().Whole })
			now = now.Add(c.late)
			s.tellArriving(now)
			s.cursor.Tick(now)
			if st := s.cursor.State(); st.Stalled != 0 || s.replay.client != client {
				t.Errorf("stalled with the reply in hand: %+v", st)
			}
			s.finish(0)
			until(t, "it is applied", func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				st := s.cursor.State()
				return st.Applied == 1 && st.Requests == 1
			})
		})
	}
}

// A replay of large replies that come fast, one behind the other, gives its slot to
// who waits for it when its 10 s are over.
func TestSlotAfterManyLargeReplies(t *testing.T) {
	base, _ := edgeStream(t) // one slot
	s, reply := replaying(t, base.r)
	s.begin()
	client := s.replay.client
	reply(2<<20, 2<<20, 2<<20, 2<<20) // the first one's reader waits for the lock, the others follow
	until(t, "the first reply is whole", func() bool { return client.Arriving().Whole })
	s.finish(0)
	until(t, "all are applied", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.cursor.State().Applied == 4
	})

	waiting := make(chan bool, 1)
	other := newStream(base.r, discovery.Source{Rank: 1, Endpoint: "tcp://127.0.0.1:1", Replay: "tcp://127.0.0.1:2"})
	other.ctx = t.Context()
	other.cursor.LiveUp(other.begin())
	req := *other.replay.want
	other.finish(0)
	go func() { waiting <- other.acquireSlot(t.Context(), req) }()

	over := s.begin().Add(11 * time.Second)                                                                            // the round's time is up
	s.cursor.ReplayArriving(over, s.replay.active, replay.Arrival{First: over, Newest: over, Fast: true, Whole: true}) // as fast as one can be, begun behind the end
	s.cursor.Tick(over)
	if st := s.cursor.State(); st.Stalled != 1 {
		t.Errorf("%+v", st)
	}
	s.finish(0)
	if !<-waiting {
		t.Error("the other stream has no slot")
	}
}
