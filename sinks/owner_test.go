package sinks

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"
)

// runs starts Run and returns its end.
func runs(p *Publisher) (stop func(), ended chan error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended = make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	return cancel, ended
}

// TestRollingUpgrade: the new relay waits for the old one to leave, and publishes then.
func TestRollingUpgrade(t *testing.T) {
	s := startServer(t, nil)
	heard := beats(t, connect(t, s.ClientURL()))
	start := func() (*rank, func(), chan error) {
		p := newTest(t, Options{Servers: []string{s.ClientURL()}})
		p.timing = brisk
		k := openRank(t, p, 7, 1, 50)
		stop, ended := runs(p)
		return k, stop, ended
	}
	a, stopA, endedA := start()
	eventually(t, "a's heartbeat", func() bool { return len(heard()) > 0 })
	eventually(t, "a's event", func() bool { return a.o.Confirmed() == 1 })
	b, stopB, endedB := start()
	n := len(heard())
	eventually(t, "more of a's heartbeats", func() bool { return len(heard()) > n+5 })
	if b.o.Confirmed() != 0 {
		t.Error("b publishes while a is there")
	}
	stopA()
	if err := <-endedA; err != nil {
		t.Error(err)
	}
	eventually(t, "b's event", func() bool { return b.o.Confirmed() == 1 })
	stopB()
	if err := <-endedB; err != nil {
		t.Error(err)
	}
	left := false
	for _, h := range heard() {
		if h.Publisher == b.o.PublisherID() && !left {
			t.Error("b speaks before a has left")
		}
		left = left || h.Publisher == a.o.PublisherID() && h.State == StateLeaving
	}
}

// TestOwnerDoesNotLeave: the newcomer gives up, naming the other.
func TestOwnerDoesNotLeave(t *testing.T) {
	s := startServer(t, nil)
	heard := beats(t, connect(t, s.ClientURL()))
	p := newTest(t, Options{Servers: []string{s.ClientURL()}})
	p.timing = brisk
	a := openRank(t, p, 7, 1, 50)
	run(t, p)
	eventually(t, "a's heartbeat", func() bool { return len(heard()) > 0 })
	q := newTest(t, Options{Servers: []string{s.ClientURL()}})
	q.timing = brisk
	q.timing.patience = 300 * time.Millisecond
	b := openRank(t, q, 7, 2, 50)
	_, ended := runs(q)
	var owner *OwnerError
	if err := <-ended; !errors.As(err, &owner) || owner.Publisher != a.o.PublisherID() || owner.Life != p.life || !owner.Waited {
		t.Errorf("ended with %v", err)
	}
	if b.o.Confirmed() != 0 {
		t.Error("b has published")
	}
}

// TestTwoOwners: of two that did not hear each other, the younger one leaves.
func TestTwoOwners(t *testing.T) {
	s := startServer(t, nil)
	nc := connect(t, s.ClientURL())
	heard := beats(t, nc)
	p := newTest(t, Options{Servers: []string{s.ClientURL()}})
	p.timing = brisk
	k := openRank(t, p, 7, 1, 50)
	stop, ended := runs(p)
	defer stop()
	eventually(t, "its heartbeat", func() bool { return len(heard()) > 0 })
	say := func(body string) {
		t.Helper()
		if err := nc.Publish("kvrelay.dynamo.7.0.heartbeat", []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	say(`{"publisher_id":5,"started":99999999999999,"life":5,"state":"live"}`) // younger: its turn to leave
	say(`{"publisher_id":5,"started":1,"life":5,"state":"leaving"}`)
	n := len(heard())
	eventually(t, "further heartbeats", func() bool { return len(heard()) > n+5 })
	say(`{"publisher_id":5,"started":1,"life":6,"state":"live"}`)
	var owner *OwnerError
	if err := <-ended; !errors.As(err, &owner) || owner.Publisher != 5 || owner.Life != 6 || owner.Waited {
		t.Errorf("ended with %v", err)
	}
	eventually(t, "leaving", func() bool {
		all := heard()
		for _, h := range all {
			if h.Publisher == k.o.PublisherID() && h.State == StateLeaving {
				return true
			}
		}
		return false
	})
}

// TestNothingBehindLeaving: a relay that loses a rank to an older one says
// nothing more of any of its ranks once it has said that it leaves.
func TestNothingBehindLeaving(t *testing.T) {
	for _, kind := range []Kind{NATS, JetStream} {
		t.Run(kind.String(), func(t *testing.T) {
			s := streamServer(t, nil)
			nc := connect(t, s.ClientURL())
			p := newTest(t, Options{Kind: kind, Servers: []string{s.ClientURL()}, CreateStream: true})
			p.timing = brisk
			ranks := []*rank{openRank(t, p, 7, 1, 50), openRank(t, p, 8, 2, 50)}
			all, err := nc.SubscribeSync(">")
			if err == nil {
				err = all.SetPendingLimits(-1, -1)
			}
			if err == nil {
				err = nc.Flush()
			}
			if err != nil {
				t.Fatal(err)
			}
			stop, ended := runs(p)
			defer stop()
			for _, k := range ranks {
				eventually(t, "its events", func() bool { return k.o.Confirmed() > 0 })
			}
			over := make(chan struct{})
			var busy sync.WaitGroup
			for _, k := range ranks {
				busy.Go(func() {
					tick := time.NewTicker(200 * time.Microsecond)
					defer tick.Stop()
					for {
						select {
						case <-over:
							return
						case <-tick.C:
							k.step(k.events())
						}
					}
				})
			}
			if err := nc.Publish("kvrelay.dynamo.7.0.heartbeat", []byte(`{"publisher_id":5,"started":1,"life":5,"state":"live"}`)); err != nil {
				t.Fatal(err)
			}
			var owner *OwnerError
			if err := <-ended; !errors.As(err, &owner) {
				t.Errorf("ended with %v", err)
			}
			close(over)
			busy.Wait()
			if err := nc.Flush(); err != nil {
				t.Fatal(err)
			}
			left := map[string]bool{} // subjects of events
			for n, _, err := all.Pending(); n > 0 && err == nil; n, _, err = all.Pending() {
				m, err := all.NextMsg(patience)
				if err != nil {
					t.Fatal(err)
				}
				var h heartbeat
				for _, k := range ranks {
					if m.Subject == k.o.serviceSubject("heartbeat") && json.Unmarshal(m.Data, &h) == nil && h.Publisher == k.o.PublisherID() && h.State == StateLeaving {
						left[k.o.Subject()] = true
					}
				}
				if left[m.Subject] {
					t.Fatalf("an event on %s behind leaving", m.Subject)
				}
			}
			if len(left) != 1 && kind == NATS || len(left) != 2 && kind == JetStream {
				t.Errorf("left %v", left) // of NATS core both have one subject
			}
		})
	}
}
