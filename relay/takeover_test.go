package relay_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/sinks"
)

// TestTakeover: an older relay of the rank appears while this one is live and
// busy. This one says that it leaves, publishes nothing behind that, ends with
// an *OwnerError that names the other, and leaves nothing running. The engine
// meanwhile goes on, and whoever owns the rank then has everything from it.
func TestTakeover(t *testing.T) {
	b := start(t, setup{engine: mockengine.Options{Blocks: 400}})
	b.ready()
	b.prompt(0, 0, 20)
	b.same()

	nc, err := nats.Connect(b.nats.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	var mu sync.Mutex
	left, late := false, 0
	var last consumer.Heartbeat
	subject := fmt.Sprintf("kvrelay.test.%d.0.heartbeat", worker)
	// One subscription, so that the order is the server's: what comes behind `leaving` came later.
	_, err = nc.Subscribe(">", func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case m.Subject == subject:
			if h, err := consumer.ParseHeartbeat(m.Data); err == nil && h.Started > 1 {
				last = h
				left = left || h.State == consumer.StateLeaving
			}
		case strings.HasPrefix(m.Subject, "namespace.") && left:
			late++
		}
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	b.await("heartbeat of the relay", func() bool { mu.Lock(); defer mu.Unlock(); return last.Publisher != 0 })

	done := make(chan error, 1)
	go func() { done <- b.ended() }()
	older := []byte(`{"publisher_id":77,"started":1,"life":88,"last_event_id":5,"state":"live","engine_seq":1,"epoch":0,"blocks":1,"lag_ms":0}`)
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for i := 100; ; i++ {
		if i%50 == 0 {
			if err := nc.Publish(subject, older); err != nil {
				t.Fatal(err)
			}
		}
		b.prompt(0, i%200, 1)
		select {
		case err = <-done:
		case <-deadline.C:
			t.Fatal("the relay does not end")
		case <-tick.C:
			continue
		}
		break
	}
	var owner *sinks.OwnerError
	if !errors.As(err, &owner) || owner.Publisher != 77 || owner.Life != 88 || owner.WorkerID != worker || owner.Waited {
		t.Errorf("Run: %v", err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	b.await("end of the relay's heartbeats", func() bool { mu.Lock(); defer mu.Unlock(); return left })
	mu.Lock()
	defer mu.Unlock()
	if last.State != consumer.StateLeaving {
		t.Errorf("the last heartbeat says %q", last.State)
	}
	if late > 0 {
		t.Errorf("%d messages were published behind `leaving`", late)
	}
}
