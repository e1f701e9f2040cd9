package admin

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/relay"
)

// watched is a Server without a port in a bubble of false time.
func watched(t *testing.T, w *world, sink string) *Server {
	t.Helper()
	s := New(Options{Addr: config.Off, Status: w.status, Discovery: w.discovery, Sink: sink})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		w.release()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return s
}

// Before the first look there is nothing to go by, and FirstLook says when there is.
func TestHealthBeforeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{Addr: config.Off, Status: newWorld(1).status})
		looked := s.FirstLook()
		if err := s.Health(); err == nil {
			t.Error("healthy without running")
		}
		select {
		case <-looked:
			t.Error("looked at before Run")
		default:
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		<-looked
		if err := s.Health(); err != nil {
			t.Errorf("after the first look: %v", err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A lock that is not free is noticed, also one of the first look, and forgiven.
func TestStuckLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(2)
		s := watched(t, w, config.SinkNATS)
		time.Sleep(time.Minute)
		if err := s.Health(); err != nil {
			t.Errorf("a minute later: %v", err)
		}
		w.hang()
		time.Sleep(stuckAfter - 2*time.Second)
		if err := s.Health(); err != nil {
			t.Errorf("too early: %v", err)
		}
		time.Sleep(4 * time.Second)
		if err := s.Health(); err == nil || !strings.Contains(err.Error(), "a lock has not been free") {
			t.Errorf("stuck, but: %v", err)
		}
		snap := s.fresh(t.Context()) // gives up, and gives what it has
		if reasons := s.unready(&snap); len(reasons) == 0 || !strings.Contains(reasons[0], "stuck") {
			t.Errorf("ready, though stuck: %q", reasons)
		}
		w.release()
		time.Sleep(2 * time.Second)
		if err := s.Health(); err != nil {
			t.Errorf("free again, but: %v", err)
		}
	})
}

func TestStuckAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		w.hang()
		s := watched(t, w, config.SinkNATS)
		if err := s.Health(); err != nil {
			t.Errorf("the first look has its time: %v", err)
		}
		time.Sleep(stuckAfter + time.Second)
		if err := s.Health(); err == nil {
			t.Error("healthy without ever having looked")
		}
	})
}

func TestStuckStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(2)
		w.st.Sources[1].Overdue = stuckAfter
		s := watched(t, w, config.SinkNATS)
		if err := s.Health(); err != nil {
			t.Errorf("too early: %v", err)
		}
		w.change(func(st *relay.Status) { st.Sources[1].Overdue = stuckAfter + time.Second })
		time.Sleep(2 * time.Second)
		if err := s.Health(); err == nil || !strings.Contains(err.Error(), "rank 1 at tcp://127.0.0.1:5558") {
			t.Errorf("a late stream: %v", err)
		}
	})
}

// A publisher with events, a connection and no progress is stuck; one without
// a connection, without events, or with any progress is not: NATS' faults are
// not this process's.
func TestMutePublisher(t *testing.T) {
	for name, c := range map[string]struct {
		sink  string
		each  func(*relay.Status) // every 10 s
		stuck bool
	}{
		"mute":         {config.SinkNATS, func(*relay.Status) {}, true},
		"not NATS":     {config.SinkStdout, func(*relay.Status) {}, false},
		"JetStream":    {config.SinkJetStream, func(*relay.Status) {}, false}, // may wait for its stream
		"NATS is down": {config.SinkNATS, func(st *relay.Status) { st.Sink.Connected = false }, false},
		"nothing left": {config.SinkNATS, func(st *relay.Status) { st.Sink.UnconfirmedEvents = 0 }, false},
		"confirming":   {config.SinkNATS, func(st *relay.Status) { st.Sink.ConfirmedEvents++ }, false},
		"sending":      {config.SinkNATS, func(st *relay.Status) { st.Sink.Envelopes++ }, false},
		"off record":   {config.SinkNATS, func(st *relay.Status) { st.Sink.Unowned = 1 }, false}, // may wait for its record
		"flapping":     {config.SinkNATS, func(st *relay.Status) { st.Sink.Failures++ }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(1)
				w.st.Sink.UnconfirmedEvents = 5
				s := watched(t, w, c.sink)
				for range 9 {
					time.Sleep(10 * time.Second)
					w.change(c.each)
				}
				time.Sleep(2 * time.Second)
				if err := s.Health(); (err != nil) != c.stuck {
					t.Errorf("health: %v, want stuck=%v", err, c.stuck)
				}
			})
		})
	}
}

// Answers are new ones: what has changed since the last look of the clock is in them.
func TestAnswersAreFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		s := watched(t, w, config.SinkNATS)
		time.Sleep(lookEvery / 4)
		w.change(func(st *relay.Status) { st.Sources[0].Cursor.Position.Seq = 99 })
		began := time.Now()
		if snap := s.fresh(t.Context()); snap.relay.Sources[0].Cursor.Position.Seq != 99 || time.Since(began) > 0 {
			t.Errorf("seq %d after %v", snap.relay.Sources[0].Cursor.Position.Seq, time.Since(began))
		}
	})
}
