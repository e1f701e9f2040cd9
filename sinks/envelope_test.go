package sinks

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/convert"
)

// newTest makes a Publisher that is not run.
func newTest(t testing.TB, o Options) *Publisher {
	t.Helper()
	if o.Kind == NATS && o.Servers == nil {
		o.Servers = []string{"nats://127.0.0.1:1"}
	}
	if o.Namespace == "" {
		o.Namespace, o.Component, o.Endpoint = "dynamo", "backend", "generate"
	}
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func open(t testing.TB, p *Publisher, worker uint64, rank uint32, released func(int)) *Outbox {
	t.Helper()
	o, err := p.Open(worker, rank, released)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestEnvelopeVectors: what Dynamo 1.6.1 sent, decoded and published again,
// must be the same bytes on the same subject.
func TestEnvelopeVectors(t *testing.T) {
	f, err := os.Open("testdata/envelopes.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	sc := bufio.NewScanner(z)
	sc.Buffer(nil, 1<<20)
	lines := 0
	for ; sc.Scan(); lines++ {
		var v struct{ What, Subject, DataHex string }
		var raw map[string]string
		if err := json.Unmarshal(sc.Bytes(), &raw); err != nil {
			t.Fatal(err)
		}
		v.What, v.Subject, v.DataHex = raw["what"], raw["subject"], raw["data_hex"]
		data, err := hex.DecodeString(v.DataHex)
		if err != nil {
			t.Fatal(err)
		}
		pub, seq, at, payload, err := parseEnvelope(data)
		if err != nil {
			t.Fatal(v.What, err)
		}
		evs, err := parseEvents(Dynamo, payload)
		if err != nil {
			t.Fatal(v.What, err)
		}
		p := newTest(t, Options{Namespace: "kvr", Component: "backend", Endpoint: "generate",
			Now: func() time.Time { return time.UnixMilli(at) }})
		o := open(t, p, evs[0].worker, evs[0].rank, nil)
		o.id, o.firstSeq = pub, seq
		o.log.next, o.log.lo, o.sent, o.confirmed = evs[0].id, evs[0].id, evs[0].id-1, evs[0].id-1
		var res []convert.RouterEvent
		for _, g := range evs {
			res = append(res, g.e)
		}
		o.Append(Place{}, res)
		msg, ok, _, more := o.take(nil)
		if !ok || more || !bytes.Equal(msg, data) {
			t.Errorf("%s: ok %v, more %v\n got %x\nwant %x", v.What, ok, more, msg, data)
		}
		if o.Subject() != v.Subject {
			t.Errorf("%s: subject %s, want %s", v.What, o.Subject(), v.Subject)
		}
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	if lines < 20 {
		t.Fatalf("%d vectors", lines)
	}
}

// TestEnvelopeBounds: 128 events or 8192 blocks an envelope, one event each with dynamo-single.
func TestEnvelopeBounds(t *testing.T) {
	small := make([]convert.RouterEvent, 300)
	for i := range small {
		small[i] = convert.RouterEvent{Kind: convert.Removed, Hashes: []uint64{uint64(i)}}
	}
	big := make([]convert.RouterEvent, 5)
	for i := range big {
		big[i] = convert.RouterEvent{Kind: convert.Removed, Hashes: make([]uint64, 3000)}
	}
	for _, tc := range []struct {
		name string
		pr   Profile
		evs  []convert.RouterEvent
		want []int
	}{
		{"events", Dynamo, small, []int{128, 128, 44}},
		{"events json", JSON, small, []int{128, 128, 44}},
		{"blocks", Dynamo, big, []int{2, 2, 1}},
		{"single", DynamoSingle, small[:3], []int{1, 1, 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newTest(t, Options{Profile: tc.pr})
			o := open(t, p, 7, 0, nil)
			o.Append(Place{}, tc.evs)
			id := uint64(1)
			for i, want := range tc.want {
				msg, ok, _, more := o.take(nil)
				if !ok || more != (i < len(tc.want)-1) {
					t.Fatalf("message %d: ok %v, more %v", i, ok, more)
				}
				payload := msg
				if tc.pr != JSON {
					pub, seq, _, pl, err := parseEnvelope(msg)
					if err != nil || pub != o.PublisherID() || seq != uint64(i) {
						t.Fatalf("message %d: publisher %d, sequence %d, %v", i, pub, seq, err)
					}
					payload = pl
				}
				evs, err := parseEvents(tc.pr, payload)
				if err != nil || len(evs) != want {
					t.Fatalf("message %d: %d events, want %d (%v)", i, len(evs), want, err)
				}
				for _, g := range evs {
					if g.id != id {
						t.Fatalf("id %d, want %d", g.id, id)
					}
					id++
				}
			}
		})
	}
}
