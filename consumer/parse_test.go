package consumer

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
)

type envelopeVector struct {
	What    string `json:"what"`
	Subject string `json:"subject"`
	Data    string `json:"data_hex"`
	bytes   []byte
}

func envelopeVectors(t testing.TB) []envelopeVector {
	t.Helper()
	f, err := os.Open("testdata/envelopes.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var out []envelopeVector
	for sc := bufio.NewScanner(z); sc.Scan(); {
		var v envelopeVector
		if err := json.Unmarshal(sc.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		if v.bytes, err = hex.DecodeString(v.Data); err != nil {
			t.Fatal(err)
		}
		out = append(out, v)
	}
	if len(out) < 20 {
		t.Fatalf("%d envelopes, want all", len(out))
	}
	return out
}

// generic is a value as a generic decoder sees it, with numbers made alike.
func generic(t testing.TB, v any) any {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(mustJSON(v)))
	dec.UseNumber()
	var out any
	if err := dec.Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestEnvelopesOfDynamo(t *testing.T) {
	for _, v := range envelopeVectors(t) {
		m, err := ParseMessage(v.Subject, nil, v.bytes)
		if err != nil {
			t.Errorf("%s: %v", v.What, err)
			continue
		}
		// What a generic decoder reads must be what the events encode to.
		var env map[string]any
		var payload []any
		if err := msgpack.Unmarshal(v.bytes, &env); err != nil {
			t.Fatal(err)
		}
		if err := msgpack.Unmarshal(env["payload"].([]byte), &payload); err != nil {
			t.Fatal(err)
		}
		if got, want := generic(t, wireEvents(m.Events)), generic(t, payload); !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %v\nwant %v", v.What, got, want)
		}
		if m.Publisher == 0 || generic(t, m.Sequence) != generic(t, env["sequence"]) || generic(t, m.PublishedAt) != generic(t, env["published_at"]) {
			t.Errorf("%s: envelope %+v, want %v", v.What, m, env)
		}
	}
}

func TestProfilesRoundTrip(t *testing.T) {
	evs := sampleEvents()
	for _, p := range []Profile{Dynamo, JSON} {
		var h nats.Header
		if p == JSON {
			h = nats.Header{PublisherHeader: {"9007199254740991"}}
		}
		m, err := ParseMessage("s", h, encodeMessage(p, maxPublisher, 12, evs))
		if err != nil {
			t.Fatalf("%s: %v", p, err)
		}
		if m.Publisher != maxPublisher || (m.Sequence != 12) != (p == JSON) {
			t.Errorf("%s: envelope %+v", p, m)
		}
		if !reflect.DeepEqual(m.Events, evs) {
			t.Errorf("%s:\n got %+v\nwant %+v", p, m.Events, evs)
		}
	}
	for i := range evs {
		m, err := ParseMessage("s", nil, encodeMessage(DynamoSingle, 3, 0, evs[i:i+1]))
		if err != nil || !reflect.DeepEqual(m.Events, evs[i:i+1]) {
			t.Errorf("dynamo-single %d: %v %+v", i, err, m)
		}
	}
	for _, p := range []Profile{Dynamo, JSON} {
		walk := append(append([]Event{}, evs...), evs...) // ids repeat in answers
		for i := range walk {
			walk[i].ID = 0
		}
		got, err := ParseEvents("s", encodeEvents(p, walk))
		if err != nil || !reflect.DeepEqual(got, walk) {
			t.Errorf("answer %s: %v", p, err)
		}
		if got, err := ParseEvents("s", encodeEvents(p, nil)); err != nil || len(got) != 0 {
			t.Errorf("empty answer %s: %v %v", p, got, err)
		}
	}
}

// edit makes a message of one good store with one thing changed in it.
func edit(p Profile, change func(event, inner, data, stored, block map[string]any)) []byte {
	e := Event{Rank: Rank{1, 0}, ID: 1, Kind: Stored, Blocks: []Block{{Hash: 1, TokensHash: 2}}}
	w := wireEvent(&e)
	inner := w["event"].(map[string]any)
	data := inner["data"].(map[string]any)
	stored := data["stored"].(map[string]any)
	change(w, inner, data, stored, stored["blocks"].([]any)[0].(map[string]any))
	if p == JSON {
		return mustJSON([]any{w})
	}
	return mustMsgpack(map[string]any{"publisher_id": 5, "sequence": 0, "published_at": 0, "topic": "kv-events", "payload": mustMsgpack([]any{w})})
}

type m = map[string]any

func TestUnknownFieldsAreSkipped(t *testing.T) {
	for _, p := range []Profile{Dynamo, JSON} {
		data := edit(p, func(e, in, _, st, b m) {
			deep := any("x")
			for range 50 {
				deep = []any{deep}
			}
			e["later"], in["later"], st["later"], b["later"] = deep, 1, m{"a": nil}, 2.5
			delete(e, "storage_tier") // as older publishers
			delete(st, "parent_hash")
			delete(st, "start_position")
			delete(b, "mm_extra_info")
		})
		got, err := ParseMessage("s", nil, data)
		if err != nil {
			t.Errorf("%s: %v", p, err)
			continue
		}
		if e := got.Events[0]; e.HasParent || e.HasStart || len(e.Blocks) != 1 || e.Blocks[0].TokensHash != 2 {
			t.Errorf("%s: %+v", p, e)
		}
	}
}

func TestRefused(t *testing.T) {
	changes := map[string]func(e, in, d, st, b m){
		"no worker":            func(e, _, _, _, _ m) { delete(e, "worker_id") },
		"worker text":          func(e, _, _, _, _ m) { e["worker_id"] = "1" },
		"worker negative":      func(e, _, _, _, _ m) { e["worker_id"] = -1 },
		"worker float":         func(e, _, _, _, _ m) { e["worker_id"] = 1.5 },
		"worker nil":           func(e, _, _, _, _ m) { e["worker_id"] = nil },
		"tier unknown":         func(e, _, _, _, _ m) { e["storage_tier"] = "moon" },
		"tier number":          func(e, _, _, _, _ m) { e["storage_tier"] = 1 },
		"session number":       func(e, _, _, _, _ m) { e["session_id"] = 1 },
		"domain number":        func(e, _, _, _, _ m) { e["residency_domain"] = 1 },
		"no event":             func(e, _, _, _, _ m) { delete(e, "event") },
		"event text":           func(e, _, _, _, _ m) { e["event"] = "cleared" },
		"no id":                func(_, in, _, _, _ m) { delete(in, "event_id") },
		"id zero":              func(_, in, _, _, _ m) { in["event_id"] = 0 },
		"no rank":              func(_, in, _, _, _ m) { delete(in, "dp_rank") },
		"rank too large":       func(_, in, _, _, _ m) { in["dp_rank"] = uint64(1) << 32 },
		"no data":              func(_, in, _, _, _ m) { delete(in, "data") },
		"data nil":             func(_, in, _, _, _ m) { in["data"] = nil },
		"data other text":      func(_, in, _, _, _ m) { in["data"] = "stored" },
		"two kinds":            func(_, _, d, _, _ m) { d["removed"] = m{"block_hashes": []int{1}} },
		"unknown kind":         func(_, _, d, _, _ m) { d["moved"] = d["stored"]; delete(d, "stored") },
		"no kind":              func(_, _, d, _, _ m) { delete(d, "stored") },
		"no blocks":            func(_, _, _, st, _ m) { delete(st, "blocks") },
		"blocks a map":         func(_, _, _, st, _ m) { st["blocks"] = m{} },
		"parent text":          func(_, _, _, st, _ m) { st["parent_hash"] = "1" },
		"start too large":      func(_, _, _, st, _ m) { st["start_position"] = uint64(1) << 32 },
		"no hash":              func(_, _, _, _, b m) { delete(b, "block_hash") },
		"no tokens hash":       func(_, _, _, _, b m) { delete(b, "tokens_hash") },
		"hash float":           func(_, _, _, _, b m) { b["block_hash"] = 0.5 },
		"block nil":            func(_, _, _, st, _ m) { st["blocks"] = []any{nil} },
		"mm a list":            func(_, _, _, _, b m) { b["mm_extra_info"] = []int{} },
		"mm empty":             func(_, _, _, _, b m) { b["mm_extra_info"] = m{} },
		"mm object incomplete": func(_, _, _, _, b m) { b["mm_extra_info"] = m{"mm_objects": []any{m{"mm_hash": 1}}} },
		"mm offset triple": func(_, _, _, _, b m) {
			b["mm_extra_info"] = m{"mm_objects": []any{m{"mm_hash": 1, "offsets": [][]int{{1, 2, 3}}}}}
		},
		"removed null": func(_, _, d, _, _ m) { delete(d, "stored"); d["removed"] = m{"block_hashes": []any{1, nil}} },
		"removed none": func(_, _, d, _, _ m) { delete(d, "stored"); d["removed"] = m{} },
	}
	for name, change := range changes {
		for _, p := range []Profile{Dynamo, JSON} {
			msg, err := ParseMessage("subject", nil, edit(p, change))
			var pe *ParseError
			if !errors.As(err, &pe) || pe.Reason == "" || pe.Subject != "subject" {
				t.Errorf("%s, %s: %v %+v, want a ParseError", name, p, err, msg)
			}
		}
	}
}

func TestRefusedMessages(t *testing.T) {
	one := sampleEvents()[1:2]
	other := sampleEvents()[2:3]
	other[0].Rank.DP = 0
	good := encodeMessage(Dynamo, 5, 0, one)
	text := encodeMessage(JSON, 0, 0, one)
	env := func(key string, v any) []byte {
		e := m{"publisher_id": 5, "sequence": 0, "published_at": 0, "topic": "kv-events", "payload": mustMsgpack(wireEvents(one))}
		if e[key] = v; v == nil {
			delete(e, key)
		}
		return mustMsgpack(e)
	}
	if _, err := ParseMessage("", nil, env("more", []int{1})); err != nil {
		t.Errorf("unknown envelope field: %v", err)
	}
	cases := map[string]struct {
		h    nats.Header
		data []byte
	}{
		"empty":             {nil, nil},
		"publisher 0":       {nil, env("publisher_id", 0)},
		"publisher 2^53":    {nil, env("publisher_id", 1<<53)},
		"no publisher":      {nil, env("publisher_id", nil)},
		"no sequence":       {nil, env("sequence", nil)},
		"no published_at":   {nil, env("published_at", nil)},
		"no topic":          {nil, env("topic", nil)},
		"other topic":       {nil, env("topic", "kv-metrics")},
		"no payload":        {nil, env("payload", nil)},
		"payload text":      {nil, env("payload", "x")},
		"payload scalar":    {nil, env("payload", []byte{1})},
		"payload empty":     {nil, env("payload", []byte{})},
		"payload with tail": {nil, env("payload", append(mustMsgpack(wireEvents(one)), 0xc0))},
		"truncated":         {nil, good[:len(good)-1]},
		"json truncated":    {nil, text[:len(text)-1]},
		"json tail":         {nil, append(append([]byte{}, text...), '1')},
		"json object":       {nil, []byte(`{"a":1}`)},
		"json null event":   {nil, []byte(`[null]`)},
		"several ranks":     {nil, encodeMessage(Dynamo, 5, 0, append(append([]Event{}, one...), other...))},
		"id twice":          {nil, encodeMessage(JSON, 5, 0, append(append([]Event{}, one...), one...))},
		"header text":       {nats.Header{PublisherHeader: {"x"}}, text},
		"header 0":          {nats.Header{PublisherHeader: {"0"}}, text},
		"header 2^53":       {nats.Header{PublisherHeader: {"9007199254740992"}}, text},
		"header differs":    {nats.Header{PublisherHeader: {"6"}}, good},
		"announces 2^32":    {nil, env("payload", []byte{0xdd, 0xff, 0xff, 0xff, 0xff, 1, 2})},
		"too large":         {nil, make([]byte, MaxMessage+1)},
	}
	for name, c := range cases {
		if got, err := ParseMessage("", c.h, c.data); err == nil {
			t.Errorf("%s: no error, %+v", name, got)
		}
	}
}

// Nothing that a message holds may turn up in its error.
func TestErrorsQuoteNothing(t *testing.T) {
	const secret = "planted-session"
	for _, p := range []Profile{Dynamo, JSON} {
		data := edit(p, func(e, _, _, st, _ m) { e["session_id"] = secret; st["parent_hash"] = secret })
		_, err := ParseMessage("s", nil, data)
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", p, err)
		}
	}
}

func FuzzParseMessage(f *testing.F) {
	for _, v := range envelopeVectors(f) {
		f.Add(v.bytes)
	}
	for _, p := range []Profile{Dynamo, JSON} {
		f.Add(encodeMessage(p, 1, 0, sampleEvents()))
		f.Add(encodeEvents(p, sampleEvents()))
	}
	f.Add(encodeMessage(DynamoSingle, 1, 0, sampleEvents()[1:2]))
	f.Fuzz(func(t *testing.T, data []byte) {
		fuzzlimit.Run(t, len(data), func() { _, _ = ParseMessage("s", nil, data) })
		fuzzlimit.Run(t, len(data), func() { _, _ = ParseEvents("s", data) })
		// What is accepted is whole: written again and read again it is the same.
		if got, err := ParseMessage("s", nil, data); err == nil && got.Publisher != 0 {
			again, err := ParseMessage("s", nil, encodeMessage(Dynamo, got.Publisher, got.Sequence, got.Events))
			if err != nil {
				t.Fatalf("accepted, but not its encoding: %v", err)
			}
			if !bytes.Equal(mustJSON(wireEvents(again.Events)), mustJSON(wireEvents(got.Events))) {
				t.Fatal("another message when read again")
			}
		}
		if evs, err := ParseEvents("s", data); err == nil {
			for i := range evs {
				if evs[i].Kind == 0 || int(evs[i].Tier) >= NumTiers {
					t.Fatalf("event %+v", evs[i])
				}
			}
		}
	})
}

// A message must not take many times its size, whatever it announces.
func TestMemoryIsBounded(t *testing.T) {
	for name, data := range map[string][]byte{
		"json empty events": []byte("[" + strings.Repeat("{},", 1<<20) + "{}]"),
		"msgpack nils": mustMsgpack(m{"publisher_id": 1, "sequence": 1, "published_at": 1, "topic": "kv-events",
			"payload": append([]byte{0xdd, 0, 0x10, 0, 0}, bytes.Repeat([]byte{0xc0}, 1<<20)...)}),
		"json blocks": []byte(`[{"worker_id":1,"event":{"event_id":1,"dp_rank":0,"data":{"stored":{"blocks":[` +
			strings.Repeat("{},", 1<<19) + `{}]}}}}]`),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := ParseMessage("", nil, data); err == nil {
			t.Errorf("%s: accepted", name)
		}
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > uint64(16*len(data)) {
			t.Errorf("%s: %d bytes taken for %d", name, took, len(data))
		}
	}
}
