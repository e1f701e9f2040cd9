package sinks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	reference "github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/decode"
)

// streamServer is a nats-server with JetStream.
func streamServer(t testing.TB, change func(*server.Options)) *server.Server {
	t.Helper()
	dir := t.TempDir()
	return startServer(t, func(o *server.Options) {
		o.JetStream, o.StoreDir, o.NoSystemAccount = true, dir, false
		if change != nil {
			change(o)
		}
	})
}

func jetStream(t testing.TB, s *server.Server) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(connect(t, s.ClientURL()))
	if err != nil {
		t.Fatal(err)
	}
	return js
}

const rankSubject = "kvrelay.dynamo.7.0.events"

// stored reads what a subject of worker 7 holds.
func stored(t testing.TB, js jetstream.JetStream, stream string) (f fold, ids []uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := js.Stream(ctx, stream)
	if err != nil {
		t.Fatal(err)
	}
	x := &router{f: fold{}}
	for seq := s.CachedInfo().State.FirstSeq; seq > 0 && seq <= s.CachedInfo().State.LastSeq; seq++ {
		m, err := s.GetMsg(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		msg, err := reference.ParseMessage(m.Subject, m.Header, m.Data)
		if err != nil {
			t.Fatal(err)
		}
		for i := range msg.Events {
			x.apply(&msg.Events[i])
			ids = append(ids, msg.Events[i].ID)
		}
	}
	return x.f, ids
}

// contiguous checks that ids go from first on without hole and repeat.
func contiguous(t testing.TB, ids []uint64, first uint64) {
	t.Helper()
	for i, id := range ids {
		if id != first+uint64(i) {
			t.Fatalf("event %d where %d was expected", id, first+uint64(i))
		}
	}
}

func newStreamTest(t testing.TB, s *server.Server, o Options) *Publisher {
	t.Helper()
	o.Kind, o.Servers, o.CreateStream = JetStream, []string{s.ClientURL()}, true
	p := newTest(t, o)
	p.timing = brisk
	return p
}

func TestStream(t *testing.T) {
	for _, pr := range []Profile{Dynamo, DynamoSingle, JSON} {
		t.Run(pr.String(), func(t *testing.T) {
			s := streamServer(t, func(o *server.Options) { o.MaxPayload = minMaxPayloadStream })
			p := newStreamTest(t, s, Options{Profile: pr})
			k := openRank(t, p, 7, 1, 200)
			run(t, p)
			for range 200 {
				k.step(k.events())
			}
			drained(t, p)
			js := jetStream(t, s)
			f, ids := stored(t, js, "KVRELAY")
			contiguous(t, ids, 1)
			if !maps.Equal(f, k.published()) || uint64(len(ids)) != k.o.LastID() {
				t.Errorf("%d events, %d blocks; want %d, %d", len(ids), len(f), k.o.LastID(), len(k.published()))
			}
			if st := p.State(); st.Stream != "KVRELAY" || st.LastError != "" || st.UnconfirmedBytes != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// TestStreamHeaders: no message exceeds max_payload, with the longest headers too.
func TestStreamHeaders(t *testing.T) {
	p := newTest(t, Options{Kind: JetStream, Servers: []string{"h:1"}, Stream: strings.Repeat("x", maxStreamName)})
	const m = 1<<64 - 1
	at := Place{Event: 1<<32 - 1, Block: 1<<32 - 1, Base: m, Fingerprint: m}
	at.Pos.Epoch, at.Pos.Seq, at.Pos.Sum = m, m, m
	msg := nats.Msg{Header: streamHeader(p.o.Stream, 1<<53-1, messageID{m, 1<<32 - 1, 1<<53 - 1, 1<<53 - 1, m}.String(), at, m)}
	msg.Header.Set(nats.ExpectedLastSubjSeqHdr, fmt.Sprint(uint64(m)))
	if n := msg.Size(); n > p.streamHeaders() {
		t.Errorf("%d bytes of headers, bound %d", n, p.streamHeaders())
	}
	if got := parsePosition(at.position()); got.Pos != at.Pos || got.Event != at.Event || got.Block != at.Block || got.Base != at.Base {
		t.Errorf("%+v became %+v", at, got)
	}
}

// TestStreamIsFull: back-pressure and a clear state, and nothing lost when there is room again.
func TestStreamIsFull(t *testing.T) {
	s := streamServer(t, nil)
	js := jetStream(t, s)
	ctx := t.Context()
	cfg := jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"kvrelay.dynamo.*.*.events"}, Discard: jetstream.DiscardNew, MaxMsgs: 5}
	if _, err := js.CreateStream(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	p := newStreamTest(t, s, Options{})
	k := openRank(t, p, 7, 1, 200)
	run(t, p)
	eventually(t, "a state that names the stream and the reason", func() bool {
		k.step(k.events())
		st := p.State()
		return st.Connected && strings.Contains(st.LastError, "OTHER") && strings.Contains(st.LastError, "maximum messages exceeded")
	})
	n := p.State().Envelopes
	if <-time.After(200 * time.Millisecond); p.State().Envelopes-n > 20 {
		t.Errorf("%d attempts in 200 ms: a spin", p.State().Envelopes-n)
	}
	cfg.MaxMsgs = 1_000_000
	if _, err := js.UpdateStream(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	drained(t, p)
	f, ids := stored(t, js, "OTHER")
	contiguous(t, ids, 1)
	if !maps.Equal(f, k.published()) {
		t.Error("the stream says something else")
	}
	eventually(t, "a state without trouble", func() bool { return p.State().LastError == "" })
}

// TestPurgeAndDelete: ids go on in a purged stream, and in one made anew.
func TestPurgeAndDelete(t *testing.T) {
	s := streamServer(t, nil)
	js := jetStream(t, s)
	p := newStreamTest(t, s, Options{})
	k := openRank(t, p, 7, 1, 200)
	run(t, p)
	for range 20 {
		k.step(k.events())
	}
	drained(t, p)
	for _, destroy := range []func() error{
		func() error {
			st, err := js.Stream(t.Context(), "KVRELAY")
			if err != nil {
				return err
			}
			return st.Purge(t.Context())
		},
		func() error { return js.DeleteStream(t.Context(), "KVRELAY") },
	} {
		first := k.o.LastID() + 1
		if err := destroy(); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			k.step(k.events())
		}
		drained(t, p)
		_, ids := stored(t, js, "KVRELAY")
		contiguous(t, ids, first)
		if uint64(len(ids)) != k.o.LastID()+1-first {
			t.Errorf("%d events behind %d, want up to %d", len(ids), first, k.o.LastID())
		}
	}
}

// TestOtherWriter ends the publisher, naming what it found.
func TestOtherWriter(t *testing.T) {
	s := streamServer(t, nil)
	js := jetStream(t, s)
	p := newStreamTest(t, s, Options{})
	k := openRank(t, p, 7, 1, 200)
	stop, ended := runs(p)
	defer stop()
	eventually(t, "the first event", func() bool { return k.o.Confirmed() > 0 })
	if _, err := js.Publish(t.Context(), rankSubject, nil, jetstream.WithMsgID("somebody")); err != nil {
		t.Fatal(err)
	}
	k.step([]decode.Event{store(decode.Event{Hashes: []uint64{5}})})
	var w *WriterError
	if err := <-ended; !errors.As(err, &w) || w.Stream != "KVRELAY" || w.Subject != rankSubject || w.MessageID != "somebody" {
		t.Errorf("ended with %v", err)
	}
}

// TestLateMessageOfEarlierLife: the queue is dropped, and the outbox goes on
// behind the late message, once.
func TestLateMessageOfEarlierLife(t *testing.T) {
	s := streamServer(t, nil)
	js := jetStream(t, s)
	p := newStreamTest(t, s, Options{})
	again := make(chan struct{}, 1)
	freed := 0
	o, err := p.OpenRank(7, 0, RankOptions{Resume: true, Again: func() { again <- struct{}{} }, Released: func(n int) { freed += n }})
	if err != nil {
		t.Fatal(err)
	}
	stop, ended := runs(p)
	if _, err := o.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	clear := []convert.RouterEvent{{Kind: convert.Cleared}}
	charged := o.Append(Place{Kind: PlaceEmpty}, clear)
	eventually(t, "the first event", func() bool { return o.Confirmed() == 1 })
	late := func(id uint64) {
		t.Helper()
		m := messageID{7, 0, o.PublisherID(), p.life ^ 1, id}
		_, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: rankSubject, Header: streamHeader("KVRELAY", m.publisher, m.String(), Place{Kind: PlaceEmpty}, id-1)},
			jetstream.WithExpectLastSequencePerSubject(id-1))
		if err != nil {
			t.Fatal(err)
		}
	}
	late(2)
	charged += o.Append(Place{}, []convert.RouterEvent{{Kind: convert.Removed, Hashes: []uint64{1}}})
	<-again
	if n := o.Append(Place{}, clear); n != 0 {
		t.Error("what is appended before Resume counts")
	}
	r, err := o.Resume(t.Context())
	if err != nil || r.Start != StartCleared || r.LastID != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	charged += o.Append(Place{}, []convert.RouterEvent{{Kind: convert.Removed, Hashes: []uint64{2}}})
	eventually(t, "event 3", func() bool { return o.Confirmed() == 3 })
	late(4) // and once more: another writer
	charged += o.Append(Place{}, clear)
	var w *WriterError
	if err := <-ended; !errors.As(err, &w) {
		t.Errorf("ended with %v", err)
	}
	stop()
	if want := charged - int(p.State().UnconfirmedBytes); freed != want {
		t.Errorf("released %d bytes, want %d", freed, want)
	}
}

// TestStreamIsUsedAsItIs: one that is there, also under another name.
func TestStreamIsUsedAsItIs(t *testing.T) {
	s := streamServer(t, nil)
	js := jetStream(t, s)
	cfg := jetstream.StreamConfig{Name: "KVRELAY", Subjects: []string{"kvrelay.*.*.*.events"}, Storage: jetstream.MemoryStorage, MaxMsgsPerSubject: 3}
	if _, err := js.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	p := newStreamTest(t, s, Options{Stream: "MINE"})
	k := openRank(t, p, 7, 1, 200)
	run(t, p)
	for range 20 {
		k.step(k.events())
		drained(t, p)
	}
	st, err := js.Stream(t.Context(), "KVRELAY")
	if err != nil {
		t.Fatal(err)
	}
	if c := st.CachedInfo(); c.Config.Storage != jetstream.MemoryStorage || c.Config.MaxMsgsPerSubject != 3 || c.State.Msgs != 3 || p.State().Stream != "KVRELAY" {
		t.Errorf("%+v, %+v", c.Config, c.State)
	}
}

// TestWithoutJetStream: a state that says what to do.
func TestWithoutJetStream(t *testing.T) {
	s := startServer(t, nil)
	p := newStreamTest(t, s, Options{})
	k := openRank(t, p, 7, 1, 200)
	run(t, p)
	eventually(t, "the reason", func() bool { return strings.Contains(p.State().LastError, "no JetStream") })
	if k.o.Confirmed() != 0 {
		t.Error("confirmed by nobody")
	}
}
