package convert

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	mp "github.com/kvrelay/kvrelay/internal/msgpack"
)

// generic decodes msgpack without knowing our encoder.
func generic(t testing.TB, b []byte) any {
	t.Helper()
	d := msgpack.NewDecoder(bytes.NewReader(b))
	v, err := d.DecodeInterface()
	if err != nil {
		t.Fatalf("%v in %x", err, b)
	}
	if d.Buffered().(*bytes.Reader).Len() > 0 {
		t.Fatalf("%d bytes behind the value", d.Buffered().(*bytes.Reader).Len())
	}
	return v
}

func number(v any) uint64 {
	if r := reflect.ValueOf(v); r.CanInt() {
		return uint64(r.Int())
	} else {
		return r.Uint()
	}
}

// eventOf turns a decoded router event back into what was encoded.
func eventOf(v any) (e RouterEvent, worker, rank, id uint64) {
	m := v.(map[string]any)
	worker = number(m["worker_id"])
	for t, name := range tierNames {
		if name == m["storage_tier"] {
			e.Tier = Tier(t)
		}
	}
	_, domain := m["residency_domain"]
	e.NoDomain = !domain
	if s, ok := m["session_id"]; ok {
		e.SessionID = []byte(s.(string))
	}
	ev := m["event"].(map[string]any)
	id, rank = number(ev["event_id"]), number(ev["dp_rank"])
	data, ok := ev["data"].(map[string]any)
	if !ok {
		e.Kind = Cleared
		return e, worker, rank, id
	}
	if removed, ok := data["removed"]; ok {
		e.Kind = Removed
		for _, h := range removed.(map[string]any)["block_hashes"].([]any) {
			e.Hashes = append(e.Hashes, number(h))
		}
		return e, worker, rank, id
	}
	e.Kind = Stored
	stored := data["stored"].(map[string]any)
	if p := stored["parent_hash"]; p != nil {
		e.HasParent, e.Parent = true, number(p)
	}
	for _, v := range stored["blocks"].([]any) {
		v := v.(map[string]any)
		b := Block{Hash: number(v["block_hash"]), TokensHash: number(v["tokens_hash"])}
		if mm, ok := v["mm_extra_info"].(map[string]any); ok {
			b.MM = []MMObject{}
			for _, v := range mm["mm_objects"].([]any) {
				v := v.(map[string]any)
				o := MMObject{Hash: number(v["mm_hash"])}
				for _, r := range v["offsets"].([]any) {
					r := r.([]any)
					o.Offsets = append(o.Offsets, [2]uint64{number(r[0]), number(r[1])})
				}
				b.MM = append(b.MM, o)
			}
		}
		e.Blocks = append(e.Blocks, b)
	}
	return e, worker, rank, id
}

// TestEnvelopes encodes again what Dynamo 1.6.1's publisher sent: same bytes.
func TestEnvelopes(t *testing.T) {
	n := 0
	readLines(t, "testdata/envelopes.jsonl.gz", func(line []byte) {
		var v struct {
			What string
			Data string `json:"data_hex"`
		}
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatal(err)
		}
		payload := generic(t, unhex(t, v.Data)).(map[string]any)["payload"].([]byte)
		events := generic(t, payload).([]any)
		again := mp.AppendArrayHeader(nil, len(events))
		for _, ev := range events {
			e, worker, rank, id := eventOf(ev)
			again = AppendEvent(again, &e, worker, uint32(rank), id)
			n++
		}
		if !bytes.Equal(again, payload) {
			t.Errorf("%s:\n%x\nwant\n%x", v.What, again, payload)
		}
	})
	if n < 20 {
		t.Errorf("%d router events in the envelopes", n)
	}
}

// randomEvent is any event that an Output could hold.
func randomEvent(g *rand.Rand) RouterEvent {
	n64 := func() uint64 { return g.Uint64() >> g.UintN(64) }
	e := RouterEvent{Kind: Kind(1 + g.IntN(3)), Tier: Tier(g.IntN(4)), NoDomain: g.IntN(4) == 0}
	if g.IntN(4) == 0 {
		e.SessionID = []byte([]string{"s", "ü\"\\\n\x01", string(bytes.Repeat([]byte("x"), 300))}[g.IntN(3)])
	}
	switch e.Kind {
	case Stored:
		if g.IntN(2) == 0 {
			e.HasParent, e.Parent = true, n64()
		}
		for range 1 + g.IntN(40) {
			b := Block{Hash: n64(), TokensHash: n64()}
			if g.IntN(6) == 0 {
				b.MM = []MMObject{}
				for range g.IntN(3) {
					o := MMObject{Hash: n64()}
					for range g.IntN(3) {
						o.Offsets = append(o.Offsets, [2]uint64{n64(), n64()})
					}
					b.MM = append(b.MM, o)
				}
			}
			e.Blocks = append(e.Blocks, b)
		}
	case Removed:
		for range 1 + g.IntN(40) {
			e.Hashes = append(e.Hashes, n64())
		}
	}
	return e
}

// plainly encodes e with the smallest encodings, one field after the other.
func plainly(e *RouterEvent, worker uint64, rank uint32, id uint64) []byte {
	str := func(b []byte, s string) []byte { return mp.AppendStr(b, s) }
	fields := 3
	if !e.NoDomain {
		fields++
	}
	if e.SessionID != nil {
		fields++
	}
	b := mp.AppendUint(str(mp.AppendMapHeader(nil, fields), "worker_id"), worker)
	b = str(str(b, "storage_tier"), e.Tier.String())
	if !e.NoDomain {
		b = str(str(b, "residency_domain"), "worker")
	}
	b = mp.AppendUint(str(mp.AppendMapHeader(str(b, "event"), 3), "event_id"), id)
	b = str(b, "data")
	switch e.Kind {
	case Cleared:
		b = str(b, "cleared")
	case Removed:
		b = mp.AppendMapHeader(str(mp.AppendMapHeader(b, 1), "removed"), 1)
		b = mp.AppendArrayHeader(str(b, "block_hashes"), len(e.Hashes))
		for _, h := range e.Hashes {
			b = mp.AppendUint(b, h)
		}
	case Stored:
		b = str(mp.AppendMapHeader(str(mp.AppendMapHeader(b, 1), "stored"), 3), "parent_hash")
		if e.HasParent {
			b = mp.AppendUint(b, e.Parent)
		} else {
			b = mp.AppendNil(b)
		}
		b = mp.AppendArrayHeader(str(mp.AppendNil(str(b, "start_position")), "blocks"), len(e.Blocks))
		for _, k := range e.Blocks {
			b = mp.AppendUint(str(mp.AppendMapHeader(b, 3), "block_hash"), k.Hash)
			b = str(mp.AppendUint(str(b, "tokens_hash"), k.TokensHash), "mm_extra_info")
			if k.MM == nil {
				b = mp.AppendNil(b)
				continue
			}
			b = mp.AppendArrayHeader(str(mp.AppendMapHeader(b, 1), "mm_objects"), len(k.MM))
			for _, o := range k.MM {
				b = mp.AppendUint(str(mp.AppendMapHeader(b, 2), "mm_hash"), o.Hash)
				b = mp.AppendArrayHeader(str(b, "offsets"), len(o.Offsets))
				for _, r := range o.Offsets {
					b = mp.AppendUint(mp.AppendUint(mp.AppendArrayHeader(b, 2), r[0]), r[1])
				}
			}
		}
	}
	b = mp.AppendUint(str(b, "dp_rank"), uint64(rank))
	if e.SessionID != nil {
		b = str(str(b, "session_id"), string(e.SessionID))
	}
	return b
}

// TestEncodings: every encoding says the same, and none more than its bound.
func TestEncodings(t *testing.T) {
	g := rand.New(rand.NewPCG(5, 5))
	for range 3000 {
		e := randomEvent(g)
		worker, rank, id := g.Uint64()>>g.UintN(64), g.Uint32()>>g.UintN(32), g.Uint64()>>g.UintN(64)
		prefix := []byte("before")
		full := AppendEvent(prefix, &e, worker, rank, id)
		if !bytes.HasPrefix(full, prefix) {
			t.Fatal("what was there is gone")
		}
		full = full[len(prefix):]
		got, w, r, i := eventOf(generic(t, full))
		if !reflect.DeepEqual(got, e) || w != worker || r != uint64(rank) || i != id {
			t.Fatalf("%+v came back as %+v", e, got)
		}
		if want := plainly(&e, worker, rank, id); !bytes.Equal(full, want) {
			t.Fatalf("%x\nwant %x", full, want)
		}
		if n := MaxEventSize(&e); len(full) > n || n > len(full)+120+16*(len(e.Blocks)+len(e.Hashes))+400*mmCount(&e) {
			t.Fatalf("%d bytes, the bound says %d", len(full), n)
		}
		single, _, _, _ := eventOf(generic(t, AppendEventSingle(nil, &e, worker, rank, id)))
		want := e
		want.NoDomain = true
		if !reflect.DeepEqual(single, want) {
			t.Fatalf("%+v came back from dynamo-single as %+v", e, single)
		}

		// JSON: through a decoder and msgpack, the same tree.
		text := AppendEventJSON(nil, &e, worker, rank, id)
		if a, b := fmt.Sprint(jsonValue(t, text)), fmt.Sprint(generic(t, full)); a != b {
			t.Fatalf("JSON %s\nmsgpack %s", a, b)
		}
	}
}

func mmCount(e *RouterEvent) int {
	n := 0
	for _, b := range e.Blocks {
		if b.MM != nil {
			n++
		}
	}
	return n
}

// TestEncodeKeyOrder pins the order of fields, which maps of a test cannot see.
func TestEncodeKeyOrder(t *testing.T) {
	e := RouterEvent{Kind: Stored, SessionID: []byte("s"), Blocks: []Block{{Hash: 1, TokensHash: 2}}}
	const want = `{"worker_id":3,"storage_tier":"device","residency_domain":"worker","event":{"event_id":5,"data":{"stored":` +
		`{"parent_hash":null,"start_position":null,"blocks":[{"block_hash":1,"tokens_hash":2,"mm_extra_info":null}]}},"dp_rank":4},"session_id":"s"}`
	if got := string(AppendEventJSON(nil, &e, 3, 4, 5)); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	var keys []string
	for _, key := range []string{"worker_id", "storage_tier", "residency_domain", "event", "event_id", "data", "dp_rank", "session_id"} {
		keys = append(keys, string(mp.AppendStr(nil, key)))
	}
	b := AppendEvent(nil, &e, 3, 4, 5)
	for _, k := range keys {
		at := bytes.Index(b, []byte(k))
		if at < 0 {
			t.Fatalf("%q is missing or not in its place", k[1:])
		}
		b = b[at+len(k):]
	}
}

// TestJSONStrings: what is no UTF-8 still gives JSON.
func TestJSONStrings(t *testing.T) {
	for _, text := range []string{"", "plain", "quote\" back\\ \x00\x1f tab\t", "日本 \u2028", "bad \xff\xfe utf8"} {
		var back string
		if err := json.Unmarshal(appendStringJSON(nil, []byte(text)), &back); err != nil {
			t.Errorf("%q: %v", text, err)
		} else if want := string(bytes.ToValidUTF8([]byte(text), []byte("\ufffd"))); back != want && len(want) == len(back) {
			t.Errorf("%q came back as %q", text, back)
		}
	}
}

// TestPart: parts of an event, applied one after the other, are the event.
func TestPart(t *testing.T) {
	g := rand.New(rand.NewPCG(6, 6))
	for range 500 {
		e := randomEvent(g)
		n := len(e.Blocks) + len(e.Hashes)
		whole, parts := picture{}, picture{}
		for _, p := range []picture{whole, parts} {
			for _, h := range e.Hashes {
				p[placed{e.Tier, h}] = told{}
			}
		}
		whole.apply([]RouterEvent{e})
		for from := 0; from < n; {
			to := from + 1 + g.IntN(n-from)
			p := Part(&e, from, to)
			if len(p.Blocks)+len(p.Hashes) != to-from || p.Tier != e.Tier || string(p.SessionID) != string(e.SessionID) {
				t.Fatalf("[%d, %d) of %+v is %+v", from, to, e, p)
			}
			parts.apply([]RouterEvent{p})
			from = to
		}
		if n == 0 {
			parts.apply([]RouterEvent{Part(&e, 0, 0)})
		}
		if !reflect.DeepEqual(whole, parts) {
			t.Fatalf("parts give %v, the whole %v", parts, whole)
		}
	}
}
