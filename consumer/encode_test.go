package consumer

import (
	"encoding/json"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
)

// The test's own encoder of router events, after router-events §1: generic
// maps, so that it shares nothing with the parser.

func wireEvent(e *Event) map[string]any {
	var data any
	switch e.Kind {
	case Cleared:
		data = "cleared"
	case Removed:
		hs := append([]uint64{}, e.Hashes...)
		data = map[string]any{"removed": map[string]any{"block_hashes": hs}}
	case Stored:
		blocks := []any{}
		for _, b := range e.Blocks {
			var mm any
			if b.MM != nil {
				objs := []any{}
				for _, o := range b.MM {
					offs := append([][2]uint64{}, o.Offsets...)
					objs = append(objs, map[string]any{"mm_hash": o.Hash, "offsets": offs})
				}
				mm = map[string]any{"mm_objects": objs}
			}
			blocks = append(blocks, map[string]any{"block_hash": b.Hash, "tokens_hash": b.TokensHash, "mm_extra_info": mm})
		}
		var parent, start any
		if e.HasParent {
			parent = e.Parent
		}
		if e.HasStart {
			start = e.Start
		}
		data = map[string]any{"stored": map[string]any{"parent_hash": parent, "start_position": start, "blocks": blocks}}
	}
	m := map[string]any{
		"worker_id": e.Rank.Worker, "storage_tier": e.Tier.String(),
		"event": map[string]any{"event_id": e.ID, "data": data, "dp_rank": e.Rank.DP},
	}
	if e.Domain != "" {
		m["residency_domain"] = e.Domain
	}
	if e.Session != "" {
		m["session_id"] = e.Session
	}
	return m
}

func wireEvents(evs []Event) []any {
	out := []any{}
	for i := range evs {
		out = append(out, wireEvent(&evs[i]))
	}
	return out
}

func mustMsgpack(v any) []byte {
	b, err := msgpack.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// encodeEvents is the body of a recovery answer.
func encodeEvents(p Profile, evs []Event) []byte {
	if p == JSON {
		return mustJSON(wireEvents(evs))
	}
	return mustMsgpack(wireEvents(evs))
}

// encodeMessage is a published message of profile dynamo or json, or, of one
// event, dynamo-single.
func encodeMessage(p Profile, publisher, sequence uint64, evs []Event) []byte {
	var payload []byte
	switch p {
	case JSON:
		return mustJSON(wireEvents(evs))
	case DynamoSingle:
		payload = mustMsgpack(wireEvent(&evs[0]))
	default:
		payload = mustMsgpack(wireEvents(evs))
	}
	return mustMsgpack(map[string]any{
		"publisher_id": publisher, "sequence": sequence, "published_at": uint64(1790000000000), "topic": "kv-events", "payload": payload,
	})
}

func sampleEvents() []Event {
	r := Rank{18446744073709551615, 4294967295}
	return []Event{
		{Rank: r, ID: 1, Kind: Cleared},
		{Rank: r, ID: 2, Kind: Stored, Domain: "worker", Session: "s-1", Blocks: []Block{
			{Hash: 1 << 63, TokensHash: 4117275816416024698},
			{Hash: 2, TokensHash: 0, MM: []MMObject{{Hash: 77, Offsets: [][2]uint64{{1, 2}, {3, 4}}}, {Hash: 78, Offsets: [][2]uint64{}}}},
		}},
		{Rank: r, ID: 3, Kind: Stored, Tier: Disk, HasParent: true, Parent: 2, HasStart: true, Start: 2, Domain: "worker", Blocks: []Block{{Hash: 3, TokensHash: 9}}},
		{Rank: r, ID: 4, Kind: Removed, Tier: HostPinned, Domain: "worker", Hashes: []uint64{3, 18446744073709551615, 0}},
		{Rank: r, ID: 5, Kind: Removed, Tier: External, Domain: "worker", Hashes: []uint64{}},
	}
}

func BenchmarkParseMessage(b *testing.B) {
	evs := []Event{{Rank: Rank{7, 0}, ID: 1, Kind: Stored, Domain: "worker"}}
	for i := range uint64(64) {
		evs[0].Blocks = append(evs[0].Blocks, Block{Hash: ^i, TokensHash: i * 0x9e3779b97f4a7c15})
	}
	for _, p := range []Profile{Dynamo, JSON} {
		data := encodeMessage(p, 1, 0, evs)
		b.Run(p.String(), func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := ParseMessage("s", nil, data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
