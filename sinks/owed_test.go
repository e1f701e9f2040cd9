package sinks

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	reference "github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/convert"
)

// lastStored is what the rank's subject ends with.
func lastStored(t testing.TB, js jetstream.JetStream) (*jetstream.RawStreamMsg, *reference.Message) {
	t.Helper()
	s, err := js.Stream(t.Context(), "KVRELAY")
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.GetLastMsgForSubject(t.Context(), rankSubject)
	if err != nil {
		t.Fatal(err)
	}
	msg, err := reference.ParseMessage(m.Subject, m.Header, m.Data)
	if err != nil {
		t.Fatal(err)
	}
	return m, msg
}

// endsCleared checks that the subject ends with a `cleared` of that id, behind
// which any engine may begin.
func endsCleared(t testing.TB, js jetstream.JetStream, id uint64) {
	t.Helper()
	m, msg := lastStored(t, js)
	if n := len(msg.Events); n != 1 || msg.Events[0].ID != id || msg.Events[0].Kind != reference.Cleared || m.Header.Get(headerPosition) != "empty" {
		t.Errorf("the subject ends with %+v at %q, want a cleared with the id %d", msg.Events, m.Header.Get(headerPosition), id)
	}
}

// earlierLife leaves two events of an earlier life in the stream, the second a
// store at a position, and returns how a late one of it can be sent.
func earlierLife(t *testing.T, js jetstream.JetStream, p *Publisher) (late func(id uint64)) {
	t.Helper()
	o, err := p.OpenRank(7, 0, RankOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stop := run(t, p)
	o.Append(Place{Kind: PlaceEmpty}, []convert.RouterEvent{{Kind: convert.Cleared}})
	o.Append(Place{}, []convert.RouterEvent{{Kind: convert.Stored, Blocks: []convert.Block{{Hash: 1}}}})
	drained(t, p)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	publisher, life := o.PublisherID(), p.life
	m, _ := lastStored(t, js)
	seq := m.Sequence
	return func(id uint64) {
		t.Helper()
		name := messageID{7, 0, publisher, life, id}
		msg := &nats.Msg{Subject: rankSubject, Header: streamHeader("KVRELAY", publisher, name.String(), Place{}, id-1), Data: []byte("[]")}
		ack, err := js.PublishMsg(t.Context(), msg, jetstream.WithExpectLastSequencePerSubject(seq))
		if err != nil {
			t.Fatal(err)
		}
		seq = ack.Sequence
	}
}

// forgotten waits until a closed outbox has gone.
func forgotten(t testing.TB, o *Outbox) {
	t.Helper()
	select {
	case <-o.gone:
	case <-time.After(patience):
		t.Error("the closed outbox is not forgotten")
	}
}

// TestClosedBeforeResumed: a `cleared` that is appended before it is known where
// to go on comes behind what the subject holds once the outbox is closed (the
// source is gone, the process ends); what else is appended before does not.
// Drain waits for it.
func TestClosedBeforeResumed(t *testing.T) {
	for _, known := range []bool{false, true} {
		s := streamServer(t, nil)
		js := jetStream(t, s)
		earlierLife(t, js, newStreamTest(t, s, Options{Profile: JSON}))
		p := newStreamTest(t, s, Options{Profile: JSON})
		freed := 0
		o, err := p.OpenRank(7, 0, RankOptions{Resume: true, Again: func() { t.Error("again") }, Released: func(n int) { freed += n }})
		if err != nil {
			t.Fatal(err)
		}
		stop := func() error { return nil }
		if known {
			stop = run(t, p)
			eventually(t, "the position", func() bool { o.mu.Lock(); defer o.mu.Unlock(); return o.placedAt })
		}
		evs := []convert.RouterEvent{{Kind: convert.Removed, Hashes: []uint64{1}}, {Kind: convert.Cleared}}
		charged := o.Append(Place{Kind: PlaceEmpty}, evs)
		charged += o.Append(Place{Kind: PlaceEmpty}, evs) // once is enough
		charged += o.Append(Place{}, evs[:1])
		if n := p.State().UnconfirmedEvents; n != 0 {
			t.Errorf("%d events are unconfirmed before the end", n)
		}
		o.Close()
		if !known {
			if n := p.State().UnconfirmedEvents; n != 1 {
				t.Errorf("%d events are unconfirmed, want 1", n)
			}
			stop = run(t, p)
		}
		drained(t, p)
		endsCleared(t, js, 3)
		forgotten(t, o)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if st := p.State(); freed != charged || st.UnconfirmedBytes != 0 || st.UnconfirmedEvents != 0 {
			t.Errorf("charged %d, released %d; %+v", charged, freed, st)
		}
	}
}

// TestResumedIsNotOwed: who calls Resume decides what is published.
func TestResumedIsNotOwed(t *testing.T) {
	s := streamServer(t, nil)
	js := jetStream(t, s)
	earlierLife(t, js, newStreamTest(t, s, Options{Profile: JSON}))
	p := newStreamTest(t, s, Options{Profile: JSON})
	o, err := p.OpenRank(7, 0, RankOptions{Resume: true, Again: func() { t.Error("again") }})
	if err != nil {
		t.Fatal(err)
	}
	o.Append(Place{Kind: PlaceEmpty}, []convert.RouterEvent{{Kind: convert.Cleared}})
	run(t, p)
	if r, err := o.Resume(t.Context()); err != nil || r.Start != StartAt || r.LastID != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	o.Append(Place{}, []convert.RouterEvent{{Kind: convert.Removed, Hashes: []uint64{1}}})
	o.Close()
	drained(t, p)
	forgotten(t, o)
	if _, msg := lastStored(t, js); len(msg.Events) != 1 || msg.Events[0].ID != 3 || msg.Events[0].Kind == reference.Cleared {
		t.Errorf("the subject ends with %+v", msg.Events)
	}
}

// TestLateMessageBeforeTheEnd: a late message of the life before must not cost
// the `cleared` of a rank whose source has gone, whether the outbox is closed
// before the message is met or behind it.
func TestLateMessageBeforeTheEnd(t *testing.T) {
	for _, first := range []bool{true, false} {
		s := streamServer(t, nil)
		js := jetStream(t, s)
		late := earlierLife(t, js, newStreamTest(t, s, Options{Profile: JSON}))
		p := newStreamTest(t, s, Options{Profile: JSON})
		freed := 0
		again := make(chan struct{}, 1)
		o, err := p.OpenRank(7, 0, RankOptions{Resume: true, Again: func() { again <- struct{}{} }, Released: func(n int) { freed += n }})
		if err != nil {
			t.Fatal(err)
		}
		stop := run(t, p)
		if r, err := o.Resume(t.Context()); err != nil || r.Start != StartAt || r.LastID != 2 {
			t.Fatalf("%+v, %v", r, err)
		}
		late(3)
		evs := []convert.RouterEvent{{Kind: convert.Removed, Hashes: []uint64{1}}, {Kind: convert.Cleared}}
		charged := o.Append(Place{Kind: PlaceEmpty}, evs)
		if !first {
			<-again
		}
		o.Close()
		drained(t, p)
		endsCleared(t, js, 4)
		forgotten(t, o)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if st := p.State(); freed != charged || st.UnconfirmedBytes != 0 || st.UnconfirmedEvents != 0 {
			t.Errorf("charged %d, released %d; %+v", charged, freed, st)
		}
	}
}
