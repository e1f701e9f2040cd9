package sinks

import (
	"log/slog"
	"maps"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvrelay/kvrelay/decode"
)

// TestStreamMaxMsgSize: a stream may allow less than max_payload, from the
// beginning or from some moment on, when an envelope is in flight already.
func TestStreamMaxMsgSize(t *testing.T) {
	s := streamServer(t, nil)
	js := jetStream(t, s)
	cfg := jetstream.StreamConfig{Name: "KVRELAY", Subjects: []string{"kvrelay.*.*.*.events"}, MaxMsgSize: 16 << 10}
	if _, err := js.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	p := newStreamTest(t, s, Options{})
	k := openRank(t, p, 7, 1, 200)
	run(t, p)
	large := func(first uint64) {
		e := decode.Event{}
		for i := range uint64(1000) {
			e.Hashes = append(e.Hashes, first+i)
		}
		k.step([]decode.Event{store(e)})
	}
	large(1000)
	drained(t, p)
	cfg.MaxMsgSize = 4 << 10
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	large(2000)
	large(3000)
	drained(t, p)
	f, ids := stored(t, js, "KVRELAY")
	contiguous(t, ids, 1)
	if !maps.Equal(f, k.published()) {
		t.Error("the stream says something else")
	}
	if st := p.State(); st.MaxPayload != 4<<10 || st.Split == 0 {
		t.Errorf("%+v", st)
	}
}

// TestStreamTakesNothing: what keeps a stream from taking events is said, also
// where the server's answer to it is silence.
func TestStreamTakesNothing(t *testing.T) {
	allowedBut := func(deny string) func(*server.Options) {
		return func(o *server.Options) {
			o.Users = []*server.User{{Username: "relay", Password: "secret", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Allow: []string{">"}, Deny: []string{deny}},
			}}, {Username: "admin", Password: "secret"}}
		}
	}
	for name, c := range map[string]struct {
		server func(*server.Options)
		stream jetstream.StreamConfig
		want   []string
	}{
		"no_ack":       {nil, jetstream.StreamConfig{NoAck: true}, []string{"stream KVRELAY", "no_ack"}},
		"max_msg_size": {nil, jetstream.StreamConfig{MaxMsgSize: 1000}, []string{"stream KVRELAY", "max_msg_size to 2048"}},
		"publish":      {allowedBut("kvrelay.dynamo.7.0.events"), jetstream.StreamConfig{}, []string{"does not let the user or password", `"kvrelay.dynamo.7.0.events"`, "NATS_USER"}},
		"api":          {allowedBut("$JS.API.STREAM.INFO.>"), jetstream.StreamConfig{}, []string{"does not let the user or password", `"$JS.API.STREAM.INFO.KVRELAY"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // the silent ones take five seconds
			s := streamServer(t, c.server)
			url, as := s.ClientURL(), func(user string) string {
				return strings.Replace(s.ClientURL(), "://", "://"+user+":secret@", 1)
			}
			o := Options{}
			if c.server != nil {
				url = as("admin")
				o.Auth = Auth{User: "relay", Password: "secret"}
			}
			js, err := jetstream.New(connect(t, url))
			if err != nil {
				t.Fatal(err)
			}
			c.stream.Name, c.stream.Subjects = "KVRELAY", []string{"kvrelay.*.*.*.events"}
			if _, err := js.CreateStream(t.Context(), c.stream); err != nil {
				t.Fatal(err)
			}
			p := newStreamTest(t, s, o)
			openRank(t, p, 7, 1, 200)
			run(t, p)
			eventually(t, "the reason", func() bool {
				for _, w := range c.want {
					if !strings.Contains(p.State().LastError, w) {
						return false
					}
				}
				return true
			})
		})
	}
}

// TestStreamForgets: a stream that gives events away, or forgets what nobody waits
// for, is used as it is, and warned of.
func TestStreamForgets(t *testing.T) {
	for name, retention := range map[string]jetstream.RetentionPolicy{"interest": jetstream.InterestPolicy, "workqueue": jetstream.WorkQueuePolicy} {
		t.Run(name, func(t *testing.T) {
			s := streamServer(t, nil)
			js := jetStream(t, s)
			cfg := jetstream.StreamConfig{Name: "KVRELAY", Subjects: []string{"kvrelay.*.*.*.events"}, Retention: retention}
			if _, err := js.CreateStream(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			var log logLines
			p := newStreamTest(t, s, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			k := openRank(t, p, 7, 1, 200)
			run(t, p)
			for range 20 {
				k.step(k.events())
				drained(t, p)
			}
			c, err := js.CreateConsumer(t.Context(), "KVRELAY", jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy})
			if err != nil {
				t.Fatal(err)
			}
			// The newest is read and goes, older ones stay: that is no other writer.
			for range 5 {
				k.step(k.events())
				drained(t, p)
				batch, err := c.FetchNoWait(100)
				if err != nil {
					t.Fatal(err)
				}
				var newest jetstream.Msg
				for m := range batch.Messages() {
					newest = m
				}
				if newest == nil {
					t.Fatal("nothing to read")
				}
				if err := newest.DoubleAck(t.Context()); err != nil {
					t.Fatal(err)
				}
				for range 3 {
					k.step(k.events())
				}
				drained(t, p)
			}
			if text := strings.Join(log.lines(), "\n"); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "retention="+name) || !strings.Contains(text, "KVRELAY_STREAM") {
				t.Error(text)
			}
		})
	}
}

// TestNoRoomForTheStream: what keeps the stream from being created is said, and
// one that somebody else creates is used.
func TestNoRoomForTheStream(t *testing.T) {
	s := streamServer(t, func(o *server.Options) { o.JetStreamMaxStore = 1 << 20 })
	p := newStreamTest(t, s, Options{})
	openRank(t, p, 7, 1, 200)
	run(t, p)
	says(t, p, "stream KVRELAY cannot be created (code 10047", "raise JetStream's limits", "create it yourself")
	cfg := jetstream.StreamConfig{Name: "KVRELAY", Subjects: []string{"kvrelay.*.*.*.events"}, MaxBytes: 1 << 19}
	if _, err := jetStream(t, s).CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	drained(t, p)
}

// TestDeletedUnderASubscriber: where NATS core has a subscriber of the subject,
// the server does not say that no stream takes what is published.
func TestDeletedUnderASubscriber(t *testing.T) {
	s := streamServer(t, nil)
	js := jetStream(t, s)
	p := newStreamTest(t, s, Options{})
	k := openRank(t, p, 7, 1, 200)
	if _, err := connect(t, s.ClientURL()).Subscribe(k.o.Subject(), func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	run(t, p)
	k.step(k.events())
	drained(t, p)
	if err := js.DeleteStream(t.Context(), "KVRELAY"); err != nil {
		t.Fatal(err)
	}
	first := k.o.LastID() + 1
	for k.o.LastID() < first {
		k.step(k.events())
	}
	drained(t, p)
	_, ids := stored(t, js, "KVRELAY")
	contiguous(t, ids, first)
}
