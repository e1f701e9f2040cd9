package decode

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
)

func TestBatchForms(t *testing.T) {
	events := list{stored()}
	for _, c := range []struct {
		name  string
		batch any
		want  Batch
		n     int
	}{
		{"array", list{1.5, events, 3}, Batch{TS: 1.5, HasTS: true, Rank: 3, HasRank: true}, 1},
		{"two elements", list{1.5, events}, Batch{TS: 1.5, HasTS: true}, 1},
		{"rank nil", list{1.5, events, nil}, Batch{TS: 1.5, HasTS: true}, 1},
		{"more elements", list{1.5, events, 1, "x", list{1, dict{}}}, Batch{TS: 1.5, HasTS: true, Rank: 1, HasRank: true}, 1},
		{"no events", list{1.5, list{}, 0}, Batch{TS: 1.5, HasTS: true, HasRank: true}, 0},
		{"events nil", list{1.5, nil, 0}, Batch{TS: 1.5, HasTS: true, HasRank: true}, 0},
		{"map", dict{"ts", 1.5, "events", events, "data_parallel_rank", 2}, Batch{TS: 1.5, HasTS: true, Rank: 2, HasRank: true, IsMap: true}, 1},
		{"map, any order", dict{"data_parallel_rank", 2, "events", events, "more", 4, "ts", 1.5}, Batch{TS: 1.5, HasTS: true, Rank: 2, HasRank: true, IsMap: true}, 1},
		{"map, dp_rank", dict{"events", events, "dp_rank", 2}, Batch{Rank: 2, HasRank: true, IsMap: true}, 1},
		{"both ranks", dict{"dp_rank", 1, "events", events, "data_parallel_rank", 2}, Batch{Rank: 2, HasRank: true, IsMap: true}, 1},
		{"both ranks, the other order", dict{"data_parallel_rank", 2, "events", events, "dp_rank", 1}, Batch{Rank: 2, HasRank: true, IsMap: true}, 1},
		{"a nil rank hides dp_rank", dict{"dp_rank", 1, "events", events, "data_parallel_rank", nil}, Batch{IsMap: true}, 1},
		{"a bad rank hides dp_rank", dict{"data_parallel_rank", "x", "events", events, "dp_rank", 1}, Batch{BadRank: true, IsMap: true}, 1},
		{"events alone", dict{"events", events}, Batch{IsMap: true}, 1},
		{"map, events nil", dict{"events", nil}, Batch{IsMap: true}, 0},
		{"last of two events", dict{"events", list{stored(), stored(), 7}, "events", events}, Batch{IsMap: true}, 1},
		{"last of two events, first no list", dict{"events", "x", "events", events}, Batch{IsMap: true}, 1},
		{"last of two ts", dict{"ts", 2.5, "ts", "x", "ts", 1.5, "events", nil}, Batch{TS: 1.5, HasTS: true, IsMap: true}, 0},
		{"keys that are no text", dict{1, 2, nil, list{}, list{1}, 3, []byte("events"), events}, Batch{IsMap: true}, 1},
		{"ts float32", list{raw{0xca, 0x3f, 0xc0, 0, 0}, events}, Batch{TS: 1.5, HasTS: true}, 1},
		{"ts integer", list{7, events}, Batch{TS: 7, HasTS: true}, 1},
		{"ts negative integer", list{-7, events}, Batch{TS: -7, HasTS: true}, 1},
		{"ts large integer", list{uint64(1 << 63), events}, Batch{TS: 1 << 63, HasTS: true}, 1},
		{"ts text", list{"now", events}, Batch{}, 1},
		{"ts nil", list{nil, events}, Batch{}, 1},
		{"ts list", list{list{1, 2}, events}, Batch{}, 1},
		{"ts NaN", list{math.NaN(), events}, Batch{}, 1},
		{"ts infinite", list{math.Inf(1), events}, Batch{}, 1},
		{"largest rank", list{1.5, events, 65535}, Batch{TS: 1.5, HasTS: true, Rank: 65535, HasRank: true}, 1},
		{"rank as int64", list{1.5, events, raw{0xd3, 0, 0, 0, 0, 0, 0, 0, 5}}, Batch{TS: 1.5, HasTS: true, Rank: 5, HasRank: true}, 1},
		{"rank 65536", list{1.5, events, 65536}, Batch{TS: 1.5, HasTS: true, BadRank: true}, 1},
		{"rank negative", list{1.5, events, -1}, Batch{TS: 1.5, HasTS: true, BadRank: true}, 1},
		{"rank text", list{1.5, events, "0"}, Batch{TS: 1.5, HasTS: true, BadRank: true}, 1},
		{"rank float", list{1.5, events, 0.0}, Batch{TS: 1.5, HasTS: true, BadRank: true}, 1},
		{"rank bool, then more", list{1.5, events, false, 1}, Batch{TS: 1.5, HasTS: true, BadRank: true}, 1},
		{"rank map, then more", list{1.5, events, dict{"a", 1}, 1}, Batch{TS: 1.5, HasTS: true, BadRank: true}, 1},
	} {
		var b Batch
		// Bytes behind the batch are ignored.
		p := append(enc(c.batch), 0xc1, 0xff, 0x00)
		if err := b.Decode(p); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if b.TS != c.want.TS || b.HasTS != c.want.HasTS || b.Rank != c.want.Rank || b.HasRank != c.want.HasRank ||
			b.BadRank != c.want.BadRank || b.IsMap != c.want.IsMap || len(b.Events) != c.n {
			t.Errorf("%s: ts %v %v rank %d %v bad %v map %v, %d events", c.name, b.TS, b.HasTS, b.Rank, b.HasRank, b.BadRank, b.IsMap, len(b.Events))
		}
		for i := range b.Events {
			if b.Events[i].Type != Stored || b.Events[i].Tokens.Len() != 4 {
				t.Errorf("%s: event %d: %s", c.name, i, show(&b.Events[i]))
			}
		}
	}
}

func TestUndecodable(t *testing.T) {
	deep := append(make([]byte, 0, 8<<20), 0x92, 0x01, 0x91, 0x82, 0xa4, 't', 'y', 'p', 'e', 0xa1, 'x', 0xa1, 'y')
	at := len(deep)
	for len(deep) < 8<<20 {
		deep = append(deep, 0x91)
	}
	for _, c := range []struct {
		name    string
		payload []byte
		reason  string
		off     int
	}{
		{"nothing", nil, ReasonEmpty, 0},
		{"nil", enc(nil), ReasonNoBatch, 0},
		{"integer", enc(5), ReasonNoBatch, 0},
		{"text", enc("a batch"), ReasonNoBatch, 0},
		{"reserved byte", raw{0xc1}, ReasonReserved, 0},
		{"empty array", enc(list{}), ReasonNoBatch, 0},
		{"ts alone", enc(list{1.5}), ReasonNoBatch, 0},
		{"empty map", enc(dict{}), ReasonNoBatch, 0},
		{"map without events", enc(dict{"ts", 1.5, "data_parallel_rank", 1}), ReasonNoBatch, 0},
		{"events a map", enc(list{1.5, dict{"a", 1}}), ReasonNoBatch, 0},
		{"events an integer", enc(list{1.5, 3, 0}), ReasonNoBatch, 0},
		{"map's events text", enc(dict{"events", "x"}), ReasonNoBatch, 0},
		{"map's last events text", enc(dict{"events", list{stored()}, "events", "x"}), ReasonNoBatch, 0},
		{"cut text", raw{0xa5, 'x'}, ReasonTruncated, 0},
		{"more events announced than there are", raw{0x92, 0x01, 0x93, 0x91, 0xa1, 'x', 0x07}, ReasonTruncated, 7},
		{"more elements announced than bytes", raw{0x92, 0x01, 0x94, 0x91, 0xa1, 'x'}, ReasonTruncated, 2},
		{"2^31 hashes", unhex(t, "93cb41da39de001000009195ab426c6f636b53746f726564dd7fffffff01"), ReasonTruncated, 24},
		{"2^31 tokens", append(raw{0x92, 0x01, 0x91, 0x95}, append(enc("BlockStored"), 0x91, 0x01, 0xc0, 0xdd, 0x80, 0, 0, 0, 1)...), ReasonTruncated, 19},
		{"2^32 pairs in a map", raw{0x92, 0x01, 0x91, 0xdf, 0xff, 0xff, 0xff, 0xff, 1, 2}, ReasonTruncated, 3},
		{"bytes of 4 GiB", raw{0x92, 0x01, 0x91, 0x91, 0xc6, 0xff, 0xff, 0xff, 0xff}, ReasonTruncated, 4},
		{"reserved byte in an event", raw{0x92, 0x01, 0x91, 0x92, 0xa1, 'x', 0xc1}, ReasonReserved, 6},
		{"reserved byte for an event", raw{0x92, 0x01, 0x91, 0xc1}, ReasonReserved, 3},
		{"reserved byte among tokens", append(raw{0x92, 0x01, 0x91, 0x95}, append(enc("BlockStored"), 0x91, 0x01, 0xc0, 0x91, 0xc1, 0x04)...), ReasonReserved, 20},
		{"cut behind a malformed event", append(raw{0x92, 0x01, 0x92, 0x07, 0x92}, enc("BlockStored")...), ReasonTruncated, 17},
		{"rank missing", raw{0x93, 0x01, 0x90}, ReasonTruncated, 0},
		{"element after the rank missing", raw{0x94, 0x01, 0x91, 0x07, 0x00}, ReasonTruncated, 5},
		{"ts cut", raw{0x92, 0xcb, 0, 0}, ReasonTruncated, 1},
		{"map key missing", raw{0x82, 0xa2, 't', 's', 0x01}, ReasonTruncated, 5},
		{"8 MiB of nested arrays", deep, ReasonTooDeep, at + 1024},
		{"8 MiB of nested arrays, bare", append(raw{0x92}, deep[at:]...), ReasonTooDeep, 1 + 1024},
	} {
		var b Batch
		if err := b.Decode(batchOf(stored(), stored())); err != nil {
			t.Fatal(err)
		}
		err := b.Decode(c.payload)
		var e *Error
		if !errors.As(err, &e) || e.Reason != c.reason || e.Off != c.off {
			t.Errorf("%s: %v, want %q at %d", c.name, err, c.reason, c.off)
		}
		if len(b.Events) != 0 || b.HasTS || b.HasRank || b.BadRank || b.IsMap || b.TS != 0 {
			t.Errorf("%s: something is left of an undecodable batch, or of the one before", c.name)
		}
		if err := b.Decode(batchOf(stored())); err != nil || len(b.Events) != 1 {
			t.Errorf("%s: the next batch suffers: %v", c.name, err)
		}
	}
}

// Every proper prefix of a batch is undecodable, whatever is in it.
func TestEveryCut(t *testing.T) {
	p := batchOf(stored(5, "GPU", "l", list{list{list{"id", 1}}}, list{dict{"mm_objects", list{list{1, list{list{2, 3}}}}}}, 0, "full_attention"),
		named("cache_salt", "s", "token_ids", list{list{1, 2}, list{2, 3}}), list{"BlockRemoved", list{[]byte("12345678")}, nil, 0, nil, -1, "LOCAL"},
		list{"AllBlocksCleared", 1.5}, list{"Unheard", dict{"a", list{1}}}, 7)
	var b Batch
	for cut := range p {
		if err := b.Decode(p[:cut:cut]); err == nil {
			t.Errorf("the first %d of %d bytes pass for a batch", cut, len(p))
		}
	}
	if err := b.Decode(p); err != nil || len(b.Events) != 6 {
		t.Error(err)
	}
}

// No error or problem tells what was in the payload.
func TestErrorsTellNothing(t *testing.T) {
	secret := "planted-salt"
	var b Batch
	for _, p := range [][]byte{
		batchOf(named("cache_salt", list{secret})), batchOf(named("extra_keys", secret)), batchOf(list{"BlockStored", secret}),
		enc(list{1.5, secret}), enc(secret), append(batchOf(), 0)[:8], append(raw{0x92, 0x01, 0x91, 0xdb, 0, 0, 1, 0}, secret...),
	} {
		err := b.Decode(p)
		if err != nil && (strings.Contains(err.Error(), "planted") || !strings.HasPrefix(err.Error(), "decode: ")) {
			t.Error(err)
		}
		for i := range b.Events {
			if ev := &b.Events[i]; ev.Problem == "" || strings.Contains(ev.Problem+string(ev.Name), "planted") {
				t.Errorf("%q of %q", ev.Problem, ev.Name)
			}
		}
	}
}

func TestPeekTS(t *testing.T) {
	for _, c := range []struct {
		name    string
		payload []byte
		ts      float64
		ok      bool
	}{
		{"array", batchOf(stored()), 1.5, true},
		{"array, rest broken", raw{0x92, 0x07, 0xc1}, 7, true},
		{"negative", enc(list{-7, nil}), -7, true},
		{"float32", enc(list{raw{0xca, 0x3f, 0xc0, 0, 0}, nil}), 1.5, true},
		{"map", enc(dict{"ts", 1.5, "events", list{}}), 1.5, true},
		{"map, ts last", enc(dict{"events", list{stored(), named()}, 5, list{6}, nil, 1, "ts", 2.5}), 2.5, true},
		{"map, key as bytes", enc(dict{[]byte("ts"), 1.5}), 1.5, true},
		{"first of two", enc(dict{"ts", 1.5, "ts", 2.5}), 1.5, true},
		{"text", enc(list{"now", nil}), 0, false},
		{"nil", enc(list{nil, nil}), 0, false},
		{"NaN", enc(list{math.NaN(), nil}), 0, false},
		{"infinite", enc(list{math.Inf(-1), nil}), 0, false},
		{"map without ts", enc(dict{"events", list{}}), 0, false},
		{"ts behind the map", append(enc(dict{"a", 1}), enc(list{"ts", 1.5})[1:]...), 0, false},
		{"ts behind an empty map", append(enc(dict{}), enc(list{"ts", 1.5})[1:]...), 0, false},
		{"map, ts text", enc(dict{"ts", "x"}), 0, false},
		{"map, broken before ts", raw{0x82, 0xa1, 'x', 0xc1, 0xa2, 't', 's', 0x01}, 0, false},
		{"map, broken key", raw{0x81, 0xc1, 0x01}, 0, false},
		{"one element", enc(list{1.5}), 0, false},
		{"no batch", enc(1.5), 0, false},
		{"nothing", nil, 0, false},
		{"cut", raw{0x92, 0xcb, 0x41}, 0, false},
	} {
		if ts, ok := PeekTS(c.payload); ts != c.ts || ok != c.ok {
			t.Errorf("%s: %v %v, want %v %v", c.name, ts, ok, c.ts, c.ok)
		}
	}
}

func FuzzPeekTS(f *testing.F) {
	f.Add(batchOf(stored()))
	f.Add(enc(dict{"events", list{named()}, 4, nil, "ts", 2.5}))
	f.Fuzz(func(t *testing.T, p []byte) {
		fuzzlimit.Run(t, len(p), func() { PeekTS(p) })
		ts, ok := PeekTS(p)
		if math.IsNaN(ts) || math.IsInf(ts, 0) || !ok && ts != 0 {
			t.Fatalf("%v %v", ts, ok)
		}
		tree, deep, err := parse(p)
		if deep || err != nil {
			return
		}
		if want, isBatch := refBatch(tree); isBatch && !want.IsMap && (ts != want.TS || ok != want.HasTS) {
			t.Fatalf("%v %v, want %v %v", ts, ok, want.TS, want.HasTS)
		}
	})
}
