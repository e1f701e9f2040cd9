package sinks

import (
	"encoding/json"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
)

// FuzzPosition: what is read back is what was written, and nothing panics.
func FuzzPosition(f *testing.F) {
	f.Add("empty", "7.0.5.9.12")
	f.Add("3 17 ff0 2 5 1", "1.2.3.4")
	f.Add("1 2 3 4 5 6", "18446744073709551615.4294967295.1.0.1")
	f.Fuzz(func(t *testing.T, position, id string) {
		fuzzlimit.Run(t, len(position)+len(id), func() {
			_ = parsePosition(position)
			_, _ = parseMessageID(id)
		})
		if p := parsePosition(position); p.Kind == PlaceAt {
			if parsePosition(p.position()) != p || p.Base > p.Pos.Seq {
				t.Errorf("%q", position)
			}
		}
		if m, ok := parseMessageID(id); ok {
			if again, ok := parseMessageID(m.String()); !ok || again != m {
				t.Errorf("%q", id)
			}
		}
	})
}

// FuzzRecoveryRequest: every body has an answer of bounded length, or a code.
func FuzzRecoveryRequest(f *testing.F) {
	for _, s := range []string{``, `{}`, `{"publisher_id":1,"from":2}`, `{"snapshot":"x","part":0}`, `{"snapshot":"x","part":-1}`, `[]`, `{"from":-1}`, `{"part":1e9}`} {
		f.Add([]byte(s))
	}
	p := newTest(f, Options{RecentEvents: 20})
	k := openRank(f, p, 7, 1, 50)
	for range 100 {
		k.step(k.events())
	}
	r := newRecovery(k.o)
	f.Fuzz(func(t *testing.T, body []byte) {
		const limit = 2000
		fuzzlimit.Run(t, len(body), func() { _, _ = r.ask(body, limit) })
		a, err := r.ask(body, limit)
		if err != nil {
			if no, ok := err.(*refusal); !ok || no.code < 400 || no.text == "" {
				t.Errorf("%v", err)
			}
			return
		}
		if len(a.body) == 0 || len(a.body) > limit+answerArray || a.kind == "" {
			t.Errorf("%d bytes, kind %q", len(a.body), a.kind)
		}
	})
}

// FuzzHeartbeat: what others say on our subject cannot harm.
func FuzzHeartbeat(f *testing.F) {
	b, err := json.Marshal(heartbeat{Publisher: 5, Started: 1, Life: 9, State: StateLive})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"publisher_id":-1}`))
	p := newTest(f, Options{})
	k := openRank(f, p, 7, 1, 50)
	f.Fuzz(func(t *testing.T, body []byte) {
		w := &watch{s: &service{p: p}, o: k.o, others: map[uint64]other{}}
		fuzzlimit.Run(t, len(body), func() { w.hear(&nats.Msg{Data: body}) })
		if h := w.hear(&nats.Msg{Data: body}); h != nil && (h.Publisher == 0 || h.Life == p.life) {
			t.Errorf("%+v", h)
		}
	})
}

// BenchmarkStream: events of a block each into a JetStream stream with file storage.
func BenchmarkStream(b *testing.B) {
	s := streamServer(b, nil)
	p := newStreamTest(b, s, Options{})
	o := open(b, p, 7, 0, nil)
	run(b, p)
	evs := make([]convert.RouterEvent, 100)
	for i := range evs {
		evs[i] = convert.RouterEvent{Kind: convert.Stored, Blocks: []convert.Block{{Hash: uint64(i) << 40, TokensHash: 1 << 50}}}
	}
	b.ResetTimer()
	for i := 0; i < b.N; i += len(evs) {
		o.Append(Place{}, evs)
		if i%100_000 == 0 {
			drained(b, p)
		}
	}
	drained(b, p)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkSnapshotPart: one part of a large snapshot, as it is answered.
func BenchmarkSnapshotPart(b *testing.B) {
	p := newTest(b, Options{})
	k := openRank(b, p, 7, 1, 1<<40)
	for range 2000 {
		k.step(k.events())
	}
	r := newRecovery(k.o)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.ask(nil, 1<<20); err != nil {
			b.Fatal(err)
		}
	}
}
