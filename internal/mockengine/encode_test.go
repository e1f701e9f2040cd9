package mockengine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/kvrelay/kvrelay/internal/capture"
)

// batch is a recorded batch, read with vmihailenco's decoder.
type batch struct {
	payload []byte
	ts      float64
	events  []Event
}

// recorded reads the batches of a live capture.
func recorded(t testing.TB, name string) []batch {
	t.Helper()
	r, err := capture.Open("testdata/" + name + ".jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var out []batch
	for {
		m, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		b := batch{payload: m.Payload()}
		if b.ts, b.events, _, err = decodeBatch(m.Payload()); err != nil {
			t.Fatal(err)
		}
		out = append(out, b)
	}
}

var (
	storedNames  = []string{"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys"}
	removedNames = []string{"type", "block_hashes", "medium"}
)

// decodeBatch reads a batch in every form with vmihailenco's decoder. rank is
// nil when the batch has none.
func decodeBatch(payload []byte) (ts float64, events []Event, rank any, err error) {
	d := msgpack.NewDecoder(bytes.NewReader(payload))
	d.SetMapDecoder(func(d *msgpack.Decoder) (any, error) { return d.DecodeUntypedMap() })
	v, err := d.DecodeInterface()
	if err != nil {
		return 0, nil, nil, err
	}
	if rest, _ := io.ReadAll(d.Buffered()); len(rest) > 0 {
		return 0, nil, nil, fmt.Errorf("%d bytes after the batch", len(rest))
	}
	var list []any
	switch v := v.(type) {
	case []any:
		if len(v) < 2 {
			return 0, nil, nil, errors.New("short batch")
		}
		ts, list = v[0].(float64), v[1].([]any)
		if len(v) > 2 {
			rank = v[2]
		}
	case map[any]any:
		ts, list, rank = v["ts"].(float64), v["events"].([]any), v["data_parallel_rank"]
	default:
		return 0, nil, nil, fmt.Errorf("a batch of type %T", v)
	}
	for _, e := range list {
		event, err := decodeEvent(e)
		if err != nil {
			return 0, nil, nil, err
		}
		events = append(events, event)
	}
	return ts, events, rank, nil
}

func decodeEvent(v any) (Event, error) {
	fields, ok := v.(map[any]any)
	if list, isList := v.([]any); isList {
		fields = map[any]any{}
		names := storedNames
		if list[0] == "BlockRemoved" {
			names = removedNames
		}
		for i, v := range list {
			fields[names[i]] = v
		}
	} else if !ok {
		return Event{}, fmt.Errorf("an event of type %T", v)
	}
	var e Event
	switch fields["type"] {
	case "BlockStored":
		e.Kind = Stored
		if fields["medium"] != nil && fields["medium"] != "GPU" {
			return e, fmt.Errorf("medium %v", fields["medium"])
		}
		for _, t := range fields["token_ids"].([]any) {
			e.Tokens = append(e.Tokens, uint32(number(t)))
		}
		if p := fields["parent_block_hash"]; p != nil {
			e.Parent, e.HasParent = number(p), true
		}
	case "BlockRemoved":
		e.Kind = Removed
	case "AllBlocksCleared":
		e.Kind = Cleared
		return e, nil
	default:
		return e, fmt.Errorf("event type %v", fields["type"])
	}
	for _, h := range fields["block_hashes"].([]any) {
		e.Hashes = append(e.Hashes, number(h))
	}
	return e, nil
}

// number is a msgpack integer's 64 bits, or a bytes hash's last 8 bytes.
func number(v any) uint64 {
	switch v := v.(type) {
	case int8:
		return uint64(v)
	case int16:
		return uint64(v)
	case int32:
		return uint64(v)
	case int64:
		return uint64(v)
	case uint8:
		return uint64(v)
	case uint16:
		return uint64(v)
	case uint32:
		return uint64(v)
	case uint64:
		return v
	case []byte:
		return binary.BigEndian.Uint64(v[len(v)-8:])
	}
	panic(fmt.Sprintf("%T is no number", v))
}

// TestEncodesAsEngines: what vLLM sent, decoded and encoded again, is the same
// to the byte.
func TestEncodesAsEngines(t *testing.T) {
	for name, c := range map[string]Encoder{
		"live-vllm-0.18.1-base": {Batch: Array, Event: Array, BlockSize: 16},
		"live-vllm-0.33.0-base": {Batch: Array, Event: Map, BlockSize: 16},
	} {
		for i, b := range recorded(t, name) {
			if got := c.Encode(nil, b.ts, b.events); !bytes.Equal(got, b.payload) {
				t.Fatalf("%s batch %d:\n got %x\nwant %x", name, i, got, b.payload)
			}
		}
	}
}

func TestEncodings(t *testing.T) {
	events := []Event{
		{Kind: Stored, Hashes: []uint64{1, 1<<63 + 5}, Tokens: []uint32{0, 127, 128, 255, 256, 65535, 65536, math.MaxUint32}},
		{Kind: Stored, Hashes: []uint64{math.MaxUint64}, Parent: 1 << 63, HasParent: true, Tokens: []uint32{1, 2, 3, 4}},
		{Kind: Removed, Hashes: []uint64{math.MaxUint64 - 31, math.MaxUint64 - 32, math.MaxUint64 - 200, math.MaxUint64 - 40_000, 1<<64 - 1<<40}},
		{Kind: Cleared},
	}
	for i := range 20 { // more than a short array holds
		events = append(events, Event{Kind: Removed, Hashes: []uint64{uint64(i)}})
	}
	for _, batchForm := range []Encoding{Array, Map} {
		for _, eventForm := range []Encoding{Array, Map} {
			for _, hashes := range []HashEncoding{Unsigned, Signed, BytesHash} {
				for _, omit := range []bool{false, true} {
					c := Encoder{Batch: batchForm, Event: eventForm, Hashes: hashes, BlockSize: 4, Rank: 300, OmitRank: omit}
					payload := c.Encode(nil, 1795969487.25, events)
					ts, got, rank, err := decodeBatch(payload)
					if err != nil {
						t.Fatalf("%+v: %v", c, err)
					}
					if ts != 1795969487.25 || fmt.Sprint(got) != fmt.Sprint(events) {
						t.Errorf("%+v: ts %v events %v", c, ts, got)
					}
					if omit != (rank == nil) || !omit && number(rank) != 300 {
						t.Errorf("%+v: rank %v", c, rank)
					}
					if isMap := payload[0]&0xf0 == 0x80; isMap != (batchForm == Map) {
						t.Errorf("%+v: begins with %x", c, payload[0])
					}
				}
			}
		}
	}
}

// TestHashForms looks at the bytes: the forms must differ on the wire.
func TestHashForms(t *testing.T) {
	const h = 1<<63 + 5
	for form, want := range map[HashEncoding][]byte{
		Unsigned: {0xcf, 0x80, 0, 0, 0, 0, 0, 0, 5},
		Signed:   {0xd3, 0x80, 0, 0, 0, 0, 0, 0, 5},
	} {
		c := Encoder{Hashes: form}
		if got := c.hash(nil, h); !bytes.Equal(got, want) {
			t.Errorf("%s: %x, want %x", form, got, want)
		}
	}
	c := Encoder{Hashes: BytesHash}
	got := c.hash(nil, h)
	if len(got) != 34 || got[0] != 0xc4 || got[1] != 32 || binary.BigEndian.Uint64(got[26:]) != h {
		t.Errorf("bytes: %x", got)
	}
}

// TestGarbageIsNoBatch: no consumer may take it for one.
func TestGarbageIsNoBatch(t *testing.T) {
	in := NewInjector(nil, 1, 0)
	kinds := map[byte]bool{}
	for range 200 {
		b := in.Garbage()
		if len(b) > 0 {
			kinds[b[0]] = true
		}
		if len(b) == 100_000 || bytes.Contains(b, []byte{0xdd, 0xff, 0xff, 0xff, 0xff}) {
			continue // the reference decoder would recurse, or allocate 64 GB for a list of which nothing comes
		}
		func() {
			defer func() { _ = recover() }() // the helper above takes a batch's shape for granted
			if _, _, _, err := decodeBatch(b); err == nil {
				t.Errorf("garbage %x is a batch", b)
			}
		}()
	}
	if len(kinds) < 4 {
		t.Errorf("only %d kinds of garbage", len(kinds))
	}
}
