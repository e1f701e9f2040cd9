package sinks

import (
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	reference "github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/decode"
)

// beats collects the heartbeats of worker 7.
func beats(t testing.TB, nc *nats.Conn) func() []heartbeat {
	t.Helper()
	var mu sync.Mutex
	var all []heartbeat
	_, err := nc.Subscribe("kvrelay.dynamo.7.0.heartbeat", func(m *nats.Msg) {
		var h heartbeat
		if err := json.Unmarshal(m.Data, &h); err != nil {
			t.Error(err)
		}
		if _, err := reference.ParseHeartbeat(m.Data); err != nil {
			t.Error(err)
		}
		mu.Lock()
		all = append(all, h)
		mu.Unlock()
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() []heartbeat {
		mu.Lock()
		defer mu.Unlock()
		return append([]heartbeat(nil), all...)
	}
}

func TestHeartbeats(t *testing.T) {
	s := startServer(t, nil)
	nc := connect(t, s.ClientURL())
	heard := beats(t, nc)
	p := newTest(t, Options{Servers: []string{s.ClientURL()}})
	p.timing = brisk
	p.timing.beat = time.Hour // only changes are said after the first
	k := openRank(t, p, 7, 1, 50)
	k.step([]decode.Event{store(decode.Event{Hashes: []uint64{1, 2}})})
	stop := run(t, p)
	last := func() (h heartbeat) {
		if all := heard(); len(all) > 0 {
			h = all[len(all)-1]
		}
		return h
	}
	eventually(t, "the confirmation", func() bool { return k.o.Confirmed() == 2 })
	k.set(StateReplaying)
	eventually(t, "the confirmed id", func() bool { return last().LastEventID == 2 })
	k.set(StateLive)
	eventually(t, "the change back", func() bool { return last().State == StateLive })
	if h := last(); h.State != StateLive || h.Publisher != k.o.PublisherID() || h.Life != p.life || h.Started != k.o.started ||
		h.EngineSeq != 1 || h.Epoch != 3 || h.Blocks != 2 || h.LagMS != 1.5 {
		t.Errorf("%+v", h)
	}
	k.set(StateSuspect)
	eventually(t, "the change", func() bool { return last().State == StateSuspect })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "leaving", func() bool { return last().State == StateLeaving })
}
